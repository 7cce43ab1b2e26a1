-- Functions that fail, in every way; and time that runs out.

local env = require('test.helper.env')
local fiber = require('fiber')
local json = require('json')
local msgpack = require('msgpack')

local rows = require('test.helper.rows').new('failures')

local has_objects = msgpack.object ~= nil
local inf = math.huge

-- Functions of the storages that fail, some by what they return.
local failing = {
    {'boom', {'a text'}}, {'boom', {}}, {'boom', {''}}, {'boom', {('long '):rep(1000)}}, {'boom', {'\0\1'}},
    {'box_boom', {}}, {'chain_boom', {}}, {'nilerr', {}}, {'false_err', {}},
    {'raise', {'a table', {a = 1}}}, {'raise', {'a code', {code = 5, message = 'm'}}},
    {'raise', {'a number', 5}}, {'raise', {'false', false}}, {'raise', {'a list', {1, 2}}},
    {'raise', {'like a refusal', {type = 'ShardingError', code = 32, name = 'REPLICASET_IN_BACKOFF', message = 'm'}}},
    {'raise', {'like a disabled storage', {type = 'ShardingError', code = 33, name = 'STORAGE_IS_DISABLED', message = 'm'}}},
    {'raise', {'like a timeout', {type = 'TimedOut', code = 78, message = 'Timed out'}}},
    {'raise', {'like no connection', {type = 'ClientError', code = 77, message = 'Connection is not established'}}},
    {'raise_box', {'NO_SUCH_SPACE'}}, {'raise_box', {'ACCESS_DENIED'}}, {'raise_box', {'TIMEOUT'}},
    {'raise_box', {'NO_CONNECTION'}},
    {'raise_box', {'NO_SUCH_PROC'}}, {'raise_box', {'TUPLE_FOUND'}}, {'raise_runtime', {}},
    {'return_function', {}}, {'return_recursive', {}}, {'return_null_error', {}},
    {'no_such_function', {}}, {'no.such.function', {}}, {'vshard.storage.no_such', {}}, {'box.no_such', {}},
}

local function first_of(text)
    return tostring(text):gsub('%c', '?'):sub(1, 24)
end

local RAW_ERROR = 'a failure in raw mode is nil and an error'

rows:state('as it is')

for _, case in ipairs(failing) do
    local func, args = case[1], case[2]
    local text = ('%s(%s)'):format(func, first_of(args[1] or ''))
    local is_raised = not func:startswith('return_') and func ~= 'nilerr' and func ~= 'false_err'
    -- Newer storages put the error itself beside its message.
    local is_object = env.at_least('3.0') and (func:endswith('_boom') or func == 'raise_box')
    local as_text = is_object and {
        differs = 'error objects arrive as their text', vshard = {'details=error object {'}, rawshard = {'details="'},
    } or {}
    if func == 'return_null_error' and env.at_least('2.10') then
        as_text = {differs = 'error objects arrive as their text', vshard = {'code=1234'}, rawshard = {'"the reason"'}}
    end
    local as_step = table.copy(as_text)
    if func == 'return_function' or func == 'return_recursive' then
        as_step = {
            differs = 'pairs: a failure of the connection is a step', vshard = {'{[1]={[1]=null'}, rawshard = {'[1]=1, [3]=err{'},
        }
    end
    -- A map takes the first value alone, and that is nil.
    local map_text = func ~= 'return_null_error' and as_text or {}
    for _, name in ipairs({'callrw', 'callro', 'callbre'}) do
        rows:add(('%s: %s'):format(name, text), function(r)
            return r[name](1, func, args, {timeout = 10})
        end, table.copy(as_text))
    end
    rows:add('is_async: ' .. text, function(r)
        return r.callrw(1, func, args, {is_async = true}):wait_result(10)
    end, table.copy(as_text))
    rows:add('is_async, pairs: ' .. text, function(r)
        local steps = {}
        for i, res in r.callrw(1, func, args, {is_async = true}):pairs(10) do
            table.insert(steps, {i, res[1], res[2]})
        end
        return steps
    end, as_step)
    rows:add('map_callrw: ' .. text, function(r)
        local res, err = r.map_callrw(func, args, {timeout = 10})
        return res, err
    end, table.copy(map_text))
    rows:add('map_callrw, bucket_ids: ' .. text, function(r)
        return r.map_callrw(func, args, {timeout = 10, bucket_ids = {1}})
    end, table.copy(map_text))
    if has_objects then
        local differs = is_raised and {
            differs = RAW_ERROR, vshard = {'returned nil, object seq{[1]='}, rawshard = {'returned nil, err{'},
        } or func == 'return_null_error' and table.copy(as_text) or {}
        for _, name in ipairs({'callrw', 'callro'}) do
            rows:add(('%s, return_raw: %s'):format(name, text), function(r)
                return r[name](1, func, args, {timeout = 10, return_raw = true})
            end, table.copy(differs))
        end
        rows:add('map_callrw, return_raw: ' .. text, function(r)
            return r.map_callrw(func, args, {timeout = 10, return_raw = true, bucket_ids = {1}})
        end, table.copy(map_text))
    end
    for _, name in ipairs({'callrw', 'callro'}) do
        rows:add(('route():%s: %s'):format(name, text), function(r)
            return r.route(1)[name](r.route(1), 'vshard.storage.call', {1, 'read', func, args}, {timeout = 10})
        end, table.copy(as_text))
    end
    rows:add('replica:call: ' .. text, function(r)
        return r.route(1).master:call('vshard.storage.call', {1, 'read', func, args}, {timeout = 10})
    end, table.copy(as_text))
end

-- User errors that have the number of a refusal.
for _, code in ipairs({1, 2, 7, 22}) do
    rows:add('callrw: a user error of code ' .. code, function(r, key)
        return r.callrw(1, 'code_boom', {key, code}, {timeout = 0.3})
    end)
end

-- Timeouts.

rows:state('timeouts')

-- Newer hosts' net.box has a form of its own.
local TIMED_OUT = {'type="TimedOut"', 'message="timed out"'}
local TIMEOUT = {'code=78', 'message="Timeout exceeded"'}

local function one_form(more)
    if not env.at_least('2.10') then
        return {}
    end
    local wanted = {differs = 'a timeout has one form', vshard = table.copy(TIMED_OUT), rawshard = table.copy(TIMEOUT)}
    if more ~= nil then
        table.insert(wanted.vshard, more)
        table.insert(wanted.rawshard, more)
    end
    return wanted
end

local function expected_write(timeout)
    if timeout == 0.05 then
        return one_form('executed 1 times')
    end
    return {differs = 'a write without time is not sent', vshard = {'; executed 1 times'}, rawshard = TIMEOUT}
end

local function expected_read(timeout)
    return timeout == 0.05 and one_form('executed 1 times') or {}
end

-- No NaN: the timers of vshard's host would not recover from it.
for _, timeout in ipairs({0, -1, -0.0, -1e300, -inf, 0.05}) do
    for _, name in ipairs({'callrw', 'callro', 'callre', 'callbro', 'callbre'}) do
        rows:add(('%s: timeout %s'):format(name, timeout), function(r, key)
            return r[name](1, 'count_sleep', {key, 1}, {timeout = timeout})
        end, name == 'callrw' and expected_write(timeout) or expected_read(timeout))
    end
    rows:add('call(write): timeout ' .. timeout, function(r, key)
        return r.call(1, 'write', 'count_sleep', {key, 1}, {timeout = timeout})
    end, expected_write(timeout))
    rows:add('route():callrw: timeout ' .. timeout, function(r, key)
        return r.route(1):callrw('vshard.storage.call', {1, 'write', 'count_sleep', {key, 1}}, {timeout = timeout})
    end, expected_write(timeout))
    rows:add('route():callro: timeout ' .. timeout, function(r, key)
        return r.route(1):callro('vshard.storage.call', {1, 'read', 'count_sleep', {key, 1}}, {timeout = timeout})
    end, expected_read(timeout))
    rows:add('replica:call: timeout ' .. timeout, function(r, key)
        return r.route(1).master:call('vshard.storage.call', {1, 'read', 'count_sleep', {key, 1}}, {timeout = timeout})
    end, expected_write(timeout))
    rows:add('is_async: timeout ' .. timeout, function(r, key)
        return r.callrw(1, 'count_sleep', {key, 1}, {timeout = timeout, is_async = true}):wait_result(3)
    end, timeout == 0.05 and {
        differs = 'the timeout of a future ends it', vshard = 'returned seq{}; executed 1 times', rawshard = TIMEOUT,
    } or expected_write(timeout))
    rows:add('map_callrw: timeout ' .. timeout, function(r, key)
        local res, err = r.map_callrw('count_sleep', {key, 1}, {timeout = timeout})
        return res, err
    end, (timeout == 0.05 or timeout == 0) and one_form() or {})
    if timeout ~= 0.05 then
        rows:add('sync: timeout ' .. timeout, function(r)
            local res, err = r.sync(timeout)
            return res, err
        end, timeout == 0 and one_form() or {})
        rows:add('read with request_timeout: timeout ' .. timeout, function(r, key)
            return r.callro(1, 'count_sleep', {key, 1}, {timeout = timeout, request_timeout = timeout})
        end, expected_read(timeout))
    end
end

for _, name in ipairs({'callrw', 'callro', 'callbre'}) do
    rows:add(name .. ': no timeout is half a second', function(r)
        local started = fiber.clock()
        local res, err = r[name](1, 'sleep', {1.5}, {})
        local seconds = fiber.clock() - started
        return res, err, seconds > 0.45 and seconds < 1.2
    end, one_form())
end
rows:add('route():callrw: no timeout is half a second', function(r)
    local started = fiber.clock()
    local res, err = r.route(1):callrw('vshard.storage.call', {1, 'write', 'sleep', {1.5}})
    local seconds = fiber.clock() - started
    return res, err, seconds > 0.45 and seconds < 1.2
end, one_form())
rows:add('map_callrw: no timeout is half a second', function(r)
    local started = fiber.clock()
    local res, err = r.map_callrw('sleep', {1.5})
    local seconds = fiber.clock() - started
    return res, err, seconds > 0.45 and seconds < 1.2
end, one_form())
rows:add('callro: request_timeout is one try', function(r, key)
    return r.callro(1, 'count_sleep', {key, 5}, {timeout = 1.5, request_timeout = 0.6})
end, one_form('executed 3 times'))

-- Waits for futures.

for _, timeout in ipairs({0, -1, 0.01, -inf}) do
    for _, when in ipairs({'before', 'after'}) do
        local function start(r)
            local future = r.callrw(1, 'sleep', {when == 'before' and 0.5 or 0, 7}, {is_async = true})
            if when == 'after' then
                future:wait_result(10)
            end
            return future
        end
        rows:add(('wait_result(%s) %s the answer'):format(timeout, when), function(r)
            return start(r):wait_result(timeout)
        end, timeout >= 0 and when == 'before' and one_form() or {})
        rows:add(('pairs(%s) %s the answer'):format(timeout, when), function(r)
            local steps = {}
            for i, res in start(r):pairs(timeout) do
                table.insert(steps, {i, res[1], res[2]})
            end
            return steps
        end)
    end
end
for _, bad in ipairs({'x', true, {}, 1LL}) do
    rows:add('wait_result of a ' .. type(bad), function(r)
        return r.callrw(1, 'echo', {1}, {is_async = true}):wait_result(bad)
    end, {
        differs = 'wait_result of a wrong type raises', vshard = {'returned nil, err{'},
        rawshard = 'raised "Usage: future:wait_result([timeout: number])"',
    })
    rows:add('pairs of a ' .. type(bad), function(r)
        local future = r.callrw(1, 'echo', {1}, {is_async = true})
        future:pairs(bad)
    end)
end
rows:add('a future: is_ready before', function(r) return r.callrw(1, 'sleep', {0.3}, {is_async = true}):is_ready() end)
rows:add('a future: result before', function(r) return r.callrw(1, 'sleep', {0.3}, {is_async = true}):result() end)
rows:add('a future: is_ready after', function(r)
    local future = r.callrw(1, 'echo', {1}, {is_async = true})
    future:wait_result(10)
    return future:is_ready(), future:result()
end)
rows:add('a future: discarded before', function(r)
    local future = r.callrw(1, 'sleep', {0.3}, {is_async = true})
    return future:discard(), future:is_ready(), {future:result()}, {future:wait_result(1)}
end)
rows:add('a future: discarded after', function(r)
    local future = r.callrw(1, 'echo', {1}, {is_async = true})
    future:wait_result(10)
    return future:discard(), future:is_ready(), {future:result()}, {future:wait_result(1)}
end)
rows:add('a future: wait_result without a timeout', function(r)
    return r.callrw(1, 'sleep', {0.1, 5}, {is_async = true}):wait_result()
end)
rows:add('a future: its text', function(r) return tostring(r.callrw(1, 'echo', {1}, {is_async = true})) end)
rows:add('a future: as JSON', function(r) return require('json').encode(r.callrw(1, 'echo', {1}, {is_async = true})) end)
rows:add('a future: no such method', function(r) return r.callrw(1, 'echo', {1}, {is_async = true}).no_such end)
rows:add('a future: type', function(r) return type(r.callrw(1, 'echo', {1}, {is_async = true})) end, {
    differs = 'a future is a userdata', vshard = 'returned "table"', rawshard = 'returned "userdata"',
})
rows:add('a future: two values of pairs', function(r)
    local f, state, i = r.callrw(1, 'echo', {1}, {is_async = true}):pairs(5)
    local next_i, value = f(state, i)
    return next_i, value, f(state, next_i)
end)

rows:state('functions of a replicaset')

-- Called on a replicaset or a replica without vshard.storage.call: what is raised is an error of the connection.
for _, func in ipairs({'no_such_function', 'vshard.storage.bucket_stat', 'vshard.storage.sync',
                       'vshard.storage.buckets_count', 'vshard.storage.buckets_discovery', 'vshard.storage._call', 'echo', ''}) do
    for _, args in ipairs({{}, {1}, {'x', 2}, {0}, {31}, {{}}}) do
        for _, name in ipairs({'callrw', 'callro', 'call'}) do
            rows:add(('route():%s: %s(%s)'):format(name, func, first_of(args[1] or '')), function(r)
                local rs = r.route(1)
                return rs[name](rs, func, args, {timeout = 5})
            end)
        end
        rows:add(('replica:call: %s(%s)'):format(func, first_of(args[1] or '')), function(r)
            return r.route(1).master:call(func, args, {timeout = 5})
        end)
    end
end

-- Reads go on to the next replica, and then there is none for five seconds.
rows:state('backoff', {
    jobs = 1,
    after = function(_, side)
        require('test.helper.cluster').wait_until('the end of the backoff', function()
            return side.router:eval("return (router.callbre(1, 'echo', {true}, {timeout = 1}))") == true
        end)
    end,
})

for _, name in ipairs({'callro', 'callbre', 'callre', 'callbro', 'callrw'}) do
    local in_backoff = name ~= 'callrw' and {
        differs = 'a backoff tells its cause by the message', vshard = {'name="REPLICASET_IN_BACKOFF"', 'Last error was {'},
        rawshard = {'name="REPLICASET_IN_BACKOFF"', 'Last error was Execute access to function '},
    } or {}
    rows:add(('route():%s: vshard.storage.no_such'):format(name), function(r)
        local rs = r.route(1)
        return rs[name](rs, 'vshard.storage.no_such', {}, {timeout = 5})
    end, table.copy(in_backoff))
    rows:add(name .. ' in backoff', function(r, key)
        return r[name](1, 'count', {key}, {timeout = 1})
    end, table.copy(in_backoff))
    rows:add(name .. ' in backoff: the error is JSON', function(r)
        local _, err = r[name](1, 'echo', {1}, {timeout = 1})
        return err and json.decode(tostring(err)).error, err and json.decode(tostring(err.error))
    end)
    rows:add(name .. ' in backoff, is_async', function(r, key)
        local future, err = r[name](1, 'count', {key}, {timeout = 1, is_async = true})
        if future == nil then
            return nil, err
        end
        return future:wait_result(1)
    end, table.copy(in_backoff))
    if has_objects then
        rows:add(name .. ' in backoff, return_raw', function(r, key)
            return r[name](1, 'count', {key}, {timeout = 1, return_raw = true})
        end, table.copy(in_backoff))
    end
end

return rows
