-- map_callro: which instances it calls, what it gives, what it is sure of, and that no reference stays behind.

package.path = './?.lua;' .. package.path
local fiber = require('fiber')
local json = require('json')
local map_calls = require('test.helper.map_calls')
local suite = require('test.helper.suite')

local s = suite.new('map_read', {replicas = 3, router_cfg = {failover_interval = 0.1}})
local wait_until = suite.wait_until

local RS1, RS2 = map_calls.RS1, map_calls.RS2
local no_refs = map_calls.no_refs
local on_router = map_calls.on_router('map_callro')

local function scenario(name, f, opts)
    opts = opts or {}
    opts.router = 'rawshard'
    s:once(name, opts, function(t, c)
        map_calls.prepare(c)
        for _, rs in ipairs(c.replicasets) do
            -- After a restart a master is an orphan for a while.
            wait_until('a master that can be written', function() return rs.master:eval('return not box.info.ro') end)
            for _, storage_name in ipairs(rs.names) do
                -- Of one that has just connected the lag is infinite (applier.cc).
                wait_until('a replica that follows', function()
                    return c.storages[storage_name]:eval([[
                        for _, replica in pairs(box.info.replication) do
                            local upstream = replica.upstream
                            if upstream ~= nil and (upstream.status ~= 'follow' or upstream.lag > 10) then
                                return false
                            end
                        end
                        return true
                    ]])
                end)
            end
        end
        wait_until('all are in order', function()
            return on_router(c, [[
                for _, replicaset in pairs(router.info().replicasets) do
                    for _, connection in pairs(replicaset.connections) do
                        if connection.health_status ~= 0 then
                            return false
                        end
                    end
                end
                return true
            ]])
        end)
        f(t, c)
    end)
end

scenario('modes', function(t, c)
    t:is(on_router(c, "return map('map_args', {1, 'a'})").res, {[RS1] = {{'s1a', 1, 'a'}}, [RS2] = {{'s2a', 1, 'a'}}},
         'the nearest, as callro')
    t:is(on_router(c, "return map('map_args', nil, {prefer_replica = true})").res, {[RS1] = {{'s1b'}}, [RS2] = {{'s2b'}}},
         'replicas, as callre')
    local seen = on_router(c, [[
        local seen = {}
        for _ = 1, 6 do
            local res = map('map_args', nil, {balance = true}).res["]] .. RS1 .. [["][1][1]
            seen[res] = (seen[res] or 0) + 1
        end
        return seen
    ]])
    t:is(seen, {s1a = 2, s1b = 2, s1c = 2}, 'in turn, as callbro')
    seen = on_router(c, [[
        local seen = {}
        for _ = 1, 6 do
            local res = map('map_args', nil, {balance = true, prefer_replica = true}).res["]] .. RS1 .. [["][1][1]
            seen[res] = (seen[res] or 0) + 1
        end
        return seen
    ]])
    t:ok(seen.s1a == nil and seen.s1b ~= nil and seen.s1c ~= nil, 'replicas in turn, as callbre', '  seen: %s',
         json.encode(seen))
    no_refs(t, c)
end)

scenario('shapes', function(t, c)
    t:is(on_router(c, "return map('map_only_first', nil, {prefer_replica = true})").res, {[RS1] = {{'s1b', 2}}},
         'nothing is no key')
    local out = on_router(c, "return map('map_boom_second', {'why'}, {prefer_replica = true})")
    t:is({out.res, out.err.message, out.id}, {nil, 'why', RS2}, 'an error, and where')
    no_refs(t, c)
end)

scenario('return_raw', function(t, c)
    t:is(on_router(c, "return map('map_args', msgpack.object({1}), {return_raw = true}).res[...]:decode()", RS2), {{'s2a', 1}},
         'an array in an object')
    no_refs(t, c)
end, {min_host = '2.10'})

scenario('some buckets', function(t, c)
    for _, hold in ipairs({'false', 'true'}) do
        local code = "return map('map_args', {7}, {prefer_replica = true, hold_buckets = " .. hold .. ', bucket_ids = ...})'
        t:is(on_router(c, code, {1, 2}).res, {[RS1] = {{'s1b', 7}}}, 'of one replicaset')
        t:is(on_router(c, code, {30, 1}).res, {[RS1] = {{'s1b', 7}}, [RS2] = {{'s2b', 7}}}, 'of both')
        t:is(on_router(c, code, {[1] = {'a'}, [30] = {'c'}}).res,
             {[RS1] = {{'s1b', 7, {[1] = {'a'}}}}, [RS2] = {{'s2b', 7, {[30] = {'c'}}}}}, 'with arguments of their own')
    end
    on_router(c, 'router._route_map_clear()')
    t:is(on_router(c, "return map('map_args', nil, {bucket_ids = {20}})").res, {[RS2] = {{'s2a'}}}, 'with unknown routes')
    t:is(on_router(c, "return map('map_args', nil, {bucket_ids = {}})").res, {}, 'of none')
    no_refs(t, c)
end)

scenario('mistakes', function(t, c)
    for code, text in pairs({
        ['5'] = 'Usage', ["'f', {}, 5"] = 'Usage', ["'f', {}, {timeout = 'x'}"] = 'Usage', ["'f', {}, {balance = 1}"] = 'Usage',
        ["'f', {}, {mode = 'write'}"] = 'option "mode" is not supported',
        ["'f', {}, {timeout = 1, request_timeout = 2}"] = 'request_timeout',
    }) do
        t:has(on_router(c, 'local ok, err = pcall(router.map_callro, ' .. code .. ') return tostring(err)'), text, code)
    end
    for _, ids in ipairs({'{10ULL}', "{'10'}", '5', '{31}'}) do
        local out = on_router(c, "return map('count', {'odd'}, {bucket_ids = " .. ids .. ', timeout = 0.5})')
        t:ok(out.res == nil and out.is_table, ids, '  got: %s', json.encode(out))
    end
    t:is(c:executed('odd'), 0, 'nothing is executed')
    no_refs(t, c)
end)

scenario('a dead master is not needed', function(t, c)
    c.storages.s1a:kill()
    t:is(on_router(c, "return map('map_args', nil, {prefer_replica = true})").res, {[RS1] = {{'s1b'}}, [RS2] = {{'s2b'}}},
         'reads')
    t:is(on_router(c, "return map('map_args', nil, {bucket_ids = {1}})").res, {[RS1] = {{'s1b'}}}, 'of some buckets')
    local out = on_router(c, "return map('count', {'held'}, {prefer_replica = true, hold_buckets = true, timeout = 0.5})")
    t:ok(out.res == nil and out.is_table and out.id == RS1, 'it is, where no bucket may move', '  got: %s', json.encode(out))
    t:is(c:executed('held'), 0, 'nothing is executed')
    no_refs(t, c)
end, {heals = true})

scenario('an instance that cannot serve is passed over', function(t, c)
    c.storages.s1b:call('test_storage_enable', {false})
    t:is(on_router(c, "return map('map_args', nil, {prefer_replica = true})").res, {[RS1] = {{'s1c'}}, [RS2] = {{'s2b'}}},
         'disabled')
    t:is(on_router(c, "return map('map_args', nil, {prefer_replica = true, bucket_ids = {1}})").res, {[RS1] = {{'s1c'}}},
         'for some buckets, too')
    c.storages.s1b:call('test_storage_enable', {true})
    c.storages.s1b:freeze()
    local started = fiber.clock()
    t:is(on_router(c, "return map('map_args', nil, {prefer_replica = true, timeout = 5, request_timeout = 0.3})").res,
         {[RS1] = {{'s1c'}}, [RS2] = {{'s2b'}}}, 'frozen')
    t:within(fiber.clock() - started, 0, 2, 'after one attempt')
    c.storages.s1b:thaw()
    no_refs(t, c)
end, {heals = true})

scenario('nobody there', function(t, c)
    for _, name in ipairs({'s2a', 's2b', 's2c'}) do
        c.storages[name]:kill()
    end
    local out = on_router(c, "return map('count', {'dead'}, {timeout = 0.5})")
    t:ok(out.res == nil and out.is_table and out.id == RS2, 'an error, and where', '  got: %s', json.encode(out))
    t:is(c:executed('dead'), 0, 'nothing is executed')
    no_refs(t, c)
end, {heals = true})

scenario('buckets that are nowhere', function(t, c)
    c:set_bucket(c.replicasets[2], 30, nil)
    for _, hold in ipairs({'false', 'true'}) do
        local opts = '{prefer_replica = true, hold_buckets = ' .. hold .. '}'
        local out = on_router(c, "return map('count', {'uncovered'}, " .. opts .. ')')
        t:is({out.res, out.err.name, out.err.not_discovered_cnt}, {nil, 'UNKNOWN_BUCKETS', 1}, 'the cluster is not covered')
    end
    t:is(c:executed('uncovered'), 0, 'nothing is executed')
    no_refs(t, c)
end, {heals = true})

scenario('a replica that sees fewer buckets than its master', function(t, c)
    -- Only in our own storages, where nothing is replicated.
    c.storages.s1b:call('test_bucket_set', {1})
    local out = on_router(c, "return map('count', {'lagging'}, {prefer_replica = true})")
    t:is(out.err and out.err.name, 'UNKNOWN_BUCKETS', 'the cluster is not covered')
    t:is(c:executed('lagging'), 0, 'nothing is executed')
    t:is(on_router(c, "return map('map_args', nil, {prefer_replica = true, hold_buckets = true})").res,
         {[RS1] = {{'s1c'}}, [RS2] = {{'s2b'}}}, 'another one is asked, where the masters are asked too')
    no_refs(t, c)
end, {heals = true, storages = 'helper'})

scenario('buckets are held while the function runs', function(t, c)
    on_router(c, [[
        _G.napping = nil
        fiber.create(function()
            _G.napping = map('map_nap', {1}, {prefer_replica = true, hold_buckets = true})
        end)
    ]])
    wait_until('the reference of s1a', function() return c.storages.s1a:call('test_refs') == 1 end)
    wait_until('the reference of s1b', function() return c.storages.s1b:call('test_refs') == 1 end)
    wait_until('the end of the call', function() return on_router(c, 'return napping ~= nil') end, 5)
    t:is(on_router(c, 'return napping').res, {[RS1] = {'s1b'}, [RS2] = {'s2b'}}, 'results')
    no_refs(t, c)
end)

scenario('a cancelled fiber leaves no reference', function(t, c)
    c.storages.s2b:freeze()
    on_router(c, [[
        _G.mapping = fiber.new(map, 'count', {'cancelled'}, {timeout = 60, prefer_replica = true, hold_buckets = true})
        mapping:set_joinable(true)
    ]])
    wait_until('the reference of s1b', function() return c.storages.s1b:call('test_refs') == 1 end)
    t:is(on_router(c, 'mapping:cancel() local ok, err = mapping:join() return tostring(err)'), 'fiber is cancelled', 'it raises')
    c.storages.s2b:thaw()
    no_refs(t, c)
    t:is(c:executed('cancelled'), 0, 'nothing is executed')
end, {heals = true})

scenario('many at once, several engines, and a reconfiguration in between', function(t, c)
    t:is(on_router(c, [[
        local cfg = table.deepcopy(router.static.current_cfg)
        cfg.io_threads = 4
        local other = assert(router.new('engines', cfg))
        local wrong, running = {}, 50
        for i = 1, 50 do
            fiber.create(function()
                local opts = {timeout = 20, balance = true, bucket_ids = i % 2 == 0 and {1, 30} or nil}
                local res, err, id = other:map_callro('map_nap', {0.1}, opts)
                if res == nil or res["]] .. RS1 .. [["] == nil or res["]] .. RS2 .. [["] == nil then
                    table.insert(wrong, {i, res, tostring(err), tostring(id)})
                end
                running = running - 1
            end)
        end
        fiber.sleep(0.02)
        other:cfg(cfg)
        local deadline = fiber.clock() + 20
        while running > 0 and fiber.clock() < deadline do
            fiber.sleep(0.01)
        end
        return running == 0 and wrong or running
    ]]), {}, 'all succeed')
    no_refs(t, c)
end)

s:run()
