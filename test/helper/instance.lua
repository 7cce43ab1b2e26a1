-- Main script of every Tarantool that the tests start: `tarantool instance.lua <directory>`. The directory holds config.json,
-- written by cluster.lua: {name, role = 'storage'|'router', kind, root, package_path, package_cpath, listen, …}.

local fiber = require('fiber')
local fio = require('fio')
local json = require('json')

local dir = arg[1]
local f = assert(fio.open(fio.pathjoin(dir, 'config.json'), {'O_RDONLY'}))
local config = json.decode(f:read(1048576))
f:close()

package.path = config.package_path .. ';' .. package.path
package.cpath = config.package_cpath .. ';' .. package.cpath

local SIGKILL = 9
require('test.helper.orphan').watch(SIGKILL)

-- What the driver may evaluate through its connection.
_G.config = config
_G.fiber = fiber
_G.is_ready = false

require('test.helper.' .. config.role).start(config)
_G.is_ready = true
