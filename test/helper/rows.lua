-- Rows of the oracle: what is done with a router, here rawshard's and there vshard's own, so that the outcomes can be compared.
-- A file of test/oracle makes a table of them, in groups by the state of the cluster that they need:
--
--     local rows = require('test.helper.rows').new('errors')
--     rows:state('a bucket moved', {before = function(c, side) … end, after = function(c) … end})
--     rows:add('callrw', function(r, key) return r.callrw(1, 'count', {key}) end, {
--         differs = 'name of a difference in docs/compat.md', vshard = …, rawshard = …,
--     })
--     return rows
--
-- The driver reads such a file for the states, the routers for the functions. `key` is one of this row and this router, for
-- functions that count their executions. A state without `before` leaves the cluster as it is, so that both routers work at a
-- time. `side` is the router that is about to run ({name, router}), its instance. State options: jobs (rows at a time).
-- Expected texts: all of it; or a list of parts that are in it, and `executed` times.

local fiber = require('fiber')
local describe = require('test.helper.describe')

local JOBS = 8

local methods = {}
methods.__index = methods

local function new(name)
    return setmetatable({name = name, states = {}}, methods)
end

function methods:state(name, opts)
    local state = opts or {}
    state.name, state.rows = name, {}
    table.insert(self.states, state)
    return state
end

function methods:add(name, f, opts)
    local rows = self.states[#self.states].rows
    local row = opts or {}
    row.name, row.f, row.number = name, f, #rows + 1
    table.insert(rows, row)
end

local function key_of(module, state, row, side)
    return ('%s/%s/%d %s/%s'):format(module, state.name, row.number, row.name, side)
end

-- In the router: the outcomes of all rows of one state, as texts.
local function run(module, number, side)
    local state = require('test.oracle.' .. module).states[number]
    local texts, next_row = {}, 1
    local function work()
        while state.rows[next_row] ~= nil do
            local row = state.rows[next_row]
            next_row = next_row + 1
            local key = key_of(module, state, row, side)
            local text = describe.outcome(pcall(row.f, _G.router, key))
            -- The one thing that is different by intent.
            local at, last = text:find(key, 1, true)
            while at ~= nil do
                text = text:sub(1, at - 1) .. 'KEY' .. text:sub(last + 1)
                at, last = text:find(key, 1, true)
            end
            texts[row.number] = text
        end
    end
    local fibers = {}
    for i = 1, state.jobs or JOBS do
        fibers[i] = fiber.new(work)
        fibers[i]:set_joinable(true)
    end
    for _, f in ipairs(fibers) do
        local ok, err = f:join()
        if not ok then
            error(err)
        end
    end
    return texts
end

return {new = new, run = run, key_of = key_of}
