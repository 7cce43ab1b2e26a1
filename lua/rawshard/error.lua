-- Errors as vshard's users know them: plain tables with `type`, `code`, `name`, `message` and fields, whose tostring is
-- JSON. The native half sends ready maps; here are those that Lua raises or returns itself, and the common metatable.

local ffi = require('ffi')
local json = require('json')

local function to_text(err)
    -- A payload may hold what JSON refuses (NaN, odd keys); a message must come out nevertheless.
    local ok, text = pcall(json.encode, err)
    if ok then
        return text
    end
    return ('{"type": %q, "code": %s, "message": %q}'):format(
        tostring(err.type), tostring(err.code), tostring(err.message))
end

local error_mt = {__tostring = to_text}

local codes = {}
local templates = {}

-- Codes, names and fields are vshard's protocol. Words only for those that a router makes; the rest arrive with theirs.
local function define(code, name, fields, text)
    codes[name] = code
    templates[code] = {name = name, fields = fields or {}, text = text}
end

define(1, 'WRONG_BUCKET', {'bucket_id', 'reason', 'destination'}, 'Cannot perform action with bucket %d, reason: %s')
define(2, 'NON_MASTER', {'replica', 'replicaset', 'master'}, 'Replica %s is not a master for replicaset %s anymore')
define(3, 'BUCKET_ALREADY_EXISTS', {'bucket_id'})
define(4, 'NO_SUCH_REPLICASET', {'replicaset'}, 'Replicaset %s not found')
define(5, 'MOVE_TO_SELF', {'bucket_id', 'replicaset'})
define(6, 'MISSING_MASTER', {'replicaset'}, 'Master is not configured for replicaset %s')
define(7, 'TRANSFER_IS_IN_PROGRESS', {'bucket_id', 'destination'}, 'Bucket %d is transferring to replicaset %s')
define(8, 'UNREACHABLE_REPLICASET', {'replicaset', 'bucket_id'}, 'There is no active replicas in replicaset %s')
define(9, 'NO_ROUTE_TO_BUCKET', {'bucket_id'}, 'Bucket %.16g cannot be found. Is rebalancing in progress?')
define(10, 'NON_EMPTY', {}, 'Cluster is already bootstrapped')
define(11, 'UNREACHABLE_MASTER', {'replicaset', 'reason'}, 'Master of replicaset %s is unreachable: %s')
define(12, 'OUT_OF_SYNC')
define(13, 'HIGH_REPLICATION_LAG', {'lag'})
define(14, 'UNREACHABLE_REPLICA', {'replica'}, "Replica %s isn't active")
define(15, 'LOW_REDUNDANCY')
define(16, 'INVALID_REBALANCING')
define(17, 'SUBOPTIMAL_REPLICA', {}, 'A current read replica in replicaset %s is not optimal')
define(18, 'UNKNOWN_BUCKETS', {'not_discovered_cnt'}, '%d buckets are not discovered')
define(19, 'REPLICASET_IS_LOCKED')
define(20, 'OBJECT_IS_OUTDATED', {}, 'Object is outdated after module reload/reconfigure. Use new instance.')
define(21, 'ROUTER_ALREADY_EXISTS', {'router_name'}, 'Router with name %s already exists')
define(22, 'BUCKET_IS_LOCKED', {'bucket_id'}, 'Bucket %d is locked')
define(23, 'INVALID_CFG', {'reason'}, 'Invalid configuration: %s')
define(24, 'BUCKET_IS_PINNED', {'bucket_id'})
define(25, 'TOO_MANY_RECEIVING')
define(26, 'STORAGE_IS_REFERENCED')
define(27, 'STORAGE_REF_ADD', {'reason'})
define(28, 'STORAGE_REF_USE', {'reason'})
define(29, 'STORAGE_REF_DEL', {'reason'})
define(30, 'BUCKET_RECV_DATA_ERROR', {'bucket_id', 'space', 'tuple', 'reason'})
define(32, 'REPLICASET_IN_BACKOFF', {'replicaset', 'error'},
       "Replicaset %s is in backoff, can't take requests right now. Last error was %s")
define(33, 'STORAGE_IS_DISABLED', {'reason'}, 'Storage is disabled: %s')
define(34, 'BUCKET_IS_CORRUPTED', {'bucket_id', 'reason'})
define(35, 'ROUTER_IS_DISABLED', {'reason'}, 'Router is disabled: %s')
define(36, 'BUCKET_GC_ERROR', {'reason'})
define(37, 'STORAGE_CFG_IS_IN_PROGRESS')
define(38, 'ROUTER_CFG_IS_IN_PROGRESS', {'router_name'}, 'Configuration of the router with name %s is in progress')
define(39, 'BUCKET_INVALID_UPDATE', {'bucket_id', 'reason'})
define(40, 'VHANDSHAKE_NOT_COMPLETE', {'replica'}, 'Handshake with %s have not been completed yet')
define(41, 'INSTANCE_NAME_MISMATCH', {'expected_name', 'actual_name'},
       'Mismatch server name: expected "%s", but got "%s"')
define(42, 'MASTER_NOT_SYNCED', {'replica', 'replicaset'})

local function template_of(code)
    local template = templates[code]
    assert(template ~= nil and template.text ~= nil, 'this error has no words here')
    return template
end

-- Arguments in the order of the error's fields.
local function vshard_error(code, ...)
    local template = template_of(code)
    local err = {type = 'ShardingError', code = code, name = template.name, message = template.text:format(...)}
    for i, field in ipairs(template.fields) do
        err[field] = (select(i, ...))
    end
    return setmetatable(err, error_mt)
end

-- For info(): the name and a text.
local function alert(code, ...)
    local template = template_of(code)
    return setmetatable({template.name, template.text:format(...)}, {__serialize = 'seq'})
end

-- A host error (cdata) as a map, with the errors that caused it.
local function from_box(err)
    local map = setmetatable(err:unpack(), error_mt)
    local link = map
    while link.prev ~= nil do
        link.prev = setmetatable(link.prev:unpack(), error_mt)
        link = link.prev
    end
    return map
end

-- A map that is no error of vshard's as an error of the host, which net.box's futures have; where the host makes none of it, the
-- map.
local function to_box(err)
    if type(err) ~= 'table' or err.type == 'ShardingError' then
        return err
    end
    local what = {code = err.code, reason = err.message}
    if err.type ~= 'ClientError' then
        what.type = err.type
    end
    local ok, made = pcall(box.error.new, what)
    if not ok or type(made) ~= 'cdata' then
        return err
    end
    if err.prev ~= nil then
        pcall(made.set_prev, made, to_box(err.prev))
    end
    return made
end

-- Whatever was decoded or caught, as an error table where there is a way.
local function make(err)
    local kind = type(err)
    if kind == 'table' then
        return setmetatable(err, error_mt)
    end
    if kind == 'string' then
        return from_box(box.error.new(box.error.PROC_LUA, err))
    end
    if kind == 'cdata' and ffi.istype('struct error', err) then
        return from_box(err)
    end
    return err
end

local function timeout()
    return from_box(box.error.new(box.error.TIMEOUT))
end

-- In the words of the native half.
local function no_connection(instance, address, reason)
    local err = from_box(box.error.new(box.error.NO_CONNECTION))
    err.message = ('Connection to %s at %s is not established: %s'):format(instance, address, reason)
    return err
end

return {
    code = codes,
    vshard = vshard_error,
    alert = alert,
    make = make,
    to_box = to_box,
    timeout = timeout,
    no_connection = no_connection,
}
