-- map_callro: a function called on one instance of each replicaset, chosen as reads choose: for what only reads, and need not
-- trouble the masters. The stages are those of map_callrw (map_call.lua), taken to the chosen instances.
--
-- A reference on a replica is taken only when the replica sees none of its buckets on the way, and tells how many it sees;
-- but it does not keep the master from sending buckets away while the function runs. With `hold_buckets` the masters get
-- references too, for as long as the call lasts: no bucket moves, and a replica that does not see as many as its master is
-- not asked.

local fiber = require('fiber')
local lerror = require('rawshard.error')
local map_call = require('rawshard.map_call')
local native = require('rawshard.native')

local clock = fiber.clock
local parts = map_call.parts
local ask, fail, left, left_or_fail = parts.ask, parts.fail, parts.left, parts.left_or_fail

-- Seconds between looks for buckets that have moved, once they were looked for twice.
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
    local counts, pending, sum = {}, {}, 0
    for id in pairs(call.router.replicasets) do
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
    parts.check_coverage(call, sum)
    return counts
end

-- Some buckets: replicaset id -> those of them that its instance holds a reference for.
local function ref_buckets(call, bucket_ids)
    local held, rounds = {}, 0
    while next(bucket_ids) ~= nil do
        rounds = rounds + 1
        if rounds > 2 then
            -- Replicas may not know yet what has moved.
            fiber.sleep(math.min(FIRST_PAUSE * 2 ^ (rounds - 3), LONGEST_PAUSE))
        end
        local groups, err = map_call.group(call.router, bucket_ids, left_or_fail(call))
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
                parts.take_held(call, held, id, buckets, res, bucket_ids)
            end
        end
    end
    return held
end

local function run(call, hold, input)
    local held
    if input.bucket_ids ~= nil then
        if hold ~= nil then
            parts.ref_buckets(hold, input.bucket_ids)
        end
        held = ref_buckets(call, input.bucket_ids)
    else
        held = ref_all(call, hold ~= nil and parts.ref_all(hold) or nil)
    end
    return parts.map(call, held, input)
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
    if opts.request_timeout ~= nil and opts.request_timeout > (opts.timeout or parts.CALL_TIMEOUT) then
        error('request_timeout must be <= timeout', 0)
    end
end

-- Two numbers that this process has given to no other call, and the turn of this one among those that are balanced. Gives
-- what map_callrw gives.
local function map_callro(router, rid, hold_rid, turn, func, args, opts)
    opts = opts or {}
    check_options(func, opts)
    local input, err = parts.read_input(func, args, opts)
    if input == nil then
        return nil, err
    end
    local deadline = clock() + (opts.timeout or parts.CALL_TIMEOUT)
    local call = {
        router = router, rid = rid, deadline = deadline, asked = {}, chosen = {}, tried = {}, errors = {},
        prefer_replica = opts.prefer_replica or false, turn = opts.balance and turn or nil,
        request_timeout = opts.request_timeout,
    }
    local hold = opts.hold_buckets and {router = router, rid = hold_rid, deadline = deadline, asked = {}} or nil
    local ok, res = pcall(run, call, hold, input)
    if hold ~= nil then
        parts.unref(hold)
    end
    return parts.finish(call, ok, res)
end

return {map_callro = map_callro}
