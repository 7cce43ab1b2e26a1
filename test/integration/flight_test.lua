-- Many calls at once: 20 000 in flight, and late answers by the thousand (case P32).

package.path = './?.lua;' .. package.path
local fiber = require('fiber')
local json = require('json')
local suite = require('test.helper.suite')

local s = suite.new('flight')

local function in_flight(c, key)
    local n = 0
    for _, name in ipairs({'s1a', 's2a'}) do
        n = n + c.storages[name]:call('test_gate_waiting', {key})
    end
    return n
end

s:scenario('20 000 calls in flight', {}, function(t, fe, c)
    local N = 20000
    local key = 'gate ' .. fe.name
    local calls = {}
    for i = 1, N do
        calls[i] = fe:start(c, {i % 30 + 1, 'write', 'gate', {key, i}, {timeout = 60}})
        if i % 1000 == 0 then
            fiber.yield()
        end
    end
    local ok, err = pcall(suite.wait_until, N .. ' calls in the storages', function()
        return in_flight(c, key) == N
    end, 60)
    t:ok(ok, 'all are in flight at once', '  %s; waiting: %d', tostring(err), in_flight(c, key))
    for _, name in ipairs({'s1a', 's2a'}) do
        c.storages[name]:call('test_gate_open', {key})
    end
    local wrong, shown = 0, nil
    for i = 1, N do
        local res = fe:finish(calls[i], 60)
        if res.n ~= 1 or res[1] ~= i then
            wrong = wrong + 1
            shown = shown or json.encode(res)
        end
    end
    t:is(wrong, 0, 'each call gets its own answer')
    if shown ~= nil then
        t:note('  the first wrong one: %s', shown)
    end
    for _, name in ipairs({'s1a', 's2a'}) do
        t:is(c.storages[name]:call('test_gate_twice', {key}), 0, 'executed twice on ' .. name)
    end
end)

s:scenario('P32 late answers by the thousand', {}, function(t, fe, c)
    local N = 10000
    local before = suite.env.router_kind == 'rawshard' and c.router:eval('return router.info()') or {}
    local late = {}
    for i = 1, N do
        late[i] = fe:start(c, {i % 30 + 1, 'write', 'sleep', {0.2, 'late'}, {timeout = 0.05}})
        if i % 1000 == 0 then
            fiber.yield()
        end
    end
    local others = 0
    for i = 1, N do
        local res = fe:finish(late[i], 60)
        if res[1] ~= nil and res[1] ~= 'late' or res.raised ~= nil then
            others = others + 1
            t:note('  got: %s', json.encode(res))
        end
    end
    t:is(others, 0, 'each ends by a timeout or its own answer')
    local calls, wrong = {}, 0
    for i = 1, N do
        calls[i] = fe:start(c, {i % 30 + 1, 'write', 'echo', {i}, {timeout = 30}})
        if i % 1000 == 0 then
            fiber.yield()
        end
    end
    for i = 1, N do
        local res = fe:finish(calls[i], 60)
        if res.n ~= 1 or res[1] ~= i then
            wrong = wrong + 1
            if wrong < 5 then
                t:note('  call %d got: %s', i, json.encode(res))
            end
        end
    end
    t:is(wrong, 0, 'each echo gets its own number')
    if suite.env.router_kind == 'rawshard' then
        local ok = pcall(suite.wait_until, 'free slots', function()
            return c.router:eval('return router.info().slab.used') == 0
        end, 5)
        t:ok(ok, 'the pool is back where it was')
        -- Wherever info() keeps them.
        local function reconnects(part)
            local n = 0
            for k, v in pairs(part) do
                n = n + (type(v) == 'table' and reconnects(v) or k == 'reconnects' and v or 0)
            end
            return n
        end
        t:is(reconnects(c.router:eval('return router.info()')), reconnects(before), 'no reconnect')
    end
end)

s:run()
