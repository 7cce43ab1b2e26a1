-- P06: what a function on a storage pushes (box.session.push), by on_push and by futures; and answers that go into a buffer
-- of the caller. Most of it runs on vshard's router as well.

package.path = './?.lua;' .. package.path
local prelude = require('test.helper.prelude')
local suite = require('test.helper.suite')

local s = suite.new('pushes')

-- rs, replica: of the first replicaset. Functions are called there through vshard's, which the user may call.
local eval = prelude.on_router([[
    local buffer, msgpack = require('buffer'), require('msgpack')
    local rs = router.routeall()['aaaaaaaa-0000-4000-8000-000000000001']
    local replica = rs.replicas['bbbbbbbb-0000-4000-8000-000000000101']
    local STORAGE_CALL = 'vshard.storage.call'
    local function steps_of(future, timeout)
        local steps = {}
        for i, value in future:pairs(timeout or 10) do
            table.insert(steps, {i, value})
        end
        return steps
    end
    local function decoded(buf, has_header)
        local value
        value, buf.rpos = msgpack.decode(buf.rpos, buf:size())
        return value
    end
]])

local function prepare(c)
    for _, name in ipairs(c.names) do
        c.storages[name]:eval([[
            local has_compat, compat = pcall(require, 'compat')
            if has_compat and pcall(function() return compat.box_session_push_deprecation end) then
                pcall(function() compat.box_session_push_deprecation = 'old' end)
            end
            -- Pushes its first argument's number of messages, waits for the second, returns the rest.
            rawset(_G, 'push', function(count, pause, ...)
                for i = 1, count do
                    box.session.push({i, ('x'):rep(i)})
                end
                require('fiber').sleep(pause)
                return ...
            end)
            rawset(_G, 'push_and_fail', function()
                box.session.push('before')
                error('why')
            end)
        ]])
    end
end

local function scenario(name, f, opts)
    s:once(name, opts, function(t, c)
        prepare(c)
        f(t, function(code, ...)
            return eval(c, code, ...)
        end, c)
    end)
end

scenario('P06 on_push of a call by bucket', function(t, on_router)
    t:is(on_router([[
        local got = {}
        local res = router.callrw(1, 'push', {3, 0, 'done'}, {timeout = 5, on_push = table.insert, on_push_ctx = got})
        return {got, res}
    ]]), {{{1, 'x'}, {2, 'xx'}, {3, 'xxx'}}, 'done'}, 'in order, before the result')
    t:is(on_router([[
        local got = {}
        local res = router.callro(1, 'push', {2, 0, 'done'}, {timeout = 5, on_push = function(ctx, value)
            table.insert(got, {ctx == nil, value[1]})
        end})
        return {got, res}
    ]]), {{{true, 1}, {true, 2}}, 'done'}, 'a read, no context')
    t:is(on_router([[
        local got = {}
        local res, err = router.callrw(1, 'push_and_fail', {}, {timeout = 5, on_push = table.insert, on_push_ctx = got})
        return {got, res == nil, err.message:match('why')}
    ]]), {{'before'}, true, 'why'}, 'before an error')
    t:is(on_router([[
        local got = {}
        local res, err = router.callrw(1, 'push', {1, 5}, {timeout = 0.2, on_push = table.insert, on_push_ctx = got})
        return {got, res == nil, err.message:lower():match('time')}
    ]]), {{{1, 'x'}}, true, 'time'}, 'before a timeout')
end)

scenario('P06 without on_push', function(t, on_router)
    t:is(on_router("return router.callrw(1, 'push', {3, 0, 'done'}, {timeout = 5})"), 'done', 'the result is the result')
    t:is(on_router("return router.callrw(1, 'echo', {7}, {timeout = 5})"), 7, 'and the next one too')
end)

scenario('P06 on_push of replicasets and replicas', function(t, on_router)
    t:is(on_router([[
        local got = {}
        local ok, res = rs:callrw(STORAGE_CALL, {1, 'write', 'push', {2, 0, 'done'}}, {
            timeout = 5, on_push = table.insert, on_push_ctx = got,
        })
        return {got, ok, res}
    ]]), {{{1, 'x'}, {2, 'xx'}}, true, 'done'}, 'a replicaset')
    t:is(on_router([[
        local got = {}
        local ok, _, res = replica:call(STORAGE_CALL, {1, 'write', 'push', {2, 0, 'done'}}, {
            timeout = 5, on_push = table.insert, on_push_ctx = got,
        })
        return {got, ok, res}
    ]]), {{{1, 'x'}, {2, 'xx'}}, true, 'done'}, 'a replica')
end)

scenario('P06 futures', function(t, on_router)
    t:is(on_router("return steps_of(router.callrw(1, 'push', {3, 0.1, 'done'}, {is_async = true}))"),
         {{1, {1, 'x'}}, {2, {2, 'xx'}}, {3, {3, 'xxx'}}, {4, {'done'}}}, 'steps, the answer is the last')
    t:is(on_router([[
        local future = router.callrw(1, 'push', {2, 0, 'done'}, {is_async = true})
        local res = future:wait_result(10)
        return {res, steps_of(future), steps_of(future)}
    ]]), {
        {'done'}, {{1, {1, 'x'}}, {2, {2, 'xx'}}, {3, {'done'}}}, {{1, {1, 'x'}}, {2, {2, 'xx'}}, {3, {'done'}}},
    }, 'after the answer, and once more')
    t:is(on_router([[
        local future = router.callrw(1, 'push', {1, 0.3, 'done'}, {is_async = true})
        local first = steps_of(future, 0.1)
        return {first, future:wait_result(10)}
    ]]), {{{1, {1, 'x'}}}, {'done'}}, 'a timeout between the steps')
    t:is(on_router([[
        local steps = steps_of(router.callrw(1, 'push_and_fail', {}, {is_async = true}))
        return {steps[1], steps[2][1], steps[2][2][1] == nil, steps[2][2][2].message:match('why'), #steps}
    ]]), {{1, 'before'}, 2, true, 'why', 2}, 'an error is the last step')
    t:is(on_router("return steps_of(rs:callro(STORAGE_CALL, {1, 'read', 'push', {1, 0.1, 'done'}}, {is_async = true}))"),
         {{1, {1, 'x'}}, {2, {true, 'done'}}}, 'of a replicaset: all values')
end)

scenario('P06 somebody waits for the answer while there are pushes', function(t, on_router)
    t:is(on_router([[
        local future = router.callrw(1, 'push', {50, 0.2, 'done'}, {is_async = true})
        local waiters = {}
        for i = 1, 3 do
            waiters[i] = fiber.new(future.wait_result, future, 10)
            waiters[i]:set_joinable(true)
        end
        local count = 0
        for i in future:pairs(10) do
            count = i
        end
        local res = {count}
        for i = 1, 3 do
            local _, value = waiters[i]:join()
            table.insert(res, value[1])
        end
        return res
    ]]), {51, 'done', 'done', 'done'}, 'all get theirs')
end)

scenario('P06 a future that goes with what was pushed', function(t, on_router)
    t:is(on_router([[
        local function used()
            collectgarbage()
            collectgarbage()
            return router.info().waiters.used
        end
        for _ = 1, 20 do
            local future = router.callrw(1, 'push', {10, 10, 'done'}, {is_async = true})
            local next_step, iter, i = future:pairs(10)
            i = next_step(iter, i)
            assert(i == 1)
            future:discard()
            local step, err = next_step(iter, i)
            assert(step == 2 and err[1] == nil and err[2].message:find('discarded'))
            router.callrw(1, 'push', {10, 0, 'done'}, {is_async = true}):wait_result(10)
        end
        return used()
    ]]), 0, 'nothing stays')
    t:is(on_router("return raised(router.callrw, 1, 'push', {2, 5}, {timeout = 5, on_push = function() error('mine', 0) end})"),
         'mine', 'what on_push raises is raised')
end, {router = 'rawshard'})

scenario('P06 on_push: nothing is kept', function(t, on_router, c)
    -- In step: the next one is pushed when the one before was handed out.
    c.storages.s1a:eval([[
        local taken = require('fiber').channel(1)
        rawset(_G, 'took', function() taken:put(true) end)
        rawset(_G, 'push_in_step', function(count, size)
            for _ = 1, count do
                box.session.push(('x'):rep(size))
                taken:get(10)
            end
            return count
        end)
    ]])
    local run = [[
        local got, size = 0, ...
        local res = router.callrw(1, 'push_in_step', {100, size}, {timeout = 60, on_push = function(_, value)
            got = got + #value
            collectgarbage()
            router.callrw(1, 'took', {}, {timeout = 10})
        end})
        return {got / size, res}
    ]]
    t:is(on_router(run, 1000), {100, 100}, 'small ones')
    local before = c.router:peak_rss()
    t:is(on_router(run, 1e6), {100, 100}, 'large ones')
    t:within((c.router:peak_rss() - before) / 1e6, -1, 50, 'MB more for 100 MB, at any time')
    t:is(on_router([[
        -- The futures of the calls before.
        collectgarbage()
        collectgarbage()
        collectgarbage('stop')
        local fiber = fiber.new(router.callrw, 1, 'push', {1, 20}, {timeout = 60, on_push = function() end})
        fiber:set_joinable(true)
        require('fiber').sleep(0.1)
        fiber:cancel()
        local ok, err = fiber:join()
        local used = router.info().waiters.used
        collectgarbage('restart')
        return {ok, tostring(err):match('cancelled'), used}
    ]]), {false, 'cancelled', 0}, 'a cancelled fiber has given its call up')
end, {router = 'rawshard'})

scenario('P06 pushes that nobody reads', function(t, on_router, c)
    c.storages.s1a:eval([[
        local fiber = require('fiber')
        local go = fiber.channel(1)
        rawset(_G, 'go_on', function() go:put(true) end)
        -- Pushes half of them, and the other half when it may go on, if it is to wait for that.
        rawset(_G, 'push_much', function(count, waits)
            for i = 1, count do
                if waits and i == count / 2 + 1 then
                    go:get(30)
                end
                box.session.push(('x'):rep(2^20))
            end
            return count
        end)
    ]])
    local overflows = [[
        local count = 0
        for _, engine in ipairs(router.info().engines) do
            count = count + engine.push_overflows
        end
        return count
    ]]
    local got = on_router([[
        local future = router.callrw(1, 'push_much', {90}, {is_async = true})
        local res, err = future:wait_result(60)
        local count, size, last = 0, 0
        for _, value in future:pairs(10) do
            if type(value) == 'string' then
                count, size = count + 1, size + #value
            else
                last = value
            end
        end
        return {res == nil, err.code, err.message, count, size, last[1] == nil, last[2].message}
    ]])
    t:is({got[1], got[2]}, {true, 32}, 'an error')
    t:has(got[3], '67108864 bytes', 'that names the limit')
    t:within(got[4], 40, 65, 'what came before is there')
    t:is(got[5], got[4] * 2^20, 'whole')
    t:is({got[6], got[7]}, {true, got[3]}, 'the error is the last step')
    t:is(on_router(overflows), 1, 'counted')
    t:is(on_router("return router.callrw(1, 'echo', {7}, {timeout = 5})"), 7, 'others go on')
    t:is(on_router([[
        local count = 0
        local res = router.callrw(1, 'push_much', {100, true}, {timeout = 60, on_push = function()
            count = count + 1
            if count == 50 then
                router.callrw(1, 'go_on', {}, {timeout = 10})
            end
        end})
        return {count, res}
    ]]), {100, 100}, 'what is read counts no more')
    t:is(on_router(overflows), 1, '… and ends no call')
end, {router = 'rawshard'})

scenario('P06 pushes of a raw call', function(t, on_router)
    t:is(on_router([[
        local future = router.callrw(1, 'push', {1, 0.1, 'done'}, {is_async = true, return_raw = true})
        local steps = steps_of(future)
        return {steps[1][2]:decode(), steps[2][2]:decode(), #steps}
    ]]), {{1, 'x'}, {'done'}, 2}, 'objects')
    t:is(on_router([[
        local got = {}
        local res = router.callrw(1, 'push', {1, 0, 'done'}, {
            timeout = 5, return_raw = true, on_push = table.insert, on_push_ctx = got,
        })
        return {got[1]:decode(), res:decode()}
    ]]), {{1, 'x'}, {'done'}}, 'on_push')
end, {router = 'rawshard', min_host = '2.10'})

scenario('P06 mistakes', function(t, on_router)
    t:has(on_router("return raised(router.callrw, 1, 'push', {1, 0}, {is_async = true, on_push = print})"), 'pairs',
          'on_push of a future')
    t:has(on_router("return raised(router.callrw, 1, 'push', {1, 0}, {on_push = 5})"), 'on_push', 'no function')
    t:has(on_router("return raised(router.callrw, 1, 'push', {1, 0}, {buffer = buffer.ibuf()})"), 'buffer',
          'a buffer for a call by bucket')
    t:has(on_router("return raised(rs.callrw, rs, STORAGE_CALL, {}, {buffer = {}})"), 'buffer', 'a buffer that is none')
    t:has(on_router("return raised(rs.callrw, rs, STORAGE_CALL, {}, {buffer = buffer.ibuf(), on_push = print})"), 'buffer',
          'a buffer and on_push')
end, {router = 'rawshard'})

local COUNT = "'vshard.storage.buckets_count', {}, "

scenario('a buffer for the answer', function(t, on_router)
    t:is(on_router([[
        local buf = buffer.ibuf()
        local size = rs:callrw(]] .. COUNT .. [[{timeout = 5, buffer = buf})
        return {size == buf:size(), decoded(buf)[48], buf:size()}
    ]]), {true, {15}, 0}, 'the body, and how long it is')
    t:is(on_router([[
        local buf = buffer.ibuf()
        local size = rs:callro(]] .. COUNT .. [[{timeout = 5, buffer = buf, skip_header = true})
        return {size == buf:size(), decoded(buf), buf:size()}
    ]]), {true, {15}, 0}, 'without its header')
    t:is(on_router([[
        local buf = buffer.ibuf()
        local ok, size = replica:call(]] .. COUNT .. [[{timeout = 5, buffer = buf, skip_header = true})
        return {ok, size == buf:size(), decoded(buf)}
    ]]), {true, true, {15}}, 'of a replica')
    t:is(on_router([[
        local buf = buffer.ibuf()
        for _ = 1, 2 do
            rs:callrw(STORAGE_CALL, {1, 'write', 'echo', {('x'):rep(1e6)}}, {timeout = 5, buffer = buf, skip_header = true})
        end
        return {#decoded(buf)[2], #decoded(buf)[2], buf:size()}
    ]]), {1e6, 1e6, 0}, 'one behind the other, large ones')
    t:is(on_router([[
        local buf = buffer.ibuf()
        local size, err = rs:callrw('no_such_function', {}, {timeout = 5, buffer = buf})
        return {size == nil, err.code, buf:size()}
    ]]), {true, 42, 0}, 'an error leaves it as it is')
end)

scenario('a buffer for the answer of a future', function(t, on_router)
    t:is(on_router([[
        local buf = buffer.ibuf()
        local future = rs:callrw(]] .. COUNT .. [[{is_async = true, buffer = buf, skip_header = true})
        local size = future:wait_result(10)
        return {size == buf:size(), future:result() == size, future:is_ready(), decoded(buf), buf:size()}
    ]]), {true, true, true, {15}, 0}, 'once')
    t:is(on_router([[
        local buf = buffer.ibuf()
        local future = rs:callrw(]] .. COUNT .. [[{is_async = true, buffer = buf})
        while not future:is_ready() do
            fiber.sleep(0.001)
        end
        return decoded(buf)[48]
    ]]), {15}, 'when it is ready')
    t:is(on_router([[
        local buf = buffer.ibuf()
        local future = rs:callrw('no_such_function', {}, {is_async = true, buffer = buf})
        local size, err = future:wait_result(10)
        return {size == nil, err.code, buf:size(), tostring(future):endswith('net.box.request')}
    ]]), {true, 42, 0, true}, 'an error')
end)

s:run()
