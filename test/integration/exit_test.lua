-- The router process ends: at once, with the right code, whatever is in flight.

package.path = './?.lua;' .. package.path
local cluster = require('test.helper.cluster')
local fiber = require('fiber')
local popen = require('popen')
local suite = require('test.helper.suite')

local s = suite.new('exit', false)

-- A cluster whose router holds calls that will not be answered, sent through every front end of the host.
local function busy_cluster(n)
    local frontends = require('test.helper.frontends')
    local c = cluster.new({replicas = 1})
    c:start()
    local sent = 0
    for _, name in ipairs(frontends.order) do
        local fe = frontends[name]
        if fe.is_supported() then
            for i = 1, n do
                fe:start(c, {i % 2 == 0 and 1 or 30, 'write', 'gate', {'exit', sent + i}, {timeout = 60}})
            end
            sent = sent + n
        end
    end
    suite.wait_until('calls in flight', function()
        local waiting = 0
        for _, storage in pairs(c.storages) do
            waiting = waiting + storage:call('test_gate_waiting', {'exit'})
        end
        return waiting == sent
    end)
    return c
end

-- Seconds until the router has ended, and how.
local function ended(c)
    local started = fiber.clock()
    local p = c.router.process
    p:wait(20)
    local seconds, status = fiber.clock() - started, p:exit_status()
    return seconds, status
end

local function check_log(t, c)
    local log = c.router.process:log_tail(60)
    for _, word in ipairs({'panic', 'Segmentation', 'cannot gracefully', 'fatal', 'Aborting'}) do
        t:ok(not log:find(word, 1, true), 'the log has no: ' .. word)
    end
    if t.failed > 0 then
        t:note('%s', log)
    end
end

for _, n in ipairs({0, 500}) do
    s:scenario(('SIGTERM with %d calls in flight per front end'):format(n), {fe = false}, function(t)
        local c = busy_cluster(n)
        c.router.process:signal(popen.signal.SIGTERM)
        local seconds, status = ended(c)
        t:is(status, 0, 'its code')
        t:within(seconds, 0, 2.5, 'at once')
        check_log(t, c)
        c:stop()
    end)
end

s:scenario('SIGTERM with futures, and fibers that wait for them', {fe = false, router = 'rawshard'}, function(t)
    local c = busy_cluster(0)
    c.router:eval([[
        local fiber = require('fiber')
        _G.futures = {}
        for i = 1, 300 do
            local f = router.callrw(i % 2 == 0 and 1 or 30, 'gate', {'futures', i}, {is_async = true})
            futures[i] = f
            if i <= 100 then
                -- Whoever is told comes back at once: the end must not depend on his manners.
                fiber.create(function()
                    while f:wait_result(i % 3 == 0 and 30 or nil) == nil and pcall(fiber.testcancel) do
                        fiber.sleep(0.01)
                    end
                end)
            end
        end
    ]])
    c.router.process:signal(popen.signal.SIGTERM)
    local seconds, status = ended(c)
    t:is(status, 0, 'its code')
    t:within(seconds, 0, 2.5, 'at once')
    check_log(t, c)
    c:stop()
end)

s:scenario('SIGINT', {fe = false}, function(t)
    local c = busy_cluster(10)
    c.router.process:signal(popen.signal.SIGINT)
    local seconds, status = ended(c)
    t:is(status, 0, 'its code')
    t:within(seconds, 0, 2.5, 'at once')
    c:stop()
end)

s:scenario('os.exit(7) with calls in flight', {fe = false}, function(t)
    local c = busy_cluster(200)
    pcall(c.router.eval, c.router, 'os.exit(7)', {}, {timeout = 5})
    local seconds, status = ended(c)
    t:is(status, 7, 'its code')
    t:within(seconds, 0, 2.5, 'at once')
    check_log(t, c)
    c:stop()
end)

s:scenario('SIGTERM while storages are frozen', {fe = false}, function(t)
    local c = busy_cluster(50)
    for _, storage in pairs(c.storages) do
        storage:freeze()
    end
    c.router.process:signal(popen.signal.SIGTERM)
    local seconds, status = ended(c)
    t:is(status, 0, 'its code')
    t:within(seconds, 0, 2.5, 'at once')
    c:stop()
end)

s:scenario('SIGTERM while storages are gone', {fe = false}, function(t)
    local c = busy_cluster(50)
    for _, storage in pairs(c.storages) do
        storage:kill()
    end
    c.router.process:signal(popen.signal.SIGTERM)
    local seconds, status = ended(c)
    t:is(status, 0, 'its code')
    t:within(seconds, 0, 2.5, 'at once')
    c:stop()
end)

s:scenario('started again: the stored function works before any Lua of ours is loaded', {
    fe = false, router = 'rawshard',
}, function(t)
    local c = cluster.new({replicas = 1})
    c:start()
    c.router:stop()
    t:is(c.router.process:exit_status(), 0, 'stopped')
    -- From the snapshot, with the function in it, and without cfg.
    local cfg = c.router.config.router_cfg
    c.router.config.router_cfg = nil
    c.router:start()
    local ok, err = pcall(c.router:conn().call, c.router:conn(), 'rawshard.callraw', {1, 'write', 'echo', {1}})
    t:ok(not ok, 'an error before cfg', '  got: %s', tostring(err))
    c.router:stop()
    c.router.config.router_cfg = cfg
    c.router:start()
    local res = require('test.helper.frontends').cfunc:call(c, {1, 'write', 'echo', {5}, {timeout = 5}})
    t:is(res[1], 5, 'a call after cfg')
    c:stop()
end)

s:run()
