-- A scripted storage inside the driver: it speaks just enough IPROTO for a router to route to it, keeps each request's bytes,
-- and answers with whatever bytes the test gives.
--
--     local p = peer.new({id = '…', first = 1, last = 30})
--     p.on_call = function(request) return p.ok('\x92\xc3\x01') end     -- bytes of the DATA array
--
-- on_call gets {func, args (bytes of the array), sync, conn} for each vshard.storage.call and returns p.ok(bytes),
-- p.fail(code, message), p.bytes(raw bytes for the socket), p.silent() or p.close(). It may wait: each request has a fiber.

local digest = require('digest')
local fiber = require('fiber')
local iproto = require('test.helper.iproto')
local mp = require('test.helper.mp')
local msgpack = require('msgpack')
local socket = require('socket')

local SELECT, AUTH, CALL, PING, ID, WATCH, UNWATCH = 1, 7, 10, 64, 73, 74, 75

local peer = {}
peer.__index = peer

-- What a request may be answered with.

-- data: the bytes of an array, as they shall stand under key 0x30.
local function ok(data)
    return {body = '\x81\x30' .. data, code = 0}
end

local function fail(code, message)
    local stack = msgpack.encode({[0] = {{[0] = 'ClientError', [1] = 'peer', [2] = 1, [3] = message, [4] = 0, [5] = code}}})
    return {body = '\x82\x31' .. mp.str(message) .. '\x52' .. stack, code = 0x8000 + code}
end

-- Bytes in the place of a frame.
local function bytes(raw)
    return {raw = raw}
end

local function silent()
    return {}
end

local function close()
    return {close = true}
end

local function greeting(id)
    local salt = digest.base64_encode(digest.urandom(32), {nowrap = true})
    local function line(text)
        return text .. (' '):rep(63 - #text) .. '\n'
    end
    return line('Tarantool 2.6.0 (Binary) ' .. id) .. line(salt)
end

function peer.answer(_, conn, request, reply)
    if reply.close then
        conn.socket:close()
        conn.is_closed = true
        return
    end
    local out = reply.raw
    if out == nil and reply.body ~= nil then
        out = '\x83\x00' .. mp.u32(reply.code) .. '\x01' .. (reply.sync or request.header[1]) .. '\x05' .. mp.u32(1) .. reply.body
        out = mp.u32(#out) .. out
    end
    if out ~= nil and not conn.is_closed then
        -- Large answers of several fibers must not mix.
        conn.lock:put(true)
        conn.socket:write(out)
        conn.lock:get()
    end
end

-- The answers of a storage that has the buckets first … last and is the master.
function peer:storage_answer(request)
    local func = request.func
    self.requests[func] = (self.requests[func] or 0) + 1
    if func == 'vshard.storage.call' then
        return self.on_call(request)
    elseif func == 'vshard.storage.buckets_discovery' then
        local ids = {}
        for id = self.first, self.last do
            table.insert(ids, id)
        end
        return ok(msgpack.encode({{buckets = setmetatable(ids, {__serialize = 'seq'})}}))
    elseif func == 'vshard.storage.bucket_stat' then
        local id = msgpack.decode(request.args)[1]
        if id >= self.first and id <= self.last then
            return ok(msgpack.encode({{id = id, status = 'active'}}))
        end
        return ok(msgpack.encode({box.NULL, {
            type = 'ShardingError', code = 1, name = 'WRONG_BUCKET', message = 'not here', bucket_id = id, reason = 'Not found',
        }}))
    elseif func == 'vshard.storage._call' then
        return ok(msgpack.encode({{
            is_master = true, health = {master_upstream = {status = 'follow', idle = 0, lag = 0}},
        }}))
    elseif func == 'vshard.storage.buckets_count' then
        return ok(msgpack.encode({self.last - self.first + 1}))
    end
    return fail(33, "Procedure '" .. func .. "' is not defined")
end

function peer:handle(conn, request)
    if self.on_request ~= nil then
        local reply = self.on_request(request)
        if reply ~= nil then
            return self:answer(conn, request, reply)
        end
    end
    if request.code == CALL then
        self:answer(conn, request, self:storage_answer(request))
    elseif request.code == PING or request.code == AUTH then
        self:answer(conn, request, {code = 0, body = '\x80'})
    elseif request.code == SELECT then
        self:answer(conn, request, ok('\x90'))
    elseif request.code == WATCH or request.code == UNWATCH then
        return
    elseif request.code == ID then
        self:answer(conn, request, fail(48, 'Unknown request type 73'))
    else
        self:answer(conn, request, fail(48, 'Unknown request type ' .. request.code))
    end
end

function peer:serve(s)
    local conn = {socket = s, lock = fiber.channel(1)}
    self.accepted = self.accepted + 1
    self.conns[conn] = true
    if self.on_accept ~= nil then
        self.on_accept(conn)
    end
    s:write(self.greeting or greeting(self.id))
    while not conn.is_closed do
        local head = s:read(5)
        if head == nil or #head < 5 then
            break
        end
        local frame = s:read(mp.decode_uint(head))
        if frame == nil or frame == '' then
            break
        end
        local header, pos = mp.uint_map(frame, 1)
        local request = {
            code = mp.decode_uint(header[0]), sync = header[1] and mp.decode_uint(header[1]) or 0, conn = conn, header = header,
        }
        if pos <= #frame then
            local body = mp.uint_map(frame, pos)
            request.body = body
            request.func = body[iproto.FUNCTION] and msgpack.decode(body[iproto.FUNCTION])
            request.args = body[iproto.TUPLE] or '\x90'
        end
        if request.code == CALL then
            fiber.create(self.handle, self, conn, request)
        else
            self:handle(conn, request)
        end
    end
    self.conns[conn] = nil
    conn.is_closed = true
    pcall(s.close, s)
end

-- opts: id (instance uuid), first, last (buckets).
local function new(opts)
    local self = setmetatable({
        id = opts.id, first = opts.first, last = opts.last, requests = {}, accepted = 0, conns = {},
        ok = ok, fail = fail, bytes = bytes, silent = silent, close = close,
    }, peer)
    self:reset()
    self.server = socket.tcp_server('127.0.0.1', opts.port or 0, {
        name = 'peer',
        handler = function(s)
            local is_good, err = pcall(self.serve, self, s)
            if not is_good then
                self.failed = err
            end
        end,
    })
    assert(self.server ~= nil, 'the peer cannot listen')
    self.port = self.server:name().port
    return self
end

-- Back to a storage whose functions return nothing.
function peer:reset()
    self.on_call = function()
        return ok('\x91\xc3')
    end
    self.on_request = nil
    self.on_accept = nil
    self.greeting = nil
end

-- Cuts all connections; the listener stays.
function peer:disconnect_all()
    for conn in pairs(self.conns) do
        conn.is_closed = true
        -- The other end, or its own fiber, may have closed it already.
        pcall(conn.socket.shutdown, conn.socket, socket.SHUT_RDWR or 2)
    end
end

function peer:stop()
    self.server:close()
    self:disconnect_all()
end

return {new = new, ok = ok, fail = fail, bytes = bytes, silent = silent, close = close, greeting = greeting}
