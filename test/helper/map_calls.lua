-- What tests of map_callrw and map_callro share: functions that are mapped, a way to call them, and the look for references
-- that stay behind.

local cluster = require('test.helper.cluster')
local prelude = require('test.helper.prelude')

-- The replicasets of a cluster, by the ids that the results have.
local RS1, RS2 = 'aaaaaaaa-0000-4000-8000-000000000001', 'aaaaaaaa-0000-4000-8000-000000000002'

-- Of `map`, for code that runs on the router: what router.<method> gives, in a table.
local MAP = [[
    local msgpack = require('msgpack')
    local function map(func, args, opts)
        opts = opts or {}
        opts.timeout = opts.timeout or 10
        local res, err, id = router.%s(func, args, opts)
        return {res = res, err = err, id = id, is_table = type(err) == 'table'}
    end
]]

local function on_router(method)
    return prelude.on_router(MAP:format(method))
end

-- Those named "first" and "second" tell apart the replicasets, all give the name of their instance.
local FUNCTIONS = [[
    local fiber = require('fiber')
    local name = ...
    rawset(_G, 'map_args', function(...)
        return {name, ...}
    end)
    rawset(_G, 'map_only_first', function()
        if name:sub(1, 2) == 's1' then
            return {name, 2}
        end
    end)
    rawset(_G, 'map_boom_second', function(text)
        if name:sub(1, 2) == 's2' then
            error(text, 0)
        end
        return true
    end)
    rawset(_G, 'map_nap', function(seconds)
        fiber.sleep(seconds)
        return name
    end)
]]

local function prepare(c)
    for name, storage in pairs(c.storages) do
        storage:eval(FUNCTIONS, {name})
    end
end

local function refs(storage)
    return storage:call('test_refs')
end

-- Of all storages that can be asked.
local function no_refs(t, c)
    for name, storage in pairs(c.storages) do
        if storage:is_alive() and not storage.is_frozen then
            local ok = pcall(cluster.wait_until, 'no reference', function() return refs(storage) == 0 end, 5)
            t:ok(ok, 'no reference stays on ' .. name)
        end
    end
end

return {RS1 = RS1, RS2 = RS2, no_refs = no_refs, on_router = on_router, prepare = prepare, refs = refs}
