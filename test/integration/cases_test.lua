-- Troubles that users of vshard routers have reported, each as a trial, named by its number in the list of cases that the
-- project started from. Cases with a file of their own (futures, map calls, redirects, memory) are there, and what needs exact
-- times is in test/rust/sim.

package.path = './?.lua;' .. package.path
local cluster = require('test.helper.cluster')
local fiber = require('fiber')
local fio = require('fio')
local json = require('json')
local prelude = require('test.helper.prelude')
local suite = require('test.helper.suite')

local s = suite.new('cases', {router_cfg = {failover_interval = 0.1, failover_ping_timeout = 0.3}})

local wait_until = suite.wait_until

local function scenario(name, opts, f)
    s:once(name, opts, f)
end

-- On a cluster of its own.
local function alone(name, cluster_opts, opts, f)
    s:once(name, opts, function(t)
        local c = cluster.new(cluster_opts)
        c:start()
        local ok, err = xpcall(f, debug.traceback, t, c)
        if not ok or t.failed > 0 then
            t:note('%s', c:logs())
        end
        c:stop()
        if not ok then
            error(err, 0)
        end
    end)
end

local eval = prelude.on_router()

local function call(c, ...)
    return c.router:call('test_call', {...})
end

local function all_known(c)
    wait_until('all buckets', function()
        return eval(c, 'return router.info().bucket.unknown') == 0
    end)
end

local function cfg_of(c, change)
    local cfg = {bucket_count = c.bucket_count, sharding = c:sharding()}
    for _, rs in pairs(cfg.sharding) do
        for _, replica in pairs(rs.replicas) do
            change(replica, cfg, rs)
        end
    end
    return cfg
end

local function log_of(instance)
    local f = assert(fio.open(instance.log, {'O_RDONLY'}))
    local text = f:read(f:stat().size)
    f:close()
    return text
end

local function count_of(text, part)
    local n, at = 0, 1
    while true do
        local first, last = text:find(part, at, true)
        if first == nil then
            return n
        end
        n, at = n + 1, last + 1
    end
end

-- How often each storage was asked for the place of a bucket.
local function count_stats(c)
    for _, name in ipairs(c.names) do
        c.storages[name]:eval([[
            local original = vshard.storage.bucket_stat
            _G.stats = 0
            vshard.storage.bucket_stat = function(...)
                _G.stats = _G.stats + 1
                return original(...)
            end
        ]])
    end
end

local function stats(c, name)
    return c.storages[name]:eval('return stats')
end

scenario('P04 a refusal keeps its fields', {heals = true}, function(t, c)
    all_known(c)
    c:set_bucket(c.replicasets[1], 6, 'sent', 'cccccccc-0000-4000-8000-000000000009')
    local res = call(c, 6, 'write', 'echo', {}, {timeout = 0.2})
    local err = res.v[2] or {}
    t:is({err.type, err.code, err.name, err.bucket_id, err.destination, type(err.message), type(err.reason)},
         {'ShardingError', 1, 'WRONG_BUCKET', 6, 'cccccccc-0000-4000-8000-000000000009', 'string', 'string'}, 'fields')
end)

-- Without request_timeout the hung instance has all the time; with it, the others have the rest.
scenario('P09 a hung instance', {heals = true}, function(t, c)
    all_known(c)
    c.storages.s1a:freeze()
    local res = eval(c, [[
        local failed, first, slowest_later = 0, nil, 0
        local plain_started = fiber.clock()
        local plain, plain_err = router.callro(1, 'whoami', {}, {timeout = 0.25})
        local plain_time = fiber.clock() - plain_started
        for i = 1, 100 do
            local started = fiber.clock()
            local name = router.callro(2, 'whoami', {}, {timeout = 2, request_timeout = 0.3})
            local time = fiber.clock() - started
            failed = failed + (name == 's1b' and 0 or 1)
            first = first or time
            if i > 10 then
                slowest_later = math.max(slowest_later, time)
            end
        end
        return {plain = plain, has_error = plain_err ~= nil, plain_time = plain_time, failed = failed, first = first,
                later = slowest_later, usage = tostring(select(2, pcall(router.callro, 1, 'f', {},
                                                                         {timeout = 1, request_timeout = 2})))}
    ]])
    t:ok(res.plain == nil and res.has_error or res.plain == 's1b', 'without request_timeout: an error, or it was known')
    t:within(res.plain_time, 0, 0.7, 'by its deadline')
    t:is(res.failed, 0, 'with request_timeout every call succeeds')
    t:within(res.first, 0, 0.7, 'the first in time')
    t:within(res.later, 0, 0.2, 'then it is passed over')
    t:has(res.usage, 'request_timeout must be <= timeout', 'request_timeout above timeout')
end)

-- The clock ends the pause, however seldom the failover step ticks.
alone('P10 reads go on when the backoff is over', {replicasets = 1, router_cfg = {failover_interval = 100}}, {}, function(t, c)
    all_known(c)
    for _, name in ipairs({'s1a', 's1b'}) do
        c.storages[name]:call('test_storage_enable', {false})
    end
    local res = call(c, 1, 'read', 'whoami', {}, {timeout = 0.5})
    t:error({n = res.n, res.v[1], res.v[2]}, {name = 'REPLICASET_IN_BACKOFF'}, 'in backoff')
    t:is(res.v[2].error and res.v[2].error.name, 'STORAGE_IS_DISABLED', 'with its cause')
    local started = fiber.clock()
    for _, name in ipairs({'s1a', 's1b'}) do
        c.storages[name]:call('test_storage_enable', {true})
    end
    c.storages.s1b:kill()
    wait_until('a read', function()
        return call(c, 1, 'read', 'whoami', {}, {timeout = 0.5}).v[1] == 's1a'
    end)
    t:within(fiber.clock() - started, 3.5, 6.5, 'five seconds after')
end)

alone('P11 the nearest replica, right after cfg', {replicasets = 1, replicas = 3, router_cfg = false}, {}, function(t, c)
    local zones = {s1a = 2, s1b = 2, s1c = 3}
    local cfg = cfg_of(c, function(replica) replica.zone = zones[replica.name] end)
    cfg.zone, cfg.weights = 1, {[1] = {[2] = 10, [3] = 1}}
    local res = eval(c, [[
        local cfg = ...
        -- MessagePack has turned the map into a list.
        cfg.weights = {[1] = {[2] = 10, [3] = 1}}
        router.cfg(cfg)
        local names, failed = {}, 0
        for _ = 1, 50 do
            local name = router.callre(1, 'whoami', {}, {timeout = 2})
            if name == nil then
                failed = failed + 1
            else
                names[name] = (names[name] or 0) + 1
            end
        end
        local deadline = fiber.clock() + 10
        while router.callre(1, 'whoami', {}, {timeout = 2}) ~= 's1c' and fiber.clock() < deadline do
            fiber.sleep(0.05)
        end
        local settled = 0
        for _ = 1, 50 do
            settled = settled + (router.callre(1, 'whoami', {}, {timeout = 2}) == 's1c' and 1 or 0)
        end
        return {failed = failed, master = names.s1a or 0, settled = settled}
    ]], cfg)
    t:is(res.failed, 0, 'no call fails')
    t:is(res.master, 0, 'none goes to the master while replicas serve')
    t:is(res.settled, 50, 'all go to the cheapest')
end)

alone('P12 a read while the master is just gone', {
    replicasets = 1, replicas = 3, auto_master = true, router_cfg = {failover_interval = 100},
}, {}, function(t, c)
    all_known(c)
    t:is(call(c, 1, 'write', 'whoami', {}, {timeout = 5}).v[1], 's1a', 'the master is found')
    c.storages.s1a:kill()
    local started = fiber.clock()
    local res = call(c, 1, 'read', 'whoami', {}, {timeout = 2})
    t:ok(res.v[1] == 's1b' or res.v[1] == 's1c', 'served by another', '  got: %s', json.encode(res))
    t:within(fiber.clock() - started, 0, 0.5, 'at once')
end)

scenario('P14 no time, and less', {}, function(t, c)
    for _, timeout in ipairs({0, -1, -1e300}) do
        for _, mode in ipairs({'write', 'read'}) do
            local res = call(c, 1, mode, 'count', {'P14'}, {timeout = timeout})
            t:timeout({n = res.n, raised = res.raised, res.v[1], res.v[2]}, ('%s, %g'):format(mode, timeout))
        end
    end
    t:is(c:executed('P14'), 0, 'nothing was executed')
end)

scenario('P14 discovery goes on beside a storage that does not answer', {heals = true}, function(t, c)
    c.storages.s1a:freeze()
    c.storages.s1b:freeze()
    eval(c, "router._route_map_clear() router.discovery_wakeup()")
    local ok = pcall(wait_until, 'the other replicaset', function()
        return eval(c, [[
            for id = 16, 30 do
                if router.buckets_info(id - 1, 1)[id].status ~= 'available_rw' then
                    return false
                end
            end
            return true
        ]])
    end, 5)
    t:ok(ok, 'the buckets of the other are found meanwhile')
    c.storages.s1a:thaw()
    c.storages.s1b:thaw()
    all_known(c)
end)

alone('P15 a cold start under load', {bucket_count = 30000, replicas = 1}, {}, function(t, c)
    local res = eval(c, [[
        local cfg = table.deepcopy(router.static.current_cfg)
        local other = router.new('cold', cfg)
        local started, known_at = fiber.clock(), nil
        local failed, done, running = 0, 0, 200
        for i = 1, 200 do
            fiber.create(function()
                math.randomseed(i)
                while fiber.clock() < started + 2 do
                    local ok = other:callrw(math.random(30000), 'echo', {true}, {timeout = 5})
                    failed, done = failed + (ok == true and 0 or 1), done + 1
                end
                running = running - 1
            end)
        end
        while known_at == nil and fiber.clock() < started + 30 do
            if other:info().bucket.unknown == 0 then
                known_at = fiber.clock() - started
            end
            fiber.sleep(0.02)
        end
        while running > 0 do
            fiber.sleep(0.01)
        end
        return {failed = failed, done = done, known_at = known_at or 1000}
    ]])
    t:is(res.failed, 0, 'no call fails')
    t:ok(res.done > 200, 'calls were made')
    -- 15 pages of each replicaset, 10 ms apart.
    t:within(res.known_at, 0, 10, 'all is known soon')
end)

alone('P16 many callers ask for one unknown bucket', {replicas = 1, router_cfg = {discovery_mode = 'off'}}, {
    differs = 'searches once for each caller',
}, function(t, c)
    count_stats(c)
    local right = eval(c, [[
        local futures, right = {}, 0
        for i = 1, 1000 do
            futures[i] = router.callrw(7, 'echo', {i}, {is_async = true, timeout = 10})
        end
        for i, f in ipairs(futures) do
            local res = f:wait_result(10)
            right = right + (res ~= nil and res[1] == i and 1 or 0)
        end
        return right
    ]])
    t:is(right, 1000, 'all succeed')
    t:is({stats(c, 's1a'), stats(c, 's2a')}, {1, 1}, 'one question to each replicaset')
end)

scenario('P17 the map is cleared and the configuration applied while calls are made', {}, function(t, c)
    local res = eval(c, [[
        local cfg = table.deepcopy(router.static.current_cfg)
        local is_over, running, failed, done = false, 10, {}, 0
        local function start(f)
            fiber.create(function()
                while not is_over do
                    f()
                end
                running = running - 1
            end)
        end
        for i = 1, 8 do
            start(function()
                local id = math.random(30)
                local name, err = router.callrw(id, 'whoami', {}, {timeout = 5})
                if name ~= (id <= 15 and 's1a' or 's2a') then
                    table.insert(failed, tostring(name) .. ' ' .. tostring(err))
                end
                done = done + 1
            end)
        end
        start(function()
            router._route_map_clear()
            fiber.sleep(0.001)
        end)
        start(function()
            router.cfg(cfg)
            fiber.sleep(0.001)
        end)
        fiber.sleep(3)
        is_over = true
        while running > 0 do
            fiber.sleep(0.01)
        end
        return {failed = failed, done = done}
    ]])
    t:is(res.failed, {}, 'no call failed')
    t:ok(res.done > 100, 'calls were made')
    all_known(c)
    local bucket = eval(c, 'return router.info().bucket')
    t:is(bucket, {available_rw = 30, available_ro = 0, unreachable = 0, unknown = 0}, 'the books add up')
end)

alone('P18 another number of buckets', {}, {}, function(t, c)
    for _, case in ipairs({{20, 'INVALID_CFG', 3, '???'}, {40, 'UNKNOWN_BUCKETS', 1, 10}}) do
        local name = 'of' .. case[1]
        eval(c, [[
            local name, count = ...
            local cfg = table.deepcopy(router.static.current_cfg)
            cfg.bucket_count = count
            _G[name] = router.new(name, cfg)
        ]], name, case[1])
        local ok = pcall(wait_until, 'the alert', function()
            return eval(c, [[
                local name, alert, unknown = ...
                local info = _G[name]:info()
                for _, a in ipairs(info.alerts) do
                    if a[1] == alert and info.bucket.unknown == unknown then
                        return true
                    end
                end
                return false
            ]], name, case[2], case[4])
        end, 5)
        local info = eval(c, 'return _G[...]:info()', name)
        t:ok(ok, case[1] .. ': ' .. case[2], '  alerts: %s, unknown: %s', json.encode(info.alerts), tostring(info.bucket.unknown))
        t:is(info.status, case[3], case[1] .. ': status')
        t:is(eval(c, "return _G[...]:callrw(20, 'echo', {1}, {timeout = 2})", name), 1, case[1] .. ': serves')
    end
end)

scenario('P19 discovery without the master', {heals = true}, function(t, c)
    c.storages.s1a:kill()
    c.router:restart()
    all_known(c)
    t:is(call(c, 1, 'read', 'whoami', {}, {timeout = 2}).v[1], 's1b', 'a read')
    local res = call(c, 1, 'write', 'whoami', {}, {timeout = 0.3})
    local err = res.v[2] or {}
    t:ok(res.v[1] == nil and (err.code == 77 or err.code == 78 or err.type == 'TimedOut'), 'a write: an error of the connection',
         '  got: %s', json.encode(res))
end)

scenario('P20 start while a replicaset is down', {heals = true}, function(t, c)
    c.storages.s2a:kill()
    c.storages.s2b:kill()
    local started = fiber.clock()
    c.router:restart()
    t:within(fiber.clock() - started, 0, 4, 'it starts')
    t:is(call(c, 1, 'write', 'whoami', {}, {timeout = 2}).v[1], 's1a', 'the other replicaset is served')
    c.storages.s2a:spawn()
    c.storages.s2b:spawn()
    local ok = pcall(wait_until, 'the rest', function()
        return call(c, 30, 'write', 'whoami', {}, {timeout = 1}).v[1] == 's2a'
    end, 20)
    t:ok(ok, 'the rest heals')
end)

alone('P20 start before the bootstrap', {bootstrap = false}, {}, function(t, c)
    local res = call(c, 1, 'write', 'whoami', {}, {timeout = 0.2})
    t:is(res.v[2] and res.v[2].name, 'NO_ROUTE_TO_BUCKET', 'there are no buckets')
    t:is(eval(c, 'return (router.bootstrap({timeout = 10}))'), true, 'bootstrap')
    t:is(eval(c, 'return (router.bootstrap({timeout = 10, if_not_bootstrapped = true}))'), true, 'if_not_bootstrapped')
    t:is(eval(c, 'local _, err = router.bootstrap({timeout = 10}) return err.name'), 'NON_EMPTY', 'a second time')
    t:ok(call(c, 1, 'write', 'whoami', {}, {timeout = 2}).v[1] ~= nil, 'served')
end)

-- The router's session at the master of a bucket: each connection has its own.
local function session(c, bucket_id)
    local res = call(c, bucket_id, 'write', 'session_id', {}, {timeout = 2})
    return res.v[1]
end

alone('P23 a changed URI', {replicas = 1, router_cfg = false}, {}, function(t, c)
    local right = cfg_of(c, function() end)
    local wrong = cfg_of(c, function(replica)
        if replica.name == 's1a' then
            replica.uri = 'storage:storage@127.0.0.1:' .. cluster.free_port()
        end
    end)
    eval(c, 'router.cfg(...)', wrong)
    t:is(call(c, 1, 'write', 'whoami', {}, {timeout = 0.2}).v[1], nil, 'not at the wrong port')
    t:is(call(c, 30, 'write', 'whoami', {}, {timeout = 2}).v[1], 's2a', 'the other is served')
    local before = session(c, 30)
    eval(c, 'router.cfg(...)', right)
    t:is(call(c, 1, 'write', 'whoami', {}, {timeout = 2}).v[1], 's1a', 'at the right port')
    t:ok(before ~= nil, 'a session')
    t:is(session(c, 30), before, 'a connection whose URI is the same is kept')
    -- The user alone is another.
    c.storages.s1a:eval([[
        box.session.su('admin', function()
            box.schema.user.create('another', {password = 'pass'})
            box.schema.user.grant('another', 'super')
        end)
    ]])
    local old = session(c, 1)
    local another = cfg_of(c, function(replica)
        if replica.name == 's1a' then
            replica.uri = replica.uri:gsub('storage:storage@', 'another:pass@')
        end
    end)
    eval(c, 'router.cfg(...)', another)
    t:is(call(c, 1, 'write', 'whoami', {}, {timeout = 2}).v[1], 's1a', 'served under another name')
    t:isnt(session(c, 1), old, 'by another connection')
    t:is(session(c, 30), before, 'the other is kept again')
end)

alone('P24 fibers configure at once, and fail', {replicas = 1, router_cfg = false}, {}, function(t, c)
    local res = eval(c, [[
        local cfg = ...
        local function many(cfg, n)
            local names = {}
            in_fibers(n, function()
                local ok, err = pcall(router.cfg, cfg)
                local name = ok and 'done' or type(err) == 'table' and err.name or tostring(err)
                names[name] = (names[name] or 0) + 1
            end)
            return names
        end
        local fresh = many(cfg, 10)
        local again = many(cfg, 10)
        local bad = table.deepcopy(cfg)
        bad.discovery_mode = 'x'
        local failed = pcall(router.cfg, bad)
        local first = router.new('twice', cfg)
        local second, err = router.new('twice', cfg)
        return {fresh = fresh, again = again, failed = failed, serves = router.callrw(1, 'echo', {1}, {timeout = 2}),
                first = first ~= nil, second = second == nil and err.name}
    ]], cfg_of(c, function() end))
    -- One who has not to wait for connections is through before the next begins. Of a fresh router the name is taken as well.
    t:ok((res.fresh.done or 0) >= 1, 'a fresh one: one wins', '  %s', json.encode(res.fresh))
    t:is((res.fresh.done or 0) + (res.fresh.ROUTER_CFG_IS_IN_PROGRESS or 0) + (res.fresh.ROUTER_ALREADY_EXISTS or 0), 10,
         'the others are told')
    t:ok((res.again.done or 0) >= 1, 'a configured one: one wins')
    t:is((res.again.done or 0) + (res.again.ROUTER_CFG_IS_IN_PROGRESS or 0), 10, 'the others are told')
    t:is(res.failed, false, 'a bad one fails')
    t:is(res.serves, 1, 'the old one serves')
    t:is({res.first, res.second}, {true, 'ROUTER_ALREADY_EXISTS'}, 'a name twice')
end)

scenario('P25 the configuration is not changed', {}, function(t, c)
    local res = eval(c, [[
        local cfg = table.deepcopy(router.static.current_cfg)
        cfg.failover_interval, cfg.shard_index, cfg.sync_timeout = nil, nil, nil
        local function show(value)
            if type(value) ~= 'table' then
                return tostring(value)
            end
            local parts = {}
            for k, v in pairs(value) do
                table.insert(parts, tostring(k) .. '=' .. show(v))
            end
            table.sort(parts)
            return '{' .. table.concat(parts, ',') .. '}'
        end
        local before = show(cfg)
        router.cfg(cfg)
        router.new('P25', cfg)
        pcall(router.cfg, {sharding = cfg.sharding, discovery_mode = 'x'})
        return {before, show(cfg)}
    ]])
    t:is(res[2], res[1], 'as it was')
end)

alone('P27 no secret anywhere', {replicas = 1, router_cfg = false}, {}, function(t, c)
    local SECRET = 'hushhush'
    local cfg = cfg_of(c, function(replica)
        replica.uri = ('storage:%s@%s'):format(SECRET, replica.uri:match('@(.*)$'))
        if replica.name == 's1a' then
            -- Nobody listens there.
            replica.uri = ('storage:%s@127.0.0.1:%d'):format(SECRET, cluster.free_port())
        end
    end)
    local texts = eval(c, [[
        local cfg, secret = ...
        box.cfg({log_level = 7})
        local texts = {}
        local function note(...)
            for i = 1, select('#', ...) do
                local value = select(i, ...)
                table.insert(texts, type(value) == 'table' and require('json').encode(value) or tostring(value))
            end
        end
        router.cfg(cfg)
        note(router.callrw(1, 'echo', {1}, {timeout = 0.2}))
        note(router.callrw(30, 'echo', {1}, {timeout = 0.2}))
        note(router.callro(30, 'echo', {1}, {timeout = 0.2}))
        note(router.route(1))
        note(router.map_callrw('echo', {1}, {timeout = 0.2}))
        note(router.sync(0.1))
        note(router.info({with_services = true}))
        for _, rs in pairs(router.routeall()) do
            note(tostring(rs))
            for _, replica in pairs(rs.replicas) do
                note(tostring(replica), replica:safe_uri())
                note(replica:call('echo', {1}, {timeout = 0.2}))
            end
        end
        -- Wrong ones are told of without it, too.
        local bad = table.deepcopy(cfg)
        for _, rs in pairs(bad.sharding) do
            for _, replica in pairs(rs.replicas) do
                replica.uri = 'storage:' .. secret .. '@127.0.0.1:7'
            end
        end
        note(pcall(router.cfg, bad))
        note(pcall(router.cfg, {sharding = bad.sharding, discovery_mode = 'x'}))
        fiber.sleep(0.5)
        box.cfg({log_level = 5})
        return texts
    ]], cfg, SECRET)
    for i, text in ipairs(texts) do
        if text:find(SECRET, 1, true) then
            t:fail(('a secret in text %d: %s'):format(i, text:sub(1, 300)))
        end
    end
    local log = log_of(c.router)
    t:is(count_of(log, SECRET), 0, 'none in the log')
    t:ok(#texts > 20, 'texts were looked at')
    t:ok(log:find('127.0.0.1', 1, true) ~= nil, 'addresses are in the log')
end)

alone('P28 the log while a storage is down', {replicas = 1}, {differs = 'writes a line per second and service'}, function(t, c)
    all_known(c)
    c.storages.s2a:kill()
    -- The loss itself is told; from then on lines count.
    wait_until('the loss', function()
        return eval(c, "return router.info().status") ~= 0
    end)
    local address = c.storages.s2a:uri()
    wait_until('the first line', function()
        return log_of(c.router):find(address, 1, true) ~= nil
    end)
    local function lines()
        return count_of(log_of(c.router), '\n')
    end
    local before = lines()
    local done = eval(c, [[
        local started, done = fiber.clock(), 0
        in_fibers(50, function()
            while fiber.clock() < started + 4 do
                router.callrw(30, 'echo', {1}, {timeout = 0.005})
                done = done + 1
            end
        end)
        return done
    ]])
    t:ok(done > 1000, 'calls failed by the thousand', '  %d', done)
    t:within(lines() - before, 0, 12, 'a few lines')
end)

scenario('P29 the module is reloaded under load', {router = 'rawshard'}, function(t, c)
    all_known(c)
    local res = eval(c, [[
        local is_over, running, failed, done = false, 4, {}, 0
        for i = 1, 4 do
            fiber.create(function()
                while not is_over do
                    local value, err = router.callrw(i, 'echo', {i}, {timeout = 5})
                    if value ~= i then
                        table.insert(failed, tostring(value) .. ' ' .. tostring(err))
                    end
                    done = done + 1
                end
                running = running - 1
            end)
        end
        local threads = require('fio').listdir('/proc/self/task')
        local futures = {}
        for i = 1, 20 do
            futures[i] = router.callrw(1, 'sleep', {0.2, i}, {is_async = true})
            unload()
            router = require('rawshard.router')
            vshard.router = router
            router.cfg(table.deepcopy(router.static.current_cfg))
            fiber.sleep(0.01)
        end
        local kept = 0
        for i, future in ipairs(futures) do
            local value = future:wait_result(5)
            kept = kept + (value ~= nil and value[1] == i and 1 or 0)
        end
        is_over = true
        while running > 0 do
            fiber.sleep(0.01)
        end
        return {failed = failed, done = done, kept = kept, version = router.module_version(),
                threads = #require('fio').listdir('/proc/self/task') - #threads}
    ]])
    t:is(res.failed, {}, 'no call failed')
    t:ok(res.done > 20, 'calls were made')
    t:is(res.kept, 20, 'futures of before complete')
    t:ok(res.version >= 20, 'reloads were made')
    t:within(res.threads, -2, 2, 'no second set of threads')
end)

scenario('P30 changes of the schema on a storage', {heals = true}, function(t, c)
    all_known(c)
    local before = session(c, 1)
    c.storages.s1a:eval([[
        _G.ddl = fiber.new(function()
            for i = 1, 25 do
                local space = box.schema.space.create('ddl' .. i)
                space:create_index('pk')
                space:drop()
                fiber.sleep(0.05)
            end
        end)
        _G.ddl:set_joinable(true)
    ]])
    local res = eval(c, [[
        local started, failed, done = fiber.clock(), {}, 0
        in_fibers(10, function(i)
            while fiber.clock() < started + 1.5 do
                local value, err = router.callrw(1, 'echo', {i}, {timeout = 2})
                if value ~= i then
                    table.insert(failed, tostring(value) .. ' ' .. tostring(err))
                end
                done = done + 1
            end
        end)
        return {failed = failed, done = done}
    ]])
    t:is(c.storages.s1a:eval('return ddl:join()'), true, 'the schema was changed')
    t:is(res.failed, {}, 'no call failed')
    t:ok(res.done > 100, 'calls were made')
    t:is(session(c, 1), before, 'the connection is the same')
end)

scenario('P34 completions by the thousand, each wakes a fiber that sleeps', {}, function(t, c)
    local res = eval(c, [[
        local N = 5000
        local started, right, running = fiber.clock(), 0, N
        for i = 1, N do
            fiber.create(function()
                local future, err = router.callrw(i % 30 + 1, 'gate', {'P34', i}, {is_async = true, timeout = 60})
                local value = future ~= nil and future:wait_result(60) or nil
                _G.woken = _G.woken or fiber.clock()
                fiber.sleep(1)
                right = right + (value ~= nil and value[1] == i and 1 or 0)
                running = running - 1
            end)
        end
        fiber.create(function()
            while running > 0 do
                fiber.sleep(0.01)
            end
            _G.P34 = {right = right, seconds = fiber.clock() - _G.woken}
        end)
    ]])
    t:is(res, nil, 'started')
    wait_until('all of them to run', function()
        return c.storages.s1a:call('test_gate_waiting', {'P34'}) + c.storages.s2a:call('test_gate_waiting', {'P34'}) == 5000
    end, 60)
    c.storages.s1a:call('test_gate_open', {'P34'})
    c.storages.s2a:call('test_gate_open', {'P34'})
    wait_until('all of them to end', function()
        return eval(c, 'return P34 ~= nil')
    end, 60)
    res = eval(c, 'return P34')
    t:is(res.right, 5000, 'each has its own answer')
    t:within(res.seconds, 1, 4, 'together')
end)

s:run()
