-- attach(): a router beside vshard's own, with its configuration.

package.path = './?.lua;' .. package.path
local prelude = require('test.helper.prelude')
local suite = require('test.helper.suite')

local s = suite.new('attach', {router_cfg = false})

local RS2 = 'aaaaaaaa-0000-4000-8000-000000000002'

local eval = prelude.on_router([[
    local rawshard = require('rawshard.router')
]])

local function scenario(name, f)
    local missing = suite.env.vshard == nil and 'vshard is not found' or nil
    s:scenario(name, {fe = false, router = 'rawshard', missing = missing}, function(t, _, c)
        f(t, c, function(code, ...)
            return eval(c, code, ...)
        end)
    end)
end

scenario('what is no configured router', function(t, _, on_router)
    for _, code in ipairs({"require('vshard').router", 'nil', '5', '{}'}) do
        t:has(on_router('return raised(rawshard.attach, ' .. code .. ')'), 'Usage: attach', code)
    end
    t:is(on_router('return rawshard.callrw == nil'), true, 'nothing is there')
end)

scenario('the static router', function(t, c, on_router)
    local cfg = {bucket_count = 30, sharding = c:sharding(), read_only = false}
    on_router([[
        vshard = require('vshard')
        vshard.router.cfg(...)
        local given = rawshard.attach(vshard.router, {max_in_flight = 1000})
        assert(given == rawshard.static)
    ]], cfg)
    t:is(on_router("return rawshard.callrw(30, 'whoami', {}, {timeout = 5})"), 's2a', 'its functions')
    t:is(on_router("return box.func['rawshard.callraw']:call({1, 'write', 'whoami', {}, {timeout = 5}})"), 's1a',
         'the stored function')
    t:is(on_router("return vshard.router.callrw(1, 'whoami', {}, {timeout = 5})"), 's1a', "vshard's own")
    t:is(on_router('return rawshard.static.current_cfg.max_in_flight'), 1000, 'options')
    t:is(on_router([[
        local options = {io_threads = 1, max_in_flight = 5, max_waiting = 6, max_queued_bytes = 7, busy_poll = 0.001}
        local cfg = rawshard.attach(vshard.router, options).current_cfg
        for name, value in pairs(options) do
            assert(cfg[name] == value, name)
        end
        return cfg.busy_poll
    ]]), 0.001, 'every option that is not of vshard')
    t:has(on_router('return raised(rawshard.attach, vshard.router, {zone = 1})'), 'zone', 'options that are none')
    t:has(on_router('return raised(rawshard.attach, rawshard)'), 'already', 'a router of rawshard')
    t:is(on_router('return rawshard.attach(vshard.router) == rawshard.static'), true, 'attached again')
    t:is(on_router('return rawshard.static.current_cfg.max_in_flight == nil'), true, '… with other options')
end)

scenario('its later configurations', function(t, c, on_router)
    local less = {bucket_count = 30, sharding = c:sharding()}
    less.sharding[RS2] = nil
    on_router('vshard.router.cfg(...)', less)
    local goes = 'local id = ... return wait(function() return rawshard.routeall()[id] == nil end)'
    local comes = 'local id = ... return wait(function() return rawshard.routeall()[id] ~= nil end)'
    t:is(on_router(goes, RS2), true, 'a replicaset goes')
    on_router('vshard.router.static:cfg(...)', {bucket_count = 30, sharding = c:sharding()})
    t:is(on_router(comes, RS2), true, '… and comes')
    on_router([[
        for name in pairs(package.loaded) do
            if name:find('^vshard') then
                package.loaded[name] = nil
            end
        end
        vshard = require('vshard')
    ]])
    on_router('vshard.router.cfg(...)', less)
    t:is(on_router(goes, RS2), true, 'after a reload of vshard')
    on_router([[
        unload()
        rawshard = require('rawshard.router')
    ]])
    on_router('vshard.router.cfg(...)', {bucket_count = 30, sharding = c:sharding()})
    t:is(on_router(comes, RS2), true, 'after a reload of rawshard')
    t:is(on_router("return rawshard.callrw(30, 'whoami', {}, {timeout = 5})"), 's2a', 'calls')
end)

scenario('a configuration that can not be taken over at first', function(t, c, on_router)
    local function told()
        return select(2, c.router.process:log_tail(1e6):gsub('does not take over', ''))
    end
    on_router([[
        configured, real_cfg = 0, rawshard.static.cfg
        -- The router's object has it by its metatable.
        rawset(rawshard.static, 'cfg', function(...)
            configured = configured + 1
            if is_good then
                return real_cfg(...)
            end
            error('not yet')
        end)
    ]])
    local less = {bucket_count = 30, sharding = c:sharding()}
    less.sharding[RS2] = nil
    on_router('vshard.router.cfg(...)', less)
    t:is(on_router('return wait(function() return configured >= 3 end)'), true, 'it is tried again')
    t:is(told(), 1, '… and the log is told of it once')
    t:is(on_router('return rawshard.routeall()[...] ~= nil', RS2), true, 'the one before holds')
    on_router('is_good = true')
    t:is(on_router('local id = ... return wait(function() return rawshard.routeall()[id] == nil end)', RS2), true,
         'taken over in the end')
    local count = on_router('return configured')
    -- A period that it does not use: whoever is disabled is seen by a look after the last.
    on_router('vshard.router.disable()')
    t:is(on_router('return wait(function() return not rawshard.info().is_enabled end)'), true, 'it looks on')
    on_router('vshard.router.enable()')
    t:is(on_router('return wait(function() return rawshard.info().is_enabled end)'), true)
    t:is(on_router('return configured'), count, '… and that was all')
    on_router('is_good = false vshard.router.cfg(...)', {bucket_count = 30, sharding = c:sharding()})
    t:is(on_router('local count = ... return wait(function() return configured >= count + 2 end)', count), true)
    t:is(told(), 2, 'the next one that fails is told of')
    on_router('is_good = true')
    t:is(on_router('local id = ... return wait(function() return rawshard.routeall()[id] ~= nil end)', RS2), true,
         'taken over')
    on_router("rawset(rawshard.static, 'cfg', nil)")
end)

scenario('disabled and enabled with it', function(t, _, on_router)
    on_router('vshard.router.disable()')
    t:is(on_router('return wait(function() return not rawshard.info().is_enabled end)'), true, 'disabled')
    t:is(on_router("return raised(rawshard.callrw, 1, 'whoami')"), 'ROUTER_IS_DISABLED', '… as calls see')
    on_router('vshard.router.enable()')
    t:is(on_router('return wait(function() return rawshard.info().is_enabled end)'), true, 'enabled')
end)

scenario('a router by name', function(t, c, on_router)
    t:is(on_router([[
        local other = rawshard.attach(assert(vshard.router.new('other', ...)))
        return {other.name, other:callrw(30, 'whoami', {}, {timeout = 5})}
    ]], {bucket_count = 30, sharding = c:sharding()}), {'other', 's2a'}, 'it calls')
    t:is(on_router([[
        assert(rawshard.new('taken', ...))
        return raised(rawshard.attach, (vshard.router.new('taken', ...)))
    ]], {bucket_count = 30, sharding = c:sharding()}), 'ROUTER_ALREADY_EXISTS', 'the name is taken')
end)

s:run()
