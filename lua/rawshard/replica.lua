-- Objects of one replica. What the configuration says are fields; what changes is asked from the native half, whose
-- connections serve all calls.
--
-- `conn` is a net.box connection of the object's own, for what is no call of a function: the spaces of the schema, streams,
-- whatever layers above do with it. It is opened when somebody asks for it for the first time, and never otherwise.

local fiber = require('fiber')
local log = require('log')
local net_box = require('net.box')
local callopts = require('rawshard.callopts')
local codec = require('rawshard.codec')
local future = require('rawshard.future')
local lerror = require('rawshard.error')
local luri = require('rawshard.uri')
local native = require('rawshard.native')
local object = require('rawshard.object')
local places = require('rawshard.places')

local encode_args, give_back, failure = codec.encode_args, codec.give_back, codec.failure
local read_opts = callopts.read
local up_to_three, raw_array, into_buffer = codec.up_to_three, codec.raw_array, codec.into_buffer
local call_instance, future_instance = native.call_instance, native.future_instance
local ALL, ALL_RAW = future.ALL, future.ALL_RAW
local clock = fiber.clock
local place_of = places.of_replica
local outdated = object.outdated

-- Seconds. Until the one who asks for `conn` first is given it, however far it has come; between two connections where the
-- one before was closed; net.box's pause, as vshard has it.
local OPEN_WAIT, REOPEN_PAUSE, RECONNECT_PAUSE = 0.5, 0.5, 0.5

-- What a call's network part may take by default, in vshard a figure that grows with failures.
local NET_TIMEOUT = 0.5
-- For how long the engines leave an instance alone (src/engine/peer.rs: BACKOFF).
local BACKOFF = 5

local NIL_UUID = '00000000-0000-0000-0000-000000000000'

local USAGE = 'Usage: replica:call(func, args, {timeout = number})'

local replica_mt = {}
local check_self = object.checker('replica', replica_mt)

--
-- The connection.
--

local function is_dead(conn)
    return conn.state == 'closed' or conn.state == 'error'
end

-- Another instance at this address: as the engines', the connection is not used.
local function on_connect(conn)
    local replica = conn.replica
    if replica ~= nil and replica.uuid ~= nil and conn.peer_uuid ~= replica.uuid and conn.peer_uuid ~= NIL_UUID then
        log.warn('Mismatch server UUID on %s: expected "%s", but got "%s"', tostring(replica), replica.uuid,
                 conn.peer_uuid)
        conn:close()
    end
end

-- A connection learns of a changed schema by the answers that it gets, and calls go by other connections: it asks something by
-- itself, as often as vshard does. Until nobody has it any more.
local function keep_fresh(conn)
    fiber.name('rawshard.conn', {truncate = true})
    while conn.replica ~= nil and rawget(conn.replica, '_conn') == conn do
        local replica = conn.replica
        fiber.sleep(replica.failover_interval)
        if conn:is_connected() then
            pcall(conn.ping, conn, {timeout = replica.failover_ping_timeout})
            fiber.testcancel()
        end
    end
end

-- Where instances are known by name, the engines ask for it; the instance there has another one.
local function has_wrong_name(self)
    if self.id ~= self.name then
        return false
    end
    local place, position = place_of(self)
    local router_id = self._replicaset._router_id
    return not native.is_connected(router_id, place.index, position)
        and native.last_error(router_id, place.index, position):startswith('Mismatch server name')
end

-- The connection there is, or a new one; does not wait for it.
local function connect(self)
    local conn = rawget(self, '_conn')
    if has_wrong_name(self) then
        if conn ~= nil then
            conn:close()
        end
        return conn
    end
    if conn ~= nil and (not is_dead(conn) or clock() < self._opened_at + REOPEN_PAUSE) then
        return conn
    end
    local address = assert(luri.address(self.uri))
    local host, port = address.host, address.port
    if address.unix ~= nil then
        host, port = 'unix/', address.unix
    end
    conn = net_box.connect(host, port, {
        user = address.user, password = address.password, wait_connected = false, reconnect_after = RECONNECT_PAUSE,
        fetch_schema = self.fetch_schema,
    })
    conn.replica = self
    conn:on_connect(on_connect)
    self._conn, self._opened_at, self._is_opening = conn, clock(), true
    if self.fetch_schema then
        fiber.new(keep_fresh, conn)
    end
    return conn
end

-- In a transaction nothing may yield.
local function may_wait()
    return type(box.cfg) == 'function' or not box.is_in_txn()
end

-- A connection that has just been opened has no spaces yet: whoever asks for it first is made to wait.
local function live_conn(self)
    if place_of(self) == nil then
        return nil
    end
    local conn = connect(self)
    if conn ~= nil and rawget(self, '_is_opening') and may_wait() then
        local left = self._opened_at + OPEN_WAIT - clock()
        if left > 0 then
            pcall(conn.wait_state, conn, {active = true, error_reconnect = true, error = true, closed = true}, left)
        end
        self._is_opening = nil
    end
    return conn
end

local function take_conn(self)
    local conn = rawget(self, '_conn')
    self._conn, self._is_opening = nil, nil
    return conn
end

local function has_same_address(self, other)
    local a, b = luri.address(self.uri), luri.address(other.uri)
    return a.host == b.host and a.port == b.port and a.unix == b.unix and a.user == b.user and a.password == b.password
end

-- The new object of the same instance goes on with the connection.
local function inherit(self, old)
    if rawget(old, '_conn') ~= nil and old.fetch_schema == self.fetch_schema and has_same_address(self, old) then
        self._opened_at, self._is_opening = old._opened_at, old._is_opening
        self._conn = take_conn(old)
        self._conn.replica = self
    end
end

local function close(self)
    local conn = take_conn(self)
    if conn ~= nil then
        conn:close()
    end
end

--
-- Methods.
--

local methods = {}

-- vshard's order of values: whether the network did its part, then what the function returned.
function methods.call(self, func, args, opts)
    check_self(self, 'call')
    local place, position = place_of(self)
    if place == nil then
        return nil, outdated()
    end
    if type(func) ~= 'string' or type(opts) ~= 'table' or type(opts.timeout) ~= 'number' then
        error(USAGE, 0)
    end
    local timeout, _, is_raw, is_async, special = read_opts(opts, nil, USAGE)
    local data, len, extra, lent = encode_args(args, USAGE, is_async or special ~= nil)
    if len == nil then
        return false, nil, extra
    end
    local router_id = self._replicaset._router_id
    local n
    if is_async or special ~= nil then
        local sent = future_instance(router_id, place.index, position, func, data, len, timeout,
                                     is_raw and ALL_RAW or ALL)
        if lent ~= nil then
            give_back(lent)
        end
        if is_async then
            if extra ~= nil then
                extra:recycle()
            end
            return true, special ~= nil and future.into_buffer(sent, special) or sent
        end
        n = future.wait_for(sent, special)
    else
        n = call_instance(router_id, place.index, position, func, data, len, timeout)
    end
    if extra ~= nil then
        extra:recycle()
    end
    if n < 0 then
        return false, nil, failure()
    end
    if special ~= nil and special.buffer ~= nil then
        return true, into_buffer(special.buffer, special.skip_header)
    end
    if is_raw then
        local values, err = raw_array()
        return true, values, err, nil
    end
    return true, up_to_three(n)
end

-- Whether calls can be sent to it: by the engines' connections, `conn` has no part in it.
local function is_connected(self)
    local place, position = place_of(self)
    return native.is_connected(self._replicaset._router_id, place.index, position)
end

local function check_is_connected(self)
    if is_connected(self) then
        return true, nil
    end
    local place, position = place_of(self)
    local reason = native.last_error(self._replicaset._router_id, place.index, position)
    return nil, lerror.no_connection(self.id, luri.safe(self.uri), reason ~= '' and reason or 'connecting')
end

local function safe_uri(self)
    return luri.safe(self.uri)
end

-- Forgets the connection: requests on it go on, the next one who asks for `conn` gets another.
local function detach_conn(self)
    take_conn(self)
end

object.add_methods(methods, check_self, place_of, {
    is_connected = is_connected, check_is_connected = check_is_connected, safe_uri = safe_uri, connect = connect,
    detach_conn = detach_conn,
})

-- What a native tells of the instance; nil when it is out of use.
local function ask(self, tell)
    local place, position = place_of(self)
    if place == nil then
        return nil
    end
    return tell(self._replicaset._router_id, place.index, position)
end

-- Fields that are made when they are read. Marks are vshard's: 0 GREEN, 1 YELLOW, 3 RED.
local live = {
    conn = live_conn,
    health_status = function(self)
        return ask(self, native.instance_health)
    end,
    replication_status = function(self)
        return ask(self, native.instance_replication)
    end,
    -- When it began, on the clock of fiber.clock().
    backoff_ts = function(self)
        local left = ask(self, native.instance_backoff)
        return left ~= nil and left > 0 and clock() + left - BACKOFF or nil
    end,
    is_outdated = function(self)
        return self._replicaset.is_outdated or nil
    end,
}

replica_mt.__index = object.reader(methods, live)

function replica_mt.__tostring(self)
    return ('%sreplica(id=%s, uri=%s)'):format(
        self._replicaset.is_outdated and '(outdated) ' or '', self.name or self.uuid, luri.safe(self.uri))
end

-- For one instance of the neutral form; `origin` is what the configuration says of it.
local function build(replicaset, instance, origin, cfg)
    return setmetatable({
        id = instance.id, uuid = instance.uuid, name = instance.name, weight = instance.zone_weight, uri = origin.uri,
        zone = origin.zone, net_timeout = NET_TIMEOUT, fetch_schema = cfg.connection_fetch_schema,
        failover_ping_timeout = cfg.failover_ping_timeout, failover_interval = cfg.failover_interval,
        failover_sequential_fail_count = cfg.failover_sequential_fail_count,
        failover_replica_lag_limit = cfg.failover_replica_lag_limit,
        _replicaset = replicaset,
    }, replica_mt)
end

-- After a reload of the module.
local function adopt(self)
    setmetatable(self, replica_mt)
end

return {
    adopt = adopt,
    build = build,
    close = close,
    inherit = inherit,
}
