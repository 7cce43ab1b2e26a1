-- iproto_override under attack: a client gets what it would get without the option, whatever it does, and nobody else suffers.

package.path = './?.lua;' .. package.path
local iproto = require('test.helper.iproto')
local mp = require('test.helper.mp')
local msgpack = require('msgpack')
local suite = require('test.helper.suite')

local s = suite.new('override_attack', {replicas = 1, storages = 'helper'})

local AUTH = 7
local ACCESS_DENIED = 0x8000 + 42
local FUNCTION = mp.str('rawshard.callraw')
local ECHO = msgpack.encode({1, 'write', 'echo', {7}, {timeout = 5}})

local function calls_taken(c)
    return c.router:eval('local i = router.info().iproto_override return i and i.calls or 0')
end

local function override(c, is_on)
    c.router:eval('rawshard_override(...)', {is_on})
end

-- A client whose calls are taken from now on.
local function connect(c, user, password)
    local host, port = c.router:uri():match('^(.*):(%d+)$')
    local client = iproto.connect(host, tonumber(port), user or 'client', password or 'secret')
    client:call('rawshard.callraw', ECHO)
    return client
end

local function login(client, user, password)
    local salt = require('digest').base64_decode(client.greeting:sub(65, 108)):sub(1, 20)
    return client:send(AUTH, '\x82\x23' .. mp.str(user) .. '\x21' ..
                       mp.array_of(mp.str('chap-sha1'), mp.str(iproto.scramble(password, salt))))
end

-- Whether the next call is answered with a value, and whether it was taken.
local function probe(c, client)
    local before = calls_taken(c)
    local reply = client:call('rawshard.callraw', ECHO, 10)
    return reply.code, calls_taken(c) - before
end

local function scenario(name, opts, f)
    opts.router, opts.storages, opts.min_host = 'rawshard', 'helper', '2.11'
    s:once(name, opts, function(t, c)
        -- A login that waits as long as it is told to. Older than the router's own trigger, so it comes after that.
        c.router:eval([[
            if login_gates == nil then
                login_gates, login_waits = {}, 0
                local fiber = require('fiber')
                box.session.on_auth(function(user)
                    login_waits = login_waits + 1
                    while login_gates[user] do
                        fiber.sleep(0.001)
                    end
                    login_waits = login_waits - 1
                end)
                box.session.su('admin')
                for _, user in ipairs({'nobody', 'second'}) do
                    box.schema.user.create(user, {password = user})
                end
                box.schema.user.grant('second', 'execute', 'function', 'rawshard.callraw')
                box.schema.func.create('test_su', {
                    setuid = true, language = 'LUA', body = 'function(user) box.session.su(user) end',
                })
                box.schema.user.grant('client', 'execute', 'function', 'test_su')
            end
        ]])
        c.router:disconnect()
        override(c, true)
        f(t, c)
        override(c, false)
    end)
end

local function wait_for_login(c, n)
    suite.wait_until('a login that waits', function()
        return c.router:eval('return login_waits') == n
    end)
end

-- Whose rights count

scenario('a session that logs in again has the rights of its new user', {}, function(t, c)
    local client = connect(c)
    local code, taken = probe(c, client)
    t:is({code, taken}, {0, 1}, 'before')
    client:wait_for(login(client, 'nobody', 'nobody'))
    t:is({probe(c, client)}, {ACCESS_DENIED, 0}, 'a user without the right')
    client:wait_for(login(client, 'client', 'secret'))
    t:is((probe(c, client)), 0, 'a user who has it')
    client:close()
end)

-- Somebody's calls while he becomes a user without the right, and after that.
local function becomes_nobody(t, c, client)
    c.router:eval('login_gates.nobody = true')
    local sync = login(client, 'nobody', 'nobody')
    wait_for_login(c, 1)
    for _ = 1, 3 do
        t:is((probe(c, client)), 0, 'the old user is the user until the end')
    end
    c.router:eval('login_gates = {}')
    t:is(client:wait_for(sync).code, 0, 'logged in')
    for _ = 1, 2 do
        t:is({probe(c, client)}, {ACCESS_DENIED, 0}, 'the new one has no right')
    end
    client:close()
end

scenario('calls while a login is under way', {}, function(t, c)
    becomes_nobody(t, c, connect(c))
end)

scenario('calls of guest while the first login is under way', {}, function(t, c)
    -- Everybody's guest may do everything here.
    local host, port = c.router:uri():match('^(.*):(%d+)$')
    becomes_nobody(t, c, iproto.connect(host, tonumber(port)))
end)

scenario('two logins at once, the first of which ends last', {}, function(t, c)
    local host, port = c.router:uri():match('^(.*):(%d+)$')
    local client = iproto.connect(host, tonumber(port))
    c.router:eval('login_gates.nobody = true')
    local first = login(client, 'nobody', 'nobody')
    wait_for_login(c, 1)
    t:is(client:wait_for(login(client, 'second', 'second')).code, 0, 'the second login')
    for _ = 1, 2 do
        t:is((probe(c, client)), 0, 'its user has the right')
    end
    c.router:eval('login_gates = {}')
    t:is(client:wait_for(first).code, 0, 'the first login')
    t:is({probe(c, client)}, {ACCESS_DENIED, 0}, 'its user has not')
    client:close()
end)

scenario('a login that fails changes nothing', {}, function(t, c)
    local client = connect(c)
    t:isnt(client:wait_for(login(client, 'nobody', 'wrong')).code, 0, 'refused')
    probe(c, client)
    t:is({probe(c, client)}, {0, 1}, 'taken as before')
    client:close()
end)

scenario('box.session.su for good', {}, function(t, c)
    local client = connect(c)
    t:is({probe(c, client)}, {0, 1}, 'before')
    t:is(client:call('test_su', mp.array_of(mp.str('nobody'))).code, 0, 'the function has changed the user')
    t:is({probe(c, client)}, {ACCESS_DENIED, 0}, 'the new one has no right')
    client:close()
    local res = c.router:eval([[
        local function effective(...)
            return box.session.effective_user(), select('#', ...), ...
        end
        local res = {box.session.su('nobody', effective, 1, nil)}
        table.insert(res, box.session.effective_user())
        table.insert(res, (pcall(box.session.su)))
        table.insert(res, (pcall(box.session.su, 'no such user')))
        return res
    ]])
    t:is({res[1], res[2], res[3], res[#res - 2], res[#res - 1], res[#res]}, {'nobody', 2, 1, 'guest', false, false},
         'su of a function is as it was')
end)

for _, right in ipairs({
    {name = 'the function', what = "'execute', 'function', 'rawshard.callraw'"},
    {name = 'a role', what = "'test_role'"},
    {name = 'all functions', what = "'execute', 'function'"},
    {name = 'the universe', what = "'execute,usage', 'universe'"},
}) do
    scenario('a right that is revoked: ' .. right.name, {}, function(t, c)
        c.router:eval(([[
            box.session.su('admin', function()
                box.schema.user.create('revoked', {password = 'revoked', if_not_exists = true})
                box.schema.role.create('test_role', {if_not_exists = true})
                box.schema.role.grant('test_role', 'execute', 'function', 'rawshard.callraw', {if_not_exists = true})
                box.schema.user.grant('revoked', %s)
            end)
        ]]):format(right.what))
        local client = connect(c, 'revoked', 'revoked')
        t:is({probe(c, client)}, {0, 1}, 'before')
        c.router:eval(([[box.session.su('admin', box.schema.user.revoke, 'revoked', %s)]]):format(right.what))
        for _ = 1, 2 do
            t:is({probe(c, client)}, {ACCESS_DENIED, 0}, 'afterwards')
        end
        client:close()
    end)
end

-- What the host says of a request it says still

local PLAIN = '\x82\x00\x0a\x01\x07'
local BODY = '\x82\x22' .. FUNCTION .. '\x21'
local ODD = {
    {'arguments that are a map', PLAIN, BODY .. '\x81\x01\x01'},
    {'arguments that are a number', PLAIN, BODY .. '\x01'},
    {'arguments that are nil', PLAIN, BODY .. '\xc0'},
    {'arguments in front', PLAIN, '\x82\x21' .. ECHO .. '\x22' .. FUNCTION},
    {'arguments of a long form', PLAIN, BODY .. '\xdd\x00\x00\x00\x05' .. ECHO:sub(2)},
    {'arguments twice', PLAIN, '\x83\x22' .. FUNCTION .. '\x21' .. ECHO .. '\x21\x90'},
    {'no arguments', PLAIN, '\x81\x22' .. FUNCTION},
    {'no function', PLAIN, '\x81\x21' .. ECHO},
    {'no body', PLAIN, ''},
    {'a function twice', PLAIN, '\x83\x22' .. FUNCTION .. '\x22' .. mp.str('nope') .. '\x21' .. ECHO},
    {'a function that is a number', PLAIN, '\x82\x22\x01\x21' .. ECHO},
    {'an expression that is a number', PLAIN, '\x83\x22' .. FUNCTION .. '\x27\x01\x21' .. ECHO},
    {'formats that are a number', PLAIN, '\x83\x22' .. FUNCTION .. '\x21' .. ECHO .. '\x60\x01'},
    {'formats of a wrong kind', PLAIN, '\x83\x22' .. FUNCTION .. '\x21' .. ECHO .. '\x60\x81\xa1x\x01'},
    {'formats', PLAIN, '\x83\x22' .. FUNCTION .. '\x21' .. ECHO .. '\x60\x81\x00\x91\x81\xa4name\xa1a'},
    {'keys that nobody knows', PLAIN, '\x83\x22' .. FUNCTION .. '\x21' .. ECHO .. '\xcd\x60\x80\x01'},
    {'a function of a name that none can have', PLAIN, '\x82\x22' .. mp.str(('x'):rep(70000)) .. '\x21' .. ECHO},
    {'a key that is a string', PLAIN, '\x83\xa1x\x01\x22' .. FUNCTION .. '\x21' .. ECHO},
    {'bytes after the body', PLAIN, BODY .. ECHO .. '\xc0'},
    {'a truncated body', PLAIN, BODY .. '\x95\x01\x01'},
    {'a byte that is no value', PLAIN, BODY .. '\x94\x01\xa5write\xa4echo\x91\xc1'},
    {'an unknown extension', PLAIN, BODY .. '\x94\x01\xa5write\xa4echo\x91\xd4\x63\x00'},
    {'a broken decimal', PLAIN, BODY .. '\x94\x01\xa5write\xa4echo\x91\xc7\x02\x01\xff\xff'},
    {'no sync', '\x81\x00\x0a', BODY .. ECHO},
    {'the greatest sync', '\x82\x00\x0a\x01\xcf' .. ('\xff'):rep(8), BODY .. ECHO},
    {'two syncs', '\x83\x00\x0a\x01\x07\x01\x08', BODY .. ECHO},
    {'a sync that is a string', '\x82\x00\x0a\x01\xa1x', BODY .. ECHO},
    {'two types', '\x83\x00\x40\x00\x0a\x01\x07', BODY .. ECHO},
    {'another schema', '\x83\x00\x0a\x01\x07\x05\x01', BODY .. ECHO},
    {'a stream', '\x83\x00\x0a\x01\x07\x0a\x05', BODY .. ECHO},
    {'no stream', '\x83\x00\x0a\x01\x07\x0a\x00', BODY .. ECHO},
    {'a header with other keys', '\x85\x00\x0a\x01\x07\x02\x01\x08\x01\xcc\xf0\xa1x', BODY .. ECHO},
    {'a header with a long key', '\x83\x00\x0a\x01\x07\xcf' .. ('\xff'):rep(8) .. '\x01', BODY .. ECHO},
    {'CALL_16', '\x82\x00\x06\x01\x07', BODY .. ECHO},
    {'a bucket that there is not', PLAIN, BODY .. msgpack.encode({999, 'write', 'echo', {7}})},
    {'a mode that there is not', PLAIN, BODY .. msgpack.encode({1, 'x', 'echo', {7}})},
    {'a function that fails', PLAIN, BODY .. msgpack.encode({1, 'write', 'boom', {'x'}})},
}

-- What a client whose calls are served is told to the request, and whether the connection lives.
local function told(c, header, body)
    local client = connect(c)
    client:send_bytes(mp.u32(#header + #body) .. header .. body)
    local reply = client:receive(10) or {}
    return {code = reply.code, sync = tostring(reply.sync), error = reply.error,
            data = reply.data and msgpack.decode(reply.data), lives = client:request(64, '\x80', 10) ~= nil, client:close()}
end

scenario('odd requests are answered as without the option', {}, function(t, c)
    for _, odd in ipairs(ODD) do
        override(c, false)
        local wanted = told(c, odd[2], odd[3])
        t:ok(wanted.code ~= nil, odd[1] .. ': an answer')
        override(c, true)
        t:is(told(c, odd[2], odd[3]), wanted, odd[1])
    end
end)

s:run()
