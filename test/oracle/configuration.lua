-- Configurations, right and wrong: what is complained of, in which words; what becomes of what is right.

local env = require('test.helper.env')

local rows = require('test.helper.rows').new('configuration')

local nan, inf = 0 / 0, math.huge

-- Of neither router's own: a configuration with two replicasets that nobody connects to.
local function base()
    local sharding = {}
    for i = 1, 2 do
        local replicas = {}
        for j = 1, 2 do
            replicas[('cccccccc-0000-4000-8000-%012d'):format(i * 100 + j)] = {
                uri = ('storage:secret@127.0.0.1:%d'):format(i * 10 + j), name = ('x%d%d'):format(i, j), master = j == 1,
            }
        end
        sharding[('dddddddd-0000-4000-8000-%012d'):format(i)] = {replicas = replicas}
    end
    return {sharding = sharding, box_cfg_mode = 'manual'}
end

local RS1, RS2 = 'dddddddd-0000-4000-8000-000000000001', 'dddddddd-0000-4000-8000-000000000002'
local R11, R12 = 'cccccccc-0000-4000-8000-000000000101', 'cccccccc-0000-4000-8000-000000000102'
local R21 = 'cccccccc-0000-4000-8000-000000000201'

local function named()
    local function replica(port, is_master)
        return {uri = 'storage:secret@127.0.0.1:' .. port, master = is_master}
    end
    return {
        box_cfg_mode = 'manual', identification_mode = 'name_as_key',
        sharding = {
            rs1 = {replicas = {a = replica(1, true), b = replica(2)}}, rs2 = {replicas = {c = replica(3, true), d = replica(4)}},
        },
    }
end

-- The check alone, so that nothing is connected; with what it puts in for what is not given.
local function check(cfg)
    local module = _G.config.kind == 'vshard' and 'vshard.cfg' or 'rawshard.cfg'
    local before = require('json').encode(cfg)
    local ok, res = pcall(require(module).check, cfg, nil)
    assert(require('json').encode(cfg) == before, 'the configuration was changed')
    if not ok then
        error(res, 0)
    end
    local shown = {}
    for key, value in pairs(res) do
        -- Of rawshard alone; of storages.
        if not (key == 'io_threads' or key:startswith('max_') or key:startswith('rebalancer_') or key:startswith('sched_') or
                key == 'schema_management_mode') then
            shown[key] = value
        end
    end
    return shown
end

rows:state('the check')

local values = {
    {'nil', nil}, {'null', box.NULL}, {'a text', 'x'}, {'an empty text', ''}, {'5', 5}, {'0', 0}, {'-1', -1}, {'1.5', 1.5},
    {'1e6', 1e6}, {'nan', nan}, {'inf', inf}, {'true', true}, {'false', false}, {'{}', {}}, {'{1}', {1}}, {'1LL', 1LL},
    {'a function', print}, {'on', 'on'}, {'off', 'off'}, {'once', 'once'}, {'auto', 'auto'}, {'manual', 'manual'},
    {'uuid_as_key', 'uuid_as_key'}, {'manual_access', 'manual_access'},
}
local options = {
    'sharding', 'bucket_count', 'shard_index', 'zone', 'weights', 'sync_timeout', 'connection_outdate_delay',
    'failover_ping_timeout', 'failover_interval', 'failover_sequential_fail_count', 'failover_replica_lag_limit',
    'discovery_mode', 'box_cfg_mode', 'identification_mode', 'connection_fetch_schema', 'rebalancer_disbalance_threshold',
    'rebalancer_max_receiving', 'rebalancer_max_sending', 'rebalancer_mode', 'rebalancer_bucket_send_timeout',
    'collect_lua_garbage', 'collect_bucket_garbage_interval', 'sched_ref_quota', 'sched_move_quota', 'schema_management_mode',
    'master_auto_search', 'unknown_key',
}
for _, option in ipairs(options) do
    for _, value in ipairs(values) do
        rows:add(('%s = %s'):format(option, value[1]), function()
            local cfg = base()
            cfg[option] = value[2]
            -- JSON has no functions.
            if type(value[2]) == 'function' then
                require('json').cfg({encode_invalid_as_nil = true})
            end
            return check(cfg)
        end)
    end
end
for _, option in ipairs({'replicas', 'weight', 'master', 'lock', 'rebalancer', 'uuid', 'name', 'unknown_key'}) do
    for _, value in ipairs(values) do
        rows:add(('replicaset.%s = %s'):format(option, value[1]), function()
            local cfg = base()
            cfg.sharding[RS1][option] = value[2]
            return check(cfg)
        end, option == 'replicas' and value[1] == '{1}' and {
            differs = 'a replica is a table', vshard = {'raised "attempt to index local'},
            rawshard = 'raised "Replica must be a table"',
        } or {})
    end
end
local function is_listen(value)
    return type(value) == 'string' and value ~= '' or type(value) == 'table' or type(value) == 'number' and value == value
end
local function expected_of_replica(option, value)
    local is_table = option == 'uri' and type(value) == 'table'
    if is_table and value[1] == nil and env.at_least('2.10') then
        return {differs = 'a wrong table of a URI is told', vshard = 'raised "Invalid URI"',
                rawshard = {'raised "Invalid URI: table'}}
    elseif not env.at_least('2.10') and (is_table or option == 'listen' and is_listen(value)) then
        return {differs = 'tables of URIs and listen on every host',
                vshard = {'supported at this version'},
                rawshard = {is_table and value[1] == nil and 'raised "Invalid URI: table' or 'returned {'}}
    end
    return {}
end
for _, option in ipairs({'uri', 'name', 'zone', 'master', 'rebalancer', 'uuid', 'listen', 'unknown_key'}) do
    for _, value in ipairs(values) do
        rows:add(('replica.%s = %s'):format(option, value[1]), function()
            local cfg = base()
            cfg.sharding[RS1].replicas[R12][option] = value[2]
            return check(cfg)
        end, expected_of_replica(option, value[2]))
    end
end
for _, uri in ipairs({'127.0.0.1:3301', 'localhost:3301', 'u:p@127.0.0.1:3301', 'u@127.0.0.1:3301', '3301', ':3301', '127.0.0.1',
                      'unix/:/tmp/x.sock', 'u:p@unix/:/tmp/x.sock', '[::1]:3301', 'u:p:q@h:1', 'h:99999', 'h:-1', ' ', 'a b',
                      'h:1?transport=plain', 'h:1/path', '@h:1', 'u:@h:1', 'http://h:1'}) do
    rows:add('replica.uri = ' .. uri, function()
        local cfg = base()
        cfg.sharding[RS1].replicas[R12].uri = uri
        check(cfg)
        return 'taken'
    end)
end

local no_map = {
    differs = 'Config is spelt in Latin letters', vshard = 'raised "\208\161onfig must be map of options"',
    rawshard = 'raised "Config must be map of options"',
}
local duplicate = {
    differs = 'no password is shown', vshard = {'Duplicate uri storage:secret@'}, rawshard = {'Duplicate uri storage@'},
}

-- What is wrong with more than one thing.
local mistakes = {
    {'no cfg', function() return nil end, no_map}, {'a number', function() return 5 end, no_map},
    {'{}', function() return {} end},
    {'no replicasets', function() return {sharding = {}, box_cfg_mode = 'manual'} end},
    {'two masters', function(c) c.sharding[RS1].replicas[R12].master = true end},
    {'no master', function(c) c.sharding[RS1].replicas[R11].master = nil end},
    {'auto and a master', function(c) c.sharding[RS1].master = 'auto' c.sharding[RS1].replicas[R12].master = nil end},
    {'auto and no master', function(c)
        c.sharding[RS1].master = 'auto'
        c.sharding[RS1].replicas[R12].master = nil
        c.sharding[RS1].replicas[R11].master = nil
    end},
    {'one uri twice', function(c) c.sharding[RS1].replicas[R12].uri = c.sharding[RS2].replicas[R21].uri end,
     duplicate},
    {'one id twice', function(c) c.sharding[RS1].replicas[R21] = table.deepcopy(c.sharding[RS1].replicas[R12]) end,
     duplicate},
    {'a replica has the id of a replicaset', function(c)
        c.sharding[RS1].replicas[RS2] = {uri = 'storage:secret@127.0.0.1:99'}
    end},
    {'two rebalancers', function(c)
        c.sharding[RS1].replicas[R11].rebalancer, c.sharding[RS1].replicas[R12].rebalancer = true, true
    end},
    {'a rebalancer where none may be', function(c)
        c.sharding[RS1].rebalancer, c.sharding[RS1].replicas[R12].rebalancer = false, true
    end},
    {'a replicaset that is no table', function(c) c.sharding[RS1] = 5 end},
    {'all weights zero', function(c) c.sharding[RS1].weight, c.sharding[RS2].weight = 0, 0 end},
    {'one name twice', function(c) c.sharding[RS1].replicas[R11].name = c.sharding[RS1].replicas[R12].name end},
    {'weights: a number', function(c) c.weights = {[1] = 5} end},
    {'weights: a table as a zone', function(c) c.weights = {[{}] = {}} end},
    {'weights: a table as the other zone', function(c) c.weights = {[1] = {[{}] = 1}} end},
    {'weights: negative', function(c) c.weights = {[1] = {[2] = -1}} end},
    {'weights: a text', function(c) c.weights = {[1] = {[2] = 'x'}} end},
    {'weights: of the own zone', function(c) c.weights = {[1] = {[1] = 1}} end},
    {'weights: 0 of the own zone', function(c) c.weights = {[1] = {[1] = 0, [2] = 5}, a = {b = 0.5}} c.zone = 1 end},
    {'name_as_key', function() return named() end},
    {'name_as_key and a name', function() local c = named() c.sharding.rs1.replicas.a.name = 'a' return c end},
    {'name_as_key and uuids', function()
        local c = named()
        c.sharding.rs1.uuid, c.sharding.rs1.replicas.a.uuid = RS1, R11
        return c
    end},
    {'name_as_key: a replica has the name of a replicaset', function()
        local c = named()
        c.sharding.rs1.replicas.rs2 = {uri = 'storage:secret@127.0.0.1:99'}
        return c
    end},
    {'name_as_key: a name twice', function()
        local c = named()
        c.sharding.rs1.replicas.c = {uri = 'storage:secret@127.0.0.1:99'}
        return c
    end},
}
for _, mistake in ipairs(mistakes) do
    -- Two mistakes where there are no names: vshard tells of either.
    local is_ambiguous = not env.at_least('3.0') and
        (mistake[1] == 'name_as_key and a name' or mistake[1]:endswith('a name twice'))
    local add = is_ambiguous and function() end or rows.add
    add(rows, mistake[1], function()
        local cfg = base()
        local other = mistake[2](cfg)
        if debug.getinfo(mistake[2]).nparams == 0 then
            cfg = other
        end
        return check(cfg)
    end, table.copy(mistake[3] or {}))
end

-- By way of the API. One at a time: a router is configured by one fiber.
rows:state('the API', {jobs = 1})

for _, bad in ipairs({{'nothing'}, {'a number', 5}, {'{}', {}}, {'no such mode', {sharding = {}, discovery_mode = 'x'}},
                      {'null', box.NULL}, {'a text', 'x'}}) do
    local opts = type(bad[2]) ~= 'table' and no_map or {}
    rows:add('cfg: ' .. bad[1], function(r) return r.cfg(bad[2]) end, table.copy(opts))
    rows:add('static:cfg: ' .. bad[1], function(r) return r.static:cfg(bad[2]) end, table.copy(opts))
    rows:add('new: ' .. bad[1], function(r) return r.new('bad', bad[2]) end)
end
rows:add('new: again after a failure', function(r)
    pcall(r.new, 'bad', {})
    return r.new('bad', {})
end)
rows:add('new: no name', function(r) return r.new(nil, base()) end)
rows:add('new: a number for a name', function(r) return r.new(5, base()) end)
rows:add('new: nothing', function(r) return r.new() end)
rows:add('new: the name of the static one', function(r) return r.new('_static_router', base()) end)
rows:add('cfg: another bucket_count', function(r)
    local cfg = table.deepcopy(r.static.current_cfg)
    cfg.bucket_count = 31
    return r.cfg(cfg)
end)
rows:add('cfg: another shard_index', function(r)
    local cfg = table.deepcopy(r.static.current_cfg)
    cfg.shard_index = 'x'
    return r.cfg(cfg)
end)
rows:add('cfg: a key that box.cfg does not know', function(r)
    local cfg = table.deepcopy(r.static.current_cfg)
    cfg.no_such_option = 5
    return r.cfg(cfg)
end)
rows:add('cfg: such a key, manual', function(r)
    local cfg = table.deepcopy(r.static.current_cfg)
    cfg.no_such_option, cfg.box_cfg_mode = 5, 'manual'
    return r.cfg(cfg)
end)
rows:add('cfg: the same again', function(r)
    local before = r.route(1)
    local res = {r.cfg(table.deepcopy(r.static.current_cfg))}
    return res, before == r.route(1), r.callrw(1, 'echo', {5}, {timeout = 5}), before.is_outdated
end)
rows:add('cfg: an old object', function(r)
    local before = r.route(1)
    r.cfg(table.deepcopy(r.static.current_cfg))
    require('fiber').sleep(0.1)
    return tostring(before):match('^[^"]*'), before:callrw('vshard.storage.buckets_count', {}, {timeout = 1})
end)
rows:add('cfg: an old object, calls', function(r)
    local before = r.route(1)
    r.cfg(table.deepcopy(r.static.current_cfg))
    require('fiber').sleep(0.1)
    local res = {}
    for _, name in ipairs({'callro', 'callre', 'callbro', 'callbre', 'call'}) do
        res[name] = {before[name](before, 'vshard.storage.buckets_count', {}, {timeout = 1})}
    end
    return res
end)
rows:add('cfg: an old object for a while', function(r)
    local cfg = table.deepcopy(r.static.current_cfg)
    cfg.connection_outdate_delay = 0.3
    r.cfg(cfg)
    local before = r.route(1)
    cfg.connection_outdate_delay = nil
    r.cfg(table.deepcopy(cfg))
    return before:callrw('vshard.storage.buckets_count', {}, {timeout = 1})
end)
rows:add('cfg: two at once', function(r)
    local fiber = require('fiber')
    local results = {}
    local fibers = {}
    for i = 1, 3 do
        fibers[i] = fiber.new(function()
            results[i] = {pcall(r.cfg, table.deepcopy(r.static.current_cfg))}
        end)
        fibers[i]:set_joinable(true)
    end
    for i = 1, 3 do
        fibers[i]:join()
    end
    local won, lost = 0, nil
    for i = 1, 3 do
        if results[i][1] then
            won = won + 1
        else
            lost = results[i][2]
        end
    end
    return won, lost
end)
rows:add('cfg: fewer replicasets and back', function(r)
    local whole = table.deepcopy(r.static.current_cfg)
    local part = table.deepcopy(whole)
    local gone = r.route(30).id
    assert(r.route(1).id ~= gone)
    part.sharding[gone] = nil
    r.cfg(part)
    local res = {r.callrw(1, 'echo', {1}, {timeout = 1}), {r.callrw(30, 'echo', {1}, {timeout = 0.3})}, {r.route(30)},
                 r.routeall()[gone] ~= nil}
    r.cfg(whole)
    table.insert(res, r.callrw(30, 'echo', {1}, {timeout = 2}))
    return res
end)
rows:add('a second router', function(r)
    local cfg = table.deepcopy(r.static.current_cfg)
    cfg.discovery_mode = 'off'
    local second = r.new('second', cfg)
    local again = {r.new('second', cfg)}
    return second.name, second:callrw(1, 'echo', {1}, {timeout = 5}), second:bucket_count(), again,
        r.internal.routers.second == second, type(second.cfg), second:cfg(cfg)
end)
rows:add('a second router, disabled', function(r)
    local cfg = table.deepcopy(r.static.current_cfg)
    local third = r.new('third', cfg)
    third:disable()
    local res = {{pcall(third.callrw, third, 1, 'echo', {1})}, third:info().is_enabled, r.info().is_enabled,
                 r.callrw(1, 'echo', {2}, {timeout = 5})}
    third:enable()
    table.insert(res, third:callrw(1, 'echo', {3}, {timeout = 5}))
    return res
end)
-- The static router is disabled, and each function is tried.
for _, name in ipairs({
    'call', 'callrw', 'callro', 'callre', 'callbro', 'callbre', 'map_callrw', 'route', 'routeall', 'bucket_id',
    'bucket_id_strcrc32', 'bucket_id_mpcrc32', 'bucket_count', 'sync', 'bootstrap', 'buckets_info', 'discovery_wakeup',
    'discovery_set', 'master_search_wakeup', 'create_cluster_recovery_point', '_route_map_clear', '_bucket_reset',
    '_buckets_group',
}) do
    rows:add('disabled: ' .. name, function(r)
        r.disable()
        local res = {pcall(r[name], 1)}
        r.enable()
        return res
    end)
end
rows:add('disabled: info', function(r)
    r.disable()
    local is_enabled = r.info().is_enabled
    local field = r.static.is_enabled
    r.enable()
    return is_enabled, field, r.info().is_enabled, r.static.is_enabled
end)
rows:add('disabled twice, enabled twice', function(r)
    return r.disable(), r.disable(), r.enable(), r.enable(), r.callrw(1, 'echo', {1}, {timeout = 5})
end)
rows:add('disabled: a call that is under way', function(r)
    local fiber = require('fiber')
    local res
    local f = fiber.new(function() res = {r.callrw(1, 'sleep', {0.2, 7}, {timeout = 5})} end)
    f:set_joinable(true)
    fiber.sleep(0.05)
    r.disable()
    f:join()
    r.enable()
    return res
end)

return rows
