-- Objects of replicasets and replicas, beside their calls: waiting for connections and masters, calls of all instances, the
-- search for a master, and the net.box connection of a replica. Most of it runs on vshard's router as well.

package.path = './?.lua;' .. package.path
local prelude = require('test.helper.prelude')
local suite = require('test.helper.suite')

local s = suite.new('objects')

local RS1 = 'aaaaaaaa-0000-4000-8000-000000000001'
local S1A, S1B = 'bbbbbbbb-0000-4000-8000-000000000101', 'bbbbbbbb-0000-4000-8000-000000000102'

-- Every chunk is run on the router with this in front: rs1 is the first replicaset, auto() it or another one of a router
-- that searches for masters.
local on_router = prelude.on_router(([[
    local RS1, S1A, S1B = '%s', '%s', '%s'
    local function auto()
        local found = router.internal.routers.auto
        if found == nil then
            local cfg = table.deepcopy(router.static.current_cfg)
            for _, rs in pairs(cfg.sharding) do
                rs.master = 'auto'
                for _, replica in pairs(rs.replicas) do
                    replica.master = nil
                end
            end
            found = assert(router.new('auto', cfg))
        end
        return found:routeall()[RS1]
    end
    local rs1 = router.routeall()[RS1]
]]):format(RS1, S1A, S1B))

local function scenario(name, f, opts)
    s:once(name, opts, f)
end

scenario('wait for connections', function(t, c)
    t:within(on_router(c, 'return rs1:wait_connected(3)'), 0, 3, 'the rest of the timeout')
    t:within(on_router(c, 'return rs1:wait_connected_all({timeout = 3})'), 0, 3, 'of all')
    t:is(on_router(c, 'rs1:connect_all() return rs1:wait_connected(-1)'), -1, 'there is nothing to wait for')
    t:is(on_router(c, 'local master, left = rs1:wait_master(2) return {master.id, left}'), {S1A, 2}, 'a master that is known')
end)

scenario('wait for one that is down', function(t, c)
    c.storages.s1b:kill()
    t:is(on_router(c, [[
        assert(wait(function() return not rs1.replicas[S1B]:is_connected() end))
        local left, err, id = rs1:wait_connected_all({timeout = 0.05})
        return {left == nil, err.code, id}
    ]]), {true, 78, S1B}, 'of all: a timeout, and who')
    t:within(on_router(c, 'return rs1:wait_connected_all({timeout = 3, except = S1B})'), 0, 3, 'of all but one')
    t:within(on_router(c, 'return rs1:wait_connected(3)'), 0, 3, 'of the master')
    t:is(on_router(c, [[
        local res, err, id = rs1:map_call('vshard.storage.buckets_count', {}, {timeout = 0.05})
        return {res == nil, err.code, id}
    ]]), {true, 78, S1B}, 'map_call')
    t:is(on_router(c, 'return rs1.replicas[S1B]:is_connected() and true or false'), false, 'is_connected')
end, {heals = true})

scenario('check_is_connected', function(t, c)
    t:is(on_router(c, 'return wait(function() return rs1.replicas[S1B]:check_is_connected() end)'), true, 'connected')
    c.storages.s1b:kill()
    t:is(on_router(c, [[
        local replica = rs1.replicas[S1B]
        assert(wait(function() return not replica:is_connected() end))
        local ok, err = replica:check_is_connected()
        return {ok == nil, err.type, err.code}
    ]]), {true, 'ClientError', 77}, 'down')
end, {heals = true, differs = 'gives no error, only nil'})

scenario('wait for one that comes', function(t, c)
    c.storages.s1b:kill()
    on_router(c, [[
        assert(wait(function() return not rs1.replicas[S1B]:is_connected() end))
        rawset(_G, 'waiter', fiber.new(rs1.wait_connected_all, rs1, {timeout = 30}))
        waiter:set_joinable(true)
    ]])
    c.storages.s1b:start()
    t:within(on_router(c, 'local ok, left = waiter:join() return left'), 0, 30, 'it is waited for')
end, {heals = true})

scenario('map_call', function(t, c)
    t:is(on_router(c, "return rs1:map_call('vshard.storage.buckets_count', {}, {timeout = 5})"),
         {[S1A] = {15}, [S1B] = {15}}, 'all instances')
    t:is(on_router(c, "return rs1:map_call('vshard.storage.buckets_count', {}, {timeout = 5, except = S1A})"),
         {[S1B] = {15}}, 'all but one')
    t:is(on_router(c, [[
        local res, err, id = rs1:map_call('no_such_function', {}, {timeout = 5})
        return {res == nil, err.code, id == S1A or id == S1B}
    ]]), {true, 42, true}, 'a failure: it may not be called')
end)

scenario('a missing master', function(t, c)
    t:is(on_router(c, [[
        local cfg = table.deepcopy(router.static.current_cfg)
        for _, rs in pairs(cfg.sharding) do
            for _, replica in pairs(rs.replicas) do
                replica.master = nil
            end
        end
        local rs = assert(router.new('masterless', cfg)):routeall()[RS1]
        local names = {}
        local function name(_, err)
            table.insert(names, err.name)
        end
        name(rs:connect())
        name(rs:connect_master())
        name(rs:wait_master(0.01))
        name(rs:wait_connected(0.01))
        return names
    ]]), {'MISSING_MASTER', 'MISSING_MASTER', 'MISSING_MASTER', 'MISSING_MASTER'}, 'its error')
    t:is(on_router(c, "return {router.internal.routers.masterless:routeall()[RS1]:locate_master()}"), {true, true},
         'where one is configured there is nothing to search')
end)

scenario('a searched master', function(t, c)
    t:is(on_router(c, 'local master = auto():wait_master(10) return master.id'), S1A, 'it is waited for')
    t:is(on_router(c, 'return {auto():locate_master()}'), {true, true}, 'nothing to do for locate_master')
end)

scenario('update_master', function(t, c)
    t:is(on_router(c, 'return rs1:update_master(S1A, S1B)'), false, 'a configured one stays')
    t:is(on_router(c, 'return rs1.master.id'), S1A, 'as it is')
    t:is(on_router(c, 'return rs1:update_master(S1B, S1A)'), true, 'old news')
    local code = 'local rs = auto() assert(rs:wait_master(10)) '
    t:is(on_router(c, code .. 'return {rs:update_master(S1A, S1B), rs.master.id}'), {true, S1B}, 'a searched one changes')
    t:is(on_router(c, code .. 'return {rs:update_master(S1A, S1B), rs.master.id}'), {true, S1B}, 'old news again')
    t:is(on_router(c, code .. 'return {rs:update_master(S1B, S1B), rs.master.id}'), {true, S1B}, 'nonsense')
    t:is(on_router(c, code .. 'return {rs:locate_master()}'), {true, false}, 'locate_master asks')
    t:is(on_router(c, code .. 'return rs.master.id'), S1A, 'and finds the right one')
    code = code .. "return {rs:update_master(S1A, 'nobody'), rs.master == nil, rs:wait_master(10) ~= nil, rs.master.id}"
    t:is(on_router(c, code), {true, true, true, S1A}, 'an unknown one: a new search')
end)

scenario('a searched master that hangs', function(t, c)
    on_router(c, 'assert(auto():wait_master(10))')
    c.storages.s1a:freeze()
    t:is(on_router(c, [[
        local rs, started = auto(), fiber.clock()
        local is_done, is_nop = rs:locate_master()
        return {is_done, is_nop, rs.master.id, fiber.clock() - started < 3}
    ]]), {false, false, S1A, true}, 'it is waited for, for half a second, and not forgotten')
end, {heals = true, differs = 'waits for 5 s'})

scenario('a searched master that is down', function(t, c)
    on_router(c, 'assert(auto():wait_master(10))')
    c.storages.s1a:kill()
    t:is(on_router(c, [[
        local rs = auto()
        assert(wait(function() return not rs.replicas[S1A]:is_connected() end))
        local is_done, is_nop = rs:locate_master()
        return {is_done, is_nop, rs.master.id}
    ]]), {false, false, S1A}, 'locate_master finds nobody, and forgets nobody')
    t:is(on_router(c, [[
        local left, err = auto():wait_connected(0.05)
        return {left == nil, err.code}
    ]]), {true, 78}, 'wait_connected')
end, {heals = true})

scenario('dots for colons', function(t, c)
    for _, name in ipairs({'callro', 'wait_connected', 'map_call', 'locate_master'}) do
        t:has(on_router(c, 'return raised(rs1[...], {})', name), 'Use replicaset:', name)
    end
    for _, name in ipairs({'call', 'is_connected', 'safe_uri', 'connect'}) do
        t:has(on_router(c, 'return raised(rs1.master[...], {})', name), 'Use replica:', name)
    end
end)

scenario('outdated objects', function(t, c)
    t:is(on_router(c, [[
        local old, names = rs1, {}
        router.cfg(table.deepcopy(router.static.current_cfg))
        assert(wait(function() return old.is_outdated end))
        local replica = old.replicas[S1A]
        local function name(_, err)
            table.insert(names, err.name)
        end
        for _, method in ipairs({'callrw', 'callbre', 'connect', 'wait_connected', 'map_call', 'update_master'}) do
            name(old[method](old))
        end
        for _, method in ipairs({'call', 'is_connected', 'safe_uri', 'connect'}) do
            name(replica[method](replica))
        end
        assert(replica.is_outdated and replica.conn == nil and old.id == RS1 and replica.id == S1A)
        assert(tostring(old):startswith('(outdated) ') and tostring(replica):startswith('(outdated) '))
        return names
    ]]), {
        'OBJECT_IS_OUTDATED', 'OBJECT_IS_OUTDATED', 'OBJECT_IS_OUTDATED', 'OBJECT_IS_OUTDATED', 'OBJECT_IS_OUTDATED',
        'OBJECT_IS_OUTDATED', 'OBJECT_IS_OUTDATED', 'OBJECT_IS_OUTDATED', 'OBJECT_IS_OUTDATED', 'OBJECT_IS_OUTDATED',
    }, 'all methods say so')
end)

--
-- The connection of a replica.
--

scenario('conn: spaces, at once', function(t, c)
    t:is(on_router(c, [[
        local conn = rs1.master.conn
        return {conn.state, conn.peer_uuid, conn.space._vspace ~= nil, conn:ping(), conn.replica == rs1.master}
    ]]), {'active', S1A, true, true, true}, 'who asks first is made to wait')
    t:is(on_router(c, 'return rs1.master.conn == rs1.master.conn and rs1:connect() == rs1.master.conn'), true, 'it is one')
    t:is(on_router(c, "return rs1.master.conn:call('vshard.storage.buckets_count')"), 15, 'it calls')
end)

scenario('conn: a schema that changes', function(t, c)
    on_router(c, 'assert(rs1.master.conn.space._vspace)')
    c.storages.s1a:eval([[
        box.schema.space.create('came_later', {if_not_exists = true}):create_index('pk', {if_not_exists = true})
        box.schema.user.grant('storage', 'read', 'space', 'came_later', {if_not_exists = true})
    ]])
    t:is(on_router(c, 'return wait(function() return rs1.master.conn.space.came_later ~= nil end)'), true,
         'is noticed without a request')
    c.storages.s1a:eval('box.space.came_later:drop()')
end)

scenario('conn: one that is down', function(t, c)
    c.storages.s1b:kill()
    t:is(on_router(c, [[
        local replica = rs1.replicas[S1B]
        assert(wait(function() return not replica:is_connected() end))
        local started = fiber.clock()
        local conn = replica.conn
        return {conn:is_connected(), conn.error ~= nil, fiber.clock() - started < 5}
    ]]), {false, true, true}, 'it says so')
    c.storages.s1b:start()
    t:is(on_router(c, 'return wait(function() return rs1.replicas[S1B].conn:ping() end)'), true, 'it comes back by itself')
end, {heals = true})

scenario('conn: only when it is asked for', function(t, c)
    local sessions = 'return box.stat.net().CONNECTIONS.current'
    local before = c.storages.s1a:eval(sessions)
    on_router(c, [[
        local other = assert(router.new('lazy', table.deepcopy(router.static.current_cfg)))
        local rs = other:routeall()[RS1]
        assert(rs:wait_connected(10))
        rs:connect_all()
        rs.master:is_connected()
        rs:map_call('vshard.storage.buckets_count', {}, {timeout = 5})
    ]])
    t:is(c.storages.s1a:eval(sessions), before + 1, 'one more connection, of the engine')
    on_router(c, "return router.internal.routers.lazy:routeall()[RS1].master.conn:ping()")
    t:is(c.storages.s1a:eval(sessions), before + 2, 'and another when it is asked for')
end, {router = 'rawshard', min_host = '2.10'})

scenario('conn: reconfiguration', function(t, c)
    t:is(on_router(c, [[
        local conn = rs1.master.conn
        router.cfg(table.deepcopy(router.static.current_cfg))
        local now = router.routeall()[RS1]
        assert(wait(function() return rs1.is_outdated end))
        return {now ~= rs1, now.master.conn == conn, conn.replica == now.master, conn:ping()}
    ]]), {true, true, true, true}, 'it goes on with the new object')
    t:is(on_router(c, [[
        local full = table.deepcopy(router.static.current_cfg)
        local less = table.deepcopy(full)
        less.sharding[RS1].replicas[S1B] = nil
        local conn = rs1.replicas[S1B].conn
        router.cfg(less)
        assert(wait(function() return conn.state == 'closed' end))
        router.cfg(full)
        return {conn.state, router.routeall()[RS1].replicas[S1B].conn:ping()}
    ]]), {'closed', true}, 'that of a removed instance is closed')
end, {differs = 'leaves the connection of a removed instance to the collector'})

scenario('conn: detach and close', function(t, c)
    t:is(on_router(c, [[
        local replica = rs1.master
        local before = replica.conn
        replica:detach_conn()
        local after = replica:connect()
        return {before ~= after, before:ping(), after:wait_connected(10)}
    ]]), {true, true, true}, 'a detached one lives')
    t:is(on_router(c, [[
        local replica = rs1.master
        replica.conn:close()
        return wait(function() return replica.conn ~= nil and replica.conn:ping() end)
    ]]), true, 'a closed one has a successor')
end)

scenario('health and services', function(t, c)
    t:is(on_router(c, [[
        local replica = rs1.replicas[S1A]
        wait(function() return replica.health_status == 0 and replica.replication_status == 0 end)
        local service = rs1:service_info('failover')
        return {replica.health_status, replica.replication_status, replica.backoff_ts == nil, service.status,
                service.replicas[S1A].status, rs1.replica.id}
    ]]), {0, 0, true, 'ok', 'ok', S1A}, 'all is well')
    c.storages.s1b:call('test_storage_enable', {false})
    t:is(on_router(c, [[
        local replica = rs1.replicas[S1B]
        return wait(function()
            rs1:callre('vshard.storage.call', {1, 'read', 'echo', {1}}, {timeout = 1})
            return replica.backoff_ts ~= nil
        end) and replica.backoff_ts <= fiber.clock()
    ]]), true, 'one is disabled')
    c.storages.s1a:kill()
    t:is(on_router(c, [[
        local replica = rs1.replicas[S1A]
        return {wait(function() return replica.health_status == 3 end), wait(function() return rs1.replica.id == S1B end)}
    ]]), {true, true}, 'one is down')
end, {heals = true})

scenario('fields of the configuration', function(t, c)
    t:is(on_router(c, [[
        local replica = rs1.master
        return {
            replica.net_timeout, replica.failover_ping_timeout, replica.failover_interval,
            replica.failover_sequential_fail_count, replica.failover_replica_lag_limit, replica.fetch_schema,
            rs1.failover_interval, rs1.priority_list[1].next_by_priority == rs1.priority_list[2],
        }
    ]]), {0.5, 5, 1, 3, 30, true, 1, true}, 'as vshard has them')
end)

s:run()
