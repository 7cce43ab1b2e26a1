-- map_callrw in all its forms.

local msgpack = require('msgpack')

local rows = require('test.helper.rows').new('map_calls')

local has_objects = msgpack.object ~= nil
local inf = math.huge

rows:state('as it is')

local function outcome(res, err, id)
    return res, err, id
end

local USAGE = {'raised "Usage: map_callrw('}

-- Options, with what they do.

local options = {
    {'nothing'}, {'null', box.NULL}, {'false', false}, {'{}', {}}, {'timeout', {timeout = 5}}, {'timeout null',
    {timeout = box.NULL}},
    {'timeout inf', {timeout = inf}}, {'unknown key', {what = 1, timeout = 5}}, {'return_raw false', {return_raw = false}},
    {'bucket_ids false', {bucket_ids = false, timeout = 5}},
    {'bucket_ids null', {bucket_ids = box.NULL, timeout = 5}}, {'bucket_ids {}', {bucket_ids = {}, timeout = 5}},
    {'one bucket', {bucket_ids = {1}, timeout = 5}}, {'the other', {bucket_ids = {30}, timeout = 5}},
    {'both', {bucket_ids = {1, 30}, timeout = 5}}, {'many', {bucket_ids = {1, 2, 3, 15, 16, 29, 30}, timeout = 5}},
    {'one twice', {bucket_ids = {5, 5, 5}, timeout = 5}}, {'a map of ids', {bucket_ids = {[1] = 7, [5] = 20}, timeout = 5}},
    {'named ids', {bucket_ids = {a = 1, b = 30}, timeout = 5}},
    {'0', {bucket_ids = {0}, timeout = 0.3}}, {'31', {bucket_ids = {31}, timeout = 0.3}}, {'1 and 31',
    {bucket_ids = {1, 31}, timeout = 0.3}},
    {'a number and a text', {bucket_ids = {1, 'x'}, timeout = 0.3}},
}
for _, option in ipairs(options) do
    local differs = option[1] == 'bucket_ids false' and {
        differs = 'bucket_ids is a table', vshard = {'returned {["aaaaaaaa'},
            rawshard = {'returned nil, err{', 'bucket_ids must be a table'},
    } or (option[1] == 'null' or option[1] == 'timeout null') and {
        differs = 'map_callrw: wrong types raise', vshard = {'raised '}, rawshard = USAGE,
    } or {}
    rows:add('options: ' .. option[1], function(r, key)
        return outcome(r.map_callrw('count', {key, 1, 2}, option[2]))
    end, table.copy(differs))
    if has_objects and type(option[2]) == 'table' then
        rows:add('options: return_raw, ' .. option[1], function(r, key)
            local opts = table.copy(option[2])
            opts.return_raw = true
            return outcome(r.map_callrw('count', {key, 1, 2}, opts))
        end, table.copy(differs))
    end
end
for _, bad in ipairs({{'a number', 5}, {'a text', 'x'}, {'true', true}, {'1LL', 1LL}}) do
    rows:add('bucket_ids: ' .. bad[1], function(r, key)
        return outcome(r.map_callrw('count', {key}, {timeout = 5, bucket_ids = bad[2]}))
    end, {
        differs = 'bucket_ids is a table', vshard = {'executed 2 times'},
        rawshard = {'returned nil, err{', 'bucket_ids must be a table'},
    })
end
for _, bad in ipairs({{'ULL', {10ULL, 20ULL}}, {'texts', {'10', '20'}}}) do
    rows:add('bucket_ids: a list of ' .. bad[1], function(r, key)
        return outcome(r.map_callrw('count', {key}, {timeout = 5, bucket_ids = bad[2]}))
    end, {
        differs = 'a list of bucket_ids holds numbers', vshard = {'returned {["aaaaaaaa', 'executed'},
        rawshard = {'returned nil, err{', 'is not a number'},
    })
end
rows:add('bucket_ids: arguments that are booleans', function(r, key)
    return outcome(r.map_callrw('count', {key}, {timeout = 5, bucket_ids = {true, true}}))
end)
for _, bad in ipairs({{'keys of text', {['10'] = {1}}}, {'text keys, text values', {a = 'b'}}, {'keys and positions',
    {{1}, x = {2}}}}) do
    rows:add('bucket_ids: ' .. bad[1], function(r, key)
        return outcome(r.map_callrw('count', {key}, {timeout = 5, bucket_ids = bad[2]}))
    end)
end

-- Arguments for each bucket.

for _, ids in ipairs({
    {'one', {[1] = {'a'}}}, {'two', {[1] = {'a'}, [2] = {'b'}}}, {'of both', {[1] = {'a'}, [30] = {'b'}}},
    {'strings', {[1] = 'a', [30] = 'b'}}, {'dense', {{1}, {2}, {3}}}, {'nested', {[7] = {x = {1, {2}}}}}, {'true', {[1] = true}},
}) do
    for _, args in ipairs({{'nil', nil}, {'{}', {}}, {'{1, 2}', {1, 2}}}) do
        rows:add(('split arguments: %s, args %s'):format(ids[1], args[1]), function(r)
            local before = args[2] and table.copy(args[2])
            local res, err, id = r.map_callrw('args_list', args[2], {timeout = 5, bucket_ids = ids[2]})
            assert(before == nil or #before == #args[2])
            return res, err, id
        end)
    end
end
if has_objects then
    rows:add('args: an object', function(r)
        return outcome(r.map_callrw('args_list', msgpack.object({1, {2}}), {timeout = 5}))
    end)
    rows:add('args: an object, bucket_ids', function(r)
        return outcome(r.map_callrw('args_list', msgpack.object({1, {2}}), {timeout = 5, bucket_ids = {1}}))
    end)
    rows:add('args: an object, split arguments', function(r)
        return outcome(r.map_callrw('args_list', msgpack.object({1}), {timeout = 5, bucket_ids = {[1] = {2}}}))
    end, {
        differs = 'map_callrw: an object and arguments for each bucket', vshard = {'raised '},
        rawshard = {'returned {["aaaaaaaa-0000-4000-8000-000000000001"]={[1]=seq{[1]=1, [2]='},
    })
end

-- Functions and arguments of wrong types.

for _, func in ipairs({{'nil', nil}, {'null', box.NULL}, {'5', 5}, {'{}', {}}, {'true', true}}) do
    rows:add('function: ' .. func[1], function(r) return outcome(r.map_callrw(func[2], {1}, {timeout = 5})) end, {
        differs = 'map_callrw: wrong types raise', vshard = {'returned nil, err{'}, rawshard = USAGE,
    })
end
for _, func in ipairs({'', 'no_such', 'no.such'}) do
    rows:add('function: ' .. func, function(r)
        local res, err = r.map_callrw(func, {1}, {timeout = 5})
        return res, err
    end)
end
for _, opts in ipairs({{'5', 5}, {'true', true}}) do
    rows:add('options: ' .. opts[1], function(r) return outcome(r.map_callrw('echo', {1}, opts[2])) end, {
        differs = 'map_callrw: wrong types raise', vshard = {'raised "attempt to index'}, rawshard = USAGE,
    })
end
for _, timeout in ipairs({{'a text', '5'}, {'{}', {}}, {'true', true}}) do
    rows:add('timeout: ' .. timeout[1], function(r) return outcome(r.map_callrw('echo', {1}, {timeout = timeout[2]})) end, {
        differs = 'map_callrw: wrong types raise', vshard = {timeout[1] == 'a text' and 'returned {' or 'raised '},
        rawshard = USAGE,
    })
end
for _, args in ipairs({{'nil', nil}, {'null', box.NULL}, {'{}', {}}, {'{nil, 2}', {nil, 2}}, {'a map', {a = 1}}, {'5', 5},
    {'a text', 'x'},
                       {'true', true}}) do
    rows:add('arguments: ' .. args[1], function(r)
        local res, err = r.map_callrw('args_list', args[2], {timeout = 5})
        return res, err
    end)
end

-- One fails, the other does not.

rows:add('fails on one', function(r, key)
    return outcome(r.map_callrw('fail_on', {'s1a', key}, {timeout = 5}))
end)
rows:add('fails on the other', function(r, key)
    return outcome(r.map_callrw('fail_on', {'s2a', key}, {timeout = 5}))
end)
rows:add('nil of one', function(r) return outcome(r.map_callrw('nil_on', {'s1a'}, {timeout = 5})) end)
rows:add('slow on one', function(r)
    local res, err, id = r.map_callrw('slow_on', {'s1a', 1}, {timeout = 0.3})
    return res, err and (err.code == 78 or err.type == 'TimedOut'), id
end)
rows:add('many at once', function(r)
    local fiber = require('fiber')
    local fibers, good = {}, 0
    for i = 1, 20 do
        fibers[i] = fiber.new(function()
            local res = r.map_callrw('echo', {i}, {timeout = 10})
            for _, values in pairs(res) do
                good = good + (values[1] == i and 1 or 0)
            end
        end)
        fibers[i]:set_joinable(true)
    end
    for i = 1, 20 do
        fibers[i]:join()
    end
    return good
end)

return rows
