-- One test file: a cluster, and scenarios that run through every front end that the host supports.
--
--     local suite = require('test.helper.suite')
--     local s = suite.new('modes', {bucket_count = 30})
--     s:scenario('a write reaches the master', {}, function(t, fe, c)
--         t:values(fe, fe:call(c, {1, 'write', 'whoami'}), {'s1a'})
--     end)
--     s:run()
--
-- Each scenario × front end is one TAP line; t collects its checks (check.lua). Options of a scenario:
--     fe         list of front ends, or false: once, without one; default all of them
--     storages   'vshard' or 'helper': needs that kind of storage
--     min_host   '2.10': needs a Tarantool of that version
--     differs    text: vshard's own router behaves otherwise here (a known difference), so it is no oracle
--     router     'rawshard': of no sense with the oracle
--     missing    text: what this machine lacks for it; nil: nothing
--     heals      true: the scenario disturbs the cluster; afterwards it is brought back to its first state

local check = require('test.helper.check')
local cluster = require('test.helper.cluster')
local env = require('test.helper.env')
local fiber = require('fiber')
local frontends = require('test.helper.frontends')
local json = require('json')
local orphan = require('test.helper.orphan')
local process = require('test.helper.process')
local tap = require('tap')

local suite_methods = {}
suite_methods.__index = suite_methods

-- cluster_opts false: the file starts its own processes.
local function new(name, cluster_opts)
    return setmetatable({name = name, cluster_opts = cluster_opts, scenarios = {}}, suite_methods)
end

function suite_methods:scenario(name, opts, f)
    table.insert(self.scenarios, {name = name, opts = opts, f = f})
end

-- Once, without a front end: f(t, c).
function suite_methods:once(name, opts, f)
    opts = table.copy(opts or {})
    opts.fe = false
    self:scenario(name, opts, function(t, _, c)
        f(t, c)
    end)
end

-- A row per scenario and front end, each with the reason for which it is skipped, if any.
function suite_methods:rows()
    local rows = {}
    local wanted = os.getenv('SCENARIO')
    for _, scenario in ipairs(self.scenarios) do
        local opts = scenario.opts
        local reason
        if opts.storages ~= nil and opts.storages ~= env.storage_kind then
            reason = 'needs storages of kind ' .. opts.storages
        elseif opts.min_host ~= nil and not env.at_least(opts.min_host) then
            reason = 'needs Tarantool ' .. opts.min_host
        elseif opts.differs ~= nil and env.router_kind == 'vshard' then
            reason = 'vshard differs: ' .. opts.differs
        elseif opts.router ~= nil and opts.router ~= env.router_kind then
            reason = 'of the router ' .. opts.router
        else
            reason = opts.missing
        end
        local list = opts.fe == false and {false} or opts.fe or frontends.order
        for _, fe_name in ipairs(list) do
            local row = {scenario = scenario, name = scenario.name, reason = reason}
            if fe_name then
                row.fe = frontends[fe_name]
                row.name = ('%s [%s]'):format(scenario.name, fe_name)
                local is_supported, why_not = row.fe.is_supported()
                if not is_supported then
                    row.reason = row.reason or why_not
                end
            end
            if wanted == nil or row.name:find(wanted, 1, true) then
                table.insert(rows, row)
            end
        end
    end
    return rows
end

local function traceback(err)
    if type(err) == 'table' then
        err = json.encode(err)
    end
    return debug.traceback(tostring(err), 2)
end

function suite_methods:run()
    if os.getenv('RAWSHARD_RUNNER') ~= nil then
        -- SIGTERM, so that our own processes and directories are cleaned up as at any other end.
        orphan.watch(15, function()
            process.kill_all()
        end)
    end
    local rows = self:rows()
    local test = tap.test(self.name)
    test:plan(#rows)
    local c
    for _, row in ipairs(rows) do
        if row.reason ~= nil then
            test:skip(row.name .. ' # ' .. row.reason)
        else
            local started = fiber.clock()
            local t = check.new()
            local ok, err = xpcall(function()
                if self.cluster_opts ~= false and c == nil then
                    c = cluster.new(self.cluster_opts)
                    c:start()
                end
                row.scenario.f(t, row.fe, c)
            end, traceback)
            if not ok then
                t:fail('the scenario runs to its end')
                t:note('%s', err)
            end
            if t.total == 0 then
                t:fail('the scenario checks something')
            end
            if c ~= nil and (row.scenario.opts.heals or t.failed > 0) then
                local healed, why_not = xpcall(c.heal, traceback, c)
                if not healed then
                    t:fail('the cluster heals')
                    t:note('%s', why_not)
                end
                if t.failed > 0 then
                    t:note('%s', c:logs())
                end
                if not healed then
                    -- The next scenario must not inherit the damage.
                    pcall(c.stop, c)
                    c = nil
                end
            end
            test:ok(t.failed == 0, row.name)
            for _, note in ipairs(t.notes) do
                for _, line in ipairs(note:split('\n')) do
                    test:diag('%s', line)
                end
            end
            if os.getenv('TIMES') ~= nil then
                test:diag('%.2f s: %s', fiber.clock() - started, row.name)
            end
        end
    end
    if c ~= nil then
        c:stop()
    end
    process.kill_all()
    os.exit(test:check() and 0 or 1)
end

return {new = new, wait_until = cluster.wait_until, env = env}
