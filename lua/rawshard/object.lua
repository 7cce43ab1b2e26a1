-- What objects of routers, replicasets and replicas have in common: methods that say how they are called, fields that are made
-- when they are read, and an end, after which they answer OBJECT_IS_OUTDATED.

local lerror = require('rawshard.error')

-- The check in front of every method: check_self(self, name of the method).
local function checker(kind, mt)
    return function(self, name)
        if getmetatable(self) ~= mt then
            error(('Use %s:%s(...) instead of %s.%s(...)'):format(kind, name, kind, name), 0)
        end
    end
end

-- What reads of such objects find, where there is no plain field: methods by name, then what `live` makes of the object.
local function reader(methods, live)
    return function(self, key)
        local method = methods[key]
        if method ~= nil then
            return method
        end
        local field = live[key]
        return field ~= nil and field(self) or nil
    end
end

local function outdated()
    return lerror.vshard(lerror.code.OBJECT_IS_OUTDATED)
end

-- Methods made of functions that need an object in use, which is one that has a place.
local function add_methods(methods, check_self, place_of, functions)
    for name, func in pairs(functions) do
        methods[name] = function(self, ...)
            check_self(self, name)
            if place_of(self) == nil then
                return nil, outdated()
            end
            return func(self, ...)
        end
    end
end

return {
    add_methods = add_methods,
    checker = checker,
    outdated = outdated,
    reader = reader,
}
