-- Methods and fields of replicasets and replicas beyond their calls.

local rows = require('test.helper.rows').new('objects')

local R1 = 'aaaaaaaa-0000-4000-8000-000000000001'

local function rs_of(r)
    return r.routeall()[R1]
end

local function replica_of(r)
    return rs_of(r).master
end

-- A time that is left, as whether there is some.
local function left(value, ...)
    if type(value) == 'number' then
        return value > 0, ...
    end
    return value, ...
end

rows:state('as it is')

for _, name in ipairs({
    'id', 'uuid', 'name', 'master', 'replica', 'replicas', 'priority_list', 'weight', 'bucket_count', 'is_master_auto',
    'is_outdated',
    'lock', 'etalon_bucket_count', 'callrw', 'call', 'callro', 'callbro', 'callre', 'callbre', 'connect', 'connect_master',
    'connect_all', 'connect_replica', 'wait_connected', 'wait_connected_all', 'wait_master', 'map_call', 'update_master',
    'locate_master', 'up_replica_priority', 'down_replica_priority', 'rebind_connections', 'no_such',
}) do
    rows:add('replicaset: type of ' .. name, function(r) return type(rs_of(r)[name]) end)
end
for _, name in ipairs({
    'id', 'uuid', 'name', 'uri', 'zone', 'weight', 'conn', 'net_timeout', 'down_ts',
    'backoff_ts', 'backoff_err', 'is_connected', 'check_is_connected',
    'safe_uri', 'connect', 'detach_conn', 'call', 'no_such',
}) do
    rows:add('replica: type of ' .. name, function(r) return type(replica_of(r)[name]) end)
end
for _, name in ipairs({'net_timeout', 'down_ts', 'backoff_ts', 'backoff_err', 'weight'}) do
    rows:add('replica: ' .. name, function(r) return replica_of(r)[name] end)
end

-- Neither waits.
rows:add('connect', function(r)
    local conn = rs_of(r):connect()
    return type(conn), conn:wait_connected(5), conn.state
end)
rows:add('connect_master', function(r)
    local conn = rs_of(r):connect_master()
    return type(conn), conn:wait_connected(5), conn:is_connected()
end)
rows:add('connect_all', function(r) return rs_of(r):connect_all() end)
rows:add('conn: ping', function(r) rs_of(r):wait_connected(5) return replica_of(r).conn:ping() end)
rows:add('conn: a call', function(r)
    rs_of(r):wait_connected(5)
    return replica_of(r).conn:call('vshard.storage.buckets_count', {}, {timeout = 5})
end)
for _, timeout in ipairs({{'5', 5}, {'0', 0}, {'-1', -1}}) do
    rows:add('wait_connected: ' .. timeout[1], function(r) return left(rs_of(r):wait_connected(timeout[2])) end)
    rows:add('wait_master: ' .. timeout[1], function(r)
        local master, rest = rs_of(r):wait_master(timeout[2])
        return master, type(rest)
    end)
    rows:add('wait_connected_all: ' .. timeout[1], function(r)
        return left(rs_of(r):wait_connected_all({timeout = timeout[2]}))
    end)
    rows:add('map_call: ' .. timeout[1], function(r)
        local res, err, id = rs_of(r):map_call('vshard.storage.buckets_count', {}, {timeout = timeout[2]})
        return res, type(err), id ~= nil
    end)
end
rows:add('wait_connected_all: except', function(r)
    return left(rs_of(r):wait_connected_all({timeout = 5, except = replica_of(r).id}))
end)
rows:add('map_call', function(r) return rs_of(r):map_call('vshard.storage.buckets_count', {}, {timeout = 5}) end)
rows:add('map_call: except', function(r)
    return rs_of(r):map_call('vshard.storage.buckets_count', {}, {timeout = 5, except = replica_of(r).id})
end)
rows:add('map_call: a failure', function(r)
    local res, err, id = rs_of(r):map_call('vshard.storage.buckets_discovery', {5}, {timeout = 5})
    return res, type(err), id ~= nil
end)
for _, bad in ipairs({'wait_connected', 'wait_connected_all', 'wait_master', 'map_call'}) do
    rows:add(bad .. ': no timeout', function(r) return (pcall(rs_of(r)[bad], rs_of(r))) end,
             (bad == 'wait_connected' or bad == 'wait_master') and {
        differs = 'waits of a replicaset need a timeout', vshard = 'returned true', rawshard = 'returned false',
    } or {})
end
rows:add('locate_master', function(r) return rs_of(r):locate_master() end)
for _, ids in ipairs({{'nil', nil, nil}, {'the same', 1, 1}, {'unknown', 1, 'x'}, {'another', 2, 1}}) do
    rows:add('update_master: ' .. ids[1], function(r)
        local list = rs_of(r).priority_list
        local function id_of(what) return type(what) == 'number' and list[what].id or what end
        return rs_of(r):update_master(id_of(ids[2]), id_of(ids[3])), rs_of(r).master == list[1] or rs_of(r).master == list[2]
    end)
end
rows:add('tostring', function(r) return tostring(rs_of(r)), tostring(replica_of(r)) end)
rows:add('replica:check_is_connected', function(r) return replica_of(r):check_is_connected() end)
rows:add('replica:is_connected', function(r) return replica_of(r):is_connected() end)
rows:add('replica:connect', function(r) return type(replica_of(r):connect()) end)
for _, opts in ipairs({{'nothing'}, {'{}', {}}, {'a text', {timeout = 'x'}}}) do
    rows:add('replica:call: opts ' .. opts[1], function(r)
        return (pcall(replica_of(r).call, replica_of(r), 'vshard.storage.buckets_count', {}, opts[2]))
    end)
end
for _, name in ipairs({'callrw', 'connect', 'wait_connected', 'map_call', 'update_master'}) do
    rows:add('a wrong self: ' .. name, function(r) return rs_of(r)[name]({}) end)
end
for _, name in ipairs({'is_connected', 'safe_uri', 'call', 'connect'}) do
    rows:add('replica, a wrong self: ' .. name, function(r) return replica_of(r)[name]({}) end)
end

rows:state('an outdated object', {jobs = 1})

for _, name in ipairs({'callrw', 'callro', 'connect', 'connect_master', 'connect_all', 'wait_connected', 'wait_master',
                       'map_call', 'update_master', 'locate_master', 'wait_connected_all'}) do
    rows:add(name, function(r)
        local old = rs_of(r)
        r.cfg(table.deepcopy(r.static.current_cfg))
        require('fiber').sleep(0.1)
        return old.is_outdated, old.id, old[name](old, 'vshard.storage.buckets_count', {}, {timeout = 1})
    end)
end
for _, name in ipairs({'is_connected', 'safe_uri', 'call', 'connect', 'check_is_connected', 'detach_conn'}) do
    rows:add('replica: ' .. name, function(r)
        local old = replica_of(r)
        r.cfg(table.deepcopy(r.static.current_cfg))
        require('fiber').sleep(0.1)
        return old.is_outdated, old[name](old, 'vshard.storage.buckets_count', {}, {timeout = 1})
    end)
end

return rows
