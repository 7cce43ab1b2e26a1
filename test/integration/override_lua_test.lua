-- Functions of Lua with iproto_override, callraw and endpoints: a session's calls of them are taken before the host starts
-- a fiber for each, once the host has said that its user may execute the function.

package.path = './?.lua;' .. package.path
local iproto = require('test.helper.iproto')
local mp = require('test.helper.mp')
local suite = require('test.helper.suite')

local s = suite.new('override_lua')

local WHERE = "router.bind({name = 'where', func = 'whoami', key = {'[1]'}, timeout = 5, register = true})"

local function on_router(c, code, ...)
    return c.router:eval(code, {...})
end

local function override(c, is_on)
    on_router(c, 'rawshard_override(...)', is_on)
end

local function taken(c)
    local counts = on_router(c, 'return router.info().iproto_override')
    return counts ~= nil and counts.calls or 0
end

local function connect(c, user)
    local host, port = c.router:uri():match('^(.*):(%d+)$')
    return iproto.connect(host, port, user or 'client', 'secret')
end

local function grant(c, name, user)
    on_router(c, "box.schema.user.grant(..., 'execute', 'function', select(2, ...), {if_not_exists = true})",
              user or 'client', name)
end

-- Calls until one is taken.
local function wait_taken(c, client, name, args)
    suite.wait_until('calls of ' .. name .. ' are taken', function()
        local before = taken(c)
        client:call(name, args)
        return taken(c) > before
    end)
end

local function new_scenario(name, f)
    s:once(name, {min_host = '2.11', router = 'rawshard'}, function(t, c)
        override(c, true)
        f(t, c)
    end)
end

local NUMBER = mp.array_of(mp.uint(1))

-- A call has the same answer with the option as without, and is taken. `good` are arguments that succeed.
local function is_alike(t, c, client, name, args, good, varies)
    override(c, false)
    local before = client:call(name, args)
    override(c, true)
    wait_taken(c, client, name, good)
    local count = taken(c)
    local after = client:call(name, args)
    t:is(taken(c), count + 1, name .. ' is taken')
    t:is({after.code, after.error}, {before.code, before.error}, name .. ': outcome')
    if before.code == 0 and not varies then
        t:is(mp.hex(after.body), mp.hex(before.body), name .. ': all bytes')
    end
end

new_scenario('the answers are what they are without', function(t, c)
    on_router(c, [[
        local funcs = {echoed = 'echo', nothing = 'nothing', four = 'four_values', boom = 'boom', nilerr = 'nilerr'}
        for name, func in pairs(funcs) do
            router.bind({name = name, func = func, key = {'[1]'}, timeout = 5, register = true})
        end
    ]])
    local cases = {
        {'echoed', mp.array_of(mp.uint(1), mp.str('two'), '\xc0')}, {'nothing', NUMBER}, {'four', NUMBER},
        {'boom', mp.array_of(mp.str('why'))}, {'nilerr', mp.array_of(mp.str('why'))}, {'echoed', '\x90'},
        {'echoed', mp.array_of('\x80')},
    }
    for _, case in ipairs(cases) do
        grant(c, case[1])
    end
    local client = connect(c)
    for _, case in ipairs(cases) do
        -- What a storage raises tells a trace, which is another one each time.
        is_alike(t, c, client, case[1], case[2], NUMBER, case[1] == 'boom')
    end
    t:is(on_router(c, 'return router.endpoints().nothing').failed, 0, 'counted')
    t:is(on_router(c, 'return router.endpoints().echoed').refused, 4, 'counted')
    client:close()
end)

new_scenario('rights', function(t, c)
    on_router(c, WHERE)
    on_router(c, [[
        box.schema.user.create('nobody', {password = 'secret', if_not_exists = true})
        -- May be called by all, and executes as its owner.
        function _G.wrapper(args) return box.func.where:call({1}) end
        box.schema.func.create('wrapper', {setuid = true, if_not_exists = true})
        box.schema.user.grant('nobody', 'execute', 'function', 'wrapper', {if_not_exists = true})
    ]])
    grant(c, 'where')
    local friend, stranger = connect(c), connect(c, 'nobody')
    wait_taken(c, friend, 'where', NUMBER)
    local function is_refused(client, what)
        local reply = client:call('where', NUMBER)
        t:has(reply.error, "to function 'where' is denied", what)
    end
    for _ = 1, 3 do
        is_refused(stranger, 'no right')
        t:is(stranger:call('wrapper', '\x90').code, 0, 'another function that calls it')
    end
    -- Whatever was found out in the background is there by now.
    wait_taken(c, friend, 'where', NUMBER)
    is_refused(stranger, 'still no right')

    on_router(c, "box.schema.user.revoke('client', 'execute', 'function', 'where')")
    is_refused(friend, 'revoked')
    grant(c, 'where')
    wait_taken(c, friend, 'where', NUMBER)
    on_router(c, [[
        box.begin()
        box.schema.user.revoke('client', 'execute', 'function', 'where')
        box.rollback()
    ]])
    wait_taken(c, friend, 'where', NUMBER)
    on_router(c, "box.schema.func.drop('where')")
    t:isnt(friend:call('where', NUMBER).code, 0, 'dropped')
    on_router(c, WHERE)
    is_refused(friend, 'made anew')
    grant(c, 'where')
    wait_taken(c, friend, 'where', NUMBER)

    t:is(friend:authenticate('nobody', 'secret').code, 0, 'a login')
    is_refused(friend, 'somebody else now')
    friend:close()
    stranger:close()
end)

new_scenario('what somebody has put into its place is called', function(t, c)
    on_router(c, WHERE)
    grant(c, 'where')
    on_router(c, "callable = _G.where function _G.where(args) wrapped = (wrapped or 0) + 1 return callable(args) end")
    local client = connect(c)
    for i = 1, 5 do
        client:call('where', NUMBER)
        t:is(on_router(c, 'return wrapped'), i, 'the wrapper')
    end
    on_router(c, '_G.where = callable')
    wait_taken(c, client, 'where', NUMBER)
    -- At once, also for sessions whose calls were taken before.
    on_router(c, '_G.where = function() return "instead" end')
    t:has(client:call('where', NUMBER).data, 'instead', 'another function')
    on_router(c, '_G.where = callable')
    wait_taken(c, client, 'where', NUMBER)
    on_router(c, [[
        function _G.where() return 'mine' end
        box.schema.func.drop('where')
        box.schema.func.create('where')
        box.schema.user.grant('client', 'execute', 'function', 'where')
    ]])
    for _ = 1, 3 do
        local before = taken(c)
        t:has(client:call('where', NUMBER).data, 'mine', 'a function of the same name')
        t:is(taken(c), before, 'is none of ours')
    end
    on_router(c, '_G.where = callable box.schema.func.drop("where")')
    client:close()
end)

new_scenario('bound anew', function(t, c)
    on_router(c, WHERE)
    grant(c, 'where')
    local client = connect(c)
    wait_taken(c, client, 'where', NUMBER)
    on_router(c, "router.bind({name = 'where', func = 'echo', key = {'[1]'}, timeout = 5})")
    local before = taken(c)
    t:has(mp.hex(client:call('where', mp.array_of(mp.str('new'))).data), mp.hex(mp.str('new')), 'what is bound now')
    t:is(taken(c), before + 1, 'taken at once')
    on_router(c, [[router.bind({name = 'where', func = 'whoami', key = {'[1]'}, timeout = 5, hash = function() return 30 end})]])
    before = taken(c)
    t:has(client:call('where', NUMBER).data, 's2a', 'a hash in Lua')
    t:is(taken(c), before, 'needs Lua')
    on_router(c, WHERE)
    wait_taken(c, client, 'where', NUMBER)
    on_router(c, 'router.disable()')
    before = taken(c)
    local reply = client:call('where', NUMBER)
    t:has(reply.error, 'router is disabled explicitly', 'disabled')
    t:is(taken(c), before, 'the usual way')
    on_router(c, 'router.enable()')
    wait_taken(c, client, 'where', NUMBER)
    client:close()
end)

--
-- callraw under names of its own
--

local function callraw_args(func, ...)
    return mp.array_of(mp.uint(1), mp.str('write'), mp.str(func), mp.array_of(...))
end

new_scenario('callraw: the answers are what they are without', function(t, c)
    local client = connect(c)
    local name = 'vshard.router.callraw'
    for _, args in ipairs({
        callraw_args('echo', mp.uint(1), '\xc0', mp.str('x')), callraw_args('nothing'), callraw_args('four_values'),
        callraw_args('nilerr', mp.str('why')), '\x90', mp.array_of('\xa1x', '\xc0', '\xa1f'),
    }) do
        is_alike(t, c, client, name, args, callraw_args('echo'))
    end
    client:close()
end)

new_scenario('callraw: wrapped, renamed, loaded anew', function(t, c)
    on_router(c, [[
        function _G.proxy(raw) proxied = (proxied or 0) + 1 return router.callraw(raw) end
        _G.deep = {down = {callraw = router.callraw}}
        for _, name in ipairs({'proxy', 'deep.down.callraw'}) do
            box.schema.func.create(name, {takes_raw_args = true})
            box.schema.user.grant('client', 'execute', 'function', name)
        end
    ]])
    local client, args = connect(c), callraw_args('echo', mp.uint(7))
    for i = 1, 5 do
        local before = taken(c)
        t:is(client:call('proxy', args).code, 0, 'a function that calls it')
        t:is({taken(c) - before, on_router(c, 'return proxied')}, {0, i}, 'is called')
    end
    wait_taken(c, client, 'deep.down.callraw', args)
    on_router(c, "box.schema.user.revoke('client', 'execute', 'function', 'deep.down.callraw')")
    t:has(client:call('deep.down.callraw', args).error, 'is denied', 'revoked')
    wait_taken(c, client, 'vshard.router.callraw', args)
    on_router(c, [[
        for name in pairs(package.loaded) do
            if name:match('^rawshard%.') then package.loaded[name] = nil end
        end
        _G.vshard.router = require('rawshard.router')
        _G.deep.down.callraw = _G.vshard.router.callraw
    ]])
    wait_taken(c, client, 'vshard.router.callraw', args)
    grant(c, 'deep.down.callraw')
    wait_taken(c, client, 'deep.down.callraw', args)
    on_router(c, "box.schema.user.revoke('client', 'execute', 'function', 'deep.down.callraw')")
    t:has(client:call('deep.down.callraw', args).error, 'is denied', 'revoked after the reload')
    client:close()
end)

new_scenario('functions that are made anew without takes_raw_args', function(t, c)
    on_router(c, WHERE)
    grant(c, 'where')
    local client = connect(c)
    for _, name in ipairs({'where', 'vshard.router.callraw'}) do
        local args = name == 'where' and NUMBER or callraw_args('echo', mp.uint(7))
        wait_taken(c, client, name, args)
        on_router(c, "box.schema.func.drop(...) box.schema.func.create(...)", name)
        grant(c, name)
        override(c, false)
        local wanted = client:call(name, args)
        t:isnt(wanted.code, 0, name .. ' is given no object')
        override(c, true)
        for _ = 1, 3 do
            local before = taken(c)
            local reply = client:call(name, args)
            t:is({reply.code, reply.error}, {wanted.code, wanted.error}, name .. ' as without the option')
            t:is(taken(c), before, name .. ' is the host\'s')
        end
        on_router(c, "box.schema.func.drop(...) box.schema.func.create(..., {takes_raw_args = true})", name)
        grant(c, name)
        wait_taken(c, client, name, args)
    end
    client:close()
end)

s:run()
