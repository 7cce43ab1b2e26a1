-- cfg: forms of uri, refusals, reconfiguration under load.

package.path = './?.lua;' .. package.path
local cluster = require('test.helper.cluster')
local fiber = require('fiber')
local json = require('json')
local suite = require('test.helper.suite')

local s = suite.new('config', {router_cfg = false})

-- A router.cfg with changes, in the router. Returns ok and the raised text.
local function configure(c, cfg)
    local res = c.router:eval([[
        local ok, err = pcall(router.cfg, ...)
        return {ok = ok, err = type(err) == 'table' and (err.name or err.message) or tostring(err)}
    ]], {cfg})
    return res.ok, res.err
end

local function cfg_of(c, change)
    local cfg = {bucket_count = c.bucket_count, sharding = c:sharding()}
    for _, rs in pairs(cfg.sharding) do
        for _, replica in pairs(rs.replicas) do
            if change ~= nil then
                change(replica, cfg)
            end
        end
    end
    return cfg
end

local function serves(t, c, message)
    for _, rs in ipairs(c.replicasets) do
        local res = c.router:call('test_call', {rs.first, 'write', 'whoami', {}, {timeout = 5}})
        t:ok(res.ok and res.v[1] == rs.names[1], message, '  got: %s', json.encode(res))
    end
end

s:scenario('a router without cfg, then refusals, then cfg', {fe = false}, function(t, _, c)
    for _, case in ipairs({
        {'no sharding', {bucket_count = 30}, 'sharding'},
        {'bucket_count of a wrong type', {bucket_count = '30', sharding = {}}, 'bucket'},
        {'a wrong discovery mode', {bucket_count = 30, sharding = {}, discovery_mode = 'maybe'}, 'discovery'},
    }) do
        local ok, err = configure(c, case[2])
        t:ok(not ok and err:lower():find(case[3], 1, true) ~= nil, case[1], '  got: %s %s', tostring(ok), tostring(err))
    end
    local ok, err = configure(c, cfg_of(c))
    t:ok(ok, 'a good one', '  %s', tostring(err))
    serves(t, c, 'serves')
end)

s:scenario('the same cfg again', {fe = false}, function(t, _, c)
    for _ = 1, 3 do
        local ok, err = configure(c, cfg_of(c))
        t:ok(ok, 'accepted', '  %s', tostring(err))
        serves(t, c, 'serves')
    end
end)

s:scenario('bucket_count cannot change', {fe = false}, function(t, _, c)
    local cfg = cfg_of(c)
    cfg.bucket_count = 60
    local ok, err = configure(c, cfg)
    t:ok(not ok, 'refused', '  got: %s', tostring(err))
    serves(t, c, 'the old one serves')
end)

s:scenario('uri in table form', {fe = false, min_host = '2.10'}, function(t, _, c)
    local ok, err = configure(c, cfg_of(c, function(replica)
        replica.uri = {replica.uri}
    end))
    t:ok(ok, 'accepted', '  %s', tostring(err))
    serves(t, c, 'serves')
end)

s:scenario('TLS parameters are refused clearly', {fe = false, min_host = '2.10', router = 'rawshard'}, function(t, _, c)
    local ok, err = configure(c, cfg_of(c, function(replica)
        replica.uri = {uri = replica.uri, params = {transport = 'ssl'}}
    end))
    t:ok(not ok and err:find('TLS', 1, true) ~= nil and err:find('not supported', 1, true) ~= nil, 'named', '  %s', tostring(err))
    ok, err = configure(c, cfg_of(c, function(replica)
        replica.uri = replica.uri .. '?transport=ssl'
    end))
    t:ok(not ok and err:find('TLS', 1, true) ~= nil, 'in a string too', '  %s', tostring(err))
    serves(t, c, 'the old one serves')
end)

s:scenario('a wrong password', {fe = false, router = 'rawshard'}, function(t, _, c)
    local ok, err = configure(c, cfg_of(c, function(replica)
        replica.uri = replica.uri:gsub('storage:storage@', 'storage:wrong@')
    end))
    t:ok(ok, 'the configuration is fine', '  %s', tostring(err))
    local started = fiber.clock()
    local res = c.router:call('test_call', {1, 'write', 'whoami', {}, {timeout = 1}})
    t:ok(res.ok and res.v[1] == nil and res.v[2] ~= nil, 'calls fail by an error', '  got: %s', json.encode(res))
    t:within(fiber.clock() - started, 0, 2.5, 'in time')
    t:ok(not json.encode(res):find('wrong@', 1, true), 'no secret in it')
    ok, err = configure(c, cfg_of(c))
    t:ok(ok, 'the right one again', '  %s', tostring(err))
    serves(t, c, 'serves')
end)

s:scenario('io_threads', {fe = false, router = 'rawshard'}, function(t, _, c)
    local cfg = cfg_of(c)
    cfg.io_threads = 0
    local ok = configure(c, cfg)
    t:ok(not ok, '0 is refused')
    cfg.io_threads = 'many'
    ok = configure(c, cfg)
    t:ok(not ok, 'a string is refused')
    serves(t, c, 'serves')
end)

s:scenario('what is refused changes nothing', {fe = false, router = 'rawshard'}, function(t, _, c)
    local function password(bytes)
        return function(cfg)
            for _, rs in pairs(cfg.sharding) do
                for _, replica in pairs(rs.replicas) do
                    replica.uri = replica.uri:gsub('storage:storage@', 'storage:' .. bytes .. '@')
                end
            end
        end
    end
    local before = c.router:eval('return box.cfg.readahead')
    for name, change in pairs({
        bucket_count = function(cfg) cfg.bucket_count = 60 end,
        io_threads = function(cfg) cfg.io_threads = 2 end,
        ['a count of no 32 bits'] = function(cfg) cfg.failover_sequential_fail_count = 2 ^ 40 end,
        ['a limit of no 32 bits'] = function(cfg) cfg.max_in_flight = 2 ^ 40 end,
        ['a password that is no text'] = password('\xff\xfe'),
    }) do
        local cfg = cfg_of(c)
        cfg.readahead = 2 * before
        change(cfg)
        local ok = configure(c, cfg)
        t:ok(not ok, name .. ': refused')
        t:is(c.router:eval('return box.cfg.readahead'), before, name .. ': box.cfg is as it was')
    end
    serves(t, c, 'the old one serves')
end)

s:scenario('reconfigured under load', {fe = false}, function(t, _, c)
    local cfg, small = cfg_of(c), cfg_of(c)
    -- r1 loses its replica and gets it back, again and again.
    for id, replica in pairs(small.sharding[c.replicasets[1].id].replicas) do
        if not replica.master then
            small.sharding[c.replicasets[1].id].replicas[id] = nil
        end
    end
    local res = c.router:eval([[
        local cfg, small = ...
        local done, failed = 0, {}
        local is_over = false
        local workers = {}
        for i = 1, 20 do
            workers[i] = fiber.new(function()
                local n = 0
                while not is_over do
                    n = n + 1
                    local res, err = router.callrw(n % 30 + 1, 'echo', {i * 1000000 + n}, {timeout = 5})
                    if res ~= i * 1000000 + n then
                        table.insert(failed, tostring(res) .. ' ' .. tostring(err))
                    end
                    done = done + 1
                end
            end)
            workers[i]:set_joinable(true)
        end
        for _ = 1, 5 do
            router.cfg(small)
            fiber.sleep(0.02)
            router.cfg(cfg)
            fiber.sleep(0.02)
        end
        is_over = true
        for i = 1, 20 do
            workers[i]:join()
        end
        return {done = done, failed = #failed, first = failed[1]}
    ]], {cfg, small})
    t:ok(res.done > 0, 'calls were made')
    t:is(res.failed, 0, 'none failed', '  %s', tostring(res.first))
    if res.first ~= nil then
        t:note('  the first: %s', res.first)
    end
    serves(t, c, 'serves')
end)

s:scenario('unix sockets', {fe = false}, function(t)
    local c = cluster.new({unix = true})
    c:start()
    for _, rs in ipairs(c.replicasets) do
        local res = c.router:call('test_call', {rs.first, 'write', 'whoami', {}, {timeout = 5}})
        t:ok(res.ok and res.v[1] == rs.names[1], 'serves', '  got: %s', json.encode(res))
    end
    c:stop()
end)

s:scenario('two I/O threads', {fe = false, router = 'rawshard'}, function(t)
    local c = cluster.new({router_cfg = {io_threads = 2}})
    c:start()
    local wrong = c.router:eval([[
        local wrong = 0
        local workers = {}
        for i = 1, 50 do
            workers[i] = fiber.new(function()
                for n = 1, 100 do
                    if router.callrw((i + n) % 30 + 1, 'echo', {i * 1000 + n}, {timeout = 10}) ~= i * 1000 + n then
                        wrong = wrong + 1
                    end
                end
            end)
            workers[i]:set_joinable(true)
        end
        for i = 1, 50 do
            workers[i]:join()
        end
        return wrong
    ]])
    t:is(wrong, 0, 'wrong answers')
    t:is(c.router:eval('return #router.info().engines'), 2, 'two engines')
    c:stop()
end)

s:run()
