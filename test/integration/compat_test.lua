-- Deliberate differences from vshard's router that no other file pins; docs/compat.md names these scenarios.

package.path = './?.lua;' .. package.path
local fiber = require('fiber')
local suite = require('test.helper.suite')

-- Without discovery nothing but the calls themselves finds buckets.
local s = suite.new('compat', {router_cfg = {discovery_mode = 'off'}})

local function on_storages(c, code)
    for _, name in ipairs(c.names) do
        c.storages[name]:eval(code)
    end
end

s:scenario('an error object that a function returns arrives as its text', {
    fe = {'lua', 'cfunc', 'direct', 'raw'}, differs = 'asks storages for error objects',
}, function(t, fe, c)
    on_storages(c, [[rawset(_G, 'returned_error', function()
        return nil, box.error.new({code = 1234, reason = 'the reason'})
    end)]])
    local res = fe:call(c, {1, 'write', 'returned_error', {}, {timeout = 5}})
    t:ok(res.raised == nil and res.n == 2 and res[1] == nil, 'nil and a second value')
    t:is(res[2], 'the reason', 'its text')
end)

s:scenario('request_timeout of a write is passed over', {
    differs = 'gives it to net.box, which refuses it, again and again until the deadline',
}, function(t, fe, c)
    local key = 'request_timeout ' .. fe.name
    local res = fe:call(c, {1, 'write', 'count', {key}, {timeout = 5, request_timeout = 0.1}})
    t:values(fe, res, {key}, 'the call succeeds')
    t:is(c:executed(key), 1, 'executed once')
    res = fe:call(c, {1, 'write', 'sleep', {0.3, key}, {timeout = 5, request_timeout = 0.1}})
    t:values(fe, res, {key}, 'and is not bounded by it')
end)

s:scenario('a replica tells of a bucket while its master is down', {
    heals = true, differs = 'asks masters only, and fails',
}, function(t, fe, c)
    c.storages.s1a:kill()
    c.router:call('test_api', {'_route_map_clear', {}})
    local res = fe:call(c, {1, 'read', 'whoami', {}, {timeout = 5}})
    t:values(fe, res, {'s1b'}, 'a read of an unknown bucket')
end)

s:scenario('a silent replicaset does not keep others from telling', {
    heals = true, differs = 'asks one after another and waits for each',
}, function(t, fe, c)
    c.storages.s1a:freeze()
    c.router:call('test_api', {'_route_map_clear', {}})
    local started = fiber.clock()
    t:values(fe, fe:call(c, {30, 'write', 'whoami', {}, {timeout = 5}}), {'s2a'}, 'found')
    t:within(fiber.clock() - started, 0, 0.4, 'at once')
end)

s:scenario('an id out of range has no route, nobody is asked', {fe = false, router = 'rawshard'}, function(t, _, c)
    local before = c.router:eval('return router.info().engines[1].bytes_out')
    for _, id in ipairs({0, 31, 1.5, -1}) do
        t:is(c.router:eval('local rs, err = router.route(...) return rs == nil and err.name', {id}), 'NO_ROUTE_TO_BUCKET', id)
    end
    -- Pings are a dozen bytes each.
    t:within(c.router:eval('return router.info().engines[1].bytes_out') - before, 0, 200, 'nothing is sent')
end)

s:scenario('unknown modes are refused by the router', {fe = {'lua', 'cfunc', 'direct', 'raw'}}, function(t, fe, c)
    local key = 'mode ' .. fe.name
    for _, mode in ipairs({'READ', 'rw', ''}) do
        local res = fe:call(c, {1, mode, 'count', {key}, {timeout = 5}})
        t:ok(res.raised ~= nil or res[1] == nil and res[2] ~= nil, ('"%s"'):format(mode))
    end
    t:is(c:executed(key), 0, 'nothing is executed')
end)

s:scenario('a disabled router: the stored function raises a text', {
    fe = {'cfunc', 'direct'}, router = 'rawshard',
}, function(t, fe, c)
    c.router:eval('router.disable()')
    t:raised(fe:call(c, {1, 'read', 'echo', {7}, {timeout = 5}}), 'Router is disabled')
    c.router:eval('router.enable()')
    t:values(fe, fe:call(c, {1, 'read', 'echo', {7}, {timeout = 5}}), {7}, 'and serves again')
end)

s:run()
