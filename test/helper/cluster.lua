-- A cluster of real Tarantool processes on this machine: storages (vshard's or our helper's) and one router.
--
--     local c = cluster.new({bucket_count = 30})
--     c:start()
--     c.router:eval('return 1')
--     c.storages.s1a:freeze()
--     c:stop()
--
-- Replicaset r1 has the instances s1a (master) and s1b, r2 has s2a and s2b. Buckets 1 … N/2 live on r1, the others on r2.

local digest = require('digest')
local env = require('test.helper.env')
local fiber = require('fiber')
local fio = require('fio')
local json = require('json')
local log = require('log')
local net_box = require('net.box')
local peer = require('test.helper.peer')
local process = require('test.helper.process')
local socket = require('socket')

local START_TIMEOUT = 60

-- Clusters that have a directory to remove.
local started = {}

local cluster_methods = {}
cluster_methods.__index = cluster_methods
local instance_methods = {}
instance_methods.__index = instance_methods

-- Waits until f() gives a true value, and returns it. The message names what never came.
local function wait_until(what, f, timeout)
    local deadline = fiber.clock() + (timeout or 20)
    local pause = 0.002
    while true do
        local res = f()
        -- A nil of another process is box.NULL, which is true.
        if res and res ~= nil then
            return res
        end
        if fiber.clock() > deadline then
            error(('waited %g s in vain for: %s'):format(timeout or 20, what), 2)
        end
        fiber.sleep(pause)
        pause = math.min(pause * 1.5, 0.05)
    end
end

-- The first port that the kernel gives to outgoing connections by itself. A port from there on could be taken by anybody's
-- connection while the storage that listens on it is down.
local function first_ephemeral_port()
    local f = fio.open('/proc/sys/net/ipv4/ip_local_port_range', {'O_RDONLY'})
    local text = f ~= nil and f:read(64) or ''
    if f ~= nil then
        f:close()
    end
    return tonumber(text:match('^(%d+)')) or 32768
end

local FIRST_PORT, LAST_PORT = 10240, first_ephemeral_port() - 1
local given_ports = {}

-- A port of 127.0.0.1 that nobody listens on, never the same twice.
local function free_port()
    local is_narrow = LAST_PORT - FIRST_PORT < 1000
    for _ = 1, 1000 do
        local a, b, c = digest.urandom(3):byte(1, 3)
        local wanted = is_narrow and 0 or FIRST_PORT + (a * 65536 + b * 256 + c) % (LAST_PORT - FIRST_PORT + 1)
        local s = socket('AF_INET', 'SOCK_STREAM', 'tcp')
        local port = s:bind('127.0.0.1', wanted) and s:name().port or nil
        s:close()
        if port ~= nil and not given_ports[port] then
            given_ports[port] = true
            return port
        end
    end
    error('no port of 127.0.0.1 is free')
end

-- Instances

local function new_instance(name, config)
    return setmetatable({name = name, config = config, dir = config.dir}, instance_methods)
end

function instance_methods:spawn()
    fio.mktree(self.dir)
    local f = assert(fio.open(fio.pathjoin(self.dir, 'config.json'), {'O_WRONLY', 'O_CREAT', 'O_TRUNC'}, tonumber('644', 8)))
    f:write(json.encode(self.config))
    f:close()
    self.log = fio.pathjoin(self.dir, 'log')
    self.process = process.spawn({self.config.tarantool, fio.pathjoin(env.root, 'test/helper/instance.lua'), self.dir},
                                 {cwd = env.root, log = self.log})
end

function instance_methods:uri()
    return self.config.listen
end

-- The driver's connection: user guest, who may do everything here.
function instance_methods:conn()
    if self.connection == nil or not self.connection:is_connected() then
        if self.connection ~= nil then
            self.connection:close()
        end
        self.connection = net_box.connect(self:uri(), {wait_connected = 10})
    end
    return self.connection
end

function instance_methods:eval(code, args, opts)
    return self:conn():eval(code, args or {}, opts or {timeout = 30})
end

function instance_methods:call(func, args, opts)
    return self:conn():call(func, args or {}, opts or {timeout = 30})
end

function instance_methods:fail(message)
    local tail = self.process ~= nil and self.process:log_tail(40) or '(not started)'
    error(('%s: %s\n--- the end of its log:\n%s'):format(self.name, message, tail), 0)
end

function instance_methods:wait_ready()
    local deadline = fiber.clock() + START_TIMEOUT
    while true do
        if not self.process:is_alive() then
            self:fail('ended while starting: ' .. tostring(self.process:exit_status()))
        end
        local ok, is_ready = pcall(function()
            local conn = net_box.connect(self:uri(), {wait_connected = 2})
            if not conn:is_connected() then
                conn:close()
                return false
            end
            local ok, ready = pcall(conn.eval, conn, 'return is_ready', {}, {timeout = 2})
            if ok and ready then
                self.connection = conn
                return true
            end
            conn:close()
            return false
        end)
        if ok and is_ready then
            return
        end
        if fiber.clock() > deadline then
            self:fail('not ready in time')
        end
        fiber.sleep(0.01)
    end
end

function instance_methods:start()
    self:spawn()
    self:wait_ready()
end

function instance_methods:disconnect()
    if self.connection ~= nil then
        self.connection:close()
        self.connection = nil
    end
end

function instance_methods:is_alive()
    return self.process ~= nil and self.process:is_alive()
end

-- SIGTERM and wait.
function instance_methods:stop()
    self:disconnect()
    if self.process ~= nil then
        self.process:thaw()
        self.process:terminate()
    end
end

-- SIGKILL.
function instance_methods:kill()
    self:disconnect()
    if self.process ~= nil then
        self.process:kill()
    end
end

function instance_methods:freeze()
    self.is_frozen = true
    self.process:freeze()
end

function instance_methods:thaw()
    self.is_frozen = false
    self.process:thaw()
end

function instance_methods:restart()
    self:stop()
    self:start()
end

-- Bytes of memory of the process, from the kernel.
local function memory(self, name)
    local f = assert(fio.open(('/proc/%d/status'):format(self.process.pid), {'O_RDONLY'}))
    local text = f:read(8192)
    f:close()
    return tonumber(text:match(name .. ':%s*(%d+)')) * 1024
end

function instance_methods:rss()
    return memory(self, 'VmRSS')
end

-- The most there ever was.
function instance_methods:peak_rss()
    return memory(self, 'VmHWM')
end

-- Clusters

local function replicaset_id(i)
    return ('aaaaaaaa-0000-4000-8000-%012d'):format(i)
end

local function instance_id(i, j)
    return ('bbbbbbbb-0000-4000-8000-%012d'):format(i * 100 + j)
end

-- opts: storages ('helper' | 'vshard'), router ('rawshard' | 'vshard'), bucket_count, replicasets, replicas, unix (listen
-- on unix sockets), router_cfg (added to the router's cfg; false: the router starts without cfg), discovery_page,
-- net_msg_max, memtx_memory, auto_master; oracle: true: a second router beside the first, c.oracle, which is vshard's; peers: so
-- many scripted storages in the driver (peer.lua, c.peers) in the place of processes, each a replicaset of its own.
local function new(opts)
    opts = opts or {}
    local self = setmetatable({
        storage_kind = opts.storages or env.storage_kind,
        router_kind = opts.router or env.router_kind,
        tarantool = opts.tarantool or env.tarantool,
        bucket_count = opts.bucket_count or 30,
        opts = opts,
        replicasets = {},
        storages = {},
        names = {},
    }, cluster_methods)
    return self
end

function cluster_methods:listen_for(name)
    if self.opts.unix then
        return 'unix/:' .. fio.pathjoin(self.dir, name .. '.sock')
    end
    return '127.0.0.1:' .. free_port()
end

-- The `sharding` table in vshard's form.
function cluster_methods:sharding()
    local sharding = {}
    for i, rs in ipairs(self.replicasets) do
        local replicas = {}
        for j, name in ipairs(rs.names) do
            local uri = 'storage:storage@' .. self.storages[name]:uri()
            replicas[instance_id(i, j)] = {
                uri = uri, name = name, master = not self.opts.auto_master and j == 1 or nil,
            }
        end
        sharding[rs.id] = {replicas = replicas, master = self.opts.auto_master and 'auto' or nil}
    end
    return sharding
end

function cluster_methods:make_router_cfg()
    local cfg = {bucket_count = self.bucket_count, sharding = self:sharding()}
    for i, p in ipairs(self.peers or {}) do
        cfg.sharding[replicaset_id(i)] = {replicas = {
            [p.id] = {uri = 'storage:storage@127.0.0.1:' .. p.port, name = 'peer' .. i, master = true},
        }}
    end
    for k, v in pairs(self.opts.router_cfg or {}) do
        cfg[k] = v
    end
    return cfg
end

-- The router loads a copy of the library from a directory of its own, which the test may change.
function cluster_methods:prepare_library()
    self.library_dir = fio.tempdir()
    assert(fio.copyfile(fio.pathjoin(env.build, 'rawshard.so'), fio.pathjoin(self.library_dir, 'rawshard.so')))
end

function cluster_methods:prepare()
    self.dir = fio.tempdir()
    local common = {
        root = env.root,
        tarantool = self.tarantool,
        package_path = env.package_path(),
        package_cpath = self.library_dir ~= nil and self.library_dir .. '/?.so' or env.package_cpath(),
        net_msg_max = self.opts.net_msg_max or 50000,
        memtx_memory = self.opts.memtx_memory or 64 * 1024 * 1024,
    }
    local function config(name, extra)
        local res = table.copy(common)
        res.name = name
        res.dir = fio.pathjoin(self.dir, name)
        res.listen = self:listen_for(name)
        for k, v in pairs(extra) do
            res[k] = v
        end
        return res
    end
    local peers = self.opts.peers or 0
    for i = 1, peers do
        self.peers = self.peers or {}
        self.peers[i] = peer.new({
            id = instance_id(i, 1),
            first = math.floor((i - 1) * self.bucket_count / peers) + 1,
            last = math.floor(i * self.bucket_count / peers),
        })
    end
    for i = 1, peers > 0 and 0 or self.opts.replicasets or 2 do
        local rs = {id = replicaset_id(i), names = {}}
        for j = 1, self.opts.replicas or 2 do
            local name = ('s%d%s'):format(i, string.char(('a'):byte() + j - 1))
            table.insert(rs.names, name)
            table.insert(self.names, name)
            self.storages[name] = new_instance(name, config(name, {
                role = 'storage', kind = self.storage_kind, id = instance_id(i, j), replicaset = rs.id,
                master = instance_id(i, 1), user = 'storage', password = 'storage',
                discovery_page = self.opts.discovery_page or 1000,
            }))
        end
        rs.master = self.storages[rs.names[1]]
        rs.first = math.floor((i - 1) * self.bucket_count / (self.opts.replicasets or 2)) + 1
        rs.last = math.floor(i * self.bucket_count / (self.opts.replicasets or 2))
        self.replicasets[i] = rs
    end
    -- Storages take no 'auto': the helper decides who leads.
    local auto = self.opts.auto_master
    self.opts.auto_master = nil
    local storage_sharding = self:sharding()
    self.opts.auto_master = auto
    for _, storage in pairs(self.storages) do
        storage.config.vshard_cfg = {bucket_count = self.bucket_count, sharding = storage_sharding}
    end
    if self.opts.router ~= false then
        self.router = new_instance('router', config('router', {
            role = 'router', kind = self.router_kind,
            router_cfg = self.opts.router_cfg ~= false and self:make_router_cfg() or nil,
        }))
    end
    if self.opts.oracle then
        self.oracle = new_instance('oracle', config('oracle', {
            role = 'router', kind = 'vshard', router_cfg = self:make_router_cfg(),
        }))
    end
end

function cluster_methods:start()
    self:prepare()
    started[self] = true
    for _, name in ipairs(self.names) do
        self.storages[name]:spawn()
    end
    for _, name in ipairs(self.names) do
        self.storages[name]:wait_ready()
    end
    if self.opts.bootstrap ~= false then
        for _, rs in ipairs(self.replicasets) do
            local ok, err = rs.master:call('vshard.storage.bucket_force_create', {rs.first, rs.last - rs.first + 1})
            if not ok then
                error('cannot create buckets: ' .. json.encode(err))
            end
        end
        self:sync_replicas(true)
    end
    for _, router in ipairs({self.router, self.oracle}) do
        router:start()
    end
    return self
end

-- The other instances have the same bucket rows as their masters: vshard's get them by replication, ours from here.
function cluster_methods:sync_replicas(is_bootstrap)
    for _, rs in ipairs(self.replicasets) do
        for j = 2, #rs.names do
            local replica = self.storages[rs.names[j]]
            if self.storage_kind == 'vshard' then
                wait_until('buckets of ' .. replica.name, function()
                    return replica:eval('return box.space._bucket ~= nil and box.space._bucket:count()') ==
                           rs.master:eval('return box.space._bucket:count()')
                end)
            elseif is_bootstrap then
                replica:call('vshard.storage.bucket_force_create', {rs.first, rs.last - rs.first + 1})
            end
        end
    end
end

function cluster_methods:replicaset_of(bucket_id)
    for _, rs in ipairs(self.replicasets) do
        if bucket_id >= rs.first and bucket_id <= rs.last then
            return rs
        end
    end
end

-- Sets the row of a bucket on all instances of a replicaset; status nil removes it.
function cluster_methods:set_bucket(rs, bucket_id, status, destination)
    for _, name in ipairs(rs.names) do
        local storage = self.storages[name]
        if storage:is_alive() and not storage.is_frozen then
            storage:call('test_bucket_set', {bucket_id, status, destination})
        end
    end
    if self.storage_kind == 'vshard' then
        for j = 2, #rs.names do
            local replica = self.storages[rs.names[j]]
            if replica:is_alive() and not replica.is_frozen then
                wait_until('replication of a bucket row', function()
                    local row = replica:eval('return box.space._bucket:get({...})', {bucket_id})
                    if row == nil or status == nil then
                        return (row == nil) == (status == nil)
                    end
                    return row[2] == status and row[3] == destination
                end)
            end
        end
        for _, name in ipairs(rs.names) do
            local storage = self.storages[name]
            if storage:is_alive() and not storage.is_frozen then
                storage:call('test_bucket_forget', {bucket_id})
            end
        end
    end
end

-- Moves a bucket: `sent` with a destination at its old place, active at the new one.
function cluster_methods:move_bucket(bucket_id, from, to)
    self:set_bucket(to, bucket_id, 'active')
    self:set_bucket(from, bucket_id, 'sent', to.id)
end

-- How often the function ran with this key, over all storages.
function cluster_methods:executed(key)
    local total = 0
    for _, name in ipairs(self.names) do
        if self.storages[name]:is_alive() then
            total = total + self.storages[name]:call('test_executed', {key})
        end
    end
    return total
end

-- Bring the cluster back to its first state, whatever a scenario did to it; the router must heal by itself.
function cluster_methods:heal()
    for _, name in ipairs(self.names) do
        local storage = self.storages[name]
        if storage.is_frozen then
            storage:thaw()
        end
        if not storage:is_alive() then
            storage:disconnect()
            storage:spawn()
        end
    end
    -- Ready only now: the storages of a replicaset wait for each other.
    for _, name in ipairs(self.names) do
        self.storages[name]:wait_ready()
    end
    for _, rs in ipairs(self.replicasets) do
        for _, name in ipairs(rs.names) do
            local storage = self.storages[name]
            storage:call('test_storage_enable', {true})
            storage:eval([[
                local first, last, total = ...
                if box.info.ro then
                    return
                end
                for id = 1, total do
                    local row = box.space._bucket:get({id})
                    local is_mine = id >= first and id <= last
                    if is_mine and (row == nil or row[2] ~= 'active') then
                        test_bucket_set(id, 'active')
                    elseif not is_mine and row ~= nil then
                        test_bucket_set(id, nil)
                    end
                    test_bucket_lock(id, false)
                end
            ]], {rs.first, rs.last, self.bucket_count})
        end
    end
    self:sync_replicas()
    if self.router ~= nil and self.router.config.router_cfg ~= nil then
        if not self.router:is_alive() then
            self.router:start()
        end
        for _, p in ipairs(self.peers or {}) do
            p:reset()
            wait_until('calls to a peer through the router', function()
                local res = self.router:call('test_call', {p.first, 'write', 'whatever', {}, {timeout = 1}})
                return res.ok and res.v[1] == nil and res.v[2] == nil
            end)
        end
        for _, rs in ipairs(self.replicasets) do
            wait_until('writes to ' .. rs.names[1] .. ' through the router', function()
                local res = self.router:call('test_call', {rs.first, 'write', 'whoami', {}, {timeout = 1}})
                return res.ok and res.v[1] == rs.names[1]
            end)
        end
    end
end

-- The last lines of each log; with the router's first, which is the one under suspicion.
function cluster_methods:logs(lines)
    local out = {}
    local instances = self:instances()
    for i = #instances, 1, -1 do
        local instance = instances[i]
        if instance.process ~= nil then
            local status = instance.process:exit_status()
            table.insert(out, ('--- log of %s%s\n%s'):format(instance.name, status and (', ended: ' .. status) or '',
                         instance.process:log_tail(lines or (instance == self.router and 15 or 3))))
        end
    end
    return table.concat(out, '\n')
end

function cluster_methods:instances()
    local res = {}
    for _, name in ipairs(self.names) do
        table.insert(res, self.storages[name])
    end
    table.insert(res, self.oracle)
    table.insert(res, self.router)
    return res
end

-- Ends all at once: the router first, so that it does not mourn its storages in the log.
function cluster_methods:stop()
    for _, router in ipairs({self.router, self.oracle}) do
        router:stop()
    end
    for _, name in ipairs(self.names) do
        self.storages[name]:kill()
    end
    for _, p in ipairs(self.peers or {}) do
        p:stop()
    end
    if self.dir ~= nil then
        fio.rmtree(self.dir)
        self.dir = nil
    end
    started[self] = nil
end

-- Whatever way the driver ends, nothing stays.
local function clean_on_exit()
    box.ctl.on_shutdown(function()
        process.is_shutting_down = true
        process.kill_all()
        for c in pairs(started) do
            if c.dir ~= nil then
                fio.rmtree(c.dir)
            end
        end
    end)
end

local ok, err = pcall(clean_on_exit)
if not ok then
    log.warn('no on_shutdown trigger here (%s): the children watch their stdin', err)
end

return {new = new, wait_until = wait_until, free_port = free_port}
