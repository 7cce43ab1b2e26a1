-- Calls of `rawshard.callraw` and of endpoints that come by IPROTO and for which no fiber waits. The native half takes them;
-- here it is switched on, told when somebody's rights may have changed, and who may execute the function of an endpoint.

local fiber = require('fiber')
local native = require('rawshard.native')
local version = require('rawshard.version')

-- What the right to execute a function follows from: users, privileges, functions.
local SPACES = {'_user', '_priv', '_func'}

-- By name of the endpoint and of the user, those who may.
local allowed = {}

local function forget_all()
    allowed = {}
    native.direct_forget()
end

-- The change counts at once; should its transaction be rolled back, what was found out meanwhile does not count any more.
local function on_change()
    forget_all()
    if box.is_in_txn() then
        box.on_rollback(forget_all)
    end
end

-- The session has another user now.
local function on_auth()
    native.direct_forget(box.session.id())
end

-- Whether several values of a C function leave the process as one array. It can be switched, so it is asked for at each cfg().
local function wraps_results()
    if not version.host_is_at_least(2, 11) then
        return true
    end
    local option = require('compat').c_func_iproto_multireturn
    local is_new = option.current
    if is_new == 'default' then
        is_new = option.default
    end
    return is_new == 'old'
end

-- Whether the host lets a user call the endpoint's function. Not if that is none of Lua's globals any more. In a fiber of its
-- own, which has all rights.
local function may_call(ep, user)
    local func = box.func[ep.name]
    if func == nil or func.language ~= 'LUA' or (func.body or '') ~= '' then
        return false
    end
    -- Nothing yields between these lines, so no call of anybody else meets the function.
    local serve, is_entered = ep.serve, false
    ep.serve = function()
        is_entered = true
    end
    pcall(box.session.su, user, func.call, func, {})
    ep.serve = serve
    return is_entered
end

-- The endpoint's function is entered, maybe on behalf of a session whose further calls need not come here.
local function consider(ep)
    local changes = native.direct_wants(ep.id)
    if changes == nil then
        return
    end
    local session, user = box.session.id(), box.session.user()
    local users = allowed[ep.name]
    if users ~= nil and users[user] then
        native.direct_admit(session, ep.id, changes)
        return
    end
    fiber.new(function()
        if ep.is_served and may_call(ep, user) then
            allowed[ep.name] = allowed[ep.name] or {}
            allowed[ep.name][user] = true
            native.direct_admit(session, ep.id, changes)
        end
    end)
end

-- `state` outlives a reload of this module.
local function set(state, is_on)
    if is_on and not state.has_override_triggers then
        state.has_override_triggers = true
        for _, name in ipairs(SPACES) do
            box.space[name]:on_replace(on_change)
        end
        box.session.on_auth(on_auth)
    end
    native.direct_enable(is_on, wraps_results())
end

return {set = set, consider = consider}
