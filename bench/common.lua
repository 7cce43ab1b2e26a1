-- What storages and routers of the benches have in common.
local clock = require('clock')
local fio = require('fio')
local json = require('json')

local M = {}

-- The driver's orders: see Config in load/src/cluster.rs.
M.cfg = json.decode(os.getenv('BENCH_CONFIG') or error('BENCH_CONFIG is not set: started by hand?'))

local function find_vshard()
    if M.cfg.no_vshard then
        return nil, 'switched off'
    end
    for _, path in ipairs({os.getenv('VSHARD_PATH') or '/opt/vshard', '/opt/vshard'}) do
        package.path = package.path .. (';%s/?.lua;%s/?/init.lua'):format(path, path)
    end
    if not pcall(require, 'vshard.consts') then
        return nil, 'vshard is not installed (VSHARD_PATH, a rock, /opt/vshard)'
    end
    return require('vshard.consts').VERSION or 'of unknown version'
end

M.vshard, M.vshard_missing = find_vshard()

function M.host_is_at_least(major, minor)
    local own_major, own_minor = _TARANTOOL:match('^(%d+)%.(%d+)')
    own_major, own_minor = tonumber(own_major), tonumber(own_minor)
    return own_major > major or own_major == major and own_minor >= minor
end

function M.has_raw_args()
    return M.host_is_at_least(2, 10)
end

-- vshard's configuration of the whole cluster.
function M.sharding()
    local replicasets = {}
    for i, storage in ipairs(M.cfg.storages) do
        replicasets[storage.replicaset] = {
            replicas = {
                [storage.instance] = {
                    uri = ('storage:storage@127.0.0.1:%d'):format(storage.port),
                    name = ('storage_%d'):format(i),
                    master = true,
                },
            },
        }
    end
    return {sharding = replicasets, bucket_count = M.cfg.bucket_count}
end

-- The instance that has the bucket.
function M.storage_of(bucket_id)
    local share = math.ceil(M.cfg.bucket_count / #M.cfg.storages)
    return math.floor((bucket_id - 1) / share) + 1
end

function M.box_cfg(extra)
    local cfg = {
        work_dir = M.cfg.dir,
        -- Room for half a million buckets.
        memtx_memory = 256 * 1024 * 1024,
        -- Calls in flight are held by the load generator, not here.
        net_msg_max = 100000,
        log_level = 4,
    }
    for k, v in pairs(extra) do
        cfg[k] = v
    end
    return cfg
end

local function read_file(path)
    local f = io.open(path)
    if f == nil then
        return ''
    end
    local text = f:read('*a')
    f:close()
    return text
end

-- CPU time of each thread, nanoseconds, by its name.
local function threads()
    local res = {}
    for _, tid in ipairs(fio.listdir('/proc/self/task') or {}) do
        local dir = '/proc/self/task/' .. tid
        local name = read_file(dir .. '/comm'):gsub('%s+$', '')
        local ns = tonumber(read_file(dir .. '/schedstat'):match('^(%d+)'))
        if ns ~= nil then
            res[name] = (res[name] or 0) + ns
        end
    end
    return res
end

-- Counters of this process. Called by the driver before and after each run.
function M.stat()
    local status = read_file('/proc/self/status')
    return {
        tx = clock.thread(),
        process = clock.proc(),
        rss_kb = tonumber(status:match('VmRSS:%s+(%d+)')),
        peak_kb = tonumber(status:match('VmHWM:%s+(%d+)')),
        lua_kb = collectgarbage('count'),
        threads = threads(),
    }
end

-- Before a run: garbage of the run before must not be paid by this one, and the peak counts from here.
function M.settle()
    collectgarbage('collect')
    collectgarbage('collect')
    local f = io.open('/proc/self/clear_refs', 'w')
    if f ~= nil then
        f:write('5')
        f:close()
    end
    return M.stat()
end

function M.grant_all()
    box.schema.user.grant('guest', 'super', nil, nil, {if_not_exists = true})
end

return M
