-- Calls of `rawshard.callraw`, of `callraw` and of endpoints that come by IPROTO and for which no fiber waits. The native half
-- takes them; here it is switched on, told when somebody's rights may have changed, and who may execute functions of Lua.

local fiber = require('fiber')
local native = require('rawshard.native')
local version = require('rawshard.version')

-- What the right to execute a function follows from: users, privileges, functions.
local SPACES = {'_user', '_priv', '_func'}

-- The functions look at it.
local M = {is_on = false}

local function forget_all()
    native.direct_forget()
end

-- The change counts at once. What was found out before its transaction has ended does not count any more afterwards: it may be
-- rolled back, and a trigger that comes between this one and the host's may wait.
local function on_change()
    forget_all()
    if box.is_in_txn() then
        box.on_rollback(forget_all)
        box.on_commit(forget_all)
    end
end

-- The session is about to have another user. Triggers that come after this one may wait, and until the last of them has ended
-- the old one's rights count, which must not become the new one's. Of two logins nobody knows which ends first.
local function on_auth(user, is_authenticated)
    native.direct_forget(box.session.id())
    if is_authenticated then
        local storage = box.session.storage
        storage.rawshard_login = storage.rawshard_login == nil and user
    end
end

-- Whether the session's login, if there was one, is over. Asked when the host has let one of its calls pass.
local function is_settled()
    local login = box.session.storage.rawshard_login
    return login == nil or login == box.session.user()
end

-- `su(user)` gives the session another user for good, and tells no trigger.
local function forgetting(su)
    return function(...)
        if select('#', ...) ~= 1 then
            return su(...)
        end
        su(...)
        native.direct_forget(box.session.id())
    end
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

--
-- Who may execute a function of Lua: the host is asked by calling it, in a way that does nothing.
--

-- By number of the function and name of the user: who may, as of so many changes of rights.
local allowed, allowed_as_of = {}, nil

-- What the function has to know in order to do nothing: a table, in which it notes that it was entered.
local probe

-- Numbers of functions from here on are those of `callraw`.
local FIRST_CALLRAW = 2 ^ 31

-- A name that leads to a global, which gets its arguments as one object. Whoever made the function anew may have left that out.
local function raw_function(name)
    local func = box.func[name]
    if func ~= nil and func.language == 'LUA' and (func.body or '') == '' and func.takes_raw_args then
        return func
    end
end

-- In a fiber of its own, which has all rights.
local function may_call(name, user)
    local func = raw_function(name)
    if func == nil then
        return false
    end
    -- Nothing yields before it is over.
    local own = {is_entered = false}
    probe = own
    pcall(box.session.su, user, func.call, func, {})
    probe = nil
    return own.is_entered
end

local function consider(name, id, changes, logins)
    if not is_settled() then
        return
    end
    local session, user = box.session.id(), box.session.user()
    if allowed_as_of ~= changes then
        allowed, allowed_as_of = {}, changes
    end
    local users = allowed[id]
    if users ~= nil and users[user] then
        native.direct_admit(session, id, changes, logins)
        return
    end
    -- At once: a moment later the name might lead to something else.
    fiber.create(function()
        if may_call(name, user) and allowed_as_of == changes then
            allowed[id] = allowed[id] or {}
            allowed[id][user] = true
            native.direct_admit(session, id, changes, logins)
        end
    end)
end

-- Called where the function of an endpoint is entered. Whether it has to do nothing.
function M.enters_endpoint(ep)
    if probe ~= nil then
        probe.is_entered = true
        return true
    end
    local name, id, changes, logins = native.direct_asked()
    if id == ep.id then
        consider(name, id, changes, logins)
    end
    return false
end

-- The same for `callraw`, which may be registered under any names.
function M.enters_callraw(callraw)
    if probe ~= nil then
        probe.is_entered = true
        return true
    end
    local name, id, changes, logins = native.direct_asked()
    if name == nil or id ~= nil and id < FIRST_CALLRAW then
        return false
    end
    if id == nil then
        if raw_function(name) == nil then
            return false
        end
        -- Nothing if the name is that of a function that calls this one.
        id = native.direct_serve_callraw(name, callraw, unpack(name:split('.')))
    end
    if id ~= nil then
        consider(name, id, changes, logins)
    end
    return false
end

-- After a reload. `state` outlives it.
function M.adopt(state)
    M.is_on = state.override_is_on or false
end

function M.set(state, is_on)
    if is_on and not state.has_override_triggers then
        state.has_override_triggers = true
        for _, name in ipairs(SPACES) do
            box.space[name]:on_replace(on_change)
        end
        box.session.on_auth(on_auth)
        box.session.su = forgetting(box.session.su)
    end
    native.direct_enable(is_on, wraps_results(), version.host_is_at_least(3, 1), is_settled)
    M.is_on, state.override_is_on = is_on, is_on
end

return M
