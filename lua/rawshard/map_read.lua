-- map_callro: a function called on one instance of each replicaset, chosen as reads choose: for what only reads, and need not
-- trouble the masters. The stages are those of map_callrw (map_call.lua), taken to the chosen instances.
--
-- A reference on a replica is taken only when the replica sees none of its buckets on the way, and tells how many it sees;
-- but it does not keep the master from sending buckets away while the function runs. With `hold_buckets` the masters get
-- references too, for as long as the call lasts: no bucket moves, and a replica that does not see as many as its master is
-- not asked.

local fiber = require('fiber')
local msgpack = require('msgpack')
local codec = require('rawshard.codec')
local lerror = require('rawshard.error')
local map_call = require('rawshard.map_call')
local native = require('rawshard.native')

local clock = fiber.clock
local is_object = msgpack.is_object or function() return false end
local parts = map_call.parts
local ask, fail, left, left_or_fail = parts.ask, parts.fail, parts.left, parts.left_or_fail

-- Seconds.
local CALL_TIMEOUT = 0.5
-- Between looks for buckets that have moved, once they were looked for twice.
local FIRST_PAUSE, LONGEST_PAUSE = 0.001, 0.05

local USAGE = 'Usage: map_callro(func, args, {timeout = number, request_timeout = number, return_raw = boolean, ' ..
    'bucket_ids = table, prefer_replica = boolean, balance = boolean, hold_buckets = boolean})'
local OPTIONS = {
    timeout = 'number', request_timeout = 'number', return_raw = 'boolean', bucket_ids = 'any', prefer_replica = 'boolean',
    balance = 'boolean', hold_buckets = 'boolean',
}

-- Chooses an instance of a replicaset that has not failed this call yet. False: there is none.
local function choose(call, id)
    local router = call.router
    local place = router.places[id]
    if place == nil then
        fail(lerror.vshard(lerror.code.OBJECT_IS_OUTDATED), id)
    end
    local tried, positions = call.tried[id], {}
    for replica_id in pairs(tried or {}) do
        table.insert(positions, place.positions[replica_id])
    end
    local position = native.pick_instance(router.native_id, place.index, call.prefer_replica, call.turn, positions)
    if position == nil and tried == nil then
        fail(lerror.vshard(lerror.code.MISSING_MASTER, id), id)
    end
    local replica_id = position ~= nil and place.replica_ids[position] or nil
    if replica_id == nil or tried ~= nil and tried[replica_id] then
        return false
    end
    call.chosen[id] = replica_id
    return true
end

-- The chosen instance has failed before the function was run: another one may do.
local function reject(call, id, err)
    parts.unref_one(call, id)
    call.asked[id] = nil
    call.tried[id] = call.tried[id] or {}
    call.tried[id][call.chosen[id]] = true
    call.errors[id] = err
    call.chosen[id] = nil
end

-- A question to the chosen instance, or to one that is chosen now.
local function send(call, id, service, ...)
    if call.chosen[id] == nil and not choose(call, id) then
        fail(call.errors[id], id)
    end
    local timeout = left_or_fail(call, id)
    local args = {service, call.rid}
    if service ~= 'storage_ref_check_with_buckets' then
        table.insert(args, timeout)
    end
    for _, arg in ipairs({...}) do
        table.insert(args, arg)
    end
    call.asked[id] = true
    return ask(call, id, args, {timeout = math.min(timeout, call.request_timeout or timeout)})
end

-- What the storage returned first; nil and an error.
local function take(call, sent, err)
    if sent == nil then
        return nil, err
    end
    local values
    values, err = sent:wait_result(left(call) or -1)
    if values == nil then
        return nil, err
    end
    if values[1] == nil then
        return nil, values[2]
    end
    return values[1]
end

-- The whole cluster: replicaset id -> how many buckets its instance sees. `wanted`: how many the masters have.
local function ref_all(call, wanted)
    local router, counts, pending, sum = call.router, {}, {}, 0
    for id in pairs(router.replicasets) do
        pending[id] = true
    end
    while next(pending) ~= nil do
        local sent, errors = {}, {}
        for id in pairs(pending) do
            sent[id], errors[id] = send(call, id, 'storage_ref')
        end
        for id in pairs(pending) do
            local count, err = take(call, sent[id], errors[id])
            if count ~= nil and wanted ~= nil and count ~= wanted[id] then
                count, err = nil, lerror.vshard(lerror.code.UNKNOWN_BUCKETS, (wanted[id] or 0) - count)
            end
            if count == nil then
                reject(call, id, err)
            else
                counts[id], pending[id], sum = count, nil, sum + count
            end
        end
    end
    if sum ~= router.total_bucket_count then
        fail(lerror.vshard(lerror.code.UNKNOWN_BUCKETS, router.total_bucket_count - sum))
    end
    return counts
end

-- Some buckets: replicaset id -> those of them that its instance holds a reference for.
local function ref_buckets(call, bucket_ids)
    local router, held, rounds = call.router, {}, 0
    while next(bucket_ids) ~= nil do
        rounds = rounds + 1
        if rounds > 2 then
            -- Replicas may not know yet what has moved.
            fiber.sleep(math.min(FIRST_PAUSE * 2 ^ (rounds - 3), LONGEST_PAUSE))
        end
        local groups, err = map_call.group(router, bucket_ids, left_or_fail(call))
        if groups == nil then
            fail(err)
        end
        local sent, errors = {}, {}
        for id, buckets in pairs(groups) do
            local service = held[id] and 'storage_ref_check_with_buckets' or 'storage_ref_make_with_buckets'
            sent[id], errors[id] = send(call, id, service, buckets)
        end
        bucket_ids = {}
        for id, buckets in pairs(groups) do
            local res
            res, err = take(call, sent[id], errors[id])
            if res == nil and held[id] ~= nil then
                fail(err, id)
            elseif res == nil then
                reject(call, id, err)
                for _, bucket_id in ipairs(buckets) do
                    table.insert(bucket_ids, bucket_id)
                end
            else
                local moved = {}
                for _, bucket in pairs(res.moved or {}) do
                    moved[bucket.id] = true
                    table.insert(bucket_ids, bucket.id)
                end
                map_call.reroute(router, res.moved or {})
                if res.is_done then
                    held[id] = {}
                end
                for _, bucket_id in ipairs(held[id] ~= nil and buckets or {}) do
                    if not moved[bucket_id] then
                        table.insert(held[id], bucket_id)
                    end
                end
            end
        end
    end
    return held
end

local function run(call, hold, func, args, opts)
    local wanted
    if hold ~= nil then
        wanted = opts.bucket_ids == nil and parts.ref_all(hold) or nil
        if opts.bucket_ids ~= nil then
            parts.ref_buckets(hold, opts.bucket_ids)
        end
    end
    local held
    if opts.bucket_ids ~= nil then
        held = ref_buckets(call, opts.bucket_ids)
    else
        held = ref_all(call, wanted)
    end
    return parts.map(call, held, func, args, opts)
end

local function check_options(func, opts)
    if type(func) ~= 'string' or type(opts) ~= 'table' then
        error(USAGE, 0)
    end
    for name, value in pairs(opts) do
        local wanted = OPTIONS[name]
        if wanted == nil then
            error(('option "%s" is not supported'):format(tostring(name)), 0)
        end
        if wanted ~= 'any' and value ~= nil and type(value) ~= wanted then
            error(USAGE, 0)
        end
    end
    if opts.request_timeout ~= nil and opts.request_timeout > (opts.timeout or CALL_TIMEOUT) then
        error('request_timeout must be <= timeout', 0)
    end
    if opts.return_raw then
        codec.check_raw_supported()
    end
end

-- Two numbers that this process has given to no other call, and the turn of this one among those that are balanced. Gives
-- what map_callrw gives.
local function map_callro(router, rid, hold_rid, turn, func, args, opts)
    opts = opts or {}
    check_options(func, opts)
    local bucket_ids, values
    if opts.bucket_ids ~= nil then
        local err
        bucket_ids, values, err = parts.read_bucket_ids(opts.bucket_ids)
        if err ~= nil then
            return nil, err
        end
    end
    if args == nil then
        args = {}
    elseif values ~= nil and is_object(args) then
        args = args:decode()
    end
    local deadline = clock() + (opts.timeout or CALL_TIMEOUT)
    local call = {
        router = router, rid = rid, deadline = deadline, asked = {}, chosen = {}, tried = {}, errors = {},
        prefer_replica = opts.prefer_replica or false, turn = opts.balance and turn or nil,
        request_timeout = opts.request_timeout,
    }
    local hold = opts.hold_buckets and {router = router, rid = hold_rid, deadline = deadline, asked = {}} or nil
    local ok, res = pcall(run, call, hold, func, args, {
        bucket_ids = bucket_ids, values = values, return_raw = opts.return_raw and true or nil,
    })
    if hold ~= nil then
        parts.unref(hold)
    end
    return parts.finish(call, ok, res)
end

return {map_callro = map_callro}
