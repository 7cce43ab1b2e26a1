-- The shapes of arguments and results in Lua: cases P01 (blocking half), P02 and P03.

package.path = './?.lua;' .. package.path
local check = require('test.helper.check')
local json = require('json')
local msgpack = require('msgpack')
local suite = require('test.helper.suite')

local s = suite.new('results')

-- router[name] in the router process; returns the description of test_api.
local function api(c, name, ...)
    local args = {...}
    for i = 1, select('#', ...) do
        if args[i] == nil then
            args[i] = box.NULL
        end
    end
    return c.router:call('test_api', {name, args})
end

local names = {'callrw', 'callro', 'callre', 'callbro', 'callbre'}

for _, name in ipairs(names) do
    s:scenario(name .. ': decoded', {fe = false}, function(t, _, c)
        local res = api(c, name, 1, 'echo', {1, 'a', {k = 1}}, {timeout = 5})
        t:ok(res.ok and res.n == 1 and res.v[1] == 1, 'the first value', '  got: %s', json.encode(res))
        res = api(c, name, 1, 'echo', {{k = {1, 2}}}, {timeout = 5})
        t:is(res.v, {{k = {1, 2}}}, 'a nested value')
        res = api(c, name, 1, 'nothing', {}, {timeout = 5})
        t:is(res.kinds[1], 'nil', 'no value is nil')
        res = api(c, name, 1, 'nilerr', {'e'}, {timeout = 5})
        t:ok(res.n == 2 and res.v[1] == nil and res.v[2] ~= nil and res.v[2].reason == 'e', 'nil and an error',
             '  got: %s', json.encode(res))
        t:is(res.kinds[1], 'null', 'nil of the user is box.NULL')
        res = api(c, name, 1, 'false_err', {}, {timeout = 5})
        t:is(res.v[1], false, 'false is a value')
    end)

    s:scenario(name .. ': the instance', {fe = false}, function(t, _, c)
        local seen = {}
        for _ = 1, 12 do
            local res = api(c, name, 1, 'whoami', {}, {timeout = 5})
            t:ok(res.ok and tostring(res.v[1]):startswith('s1'), 'an instance of r1', '  got: %s', json.encode(res))
            seen[tostring(res.v[1])] = true
        end
        if name == 'callrw' then
            t:is(seen, {s1a = true}, 'the master')
        elseif name == 'callre' or name == 'callbre' then
            t:is(seen, {s1b = true}, 'the replica')
        elseif name == 'callbro' then
            t:is(seen, {s1a = true, s1b = true}, 'both in turn')
        end
    end)

    s:scenario('P01 ' .. name .. ': return_raw holds what the storage sent after its flag', {
        fe = false, min_host = '2.10',
    }, function(t, _, c)
        for _, case in ipairs({
            {'echo', {1, 'a', {k = 1}}, {1, 'a', {k = 1}}}, {'echo', {{}}, {{}}}, {'echo', {false}, {false}},
            {'four_values', {}, {1, 2, 3}},
        }) do
            local res = api(c, name, 1, case[1], case[2], {timeout = 5, return_raw = true})
            t:is(res.kinds[1], 'object', 'an object')
            t:is(res.v[1], case[3], 'its values')
            t:is(res.n, 1, 'nothing else')
        end
        local res = api(c, name, 1, 'nothing', {}, {timeout = 5, return_raw = true})
        t:is(res.kinds[1], 'nil', 'no values: nil')
    end)

    s:scenario('P03 ' .. name .. ': arguments as a msgpack.object', {fe = false, min_host = '2.10'}, function(t, _, c)
        local res = c.router:eval([[
            local name = ...
            local call = router[name]
            local function pack(...) return {select('#', ...), ...} end
            local object = msgpack.object({100, {k = 'v'}})
            local part = msgpack.object({0, {7, 8}}):iterator()
            part:decode_array_header()
            part:skip()
            local res = {
                whole = pack(call(1, 'two_values', object, {timeout = 5})),
                part = pack(call(1, 'echo', part:take(), {timeout = 5})),
                from_raw = pack(call(1, 'echo', msgpack.object_from_raw('\x91\x05'), {timeout = 5})),
                empty = pack(call(1, 'nothing', msgpack.object({}), {timeout = 5})),
                raw = pack(call(1, 'two_values', object, {timeout = 5, return_raw = true})),
                -- Users' functions need grants there; vshard's own have them.
                route = pack(router.route(1):callrw('vshard.storage.bucket_stat', msgpack.object({1}), {timeout = 5})),
            }
            res.not_array = {}
            for _, wrong in ipairs({msgpack.object({k = 1}), msgpack.object('x'), msgpack.object(5), msgpack.object(box.NULL)}) do
                local ok, a, b = pcall(call, 1, 'count', wrong, {timeout = 1})
                table.insert(res.not_array, {ok, tostring(a), b ~= nil})
            end
            return res
        ]], {name})
        t:is(res.whole[2], 100, 'an object')
        t:is(res.part[2], 7, 'a part of an object')
        t:is(res.from_raw[2], 5, 'an object from bytes')
        t:is(res.empty[2], nil, 'an empty array')
        t:is(res.raw[2], {100, {k = 'v'}}, 'with a raw result')
        if name == 'callrw' or name == 'callro' then
            t:is(res.route[2] and res.route[2].status, 'active', 'through route()')
        end
        if suite.env.router_kind == 'rawshard' then
            for i, refused in ipairs(res.not_array) do
                t:ok(refused[1] == false, 'no array: a usage error, case ' .. i, '  got: %s', json.encode(refused))
            end
        end
    end)
end

s:scenario('P02 several values, decoded', {fe = {'lua'}}, function(t, fe, c)
    local function call(func, key)
        return fe:call(c, {1, 'write', func, {key}, {timeout = 5}})
    end
    local res = call('two_values')
    t:is(res[1], nil, 'two_values without arguments')
    res = call('nil_two')
    t:ok(res.n == 2 and res[1] == nil and res[2] == 2, 'nil, 2', '  got: %s', json.encode(res))
    t:values(fe, call('one_nil_three'), {1}, '1, nil, 3')
    t:values(fe, call('four_values'), {1}, 'four values')
end)

s:scenario('P02 several values, all of them', {fe = {'lua_raw', 'cfunc', 'direct', 'raw', 'direct_raw'}}, function(t, fe, c)
    local function call(func, args)
        return fe:call(c, {1, 'write', func, args or {}, {timeout = 5}})
    end
    t:values(fe, call('echo', {1, 2}), {1, 2}, '1, 2')
    t:values(fe, call('nil_two'), {nil, 2}, 'nil, 2')
    t:values(fe, call('one_nil_three'), {1, nil, 3}, '1, nil, 3')
    t:values(fe, call('four_values'), {1, 2, 3}, 'the storage keeps three')
end)

s:scenario('P02 one execution each', {}, function(t, fe, c)
    local key = 'several ' .. fe.name
    fe:call(c, {1, 'write', 'count', {key, 2, 3, 4}, {timeout = 5}})
    t:is(c:executed(key), 1, 'executed')
end)

s:scenario('values of every kind come back as they went', {fe = {'lua'}}, function(t, _, c)
    local res = c.router:eval([[
        local decimal, uuid = require('decimal'), require('uuid')
        local u = uuid.fromstr('64d22e4d-ac92-4a23-899a-e59f34af5479')
        local out = {}
        local function try(name, value, same)
            local got, err = router.callrw(1, 'echo', {value}, {timeout = 5})
            if same == nil then
                same = got == value
            else
                same = same(got)
            end
            out[name] = same and 'same' or ('%s: %s'):format(type(got), tostring(got)) .. tostring(err or '')
        end
        try('integer', 7)
        try('negative', -7)
        try('fraction', 1.25)
        try('string', 'text')
        try('boolean', true)
        try('uint64', 18446744073709551615ULL)
        try('int64', -9223372036854775807LL)
        try('decimal', decimal.new('12.50'))
        try('uuid', u)
        try('null', box.NULL)
        try('nan', 0 / 0, function(got) return got ~= got end)
        try('inf', math.huge)
        try('tuple', box.tuple.new({1, {2}}), function(got) return got[1] == 1 and got[2][1] == 2 end)
        try('map', {a = {b = 1}}, function(got) return got.a.b == 1 end)
        try('sparse', {1, nil, 3}, function(got) return got[1] == 1 and got[2] == nil and got[3] == 3 end)
        try('empty', {}, function(got) return type(got) == 'table' and next(got) == nil end)
        try('serialize', setmetatable({1}, {__serialize = function() return 'made' end}),
            function(got) return got == 'made' end)
        return out
    ]])
    for name, got in pairs(res) do
        t:is(got, 'same', name)
    end
end)

s:scenario('what a client may hold after decoding is normal Lua', {fe = {'cfunc'}}, function(t, fe, c)
    local res = fe:call(c, {1, 'write', 'echo', {{a = {1, 2, {b = 'c'}}}, msgpack.NULL, 3}, {timeout = 5}})
    t:ok(check.equal(res[1], {a = {1, 2, {b = 'c'}}}) and res[2] == nil and res[3] == 3, 'the values',
         '  got: %s', json.encode(res))
end)

s:run()
