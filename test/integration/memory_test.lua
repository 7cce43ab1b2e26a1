-- Memory of the router stays flat: many small calls, big answers in flight (case P33 in small).

package.path = './?.lua;' .. package.path
local fiber = require('fiber')
local suite = require('test.helper.suite')

local s = suite.new('memory', {replicas = 1})
local MB = 1024 * 1024

local function lua_memory(c)
    return c.router:eval("collectgarbage() collectgarbage() return collectgarbage('count')") * 1024
end

-- n calls with at most `width` in flight.
local function run(fe, c, n, width, request)
    local calls = {}
    local wrong = 0
    local function finish(i)
        local res = fe:finish(calls[i], 60)
        if res.raised ~= nil or res.n ~= 1 then
            wrong = wrong + 1
        end
        calls[i] = nil
    end
    for i = 1, n do
        calls[i] = fe:start(c, request(i))
        if i > width then
            finish(i - width)
        end
    end
    for i = math.max(1, n - width + 1), n do
        finish(i)
    end
    return wrong
end

-- The router's memory does not depend on what kind of storage answers: one kind is enough.
s:scenario('small calls leave nothing behind', {router = 'rawshard', storages = 'helper'}, function(t, fe, c)
    local function round()
        return run(fe, c, 10000, 500, function(i)
            return {i % 30 + 1, 'write', 'echo', {{i, ('x'):rep(100)}}, {timeout = 30}}
        end)
    end
    -- The first rounds fill pools, caches and the fibers of the host.
    t:is(round() + round(), 0, 'failed calls')
    local lua_before, rss_before = lua_memory(c), c.router:rss()
    t:is(round() + round() + round(), 0, 'failed calls')
    local lua_after, rss_after = lua_memory(c), c.router:rss()
    t:within((lua_after - lua_before) / MB, -100, 1, 'Lua memory, MB more')
    t:within((rss_after - rss_before) / MB, -100, 8, 'RSS, MB more')
end)

s:scenario('P33 big answers leave nothing behind', {
    fe = {'cfunc', 'direct', 'raw', 'lua_raw'}, router = 'rawshard', storages = 'helper',
}, function(t, fe, c)
    local function round()
        return run(fe, c, 300, 30, function(i)
            return {i % 30 + 1, 'write', 'big', {MB}, {timeout = 30}}
        end)
    end
    t:is(round(), 0, 'failed calls')
    local lua_before, rss_before = lua_memory(c), c.router:rss()
    t:is(round() + round(), 0, 'failed calls')
    local lua_after, rss_after = lua_memory(c), c.router:rss()
    t:within((lua_after - lua_before) / MB, -100, 2, 'Lua memory, MB more')
    -- Bounded by what is in flight: 30 answers, on their way in and on their way out.
    t:within((rss_after - rss_before) / MB, -1000, 90, 'RSS, MB more')
    fiber.yield()
end)

s:run()
