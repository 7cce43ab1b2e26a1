-- What a caller sees when the user's function fails, and when there is no one to ask (case P13).

package.path = './?.lua;' .. package.path
local fiber = require('fiber')
local suite = require('test.helper.suite')

local s = suite.new('errors')

local function call(fe, c, func, args, timeout)
    return fe:call(c, {1, 'write', func, args or {}, {timeout = timeout or 5}})
end

s:scenario('a raised string', {differs = 'a raw exception is an object [err]'}, function(t, fe, c)
    t:error(call(fe, c, 'boom', {'the reason'}), {type = 'ClientError', code = 32, message = 'the reason'})
end)

s:scenario('a raised box.error with type and code', {differs = 'a raw exception is an object [err]'}, function(t, fe, c)
    t:error(call(fe, c, 'box_boom'), {type = 'MyAppError', code = 1234, message = 'the payload error'})
end)

s:scenario('a raised box.error with payload fields', {
    differs = 'a raw exception is an object [err]', min_host = '2.11',
}, function(t, fe, c)
    t:error(call(fe, c, 'box_boom'), {type = 'MyAppError', code = 1234, amount = 42, note = 'extra'})
end)

s:scenario('a chain of errors', {differs = 'a raw exception is an object [err]'}, function(t, fe, c)
    local res = call(fe, c, 'chain_boom')
    if t:error(res, {type = 'TopError', code = 103, message = 'top'}) then
        local err = res[2]
        t:is(err.prev and err.prev.message, 'middle', 'the cause')
        t:is(err.prev and err.prev.code, 102, 'the code of the cause')
        t:is(err.prev and err.prev.prev and err.prev.prev.message, 'root cause', 'the root cause')
    end
end)

s:scenario('an unknown function', {differs = 'a raw exception is an object [err]'}, function(t, fe, c)
    t:error(call(fe, c, 'no_such_function'), {code = 33, message = function(text)
        return tostring(text):find('no_such_function', 1, true) ~= nil
    end})
end)

s:scenario('a raised error runs the function once', {differs = 'a raw exception is an object [err]'}, function(t, fe, c)
    local key = 'raised ' .. fe.name
    t:error(call(fe, c, 'count_boom', {key, 'once'}), {message = 'once'})
    t:is(c:executed(key), 1, 'executed')
end)

-- ER_ILLEGAL_PARAMS, ER_MEMORY_ISSUE, ER_READONLY and ER_TUPLE_NOT_ARRAY have the numbers of vshard's refusals.
for _, code in ipairs({1, 2, 7, 22}) do
    for _, mode in ipairs({'write', 'read'}) do
        s:scenario(('a user error of code %d is no refusal, %s'):format(code, mode), {
            differs = 'compares codes without types and runs the function again',
        }, function(t, fe, c)
            local key = ('code %d %s %s'):format(code, mode, fe.name)
            local res = fe:call(c, {1, mode, 'code_boom', {key, code}, {timeout = 1}})
            t:error(res, {type = 'ClientError', code = code})
            t:is(c:executed(key), 1, 'executed')
        end)
    end
end

-- P13

s:scenario('P13 the bucket is nowhere', {heals = true}, function(t, fe, c)
    local rs = c:replicaset_of(7)
    c:set_bucket(rs, 7, nil)
    local started = fiber.clock()
    local res = fe:call(c, {7, 'write', 'echo', {1}, {timeout = 0.3}})
    t:error(res, {type = 'ShardingError', code = 9, name = 'NO_ROUTE_TO_BUCKET', bucket_id = 7})
    t:within(fiber.clock() - started, 0, 2, 'in time')
end)

s:scenario('P13 bucket ids out of range', {}, function(t, fe, c)
    for _, id in ipairs({0, 31, -1, 1000000}) do
        local res = fe:call(c, {id, 'write', 'echo', {1}, {timeout = 1}})
        t:ok(res.raised ~= nil, 'raised for ' .. id, '  got: %s', require('json').encode(res))
    end
end)

s:scenario('P13 bucket ids of a wrong type', {}, function(t, fe, c)
    for _, id in ipairs({'1', true, {1}}) do
        local res = fe:call(c, {id, 'write', 'echo', {1}, {timeout = 1}})
        t:ok(res.raised ~= nil, 'raised for a ' .. type(id), '  got: %s', require('json').encode(res))
    end
    local res = fe:call(c, {nil, 'write', 'echo', {1}, {timeout = 1}})
    t:ok(res.raised ~= nil, 'raised for nil')
end)

s:scenario('P13 a fractional bucket id is never taken for a neighbour', {
    differs = 'asks for the fraction and may wait for a route',
}, function(t, fe, c)
    local key = 'fraction ' .. fe.name
    local res = fe:call(c, {1.5, 'write', 'count', {key}, {timeout = 0.3}})
    t:ok(res.raised ~= nil or res[1] == nil, 'refused or not found')
    t:is(c:executed(key), 0, 'executed')
end)

s:scenario('P13 all of the replicaset is down, bucket known', {heals = true}, function(t, fe, c)
    t:values(fe, fe:call(c, {1, 'write', 'echo', {1}, {timeout = 5}}), {1}, 'known')
    c.storages.s1a:kill()
    c.storages.s1b:kill()
    for _, mode in ipairs({'write', 'read'}) do
        local started = fiber.clock()
        local res = fe:call(c, {1, mode, 'echo', {1}, {timeout = 0.5}})
        t:ok(res.raised == nil and res[1] == nil and type(res[2]) == 'table', mode .. ' fails by an error',
             '  got: %s', require('json').encode(res))
        local err = type(res[2]) == 'table' and res[2] or {}
        t:ok(err.code == 77 or err.code == 78 or err.type == 'TimedOut' or err.name == 'UNREACHABLE_REPLICASET',
             mode .. ': the error is one of the connection', '  got: %s', require('json').encode(err))
        t:within(fiber.clock() - started, 0, 1.5, mode .. ' in time')
    end
    -- The other replicaset does not suffer.
    t:values(fe, fe:call(c, {30, 'write', 'echo', {1}, {timeout = 5}}), {1}, 'the other replicaset serves')
end)

s:scenario('P13 all of the replicaset is down, bucket unknown', {heals = true, router = 'rawshard'}, function(t, fe, c)
    c.storages.s1a:kill()
    c.storages.s1b:kill()
    c.router:call('test_api', {'_route_map_clear', {}})
    local started = fiber.clock()
    local res = fe:call(c, {1, 'write', 'echo', {1}, {timeout = 0.7}})
    t:error(res, {type = 'ShardingError', name = 'UNREACHABLE_REPLICASET', code = 8, bucket_id = 1})
    t:within(fiber.clock() - started, 0, 2.5, 'in time')
end)

s:run()
