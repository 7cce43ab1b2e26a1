-- The Lua API beside calls: routes, objects, information, the life of routers. Most of it runs on vshard's router as well.

package.path = './?.lua;' .. package.path
local prelude = require('test.helper.prelude')
local suite = require('test.helper.suite')

local s = suite.new('lua api')

local RS1, RS2 = 'aaaaaaaa-0000-4000-8000-000000000001', 'aaaaaaaa-0000-4000-8000-000000000002'
local S1A, S1B = 'bbbbbbbb-0000-4000-8000-000000000101', 'bbbbbbbb-0000-4000-8000-000000000102'

local on_router = prelude.on_router()

local function scenario(name, f, opts)
    s:once(name, opts, f)
end

scenario('route, routeall, bucket_count', function(t, c)
    -- A loaded machine may not have connected yet.
    t:is(on_router(c, 'return wait(function() return router.route(1) end).id'), RS1, 'the first bucket')
    t:is(on_router(c, 'return router.route(30).id'), RS2, 'the last bucket')
    t:is(on_router(c, 'return router.route(1) == router.routeall()[...]', RS1), true, 'the same object')
    t:is(on_router(c, 'local _, err = router.route(31) return err.name'), 'NO_ROUTE_TO_BUCKET', 'no such bucket')
    t:has(on_router(c, "return raised(router.route, '1')"), 'Usage', 'not a number')
    t:is(on_router(c, 'return router.bucket_count()'), 30, 'bucket_count')
    t:is(on_router(c, 'return router.bucket_id_strcrc32(1)'), (477 - 1) % 30 + 1, 'strcrc32')
    t:is(on_router(c, 'return router.bucket_id_mpcrc32(1)'), (1614 - 1) % 30 + 1, 'mpcrc32')
end)

scenario('a forgotten bucket is found again', function(t, c)
    on_router(c, 'router._route_map_clear()')
    t:is(on_router(c, "return router.callrw(30, 'echo', {7}, {timeout = 5})"), 7, 'by a call')
    on_router(c, 'router._bucket_reset(1)')
    t:is(on_router(c, 'return router.route(1).id'), RS1, 'by route')
    on_router(c, 'router._route_map_clear() router.discovery_wakeup()')
    t:is(on_router(c, 'wait(function() return router.info().bucket.unknown == 0 end) return router.info().bucket.unknown'),
         0, 'by discovery')
end)

scenario('replicaset objects', function(t, c)
    local code = 'local rs = router.routeall()["' .. RS1 .. '"] '
    t:is(on_router(c, code .. 'return rs.id, rs.uuid, rs.weight'), RS1, 'id')
    t:is(on_router(c, code .. 'return rs.master.id'), S1A, 'master')
    t:is(on_router(c, code .. 'return rs.replicas["' .. S1B .. '"].name'), 's1b', 'replica')
    t:is(on_router(c, code .. 'return rs.bucket_count'), 15, 'bucket_count')
    -- Functions are called by themselves here, with the grants of the user in the URI: he has only vshard's.
    for _, name in ipairs({'call', 'callrw', 'callro', 'callbro', 'callre', 'callbre'}) do
        t:is(on_router(c, code .. "return (rs[...](rs, 'vshard.storage.buckets_count', {}, {timeout = 5}))", name), 15, name)
    end
    local info = "'vshard.storage._call', {'info'}, {timeout = 5}"
    t:is(on_router(c, code .. 'return rs:callrw(' .. info .. ').is_master'), true, 'callrw goes to the master')
    t:is(on_router(c, code .. 'return rs:callre(' .. info .. ').is_master'), false, 'callre goes to the replica')
    t:has(on_router(c, code .. "local _, err = rs:callrw('boom', {'why'}) return err.message"), 'denied', 'a raised error')
    t:is(on_router(c, code .. 'local ok, v = rs.replicas["' .. S1B .. '"]:call(' .. info .. ') return v.is_master'), false,
         'call of a replica')
    t:is(on_router(c, code .. "local ok, v, err = rs.master:call('boom', {'why'}, {timeout = 5}) return ok, err.message"),
         false, 'its failure')
    t:has(on_router(c, code .. 'return tostring(rs)'), 'replicaset(id="' .. RS1 .. '", master=replica(id=s1a', 'text')
    t:ok(not on_router(c, code .. 'return tostring(rs)'):find('storage:', 1, true), 'no password in it')
end)

scenario('info', function(t, c)
    local info = on_router(c, 'wait(function() return router.info().status == 0 end) return router.info()')
    t:is(info.status, 0, 'green')
    t:is(#info.alerts, 0, 'no alerts')
    t:is(info.bucket.available_rw, 30, 'buckets')
    t:is(info.bucket.unknown, 0, 'none unknown')
    t:is(info.is_enabled, true, 'is_enabled')
    t:is(info.identification_mode, 'uuid_as_key', 'identification_mode')
    t:is(info.replicasets[RS1].bucket.available_rw, 15, "a replicaset's buckets")
    t:is(info.replicasets[RS1].master.status, 'available', 'master')
    t:is(info.replicasets[RS1].master.uuid, S1A, 'its uuid')
    t:has(info.replicasets[RS1].master.uri, 'storage@127.0.0.1:', 'its uri, without password')
    local buckets = on_router(c, 'return router.buckets_info(14, 2)')
    t:is(buckets[15].uuid, RS1, 'buckets_info: from')
    t:is(buckets[16].uuid, RS2, 'buckets_info: to')
    t:is(buckets[16].status, 'available_rw', 'buckets_info: status')
end)

scenario('info: counters', function(t, c)
    local before = on_router(c, 'return router.info()')
    on_router(c, "for i = 1, 10 do router.callrw(1, 'echo', {i}, {timeout = 5}) end")
    local after = on_router(c, 'return router.info()')
    t:ok(after.engines[1].calls >= before.engines[1].calls + 10, 'calls')
    t:ok(after.engines[1].bytes_in > before.engines[1].bytes_in, 'bytes')
    t:is(after.slab.used, 0, 'no slot stays in use')
    t:ok(after.slab.capacity >= after.slab.peak, 'capacity')
    t:is(after.replicasets[RS1].connections[S1A].is_connected, true, 'connections')
end, {router = 'rawshard'})

scenario('disable and enable', function(t, c)
    t:is(on_router(c, "router.disable() return raised(router.callrw, 1, 'echo', {1})"), 'ROUTER_IS_DISABLED', 'calls')
    t:is(on_router(c, 'return raised(router.bucket_count)'), 'ROUTER_IS_DISABLED', 'others')
    t:is(on_router(c, 'return router.info().is_enabled'), false, 'info')
    t:is(on_router(c, "router.enable() return router.callrw(1, 'echo', {1}, {timeout = 5})"), 1, 'enabled')
end)

scenario('bootstrap and sync', function(t, c)
    t:is(on_router(c, 'local _, err = router.bootstrap() return err.name'), 'NON_EMPTY', 'not twice')
    t:is(on_router(c, 'return router.bootstrap({if_not_bootstrapped = true})'), true, 'unless asked so')
    t:has(on_router(c, 'return raised(router.bootstrap, 5)'), 'Usage', 'bootstrap: usage')
    t:is(on_router(c, 'return router.sync(10)'), true, 'sync')
    t:has(on_router(c, "return raised(router.sync, 'x')"), 'Usage', 'sync: usage')
end)

scenario('arguments of every kind', function(t, c)
    t:is(on_router(c, "return router.callrw(1, 'echo', nil, {timeout = 5})"), nil, 'none')
    t:is(on_router(c, "return router.callrw(1, 'echo', {box.NULL, 2}, {timeout = 5})"), nil, 'a null')
    t:is(on_router(c, "return #router.callrw(1, 'echo', {('x'):rep(1e6)}, {timeout = 5})"), 1e6, 'a megabyte')
    t:is(on_router(c, [[
        local uuid = require('uuid').new()
        return router.callrw(1, 'echo', {uuid}, {timeout = 5}) == uuid
    ]]), true, 'a uuid')
    t:is(on_router(c, [[
        local opts, args = {timeout = 5}, {1, {2}}
        router.callrw(1, 'echo', args, opts)
        return opts.timeout == 5 and next(opts, 'timeout') == nil and args[1] == 1 and args[2][1] == 2 and #args == 2
    ]]), true, 'options and arguments stay as they were')
    t:is(on_router(c, "local _, err = router.callrw(1, 'echo', {print}, {timeout = 1}) return type(err)"), 'table',
         'what has no form')
end)

scenario('arguments in a tuple', function(t, c)
    t:is(on_router(c, "return router.callrw(1, 'echo', box.tuple.new({5, 6}), {timeout = 5})"), 5, 'a tuple')
end, {router = 'rawshard'})

scenario('arguments that are no array', function(t, c)
    t:has(on_router(c, "return raised(router.callrw, 1, 'echo', {a = 1}, {timeout = 5})"), 'array', 'a map')
    t:has(on_router(c, "return raised(router.callrw, 1, 'echo', 'text', {timeout = 5})"), 'Usage', 'a string')
    t:is(on_router(c, [[
        if msgpack.object == nil then
            return 'array'
        end
        return raised(router.callrw, 1, 'echo', msgpack.object({a = 1}), {timeout = 5}):match('array')
    ]]), 'array', 'an object with a map')
end, {router = 'rawshard'})

scenario('results that the host cannot decode', function(t, c)
    t:is(on_router(c, [[
        local value, err = router.callrw(1, 'echo', {setmetatable({}, {__serialize = 'map'})}, {timeout = 5})
        return type(value)
    ]]), 'table', 'an empty map is one it can')
end)

scenario('reconfiguration', function(t, c)
    t:is(on_router(c, [[
        local cfg = table.deepcopy(router.static.current_cfg)
        cfg.sync_timeout = 7
        local old = router.routeall()
        router.cfg(cfg)
        wait(function() local _, rs = next(old) return rs.is_outdated end)
        local id, rs = next(old)
        local _, err = rs:callrw('echo', {1})
        return err.name
    ]]), 'OBJECT_IS_OUTDATED', 'old objects')
    t:is(on_router(c, "return router.callrw(1, 'echo', {1}, {timeout = 5})"), 1, 'calls')
    t:is(on_router(c, [[
        local full = table.deepcopy(router.static.current_cfg)
        local less = table.deepcopy(full)
        less.sharding[...] = nil
        router.cfg(less)
        local _, err = router.callrw(30, 'echo', {1}, {timeout = 0.2})
        router.cfg(full)
        return err.name
    ]], RS2), 'NO_ROUTE_TO_BUCKET', 'a replicaset is taken away')
    t:is(on_router(c, "return router.callrw(30, 'echo', {1}, {timeout = 5})"), 1, 'and given back')
    t:has(on_router(c, [[
        local cfg = table.deepcopy(router.static.current_cfg)
        cfg.bucket_count = 5
        return raised(router.cfg, cfg)
    ]]), 'bucket_count', 'bucket_count is fixed')
    t:is(on_router(c, "return router.callrw(1, 'echo', {1}, {timeout = 5})"), 1, 'a refused cfg changes nothing')
end)

scenario('fibers configure at once', function(t, c)
    local res = on_router(c, [[
        local cfg = table.deepcopy(router.static.current_cfg)
        local names = {}
        in_fibers(10, function()
            local name = raised(router.cfg, cfg)
            names[name] = (names[name] or 0) + 1
        end)
        return names
    ]])
    t:ok((res['nothing raised'] or 0) >= 1, 'one wins')
    t:is((res['nothing raised'] or 0) + (res.ROUTER_CFG_IS_IN_PROGRESS or 0), 10, 'the others are told')
    t:is(on_router(c, "return router.callrw(1, 'echo', {1}, {timeout = 5})"), 1, 'calls')
end)

scenario('routers by name', function(t, c)
    t:is(on_router(c, [[
        local cfg = table.deepcopy(router.static.current_cfg)
        local other = assert(router.new('other', cfg))
        return other:callrw(1, 'echo', {9}, {timeout = 5})
    ]]), 9, 'it calls')
    t:is(on_router(c, "local _, err = router.new('other', {}) return err.name"), 'ROUTER_ALREADY_EXISTS', 'taken')
    t:has(on_router(c, "return raised(router.new, 'bad', {})"), 'Sharding must be specified', 'a bad cfg')
    t:is(on_router(c, "return router.internal.routers.bad == nil"), true, 'frees the name')
    t:has(on_router(c, 'return raised(router.internal.routers.other.callrw, 1, "echo")'), 'Use router:', 'dot for colon')
end)

scenario('fewer buckets configured than there are', function(t, c)
    t:is(on_router(c, [[
        local cfg = table.deepcopy(router.static.current_cfg)
        cfg.bucket_count = 12
        local fewer = assert(router.new('fewer', cfg))
        wait(function()
            fewer:discovery_wakeup()
            local info = fewer:info()
            return #info.alerts == 1 and info.bucket.unknown == '???' and info.alerts[1][2]:endswith('is 18')
        end)
        local info = fewer:info()
        return {info.alerts, info.bucket.unknown, info.status}
    ]]), {{{
        'INVALID_CFG',
        "Invalid configuration: probably router's cfg.bucket_count is different from storages' one, difference is 18",
    }}, '???', 3}, 'an alert')
end)

scenario('hot reload', function(t, c)
    local before = on_router(c, 'return router.info().engines[1].calls')
    on_router(c, [[
        local in_flight = fiber.new(router.callrw, 1, 'sleep', {0.3, 'kept'}, {timeout = 5})
        in_flight:set_joinable(true)
        fiber.yield()
        unload()
        local old = router
        router = require('rawshard.router')
        vshard.router = router
        assert(router ~= old and router.static == old.static)
        _G.in_flight_result = {in_flight:join()}
    ]])
    t:is(on_router(c, 'return in_flight_result[2]'), 'kept', 'a call in flight')
    t:is(on_router(c, "return router.callrw(1, 'echo', {1}, {timeout = 5})"), 1, 'calls')
    t:is(on_router(c, 'return router.routeall()["' .. RS1 .. '"]:callrw("vshard.storage.buckets_count")'), 15, 'objects')
    t:ok(on_router(c, 'return router.info().engines[1].calls') > before, 'the engine is the same')
    t:is(on_router(c, 'router.cfg(table.deepcopy(router.static.current_cfg)) return router.module_version()'), 1,
         'reconfiguration')
end, {router = 'rawshard'})

s:run()
