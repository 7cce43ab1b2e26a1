-- The router of one run: one kind of entry, and the floors.
local root = os.getenv('BENCH_ROOT') or '.'
package.path = ('%s/?.lua;%s/lua/?.lua;'):format(root, root) .. package.path
package.cpath = os.getenv('BENCH_CPATH') .. '/?.so;' .. package.cpath
local common = require('bench.common')
local cfg = common.cfg

box.cfg(common.box_cfg({listen = ('127.0.0.1:%d'):format(cfg.port), wal_mode = 'none'}))
common.grant_all()

local info = {
    version = _TARANTOOL,
    vshard = common.vshard,
    -- What cannot be measured here, and why.
    missing = {},
}
local is_ready = function() return true end

local function raw_function(name)
    box.schema.func.create(name, {takes_raw_args = true, if_not_exists = true})
end

-- How this kind is called from Lua: f(bucket_id, func, args, opts), for bench/calls.lua.
local callrw

local setup = {}

-- 1. What a proxy with vshard looks like: decode, call, encode.
function setup.vshard()
    local vrouter = require('vshard.router')
    vrouter.cfg(common.sharding())
    is_ready = function() return vrouter.info().bucket.unknown == 0 end

    callrw = vrouter.callrw
    local callbro = vrouter.callbro
    function _G.bench_vshard(bucket_id, opts, func, args, call_opts) -- luacheck: no unused args
        return callbro(bucket_id, func, args, call_opts)
    end

    -- 2. The same with bytes, as vshard offers it: iterate over the raw arguments, take, call with return_raw.
    if not common.has_raw_args() then
        info.missing['vshard-raw'] = 'takes_raw_args needs Tarantool 2.10'
        return
    end
    function _G.bench_vshard_raw(raw)
        local it = raw:iterator()
        it:decode_array_header()
        local bucket_id = it:decode()
        it:skip()
        local func = it:decode()
        local args = it:take()
        local call_opts = it:decode()
        return callbro(bucket_id, func, args, {timeout = call_opts.timeout, return_raw = true})
    end
    raw_function('bench_vshard_raw')
end

-- 3. and 4. rawshard: the C stored function, and the Lua entry.
local function setup_rawshard(is_parked)
    local router = require('rawshard.router')
    local rcfg = common.sharding()
    rcfg.io_threads = cfg.io_threads
    rcfg.iproto_override = common.host_is_at_least(2, 11) and not is_parked
    router.cfg(rcfg)
    box.schema.func.create('rawshard.callraw', {language = 'C', if_not_exists = true})
    is_ready = function()
        local unknown = router.info().bucket and router.info().bucket.unknown
        return unknown == nil or unknown == 0
    end
    if common.has_raw_args() then
        _G.bench_rawshard_lua = router.callraw
        raw_function('bench_rawshard_lua')
        -- As users have it who do something of their own around it.
        local callraw = router.callraw
        function _G.bench_rawshard_lua_wrapped(raw)
            return callraw(raw)
        end
        raw_function('bench_rawshard_lua_wrapped')
        router.bind({
            name = 'bench_endpoint', func = 'bench_echo', key = {'[1]'}, mode = 'read', balance = true, timeout = 30,
            register = true,
        })
    else
        info.missing['rawshard-lua'] = 'takes_raw_args needs Tarantool 2.10'
        info.missing['rawshard-lua-wrapped'] = info.missing['rawshard-lua']
        info.missing['rawshard-key-lua'] = info.missing['rawshard-lua']
        info.missing['rawshard-endpoint'] = info.missing['rawshard-lua']
    end
    callrw = router.callrw
    -- Decoded calls through rawshard, in the shape of kind 1.
    local callbro = router.callbro
    function _G.bench_rawshard_decoded(bucket_id, opts, func, args, call_opts) -- luacheck: no unused args
        return callbro(bucket_id, func, args, call_opts)
    end
end

function setup.rawshard()
    setup_rawshard(false)
end

-- Calls of the stored function wait in fibers of their own.
setup['rawshard-parked'] = function()
    if not common.host_is_at_least(2, 11) then
        info.missing['rawshard-c-parked'] = 'before Tarantool 2.11 rawshard-c is just that'
    end
    setup_rawshard(true)
end

-- 5. Floors.
function setup.floor()
    for _, name in ipairs({'echo', 'fixed', 'set_fixed', 'park', 'handed', 'set_handed'}) do
        box.schema.func.create('bench_floor.' .. name, {language = 'C', if_not_exists = true})
    end
    function _G.bench_noop() end
    -- Without a router: other fibers have their turn, then the values that the function returned once are made of their bytes.
    local fiber, msgpack = require('fiber'), require('msgpack')
    local kept = {}
    callrw = function(bucket_id, func, args, opts)
        if kept[func] == nil then
            local storage = cfg.storages[common.storage_of(bucket_id)]
            local conn = require('net.box').connect('storage:storage@127.0.0.1:' .. storage.port)
            local _, res = conn:call('vshard.storage.call', {bucket_id, 'read', func, args})
            kept[func] = msgpack.encode({res})
            conn:close()
        end
        fiber.yield()
        if opts.return_raw then
            return msgpack.object_from_raw(kept[func])
        end
        return msgpack.decode(kept[func])[1]
    end
    if not common.has_raw_args() then
        info.missing['lua-raw-floor'] = 'takes_raw_args needs Tarantool 2.10'
        info.missing['lua-raw-fixed'] = info.missing['lua-raw-floor']
        info.missing['lua-raw-park'] = info.missing['lua-raw-floor']
        return
    end
    function _G.bench_raw_floor(raw)
        return raw
    end
    raw_function('bench_raw_floor')
    local fixed
    function _G.bench_set_raw_fixed(raw)
        local it = raw:iterator()
        it:decode_array_header()
        fixed = it:take()
    end
    raw_function('bench_set_raw_fixed')
    function _G.bench_raw_fixed(raw) -- luacheck: no unused args
        return fixed
    end
    raw_function('bench_raw_fixed')
    -- A new object of the same bytes, after other fibers had their turn: what a Lua function that asks a storage does at the
    -- least.
    local bytes, object_from_raw = nil, msgpack.object_from_raw
    function _G.bench_set_raw_park(raw)
        _G.bench_set_raw_fixed(raw)
        bytes = msgpack.encode(fixed)
    end
    raw_function('bench_set_raw_park')
    function _G.bench_raw_park(raw) -- luacheck: no unused args
        fiber.yield()
        return object_from_raw(bytes)
    end
    raw_function('bench_raw_park')
end

-- 6. In the place of 1 where vshard is not installed.
function setup.forwarder()
    local net_box = require('net.box')
    local conns = {}
    for i, storage in ipairs(cfg.storages) do
        conns[i] = net_box.connect('storage:storage@127.0.0.1:' .. storage.port, {reconnect_after = 0.2})
    end
    is_ready = function()
        for _, conn in ipairs(conns) do
            if not conn:is_connected() then
                return false
            end
        end
        return true
    end
    callrw = function(bucket_id, func, args, opts)
        return conns[common.storage_of(bucket_id)]:call('vshard.storage.call', {bucket_id, 'write', func, args}, opts)
    end
    function _G.bench_forwarder(bucket_id, opts, func, args, call_opts) -- luacheck: no unused args
        local conn = conns[common.storage_of(bucket_id)]
        local ok, res = conn:call('vshard.storage.call', {bucket_id, 'read', func, args}, call_opts)
        if not ok then
            return nil, res
        end
        return res
    end
end

for _, name in ipairs(cfg.setup) do
    if name == 'vshard' and not common.vshard then
        info.missing.vshard = common.vshard_missing
        info.missing['vshard-raw'] = common.vshard_missing
    else
        local ok, err = pcall(setup[name])
        if not ok then
            -- The first line says it; what follows are all the places that were searched.
            info.missing[name] = tostring(err):match('^[^\n]*')
        end
    end
end

-- Calls made here, in Lua, by fibers or as futures.
function _G.bench_calls(plan)
    return require('bench.calls').run(callrw, plan, cfg.bucket_count)
end

_G.bench_stat = common.stat
_G.bench_settle = common.settle

function _G.bench_info()
    local ok, ready = pcall(is_ready)
    info.ready = ok and ready
    info.problem = not ok and tostring(ready) or nil
    return info
end
