-- Calls of `rawshard.callraw` that come by IPROTO and for which no fiber waits. The native half takes them; here it is
-- switched on and told when somebody's rights may have changed.

local native = require('rawshard.native')
local version = require('rawshard.version')

-- What the right to execute a function follows from: users, privileges, functions.
local SPACES = {'_user', '_priv', '_func'}

local function forget_all()
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

return {set = set}
