-- The native border without a native half: remembers what it was asked and answers what it was told. For unit tests of
-- the Lua half only.

local ffi = require('ffi')
local msgpack = require('msgpack')
local version = require('rawshard.version')

ffi.cdef[[
    struct rawshard_result {
        const char *array;
        const char *data;
        const char *data_end;
        uint32_t count;
    };
]]

local result = ffi.new('struct rawshard_result')

local fake = {
    version = version.VERSION,
    abi = version.ABI,
    result = ffi.cast('struct rawshard_result *', result),
    -- Arguments of the last call of each function, and of all of them in order.
    last = {},
    log = {},
    -- What the next calls answer: function name -> function(...) giving a list, {failure = map}, or
    -- {bytes =, n =}.
    answers = {},
    state = nil,
    next_id = 1,
    anchor = nil,
}

local function put_bytes(bytes, header_len, count)
    fake.anchor = bytes
    result.array = bytes
    result.data = result.array + header_len
    result.data_end = result.array + #bytes
    result.count = count
end

local function put_answer(answer)
    if answer.failure ~= nil then
        put_bytes(msgpack.encode(answer.failure), 0, 1)
        return -1
    end
    if answer.bytes ~= nil then
        put_bytes(string.char(0x90 + answer.n) .. answer.bytes, 1, answer.n)
        return answer.n
    end
    local count = answer.n or #answer
    assert(count < 16)
    local parts = {string.char(0x90 + count)}
    for i = 1, count do
        local value = answer[i]
        if value == nil then
            value = box.NULL
        end
        parts[i + 1] = msgpack.encode(value)
    end
    put_bytes(table.concat(parts), 1, count)
    return count
end

local function bytes_of(args, len)
    if args == nil then
        return nil
    end
    if type(args) == 'userdata' then
        return args:decode()
    end
    return msgpack.decode(ffi.string(args.rpos, len))
end

local function note(name, fields)
    fields.name = name
    fake.last[name] = fields
    table.insert(fake.log, fields)
end

local function answer(name, ...)
    local planned = fake.answers[name]
    return put_answer(planned == nil and {} or planned(...))
end

function fake.call_bucket(id, bucket, flags, func, args, args_len, timeout, request_timeout)
    note('call_bucket', {id = id, bucket = bucket, flags = flags, func = func, args = bytes_of(args, args_len),
                         timeout = timeout, request_timeout = request_timeout})
    return answer('call_bucket', fake.last.call_bucket)
end

function fake.call_replicaset(id, rs, flags, func, args, args_len, timeout, request_timeout)
    note('call_replicaset', {id = id, rs = rs, flags = flags, func = func, args = bytes_of(args, args_len),
                             timeout = timeout, request_timeout = request_timeout})
    return answer('call_replicaset', fake.last.call_replicaset)
end

function fake.call_instance(id, rs, i, func, args, args_len, timeout)
    note('call_instance', {id = id, rs = rs, i = i, func = func, args = bytes_of(args, args_len), timeout = timeout})
    return answer('call_instance', fake.last.call_instance)
end

-- A future is the answer that its call would have given; it is ready at once.
fake.future_mt = {}
local calls = {bucket = 'call_bucket', replicaset = 'call_replicaset', instance = 'call_instance'}
for name, call in pairs(calls) do
    fake['future_' .. name] = function(...)
        local shape = select(name == 'instance' and 8 or 9, ...)
        local args = {...}
        return setmetatable({run = function() return fake[call](unpack(args, 1, 8)) end, shape = shape}, fake.future_mt)
    end
end

function fake.future_is_ready()
    return true
end

function fake.future_result(future)
    return future.run(), future.shape
end

fake.future_wait = fake.future_result

function fake.future_discard() end
fake.future_detach = fake.future_discard

function fake.router_new(name, cfg)
    note('router_new', {router = name, cfg = cfg})
    if fake.answers.router_new ~= nil then
        fake.answers.router_new(cfg)
    end
    fake.next_id = fake.next_id + 1
    return fake.next_id - 1
end

function fake.router_cfg(id, cfg)
    note('router_cfg', {id = id, cfg = cfg})
    if fake.answers.router_cfg ~= nil then
        fake.answers.router_cfg(cfg)
    end
end

function fake.cfg_check() end

-- How often the whole was asked for, which looks at every bucket.
fake.infos = 0

function fake.info()
    fake.infos = fake.infos + 1
    return fake.state
end

function fake.master(_, rs)
    return fake.state.replicasets[rs].master
end

function fake.is_connected(_, rs, i)
    return fake.state.replicasets[rs].instances[i].connected
end

function fake.known_buckets(_, rs)
    return fake.state.buckets[rs]
end

function fake.route(_, bucket)
    local rs = fake.answers.route(bucket)
    return type(rs) == 'number' and rs or put_answer(rs)
end

function fake.bucket_get(_, bucket)
    return fake.answers.bucket_get(bucket)
end

function fake.result_fault()
    return fake.fault or 0
end

fake.big = 64 * 1024
fake.has_msgpack_object = msgpack.object ~= nil

function fake.raw_array()
    return msgpack.object_from_raw(result.array, result.data_end - result.array)
end

function fake.raw_value()
    return msgpack.object_from_raw(result.data, result.data_end - result.data)
end

function fake.begin_reading() end

function fake.release()
    fake.released = (fake.released or 0) + 1
end

-- As far as the connection tells: 0 GREEN, 3 RED.
function fake.instance_health(...)
    return fake.is_connected(...) and 0 or 3
end

function fake.stop_all() end

for _, name in ipairs({'router_stop', 'prepare', 'set_static', 'discovery_wakeup', 'discovery_set', 'master_search_wakeup',
                       'route_map_clear', 'bucket_set'}) do
    fake[name] = function(...)
        note(name, {...})
    end
end

return fake
