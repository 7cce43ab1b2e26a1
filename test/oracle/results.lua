-- What functions return, in every shape, by every way of calling them.

local ffi = require('ffi')
local msgpack = require('msgpack')
local uuid = require('uuid')

local rows = require('test.helper.rows').new('results')

local has_objects = msgpack.object ~= nil

rows:state('as it is')

-- Values as arguments of echo. Zero values and nils in every place; every type.
local shapes = {
    {'nothing'}, {'nil', n = 1}, {'1', 1}, {'1, 2', 1, 2}, {'1, 2, 3', 1, 2, 3}, {'1, 2, 3, 4', 1, 2, 3, 4},
    {'nil, nil', box.NULL, box.NULL}, {'nil, 2', box.NULL, 2}, {'nil, nil, 3', box.NULL, box.NULL, 3},
    {'1, nil', 1, box.NULL}, {'1, nil, 3', 1, box.NULL, 3}, {'nil, a text', box.NULL, 'text'},
    {'nil, false', box.NULL, false}, {'nil, {}', box.NULL, {}},
    {'nil, an error', box.NULL, {code = 7, type = 'X', message = 'm'}},
    {'false', false}, {'false, an error', false, {code = 1}}, {'true', true}, {'true, 2', true, 2}, {'0', 0},
    {'an empty text', ''}, {'a text', 'text'}, {'bytes', '\0\1\xff\xfe'}, {'long', ('x'):rep(70000)},
    {'-1', -1}, {'1.5', 1.5}, {'1e300', 1e300}, {'-0', -0.0}, {'inf', math.huge}, {'-inf', -math.huge}, {'nan', 0 / 0},
    {'2^53', 2 ^ 53}, {'2^63', 2 ^ 63}, {'-2^63', -2 ^ 63}, {'int64', -5LL}, {'int64 min', -9223372036854775807LL - 1},
    {'uint64', 5ULL}, {'uint64 max', 18446744073709551615ULL}, {'big int', 9007199254740993LL},
    {'{}', {}}, {'{1}', {1}}, {'{nil, 2}', {box.NULL, 2}}, {'a map', {a = 1, b = {c = 2}}}, {'{{}}', {{}}},
    {'mixed keys', {[1] = 1, a = 2}}, {'sparse', {[5] = 1, [100] = 2}}, {'numbers as keys', {[0] = 'zero', [-1] = 'minus'}},
    {'nested', {{{{{{1}}}}}}}, {'a forced map', setmetatable({}, {__serialize = 'map'})},
    {'a forced array', setmetatable({}, {__serialize = 'seq'})}, {'a tuple', box.tuple.new({1, {2}})},
    {'an int8', ffi.new('int8_t', 5)}, {'a double', ffi.new('double', 5)}, {'a float', ffi.new('float', 1.5)},
    {'a cdata bool', ffi.new('bool', true)},
    {'a decimal', require('decimal').new('1.50')},
    {'a big decimal', require('decimal').new('123456789012345678901234567890.5')},
    {'a uuid', uuid.fromstr('c2d9dd2f-2f2b-4d2a-8a0b-000000000001')}, {'decimals inside', {{require('decimal').new(7)}}},
}
if pcall(require, 'datetime') then
    local datetime = require('datetime')
    table.insert(shapes, {'a datetime', datetime.new({year = 2024, month = 2, day = 29, tz = 'UTC'})})
    table.insert(shapes, {'an interval', datetime.interval.new({day = 3, month = 1})})
end
for _, count in ipairs({15, 16, 31, 32, 255, 256, 65535, 65536}) do
    table.insert(shapes, {('a text of %d'):format(count), ('y'):rep(count)})
    if count < 1000 then
        local list, map = {}, {}
        for i = 1, count do
            list[i], map['k' .. i] = i, i
        end
        table.insert(shapes, {('a list of %d'):format(count), list})
        table.insert(shapes, {('a map of %d'):format(count), map})
    end
end

local function args_of(shape)
    local args = {}
    for i = 2, table.maxn(shape) do
        args[i - 1] = shape[i]
    end
    return args
end

-- What was received once more, to see that nothing hangs on the first look at it.
local function twice(future)
    local first, err = future:wait_result(10)
    local second, again = future:result()
    assert(type(first) == type(second) and type(err) == type(again))
    return first, err
end

local RAW_FUTURE = 'return_raw of a future'

for _, shape in ipairs(shapes) do
    local text, args = shape[1], args_of(shape)
    for _, name in ipairs({'callrw', 'callro', 'callbre'}) do
        rows:add(('%s: %s'):format(name, text), function(r)
            return r[name](1, 'echo', args, {timeout = 10})
        end)
    end
    rows:add('callrw, is_async: ' .. text, function(r)
        return twice(r.callrw(1, 'echo', args, {is_async = true}))
    end)
    rows:add('route():callrw: ' .. text, function(r)
        return r.route(1):callrw('vshard.storage.call', {1, 'write', 'echo', args}, {timeout = 10})
    end)
    rows:add('route():callro: ' .. text, function(r)
        return r.route(1):callro('vshard.storage.call', {1, 'read', 'echo', args}, {timeout = 10})
    end)
    rows:add('route():callrw, is_async: ' .. text, function(r)
        return r.route(1):callrw('vshard.storage.call', {1, 'write', 'echo', args}, {is_async = true}):wait_result(10)
    end)
    rows:add('replica:call: ' .. text, function(r)
        return r.route(1).master:call('vshard.storage.call', {1, 'write', 'echo', args}, {timeout = 10})
    end)
    rows:add('map_callrw: ' .. text, function(r)
        return r.map_callrw('echo', args, {timeout = 10})
    end)
    rows:add('map_callrw, bucket_ids: ' .. text, function(r)
        return r.map_callrw('echo', args, {timeout = 10, bucket_ids = {1}})
    end)
    if has_objects then
        for _, name in ipairs({'callrw', 'callbro'}) do
            rows:add(('%s, return_raw: %s'):format(name, text), function(r)
                return r[name](1, 'echo', args, {timeout = 10, return_raw = true})
            end)
        end
        rows:add('callrw, return_raw, is_async: ' .. text, function(r)
            return r.callrw(1, 'echo', args, {is_async = true, return_raw = true}):wait_result(10)
        end, {differs = RAW_FUTURE, vshard = {'returned '}, rawshard = {'returned object seq{'}})
        rows:add('map_callrw, return_raw: ' .. text, function(r)
            return r.map_callrw('echo', args, {timeout = 10, return_raw = true})
        end)
        rows:add('route():callrw, return_raw: ' .. text, function(r)
            return r.route(1):callrw('vshard.storage.call', {1, 'write', 'echo', args}, {timeout = 10, return_raw = true})
        end)
    end
end

-- Functions that return something else.
for _, func in ipairs({'nothing', 'nilerr', 'false_err', 'nil_two', 'one_nil_three', 'four_values', 'whoami'}) do
    for _, name in ipairs({'callrw', 'callro'}) do
        rows:add(('%s: %s'):format(name, func), function(r)
            if name == 'callro' and func == 'whoami' then
                return 'of either instance'
            end
            return r[name](1, func, {}, {timeout = 10})
        end)
    end
    rows:add('is_async: ' .. func, function(r)
        return twice(r.callrw(1, func, {}, {is_async = true}))
    end)
    rows:add('map_callrw: ' .. func, function(r)
        return r.map_callrw(func, {}, {timeout = 10})
    end)
    if has_objects then
        rows:add('return_raw: ' .. func, function(r)
            return r.callrw(1, func, {}, {timeout = 10, return_raw = true})
        end)
    end
end

return rows
