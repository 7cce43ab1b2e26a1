-- Calls that name a sharding key and no bucket: callraw with {key = …} and {path = …}, endpoints made by bind, and what Lua has
-- for keys in bytes.

package.path = './?.lua;' .. package.path
local cluster = require('test.helper.cluster')
local frontends = require('test.helper.frontends')
local msgpack = require('msgpack')
local suite = require('test.helper.suite')
local uuid = require('uuid')

local s = suite.new('keys')

local entries = {'cfunc', 'direct', 'raw'}
local MAP = {__serialize = 'map'}

local function on_router(c, code, ...)
    return c.router:eval(code, {...})
end

-- The name of the master that has the bucket of a key, as the hash functions say that tests compare with vshard's.
local function master_of(c, hash, key)
    local bucket_id = on_router(c, 'local name, key = ... return router[name](key)', 'bucket_id_' .. hash, key)
    for _, rs in ipairs(c.replicasets) do
        if bucket_id >= rs.first and bucket_id <= rs.last then
            return rs.names[1], bucket_id
        end
    end
end

local keys = {
    1, 2, 3, -1, 255, 65536, 2 ^ 40, 0.5, -1.5, 'a', 'customer', '', true, false, 18446744073709551615ULL, -5LL,
    uuid.fromstr('c9b4a2e5-8d0c-4e2c-9a56-1a1b6d3f2a10'), require('decimal').new('1.50'), {1, 'two', 3.5}, {'a', {1, 2}},
}

for _, hash in ipairs({'mpcrc32', 'strcrc32'}) do
    s:scenario(('a key, %s'):format(hash), {fe = entries}, function(t, fe, c)
        local masters = {}
        for i, key in ipairs(keys) do
            if not (hash == 'strcrc32' and i == #keys) then
                local master = master_of(c, hash, key)
                masters[master] = true
                t:values(fe, fe:call(c, {{key = key, hash = hash}, 'write', 'whoami', {}, {timeout = 5}}), {master},
                         ('key %d'):format(i))
                t:values(fe, fe:call(c, {{path = '[1].id', hash = hash}, 'write', 'whoami', {{id = key}}, {timeout = 5}}),
                         {master}, ('path to key %d'):format(i))
            end
        end
        t:ok(masters.s1a and masters.s2a, 'keys of both replicasets are among them')
    end)
end

s:scenario('paths', {fe = entries}, function(t, fe, c)
    local function whoami(path, args)
        return fe:call(c, {{path = path}, 'write', 'whoami', args, {timeout = 5}})
    end
    for i = 1, 10 do
        local id = 'customer ' .. i
        local master = master_of(c, 'mpcrc32', id)
        t:values(fe, whoami('[1]', {id}), {master}, 'an argument')
        t:values(fe, whoami({'[2]'}, {0, id}), {master}, 'a list of one path')
        t:values(fe, whoami('[2].customer["the id"]', {0, {other = {1, 2, 3}, customer = {['the id'] = id}}}), {master},
                 'names')
        t:values(fe, whoami('[1][2][3]', {{'x', {1, 2, id}}}), {master}, 'indexes')
        t:values(fe, whoami('[1][5]', {setmetatable({[5] = id}, MAP)}), {master}, 'a number as a key')
        local composite = master_of(c, 'mpcrc32', {i, id})
        t:values(fe, whoami({'[2].n', '[1]'}, {id, {n = i}}), {composite}, 'two paths are one key')
        t:values(fe, whoami('[1]', {{i, id}}), {composite}, 'as an array is')
    end
end)

s:scenario('the default is mpcrc32', {fe = entries}, function(t, fe, c)
    local res = fe:call(c, {{key = 7, hash = box.NULL}, 'write', 'echo', {1, 'two'}, {timeout = 5}})
    t:values(fe, res, {1, 'two'}, 'answered')
    t:values(fe, fe:call(c, {{key = 7}, nil, 'whoami', n = 3}), {(master_of(c, 'mpcrc32', 7))}, 'three elements')
end)

s:scenario('keys that are none: an error, nothing is sent', {fe = entries}, function(t, fe, c)
    local cases = {
        {setmetatable({}, MAP), 'argument 1 (bucket_id): expected one of key and path, got none of them'},
        {{key = 1, path = '[1]'}, 'argument 1 (bucket_id): expected one of key and path, got both'},
        {{key = 1, hsah = 'mpcrc32'}, "argument 1 (bucket_id): unknown option 'hsah', expected one of key, path, hash"},
        {{key = 1, hash = 'md5'}, "argument 1 (bucket_id.hash): expected 'mpcrc32' or 'strcrc32', got string 'md5'"},
        {{key = {a = 1}}, 'argument 1 (bucket_id.key): a map can not be a sharding key'},
        {{path = 1}, 'argument 1 (bucket_id.path): expected a path or a list of them, got 1'},
        {{path = '[1'}, "argument 1 (bucket_id.path): expected a path like [1].name, got '[1': syntax error at character 3"},
        {{path = '[1][*]'}, '[*] stands for many values'},
        {{path = '[3]'}, "argument 1 (bucket_id.path): path '[3]' leads nowhere: args has 2 items"},
        {{path = '[4294967296]'}, "path '[4294967296]' leads nowhere: args has 2 items"},
        {{path = '[99999999999999999999]'}, 'an index is too large'},
        {{path = '[1].id'}, "path '[1].id' leads nowhere: [1] is a string"},
        {{path = '[2].id'}, "path '[2].id' leads nowhere: [2] has no such key"},
        {{path = '[2].none'}, "path '[2].none' leads to nil"},
        {{path = '[2]'}, "path '[2]' leads to a map"},
        {{path = {'[1]', '[2].list'}, hash = 'strcrc32'}, "path '[2].list': an array in a sharding key has no strcrc32"},
    }
    local before = c:executed('any')
    for _, case in ipairs(cases) do
        local res = fe:call(c, {case[1], 'write', 'count', {'any', {none = box.NULL, list = {1}}}, {timeout = 5}})
        t:has(res.raised, case[2], case[2])
    end
    t:is(c:executed('any'), before, 'nothing is executed')
    t:values(fe, fe:call(c, {{path = '[1]'}, 'write', 'echo', {'any'}, {timeout = 5}}), {'any'}, 'the next call works')
end)

--
-- Endpoints
--

local function grant(c, name)
    on_router(c, "box.schema.user.grant('client', 'execute', 'function', ..., {if_not_exists = true})", name)
end

-- The values that a client gets, or what was raised.
local function client_call(c, name, args)
    local res = {pcall(function()
        return frontends.client(c):call(name, args, {timeout = 20})
    end)}
    if not res[1] then
        return tostring(res[2])
    end
    return {unpack(res, 2, table.maxn(res))}
end

s:scenario('an endpoint that registers itself', {fe = false}, function(t, _, c)
    on_router(c, [[
        router.bind({name = 'customer.where', func = 'whoami', key = {'[1]'}, timeout = 5, register = true})
        router.bind({name = 'customer.echo', func = 'echo', key = '[1].id', hash = 'strcrc32', mode = 'read', balance = true,
                     timeout = 5, register = true})
    ]])
    grant(c, 'customer.where')
    grant(c, 'customer.echo')
    local masters = {}
    for i = 1, 20 do
        local master = master_of(c, 'mpcrc32', i)
        masters[master] = true
        t:is(client_call(c, 'customer.where', {i, 'and more'}), {master}, 'customer ' .. i)
    end
    t:ok(masters.s1a and masters.s2a, 'of both replicasets')
    local args = {{id = 'x', list = {1, {2}}}, 7, box.NULL}
    t:is(client_call(c, 'customer.echo', args), {{id = 'x', list = {1, {2}}}, 7, box.NULL}, 'what the function returned')
    local refusals = {
        {'customer.where', {}, "customer.where: path '[1]' leads nowhere: args is empty"},
        {'customer.where', {{id = 1}}, "customer.where: path '[1]' leads to a map"},
        {'customer.echo', {7}, "customer.echo: path '[1].id' leads nowhere: [1] is an integer"},
        {'customer.echo', {{1, 2}}, "customer.echo: path '[1].id' leads nowhere: [1] is an array"},
        {'customer.echo', {{name = 'x'}}, "customer.echo: path '[1].id' leads nowhere: [1] has no such key"},
        {'customer.echo', {{id = {1, {2}}}}, "customer.echo: path '[1].id': an array in a sharding key has no strcrc32"},
    }
    if not suite.env.at_least('2.10') then
        table.insert(refusals, {'customer.where', {1e20}, "path '[1]': a double of 2^64 or more has no stable hash"})
        table.insert(refusals, {'customer.where', {{1, {1e20}}}, 'a double of 2^64 or more has no stable'})
    else
        t:is(client_call(c, 'customer.where', {1e20}), {(master_of(c, 'mpcrc32', 1e20))}, 'a huge number')
        t:is(client_call(c, 'customer.where', {{1, {1e20}}}), {(master_of(c, 'mpcrc32', {1, {1e20}}))}, 'inside a key')
    end
    for _, case in ipairs(refusals) do
        t:has(client_call(c, case[1], case[2]), case[3], case[3])
    end
    local list = on_router(c, 'return router.endpoints()')
    t:is(list['customer.where'], {
        name = 'customer.where', func = 'whoami', key = {'[1]'}, hash = 'mpcrc32', mode = 'write', prefer_replica = false,
        balance = false, timeout = 5, is_registered = true, calls = 24, failed = 0,
        refused = suite.env.at_least('2.10') and 2 or 4,
    }, 'listed')
    t:is({list['customer.echo'].calls, list['customer.echo'].refused}, {5, 4}, 'counted')
end)

s:scenario('failures of an endpoint', {fe = false}, function(t, _, c)
    on_router(c, [[
        router.bind({name = 'boom', func = 'boom', key = {'[1]'}, timeout = 5, register = true})
        router.bind({name = 'nilerr', func = 'nilerr', key = {'[1]'}, timeout = 5, register = true})
        router.bind({name = 'slow', func = 'sleep', key = {'[2]'}, timeout = 0.05, register = true})
    ]])
    for _, name in ipairs({'boom', 'nilerr', 'slow'}) do
        grant(c, name)
    end
    local res = client_call(c, 'boom', {'why'})
    t:ok(res[1] == nil and res[2] ~= nil, 'nil and an error')
    t:has(res[2] and res[2].message, 'why', 'the error of the function')
    res = client_call(c, 'nilerr', {'why'})
    t:is({res[1] == nil, res[2].code, res[2].reason}, {true, 77077, 'why'}, 'nil, err that the function returned')
    res = client_call(c, 'slow', {10, 1})
    t:ok(res[1] == nil and res[2] ~= nil, 'its timeout')
    t:is(res[2] and res[2].code, 78, 'a timeout')
    local list = on_router(c, 'return router.endpoints()')
    t:is({list.boom.failed, list.nilerr.failed, list.slow.failed}, {1, 0, 1}, 'failed: what ended with an error')
    on_router(c, "router.bind({name = 'slow', func = 'sleep', key = {'[2]'}, timeout = 0.5})")
    local future = frontends.client(c):call('slow', {10, 1}, {is_async = true})
    cluster.wait_until('the call begins', function()
        return on_router(c, 'return router.endpoints().slow.calls') == 1
    end)
    on_router(c, "router.bind({name = 'slow', func = 'sleep', key = {'[2]'}, timeout = 5})")
    t:ok(future:wait_result(20) ~= nil, 'a call of what was bound before')
    list = on_router(c, 'return router.endpoints()')
    t:is({list.slow.calls, list.slow.failed, list.slow.refused}, {0, 0, 0}, 'does not count')
end)

s:scenario('an endpoint in hands of Lua', {fe = false, min_host = '2.10'}, function(t, _, c)
    local res = on_router(c, [[
        local where = router.bind({name = 'by hand', func = 'whoami', key = {'[1]', '[2].id'}, timeout = 5})
        rawset(_G, 'by_hand', where)
        box.schema.func.create('by_hand', {takes_raw_args = true})
        local res = where(msgpack.object({7, {id = 'x'}}))
        return {msgpack.is_object(res), res:decode(), select(2, pcall(where, 7)), router.endpoints()['by hand'].is_registered}
    ]])
    t:is(res[1], true, 'an object')
    t:is(res[2], (master_of(c, 'mpcrc32', {7, 'x'})), 'from the right replicaset')
    t:has(res[3], 'expected the arguments as one msgpack.object', 'what it takes')
    t:is(res[4], false, 'not registered')
    grant(c, 'by_hand')
    t:is(client_call(c, 'by_hand', {7, {id = 'x'}}), {(master_of(c, 'mpcrc32', {7, 'x'}))}, 'registered by the user')
end)

s:scenario('a name that is bound anew', {fe = false}, function(t, _, c)
    local same = on_router(c, [[
        local first = router.bind({name = 'again', func = 'whoami', key = {'[1]'}, timeout = 5, register = true})
        local second = router.bind({name = 'again', func = 'echo', key = {'[2]'}, timeout = 5})
        return first == second
    ]])
    t:is(same, true, 'the same function')
    grant(c, 'again')
    t:is(client_call(c, 'again', {1, 2}), {1, 2}, 'serves what was bound last')
    local has_failed = on_router(c, [[
        return not pcall(router.bind, {name = 'again', func = 'whoami', key = {'[0]'}})
    ]])
    t:ok(has_failed, 'a wrong path')
    t:is(client_call(c, 'again', {1, 2}), {1, 2}, 'nothing has changed')
    t:is(on_router(c, 'return router.endpoints().again.calls'), 2, 'counted since it was bound')
end)

s:scenario('hash functions of the user', {fe = false}, function(t, _, c)
    on_router(c, [[
        rawset(_G, 'my_module', {seen = {}, sharding_func = function(key)
            table.insert(my_module.seen, require('json').encode(key))
            return key[1]
        end})
        router.bind({name = 'own', func = 'whoami', key = {'[1].bucket'}, timeout = 5, register = true, hash = function(key)
            table.insert(my_module.seen, require('json').encode(key))
            return key
        end})
        router.bind({name = 'own_pair', func = 'whoami', key = {'[2]', '[1]'}, timeout = 5, register = true,
                     hash = function(key) return key[1] + key[2] end})
        router.bind({name = 'ddl', func = 'whoami', key = {'[1]'}, timeout = 5, register = true,
                     sharding_func = 'my_module.sharding_func'})
        router.bind({name = 'ddl_body', func = 'whoami', key = {'[1]'}, timeout = 5, register = true,
                     sharding_func = {body = 'function(key) return 31 - key[1] end'}})
        router.bind({name = 'ddl_vshard', func = 'whoami', key = {'[1]'}, timeout = 5, register = true,
                     sharding_func = 'vshard.router.bucket_id_strcrc32'})
    ]])
    for _, name in ipairs({'own', 'own_pair', 'ddl', 'ddl_body', 'ddl_vshard'}) do
        grant(c, name)
    end
    t:is(client_call(c, 'own', {{bucket = 1, rest = {1, 2}}}), {'s1a'}, 'the first bucket')
    t:is(client_call(c, 'own', {{bucket = 30}}), {'s2a'}, 'the last bucket')
    t:is(client_call(c, 'own_pair', {10, 20}), {'s2a'}, 'several paths make a list')
    t:is(client_call(c, 'ddl', {30, {1}}), {'s2a'}, 'a name')
    t:is(client_call(c, 'ddl_body', {30}), {'s1a'}, 'a text')
    t:is(client_call(c, 'ddl_vshard', {'some key'}), {(master_of(c, 'strcrc32', 'some key'))}, "vshard's own")
    t:is(on_router(c, 'return my_module.seen'), {'1', '30', '[30]'}, 'they are given the key, decoded; those of ddl a list')
    for _, bad in ipairs({0, 31, 1.5, 'x'}) do
        t:has(client_call(c, 'own', {{bucket = bad}}),
              ('own: the sharding function must return a bucket id from 1 to 30, got %s'):format(bad), 'a bad bucket')
    end
    t:has(client_call(c, 'own', {{}}), "own: path '[1].bucket' leads nowhere", 'no key')
    t:has(client_call(c, 'own_pair', {{1}, 2}), 'attempt to perform arithmetic', 'an error of the function')
    local own = on_router(c, 'return router.endpoints().own')
    t:is({own.calls, own.failed, own.refused}, {7, 0, 5}, 'counted')
    t:is(on_router(c, 'return router.endpoints().ddl.hash'), 'function', 'listed')
    t:is(on_router(c, 'return router.endpoints().ddl_vshard.hash'), 'strcrc32', 'as a native hash')
    on_router(c, 'my_module.sharding_func = nil')
    t:has(client_call(c, 'ddl', {30}), 'is not a global function any more', 'a function that is gone')
end)

s:scenario('a key that the decoder of the host would not survive', {fe = false, min_host = '2.11'}, function(t, _, c)
    on_router(c, [[
        router.bind({name = 'deep', func = 'whoami', key = {'[1]'}, timeout = 5, register = true, hash = function(key)
            return type(key) == 'table' and 1 or 30
        end})
        router.bind({name = 'deep_pair', func = 'whoami', key = {'[2]', '[1]'}, timeout = 5, register = true,
                     hash = function() return 1 end})
    ]])
    grant(c, 'deep')
    grant(c, 'deep_pair')
    local function nested(levels)
        return msgpack.object_from_raw('\x92' .. ('\x91'):rep(levels) .. '\x01' .. '\x02')
    end
    t:is(client_call(c, 'deep', nested(1000)), {'s1a'}, 'deep')
    for _, levels in ipairs({1025, 100000}) do
        for _, name in ipairs({'deep', 'deep_pair'}) do
            t:has(client_call(c, name, nested(levels)),
                  name .. ': the sharding key can not be decoded: it is nested deeper than 1024 levels', 'too deep')
        end
    end
    local res = on_router(c, [[
        local object = msgpack.object_from_raw(('\x91'):rep(100000) .. '\x01')
        return {tostring(select(2, pcall(router.bucket_id_mpcrc32, object))),
                tostring(select(2, pcall(router.bucket_id_strcrc32, object)))}
    ]])
    for _, text in ipairs(res) do
        t:has(text, 'a sharding key can not be decoded: it is nested deeper than 1024 levels', 'nor by Lua')
    end
    local deep = on_router(c, 'return router.endpoints().deep')
    t:is({deep.calls, deep.failed, deep.refused}, {3, 0, 2}, 'counted')
end)

s:scenario('tuples among the arguments', {fe = false, min_host = '3.0'}, function(t, _, c)
    on_router(c, [[
        for name, path in pairs({within_tuple = '[1][2].id', a_tuple = '[1]'}) do
            router.bind({name = name, func = 'whoami', key = {path}, timeout = 5, register = true})
            router.bind({name = name .. '_own', func = 'whoami', key = {path}, timeout = 5, register = true,
                         hash = router.bucket_id_mpcrc32})
        end
    ]])
    for i = 1, 10 do
        local tuple = box.tuple.new({i, {id = 'customer ' .. i}})
        for _, name in ipairs({'within_tuple', 'within_tuple_own'}) do
            grant(c, name)
            t:is(client_call(c, name, {tuple}), {(master_of(c, 'mpcrc32', 'customer ' .. i))}, name)
        end
        tuple = box.tuple.new({i, 'customer'})
        for _, name in ipairs({'a_tuple', 'a_tuple_own'}) do
            grant(c, name)
            t:is(client_call(c, name, {tuple}), {(master_of(c, 'mpcrc32', {i, 'customer'}))}, name)
        end
    end
    local res = on_router(c, [[
        local object = msgpack.object_from_raw('\x92\x07\xc7\x07\x07\x00\x92\x05\x81\xa1x\x01')
        local function at(path)
            local found = router.extract(object, path)
            return found ~= nil and found:decode() or 'nil'
        end
        return {at('[1]'), at('[2]'), at('[2][1]'), at('[2][2].x'), at('[2][3]'), at('[2].x')}
    ]])
    t:is(res, {7, {5, {x = 1}}, 5, 1, 'nil', 'nil'}, 'parts of tuples')
end)

s:scenario('bound anew while a hash function waits', {fe = false}, function(t, _, c)
    on_router(c, [[
        gate = fiber.channel()
        asked = 0
        router.bind({name = 'moved', func = 'count', key = {'[1]'}, timeout = 5, register = true, hash = function(key)
            asked = asked + 1
            gate:get()
            return 1
        end})
    ]])
    grant(c, 'moved')
    local function call_meanwhile(code)
        on_router(c, 'asked = 0')
        local future = frontends.client(c):call('moved', {30, 1}, {is_async = true, timeout = 20})
        cluster.wait_until('the function is asked', function()
            return on_router(c, 'return asked') == 1
        end)
        on_router(c, code .. ' gate:close()')
        return future:wait_result(20)
    end
    local res = call_meanwhile([[
        router.bind({name = 'moved', func = 'whoami', key = {'[2]'}, timeout = 5, hash = function(key) return key end})
    ]])
    t:is(res, {'s1a'}, 'another function, of another key: both new')
    on_router(c, [[
        gate = fiber.channel()
        router.bind({name = 'moved', func = 'count', key = {'[2]'}, timeout = 5, hash = function(key)
            asked = asked + 1
            gate:get()
            error('of the old one')
        end})
    ]])
    res = call_meanwhile("router.bind({name = 'moved', func = 'whoami', key = {'[1]'}, timeout = 5, hash = 'strcrc32'})")
    t:is(res, {(master_of(c, 'strcrc32', 30))}, 'a hash of ours')
    local moved = on_router(c, 'return router.endpoints().moved')
    t:is({moved.calls, moved.failed, moved.refused}, {1, 0, 0}, 'counted')
    on_router(c, [[
        router.bind({name = 'moved', func = 'whoami', key = {'[1]'}, timeout = 5, hash = function(key)
            local again = router.endpoints().moved
            router.bind({name = 'moved', func = again.func, key = again.key, hash = debug.getinfo(1, 'f').func})
            return 1
        end})
    ]])
    t:has(client_call(c, 'moved', {1}), 'moved: the endpoint is bound anew over and over', 'without end')
end)

s:scenario('what is not asked of hash functions', {fe = false}, function(t, _, c)
    on_router(c, [[
        local opts = {name = 'changes', func = 'echo', key = {'[1].list', '[2]'}, timeout = 5, register = true}
        function opts.hash(key)
            key[1][1] = 'changed'
            key[2] = nil
            return 1
        end
        router.bind(opts)
        opts.hash = 'mpcrc32'
        opts.key[1] = '[9]'
        router.bind({name = 'no hash', func = 'echo', key = {'[1]'}, hash = box.NULL})
        router.bind({name = 'raises', func = 'echo', key = {'[1]'}, register = true, hash = function(key)
            if key == 'table' then error({code = 7}) end
            if key == 'junk' then return setmetatable({}, {__tostring = function() error('no text') end}) end
            if key == 'more' then return 1, 2, 3 end
            if key == 'big' then return 7ULL end
            if key == 'yield' then fiber.yield() return 1 end
            return key == 'inf' and 1 / 0 or key == 'nan' and 0 / 0 or nil
        end})
    ]])
    grant(c, 'changes')
    grant(c, 'raises')
    t:is(client_call(c, 'changes', {{list = {1, 2}}, 'two'}), {{list = {1, 2}}, 'two'}, 'the arguments are sent as they came')
    t:is(on_router(c, "return router.endpoints()['no hash'].hash"), 'mpcrc32', 'the default')
    for _, key in ipairs({'more', 'big', 'yield'}) do
        t:is(client_call(c, 'raises', {key}), {key}, key)
    end
    for _, key in ipairs({'inf', 'nan', 'nothing'}) do
        t:has(client_call(c, 'raises', {key}), 'raises: the sharding function must return a bucket id from 1 to 30', key)
    end
    for _, key in ipairs({'table', 'junk'}) do
        t:is(type(client_call(c, 'raises', {key})), 'string', key)
    end
    local raises = on_router(c, 'return router.endpoints().raises')
    t:is({raises.calls, raises.failed, raises.refused}, {8, 0, 5}, 'counted')
end)

s:scenario('registered again, and by two fibers at once', {fe = false}, function(t, _, c)
    on_router(c, [[
        again = function()
            return router.bind({name = 'dropped.get', func = 'whoami', key = {'[1]'}, timeout = 5, register = true})
        end
        again()
        box.schema.func.drop('dropped.get')
        rawset(_G, 'dropped', nil)
        again()
    ]])
    grant(c, 'dropped.get')
    t:is(client_call(c, 'dropped.get', {1}), {(master_of(c, 'mpcrc32', 1))}, 'after it was dropped')
    local res = on_router(c, [[
        local callables = fiber.channel(3)
        for i = 1, 3 do
            fiber.new(function()
                callables:put({pcall(router.bind, {name = 'at_once', func = 'whoami', key = {'[' .. i .. ']'}, timeout = 5,
                                                   register = i ~= 2})})
            end)
        end
        local seen, res = {}, {}
        for i = 1, 3 do
            local got = callables:get(10)
            local callable = got[2]
            res[i], seen[callable] = got[1], true
        end
        local registered = rawget(_G, 'at_once')
        seen[registered] = true
        local kinds = 0
        for _ in pairs(seen) do
            kinds = kinds + 1
        end
        return {res, kinds}
    ]])
    t:is(res, {{true, true, true}, 1}, 'one function, whoever came first')
    local refusal = on_router(c, [[
        box.schema.user.create('nobody')
        return {box.session.su('nobody', function()
            local ok, err = pcall(router.bind, {name = 'of_nobody', func = 'whoami', key = {'[1]'}, register = true})
            return ok, tostring(err), rawget(_G, 'of_nobody') == nil, router.endpoints().of_nobody == nil
        end)}
    ]])
    t:is({refusal[1], refusal[3], refusal[4]}, {false, true, true}, 'by a user without the right: nothing is left')
    t:has(refusal[2], "is denied for user 'nobody'", 'the reason')
end)

s:scenario('options of bind', {fe = false}, function(t, _, c)
    local function complaint(opts)
        return on_router(c, 'local ok, err = pcall(router.bind, ...) return tostring(ok) .. ": " .. tostring(err)', opts)
    end
    local function with(changes)
        local opts = {name = 'bad', func = 'echo', key = {'[1]'}}
        for k, v in pairs(changes) do
            opts[k] = v
        end
        return opts
    end
    local cases = {
        {with({tiemout = 1}), 'bind: unknown option "tiemout"'},
        {with({name = 1}), 'bind: name must be a string, got number'},
        {with({name = ''}), 'bind: name must be a string that is not empty'},
        {{name = 'bad', key = {'[1]'}}, 'bind: func must be a string that is not empty'},
        {{name = 'bad', func = 'echo'}, "bind: key must be a path like '[1].id', or a list of paths"},
        {with({key = {}}), "bind: key must be a path like '[1].id', or a list of paths"},
        {with({key = {'[1]', 2}}), 'bind: key 2 must be a path, got number'},
        {with({key = {'[1'}}), "path '[1': syntax error at character 3"},
        {with({key = {'[1][*]'}}), '[*] stands for many values'},
        {with({hash = 'md5'}), [[bind: hash must be 'mpcrc32', 'strcrc32' or a function, got "md5"]]},
        {with({hash = 1}), "bind: hash must be 'mpcrc32', 'strcrc32' or a function, got number"},
        {with({mode = 'reed'}), [[bind: mode must be 'read' or 'write', got "reed"]]},
        {with({timeout = '1'}), 'bind: timeout must be a number, got string'},
        {with({timeout = 1, request_timeout = 2}), 'bind: request_timeout must not be greater than timeout'},
        {with({balance = 1}), 'bind: balance must be a boolean, got number'},
        {with({sharding_func = 'no.such.function'}), 'bind: sharding_func "no.such.function" is not a global function'},
        {with({sharding_func = 'a b'}), 'bind: sharding_func "a b" is not a name of a function'},
        {with({sharding_func = {body = '1 +'}}), 'bind: sharding_func: '},
        {with({sharding_func = {body = 'error("why")'}}), 'bind: sharding_func: '},
        {with({name = 'a\xff'}), 'bind: name must be valid UTF-8'},
        {with({sharding_func = {body = '1'}}), 'bind: the body of sharding_func is not a function'},
        {with({sharding_func = 'print', hash = 'mpcrc32'}), 'bind: give one of hash and sharding_func'},
        {with({name = 'a b', register = true}), 'bind: name "a b" can not be registered'},
        {with({name = 'string.format', register = true}), 'a global "string.format" exists already and is no endpoint'},
        {with({name = 'string.format.x', register = true}), 'the global "format" is not a table'},
        {with({name = 'rawshard.callraw', register = true}), 'a function "rawshard.callraw" exists already and is no endpoint'},
    }
    for _, case in ipairs(cases) do
        t:has(complaint(case[1]), case[2], case[2])
    end
    t:is(on_router(c, 'return router.endpoints().bad'), nil, 'none of these is bound')
end)

s:scenario('functions that exist already', {fe = false}, function(t, _, c)
    local res = on_router(c, [[
        box.schema.func.create('with_body', {body = 'function() return 1 end'})
        box.schema.func.create('plain.one')
        local function complaint(name)
            return tostring(select(2, pcall(router.bind, {name = name, func = 'echo', key = {'[1]'}, register = true})))
        end
        return {complaint('with_body'), complaint('plain.one'), rawget(_G, 'plain') == nil}
    ]])
    t:has(res[1], 'a function "with_body" exists already and is no endpoint', 'a function of its own')
    if suite.env.has_raw_args then
        t:has(res[2], 'the function "plain.one" exists already without takes_raw_args: drop it', 'of an older host')
        t:is(res[3], true, 'no global is left')
    end
end)

s:scenario('a disabled router, and one of its own', {fe = false}, function(t, _, c)
    local res = on_router(c, [[
        local function raised(f, ...)
            local ok, err = pcall(f, ...)
            return not ok and (type(err) == 'table' and err.name or tostring(err))
        end
        local args = msgpack.object and msgpack.object({1}) or 1
        local where = router.bind({name = 'where', func = 'whoami', key = {'[1]'}, timeout = 5})
        router.disable()
        local closed = {raised(where, args), raised(router.bind, {name = 'x'})}
        router.enable()
        local waiting = router.bind({name = 'waiting', func = 'whoami', key = {'[1]'}, timeout = 5, hash = function()
            router.disable()
            return 1
        end})
        table.insert(closed, raised(waiting, args))
        router.enable()
        local cfg = table.copy(router.static.current_cfg)
        local other = router.new('other', {sharding = cfg.sharding, bucket_count = 30, box_cfg_mode = 'manual'})
        local there = other:bind({name = 'there', func = 'whoami', key = {'[1]'}, timeout = 5})
        local who = there(args)
        return {closed, msgpack.object and who:decode() or who, other:endpoints().there.calls,
                router.endpoints().there == nil, other:endpoints().where == nil}
    ]])
    t:is(res[1], {'ROUTER_IS_DISABLED', 'ROUTER_IS_DISABLED', 'ROUTER_IS_DISABLED'}, 'a disabled router refuses')
    t:is({res[2], res[3]}, {(master_of(c, 'mpcrc32', 1)), 1}, 'an endpoint of another router')
    t:is({res[4], res[5]}, {true, true}, 'each lists its own')
end)

s:scenario('after a reload', {fe = false}, function(t, _, c)
    on_router(c, "router.bind({name = 'kept', func = 'whoami', key = {'[1]'}, timeout = 5, register = true})")
    grant(c, 'kept')
    t:is(client_call(c, 'kept', {1}), {(master_of(c, 'mpcrc32', 1))}, 'before')
    local calls = on_router(c, [[
        for name in pairs(package.loaded) do
            if name:startswith('rawshard.') then
                package.loaded[name] = nil
            end
        end
        _G.router = require('rawshard.router')
        _G.vshard.router = _G.router
        return router.endpoints().kept.calls
    ]])
    t:is(calls, 1, 'listed as before')
    t:is(client_call(c, 'kept', {2}), {(master_of(c, 'mpcrc32', 2))}, 'serves')
    on_router(c, "router.bind({name = 'kept', func = 'echo', key = {'[1]'}, timeout = 5})")
    t:is(client_call(c, 'kept', {2}), {2}, 'is bound anew')
end)

s:scenario('a read-only instance', {fe = false}, function(t, _, c)
    local res = on_router(c, [[
        router.bind({name = 'before', func = 'whoami', key = {'[1]'}, timeout = 5, register = true})
        box.cfg({read_only = true})
        local res = {pcall(router.bind, {name = 'read_only.get', func = 'whoami', key = {'[1]'}, register = true})}
        local again = pcall(router.bind, {name = 'before', func = 'echo', key = {'[1]'}, timeout = 5, register = true})
        local plain = pcall(router.bind, {name = 'read_only', func = 'whoami', key = {'[1]'}})
        box.cfg({read_only = false})
        return {res[1], tostring(res[2]), again, plain, rawget(_G, 'read_only') == nil}
    ]])
    t:is(res[1], false, 'refused')
    t:has(res[2], '"read_only.get" can not be registered: this instance is read-only', 'with the reason')
    t:is({res[3], res[4]}, {true, true}, 'what needs no new function works')
    t:is(res[5], true, 'no global is left')
end)

--
-- Lua
--

s:scenario('hashes of objects', {fe = false, min_host = '2.10'}, function(t, _, c)
    for i, key in ipairs(keys) do
        local res = on_router(c, [[
            local key, is_nested = ...
            local res = {router.bucket_id_mpcrc32(msgpack.object(key)) - router.bucket_id_mpcrc32(key)}
            res[2] = is_nested and 0 or router.bucket_id_strcrc32(msgpack.object(key)) - router.bucket_id_strcrc32(key)
            return res
        ]], key, i == #keys)
        t:is(res, {0, 0}, 'key ' .. i)
    end
end)

s:scenario('extract', {fe = false}, function(t, _, c)
    if msgpack.object == nil then
        local err = on_router(c, "return tostring(select(2, pcall(router.extract, 1, '[1]')))")
        t:has(err, 'since 2.10', 'not on this host')
        return
    end
    local res = on_router(c, [[
        local extract = require('rawshard.router').extract
        local object = msgpack.object({{customer = {id = 7, ['first name'] = 'Bob'}, none = box.NULL}, {1, 2}})
        local function at(path)
            local found = extract(object, path)
            return found ~= nil and {msgpack.is_object(found), found:decode()} or 'nil'
        end
        local function raised(...)
            return tostring(select(2, pcall(extract, ...)))
        end
        return {at('[1].customer.id'), at('[1].customer["first name"]'), at('[1].customer'), at('[2][2]'), at('[3]'),
                at('[1].none'), at('[2].x'), raised(object, '[0]'), raised({1}, '[1]'), raised(object)}
    ]])
    t:is({unpack(res, 1, 7)}, {
        {true, 7}, {true, 'Bob'}, {true, {id = 7, ['first name'] = 'Bob'}}, {true, 2}, 'nil', 'nil', 'nil',
    }, 'parts')
    t:is(res[8], "extract: path '[0]': syntax error at character 2", 'no path')
    t:is(res[9], 'extract: expected a msgpack.object and a path', 'no object')
    t:is(res[10], 'extract: path must be a string', 'nothing')
end)

--
-- Several engines
--

s:scenario('calls for one bucket keep their order, however it is named', {fe = false}, function(t)
    local own = cluster.new({router_cfg = {io_threads = 3}})
    own:start()
    local ok, err = pcall(function()
        on_router(own, [[
            router.bind({name = 'append', func = 'echo', key = {'[1]'}, timeout = 5, register = true})
        ]])
        for i = 1, 20 do
            local master, bucket_id = master_of(own, 'mpcrc32', i)
            local where = frontends.cfunc:call(own, {{key = i}, 'write', 'whoami', {}, {timeout = 5}})
            t:values(frontends.cfunc, where, {master}, 'a key')
            where = frontends.cfunc:call(own, {{path = '[1]'}, 'write', 'whoami', {i}, {timeout = 5}})
            t:values(frontends.cfunc, where, {master}, 'a path')
            -- Both go the same way: the engine of the bucket.
            local before = on_router(own, 'return router.info().engines')
            for _ = 1, 3 do
                frontends.cfunc:call(own, {bucket_id, 'write', 'whoami', {}, {timeout = 5}})
                frontends.cfunc:call(own, {require('ffi').new('double', bucket_id), 'write', 'whoami', {}, {timeout = 5}})
                frontends.cfunc:call(own, {{key = i}, 'write', 'whoami', {}, {timeout = 5}})
                frontends.cfunc:call(own, {{path = '[1]'}, 'write', 'whoami', {i}, {timeout = 5}})
            end
            local after = on_router(own, 'return router.info().engines')
            local engine = bucket_id % 3 + 1
            t:ok(after[engine].calls - before[engine].calls >= 12, 'by engine ' .. engine)
        end
    end)
    own:stop()
    if not ok then
        error(err, 0)
    end
end)

s:run()
