-- Finds rawshard.so, loads it and makes sure that it is the other half of this very package.

local version = require('rawshard.version')

local LIBRARY = 'rawshard.so'
local ENTRY = 'luaopen_rawshard_native'

local function fail(fmt, ...)
    error('rawshard: ' .. fmt:format(...), 0)
end

local function is_readable(path)
    local file = io.open(path, 'rb')
    if file ~= nil then
        file:close()
    end
    return file ~= nil
end

-- An installed package has both halves under one prefix; that pair comes before anything found elsewhere.
local function sibling()
    local prefix = debug.getinfo(1, 'S').source:match('^@(.*)share/tarantool/rawshard/native%.lua$')
    return prefix ~= nil and prefix .. 'lib/tarantool/' .. LIBRARY or nil
end

-- Where Tarantool itself looks for rocks: in the search root and in every directory above it.
local function in_rocks()
    local searchroot = rawget(package, 'searchroot')
    local dir = searchroot ~= nil and searchroot() or require('fio').cwd()
    local paths = {}
    while type(dir) == 'string' and dir ~= '' do
        table.insert(paths, (dir:gsub('/$', '')) .. '/.rocks/lib/tarantool/' .. LIBRARY)
        if dir == '/' then
            break
        end
        dir = dir:match('^(.*)/[^/]+/?$')
        dir = dir == '' and '/' or dir
    end
    return paths
end

local function find()
    local tried = in_rocks()
    local beside = sibling()
    if beside ~= nil then
        table.insert(tried, 1, beside)
    end
    for _, path in ipairs(tried) do
        if is_readable(path) then
            return path
        end
    end
    -- The plain name: `?` of a pattern becomes "rawshard".
    local path, complaint = package.searchpath('rawshard', package.cpath)
    if path ~= nil then
        return path
    end
    fail('%s is not found; tried:\n\t%s%s', LIBRARY, table.concat(tried, '\n\t'), complaint)
end

local function load()
    if version.HOST == nil then
        fail('must be loaded by Tarantool')
    end
    if not version.host_is_at_least(2, 6) then
        fail('needs Tarantool 2.6 or newer, this is %s', version.HOST)
    end
    local path = find()
    local open, complaint = package.loadlib(path, ENTRY)
    if open == nil then
        fail('Tarantool %s cannot load %s: %s', version.HOST, path, complaint)
    end
    local native = open()
    if native.version ~= version.VERSION or native.abi ~= version.ABI then
        fail('the Lua files are version %s (border %s), but %s is version %s (border %s): install both from one ' ..
             'package and restart', version.VERSION, version.ABI, path, native.version, native.abi)
    end
    return native
end

return load()
