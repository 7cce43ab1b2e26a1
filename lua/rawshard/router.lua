-- Routers: objects made by new(), and the static one behind cfg() with its functions on this very module, as vshard has
-- them. Arguments are checked here; calls are made by the native half.
--
-- Beside it in this directory: replicaset and replica (their objects), object (what all of these have in common), places
-- (where they stand), attach (routers beside vshard's), monitor (info), bootstrap, map_call and map_read (map-reduce),
-- endpoint (bind), callopts (options of a call), future, codec (arguments into bytes, answers into values), cfg and uri
-- (the configuration table), override (calls without a fiber each), hash, error, native (finds and loads rawshard.so),
-- version. There must be no init.lua: Tarantool looks for the library of the stored function `rawshard.callraw` by the
-- name `rawshard`, and would take that file for it.
--
-- A router lives longer than this module: reloading it (package.loaded cleared, required again) finds the running
-- routers in a global and gives their objects the new methods. Whoever kept the old module goes on with its functions.

local fiber = require('fiber')
local log = require('log')
local lattach = require('rawshard.attach')
local lbootstrap = require('rawshard.bootstrap')
local callopts = require('rawshard.callopts')
local codec = require('rawshard.codec')
local endpoint = require('rawshard.endpoint')
local future = require('rawshard.future')
local hash = require('rawshard.hash')
local lcfg = require('rawshard.cfg')
local lerror = require('rawshard.error')
local lreplicaset = require('rawshard.replicaset')
local map_call = require('rawshard.map_call')
local map_read = require('rawshard.map_read')
local monitor = require('rawshard.monitor')
local native = require('rawshard.native')
local override = require('rawshard.override')
local object = require('rawshard.object')
local version = require('rawshard.version')

local call_bucket, future_bucket, native_callraw = native.call_bucket, native.future_bucket, native.callraw
local encode_args, give_back, failure = codec.encode_args, codec.give_back, codec.failure
local first_or_error, raw_array = codec.first_or_error, codec.raw_array
local read_opts = callopts.read
local FIRST, FIRST_RAW, ALL, ALL_RAW = future.FIRST, future.FIRST_RAW, future.ALL, future.ALL_RAW

hash.use(native.hash_object)

local STATE = '__module_rawshard_router'
local STATIC_ROUTER_NAME = '_static_router'

-- Seconds.
local CALL_TIMEOUT = 0.5
local CONNECT_WAIT, CONNECT_POLL = 0.5, 0.005

local M = rawget(_G, STATE)
if M == nil then
    -- One metatable for all times: whoever holds the module of before a reload has functions that know it.
    -- `attached`: by name, what routers of vshard they follow.
    M = {routers = {}, attached = {}, static_router = nil, module_version = 0, router_mt = {}, ref_id = 0}
    rawset(_G, STATE, M)
else
    M.module_version = M.module_version + 1
    M.ref_id = M.ref_id or 0
    M.attached = M.attached or {}
end
-- By name, those of all routers.
M.endpoints = M.endpoints or {}

local router_mt = M.router_mt
local check_self = object.checker('router', router_mt)

-- Why `open_id` is nil: it is `native_id`, but only while calls are let through.
local function refuse_closed(self)
    local reason = self.native_id == nil and 'router is not configured' or 'router is disabled explicitly'
    error(lerror.vshard(lerror.code.ROUTER_IS_DISABLED, reason), 0)
end

--
-- Calls.
--

local CALL_USAGE = 'Usage: call(bucket_id, mode, func, args, opts)'

-- Bits of the native flags.
local READ, PREFER_REPLICA, BALANCE = 1, 2, 4

-- Whose flags they are.
local NAMES = {
    [0] = 'callrw', [READ] = 'callro', [READ + PREFER_REPLICA] = 'callre', [READ + BALANCE] = 'callbro',
    [READ + PREFER_REPLICA + BALANCE] = 'callbre',
}

local function do_call(self, bucket_id, flags, func, args, opts)
    if getmetatable(self) ~= router_mt then
        check_self(self, NAMES[flags])
    end
    local id = self.open_id
    if id == nil then
        refuse_closed(self)
    end
    local timeout, request_timeout, is_raw, is_async, special = CALL_TIMEOUT, nil, false, false, nil
    if opts then
        timeout, request_timeout, is_raw, is_async, special = read_opts(opts, CALL_TIMEOUT, CALL_USAGE)
        if flags == 0 then
            -- A write is one attempt on one instance.
            request_timeout = nil
        end
    end
    if type(bucket_id) ~= 'number' then
        error(CALL_USAGE, 0)
    end
    -- Written so that NaN fails too.
    if not (bucket_id >= 1 and bucket_id <= self.total_bucket_count) or bucket_id % 1 ~= 0 then
        error('Bucket is unreachable: bucket id is out of range', 0)
    end
    if type(func) ~= 'string' then
        error(CALL_USAGE, 0)
    end
    if special ~= nil and special.buffer ~= nil then
        error('option "buffer" is for calls of replicasets and replicas: here the answer is looked at', 0)
    end
    local data, len, extra, lent = encode_args(args, CALL_USAGE, is_async or special ~= nil)
    if len == nil then
        return nil, extra
    end
    if is_async then
        local res = future_bucket(id, bucket_id, flags, func, data, len, timeout, request_timeout,
                                  is_raw and FIRST_RAW or FIRST)
        if lent ~= nil then
            give_back(lent)
        end
        if extra ~= nil then
            extra:recycle()
        end
        return res
    end
    local n
    if special ~= nil then
        local sent = future_bucket(id, bucket_id, flags, func, data, len, timeout, request_timeout, is_raw and ALL_RAW or ALL)
        if lent ~= nil then
            give_back(lent)
        end
        n = future.wait_for(sent, special)
    else
        n = call_bucket(id, bucket_id, flags, func, data, len, timeout, request_timeout)
    end
    if extra ~= nil then
        extra:recycle()
    end
    if n < 0 then
        return nil, failure()
    end
    if is_raw then
        -- As vshard: no values, no object.
        if n == 0 then
            return nil
        end
        return raw_array()
    end
    return first_or_error(n)
end

local methods = {}

function methods.callrw(self, bucket_id, func, args, opts)
    return do_call(self, bucket_id, 0, func, args, opts)
end

function methods.callro(self, bucket_id, func, args, opts)
    return do_call(self, bucket_id, READ, func, args, opts)
end

function methods.callre(self, bucket_id, func, args, opts)
    return do_call(self, bucket_id, READ + PREFER_REPLICA, func, args, opts)
end

function methods.callbro(self, bucket_id, func, args, opts)
    return do_call(self, bucket_id, READ + BALANCE, func, args, opts)
end

function methods.callbre(self, bucket_id, func, args, opts)
    return do_call(self, bucket_id, READ + PREFER_REPLICA + BALANCE, func, args, opts)
end

function methods.call(self, bucket_id, mode, func, args, opts)
    check_self(self, 'call')
    local prefer_replica, balance
    if type(mode) == 'table' then
        mode, prefer_replica, balance = mode.mode or 'write', mode.prefer_replica, mode.balance
    elseif not mode then
        mode = 'write'
    elseif type(mode) ~= 'string' then
        error('Usage: router.call(bucket_id, shard_opts, func, args, opts)', 0)
    end
    if mode == 'write' then
        return do_call(self, bucket_id, 0, func, args, opts)
    end
    if mode ~= 'read' then
        -- vshard lets a storage say so.
        return nil, lerror.make('Unknown mode: ' .. tostring(mode))
    end
    local flags = READ + (prefer_replica and PREFER_REPLICA or 0) + (balance and BALANCE or 0)
    return do_call(self, bucket_id, flags, func, args, opts)
end

--
-- Routes and hashes.
--

local function route(self, bucket_id)
    if type(bucket_id) ~= 'number' then
        error('Usage: router.route(bucket_id)', 0)
    end
    if not (bucket_id >= 1 and bucket_id <= self.total_bucket_count) or bucket_id % 1 ~= 0 then
        return nil, lerror.vshard(lerror.code.NO_ROUTE_TO_BUCKET, bucket_id)
    end
    local index = native.route(self.native_id, bucket_id, CALL_TIMEOUT)
    if index < 0 then
        return nil, failure()
    end
    return self.replicaset_list[index]
end

local function routeall(self)
    return self.replicasets
end

local function bucket_count(self)
    return self.total_bucket_count
end

local function check_key(key, name)
    if key == nil then
        error(('Usage: vshard.router.%s(key)'):format(name), 0)
    end
end

local function bucket_id_strcrc32(self, key)
    check_key(key, 'bucket_id_strcrc32')
    return hash.strcrc32(key) % self.total_bucket_count + 1
end

local function bucket_id_mpcrc32(self, key)
    check_key(key, 'bucket_id_mpcrc32')
    return hash.mpcrc32(key) % self.total_bucket_count + 1
end

local function bucket_id(self, key)
    check_key(key, 'bucket_id')
    if not M.is_bucket_id_warned then
        M.is_bucket_id_warned = true
        log.warn('router.bucket_id() is deprecated, use router.bucket_id_strcrc32() or router.bucket_id_mpcrc32()')
    end
    return bucket_id_strcrc32(self, key)
end

-- Gives the function of an endpoint; see endpoint.lua.
local function bind(self, opts)
    return endpoint.bind(M.endpoints, self, opts, refuse_closed)
end

local function endpoints(self)
    return endpoint.list(M.endpoints, self)
end

--
-- The cluster.
--

local function bootstrap(self, opts)
    if opts and type(opts) ~= 'table' then
        error('Usage: vshard.router.bootstrap({<options>})', 0)
    end
    return lbootstrap.bootstrap(self.replicaset_list, self.total_bucket_count, opts or {})
end

local function sync(self, timeout)
    if timeout ~= nil and type(timeout) ~= 'number' then
        error('Usage: vshard.router.sync([timeout: number])', 0)
    end
    if timeout == nil then
        timeout = self.current_cfg.sync_timeout
    end
    local deadline = fiber.clock() + timeout
    for _, replicaset in ipairs(self.replicaset_list) do
        if timeout < 0 then
            return nil, lerror.timeout()
        end
        local ok, err = replicaset:callrw('vshard.storage.sync', {timeout}, {timeout = timeout})
        if not ok then
            err = lerror.make(err)
            err.replicaset = replicaset.id
            return nil, err
        end
        timeout = deadline - fiber.clock()
    end
    return true
end

-- Unique in the process: routers, and calls of one router, may have the same storages.
local function next_ref_id()
    local rid = M.ref_id
    M.ref_id = rid + 1
    return rid
end

local function map_callrw(self, func, args, opts)
    return map_call.map_callrw(self, next_ref_id(), func, args, opts)
end

local function map_callro(self, func, args, opts)
    M.map_turn = (M.map_turn or 0) % 0x7fffffff + 1
    return map_read.map_callro(self, next_ref_id(), next_ref_id(), M.map_turn, func, args, opts)
end

local function create_cluster_recovery_point(self, label, opts)
    if type(label) ~= 'string' then
        error('Usage: router.create_cluster_recovery_point(label, opts)', 0)
    end
    local points, err, id = map_callrw(self, 'vshard.storage._call', {'create_replicaset_recovery_point', label}, opts)
    if points == nil then
        err.replicaset = id
        return nil, err
    end
    return points
end

local function buckets_info(self, offset, limit)
    if (offset ~= nil and type(offset) ~= 'number') or (limit ~= nil and type(limit) ~= 'number') then
        error('Usage: buckets_info(offset, limit)', 0)
    end
    return monitor.buckets_info(self, offset or 0, limit or self.total_bucket_count)
end

local function discovery_wakeup(self)
    native.discovery_wakeup(self.native_id)
end

local function discovery_set(self, mode)
    if mode ~= 'on' and mode ~= 'off' and mode ~= 'once' then
        error("Usage: router.discovery_set('on' | 'off' | 'once')", 0)
    end
    native.discovery_set(self.native_id, mode)
end

local function master_search_wakeup(self)
    native.master_search_wakeup(self.native_id)
end

-- For tests, under vshard's names.
local function route_map_clear(self)
    native.route_map_clear(self.native_id)
end

local function bucket_reset(self, id)
    if not (id >= 1 and id <= self.total_bucket_count) then
        -- Such a bucket is never known.
        return
    end
    native.bucket_set(self.native_id, id, nil)
end

--
-- Configuration.
--

local function set_enabled(self, is_enabled)
    self.is_enabled = is_enabled
    self.open_id = is_enabled and self.native_id or nil
    if native.set_enabled ~= nil and self.native_id ~= nil then
        -- The stored function has no Lua to ask.
        native.set_enabled(self.native_id, is_enabled)
    end
end

local function has_pending_master(self)
    local id = self.native_id
    for i, replicaset in ipairs(self.replicaset_list) do
        local master = native.master(id, i)
        if master == nil and replicaset.is_master_auto or master ~= nil and not native.is_connected(id, i, master) then
            return true
        end
    end
    return false
end

-- The first call after cfg() should find connections. Whoever does not answer in time is connected later.
local function wait_masters(self)
    local deadline = fiber.clock() + CONNECT_WAIT
    while has_pending_master(self) and fiber.clock() < deadline do
        fiber.sleep(CONNECT_POLL)
    end
end

local function stop_on_shutdown()
    if not M.has_shutdown_trigger then
        box.ctl.on_shutdown(native.stop_all)
        M.has_shutdown_trigger = true
    end
end

local function apply(self, cfg)
    cfg = lcfg.check(cfg, self.current_cfg)
    local neutral = lcfg.neutral(cfg)
    neutral.hash_rules = hash.rules()
    -- What is refused must be so before anything is changed.
    native.cfg_check(neutral)
    log.info('Configuring router "%s", rawshard %s', self.name, version.VERSION)
    if cfg.box_cfg_mode ~= 'manual' then
        log.info('Calling box.cfg()')
        box.cfg(lcfg.box_options(cfg))
    else
        log.info('Box configuration was skipped, box_cfg_mode is "manual"')
    end
    if self.native_id == nil then
        stop_on_shutdown()
        self.native_id = native.router_new(self.name, neutral)
        native.prepare()
    else
        native.router_cfg(self.native_id, neutral)
    end
    -- No yields from here on: indexes of replicasets have changed their meaning.
    local old = self.replicasets
    self.replicaset_list, self.replicasets = lreplicaset.build(self.native_id, self.places, cfg, neutral, old)
    self.total_bucket_count = cfg.bucket_count
    self.current_cfg = cfg
    set_enabled(self, self.is_enabled)
    lreplicaset.outdate(old, cfg.connection_outdate_delay)
    if cfg.iproto_override ~= nil then
        override.set(M, cfg.iproto_override)
    end
    wait_masters(self)
end

-- One configuration at a time per router.
local function configure(self, cfg)
    if self.is_cfg_in_progress then
        error(lerror.vshard(lerror.code.ROUTER_CFG_IS_IN_PROGRESS, self.name), 0)
    end
    self.is_cfg_in_progress = true
    local ok, err = pcall(apply, self, cfg)
    self.is_cfg_in_progress = false
    if not ok then
        error(err, 0)
    end
end

local function new(name, cfg)
    if type(name) ~= 'string' or type(cfg) ~= 'table' then
        error('Wrong argument type. Usage: vshard.router.new(name, cfg).', 0)
    end
    if M.routers[name] ~= nil then
        return nil, lerror.vshard(lerror.code.ROUTER_ALREADY_EXISTS, name)
    end
    local router = setmetatable({
        name = name, is_enabled = true, is_cfg_in_progress = false, total_bucket_count = 0,
        replicasets = {}, replicaset_list = {}, places = {},
        -- native_id: of the engine; open_id: the same while calls are let through; current_cfg: the last good one.
    }, router_mt)
    M.routers[name] = router
    local ok, err = pcall(configure, router, cfg)
    if not ok then
        M.routers[name] = nil
        if router.native_id ~= nil then
            native.router_stop(router.native_id)
            router.native_id, router.open_id = nil, nil
        end
        error(err, 0)
    end
    return router
end

--
-- Methods and static functions.
--

local function guarded(name, func)
    return function(self, ...)
        check_self(self, name)
        if self.open_id == nil then
            refuse_closed(self)
        end
        return func(self, ...)
    end
end

for name, func in pairs({
    route = route, routeall = routeall, bucket_count = bucket_count, bucket_id = bucket_id,
    bucket_id_strcrc32 = bucket_id_strcrc32, bucket_id_mpcrc32 = bucket_id_mpcrc32, bootstrap = bootstrap, sync = sync,
    buckets_info = buckets_info, discovery_wakeup = discovery_wakeup, discovery_set = discovery_set,
    master_search_wakeup = master_search_wakeup, map_callrw = map_callrw, map_callro = map_callro,
    create_cluster_recovery_point = create_cluster_recovery_point, _buckets_group = map_call.group,
    bind = bind, endpoints = endpoints, _route_map_clear = route_map_clear, _bucket_reset = bucket_reset,
}) do
    methods[name] = guarded(name, func)
end

-- These serve a disabled router too.

function methods.info(self, opts)
    check_self(self, 'info')
    if self.native_id == nil then
        refuse_closed(self)
    end
    return monitor.info(self, opts)
end

function methods.cfg(self, cfg)
    check_self(self, 'cfg')
    configure(self, cfg)
end

function methods.enable(self)
    check_self(self, 'enable')
    set_enabled(self, true)
end

function methods.disable(self)
    check_self(self, 'disable')
    set_enabled(self, false)
end

router_mt.__index = methods

local module = {}
local static = {}

for name, method in pairs(methods) do
    static[name] = function(...)
        return method(M.static_router, ...)
    end
end

-- [bucket_id, opts, func, args, call_opts] as one msgpack.object, the argument of a function with `takes_raw_args`. In the
-- place of the bucket id there may be a map that tells the sharding key.
-- Gives what the user's function returned, one object per value, or nil and an error. Bytes stay bytes.
function static.callraw(raw_args)
    if override.is_on and override.enters_callraw(static.callraw) then
        return
    end
    if M.static_router.open_id == nil then
        refuse_closed(M.static_router)
    end
    return native_callraw(raw_args)
end

if require('msgpack').object == nil then
    function static.callraw()
        error('callraw in Lua needs msgpack.object, which Tarantool has since 2.10; on this one register the stored ' ..
              'function rawshard.callraw', 0)
    end
end

-- Only a configured static router has functions: before that, as in vshard, the fields are nil.
local function attach_static()
    static.static = M.static_router
    -- Where it can be found without running code.
    rawset(module, 'callraw', static.callraw)
    setmetatable(module, {__index = static})
end

local function make_static(router)
    native.set_static(router.native_id)
    M.static_router = router
    attach_static()
end

function module.cfg(cfg)
    local router = M.routers[STATIC_ROUTER_NAME]
    if router ~= nil then
        configure(router, cfg)
        return
    end
    make_static(new(STATIC_ROUTER_NAME, cfg))
end

-- A router of the same name beside one of vshard's own, with its configuration from now on; the static one beside the static
-- one. Gives its object.
function module.attach(vshard_router, options)
    local attached = lattach.new(vshard_router, options)
    local name = attached.source.name
    if getmetatable(attached.source) == router_mt then
        error('attach: this is a router of rawshard already', 0)
    end
    local router, before = M.routers[name], M.attached[name]
    if router ~= nil and (before == nil or before.source ~= attached.source) then
        error(lerror.vshard(lerror.code.ROUTER_ALREADY_EXISTS, name), 0)
    end
    if router ~= nil then
        configure(router, lattach.cfg_of(attached))
        attached.fiber = before.fiber
    else
        router = new(name, lattach.cfg_of(attached))
        if name == STATIC_ROUTER_NAME then
            make_static(router)
        end
    end
    set_enabled(router, attached.is_enabled)
    M.attached[name] = attached
    lattach.follow(attached, router)
    return router
end

function module.module_version()
    return M.module_version
end

-- The part of a msgpack.object where a path leads, as an object; nil where it leads nowhere. Of no router.
module.extract = native.extract
if require('msgpack').object == nil then
    function module.extract()
        error('extract needs msgpack.object, which Tarantool has since 2.10', 0)
    end
end

module.new = new
module.internal = M

-- After a reload.
endpoint.adopt(M.endpoints)
for _, router in pairs(M.routers) do
    lreplicaset.adopt(router.replicasets)
end
if M.static_router ~= nil then
    attach_static()
end
override.adopt(M)
for name, attached in pairs(M.attached) do
    lattach.follow(attached, M.routers[name])
end

return module
