-- The rest of vshard.router's names: hashes, routes, bootstrap, info, and life before and after cfg.

package.path = './?.lua;' .. package.path
local cluster = require('test.helper.cluster')
local json = require('json')
local suite = require('test.helper.suite')

local s = suite.new('api')

local function eval(c, code, ...)
    return c.router:eval(code, {...})
end

s:scenario('bucket_count and bucket ids', {fe = false}, function(t, _, c)
    t:is(eval(c, 'return router.bucket_count()'), 30, 'bucket_count')
    -- vshard's own vectors are of 3000 buckets; here the same hashes modulo 30.
    local ids = eval(c, [[
        local decimal, ffi = require('decimal'), require('ffi')
        return {
            str_1 = router.bucket_id_strcrc32(1), str_1LL = router.bucket_id_strcrc32(1LL),
            str_1ULL = router.bucket_id_strcrc32(1ULL), str_s = router.bucket_id_strcrc32('1'),
            str_table = router.bucket_id_strcrc32({1, 2}), str_12 = router.bucket_id_strcrc32('12'),
            mp_1 = router.bucket_id_mpcrc32(1), mp_1LL = router.bucket_id_mpcrc32(1LL), mp_s = router.bucket_id_mpcrc32('1'),
            mp_double = router.bucket_id_mpcrc32(ffi.cast('double', 1)),
            mp_float = router.bucket_id_mpcrc32(ffi.cast('float', 1)),
            mp_decimal = router.bucket_id_mpcrc32(decimal.new(1)),
        }
    ]])
    local function of_3000(id)
        return (id - 1) % 30 + 1
    end
    t:is(ids.str_1, of_3000(477), 'strcrc32(1)')
    t:is(ids.str_1LL, of_3000(730), 'strcrc32(1LL)')
    t:is(ids.str_1ULL, of_3000(982), 'strcrc32(1ULL)')
    t:is(ids.str_s, of_3000(477), "strcrc32('1')")
    t:is(ids.str_table, ids.str_12, 'a table is its items in a row')
    t:is(ids.mp_1, of_3000(1614), 'mpcrc32(1)')
    t:is(ids.mp_1LL, of_3000(1614), 'mpcrc32(1LL)')
    t:is(ids.mp_s, of_3000(477), "mpcrc32('1')")
    t:is(ids.mp_double, of_3000(1411), 'mpcrc32(double)')
    t:is(ids.mp_float, of_3000(193), 'mpcrc32(float)')
    t:is(ids.mp_decimal, of_3000(1696), 'mpcrc32(decimal)')
    for _, name in ipairs({'bucket_id_strcrc32', 'bucket_id_mpcrc32', 'bucket_id'}) do
        t:ok(not eval(c, 'return (pcall(router[...]))', name), name .. '(nil) raises')
    end
end)

s:scenario('route', {fe = false}, function(t, _, c)
    local res = eval(c, [[
        local a, b = router.route(1), router.route(30)
        local lost, err = router.route(31)
        return {a = a.id or a.uuid, b = b.id or b.uuid, lost = lost == nil, err = err and err.name,
                raises = not pcall(router.route, '1'),
                -- Users' functions need grants there; vshard's own have them.
                call = a:callrw('vshard.storage.buckets_count', {}, {timeout = 5}),
                ro = b:callro('vshard.storage.buckets_count', {}, {timeout = 5})}
    ]])
    t:is(res.a, c.replicasets[1].id, 'bucket 1')
    t:is(res.b, c.replicasets[2].id, 'bucket 30')
    t:is(res.lost, true, 'bucket 31')
    t:is(res.err, 'NO_ROUTE_TO_BUCKET', 'its error')
    t:is(res.raises, true, 'a string raises')
    t:is(res.call, 15, 'callrw of the replicaset')
    t:is(res.ro, 15, 'callro of the replicaset')
end)

s:scenario('routeall', {fe = false}, function(t, _, c)
    local ids = eval(c, 'local ids = {} for id in pairs(router.routeall()) do ids[id] = true end return ids')
    t:is(ids, {[c.replicasets[1].id] = true, [c.replicasets[2].id] = true})
end)

s:scenario('info', {fe = false}, function(t, _, c)
    suite.wait_until('all buckets', function()
        return eval(c, 'return router.info().bucket.unknown') == 0
    end)
    local info = eval(c, 'return router.info()')
    t:is(info.bucket.available_rw, 30, 'available_rw')
    t:is(info.bucket.unknown, 0, 'unknown')
    t:is(info.bucket.unreachable, 0, 'unreachable')
    for _, rs in ipairs(c.replicasets) do
        local part = info.replicasets[rs.id]
        t:ok(part ~= nil, 'replicaset ' .. rs.id)
        t:is(part and part.master and part.master.status, 'available', 'its master')
        t:is(part and part.master and part.master.uri, 'storage@' .. rs.master:uri(), 'no password in the uri')
        t:is(part and part.bucket and part.bucket.available_rw, 15, 'its buckets')
    end
    t:ok(not json.encode(info):find('storage:storage', 1, true), 'no secret anywhere')
    if suite.env.router_kind == 'rawshard' then
        t:ok(type(info.slab) == 'table' and info.slab.used == 0 and info.slab.capacity >= info.slab.peak, 'slab occupancy',
             '  got: %s', json.encode(info.slab))
        t:ok(type(info.engines) == 'table' and type(info.engines[1]) == 'table', 'engine counters')
    end
end)

s:scenario('info tells of a lost master', {fe = false, heals = true}, function(t, _, c)
    c.storages.s1a:kill()
    local ok = pcall(suite.wait_until, 'an alert', function()
        for _, alert in ipairs(eval(c, 'return router.info().alerts')) do
            if alert[1] == 'UNREACHABLE_MASTER' then
                return true
            end
        end
    end, 10)
    t:ok(ok, 'UNREACHABLE_MASTER', '  alerts: %s', json.encode(eval(c, 'return router.info().alerts')))
    t:ok(eval(c, 'return router.info().status') >= 1, 'status')
end)

s:scenario('buckets_info', {fe = false}, function(t, _, c)
    suite.wait_until('all buckets', function()
        return eval(c, 'return router.info().bucket.unknown') == 0
    end)
    local info = eval(c, 'return router.buckets_info(13, 4)')
    local got = {}
    for id, row in pairs(info) do
        got[tonumber(id)] = row.uuid or row.name
    end
    local a, b = c.replicasets[1].id, c.replicasets[2].id
    t:is(got, {[14] = a, [15] = a, [16] = b, [17] = b}, 'four buckets')
end)

s:scenario('sync', {fe = false}, function(t, _, c)
    local res = c.router:call('test_api', {'sync', {5}})
    t:ok(res.ok and res.v[1] == true, 'true', '  got: %s', json.encode(res))
end)

s:scenario('disabled and enabled', {fe = false}, function(t, _, c)
    local res = eval(c, [[
        router.disable()
        local ok, err = pcall(router.callrw, 1, 'echo', {1})
        local info = router.info().is_enabled
        router.enable()
        return {ok = ok, name = type(err) == 'table' and err.name or tostring(err), info = info,
                again = router.callrw(1, 'echo', {1}, {timeout = 5})}
    ]])
    t:is(res.ok, false, 'raises while disabled')
    t:is(res.name, 'ROUTER_IS_DISABLED', 'its error')
    t:is(res.info, false, 'info() tells')
    t:is(res.again, 1, 'serves again')
end)

s:scenario('discovery finds a moved bucket by itself', {fe = false, heals = true}, function(t, _, c)
    c:move_bucket(2, c.replicasets[1], c.replicasets[2])
    local ok = pcall(suite.wait_until, 'the route', function()
        eval(c, 'router.discovery_wakeup()')
        local info = eval(c, 'return router.buckets_info(1, 1)')
        local row = info[2] or info[1] or info['2']
        return row ~= nil and row.uuid == c.replicasets[2].id
    end, 15)
    t:ok(ok, 'bucket 2 is known at its new place')
end)

-- On clusters of their own.

s:scenario('before cfg: no functions', {fe = false}, function(t)
    local c = cluster.new({replicasets = 0, bootstrap = false, router_cfg = false})
    c:start()
    local res = c.router:eval('return type(router.callrw), type(router.cfg), (pcall(router.cfg, {}))')
    t:is(res, 'nil', 'callrw is nil before cfg')
    local kinds = {c.router:eval('return type(router.callrw), type(router.cfg), (pcall(router.cfg, {}))')}
    t:is(kinds[2], 'function', 'cfg is there')
    t:is(kinds[3], false, 'a cfg without sharding is refused')
    if suite.env.router_kind == 'rawshard' then
        -- The stored function may be called before anything else of ours ran.
        local ok, err = pcall(c.router:conn().call, c.router:conn(), 'rawshard.callraw', {1, 'write', 'echo', {1}})
        t:ok(not ok, 'the stored function raises')
        t:ok(tostring(err):lower():find('rout') ~= nil or tostring(err):find('cfg') ~= nil, 'and says why', '  %s', tostring(err))
        t:ok(c.router:is_alive(), 'the router lives')
    end
    c:stop()
end)

s:scenario('bootstrap', {fe = false}, function(t)
    local c = cluster.new({bootstrap = false})
    c:start()
    local function bootstrap(opts)
        return c.router:call('test_api', {'bootstrap', {opts}})
    end
    local res = bootstrap({timeout = 10})
    t:ok(res.ok and res.v[1] == true, 'an empty cluster', '  got: %s', json.encode(res))
    for i, rs in ipairs(c.replicasets) do
        t:is(rs.master:call('vshard.storage.buckets_count'), 15, 'the share of replicaset ' .. i)
    end
    res = bootstrap({timeout = 10})
    t:ok(res.ok and res.v[1] == nil and res.v[2] ~= nil and res.v[2].name == 'NON_EMPTY', 'a second time: NON_EMPTY',
         '  got: %s', json.encode(res))
    res = bootstrap({timeout = 10, if_not_bootstrapped = true})
    t:ok(res.ok and res.v[1] == true, 'if_not_bootstrapped', '  got: %s', json.encode(res))
    res = c.router:call('test_call', {1, 'write', 'echo', {5}, {timeout = 5}})
    t:is(res.v[1], 5, 'calls work')
    c:stop()
end)

s:scenario('discovery in pages', {fe = false, storages = 'helper'}, function(t)
    local c = cluster.new({bucket_count = 3000, discovery_page = 500})
    c:start()
    local ok = pcall(suite.wait_until, 'all buckets', function()
        return c.router:eval('return router.info().bucket.unknown') == 0
    end, 40)
    t:ok(ok, 'all 3000 are known', '  unknown: %s', tostring(c.router:eval('return router.info().bucket.unknown')))
    c:stop()
end)

s:scenario('a wider cluster, many buckets', {fe = false}, function(t)
    local c = cluster.new({bucket_count = 10000, replicasets = 3, replicas = 1})
    c:start()
    local ok = pcall(suite.wait_until, 'all buckets', function()
        return c.router:eval('return router.info().bucket.unknown') == 0
    end, 30)
    t:ok(ok, 'all are known', '  unknown: %s', tostring(c.router:eval('return router.info().bucket.unknown')))
    for _, rs in ipairs(c.replicasets) do
        for _, id in ipairs({rs.first, rs.last}) do
            local res = c.router:call('test_call', {id, 'write', 'whoami', {}, {timeout = 5}})
            t:is(res.v[1], rs.names[1], 'bucket ' .. id)
        end
    end
    c:stop()
end)

s:run()
