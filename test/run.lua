-- The test runner: `tarantool test/run.lua [part of a file's name …]`, usually by `make test`.
--
-- Runs test/unit/*_test.lua on every host, and test/integration/*_test.lua on every host × kind of storage; several files at
-- a time. A host is a Tarantool: $TARANTOOL (one or several, separated by spaces), or the one on PATH and
-- /opt/tarantool*/bin/tarantool. Kinds of storage: `helper`, and `vshard` where vshard is found; $STORAGES (helper, vshard,
-- both) narrows them.
-- $ROUTER is the router under test: rawshard (default) or vshard, the oracle. $JOBS: files at a time, two for each core if not
-- given: most wait most of their time.

local fiber = require('fiber')
local fio = require('fio')

local here = fio.dirname(fio.abspath(arg[0]))
local root = fio.dirname(here)
package.path = root .. '/?.lua;' .. package.path

local env = require('test.helper.env')
local process = require('test.helper.process')

local FILE_TIMEOUT = tonumber(os.getenv('FILE_TIMEOUT')) or 420

local function lines_of(command)
    local f = io.popen(command)
    local text = f:read('*a')
    f:close()
    return text:strip():split('\n')
end

local function version_of(binary)
    local version = lines_of(("'%s' --version 2>/dev/null"):format(binary))[1]:match('^Tarantool%s+%a*%s*([%d.]+)')
    return version
end

-- Every host as {binary, version}; the same binary found twice counts once.
local function find_hosts()
    local binaries
    if (os.getenv('TARANTOOL') or '') ~= '' then
        binaries = os.getenv('TARANTOOL'):split()
    else
        binaries = lines_of('command -v tarantool; ls -d /opt/tarantool*/bin/tarantool 2>/dev/null; true')
    end
    local hosts, seen = {}, {}
    for _, binary in ipairs(binaries) do
        local path = binary ~= '' and lines_of(("command -v '%s'; true"):format(binary))[1] or ''
        local real = path ~= '' and lines_of(("readlink -f '%s'"):format(path))[1] or nil
        local version = real and version_of(path)
        if version == nil then
            if binary ~= '' then
                print(('# no Tarantool: %s'):format(binary))
            end
        elseif not seen[real] then
            seen[real] = true
            table.insert(hosts, {binary = path, version = version})
        end
    end
    return hosts
end

local function find_storage_kinds()
    local wanted = os.getenv('STORAGES') or ''
    if wanted == 'helper' or wanted == 'vshard' then
        return {wanted}
    end
    if wanted ~= '' and wanted ~= 'both' then
        error(('STORAGES must be helper, vshard or both, got %s'):format(wanted), 0)
    end
    if env.vshard == nil then
        print('# vshard is not found (VSHARD_PATH, an installed rock, /opt/vshard): its storages are not tested')
        return {'helper'}
    end
    return {'helper', 'vshard'}
end

local function read_all(path)
    local f = fio.open(path, {'O_RDONLY'})
    if f == nil then
        return ''
    end
    local text = f:read(f:stat().size)
    f:close()
    return text
end

local function find_files(directory)
    local files = {}
    for _, path in ipairs(fio.glob(fio.pathjoin(here, directory, '*_test.lua'))) do
        local name = fio.basename(path, '_test.lua')
        local is_wanted = #arg == 0
        for _, part in ipairs(arg) do
            is_wanted = is_wanted or name:find(part, 1, true) ~= nil
        end
        if is_wanted then
            table.insert(files, {name = name, path = path, has_peers = read_all(path):find('peers = ', 1, true) ~= nil})
        end
    end
    table.sort(files, function(a, b) return a.name < b.name end)
    return files
end

-- Reads TAP: each line of the top level with what was told below it, without tap's own traces.
local function read_results(path)
    local results, plan, is_trace = {}, nil, false
    local text = read_all(path)
    local rest = {}
    for _, line in ipairs(text:split('\n')) do
        local state, name = line:match('^(n?o?t? ?ok) %- (.*)$')
        if line:match('^1%.%.%d+') then
            plan = tonumber(line:match('^1%.%.(%d+)'))
        elseif state ~= nil then
            local reason = name:match('# skip$') and name:gsub('^.- # ', ''):gsub(' ?# skip$', '')
            name = name:gsub(' # .*$', '')
            table.insert(results, {state = state == 'not ok' and 'not ok' or reason and 'skip' or 'ok',
                                   name = name, reason = reason, notes = {}})
        elseif line:match('^  %-%-%-$') then
            is_trace = true
        elseif line:match('^  %.%.%.$') then
            is_trace = false
        elseif is_trace or line:match('^TAP version') or line == '' then
            -- Nothing to keep.
            goto continue
        elseif #results > 0 and line:sub(1, 2) == '# ' then
            table.insert(results[#results].notes, line:sub(3))
        else
            table.insert(rest, line)
        end
        ::continue::
    end
    for _, line in ipairs(read_all(path .. '.err'):split('\n')) do
        table.insert(rest, line)
    end
    return results, plan, rest
end

local totals = {order = {}}

local function report(job, file_path, seconds, status)
    local title = job.host.version .. ', ' .. job.kind
    local total = totals[title]
    if total == nil then
        total = {ok = 0, ['not ok'] = 0, skip = 0, seconds = 0}
        totals[title] = total
        table.insert(totals.order, title)
    end
    total.seconds = total.seconds + seconds
    local results, plan, rest = read_results(file_path)
    print(('\n== Tarantool %s, %s: %s (%.1f s)'):format(job.host.version, job.kind, job.file.name, seconds))
    for _, result in ipairs(results) do
        total[result.state] = total[result.state] + 1
        print(('  %-6s %s%s'):format(result.state, result.name, result.reason and (' (' .. result.reason .. ')') or ''))
        for _, note in ipairs(result.notes) do
            print('         ' .. note)
        end
    end
    -- A file that ended early, or died, fails as a whole.
    if plan ~= #results or status ~= 0 and total['not ok'] == 0 then
        total['not ok'] = total['not ok'] + 1
        print(('  not ok the file ran to its end: %d of %s scenarios, ended with %s'):format(
            #results, plan or '?', status or 'a timeout'))
        for i = math.max(1, #rest - 40), #rest do
            print('         ' .. rest[i])
        end
    end
    io.stdout:flush()
end

local function run_job(job, tmp)
    local file_path = fio.pathjoin(tmp, ('%d.tap'):format(job.number))
    local started = fiber.clock()
    local p = process.spawn({job.host.binary, job.file.path}, {
        cwd = root,
        log = file_path,
        -- Apart: stdout is buffered, and a line of the log in the middle of a line of TAP spoils both.
        err = file_path .. '.err',
        env = {
            RAWSHARD_RUNNER = '1',
            TARANTOOL_BIN = job.host.binary,
            STORAGE = job.kind:match('^%a+'),
            TMPDIR = tmp,
        },
    })
    local in_time = p:wait(FILE_TIMEOUT)
    if not in_time then
        p:terminate(10)
    end
    local status = in_time and p:exit_status() or nil
    p:reap()
    report(job, file_path, fiber.clock() - started, status)
end

local function main()
    local hosts = find_hosts()
    if #hosts == 0 then
        print('No Tarantool is found: install one (Debian: apt-get install tarantool), or give TARANTOOL=…')
        return 1
    end
    local kinds = find_storage_kinds()
    local jobs = {}
    local units, integrations = find_files('unit'), find_files('integration')
    for _, host in ipairs(hosts) do
        print(('# Tarantool %s: %s'):format(host.version, host.binary))
    end
    print(('# router: %s; storages: %s'):format(env.router_kind, table.concat(kinds, ', ')))
    io.stdout:flush()
    for _, host in ipairs(hosts) do
        for _, file in ipairs(units) do
            table.insert(jobs, {host = host, kind = 'unit', file = file})
        end
        -- Scripted peers are neither kind of storage: once.
        for _, file in ipairs(integrations) do
            if file.has_peers then
                table.insert(jobs, {host = host, kind = 'scripted peers', file = file})
            end
        end
        for _, kind in ipairs(kinds) do
            for _, file in ipairs(integrations) do
                if not file.has_peers then
                    table.insert(jobs, {host = host, kind = kind .. ' storages', file = file})
                end
            end
        end
    end
    if #jobs == 0 then
        print('No test file of such a name.')
        return 1
    end
    local tmp = fio.tempdir()
    box.ctl.on_shutdown(function()
        process.kill_all()
        fio.rmtree(tmp)
    end)

    local started = fiber.clock()
    local next_job = 1
    local workers = {}
    for _ = 1, tonumber(os.getenv('JOBS')) or 2 * (tonumber(lines_of('nproc')[1]) or 1) do
        local worker = fiber.new(function()
            while jobs[next_job] ~= nil do
                local job = jobs[next_job]
                job.number = next_job
                next_job = next_job + 1
                run_job(job, tmp)
            end
        end)
        worker:set_joinable(true)
        table.insert(workers, worker)
    end
    local is_good = true
    for _, worker in ipairs(workers) do
        local ok, err = worker:join()
        if not ok then
            is_good = false
            print('the runner failed: ' .. tostring(err))
        end
    end
    print('\n== all')
    for _, title in ipairs(totals.order) do
        local total = totals[title]
        is_good = is_good and total['not ok'] == 0
        print(('  %-28s %4d ok %4d not ok %4d skipped   %6.1f s'):format(title, total.ok, total['not ok'], total.skip,
                                                                        total.seconds))
    end
    print(('  %s in %.0f s'):format(is_good and 'passed' or 'FAILED', fiber.clock() - started))
    fio.rmtree(tmp)
    return is_good and 0 or 1
end

os.exit(main())
