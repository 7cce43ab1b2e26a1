-- Malformed arguments of the raw entries: each position, named in the error, and nothing is sent. By IPROTO bytes, so that
-- no client library smooths them.

package.path = './?.lua;' .. package.path
local iproto = require('test.helper.iproto')
local mp = require('test.helper.mp')
local msgpack = require('msgpack')
local suite = require('test.helper.suite')

local s = suite.new('arguments')

local entries = {'cfunc', 'direct', 'raw', 'direct_raw'}

local bytes_client
local function raw_call(fe, c, args)
    if bytes_client == nil then
        local host, port = c.router:uri():match('^(.*):(%d+)$')
        bytes_client = iproto.connect(host, port, 'client', 'secret')
    end
    return bytes_client:call(fe.func, args)
end

-- Each: what is wrong, the elements, words of which one must be in the message.
local wrong = {
    {'no element at all', {}, {'bucket_id', '3'}},
    {'one element', {1}, {'func', '3'}},
    {'two elements', {1, 'write'}, {'func', '3'}},
    {'six elements', {1, 'write', 'count', {'any'}, {timeout = 1}, 6}, {'5', 'five', 'call_opts'}},
    {'bucket_id is nil', {box.NULL, 'write', 'count', {'any'}}, {'bucket_id'}},
    {'bucket_id is a string', {'1', 'write', 'count', {'any'}}, {'bucket_id'}},
    {'bucket_id is an array', {{1}, 'write', 'count', {'any'}}, {'bucket_id'}},
    {'bucket_id is a boolean', {true, 'write', 'count', {'any'}}, {'bucket_id'}},
    {'bucket_id is zero', {0, 'write', 'count', {'any'}}, {'bucket_id', 'bucket'}},
    {'bucket_id is negative', {-5, 'write', 'count', {'any'}}, {'bucket_id', 'bucket'}},
    {'bucket_id is above bucket_count', {31, 'write', 'count', {'any'}}, {'bucket_id', 'bucket'}},
    {'bucket_id is beyond 2^32', {4294967297ULL, 'write', 'count', {'any'}}, {'bucket_id', 'bucket'}},
    {'bucket_id is a fraction', {1.5, 'write', 'count', {'any'}}, {'bucket_id', 'bucket'}},
    {'opts is a number', {1, 5, 'count', {'any'}}, {'opts'}},
    {'opts is an array', {1, {'write'}, 'count', {'any'}}, {'opts'}},
    {'opts is an unknown mode', {1, 'wirte', 'count', {'any'}}, {'wirte', 'opts', 'mode'}},
    {'opts.mode is unknown', {1, {mode = 'wirte'}, 'count', {'any'}}, {'wirte', 'opts', 'mode'}},
    {'opts.mode is a number', {1, {mode = 1}, 'count', {'any'}}, {'mode'}},
    {'opts.prefer_replica is a string', {1, {mode = 'read', prefer_replica = 'yes'}, 'count', {'any'}}, {'prefer_replica'}},
    {'opts.balance is a number', {1, {mode = 'read', balance = 1}, 'count', {'any'}}, {'balance'}},
    {'opts has an unknown key', {1, {mode = 'read', ballance = true}, 'count', {'any'}}, {'ballance'}},
    {'func is nil', {1, 'write', box.NULL, {'any'}}, {'func'}},
    {'func is a number', {1, 'write', 7, {'any'}}, {'func'}},
    {'func is an array', {1, 'write', {'count'}, {'any'}}, {'func'}},
    {'args is a map', {1, 'write', 'count', {any = 'any'}}, {'args'}},
    {'args is a string', {1, 'write', 'count', 'any'}, {'args'}},
    {'args is a number', {1, 'write', 'count', 7}, {'args'}},
    {'call_opts is an array', {1, 'write', 'count', {'any'}, {1}}, {'call_opts'}},
    {'call_opts is a number', {1, 'write', 'count', {'any'}, 3}, {'call_opts'}},
    {'call_opts.timeout is a string', {1, 'write', 'count', {'any'}, {timeout = '1'}}, {'timeout'}},
    {'call_opts.request_timeout is a string', {1, 'read', 'count', {'any'}, {request_timeout = '1'}}, {'request_timeout'}},
    {'call_opts.request_timeout above timeout', {1, 'read', 'count', {'any'}, {timeout = 1, request_timeout = 2}},
     {'request_timeout'}},
    {'call_opts has an unknown key', {1, 'write', 'count', {'any'}, {timeuot = 1}}, {'timeuot'}},
    {'call_opts.is_async', {1, 'write', 'count', {'any'}, {is_async = true}}, {'is_async'}},
}

for _, case in ipairs(wrong) do
    s:scenario(case[1], {fe = entries}, function(t, fe, c)
        local before = c:executed('any')
        local reply = raw_call(fe, c, msgpack.encode(case[2]))
        t:ok(reply ~= nil and reply.code ~= 0, 'an error is raised', '  got: %s', reply and mp.hex(reply.body) or 'nothing')
        local text = reply and reply.error or ''
        local is_named = false
        for _, word in ipairs(case[3]) do
            is_named = is_named or text:find(word, 1, true) ~= nil
        end
        t:ok(is_named, 'the position is named', '  message: %s\n  wanted one of: %s', text, table.concat(case[3], ', '))
        t:is(c:executed('any'), before, 'nothing is executed')
    end)
end

s:scenario('the Lua function refuses wrong arguments as vshard does', {fe = {'lua', 'lua_raw'}}, function(t, fe, c)
    local cases = {
        {'1', 'write', 'echo', {1}, {}}, {nil, 'write', 'echo', {1}, {}}, {{1}, 'write', 'echo', {1}, {}},
        {0, 'write', 'echo', {1}, {}}, {31, 'write', 'echo', {1}, {}}, {1, 5, 'echo', {1}, {}},
        {1, 'read', 'echo', {1}, {timeout = '1'}}, {1, 'read', 'echo', {1}, {request_timeout = '1'}},
        {1, 'read', 'echo', {1}, {timeout = 1, request_timeout = 2}},
    }
    for i, case in ipairs(cases) do
        local res = fe:call(c, case)
        t:ok(res.raised ~= nil, 'raised: case ' .. i, '  got: %s', require('json').encode(res))
    end
end)

s:scenario('float spellings of whole bucket ids', {fe = entries}, function(t, fe, c)
    -- Clients of languages without integers send 1.0: vshard takes it for 1.
    local reply = raw_call(fe, c, mp.array_of('\xcb\x3f\xf0\0\0\0\0\0\0', mp.str('write'), mp.str('whoami')))
    t:is(reply.code, 0, '1.0 is bucket 1', '  message: %s', reply.error)
    reply = raw_call(fe, c, mp.array_of('\xcf\0\0\0\0\0\0\0\1', mp.str('write'), mp.str('whoami')))
    t:is(reply.code, 0, 'a wide integer is bucket 1', '  message: %s', reply.error)
    reply = raw_call(fe, c, mp.array_of('\xd3\0\0\0\0\0\0\0\1', mp.str('write'), mp.str('whoami')))
    t:is(reply.code, 0, 'a wide signed integer is bucket 1', '  message: %s', reply.error)
end)

s:scenario('malformed MessagePack in the arguments', {fe = entries}, function(t, fe, c)
    local before = c:executed('any')
    local head = '\x94\x01' .. mp.str('write') .. mp.str('count')
    -- A reserved byte; a truncated string; an array that promises more than there is; a map cut in the middle of a pair.
    for _, tail in ipairs({'\x91\xc1', '\x91\xd9\x10ab', '\x92\x01', '\xdd\xff\xff\xff\xff', '\x91\x81\xa1a'}) do
        local reply = raw_call(fe, c, head .. tail)
        t:ok(reply ~= nil and reply.code ~= 0, 'refused: ' .. mp.hex(tail))
    end
    t:is(c:executed('any'), before, 'nothing is executed')
    -- The connection, and the router, are as good as before.
    local reply = raw_call(fe, c, msgpack.encode({1, 'read', 'echo', {7}}))
    t:is(reply and reply.code, 0, 'the next call works')
end)

s:scenario('a depth bomb is carried or refused, never a crash', {fe = entries}, function(t, fe, c)
    local depth = 100000
    local args = '\x94\x01' .. mp.str('read') .. mp.str('nothing') .. '\x91' .. ('\x91'):rep(depth) .. '\xc0'
    local reply = raw_call(fe, c, args)
    t:ok(reply == nil or reply.code ~= nil, 'an answer or a closed connection')
    bytes_client:close()
    bytes_client = nil
    t:ok(c.router:is_alive(), 'the router lives')
    local res = fe:call(c, {30, 'read', 'echo', {7}, {timeout = 5}})
    t:values(fe, res, {7}, 'the other replicaset serves')
end)

s:run()
