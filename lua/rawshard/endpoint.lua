-- Endpoints: functions of the storages under names of their own. Whoever calls one gives the function's arguments alone; the
-- bucket is that of the sharding key in these.
--
-- The native half finds and hashes the key in the bytes that came. Only a hash that is a Lua function gets it decoded, and on
-- hosts without msgpack.object all arguments are.

local msgpack = require('msgpack')
local utf8 = require('utf8')
local codec = require('rawshard.codec')
local hash = require('rawshard.hash')
local native = require('rawshard.native')
local override = require('rawshard.override')

local has_objects = msgpack.object ~= nil
local endpoint_call, endpoint_key = native.endpoint_call, native.endpoint_key

local CALL_TIMEOUT = 0.5
-- How often one call looks for its bucket anew.
local MAX_REBINDS = 10
-- Bits of the native flags.
local READ, PREFER_REPLICA, BALANCE = 1, 2, 4

-- How ddl spells vshard's own functions, which need no Lua here.
local VSHARD_FUNCTIONS = {
    ['vshard.router.bucket_id'] = 'strcrc32',
    ['vshard.router.bucket_id_strcrc32'] = 'strcrc32',
    ['vshard.router.bucket_id_mpcrc32'] = 'mpcrc32',
}

local function fail(fmt, ...)
    error('bind: ' .. fmt:format(...), 0)
end

--
-- Options.
--

local function is_callable(value)
    local kind = type(value)
    if kind == 'function' then
        return true
    end
    local mt = (kind == 'table' or kind == 'userdata') and getmetatable(value)
    return type(mt) == 'table' and type(mt.__call) == 'function'
end

local TYPES = {
    name = 'string', func = 'string', mode = 'string', prefer_replica = 'boolean', balance = 'boolean',
    timeout = 'number', request_timeout = 'number', register = 'boolean',
}
-- Checked one by one.
local OTHERS = {key = true, hash = true, sharding_func = true}

local function check_types(opts)
    if type(opts) ~= 'table' then
        fail("expected {name = 'customer.get', func = 'customer_get', key = {'[1]'}, ...}")
    end
    for option, value in pairs(opts) do
        local expected = TYPES[option]
        if expected == nil and not OTHERS[option] then
            fail('unknown option %q', tostring(option))
        end
        if expected ~= nil and type(value) ~= expected then
            fail('%s must be a %s, got %s', option, expected, type(value))
        end
    end
    for _, option in ipairs({'name', 'func'}) do
        if opts[option] == nil or opts[option] == '' then
            fail('%s must be a string that is not empty', option)
        end
    end
    if utf8.len(opts.name) == nil then
        fail('name must be valid UTF-8')
    end
end

-- Always a list.
local function check_key(key)
    if type(key) == 'string' then
        key = {key}
    end
    if type(key) ~= 'table' or #key == 0 then
        fail("key must be a path like '[1].id', or a list of paths")
    end
    local paths = {}
    for i, path in ipairs(key) do
        if type(path) ~= 'string' then
            fail('key %d must be a path, got %s', i, type(path))
        end
        paths[i] = path
    end
    for i in pairs(key) do
        if paths[i] == nil then
            fail('key must be a list of paths')
        end
    end
    return paths
end

local function names_of(name)
    local names = name:split('.')
    for _, part in ipairs(names) do
        if not part:match('^[%a_][%w_]*$') then
            return nil
        end
    end
    return names
end

-- The function of a dotted global name, as ddl and crud look it up: for each call, since it may be replaced.
local function global_function(names)
    local value = rawget(_G, names[1])
    for i = 2, #names do
        if type(value) ~= 'table' then
            return nil
        end
        value = value[names[i]]
    end
    return is_callable(value) and value or nil
end

-- A sharding function of ddl: a name, or {body = text}. Gives a function that looks for it, or the name of a native hash.
local function check_sharding_func(def)
    if type(def) == 'string' then
        if VSHARD_FUNCTIONS[def] ~= nil then
            return nil, VSHARD_FUNCTIONS[def]
        end
        local names = names_of(def)
        if names == nil then
            fail('sharding_func %q is not a name of a function', def)
        end
        if global_function(names) == nil then
            fail('sharding_func %q is not a global function', def)
        end
        return function()
            local func = global_function(names)
            if func == nil then
                error(('sharding_func %q is not a global function any more'):format(def), 0)
            end
            return func
        end
    end
    if type(def) ~= 'table' or type(def.body) ~= 'string' then
        fail('sharding_func must be a name of a function, or {body = text}')
    end
    local make, complaint = loadstring('return ' .. def.body, '=sharding_func')
    if make == nil then
        fail('sharding_func: %s', complaint)
    end
    local ok, func = pcall(make)
    if not ok then
        fail('sharding_func: %s', tostring(func))
    end
    if not is_callable(func) then
        fail('the body of sharding_func is not a function')
    end
    return function()
        return func
    end
end

-- What is kept of an endpoint, from the options.
local function check(opts)
    check_types(opts)
    local ep = {
        name = opts.name, func = opts.func, key = check_key(opts.key), mode = opts.mode or 'write',
        prefer_replica = opts.prefer_replica or false, balance = opts.balance or false,
        timeout = opts.timeout or CALL_TIMEOUT, request_timeout = opts.request_timeout,
    }
    if ep.mode ~= 'read' and ep.mode ~= 'write' then
        fail("mode must be 'read' or 'write', got %q", ep.mode)
    end
    if ep.timeout ~= ep.timeout or ep.request_timeout ~= ep.request_timeout then
        fail('timeouts must be numbers of seconds')
    end
    if ep.request_timeout ~= nil and ep.request_timeout > ep.timeout then
        fail('request_timeout must not be greater than timeout')
    end
    if opts.hash ~= nil and opts.sharding_func ~= nil then
        fail('give one of hash and sharding_func')
    end
    if opts.sharding_func ~= nil then
        ep.find_func, ep.hash = check_sharding_func(opts.sharding_func)
        -- ddl and crud give their functions a list, always.
        ep.key_is_list = ep.find_func ~= nil
    elseif type(opts.hash) == 'string' or opts.hash == nil then
        -- box.NULL is true.
        ep.hash = type(opts.hash) == 'string' and opts.hash or 'mpcrc32'
        if ep.hash ~= 'mpcrc32' and ep.hash ~= 'strcrc32' then
            fail("hash must be 'mpcrc32', 'strcrc32' or a function, got %q", ep.hash)
        end
    elseif is_callable(opts.hash) then
        local func = opts.hash
        ep.find_func = function()
            return func
        end
    else
        fail("hash must be 'mpcrc32', 'strcrc32' or a function, got %s", type(opts.hash))
    end
    ep.flags = 0
    if ep.mode == 'read' then
        ep.flags = READ + (ep.prefer_replica and PREFER_REPLICA or 0) + (ep.balance and BALANCE or 0)
    end
    return ep
end

--
-- The bucket.
--

-- Calls a function of the user with the decoded key.
local function bucket_by_function(ep, key)
    if ep.key_is_list and #ep.key == 1 then
        key = {key}
    end
    local bucket_id = ep.find_func()(key)
    local number = bucket_id
    if type(number) == 'cdata' then
        number = tonumber(number)
    end
    local count = ep.router.total_bucket_count
    if type(number) ~= 'number' or not (number >= 1 and number <= count) or number % 1 ~= 0 then
        error(('%s: the sharding function must return a bucket id from 1 to %d, got %s'):format(
            ep.name, count, tostring(bucket_id)), 0)
    end
    return number
end

local function is_map(value)
    local mt = getmetatable(value)
    if mt ~= nil and mt.__serialize ~= nil then
        return mt.__serialize == 'map' or mt.__serialize == 'mapping'
    end
    return #value == 0 and next(value) ~= nil
end

local function describe(value)
    local kind = type(value)
    if value == nil then
        return 'is nil'
    elseif kind == 'table' then
        return is_map(value) and 'is a map' or 'is an array'
    elseif kind == 'number' then
        return value % 1 == 0 and 'is an integer' or 'is a double'
    elseif kind == 'cdata' then
        return tonumber(value) ~= nil and 'is an integer' or 'is an extension'
    end
    return 'is a ' .. kind
end

-- The value at a path in decoded arguments; the same errors as of the native half.
local function at_path(ep, path, args)
    local value = args
    for i, step in ipairs(path.steps) do
        local is_array = type(value) == 'table' and (i == 1 or not is_map(value))
        local why
        if type(value) ~= 'table' or is_array and type(step) == 'string' then
            why = describe(value)
        else
            local inner = value[step]
            if type(inner) == 'nil' then
                if is_array then
                    local n = #value
                    why = n == 0 and 'is empty' or n == 1 and 'has one item' or ('has %d items'):format(n)
                else
                    why = 'has no such key'
                end
            end
            value = inner
        end
        if why ~= nil then
            local place = i == 1 and 'args' or path.text:sub(1, path.starts[i])
            error(("%s: path '%s' leads nowhere: %s %s"):format(ep.name, path.text, place, why), 0)
        end
    end
    if value == nil then
        error(("%s: path '%s' leads to nil"):format(ep.name, path.text), 0)
    end
    if type(value) == 'table' and is_map(value) then
        error(("%s: path '%s' leads to a map"):format(ep.name, path.text), 0)
    end
    return value
end

-- What the native half refuses to hash has no hash here either: one key, one bucket, on whatever host. `inner`: it is an item of
-- a key.
local function check_hashable(ep, path, value, inner)
    local why
    if type(value) == 'number' and value >= 2^64 and value < 1e64 and ep.hash == 'mpcrc32' and value % 1 == 0 then
        why = 'a double of 2^64 or more has no stable hash on this Tarantool'
    elseif type(value) == 'table' then
        if is_map(value) then
            why = 'a map can not be a sharding key'
        elseif inner and ep.hash == 'strcrc32' then
            why = 'an array in a sharding key has no strcrc32'
        end
    end
    if why ~= nil then
        error(("%s: path '%s': %s"):format(ep.name, path.text, why), 0)
    end
    if type(value) == 'table' then
        for _, item in ipairs(value) do
            check_hashable(ep, path, item, true)
        end
    end
end

local function decoded_bucket(ep, args)
    local is_composite = #ep.paths > 1
    local key = is_composite and {} or nil
    for i, path in ipairs(ep.paths) do
        local value = at_path(ep, path, args)
        if ep.hash ~= nil then
            check_hashable(ep, path, value, is_composite)
        end
        if is_composite then
            key[i] = value
        else
            key = value
        end
    end
    if ep.hash == nil then
        -- A copy: what the function does to it is not sent.
        return bucket_by_function(ep, type(key) == 'table' and table.deepcopy(key) or key)
    end
    return hash[ep.hash](key) % ep.router.total_bucket_count + 1
end

--
-- Calls.
--

local function check_open(ep)
    local router = ep.router
    if router.open_id == nil then
        ep.refuse_closed(router)
    end
    return router.open_id
end

-- What `find(ep, args)` gives, as pcall does. It may call a function of the user, which may yield, and the name may be bound
-- anew meanwhile: that was the bucket of another key then, so it is asked for again.
local function find_bucket(ep, find, args)
    for _ = 1, MAX_REBINDS do
        -- Each binding has counts of its own.
        local counts = ep.counts
        local ok, bucket_id = pcall(find, ep, args)
        if ep.counts == counts then
            return ok, bucket_id
        end
    end
    return false, ep.name .. ': the endpoint is bound anew over and over'
end

-- None where the native half finds it.
local function raw_bucket(ep, args)
    if ep.find_func ~= nil then
        return bucket_by_function(ep, endpoint_key(ep.id, args):decode())
    end
end

-- Arguments as one msgpack.object, results as objects.
local function serve_raw(ep, args)
    check_open(ep)
    if ep.find_func == nil then
        if override.is_on and override.enters_endpoint(ep) then
            return
        end
        return endpoint_call(ep.id, args)
    end
    local ok, bucket_id = find_bucket(ep, raw_bucket, args)
    if not ok then
        native.endpoint_refuse(ep.id)
        error(bucket_id, 0)
    end
    -- A function of the user may have yielded.
    check_open(ep)
    return endpoint_call(ep.id, args, bucket_id)
end

local function counted(counts, n, values, err)
    if n < 0 or values == nil then
        counts.failed = counts.failed + 1
        return nil, err
    end
    return unpack(values, 1, n)
end

-- Arguments and results as Lua values.
local function serve_decoded(ep, ...)
    check_open(ep)
    local args = {...}
    for i = 1, select('#', ...) do
        if args[i] == nil then
            args[i] = box.NULL
        end
    end
    local ok, bucket_id = find_bucket(ep, decoded_bucket, args)
    local counts = ep.counts
    counts.calls = counts.calls + 1
    if not ok then
        counts.refused = counts.refused + 1
        error(bucket_id, 0)
    end
    -- A function of the user may have yielded.
    local id = check_open(ep)
    local data, len, extra = codec.encode_args(args, ep.name)
    if len == nil then
        return counted(counts, -1, nil, extra)
    end
    local request_timeout = ep.flags ~= 0 and ep.request_timeout or nil
    local n = native.call_bucket(id, bucket_id, ep.flags, ep.func, data, len, ep.timeout, request_timeout)
    if extra ~= nil then
        extra:recycle()
    end
    if n < 0 then
        return counted(counts, n, nil, codec.failure())
    end
    return counted(counts, n, codec.all_values(n))
end

-- One function per endpoint and for all times: it serves what is bound under the name now, by the code that is loaded now.
local function new_callable(ep)
    if has_objects then
        return function(args)
            return ep.serve(ep, args)
        end
    end
    return function(...)
        return ep.serve(ep, ...)
    end
end

--
-- Registration.
--

-- Where a dotted name leads among the globals: the table and the last name. Tables on the way are made if `is_final`; otherwise
-- it gives nil where one is missing.
local function global_place(name, is_final)
    local names = names_of(name)
    if names == nil then
        fail('name %q can not be registered: it must be names with dots in between', name)
    end
    local place, last = _G, table.remove(names)
    for _, part in ipairs(names) do
        local inner = rawget(place, part)
        if inner == nil then
            if not is_final then
                return nil
            end
            inner = {}
            rawset(place, part, inner)
        elseif type(inner) ~= 'table' then
            fail('name %q can not be registered: the global %q is not a table', name, part)
        end
        place = inner
    end
    return place, last
end

-- `ep` may be nil: there is none of this name yet.
local function check_place(name, ep)
    local place, last = global_place(name, false)
    local existing = place ~= nil and rawget(place, last) or nil
    if existing ~= nil and (ep == nil or existing ~= ep.callable) then
        fail('a global %q exists already and is no endpoint', name)
    end
end

-- In the space of functions, where access is granted.
local function create_function(name)
    local existing = box.func[name]
    if existing == nil then
        if box.info.ro then
            fail('%q can not be registered: this instance is read-only, and the function does not exist yet; register it ' ..
                 'on the leader', name)
        end
        box.schema.func.create(name, {takes_raw_args = has_objects or nil, if_not_exists = true})
        return
    end
    if existing.language ~= 'LUA' or (existing.body or '') ~= '' then
        fail('a function %q exists already and is no endpoint', name)
    end
    if has_objects and not existing.takes_raw_args then
        fail('the function %q exists already without takes_raw_args: drop it by box.schema.func.drop', name)
    end
end

--
-- The API.
--

local function spec_of(ep)
    return {
        name = ep.name, func = ep.func, key = ep.key, hash = ep.hash, flags = ep.flags, timeout = ep.timeout,
        request_timeout = ep.request_timeout,
    }
end

-- For hosts where paths are walked in Lua.
local function steps_of(key)
    local paths = {}
    for i, text in ipairs(key) do
        local steps, starts = native.path_steps(text)
        paths[i] = {text = text, steps = steps, starts = starts}
    end
    return paths
end

-- `endpoints` has those of all routers by name. What is bound under a name already is replaced as a whole, or stays on an error.
local function bind(endpoints, router, opts, refuse_closed)
    local new = check(opts)
    -- Checks them, before anything is registered.
    new.paths = steps_of(new.key)
    if opts.register then
        check_place(new.name, endpoints[new.name])
        -- Not only the first time: somebody may have dropped it. Yields.
        create_function(new.name)
        if router.native_id == nil then
            refuse_closed(router)
        end
    end
    -- No yields from here on.
    local ep = endpoints[new.name]
    if ep == nil then
        ep = {}
        ep.callable = new_callable(ep)
    end
    if opts.register then
        check_place(new.name, ep)
    end
    new.callable = ep.callable
    new.is_registered = opts.register or ep.is_registered
    new.router, new.refuse_closed = router, refuse_closed
    new.counts = {calls = 0, failed = 0, refused = 0}
    new.serve = has_objects and serve_raw or serve_decoded
    new.id = native.endpoint_bind(router.native_id, ep.id, spec_of(new))
    if opts.register then
        local place, last = global_place(new.name, true)
        rawset(place, last, new.callable)
    end
    -- What needs no Lua.
    new.is_served = has_objects and new.is_registered and new.find_func == nil or false
    if new.is_served ~= (ep.is_served or false) then
        native.direct_serve_endpoint(new.id, new.name, new.is_served, new.callable, unpack(names_of(new.name)))
    end
    for field in pairs(ep) do
        ep[field] = nil
    end
    for field, value in pairs(new) do
        ep[field] = value
    end
    endpoints[ep.name] = ep
    return ep.callable
end

-- Those of one router, by name.
local function list(endpoints, router)
    local res = {}
    for name, ep in pairs(endpoints) do
        if ep.router == router then
            local counts = has_objects and native.endpoint_info(ep.id) or ep.counts
            res[name] = {
                name = name, func = ep.func, key = table.copy(ep.key), hash = ep.hash or 'function', mode = ep.mode,
                prefer_replica = ep.prefer_replica, balance = ep.balance, timeout = ep.timeout,
                request_timeout = ep.request_timeout, is_registered = ep.is_registered or false,
                calls = counts.calls, failed = counts.failed, refused = counts.refused,
            }
        end
    end
    return res
end

-- After a reload of the modules: calls are served by the new code.
local function adopt(endpoints)
    for _, ep in pairs(endpoints) do
        ep.serve = has_objects and serve_raw or serve_decoded
    end
end

return {
    bind = bind,
    list = list,
    adopt = adopt,
}
