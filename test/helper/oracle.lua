-- Runs rows (rows.lua) through both routers of a cluster and compares what came out, with how often the storages executed the
-- row's function. Rows that differ have to say so under a name that docs/compat.md has, and what either side gives; a row that
-- says so and does not differ fails too.

local env = require('test.helper.env')
local fiber = require('fiber')
local fio = require('fio')
local rows = require('test.helper.rows')

local RUN_TIMEOUT = 60

-- Differences that may be in any row: `text` of rawshard, which vshard does not have. Each has to occur.
local everywhere = {}
if not env.at_least('2.10') then
    table.insert(everywhere, {
        name = 'an error of Lua has its code', text = 'base_type="LuajitError", code=32', vshard = 'base_type="LuajitError"',
        count = 0,
    })
end

local function as_vshard(text)
    for _, difference in ipairs(everywhere) do
        local at, last = text:find(difference.text, 1, true)
        while at ~= nil do
            difference.count = difference.count + 1
            text = text:sub(1, at - 1) .. difference.vshard .. text:sub(last + 1)
            at, last = text:find(difference.text, 1, true)
        end
    end
    return text
end

local function read_all(path)
    local f = assert(fio.open(path, {'O_RDONLY'}))
    local text = f:read(f:stat().size)
    f:close()
    return text
end

-- Of a remark behind a name: (since 2.10), (before 2.10).
local function is_here(remark)
    local word, version = remark:match('^ %((%a+) ([%d.]+)%)')
    if word == 'since' then
        return env.at_least(version)
    elseif word == 'before' then
        return not env.at_least(version)
    end
    return true
end

-- The names of differences that docs/compat.md ascribes to the oracle test on this host, as a set.
local function documented()
    local names = {}
    for name, remark in read_all(fio.pathjoin(env.root, 'docs', 'compat.md')):gmatch('`oracle_test: ([^`]+)`([^|,]*)') do
        names[name] = is_here(remark) or nil
    end
    return names
end

local function sides(c)
    return {{name = 'rawshard', router = c.router}, {name = 'vshard', router = c.oracle}}
end

local function run_side(side, module, number)
    return side.router:eval("return require('test.helper.rows').run(...)", {module, number, side.name},
                            {timeout = RUN_TIMEOUT})
end

-- Executions by key, over all storages.
local function executions(c)
    local res = {}
    for _, name in ipairs(c.names) do
        if c.storages[name]:is_alive() then
            for key, count in pairs(c.storages[name]:call('test_executed_all')) do
                res[key] = (res[key] or 0) + count
            end
        end
    end
    return res
end

local function gather(c, module, number, state)
    local texts, failed = {}, nil
    local fibers = {}
    for _, side in ipairs(sides(c)) do
        local function work()
            if state.before ~= nil then
                state.before(c, side)
            end
            texts[side.name] = run_side(side, module, number)
            if state.after ~= nil then
                state.after(c, side)
            end
        end
        local f = fiber.new(work)
        f:set_joinable(true)
        if state.before ~= nil or state.after ~= nil then
            local ok, err = f:join()
            failed = failed or not ok and err or nil
        else
            table.insert(fibers, f)
        end
    end
    for _, f in ipairs(fibers) do
        local ok, err = f:join()
        failed = failed or not ok and err or nil
    end
    if failed ~= nil then
        error(failed)
    end
    return texts
end

local function is_expected(text, wanted)
    if type(wanted) == 'string' then
        return text == wanted
    end
    for _, part in ipairs(wanted) do
        if not text:find(part, 1, true) then
            return false
        end
    end
    return true
end

local function show(wanted)
    return type(wanted) == 'string' and wanted or '… ' .. table.concat(wanted, ' … ') .. ' …'
end

local function compare(t, row, got, names)
    if row.differs == nil then
        local is_same = got.vshard == as_vshard(got.rawshard)
        t:ok(is_same, row.name)
        if not is_same then
            t:note('  vshard:   %s', got.vshard)
            t:note('  rawshard: %s', got.rawshard)
        end
        return
    end
    t:ok(names[row.differs], ('%s: "%s" is in docs/compat.md'):format(row.name, row.differs))
    t:ok(got.vshard ~= got.rawshard, row.name .. ' differs still')
    for _, name in ipairs({'vshard', 'rawshard'}) do
        local is_so = is_expected(got[name], row[name])
        t:ok(is_so, ('%s: %s'):format(row.name, name))
        if not is_so then
            t:note('  got:    %s', got[name])
            t:note('  wanted: %s', show(row[name]))
        end
    end
end

-- One state of one module of rows; t collects a check per row.
local function check(t, c, module, number)
    local state = require('test.oracle.' .. module).states[number]
    local names = documented()
    local texts = gather(c, module, number, state)
    local executed = executions(c)
    for i, row in ipairs(state.rows) do
        local got = {}
        for _, name in ipairs({'rawshard', 'vshard'}) do
            local count = executed[rows.key_of(module, state, row, name)]
            local text = texts[name][i] or 'nothing at all from ' .. name
            got[name] = text .. (count and ('; executed %d times'):format(count) or '')
        end
        compare(t, row, got, names)
    end
end

-- Differences that docs/compat.md has and no row.
local function undelivered(modules)
    local names = documented()
    for _, difference in ipairs(everywhere) do
        if difference.count > 0 then
            names[difference.name] = nil
        end
    end
    for _, module in ipairs(modules) do
        for _, state in ipairs(require('test.oracle.' .. module).states) do
            for _, row in ipairs(state.rows) do
                names[row.differs or ''] = nil
            end
        end
    end
    local res = {}
    for name in pairs(names) do
        table.insert(res, name)
    end
    return res
end

return {check = check, undelivered = undelivered}
