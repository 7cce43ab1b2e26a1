#!/usr/bin/env tarantool
-- The public API over a fake native half: arguments, order of checks, shapes of results, life of router objects.

package.path = 'lua/?.lua;lua/?/init.lua;test/unit/?.lua;' .. package.path

local json = require('json')
local fiber = require('fiber')
local msgpack = require('msgpack')
local tap = require('tap')

local fake = require('helper.fake_native')
package.loaded['rawshard.native'] = fake
local router = require('rawshard.router')

local test = tap.test('router')
test:plan(16)

local function config(patch)
    local cfg = {
        box_cfg_mode = 'manual',
        bucket_count = 100,
        sharding = {
            rs1 = {replicas = {
                a = {uri = 'u:secret@127.0.0.1:3301', master = true}, b = {uri = 'u:secret@127.0.0.1:3302'},
            }},
            rs2 = {weight = 2, replicas = {c = {uri = 'u:secret@127.0.0.1:3303', master = true}}},
        },
    }
    if patch ~= nil then
        patch(cfg)
    end
    return cfg
end

local function instance(is_connected)
    return {state = is_connected and 'ready' or 'backoff', connected = is_connected, in_flight = 0, reconnects = 0}
end

-- Both masters connected, everything known.
local function state(patch)
    local res = {
        known = 100, bucket_count = 100, buckets = {40, 60},
        replicasets = {
            {master = 1, instances = {instance(true), instance(true)}},
            {master = 1, instances = {instance(true)}},
        },
        slab = {capacity = 10, used = 1, peak = 2}, engines = {{calls = 5}}, services = {
            discovery = {mode = 'on', status = 'ok'}, failover = {{status = 'ok'}, {status = 'ok'}}, master_search = {},
            pings = {{{status = 'error'}, {status = 'ok'}}, {{status = 'ok'}}},
        },
    }
    if patch ~= nil then
        patch(res)
    end
    return res
end

-- Message of a raised string, or the error table.
local function raised(func, ...)
    local ok, err = pcall(func, ...)
    return not ok and err or 'nothing raised'
end

local function answer(name, ...)
    local values = {n = select('#', ...), ...}
    fake.answers[name] = function() return values end
end

local function answer_failure(name, failure)
    fake.answers[name] = function() return {failure = failure} end
end

fake.state = state()

test:test('before cfg', function(t)
    t:plan(4)
    t:is(router.callrw, nil, 'there are no functions')
    t:is(router.static, nil, 'there is no static router')
    t:is(raised(router.cfg, {}), 'Sharding must be specified', 'a bad cfg is raised')
    t:is(router.internal.routers._static_router, nil, 'and the name is free again')
end)

test:test('cfg', function(t)
    t:plan(6)
    local cfg = config()
    t:is(select('#', router.cfg(cfg)), 0, 'returns nothing')
    t:is_deeply(cfg, config(), 'the table is not modified')
    t:is(fake.last.router_new.router, '_static_router', 'name')
    t:is(fake.last.router_new.cfg.replicasets[2].weight, 2, 'the neutral form is passed on')
    t:is_deeply(fake.last.set_static, {1, name = 'set_static'}, 'the stored function knows the router')
    t:is(router.static, router.internal.static_router, 'static router')
end)

test:test('checks of arguments', function(t)
    local usage = 'Usage: call(bucket_id, mode, func, args, opts)'
    local range = 'Bucket is unreachable: bucket id is out of range'
    local cases = {
        {usage, 1, 'f', {}, 5},
        {usage, 1, 'f', {}, {timeout = '1'}},
        {usage, 1, 'f', {}, {request_timeout = '1'}},
        {'request_timeout must be <= timeout', 1, 'f', {}, {request_timeout = 2, timeout = 1}},
        {'request_timeout must be <= timeout', 'x', 'f', {}, {request_timeout = 1}},
        {usage, '1', 'f'},
        {usage, 1LL, 'f'},
        {usage, nil, 'f'},
        {range, 0, 'f'},
        {range, -1, 'f'},
        {range, 101, 'f'},
        {range, 1.5, 'f'},
        {range, 0 / 0, 'f'},
        {usage, 1, nil},
        {usage, 1, 'f', 'text'},
        {usage, 1, 'f', {}, {is_async = true, timeout = '1'}},
        {'option "buffer" must be a buffer.ibuf()', 1, 'f', {}, {buffer = true}},
    }
    t:plan(#cases + 5)
    fake.log = {}
    for i, case in ipairs(cases) do
        t:is(raised(router.callro, unpack(case, 2, 5)), case[1], ('case %d: %s'):format(i, case[1]))
    end
    t:is(raised(router.call, 1, 5, 'f'), 'Usage: router.call(bucket_id, shard_opts, func, args, opts)', 'type of mode')
    local _, err = router.callrw(1, 'f', {print})
    t:like(err.message, 'unsupported Lua type', 'what cannot be encoded')
    _, err = router.call(1, 'READ', 'f')
    t:is(err.message, 'Unknown mode: READ', 'unknown mode')
    t:is(raised(router.static.callrw, 1, 'f'), 'Use router:callrw(...) instead of router.callrw(...)', 'dot for colon')
    t:is(#fake.log, 0, 'nothing was sent')
end)

test:test('what is sent', function(t)
    t:plan(18)
    answer('call_bucket', 1)
    local calls = {
        {0, 'callrw'}, {1, 'callro'}, {3, 'callre'}, {5, 'callbro'}, {7, 'callbre'},
    }
    for _, case in ipairs(calls) do
        router[case[2]](5, 'f', {1})
        t:is(fake.last.call_bucket.flags, case[1], case[2])
    end
    local modes = {
        {0, nil}, {0, false}, {0, 'write'}, {1, 'read'}, {0, {}}, {3, {mode = 'read', prefer_replica = true}},
        {5, {mode = 'read', balance = true}}, {7, {mode = 'read', balance = true, prefer_replica = true}},
    }
    for i, case in ipairs(modes) do
        router.call(5, case[2], 'f', {1})
        t:is(fake.last.call_bucket.flags, case[1], 'mode ' .. i)
    end
    router.callro(7, 'func', {1, 'two', {3}}, {timeout = 4, request_timeout = 2})
    t:is_deeply(fake.last.call_bucket, {name = 'call_bucket', id = 1, bucket = 7, flags = 1, func = 'func',
        args = {1, 'two', {3}}, timeout = 4, request_timeout = 2}, 'all of it')
    local opts = {timeout = 4, request_timeout = 2}
    router.callrw(7, 'func', nil, opts)
    t:is_deeply(fake.last.call_bucket, {name = 'call_bucket', id = 1, bucket = 7, flags = 0, func = 'func',
        timeout = 4}, 'no arguments; a write has no request_timeout')
    t:is_deeply(opts, {timeout = 4, request_timeout = 2}, 'options are not modified')
    router.callrw(7, 'func', box.tuple.new({1, 2}))
    t:is_deeply(fake.last.call_bucket.args, {1, 2}, 'a tuple')
    t:is(fake.last.call_bucket.timeout, 0.5, 'default timeout')
end)

test:test('encoding that yields does not mix calls', function(t)
    t:plan(2)
    local sent = {}
    fake.answers.call_bucket = function(call)
        sent[call.bucket] = call.args
        return {}
    end
    local slow = setmetatable({}, {__serialize = function() fiber.sleep(0.01) return 'slow' end})
    local first = fiber.new(router.callrw, 1, 'f', {'first', slow})
    first:set_joinable(true)
    fiber.yield()
    router.callrw(2, 'f', {'second'})
    first:join()
    t:is_deeply(sent[1], {'first', 'slow'}, 'first')
    t:is_deeply(sent[2], {'second'}, 'second')
end)

test:test('results', function(t)
    t:plan(18)
    local function count(...) return select('#', ...), ... end
    answer('call_bucket')
    local err
    local n, value = count(router.callrw(1, 'f'))
    t:ok(n == 1 and type(value) == 'nil', 'nothing returned: nil')
    answer('call_bucket', 5, 6, 7)
    n, value = count(router.callrw(1, 'f'))
    t:ok(n == 1 and value == 5, 'the first value only')
    answer('call_bucket', {1, {a = 2}})
    t:is_deeply(router.callrw(1, 'f'), {1, {a = 2}}, 'a table')
    answer('call_bucket', false, 'err')
    n, value = count(router.callrw(1, 'f'))
    t:ok(n == 1 and value == false, 'false loses what follows')
    answer('call_bucket', nil, {code = 5})
    n, value, err = count(router.callrw(1, 'f'))
    t:ok(n == 2 and type(value) == 'cdata' and value == nil, 'nil, err: box.NULL first')
    t:is(err.code, 5, 'nil, err: the error as it was')
    answer('call_bucket', nil, nil, 3)
    n, value = count(router.callrw(1, 'f'))
    t:ok(n == 1 and value == nil, 'nil, nil, 3: no error')
    answer_failure('call_bucket', {type = 'ShardingError', code = 9, name = 'NO_ROUTE_TO_BUCKET', message = 'm'})
    n, value, err = count(router.callrw(1, 'f'))
    t:ok(n == 2 and type(value) == 'nil', 'a failure: plain nil')
    t:is(err.name, 'NO_ROUTE_TO_BUCKET', 'a failure: error')
    t:is(json.decode(tostring(err)).code, 9, 'a failure: JSON as text')
    answer('call_bucket', 'x')
    fake.fault = 1
    value, err = router.callrw(1, 'f')
    t:ok(value == nil and err.message:find('nested deeper'), 'too deep for the host: an error')
    fake.fault = 2
    value, err = router.callrw(1, 'f')
    t:ok(value == nil and err.message:find('extension'), 'an extension that is none: an error')
    fake.fault = nil
    fake.answers.call_bucket = function() return {bytes = '\x81\xcb\x7f\xf8\0\0\0\0\0\0\1', n = 1} end
    value, err = router.callrw(1, 'f')
    t:ok(value == nil and type(err.message) == 'string', 'what cannot be a Lua table: an error')
    fake.released = 0
    answer('call_bucket', ('x'):rep(100))
    router.callrw(1, 'f')
    t:is(fake.released, 0, 'a small result waits for the next call')
    answer('call_bucket', ('x'):rep(1e6))
    t:is(#router.callrw(1, 'f'), 1e6, 'a big result')
    t:is(fake.released, 1, 'is released')
    answer('call_bucket')
    router.callrw(1, 'f', {('x'):rep(1e6)})
    t:is(#fake.last.call_bucket.args[1], 1e6, 'big arguments')
    router.callrw(1, 'f', {5})
    t:is_deeply(fake.last.call_bucket.args, {5}, 'small ones after them')
end)

test:test('msgpack.object', function(t)
    if msgpack.object == nil then
        t:plan(2)
        t:like(raised(router.callrw, 1, 'f', {}, {return_raw = true}), '2%.10', 'return_raw names the version needed')
        t:like(raised(router.callraw, 'x'), '2%.10', 'callraw names the version needed')
        return
    end
    t:plan(7)
    local raw = {return_raw = true}
    answer('call_bucket', 1, {2}, 'three')
    local object = router.callrw(1, 'f', {}, raw)
    t:ok(msgpack.is_object(object), 'return_raw: an object')
    t:is_deeply(object:decode(), {1, {2}, 'three'}, 'return_raw: all values')
    answer('call_bucket')
    t:is(type(router.callrw(1, 'f', {}, raw)), 'nil', 'return_raw: nothing returned')
    answer('call_bucket', nil, 'err')
    t:is_deeply(router.callrw(1, 'f', {}, raw):decode(), {nil, 'err'}, 'return_raw: nil, err is a result')
    answer_failure('call_bucket', {code = 1})
    local _, err = router.callrw(1, 'f', {}, raw)
    t:is(err.code, 1, 'return_raw: a failure is an error table')
    router.callrw(1, 'f', msgpack.object({1, 2}))
    t:is_deeply(fake.last.call_bucket.args, {1, 2}, 'arguments')
    fake.callraw = nil
    t:ok(router.callraw ~= nil, 'callraw is there')
end)

test:test('routes and hashes', function(t)
    t:plan(13)
    fake.answers.route = function(bucket) return bucket <= 40 and 1 or 2 end
    t:is(router.route(1).id, 'rs1', 'first replicaset')
    t:is(router.route(50), router.routeall().rs2, 'second replicaset')
    t:is(raised(router.route, '1'), 'Usage: router.route(bucket_id)', 'not a number')
    for _, id in ipairs({0, 101, 1.5}) do
        local rs, err = router.route(id)
        t:ok(rs == nil and err.name == 'NO_ROUTE_TO_BUCKET', 'out of range: ' .. id)
    end
    fake.answers.route = function() return {failure = {code = 8, message = 'm', type = 'ShardingError'}} end
    local _, err = router.route(1)
    t:is(err.code, 8, 'not resolved')
    t:is(router.bucket_count(), 100, 'bucket_count')
    t:is(router.bucket_id_strcrc32(1), (477 - 1 + 2400) % 100 + 1, 'strcrc32')
    t:is(router.bucket_id_mpcrc32('1'), router.bucket_id_strcrc32(1), 'mpcrc32')
    t:is(router.bucket_id(1), router.bucket_id_strcrc32(1), 'bucket_id')
    t:is(raised(router.bucket_id_mpcrc32), 'Usage: vshard.router.bucket_id_mpcrc32(key)', 'no key')
    t:is(raised(router.bucket_id, box.NULL), 'Usage: vshard.router.bucket_id(key)', 'null key')
end)

test:test('replicaset objects', function(t)
    t:plan(20)
    local rs = router.routeall().rs1
    t:ok(rs.id == 'rs1' and rs.uuid == 'rs1' and rs.name == nil and rs.weight == 1, 'fields')
    t:is(rs.master, rs.replicas.a, 'master')
    t:is(rs.bucket_count, 40, 'bucket_count')
    t:is(rs.nonsense, nil, 'no other fields')
    t:is(tostring(rs), 'replicaset(id="rs1", master=replica(id=a, uri=u@127.0.0.1:3301))', 'text')
    answer('call_replicaset', 1, 2, 3, 4)
    t:is_deeply({rs:callrw('f', {1})}, {1, 2, 3}, 'up to three values')
    t:is_deeply(fake.last.call_replicaset, {name = 'call_replicaset', id = 1, rs = 1, flags = 0, func = 'f', args = {1},
                                            timeout = 0.5}, 'callrw')
    rs:callbre('f', nil, {timeout = 5, request_timeout = 1})
    t:is_deeply(fake.last.call_replicaset, {name = 'call_replicaset', id = 1, rs = 1, flags = 7, func = 'f',
                                            timeout = 5, request_timeout = 1}, 'callbre')
    rs:callro('f')
    t:is(fake.last.call_replicaset.timeout, 64, 'timeout of reads')
    answer('call_replicaset', nil, 'err')
    local value, err = rs:callrw('f')
    t:ok(type(value) == 'nil' and err == 'err', 'nil, err')
    answer_failure('call_replicaset', {code = 77, message = 'm', type = 'ClientError'})
    value, err = rs:callrw('f')
    t:ok(value == nil and err.code == 77, 'failure')
    answer('call_instance', 1)
    local net_ok, first = rs.replicas.b:call('f', {}, {timeout = 1})
    t:ok(net_ok and first == 1, 'call of a replica')
    t:is(fake.last.call_instance.i, 2, 'its position')
    answer_failure('call_instance', {code = 77, message = 'm', type = 'ClientError'})
    net_ok, first, err = rs.replicas.b:call('f', {}, {timeout = 1})
    t:ok(net_ok == false and first == nil and err.code == 77, 'failure of a replica')
    t:like(raised(rs.replicas.b.call, rs.replicas.b, 'f', {}), 'Usage', 'timeout is mandatory')
    t:is(rs.replicas.b:is_connected(), true, 'is_connected')
    t:is(rs.replicas.b:safe_uri(), 'u@127.0.0.1:3302', 'safe_uri')
    t:is(rs.replica, rs.replicas.a, 'the nearest connected replica')
    local configured = rs.master
    rs.master = nil
    t:is(rs.master, rs.replicas.a, 'a master that was found')
    rs.master = configured
    t:is(fake.infos, 0, 'and nothing looked at every bucket')
end)

test:test('disable and enable', function(t)
    t:plan(6)
    router.disable()
    local err = raised(router.callrw, 'wrong', 'f')
    t:is(err.name, 'ROUTER_IS_DISABLED', 'calls')
    t:is(raised(router.route, 1).name, 'ROUTER_IS_DISABLED', 'route')
    t:is(router.info().is_enabled, false, 'info works')
    router.cfg(config())
    t:is(raised(router.bucket_count).name, 'ROUTER_IS_DISABLED', 'cfg does not enable')
    router.enable()
    t:is(router.bucket_count(), 100, 'enabled')
    t:is(router.info().is_enabled, true, 'info')
end)

test:test('reconfiguration', function(t)
    t:plan(13)
    local old = router.routeall().rs1
    local gone = router.routeall().rs2
    router.cfg(config(function(cfg)
        cfg.connection_outdate_delay = 0.02
        cfg.sharding.rs0 = {replicas = {z = {uri = 'h:1'}}}
        cfg.sharding.rs2 = nil
    end))
    local rs = router.routeall().rs1
    t:isnt(rs, old, 'new objects')
    answer('call_replicaset', 1)
    old:callrw('f')
    t:is(fake.last.call_replicaset.rs, 2, 'an old object knows its new place')
    local _, err = gone:callrw('f')
    t:is(err.name, 'OBJECT_IS_OUTDATED', 'the replicaset is no more')
    t:is(gone.replicas.c:is_connected(), nil, 'neither is its replica')
    while not old.is_outdated do
        fiber.sleep(0.001)
    end
    _, err = old:callrw('f')
    t:is(err.name, 'OBJECT_IS_OUTDATED', 'after the delay')
    t:is(old.id, 'rs1', 'fields stay')
    t:like(tostring(old), '^%(outdated%) replicaset', 'text')
    t:is((rs:callrw('f')), 1, 'the new one serves')

    t:like(raised(router.cfg, config(function(cfg) cfg.bucket_count = 5 end)), 'Non%-dynamic', 'refused by the check')
    fake.answers.router_cfg = function() error('native says no', 0) end
    t:is(raised(router.cfg, config()), 'native says no', 'refused by the native half')
    fake.answers.router_cfg = nil
    t:is(router.routeall().rs1, rs, 'the configuration before serves on')
    t:is((rs:callrw('f')), 1, 'with its objects')
    router.cfg(config())
    t:is(rs.is_outdated, true, 'without delay: at once')
end)

test:test('two fibers configure', function(t)
    t:plan(5)
    fake.state = state(function(s) s.replicasets[1].instances[1] = instance(false) end)
    fake.infos = 0
    local first = fiber.new(router.cfg, config())
    first:set_joinable(true)
    fiber.yield()
    local err = raised(router.cfg, config())
    t:is(err.name, 'ROUTER_CFG_IS_IN_PROGRESS', 'the second is refused')
    t:is(err.router_name, '_static_router', 'by name')
    fake.state = state()
    t:ok(first:join(), 'the first is done once masters are connected')
    t:is(raised(router.cfg, config()), 'nothing raised', 'afterwards')
    t:is(fake.infos, 0, 'waiting for masters looks at no bucket')
end)

test:test('routers by name', function(t)
    t:plan(7)
    t:is(raised(router.new, 5, config()), 'Wrong argument type. Usage: vshard.router.new(name, cfg).', 'usage')
    local other = router.new('other', config())
    t:is(other:bucket_count(), 100, 'methods')
    t:is(router.internal.routers.other, other, 'registered')
    local nothing, err = router.new('other', config())
    t:ok(nothing == nil and err.name == 'ROUTER_ALREADY_EXISTS', 'taken')
    t:is(raised(router.new, 'bad', {}), 'Sharding must be specified', 'a bad cfg is raised')
    t:is(router.internal.routers.bad, nil, 'and the name is free')
    answer('call_bucket', 'yes')
    other:callrw(1, 'f')
    t:is(fake.last.call_bucket.id, other.native_id, 'its own engine')
end)

test:test('the cluster', function(t)
    t:plan(17)
    local created = {}
    local counts = {0, 0}
    fake.answers.call_replicaset = function(call)
        if call.func == 'vshard.storage.buckets_count' then
            local count = counts[call.rs]
            return type(count) == 'table' and count or {count}
        end
        created[call.rs] = call.args
        return {true}
    end
    t:is(router.bootstrap(), true, 'bootstrap')
    t:is_deeply(created, {{1, 33}, {34, 67}}, 'by weights')
    counts[2] = 1
    local ok, err = router.bootstrap()
    t:ok(ok == nil and err.name == 'NON_EMPTY', 'again')
    t:is(router.bootstrap({if_not_bootstrapped = true}), true, 'again, if not done')
    counts = {{failure = {code = 77}}, 1}
    t:is(router.bootstrap({if_not_bootstrapped = true}), true, 'one that knows is enough')
    counts = {{failure = {code = 77}}, 0}
    ok, err = router.bootstrap({if_not_bootstrapped = true})
    t:ok(ok == nil and err.code == 77, 'a failure is told')
    t:is(raised(router.bootstrap, 5), 'Usage: vshard.router.bootstrap({<options>})', 'usage')

    local shares = require('rawshard.bootstrap').shares
    local function rs(...)
        local res = {}
        for i, weight in ipairs({...}) do
            res[i] = {weight = weight}
        end
        return res
    end
    t:is_deeply(shares(rs(1, 1, 1), 10), {3, 3, 4}, 'shares: rest')
    t:is_deeply(shares(rs(0, 1, 0.5), 3000), {0, 2000, 1000}, 'shares: no weight, no buckets')
    t:is_deeply(shares(rs(0.1, 0.2, 0.7), 30000), {3000, 6000, 21000}, 'shares: inexact weights')

    answer('call_replicaset', true)
    fake.log = {}
    t:is(router.sync(5), true, 'sync')
    t:is(#fake.log, 2, 'of both replicasets')
    t:ok(fake.log[1].func == 'vshard.storage.sync' and fake.log[1].args[1] == 5, 'with the time left')
    answer('call_replicaset', nil, {code = 78, message = 'm', type = 'ClientError'})
    ok, err = router.sync()
    t:ok(ok == nil and err.code == 78 and err.replicaset == 'rs1', 'sync: failure')
    t:like(raised(router.sync, 'x'), 'Usage', 'sync: usage')
    router.discovery_set('off')
    t:is(fake.last.discovery_set[2], 'off', 'discovery_set')
    t:like(raised(router.discovery_set, 'x'), 'Usage', 'discovery_set: usage')
end)

test:test('info', function(t)
    t:plan(18)
    local info = router.info({with_services = true})
    t:is(info.status, 0, 'status')
    t:is_deeply(info.bucket, {available_rw = 100, available_ro = 0, unreachable = 0, unknown = 0}, 'buckets')
    t:is_deeply(info.alerts, {}, 'alerts')
    t:is_deeply(info.replicasets.rs1.master, {uri = 'u@127.0.0.1:3301', uuid = 'a', network_timeout = 0.5,
                                              status = 'available'}, 'master')
    t:is(info.replicasets.rs1.replica, info.replicasets.rs1.master, 'the nearest is the master: one table')
    t:is(info.slab.used, 1, 'slab')
    t:is(info.engines[1].calls, 5, 'engines')
    t:is(info.services.discovery.mode, 'on', 'services')
    local services = info.replicasets.rs1.services
    t:is(services.failover.status, 'ok', 'of a replicaset')
    t:is(services.failover.replicas.a.status, 'error', 'and of its instances')
    t:is_deeply(services.master_search, {}, 'nobody is searched for')
    t:ok(not json.encode(info):find('secret'), 'no secrets')

    local function alerts_of(patch)
        fake.state = state(patch)
        local names = {}
        local report = router.info()
        for i, alert in ipairs(report.alerts) do
            names[i] = alert[1]
        end
        return table.concat(names, ' '), report
    end
    local names, report = alerts_of(function(s) s.replicasets[1].instances[1] = instance(false) end)
    t:is(names, 'UNREACHABLE_MASTER SUBOPTIMAL_REPLICA', 'a master is down')
    t:is(report.replicasets.rs1.bucket.available_ro, 40, 'its buckets can be read')
    names, report = alerts_of(function(s) s.replicasets[2] = {instances = {instance(false)}} end)
    t:is(names, 'MISSING_MASTER SUBOPTIMAL_REPLICA UNREACHABLE_REPLICASET', 'a replicaset is down')
    t:ok(report.status == 3 and report.bucket.unreachable == 60, 'red, buckets unreachable')
    names, report = alerts_of(function(s) s.bucket_beyond = 120 end)
    t:ok(names == 'INVALID_CFG' and report.bucket.unknown == '???', 'more buckets than configured')

    fake.state = state()
    fake.answers.bucket_get = function(id) return id <= 40 and 1 or id <= 99 and 2 or nil end
    t:is_deeply(router.buckets_info(98, 10), {
        [99] = {uuid = 'rs2', status = 'available_rw'}, [100] = {status = 'unknown'},
    }, 'buckets_info')
end)

test:test('reload of the module', function(t)
    t:plan(8)
    local old, static, rs, callrw = router, router.static, router.routeall().rs1, router.static.callrw
    fake.log = {}
    for name in pairs(package.loaded) do
        if name:find('^rawshard') and name ~= 'rawshard.native' then
            package.loaded[name] = nil
        end
    end
    router = require('rawshard.router')
    t:is(#fake.log, 0, 'starts nothing')
    t:is(router.module_version(), 1, 'is counted')
    t:is(router.static, static, 'the router is the same')
    t:isnt(router.static.callrw, callrw, 'its methods are new')
    answer('call_bucket', 7)
    t:is(router.callrw(1, 'f'), 7, 'it serves')
    t:is(old.callrw(1, 'f'), 7, 'the old module, too')
    answer('call_replicaset', 8)
    t:is((rs:callrw('f')), 8, 'its replicasets serve')
    t:ok(router.internal.routers.other:bucket_count(), 'the others too')
end)

os.exit(test:check() and 0 or 1)
