-- Futures: what a call with `is_async` gives. Each is a userdata made by the native half, which keeps the call and its
-- answer; it has no fields of its own. Results are decoded when they are asked for, each time anew.

local codec = require('rawshard.codec')
local lerror = require('rawshard.error')
local native = require('rawshard.native')

local failure, first_or_error, all_values, raw_array =
    codec.failure, codec.first_or_error, codec.all_values, codec.raw_array
local future_is_ready, future_result, future_wait = native.future_is_ready, native.future_result, native.future_wait
local future_discard = native.future_discard

-- Shapes, made with a future and given back with its answer. FIRST: of a function behind vshard.storage.call, the first
-- value in a table, or nil and its error. ALL: everything that the function returned, as net.box has it.
local FIRST, FIRST_RAW, ALL, ALL_RAW = 0, 1, 2, 3

-- Instead of a count of values. SCALAR: the first value, decoded already, follows.
local FAILED, NOT_READY, DISCARDED, SCALAR = -1, -2, -3, -5

local WAIT_USAGE = 'Usage: future:wait_result([timeout: number])'

local seq_mt = {__serialize = 'seq'}

local function unwrap(n, shape, value)
    if n == SCALAR then
        return setmetatable({value}, seq_mt)
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
            return setmetatable({value}, seq_mt)
        end
        if shape == ALL then
            return all_values(n)
        end
        return raw_array()
    end
    if n == FAILED then
        return nil, failure()
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

-- Waits for `timeout` seconds, or without end. A negative one is over, whether the answer is there or not, as in vshard.
function methods.wait_result(self, timeout)
    if timeout ~= nil then
        if type(timeout) ~= 'number' then
            error(WAIT_USAGE, 0)
        end
        if timeout < 0 then
            future_is_ready(self)
            return nil, lerror.timeout()
        end
    else
        -- Not box.NULL.
        timeout = nil
    end
    local n, shape, value = future_wait(self, timeout)
    if n == NOT_READY then
        return nil, lerror.timeout()
    end
    return unwrap(n, shape, value)
end

-- Nobody wants the answer any more: the call is given up, those that wait for it are told. An answer that has come stays.
methods.discard = future_discard

-- The final answer is the only step: storages' pushes are not forwarded.
local function next_answer(iter, i)
    if i > 0 then
        return nil, nil
    end
    local timeout = iter.timeout
    if timeout ~= nil and timeout < 0 then
        return nil, lerror.timeout()
    end
    local n, shape, value = future_wait(iter.future, timeout)
    if n == NOT_READY then
        return nil, lerror.timeout()
    end
    local res, err = unwrap(n, shape, value)
    if res == nil then
        return 1, {nil, err}
    end
    return 1, res
end

function methods.pairs(self, timeout)
    if timeout ~= nil and type(timeout) ~= 'number' then
        error('Usage: future:pairs([timeout: number])', 0)
    end
    future_is_ready(self)
    return next_answer, {future = self, timeout = timeout ~= nil and timeout or nil}, 0
end

-- Encoders look here for it. A future has nothing to show.
function methods.__serialize()
    return setmetatable({}, {__serialize = 'map'})
end

-- One metatable for all futures of the process, also those of before a reload.
local future_mt = native.future_mt
future_mt.__index = methods
future_mt.__metatable = 'vshard.net.box.request'
function future_mt.__tostring()
    return 'vshard.net.box.request'
end

return {
    FIRST = FIRST,
    FIRST_RAW = FIRST_RAW,
    ALL = ALL,
    ALL_RAW = ALL_RAW,
    detach = native.future_detach,
}
