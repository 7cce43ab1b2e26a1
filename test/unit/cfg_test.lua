#!/usr/bin/env tarantool
-- Configuration: what is accepted, what is refused and with which words, and the neutral form.

package.path = 'lua/?.lua;lua/?/init.lua;' .. package.path

local json = require('json')
local tap = require('tap')
local lcfg = require('rawshard.cfg')
local luri = require('rawshard.uri')
local lversion = require('rawshard.version')

local test = tap.test('cfg')
test:plan(12)

-- A fresh configuration each time; `patch` gets it for changes.
local function config(patch)
    local cfg = {
        sharding = {
            rs1 = {replicas = {
                a = {uri = 'storage:secret@127.0.0.1:3301', name = 'box_a', master = true},
                b = {uri = 'storage:secret@127.0.0.1:3302', name = 'box_b'},
            }},
            rs2 = {weight = 2, replicas = {
                c = {uri = 'storage:secret@127.0.0.1:3303', master = true},
            }},
        },
    }
    if patch ~= nil then
        patch(cfg)
    end
    return cfg
end

local function refusal(patch, old)
    local ok, err = pcall(lcfg.check, config(patch), old)
    return not ok and err or 'accepted'
end

local function show(value)
    local ok, text = pcall(json.encode, value)
    return ok and text or tostring(value)
end

-- Cases are {key, value, expected refusal}.
local function check_refusals(t, cases, put)
    t:plan(#cases)
    for _, case in ipairs(cases) do
        local key, value, expected = case[1], case[2], case[3]
        local got = refusal(function(cfg) put(cfg, key, value) end)
        t:is(got, expected, ('%s = %s'):format(key, show(value)))
    end
end

test:test('defaults', function(t)
    t:plan(10)
    local cfg = lcfg.check(config())
    t:is(cfg.bucket_count, 3000, 'bucket_count')
    t:is(cfg.shard_index, 'bucket_id', 'shard_index')
    t:is(cfg.sync_timeout, 1, 'sync_timeout')
    t:is(cfg.discovery_mode, 'on', 'discovery_mode')
    t:is(cfg.box_cfg_mode, 'auto', 'box_cfg_mode')
    t:is(cfg.identification_mode, 'uuid_as_key', 'identification_mode')
    t:is(cfg.failover_ping_timeout, 5, 'failover_ping_timeout')
    t:is(cfg.io_threads, 1, 'io_threads')
    t:is(cfg.sharding.rs1.weight, 1, 'weight')
    t:is(cfg.connection_outdate_delay, nil, 'connection_outdate_delay has none')
end)

test:test('the table of the user stays as it was', function(t)
    t:plan(2)
    local cfg, copy = config(), config()
    lcfg.neutral(lcfg.check(cfg))
    t:is_deeply(cfg, copy, 'after a success')
    cfg.bucket_count, copy.bucket_count = -1, -1
    pcall(lcfg.check, cfg)
    t:is_deeply(cfg, copy, 'after a refusal')
end)

test:test('top level', function(t)
    local nan = 0 / 0
    check_refusals(t, {
        {'sharding', nil, 'Sharding must be specified'},
        {'sharding', 5, 'Sharding must be table'},
        {'bucket_count', 0, 'Bucket count must be positive integer'},
        {'bucket_count', 1.5, 'Bucket count must be positive integer'},
        {'bucket_count', nan, 'Bucket count must be positive integer'},
        {'bucket_count', '5', 'Bucket count must be positive integer'},
        {'shard_index', '', 'Shard index must be one of the following types: non-empty string, non-negative integer'},
        {'zone', {}, 'Zone identifier must be one of the following types: string, number'},
        {'weights', 5, 'Weight matrix must be table'},
        {'weights', {[{}] = {}}, 'Zone identifier must be either string or number'},
        {'weights', {z1 = 1}, 'Zone must be map of relative weights of other zones'},
        {'weights', {z1 = {z2 = -1}}, 'Zone weight must be either nil or non-negative number'},
        {'weights', {z1 = {z1 = 1}}, 'Weight of own zone must be either nil or 0'},
        {'sync_timeout', -1, 'Sync timeout must be non-negative number'},
        {'connection_outdate_delay', -1, 'Object outdate timeout must be non-negative number'},
        {'connection_fetch_schema', 'no', 'Fetch schema must be boolean'},
        {'failover_ping_timeout', 0, 'Failover ping timeout must be positive number'},
        {'failover_interval', 0, 'Failover interval must be positive number'},
        {'failover_sequential_fail_count', 0, 'Failover sequential fail count must be positive integer'},
        {'failover_replica_lag_limit', 0, 'Failover replica lag limit must be positive number'},
        {'discovery_mode', 'maybe', "Discovery mode must be enum {'on', 'off', 'once', nil}"},
        {'box_cfg_mode', 'x', "Box.cfg mode must be enum {'auto', 'manual', nil}"},
        {'schema_management_mode', 'x', "Schema management mode must be enum {'auto', 'manual_access', nil}"},
        {'identification_mode', 'x',
         "Config identification mode must be enum {'uuid_as_key', 'name_as_key', nil}"},
        {'rebalancer_mode', 'x', "Rebalancer mode must be enum {'auto', 'manual', 'off', nil}"},
        {'rebalancer_max_sending', 16, 'Rebalancer max sending bucket count must not be greater than 15'},
        {'rebalancer_max_sending', 15, 'accepted'},
        {'sched_ref_quota', -1, 'Scheduler storage ref quota must be non-negative number'},
        {'collect_lua_garbage', true, 'accepted'},
        {'collect_bucket_garbage_interval', 'whatever', 'accepted'},
        {'io_threads', 0, 'I/O thread count must be positive integer'},
        {'io_threads', 1e6, 'I/O thread count must not be greater than 64'},
        {'max_in_flight', 0, 'Limit of calls in flight must be positive integer'},
        {'busy_poll', -1, 'Busy poll time must be non-negative number'},
        {'busy_poll', 1, 'Busy poll time must not be greater than 0.01'},
        {'busy_poll', 0, 'accepted'},
        {'iproto_override', 1, 'IPROTO override must be boolean'},
        {'iproto_override', false, 'accepted'},
        {'some_box_option', 5, 'accepted'},
        {'sharding', {}, 'accepted'},
    }, function(cfg, key, value) cfg[key] = value end)
end)

test:test('replicasets', function(t)
    check_refusals(t, {
        {'rs2', 5, 'Replicaset must be a table'},
        {'rs2', {}, 'Replicas must be specified'},
        {'rs2', {replicas = 5}, 'Replicas must be table'},
        {'rs2', {replicas = {}, weight = -1}, 'Weight must be non-negative number'},
        {'rs2', {replicas = {}, weight = math.huge}, 'Replicaset weight can not be Inf'},
        {'rs2', {replicas = {}, lock = 5}, 'Lock must be boolean'},
        {'rs2', {replicas = {}, master = 'manual'}, "Master search mode must be enum {'auto', nil}"},
        {'rs2', {replicas = {}, uuid = 'u'},
         'uuid option can be specified only when identification_mode = "name_as_key"'},
        {'rs2', {replicas = {a = {uri = 'h:1'}}}, 'Duplicate id a'},
        {'rs2', {replicas = {rs1 = {uri = 'h:1'}}}, 'Duplicate id rs1'},
        {'rs2', {replicas = {}, something = 'else'}, 'accepted'},
        {'rs2', {master = 'auto', replicas = {c = {uri = 'h:1'}}}, 'accepted'},
        {'rs2', {master = 'auto', replicas = {c = {uri = 'h:1', master = false}}},
         'Can not specify master nodes when master search is enabled, but found master flag in replica id c'},
        {'rs2', {rebalancer = false, replicas = {c = {uri = 'h:1', rebalancer = true}}},
         "Replicaset rs2 can't run the rebalancer, and yet it was explicitly assigned to its instance c"},
        {'rs2', {rebalancer = true, replicas = {c = {uri = 'h:1', rebalancer = true}}},
         'Found 2 rebalancer flags at rs2 and c'},
    }, function(cfg, key, value) cfg.sharding[key] = value end)
end)

test:test('all weights zero', function(t)
    t:plan(1)
    t:is(refusal(function(cfg)
        cfg.sharding.rs1.weight, cfg.sharding.rs2.weight = 0, 0
    end), 'At least one replicaset weight should be > 0', 'refused')
end)

test:test('replicas', function(t)
    check_refusals(t, {
        {'b', 5, 'Replica must be a table'},
        {'b', {}, 'URI must be specified'},
        {'b', {uri = true}, 'URI must be one of the following types: non-empty string, number, table'},
        {'b', {uri = ''}, 'URI must be one of the following types: non-empty string, number, table'},
        {'b', {uri = ':::'}, 'Invalid URI'},
        {'b', {uri = 'storage:secret@127.0.0.1:3301'}, 'Duplicate uri storage@127.0.0.1:3301'},
        {'b', {uri = 'h:1', master = true}, 'Only one master is allowed per replicaset'},
        {'b', {uri = 'h:1', master = 1}, 'Master must be boolean'},
        {'b', {uri = 'h:1', zone = {}}, 'Zone must be one of the following types: string, number'},
        {'b', {uri = 'h:1', name = 5}, 'Name must be string'},
        {'b', {uri = 'h:1', uuid = 'u'},
         'uuid option can be specified only when identification_mode = "name_as_key"'},
        {'b', {uri = 'h:1', rebalancer = 1}, 'Rebalancer flag must be boolean'},
        {'b', {uri = 'h:1', listen = 3301, something = 'else', name = 'box_a'}, 'accepted'},
    }, function(cfg, key, value) cfg.sharding.rs1.replicas[key] = value end)
end)

test:test('reconfiguration', function(t)
    t:plan(4)
    local old = lcfg.check(config())
    t:is(refusal(function(cfg) cfg.io_threads = 2 end, old),
         'Non-dynamic option io_threads cannot be reconfigured', 'io_threads')
    t:is(refusal(function(cfg) cfg.bucket_count = 100 end, old),
         'Non-dynamic option bucket_count cannot be reconfigured', 'bucket_count')
    t:is(refusal(function(cfg) cfg.shard_index = 2 end, old),
         'Non-dynamic option shard_index cannot be reconfigured', 'shard_index')
    t:is(refusal(function(cfg) cfg.bucket_count, cfg.sync_timeout = 3000, 5 end, old), 'accepted', 'the rest')
end)

test:test('URI forms', function(t)
    local tls = 'Invalid URI: TLS is not supported, "transport" must be "plain" and there must be no "ssl_*" parameters'
    local bad_table = 'Invalid URI: table must be {uri = string, params = table} or {string, params = table}'
    local bad_port = 'Invalid URI: port must be a number from 1 to 65535'
    local forms = {
        {3301, {host = 'localhost', port = 3301}},
        {'3301', {host = 'localhost', port = 3301}},
        {'example.org:3301', {host = 'example.org', port = 3301}},
        {'u:p@127.0.0.1:3301', {host = '127.0.0.1', port = 3301, user = 'u', password = 'p'}},
        {'u@127.0.0.1:3301', {host = '127.0.0.1', port = 3301, user = 'u'}},
        {'u:p@[::1]:3301', {host = '::1', port = 3301, user = 'u', password = 'p'}},
        {'/tmp/x.sock', {unix = '/tmp/x.sock'}},
        {'unix/:/tmp/x.sock', {unix = '/tmp/x.sock'}},
        {'u:p@unix/:/tmp/x.sock', {unix = '/tmp/x.sock', user = 'u', password = 'p'}},
        {{'u:p@h:1'}, {host = 'h', port = 1, user = 'u', password = 'p'}},
        {{uri = 'h:1', params = {transport = 'plain'}}, {host = 'h', port = 1}},
        {{'h:1', login = 'u', password = 'p'}, {host = 'h', port = 1, user = 'u', password = 'p'}},
        {'h:1?transport=plain', {host = 'h', port = 1}},
        {'u:secret@h:1?transport=ssl', tls},
        {'u:secret@h:1?ssl_ca_file=secret', tls},
        {{uri = 'h:1', params = {transport = 'ssl', ssl_password = 'secret'}}, tls},
        {{uri = 'h:1', params = {transport = {'plain', 'ssl'}}}, tls},
        {{'h:1', params = {ssl_key_file = 'secret'}}, tls},
        {{'h:1', 'h:2'}, bad_table},
        {{}, bad_table},
        {{uri = 'h:1', params = 'secret'}, bad_table},
        {'h', bad_port},
        {'h:name', bad_port},
        {'h:70000', bad_port},
        {true, 'Invalid URI'},
    }
    t:plan(#forms + 4)
    for _, form in ipairs(forms) do
        local got, err = luri.address(form[1])
        t:is_deeply(got or err, form[2], show(form[1]))
    end
    t:is(luri.safe('u:secret@h:1?ssl_password=secret'), 'u@h:1', 'safe string')
    t:is(luri.safe({uri = 'u:secret@[::1]:1', params = {ssl_password = 'secret'}}), 'u@[::1]:1', 'safe table')
    t:is(luri.safe('u:secret@unix/:/x.sock'), 'u@unix/:/x.sock', 'safe unix socket')
    t:is(luri.safe(3301), '3301', 'safe number')
end)

test:test('what is left for box.cfg', function(t)
    t:plan(1)
    local cfg = lcfg.check(config(function(cfg)
        cfg.memtx_memory, cfg.typo, cfg.io_threads, cfg.weights = 5, 6, 2, {}
        cfg.collect_lua_garbage = true
    end))
    t:is_deeply(lcfg.box_options(cfg), {memtx_memory = 5, typo = 6}, 'options that are not ours')
end)

local function order_of(cfg, rs)
    local ids = {}
    for i, replica in ipairs(lcfg.neutral(lcfg.check(cfg)).replicasets[rs].replicas) do
        ids[i] = replica.id
    end
    return table.concat(ids, ' ')
end

test:test('neutral form', function(t)
    t:plan(8)
    t:is_deeply(lcfg.neutral(lcfg.check(config())), {
        bucket_count = 3000, io_threads = 1, discovery_mode = 'on', name_as_key = false, failover_ping_timeout = 5,
        failover_interval = 1, failover_sequential_fail_count = 3, failover_replica_lag_limit = 30, limits = {},
        replicasets = {
            {id = 'rs1', uuid = 'rs1', weight = 1, master_auto = false, replicas = {
                {id = 'a', uuid = 'a', name = 'box_a', host = '127.0.0.1', port = 3301, user = 'storage',
                 password = 'secret', is_master = true, zone_weight = math.huge},
                {id = 'b', uuid = 'b', name = 'box_b', host = '127.0.0.1', port = 3302, user = 'storage',
                 password = 'secret', is_master = false, zone_weight = math.huge},
            }},
            {id = 'rs2', uuid = 'rs2', weight = 2, master_auto = false, replicas = {
                {id = 'c', uuid = 'c', host = '127.0.0.1', port = 3303, user = 'storage', password = 'secret',
                 is_master = true, zone_weight = math.huge},
            }},
        },
    }, 'without zones')
    t:is(order_of(config(function(cfg)
        local replicas = cfg.sharding.rs1.replicas
        replicas.a.master, replicas.b.master = nil, true
    end), 1), 'b a', 'the master first among equals')

    local function zoned(patch)
        return config(function(cfg)
            cfg.zone = 1
            cfg.weights = {[1] = {[2] = 5, [3] = 1, ['1'] = 7}}
            cfg.sharding.rs1.replicas = {
                none = {uri = 1, master = true}, own = {uri = 2, zone = 1}, near = {uri = 3, zone = 3},
                far = {uri = 4, zone = 2}, text = {uri = 5, zone = '1'}, unknown = {uri = 6, zone = 9},
            }
            if patch ~= nil then
                patch(cfg)
            end
        end)
    end
    t:is(order_of(zoned(), 1), 'own near far text none unknown', 'by the matrix')
    t:is(order_of(zoned(function(cfg) cfg.weights = nil end), 1), 'own none far near text unknown', 'own zone only')
    t:is(order_of(zoned(function(cfg) cfg.zone = nil end), 1), 'none far near own text unknown', 'router without zone')

    local auto = lcfg.neutral(lcfg.check(config(function(cfg)
        cfg.sharding.rs1.master = 'auto'
        cfg.sharding.rs1.replicas.a.master = nil
    end)))
    t:ok(auto.replicasets[1].master_auto and not auto.replicasets[1].replicas[1].is_master, 'master search')

    local ok, err = pcall(lcfg.neutral, lcfg.check(config(function(cfg)
        cfg.sharding.rs1.replicas.a.uri = 'u:secret@h:name'
    end)))
    t:ok(not ok and err == 'Replica a: Invalid URI: port must be a number from 1 to 65535', 'unusable address')
    ok, err = pcall(lcfg.neutral, lcfg.check({sharding = {{replicas = {}}}}))
    t:ok(not ok and err == 'Replicaset id must be a string', 'id that is no string')
end)

test:test('IPROTO override', function(t)
    t:plan(2)
    t:is(lcfg.check(config()).iproto_override, nil, 'has no default')
    local is_old = not lversion.host_is_at_least(2, 11)
    t:is(refusal(function(cfg) cfg.iproto_override = true end),
         is_old and 'IPROTO override is supported only for Tarantool >= 2.11' or 'accepted', 'needs a host that has it')
end)

test:test('names as keys', function(t)
    local function named(patch)
        return config(function(cfg)
            cfg.identification_mode = 'name_as_key'
            for _, replica in pairs(cfg.sharding.rs1.replicas) do
                replica.name = nil
            end
            if patch ~= nil then
                patch(cfg)
            end
        end)
    end
    if not lversion.host_is_at_least(3, 0) then
        t:plan(1)
        local _, err = pcall(lcfg.check, named())
        t:is(err, 'Name identification is supported only for Tarantool >= 3.0.0', 'refused by an old host')
        return
    end
    t:plan(4)
    local cfg = lcfg.neutral(lcfg.check(named(function(cfg)
        cfg.sharding.rs1.uuid = 'u1'
        cfg.sharding.rs1.replicas.a.uuid = 'u2'
        cfg.sharding.rs2.replicas.rs1 = {uri = 'h:1'}
    end)))
    local rs = cfg.replicasets[1]
    t:ok(rs.id == 'rs1' and rs.name == 'rs1' and rs.uuid == 'u1', 'replicaset')
    t:ok(rs.replicas[1].name == 'a' and rs.replicas[1].uuid == 'u2' and rs.replicas[2].uuid == nil, 'replicas')
    t:is(#cfg.replicasets[2].replicas, 2, 'a replica may be named like a replicaset')
    local _, err = pcall(lcfg.check, named(function(patched) patched.sharding.rs1.replicas.a.name = 'n' end))
    t:is(err, 'replica.name can be specified only when identification_mode = "uuid_as_key"', 'name refused')
end)

os.exit(test:check() and 0 or 1)
