-- What a router knows and tells of the cluster: buckets of keys, routes, info, and what it does with the whole of it.

local env = require('test.helper.env')
local ffi = require('ffi')

local rows = require('test.helper.rows').new('cluster')

local nan, inf = 0 / 0, math.huge

rows:state('as it is')

-- Buckets of keys.

local keys = {
    {'nil', nil}, {'null', box.NULL}, {'false', false}, {'true', true}, {'empty', ''}, {'nan', nan}, {'inf', inf}, {'-inf', -inf},
    {'{}', {}}, {'{1}', {1}}, {'{1, 2}', {1, 2}}, {"{'a', 1}", {'a', 1}}, {'{nil, 2}', {nil, 2}}, {'{null, 2}', {box.NULL, 2}},
    {'{1, nil, 3}', {1, nil, 3}}, {'a map', {a = 1}}, {'nested', {{1}, {2, {3}}}}, {'{true, false}', {true, false}},
    {'a function', print}, {'a tuple', box.tuple.new({1, 'a'})}, {'bytes', '\0\1\xff'}, {'utf8', 'ключ'},
    {'int8', ffi.new('int8_t', -5)}, {'uint8', ffi.new('uint8_t', 200)}, {'int16', ffi.new('int16_t', -300)},
    {'int32', ffi.new('int32_t', 70000)}, {'uint32', ffi.new('uint32_t', 4000000000)}, {'int64', -5LL}, {'uint64', 5ULL},
    {'int64 max', 9223372036854775807LL}, {'uint64 max', 18446744073709551615ULL}, {'double', ffi.new('double', 1.5)},
    {'float', ffi.new('float', 1.5)}, {'bool', ffi.new('bool', true)}, {'decimal', require('decimal').new('1.50')},
    {'decimal 1', require('decimal').new(1)}, {'uuid', require('uuid').fromstr('c2d9dd2f-2f2b-4d2a-8a0b-000000000001')},
    {'{decimal}', {require('decimal').new('7.1')}}, {'{uuid, 1LL}',
    {require('uuid').fromstr('c2d9dd2f-2f2b-4d2a-8a0b-000000000001'), 1LL}},
    {'2^53', 2 ^ 53}, {'2^53 + 2', 2 ^ 53 + 2}, {'2^63', 2 ^ 63}, {'1e300', 1e300}, {'1.5', 1.5}, {'0.1', 0.1},
    {'-0', -0.0}, {'1e15', 1e15}, {'1e14', 1e14}, {'123456789012345', 123456789012345}, {'1/3', 1 / 3},
}
if pcall(require, 'datetime') then
    table.insert(keys, {'datetime', require('datetime').new({year = 2024, tz = 'UTC'})})
end
if require('msgpack').object ~= nil then
    table.insert(keys, {'an object of 5', require('msgpack').object(5)})
    table.insert(keys, {'an object of a list', require('msgpack').object({1, 'a'})})
end
for i = -3, 300, 7 do
    table.insert(keys, {'number ' .. i, i})
    table.insert(keys, {'text ' .. i, tostring(i)})
end
-- Beyond 2^64 older hosts encode one number now so, now otherwise.
for i = 0, env.at_least('2.10') and 66 or 63 do
    table.insert(keys, {'2^' .. i .. ' - 1', 2 ^ i - 1})
    table.insert(keys, {'-2^' .. i, -2 ^ i})
    table.insert(keys, {'text of ' .. i * i, ('k'):rep(i * i)})
end
for _, name in ipairs({'bucket_id', 'bucket_id_strcrc32', 'bucket_id_mpcrc32'}) do
    for _, key in ipairs(keys) do
        local is_object = key[1]:startswith('an object')
        -- The text of some values is an address in memory.
        local text = type(key[2]) == 'table' and table.concat({pcall(tostring, key[2][1])}, '', 2) or tostring(key[2])
        if name == 'bucket_id_mpcrc32' or is_object or not text:find('0x%x') then
            rows:add(('%s: %s'):format(name, key[1]), function(r)
                if is_object then
                    return (r[name](key[2]) == r[name](key[2]:decode()))
                end
                return r[name](key[2])
            end, is_object and {
                differs = 'a key may be an object', rawshard = 'returned true',
                -- The text of an object is its address.
                vshard = name == 'bucket_id_mpcrc32' and {'raised '} or {'returned '},
            } or {})
        end
    end
    rows:add(name .. ': many at once', function(r)
        local sum = 0
        for i = 1, 5000 do
            sum = (sum * 31 + r[name](i * 7919) + r[name]('key' .. i)) % 2 ^ 40
        end
        return sum
    end)
end
rows:add('bucket_count', function(r) return r.bucket_count() end)

-- Routes.

for _, id in ipairs({1, 15, 16, 30}) do
    rows:add('route ' .. id, function(r)
        local rs = r.route(id)
        return rs, rs.id, rs.uuid, rs.name, rs.master, rs.weight, rs.is_outdated, rs.is_master_auto, type(rs.replicas),
            #rs.priority_list, type(rs.bucket_count)
    end)
    rows:add('its replicas ' .. id, function(r)
        local res = {}
        for key, replica in pairs(r.route(id).replicas) do
            res[key] = {replica.id, replica.uuid, replica.name, replica.uri, replica.zone, replica.weight, tostring(replica),
                        replica:is_connected(), replica:safe_uri()}
        end
        return res
    end)
    rows:add('the same object each time ' .. id, function(r) return r.route(id) == r.route(id) end)
end
rows:add('route 31', function(r) return r.route(31) end)
rows:add('route 0', function(r) return r.route(0) end)
rows:add('routeall', function(r) return r.routeall() end)
rows:add('routeall is the live map', function(r) return r.routeall() == r.routeall(), r.routeall() == r.static.replicasets end)
rows:add('routeall has what route gives', function(r) return r.routeall()[r.route(1).id] == r.route(1) end)
for _, bad in ipairs({{'a wrong self', {}}, {'nothing'}}) do
    for _, name in ipairs({'callrw', 'callro', 'callbre'}) do
        rows:add(('replicaset.%s of %s'):format(name, bad[1]), function(r)
            local ok = pcall(r.route(1)[name], bad[2], 'echo', {1})
            return ok
        end)
    end
end

-- Info.

local function all_known(r)
    for id = 1, 30 do
        assert(r.route(id))
    end
    -- vshard chooses its replicas by and by.
    local fiber = require('fiber')
    local deadline = fiber.clock() + 10
    while #r.info().alerts > 0 and fiber.clock() < deadline do
        fiber.sleep(0.01)
    end
end

-- rawshard tells more than vshard does.
local function less(info)
    info.slab, info.waiters, info.engines = nil, nil, nil
    for _, rs in pairs(info.replicasets) do
        rs.connections = nil
    end
    return info
end

rows:add('info', function(r)
    all_known(r)
    local info = less(r.info())
    for _, rs in pairs(info.replicasets) do
        -- Of equal ones either may be the nearest.
        rs.replica.uri, rs.replica.uuid = type(rs.replica.uri), type(rs.replica.uuid)
        rs.master.uri, rs.master.uuid = type(rs.master.uri), type(rs.master.uuid)
    end
    return info
end)
rows:add('info: the master is one table with the replica if it is one', function(r)
    all_known(r)
    local res = {}
    for id, rs in pairs(r.info().replicasets) do
        res[id] = (rs.master == rs.replica) == (rs.master.uuid == rs.replica.uuid)
    end
    return res
end)
rows:add('info: no password', function(r) return require('json').encode(r.info()):find('storage:storage', 1, true) end)
for _, opts in ipairs({{'nil', nil}, {'{}', {}}, {'false', {with_services = false}}, {'5', {with_services = 5}}}) do
    rows:add('info: services: ' .. opts[1], function(r)
        local info = r.info(opts[2])
        return type(info.services)
    end)
end

-- buckets_info.

for _, range in ipairs({{}, {0}, {0, 3}, {28}, {28, 10}, {13, 4}, {30}, {31}, {100, 5}, {-5, 7}, {-5}, {0, 0}, {5, -1}, {nil, 2},
                        {1.5, 2}, {'1'}, {1, '2'}, {true}, {box.NULL, 2}, {0, inf}, {0, 1e9}, {1LL}, {{}, 1}}) do
    rows:add(('buckets_info(%s, %s)'):format(range[1], range[2]), function(r)
        all_known(r)
        return r.buckets_info(range[1], range[2])
    end)
end

-- sync, bootstrap, discovery, masters.

for _, timeout in ipairs({{'nothing'}, {'5', 5}, {'null', box.NULL}, {'a text', '5'}, {'true', true}, {'5LL', 5LL}, {'{}', {}},
                          {'-1', -1}, {'inf', inf}}) do
    rows:add('sync: ' .. timeout[1], function(r) return r.sync(timeout[2]) end)
end
for _, opts in ipairs({{'nothing'}, {'null', box.NULL}, {'false', false}, {'5', 5}, {'a text', 'x'}, {'true', true}, {'{}', {}},
                       {'if_not_bootstrapped', {if_not_bootstrapped = true}},
                       {'if_not_bootstrapped false', {if_not_bootstrapped = false}},
                       {'if_not_bootstrapped null', {if_not_bootstrapped = box.NULL}},
                       {'timeout', {timeout = 5, if_not_bootstrapped = true}}, {'unknown key', {what = 1}}}) do
    rows:add('bootstrap: ' .. opts[1], function(r) return r.bootstrap(opts[2]) end, opts[2] == false and {
        differs = 'bootstrap(false) has no options', vshard = 'raised "assertion failed!"', rawshard = {'name="NON_EMPTY"'},
    } or {})
end
rows:add('discovery_wakeup', function(r) return r.discovery_wakeup() end)
rows:add('master_search_wakeup', function(r) return r.master_search_wakeup() end)
rows:add('discovery_set off', function(r) return r.discovery_set('off') end)
for _, label in ipairs({{'nothing'}, {'5', 5}, {'null', box.NULL}, {'{}', {}}}) do
    rows:add('create_cluster_recovery_point: ' .. label[1], function(r) return r.create_cluster_recovery_point(label[2]) end)
end

-- The map of routes, one at a time.
rows:state('routes', {jobs = 1})

local function known(r)
    return 30 - r.info().bucket.unknown
end

rows:add('_route_map_clear', function(r)
    all_known(r)
    local before = known(r)
    local res = {r._route_map_clear()}
    local counts = {}
    for id, rs in pairs(r.routeall()) do
        counts[id] = rs.bucket_count
    end
    return before, res, known(r), counts, r.info().status, r.info().alerts
end)
rows:add('buckets_info of nothing known', function(r) return r.buckets_info(0, 2) end)
rows:add('route finds one', function(r) return r.route(3), known(r), r.route(3).bucket_count end)
rows:add('a call finds one', function(r, key) return r.callrw(4, 'count', {key}, {timeout = 5}), known(r) end)
rows:add('a read finds one', function(r, key)
    local res, err = r.callro(5, 'count', {key}, {timeout = 5})
    return res, err, known(r)
end)
rows:add('_buckets_group finds some', function(r)
    local groups = r._buckets_group({1, 2, 16, 30, 2}, 5)
    for _, ids in pairs(groups) do
        table.sort(ids)
    end
    return groups, known(r)
end)
for _, ids in ipairs({{}, {0}, {31}, {'1'}, {1LL}, {true}, {1.5}, {1, 'x'}}) do
    rows:add('_buckets_group: ' .. (ids[1] and tostring(ids[1]) .. tostring(ids[2]) or 'none'), function(r)
        return r._buckets_group(ids, 1)
    end, type(ids[1]) == 'number' and ids[1] % 1 ~= 0 and {
        differs = 'route answers by itself for an id that cannot be', vshard = {'returned nil, err{', 'code=18,'},
        rawshard = {'returned nil, err{', 'name="NO_ROUTE_TO_BUCKET"'},
    } or {})
end
rows:add('_buckets_group: no time', function(r) return r._buckets_group({1}, -1) end)
rows:add('_bucket_reset', function(r)
    all_known(r)
    local res = {r._bucket_reset(7)}
    return res, known(r), r.buckets_info(6, 1), r.route(7), known(r)
end)
rows:add('_bucket_reset of what is not known', function(r)
    r._bucket_reset(7)
    return r._bucket_reset(7), r._bucket_reset(31), r._bucket_reset(0), known(r)
end)
rows:add('discovery finds all', function(r)
    local fiber = require('fiber')
    r._route_map_clear()
    local set = {r.discovery_set('on')}
    local deadline = fiber.clock() + 5
    while known(r) < 30 and fiber.clock() < deadline do
        r.discovery_wakeup()
        fiber.sleep(0.01)
    end
    local res = known(r)
    r.discovery_set('off')
    return set, res
end)
rows:add('discovery once', function(r)
    local fiber = require('fiber')
    r._route_map_clear()
    r.discovery_set('once')
    local deadline = fiber.clock() + 5
    while known(r) < 30 and fiber.clock() < deadline do
        fiber.sleep(0.01)
    end
    local res = known(r)
    r.discovery_set('off')
    return res
end)
rows:add('no discovery', function(r)
    r._route_map_clear()
    r.discovery_wakeup()
    require('fiber').sleep(0.1)
    return known(r)
end)
for _, mode in ipairs({{'nothing'}, {'5', 5}, {'a text', 'x'}, {'null', box.NULL}}) do
    rows:add('discovery_set: ' .. mode[1], function(r)
        if _G.config.kind == 'vshard' then
            -- Its fiber would be started again and again.
            return 'is not tried'
        end
        return r.discovery_set(mode[2])
    end, {
        differs = 'discovery_set refuses unknown modes', vshard = 'returned "is not tried"',
        rawshard = [[raised "Usage: router.discovery_set('on' | 'off' | 'once')"]],
    })
end
rows:add('all known again', function(r) all_known(r) return known(r) end)

return rows
