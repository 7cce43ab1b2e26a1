-- map_callrw: a function called on the masters of the whole cluster, or of those that have certain buckets, while no bucket
-- moves. Each storage is given a reference first, which keeps its buckets where they are; then the function is called there,
-- which takes the reference back; whatever goes wrong, no storage is left with one.
--
-- A reference belongs to the storage's session and the number of the call. All requests of one call to a replicaset have the
-- same target, and a target has one engine, so that they go through one connection.

local fiber = require('fiber')
local msgpack = require('msgpack')
local future = require('rawshard.future')
local codec = require('rawshard.codec')
local lerror = require('rawshard.error')
local native = require('rawshard.native')

local clock = fiber.clock
local detach = future.detach
local is_object = msgpack.is_object or function() return false end

-- Seconds.
local CALL_TIMEOUT = 0.5
-- Nobody waits for it. It is sent at once if there is a connection, and without one there is no session either.
local UNREF_TIMEOUT = 5

local SERVICE = 'vshard.storage._call'
local USAGE = 'Usage: map_callrw(func, args, {timeout = number, return_raw = boolean, bucket_ids = table})'

local map_mt = {__serialize = 'map'}

-- The state of one call: router, rid, deadline; `asked`: replicasets by id that may hold a reference; `chosen`: whom it asks
-- there, if not the master. A failure is raised as one of these, and becomes `nil, err, id`.
local failure_mt = {}

local function fail(err, id)
    error(setmetatable({err = err, id = id}, failure_mt), 0)
end

local function left(call)
    local timeout = call.deadline - clock()
    if timeout < 0 then
        return nil
    end
    return timeout
end

local function left_or_fail(call, id)
    local timeout = left(call)
    if timeout == nil then
        fail(lerror.timeout(), id)
    end
    return timeout
end

-- A future of the newest object of the replicaset, so that a reconfiguration does not come between the stages: of its
-- master, or of the instance that the call has chosen in it.
local function ask(call, id, args, opts)
    local replicaset = call.router.replicasets[id]
    local replica = replicaset ~= nil and call.chosen ~= nil and replicaset.replicas[call.chosen[id]] or nil
    if replicaset == nil or call.chosen ~= nil and replica == nil then
        return nil, lerror.vshard(lerror.code.OBJECT_IS_OUTDATED)
    end
    opts.is_async = true
    if replica == nil then
        return replicaset:callrw(SERVICE, args, opts)
    end
    local _, res, err = replica:call(SERVICE, args, opts)
    return res, err
end

local function send(call, id, args, is_raw)
    local res, err = ask(call, id, args, {return_raw = is_raw, timeout = left_or_fail(call, id)})
    if res == nil then
        fail(err, id)
    end
    return res
end

-- What a service of a storage returned: a table of values, or the object with them. All waits share one deadline.
local function collect(call, id, sent)
    local res, err = future.wait_result(sent, left_or_fail(call, id))
    if res == nil then
        fail(err, id)
    end
    return res
end

-- References.

-- The storages together must have each bucket, or the function would not see all there is.
local function check_coverage(call, count)
    local total = call.router.total_bucket_count
    if count ~= total then
        fail(lerror.vshard(lerror.code.UNKNOWN_BUCKETS, total - count))
    end
end

-- The replicasets of the whole cluster, all with a reference: id -> how many buckets it has.
local function ref_all(call)
    local router, sent, counts, count = call.router, {}, {}, 0
    for id in pairs(router.replicasets) do
        call.asked[id] = true
        sent[id] = send(call, id, {'storage_ref', call.rid, left_or_fail(call, id)})
    end
    for id, ref in pairs(sent) do
        local res = collect(call, id, ref)
        if res[1] == nil then
            fail(res[2], id)
        end
        counts[id], count = res[1], count + res[1]
    end
    check_coverage(call, count)
    return counts
end

-- The replicaset that owns a bucket, as far as known; asks the storages if it is not.
local function owner_of(router, bucket_id, timeout)
    if not (bucket_id >= 1 and bucket_id <= router.total_bucket_count) or bucket_id % 1 ~= 0 then
        return nil, lerror.vshard(lerror.code.NO_ROUTE_TO_BUCKET, bucket_id)
    end
    local index = native.bucket_get(router.native_id, bucket_id)
    if index == nil then
        index = native.route(router.native_id, bucket_id, timeout)
        if index < 0 then
            return nil, codec.failure()
        end
    end
    return router.replicaset_list[index].id
end

-- Replicaset id -> list of its buckets; nil and an error. Each bucket counts once.
local function group(router, bucket_ids, timeout)
    local deadline = clock() + timeout
    local groups, seen = {}, {}
    for _, bucket_id in pairs(bucket_ids) do
        if type(bucket_id) ~= 'number' then
            return nil, lerror.make(("Bucket '%s' is not a number"):format(tostring(bucket_id)))
        end
        if not seen[bucket_id] then
            seen[bucket_id] = true
            timeout = deadline - clock()
            if timeout < 0 then
                return nil, lerror.timeout()
            end
            local id, err = owner_of(router, bucket_id, timeout)
            if id == nil then
                return nil, err
            end
            groups[id] = groups[id] or {}
            table.insert(groups[id], bucket_id)
        end
    end
    return groups
end

-- A storage said that buckets are not there: forgets them, or remembers where they went.
local function reroute(router, moved)
    for _, bucket in pairs(moved) do
        local place = bucket.dst ~= nil and router.places[bucket.dst] or nil
        native.bucket_set(router.native_id, bucket.id, place ~= nil and place.index or nil)
    end
end

-- What a storage answers that was asked to hold `buckets`: adds those that it has to `held`, and gives those that have moved,
-- which are to be looked for again, to `bucket_ids`.
local function take_held(call, held, id, buckets, answer, bucket_ids)
    local moved = {}
    for _, bucket in pairs(answer.moved or {}) do
        moved[bucket.id] = true
        table.insert(bucket_ids, bucket.id)
    end
    reroute(call.router, answer.moved or {})
    if answer.is_done then
        held[id] = {}
    elseif held[id] == nil then
        -- All of its buckets have moved: it made no reference.
        call.asked[id] = nil
        return
    end
    for _, bucket_id in ipairs(buckets) do
        if not moved[bucket_id] then
            table.insert(held[id], bucket_id)
        end
    end
end

-- Replicasets that hold a reference -> the buckets that they hold it for. A bucket that has moved is looked for at the place
-- where it is now, until all are held.
local function ref_buckets(call, bucket_ids)
    local held = {}
    while next(bucket_ids) ~= nil do
        local groups, err = group(call.router, bucket_ids, left_or_fail(call))
        if groups == nil then
            fail(err)
        end
        local sent = {}
        for id, buckets in pairs(groups) do
            call.asked[id] = true
            if held[id] ~= nil then
                sent[id] = send(call, id, {'storage_ref_check_with_buckets', call.rid, buckets})
            else
                sent[id] = send(call, id, {
                    'storage_ref_make_with_buckets', call.rid, left_or_fail(call, id), buckets,
                })
            end
        end
        bucket_ids = {}
        for id, ref in pairs(sent) do
            local values = collect(call, id, ref)
            if values[1] == nil then
                fail(values[2], id)
            end
            take_held(call, held, id, groups[id], values[1], bucket_ids)
        end
    end
    return held
end

-- Best effort: the storage drops the reference by itself at its deadline.
local function unref_one(call, id)
    local res = ask(call, id, {'storage_unref', call.rid}, {timeout = UNREF_TIMEOUT})
    if res ~= nil then
        detach(res)
    end
end

local function unref(call)
    for id in pairs(call.asked) do
        unref_one(call, id)
    end
end

-- The map.

-- The caller's arguments, and the values given for the storage's own buckets behind them.
local function args_for(args, buckets, values)
    if values == nil then
        return args
    end
    local own = setmetatable({}, map_mt)
    for _, bucket_id in ipairs(buckets) do
        own[bucket_id] = values[bucket_id]
    end
    local res = table.copy(args)
    table.insert(res, own)
    return res
end

local function result_decoded(values, id)
    if values[1] == nil then
        fail(values[2], id)
    end
    if values[2] ~= nil then
        return {values[2]}
    end
    return nil
end

-- The status flag of a storage that has done what it was asked.
local DONE = '\xc3'
-- Bytes. What is larger could be nested deeper than the host's decoder bears, unless it is a string.
local LARGEST_PART = 4096

local function is_decodable(bytes)
    local first = bytes:byte()
    return #bytes <= LARGEST_PART or first >= 0xa0 and first <= 0xbf or first >= 0xd9 and first <= 0xdb
end

-- The map of an error, without what is too large in it.
local function decode_error(object)
    if is_decodable(msgpack.encode(object)) then
        return object:decode()
    end
    local err, it = {}, object:iterator()
    local ok, count = pcall(it.decode_map_header, it)
    if not ok then
        return 'The error of the storage is too large to be shown'
    end
    for _ = 1, count do
        local key, value = it:take(), it:take()
        if is_decodable(msgpack.encode(key)) and is_decodable(msgpack.encode(value)) then
            err[key:decode()] = value:decode()
        end
    end
    return err
end

-- Nothing that a storage sends is decoded before it was looked at: see codec.lua.
local function result_raw(object, id)
    local it = object:iterator()
    local count = it:decode_array_header()
    if msgpack.encode(it:take()) ~= DONE then
        fail(count > 1 and decode_error(it:take()) or nil, id)
    end
    -- What the function returned, as an array; a storage sends nothing where it returned nothing.
    return count > 1 and it:take_array(count - 1) or nil
end

-- `input`: see read_input().
local function map(call, held, input)
    local sent, res = {}, {}
    for id, buckets in pairs(held) do
        local map_args = {'storage_map', call.rid, input.func, args_for(input.args, buckets, input.values)}
        sent[id] = send(call, id, map_args, input.return_raw)
    end
    local result = input.return_raw and result_raw or result_decoded
    for id, answer in pairs(sent) do
        res[id] = result(collect(call, id, answer), id)
    end
    return res
end

-- 10ULL, '10': by themselves fine as arguments; but a list of nothing else is one of ids, written wrongly.
local function is_disguised_number(value)
    local kind = type(value)
    return (kind == 'string' or kind == 'cdata') and tonumber(value) ~= nil
end

-- The ids, and the values by id if there are any. What is no such table is not guessed at: the function must not run where
-- nobody wanted it.
local function read_bucket_ids(option)
    if type(option) ~= 'table' then
        return nil, nil, lerror.make('bucket_ids must be a table')
    end
    local _, first = next(option)
    if type(first) == 'number' then
        return option
    end
    local ids, is_list = {}, #option > 0
    for key, value in pairs(option) do
        table.insert(ids, key)
        is_list = is_list and type(key) == 'number' and is_disguised_number(value)
    end
    if is_list and #option == #ids then
        return nil, nil, lerror.make(("Bucket '%s' is not a number"):format(tostring(first)))
    end
    return ids, option
end

-- What is to be called: func, args, return_raw; bucket_ids, and the values by id, if there are any. nil and an error. The
-- options are not changed, their types were checked.
local function read_input(func, args, opts)
    if opts.return_raw then
        codec.check_raw_supported()
    end
    local bucket_ids, values
    if opts.bucket_ids ~= nil then
        local err
        bucket_ids, values, err = read_bucket_ids(opts.bucket_ids)
        if err ~= nil then
            return nil, err
        end
    end
    if args == nil then
        args = {}
    elseif values ~= nil and is_object(args) then
        args = args:decode()
    end
    return {
        func = func, args = args, return_raw = opts.return_raw and true or nil, bucket_ids = bucket_ids, values = values,
    }
end

local function run(call, input)
    local held
    if input.bucket_ids ~= nil then
        held = ref_buckets(call, input.bucket_ids)
    else
        held = ref_all(call)
    end
    return map(call, held, input)
end

local function finish(call, ok, res)
    if ok then
        return res
    end
    unref(call)
    if getmetatable(res) ~= failure_mt then
        error(res, 0)
    end
    return nil, lerror.make(res.err), res.id
end

-- rid: a number that this process has given to no other call. Gives replicaset id -> {what the function returned}; or nil, an
-- error and the id of the replicaset that failed, if it was one.
local function map_callrw(router, rid, func, args, opts)
    opts = opts or {}
    if type(func) ~= 'string' or type(opts) ~= 'table' or opts.timeout and type(opts.timeout) ~= 'number' then
        error(USAGE, 0)
    end
    local input, err = read_input(func, args, opts)
    if input == nil then
        return nil, err
    end
    local call = {router = router, rid = rid, deadline = clock() + (opts.timeout or CALL_TIMEOUT), asked = {}}
    return finish(call, pcall(run, call, input))
end

return {
    map_callrw = map_callrw,
    group = group,
    -- What map_read.lua shares.
    parts = {
        CALL_TIMEOUT = CALL_TIMEOUT, ask = ask, check_coverage = check_coverage, fail = fail, finish = finish, left = left,
        left_or_fail = left_or_fail, map = map, read_input = read_input, ref_all = ref_all, ref_buckets = ref_buckets,
        take_held = take_held, unref = unref, unref_one = unref_one,
    },
}
