#!/usr/bin/env tarantool
-- Loading rawshard.so: where it is looked for, and the words when it cannot be had.

package.path = 'lua/?.lua;lua/?/init.lua;' .. package.path

local fio = require('fio')
local tap = require('tap')
local version = require('rawshard.version')

local test = tap.test('native')
test:plan(6)

local root = fio.tempdir()
local rocks = fio.pathjoin(root, '.rocks/lib/tarantool')
local deep = fio.pathjoin(root, 'a/b')
assert(fio.mktree(rocks) and fio.mktree(deep))
local library = fio.pathjoin(rocks, 'rawshard.so')

local real_loadlib, real_cpath = package.loadlib, package.cpath
local loaded_from

-- The module loaded anew with `answer` in the place of package.loadlib. Gives what it raised, or what it returned.
local function load(answer)
    loaded_from = nil
    package.loaded['rawshard.native'] = nil
    if answer ~= nil then
        package.loadlib = function(path, entry)
            loaded_from = path
            assert(entry == 'luaopen_rawshard_native')
            return function() return answer end
        end
    end
    local ok, res = pcall(require, 'rawshard.native')
    package.loadlib = real_loadlib
    return ok and res or tostring(res)
end

local good = {version = version.VERSION, abi = version.ABI}

package.cpath = fio.pathjoin(root, 'cpath/?.so')
package.setsearchroot(deep)

local err = load()
test:ok(err:find('rawshard.so is not found; tried:', 1, true) and err:find(library, 1, true)
        and err:find(root .. '/cpath/rawshard.so', 1, true), 'missing: every place is named')

local function write(path, text)
    local file = fio.open(path, {'O_CREAT', 'O_WRONLY'}, tonumber('644', 8))
    file:write(text)
    file:close()
end

write(library, 'not a library')
err = load()
test:ok(err:find('cannot load ' .. library, 1, true) and err:find(version.HOST, 1, true), 'not loadable')

test:is(load(good), good, 'loaded')
test:is(loaded_from, library, 'from the rocks of a directory above')

err = load({version = '0.0.1', abi = version.ABI})
test:ok(err:find('0.0.1', 1, true) and err:find('install both from one package', 1, true), 'halves do not match')

rawset(_G, '_TARANTOOL', '2.5.3-0-gabc')
package.loaded['rawshard.version'] = nil
err = load(good)
test:ok(err:find('needs Tarantool 2.6 or newer, this is 2.5.3', 1, true), 'old host')

package.cpath = real_cpath
fio.rmtree(root)
os.exit(test:check() and 0 or 1)
