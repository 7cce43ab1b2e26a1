-- Calls made in Lua inside the router process: by many fibers that wait, or as futures that are collected later.
local clock = require('clock')
local fiber = require('fiber')

local M = {}

-- The last value of what a call gave: net.box has the storage's status before it, the routers have not.
local function last(res)
    return res[#res]
end

local function right(plan, value)
    return plan.expect == nil and value ~= nil or value == plan.expect
end

-- Made once: what the bench itself allocates must not show in the bytes per call.
local function opts_of(plan, is_async)
    return {timeout = 30, is_async = is_async or nil, return_raw = plan.return_raw or nil}
end

local run = {}

-- `width` fibers, one call after the other in each.
function run.fibers(callrw, plan, buckets)
    local left, bad = plan.count, nil
    local opts = opts_of(plan)
    local fibers = {}
    for i = 1, plan.width do
        local f = fiber.new(function()
            local bucket = i
            while left > 0 and bad == nil do
                left = left - 1
                bucket = bucket % buckets + 1
                -- Two values at most, so that nothing is allocated here: net.box gives the status first.
                local a, b = callrw(bucket, plan.func, plan.args, opts)
                local value = a
                if a == true and b ~= nil then
                    value = b
                elseif a == nil and b ~= nil then
                    bad = tostring(b)
                    break
                end
                if not right(plan, value) then
                    bad = ('%s where %s was expected'):format(value, plan.expect)
                end
            end
        end)
        f:set_joinable(true)
        fibers[i] = f
    end
    for _, f in ipairs(fibers) do
        local ok, err = f:join()
        if not ok then
            bad = bad or tostring(err)
        end
    end
    return bad
end

-- `width` calls are sent, then all of them waited for; again and again.
function run.futures(callrw, plan, buckets)
    local futures = {}
    local opts = opts_of(plan, true)
    local bucket = 0
    for _ = 1, plan.count / plan.width do
        for i = 1, plan.width do
            bucket = bucket % buckets + 1
            local future, err = callrw(bucket, plan.func, plan.args, opts)
            if future == nil then
                return tostring(err)
            end
            futures[i] = future
        end
        for i = 1, plan.width do
            local res, err = futures[i]:wait_result(30)
            if res == nil then
                return tostring(err)
            end
            -- With return_raw it is an object, right as it is.
            if type(res) == 'table' and not right(plan, last(res)) then
                return ('%s where %s was expected'):format(last(res), plan.expect)
            end
            futures[i] = nil
        end
    end
    return nil
end

-- plan: {mode = 'fibers'|'futures', width, count, func, args, expect, return_raw}. Two passes: CPU time with the collector at
-- work, then memory with it stopped (a tenth of the calls, the heap is not endless).
function M.run(callrw, plan, buckets)
    local function pass(count)
        local p = table.copy(plan)
        p.count = count
        local ok, bad = pcall(run[plan.mode], callrw, p, buckets)
        if not ok or bad ~= nil then
            return tostring(bad)
        end
        return nil
    end
    local bad = pass(plan.width * 2)
    if bad ~= nil then
        return {problem = bad}
    end
    collectgarbage('collect')
    collectgarbage('collect')
    local wall, tx, process = clock.monotonic(), clock.thread(), clock.proc()
    bad = pass(plan.count)
    wall, tx, process = clock.monotonic() - wall, clock.thread() - tx, clock.proc() - process
    if bad ~= nil then
        return {problem = bad}
    end
    local few = math.max(plan.width, math.floor(plan.count / 10 / plan.width) * plan.width)
    collectgarbage('collect')
    collectgarbage('stop')
    local before = collectgarbage('count')
    bad = pass(few)
    local bytes = (collectgarbage('count') - before) * 1024
    collectgarbage('restart')
    collectgarbage('collect')
    return {
        problem = bad,
        per_second = plan.count / wall,
        tx_us = tx * 1e6 / plan.count,
        process_us = process * 1e6 / plan.count,
        lua_bytes = bytes / few,
    }
end

return M
