-- Calls with `is_async`: what a future gives, who is woken and when, and that nothing is left of those that are not wanted.

package.path = './?.lua;' .. package.path
local prelude = require('test.helper.prelude')
local suite = require('test.helper.suite')

local s = suite.new('futures', {net_msg_max = 30000, memtx_memory = 128 * 1024 * 1024})
local wait_until = suite.wait_until

local RS1 = 'aaaaaaaa-0000-4000-8000-000000000001'
local S1B = 'bbbbbbbb-0000-4000-8000-000000000102'

-- Every chunk is run on the router with this in front.
local on_router = prelude.on_router([[
    local msgpack = require('msgpack')
    local function async(func, args, opts)
        opts = opts or {}
        opts.is_async = true
        return router.callrw(1, func, args, opts)
    end
    local function joinable(f, ...)
        local new = fiber.new(f, ...)
        new:set_joinable(true)
        return new
    end
    -- Slots in use: of the engines, and of futures and fibers that wait.
    local function used()
        local info = router.info()
        return info.slab.used, info.waiters.used
    end
    -- Not at once: the router has calls of its own under way now and then.
    local function come_to(calls, waiters)
        return wait(function()
            local calls_now, waiters_now = used()
            return calls_now == calls and waiters_now == waiters
        end)
    end
    local function collect()
        collectgarbage()
        collectgarbage()
    end
]])

local function scenario(name, f, opts)
    s:once(name, opts, f)
end

local own = {router = 'rawshard'}

scenario('a future becomes ready', function(t, c)
    t:is(on_router(c, [[
        local f = async('sleep', {0.05, 1})
        local before, nothing, why = f:is_ready(), f:result()
        local res, err = f:wait_result(10)
        return {before, nothing == nil, why.message, f:is_ready(), res, err == nil, f:result(), f:wait_result(), f:wait_result(0)}
    ]]), {false, true, 'Response is not ready', true, {1}, true, {1}, {1}, {1}}, 'result, as often as wanted')
    t:is(on_router(c, "return tostring(async('echo', {1}))"), 'vshard.net.box.request', 'tostring')
    t:is(on_router(c, "return require('json').encode(async('echo', {1}))"), '[]', 'it has no fields', '')
end, own)

scenario('every kind of call', function(t, c)
    for _, name in ipairs({'callrw', 'callro', 'callbro', 'callre', 'callbre'}) do
        t:is(on_router(c, "return router[...](20, 'echo', {'x', 2}, {is_async = true}):wait_result(10)", name), {'x'}, name)
    end
    t:is(on_router(c, "return router.call(20, {mode = 'read', balance = true}, 'echo', {7}, {is_async = true}):wait_result(10)"),
         {7}, 'call')
    t:is(on_router(c, "return #router.callrw(1, 'big', {1000000}, {is_async = true}):wait_result(10)[1]"), 1000000, 'a megabyte')
end)

-- One value in a table, or nil and an error.
local shapes = {
    {'nothing', {}, {n = 1, nil}}, {'echo', {5, 6}, {n = 1, 5}}, {'four_values', {}, {n = 1, 1}},
    {'one_nil_three', {}, {n = 1, 1}}, {'false_err', {}, {n = 1, false}}, {'nil_two', {}, {err = 2}},
}

scenario('what functions return', function(t, c)
    for _, shape in ipairs(shapes) do
        local func, args, wanted = unpack(shape)
        local res = on_router(c, [[
            local func, args = ...
            local res, err = async(func, args):wait_result(10)
            return {is_table = type(res) == 'table', value = type(res) == 'table' and res[1], err = err}
        ]], func, args)
        t:is(res.is_table, wanted.err == nil, func)
        t:is(res.err, wanted.err, func .. ': error')
        if wanted.err == nil then
            t:is(res.value, wanted[1], func .. ': value')
        end
    end
    t:is(on_router(c, "local _, err = async('boom', {'why'}):wait_result(10) return type(err)"), 'table', 'a raised error')
    t:is(on_router(c, "local _, err = async('boom', {'why'}):wait_result(10) return err.message"), 'why', 'its message')
    t:is(on_router(c, "local _, err = async('nilerr', {'x'}):wait_result(10) return err.reason"), 'x', 'nil and an error')
end)

scenario('mistakes are raised', function(t, c)
    t:has(on_router(c, "return raised(router.callrw, '1', 'echo', {1}, {is_async = true})"), 'Usage', 'a bucket_id')
    t:has(on_router(c, "return raised(router.callrw, 31, 'echo', {1}, {is_async = true})"), 'out of range', 'its range')
    t:has(on_router(c, "return raised(router.callrw, 1, 'echo', {1}, {is_async = true, timeout = 'x'})"), 'Usage', 'a timeout')
end)

scenario('mistakes with a future are raised', function(t, c)
    t:has(on_router(c, "return raised(async('echo').wait_result)"), 'future:', 'a dot for a colon')
    t:has(on_router(c, "return raised(async('echo').result, {})"), 'future:', 'a table for a future')
    t:has(on_router(c, "return raised(async('echo').discard, newproxy(true))"), 'future:', 'another userdata')
    t:has(on_router(c, "return raised(async('echo').wait_result, async('echo'), 'x')"), 'Usage', 'a wait of no number')
    t:has(on_router(c, "return raised(async, 'echo', {1}, {on_push = print})"), 'on_push', 'pushes')
end, own)

scenario('the first call of a process does not yield', function(t, c)
    local c2 = c.router:eval([[
        local cfg = table.deepcopy(router.static.current_cfg)
        local script = require('fio').pathjoin(require('fio').tempdir(), 'first.lua')
        return {cfg = cfg, cpath = package.cpath, path = package.path, script = script}
    ]])
    local f = io.open(c2.script, 'w')
    f:write(([[
        package.path, package.cpath = %q, %q
        local router = require('rawshard.router')
        local cfg = require('json').decode(%q)
        cfg.box_cfg_mode = 'manual'
        router.cfg(cfg)
        local fiber = require('fiber')
        local before = fiber.info()[fiber.self():id()].csw
        router.callrw(1, 'echo', {1}, {is_async = true})
        print(fiber.info()[fiber.self():id()].csw - before)
        os.exit(0)
    ]]):format(c2.path, c2.cpath, require('json').encode(c2.cfg)))
    f:close()
    local out = io.popen(suite.env.tarantool .. ' ' .. c2.script .. ' 2>/dev/null'):read('*a')
    os.remove(c2.script)
    t:is(out:match('%-?%d+'), '0', 'no switch of fibers')
end, {router = 'rawshard'})

scenario('pairs', function(t, c)
    t:is(on_router(c, [[
        local steps = {}
        for i, res in async('echo', {7}):pairs() do
            table.insert(steps, {i, res[1], res[2]})
        end
        return steps
    ]]), {{1, 7}}, 'the answer is the one step')
    t:is(on_router(c, [[
        local steps = {}
        for i, res in async('boom', {'why'}):pairs(10) do
            table.insert(steps, {i, res[1] == nil, res[2].message})
        end
        return steps
    ]]), {{1, true, 'why'}}, 'an error')
    t:is(on_router(c, [[
        local steps = 0
        for _ in async('sleep', {0.3}):pairs(0.01) do
            steps = steps + 1
        end
        return steps
    ]]), 0, 'a timeout ends it')
end)

scenario('P14 a negative wait', function(t, c)
    t:is(on_router(c, [[
        local f = async('echo', {1})
        f:wait_result(10)
        local res, err = f:wait_result(-1)
        return {res == nil, err.code}
    ]]), {true, 78}, 'a negative wait is over, also with the answer there')
end)

scenario('a wait of no time', function(t, c)
    t:is(on_router(c, [[
        local f = async('sleep', {0.2, 1})
        local res, err = f:wait_result(0)
        return {res == nil, err.code, f:wait_result(10)}
    ]]), {true, 78, {1}}, 'is over')
    t:is(on_router(c, [[
        local f, turns = async('sleep', {0.05, 1}), 0
        local deadline = fiber.clock() + 5
        while f:wait_result(0) == nil and fiber.clock() < deadline do
            turns = turns + 1
        end
        return {turns > 0, f:is_ready()}
    ]]), {true, true}, 'who only polls lets others run')
end, own)

scenario('P14 a call whose timeout is zero is not sent', function(t, c)
    for _, timeout in ipairs({0, -1}) do
        t:is(on_router(c, [[
            local res, err = async('count', {'zero'}, {timeout = ...}):wait_result(10)
            return {res == nil, err.code}
        ]], timeout), {true, 78}, timeout)
    end
    t:is(c:executed('zero'), 0, 'nothing is executed')
end, {router = 'rawshard'})

scenario('a future waits as long as it takes', function(t, c)
    t:is(on_router(c, "return async('sleep', {0.9, 'slow'}):wait_result()"), {'slow'}, 'longer than the default timeout')
    t:is(on_router(c, "local f = async('sleep', {0.3, 1}) f:wait_result(0.01) return f:wait_result(10)"), {1},
         'a wait that was too short changes nothing')
end)

scenario('a timeout that was given is kept', function(t, c)
    t:is(on_router(c, [[
        local started = fiber.clock()
        local res, err = async('sleep', {30}, {timeout = 0.1}):wait_result()
        return {res == nil, err.code, fiber.clock() - started < 5}
    ]]), {true, 78, true}, 'timeout')
end, own)

scenario('P01 return_raw', function(t, c)
    t:is(on_router(c, [[
        local args, opts = {1, 'a', {k = 1}}, {return_raw = true, timeout = 10}
        local blocking = router.callro(1, 'echo', args, opts)
        opts.is_async = true
        local f = router.callro(1, 'echo', args, opts)
        local waited = f:wait_result(10)
        local iterated
        for _, res in f:pairs() do
            iterated = res
        end
        local function bytes(object)
            return msgpack.is_object(object) and msgpack.encode(object)
        end
        local wanted = bytes(blocking)
        return {bytes(waited) == wanted, bytes(f:result()) == wanted, bytes(iterated) == wanted, waited:decode()}
    ]]), {true, true, true, {1, 'a', {k = 1}}}, 'the same bytes as the blocking call')
    t:is(on_router(c, "return async('nothing', {}, {return_raw = true}):wait_result(10):decode()"), {}, 'no values')
    t:is(on_router(c, "return async('nil_two', {}, {return_raw = true}):wait_result(10):decode()[2]"), 2, 'nil and a value')
    t:is(on_router(c, "local _, err = async('boom', {'why'}, {return_raw = true}):wait_result(10) return err.message"), 'why',
         'an error is a table')
end, {router = 'rawshard', min_host = '2.10'})

scenario('return_raw needs a newer host', function(t, c)
    t:has(on_router(c, "return raised(async, 'echo', {1}, {return_raw = true})"), '2.10', 'raised')
end, {router = 'rawshard', missing = suite.env.at_least('2.10') and 'Tarantool 2.10 has msgpack.object' or nil})

scenario('a moved bucket is followed', function(t, c)
    c:move_bucket(1, c.replicasets[1], c.replicasets[2])
    t:is(on_router(c, "return async('whoami_counted', {'moved'}):wait_result(10)"), {'s2a'}, 'redirected')
    t:is(c:executed('moved'), 1, 'executed once')
    on_router(c, 'router._route_map_clear()')
    t:is(on_router(c, "return async('whoami'):wait_result(10)"), {'s2a'}, 'looked for')
end, {router = 'rawshard', heals = true})

scenario('nobody to ask', function(t, c)
    c.storages.s1a:kill()
    t:is(on_router(c, [[
        local started = fiber.clock()
        local res, err = async('echo', {1}):wait_result()
        return {res == nil, err.code, fiber.clock() - started < 5}
    ]]), {true, 77, true}, 'without a timeout: within the default one')
end, {router = 'rawshard', heals = true})

scenario('the storage dies', function(t, c)
    on_router(c, "_G.pending = async('count_sleep', {'dies', 9000})")
    wait_until('the call to run', function() return c:executed('dies') == 1 end)
    c.storages.s1a:kill()
    t:is(on_router(c, 'local res, err = pending:wait_result(10) _G.pending = nil return {res == nil, err.code}'), {true, 77},
         'an error')
end, {router = 'rawshard', heals = true})

scenario('several fibers wait for one future', function(t, c)
    t:is(on_router(c, [[
        local f = async('sleep', {0.2, 'all'})
        local waiters = {}
        for i = 1, 50 do
            -- Some leave before, from the middle of those that wait.
            waiters[i] = joinable(f.wait_result, f, i % 3 == 0 and 0.01 or nil)
        end
        local right = 0
        for i, waiter in ipairs(waiters) do
            local ok, res, err = waiter:join()
            if i % 3 == 0 and res == nil and err.code == 78 or i % 3 ~= 0 and res[1] == 'all' then
                right = right + 1
            end
        end
        return right
    ]]), 50, 'each is told')
end, {router = 'rawshard'})

scenario('P31 discard wakes those that wait', function(t, c)
    t:is(on_router(c, [[
        local f = async('sleep', {9000})
        local started = fiber.clock()
        local a, b = joinable(f.wait_result, f), joinable(f.wait_result, f, 100)
        fiber.sleep(0.02)
        f:discard()
        local res = {}
        for i, waiter in ipairs({a, b}) do
            local ok, value, err = waiter:join()
            res[i] = ok and value == nil and err.message
        end
        res[3], res[4] = f:is_ready(), fiber.clock() - started < 5
        local _, err = f:result()
        res[5] = err.message
        f:discard()
        return res
    ]]), {'Response is discarded', 'Response is discarded', true, true, 'Response is discarded'}, 'at once')
    t:is(on_router(c, [[
        local f = async('echo', {1})
        f:wait_result(10)
        f:discard()
        return f:result()
    ]]), {1}, 'an answer that has come stays')
end)

scenario('P31 discarded and collected futures free their slots', function(t, c)
    t:is(on_router(c, [[
        collect()
        come_to(0, 0)
        local futures = {}
        for i = 1, 500 do
            futures[i] = async('sleep', {9000})
        end
        local are_held = come_to(500, 500)
        for i = 1, 500 do
            futures[i]:discard()
        end
        local _, now = used()
        return {are_held, now, come_to(0, 0)}
    ]]), {true, 0, true}, 'discard')
    t:is(on_router(c, [[
        for i = 1, 500 do
            async('sleep', {9000})
        end
        fiber.sleep(0.02)
        collect()
        return come_to(0, 0)
    ]]), true, 'collected while they wait')
    t:is(on_router(c, [[
        local last
        for i = 1, 500 do
            last = async('echo', {i})
        end
        last:wait_result(10)
        wait(function() return used() == 0 end)
        local _, answered = used()
        last = nil
        collect()
        local _, after = used()
        return {answered > 0, after}
    ]]), {true, 0}, 'collected with their answers')
    -- Late answers find nobody.
    t:is(on_router(c, "return async('echo', {'after'}):wait_result(10)"), {'after'}, 'the next call')
end, {router = 'rawshard', heals = true})

scenario('P31 a stopped router ends its futures', function(t, c)
    t:is(on_router(c, [[
        local other = assert(router.new('stopped', table.deepcopy(router.static.current_cfg)))
        local f = other:callrw(1, 'sleep', {9000}, {is_async = true})
        local waiter = joinable(f.wait_result, f)
        fiber.sleep(0.05)
        require('rawshard.native').router_stop(other.native_id)
        local ok, res, err = waiter:join()
        router.internal.routers.stopped = nil
        return {ok, res == nil, type(err.message), f:is_ready(), f:result() == nil}
    ]]), {true, true, 'string', true, true}, 'those that wait are told')
end, {router = 'rawshard', heals = true})

scenario('P31 a reconfiguration does not touch them', function(t, c)
    t:is(on_router(c, [[
        local f = async('sleep', {0.3, 'kept'})
        fiber.sleep(0.05)
        router.cfg(table.deepcopy(router.static.current_cfg))
        return f:wait_result(10)
    ]]), {'kept'}, 'the answer comes')
end)

scenario('a cancelled fiber leaves its future', function(t, c)
    t:is(on_router(c, [[
        local f = async('sleep', {0.3, 'other'})
        local waiter, other = joinable(f.wait_result, f), joinable(f.wait_result, f, 10)
        fiber.sleep(0.02)
        waiter:cancel()
        local ok, err = waiter:join()
        local _, res = other:join()
        return {ok, tostring(err), res}
    ]]), {false, 'fiber is cancelled', {'other'}}, 'cancelled; the other one waits on')
end, own)

scenario('20 000 futures in flight', function(t, c)
    on_router(c, [[
        collect()
        come_to(0, 0)
        _G.flight = {}
        for i = 1, 20000 do
            _G.flight[i] = router.callrw(i % 30 + 1, 'gate', {'flight', i}, {is_async = true, timeout = 60})
            if i % 1000 == 0 then
                fiber.sleep(0)
            end
        end
    ]])
    wait_until('all of them to run', function()
        local running = 0
        for _, rs in ipairs(c.replicasets) do
            running = running + rs.master:call('test_gate_waiting', {'flight'})
        end
        return running == 20000
    end, 60)
    t:ok(on_router(c, 'return come_to(20000, 20000)'), 'slots')
    for _, rs in ipairs(c.replicasets) do
        rs.master:call('test_gate_open', {'flight'})
    end
    t:is(on_router(c, [[
        local right = 0
        for i, f in ipairs(flight) do
            local res = f:wait_result(60)
            right = right + (res ~= nil and res[1] == i and 1 or 0)
        end
        _G.flight = nil
        collect()
        return {right, come_to(0, 0)}
    ]]), {20000, true}, 'each has its own answer, and no slot stays in use')
end, {router = 'rawshard'})

scenario('5000 fibers wait', function(t, c)
    t:is(on_router(c, [[
        local right, running = 0, 5000
        for i = 1, 5000 do
            fiber.create(function()
                local f = router.callrw(i % 30 + 1, 'sleep', {0.2, i}, {is_async = true, timeout = 30})
                local res = f:wait_result(30)
                right = right + (res ~= nil and res[1] == i and 1 or 0)
                running = running - 1
            end)
        end
        wait(function() return running == 0 end, 40)
        return right
    ]]), 5000, 'each is woken with its own')
end)

scenario('memory: a future is a handle', function(t, c)
    local bytes = on_router(c, [[
        local futures = require('table.new')(10000, 0)
        local opts = {is_async = true, timeout = 30}
        local function run()
            for i = 1, 10000 do
                futures[i] = router.callrw(1, 'nothing', nil, opts)
            end
            futures[10000]:wait_result(30)
        end
        run()
        collect()
        collectgarbage('stop')
        local before = collectgarbage('count')
        run()
        local bytes = (collectgarbage('count') - before) * 1024 / 10000
        collectgarbage('restart')
        return bytes
    ]])
    t:within(bytes, 1, 64, 'bytes of Lua memory for each')
end, {router = 'rawshard'})

scenario('memory: forgotten answers do not pile up', function(t, c)
    local held = on_router(c, [[
        collect()
        local peak = 0
        for i = 1, 3000 do
            local f = router.callrw(1, 'big', {100000}, {is_async = true, timeout = 30})
            if i % 20 == 0 then
                -- The others have come before, and nobody looks at them.
                f:wait_result()
                peak = math.max(peak, select(2, used()))
            end
        end
        return peak
    ]])
    -- 100 KB each.
    t:within(held, 1, 400, 'futures with an answer that nobody read')
end, {router = 'rawshard'})

scenario('replicasets and replicas', function(t, c)
    local code = 'local rs = router.routeall()["' .. RS1 .. '"] '
    for _, name in ipairs({'callrw', 'callro', 'callbro', 'callre', 'callbre'}) do
        t:is(on_router(c, code .. [[
            return rs[...](rs, 'vshard.storage.buckets_count', {}, {is_async = true}):wait_result(10)
        ]], name), {15}, name)
    end
    t:is(on_router(c, code .. [[
        local f = rs:callrw('vshard.storage.call', {1, 'write', 'four_values', {}}, {is_async = true})
        return f:wait_result(10)
    ]]), {true, 1, 2, 3}, 'all values')
    t:has(on_router(c, code .. [[
        local res, err = rs:callrw('boom', {'why'}, {is_async = true}):wait_result(10)
        return res == nil and err.message
    ]]), 'denied', 'an error')
    t:is(on_router(c, code .. [[
        local f = rs:callrw('boom', {'why'}, {is_async = true})
        local res, err = f:wait_result(10)
        local text = {tostring(err), err.code}
        for _, step in f:pairs(10) do
            table.insert(text, type(step))
        end
        return text
    ]]), {"Execute access to function 'boom' is denied for user 'storage'", 42, 'cdata'}, 'which is an object of the host')
end)

scenario('a call of one replica', function(t, c)
    t:is(on_router(c, [[
        local replica = router.routeall()["]] .. RS1 .. [["].replicas["]] .. S1B .. [["]
        local ok, f = replica:call('vshard.storage._call', {'info'}, {is_async = true, timeout = 10})
        return {ok, f:wait_result(10)[1].is_master}
    ]]), {true, false}, 'it is asked')
end, {router = 'rawshard'})

scenario('hot reload', function(t, c)
    t:is(on_router(c, [[
        local f = async('sleep', {0.2, 'kept'})
        local done = async('echo', {'done'})
        done:wait_result(10)
        unload()
        router = require('rawshard.router')
        vshard.router = router
        return {f:wait_result(10), done:result(), async('echo', {'new'}):wait_result(10)}
    ]]), {{'kept'}, {'done'}, {'new'}}, 'old futures and new ones')
end, {router = 'rawshard'})

s:run()
