-- What rawshard's router does beside what vshard's does, against one cluster of real vshard storages: the rows of test/oracle.

package.path = './?.lua;' .. package.path
local oracle = require('test.helper.oracle')
local suite = require('test.helper.suite')

-- Without discovery nothing happens behind the rows' backs.
local s = suite.new('oracle', {oracle = true, router_cfg = {discovery_mode = 'off'}})

local modules = {'arguments', 'results', 'failures', 'configuration', 'cluster', 'map_calls', 'objects', 'buckets'}

for _, module in ipairs(modules) do
    for number, state in ipairs(require('test.oracle.' .. module).states) do
        s:scenario(('%s, %s: %d rows'):format(module, state.name, #state.rows), {
            fe = false, storages = 'vshard', router = 'rawshard', heals = state.before ~= nil,
        }, function(t, _, c)
            oracle.check(t, c, module, number)
        end)
    end
end

s:scenario('every difference of docs/compat.md has its row', {fe = false, storages = 'vshard', router = 'rawshard'}, function(t)
    t:is(oracle.undelivered(modules), {}, 'names without a row')
end)

s:run()
