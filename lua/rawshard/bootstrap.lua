-- The first distribution of buckets over an empty cluster.

local log = require('log')
local lerror = require('rawshard.error')

-- Buckets of each replicaset of the list, proportional to weights. What does not divide goes, one each, to the last of
-- those who would get a fraction: vshard rounds everyone up and takes the excess back from the first.
local function shares(replicasets, bucket_count)
    local weight_sum = 0
    for _, replicaset in ipairs(replicasets) do
        weight_sum = weight_sum + replicaset.weight
    end
    local res, rest = {}, bucket_count
    for i, replicaset in ipairs(replicasets) do
        -- Multiplied first: a sum of weights that divides the product gives an exact share.
        res[i] = math.floor(bucket_count * replicaset.weight / weight_sum)
        rest = rest - res[i]
    end
    for i = #replicasets, 1, -1 do
        local exact = bucket_count * replicasets[i].weight / weight_sum
        if rest > 0 and exact > res[i] then
            res[i] = res[i] + 1
            rest = rest - 1
        end
    end
    return res
end

-- True when no replicaset has buckets; true and true when one has and that is fine.
local function check_empty(replicasets, if_not_bootstrapped, opts)
    local last_err
    for _, replicaset in ipairs(replicasets) do
        local count, err = replicaset:callrw('vshard.storage.buckets_count', {}, opts)
        if count == nil then
            if not if_not_bootstrapped then
                return nil, err
            end
            -- Another replicaset may yet tell that there are buckets.
            last_err = err
        elseif count > 0 then
            if if_not_bootstrapped then
                return true, true
            end
            return nil, lerror.vshard(lerror.code.NON_EMPTY)
        end
    end
    if last_err ~= nil then
        return nil, last_err
    end
    return true, false
end

-- `replicasets` is the router's list. True, or nil and an error; ranges made before a failure stay.
local function bootstrap(replicasets, bucket_count, opts)
    local call_opts = {timeout = opts.timeout}
    if #replicasets == 0 then
        return nil, lerror.make('Bootstrap needs at least one replicaset')
    end
    -- box.NULL is true where nil is false.
    local if_not_bootstrapped = opts.if_not_bootstrapped ~= nil and opts.if_not_bootstrapped
    local ok, is_done = check_empty(replicasets, if_not_bootstrapped, call_opts)
    if not ok then
        return nil, is_done
    end
    if is_done then
        return true
    end
    local first = 1
    for i, count in ipairs(shares(replicasets, bucket_count)) do
        if count > 0 then
            local created, err = replicasets[i]:callrw('vshard.storage.bucket_force_create', {first, count}, call_opts)
            if not created then
                return nil, lerror.make(err)
            end
            log.info('Buckets from %d to %d are bootstrapped on "%s"', first, first + count - 1, replicasets[i].id)
            first = first + count
        end
    end
    return true
end

return {
    bootstrap = bootstrap,
    shares = shares,
}
