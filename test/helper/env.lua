-- Where things are: this source tree, vshard, the Tarantool under test; and what the host can do.

local fio = require('fio')

local env = {}

-- The root of the source tree, from the place of this file.
local here = debug.getinfo(1, 'S').source:sub(2)
env.root = fio.abspath(fio.pathjoin(fio.dirname(here), '..', '..'))

env.tarantool = os.getenv('TARANTOOL_BIN') or arg[-1]
env.router_kind = os.getenv('ROUTER') or 'rawshard'
env.storage_kind = os.getenv('STORAGE') or 'helper'

-- The directory whose vshard/init.lua is vshard, or nil.
function env.find_vshard()
    local candidates = {}
    -- make exports it empty when it is not given.
    if (os.getenv('VSHARD_PATH') or '') ~= '' then
        table.insert(candidates, os.getenv('VSHARD_PATH'))
    else
        -- An installed rock, wherever this Tarantool looks for Lua files; then the conventional place.
        for template in package.path:gmatch('[^;]+') do
            local dir = template:match('^(.*)/%?%.lua$')
            if dir ~= nil then
                table.insert(candidates, dir)
            end
        end
        table.insert(candidates, '/opt/vshard')
    end
    for _, dir in ipairs(candidates) do
        if fio.path.is_file(fio.pathjoin(dir, 'vshard', 'init.lua')) then
            return dir
        end
    end
    return nil
end

env.vshard = env.find_vshard()

-- The directory with the built rawshard.so.
env.build = os.getenv('RAWSHARD_BUILD') or fio.pathjoin(env.root, 'build')

function env.package_path()
    local dirs = {env.root, fio.pathjoin(env.root, 'lua'), env.vshard}
    local templates = {}
    for _, dir in ipairs(dirs) do
        table.insert(templates, dir .. '/?.lua')
        table.insert(templates, dir .. '/?/init.lua')
    end
    return table.concat(templates, ';')
end

function env.package_cpath()
    return env.build .. '/?.so'
end

-- The host's version as {major, minor, patch}.
local function parse_version(text)
    local major, minor, patch = text:match('^(%d+)%.(%d+)%.(%d+)')
    return {tonumber(major), tonumber(minor), tonumber(patch)}
end

env.version = parse_version(_TARANTOOL)

-- env.at_least('2.10'): whether the host is of this version or newer.
function env.at_least(wanted)
    local major, minor = wanted:match('^(%d+)%.(%d+)')
    major, minor = tonumber(major), tonumber(minor)
    return env.version[1] > major or env.version[1] == major and env.version[2] >= minor
end

env.has_raw_args = env.at_least('2.10')
-- Before 3.0 what a C function returns over IPROTO arrives as one array of its values.
env.wraps_c_results = not env.at_least('3.0')

return env
