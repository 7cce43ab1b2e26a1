-- Where replicasets and their replicas stand in the newest configuration, for objects of every configuration: a map of
-- replicaset id -> its native index, ids of its replicas by native position, and the reverse. The map is one for the life of
-- a router: all of its objects look into it.

local table_clear = require('table.clear')

local function fill(places, neutral)
    table_clear(places)
    for index, entry in ipairs(neutral.replicasets) do
        local place = {index = index, replica_ids = {}, positions = {}}
        for i, instance in ipairs(entry.replicas) do
            place.replica_ids[i], place.positions[instance.id] = instance.id, i
        end
        places[entry.id] = place
    end
end

-- Of a replicaset; nil when it is out of use.
local function of(replicaset)
    return not replicaset.is_outdated and replicaset._places[replicaset.id] or nil
end

-- Of a replica: the place of its replicaset and its position in it; nil when it is out of use.
local function of_replica(replica)
    local place = of(replica._replicaset)
    local position = place ~= nil and place.positions[replica.id] or nil
    if position == nil then
        return nil
    end
    return place, position
end

return {
    fill = fill,
    of = of,
    of_replica = of_replica,
}
