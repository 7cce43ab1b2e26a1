-- Calls of rawshard.callraw that no fiber waits for (iproto_override): their answers are those of the other way, byte for
-- byte, and so are rights and limits. Each scenario counts how many calls were really taken, so that none passes by falling back.

package.path = './?.lua;' .. package.path
local fiber = require('fiber')
local iproto = require('test.helper.iproto')
local json = require('json')
local mp = require('test.helper.mp')
local msgpack = require('msgpack')
local popen = require('popen')
local prelude = require('test.helper.prelude')
local suite = require('test.helper.suite')

local s = suite.new('override', {replicas = 1})
local env = suite.env
local wait_until = suite.wait_until

local CALL, EVAL, BEGIN, COMMIT, PING = 10, 8, 14, 15, 64
local MB = 1024 * 1024
local FUNC = 'rawshard.callraw'
local ACCESS_DENIED, NO_SUCH_USER, NO_SUCH_PROC = 0x8000 + 42, 0x8000 + 45, 0x8000 + 33

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

local function none_in_flight(c)
    wait_until('no call in flight', function()
        return counts(c).in_flight == 0
    end)
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
        {'a format of a tuple', frame(SYNC, '\x83' .. call .. '\x60\x81\x01\x90'), false},
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

s:once('the function is dropped, and no privilege with it', any, function(t, c)
    cfg(c, true)
    make_user(c, 'alice')
    as_admin(c, [[
        box.schema.user.revoke('client', 'execute', 'function', 'rawshard.callraw')
        box.schema.user.grant('alice', 'execute', 'universe')
    ]])
    local conn = admitted(c, 'alice', 'alice')
    works(t, c, conn, 1, 'before')
    as_admin(c, "box.schema.func.drop('rawshard.callraw')")
    takes(t, c, 0, function()
        t:is(echo(conn, 5).code, NO_SUCH_PROC, 'no such function')
    end)
    as_admin(c, [[
        box.schema.func.create('rawshard.callraw', {language = 'C'})
        box.schema.user.grant('client', 'execute', 'function', 'rawshard.callraw')
    ]])
    echo(conn, 5)
    works(t, c, conn, 1, 'made again')
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
    -- Whose turn it is after several logins the host alone knows.
    works(t, c, conn, 0, 'alice may')
    t:isnt(conn:authenticate('bob', 'wrong').code, 0, 'bob is not here')
    t:is(first_value(echo(conn, 5)), 5, 'alice still may')
    -- Another session of bob is none of alice.
    local other, hers = connect(c, 'bob', 'bob'), connect(c, 'alice', 'alice')
    echo(hers, 5)
    refused(t, c, other, 'bob in a session of his own')
    works(t, c, hers, 1, 'alice in a session of hers')
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

-- How many there are

local function guest(c)
    local host, port = c.router:uri():match('^(.*):(%d+)$')
    local conn = iproto.connect(host, port)
    conn.session = conn:request(EVAL, '\x82\x27' .. mp.str('return box.session.id()') .. '\x21\x90').data
    conn.session = msgpack.decode(conn.session)[1]
    conn:call(FUNC, '\x90')
    return conn
end

-- Closes it, and waits until the router knows.
local function leave(c, conn)
    conn:close()
    wait_until('the end of a session', function()
        return not on_router(c, 'return box.session.exists(...)', conn.session)
    end)
end

s:once('what info() counts', both, function(t, c)
    cfg(c, true)
    local conn = admitted(c)
    none_in_flight(c)
    local before = counts(c)
    local sent = send_to_gate(c, conn, 'counted', 300)
    t:is(tonumber(counts(c).calls - before.calls), 300, 'taken')
    t:is(counts(c).in_flight, 300, 'in flight')
    t:is(on_router(c, [[
        local n = 0
        for _, f in pairs(fiber.info({backtrace = false})) do
            n = n + (f.name == 'main' and 1 or 0)
        end
        return n
    ]]) < 50, true, 'no fiber waits for them')
    open_gate(c, 'counted')
    t:is(wrong_answers(conn, sent), 0, 'each has its answer')
    t:is(counts(c).in_flight, 0, 'none in flight')
    t:is(counts(c).undeliverable, before.undeliverable, 'all delivered')
    t:is(tonumber(counts(c).calls - before.calls), 300, 'taken once')
    cfg(c, false)
    t:is(counts(c), nil, 'nothing is told when it is off')
end)

s:once('a client that has gone', any, function(t, c)
    cfg(c, true)
    local conn = guest(c)
    local before = counts(c)
    send_to_gate(c, conn, 'gone', 50)
    leave(c, conn)
    t:is(counts(c).in_flight, 50, 'its calls go on')
    open_gate(c, 'gone')
    none_in_flight(c)
    wait_until('answers that nobody gets', function()
        return counts(c).undeliverable - before.undeliverable == 50
    end)
    works(t, c, admitted(c), 1, 'others are served')
end)

s:once('clients that come and go leave nothing behind', any, function(t, c)
    cfg(c, true)
    local text = ('x'):rep(10000)
    local body = msgpack.encode({1, 'write', 'sleep', {0.01, text}, {timeout = 10}})
    local before = counts(c)
    local sent = 0
    local function round()
        for i = 1, 20 do
            local conn = guest(c)
            for _ = 1, 50 do
                conn:send_call(FUNC, body)
            end
            sent = sent + 50
            -- A connection that is closed earlier takes what has not been read with it.
            wait_until('calls taken', function()
                return counts(c).calls - before.calls == sent
            end)
            if i % 2 == 0 then
                conn:receive(20)
            end
            conn:close()
        end
        none_in_flight(c)
    end
    round()
    round()
    local lua, rss = on_router(c, "collectgarbage() collectgarbage() return collectgarbage('count')"), c.router:rss()
    for _ = 1, 4 do
        round()
    end
    t:ok(counts(c).undeliverable - before.undeliverable > 500, 'many clients had gone',
         '  %s answers', counts(c).undeliverable - before.undeliverable)
    t:within(on_router(c, "collectgarbage() collectgarbage() return collectgarbage('count')") - lua, -100000, 500,
             'Lua memory, KB more')
    t:within((c.router:rss() - rss) / MB, -1000, 12, 'RSS, MB more')
end)

-- Beside others

s:once('off, and on again', any, function(t, c)
    cfg(c, true)
    local conn = admitted(c)
    local sent = send_to_gate(c, conn, 'switched', 50)
    works(t, c, conn, 1, 'on')
    cfg(c, false)
    t:is(first_value(echo(conn, 5)), 5, 'off')
    t:is(counts(c), nil, 'off: nothing is counted')
    -- What was found out about a session before does not count when it is on again and its right has gone.
    open_gate(c, 'switched')
    t:is(wrong_answers(conn, sent), 0, 'calls that were under way are answered')
    local alice = connect(c, 'client', 'secret')
    cfg(c, true)
    echo(alice, 5)
    works(t, c, alice, 1, 'on again')
    cfg(c, false)
    as_admin(c, "box.schema.user.revoke('client', 'execute', 'function', 'rawshard.callraw')")
    cfg(c, true)
    refused(t, c, alice, 'revoked while it was off')
    as_admin(c, "box.schema.user.grant('client', 'execute', 'function', 'rawshard.callraw')")
end)

s:once('a disabled router', any, function(t, c)
    local frames = {frame(SYNC, body_of(msgpack.encode({1, 'write', 'echo', {5}})))}
    local replies = {}
    for i, is_on in ipairs({false, true}) do
        cfg(c, is_on)
        local conn = admitted(c)
        on_router(c, 'router.disable()')
        conn:send_bytes(frames[1])
        replies[i] = conn:receive(20)
        t:has(replies[i].error, 'Router is disabled', 'raised')
        on_router(c, 'router.enable()')
        if is_on then
            echo(conn, 5)
            works(t, c, conn, 1, 'enabled again')
        end
    end
    t:ok(replies[1].frame == replies[2].frame, 'the same bytes both ways')
end)

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

-- As a C library does it: nobody handles the CALL then but the host.
local TAKE_OVER = [[
    local ffi = require('ffi')
    pcall(ffi.cdef, 'int box_iproto_override(uint32_t type, void *handler, void *destroy, void *ctx);')
    local ok = ffi.C.box_iproto_override(box.iproto.type.CALL, nil, nil, nil)
    return ok
]]

s:once('somebody else takes over', any, function(t, c)
    cfg(c, true)
    local conn = admitted(c)
    local sent = send_to_gate(c, conn, 'taken over', 50)
    works(t, c, conn, 1, 'before')
    t:is(on_router(c, TAKE_OVER), 0, 'taken over')
    t:is(counts(c), nil, 'we do not take any')
    t:has(c.router.process:log_tail(20), 'somebody else handles IPROTO_CALL now', 'told in the log')
    t:is(first_value(echo(conn, 5)), 5, 'served by the host')
    open_gate(c, 'taken over')
    t:is(wrong_answers(conn, sent), 0, 'calls that were under way are answered')
    cfg(c, true)
    takes(t, c, 0, function()
        t:is(first_value(echo(conn, 5)), 5, 'after cfg')
    end, 'the host is asked')
    works(t, c, conn, 1, 'ours again')
end)

s:once('a handler in Lua', any, function(t, c)
    cfg(c, true)
    local conn = admitted(c)
    works(t, c, conn, 1, 'before')
    on_router(c, [[
        _G.seen = 0
        box.iproto.override(box.iproto.type.CALL, function()
            seen = seen + 1
            return false
        end)
    ]])
    if env.at_least('3.1') then
        -- It comes before ours and leaves to it what it does not want.
        works(t, c, conn, 1, 'seen by both')
    else
        t:is(first_value(echo(conn, 5)), 5, 'it is in our place')
        t:is(counts(c), nil, 'we do not take any')
    end
    t:is(on_router(c, 'return seen'), 1, 'its calls')
    cfg(c, true)
    echo(conn, 5)
    works(t, c, conn, 1, 'after cfg')
    on_router(c, 'box.iproto.override(box.iproto.type.CALL, nil)')
    t:is(first_value(echo(conn, 5)), 5, 'when it has gone')
    cfg(c, true)
    echo(conn, 5)
    works(t, c, conn, 1, 'ours alone')
end)

s:once('more calls at once than net_msg_max', both, function(t, c)
    cfg(c, true)
    on_router(c, 'box.cfg({net_msg_max = 50})')
    local conn = admitted(c)
    local sent = send_to_gate(c, conn, 'many', 2000)
    t:is(counts(c).in_flight, 2000, 'in flight')
    local started = fiber.clock()
    t:is((conn:request(PING, '\x80', 5) or {}).code, 0, 'a ping on the same connection')
    t:is(first_value(echo(conn, 5)), 5, 'a call on the same connection')
    t:is(first_value(echo(admitted(c), 5)), 5, 'a call on another connection')
    t:within(fiber.clock() - started, 0, 1, 'at once')
    open_gate(c, 'many')
    t:is(wrong_answers(conn, sent), 0, 'all are answered')
    on_router(c, 'box.cfg({net_msg_max = ...})', c.router.config.net_msg_max)
end)

-- While things change

-- n fibers that call all the time on connections of their own. stop() gives how many calls succeeded, and what failed.
local function load(c, n)
    local self = {good = 0, failed = {}, running = n}
    for i = 1, n do
        local conn = admitted(c)
        fiber.create(function()
            while not self.is_stopped do
                local reply = echo(conn, i)
                if first_value(reply) == i then
                    self.good = self.good + 1
                else
                    table.insert(self.failed, first_value(reply))
                end
                if reply == nil then
                    -- The connection has ended.
                    break
                end
            end
            self.running = self.running - 1
            conn:close()
        end)
    end
    function self.stop()
        self.is_stopped = true
        wait_until('the end of the load', function()
            return self.running == 0
        end)
        return self.good, self.failed
    end
    return self
end

s:once('configuration under load', any, function(t, c)
    cfg(c, true)
    local running = load(c, 8)
    local before = counts(c).calls
    for i = 1, 20 do
        local router_cfg = table.copy(c.router.config.router_cfg)
        router_cfg.failover_ping_timeout = 5 + i
        router_cfg.iproto_override = i % 3 ~= 0
        on_router(c, 'router.cfg(...)', router_cfg)
        fiber.sleep(0.002)
    end
    cfg(c, true)
    local good, failed = running.stop()
    t:is(failed, {}, 'none failed')
    t:ok(good > 100, 'calls were made', '  %d', good)
    t:ok(counts(c).calls - before > good / 4, 'and taken')
end)

s:once('the Lua module is loaded anew under load', any, function(t, c)
    cfg(c, true)
    local running = load(c, 8)
    local triggers = 'return #box.space._priv:on_replace() + #box.session.on_auth()'
    local had = on_router(c, triggers)
    for _ = 1, 5 do
        on_router(c, [[
            unload()
            collectgarbage()
            router = require('rawshard.router')
            vshard = {router = router}
            router.cfg(...)
        ]], (function()
            local router_cfg = table.copy(c.router.config.router_cfg)
            router_cfg.iproto_override = true
            return router_cfg
        end)())
    end
    local _, failed = running.stop()
    t:is(failed, {}, 'none failed')
    t:is(on_router(c, triggers), had, 'no more triggers than before')
    local conn = entitled(c, 'alice')
    works(t, c, conn, 1, 'after')
    change_right(c, 'revoke', 'alice')
    refused(t, c, conn, 'revoked')
end)

s:once('fibers that are killed lose no answer', any, function(t, c)
    cfg(c, true)
    local kill = [[
        for id, f in pairs(fiber.info({backtrace = false})) do
            if f.name:find('^rawshard') then
                _G.killed = (_G.killed or 0) + 1
                fiber.kill(id)
            end
        end
    ]]
    local conn = admitted(c)
    works(t, c, conn, 1, 'before')
    local sent = send_to_gate(c, conn, 'killed', 200)
    on_router(c, kill)
    t:ok(on_router(c, 'return killed') >= 2, 'a sender and the completion fiber are killed')
    open_gate(c, 'killed')
    t:is(wrong_answers(conn, sent), 0, 'all are answered')
    local running = load(c, 8)
    on_router(c, 'for _ = 1, 50 do ' .. kill .. ' fiber.sleep(0.001) end')
    local good, failed = running.stop()
    t:is(failed, {}, 'none failed')
    t:ok(good > 50, 'calls were made')
    none_in_flight(c)
    works(t, c, conn, 1, 'after')
end)

-- Big ones

s:once('big answers', any, function(t, c)
    cfg(c, true)
    local conn = admitted(c)
    local before, sent = counts(c).calls, {}
    for i = 1, 8 do
        sent[i] = conn:send_call(FUNC, msgpack.encode({1, 'write', 'big', {5 * MB + i}, {timeout = 30}}))
    end
    for i = 1, 8 do
        local value = first_value(conn:wait_for(sent[i], 30))
        t:is(#value, 5 * MB + i, 'all bytes')
    end
    t:is(tonumber(counts(c).calls - before), 8, 'taken')
    local big = ('x'):rep(5 * MB)
    takes(t, c, 1, function()
        t:ok(first_value(echo(conn, big)) == big, 'there and back')
    end, 'big arguments')
end)

s:once('a client that does not read', any, function(t, c)
    cfg(c, true)
    for _, reads in ipairs({true, false}) do
        local conn = guest(c)
        local before, sent = counts(c), {}
        for i = 1, 40 do
            sent[i] = conn:send_call(FUNC, msgpack.encode({1, 'write', 'big', {MB}, {timeout = 30}}))
        end
        wait_until('all are taken', function()
            return counts(c).calls - before.calls == 40
        end)
        none_in_flight(c)
        local started = fiber.clock()
        works(t, c, admitted(c), 1, 'others are served')
        t:within(fiber.clock() - started, 0, 1, 'at once')
        if reads then
            local wrong = 0
            for i = 1, 40 do
                wrong = wrong + (#first_value(conn:wait_for(sent[i], 20)) == MB and 0 or 1)
            end
            t:is(wrong, 0, 'when it reads at last, all is there')
        end
        leave(c, conn)
    end
end)

-- The end

local function check_log(t, c)
    local log = c.router.process:log_tail(60)
    for _, word in ipairs({'panic', 'Segmentation', 'cannot gracefully', 'fatal', 'Aborting'}) do
        t:ok(not log:find(word, 1, true), 'the log has no: ' .. word)
    end
end

s:once('the routers are stopped', any, function(t, c)
    cfg(c, true)
    local conn = admitted(c)
    local sent = send_to_gate(c, conn, 'stopped', 200)
    on_router(c, "require('rawshard.native').stop_all()")
    local answered = 0
    for sync in pairs(sent) do
        answered = answered + (conn:wait_for(sync, 5) ~= nil and 1 or 0)
    end
    t:is(answered, 200, 'every call is answered')
    local reply = echo(conn, 5)
    t:ok(reply ~= nil and reply.code > 0x8000, 'later ones are refused')
    open_gate(c, 'stopped')
    c.router:stop()
    t:is(c.router.process:exit_status(), 0, 'the code of the process')
    check_log(t, c)
    c.router:start()
end)

-- How often the log says that somebody else has taken the place of our handler.
local function takeovers(c)
    return select(2, c.router.process:log_tail(1e6):gsub('somebody else handles', ''))
end

s:once('SIGTERM with calls under way', both, function(t, c)
    cfg(c, true)
    local conn = admitted(c)
    local sent = send_to_gate(c, conn, 'the end', 500)
    local ends = {load(c, 2), load(c, 2)}
    local started, told = fiber.clock(), takeovers(c)
    c.router.process:signal(popen.signal.SIGTERM)
    local lost = 0
    for sync in pairs(sent) do
        -- nil at once: the connection has ended.
        local asked = fiber.clock()
        if conn:wait_for(sync, 10) == nil and fiber.clock() - asked > 5 then
            lost = lost + 1
        end
    end
    t:is(lost, 0, 'every call is answered or its connection ends')
    for _, running in ipairs(ends) do
        running.stop()
    end
    c.router.process:wait(20)
    t:is(c.router.process:exit_status(), 0, 'its code')
    t:within(fiber.clock() - started, 0, 2.5, 'at once')
    check_log(t, c)
    -- The host drops all handlers in the end, which is no news.
    t:is(takeovers(c), told, 'nobody has taken its place')
    open_gate(c, 'the end')
    c.router:start()
    cfg(c, true)
    conn = admitted(c)
    works(t, c, conn, 1, 'started again')
end)

s:run()
