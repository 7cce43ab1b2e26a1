-- Buckets that are not where the router believes: moved, on their way, locked; and a master that is none (case P07).

package.path = './?.lua;' .. package.path
local fiber = require('fiber')
local suite = require('test.helper.suite')

local s = suite.new('buckets')

local raw_differs = 'a refusal passes as a raw result'

local function skip_raw_oracle(fe)
    return suite.env.router_kind == 'vshard' and fe.name == 'lua_raw'
end

s:scenario('a moved bucket: redirected', {heals = true}, function(t, fe, c)
    if skip_raw_oracle(fe) then
        return t:ok(true, raw_differs)
    end
    local from, to = c.replicasets[1], c.replicasets[2]
    for _, mode in ipairs({'write', 'read'}) do
        local bucket = mode == 'write' and 3 or 4
        local key = ('moved %s %s'):format(mode, fe.name)
        t:values(fe, fe:call(c, {bucket, 'write', 'whoami', {}, {timeout = 5}}), {'s1a'}, 'known at its first place')
        c:move_bucket(bucket, from, to)
        local res = fe:call(c, {bucket, mode, 'whoami_counted', {key}, {timeout = 5}})
        t:ok(res[1] == 's2a' or mode == 'read' and res[1] == 's2b', mode .. ' reaches the new place',
             '  got: %s', require('json').encode(res))
        t:is(c:executed(key), 1, mode .. ' executed once')
    end
end)

s:scenario('a moved bucket without destination: found again', {heals = true}, function(t, fe, c)
    if skip_raw_oracle(fe) then
        return t:ok(true, raw_differs)
    end
    local from, to = c.replicasets[1], c.replicasets[2]
    local key = 'lost ' .. fe.name
    t:values(fe, fe:call(c, {5, 'write', 'whoami', {}, {timeout = 5}}), {'s1a'}, 'known at its first place')
    c:set_bucket(to, 5, 'active')
    c:set_bucket(from, 5, nil)
    local res = fe:call(c, {5, 'write', 'whoami_counted', {key}, {timeout = 5}})
    t:values(fe, res, {'s2a'}, 'reaches the new place')
    t:is(c:executed(key), 1, 'executed once')
end)

s:scenario('a destination that the router does not know: refusal at the deadline', {heals = true}, function(t, fe, c)
    if skip_raw_oracle(fe) then
        return t:ok(true, raw_differs)
    end
    t:values(fe, fe:call(c, {6, 'write', 'whoami', {}, {timeout = 5}}), {'s1a'}, 'known at its first place')
    c:set_bucket(c.replicasets[1], 6, 'sent', 'cccccccc-0000-4000-8000-000000000009')
    local started = fiber.clock()
    local res = fe:call(c, {6, 'write', 'whoami', {}, {timeout = 0.4}})
    t:error(res, {type = 'ShardingError', name = 'WRONG_BUCKET', code = 1, bucket_id = 6,
                  destination = 'cccccccc-0000-4000-8000-000000000009'})
    t:within(fiber.clock() - started, 0.35, 2, 'at the deadline')
end)

s:scenario('two replicasets that point at each other end at the deadline', {heals = true}, function(t, fe, c)
    if skip_raw_oracle(fe) then
        return t:ok(true, raw_differs)
    end
    local a, b = c.replicasets[1], c.replicasets[2]
    t:values(fe, fe:call(c, {8, 'write', 'whoami', {}, {timeout = 5}}), {'s1a'}, 'known at its first place')
    c:set_bucket(a, 8, 'sent', b.id)
    c:set_bucket(b, 8, 'sent', a.id)
    local started = fiber.clock()
    local res = fe:call(c, {8, 'write', 'whoami', {}, {timeout = 0.3}})
    t:ok(res[1] == nil and type(res[2]) == 'table', 'an error', '  got: %s', require('json').encode(res))
    t:ok(res[2] and (res[2].name == 'WRONG_BUCKET' or res[2].code == 78 or res[2].type == 'TimedOut'),
         'the last refusal or a timeout', '  got: %s', require('json').encode(res[2]))
    t:within(fiber.clock() - started, 0.25, 2, 'at the deadline')
end)

s:scenario('P07 a bucket in transfer is retried, and executed once', {heals = true}, function(t, fe, c)
    if skip_raw_oracle(fe) then
        return t:ok(true, raw_differs)
    end
    local key = 'transfer ' .. fe.name
    c:set_bucket(c.replicasets[1], 9, 'sending', c.replicasets[2].id)
    local future = fe:start(c, {9, 'write', 'count', {key}, {timeout = 5}})
    -- The move ends only after the router was refused at least once: seen where the storage counts, else by time.
    fiber.sleep(0.3)
    t:is(c:executed(key), 0, 'not executed during the move')
    c:set_bucket(c.replicasets[1], 9, 'active')
    t:values(fe, fe:finish(future, 10), {key}, 'success after the move')
    t:is(c:executed(key), 1, 'executed once')
end)

s:scenario('P07 a bucket in transfer that arrives at its destination', {heals = true}, function(t, fe, c)
    if skip_raw_oracle(fe) then
        return t:ok(true, raw_differs)
    end
    local key = 'arrives ' .. fe.name
    t:values(fe, fe:call(c, {10, 'write', 'whoami', {}, {timeout = 5}}), {'s1a'}, 'known at its first place')
    c:set_bucket(c.replicasets[1], 10, 'sending', c.replicasets[2].id)
    c:set_bucket(c.replicasets[2], 10, 'receiving', c.replicasets[1].id)
    local future = fe:start(c, {10, 'write', 'whoami_counted', {key}, {timeout = 5}})
    fiber.sleep(0.2)
    c:set_bucket(c.replicasets[2], 10, 'active')
    c:set_bucket(c.replicasets[1], 10, 'sent', c.replicasets[2].id)
    t:values(fe, fe:finish(future, 10), {'s2a'}, 'executed at the new place')
    t:is(c:executed(key), 1, 'executed once')
end)

s:scenario('P07 a bucket in transfer at the deadline: the last refusal', {heals = true}, function(t, fe, c)
    if skip_raw_oracle(fe) then
        return t:ok(true, raw_differs)
    end
    local key = 'stuck ' .. fe.name
    c:set_bucket(c.replicasets[1], 11, 'sending', c.replicasets[2].id)
    local started = fiber.clock()
    local res = fe:call(c, {11, 'write', 'count', {key}, {timeout = 0.2}})
    if suite.env.router_kind == 'vshard' then
        -- A last attempt of the oracle may have too little time left, and hides the refusal.
        t:ok(res[1] == nil and type(res[2]) == 'table', 'an error')
    else
        -- Of whom it asked last: the sender, or the receiver that has no such bucket yet.
        t:error(res, {type = 'ShardingError', bucket_id = 11, name = function(name)
            return name == 'TRANSFER_IS_IN_PROGRESS' or name == 'WRONG_BUCKET'
        end})
    end
    t:within(fiber.clock() - started, 0.15, 2, 'at the deadline')
    t:is(c:executed(key), 0, 'never executed')
end)

s:scenario('a bucket in transfer serves reads', {heals = true}, function(t, fe, c)
    c:set_bucket(c.replicasets[1], 12, 'sending', c.replicasets[2].id)
    local res = fe:call(c, {12, 'read', 'whoami', {}, {timeout = 5}})
    t:ok(tostring(res[1]):startswith('s1'), 'served at its place', '  got: %s', require('json').encode(res))
end)

s:scenario('a locked bucket is retried, and executed once', {heals = true}, function(t, fe, c)
    if skip_raw_oracle(fe) then
        return t:ok(true, raw_differs)
    end
    local key = 'locked ' .. fe.name
    local master = c.storages.s1a
    t:values(fe, fe:call(c, {13, 'write', 'whoami', {}, {timeout = 5}}), {'s1a'}, 'known')
    master:call('test_bucket_lock', {13, true})
    local future = fe:start(c, {13, 'write', 'count', {key}, {timeout = 5}})
    fiber.sleep(0.2)
    t:is(c:executed(key), 0, 'not executed while locked')
    master:call('test_bucket_lock', {13, false})
    t:values(fe, fe:finish(future, 10), {key}, 'success afterwards')
    t:is(c:executed(key), 1, 'executed once')
end)

-- P08: masters are fixed in the router's cfg, and the storages see it otherwise.

local function set_masters(c, for_a, for_b)
    local a, b = c.storages.s1a, c.storages.s1b
    a:call('test_master_set', {for_a or false})
    b:call('test_master_set', {for_b or false})
end

local p08 = {storages = 'helper', heals = true, differs = 'gives NON_MASTER at once'}

s:scenario('P08 master and replica swapped: the named master serves', p08, function(t, fe, c)
    local b = c.storages.s1b.config.id
    set_masters(c, b, b)
    local key = 'swapped ' .. fe.name
    local res = fe:call(c, {1, 'write', 'whoami_counted', {key}, {timeout = 2}})
    set_masters(c, c.storages.s1a.config.id, c.storages.s1a.config.id)
    t:values(fe, res, {'s1b'}, 'the new master')
    t:is(c:executed(key), 1, 'executed once')
end)

s:scenario('P08 a refusal that names a stranger: NON_MASTER at once', p08, function(t, fe, c)
    set_masters(c, 'dddddddd-0000-4000-8000-000000000001', 'dddddddd-0000-4000-8000-000000000001')
    local started = fiber.clock()
    local res = fe:call(c, {1, 'write', 'echo', {1}, {timeout = 2}})
    local seconds = fiber.clock() - started
    set_masters(c, c.storages.s1a.config.id, c.storages.s1a.config.id)
    t:error(res, {type = 'ShardingError', name = 'NON_MASTER', code = 2})
    t:within(seconds, 0, 1.7, 'at once')
end)

s:scenario('P08 a refusal that names nobody: NON_MASTER at once', p08, function(t, fe, c)
    set_masters(c, nil, nil)
    local started = fiber.clock()
    local res = fe:call(c, {1, 'write', 'echo', {1}, {timeout = 2}})
    local seconds = fiber.clock() - started
    set_masters(c, c.storages.s1a.config.id, c.storages.s1a.config.id)
    t:error(res, {type = 'ShardingError', name = 'NON_MASTER', code = 2})
    t:within(seconds, 0, 1.7, 'at once')
end)

s:scenario('P08 two that name each other: NON_MASTER by the deadline', p08, function(t, fe, c)
    set_masters(c, c.storages.s1b.config.id, c.storages.s1a.config.id)
    local started = fiber.clock()
    local res = fe:call(c, {1, 'write', 'echo', {1}, {timeout = 0.5}})
    local seconds = fiber.clock() - started
    set_masters(c, c.storages.s1a.config.id, c.storages.s1a.config.id)
    t:error(res, {type = 'ShardingError', name = 'NON_MASTER', code = 2})
    t:within(seconds, 0, 2, 'no endless loop')
end)

s:scenario('a disabled storage: STORAGE_IS_DISABLED for writes', {heals = true}, function(t, fe, c)
    c.storages.s1a:call('test_storage_enable', {false})
    local res = fe:call(c, {1, 'write', 'echo', {1}, {timeout = 1}})
    c.storages.s1a:call('test_storage_enable', {true})
    t:error(res, {type = 'ShardingError', name = 'STORAGE_IS_DISABLED', code = 33})
end)

s:scenario('a disabled storage: reads go to the other instance', {heals = true}, function(t, fe, c)
    c.storages.s1a:call('test_storage_enable', {false})
    for i = 1, 6 do
        local res = fe:call(c, {1, {mode = 'read', balance = true}, 'whoami', {}, {timeout = 3}})
        t:values(fe, res, {'s1b'}, 'read ' .. i)
    end
    c.storages.s1a:call('test_storage_enable', {true})
end)

s:run()
