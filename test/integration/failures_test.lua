-- Storages that stop, die or hang under a call: it ends by its deadline, the others go on, and the connection heals by itself.

package.path = './?.lua;' .. package.path
local fiber = require('fiber')
local json = require('json')
local suite = require('test.helper.suite')

local s = suite.new('failures')

local function is_error(res)
    return res.raised == nil and res[1] == nil and type(res[2]) == 'table'
end

-- Writes to r1 work again, by themselves, within a few reconnect intervals.
local function heals(t, fe, c, message)
    local started = fiber.clock()
    local ok = pcall(suite.wait_until, 'a write that works', function()
        return fe:call(c, {1, 'write', 'whoami', {}, {timeout = 0.5}})[1] == 's1a'
    end, 15)
    t:ok(ok, message or 'reconnects by itself', '  not within %.1f s', fiber.clock() - started)
end

s:scenario('a storage killed in the middle of calls', {heals = true}, function(t, fe, c)
    local in_flight = {}
    for i = 1, 20 do
        in_flight[i] = fe:start(c, {1, 'write', 'sleep', {30, i}, {timeout = 2}})
    end
    local others = {}
    for i = 1, 20 do
        others[i] = fe:start(c, {30, 'write', 'sleep', {0.3, i}, {timeout = 5}})
    end
    -- A later call, answered before the kill: the storage has surely read what was sent before it.
    t:values(fe, fe:call(c, {1, 'write', 'echo', {1}, {timeout = 5}}), {1}, 'the calls are under way')
    local started = fiber.clock()
    c.storages.s1a:kill()
    local errors = 0
    for i = 1, 20 do
        local res = fe:finish(in_flight[i], 10)
        if is_error(res) then
            errors = errors + 1
        else
            t:note('  call %d: %s', i, json.encode(res))
        end
    end
    t:is(errors, 20, 'each call ended by an error')
    t:within(fiber.clock() - started, 0, 4, 'by the deadline')
    for i = 1, 20 do
        t:values(fe, fe:finish(others[i], 10), {i}, 'a call of the other replicaset')
    end
    c.storages.s1a:start()
    heals(t, fe, c)
end)

-- Case P44 (a). Servers before 2.10 cut their connections when they stop.
s:scenario('a planned restart of a storage loses no call', {heals = true, min_host = '2.10'}, function(t, fe, c)
    local in_flight = {}
    for i = 1, 10 do
        in_flight[i] = fe:start(c, {1, 'write', 'sleep', {0.5, i}, {timeout = 10}})
    end
    t:values(fe, fe:call(c, {1, 'write', 'echo', {1}, {timeout = 5}}), {1}, 'the calls are under way')
    local started = fiber.clock()
    c.storages.s1a:stop()
    -- Three seconds are what a server waits for those who do not leave.
    t:within(fiber.clock() - started, 0, 2.5, 'the storage did not have to wait for us')
    for i = 1, 10 do
        t:values(fe, fe:finish(in_flight[i], 10), {i}, 'what was under way is answered')
    end
    for i = 1, 10 do
        in_flight[i] = fe:start(c, {1, 'write', 'echo', {i}, {timeout = 20}})
    end
    c.storages.s1a:start()
    for i = 1, 10 do
        t:values(fe, fe:finish(in_flight[i], 25), {i}, 'what came meanwhile waited')
    end
end)

s:scenario('a storage stopped by SIGTERM in the middle of calls', {heals = true}, function(t, fe, c)
    local in_flight = {}
    for i = 1, 10 do
        in_flight[i] = fe:start(c, {1, 'write', 'sleep', {1, i}, {timeout = 3}})
    end
    t:values(fe, fe:call(c, {1, 'write', 'echo', {1}, {timeout = 5}}), {1}, 'the calls are under way')
    local started = fiber.clock()
    c.storages.s1a:stop()
    local answered = 0
    for i = 1, 10 do
        local res = fe:finish(in_flight[i], 10)
        if is_error(res) or res[1] == i then
            answered = answered + 1
        else
            t:note('  call %d: %s', i, json.encode(res))
        end
    end
    t:is(answered, 10, 'each call ended, by its answer or an error')
    t:within(fiber.clock() - started, 0, 8, 'in time')
    local res = fe:call(c, {1, 'write', 'echo', {1}, {timeout = 0.3}})
    t:ok(is_error(res), 'a write to nobody fails', '  got: %s', json.encode(res))
    res = fe:call(c, {1, 'read', 'whoami', {}, {timeout = 3}})
    t:values(fe, res, {'s1b'}, 'reads go to the other instance')
    c.storages.s1a:start()
    heals(t, fe, c)
end)

s:scenario('a frozen storage: the deadline is kept', {heals = true}, function(t, fe, c)
    t:values(fe, fe:call(c, {1, 'write', 'echo', {1}, {timeout = 5}}), {1}, 'connected')
    c.storages.s1a:freeze()
    for _, timeout in ipairs({0.1, 0.5, 1}) do
        local started = fiber.clock()
        local res = fe:call(c, {1, 'write', 'echo', {1}, {timeout = timeout}})
        t:timeout(res, 'timeout after ' .. timeout)
        t:within(fiber.clock() - started, timeout * 0.9, timeout + 1.5, 'kept')
    end
    -- The others do not notice.
    for i = 1, 20 do
        local res = fe:call(c, {30, 'write', 'echo', {i}, {timeout = 1}})
        if res[1] ~= i then
            t:values(fe, res, {i}, 'the other replicaset serves')
        end
    end
    c.storages.s1a:thaw()
    heals(t, fe, c, 'serves after the thaw')
end)

s:scenario('a frozen replica: a read with request_timeout goes on to the next', {heals = true}, function(t, fe, c)
    -- Balanced reads ask every instance in turn, so half of them meet the frozen one. Both must be in good standing first:
    -- the scenario before may have left the other one under suspicion.
    local seen = {}
    suite.wait_until('reads from both', function()
        local res = fe:call(c, {1, {mode = 'read', balance = true}, 'whoami', {}, {timeout = 1}})
        seen[res[1] or ''] = true
        return seen.s1a and seen.s1b
    end)
    c.storages.s1b:freeze()
    local started = fiber.clock()
    for _ = 1, 4 do
        local res = fe:call(c, {1, {mode = 'read', balance = true}, 'whoami', {}, {timeout = 3, request_timeout = 0.3}})
        t:values(fe, res, {'s1a'}, 'served by the other')
    end
    t:within(fiber.clock() - started, 0, 5, 'in time')
end)

s:scenario('a frozen storage: the default timeout is half a second', {heals = true}, function(t, fe, c)
    t:values(fe, fe:call(c, {1, 'write', 'echo', {1}, {timeout = 5}}), {1}, 'connected')
    c.storages.s1a:freeze()
    local started = fiber.clock()
    t:timeout(fe:call(c, {1, 'write', 'echo', {1}}), 'no call_opts')
    t:within(fiber.clock() - started, 0.45, 2, 'half a second')
end)

s:scenario('a write whose timeout is zero is not sent', {differs = 'sends a write although its time is over'}, function(t, fe, c)
    for _, timeout in ipairs({0, -1}) do
        local key = ('zero %s %d'):format(fe.name, timeout)
        t:timeout(fe:call(c, {1, 'write', 'count', {key}, {timeout = timeout}}), 'timeout ' .. timeout)
        t:is(c:executed(key), 0, 'not executed')
    end
end)

s:scenario('late answers reach nobody', {}, function(t, fe, c)
    -- Each call that times out leaves an answer on its way; the following calls must get their own.
    local late = {}
    for i = 1, 50 do
        late[i] = fe:start(c, {1, 'write', 'sleep', {0.2, 'late'}, {timeout = 0.05}})
    end
    for i = 1, 50 do
        t:timeout(fe:finish(late[i], 10), 'a call that is too slow')
    end
    local started = fiber.clock()
    local wrong, n = 0, 0
    while fiber.clock() - started < 0.4 do
        local calls = {}
        for i = 1, 50 do
            n = n + 1
            calls[i] = {fe:start(c, {1, 'write', 'echo', {n}, {timeout = 5}}), n}
        end
        for i = 1, 50 do
            if fe:finish(calls[i][1], 10)[1] ~= calls[i][2] then
                wrong = wrong + 1
            end
        end
    end
    t:is(wrong, 0, 'foreign answers')
    t:ok(n >= 100, 'calls were made while late answers arrived')
end)

s:scenario('a cancelled fiber frees its slot', {
    fe = {'lua', 'lua_raw'}, differs = 'net.box before 2.10 waits on',
}, function(t, fe, c)
    local res = c.router:eval([[
        local is_raw = ...
        local opts = {timeout = 30, return_raw = is_raw or nil}
        local results = {}
        local fibers = {}
        for i = 1, 100 do
            fibers[i] = fiber.new(function()
                results[i] = {pcall(router.callrw, 1, 'sleep', {20, i}, opts)}
            end)
            fibers[i]:set_joinable(true)
        end
        fiber.sleep(0.05)
        local started = fiber.clock()
        for i = 1, 100 do
            fibers[i]:cancel()
        end
        local finished = 0
        for i = 1, 100 do
            fibers[i]:join()
            finished = finished + 1
        end
        local answers = 0
        for i = 1, 100 do
            if results[i] ~= nil and results[i][1] and results[i][2] ~= nil then
                answers = answers + 1
            end
        end
        return {finished = finished, answers = answers, seconds = fiber.clock() - started}
    ]], {fe.is_raw or false})
    t:is(res.finished, 100, 'the cancelled fibers ended')
    t:is(res.answers, 0, 'none with a result')
    t:within(res.seconds, 0, 2, 'at once')
    t:values(fe, fe:call(c, {1, 'write', 'echo', {5}, {timeout = 5}}), {5}, 'the router serves')
    if suite.env.router_kind == 'rawshard' then
        local ok = pcall(suite.wait_until, 'free slots', function()
            local info = c.router:eval('return router.info()')
            return info.slab ~= nil and info.slab.used == 0
        end, 5)
        t:ok(ok, 'no slot is in use', '  info().slab: %s', json.encode(c.router:eval('return router.info().slab')))
    end
end)

s:scenario('a client that leaves: its calls end, the router serves on', {fe = {'cfunc', 'direct', 'raw'}}, function(t, fe, c)
    local frontends = require('test.helper.frontends')
    for _ = 1, 50 do
        fe:start(c, {1, 'write', 'sleep', {0.5}, {timeout = 1}})
    end
    -- All sent: a call behind them is answered.
    t:values(fe, fe:call(c, {30, 'write', 'echo', {1}, {timeout = 5}}), {1}, 'sent')
    frontends.client(c):close()
    t:values(fe, fe:call(c, {1, 'write', 'echo', {2}, {timeout = 5}}), {2}, 'another client is served')
    local ok = pcall(suite.wait_until, 'free slots', function()
        local info = c.router:eval('return router.info()')
        return info.slab == nil or info.slab.used == 0
    end, 5)
    t:ok(ok, 'no slot is in use')
end)

s:scenario('reconnects again and again', {fe = {'lua', 'cfunc'}, heals = true}, function(t, fe, c)
    for i = 1, 3 do
        c.storages.s1a:kill()
        local res = fe:call(c, {1, 'write', 'echo', {i}, {timeout = 0.1}})
        t:ok(is_error(res), 'down: an error', '  got: %s', json.encode(res))
        c.storages.s1a:start()
        heals(t, fe, c, 'up: served')
    end
end)

s:run()
