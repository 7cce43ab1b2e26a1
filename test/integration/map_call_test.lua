-- map_callrw: which storages it calls, what it gives, and that no reference stays behind, whatever goes wrong.

package.path = './?.lua;' .. package.path
local fiber = require('fiber')
local map_calls = require('test.helper.map_calls')
local suite = require('test.helper.suite')

local s = suite.new('map_call')
local wait_until = suite.wait_until

local RS1, RS2 = map_calls.RS1, map_calls.RS2
local no_refs, refs = map_calls.no_refs, map_calls.refs
local on_router = map_calls.on_router('map_callrw')

local function scenario(name, f, opts)
    s:once(name, opts, function(t, c)
        map_calls.prepare(c)
        f(t, c)
    end)
end

local own = {router = 'rawshard'}

scenario('the whole cluster', function(t, c)
    local out = on_router(c, "return map('map_args', {1, 'a'})")
    t:is(out.res, {[RS1] = {{'s1a', 1, 'a'}}, [RS2] = {{'s2a', 1, 'a'}}}, 'results by replicaset')
    t:is(on_router(c, "return map('map_args')").res, {[RS1] = {{'s1a'}}, [RS2] = {{'s2a'}}}, 'without arguments')
    t:is(on_router(c, "return map('map_args', box.NULL)").res, {[RS1] = {{'s1a'}}, [RS2] = {{'s2a'}}}, 'with none')
    t:is(on_router(c, "return map('four_values')").res, {[RS1] = {1}, [RS2] = {1}}, 'the first value')
    no_refs(t, c)
end)

scenario('P05 a storage that returns nothing', function(t, c)
    t:is(on_router(c, "return map('map_only_first')").res, {[RS1] = {{'s1a', 2}}}, 'has no key')
    t:is(on_router(c, "return map('nothing')").res, {}, 'nobody returns anything')
end)

scenario('P05 return_raw', function(t, c)
    t:is(on_router(c, [[
        local out = map('map_only_first', {}, {return_raw = true})
        return {msgpack.is_object(out.res[...]), out.res[...]:decode(), next(out.res, ...) == nil}
    ]], RS1), {true, {{'s1a', 2}}, true}, 'an array in an object, no key where nothing is returned')
    t:is(on_router(c, "return map('map_args', {1}, {return_raw = true}).res[...]:decode()", RS2), {{'s2a', 1}}, 'values')
    t:is(on_router(c, "return map('map_boom_second', {'why'}, {return_raw = true}).err.message"), 'why', 'an error')
    t:is(on_router(c, "return map('map_args', msgpack.object({1, 2})).res[...]", RS2), {{'s2a', 1, 2}}, 'arguments in an object')
    no_refs(t, c)
end, {min_host = '2.10'})

scenario('some buckets', function(t, c)
    t:is(on_router(c, "return map('map_args', {1}, {bucket_ids = {1, 2}})").res, {[RS1] = {{'s1a', 1}}}, 'of one replicaset')
    t:is(on_router(c, "return map('map_args', {1}, {bucket_ids = {30, 2, 29}})").res,
         {[RS1] = {{'s1a', 1}}, [RS2] = {{'s2a', 1}}}, 'of both')
    on_router(c, 'router._route_map_clear()')
    t:is(on_router(c, "return map('map_args', {1}, {bucket_ids = {20}})").res, {[RS2] = {{'s2a', 1}}}, 'with unknown routes')
    local opts = on_router(c, [[
        local opts, args = {timeout = 10, bucket_ids = {[1] = {'x'}, [30] = {'y'}}}, {7}
        router.map_callrw('map_args', args, opts)
        return {opts, args}
    ]])
    t:is(opts, {{timeout = 10, bucket_ids = {[1] = {'x'}, [30] = {'y'}}}, {7}}, 'options and arguments stay as they were')
    no_refs(t, c)
end)

scenario('arguments for each bucket', function(t, c)
    t:is(on_router(c, "return map('map_args', {7}, {bucket_ids = {[1] = {'a'}, [2] = {'b'}, [30] = {'c'}}})").res, {
        [RS1] = {{'s1a', 7, {[1] = {'a'}, [2] = {'b'}}}}, [RS2] = {{'s2a', 7, {[30] = {'c'}}}},
    }, 'each storage gets those of its own')
    t:is(on_router(c, "return map('map_args', nil, {bucket_ids = {[29] = 'x'}})").res, {[RS2] = {{'s2a', {[29] = 'x'}}}}, 'alone')
    no_refs(t, c)
end)

scenario('arguments for each bucket behind an object', function(t, c)
    t:is(on_router(c, "return map('map_args', msgpack.object({7}), {bucket_ids = {[29] = {'x'}}})").res,
         {[RS2] = {{'s2a', 7, {[29] = {'x'}}}}}, 'are appended')
end, {router = 'rawshard', min_host = '2.10'})

scenario('P22 odd bucket ids', function(t, c)
    t:is(on_router(c, "return map('count', {'odd'}, {bucket_ids = {}})").res, {}, 'an empty list')
    t:is(on_router(c, "return map('map_args', {}, {bucket_ids = {5, 5, 5}})").res, {[RS1] = {{'s1a'}}}, 'duplicates')
    for _, ids in ipairs({'{31}', '{0}', "{1, 'x'}", "{x = {1}}"}) do
        local out = on_router(c, "return map('count', {'odd'}, {bucket_ids = " .. ids .. ', timeout = 0.5})')
        t:ok(out.res == nil and out.is_table and out.id == nil, ids, '  got: %s', require('json').encode(out))
    end
    t:is(c:executed('odd'), 0, 'nothing is executed')
    no_refs(t, c)
end)

scenario('P22 bucket ids of the wrong type are refused', function(t, c)
    for _, ids in ipairs({'{10ULL, 20ULL}', "{'10'}", "{'10', '20'}", "'x'", '5'}) do
        local out = on_router(c, "return map('count', {'refused'}, {bucket_ids = " .. ids .. '})')
        t:ok(out.res == nil and out.is_table and out.id == nil, ids, '  got: %s', require('json').encode(out))
    end
    t:is(c:executed('refused'), 0, 'nothing is executed')
end, own)

scenario('plain arguments for the first buckets', function(t, c)
    local out = on_router(c, "return map('map_args', {'a'}, {bucket_ids = {'some data', true}})")
    t:is(out.res, {[RS1] = {{'s1a', 'a', {[1] = 'some data', [2] = true}}}}, 'they are no list of ids')
end)

scenario('mistakes are raised', function(t, c)
    for _, code in ipairs({'5', "'f', {}, 5", "'f', {}, {timeout = 'x'}"}) do
        t:has(on_router(c, 'local ok, err = pcall(router.map_callrw, ' .. code .. ') return tostring(err)'), 'Usage', code)
    end
end, own)

scenario('a function that fails', function(t, c)
    local out = on_router(c, "return map('map_boom_second', {'why'})")
    t:is({out.res, out.err.message, out.id}, {nil, 'why', RS2}, 'its error, and where')
    out = on_router(c, "return map('no_such_function')")
    t:ok(out.res == nil and out.is_table and (out.id == RS1 or out.id == RS2), 'a function that is not there')
    no_refs(t, c)
end)

scenario('a timeout', function(t, c)
    local started = fiber.clock()
    local out = on_router(c, "return map('map_nap', {30}, {timeout = 0.2})")
    t:timeout({n = 2, out.res, out.err}, 'a timeout')
    t:ok(out.id ~= nil, 'where')
    t:within(fiber.clock() - started, 0, 5, 'in time')
    for _, timeout in ipairs({0, -1}) do
        out = on_router(c, "return map('count', {'late'}, {timeout = ...})", timeout)
        t:timeout({n = 2, out.res, out.err}, timeout)
    end
    t:is(c:executed('late'), 0, 'nothing is executed')
end, {heals = true})

scenario('a moved bucket is found', function(t, c)
    -- Gone without a trace: a row that is left as sent or garbage holds references up, as long as it is not collected.
    c:set_bucket(c.replicasets[2], 1, 'active')
    c:set_bucket(c.replicasets[1], 1, nil)
    local out = on_router(c, "return map('map_args', {}, {bucket_ids = {[1] = {'m'}, [2] = {'n'}}})")
    t:is(out.res, {[RS1] = {{'s1a', {[2] = {'n'}}}}, [RS2] = {{'s2a', {[1] = {'m'}}}}}, 'its new place')
    for id = 3, 15 do
        c:set_bucket(c.replicasets[2], id, 'active')
        c:set_bucket(c.replicasets[1], id, nil)
    end
    out = on_router(c, "return map('map_args', {}, {bucket_ids = {3, 4}})")
    t:is(out.res, {[RS2] = {{'s2a'}}}, 'a replicaset that has none of them any more is not called')
    no_refs(t, c)
end, {heals = true})

scenario('buckets that are nowhere', function(t, c)
    c:set_bucket(c.replicasets[2], 30, nil)
    local out = on_router(c, "return map('count', {'uncovered'})")
    t:is({out.res, out.err.name, out.err.not_discovered_cnt, out.id}, {nil, 'UNKNOWN_BUCKETS', 1, nil},
         'the cluster is not covered')
    t:is(c:executed('uncovered'), 0, 'nothing is executed')
    no_refs(t, c)
end, {heals = true})

scenario('a dead master', function(t, c)
    c.storages.s2a:kill()
    local out = on_router(c, "return map('count', {'dead'}, {timeout = 0.5})")
    t:ok(out.res == nil and out.is_table and out.id == RS2, 'an error, and where', '  got: %s', require('json').encode(out))
    t:is(c:executed('dead'), 0, 'nothing is executed')
    no_refs(t, c)
end, {heals = true})

scenario('P21 a storage that is cut off while it is referenced', function(t, c)
    for _, ids in ipairs({'nil', '{1, 30}'}) do
        c.storages.s2a:freeze()
        on_router(c, [[
            _G.cut = nil
            fiber.create(function()
                local started = fiber.clock()
                local out = map('count', {'cut'}, {timeout = 60, bucket_ids = ]] .. ids .. [[})
                out.seconds = fiber.clock() - started
                _G.cut = out
            end)
        ]])
        wait_until('the reference of s1a', function() return refs(c.storages.s1a) == 1 end)
        c.storages.s2a:kill()
        local out = wait_until('the end of the call', function() return on_router(c, 'return cut') end, 5)
        t:ok(out.res == nil and out.is_table and out.id == RS2, 'an error, and where', '  got: %s', require('json').encode(out))
        local ok = pcall(wait_until, 'no reference', function() return refs(c.storages.s1a) == 0 end, 1)
        t:ok(ok, 'the reference of s1a is gone within a second')
        t:is(c:executed('cut'), 0, 'nothing is executed')
        c:heal()
    end
end, {heals = true, router = 'rawshard'})

scenario('a cancelled fiber leaves no reference', function(t, c)
    c.storages.s2a:freeze()
    on_router(c, [[
        _G.mapping = fiber.new(map, 'count', {'cancelled'}, {timeout = 60})
        mapping:set_joinable(true)
    ]])
    wait_until('the reference of s1a', function() return refs(c.storages.s1a) == 1 end)
    t:is(on_router(c, 'mapping:cancel() local ok, err = mapping:join() return tostring(err)'), 'fiber is cancelled', 'it raises')
    local ok = pcall(wait_until, 'no reference', function() return refs(c.storages.s1a) == 0 end, 5)
    t:ok(ok, 'none on s1a')
    c.storages.s2a:thaw()
    no_refs(t, c)
    t:is(c:executed('cancelled'), 0, 'nothing is executed')
end, {heals = true, router = 'rawshard'})

scenario('many at once, and a reconfiguration in between', function(t, c)
    t:is(on_router(c, [[
        local right, running = 0, 50
        for i = 1, 50 do
            fiber.create(function()
                local opts = {timeout = 20, bucket_ids = i % 2 == 0 and {1, 30} or nil}
                local res = router.map_callrw('map_nap', {0.1}, opts)
                if res ~= nil and res["]] .. RS1 .. [["][1] == 's1a' and res["]] .. RS2 .. [["][1] == 's2a' then
                    right = right + 1
                end
                running = running - 1
            end)
        end
        fiber.sleep(0.02)
        router.cfg(table.deepcopy(router.static.current_cfg))
        local deadline = fiber.clock() + 20
        while running > 0 and fiber.clock() < deadline do
            fiber.sleep(0.01)
        end
        return right
    ]]), 50, 'all succeed')
    no_refs(t, c)
end, {router = 'rawshard'})

scenario('several engines', function(t, c)
    local out = on_router(c, [[
        local cfg = table.deepcopy(router.static.current_cfg)
        cfg.io_threads = 4
        local other = assert(router.new('engines', cfg))
        local wrong = {}
        for i = 1, 20 do
            local opts = {timeout = 10, bucket_ids = i % 2 == 0 and {1, 30} or nil}
            local res, err, id = other:map_callrw('map_args', {i}, opts)
            if res == nil or res["]] .. RS2 .. [["][1][2] ~= i then
                table.insert(wrong, {i, res, tostring(err), tostring(id)})
            end
        end
        return wrong
    ]])
    t:is(out, {}, 'the stages of a call stay on one connection')
    no_refs(t, c)
end, {router = 'rawshard', heals = true})

scenario('nothing is left in the router', function(t, c)
    on_router(c, "for i = 1, 20 do map('map_boom_second', {'why'}) end collectgarbage() collectgarbage()")
    local ok = pcall(wait_until, 'no slot in use', function()
        return on_router(c, 'collectgarbage() local i = router.info() return i.slab.used + i.waiters.used') == 0
    end)
    t:ok(ok, 'no slot stays in use')
end, own)

scenario('recovery point', function(t, c)
    t:has(on_router(c, 'local ok, err = pcall(router.create_cluster_recovery_point) return tostring(err)'), 'Usage', 'usage')
    local out = on_router(c, [[
        local res, err = router.create_cluster_recovery_point('label', {timeout = 10})
        return {res = res, err = err, replicaset = err and err.replicaset}
    ]])
    if out.res ~= nil then
        t:is(out.res[RS1][1].label, 'label', 'a point of the first replicaset')
        t:is(out.res[RS2][1].label, 'label', 'a point of the second replicaset')
    else
        t:ok(out.replicaset == RS1 or out.replicaset == RS2, 'an error names its replicaset', '  got: %s',
             require('json').encode(out))
    end
    no_refs(t, c)
end)

s:run()
