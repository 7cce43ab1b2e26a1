-- One storage of the bench cluster: a real vshard.storage when there is one, else the test helper's.
package.path = (os.getenv('BENCH_ROOT') or '.') .. '/?.lua;' .. package.path
local common = require('bench.common')
local cfg = common.cfg
local me = cfg.storages[cfg.me]

-- Tuples as plain arrays, on every host and to every client: a peer that negotiated Tarantool 3's tuple format would
-- get other bytes than one that did not, and the kinds must be compared on the same payload.
pcall(function() require('compat').box_tuple_extension = 'old' end)

local impl
local listen = ('127.0.0.1:%d'):format(me.port)
if common.vshard then
    impl = 'vshard ' .. common.vshard
    local vshard_cfg = common.box_cfg(common.sharding())
    vshard_cfg.listen = listen
    -- Buckets stay where they are put below.
    vshard_cfg.rebalancer_mode = 'off'
    _G.vshard = require('vshard')
    _G.vshard.storage.cfg(vshard_cfg, me.instance)
else
    impl = 'test helper'
    local config = common.box_cfg({})
    config.kind = 'helper'
    config.id = me.instance
    config.master = me.instance
    config.replicaset = me.replicaset
    config.listen = listen
    config.dir = cfg.dir
    config.user = 'storage'
    config.password = 'storage'
    config.discovery_page = 1000
    require('test.helper.storage').start(config)
end
common.grant_all()

-- Workloads ---------------------------------------------------------------------------------------------------------

function _G.bench_echo(...)
    return ...
end

local t5 = box.schema.space.create('bench_t5', {is_local = true})
t5:create_index('pk', {parts = {{1, 'unsigned'}}})
local t6 = box.schema.space.create('bench_t6', {is_local = true})
t6:create_index('pk', {parts = {{1, 'unsigned', path = 'id'}}})

function _G.bench_select_t5()
    return t5:select({}, {limit = 10})
end

function _G.bench_select_t6()
    return t6:select({}, {limit = 10})
end

-- The driver knows the payload (load/src/workload.rs), so that there is one statement of it.
function _G.bench_fill(tuples_t5, tuples_t6)
    for _, t in ipairs(tuples_t5) do
        t5:replace(t)
    end
    for _, t in ipairs(tuples_t6) do
        t6:replace(t)
    end
end

-- Control -----------------------------------------------------------------------------------------------------------

local share = math.ceil(cfg.bucket_count / #cfg.storages)
local first = (cfg.me - 1) * share + 1
local count = math.min(share, cfg.bucket_count - first + 1)

-- In pieces: vshard makes a piece in one transaction, and a fiber may not hold the thread for long.
if box.space._bucket:len() == 0 then
    local piece = 10000
    for from = first, first + count - 1, piece do
        local ok, err = _G.vshard.storage.bucket_force_create(from, math.min(piece, first + count - from))
        if not ok then
            error(err)
        end
        require('fiber').sleep(0)
    end
end

_G.bench_stat = common.stat
_G.bench_settle = common.settle

function _G.bench_info()
    return {ready = true, storage = impl, version = _TARANTOOL}
end
