-- Arguments of calls, good and bad: bucket ids, modes, function names, argument lists, options.

local env = require('test.helper.env')
local msgpack = require('msgpack')

local rows = require('test.helper.rows').new('arguments')

local has_objects = msgpack.object ~= nil
local nan, inf = 0 / 0, math.huge

-- The shortcuts without mode, as functions of the same arguments.
local calls = {'callrw', 'callro', 'callre', 'callbro', 'callbre'}

rows:state('as it is')

-- Bucket ids.

local bad_ids = {
    {'nil', nil}, {'null', box.NULL}, {'a string', '1'}, {'an int64', 1LL}, {'a uint64', 1ULL}, {'true', true}, {'a table', {1}},
    {'0', 0}, {'-1', -1}, {'31', 31}, {'1e15', 1e15}, {'inf', inf}, {'-inf', -inf}, {'0.5', 0.5}, {'1.5', 1.5}, {'30.5', 30.5},
    {'nan', nan},
}

local OUT_OF_RANGE = 'raised "Bucket is unreachable: bucket id is out of range"'
-- A storage is asked whether it has such a bucket, and its space does not take the key.
local NO_KEY = {'returned nil, err{', 'code=18,', 'type="ClientError"'}

for _, id in ipairs(bad_ids) do
    local text, value = id[1], id[2]
    -- NaN is one too.
    local is_fraction = type(value) == 'number' and value % 1 ~= 0 and math.abs(value) ~= inf
    local function opts()
        if is_fraction and not (value > 30) then
            return {differs = 'a fractional bucket id is out of range', vshard = NO_KEY, rawshard = OUT_OF_RANGE}
        end
        return {}
    end
    for _, name in ipairs(calls) do
        rows:add(('%s: bucket id %s'):format(name, text), function(r, key)
            return r[name](value, 'count', {key}, {timeout = 0.1})
        end, opts())
    end
    for _, mode in ipairs({'write', 'read'}) do
        rows:add(('call: mode %s, bucket id %s'):format(mode, text), function(r, key)
            return r.call(value, mode, 'count', {key}, {timeout = 0.1})
        end, opts())
    end
    rows:add('callrw: is_async, bucket id ' .. text, function(r, key)
        return r.callrw(value, 'count', {key}, {timeout = 0.1, is_async = true})
    end, opts())
    if has_objects then
        rows:add('callrw: return_raw, bucket id ' .. text, function(r, key)
            return r.callrw(value, 'count', {key}, {timeout = 0.1, return_raw = true})
        end, opts())
    end
    local is_no_key = is_fraction or type(value) == 'number' and (value < 0 or value > (env.at_least('2.10') and 1e15 or 31))
    rows:add('route: bucket id ' .. text, function(r)
        return r.route(value)
    end, is_no_key and {
        differs = 'route answers by itself for an id that cannot be', vshard = value == 1e15 and {'bucket_stat'} or NO_KEY,
        rawshard = {'returned nil, err{', 'code=9,', 'name="NO_ROUTE_TO_BUCKET"'},
    } or {})
end

-- Modes.

local modes = {
    {'nil', nil}, {'null', box.NULL}, {'false', false}, {'write', 'write'}, {'read', 'read'}, {'READ', 'READ'}, {'empty', ''},
    {'rw', 'rw'}, {'5', 5}, {'true', true}, {'an int64', 1LL}, {'a function', print}, {'{}', {}},
    {'{write}', {mode = 'write'}}, {'{read}', {mode = 'read'}}, {'{READ}', {mode = 'READ'}}, {'{5}', {mode = 5}},
    {'{true}', {mode = true}}, {'{table}', {mode = {}}},
    {'{false}', {mode = false}}, {'{null}', {mode = box.NULL}}, {'{unknown key}', {mode = 'write', what = 1}},
}
for _, mode in ipairs({'write', 'read'}) do
    for _, prefer in ipairs({'nil', 'false', 'true', '1'}) do
        for _, balance in ipairs({'nil', 'false', 'true', '1'}) do
            local values = {['nil'] = nil, ['false'] = false, ['true'] = true, ['1'] = 1}
            table.insert(modes, {('{%s, prefer_replica %s, balance %s}'):format(mode, prefer, balance), {
                mode = mode, prefer_replica = values[prefer], balance = values[balance],
            }})
        end
    end
end
local unknown_modes = {
    READ = true, empty = true, rw = true, ['{READ}'] = true, ['{5}'] = true, ['{true}'] = true, ['{table}'] = true,
    ['{null}'] = true,
}
for _, mode in ipairs(modes) do
    local text, value = mode[1], mode[2]
    rows:add('call: mode ' .. text, function(r, key)
        return r.call(1, value, 'count', {key}, {timeout = 5})
    end, unknown_modes[text] and {
        differs = 'an unknown mode is refused by the router', vshard = {'returned nil, err{', 'message="Unknown mode"'},
        rawshard = {'returned nil, err{', 'code=32', 'message="Unknown mode: '},
    } or {})
end

-- Names of functions.

local funcs = {
    {'nil', nil}, {'null', box.NULL}, {'5', 5}, {'true', true}, {'a table', {}}, {'a table with a name', {'echo'}}, {'1LL', 1LL},
    {'empty', ''}, {'no_such', 'no_such'}, {'of no table', 'no_such.f'}, {'with a colon', 'no_such:f'}, {'a number', 'config'},
    {'a path', 'string.rep'}, {'a value', 'jit.version'}, {'spaces', ' echo '}, {'zero byte', 'ec\0ho'},
}
local USAGE = 'raised "Usage: call(bucket_id, mode, func, args, opts)"'
local function no_name()
    return {differs = 'the name of a function is a string', vshard = {'returned nil, err{'}, rawshard = USAGE}
end
for _, func in ipairs(funcs) do
    local text, value = func[1], func[2]
    for _, name in ipairs({'callrw', 'callro'}) do
        rows:add(('%s: function %s'):format(name, text), function(r)
            return r[name](1, value, {'x', 2}, {timeout = 5})
        end, type(value) ~= 'string' and no_name() or {})
    end
end

-- Arguments of functions.

local args = {
    {'nil', nil}, {'null', box.NULL}, {'{}', {}}, {'{1}', {1}}, {'{nil, 2}', {nil, 2}}, {'{1, nil, 3}', {1, nil, 3}},
    {'sparse', {[1] = 1, [3] = 3}}, {'very sparse', {[1] = 1, [100] = 2}}, {'a map', {a = 1}}, {'mixed', {1, a = 2}},
    {'zero', {[0] = 1}}, {'a function inside', {print}}, {'nested', {{1, {2, {3, {}}}}}},
    {'5', 5}, {'a string', 'x'}, {'true', true}, {'false', false}, {'a function', print}, {'an int64', 1LL},
    {'a tuple', box.tuple.new({1, 2})}, {'an empty tuple', box.tuple.new({})},
}
if has_objects then
    table.insert(args, {'an object', msgpack.object({1, 'a', {k = 1}})})
    table.insert(args, {'an empty object', msgpack.object({})})
    table.insert(args, {'an object of a map', msgpack.object({a = 1})})
    table.insert(args, {'an object of a number', msgpack.object(5)})
    table.insert(args, {'an object inside', {msgpack.object({1}), 2}})
end
-- Maps: the storage takes their positions for arguments and drops the rest. Others: it complains, or cannot be sent.
local maps = {['very sparse'] = true, ['a map'] = true, mixed = true, zero = true, ['an object of a map'] = true}
local others = {
    ['5'] = true, ['a string'] = true, ['true'] = true, ['false'] = true, ['a function'] = true, ['an int64'] = true,
    ['an object of a number'] = true,
}
local function not_an_array(text)
    if maps[text] then
        return {differs = 'arguments that are a map are refused', vshard = {'returned '},
                rawshard = 'raised "rawshard: arguments: expected an array"'}
    elseif others[text] then
        return {differs = 'arguments that are no table are refused', vshard = {'returned nil, err{'},
                rawshard = {'raised "'}}
    elseif text == 'null' then
        return {differs = 'box.NULL as arguments means none', vshard = {'returned nil, err{', 'bad argument #'},
                rawshard = 'returned 0'}
    elseif env.at_least('3.0') and (text == 'a tuple' or text == 'an empty tuple') then
        return {differs = 'arguments may be a tuple', vshard = {'returned nil, err{'}, rawshard = {'returned '}}
    end
    return {}
end
for _, arg in ipairs(args) do
    local text, value = arg[1], arg[2]
    for _, name in ipairs({'callrw', 'callbre'}) do
        rows:add(('%s: arguments %s'):format(name, text), function(r)
            return r[name](1, 'args_of', value, {timeout = 5})
        end, not_an_array(text))
    end
end

-- Options.

local options = {
    {'nil', nil}, {'null', box.NULL}, {'false', false}, {'{}', {}}, {'5', 5}, {'a string', 'x'}, {'true', true},
    {'a function', print}, {'1LL', 1LL},
    {"timeout '1'", {timeout = '1'}}, {'timeout true', {timeout = true}}, {'timeout false', {timeout = false}},
    {'timeout null', {timeout = box.NULL}}, {'timeout 5LL', {timeout = 5LL}}, {'timeout {}', {timeout = {}}},
    {'timeout 5', {timeout = 5}}, {'timeout inf', {timeout = inf}}, {'timeout 1e9', {timeout = 1e9}},
    {'timeout 1e300', {timeout = 1e300}},
    {"request_timeout '1'", {request_timeout = '1'}}, {'request_timeout {}', {request_timeout = {}}},
    {'request_timeout false', {request_timeout = false}}, {'request_timeout above', {timeout = 5, request_timeout = 6}},
    {'request_timeout above the default', {request_timeout = 0.6}},
    {'unknown keys', {what = 1, [5] = 6}},
}
local read_options = {
    {'request_timeout null', {timeout = 5, request_timeout = box.NULL}},
    {'request_timeout below', {timeout = 5, request_timeout = 4}},
    {'request_timeout inf', {timeout = inf, request_timeout = inf}},
}
-- Newer hosts' net.box knows its options.
local function refused_by_net_box(name, text)
    if not env.at_least('2.10') then
        return {}
    elseif text == 'unknown keys' then
        -- Before 3.0 it takes this for a moved bucket and tries until the deadline.
        return {differs = 'unknown options are passed over',
                vshard = {'returned nil, err{', env.at_least('3.0') and "unexpected option 'what'" or ''},
                rawshard = 'returned "KEY"; executed 1 times'}
    elseif text == 'request_timeout false' and name == 'callrw' then
        return {differs = 'request_timeout of a write is passed over',
                vshard = {'returned nil, err{', env.at_least('3.0') and "unexpected option 'request_timeout'" or ''},
                rawshard = 'returned "KEY"; executed 1 times'}
    end
    return {}
end
for _, name in ipairs(calls) do
    for _, list in ipairs({options, name ~= 'callrw' and read_options or {}}) do
        for _, option in ipairs(list) do
            local text, value = option[1], option[2]
            rows:add(('%s: options %s'):format(name, text), function(r, key)
                local before = type(value) == 'table' and table.copy(value)
                local res = {pcall(r[name], 1, 'count', {key}, value)}
                if before then
                    for k, v in pairs(before) do
                        assert(value[k] == v, 'the table of options was changed')
                    end
                end
                if not res[1] then
                    error(res[2], 0)
                end
                return unpack(res, 2, table.maxn(res))
            end, refused_by_net_box(name, text))
        end
    end
end

-- Too few and too many.

rows:add('callrw: nothing', function(r) return r.callrw() end)
rows:add('callrw: an id alone', function(r) return r.callrw(1) end, no_name())
rows:add('call: nothing', function(r) return r.call() end)
rows:add('call: an id alone', function(r) return r.call(1) end, no_name())
rows:add('callrw: more arguments', function(r, key) return r.callrw(1, 'count', {key}, {timeout = 5}, 'more', 'yet') end)

-- Whose method is it.

local names = {
    'call', 'callrw', 'callro', 'callre', 'callbro', 'callbre', 'map_callrw', 'route', 'routeall', 'bucket_id',
    'bucket_id_strcrc32', 'bucket_id_mpcrc32', 'bucket_count', 'sync', 'bootstrap', 'info', 'buckets_info', 'discovery_wakeup',
    'discovery_set', 'master_search_wakeup', 'cfg', 'enable', 'disable', '_route_map_clear', '_bucket_reset', '_buckets_group',
    'create_cluster_recovery_point',
}
for _, name in ipairs(names) do
    rows:add(('static.%s of a wrong self'):format(name), function(r)
        return r.static[name]({}, 1)
    end)
    rows:add(('static.%s without self'):format(name), function(r)
        return r.static[name]()
    end)
    rows:add(('static.%s of a number'):format(name), function(r)
        return r.static[name](5, 1)
    end)
    rows:add('type of ' .. name, function(r) return type(r[name]), type(r.static[name]) end)
end
for _, name in ipairs({'new', 'static', 'internal', 'module_version', 'no_such', 'is_enabled'}) do
    rows:add('type of ' .. name, function(r) return type(r[name]) end)
end
rows:add('module_version', function(r) return r.module_version() end)
rows:add('a method of the static object', function(r, key) return r.static:callrw(1, 'count', {key}, {timeout = 5}) end)

return rows
