-- `make demo`: a cluster of real Tarantool processes on this machine, one call across it shown from both sides, and ten
-- seconds of load through the raw entry beside a plain Lua forwarder. Everything it starts it stops, also after Ctrl-C.

local fio = require('fio')
package.path = fio.dirname(fio.dirname(fio.abspath(arg[0]))) .. '/?.lua;' .. package.path

local cluster = require('test.helper.cluster')
local env = require('test.helper.env')
local fiber = require('fiber')
local json = require('json')
local net_box = require('net.box')
local process = require('test.helper.process')

local SECONDS = tonumber(os.getenv('DEMO_SECONDS')) or 10
local CONNECTIONS, BATCH = 8, 200

local function say(format, ...)
    print(format:format(...))
    io.stdout:flush()
end

-- What users write who route by hand: decode, net.box call, encode.
local forwarder = [[
    local net_box = require('net.box')
    local conns, first = {}, {}
    for i, storage in ipairs(...) do
        conns[i] = net_box.connect(storage.uri)
        first[i] = storage.first
    end
    function forward(bucket_id, mode, func, args, opts)
        local conn = bucket_id >= first[2] and conns[2] or conns[1]
        local ok, res = conn:call('vshard.storage.call', {bucket_id, mode, func, args}, {timeout = opts.timeout})
        if ok then
            return res
        end
        return nil, res
    end
]]

-- Sends batches over all connections until the time is over. Returns requests/s and the router's TX time per request.
local function load(c, conns, func, seconds)
    local before = c.router:eval("return require('clock').thread()")
    local started = fiber.clock()
    local deadline = started + seconds
    local done, failed = 0, nil
    local workers = {}
    for i, conn in ipairs(conns) do
        workers[i] = fiber.new(function()
            local n = i
            local futures = {}
            local options = {is_async = true}
            while fiber.clock() < deadline and failed == nil do
                for j = 1, BATCH do
                    n = n + 1
                    futures[j] = conn:call(func, {n % c.bucket_count + 1, 'write', 'echo', {n}, {timeout = 10}}, options)
                end
                for j = 1, BATCH do
                    local res, err = futures[j]:wait_result(20)
                    if res == nil then
                        failed = tostring(err)
                        return
                    end
                end
                done = done + BATCH
            end
        end)
        workers[i]:set_joinable(true)
    end
    for _, worker in ipairs(workers) do
        worker:join()
    end
    if failed ~= nil then
        error('the load failed: ' .. failed)
    end
    local seconds_spent = fiber.clock() - started
    local tx = c.router:eval("return require('clock').thread()") - before
    return done / seconds_spent, tx / done * 1e6
end

local function main()
    local storages = os.getenv('STORAGE') or (env.vshard ~= nil and 'vshard' or 'helper')
    say('rawshard demo, Tarantool %s; storages: %s', _TARANTOOL,
        storages == 'vshard' and 'vshard.storage' or 'test/helper/storage.lua (vshard is not installed)')
    local c = cluster.new({bucket_count = 3000, storages = storages})
    c:start()
    for _, rs in ipairs(c.replicasets) do
        say('  replicaset %s', rs.id)
        for i, name in ipairs(rs.names) do
            say('    %s  %-21s %s', name, c.storages[name]:uri(), i == 1 and 'master' or 'replica')
        end
    end
    say('  router %s', c.router:uri())
    cluster.wait_until('all buckets', function()
        return c.router:eval('return router.info().bucket.unknown') == 0
    end)
    say('  buckets known: all %d', c.bucket_count)

    local client = net_box.connect('client:secret@' .. c.router:uri(), {wait_connected = 10})
    local entry = c.router_kind == 'rawshard' and 'rawshard.callraw' or 'forward'
    local masters = {}
    for i, rs in ipairs(c.replicasets) do
        masters[i] = {uri = 'storage:storage@' .. rs.master:uri(), first = rs.first}
    end
    c.router:eval(forwarder, {masters})
    c.router:eval([[box.schema.func.create('forward', {if_not_exists = true})
                    box.schema.user.grant('client', 'execute', 'function', 'forward', {if_not_exists = true})]])

    local function show(request)
        say('\n  client:call(%q, %s)', entry, json.encode(request))
        local answer = {client:call(entry, request)}
        for i = 1, table.maxn(answer) do
            answer[i] = answer[i] == nil and box.NULL or answer[i]
        end
        say('  -> %s', json.encode(answer))
    end
    say('\nOne call, and one whose function raises, from a plain net.box client:')
    if env.wraps_c_results and entry == 'rawshard.callraw' then
        say('(before Tarantool 3.0 the values of a C stored function arrive in one array)')
    end
    show({1234, 'write', 'echo', {{id = 7, name = 'seven'}}, {timeout = 1}})
    show({1234, 'read', 'boom', {'no such order'}, {timeout = 1}})

    local conns = {}
    for i = 1, CONNECTIONS do
        conns[i] = net_box.connect('client:secret@' .. c.router:uri(), {wait_connected = 10})
    end
    say('\nLoad: %d connections, %d calls each in flight, %g s per line, in turns of a second:', CONNECTIONS, BATCH, SECONDS)
    local kinds = {{'plain Lua forwarder', 'forward', 0, 0}}
    if c.router_kind == 'rawshard' then
        table.insert(kinds, 1, {'rawshard.callraw', 'rawshard.callraw', 0, 0})
    end
    local turns = math.max(1, math.floor(SECONDS))
    for _ = 1, turns do
        for _, kind in ipairs(kinds) do
            local rate, tx = load(c, conns, kind[2], SECONDS / turns)
            kind[3] = kind[3] + rate / turns
            kind[4] = kind[4] + tx / turns
        end
    end
    say('  %-22s %12s %22s', '', 'requests/s', 'TX µs per request')
    for _, kind in ipairs(kinds) do
        say('  %-22s %12.0f %21.1f', kind[1], kind[3], kind[4])
    end
    c:stop()
    say('\nstopped.')
end

local ok, err = pcall(main)
if process.is_shutting_down then
    -- Ctrl-C: the trigger in cluster.lua has ended the processes, and that is what failed here.
    print('\nstopped.')
    os.exit(130)
elseif not ok then
    print(err)
    os.exit(1)
end
os.exit(0)
