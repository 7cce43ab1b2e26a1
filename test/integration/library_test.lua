-- The library in its host: public symbols only (case P35), reloads and unloading under running threads (case P36).

package.path = './?.lua;' .. package.path
local env = require('test.helper.env')
local fio = require('fio')
local prelude = require('test.helper.prelude')
local suite = require('test.helper.suite')

local s = suite.new('library')

local function read_command(command)
    local f = io.popen(command .. ' 2>/dev/null')
    local text = f:read('*a')
    f:close()
    return text
end

-- Functions that libc, libm, libgcc and the loader give; by the version tag that nm shows.
local function undefined_symbols()
    local symbols = {}
    for line in read_command(("nm -D --undefined-only '%s/rawshard.so'"):format(env.build)):gmatch('[^\n]+') do
        local kind, name = line:match('(%a) (%S+)')
        if kind == 'U' and not name:find('@', 1, true) then
            table.insert(symbols, name)
        end
    end
    return symbols
end

s:scenario('P35 every symbol that is needed is there', {fe = false, router = 'rawshard'}, function(t, _, c)
    -- The library is loaded with RTLD_NOW: that it serves is the proof. Whether weak or looked-up ones exist is its affair.
    local res = c.router:call('test_call', {1, 'write', 'echo', {1}, {timeout = 5}})
    t:is(res.v[1], 1, 'serves on this host')
    local symbols = undefined_symbols()
    if #symbols == 0 then
        t:note('  nm is not installed, or shows nothing: symbols are not listed')
    end
    for _, name in ipairs(symbols) do
        local is_there = c.router:eval([[
            local ffi = require('ffi')
            pcall(ffi.cdef, 'void *dlsym(void *handle, const char *name);')
            return ffi.C.dlsym(nil, ...) ~= nil
        ]], {name})
        t:ok(is_there, 'exported by the host: ' .. name)
    end
end)

s:scenario('P35 only the public API is used', {fe = false, router = 'rawshard'}, function(t, _, c)
    local headers = {
        fio.pathjoin(fio.dirname(fio.dirname(c.tarantool)), 'include', 'tarantool'), '/usr/include/tarantool',
    }
    local text = ''
    for _, dir in ipairs(headers) do
        text = read_command(("cat '%s'/*.h"):format(dir))
        if text ~= '' then
            break
        end
    end
    t:ok(true, 'headers were looked for')
    if text == '' then
        t:note('  no module.h here: not compared')
        return
    end
    for _, name in ipairs(undefined_symbols()) do
        -- Names of the C runtime that come without a version tag.
        if not name:match('^_') and not name:match('^lua') then
            t:ok(text:find('[^%w_]' .. name .. '%s*%(') ~= nil or text:find('[^%w_]' .. name .. '[^%w_]') ~= nil,
                 'in the headers: ' .. name)
        end
    end
end)

local function threads(c)
    return #fio.listdir(('/proc/%d/task'):format(c.router.process.pid))
end

local function serves(t, c, message)
    local frontends = require('test.helper.frontends')
    for _, name in ipairs(frontends.order) do
        local fe = frontends[name]
        if fe.is_supported() then
            t:values(fe, fe:call(c, {1, 'write', 'echo', {name}, {timeout = 5}}), {name}, message .. ' [' .. name .. ']')
        end
    end
end

s:scenario('P36 the Lua module is dropped and required again', {fe = false, router = 'rawshard'}, function(t, _, c)
    serves(t, c, 'before')
    local before = threads(c)
    for i = 1, 5 do
        local ok, err = pcall(c.router.eval, c.router, prelude.TEXT .. [[
            router = nil
            vshard = nil
            unload()
            collectgarbage()
            collectgarbage()
            router = require('rawshard.router')
            vshard = {router = router}
        ]])
        t:ok(ok, 'reload ' .. i, '  %s', tostring(err))
    end
    -- test_call holds the old module: refreshed by name.
    local res = c.router:eval("return router.callrw(1, 'echo', {7}, {timeout = 5})")
    t:is(res, 7, 'the new module finds the running router')
    serves(t, c, 'after')
    t:is(threads(c), before, 'no second engine')
    local ok, err = pcall(c.router.eval, c.router, 'router.cfg(...)', {c.router.config.router_cfg})
    t:ok(ok, 'cfg after a reload', '  %s', tostring(err))
    t:is(threads(c), before, 'still none')
    serves(t, c, 'after cfg')
end)

s:scenario('P36 the stored function is reloaded under calls', {fe = {'cfunc', 'direct'}}, function(t, fe, c)
    local before = threads(c)
    local key = 'reloaded'
    local calls = {}
    for round = 1, 5 do
        for i = 1, 100 do
            table.insert(calls, {fe:start(c, {i % 30 + 1, 'write', 'sleep', {0.05, i}, {timeout = 10}}), i})
        end
        local ok, err = pcall(c.router.eval, c.router, "box.schema.func.reload('rawshard')")
        t:ok(ok, 'reload ' .. round, '  %s', tostring(err))
        for i = 1, 100 do
            table.insert(calls, {fe:start(c, {i % 30 + 1, 'write', 'echo', {i}, {timeout = 10}}), i})
        end
    end
    local wrong = 0
    for _, call in ipairs(calls) do
        local res = fe:finish(call[1], 20)
        if res[1] ~= call[2] then
            wrong = wrong + 1
            if wrong < 4 then
                t:note('  got: %s', require('json').encode(res))
            end
        end
    end
    t:is(wrong, 0, 'wrong answers', key)
    t:is(threads(c), before, 'no other threads than before')
    t:ok(c.router:is_alive(), 'the router lives')
end)

s:scenario('P36 the stored function is dropped and created under calls', {
    fe = {'cfunc', 'direct'}, heals = true,
}, function(t, fe, c)
    for round = 1, 3 do
        local calls = {}
        for i = 1, 50 do
            calls[i] = fe:start(c, {1, 'write', 'sleep', {0.1, i}, {timeout = 10}})
        end
        c.router:eval("box.schema.func.drop('rawshard.callraw')")
        c.router:eval([[
            box.schema.func.create('rawshard.callraw', {language = 'C'})
            box.schema.user.grant('client', 'execute', 'function', 'rawshard.callraw')
        ]])
        for i = 1, 50 do
            -- Answered, or refused because the function was away at that moment; never a crash.
            local res = fe:finish(calls[i], 20)
            if res[1] ~= i and res.raised == nil then
                t:values(fe, res, {i}, 'a call')
            end
        end
        t:values(fe, fe:call(c, {1, 'write', 'echo', {round}, {timeout = 5}}), {round}, 'serves after round ' .. round)
    end
    t:ok(c.router:is_alive(), 'the router lives')
end)

s:scenario('P36 the file is replaced by rename while loaded', {fe = false, router = 'rawshard'}, function(t)
    local cluster = require('test.helper.cluster')
    local c = cluster.new({replicas = 1})
    c:prepare_library()
    c:start()
    serves(t, c, 'before')
    local before = threads(c)
    fio.copyfile(fio.pathjoin(env.build, 'rawshard.so'), fio.pathjoin(c.library_dir, 'rawshard.new'))
    fio.rename(fio.pathjoin(c.library_dir, 'rawshard.new'), fio.pathjoin(c.library_dir, 'rawshard.so'))
    serves(t, c, 'with the new file')
    local ok, err = pcall(c.router.eval, c.router, "box.schema.func.reload('rawshard')")
    t:ok(ok, 'the stored function is reloaded from it', '  %s', tostring(err))
    serves(t, c, 'after the reload')
    ok, err = pcall(c.router.eval, c.router, prelude.TEXT .. [[
        unload()
        collectgarbage()
        router = require('rawshard.router')
        vshard = {router = router}
    ]])
    -- The same version: it meets the running engine.
    t:ok(ok, 'the module is required again from it', '  %s', tostring(err))
    serves(t, c, 'after the require')
    t:is(threads(c), before, 'no second engine')
    c.router:stop()
    t:is(c.router.process:exit_status(), 0, 'ends well')
    c:stop()
    fio.rmtree(c.library_dir)
end)

s:run()
