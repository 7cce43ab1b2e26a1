-- Objects of one replicaset, as route(), routeall() and `replicasets` hand them out. They hold what the configuration said;
-- everything that changes is asked from the native half.
--
-- A reconfiguration makes new objects. The old ones serve on for `connection_outdate_delay` seconds, if their
-- replicaset still exists, and then answer OBJECT_IS_OUTDATED.

local fiber = require('fiber')
local log = require('log')
local callopts = require('rawshard.callopts')
local codec = require('rawshard.codec')
local future = require('rawshard.future')
local lerror = require('rawshard.error')
local lreplica = require('rawshard.replica')
local monitor = require('rawshard.monitor')
local native = require('rawshard.native')
local object = require('rawshard.object')
local places = require('rawshard.places')

local encode_args, give_back, failure = codec.encode_args, codec.give_back, codec.failure
local read_opts = callopts.read
local up_to_three, raw_array, into_buffer = codec.up_to_three, codec.raw_array, codec.into_buffer
local call_replicaset, future_replicaset = native.call_replicaset, native.future_replicaset
local ALL, ALL_RAW = future.ALL, future.ALL_RAW
local clock = fiber.clock
local place_of = places.of
local outdated = object.outdated

local RW, RO, RE, BRO, BRE = 0, 1, 3, 5, 7
local NAMES = {[RW] = 'callrw', [RO] = 'callro', [RE] = 'callre', [BRO] = 'callbro', [BRE] = 'callbre'}

-- Seconds; vshard's defaults of direct calls.
local WRITE_TIMEOUT, READ_TIMEOUT = 0.5, 64
-- For one question of who is the master, for the present one to say that it still is, and between looks at what another
-- thread does.
local MASTER_SEARCH_TIMEOUT, PRESENT_TIMEOUT, POLL = 5, 0.5, 0.005

local RED = 3

local USAGE = 'Usage: replicaset:call(func, args, opts)'

local replicaset_mt = {}
local check_self = object.checker('replicaset', replicaset_mt)

-- Three values always, as vshard has it.
local function three(a, b, c)
    return a, b, c
end

local function call(self, flags, default_timeout, func, args, opts)
    check_self(self, NAMES[flags])
    local place = place_of(self)
    if place == nil then
        return nil, outdated()
    end
    if type(func) ~= 'string' then
        error(USAGE, 0)
    end
    local timeout, request_timeout, is_raw, is_async, special = default_timeout, nil, false, false, nil
    if opts then
        timeout, request_timeout, is_raw, is_async, special = read_opts(opts, default_timeout, USAGE)
    end
    local data, len, extra, lent = encode_args(args, USAGE, is_async or special ~= nil)
    if len == nil then
        return nil, extra
    end
    local n
    if is_async or special ~= nil then
        local sent = future_replicaset(self._router_id, place.index, flags, func, data, len, timeout, request_timeout,
                                       is_raw and ALL_RAW or ALL)
        if lent ~= nil then
            give_back(lent)
        end
        if is_async then
            if extra ~= nil then
                extra:recycle()
            end
            return special ~= nil and future.into_buffer(sent, special) or sent
        end
        n = future.wait_for(sent, special)
    else
        n = call_replicaset(self._router_id, place.index, flags, func, data, len, timeout, request_timeout)
    end
    if extra ~= nil then
        extra:recycle()
    end
    if n < 0 then
        return three(nil, failure())
    end
    if special ~= nil and special.buffer ~= nil then
        return into_buffer(special.buffer, special.skip_header)
    end
    if is_raw then
        return three(raw_array())
    end
    return up_to_three(n)
end

local methods = {}

function methods.callrw(self, func, args, opts)
    return call(self, RW, WRITE_TIMEOUT, func, args, opts)
end

methods.call = methods.callrw

function methods.callro(self, func, args, opts)
    return call(self, RO, READ_TIMEOUT, func, args, opts)
end

function methods.callre(self, func, args, opts)
    return call(self, RE, READ_TIMEOUT, func, args, opts)
end

function methods.callbro(self, func, args, opts)
    return call(self, BRO, READ_TIMEOUT, func, args, opts)
end

function methods.callbre(self, func, args, opts)
    return call(self, BRE, READ_TIMEOUT, func, args, opts)
end

-- Fields that change by themselves. What is out of use has none.
local live = {}

-- A searched master: known to the native half only. A configured one is a plain field.
function live.master(self)
    local place = place_of(self)
    local position = place ~= nil and native.master(self._router_id, place.index) or nil
    return position ~= nil and self.replicas[place.replica_ids[position]] or nil
end

function live.bucket_count(self)
    local place = place_of(self)
    return place ~= nil and native.known_buckets(self._router_id, place.index) or 0
end

-- The nearest replica that serves reads, which callro prefers; where none does, the nearest connected one.
function live.replica(self)
    local place = place_of(self)
    local connected
    for i, id in ipairs(place ~= nil and place.replica_ids or {}) do
        if native.is_connected(self._router_id, place.index, i) then
            if native.instance_health(self._router_id, place.index, i) ~= RED then
                return self.replicas[id]
            end
            connected = connected or self.replicas[id]
        end
    end
    return connected
end

replicaset_mt.__index = object.reader(methods, live)

function replicaset_mt.__tostring(self)
    local master = self.master
    return ('%sreplicaset(id="%s", master=%s)'):format(
        self.is_outdated and '(outdated) ' or '', self.id, master ~= nil and tostring(master) or 'missing')
end

--
-- Waiting for connections and masters. What is waited for are the connections of the engines, which make them by themselves.
--

local function missing_master(self)
    return lerror.vshard(lerror.code.MISSING_MASTER, self.id)
end

local function check_timeout(timeout, name)
    if type(timeout) ~= 'number' then
        error(('Usage: replicaset:%s(timeout), a number'):format(name), 0)
    end
end

-- What `look` gives when it gives something, and the rest of the timeout; nil when that is over.
local function poll(timeout, look)
    local deadline = clock() + timeout
    local seen = look()
    if seen then
        return seen, timeout
    end
    while clock() < deadline do
        fiber.sleep(math.min(POLL, math.max(deadline - clock(), 0)))
        seen = look()
        if seen then
            return seen, deadline - clock()
        end
    end
    return nil
end

local function wait_for_master(self, timeout)
    local master = self.master
    if master ~= nil then
        return master, timeout
    end
    if not self.is_master_auto then
        return nil, missing_master(self)
    end
    native.master_search_wakeup(self._router_id)
    local left
    master, left = poll(timeout, function() return self.master end)
    if master == nil then
        return nil, missing_master(self)
    end
    return master, left
end

local function wait_for_connection(replica, timeout)
    local _, left = poll(timeout, function() return (replica:is_connected()) end)
    if left == nil then
        return nil, lerror.timeout()
    end
    return left
end

local waiting = {}

function waiting.wait_master(self, timeout)
    check_timeout(timeout, 'wait_master')
    return wait_for_master(self, timeout)
end

function waiting.wait_connected(self, timeout)
    check_timeout(timeout, 'wait_connected')
    local master
    master, timeout = wait_for_master(self, timeout)
    if master == nil then
        return nil, timeout
    end
    return wait_for_connection(master, timeout)
end

function waiting.wait_connected_all(self, opts)
    local timeout = type(opts) == 'table' and opts.timeout or nil
    check_timeout(timeout, 'wait_connected_all')
    local are_all_connected, err
    repeat
        are_all_connected = true
        for id, replica in pairs(self.replicas) do
            if id ~= opts.except and not replica:is_connected() then
                timeout, err = wait_for_connection(replica, timeout)
                if timeout == nil then
                    return nil, err, id
                end
                -- Another one may have gone meanwhile.
                are_all_connected = false
            end
        end
    until are_all_connected
    return timeout
end

-- All instances at once: replica id -> what the function returned there. One that fails fails them all.
function waiting.map_call(self, func, args, opts)
    local timeout, err, err_id = waiting.wait_connected_all(self, opts)
    if timeout == nil then
        return nil, err, err_id
    end
    local deadline = clock() + timeout
    local sent, results = {}, {}
    for id, replica in pairs(self.replicas) do
        if id ~= opts.except then
            local _
            _, sent[id], err = replica:call(func, args, {is_async = true, timeout = timeout})
            if sent[id] == nil then
                err_id = id
                goto fail
            end
        end
    end
    for id, answer in pairs(sent) do
        results[id], err = future.wait_result(answer, deadline - clock())
        if results[id] == nil then
            err_id = id
            goto fail
        end
    end
    do return results end

    ::fail::
    for _, answer in pairs(sent) do
        answer:discard()
    end
    return nil, lerror.make(err), err_id
end

--
-- Connections of the objects' own, see replica.lua.
--

function waiting.connect_master(self)
    local master = self.master
    if master == nil then
        return nil, missing_master(self)
    end
    return master:connect()
end

waiting.connect = waiting.connect_master

-- Engines connect to all replicas as soon as they know them; there is nothing to be started, and no marker of the nearest
-- replica to be moved: reads go to the first that is usable.
function waiting.connect_all() end

function waiting.up_replica_priority() end

function waiting.down_replica_priority() end

--
-- Who is the master, where nobody has configured one.
--

local function set_master(self, replica_id)
    local place = place_of(self)
    if place ~= nil then
        native.set_master(self._router_id, place.index, replica_id ~= nil and place.positions[replica_id] or nil)
    end
end

-- Somebody says that `old_id` is no master any more, and who is instead, if he knows. Tells whether the request that
-- brought the news can be made again.
function waiting.update_master(self, old_id, candidate_id)
    local is_auto, master = self.is_master_auto, self.master
    if old_id ~= nil and old_id == candidate_id then
        return is_auto
    end
    if master == nil then
        if is_auto and candidate_id ~= nil and self.replicas[candidate_id] ~= nil then
            set_master(self, candidate_id)
        end
        return is_auto
    end
    if master.id ~= old_id then
        -- It has changed since.
        return true
    end
    if not is_auto then
        log.warn('Replica %s is not master for replicaset %s anymore, please update configuration', master.id, self.id)
        return false
    end
    set_master(self, self.replicas[candidate_id] ~= nil and candidate_id or nil)
    return true
end

-- What info() has of a service: 'failover', 'master_search'; any other has nothing to tell.
function waiting.service_info(self, name)
    local services = monitor.services_report(self, native.info(self._router_id, true).services, place_of(self).index)
    return services[name] or {}
end

local INFO = 'vshard.storage._call'

-- Asks all others at once; the first to say that it is the master is believed.
local function search_master(self, except)
    local sent, last_err, _ = {}, nil, nil
    for id, replica in pairs(self.replicas) do
        if id ~= except then
            local ok, err = replica:check_is_connected()
            if ok then
                _, sent[id], err = replica:call(INFO, {'info'}, {is_async = true, timeout = MASTER_SEARCH_TIMEOUT})
            end
            last_err = err or last_err
        end
    end
    local master_id
    poll(MASTER_SEARCH_TIMEOUT, function()
        for id, answer in pairs(sent) do
            if answer:is_ready() then
                local res, err = answer:result()
                sent[id], last_err = nil, err or last_err
                if res ~= nil and type(res[1]) == 'table' and res[1].is_master then
                    master_id = id
                    return true
                end
            end
        end
        return next(sent) == nil
    end)
    for _, answer in pairs(sent) do
        answer:discard()
    end
    return master_id, last_err
end

-- Whether there is a master now, whether that was known before, and what went wrong last. Where a master is configured there is
-- nothing to do.
function waiting.locate_master(self)
    if not self.is_master_auto then
        return true, true
    end
    local master = self.master
    if master ~= nil and master:is_connected() then
        local ok, info = master:call(INFO, {'info'}, {timeout = PRESENT_TIMEOUT})
        if ok and type(info) == 'table' and info.is_master then
            return true, true
        end
        if self.master ~= master then
            if self.master ~= nil then
                -- Found meanwhile, and not by us.
                return true, true
            end
        elseif ok then
            set_master(self, nil)
        end
        -- Who does not answer may still be the master, as long as there is no other.
    end
    local master_id, err = search_master(self, master ~= nil and master.id or nil)
    if master_id == nil then
        return false, false, err
    end
    set_master(self, master_id)
    return true, false, err
end

object.add_methods(methods, check_self, place_of, waiting)

local function build_one(router_id, map, entry, origin, cfg)
    local replicaset = setmetatable({
        id = entry.id, uuid = entry.uuid, name = entry.name, weight = entry.weight, lock = origin.lock,
        is_master_auto = entry.master_auto, failover_interval = cfg.failover_interval,
        replicas = {}, priority_list = {}, _router_id = router_id, _places = map,
    }, replicaset_mt)
    for i, instance in ipairs(entry.replicas) do
        local replica = lreplica.build(replicaset, instance, origin.replicas[instance.id], cfg)
        replicaset.replicas[instance.id], replicaset.priority_list[i] = replica, replica
        if instance.is_master then
            replicaset.master = replica
        end
    end
    for i, replica in ipairs(replicaset.priority_list) do
        replica.next_by_priority = replicaset.priority_list[i + 1]
    end
    return replicaset
end

-- Objects for a checked configuration and its neutral form: a list in the order of native indexes and a map by id. What the
-- `old` ones have open goes on with the new.
local function build(router_id, map, cfg, neutral, old)
    local list, by_id = {}, {}
    places.fill(map, neutral)
    for index, entry in ipairs(neutral.replicasets) do
        local replicaset = build_one(router_id, map, entry, cfg.sharding[entry.id], cfg)
        local before = old[entry.id]
        for id, replica in pairs(before ~= nil and before.replicas or {}) do
            if replicaset.replicas[id] ~= nil then
                lreplica.inherit(replicaset.replicas[id], replica)
            end
        end
        list[index], by_id[entry.id] = replicaset, replicaset
    end
    return list, by_id
end

local function mark_outdated(replicasets)
    for _, replicaset in pairs(replicasets) do
        replicaset.is_outdated = true
        for _, replica in pairs(replicaset.replicas) do
            lreplica.close(replica)
        end
    end
end

local function outdate(replicasets, delay)
    if delay == nil or next(replicasets) == nil then
        mark_outdated(replicasets)
        return
    end
    fiber.create(function()
        fiber.name('rawshard.outdate', {truncate = true})
        fiber.sleep(delay)
        mark_outdated(replicasets)
    end)
end

-- After a reload of the module: objects made by the old one get the new methods.
local function adopt(replicasets)
    for _, replicaset in pairs(replicasets) do
        setmetatable(replicaset, replicaset_mt)
        for _, replica in pairs(replicaset.replicas) do
            lreplica.adopt(replica)
        end
    end
end

return {
    build = build,
    outdate = outdate,
    adopt = adopt,
}
