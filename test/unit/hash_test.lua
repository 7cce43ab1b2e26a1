#!/usr/bin/env tarantool
-- Hashes: known vectors on every host, and vshard's own functions where vshard is at hand.

package.path = 'lua/?.lua;lua/?/init.lua;' .. package.path

local ffi = require('ffi')
local tap = require('tap')
local decimal = require('decimal')
local msgpack = require('msgpack')
local uuid = require('uuid')
local hash = require('rawshard.hash')

local function bucket(value)
    return value % 3000 + 1
end

local function str(key) return bucket(hash.strcrc32(key)) end
local function mp(key) return bucket(hash.mpcrc32(key)) end

local test = tap.test('hash')
test:plan(4)

test:test('vectors for 3000 buckets', function(t)
    t:plan(12)
    t:is(str(1), 477, 'str number')
    t:is(str('1'), 477, 'str string')
    t:is(str(1LL), 730, 'str int64')
    t:is(str(1ULL), 982, 'str uint64')
    t:is(mp(1), 1614, 'mp number')
    t:is(mp(1LL), 1614, 'mp int64')
    t:is(mp(1ULL), 1614, 'mp uint64')
    t:is(mp('1'), 477, 'mp string is taken raw')
    t:is(mp(ffi.new('double', 1)), 1411, 'mp double cdata')
    t:is(mp(ffi.new('float', 1)), 193, 'mp float cdata')
    t:is(mp(decimal.new(1)), 1696, 'mp decimal')
    t:is(hash.strcrc32(''), 0xFFFFFFFF, 'no bytes: the initial value, not inverted')
end)

test:test('tables', function(t)
    t:plan(5)
    t:is(str({1, 2, 3}), str('123'), 'str: texts are joined')
    t:is(mp({'a', 'bc'}), mp('abc'), 'mp: strings are joined')
    t:isnt(mp({1, 2}), mp('12'), 'mp: numbers are not texts')
    t:is(str({1, nil, 3}), str('1'), 'the first nil ends the key')
    t:is(str({}), bucket(0xFFFFFFFF), 'empty key')
end)

test:test('msgpack.object', function(t)
    if msgpack.object == nil then
        t:plan(1)
        t:skip('the host has no msgpack.object')
        return
    end
    t:plan(3)
    t:is(mp(msgpack.object(1)), mp(1), 'number')
    t:is(mp(msgpack.object('key')), mp('key'), 'string')
    t:is(str(msgpack.object({'a', 1})), str({'a', 1}), 'array')
end)

test:test('the same as vshard', function(t)
    package.path = package.path .. ';' .. (os.getenv('VSHARD_PATH') or '/opt/vshard') .. '/?.lua'
    local ok, vshard_hash = pcall(require, 'vshard.hash')
    if not ok then
        t:plan(1)
        t:skip('no vshard here')
        return
    end
    local id = uuid.fromstr('c9b4a2e5-8d0c-4e2c-9a56-1a1b6d3f2a10')
    local keys = {
        0, -1, 255, 256, 65536, 2^32, 2^53, 0.5, -0.5, 1e100, 1/3, true, false, box.NULL,
        -5LL, 18446744073709551615ULL, ffi.new('int8_t', -3), ffi.new('uint16_t', 300),
        'text', '', ('x'):rep(1000), '\0\255', id, decimal.new('1.50'), decimal.new('-1e20'),
        {1, 'a', id}, {{1, 2}, {a = 1}}, {0.1, 5LL}, {},
    }
    t:plan(2 * #keys)
    for i, key in ipairs(keys) do
        -- The text of a table has its address in it.
        local nested = type(key) == 'table' and type(key[1]) == 'table'
        t:is(nested or hash.strcrc32(key), nested or vshard_hash.strcrc32(key), 'str of key ' .. i)
        t:is(hash.mpcrc32(key), vshard_hash.mpcrc32(key), 'mp of key ' .. i)
    end
end)

os.exit(test:check() and 0 or 1)
