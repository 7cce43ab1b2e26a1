-- The ways into the router. Each takes the same request and gives the same description of what came back, so that one scenario
-- runs through all of them:
--
--     lua      router.call() in Lua, results decoded
--     lua_raw  router.call() with return_raw, arguments a msgpack.object       (Tarantool ≥ 2.10)
--     cfunc    the C stored function rawshard.callraw, by a net.box client
--     direct   the same with iproto_override: no fiber waits for the answer    (Tarantool ≥ 2.11)
--     raw      the Lua function registered with takes_raw_args, same client    (Tarantool ≥ 2.10)
--     direct_raw  the same with iproto_override; only where a scenario names it  (Tarantool ≥ 2.11)
--
-- A request is {bucket, opts, func, args, call_opts}; n (3 … 5) says how many elements are sent. A description is
-- {n =, [1] …, raised = message or nil}: in the terms of the raw contract, all values that the user's function returned, or
-- nil and an error. The decoded way knows only the first value; `only_first` marks it.

local env = require('test.helper.env')
local net_box = require('net.box')

local frontends = {}

local function unpack_request(request)
    local n = request.n or 5
    while n > 3 and request.n == nil and request[n] == nil do
        n = n - 1
    end
    local args = {}
    for i = 1, n do
        args[i] = request[i] == nil and box.NULL or request[i]
    end
    return args
end

-- Whether the answer is a map of an error in the second place after a nil.
local function describe_values(values, n)
    local res = {n = n}
    for i = 1, n do
        res[i] = values[i]
    end
    return res
end

-- What a connection of the driver raises: a box.error with its code. Timeouts of the driver itself must not pass for
-- answers of the router.
local function describe_raised(err)
    if type(err) == 'cdata' and err.code ~= nil then
        return {n = 0, raised = err.message, code = err.code}
    end
    return {n = 0, raised = tostring(err)}
end

local function client(c)
    local conn = c.client_connection
    if conn == nil or not conn:is_connected() then
        conn = net_box.connect('client:secret@' .. c.router:uri(), {wait_connected = 10})
        c.client_connection = conn
    end
    return conn
end

local function finish_future(future, timeout)
    local values, err = future:wait_result(timeout)
    if values == nil then
        return nil, err
    end
    return values
end

-- Lua front ends

local function start_lua(c, request, is_raw)
    local opts = table.copy(request[5] or {})
    if is_raw then
        opts.return_raw = true
    end
    return c.router:conn():call('test_call', {
        request[1], request[2] == nil and box.NULL or request[2], request[3],
        request[4] == nil and box.NULL or request[4], opts, is_raw and type(request[4]) == 'table',
    }, {is_async = true})
end

local function finish_lua(self, future, timeout)
    local values, err = finish_future(future, timeout)
    if values == nil then
        return describe_raised(err)
    end
    local out = values[1]
    if not out.ok then
        return {n = 0, raised = type(out.raised) == 'string' and out.raised or out.raised.message, error = out.raised}
    end
    if self.is_raw and out.kinds[1] == 'object' then
        return describe_values(out.v[1], table.maxn(out.v[1]))
    end
    local res = describe_values(out.v, out.n)
    res.kinds = out.kinds
    -- No value at all: plain nil, in both modes.
    if out.n == 1 and out.kinds[1] == 'nil' then
        res.n = 0
    end
    return res
end

local function new_lua(name, is_raw)
    return {
        name = name, is_raw = is_raw, is_lua = true, only_first = not is_raw,
        is_supported = function()
            return not is_raw or env.at_least('2.10'), 'no msgpack.object before Tarantool 2.10'
        end,
        start = function(_, c, request)
            return start_lua(c, request, is_raw)
        end,
        finish = finish_lua,
    }
end

-- Raw entries

-- Switches the router's iproto_override on or off. A restarted router begins without.
local function set_override(c, is_on)
    if env.router_kind ~= 'rawshard' or not env.at_least('2.11') then
        return
    end
    local process = c.router.process
    if (c.overriding == process) ~= is_on then
        c.router:eval('rawshard_override(...)', {is_on})
        c.overriding = is_on and process or nil
    end
end

local function new_entry(name, func, is_wrapped, is_supported)
    return {
        name = name, func = func, is_entry = true,
        is_supported = is_supported,
        start = function(_, c, request)
            local is_direct = name:startswith('direct')
            set_override(c, is_direct)
            if is_direct and c.admitted ~= client(c) then
                -- The host wants to see the first call of each session.
                c.admitted = client(c)
                pcall(c.admitted.call, c.admitted, func)
            end
            return client(c):call(func, unpack_request(request), {is_async = true})
        end,
        finish = function(_, future, timeout)
            local values, err = finish_future(future, timeout)
            if values == nil then
                return describe_raised(err)
            end
            if is_wrapped then
                values = values[1]
            end
            return describe_values(values, table.maxn(values))
        end,
    }
end

frontends.lua = new_lua('lua', false)
frontends.lua_raw = new_lua('lua_raw', true)
frontends.cfunc = new_entry('cfunc', 'rawshard.callraw', env.wraps_c_results, function()
    return env.router_kind == 'rawshard', 'vshard has no raw entry'
end)
frontends.direct = new_entry('direct', 'rawshard.callraw', env.wraps_c_results, function()
    if env.router_kind ~= 'rawshard' then
        return false, 'vshard has no raw entry'
    end
    return env.at_least('2.11'), 'no box_iproto_override before Tarantool 2.11'
end)
frontends.raw = new_entry('raw', 'vshard.router.callraw', false, function()
    if env.router_kind ~= 'rawshard' then
        return false, 'vshard has no raw entry'
    end
    return env.has_raw_args, 'no takes_raw_args before Tarantool 2.10'
end)

frontends.direct_raw = new_entry('direct_raw', 'vshard.router.callraw', false, frontends.direct.is_supported)

for _, fe in pairs(frontends) do
    -- Blocking: one request, one description.
    function fe.call(self, c, request, timeout)
        local ok, res = pcall(function()
            return self:finish(self:start(c, request), timeout or 60)
        end)
        return ok and res or describe_raised(res)
    end
end

frontends.order = {'lua', 'lua_raw', 'cfunc', 'direct', 'raw'}
frontends.client = client
frontends.set_override = set_override

return frontends
