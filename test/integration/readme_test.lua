-- What README.md shows is run: each fenced block names itself behind its language (```lua router.lua), and each command of a
-- ```sh block is known here. A line's expected output stands behind --> (in Python #>), or on a line of its own below.
--
-- The files run as a reader would run them, out of an empty directory into which the package was installed by `make
-- install`; only ports and directories are exchanged. `make demo` runs with a short load. `make test` is what runs this.

package.path = './?.lua;' .. package.path
local cluster = require('test.helper.cluster')
local env = require('test.helper.env')
local fio = require('fio')
local net_box = require('net.box')
local process = require('test.helper.process')
local suite = require('test.helper.suite')

local s = suite.new('readme', {router = false})

local function read_file(path)
    local f = assert(io.open(path, 'rb'))
    local text = f:read('*a')
    f:close()
    return text
end

local function write_file(path, text)
    local f = assert(io.open(path, 'wb'))
    f:write(text)
    f:close()
end

-- Blocks by the name behind their language; `sh` ones as a list of commands.
local function read_readme()
    local blocks, commands = {}, {}
    local block
    for line in read_file(fio.pathjoin(env.root, 'README.md')):gmatch('([^\n]*)\n') do
        local language, name = line:match('^```(%a+) ?(%S*)$')
        if block == nil and language ~= nil then
            block = {language = language, name = name ~= '' and name or language, lines = {}}
        elseif line == '```' then
            if block.language == 'sh' then
                for _, command in ipairs(block.lines) do
                    table.insert(commands, (command:gsub('%s*#.*$', '')))
                end
            else
                blocks[block.name] = block
                block.text = table.concat(block.lines, '\n') .. '\n'
            end
            block = nil
        elseif block ~= nil then
            table.insert(block.lines, line)
        end
    end
    return blocks, commands
end

local blocks, commands = read_readme()

-- What a block says that it prints.
local function expected_output(block)
    local mark = block.language == 'python' and '#>' or '-->'
    local lines = {}
    for _, line in ipairs(block.lines) do
        local at = line:find(mark, 1, true)
        if at ~= nil then
            table.insert(lines, (line:sub(at + #mark):gsub('^ ', '')))
        end
    end
    return table.concat(lines, '\n') .. '\n'
end

-- The directory of the application, and what runs in it.
local app
local router_process, router_port

local function in_app(name)
    return fio.pathjoin(app, name)
end

-- README's ports and directories are examples.
local function localized(text, c)
    local ports = {['3300'] = tostring(router_port)}
    for i, name in ipairs(c.names) do
        ports[tostring(3300 + i)] = c.storages[name]:uri():match(':(%d+)$')
    end
    return (text:gsub('127%.0%.0%.1([:,] ?)(%d+)', function(colon, port)
        return '127.0.0.1' .. colon .. (ports[port] or port)
    end):gsub('("127%.0%.0%.1", )(%d+)', function(before, port)
        return before .. (ports[port] or port)
    end))
end

local function run(argv, opts)
    opts = opts or {}
    local log = opts.log or fio.pathjoin(opts.cwd or app, 'output')
    fio.unlink(log)
    local p = process.spawn(argv, {
        cwd = opts.cwd or app, log = log, err = opts.err,
        -- No word of the make that may have started us, and nothing of this tree on the paths.
        env = {
            MAKEFLAGS = '', MFLAGS = '', TARANTOOL = env.tarantool, ROUTER = 'rawshard', STORAGE = env.storage_kind,
            DEMO_SECONDS = '1',
        },
    })
    local in_time = p:wait(opts.timeout or 60)
    if not in_time then
        p:terminate()
    end
    local status = in_time and p:exit_status() or 'a timeout'
    p:reap()
    return status, read_file(log)
end

local function shell(command, opts)
    return run({'/bin/sh', '-c', 'exec ' .. command}, opts)
end

-- The directory with the package in it, made by the command that README names.
local function install(c)
    if app ~= nil then
        return
    end
    app = fio.pathjoin(c.dir, 'app')
    fio.mktree(app)
    for _, command in ipairs(commands) do
        if command:startswith('make install') then
            return shell(command:gsub('/opt/myapp', app), {cwd = env.root, timeout = 400, log = in_app('install')})
        end
    end
    error('README has no `make install`')
end

-- A snippet as a script of its own process, which ends with us.
local function script(name, text)
    write_file(in_app(name), ([[
        local path = package.path
        package.path = '%s/?.lua;' .. path
        require('test.helper.orphan').watch(9)
        package.path = path
    ]]):format(env.root):gsub('\n%s*', ' ') .. text)
    return name
end

local function start_router(c)
    install(c)
    if router_process ~= nil and router_process:is_alive() then
        return
    end
    router_port = cluster.free_port()
    local text = blocks['router.lua'].text .. blocks['endpoints.lua'].text
    router_process = process.spawn({env.tarantool, script('router.lua', localized(text, c))},
                                   {cwd = app, log = in_app('router.log')})
    cluster.wait_until('the router of README', function()
        if not router_process:is_alive() then
            error('the router of README has ended:\n' .. router_process:log_tail())
        end
        local conn = net_box.connect('client:secret@127.0.0.1:' .. router_port, {wait_connected = 1})
        local is_there = conn:is_connected() and pcall(conn.call, conn, 'rawshard.callraw', {1, 'read', 'echo'})
        conn:close()
        return is_there
    end)
end

-- A snippet that is run on the router: in a process of its own, behind the router's own lines or others.
local function on_router(c, name, before_it)
    install(c)
    local before = router_port
    router_port = cluster.free_port()
    local dir = in_app(name .. '.dir')
    fio.mktree(dir)
    local text = localized(before_it or blocks['router.lua'].text, c) .. blocks[name].text .. 'os.exit(0)\n'
    local status, output = run({env.tarantool, script(name, ("require('fio').chdir('%s') "):format(dir) .. text)},
                               {log = in_app(name .. '.out'), err = in_app(name .. '.err')})
    router_port = before
    return status, output, read_file(in_app(name .. '.err'))
end

local function says(t, block, status, output, more)
    t:is(status, 0, 'it ends well')
    t:is(output, expected_output(block), 'it prints what README says')
    if status ~= 0 then
        t:note('%s', (more or output):sub(-2000))
    end
end

s:scenario('every block has its test', {fe = false}, function(t)
    local known = {
        'router.lua', 'client.lua', 'client.py', 'unwrap.lua', 'endpoints.lua', 'keys.lua', 'use.lua', 'raw.lua', 'attach.lua',
        'text',
    }
    for name in pairs(blocks) do
        local is_known = false
        for _, other in ipairs(known) do
            is_known = is_known or name == other
        end
        t:ok(is_known, 'no test runs the block ' .. name)
    end
    for _, name in ipairs(known) do
        t:ok(blocks[name] ~= nil, 'a block ' .. name)
    end
    local starts = {
        'make demo', 'make test', 'make install ', 'tarantoolctl rocks make ', 'tt rocks make ', 'pip install tarantool==',
    }
    for _, command in ipairs(commands) do
        local is_known = false
        for _, start in ipairs(starts) do
            is_known = is_known or command:startswith(start)
        end
        t:ok(is_known, 'no test runs the command ' .. command)
    end
end)

s:scenario('the map of the tree', {fe = false}, function(t)
    for _, line in ipairs(blocks.text.lines) do
        -- Several names stand on a line of their own.
        local names = line:match('^%S+  %S+  %S+$') and line:split() or {(line:match('^%S+'))}
        for _, name in ipairs(names) do
            t:ok(name == '' or fio.path.exists(fio.pathjoin(env.root, name)), name .. ' exists')
        end
    end
end)

s:scenario('links lead somewhere', {fe = false}, function(t)
    local names = {'README.md', 'docs/architecture.md', 'docs/compat.md', 'docs/safety.md', 'docs/operations.md',
                   'docs/performance.md'}
    for _, name in ipairs(names) do
        local path = fio.pathjoin(env.root, name)
        for target in read_file(path):gmatch('%]%(([^)#]+)[^)]*%)') do
            if not target:startswith('https://') then
                t:ok(fio.path.exists(fio.pathjoin(fio.dirname(path), target)), name .. ': ' .. target)
            end
        end
    end
    t:ok(true, 'all looked at')
end)

s:scenario('tests named in docs/compat.md exist', {fe = false}, function(t)
    local text = read_file(fio.pathjoin(env.root, 'docs/compat.md'))
    for file, name in text:gmatch('`([%w_/%.]+): ([^`]+)`') do
        if file == 'file' then
            goto continue
        end
        local path = fio.path.exists(fio.pathjoin(env.root, file)) and file
        if file == 'oracle_test' then
            -- Names of differences: in the rows.
            for _, rows in ipairs(fio.glob(fio.pathjoin(env.root, 'test/oracle/*.lua'))) do
                path = read_file(rows):find(name, 1, true) and 'test/oracle/' .. fio.basename(rows) or path
            end
            path = path or 'test/helper/oracle.lua'
        end
        for _, dir in ipairs({'test/integration/', 'test/unit/'}) do
            if path == false and fio.path.exists(fio.pathjoin(env.root, dir .. file .. '.lua')) then
                path = dir .. file .. '.lua'
            end
        end
        t:ok(path and read_file(fio.pathjoin(env.root, path)):find(name, 1, true) ~= nil, file .. ': ' .. name)
        ::continue::
    end
end)

s:scenario('make install', {fe = false}, function(t, _, c)
    local status, output = install(c)
    t:is(status or 0, 0, 'it ends well')
    if status ~= nil and status ~= 0 then
        t:note('%s', output:sub(-2000))
    end
    t:ok(fio.path.exists(in_app('.rocks/lib/tarantool/rawshard.so')), 'the library is there')
    t:ok(fio.path.exists(in_app('.rocks/share/tarantool/rawshard/router.lua')), 'the Lua files are there')
end)

-- The stored function's library is looked for by Tarantool itself, the Lua module by `require`: both without our help.
local function serves(t, c, name)
    start_router(c)
    local text = localized(blocks[name].text, c)
    if not env.at_least('2.11') then
        local found
        text, found = text:gsub('local function call%b().-\nend\n', (blocks['unwrap.lua'].text:gsub('%%', '%%%%')))
        t:is(found, 1, name .. ' has a function that can be exchanged')
    end
    local base = name:match('^%a+')
    local status, output = run({env.tarantool, script(name, text .. 'os.exit(0)\n')},
                               {log = in_app(base .. '.out'), err = in_app(base .. '.err')})
    says(t, blocks[name], status, output, read_file(in_app(base .. '.err')))
end

s:scenario('router.lua serves client.lua', {fe = false}, function(t, _, c)
    serves(t, c, 'client.lua')
end)

s:scenario('endpoints.lua serves keys.lua', {fe = false}, function(t, _, c)
    serves(t, c, 'keys.lua')
end)

s:scenario('router.lua serves the Lua entry', {fe = false, min_host = '2.10'}, function(t, _, c)
    start_router(c)
    local conn = net_box.connect('client:secret@127.0.0.1:' .. router_port, {wait_connected = 10})
    local values = {conn:call('vshard.router.callraw', {1, 'read', 'echo', {'hello', {1, 2}}, {timeout = 5}})}
    t:is(values, {'hello', {1, 2}}, 'the same values')
    conn:close()
end)

local has_connector = os.execute("python3 -c 'import tarantool' 2>/dev/null") == 0

s:scenario('client.py', {
    fe = false, missing = not has_connector and 'python3 has no module tarantool' or nil,
}, function(t, _, c)
    start_router(c)
    local text = localized(blocks['client.py'].text, c)
    if not env.at_least('2.11') then
        text = text:gsub('%.data\n', '.data[0]\n')
    end
    write_file(in_app('client.py'), text)
    local status, output = run({'python3', 'client.py'}, {log = in_app('python.out'), err = in_app('python.err')})
    says(t, blocks['client.py'], status, output, read_file(in_app('python.err')))
end)

s:scenario('use.lua', {fe = false}, function(t, _, c)
    says(t, blocks['use.lua'], on_router(c, 'use.lua'))
end)

s:scenario('raw.lua', {fe = false, min_host = '2.10'}, function(t, _, c)
    says(t, blocks['raw.lua'], on_router(c, 'raw.lua'))
end)

s:scenario('attach.lua', {
    fe = false, missing = env.vshard == nil and 'vshard is not found' or nil,
}, function(t, _, c)
    local cfg = blocks['router.lua'].text:match('router%.cfg%((%b{})%)'):gsub('io_threads = 1,', '')
    local path = ("package.path = '%s/?.lua;%s/?/init.lua;' .. package.path\n"):format(env.vshard, env.vshard)
    says(t, blocks['attach.lua'], on_router(c, 'attach.lua', path .. 'local cfg = ' .. cfg .. '\n'))
end)

local function rock(t, c, start, command_of)
    install(c)
    local dir = fio.pathjoin(c.dir, start:match('^%S+'))
    fio.mktree(dir)
    for _, command in ipairs(commands) do
        if command:startswith(start) then
            local cwd, line = command_of(dir, command)
            local status, output = shell(line, {cwd = cwd, timeout = 400, log = fio.pathjoin(dir, 'rocks')})
            t:is(status, 0, command .. ' ends well')
            if status ~= 0 then
                t:note('%s', output:sub(-2000))
            end
        end
    end
    -- The stored function by itself, without a router: it is found, and says what is missing.
    write_file(fio.pathjoin(dir, 'look.lua'), [[
        box.cfg({log_level = 1})
        local version = require('rawshard.version').VERSION
        require('rawshard.router')
        box.schema.func.create('rawshard.callraw', {language = 'C'})
        local ok, err = pcall(box.func['rawshard.callraw'].call, box.func['rawshard.callraw'], {1, 'read', 'echo'})
        print(version ~= nil, ok, tostring(err))
        os.exit(0)
    ]])
    local status, output = run({env.tarantool, 'look.lua'}, {cwd = dir, log = fio.pathjoin(dir, 'out')})
    t:is(status, 0, 'it is loaded')
    t:has(output, 'true\tfalse\trawshard: no router is configured', 'both halves are found')
end

-- It is a script of the Tarantool beside it.
local tarantoolctl = fio.pathjoin(fio.dirname(env.tarantool), 'tarantoolctl')

s:scenario('tarantoolctl rocks make', {
    fe = false, missing = not fio.path.exists(tarantoolctl) and 'this Tarantool has no tarantoolctl beside it' or nil,
}, function(t, _, c)
    rock(t, c, 'tarantoolctl rocks make', function(dir, command)
        return env.root, (command:gsub('^tarantoolctl', tarantoolctl):gsub('/opt/myapp', dir))
    end)
end)

local has_tt = os.execute('command -v tt >/dev/null 2>&1') == 0

s:scenario('tt rocks make', {fe = false, missing = not has_tt and 'there is no tt on PATH' or nil}, function(t, _, c)
    rock(t, c, 'tt rocks make', function(dir, command)
        return dir, (command:gsub('/opt/rawshard', env.root))
    end)
end)

s:scenario('make demo', {fe = false}, function(t)
    local dir = fio.tempdir()
    local status, output = shell('make demo', {cwd = env.root, timeout = 400, log = fio.pathjoin(dir, 'demo')})
    fio.rmtree(dir)
    t:is(status, 0, 'it ends well')
    t:has(output, 'requests/s', 'figures')
    t:has(output, 'stopped.', 'it stops what it started')
    if status ~= 0 then
        t:note('%s', output:sub(-2000))
    end
end)

s:scenario('what was started is stopped', {fe = false}, function(t)
    if router_process ~= nil then
        t:ok(router_process:is_alive(), 'the router of README has lived until now', '%s', router_process:log_tail())
        t:ok(router_process:terminate(), 'it ends by SIGTERM')
    end
    t:ok(true, 'done')
end)

s:run()
