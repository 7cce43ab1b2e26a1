-- One call across the router: three to five elements, every mode, and what the user's function returns.

package.path = './?.lua;' .. package.path
local suite = require('test.helper.suite')

local s = suite.new('callraw')

local modes = {
    {'nil', nil, 'write'},
    {'write', 'write', 'write'},
    {'read', 'read', 'read'},
    {'{}', setmetatable({}, {__serialize = 'map'}), 'write'},
    {'{mode = write}', {mode = 'write'}, 'write'},
    {'{mode = read}', {mode = 'read'}, 'read'},
    {'{mode = read, prefer_replica}', {mode = 'read', prefer_replica = true}, 'read'},
    {'{mode = read, balance}', {mode = 'read', balance = true}, 'read'},
    {'{mode = read, prefer_replica, balance}', {mode = 'read', prefer_replica = true, balance = true}, 'read'},
    {'{mode = write, prefer_replica = false}', {mode = 'write', prefer_replica = false}, 'write'},
}

s:scenario('three to five elements', {}, function(t, fe, c)
    t:values(fe, fe:call(c, {1, 'read', 'echo', n = 3}), {n = 0}, 'three elements')
    t:values(fe, fe:call(c, {1, 'read', 'echo', {7}, n = 4}), {7}, 'four elements')
    t:values(fe, fe:call(c, {1, 'read', 'echo', {7}, {timeout = 5}, n = 5}), {7}, 'five elements')
    t:values(fe, fe:call(c, {1, 'read', 'echo', nil, nil, n = 5}), {n = 0}, 'the last two are nil')
    t:values(fe, fe:call(c, {1, nil, 'echo', {7}, nil, n = 5}), {7}, 'opts and call_opts are nil')
    t:values(fe, fe:call(c, {1, 'read', 'echo', nil, {timeout = 5}, n = 5}), {n = 0}, 'args is nil')
    t:values(fe, fe:call(c, {1, 'read', 'echo', {}, n = 4}), {n = 0}, 'args is empty')
    t:values(fe, fe:call(c, {30, 'write', 'echo', {7}}), {7}, 'the last bucket')
end)

for _, mode in ipairs(modes) do
    s:scenario('mode ' .. mode[1], {}, function(t, fe, c)
        for i, rs in ipairs(c.replicasets) do
            local res = fe:call(c, {rs.first, mode[2], 'whoami', {}, {timeout = 5}})
            if mode[3] == 'write' then
                t:values(fe, res, {rs.names[1]}, 'the master of replicaset ' .. i)
            else
                t:ok(res.raised == nil and res.n == 1 and tostring(res[1]):startswith('s' .. i),
                     'an instance of replicaset ' .. i)
            end
        end
    end)
end

s:scenario('returned values: none to three', {}, function(t, fe, c)
    local function call(func, args)
        return fe:call(c, {1, 'write', func, args, {timeout = 5}})
    end
    t:values(fe, call('nothing'), {n = 0}, 'no value')
    t:values(fe, call('echo', {11}), {11}, 'one value')
    t:values(fe, call('two_values', {11, 'two'}), {11, 'two'}, 'two values')
    t:values(fe, call('one_nil_three'), {1, nil, 3}, 'three values, one of them nil')
    t:values(fe, call('four_values'), {1, 2, 3}, 'the storage keeps three of four')
    t:values(fe, call('echo', {{1, {2, {k = 'v'}}}}), {{1, {2, {k = 'v'}}}}, 'one value that is an array')
end)

s:scenario('nil, err returned by the user', {}, function(t, fe, c)
    local res = fe:call(c, {1, 'write', 'nilerr', {'why'}, {timeout = 5}})
    t:error(res, {code = 77077, reason = 'why'})
    res = fe:call(c, {1, 'write', 'nil_two', {}, {timeout = 5}})
    t:ok(res.n == 2 and res[1] == nil and res[2] == 2, 'nil and a second value')
end)

s:run()
