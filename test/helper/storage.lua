-- The storage half of the vshard protocol, small and strict, for hosts without vshard; and the frame that starts either kind.
--
-- Not a storage: it keeps the `_bucket` rows, judges each call by them as vshard.storage does, and answers in the same shapes.
-- Nothing is replicated, moved or recovered; the driver sets every state by a hook (`test_bucket_set`, …). Strict means that
-- a request which vshard.storage would never get from its own router (a wrong mode, a wrong argument type) is an error here too.

local fiber = require('fiber')
local functions = require('test.helper.functions')
local uuid = require('uuid')

local M = {
    config = nil,
    is_enabled = true,
    -- Set by the driver: whom this instance believes to be the master (an instance id), or false for "nobody".
    master = nil,
    -- bucket id -> true: answer BUCKET_IS_LOCKED.
    locked = {},
    -- Requests seen, by protocol function.
    requests = {},
    -- Whether it tells of an upstream.
    replicates = true,
    -- References of map-reduce calls: session id -> their numbers.
    refs = {},
}

local codes = {
    WRONG_BUCKET = 1, NON_MASTER = 2, TRANSFER_IS_IN_PROGRESS = 7, BUCKET_IS_LOCKED = 22, STORAGE_REF_ADD = 27,
    STORAGE_REF_USE = 28, STORAGE_REF_DEL = 29, STORAGE_IS_DISABLED = 33,
}

local function vshard_error(name, message, fields)
    local err = {type = 'ShardingError', code = codes[name], name = name, message = message}
    for k, v in pairs(fields) do
        err[k] = v
    end
    return setmetatable(err, {__tostring = require('json').encode})
end

-- An error as the storage puts it into a result: a plain map, whatever was raised.
local function plain_error(err)
    if type(err) == 'table' then
        return err
    end
    if type(err) == 'cdata' and type(err.unpack) == 'function' then
        local res = err:unpack()
        local at = res
        while at.prev ~= nil do
            at.prev = at.prev:unpack()
            at = at.prev
        end
        return res
    end
    local ok, made = pcall(box.error.new, box.error.PROC_LUA, tostring(err))
    assert(ok)
    return made:unpack()
end

local readable = {active = true, pinned = true, sending = true, readonly = true}
local writable = {active = true, pinned = true}
local in_transfer = {sending = true, receiving = true, readonly = true}

-- nil when the bucket takes calls of this mode here; else the refusal. Second: the row, if there is one.
local function refusal(bucket_id, mode)
    if M.locked[bucket_id] then
        return vshard_error('BUCKET_IS_LOCKED', ('Bucket %d is locked'):format(bucket_id), {bucket_id = bucket_id})
    end
    local row = box.space._bucket:get({bucket_id})
    local status = row and row[2]
    local destination = row and row[3]
    if destination == nil then
        destination = nil
    end
    if mode == 'read' then
        if readable[status] then
            return nil, row
        end
    elseif writable[status] then
        if M.master == M.config.id then
            return nil, row
        end
        return vshard_error('NON_MASTER', ('%s does not lead %s'):format(M.config.id, M.config.replicaset), {
            replica = M.config.id, replicaset = M.config.replicaset, master = M.master or nil,
        }), row
    elseif in_transfer[status] then
        return vshard_error('TRANSFER_IS_IN_PROGRESS', ('Bucket %d is on its way'):format(bucket_id), {
            bucket_id = bucket_id, destination = destination,
        }), row
    end
    local reason = status and ('it is ' .. status) or 'not found'
    return vshard_error('WRONG_BUCKET', ('Bucket %d refused: %s'):format(bucket_id, reason), {
        bucket_id = bucket_id, reason = reason, destination = destination,
    }), row
end

local function pack(...)
    return {n = select('#', ...), ...}
end

-- The function by its dotted name, as IPROTO_CALL would find it.
local function run(name, args)
    local func = _G
    for part in name:gmatch('[^.]+') do
        func = type(func) == 'table' and func[part] or nil
    end
    if func == nil then
        box.error({code = box.error.NO_SUCH_PROC, reason = ("Procedure '%s' is not defined"):format(name)})
    end
    return func(unpack(args, 1, table.maxn(args)))
end

local api = {}

function api.call(bucket_id, mode, name, args)
    if type(bucket_id) ~= 'number' or (mode ~= 'read' and mode ~= 'write') or type(name) ~= 'string' then
        error('storage: vshard.storage.call(bucket_id, read|write, function, args) expected, unknown mode or type')
    end
    if args ~= nil and type(args) ~= 'table' then
        error('storage: args must be an array')
    end
    local refused = refusal(bucket_id, mode)
    if refused ~= nil then
        return nil, refused
    end
    local res = pack(pcall(run, name, args ~= nil and args or {}))
    if not res[1] then
        return false, plain_error(res[2])
    end
    -- The flag and up to three values; trailing nils are cut.
    local n = math.min(res.n, 4)
    while n > 1 and res[n] == nil do
        n = n - 1
    end
    return unpack(res, 1, n)
end

function api.buckets_discovery(opts)
    local res = {}
    if opts == nil then
        for _, row in box.space._bucket:pairs() do
            if writable[row[2]] then
                table.insert(res, row[1])
            end
        end
        return res
    end
    if type(opts.from) ~= 'number' then
        error('storage: buckets_discovery{from = number} expected')
    end
    local scanned, next_from = 0, nil
    for _, row in box.space._bucket:pairs({opts.from}, {iterator = 'GE'}) do
        if writable[row[2]] then
            table.insert(res, row[1])
        end
        scanned = scanned + 1
        if scanned == M.config.discovery_page then
            next_from = row[1] + 1
            break
        end
    end
    return {buckets = res, next_from = next_from}
end

function api.bucket_stat(bucket_id)
    if type(bucket_id) ~= 'number' then
        error('storage: bucket_stat(number) expected')
    end
    local refused, row = refusal(bucket_id, 'read')
    local stat = row and row:tomap() or nil
    if refused == nil then
        return stat, nil
    end
    return stat, refused
end

function api.buckets_count()
    return box.space._bucket:count()
end

function api.bucket_force_create(first, count)
    if type(first) ~= 'number' or (count ~= nil and type(count) ~= 'number') then
        error('storage: bucket_force_create(first, count) expected')
    end
    local ok, err = pcall(box.atomic, function()
        for id = first, first + (count or 1) - 1 do
            box.space._bucket:insert({id, 'active'})
        end
    end)
    if not ok then
        return nil, err
    end
    return true
end

function api.sync(timeout)
    if timeout ~= nil and type(timeout) ~= 'number' then
        error('storage: sync(number) expected')
    end
    return true
end

local services = {}

function services.info(opts)
    local res = {is_master = M.master == M.config.id}
    if opts ~= nil and opts.with_health then
        if not M.master then
            return nil, vshard_error('MISSING_MASTER', 'nobody leads', {replicaset = M.config.replicaset})
        end
        res.health = {master_upstream = M.replicates and {status = 'follow', idle = 0, lag = 0} or nil}
    end
    return res
end

local function ref_error(name, rid)
    return vshard_error(name, ('Reference %s: %s'):format(tostring(rid), name), {reason = name})
end

local function has_ref(rid)
    local refs = M.refs[box.session.id()]
    return refs ~= nil and refs[rid] ~= nil
end

local function drop_ref(rid)
    M.refs[box.session.id()][rid] = nil
end

-- Waits, as long as it may, until no bucket is on its way; a call has one reference in a session.
local function add_ref(rid, timeout)
    if type(rid) ~= 'number' or type(timeout) ~= 'number' then
        error('storage: a reference needs two numbers, its own and a timeout')
    end
    if has_ref(rid) then
        return nil, ref_error('STORAGE_REF_ADD', rid)
    end
    local deadline = fiber.clock() + timeout
    while true do
        local is_settled = true
        for _, row in box.space._bucket:pairs() do
            is_settled = is_settled and writable[row[2]]
        end
        if is_settled then
            break
        end
        if fiber.clock() > deadline then
            return nil, plain_error(box.error.new(box.error.TIMEOUT))
        end
        fiber.sleep(0.01)
    end
    local session = box.session.id()
    M.refs[session] = M.refs[session] or {}
    M.refs[session][rid] = deadline
    return true
end

local function moved_of(ids)
    local moved = {}
    for _, id in ipairs(ids) do
        local row = box.space._bucket:get({id})
        if row == nil or not writable[row[2]] then
            table.insert(moved, {id = id, dst = row and row[3] or nil, status = row and row[2] or nil})
        end
    end
    return moved
end

function services.storage_ref(rid, timeout)
    local ok, err = add_ref(rid, timeout)
    if not ok then
        return nil, err
    end
    return box.space._bucket:count()
end

function services.storage_ref_make_with_buckets(rid, timeout, ids)
    local moved = moved_of(ids)
    if #moved == #ids then
        return {moved = moved}
    end
    local ok, err = add_ref(rid, timeout)
    if not ok then
        return nil, err
    end
    return {is_done = true, moved = moved}
end

function services.storage_ref_check_with_buckets(rid, ids)
    if not has_ref(rid) then
        return nil, ref_error('STORAGE_REF_USE', rid)
    end
    return {moved = moved_of(ids)}
end

function services.storage_map(rid, name, args)
    if not has_ref(rid) then
        return nil, ref_error('STORAGE_REF_USE', rid)
    end
    local ok, res = pcall(run, name, args)
    drop_ref(rid)
    if not ok then
        return nil, plain_error(res)
    end
    if res == nil then
        return true
    end
    return true, res
end

function services.storage_unref(rid)
    if not has_ref(rid) then
        return nil, ref_error('STORAGE_REF_DEL', rid)
    end
    drop_ref(rid)
    return true
end

function services.create_replicaset_recovery_point(label)
    return {label = label}
end

function api._call(service, ...)
    return services[service](...)
end

-- Every exported function refuses, by a raised error whose message is JSON, while the storage is disabled.
local function guarded(name, f)
    return function(...)
        M.requests[name] = (M.requests[name] or 0) + 1
        if not M.is_enabled then
            error(vshard_error('STORAGE_IS_DISABLED', 'Storage is disabled: by the test', {reason = 'by the test'}))
        end
        return f(...)
    end
end

local function create_schema(config)
    box.once('storage', function()
        box.schema.space.create('_bucket', {format = {
            {'id', 'unsigned'}, {'status', 'string'}, {'destination', 'string', is_nullable = true},
            {'opts', 'map', is_nullable = true},
        }})
        box.space._bucket:create_index('pk', {parts = {'id'}})
        box.schema.user.create(config.user, {password = config.password})
        for name in pairs(api) do
            local full = 'vshard.storage.' .. name
            box.schema.func.create(full, {setuid = true})
            box.schema.user.grant(config.user, 'execute', 'function', full)
        end
        box.schema.user.grant('guest', 'super')
    end)
end

local function start_helper(config)
    box.cfg({
        listen = config.listen,
        instance_uuid = config.id,
        replicaset_uuid = config.replicaset,
        work_dir = config.dir,
        memtx_memory = config.memtx_memory,
        net_msg_max = config.net_msg_max,
        log_level = 5,
    })
    M.config = config
    M.master = config.master
    _G.vshard = {storage = {}}
    for name, f in pairs(api) do
        _G.vshard.storage[name] = guarded(name, f)
    end
    create_schema(config)
    box.session.on_disconnect(function()
        M.refs[box.session.id()] = nil
    end)
end

-- Hooks, for both kinds under one name each. A bucket's row as the test wants it; no status: the row is removed.
local hooks = {}

function hooks.test_bucket_set(bucket_id, status, destination)
    if status == nil then
        box.space._bucket:delete({bucket_id})
    else
        box.space._bucket:replace({bucket_id, status, destination})
    end
end

function hooks.test_storage_enable(is_enabled)
    M.is_enabled = is_enabled
end

function hooks.test_bucket_lock(bucket_id, is_locked)
    M.locked[bucket_id] = is_locked or nil
end

function hooks.test_master_set(master)
    M.master = master
end

-- Whether this replica follows its master.
function hooks.test_replicates(is_on)
    M.replicates = is_on
end

-- References that are held, by calls that still have time.
function hooks.test_refs()
    local n = 0
    for _, refs in pairs(M.refs) do
        for _, deadline in pairs(refs) do
            n = n + (deadline > fiber.clock() and 1 or 0)
        end
    end
    return n
end

function hooks.test_requests(name)
    return M.requests[name] or 0
end

local function start_vshard(config)
    local vshard = require('vshard')
    _G.vshard = vshard
    local cfg = config.vshard_cfg
    cfg.memtx_memory = config.memtx_memory
    cfg.net_msg_max = config.net_msg_max
    cfg.work_dir = config.dir
    cfg.log_level = 5
    cfg.replication_connect_timeout = 10
    vshard.storage.cfg(cfg, config.id)
    if config.master == config.id then
        box.schema.user.grant('guest', 'super', nil, nil, {if_not_exists = true})
    end

    -- The test owns the bucket states: nothing may check, recover or collect them behind its back.
    local internal = vshard.storage.internal
    internal.errinj.ERRINJ_SKIP_BUCKET_STATUS_VALIDATE = true
    internal.errinj.ERRINJ_RECOVERY_PAUSE = true
    internal.errinj.ERRINJ_BUCKET_GC_PAUSE = true
    internal.is_bucket_protected = false

    function hooks.test_bucket_set(bucket_id, status, destination)
        if not internal.is_master then
            return
        end
        internal.bucket_refs[bucket_id] = nil
        if status == nil then
            box.space._bucket:delete({bucket_id})
            internal.route_map[bucket_id] = nil
        else
            box.space._bucket:replace({bucket_id, status, destination})
        end
    end

    -- The reference object of a bucket that was called before is locked by a change of its state, and hides the state behind
    -- BUCKET_IS_LOCKED. Scenarios want the state; the lock has its own hook.
    function hooks.test_bucket_forget(bucket_id)
        internal.bucket_refs[bucket_id] = nil
    end

    function hooks.test_storage_enable(is_enabled)
        if is_enabled then
            vshard.storage.enable()
        else
            vshard.storage.disable()
        end
    end

    -- vshard locks a bucket through its reference object, which exists once the bucket was called.
    function hooks.test_bucket_lock(bucket_id, is_locked)
        internal.bucket_refs[bucket_id] = is_locked and {ro = 0, rw = 0, ro_lock = true, rw_lock = true} or nil
    end

    function hooks.test_master_set(master)
        for _, rs in pairs(cfg.sharding) do
            for id, replica in pairs(rs.replicas) do
                if rs.replicas[config.id] ~= nil then
                    replica.master = id == master or nil
                end
            end
        end
        vshard.storage.cfg(cfg, config.id)
    end

    local replication
    function hooks.test_replicates(is_on)
        replication = replication or box.cfg.replication
        box.cfg({replication = is_on and replication or {}})
    end

    function hooks.test_refs()
        return require('vshard.storage.ref').count
    end

    function hooks.test_requests()
        return nil
    end
end

local function start(config)
    assert(uuid.fromstr(config.id) ~= nil)
    functions.install()
    if config.kind == 'vshard' then
        start_vshard(config)
    else
        start_helper(config)
    end
    for name, f in pairs(hooks) do
        _G[name] = f
    end
end

return {start = start}
