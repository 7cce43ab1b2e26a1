#!/usr/bin/env tarantool
-- The native half as it is: the border that lua/rawshard stands on, the stored function beside it, fibers that are woken,
-- cancelled and killed while they wait. The storage is this very process.

local fio = require('fio')
local root = fio.dirname(fio.dirname(fio.dirname(fio.abspath(arg[0]))))
local build = os.getenv('RAWSHARD_BUILD') or fio.pathjoin(root, 'build')
package.cpath = build .. '/?.so;' .. package.cpath
package.path = root .. '/lua/?.lua;' .. package.path

local ffi = require('ffi')
local fiber = require('fiber')
local msgpack = require('msgpack')
local netbox = require('net.box')
local tap = require('tap')
local version = require('rawshard.version')

local has_objects = msgpack.object ~= nil
local dir = fio.tempdir()
local socket = fio.pathjoin(dir, 'self.sock')

box.cfg({listen = 'unix/:' .. socket, work_dir = dir, wal_mode = 'none', log = fio.pathjoin(dir, 'log'), log_level = 5})
box.schema.user.grant('guest', 'super')
box.schema.func.create('rawshard.callraw', {language = 'C'})

-- The storage half. A call of `gate` stays until the gate is opened, and says so.
local gate, at_gate = fiber.cond(), 0
local functions = {
    echo = function(...) return ... end,
    gate = function(...)
        at_gate = at_gate + 1
        gate:wait()
        at_gate = at_gate - 1
        return ...
    end,
}
local function storage_call(_, _, func, args)
    return true, functions[func](unpack(args))
end
rawset(_G, 'vshard', {storage = {call = storage_call}})
rawset(_G, 'plain', function(...) return 'plain', ... end)

local function wait_until(what, condition)
    local deadline = fiber.clock() + 20
    while not condition() do
        if fiber.clock() > deadline then
            error('not within 20 s: ' .. what)
        end
        fiber.sleep(0.002)
    end
end

local function open()
    return assert(package.loadlib(build .. '/rawshard.so', 'luaopen_rawshard_native'))()
end

local self = netbox.connect('unix/:' .. socket)
-- What a client gets of the stored function: raised text, or the values. Before 3.0 they come as one array.
local function callraw(...)
    local res = {pcall(self.call, self, 'rawshard.callraw', {...})}
    if not res[1] then
        return tostring(res[2])
    end
    return _TARANTOOL < '3' and res[2] or {unpack(res, 2, table.maxn(res))}
end

local test = tap.test('host')
test:plan(19)

local NOT_CONFIGURED = "rawshard: no router is configured: call require('rawshard.router').cfg(...) first"
test:is(callraw(1, 'read', 'echo'), NOT_CONFIGURED, 'the stored function alone starts nothing')

local native = open()
test:test('the table', function(t)
    t:plan(5)
    t:is(native.version, version.VERSION, 'version')
    t:is(native.abi, version.ABI, 'abi')
    t:ok(native == open(), 'opened again it is the same')
    t:is(native.has_msgpack_object, has_objects, 'knows whether the host has msgpack.object')
    t:is(native.reads_msgpack_object_in_place, has_objects, 'and its layout')
end)

test:is(callraw(1, 'read', 'echo'), NOT_CONFIGURED, 'nor does the table')

local function cfg(changes)
    local replica = {id = 'r', unix = socket, is_master = true, zone_weight = math.huge}
    local res = {
        bucket_count = 10, discovery_mode = 'off',
        replicasets = {{id = 'rs', weight = 1, replicas = {replica}}},
    }
    for k, v in pairs(changes or {}) do
        res[k] = v
    end
    return res
end

test:test('configurations that are none', function(t)
    local cases = {
        {{bucket_count = 0}, 'cfg.bucket_count must be a positive integer'},
        {{bucket_count = 1.5}, 'cfg.bucket_count must be a non-negative integer'},
        {{io_threads = '1'}, 'cfg.io_threads must be a number'},
        {{discovery_mode = 'of'}, "discovery_mode must be 'on', 'off' or 'once', got 'of'"},
        {{failover_interval = 0}, 'cfg.failover_interval must be a positive number of seconds'},
        {{limits = {max_in_flight = -1}}, 'cfg.limits.max_in_flight must be a non-negative integer'},
        {{limits = {busy_poll = -1}}, 'cfg.limits.busy_poll must be a non-negative number of seconds'},
        {{replicasets = {1}}, 'cfg.replicasets[1] must be a table'},
        {{replicasets = {{}}}, 'cfg.replicasets[1].id must be a string'},
        {{replicasets = {{id = 'rs', replicas = {{id = 'r', host = 'h', port = 70000}}}}},
         'cfg.replicasets[1].replicas[1].port must be a port number'},
        {{replicasets = {{id = 'rs', replicas = {{id = 'r', unix = '/s', password = {'secret'}}}}}},
         'cfg.replicasets[1].replicas[1].password must be a string'},
    }
    t:plan(#cases)
    for _, case in ipairs(cases) do
        local ok, err = pcall(native.router_new, 'bad', cfg(case[1]))
        t:is_deeply({ok, err}, {false, case[2]}, case[2])
    end
end)

local id = native.router_new('test', cfg())
native.set_static(id)
for bucket = 1, 10 do
    native.bucket_set(id, bucket, 1)
end
wait_until('connected', function() return native.info(id).replicasets[1].instances[1].connected end)

ffi.cdef('struct rawshard_result { const char *array; const char *data; const char *data_end; uint32_t count; }')
local result = ffi.cast('struct rawshard_result *', native.result)

local function values()
    return (msgpack.decode(result.array, result.data_end - result.array))
end

local READ = 1
-- call_bucket with a Lua table of arguments.
local function call(func, args, timeout)
    local bytes = msgpack.encode(args)
    return native.call_bucket(id, 1, READ, func, ffi.cast('const char *', bytes), #bytes, timeout or 20)
end

local function raised(f, ...)
    local res = {pcall(f, ...)}
    return not res[1] and tostring(res[2]) or res
end

test:test('results', function(t)
    t:plan(11 + (has_objects and 4 or 0))
    t:is_deeply(callraw(1, 'read', 'echo', {1, 'two'}), {1, 'two'}, 'of the stored function')
    t:is_deeply({box.func['rawshard.callraw']:call({1, 'read', 'echo', {1, 'two'}})}, {1, 'two'}, 'called from Lua')
    t:is(call('echo', {1, 'two', {3}}), 3, 'their number')
    t:is_deeply(values(), {1, 'two', {3}}, 'their bytes')
    t:is(result.count, 3, 'counted')
    t:ok(result.array == result.data - 1, 'an array header in front of them')
    t:is(native.result_fault(1), 0, 'as deep as they are')
    t:is(native.result_fault(0), 1, 'and no deeper')
    t:is(native.call_bucket(id, 1, READ, 'echo', nil, nil, 20), 0, 'none')
    native.release()
    t:ok(result.array == nil, 'released')
    t:is(native.call_bucket(id, 1, READ, 'nothing of this name', nil, nil, 20), -1, 'a failure')
    if has_objects then
        local function decoded(...)
            local res = {...}
            for i = 1, select('#', ...) do
                res[i] = res[i] == nil and 'nil' or res[i]:decode()
            end
            return res
        end
        t:is_deeply(decoded(native.callraw(msgpack.object({1, 'read', 'echo', {1, box.NULL, {a = 1}}}))),
                    {1, 'nil', {a = 1}}, 'as objects')
        t:is_deeply(decoded(native.callraw(msgpack.object({1, 'read', 'echo'}))), {}, 'no objects')
        local failed = decoded(native.callraw(msgpack.object({1, 'read', 'nothing of this name'})))
        t:is_deeply({failed[1], type(failed[2])}, {'nil', 'table'}, 'nil and an object, the error')
        t:is(native.call_bucket(id, 1, READ, 'echo', msgpack.object({5}), nil, 20), 1, 'an object as arguments')
    end
end)

test:test('objects of results', function(t)
    if not has_objects then
        t:plan(1)
        t:skip('msgpack.object needs 2.10')
        return
    end
    local uuid = require('uuid')
    -- Maps have one key, so that their bytes are the same when they were decoded in between.
    local samples = {
        {'nothing'},
        {'scalars', 1, -1, 0.5, true, box.NULL, 'text', ('long text '):rep(40)},
        {'nested', {a = {b = {1, {2, {3}}}}}, {[5000] = {}}},
        {'extensions', 1, {uuid.fromstr('8a55a1a2-1e2a-4a51-8a5c-3ac5b1d6a3a7'), {deep = {uuid.new()}}}},
        {'a big one', ('x'):rep(100000)},
        {'an enormous one', ('y'):rep(3000000)},
        {'a small one again', 2},
    }
    t:plan(6 * #samples + 2)
    for _, sample in ipairs(samples) do
        local name, expected = sample[1], msgpack.encode(sample)
        t:is(call('echo', sample), #sample, name .. ': sent and returned')
        local object, err = native.raw_array()
        t:ok(msgpack.is_object(object) and err == nil, name .. ': an object')
        t:ok(object ~= nil and msgpack.encode(object) == expected, name .. ': its bytes')
        t:is(result.array == nil, #expected > 65536, name .. ': released at once if it is big')
        call('echo', {sample})
        object = native.raw_value()
        t:ok(object ~= nil and msgpack.encode(object) == expected, name .. ': the bytes of one value')
        t:is(result.array == nil, #expected > 65536, name .. ': released too')
    end
    -- The collector runs while an object is made, and what it runs may make objects itself.
    local expected, made, right, finalized = msgpack.encode(samples[3]), 0, 0, 0
    call('echo', samples[3])
    local function make()
        made = made + 1
        local is_right = msgpack.encode(native.raw_array()) == expected
        right = right + (is_right and 1 or 0)
    end
    local function finalize()
        finalized = finalized + 1
        make()
    end
    while finalized < 2000 and made < 1e6 do
        getmetatable(newproxy(true)).__gc = finalize
        make()
    end
    -- None of them is left for what follows.
    collectgarbage()
    collectgarbage()
    t:ok(finalized >= 2000, 'finalizers have made objects')
    t:is(right, made, 'all of them hold the right bytes')
end)

-- What decodes allocates, so that a user's finalizers run in the middle of it. What these ask for does not take its bytes away.
test:test('an answer that is read while finalizers ask for others', function(t)
    t:plan(3)
    local function future(...)
        local bytes = msgpack.encode({...})
        return native.future_bucket(id, 1, READ, 'echo', ffi.cast('const char *', bytes), #bytes, 20, nil, 2)
    end
    local small = future('small', 1)
    wait_until('an answer', function() return native.future_is_ready(small) end)
    local many = {}
    for i = 1, 30000 do
        many[i] = {i}
    end
    local dirt = ('\xc1'):rep(#msgpack.encode({many}) - 10)
    local asked, wrong = 0, 0
    local function ask()
        asked = asked + 1
        native.future_result(small)
        if asked % 300 == 0 then
            -- Where the answer lay, if that is anybody's.
            future(dirt)
        end
    end
    for _ = 1, 10 do
        for _ = 1, 3000 do
            getmetatable(newproxy(true)).__gc = ask
        end
        call('echo', {many})
        local value = msgpack.decode_unchecked(result.data)
        for i = 1, #many do
            wrong = wrong + (type(value[i]) == 'table' and value[i][1] == i and 0 or 1)
        end
    end
    collectgarbage()
    collectgarbage()
    t:ok(asked >= 10000, 'finalizers have asked')
    t:is(wrong, 0, 'all values are right')
    call('echo', {1, 2})
    t:is_deeply(values(), {1, 2}, 'the next answer')
end)

test:test('an answer that is read after finalizers have asked for others', function(t)
    local codec, buffer = require('rawshard.codec'), require('buffer')
    local methods = require('rawshard.future') and native.future_mt.__index
    local function future(...)
        local bytes = msgpack.encode({...})
        return native.future_bucket(id, 1, READ, 'echo', ffi.cast('const char *', bytes), #bytes, 20, nil, 2)
    end
    local asked, right = 0, 0
    local others = {future({'other'}, 1), future(('x'):rep(100000), 2)}
    for _, other in ipairs(others) do
        wait_until('an answer', function() return native.future_is_ready(other) end)
    end
    local function ask()
        for i, other in ipairs(others) do
            asked = asked + 1
            right = right + (methods.result(other)[2] == i and 1 or 0)
        end
    end
    local function collect()
        for _ = 1, 3 do
            getmetatable(newproxy(true)).__gc = ask
        end
        collectgarbage()
        collectgarbage()
    end
    local buf = buffer.ibuf()
    local ways = {
        ['all values'] = {{1, 'two', {3}}, codec.all_values},
        ['the first value'] = {{{a = 1}}, function(n) return {codec.first_or_error(n)} end},
        ['three values'] = {{{1}, {2}, {3}}, function(n) return {codec.up_to_three(n)} end},
        ['a big value'] = {{('big'):rep(50000)}, codec.all_values},
        ['bytes in a buffer'] = {{1, ('bytes'):rep(100)}, function()
            local len = codec.into_buffer(buf, true)
            local bytes = ffi.string(buf.rpos, len)
            buf:reset()
            return msgpack.decode(bytes)
        end},
        ['an object'] = has_objects and {{1, {2}}, function() return codec.raw_array():decode() end} or nil,
    }
    local count = 0
    for _ in pairs(ways) do
        count = count + 1
    end
    t:plan(2 * count + 2)
    for name, way in pairs(ways) do
        for _, finds in ipairs({'', ', once more'}) do
            local n = call('echo', way[1])
            collect()
            t:is_deeply(way[2](n), way[1], name .. finds)
        end
    end
    t:ok(asked >= 12 * count, 'finalizers have asked')
    t:is(right, asked, 'and got what they asked for')
end)

test:test('arguments that are sent while finalizers send others', function(t)
    t:plan(3)
    local codec = require('rawshard.codec')
    local methods = require('rawshard.future') and native.future_mt.__index
    local function send(...)
        local data, len, _, lent = codec.encode_args({...}, 'usage', true)
        local future = native.future_bucket(id, 1, READ, 'echo', data, len, 20, nil, 2)
        if lent ~= nil then
            codec.give_back(lent)
        end
        return future
    end
    local sent, wrong = 0, 0
    local function finalize()
        sent = sent + 1
        native.future_detach(send('finalizer', ('f'):rep(sent % 50)))
    end
    local pause, multiplier = collectgarbage('setpause', 100), collectgarbage('setstepmul', 1000)
    for round = 1, 20 do
        local futures = {}
        for i = 1, 500 do
            getmetatable(newproxy(true)).__gc = finalize
            futures[i] = send(round, i, ('x'):rep(i % 70))
        end
        for i = 1, 500 do
            local res, err = methods.wait_result(futures[i], 20)
            local is_right = err == nil and res[1] == round and res[2] == i and res[3] == ('x'):rep(i % 70)
            wrong = wrong + (is_right and 0 or 1)
        end
    end
    collectgarbage('setpause', pause)
    collectgarbage('setstepmul', multiplier)
    collectgarbage()
    collectgarbage()
    t:ok(sent > 5000, 'finalizers have sent')
    t:is(wrong, 0, 'all answers are right')
    wait_until('theirs have ended', function() return native.info(id).waiters.used == 0 end)
    t:is(native.info(id).waiters.used, 0, 'nothing is left')
end)

-- The collector may find a future while Lua reads its answer: the last use of the future is asking for it.
test:test('an answer that is read when its future is gone', function(t)
    local function future(func, ...)
        local bytes = msgpack.encode({...})
        return native.future_bucket(id, 1, READ, func, ffi.cast('const char *', bytes), #bytes, 20, nil, 2)
    end
    local ways = {
        waited = function(f) return native.future_wait(f, 20) end,
        looked = function(f)
            wait_until('an answer', function() return native.future_is_ready(f) end)
            return native.future_result(f)
        end,
        detached = function(f)
            local n = native.future_wait(f, 20)
            native.future_detach(f)
            return n
        end,
    }
    t:plan(3 * 4 + 1)
    local text = ('text'):rep(100)
    for name, way in pairs(ways) do
        t:is(way(future('echo', 1, text)), 2, name .. ': the number of its values')
        collectgarbage()
        collectgarbage()
        -- Buffers that were given back are used by the next requests.
        local others = {}
        for i = 1, 100 do
            others[i] = future('echo', ('other'):rep(100))
        end
        t:ok(result.array ~= nil, name .. ': shown')
        t:is_deeply(result.array ~= nil and values(), {1, text}, name .. ': its bytes')
        for i = 1, 100 do
            native.future_wait(others[i], 20)
        end
        others = nil -- luacheck: ignore 311
        collectgarbage()
        native.release()
        t:ok(result.array == nil, name .. ': released')
    end
    -- The same through the whole of Lua: decoding a value of some size takes the collector round several times.
    local methods = require('rawshard.future') and native.future_mt.__index
    local big = {}
    for i = 1, 20000 do
        big[i] = {i}
    end
    local wrong = 0
    for _ = 1, 5 do
        local res = methods.wait_result(future('echo', big), 20)
        for i = 1, #big do
            wrong = wrong + (res[1][i][1] == i and 0 or 1)
        end
    end
    t:is(wrong, 0, 'decoded')
    wait_until('all futures are collected', function()
        collectgarbage()
        return native.info(id).waiters.used == 0
    end)
end)

test:test('what is asked often', function(t)
    t:plan(8)
    t:is(native.master(id, 1), 1, 'a master')
    t:is(native.is_connected(id, 1, 1), true, 'connected')
    t:is(select('#', native.is_connected(id, 1, 1)), 1, 'one value is no more')
    t:is(native.known_buckets(id, 1), 10, 'buckets')
    native.bucket_set(id, 3, nil)
    t:is(native.known_buckets(id, 1), 9, 'but one')
    native.bucket_set(id, 3, 1)
    t:is(native.master(id, 2), nil, 'a replicaset that is not there')
    t:is_deeply({native.is_connected(id, 1, 2), native.is_connected(id, 2, 1), native.is_connected(id, 0, 0)},
                {false, false, false}, 'an instance that is not there')
    t:is(native.known_buckets(id, 2), 0, 'no buckets')
end)

test:test('other targets', function(t)
    t:plan(4)
    t:is(native.call_replicaset(id, 1, 0, 'plain', nil, nil, 20), 1, 'a replicaset')
    t:is(native.call_instance(id, 1, 1, 'plain', nil, nil, 20), 1, 'an instance')
    t:is_deeply(values(), {'plain'}, 'all that the function returned')
    t:is(native.route(id, 1, 20), 1, 'a route')
end)

test:test('arguments that are none', function(t)
    local bytes = msgpack.encode({1, 2})
    local pointer = ffi.cast('const char *', bytes)
    local cases = {
        {'id must be a number', native.call_bucket},
        {'rawshard: router 7 is stopped', native.call_bucket, 7, 1, 0, 'f', nil, nil, 1},
        {'bucket_id must be an integer from 1 to 10, got 11', native.call_bucket, id, 11, 0, 'f', nil, nil, 1},
        {'bucket_id must be an integer from 1 to 10, got 1.5', native.call_bucket, id, 1.5, 0, 'f', nil, nil, 1},
        {'func must be a string', native.call_bucket, id, 1, 0, 5, nil, nil, 1},
        {'args must be nil, a msgpack.object, or a pointer to or an ibuf of MessagePack',
         native.call_bucket, id, 1, 0, 'f', bytes, #bytes, 1},
        {'args must be nil, a msgpack.object, or a pointer to or an ibuf of MessagePack',
         native.call_bucket, id, 1, 0, 'f', ffi.new('int[1]'), 4, 1},
        {'rawshard: arguments: the bytes end in the middle of a value',
         native.call_bucket, id, 1, 0, 'f', pointer, #bytes - 1, 1},
        {'rawshard: arguments: expected an array', native.call_bucket, id, 1, 0, 'f', pointer + 1, 1, 1},
        {'timeout must be a number', native.call_bucket, id, 1, 0, 'f', nil, nil, '1'},
        {'rawshard: there is no replicaset 2', native.call_replicaset, id, 2, 0, 'f', nil, nil, 1},
        {'rawshard: there is no instance 2 in replicaset 1', native.call_instance, id, 1, 2, 'f', nil, nil, 1},
        {has_objects and 'callraw: expected one msgpack.object, as takes_raw_args gives it'
         or 'callraw: msgpack.object needs Tarantool 2.10 or newer', native.callraw, 5},
    }
    t:plan(#cases + 1)
    for _, case in ipairs(cases) do
        t:is(raised(unpack(case, 2, table.maxn(case))), case[1], case[1])
    end
    t:is(callraw('1', nil, 'echo'),
         "callraw: argument 1 (bucket_id): expected an unsigned integer from 1 to 10, got string '1'", 'raw ones')
end)

test:test('time', function(t)
    t:plan(4)
    for _, timeout in ipairs({0, -1, 0 / 0, 0.01}) do
        t:is(call('gate', {}, timeout), -1, 'over: ' .. timeout)
    end
    gate:broadcast()
end)

local function used()
    local info = native.info(id)
    return info.waiters.used, info.slab.used
end

local function start(func, ...)
    local res = {}
    local f = fiber.new(function(...) res.values = {pcall(func, ...)} end, ...)
    f:set_joinable(true)
    return f, res
end

local service = {}
local function find_service()
    service = {}
    for fid, info in pairs(fiber.info()) do
        if info.name:find('^rawshard') then
            table.insert(service, fid)
        end
    end
    return #service
end

test:test('a cancelled fiber', function(t)
    t:plan(6)
    local f, res = start(call, 'gate', {})
    local g, raw = start(box.func['rawshard.callraw'].call, box.func['rawshard.callraw'], {1, 'read', 'gate'})
    wait_until('calls at the gate', function() return at_gate == 2 end)
    t:is(used(), 2, 'two wait')
    f:cancel()
    g:cancel()
    f:join()
    g:join()
    t:is_deeply({res.values[1], tostring(res.values[2])}, {false, 'fiber is cancelled'}, 'raises the error of the host')
    t:is_deeply({raw.values[1], tostring(raw.values[2])}, {false, 'fiber is cancelled'}, 'in the stored function too')
    t:is(used(), 0, 'its slot is free')
    wait_until('the engine has dropped them', function() return select(2, used()) == 0 end)
    gate:broadcast()
    wait_until('late answers', function() return at_gate == 0 end)
    t:is(call('echo', {'next'}), 1, 'a late answer is nobody else’s')
    t:is_deeply(values(), {'next'}, 'nobody’s at all')
end)

test:test('wake-ups of others', function(t)
    t:plan(2)
    local f, res = start(function() return call('gate', {'mine'}), values() end)
    wait_until('a call at the gate', function() return at_gate == 1 end)
    for _ = 1, 10 do
        f:wakeup()
        fiber.yield()
    end
    t:is(res.values, nil, 'end nothing')
    gate:broadcast()
    f:join()
    t:is_deeply(res.values, {true, 1, {'mine'}}, 'its own answer does')
end)

test:test('the fiber between the engines and the others is killed', function(t)
    t:plan(5)
    local f, res = start(function() return call('gate', {'mine'}), values() end)
    wait_until('a call at the gate', function() return at_gate == 1 end)
    t:ok(find_service() > 0, 'it is there')
    local old = service
    for _, fid in ipairs(old) do
        fiber.kill(fid)
    end
    wait_until('the killed have ended', function()
        for _, fid in ipairs(old) do
            if fiber.find(fid) ~= nil then
                return false
            end
        end
        return true
    end)
    gate:broadcast()
    f:join()
    t:is_deeply(res.values, {true, 1, {'mine'}}, 'a waiting call has its answer from the next one')
    find_service()
    for _, fid in ipairs(service) do
        fiber.kill(fid)
    end
    t:is(call('echo', {1}), 1, 'killed while nobody waits: the next call starts it')
    t:is(call('echo', {1}), 1, 'once')
    -- The first of each round starts it, with its arguments still in the connection's input.
    local wrong = 0
    for round = 1, 50 do
        find_service()
        for _, fid in ipairs(service) do
            fiber.kill(fid)
        end
        local futures = {}
        for i = 1, 20 do
            local args = {1, 'read', 'echo', {round * 100 + i, ('text'):rep(1000)}}
            futures[i] = self:call('rawshard.callraw', args, {is_async = true})
        end
        for i = 1, 20 do
            local got = futures[i]:wait_result(20)
            got = _TARANTOOL < '3' and got[1] or got
            wrong = wrong + (got[1] == round * 100 + i and #got[2] == 4000 and 0 or 1)
        end
    end
    t:is(wrong, 0, 'started by the stored function: no arguments are lost')
end)

test:test('20 000 fibers', function(t)
    t:plan(3)
    local N, good, ended = 20000, 0, 0
    for i = 1, N do
        fiber.create(function()
            if call('echo', {i}, 60) == 1 and values()[1] == i then
                good = good + 1
            end
            ended = ended + 1
        end)
    end
    wait_until('all have ended', function() return ended == N end)
    t:is(good, N, 'each has its own answer')
    t:is(used(), 0, 'all slots are free')
    t:ok(native.info(id).waiters.peak >= N, 'they waited at once')
end)

test:test('the end', function(t)
    t:plan(8)
    native.set_enabled(id, false)
    t:is(callraw(1, 'read', 'echo'), 'Router is disabled: router is disabled explicitly', 'disabled')
    native.set_enabled(id, true)
    t:is_deeply(callraw(1, 'read', 'echo', {1}), {1}, 'enabled')
    local f, res = start(call, 'gate', {})
    wait_until('a call at the gate', function() return at_gate == 1 end)
    native.stop_all()
    f:join()
    t:is_deeply(res.values, {true, -1}, 'a waiting call fails')
    t:is(raised(call, 'echo', {}), 'rawshard: router 1 is stopped', 'a new one is refused')
    t:is(callraw(1, 'read', 'echo'), 'rawshard: router 1 is stopped', 'a raw one too')
    t:is(raised(native.info, id), 'rawshard: router 1 is stopped', 'nothing to tell')
    native.stop_all()
    t:ok(true, 'stopped again')
    local threads = fio.listdir('/proc/self/task')
    local left = 0
    for _, task in ipairs(threads or {}) do
        local file = io.open('/proc/self/task/' .. task .. '/comm')
        if file ~= nil then
            left = left + (file:read('*l'):find('^rawshard') and 1 or 0)
            file:close()
        end
    end
    t:is(left, 0, 'no thread is left')
    gate:broadcast()
end)

fio.rmtree(dir)
os.exit(test:check() and 0 or 1)
