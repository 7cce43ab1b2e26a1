-- Between Lua values and the bytes of the native border: arguments on the way in, the result struct on the way out.
-- This is the path of every blocking call: no table and no closure is made here beyond what the values need.

local buffer = require('buffer')
local ffi = require('ffi')
local msgpack = require('msgpack')
local lerror = require('rawshard.error')
local native = require('rawshard.native')

-- A reloaded module finds the type defined.
if not pcall(ffi.typeof, 'struct rawshard_result') then
    ffi.cdef[[
        struct rawshard_result {
            const char *array;
            const char *data;
            const char *data_end;
            uint32_t count;
        };
    ]]
end

-- One for the whole process; the native half fills it right before a call returns.
local result = ffi.cast('struct rawshard_result *', native.result)

local new_ibuf = buffer.ibuf
local encode = msgpack.encode
-- The native half has checked the bytes, also what is inside of extensions: where `decode` looks there, it may crash itself.
local decode = msgpack.decode_unchecked
local is_object = msgpack.is_object or function() return false end
local make_error = lerror.make
local release, result_fault, begin_reading = native.release, native.result_fault, native.begin_reading
local native_raw_array, native_raw_value = native.raw_array, native.raw_value

-- Encoded arguments and results beyond it give their memory back at once instead of keeping it for the next call.
local BIG = native.big

-- The host's decoder recurses by its input and dies of some thousand levels, and it trusts what is inside of an extension.
-- So each result is looked at first; what is not fit for it is nil and an error.
local MAX_DEPTH = 1024
local FAULTS = {
    ('The result is nested deeper than %d levels, it can only be had with return_raw'):format(MAX_DEPTH),
    'The result has a MessagePack extension that is damaged or unknown, it can only be had with return_raw',
}

local seq_mt = {__serialize = 'seq'}

-- The buffer between two uses. Whoever encodes takes it away: a `__serialize` of the user may yield, and then another
-- fiber makes its own.
local spare

-- nil, or the buffer with a MessagePack array valid until the next yield and its length, or the object itself. The third value
-- is a buffer to recycle after the call, if there is one. Whether there is an array in it, the native half looks; what
-- cannot hold one at all raises `usage`. What has no MessagePack form gives nil, nil and an error, as vshard does not
-- raise for it either. `is_async`: the native half allocates before it copies, and a finalizer that calls something must not
-- encode into the same buffer meanwhile; so that comes as fourth value, to be given back when the call is sent.
local function encode_args(args, usage, is_async)
    if args == nil then
        return nil, 0
    end
    if is_object(args) then
        return args, 0
    end
    local kind = type(args)
    if kind ~= 'table' and not (kind == 'cdata' and box.tuple.is(args)) then
        error(usage, 0)
    end
    local buf = spare or new_ibuf()
    spare = nil
    buf.wpos = buf.rpos
    local ok, len = pcall(encode, args, buf)
    if not ok then
        spare = buf
        return nil, nil, make_error(len)
    end
    if len > BIG then
        return buf, len, buf
    end
    if is_async then
        return buf, len, nil, buf
    end
    spare = buf
    return buf, len
end

local function give_back(buf)
    spare = buf
end

local function finish(size, ok, ...)
    if size > BIG then
        release()
    end
    if ok then
        return ...
    end
    return nil, make_error((...))
end

-- Runs a decoder of values on the result, the first thing that allocates once `result_fault` has seen that this is ours: a
-- finalizer may have asked for another one. Its failure is nil and an error, although the user's function was executed:
-- decoding raises for a NaN as a key, an extension that this host does not know, or with Lua memory at its limit.
local function decoded(decoder, n)
    local size = result.data_end - result.data
    local fault = result_fault(MAX_DEPTH)
    if fault ~= 0 then
        return finish(size, false, FAULTS[fault])
    end
    return finish(size, pcall(decoder, n))
end

local function decode_first_or_error(n)
    local value, pos = decode(result.data)
    if value == nil and n > 1 then
        local err = decode(pos)
        if err ~= nil then
            return value, err
        end
    end
    return value
end

local function decode_up_to_three(n)
    local first, second, third, pos
    first, pos = decode(result.data)
    if first == nil then
        -- Not box.NULL, which is true where nil is false.
        first = nil
    end
    if n == 1 then
        return first, nil, nil
    end
    second, pos = decode(pos)
    if n > 2 then
        third = decode(pos)
    end
    return first, second, third
end

local function decode_all(n)
    local pos = result.data
    local values = setmetatable({}, seq_mt)
    for i = 1, n do
        values[i], pos = decode(pos)
    end
    return values
end

local function decode_one()
    return (decode(result.data))
end

-- The host's errors have names since 3.0, so have ours then.
local HOST_NAMES = {}
for _, name in ipairs({'NO_CONNECTION', 'TIMEOUT'}) do
    HOST_NAMES[box.error[name]] = box.error.new(box.error[name]):unpack().name
end

-- After a call answered -1.
local function failure()
    local err, complaint = decoded(decode_one, 1)
    err = make_error(err or complaint)
    if type(err) == 'table' then
        if err.name == nil and err.type == 'ClientError' then
            err.name = HOST_NAMES[err.code]
        elseif err.name == 'REPLICASET_IN_BACKOFF' then
            make_error(err.error)
        end
    end
    return err
end

-- What vshard's router gives for `n` values of a user function: the first one; if that is nil, the second as well,
-- for it is taken as an error.
local function first_or_error(n)
    if n == 0 then
        return nil
    end
    return decoded(decode_first_or_error, n)
end

-- What was pushed.
local function first_value()
    return decoded(decode_one, 1)
end

-- Three values, as vshard's replicasets give them: those that are not there are nil.
local function up_to_three(n)
    if n == 0 then
        return nil, nil, nil
    end
    return decoded(decode_up_to_three, n)
end

-- All values in a table, which net.box marks as an array.
local function all_values(n)
    return decoded(decode_all, n)
end

local function object_or_error(object, err)
    if object == nil then
        return nil, make_error(err)
    end
    return object
end

-- All values as one object. The host may look closer than we do and refuse it; the function was executed, so that is nil and
-- an error too.
local function raw_array()
    return object_or_error(native_raw_array())
end

-- The only value as an object.
local function raw_value()
    return object_or_error(native_raw_value())
end

-- Key IPROTO_DATA in a map of one.
local BODY_HEAD = '\x81\x30'

-- The answer's body as net.box puts it into a buffer: a map with the array of all values, or without header the array
-- alone. Gives the number of bytes.
local function into_buffer(buf, skip_header)
    local head = skip_header and 0 or #BODY_HEAD
    local array, data_end
    -- Each of these allocates, and a finalizer may ask for another answer.
    repeat
        begin_reading()
        array, data_end = result.array, result.data_end
    until array == result.array
    local size = data_end - array
    local at = buf:alloc(head + size)
    ffi.copy(at, BODY_HEAD, head)
    ffi.copy(at + head, array, size)
    if size > BIG then
        release()
    end
    return head + size
end

local function check_raw_supported()
    if not native.has_msgpack_object then
        error('return_raw needs msgpack.object, which Tarantool has since 2.10', 0)
    end
end

return {
    encode_args = encode_args,
    give_back = give_back,
    failure = failure,
    first_or_error = first_or_error,
    up_to_three = up_to_three,
    all_values = all_values,
    raw_array = raw_array,
    raw_value = raw_value,
    first_value = first_value,
    into_buffer = into_buffer,
    check_raw_supported = check_raw_supported,
}
