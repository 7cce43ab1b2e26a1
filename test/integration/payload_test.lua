-- Big payloads, both ways.

package.path = './?.lua;' .. package.path
local fiber = require('fiber')
local suite = require('test.helper.suite')

local s = suite.new('payload')
local MB = 1024 * 1024

for _, size in ipairs({1, 64}) do
    s:scenario(size .. ' MB there', {}, function(t, fe, c)
        local blob = ('q'):rep(size * MB)
        t:values(fe, fe:call(c, {1, 'write', 'size', {blob}, {timeout = 60}}, 90), {size * MB})
    end)

    s:scenario(size .. ' MB back', {}, function(t, fe, c)
        local res = fe:call(c, {30, 'read', 'big', {size * MB}, {timeout = 60}}, 90)
        t:ok(res.raised == nil and res.n == 1 and type(res[1]) == 'string', 'a string', '  raised: %s', tostring(res.raised))
        t:is(type(res[1]) == 'string' and #res[1], size * MB, 'its size')
        t:ok(res[1] == ('x'):rep(size * MB), 'its bytes')
    end)
end

s:scenario('1 MB both ways, many at once', {}, function(t, fe, c)
    local calls, blobs = {}, {}
    for i = 1, 20 do
        blobs[i] = string.char(64 + i):rep(MB)
        calls[i] = fe:start(c, {i % 2 == 0 and 1 or 30, 'write', 'echo', {blobs[i]}, {timeout = 60}})
    end
    for i = 1, 20 do
        local res = fe:finish(calls[i], 60)
        t:ok(res[1] == blobs[i], 'call ' .. i, '  %s', tostring(res.raised or type(res[1])))
    end
end)

s:scenario('a small call is not stuck behind a big one of another replicaset', {}, function(t, fe, c)
    local blob = ('q'):rep(32 * MB)
    local big = fe:start(c, {1, 'write', 'size', {blob}, {timeout = 60}})
    local started = fiber.clock()
    t:values(fe, fe:call(c, {30, 'write', 'echo', {1}, {timeout = 10}}), {1}, 'the small one')
    t:within(fiber.clock() - started, 0, 5, 'in time')
    t:values(fe, fe:finish(big, 60), {32 * MB}, 'the big one')
end)

s:run()
