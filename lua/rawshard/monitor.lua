-- What a router tells about itself, in the shape of vshard's info(), with rawshard's own counters beside it.

local lerror = require('rawshard.error')
local luri = require('rawshard.uri')
local native = require('rawshard.native')

local GREEN, YELLOW, ORANGE, RED = 0, 1, 2, 3

local NETWORK_TIMEOUT = 0.5

local function raise_status(report, status)
    report.status = math.max(report.status, status)
end

local function add_alert(report, status, code, ...)
    table.insert(report.alerts, lerror.alert(code, ...))
    raise_status(report, status)
end

-- `replica` may be nil: there is none.
local function instance_report(replica, state)
    if replica == nil then
        return {status = 'missing'}
    end
    return {
        uri = luri.safe(replica.uri),
        uuid = replica.uuid,
        name = replica.id == replica.name and replica.name or nil,
        network_timeout = NETWORK_TIMEOUT,
        status = state.connected and 'available' or 'unreachable',
    }
end

-- Position of the first connected instance by priority.
local function nearest(state)
    for i, instance in ipairs(state.instances) do
        if instance.connected then
            return i
        end
    end
    return nil
end

-- Every instance with its connection: vshard has no such list.
local function connections_report(replicaset, state)
    local res = {}
    for i, replica in ipairs(replicaset.priority_list) do
        local instance = state.instances[i]
        res[replica.id] = {
            uri = luri.safe(replica.uri), state = instance.state, is_connected = instance.connected,
            last_error = instance.last_error, in_flight = instance.in_flight, reconnects = instance.reconnects,
            health_status = instance.health, replication_status = instance.replication,
        }
    end
    return res
end

local function availability(master_is_connected, nearest_is_connected)
    if master_is_connected then
        return 'available_rw'
    end
    return nearest_is_connected and 'available_ro' or 'unreachable'
end

-- As vshard has them: what nobody searches for has an empty record.
local function services_report(replicaset, services, index)
    local failover = services.failover[index] or {}
    for i, replica in ipairs(replicaset.priority_list) do
        failover.replicas = failover.replicas or {}
        failover.replicas[replica.id] = services.pings[index][i]
    end
    return {failover = failover, master_search = services.master_search[index] or {}}
end

local function add_replicaset(report, replicaset, state, known)
    local code, id = lerror.code, replicaset.id
    local master_at, nearest_at = state.master, nearest(state)
    local master = instance_report(replicaset.priority_list[master_at], state.instances[master_at])
    local master_is_connected = master.status == 'available'
    if master.status == 'missing' then
        add_alert(report, ORANGE, code.MISSING_MASTER, id)
    elseif not master_is_connected then
        add_alert(report, ORANGE, code.UNREACHABLE_MASTER, id, 'disconnected')
    end

    -- One table when they are one instance, as vshard has it.
    local replica = master
    if nearest_at ~= master_at then
        replica = instance_report(replicaset.priority_list[nearest_at], state.instances[nearest_at])
    end
    if nearest_at ~= 1 then
        add_alert(report, YELLOW, code.SUBOPTIMAL_REPLICA, id)
    end
    if nearest_at == nil and not master_is_connected then
        add_alert(report, RED, code.UNREACHABLE_REPLICASET, id)
    end

    local class = availability(master_is_connected, nearest_at ~= nil)
    report.bucket[class] = report.bucket[class] + known
    report.replicasets[id] = {
        uuid = replicaset.uuid,
        name = replicaset.name,
        master = master,
        replica = replica,
        bucket = {[class] = known},
        connections = connections_report(replicaset, state),
    }
end

-- `beyond`: the highest bucket that a storage has, where the router's configuration knows fewer.
local function add_unknown(report, router, known, beyond)
    local code, total = lerror.code, router.total_bucket_count
    report.bucket.unknown = total - known
    if known < total then
        add_alert(report, YELLOW, code.UNKNOWN_BUCKETS, total - known)
    end
    if beyond ~= nil then
        report.bucket.unknown = '???'
        add_alert(report, RED, code.INVALID_CFG, ("probably router's cfg.bucket_count is different from storages' " ..
            'one, difference is %d'):format(beyond - total))
    end
end

local function info(router, opts)
    local with_services = opts ~= nil and opts.with_services and true or false
    local state = native.info(router.native_id, with_services)
    local report = {
        replicasets = {},
        bucket = {available_ro = 0, available_rw = 0, unreachable = 0, unknown = 0},
        alerts = {},
        status = GREEN,
        identification_mode = router.current_cfg.identification_mode,
        is_enabled = router.is_enabled,
        slab = state.slab,
        waiters = state.waiters,
        iproto_override = state.iproto_override,
        engines = state.engines,
    }
    for i, replicaset in ipairs(router.replicaset_list) do
        add_replicaset(report, replicaset, state.replicasets[i], state.buckets[i] or 0)
    end
    add_unknown(report, router, state.known, state.bucket_beyond)
    if with_services then
        report.services = {discovery = state.services.discovery}
        for i, replicaset in ipairs(router.replicaset_list) do
            report.replicasets[replicaset.id].services = services_report(replicaset, state.services, i)
        end
    end
    return report
end

-- For the ids offset + 1 ... offset + limit, as far as they exist.
local function buckets_info(router, offset, limit)
    local state = native.info(router.native_id)
    local owners = {}
    for i, replicaset in ipairs(router.replicaset_list) do
        local rs_state = state.replicasets[i]
        local master = rs_state.instances[rs_state.master]
        owners[i] = {
            uuid = replicaset.uuid,
            name = replicaset.name,
            status = availability(master ~= nil and master.connected, nearest(rs_state) ~= nil),
        }
    end
    local res = {}
    for id = math.max(1, offset + 1), math.min(offset + limit, router.total_bucket_count) do
        local owner = id % 1 == 0 and owners[native.bucket_get(router.native_id, id)] or nil
        res[id] = owner ~= nil and {uuid = owner.uuid, name = owner.name, status = owner.status}
            or {status = 'unknown'}
    end
    return res
end

return {
    info = info,
    services_report = services_report,
    buckets_info = buckets_info,
}
