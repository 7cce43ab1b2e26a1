-- An IPROTO client that shows bytes: what net.box would decode is handed over as it came, and any bytes can be sent.

local digest = require('digest')
local fiber = require('fiber')
local mp = require('test.helper.mp')
local msgpack = require('msgpack')
local socket = require('socket')

local REQUEST_TYPE, SYNC = 0x00, 0x01
local TUPLE, FUNCTION, USER, DATA, ERROR = 0x21, 0x22, 0x23, 0x30, 0x31
local AUTH, CALL = 7, 10

local client = {}
client.__index = client

local function xor(a, b)
    local res = {}
    for i = 1, #a do
        res[i] = string.char(bit.bxor(a:byte(i), b:byte(i)))
    end
    return table.concat(res)
end

local function scramble(password, salt)
    local h1 = digest.sha1(password)
    return xor(h1, digest.sha1(salt .. digest.sha1(h1)))
end

-- One frame as the servers write it.
local function frame(code, sync, body)
    local header = '\x82\x00' .. mp.uint(code) .. '\x01' .. mp.u32(sync)
    return mp.u32(#header + #body) .. header .. body
end

-- host, port: of a Tarantool. user and password, or nothing for guest.
local function connect(host, port, user, password)
    local s, err = socket.tcp_connect(host, port, 10)
    if s == nil then
        error(('cannot connect to %s:%s: %s'):format(host, port, err))
    end
    local greeting = s:read(128, 10)
    assert(greeting ~= nil and #greeting == 128, 'no greeting')
    local self = setmetatable({socket = s, sync = 0, greeting = greeting, answers = {}}, client)
    if user ~= nil then
        assert(self:authenticate(user, password).code == 0, 'authentication failed')
    end
    return self
end

-- Gives the reply. May be done anew at any time: the session has another user then.
function client:authenticate(user, password)
    local salt = digest.base64_decode(self.greeting:sub(65, 108)):sub(1, 20)
    return self:request(AUTH, '\x82\x23' .. mp.str(user) .. '\x21' ..
                        mp.array_of(mp.str('chap-sha1'), mp.str(scramble(password, salt))))
end

function client:send(code, body)
    self.sync = self.sync + 1
    self.socket:write(frame(code, self.sync, body))
    return self.sync
end

-- Sends bytes that need not be a frame at all.
function client:send_bytes(bytes)
    return self.socket:write(bytes)
end

local function read_exactly(s, n, timeout)
    local got = s:read(n, timeout)
    if got == nil or #got < n then
        return nil
    end
    return got
end

-- The next frame: {code, sync, frame (header and body as bytes), body (bytes), data (bytes of key 0x30), error (text)}; nil at
-- timeout or end.
function client:receive(timeout)
    local head = read_exactly(self.socket, 5, timeout or 60)
    if head == nil then
        return nil
    end
    local size = mp.decode_uint(head)
    local bytes = read_exactly(self.socket, size, timeout or 60)
    if bytes == nil then
        return nil
    end
    local header, pos = mp.uint_map(bytes, 1)
    local reply = {
        code = mp.decode_uint(header[REQUEST_TYPE]), sync = mp.decode_uint(header[SYNC]), frame = bytes, body = bytes:sub(pos),
    }
    if #reply.body > 0 then
        local body = mp.uint_map(bytes, pos)
        reply.data = body[DATA]
        reply.error = body[ERROR] and msgpack.decode(body[ERROR]) or nil
        reply.keys = body
    end
    return reply
end

function client:wait_for(sync, timeout)
    local deadline = fiber.clock() + (timeout or 60)
    while self.answers[sync] == nil do
        local reply = self:receive(deadline - fiber.clock())
        if reply == nil then
            return nil
        end
        self.answers[reply.sync] = reply
    end
    local reply = self.answers[sync]
    self.answers[sync] = nil
    return reply
end

function client:request(code, body, timeout)
    return self:wait_for(self:send(code, body), timeout)
end

-- CALL of a function with the bytes of its argument array.
function client:call(func, args, timeout)
    return self:request(CALL, '\x82\x22' .. mp.str(func) .. '\x21' .. args, timeout)
end

function client:send_call(func, args)
    return self:send(CALL, '\x82\x22' .. mp.str(func) .. '\x21' .. args)
end

function client:close()
    self.socket:close()
end

return {
    connect = connect, frame = frame, scramble = scramble,
    TUPLE = TUPLE, FUNCTION = FUNCTION, USER = USER,
}
