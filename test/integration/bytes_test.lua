-- Bytes are carried, not values: what leaves for the storage and what comes back is compared bit for bit. The storage is a
-- scripted peer, the client speaks IPROTO by hand; nobody on the way may decode.

package.path = './?.lua;' .. package.path
local frontends = require('test.helper.frontends')
local iproto = require('test.helper.iproto')
local mp = require('test.helper.mp')
local suite = require('test.helper.suite')

local s = suite.new('bytes', {peers = 2})
local env = suite.env

local function unhex(text)
    return (text:gsub('%s+', ''):gsub('%x%x', function(byte) return string.char(tonumber(byte, 16)) end))
end

local values = {
    {'non-minimal unsigned integers', 'cc01 cd0001 ce00000001 cf0000000000000001 cf00000000ffffffff'},
    {'non-minimal signed integers', 'd005 d10005 d200000005 d30000000000000005 d0ff d1ffff d2ffffffff d3ffffffffffffffff'},
    {'the widest integers', 'cfffffffffffffffff d38000000000000000 7f e0'},
    {'floats', 'ca3f800000 cb3ff0000000000000 ca80000000 cb8000000000000000 ca7f800000 cbfff0000000000000'},
    {'NaN with a payload', 'cb7ff8000000000123 cbfff8000000000000 ca7fc00001 cb7ff0000000000001'},
    {'strings with wide headers', 'd90161 da000161 db0000000161 a0 d900 db00000000'},
    {'strings that are not UTF-8', 'a2fffe a3000102 d902c328'},
    {'bin of every width', 'c400 c403000102 c50003000102 c600000003fffefd'},
    {'nil and booleans', 'c0 c2 c3'},
    {'arrays with wide headers', 'dc000101 dd0000000101 dc0000 dd00000000 90 9101'},
    {'maps with wide headers', 'de00010102 df000000010102 de0000 df00000000 80'},
    {'maps with odd keys', '81c0c0 81c301 81910203 82a16101a16102 81cb3ff000000000000001'},
    {'ext of unknown types', 'd42a00 d52a0001 d62a00010203 d72a0001020304050607 c7032a000102 c800032a000102 c9000000032a000102'},
    {'ext of negative and zero type', 'd4ff00 d6ff5f5e1000 d40000 c70080'},
    {'decimal and uuid', 'c70201001c d802000102030405060708090a0b0c0d0e0f c7030102 123c'},
    {'an array 1000 deep', ('91'):rep(1000) .. '05'},
    {'a map 1000 deep', ('81a161'):rep(1000) .. 'c0'},
}

-- A float map key and such are fine for the wire, but not all hosts let every byte reach a function: what the host itself
-- refuses (error 20 before any function runs) says nothing about the router.
local function split(bytes)
    local res, pos = {}, 1
    while pos <= #bytes do
        local next_pos = mp.skip(bytes, pos)
        table.insert(res, bytes:sub(pos, next_pos - 1))
        pos = next_pos
    end
    return res
end

local client
local function connection(c)
    if client == nil then
        local host, port = c.router:uri():match('^(.*):(%d+)$')
        client = iproto.connect(host, port, 'client', 'secret')
    end
    return client
end

-- CALL of a front end's function by bytes.
local function call_bytes(fe, c, args)
    if fe.func == 'rawshard.callraw' then
        frontends.set_override(c, fe.name == 'direct')
    end
    return connection(c):call(fe.func, args)
end

local function call_stored(name)
    return function(c, bucket, args)
        return call_bytes(frontends[name], c, mp.array_of(mp.uint(bucket), '\xc0', mp.str('f'), args))
    end
end

local ways = {
    cfunc = {call = call_stored('cfunc'), is_wrapped = env.wraps_c_results},
    direct = {call = call_stored('direct'), is_wrapped = env.wraps_c_results},
    raw = {
        call = function(c, bucket, args)
            return connection(c):call('vshard.router.callraw', mp.array_of(mp.uint(bucket), '\xc0', mp.str('f'), args))
        end,
    },
    lua_raw = {
        call = function(c, bucket, args)
            local host, port = c.router:uri():match('^(.*):(%d+)$')
            c.guest = c.guest or iproto.connect(host, port)
            return c.guest:call('test_return_raw', mp.array_of(mp.uint(bucket), mp.str('f'), args))
        end,
        -- One object: the array of the values.
        is_wrapped = true,
    },
}

-- The values in a reply as byte strings.
local function values_of(way, reply)
    local list = mp.elements(reply.data)
    if way.is_wrapped then
        assert(#list == 1, 'one array of values expected')
        list = mp.elements(list[1])
    end
    return list
end

local function array32(list)
    return '\xdd' .. mp.u32(#list):sub(2) .. table.concat(list)
end

for _, case in ipairs(values) do
    s:scenario(case[1], {fe = {'lua_raw', 'cfunc', 'direct', 'raw'}}, function(t, fe, c)
        local way = ways[fe.name]
        local list = split(unhex(case[2]))
        -- With the widest header, which no encoder would choose, and with the usual one.
        for _, args in ipairs({array32(list), string.char(0x90 + #list) .. table.concat(list)}) do
            local seen
            c.peers[1].on_call = function(request)
                seen = request.args
                return c.peers[1].ok(array32({'\xc3', '\x01'}))
            end
            local reply = way.call(c, 1, args)
            t:ok(reply ~= nil and reply.code == 0, 'the call succeeds', '  message: %s', reply and reply.error or 'no reply')
            t:ok(seen ~= nil, 'the storage was asked')
            if seen ~= nil then
                local sent = mp.elements(seen)
                t:is(#sent, 4, 'vshard.storage.call has four arguments')
                t:is(mp.hex(sent[4]):sub(1, 3000), mp.hex(args):sub(1, 3000), 'there: the bytes of the arguments')
                t:ok(sent[4] == args, 'there: all of them')
            end
        end
        -- Back: up to three values, each as it is.
        for first = 1, #list, 3 do
            local some = {list[first], list[first + 1], list[first + 2]}
            c.peers[1].on_call = function()
                return c.peers[1].ok(array32({'\xc3', unpack(some)}))
            end
            local reply = way.call(c, 1, '\x90')
            t:ok(reply ~= nil and reply.code == 0, 'the call succeeds', '  message: %s', reply and reply.error or 'no reply')
            if reply ~= nil and reply.code == 0 then
                local got = values_of(way, reply)
                t:is(#got, #some, 'back: the number of values')
                for i = 1, #some do
                    t:is(got[i] and mp.hex(got[i]):sub(1, 3000), mp.hex(some[i]):sub(1, 3000), 'back: value ' .. i)
                    t:ok(got[i] == some[i], 'back: all bytes')
                end
            end
        end
    end)
end

s:scenario('a status flag in any spelling', {fe = {'cfunc', 'direct', 'raw'}}, function(t, fe, c)
    local way = ways[fe.name]
    -- The header of the reply's array may have any width.
    for _, data in ipairs({'\x92\xc3\x07', '\xdc\0\2\xc3\x07', '\xdd\0\0\0\2\xc3\x07'}) do
        c.peers[1].on_call = function()
            return c.peers[1].ok(data)
        end
        local reply = way.call(c, 1, '\x90')
        t:is(reply.code, 0, 'success')
        t:is(reply.code == 0 and mp.hex(values_of(way, reply)[1] or ''), mp.hex('\x07'), 'the value')
    end
end)

s:scenario('no value, and explicit nils', {fe = {'cfunc', 'direct', 'raw'}}, function(t, fe, c)
    local way = ways[fe.name]
    for _, case in ipairs({{'\x91\xc3', {}}, {'\x92\xc3\xc0', {'\xc0'}}, {'\x94\xc3\xc0\xc0\xc0', {'\xc0', '\xc0', '\xc0'}}}) do
        c.peers[1].on_call = function()
            return c.peers[1].ok(case[1])
        end
        local reply = way.call(c, 1, '\x90')
        t:is(reply.code, 0, 'success')
        if reply.code == 0 then
            t:is(#values_of(way, reply), #case[2], 'as many values as the storage sent: ' .. mp.hex(case[1]))
        end
    end
end)

s:scenario('what leaves for the storage is vshard.storage.call(bucket, mode, func, args)', {
    fe = {'cfunc', 'direct', 'raw'},
}, function(t, fe, c)
    local seen
    c.peers[2].on_call = function(request)
        seen = request
        return c.peers[2].ok('\x91\xc3')
    end
    for _, case in ipairs({{'\xc0', 'write'}, {mp.str('write'), 'write'}, {mp.str('read'), 'read'},
                           {'\x81' .. mp.str('mode') .. mp.str('read'), 'read'}}) do
        local reply = call_bytes(fe, c, mp.array_of('\x14', case[1], mp.str('my.func'), '\x92\x01\xcc\x02'))
        t:is(reply.code, 0, 'success', '  message: %s', reply.error)
        local sent = seen and mp.elements(seen.args) or {}
        t:is(sent[1] and mp.decode_uint(sent[1]), 20, 'bucket')
        t:is(sent[2] and mp.hex(sent[2]), mp.hex(mp.str(case[2])), 'mode')
        t:is(sent[3] and mp.hex(sent[3]), mp.hex(mp.str('my.func')), 'function')
        t:is(sent[4] and mp.hex(sent[4]), mp.hex('\x92\x01\xcc\x02'), 'arguments')
        -- Strict servers refuse unknown header keys: only type and sync may stand there.
        for key in pairs(seen and seen.header or {}) do
            t:ok(key == 0 or key == 1, 'header key ' .. key)
        end
    end
    local reply = call_bytes(fe, c, mp.array_of('\x14', '\xc0', mp.str('f')))
    t:is(reply.code, 0, 'without arguments')
    t:is(mp.hex(mp.elements(seen.args)[4]), mp.hex('\x90'), 'no arguments are an empty array')
    reply = call_bytes(fe, c, mp.array_of('\x14', '\xc0', mp.str('f'), '\xc0'))
    t:is(reply.code, 0, 'nil arguments')
    t:is(mp.hex(mp.elements(seen.args)[4]), mp.hex('\x90'), 'nil arguments are an empty array')
end)

-- Tuples: ext 7 is for the peer with which it was negotiated, and poison for any other.
local tuples = {
    {'a tuple', 'd6 07 00 92 01 02', '92 01 02'},
    {'a tuple with a long header', 'c7 04 07 00 92 01 02', '92 01 02'},
    {'a tuple with a wide length', 'c9 00000004 07 00 92 01 02', '92 01 02'},
    {'a tuple with a wide format id', 'c7 06 07 cd 0000 92 01 02', '92 01 02'},
    {'an empty tuple', 'd5 07 00 90', '90'},
    {'in an array', '93 05 d6 07 00 92 01 02 06', '93 05 92 01 02 06'},
    {'in a map, between other bytes', '82 a1 61 cc 01 a1 62 d6 07 00 92 01 02', '82 a1 61 cc 01 a1 62 92 01 02'},
    {'two of them', '92 d6 07 00 92 01 02 d6 07 00 92 03 04', '92 92 01 02 92 03 04'},
    {'deep', ('91'):rep(50) .. 'd6 07 00 92 01 02', ('91'):rep(50) .. '92 01 02'},
}

for _, case in ipairs(tuples) do
    s:scenario('ext 7 becomes a plain array: ' .. case[1], {fe = {'cfunc', 'direct', 'raw'}, min_host = '3.0'}, function(t, fe, c)
        local seen
        c.peers[1].on_call = function(request)
            seen = request.args
            return c.peers[1].ok('\x91\xc3')
        end
        local reply = ways[fe.name].call(c, 1, '\x92' .. unhex(case[2]) .. '\xcd\x00\x09')
        t:is(reply and reply.code, 0, 'success', '  message: %s', reply and reply.error or '')
        t:is(seen and mp.hex(mp.elements(seen)[4]), mp.hex('\x92' .. unhex(case[3]) .. '\xcd\x00\x09'), 'there')
    end)
end

s:scenario('tuples that a net.box client of 3.x sends', {min_host = '3.0'}, function(t, fe, c)
    local seen
    c.peers[1].on_call = function(request)
        seen = request.args
        return c.peers[1].ok('\x91\xc3')
    end
    local tuple = box.tuple.new({1, {2, 'three'}})
    local res = fe:call(c, {1, 'write', 'f', {tuple, {tuple}}, {timeout = 5}})
    t:ok(res.raised == nil, 'success', '  raised: %s', tostring(res.raised))
    local plain = '\x92\x01\x92\x02\xa5three'
    t:is(seen and mp.hex(mp.elements(seen)[4]), mp.hex('\x92' .. plain .. '\x91' .. plain), 'plain arrays')
end)

s:scenario('calls for which no fiber waits were taken', {fe = {'direct'}}, function(t, fe, c)
    local function taken()
        return c.router:eval('return router.info().iproto_override.calls')
    end
    -- The first call of a session is the host's.
    ways.direct.call(c, 1, '\x90')
    local before = taken()
    for _ = 1, 3 do
        t:is(ways.direct.call(c, 1, '\x90').code, 0, 'by bytes')
        fe:call(c, {1, 'write', 'f', {}, {timeout = 5}})
    end
    t:is(tonumber(taken() - before), 6, 'taken')
    t:ok(before > 50 or os.getenv('SCENARIO') ~= nil, 'and so were those of the scenarios before', '  %s', before)
end)

s:run()
