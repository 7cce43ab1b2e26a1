-- Objects of one replicaset and of its replicas, as route(), routeall() and `replicasets` hand them out. They hold what
-- the configuration said; everything that changes is asked from the native half.
--
-- A reconfiguration makes new objects. The old ones serve on for `connection_outdate_delay` seconds, if their
-- replicaset still exists, and then answer OBJECT_IS_OUTDATED.

local fiber = require('fiber')
local table_clear = require('table.clear')
local callopts = require('rawshard.callopts')
local codec = require('rawshard.codec')
local future = require('rawshard.future')
local lerror = require('rawshard.error')
local luri = require('rawshard.uri')
local native = require('rawshard.native')

local encode_args, failure = codec.encode_args, codec.failure
local read_opts = callopts.read
local up_to_three, raw_array = codec.up_to_three, codec.raw_array
local call_replicaset, call_instance = native.call_replicaset, native.call_instance
local future_replicaset, future_instance = native.future_replicaset, native.future_instance
local ALL, ALL_RAW = future.ALL, future.ALL_RAW

local RW, RO, RE, BRO, BRE = 0, 1, 3, 5, 7

-- Seconds; vshard's defaults of direct calls.
local WRITE_TIMEOUT, READ_TIMEOUT = 0.5, 64

local USAGE = 'Usage: replicaset:call(func, args, opts)'

local function outdated()
    return lerror.vshard(lerror.code.OBJECT_IS_OUTDATED)
end

-- Where the replicaset stands in the newest configuration, for objects of an older one too; nil when it is out of use.
local function place_of(replicaset)
    return not replicaset.is_outdated and replicaset._places[replicaset.id] or nil
end

local function call(self, flags, default_timeout, func, args, opts)
    local place = place_of(self)
    if place == nil then
        return nil, outdated()
    end
    if type(func) ~= 'string' then
        error(USAGE, 0)
    end
    local timeout, request_timeout, is_raw, is_async = default_timeout, nil, false, false
    if opts then
        timeout, request_timeout, is_raw, is_async = read_opts(opts, default_timeout, USAGE)
    end
    local data, len, extra = encode_args(args, USAGE)
    if len == nil then
        return nil, extra
    end
    if is_async then
        local res = future_replicaset(self._router_id, place.index, flags, func, data, len, timeout, request_timeout,
                                      is_raw and ALL_RAW or ALL)
        if extra ~= nil then
            extra:recycle()
        end
        return res
    end
    local n = call_replicaset(self._router_id, place.index, flags, func, data, len, timeout, request_timeout)
    if extra ~= nil then
        extra:recycle()
    end
    if n < 0 then
        return nil, failure()
    end
    if is_raw then
        return raw_array()
    end
    return up_to_three(n)
end

local replicaset_methods = {}

function replicaset_methods.callrw(self, func, args, opts)
    return call(self, RW, WRITE_TIMEOUT, func, args, opts)
end

replicaset_methods.call = replicaset_methods.callrw

function replicaset_methods.callro(self, func, args, opts)
    return call(self, RO, READ_TIMEOUT, func, args, opts)
end

function replicaset_methods.callre(self, func, args, opts)
    return call(self, RE, READ_TIMEOUT, func, args, opts)
end

function replicaset_methods.callbro(self, func, args, opts)
    return call(self, BRO, READ_TIMEOUT, func, args, opts)
end

function replicaset_methods.callbre(self, func, args, opts)
    return call(self, BRE, READ_TIMEOUT, func, args, opts)
end

-- Fields that change by themselves. What is out of use has none.
local replicaset_live = {}

-- A searched master: known to the native half only. A configured one is a plain field.
function replicaset_live.master(self)
    local place = place_of(self)
    local position = place ~= nil and native.master(self._router_id, place.index) or nil
    return position ~= nil and self.replicas[place.replica_ids[position]] or nil
end

function replicaset_live.bucket_count(self)
    local place = place_of(self)
    return place ~= nil and native.known_buckets(self._router_id, place.index) or 0
end

-- The nearest connected replica, which callro prefers.
function replicaset_live.replica(self)
    local place = place_of(self)
    for i, id in ipairs(place ~= nil and place.replica_ids or {}) do
        if native.is_connected(self._router_id, place.index, i) then
            return self.replicas[id]
        end
    end
    return nil
end

local replicaset_mt = {
    __index = function(self, key)
        local method = replicaset_methods[key]
        if method ~= nil then
            return method
        end
        local live = replicaset_live[key]
        return live ~= nil and live(self) or nil
    end,
    __tostring = function(self)
        local master = self.master
        return ('%sreplicaset(id="%s", master=%s)'):format(
            self.is_outdated and '(outdated) ' or '', self.id, master ~= nil and tostring(master) or 'missing')
    end,
}

local replica_methods = {}

-- vshard's order of values: whether the network did its part, then what the function returned.
function replica_methods.call(self, func, args, opts)
    local usage = 'Usage: replica:call(func, args, {timeout = number})'
    local replicaset = self._replicaset
    local place = place_of(replicaset)
    local position = place ~= nil and place.positions[self.id] or nil
    if position == nil then
        return false, nil, outdated()
    end
    if type(func) ~= 'string' or type(opts) ~= 'table' or type(opts.timeout) ~= 'number' then
        error(usage, 0)
    end
    local timeout, _, is_raw, is_async = read_opts(opts, nil, usage)
    local data, len, extra = encode_args(args, usage)
    if len == nil then
        return false, nil, extra
    end
    if is_async then
        local res = future_instance(replicaset._router_id, place.index, position, func, data, len, timeout,
                                    is_raw and ALL_RAW or ALL)
        if extra ~= nil then
            extra:recycle()
        end
        return true, res
    end
    local n = call_instance(replicaset._router_id, place.index, position, func, data, len, timeout)
    if extra ~= nil then
        extra:recycle()
    end
    if n < 0 then
        return false, nil, failure()
    end
    if is_raw then
        return true, raw_array()
    end
    return true, up_to_three(n)
end

function replica_methods.is_connected(self)
    local replicaset = self._replicaset
    local place = place_of(replicaset)
    local position = place ~= nil and place.positions[self.id] or nil
    return position ~= nil and native.is_connected(replicaset._router_id, place.index, position)
end

function replica_methods.safe_uri(self)
    return luri.safe(self.uri)
end

local replica_mt = {
    __index = replica_methods,
    __tostring = function(self)
        return ('%sreplica(id=%s, uri=%s)'):format(
            self._replicaset.is_outdated and '(outdated) ' or '', self.name or self.uuid, luri.safe(self.uri))
    end,
}

-- Fills `places` (replicaset id -> its native index, ids of its replicas by native position, and the reverse) from the
-- neutral form. The table itself is one for the life of a router: objects of every configuration look into it.
local function fill_places(places, neutral)
    table_clear(places)
    for index, entry in ipairs(neutral.replicasets) do
        local place = {index = index, replica_ids = {}, positions = {}}
        for i, instance in ipairs(entry.replicas) do
            place.replica_ids[i], place.positions[instance.id] = instance.id, i
        end
        places[entry.id] = place
    end
end

local function build_one(router_id, places, entry, origin)
    local replicaset = setmetatable({
        id = entry.id, uuid = entry.uuid, name = entry.name, weight = entry.weight, lock = origin.lock,
        is_master_auto = entry.master_auto, is_outdated = false, replicas = {}, priority_list = {},
        _router_id = router_id, _places = places,
    }, replicaset_mt)
    for i, instance in ipairs(entry.replicas) do
        local replica = setmetatable({
            id = instance.id, uuid = instance.uuid, name = instance.name, weight = instance.zone_weight,
            uri = origin.replicas[instance.id].uri, zone = origin.replicas[instance.id].zone,
            _replicaset = replicaset,
        }, replica_mt)
        replicaset.replicas[instance.id], replicaset.priority_list[i] = replica, replica
        if instance.is_master then
            replicaset.master = replica
        end
    end
    return replicaset
end

-- Objects for a checked configuration and its neutral form: a list in the order of native indexes and a map by id.
local function build(router_id, places, cfg, neutral)
    local list, map = {}, {}
    fill_places(places, neutral)
    for index, entry in ipairs(neutral.replicasets) do
        local replicaset = build_one(router_id, places, entry, cfg.sharding[entry.id])
        list[index], map[entry.id] = replicaset, replicaset
    end
    return list, map
end

local function mark_outdated(replicasets)
    for _, replicaset in pairs(replicasets) do
        replicaset.is_outdated = true
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
            setmetatable(replica, replica_mt)
        end
    end
end

return {
    build = build,
    outdate = outdate,
    adopt = adopt,
}
