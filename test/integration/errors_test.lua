-- What a caller sees when the user's function fails, and when there is no one to ask (cases P04 and P13).

package.path = './?.lua;' .. package.path
local fiber = require('fiber')
local suite = require('test.helper.suite')

local s = suite.new('errors')

local function call(fe, c, func, args, timeout)
    return fe:call(c, {1, 'write', func, args or {}, {timeout = timeout or 5}})
end

-- vshard's storage runs the function by net.box.self, which leaves nothing but the message of a box.error.
local keeps_errors = suite.env.storage_kind == 'helper'

-- The error as the storage sends it; the router must not change any of it.
local function sent_error(c, func, args)
    local ok, err = c.storages.s1a:call('vshard.storage.call', {1, 'write', func, args or {}})
    assert(ok == false and type(err) == 'table')
    return err
end

local function same_error(t, fe, c, func, args, message)
    local wanted = sent_error(c, func, args)
    local res = call(fe, c, func, args)
    t:error(res, {message = message}, 'the message')
    t:ok(res.n == 2 and res[1] == nil, 'nil and an error')
    -- An error object inside it: the driver's net.box announces that it takes them and gets an object, others get its text.
    for k, v in pairs(wanted) do
        if type(v) == 'cdata' then
            wanted[k] = tostring(v)
        end
    end
    t:is(res[2], wanted, 'the error as the storage sent it')
    return res[2] or {}
end

local raw_differs = {differs = 'a raw exception is an object [err]'}

s:scenario('P04 a raised string', raw_differs, function(t, fe, c)
    local err = same_error(t, fe, c, 'boom', {'the reason'}, 'the reason')
    t:is(err.code, 32, 'its code')
    t:is(err.type, 'ClientError', 'its type')
end)

s:scenario('P04 a raised box.error with type, code and payload', raw_differs, function(t, fe, c)
    local err = same_error(t, fe, c, 'box_boom', {}, 'the payload error')
    if keeps_errors then
        t:is(err.code, 1234, 'its code')
        t:is(err.type, 'MyAppError', 'its type')
    end
    if keeps_errors and suite.env.at_least('3.0') then
        t:is(err.amount, 42, 'a payload field')
        t:is(err.note, 'extra', 'another')
    end
end)

s:scenario('P04 a chain of errors', raw_differs, function(t, fe, c)
    local err = same_error(t, fe, c, 'chain_boom', {}, 'top')
    if keeps_errors then
        t:is(err.code, 103, 'its code')
        t:is(err.prev and err.prev.message, 'middle', 'the cause')
        t:is(err.prev and err.prev.code, 102, 'the code of the cause')
        t:is(err.prev and err.prev.prev and err.prev.prev.message, 'root cause', 'the root cause')
    end
end)

s:scenario('an unknown function', raw_differs, function(t, fe, c)
    same_error(t, fe, c, 'no_such_function', {}, function(text)
        return tostring(text):find('no_such_function', 1, true) ~= nil
    end)
end)

s:scenario('a raised error runs the function once', raw_differs, function(t, fe, c)
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
            t:error(res, {type = 'ClientError', code = keeps_errors and code or nil})
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
        -- In backoff: the storage was just starting when it was asked last, after the scenario before.
        t:ok(err.code == 77 or err.code == 78 or err.type == 'TimedOut' or err.name == 'UNREACHABLE_REPLICASET' or
             err.name == 'REPLICASET_IN_BACKOFF',
             mode .. ': the error is one of the connection', '  got: %s', require('json').encode(err))
        t:within(fiber.clock() - started, 0, 2.5, mode .. ' in time')
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
    t:within(fiber.clock() - started, 0, 3, 'in time')
end)

s:run()
