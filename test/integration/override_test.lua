-- Calls of rawshard.callraw that no fiber waits for (iproto_override): their answers are those of the other way, byte for
-- byte, and so are rights and limits. Each scenario counts how many calls were really taken, so that none passes by falling back.

package.path = './?.lua;' .. package.path
local iproto = require('test.helper.iproto')
local json = require('json')
local mp = require('test.helper.mp')
local msgpack = require('msgpack')
local prelude = require('test.helper.prelude')
local suite = require('test.helper.suite')

local s = suite.new('override', {replicas = 1})
local env = suite.env
local wait_until = suite.wait_until

local CALL, EVAL, BEGIN, COMMIT, PING = 10, 8, 14, 15, 64
local FUNC = 'rawshard.callraw'
local ACCESS_DENIED, NO_SUCH_USER = 0x8000 + 42, 0x8000 + 45

-- Neither rights nor frames depend on what kind of storage answers.
local any = {min_host = '2.11', router = 'rawshard', storages = 'helper'}
local both = {min_host = '2.11', router = 'rawshard'}

local on_router = prelude.on_router()

-- Only the owner of a function may grant it.
local function as_admin(c, code, ...)
    return on_router(c, ("return box.session.su('admin', function(...) %s end, ...)"):format(code), ...)
end

-- The router's configuration with the option; nil leaves it out.
local function cfg(c, is_on)
    local router_cfg = table.copy(c.router.config.router_cfg)
    router_cfg.iproto_override = is_on
    on_router(c, 'router.cfg(...)', router_cfg)
end

local function counts(c)
    return on_router(c, 'return router.info().iproto_override')
end

local function connect(c, user, password)
    local host, port = c.router:uri():match('^(.*):(%d+)$')
    return iproto.connect(host, port, user or 'client', password or 'secret')
end

-- A session whose calls are taken from now on.
local function admitted(c, ...)
    local conn = connect(c, ...)
    conn:call(FUNC, '\x90')
    return conn
end

local function echo(conn, value)
    return conn:call(FUNC, msgpack.encode({1, 'write', 'echo', {value}, {timeout = 10}}), 20)
end

-- The first value of a reply.
local function first_value(reply)
    if reply == nil or reply.code ~= 0 then
        return ('no value: %s'):format(json.encode({code = reply and reply.code, error = reply and reply.error}))
    end
    local values = msgpack.decode(reply.data)
    if env.wraps_c_results then
        values = values[1]
    end
    return values[1]
end

-- f() makes `wanted` calls that are taken.
local function takes(t, c, wanted, f, message)
    local before = counts(c).calls
    f()
    t:is(tonumber(counts(c).calls - before), wanted, (message or 'calls') .. ': taken')
end

local function works(t, c, conn, wanted, message)
    takes(t, c, wanted, function()
        t:is(first_value(echo(conn, 5)), 5, message)
    end, message)
end

local function refused(t, c, conn, message, call)
    takes(t, c, 0, function()
        local reply = (call or echo)(conn)
        t:is(reply and reply.code, ACCESS_DENIED, message, reply and reply.error)
    end, message)
end

-- So many functions wait at a gate of the storages.
local function at_gate(c, key)
    local waiting = 0
    for _, storage in pairs(c.storages) do
        waiting = waiting + storage:call('test_gate_waiting', {key})
    end
    return waiting
end

local function open_gate(c, key)
    for _, storage in pairs(c.storages) do
        storage:call('test_gate_open', {key})
    end
end

-- Sends n calls that wait at a gate, each with an id of its own; gives sync → id. All of them are there when it returns.
local function send_to_gate(c, conn, key, n)
    local sent = {}
    for i = 1, n do
        local args = {i % 30 + 1, 'write', 'gate', {key, i}, {timeout = 60}}
        sent[conn:send_call(FUNC, msgpack.encode(args))] = i
    end
    wait_until('calls at the gate ' .. key, function()
        return at_gate(c, key) >= n
    end)
    return sent
end

-- How many of the calls got an answer that is not theirs, or none.
local function wrong_answers(conn, sent)
    local wrong = 0
    for sync, id in pairs(sent) do
        if first_value(conn:wait_for(sync, 20)) ~= id then
            wrong = wrong + 1
        end
    end
    return wrong
end

-- Answers

local function body_of(args)
    return '\x82\x22' .. mp.str(FUNC) .. '\x21' .. args
end

-- A frame whose header has these bytes behind type and sync, `n` more keys.
local function frame(sync, body, more, n, code)
    local header = string.char(0x82 + (n or 0)) .. '\x00' .. mp.uint(code or CALL) .. '\x01' .. sync .. (more or '')
    return mp.u32(#header + #body) .. header .. body
end

-- The bytes of the answers to these frames, on one connection, in the order of the frames. With the option on or off.
local function replies_of(c, is_on, frames)
    cfg(c, is_on)
    local conn = admitted(c)
    local replies, taken = {}, {}
    for i, bytes in ipairs(frames) do
        local before = is_on and counts(c).calls
        conn:send_bytes(bytes)
        replies[i] = conn:receive(20) or {frame = 'no answer', code = -1}
        taken[i] = is_on and counts(c).calls - before == 1
    end
    conn:close()
    return replies, taken
end

-- From where on two frames are not the same.
local function difference(parked, direct)
    local at = 1
    while at <= #parked and parked:byte(at) == direct:byte(at) do
        at = at + 1
    end
    return ('  from byte %d on\n  parked: %s\n  direct: %s'):format(at, mp.hex(parked:sub(at, at + 60)),
                                                                  mp.hex(direct:sub(at, at + 60)))
end

-- Cases are {name, frame, is_taken, judge}: the answer is the same with the option off and on; judge(t, reply, name) may say what
-- it should be.
local function same_answers(t, c, cases, prefix)
    local frames = {}
    for i, case in ipairs(cases) do
        frames[i] = case[2]
    end
    local parked = replies_of(c, false, frames)
    local direct, taken = replies_of(c, true, frames)
    for i, case in ipairs(cases) do
        local name = prefix .. case[1]
        t:ok(direct[i].frame == parked[i].frame, name .. ': the bytes of the answer', '%s',
             difference(parked[i].frame, direct[i].frame))
        t:is(taken[i], case[3], name .. ': taken')
        if case[4] ~= nil then
            case[4](t, direct[i], name)
        end
    end
end

local SYNC = '\x05'

-- A request with these arguments, which is taken.
local function call_case(name, args, judge)
    return {name, frame(SYNC, body_of(type(args) == 'string' and args or msgpack.encode(args))), true, judge}
end

local function raises(text)
    return function(t, reply, name)
        -- What a net.box client makes an error of: code, message, and type in the stack of key 0x52.
        t:is(reply.code, 0x8001, name .. ': ER_ILLEGAL_PARAMS')
        t:has(reply.error, text, name .. ': its message')
        local stack = reply.keys and reply.keys[0x52] and msgpack.decode(reply.keys[0x52])[0][1] or {}
        t:is(stack[0], 'ClientError', name .. ': its type')
        t:is(stack[5], 1, name .. ': its code in the stack')
    end
end

local function has_count(n)
    return function(t, reply, name)
        local values = reply.data and msgpack.decode(reply.data) or {}
        t:is(reply.code, 0, name .. ': no error raised')
        t:is(#(#values == 1 and type(values[1]) == 'table' and values[1] or values), n, name .. ': values')
    end
end

local function value_cases()
    local opts = {timeout = 5}
    return {
        call_case('no value', {1, 'write', 'nothing', {}, opts}, has_count(0)),
        call_case('one value', {1, 'write', 'echo', {7}, opts}, has_count(1)),
        call_case('two values', {1, 'write', 'two_values', {1, 'two'}, opts}, has_count(2)),
        call_case('values with a nil', {1, 'write', 'one_nil_three', {}, opts}, has_count(3)),
        call_case('a nil', {1, 'write', 'echo', {box.NULL}, opts}),
        call_case('an array', {1, 'write', 'echo', {{1, {2, {k = 'v'}}}}, opts}),
        call_case('a long value', {1, 'write', 'echo', {('x'):rep(100000)}, opts}),
        call_case('nil and an error of the user', {1, 'write', 'nilerr', {'why'}, opts}, has_count(2)),
        call_case('an error of the user', {1, 'write', 'boom', {'why'}, opts}, has_count(2)),
        call_case('no such function of the user', {1, 'write', 'no_such_function', {}, opts}, has_count(2)),
        call_case('a bucket that is beyond', {31, 'write', 'echo', {1}, opts}, raises('callraw: ')),
        call_case('no such mode', {1, 'rw', 'echo', {1}, opts}, raises("'rw'")),
        call_case('a mode with a zero byte', {1, 'r\0w', 'echo', {1}, opts}, raises('callraw: ')),
        call_case('a mode that is not UTF-8', {1, 'r\xffw', 'echo', {1}, opts}, raises('callraw: ')),
        call_case('a long mode', {1, ('m'):rep(3000), 'echo', {1}, opts}, raises('callraw: ')),
        call_case('a timeout', {1, 'write', 'sleep', {1}, {timeout = 0.02}}, has_count(2)),
        call_case('three arguments', {1, nil, 'nothing'}),
        call_case('no arguments', {}, raises('callraw: ')),
        call_case('two arguments', {1, 'write'}, raises('callraw: ')),
        call_case('six arguments', {1, 'write', 'echo', {1}, opts, 6}, raises('callraw: ')),
        call_case('a bucket that is a string', {'one', 'write', 'echo', {1}}, raises('callraw: ')),
        call_case('a function that is a number', {1, 'write', 5, {1}}, raises('callraw: ')),
        call_case('arguments that are a number', {1, 'write', 'echo', 5}, raises('callraw: ')),
        call_case('options that are a string', {1, 'write', 'echo', {1}, 'opts'}, raises('callraw: ')),
        call_case('a timeout that is a string', {1, 'write', 'echo', {1}, {timeout = 'soon'}}, raises('callraw: ')),
    }
end

for _, mode in ipairs({'old', 'new'}) do
    s:once('answers are those of a waiting fiber, byte for byte: multireturn ' .. mode, both, function(t, c)
        on_router(c, [[require('compat').c_func_iproto_multireturn = ...]], mode)
        same_answers(t, c, value_cases(), '')
        on_router(c, [[require('compat').c_func_iproto_multireturn = 'default']])
        cfg(c, true)
    end)
end

s:once('a net.box client sees the same errors', any, function(t, c)
    local frontends = require('test.helper.frontends')
    local function errors_of(is_on)
        cfg(c, is_on)
        local conn = require('net.box').connect('client:secret@' .. c.router:uri())
        pcall(conn.call, conn, FUNC)
        local before, out = is_on and counts(c).calls, {}
        for _, args in ipairs({{}, {1, 'write'}, {'one', 'write', 'echo'}, {1, 'write', 'echo', 5}}) do
            local ok, err = pcall(conn.call, conn, FUNC, args)
            table.insert(out, ok and 'no error' or {code = err.code, message = err.message, type = err.type})
        end
        t:is(is_on and tonumber(counts(c).calls - before), is_on and 4, 'taken')
        conn:close()
        return out
    end
    local parked, direct = errors_of(false), errors_of(true)
    t:is(direct, parked, 'code, message, type')
    t:is(direct[1].code, 1, 'ER_ILLEGAL_PARAMS')
    t:is(direct[1].type, 'ClientError', 'its type')
    t:ok(frontends.direct ~= nil, 'scenarios of other files have this way')
end)

local function unusual_cases(c)
    local args = msgpack.encode({1, 'write', 'echo', {7}, {timeout = 5}})
    local body = body_of(args)
    local version = on_router(c, 'return box.info.schema_version or box.internal.schema_version()')
    local call = '\x22' .. mp.str(FUNC) .. '\x21' .. args
    local name, tuple = '\x22' .. mp.str(FUNC), '\x21' .. args
    return {
        {'a sync of nine bytes', frame('\xcf\xff\xee\xdd\xcc\xbb\xaa\x99\x88', body), true},
        {'the current schema version', frame(SYNC, body, '\x05' .. mp.uint(version), 1), false},
        {'another schema version', frame(SYNC, body, '\x05\x7f', 1), false},
        {'a stream', frame(SYNC, body, '\x0a\x01', 1), false},
        {'stream 0', frame(SYNC, body, '\x0a\x00', 1), true},
        {'an unknown key in the header', frame(SYNC, body, '\x7e\x01', 1), true},
        {'no sync', mp.u32(3 + #body) .. '\x81\x00\x0a' .. body, true},
        {'the arguments first', frame(SYNC, '\x82' .. tuple .. name), true},
        {'formats of tuples', frame(SYNC, '\x83' .. call .. '\x60\x80'), true},
        {'formats of tuples that are no map', frame(SYNC, '\x83' .. call .. '\x60\x05'), false},
        {'formats of tuples first', frame(SYNC, '\x83\x60\x80' .. call), true},
        {'a format of a tuple', frame(SYNC, '\x83' .. call .. '\x60\x81\x01\x90'), true},
        {'an unknown key in the body', frame(SYNC, '\x83' .. call .. '\x7e\x01'), false},
        {'an unknown key between', frame(SYNC, '\x83' .. name .. '\x7e\xa2\x60\x80' .. tuple), false},
        {'arguments twice', frame(SYNC, '\x83' .. call .. '\x21\x90'), false},
        {'the name twice', frame(SYNC, '\x83' .. call .. '\x22\xa1x'), false},
        {'an expression that is none', frame(SYNC, '\x83' .. call .. '\x27\x05'), false},
        {'no arguments at all', frame(SYNC, '\x81' .. name), false},
        {'no name', frame(SYNC, '\x81' .. tuple), false},
        {'a name that is a number', frame(SYNC, '\x82\x22\x05' .. tuple), false},
        {'arguments that are a map', frame(SYNC, '\x82' .. name .. '\x21\x80'), false},
        {'arguments that are a number', frame(SYNC, '\x82' .. name .. '\x21\x05'), false},
        {'an empty body', frame(SYNC, '\x80'), false},
        {'no body', frame(SYNC, ''), false},
        {'a body that is an array', frame(SYNC, '\x90'), false},
        {'a key that is a string', frame(SYNC, '\x83\xa1x\x01' .. call), false},
        {'no such function', frame(SYNC, '\x82\x22' .. mp.str('rawshard.callra') .. tuple), false},
        {'another function', frame(SYNC, '\x82\x22' .. mp.str('vshard.router.callraw') .. tuple), false},
        {'EVAL', frame(SYNC, '\x82\x27' .. mp.str('return 1') .. '\x21\x90', '', 0, EVAL), false},
        {'PING', frame(SYNC, '\x80', '', 0, PING), false},
        {'BEGIN of a stream', frame(SYNC, '\x80', '\x0a\x02', 1, BEGIN), false},
        {'a call in its transaction', frame(SYNC, body, '\x0a\x02', 1), false},
        {'COMMIT', frame(SYNC, '\x80', '\x0a\x02', 1, COMMIT), false},
        {'and a plain call', frame(SYNC, body), true, function(t, reply, case)
            t:is(first_value(reply), 7, case .. ': its value')
        end},
    }
end

s:once('requests that are more than a call, or less, are served as without the option', any, function(t, c)
    same_answers(t, c, unusual_cases(c), '')
end)

-- Rights

-- Makes a user of this name anew, whose password is the name.
local function make_user(c, name)
    as_admin(c, [[
        local name = ...
        box.schema.user.drop(name, {if_exists = true})
        box.schema.user.create(name, {password = name})
    ]], name)
end

local function change_right(c, action, name)
    as_admin(c, [[
        local action, name = ...
        box.schema.user[action](name, 'execute', 'function', 'rawshard.callraw', {if_not_exists = true, if_exists = true})
    ]], action, name)
end

-- A session of a user of this name who may call the function, whose calls are taken.
local function entitled(c, name)
    make_user(c, name)
    change_right(c, 'grant', name)
    return admitted(c, name, name)
end

s:once('a user without the right is refused by the host', any, function(t, c)
    make_user(c, 'alice')
    local frames = {frame(SYNC, body_of(msgpack.encode({1, 'write', 'echo', {5}})))}
    local function refusal(is_on)
        cfg(c, is_on)
        local conn = connect(c, 'alice', 'alice')
        conn:send_bytes(frames[1])
        local reply = conn:receive(20)
        t:is(reply.code, ACCESS_DENIED, 'refused')
        return reply.frame
    end
    t:ok(refusal(false) == refusal(true), 'the same bytes both ways')
    local conn = connect(c, 'alice', 'alice')
    for _ = 1, 3 do
        refused(t, c, conn, 'however often it is called')
    end
    t:is(counts(c).in_flight, 0, 'nothing is under way')
end)

s:once('granted, revoked, granted: the very next call counts', any, function(t, c)
    cfg(c, true)
    make_user(c, 'alice')
    local conn = connect(c, 'alice', 'alice')
    refused(t, c, conn, 'not granted yet')
    for i = 1, 2 do
        change_right(c, 'grant', 'alice')
        takes(t, c, 0, function()
            t:is(first_value(echo(conn, 5)), 5, 'granted')
        end, 'the first call is checked by the host')
        works(t, c, conn, 1, 'granted ' .. i)
        change_right(c, 'revoke', 'alice')
        refused(t, c, conn, 'revoked ' .. i)
        refused(t, c, conn, 'and again')
    end
end)

s:once('rights by roles, and by universe', any, function(t, c)
    cfg(c, true)
    make_user(c, 'alice')
    as_admin(c, [[
        box.schema.role.create('callers', {if_not_exists = true})
        box.schema.role.grant('callers', 'execute', 'function', 'rawshard.callraw')
    ]])
    local ways = {
        {"grant('alice', 'callers')", "revoke('alice', 'callers')"},
        {"grant('alice', 'execute', 'universe')", "revoke('alice', 'execute', 'universe')"},
    }
    local conn = connect(c, 'alice', 'alice')
    for _, way in ipairs(ways) do
        as_admin(c, 'box.schema.user.' .. way[1])
        echo(conn, 5)
        works(t, c, conn, 1, way[1])
        as_admin(c, 'box.schema.user.' .. way[2])
        refused(t, c, conn, way[2])
    end
    as_admin(c, "box.schema.user.grant('alice', 'callers')")
    echo(conn, 5)
    works(t, c, conn, 1, 'the role again')
    as_admin(c, "box.schema.role.revoke('callers', 'execute', 'function', 'rawshard.callraw')")
    refused(t, c, conn, 'what the role may')
    as_admin(c, "box.schema.role.drop('callers')")
end)

s:once('a revoke that is rolled back', any, function(t, c)
    cfg(c, true)
    local conn = entitled(c, 'alice')
    works(t, c, conn, 1, 'before')
    as_admin(c, [[
        box.begin()
        box.schema.user.revoke('alice', 'execute', 'function', 'rawshard.callraw')
        box.rollback()
    ]])
    takes(t, c, 0, function()
        t:is(first_value(echo(conn, 5)), 5, 'the right is still there')
    end, 'but the host is asked')
    works(t, c, conn, 1, 'after')
    -- One that is not: with other changes in the same transaction.
    as_admin(c, [[
        box.begin()
        box.schema.user.revoke('alice', 'execute', 'function', 'rawshard.callraw')
        box.schema.user.create('bystander', {if_not_exists = true})
        box.commit()
        box.schema.user.drop('bystander')
    ]])
    refused(t, c, conn, 'revoked')
    -- A grant that is rolled back was never there.
    as_admin(c, [[
        box.begin()
        box.schema.user.grant('alice', 'execute', 'function', 'rawshard.callraw')
        box.rollback()
    ]])
    refused(t, c, conn, 'granted and rolled back')
end)

s:once('the function is dropped and made again', any, function(t, c)
    local replies = {}
    for _, is_on in ipairs({false, true}) do
        cfg(c, is_on)
        local conn, key = entitled(c, 'alice'), 'dropped ' .. tostring(is_on)
        local sent = send_to_gate(c, conn, key, 20)
        as_admin(c, "box.schema.func.drop('rawshard.callraw')")
        local reply = echo(conn, 5)
        replies[is_on] = {code = reply.code, error = reply.error}
        as_admin(c, [[
            box.schema.func.create('rawshard.callraw', {language = 'C'})
            box.schema.user.grant('client', 'execute', 'function', 'rawshard.callraw')
        ]])
        t:is(echo(conn, 5).code, ACCESS_DENIED, 'made again, but not granted')
        change_right(c, 'grant', 'alice')
        t:is(first_value(echo(conn, 5)), 5, 'granted again')
        if is_on then
            works(t, c, conn, 1, 'and taken')
        end
        open_gate(c, key)
        t:is(wrong_answers(conn, sent), 0, 'calls that were under way are answered')
        conn:close()
    end
    t:is(replies[true], replies[false], 'the same refusal both ways')
    t:ok(replies[true].code > 0x8000, 'a refusal')
end)

s:once('the user is dropped', any, function(t, c)
    local replies = {}
    for _, is_on in ipairs({false, true}) do
        cfg(c, is_on)
        local conn = entitled(c, 'alice')
        as_admin(c, "box.schema.user.drop('alice')")
        local reply = echo(conn, 5) or {}
        -- It names the user by his id.
        replies[is_on] = {code = reply.code, error = tostring(reply.error):gsub('%d+', 'N')}
        -- Another user may get the id of the one who has gone.
        make_user(c, 'bob')
        t:isnt((echo(conn, 5) or {}).code, 0, 'refused beside a new user')
        conn:close()
    end
    t:is(replies[true], replies[false], 'the same refusal both ways')
    t:is(replies[true].code, NO_SUCH_USER, 'a refusal')
end)

s:once('a session that becomes another user', any, function(t, c)
    cfg(c, true)
    make_user(c, 'bob')
    local conn = entitled(c, 'alice')
    works(t, c, conn, 1, 'alice may')
    t:is(conn:authenticate('bob', 'bob').code, 0, 'bob is here')
    refused(t, c, conn, 'bob may not')
    t:is(conn:authenticate('alice', 'alice').code, 0, 'alice is back')
    echo(conn, 5)
    works(t, c, conn, 1, 'alice may')
    t:isnt(conn:authenticate('bob', 'wrong').code, 0, 'bob is not here')
    t:is(first_value(echo(conn, 5)), 5, 'alice still may')
    -- Another session of bob is none of alice.
    local other = connect(c, 'bob', 'bob')
    refused(t, c, other, 'bob in a session of his own')
    works(t, c, conn, 1, 'alice in hers')
end)

s:once('a session that a function makes another user', any, function(t, c)
    cfg(c, true)
    make_user(c, 'bob')
    as_admin(c, [[
        function _G.become(name)
            box.session.su(name)
        end
        box.schema.func.create('become')
        box.schema.role.grant('public', 'execute', 'function', 'become')
    ]])
    local conn = entitled(c, 'alice')
    works(t, c, conn, 1, 'alice may')
    t:is(conn:call('become', msgpack.encode({'bob'})).code, 0, 'alice becomes bob')
    refused(t, c, conn, 'bob may not')
    t:is(as_admin(c, 'return box.session.effective_user()'), 'admin', 'for the time of a function')
    local ok, err = pcall(on_router, c, "box.session.su('nobody')")
    t:ok(not ok and tostring(err):find("User 'nobody' is not found", 1, true), 'no such user')
    as_admin(c, "box.schema.func.drop('become')")
end)

s:once('a wrapper that may more than its caller does not open the direct way', any, function(t, c)
    cfg(c, true)
    as_admin(c, [[
        box.schema.func.create('wrapper', {
            language = 'LUA', setuid = true, if_not_exists = true,
            body = "function(...) return box.func['rawshard.callraw']:call({...}) end",
        })
    ]])
    make_user(c, 'alice')
    as_admin(c, "box.schema.user.grant('alice', 'execute', 'function', 'wrapper')")
    local function wrapper(conn)
        return conn:call('wrapper', msgpack.encode({1, 'write', 'echo', {5}, {timeout = 10}}), 20)
    end
    local conn = connect(c, 'alice', 'alice')
    for i = 1, 3 do
        takes(t, c, 0, function()
            t:is(wrapper(conn).code, 0, 'the wrapper works')
        end, 'the wrapper')
        refused(t, c, conn, 'the function itself, round ' .. i)
    end
    -- All at once.
    local syncs = {}
    for i = 1, 20 do
        syncs[i] = {conn:send_call('wrapper', msgpack.encode({1, 'write', 'echo', {5}, {timeout = 10}})),
                    conn:send_call(FUNC, msgpack.encode({1, 'write', 'echo', {5}, {timeout = 10}}))}
    end
    local before, wrong = counts(c).calls, 0
    for _, pair in ipairs(syncs) do
        local is_right = conn:wait_for(pair[1], 20).code == 0 and conn:wait_for(pair[2], 20).code == ACCESS_DENIED
        wrong = wrong + (is_right and 0 or 1)
    end
    t:is(wrong, 0, 'interleaved')
    t:is(counts(c).calls, before, 'interleaved: none taken')
    as_admin(c, "box.schema.func.drop('wrapper')")
end)

-- Beside others

s:once('named routers have no part in it', any, function(t, c)
    cfg(c, true)
    local conn = admitted(c)
    works(t, c, conn, 1, 'before')
    local second = table.copy(c.router.config.router_cfg)
    on_router(c, '_G.second = router.new("second", ...)', second)
    -- Both are called at a time: neither may get what is for the other one.
    local sent = {}
    for i = 1, 100 do
        sent[conn:send_call(FUNC, msgpack.encode({i % 30 + 1, 'write', 'sleep', {0.01, i}, {timeout = 10}}))] = i
    end
    t:is(on_router(c, [[
        local right = 0
        in_fibers(100, function(i)
            local value = second:callrw(i % 30 + 1, 'sleep', {0.01, i}, {timeout = 10})
            right = right + (value == i and 1 or 0)
        end)
        return right
    ]]), 100, 'calls of the other router')
    t:is(wrong_answers(conn, sent), 0, 'calls of the static one')
    works(t, c, conn, 1, 'with another router that has not the option')
    on_router(c, 'second:disable()')
    works(t, c, conn, 1, 'while the other one is disabled')
    second.failover_ping_timeout = 6
    on_router(c, 'second:cfg(...)', second)
    works(t, c, conn, 1, 'when the other one is configured anew')
end)

s:run()
