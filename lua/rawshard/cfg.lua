-- The configuration table: vshard's, checked option by option as vshard does it, and its way into the neutral form that
-- the native half takes. The user's table is never modified.

local log = require('log')
local luri = require('rawshard.uri')
local lversion = require('rawshard.version')

--
-- Kinds of values. Each is a test and the words that end "<label> must be ...".
--

local function is_number(v)
    return type(v) == 'number' and v == v
end

local function is_integer(v)
    return is_number(v) and math.floor(v) == v
end

local kinds = {
    ['string'] = function(v) return type(v) == 'string' end,
    ['non-empty string'] = function(v) return type(v) == 'string' and #v > 0 end,
    ['boolean'] = function(v) return type(v) == 'boolean' end,
    ['table'] = function(v) return type(v) == 'table' end,
    ['number'] = is_number,
    ['non-negative number'] = function(v) return is_number(v) and v >= 0 end,
    ['positive number'] = function(v) return is_number(v) and v > 0 end,
    ['non-negative integer'] = function(v) return is_integer(v) and v >= 0 end,
    ['positive integer'] = function(v) return is_integer(v) and v > 0 end,
}

local function fail(fmt, ...)
    -- No position: it would point into this file, and the text is what a user can act upon.
    error(fmt:format(...), 0)
end

-- Options are lists, not maps, so that of several mistakes always the same one is reported.
-- `kind` is the name of one, a list of names, or {enum = {...}}. Required unless `more` says `optional` or `default`.
local function option(key, label, kind, more)
    local res = more or {}
    res.key, res.label = key, label
    if type(kind) == 'string' then
        res.kinds = {kind}
    elseif kind ~= nil and kind.enum ~= nil then
        res.enum = kind.enum
    else
        res.kinds, res.is_choice = kind, true
    end
    res.optional = res.optional or res.default ~= nil
    return res
end

local function check_kind(opt, value)
    if opt.enum ~= nil then
        local names = {}
        for i, name in ipairs(opt.enum) do
            if value == name then
                return
            end
            names[i] = "'" .. name .. "'"
        end
        if opt.optional then
            table.insert(names, 'nil')
        end
        fail('%s must be enum {%s}', opt.label, table.concat(names, ', '))
    end
    for _, kind in ipairs(opt.kinds) do
        if kinds[kind](value) then
            return
        end
    end
    if not opt.is_choice then
        fail('%s must be %s', opt.label, opt.kinds[1])
    end
    fail('%s must be one of the following types: %s', opt.label, table.concat(opt.kinds, ', '))
end

-- Fills in defaults, hence `values` must be our copy.
local function check_options(values, options, ctx)
    for _, opt in ipairs(options) do
        local value = values[opt.key]
        if opt.deprecated ~= nil then
            if value ~= nil then
                log.warn('Option "%s" is deprecated. %s', opt.label, opt.deprecated)
            end
        elseif value == nil then
            if not opt.optional then
                fail('%s must be specified', opt.label)
            end
            values[opt.key] = opt.default
        else
            check_kind(opt, value)
            if opt.max ~= nil and value > opt.max then
                fail('%s must not be greater than %s', opt.label, opt.max)
            end
            if opt.check ~= nil then
                opt.check(value, ctx)
            end
        end
    end
end

--
-- Replicas and replicasets.
--

local function check_uri(uri)
    local ok, err = luri.check(uri)
    if not ok then
        fail('%s', err)
    end
end

local function check_uuid(_, ctx)
    if not ctx.is_named then
        fail('uuid option can be specified only when identification_mode = "name_as_key"')
    end
end

local function check_name(_, ctx)
    if ctx.is_named then
        fail('replica.name can be specified only when identification_mode = "uuid_as_key"')
    end
end

local function check_master(is_master, ctx)
    if is_master and ctx.has_master then
        fail('Only one master is allowed per replicaset')
    end
    ctx.has_master = ctx.has_master or is_master
end

local replica_options = {
    option('uri', 'URI', {'non-empty string', 'number', 'table'}, {check = check_uri}),
    -- For the instance itself: a router connects to `uri`.
    option('listen', 'listen', {'non-empty string', 'number', 'table'}, {optional = true}),
    option('name', 'Name', 'string', {optional = true, check = check_name}),
    option('zone', 'Zone', {'string', 'number'}, {optional = true}),
    option('master', 'Master', 'boolean', {optional = true, check = check_master}),
    option('rebalancer', 'Rebalancer flag', 'boolean', {optional = true}),
    option('uuid', 'UUID', {'non-empty string'}, {optional = true, check = check_uuid}),
}

-- In the order of ids, for the same reason as above.
local function sorted_keys(map)
    local keys = {}
    for key in pairs(map) do
        table.insert(keys, key)
    end
    table.sort(keys, function(a, b)
        local ta, tb = type(a), type(b)
        if ta ~= tb then
            return ta < tb
        end
        if ta == 'number' or ta == 'string' then
            return a < b
        end
        return tostring(a) < tostring(b)
    end)
    return keys
end

local function check_replicas(replicas, ctx)
    ctx.has_master = false
    for _, id in ipairs(sorted_keys(replicas)) do
        if type(replicas[id]) ~= 'table' then
            fail('Replica must be a table')
        end
        check_options(replicas[id], replica_options, ctx)
    end
end

local replicaset_options = {
    option('weight', 'Weight', 'non-negative number', {default = 1}),
    option('lock', 'Lock', 'boolean', {optional = true}),
    option('master', 'Master search mode', {enum = {'auto'}}, {optional = true}),
    option('rebalancer', 'Rebalancer flag', 'boolean', {optional = true}),
    option('uuid', 'UUID', {'non-empty string'}, {optional = true, check = check_uuid}),
    option('replicas', 'Replicas', 'table', {check = check_replicas}),
}

local function claim(taken, key, fmt, shown)
    if taken[key] then
        fail(fmt, shown)
    end
    taken[key] = true
end

local function claim_rebalancer(ctx, id)
    if ctx.rebalancer_id ~= nil then
        fail('Found 2 rebalancer flags at %s and %s', ctx.rebalancer_id, id)
    end
    ctx.rebalancer_id = id
end

local function check_replica_uniqueness(id, replica, replicaset_id, replicaset, ctx)
    local uri = replica.uri
    -- Tables are compared by what they say, as two of them are never equal themselves.
    local key = type(uri) == 'table' and luri.safe(uri) or uri
    claim(ctx.uris, key, 'Duplicate uri %s', luri.safe(uri))
    claim(ctx.replica_ids, id, 'Duplicate id %s', id)
    if replicaset.master == 'auto' and replica.master ~= nil then
        fail('Can not specify master nodes when master search is enabled, but found master flag in replica id %s', id)
    end
    if replica.rebalancer then
        claim_rebalancer(ctx, id)
        if replicaset.rebalancer == false then
            fail("Replicaset %s can't run the rebalancer, and yet it was explicitly assigned to its instance %s",
                 replicaset_id, id)
        end
    end
    local name = replica.name
    if name ~= nil then
        ctx.names[name] = (ctx.names[name] or 0) + 1
        -- Once per name, however often it occurs.
        if ctx.names[name] == 2 then
            log.warn('Duplicate replica.name is found: %s', name)
        end
    end
end

local function check_sharding(sharding, ctx)
    ctx.uris, ctx.names = {}, {}
    ctx.replica_ids = {}
    -- UUIDs are unique over everything; names of replicasets and of replicas may be the same.
    ctx.replicaset_ids = ctx.is_named and {} or ctx.replica_ids
    local has_weight = false
    for _, id in ipairs(sorted_keys(sharding)) do
        local replicaset = sharding[id]
        claim(ctx.replicaset_ids, id, 'Duplicate id %s', id)
        if type(replicaset) ~= 'table' then
            fail('Replicaset must be a table')
        end
        if replicaset.weight == math.huge or replicaset.weight == -math.huge then
            fail('Replicaset weight can not be Inf')
        end
        if replicaset.rebalancer then
            claim_rebalancer(ctx, id)
        end
        check_options(replicaset, replicaset_options, ctx)
        for _, replica_id in ipairs(sorted_keys(replicaset.replicas)) do
            check_replica_uniqueness(replica_id, replicaset.replicas[replica_id], id, replicaset, ctx)
        end
        has_weight = has_weight or replicaset.weight > 0
    end
    if next(sharding) ~= nil and not has_weight then
        fail('At least one replicaset weight should be > 0')
    end
end

--
-- The whole.
--

local function is_zone(v)
    return type(v) == 'string' or type(v) == 'number'
end

local function check_weights(weights)
    for zone, row in pairs(weights) do
        if not is_zone(zone) then
            fail('Zone identifier must be either string or number')
        end
        if type(row) ~= 'table' then
            fail('Zone must be map of relative weights of other zones')
        end
        for other, weight in pairs(row) do
            if not is_zone(other) then
                fail('Zone identifier must be either string or number')
            end
            if type(weight) ~= 'number' or not (weight >= 0) then
                fail('Zone weight must be either nil or non-negative number')
            end
            if other == zone and weight ~= 0 then
                fail('Weight of own zone must be either nil or 0')
            end
        end
    end
end

local function check_identification_mode(mode)
    if mode == 'name_as_key' and not lversion.host_is_at_least(3, 0) then
        fail('Name identification is supported only for Tarantool >= 3.0.0')
    end
end

local function check_iproto_override(is_on)
    if is_on and not lversion.host_is_at_least(2, 11) then
        fail('IPROTO override is supported only for Tarantool >= 2.11')
    end
end

local options = {
    option('identification_mode', 'Config identification mode', {enum = {'uuid_as_key', 'name_as_key'}},
           {default = 'uuid_as_key', check = check_identification_mode}),
    option('sharding', 'Sharding', 'table', {check = check_sharding}),
    option('weights', 'Weight matrix', 'table', {optional = true, check = check_weights}),
    option('shard_index', 'Shard index', {'non-empty string', 'non-negative integer'}, {default = 'bucket_id'}),
    option('zone', 'Zone identifier', {'string', 'number'}, {optional = true}),
    option('bucket_count', 'Bucket count', 'positive integer', {default = 3000}),
    option('sync_timeout', 'Sync timeout', 'non-negative number', {default = 1}),
    option('connection_outdate_delay', 'Object outdate timeout', 'non-negative number', {optional = true}),
    option('connection_fetch_schema', 'Fetch schema', 'boolean', {default = true}),
    option('failover_ping_timeout', 'Failover ping timeout', 'positive number', {default = 5}),
    option('failover_interval', 'Failover interval', 'positive number', {default = 1}),
    option('failover_sequential_fail_count', 'Failover sequential fail count', 'positive integer', {default = 3}),
    option('failover_replica_lag_limit', 'Failover replica lag limit', 'positive number', {default = 30}),
    option('discovery_mode', 'Discovery mode', {enum = {'on', 'off', 'once'}}, {default = 'on'}),
    option('box_cfg_mode', 'Box.cfg mode', {enum = {'auto', 'manual'}}, {default = 'auto'}),

    -- For storages: one table configures both, so they are checked here too and then not looked at.
    option('rebalancer_disbalance_threshold', 'Rebalancer disbalance threshold', 'non-negative number',
           {optional = true}),
    option('rebalancer_max_receiving', 'Rebalancer max receiving bucket count', 'positive integer', {optional = true}),
    option('rebalancer_max_sending', 'Rebalancer max sending bucket count', 'positive integer',
           {optional = true, max = 15}),
    option('rebalancer_bucket_send_timeout', 'Rebalancer bucket send timeout', 'positive number', {optional = true}),
    option('rebalancer_mode', 'Rebalancer mode', {enum = {'auto', 'manual', 'off'}}, {optional = true}),
    option('sched_ref_quota', 'Scheduler storage ref quota', 'non-negative number', {optional = true}),
    option('sched_move_quota', 'Scheduler bucket move quota', 'non-negative number', {optional = true}),
    option('schema_management_mode', 'Schema management mode', {enum = {'auto', 'manual_access'}}, {optional = true}),
    option('collect_bucket_garbage_interval', 'Garbage bucket collect interval', nil,
           {deprecated = 'Has no effect anymore'}),
    option('collect_lua_garbage', 'Garbage Lua collect necessity', nil, {deprecated = 'Has no effect anymore'}),
}

-- rawshard's, which vshard has not.
local added_options = {
    option('io_threads', 'I/O thread count', 'positive integer', {default = 1, max = 64}),
    option('max_in_flight', 'Limit of calls in flight', 'positive integer', {optional = true}),
    option('max_waiting', 'Limit of waiting calls', 'positive integer', {optional = true}),
    option('max_queued_bytes', 'Limit of queued bytes', 'positive integer', {optional = true}),
    option('iproto_override', 'IPROTO override', 'boolean', {optional = true, check = check_iproto_override}),
    option('busy_poll', 'Busy poll time', 'non-negative number', {optional = true, max = 0.01}),
}

local is_added_option = {}
for _, opt in ipairs(added_options) do
    table.insert(options, opt)
    is_added_option[opt.key] = true
end

local is_own_option = {}
for _, opt in ipairs(options) do
    is_own_option[opt.key] = true
end

-- The bucket table, the meaning of an id and the thread that serves it depend on them.
local fixed_options = {'bucket_count', 'shard_index', 'io_threads'}

-- Returns a checked copy with defaults filled in. Raises a string.
local function check(cfg, old)
    if type(cfg) ~= 'table' then
        fail('Config must be map of options')
    end
    cfg = table.deepcopy(cfg)
    check_options(cfg, options, {is_named = cfg.identification_mode == 'name_as_key'})
    if old ~= nil then
        for _, key in ipairs(fixed_options) do
            if cfg[key] ~= old[key] then
                fail('Non-dynamic option %s cannot be reconfigured', key)
            end
        end
    end
    return cfg
end

-- Everything that is not ours belongs to box.cfg.
local function box_options(cfg)
    local res = {}
    for key, value in pairs(cfg) do
        if not is_own_option[key] then
            res[key] = value
        end
    end
    return res
end

--
-- The neutral form.
--

local function identifiers(id, entry, is_named)
    if is_named then
        return entry.uuid, id
    end
    return id, entry.name
end

-- The less, the nearer. The matrix has the word; without it only the own zone is near.
local function read_weight(cfg, replica_zone)
    if replica_zone == nil then
        return math.huge
    end
    local row = cfg.zone ~= nil and cfg.weights ~= nil and cfg.weights[cfg.zone] or nil
    if row ~= nil and row[replica_zone] ~= nil then
        return row[replica_zone]
    end
    return cfg.zone == replica_zone and 0 or math.huge
end

local function neutral_replica(id, replica, cfg, is_named)
    if type(id) ~= 'string' then
        fail('Replica id must be a string')
    end
    local address, err = luri.address(replica.uri)
    if address == nil then
        fail('Replica %s: %s', id, err)
    end
    local res = address
    res.id = id
    res.uuid, res.name = identifiers(id, replica, is_named)
    res.is_master = replica.master == true
    res.zone_weight = read_weight(cfg, replica.zone)
    return res
end

-- By weight; the master first among equals, then by id, so that all routers of a cluster agree.
local function is_nearer(a, b)
    if a.zone_weight ~= b.zone_weight then
        return a.zone_weight < b.zone_weight
    end
    if a.is_master ~= b.is_master then
        return a.is_master
    end
    return a.id < b.id
end

local function neutral_replicaset(id, replicaset, cfg, is_named)
    if type(id) ~= 'string' then
        fail('Replicaset id must be a string')
    end
    local res = {id = id, weight = replicaset.weight, master_auto = replicaset.master == 'auto', replicas = {}}
    res.uuid, res.name = identifiers(id, replicaset, is_named)
    for replica_id, replica in pairs(replicaset.replicas) do
        table.insert(res.replicas, neutral_replica(replica_id, replica, cfg, is_named))
    end
    table.sort(res.replicas, is_nearer)
    return res
end

-- From a checked configuration. Raises a string when an address cannot be connected to.
local function neutral(cfg)
    local is_named = cfg.identification_mode == 'name_as_key'
    local res = {
        bucket_count = cfg.bucket_count,
        io_threads = cfg.io_threads,
        discovery_mode = cfg.discovery_mode,
        name_as_key = is_named,
        failover_ping_timeout = cfg.failover_ping_timeout,
        failover_interval = cfg.failover_interval,
        failover_sequential_fail_count = cfg.failover_sequential_fail_count,
        failover_replica_lag_limit = cfg.failover_replica_lag_limit,
        limits = {
            max_in_flight = cfg.max_in_flight,
            max_waiting = cfg.max_waiting,
            max_queued_bytes = cfg.max_queued_bytes,
            busy_poll = cfg.busy_poll,
        },
        replicasets = {},
    }
    for _, id in ipairs(sorted_keys(cfg.sharding)) do
        table.insert(res.replicasets, neutral_replicaset(id, cfg.sharding[id], cfg, is_named))
    end
    return res
end

return {
    check = check,
    neutral = neutral,
    box_options = box_options,
    is_added_option = is_added_option,
}
