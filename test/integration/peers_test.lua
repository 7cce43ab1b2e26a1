-- Storages that misbehave: any bytes from a peer give an error for that call or a closed connection; never a crash, a hang, a
-- wrong pairing or an allocation without bound. Afterwards the router serves as before.

package.path = './?.lua;' .. package.path
local fiber = require('fiber')
local json = require('json')
local mp = require('test.helper.mp')
local peer = require('test.helper.peer')
local prelude = require('test.helper.prelude')
local socket = require('socket')
local suite = require('test.helper.suite')

local s = suite.new('peers', {peers = 2})

local fes = {'lua', 'cfunc', 'direct'}
local on_router = prelude.on_router()

-- Bytes of a frame with this header and body.
local function frame(header, body)
    return mp.u32(#header + #body) .. header .. body
end

local function header_of(request, code)
    return '\x83\x00' .. mp.uint(code or 0) .. '\x01' .. request.header[1] .. '\x05\x01'
end

-- What the storage does when it is called; the call must end by an error (or, where given, a value) within its deadline.
local bad = {
    {'closes the connection', function() return peer.close() end},
    {'is silent', function() return peer.silent() end, timeout = 0.3},
    {'sends noise', function() return peer.bytes(('\xc1\xff\x00noise'):rep(100)) end},
    {'sends a length that is no number', function() return peer.bytes('\xa5hello') end},
    {'sends a length of 4 GB', function() return peer.bytes('\xce\xff\xff\xff\xff') end},
    {'sends a length of 2^63', function() return peer.bytes('\xcf\x7f\xff\xff\xff\xff\xff\xff\xff') end},
    {'sends a length of zero', function() return peer.bytes('\xce\0\0\0\0') end},
    {'sends half a frame', function(r)
        return peer.bytes(frame(header_of(r), '\x81\x30\x92\xc3\x01'):sub(1, -2))
    end, timeout = 0.3},
    {'answers with a header that is no map', function() return peer.bytes(frame('\x92\x00\x01', '\x80')) end},
    {'answers without sync', function() return peer.bytes(frame('\x81\x00\x00', '\x81\x30\x91\xc3')) end, timeout = 0.3},
    {'answers without a type', function(r) return peer.bytes(frame('\x81\x01' .. r.header[1], '\x81\x30\x91\xc3')) end},
    {'answers with a foreign sync', function()
        return peer.bytes(frame('\x82\x00\x00\x01\xcf\x7f\xff\xff\xff\xff\xff\xff\x01', '\x81\x30\x92\xc3\x05'))
    end, timeout = 0.3},
    {'answers without a body', function(r) return peer.bytes(frame(header_of(r), '')) end},
    {'answers with an empty body', function(r) return peer.bytes(frame(header_of(r), '\x80')) end},
    {'answers with a body that is no map', function(r) return peer.bytes(frame(header_of(r), '\x91\x01')) end},
    {'answers without data', function(r) return peer.bytes(frame(header_of(r), '\x81\x31\xa1x')) end},
    {'answers with data that is no array', function() return peer.ok('\x05') end},
    {'answers with no values at all', function() return peer.ok('\x90') end},
    {'answers with a status that is no flag', function() return peer.ok('\x92\xa1x\x01') end},
    {'answers with truncated data', function(r) return peer.bytes(frame(header_of(r), '\x81\x30\x92\xc3\xd9\x20abc')) end},
    {'answers with an array longer than the frame', function(r)
        return peer.bytes(frame(header_of(r), '\x81\x30\xdd\xff\xff\xff\xff\xc3'))
    end},
    {'answers with a reserved byte', function() return peer.ok('\x92\xc3\xc1') end},
    {'answers an error without a body', function(r) return peer.bytes(frame(header_of(r, 0x8020), '')) end},
    {'answers an error with an empty body', function(r) return peer.bytes(frame(header_of(r, 0x8020), '\x80')) end},
    {'answers an error whose message is a number', function(r)
        return peer.bytes(frame(header_of(r, 0x8020), '\x81\x31\x05'))
    end},
    {'answers an error whose stack is noise', function(r)
        return peer.bytes(frame(header_of(r, 0x8020), '\x82\x31\xa1m\x52\x81\x00\x91\x05'))
    end},
    {'answers with a refusal that is no map', function() return peer.ok('\x92\xc0\x05') end},
    {'answers with a refusal without code', function() return peer.ok('\x92\xc0\x81\xa4type\xadShardingError') end},
    {'answers with false and nothing', function() return peer.ok('\x91\xc2') end},
    {'answers with nil and nothing', function() return peer.ok('\x91\xc0') end},
}

for _, case in ipairs(bad) do
    s:scenario(case[1], {fe = fes, heals = true, router = 'rawshard'}, function(t, fe, c)
        local timeout = case.timeout or 2
        local calls = 0
        c.peers[1].on_call = function(request)
            calls = calls + 1
            return case[2](request)
        end
        local started = fiber.clock()
        local res = fe:call(c, {1, 'write', 'f', {1}, {timeout = timeout}}, 10)
        t:ok(res.raised == nil and res[1] == nil and type(res[2]) == 'table', 'an error', '  got: %s', json.encode(res))
        t:within(fiber.clock() - started, 0, timeout + 1.5, 'within the deadline')
        if case.timeout == nil then
            t:ok(fiber.clock() - started < timeout, 'without waiting for the deadline')
        end
        t:ok(calls >= 1, 'the storage was called')
        t:ok(c.router:is_alive(), 'the router lives')
        t:ok(fe:call(c, {30, 'write', 'f', {1}, {timeout = 5}}).raised == nil, 'the other storage serves')
    end)
end

s:scenario('answers twice', {fe = fes, heals = true}, function(t, fe, c)
    c.peers[1].on_call = function(request)
        local args = mp.elements(mp.elements(request.args)[4])
        local answer = frame(header_of(request), '\x81\x30\x92\xc3' .. args[1])
        return peer.bytes(answer .. answer)
    end
    for i = 1, 100 do
        local res = fe:call(c, {1, 'write', 'f', {i}, {timeout = 5}})
        if res[1] ~= i then
            return t:values(fe, res, {i}, 'the answer of call ' .. i)
        end
    end
    t:ok(true, 'each call gets its own answer')
end)

s:scenario('answers in another order', {fe = fes, heals = true}, function(t, fe, c)
    local N = 200
    local held = {}
    c.peers[1].on_call = function(request)
        local args = mp.elements(mp.elements(request.args)[4])
        table.insert(held, {request = request, value = args[1]})
        return peer.silent()
    end
    local calls = {}
    for i = 1, N do
        calls[i] = fe:start(c, {1, 'write', 'f', {i}, {timeout = 20}})
    end
    suite.wait_until('all calls', function() return #held == N end)
    for i = N, 1, -1 do
        c.peers[1]:answer(held[i].request.conn, held[i].request, peer.ok('\x92\xc3' .. held[i].value))
    end
    local wrong = 0
    for i = 1, N do
        if fe:finish(calls[i], 20)[1] ~= i then
            wrong = wrong + 1
        end
    end
    t:is(wrong, 0, 'wrong answers')
end)

s:scenario('answers byte by byte', {fe = fes, heals = true}, function(t, fe, c)
    c.peers[1].on_call = function(request)
        local args = mp.elements(mp.elements(request.args)[4])
        local answer = frame(header_of(request), '\x81\x30\x92\xc3' .. args[1])
        -- No other answer in between.
        request.conn.lock:put(true)
        for i = 1, #answer do
            request.conn.socket:write(answer:sub(i, i))
            fiber.sleep(0)
        end
        request.conn.lock:get()
        return peer.silent()
    end
    for i = 1, 5 do
        t:values(fe, fe:call(c, {1, 'write', 'f', {'value ' .. i}, {timeout = 5}}), {'value ' .. i}, 'call ' .. i)
    end
end)

s:scenario('half a frame, and the rest after the deadline', {fe = fes, heals = true}, function(t, fe, c)
    local rest
    c.peers[1].on_call = function(request)
        local answer = frame(header_of(request), '\x81\x30\x92\xc3\xa5first')
        rest = {request.conn, answer:sub(10)}
        request.conn.lock:put(true)
        request.conn.socket:write(answer:sub(1, 9))
        return peer.silent()
    end
    t:timeout(fe:call(c, {1, 'write', 'f', {1}, {timeout = 0.2}}), 'the first call')
    c.peers[1].on_call = function()
        return peer.ok('\x92\xc3\xa6second')
    end
    if rest ~= nil then
        rest[1].socket:write(rest[2])
        rest[1].lock:get()
    end
    t:values(fe, fe:call(c, {1, 'write', 'f', {2}, {timeout = 5}}), {'second'}, 'the second gets its own')
end)

s:scenario('pushes before the answer are no answer', {fe = fes, heals = true}, function(t, fe, c)
    c.peers[1].on_call = function(request)
        local push = frame(header_of(request, 128), '\x81\x30\x91\xa4push')
        local answer = frame(header_of(request), '\x81\x30\x92\xc3\xa6answer')
        return peer.bytes(push .. push .. push .. answer)
    end
    for i = 1, 3 do
        t:values(fe, fe:call(c, {1, 'write', 'f', {i}, {timeout = 5}}), {'answer'}, 'call ' .. i)
    end
end)

s:scenario('events that nobody asked for', {fe = fes, heals = true, router = 'rawshard'}, function(t, fe, c)
    c.peers[1].on_call = function(request)
        local event = frame('\x81\x00\x4c', '\x81\x57\xacbox.shutdown')
        return peer.bytes(event .. frame(header_of(request), '\x81\x30\x92\xc3\x05'))
    end
    t:values(fe, fe:call(c, {1, 'write', 'f', {1}, {timeout = 5}}), {5})
end)

s:scenario('an answer of depth 100 000', {fe = {'cfunc', 'direct'}, heals = true, min_host = '3.0'}, function(t, fe, c)
    c.peers[1].on_call = function()
        return peer.ok('\x92\xc3' .. ('\x91'):rep(100000) .. '\xc0')
    end
    local iproto = require('test.helper.iproto')
    local host, port = c.router:uri():match('^(.*):(%d+)$')
    local client = iproto.connect(host, port, 'client', 'secret')
    local reply = client:call('rawshard.callraw', mp.array_of('\x01', '\xc0', mp.str('f')), 10)
    t:ok(reply ~= nil, 'an answer or an error')
    client:close()
    t:ok(c.router:is_alive(), 'the router lives')
    t:ok(fe:call(c, {30, 'write', 'f', {1}, {timeout = 5}}).raised == nil, 'the other storage serves')
end)

-- An extension of this type around these bytes.
local function ext(kind, payload)
    return '\xc9' .. mp.u32(#payload):sub(2) .. string.char(kind) .. payload
end

-- The host's decoders of extensions read what their bytes promise. None of these is a value, so none is decoded.
local deep = ('\x91'):rep(100000) .. '\x01'
local bad_extensions = {
    {'an error with a cut stack', ext(3, '\x81\x00\x91\x81\x00\xdb\xff\xff')},
    {'an error in which a field is deep',
     ext(3, '\x81\x00\x91\x87\x00\xabClientError\x01\xa1f\x02\x01\x03\xa1m\x04\x00\x05\x01\x06\x81\xa1a' .. deep)},
    {'an error as good as any', ext(3, '\x81\x00\x91\x86\x00\xabClientError\x01\xa1f\x02\x01\x03\xa1m\x04\x00\x05\x01')},
    {'a decimal with a cut scale', ext(1, '\xd3\x01\x02\x03\x04')},
    {'a decimal of no bytes', ext(1, '')},
    {'a decimal without digits', ext(1, '\x00')},
    {'a decimal of 2000 digits', ext(1, '\x00' .. ('\x99'):rep(1000) .. '\x9c')},
    {'a short uuid', ext(2, '123')},
    {'a short datetime', ext(4, '123')},
    {'an interval of no bytes', ext(6, '')},
    {'an interval with a cut field', ext(6, '\x01\x00\xd3\x01')},
    {'an interval of too few fields', ext(6, '\x08\x00\x01')},
    {'a tuple', ext(7, '\x00\x91\x01')},
    {'a tuple of nothing', ext(7, '')},
    {'an extension of no known type', ext(100, 'noise')},
}

local places = {
    {'as a value', function(bytes) return '\x92\xc3' .. bytes end},
    {'as the second value', function(bytes) return '\x93\xc3\xc0' .. bytes end},
    {'in a value', function(bytes) return '\x92\xc3\x91\x81\xa1k' .. bytes end},
    {'as a key', function(bytes) return '\x92\xc3\x81' .. bytes .. '\x01' end},
    {'in a big value', function(bytes) return '\x92\xc3\x92\xda\x20\x00' .. ('x'):rep(8192) .. bytes end},
    {'in an error', function(bytes)
        return '\x92\xc0\x84\xa4type\xadShardingError\xa4code\x7f\xa7message\xa1m\xa5extra' .. bytes
    end},
}

for _, case in ipairs(bad_extensions) do
    s:scenario('answers with ' .. case[1], {fe = {'lua'}, heals = true, router = 'rawshard'}, function(t, fe, c)
        local calls
        for _, place in ipairs(places) do
            calls = 0
            c.peers[1].on_call = function()
                calls = calls + 1
                return peer.ok(place[2](case[2]))
            end
            local res = fe:call(c, {1, 'write', 'f', {1}, {timeout = 5}}, 10)
            t:ok(res.raised == nil and res[1] == nil and type(res[2]) == 'table', place[1] .. ': an error',
                 '  got: %s, %s', tostring(res.raised), type(res[2]))
            t:is(calls, 1, place[1] .. ': of one call')
        end
        t:ok(c.router:is_alive(), 'the router lives')
    end)
end

s:scenario('answers with extensions of any bytes', {fe = {'lua'}, heals = true, router = 'rawshard'}, function(t, _, c)
    local kinds = {1, 2, 3, 4, 5, 6, 7, 8, 255}
    local starts = {'', '\x00', '\x01', '\x00\x01', '\x01\x00\xcf', '\xd3', '\xce\x00\x00\x00\x00', '\x02\x00\x01\x01'}
    local bytes
    c.peers[1].on_call = function()
        return peer.ok('\x92\xc3' .. bytes)
    end
    local seed = os.time()
    math.randomseed(seed)
    for i = 1, 1500 do
        local tail = {}
        for k = 1, math.random(0, 17) do
            tail[k] = string.char(math.random(0, 255))
        end
        bytes = ext(kinds[math.random(#kinds)], starts[math.random(#starts)] .. table.concat(tail))
        -- Values stay in the router: what a test helper makes of them is not the matter here.
        local ok, what = pcall(c.router.eval, c.router, [[
            local ok, value, err = pcall(require('rawshard.router').callrw, 1, 'f', {...}, {timeout = 5})
            if not ok or (value == nil) ~= (err ~= nil) then
                return tostring(value)
            end
        ]], {i})
        if not ok or what ~= nil or not c.router:is_alive() then
            return t:ok(false, 'a value or an error', '  got: %s, of %s, seed %d', tostring(what), bytes:hex(), seed)
        end
    end
    t:ok(true, 'a value or an error each')
end)

-- Every way to have bytes as an object, under this answer: a list of {name, not raised, value is nil, error is nil}.
local function objects(c, bytes)
    c.peers[1].on_call = function()
        return peer.ok(bytes)
    end
    return c.router:eval([[
        local router, msgpack = require('rawshard.router'), require('msgpack')
        local raw = {timeout = 5, return_raw = true}
        local async = {timeout = 5, return_raw = true, is_async = true}
        local rs = router.route(1)
        local replica = rs.priority_list[1]
        local ways = {
            callrw = function() return router.callrw(1, 'f', {}, raw) end,
            future = function() return router.callrw(1, 'f', {}, async):wait_result(5) end,
            callraw = function() return router.callraw(msgpack.object({1, 'write', 'f', {}, {timeout = 5}})) end,
            replicaset = function() return rs:callrw('vshard.storage.call', {}, raw) end,
            ['replicaset future'] = function() return rs:callrw('vshard.storage.call', {}, async):wait_result(5) end,
            replica = function() return select(2, replica:call('vshard.storage.call', {}, raw)) end,
        }
        local res = {}
        for name, way in pairs(ways) do
            local ok, value, err = pcall(way)
            table.insert(res, {name, ok, ok and value == nil, ok and err == nil, tostring(ok and err or value)})
        end
        return res
    ]])
end

-- From 2.11 on the host looks into extensions before it makes an object.
s:scenario('objects of damaged extensions', {fe = {'lua'}, heals = true, router = 'rawshard', min_host = '2.11'},
           function(t, _, c)
    for _, case in ipairs(bad_extensions) do
        local is_refused = case[1] == 'a decimal of no bytes' or case[1] == 'a short uuid'
        for _, place in ipairs(places) do
            for _, way in ipairs(objects(c, place[2](case[2]))) do
                local name, ok, has_no_value, has_no_error, text = unpack(way)
                if not ok or has_no_value == has_no_error or is_refused and not has_no_value then
                    t:ok(false, ('%s, %s, %s: an object or an error'):format(case[1], place[1], name), '  got: %s', text)
                end
            end
        end
    end
    t:ok(c.router:is_alive(), 'the router lives')
end)

s:scenario('more values than Lua has room for', {fe = {'lua'}, heals = true, router = 'rawshard', min_host = '2.10'},
           function(t, _, c)
    for _, way in ipairs(objects(c, '\xdc\x1f\x41\xc3' .. ('\x01'):rep(8000))) do
        local name, ok, has_no_value, has_no_error = unpack(way)
        t:ok(ok, name .. ': nothing is raised')
        t:ok(has_no_value ~= has_no_error, name .. ': values or an error')
        t:is(has_no_value, name == 'callraw', name .. ': an array has room')
    end
end)

for _, case in ipairs({
    {'a greeting of noise', ('noise '):rep(50):sub(1, 128)},
    {'half a greeting', 'Tarantool 2.6.0 (Binary)'},
    {'a greeting of another protocol', 'HTTP/1.1 400 Bad Request\r\n\r\n' .. (' '):rep(100)},
    {'a greeting of another instance', peer.greeting('dddddddd-0000-4000-8000-000000000001')},
}) do
    s:scenario(case[1], {fe = fes, heals = true, router = 'rawshard'}, function(t, fe, c)
        c.peers[1].greeting = case[2]
        c.peers[1]:disconnect_all()
        local started = fiber.clock()
        local res = fe:call(c, {1, 'write', 'f', {1}, {timeout = 0.7}}, 10)
        t:ok(res.raised == nil and res[1] == nil and type(res[2]) == 'table', 'an error', '  got: %s', json.encode(res))
        t:within(fiber.clock() - started, 0, 2.5, 'within the deadline')
        t:ok(fe:call(c, {30, 'write', 'f', {1}, {timeout = 5}}).raised == nil, 'the other storage serves')
    end)
end

s:scenario('a connection cut under a hundred calls', {fe = fes, heals = true}, function(t, fe, c)
    local seen = 0
    c.peers[1].on_call = function()
        seen = seen + 1
        return peer.silent()
    end
    local calls = {}
    for i = 1, 100 do
        calls[i] = fe:start(c, {1, 'write', 'f', {i}, {timeout = 3}})
    end
    suite.wait_until('all calls', function() return seen == 100 end)
    local started = fiber.clock()
    c.peers[1]:disconnect_all()
    local errors = 0
    for i = 1, 100 do
        local res = fe:finish(calls[i], 10)
        if res[1] == nil and type(res[2]) == 'table' then
            errors = errors + 1
        end
    end
    t:is(errors, 100, 'each ends by an error')
    t:within(fiber.clock() - started, 0, 4, 'in time')
    t:is(seen, 100, 'none is sent twice')
end)

s:scenario('reconnects do not storm', {fe = {'lua'}, heals = true, router = 'rawshard'}, function(t, _, c)
    -- A storage that accepts and closes at once must not be hammered.
    local p = c.peers[1]
    p.on_accept = function(conn)
        conn.socket:close()
        conn.is_closed = true
    end
    local before = p.accepted
    p:disconnect_all()
    suite.wait_until('three attempts', function() return p.accepted >= before + 3 end, 20)
    local from, started = p.accepted, fiber.clock()
    fiber.sleep(1)
    local rate = (p.accepted - from) / (fiber.clock() - started)
    t:within(rate, 0, 30, 'attempts per second')
end)

-- An engine holds the answer of a call that took 64 ms or more back for up to 4 ms, while fewer than a sixteenth of the calls
-- under way have been answered. The router asks for the answers, one pair after another, by writing to `prompt` and looking at
-- the engine's counters, so that its TX does not turn in between: nothing fetches an answer but the wait itself. The second
-- answer of a pair is asked for when the engine has the first one, and comes in a later turn of the engine: so when it is
-- there, the first one has been handed over.
s:scenario('a wait of no time finds an answer that is held back', {
    fe = false, heals = true, router = 'rawshard',
}, function(t, _, c)
    local SILENT, PAIRS = 100, 20
    local p = c.peers[1]
    local held = {}
    local seen = 0
    p.on_call = function(request)
        local args = mp.elements(mp.elements(request.args)[4])
        held[mp.decode_uint(args[1])] = request
        seen = seen + 1
        return peer.silent()
    end
    local prompt = socket.tcp_server('127.0.0.1', 0, function(client)
        -- One byte for the next answer.
        local i = 0
        while client:read(1) == '.' do
            i = i + 1
            p:answer(held[i].conn, held[i], peer.ok('\x92\xc3' .. mp.uint(i)))
        end
        client:close()
    end)
    on_router(c, [[
        local silent, pairs, port = ...
        router.discovery_set('off')
        _G.prompt = require('socket').tcp_connect('127.0.0.1', port)
        _G.waits = {}
        for i = 1, 2 * pairs + silent do
            waits[i] = router.callrw(1, 'f', {i}, {is_async = true, timeout = 60})
        end
    ]], SILENT, PAIRS, prompt:name().port)
    suite.wait_until('all calls', function() return seen == SILENT + 2 * PAIRS end)
    local res = on_router(c, [[
        local silent, pairs = ...
        local function engine()
            return router.info().engines[1]
        end
        local function answered(wanted)
            prompt:syswrite('.')
            local deadline = fiber.clock() + 10
            while engine().replies < wanted and fiber.clock() < deadline do end
        end
        -- All of them have been under way for long by now.
        fiber.sleep(0.1)
        local valid, right, missed = 0, 0, 0
        for i = 1, 2 * pairs, 2 do
            -- Nobody else's call is answered in between.
            wait(function() return engine().in_flight == silent + 2 * pairs - i + 1 end)
            local before = engine()
            answered(before.replies + 1)
            answered(before.replies + 2)
            local is_alone = engine().calls == before.calls
            local first = waits[i]:wait_result(0)
            local second = waits[i + 1]:wait_result(10)
            if is_alone then
                valid = valid + 1
                missed = missed + (first == nil and 1 or 0)
            end
            -- An answer that was not there may still come.
            first = waits[i]:wait_result(10)
            right = right + (first[1] == i and second[1] == i + 1 and 1 or 0)
        end
        for _, future in ipairs(waits) do
            future:discard()
        end
        prompt:close()
        _G.prompt, _G.waits = nil
        router.discovery_set('on')
        return {valid = valid, right = right, missed = missed}
    ]], SILENT, PAIRS)
    prompt:close()
    t:ok(res.valid > 0, 'the engine was seen to read answers', '  got: %s', json.encode(res))
    t:is(res.missed, 0, 'answers that were there and not found')
    t:is(res.right, PAIRS, 'each pair has its own answers')
end)

s:run()
