-- Reads and instances that are connected, yet not to be read from.

package.path = './?.lua;' .. package.path
local fiber = require('fiber')
local json = require('json')
local suite = require('test.helper.suite')

local s = suite.new('health', {router_cfg = {failover_interval = 0.1}})

local RE = {mode = 'read', prefer_replica = true}

-- Until a read of this mode is served by that instance.
local function wait_served(fe, c, mode, name)
    suite.wait_until(('a read served by %s'):format(name), function()
        return fe:call(c, {1, mode, 'whoami', {}, {timeout = 1}})[1] == name
    end, 15)
end

-- Case P09.
s:scenario('P09 a frozen replica is passed over after a few attempts', {
    heals = true, differs = 'attempts shorter than half a second do not count',
}, function(t, fe, c)
    wait_served(fe, c, RE, 's1b')
    c.storages.s1b:freeze()
    local slow, most = 0, 0
    for _ = 1, 100 do
        local started = fiber.clock()
        t:values(fe, fe:call(c, {1, RE, 'whoami', {}, {timeout = 2, request_timeout = 0.3}}), {'s1a'}, 'served')
        local took = fiber.clock() - started
        slow, most = slow + (took > 0.25 and 1 or 0), math.max(most, took)
    end
    t:within(slow, 1, 3, 'a few find out')
    t:within(most, 0.25, 0.7, 'within one attempt')
    local started = fiber.clock()
    t:values(fe, fe:call(c, {1, RE, 'whoami', {}, {timeout = 2}}), {'s1a'}, 'without attempts, too')
    t:within(fiber.clock() - started, 0, 0.25, 'straight away')
    c.storages.s1b:thaw()
    wait_served(fe, c, RE, 's1b')
end)

s:scenario('a replica that does not replicate is out of reads', {heals = true}, function(t, fe, c)
    wait_served(fe, c, RE, 's1b')
    c.storages.s1b:call('test_replicates', {false})
    wait_served(fe, c, RE, 's1a')
    for _ = 1, 10 do
        t:values(fe, fe:call(c, {1, RE, 'whoami', {}, {timeout = 1}}), {'s1a'}, 'and stays out')
    end
    t:values(fe, fe:call(c, {30, RE, 'whoami', {}, {timeout = 1}}), {'s2b'}, 'the other replicaset is as before')
    c.storages.s1b:call('test_replicates', {true})
    wait_served(fe, c, RE, 's1b')
    t:ok(true, 'comes back')
end)

s:scenario('health and replication are shown', {fe = false, heals = true}, function(t, _, c)
    local function statuses()
        return c.router:eval([[
            local res = {}
            for _, replicaset in pairs(router.routeall()) do
                for _, replica in pairs(replicaset.replicas) do
                    table.insert(res, replica.health_status .. ':' .. replica.replication_status)
                end
            end
            table.sort(res)
            return table.concat(res, ' ')
        ]])
    end
    local function wait_for(what, wanted)
        local seen
        local ok = pcall(suite.wait_until, what, function()
            seen = statuses()
            return seen:match('^' .. wanted .. '$') ~= nil
        end, 15)
        t:ok(ok, what, '  seen: %s', seen)
    end
    wait_for('all are in order', '0:0 0:0 0:0 0:0')
    c.storages.s1b:call('test_replicates', {false})
    wait_for('one does not replicate', '0:0 0:0 0:0 3:3')
    c.storages.s1b:call('test_replicates', {true})
    wait_for('all are in order again', '0:0 0:0 0:0 0:0')
    c.storages.s2b:stop()
    -- A question that was under way when it went has got no answer: nothing is known then.
    wait_for('one is down', '0:0 0:0 0:0 3:[01]')
end)

s:scenario('the same in info', {fe = false, router = 'rawshard'}, function(t, _, c)
    suite.wait_until('all are in order', function()
        return c.router:eval([[
            for _, replicaset in pairs(router.info().replicasets) do
                for id, connection in pairs(replicaset.connections) do
                    local replica = router.routeall()[replicaset.uuid].replicas[id]
                    if connection.health_status ~= 0 or connection.replication_status ~= 0
                        or replica.health_status ~= 0 then
                        return false
                    end
                end
            end
            return true
        ]])
    end)
    t:ok(true, 'they are')
end)

-- What both routers tell of their services; the texts of errors are their own.
s:scenario('services', {fe = false, heals = true}, function(t, _, c)
    local function services()
        return c.router:eval([[
            local info = router.info({with_services = true})
            local res = {discovery = info.services.discovery}
            for _, replicaset in pairs(info.replicasets) do
                local failover = replicaset.services.failover
                res.failover = failover
                for id, record in pairs(failover.replicas) do
                    res[id] = record
                end
                res.has_search = next(replicaset.services.master_search) ~= nil
            end
            return res
        ]])
    end
    local id = c.storages.s2b.config.id
    local seen
    local function wait_for(what, condition)
        local ok = pcall(suite.wait_until, what, function()
            seen = services()
            return condition(seen)
        end, 15)
        t:ok(ok, what, '  seen: %s', json.encode(seen))
    end
    wait_for('all is well', function(res)
        return res.discovery.status == 'ok' and res[id].status == 'ok' and res.failover.status == 'ok'
    end)
    t:is(seen.discovery.name, 'discovery', 'name of discovery')
    t:is(seen.discovery.error, '', 'no error')
    t:is(seen.failover.name, 'replicaset_failover', 'name of the failover of a replicaset')
    t:is(seen.failover.activity, 'idling', 'its activity')
    t:is(seen[id].name, 'replica_failover', 'name of the failover of a replica')
    t:is(seen.has_search, false, 'no master is searched for')
    local number = seen[id].status_idx
    wait_for('each ping is counted', function(res) return res[id].status_idx > number end)
    c.storages.s2b:stop()
    wait_for('a replica is down', function(res) return res[id].status == 'error' and res[id].error ~= '' end)
    t:is(seen.discovery.status, 'ok', 'all buckets are known')
    c.router:eval("router.discovery_set('off')")
    wait_for('no discovery', function(res) return res.discovery == nil end)
    c.router:eval("router.discovery_set('on')")
    wait_for('it is on again', function(res) return res.discovery ~= nil and res.discovery.status == 'ok' end)
    c.storages.s2b:start()
    wait_for('the replica is back', function(res) return res[id].status == 'ok' end)
end)

s:scenario('reads come back with a storage that was disabled', {heals = true, differs = 'it waits five seconds'},
           function(t, fe, c)
    for _, name in ipairs({'s1a', 's1b'}) do
        c.storages[name]:call('test_storage_enable', {false})
    end
    local res = fe:call(c, {1, 'read', 'whoami', {}, {timeout = 1}})
    t:is(res[2] and res[2].name, 'REPLICASET_IN_BACKOFF', 'nobody serves')
    c.storages.s1b:call('test_storage_enable', {true})
    local started = fiber.clock()
    wait_served(fe, c, 'read', 's1b')
    t:within(fiber.clock() - started, 0, 3, 'soon')
    c.storages.s1a:call('test_storage_enable', {true})
    wait_served(fe, c, 'read', 's1a')
    t:within(fiber.clock() - started, 0, 4, 'soon')
end)

s:run()
