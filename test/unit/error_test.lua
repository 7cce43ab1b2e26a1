#!/usr/bin/env tarantool
-- Error tables: vshard's codes and fields, JSON as text, host errors taken apart.

package.path = 'lua/?.lua;lua/?/init.lua;' .. package.path

local json = require('json')
local tap = require('tap')
local lerror = require('rawshard.error')

local test = tap.test('error')
test:plan(7)

test:test('vshard errors', function(t)
    t:plan(7)
    local err = lerror.vshard(lerror.code.UNREACHABLE_REPLICASET, 'rs1', 42)
    t:is(err.type, 'ShardingError', 'type')
    t:is(err.code, 8, 'code')
    t:is(err.name, 'UNREACHABLE_REPLICASET', 'name')
    t:is(err.replicaset, 'rs1', 'first field')
    t:is(err.bucket_id, 42, 'second field')
    t:like(err.message, 'rs1', 'message')
    t:is_deeply(json.decode(tostring(err)), {
        type = err.type, code = 8, name = err.name, replicaset = 'rs1', bucket_id = 42, message = err.message,
    }, 'text is JSON')
end)

test:test('host errors', function(t)
    t:plan(4)
    local err = lerror.make(box.error.new(box.error.NO_SUCH_SPACE, 's'))
    t:is(err.type, 'ClientError', 'type')
    t:is(err.code, box.error.NO_SUCH_SPACE, 'code')
    t:is(json.decode(tostring(err)).message, err.message, 'text is JSON')
    t:is(lerror.timeout().code, box.error.TIMEOUT, 'timeout')
end)

test:test('causes', function(t)
    local inner = box.error.new(box.error.UNKNOWN)
    local outer = box.error.new(box.error.PROC_LUA, 'outer')
    outer:set_prev(inner)
    t:plan(3)
    local err = lerror.make(outer)
    t:is(err.message, 'outer', 'outer')
    t:is(type(err.prev), 'table', 'the cause is a table')
    t:is(json.decode(tostring(err)).prev.message, err.prev.message, 'the cause is in the text')
end)

test:test('strings', function(t)
    t:plan(2)
    local err = lerror.make('words')
    t:is(err.message, 'words', 'message')
    t:is(err.code, box.error.PROC_LUA, 'code')
end)

test:test('maps from storages', function(t)
    t:plan(3)
    local map = {type = 'ShardingError', code = 1, name = 'WRONG_BUCKET', message = 'm', bucket_id = 3}
    local err = lerror.make(map)
    t:is(err, map, 'the same table')
    t:is(json.decode(tostring(err)).bucket_id, 3, 'text is JSON')
    t:is(tostring(lerror.make({message = 'm', type = 'T', code = 5, bad = function() end})),
         '{"type": "T", "code": 5, "message": "m"}', 'text of what JSON refuses')
end)

test:test('anything else is left alone', function(t)
    t:plan(2)
    t:is(lerror.make(5), 5, 'number')
    t:is(lerror.make(nil), nil, 'nil')
end)

test:test('alerts', function(t)
    t:plan(2)
    local alert = lerror.alert(lerror.code.UNKNOWN_BUCKETS, 7)
    t:is(alert[1], 'UNKNOWN_BUCKETS', 'name')
    t:is(alert[2], '7 buckets are not discovered', 'text')
end)

os.exit(test:check() and 0 or 1)
