-- Futures: what a call with `is_async` gives. Each is a userdata made by the native half, which keeps the call and its
-- answer; it has no fields of its own. Results are decoded when they are asked for, each time anew.

local codec = require('rawshard.codec')
local lerror = require('rawshard.error')
local native = require('rawshard.native')

local failure, first_or_error, all_values, raw_array =
    codec.failure, codec.first_or_error, codec.all_values, codec.raw_array
local future_is_ready, future_result, future_wait = native.future_is_ready, native.future_result, native.future_wait
local future_wait_push, future_take_push, future_discard =
    native.future_wait_push, native.future_take_push, native.future_discard

-- Shapes, made with a future and given back with its answer. FIRST: of a function behind vshard.storage.call, the first
-- value in a table, or nil and its error. ALL: everything that the function returned, as net.box has it.
local FIRST, FIRST_RAW, ALL, ALL_RAW = 0, 1, 2, 3

-- Instead of a count of values. SCALAR: the first value, decoded already, follows. PUSHED: there is something pushed to look at.
local FAILED, NOT_READY, DISCARDED, SCALAR, PUSHED = -1, -2, -3, -5, -6

local WAIT_USAGE = 'Usage: future:wait_result([timeout: number])'

local seq_mt = {__serialize = 'seq'}

-- Copies a table of one slot; `{value}` would make room for two.
local function table_of(value)
    local values = {false}
    values[1] = value
    return setmetatable(values, seq_mt)
end

-- Errors of the shapes ALL are the host's objects, as net.box has them, unless `keeps_maps`.
local function unwrap(n, shape, value, keeps_maps)
    if n == SCALAR then
        return table_of(value)
    end
    if n >= 0 then
        if shape == FIRST then
            local err
            if n > 0 then
                value, err = first_or_error(n)
            end
            if value == nil and err ~= nil then
                return nil, lerror.make(err)
            end
            return table_of(value)
        end
        if shape == ALL then
            return all_values(n)
        end
        return raw_array()
    end
    if n == FAILED then
        if keeps_maps or shape == FIRST or shape == FIRST_RAW then
            return nil, failure()
        end
        return nil, lerror.to_box(failure())
    end
    if n == NOT_READY then
        return nil, lerror.make('Response is not ready')
    end
    if n == DISCARDED then
        return nil, lerror.make('Response is discarded')
    end
    return nil, lerror.make('Response will not come: the router is stopped')
end

local methods = {}

-- Whether result() has something to tell: the answer, or why there will be none.
methods.is_ready = future_is_ready

function methods.result(self)
    return unwrap(future_result(self))
end

-- NOT_READY when the time is over. A negative time is, whether the answer is there or not, as in vshard.
local function wait(self, timeout)
    if timeout ~= nil then
        if type(timeout) ~= 'number' then
            error(WAIT_USAGE, 0)
        end
        if timeout < 0 then
            future_is_ready(self)
            return NOT_READY
        end
    else
        -- Not box.NULL.
        timeout = nil
    end
    return future_wait(self, timeout)
end

-- Waits for `timeout` seconds, or without end.
function methods.wait_result(self, timeout)
    local n, shape, value = wait(self, timeout)
    if n == NOT_READY then
        return nil, lerror.timeout()
    end
    return unwrap(n, shape, value)
end

-- The same for ourselves: errors are the maps that they came as.
local function wait_result(self, timeout)
    local n, shape, value = wait(self, timeout)
    if n == NOT_READY then
        return nil, lerror.timeout()
    end
    return unwrap(n, shape, value, true)
end

-- Nobody wants the answer any more: the call is given up, those that wait for it are told. An answer that has come stays.
methods.discard = future_discard

-- One value as a rule; what an object holds where results are objects.
local function pushed(shape)
    if shape == FIRST_RAW or shape == ALL_RAW then
        return codec.raw_value()
    end
    return codec.first_value()
end

-- Step `i` is the i-th push, the answer the last one.
local function next_step(iter, i)
    if i == iter.last then
        return nil, nil
    end
    local timeout = iter.timeout
    if timeout ~= nil and timeout < 0 then
        return nil, lerror.timeout()
    end
    i = i + 1
    local n, shape, value = future_wait_push(iter.future, i, timeout)
    if n == NOT_READY then
        return nil, lerror.timeout()
    end
    local res, err
    if n == PUSHED then
        res, err = pushed(shape)
        if err ~= nil then
            return i, {nil, err}
        end
        return i, res
    end
    iter.last = i
    res, err = unwrap(n, shape, value)
    if res == nil and (shape == ALL or shape == ALL_RAW) then
        -- As net.box.
        return i, err
    end
    if res == nil then
        return i, {nil, err}
    end
    return i, res
end

function methods.pairs(self, timeout)
    if timeout ~= nil and (type(timeout) ~= 'number' or timeout < 0) then
        error('Usage: future:pairs(timeout)', 0)
    end
    future_is_ready(self)
    return next_step, {future = self, timeout = timeout ~= nil and timeout or nil}, 0
end

-- Waits for the answer of a blocking call with special options, hands what is pushed before to `on_push`, in this fiber, and
-- keeps none of it. Gives what a blocking native gives: the number of values that are shown, negative after a failure. The
-- future has a shape without scalars, and nobody else has it.
local function wait_for(self, special)
    local on_push = special.on_push or function() end
    while true do
        local n, shape = future_take_push(self)
        if n ~= PUSHED then
            if n == FAILED or n >= 0 then
                return n
            end
            error(select(2, unwrap(n)), 0)
        end
        local value, err = pushed(shape)
        local ok, raised = pcall(on_push, special.on_push_ctx, err == nil and value or err)
        if not ok then
            future_discard(self)
            error(raised, 0)
        end
    end
end

-- Encoders look here for it. A future has nothing to show.
function methods.__serialize()
    return {}
end

-- One metatable for all futures of the process, also those of before a reload.
local future_mt = native.future_mt
future_mt.__index = methods
future_mt.__metatable = 'vshard.net.box.request'
function future_mt.__tostring()
    return 'vshard.net.box.request'
end

-- A future whose answer goes into a buffer of the caller, undecoded, when somebody sees that it is there. Made of one with
-- the shape ALL.
local buffered = {}

-- The number of bytes; the first time they are copied.
local function land(self, n)
    if n >= 0 then
        self._size = self._size or codec.into_buffer(self._buffer, self._skip_header)
        return self._size
    end
    return unwrap(n, ALL)
end

function buffered.is_ready(self)
    local is_ready = future_is_ready(self._future)
    if is_ready then
        land(self, (future_result(self._future)))
    end
    return is_ready
end

function buffered.result(self)
    return land(self, (future_result(self._future)))
end

function buffered.wait_result(self, timeout)
    local n = wait(self._future, timeout)
    if n == NOT_READY then
        return nil, lerror.timeout()
    end
    return land(self, n)
end

function buffered.discard(self)
    return future_discard(self._future)
end

function buffered.pairs()
    error('future:pairs() is not for a call with the option "buffer"', 0)
end

local buffered_mt = {__index = buffered, __tostring = future_mt.__tostring, __serialize = methods.__serialize}

local function into_buffer(self, special)
    return setmetatable({_future = self, _buffer = special.buffer, _skip_header = special.skip_header}, buffered_mt)
end

return {
    FIRST = FIRST,
    FIRST_RAW = FIRST_RAW,
    ALL = ALL,
    ALL_RAW = ALL_RAW,
    detach = native.future_detach,
    wait_result = wait_result,
    into_buffer = into_buffer,
    wait_for = wait_for,
}
