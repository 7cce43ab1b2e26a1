-- Buckets that are not where the router believes, or not ready; replicasets and replicas that do not serve.

local fiber = require('fiber')
local msgpack = require('msgpack')

local rows = require('test.helper.rows').new('buckets')

local has_objects = msgpack.object ~= nil

local R1, R2 = 'aaaaaaaa-0000-4000-8000-000000000001', 'aaaaaaaa-0000-4000-8000-000000000002'

-- Both routers know every bucket at its first place, and nobody is in backoff.
local function learn(side)
    require('test.helper.cluster').wait_until('the routes of ' .. side.name, function()
        return side.router:eval([[
            router._route_map_clear()
            for id = 1, 30 do
                local rs = router.route(id)
                if rs == nil or rs.id:sub(-1) ~= (id <= 15 and '1' or '2') then
                    return false
                end
            end
            for _, id in ipairs({1, 30}) do
                local ok = router.callrw(id, 'echo', {true}, {timeout = 1}) and
                    router.callre(id, 'whoami', {}, {timeout = 1}) == (id == 1 and 's1b' or 's2b')
                if not ok then
                    return false
                end
            end
            return true
        ]]) == true
    end)
end

-- A state of the cluster that is made anew for each router.
local function state(name, opts)
    local before, after = opts.before, opts.after
    opts.before = function(c, side)
        learn(side)
        before(c, side)
    end
    opts.after = function(c, side)
        if after ~= nil then
            after(c, side)
        end
        c:heal()
        require('test.helper.cluster').wait_until('writes by ' .. side.name, function()
            return side.router:eval("return (router.callrw(1, 'echo', {true}, {timeout = 1}))") == true
        end)
    end
    rows:state(name, opts)
end

local ways = {'callrw', 'callro', 'callbro', 'callre', 'callbre'}

-- For calls that end with a refusal at their deadline: on a busy machine that may come while somebody is being asked, and then
-- all there is to tell is that the time is over. They are asked for again.
local function until_refused(call)
    local res, err
    for _ = 1, 10 do
        res, err = call()
        if err == nil or (err.code ~= box.error.TIMEOUT and err.type ~= 'TimedOut') then
            break
        end
    end
    return res, err
end

-- All ways of calling a bucket.
local function every_way(bucket, timeout, opts)
    local finish = opts ~= nil and opts.refused and until_refused or function(call) return call() end
    for _, name in ipairs(ways) do
        local function call(r, key)
            return finish(function() return r[name](bucket, 'count', {key}, {timeout = timeout}) end)
        end
        rows:add(name, call)
        rows:add(name .. ', again', call)
        rows:add(name .. ', is_async', function(r, key)
            return finish(function()
                local future, err = r[name](bucket, 'count', {key}, {timeout = timeout, is_async = true})
                if future == nil then
                    return nil, err
                end
                return future:wait_result(timeout + 1)
            end)
        end)
        if has_objects then
            rows:add(name .. ', return_raw', function(r, key)
                return finish(function()
                    return r[name](bucket, 'count', {key}, {timeout = timeout, return_raw = true})
                end)
            end)
        end
    end
    rows:add('route', function(r) return r.route(bucket) end)
    rows:add('map_callrw', function(r, key)
        -- Enough for a search on a busy machine.
        local res, err = r.map_callrw('count', {key}, {timeout = 5, bucket_ids = {bucket}})
        return res, err
    end)
end

-- vshard takes the refusal for a result.
local function refusal(vshard)
    return {differs = 'a refusal is followed in raw mode and by futures', vshard = vshard,
            rawshard = {'[1]="KEY"}', 'executed 1 times'}}
end

for _, status in ipairs({'sent', 'garbage'}) do
    for _, way in ipairs(ways) do
        state(('%s, with destination: %s'):format(status, way), {jobs = 1, before = function(c)
            c:set_bucket(c.replicasets[2], 3, 'active')
            c:set_bucket(c.replicasets[1], 3, status, R2)
        end})
        rows:add(way, function(r, key) return r[way](3, 'count', {key}, {timeout = 5}) end)
        rows:add('its route then', function(r) return r.route(3), r.buckets_info(2, 1) end)
    end
end
for _, way in ipairs({'callrw', 'callro'}) do
    for _, more in ipairs({'is_async', 'return_raw'}) do
        if more ~= 'return_raw' or has_objects then
            state(('sent, with destination: %s, %s'):format(way, more), {jobs = 1, before = function(c)
                c:set_bucket(c.replicasets[2], 3, 'active')
                c:set_bucket(c.replicasets[1], 3, 'sent', R2)
            end})
            rows:add(way, function(r, key)
                local res, err = r[way](3, 'count', {key}, {timeout = 5, [more] = true})
                if more == 'is_async' then
                    return res:wait_result(5)
                end
                return res, err
            end, refusal({
                more == 'is_async' and 'returned seq{[1]=map{' or 'returned object seq{[1]=map{', 'type="ShardingError"}',
            }))
        end
    end
end

state('gone, without destination', {jobs = 1, before = function(c)
    c:set_bucket(c.replicasets[2], 3, 'active')
    c:set_bucket(c.replicasets[1], 3, nil)
end})
rows:add('callrw', function(r, key) return r.callrw(3, 'count', {key}, {timeout = 5}), r.route(3) end)

state('gone for good', {jobs = 2, before = function(c) c:set_bucket(c.replicasets[1], 3, nil) end})
every_way(3, 0.1, {refused = true})

state('a destination that nobody knows', {jobs = 4, before = function(c)
    c:set_bucket(c.replicasets[1], 3, 'sent', 'cccccccc-0000-4000-8000-000000000009')
end})
rows:add('callrw', function(r, key)
    return until_refused(function() return r.callrw(3, 'count', {key}, {timeout = 0.3}) end)
end)

state('sending', {jobs = 4, before = function(c) c:set_bucket(c.replicasets[1], 3, 'sending', R2) end})
for _, way in ipairs({'callro', 'callbro', 'callre', 'callbre'}) do
    rows:add(way, function(r, key) return r[way](3, 'count', {key}, {timeout = 5}) end)
end
rows:add('callrw', function(r, key)
    local res, err = r.callrw(3, 'count', {key}, {timeout = 0.3})
    -- Of whom it was asked last, or the time.
    return res, type(err), type(err.code)
end)
rows:add('map_callrw', function(r, key)
    local res, err = r.map_callrw('count', {key}, {timeout = 0.3, bucket_ids = {3}})
    return res, err and (err.code == 78 or err.type == 'TimedOut')
end)

state('pinned', {jobs = 4, before = function(c) c:set_bucket(c.replicasets[1], 3, 'pinned') end})
every_way(3, 2)

-- Storages that do not serve.

state('a disabled master', {jobs = 1, before = function(c) c.storages.s1a:call('test_storage_enable', {false}) end})
rows:add('callrw', function(r, key)
    return until_refused(function() return r.callrw(3, 'count', {key}, {timeout = 0.3}) end)
end)
rows:add('callre', function(r, key) return r.callre(3, 'count', {key}, {timeout = 2}) end)
rows:add('callro', function(r, key) return r.callro(3, 'count', {key}, {timeout = 2}) end)
rows:add('callbro', function(r, key) return r.callbro(3, 'count', {key}, {timeout = 2}) end)
rows:add('the other replicaset', function(r, key) return r.callrw(30, 'count', {key}, {timeout = 2}) end)
rows:add('map_callrw', function(r, key)
    return r.map_callrw('count', {key}, {timeout = 0.5, bucket_ids = {3}})
end, {
    differs = 'map_callrw: a disabled storage is told as such',
    vshard = {'type="LuajitError"', '\\"name\\":\\"STORAGE_IS_DISABLED\\"'},
    rawshard = {'code=33', 'name="STORAGE_IS_DISABLED"', 'type="ShardingError"'},
})
rows:add('route():callrw', function(r) return r.route(3):callrw('vshard.storage.buckets_count', {}, {timeout = 0.5}) end)
rows:add('replica:call', function(r) return r.route(3).master:call('vshard.storage.buckets_count', {}, {timeout = 0.5}) end)
rows:add('sync', function(r) return r.sync(0.5) end)

state('a disabled replicaset', {jobs = 1, before = function(c)
    c.storages.s1a:call('test_storage_enable', {false})
    c.storages.s1b:call('test_storage_enable', {false})
end})
for _, way in ipairs({'callro', 'callbro', 'callre', 'callbre'}) do
    rows:add(way, function(r, key)
        local res, err = r[way](3, 'count', {key}, {timeout = 0.5})
        return res, err.name, err.code, err.replicaset, err.error and err.error.name, err.error and err.error.reason
    end)
end

-- The router believes the wrong one to be the master: the replica of the first replicaset is promoted in its configuration.
local function swap(side)
    side.router:eval([[
        local cfg = table.deepcopy(router.static.current_cfg)
        for id, rs in pairs(cfg.sharding) do
            if id:sub(-1) == '1' then
                for _, replica in pairs(rs.replicas) do
                    replica.master = replica.name == 's1b'
                end
            end
        end
        _G.true_cfg = table.deepcopy(router.static.current_cfg)
        router.cfg(cfg)
    ]])
end

state('a master that is none', {jobs = 1, before = function(_, side) swap(side) end, after = function(_, side)
    side.router:eval('router.cfg(true_cfg)')
end})
rows:add('callrw', function(r, key) return r.callrw(3, 'count', {key}, {timeout = 1}) end, {
    differs = 'NON_MASTER is followed', vshard = {'returned nil, err{', 'name="NON_MASTER"'},
    rawshard = 'returned "KEY"; executed 1 times',
})
rows:add('callro', function(r, key) return r.callro(3, 'count', {key}, {timeout = 1}) end)
rows:add('callbre', function(r, key) return r.callbre(3, 'count', {key}, {timeout = 1}) end)
rows:add('info', function(r) return #r.info().alerts >= 0, r.info().replicasets[R1].master.status end)

-- A master that is down.
state('a master that is down', {jobs = 1, before = function(c, side)
    c.storages.s1a:kill()
    -- vshard's nearest replica moves by and by.
    require('test.helper.cluster').wait_until('the loss', function()
        local master, replica = side.router:eval([[
            local rs = router.info().replicasets[...]
            return rs.master.status, rs.replica.status
        ]], {R1})
        return master == 'unreachable' and replica == 'available'
    end)
end})
rows:add('callrw', function(r, key)
    local started = fiber.clock()
    local res, err = r.callrw(3, 'count', {key}, {timeout = 0.5})
    local seconds = fiber.clock() - started
    return res, type(err), err.code == 77 or err.code == 78 or err.type == 'TimedOut', seconds < 1
end)
for _, way in ipairs({'callro', 'callbro', 'callre', 'callbre'}) do
    rows:add(way, function(r) return r[way](3, 'whoami', {}, {timeout = 1}) end)
    rows:add(way .. ', is_async', function(r) return r[way](3, 'whoami', {}, {timeout = 1, is_async = true}):wait_result(1) end)
end
rows:add('the other replicaset', function(r, key) return r.callrw(30, 'count', {key}, {timeout = 2}) end)
rows:add('map_callrw of the other', function(r, key)
    return r.map_callrw('count', {key}, {timeout = 2, bucket_ids = {30}})
end)
rows:add('map_callrw', function(r, key)
    local res, err, id = r.map_callrw('count', {key}, {timeout = 0.5})
    return res, type(err), id
end)
rows:add('sync', function(r)
    local res, err = r.sync(0.5)
    return res, type(err), err.replicaset
end)
rows:add('info', function(r)
    local info = r.info()
    local names = {}
    for _, alert in ipairs(info.alerts) do
        names[alert[1]] = alert[2]
    end
    names.SUBOPTIMAL_REPLICA = nil
    return names, info.status, info.bucket, info.replicasets[R1].bucket, info.replicasets[R1].master.status,
        info.replicasets[R1].replica.status
end)
rows:add('buckets_info', function(r) return r.buckets_info(14, 2) end)
rows:add('replica:is_connected', function(r) return r.route(1).master:is_connected() end)
rows:add('callrw, is_async', function(r, key)
    local future, err = r.callrw(3, 'count', {key}, {timeout = 0.3, is_async = true})
    if future == nil then
        return 'no future', type(err)
    end
    local res
    res, err = future:wait_result(1)
    return 'a future', res, type(err)
end, {
    differs = 'a future tells of its failures', vshard = {'returned "no future", "'},
    rawshard = 'returned "a future", nil, "table"',
})

return rows
