-- The user's functions on the storages, the same for both kinds of storage.

local fiber = require('fiber')
local functions = {}

-- How often a function that takes a key was executed, on this instance.
local executed = {}

local function executed_once(key)
    executed[key] = (executed[key] or 0) + 1
end

function functions.echo(...)
    return ...
end

function functions.nothing()
end

function functions.count(key, ...)
    executed_once(key)
    return key, ...
end

-- How many it was given, and what.
function functions.args_of(...)
    return select('#', ...), {...}
end

-- One list of what it was given.
function functions.args_list(...)
    return {...}
end

-- By the instance where they run.
function functions.fail_on(name, key)
    executed_once(key)
    if _G.config.name == name then
        error('fails on ' .. name, 0)
    end
    return 'done'
end

function functions.nil_on(name)
    if _G.config.name == name then
        return nil
    end
    return 'done'
end

function functions.slow_on(name, seconds)
    if _G.config.name == name then
        fiber.sleep(seconds)
    end
    return 'done'
end

function functions.sleep(seconds, ...)
    fiber.sleep(seconds)
    return ...
end

function functions.count_sleep(key, seconds, ...)
    executed_once(key)
    fiber.sleep(seconds)
    return ...
end

function functions.boom(message)
    error(message or 'boom', 0)
end

function functions.count_boom(key, message)
    executed_once(key)
    error(message or 'boom', 0)
end

-- A box.error with its own type, code and, where the host has them, payload fields.
function functions.box_boom()
    box.error({type = 'MyAppError', code = 1234, reason = 'the payload error', amount = 42, note = 'extra'})
end

-- An error of the given code, counted: user errors whose numeric code looks like a vshard refusal. As a table, because
-- some hosts turn some codes into errors of other types.
function functions.code_boom(key, code)
    executed_once(key)
    error({type = 'ClientError', code = code, message = 'a user error of code ' .. code})
end

-- Raises what it is given; the first argument only names it.
function functions.raise(_, value)
    error(value, 0)
end

function functions.raise_box(name)
    box.error(box.error[name], 'x', 'y', 'z', 'w', 'v')
end

function functions.raise_runtime()
    local t = nil
    return t.field
end

function functions.raise_oom()
    return ('x'):rep(2 ^ 40)
end

function functions.return_function()
    return print
end

function functions.return_recursive()
    local t = {}
    t.t = t
    return t
end

function functions.return_null_error()
    return box.NULL, box.error.new({code = 1234, reason = 'the reason'})
end

-- Three errors chained by `prev`.
function functions.chain_boom()
    local e1 = box.error.new({code = 101, reason = 'root cause'})
    local e2 = box.error.new({code = 102, reason = 'middle'})
    local e3 = box.error.new({type = 'TopError', code = 103, reason = 'top'})
    e2:set_prev(e1)
    e3:set_prev(e2)
    error(e3)
end

function functions.nilerr(message)
    return nil, {code = 77077, reason = message or 'nil err'}
end

function functions.false_err()
    return false, 'lost by vshard when decoded'
end

function functions.two_values(a, b)
    return a, b
end

function functions.nil_two()
    return nil, 2
end

function functions.one_nil_three()
    -- box.NULL: a bare nil in the middle ends the list in net.box.self of newer hosts, before vshard sees the rest.
    return 1, box.NULL, 3
end

function functions.four_values()
    return 1, 2, 3, 4
end

local blobs = {}
function functions.big(size)
    if blobs[size] == nil then
        blobs = {[size] = string.rep('x', size)}
    end
    return blobs[size]
end

function functions.size(blob)
    return #blob
end

function functions.whoami()
    return _G.config.name
end

function functions.whoami_counted(key)
    executed_once(key)
    return _G.config.name
end

function functions.session_id()
    return box.session.id()
end

-- Hooks of the driver.
local hooks = {}

-- A gate holds all calls of its key until the driver opens it: so many calls are in flight at once, for certain.
local gates = {}

local function gate_of(key)
    gates[key] = gates[key] or {cond = fiber.cond(), waiting = 0, seen = {}, twice = 0}
    return gates[key]
end

function functions.gate(key, id)
    local gate = gate_of(key)
    if gate.seen[id] then
        gate.twice = gate.twice + 1
    end
    gate.seen[id] = true
    gate.waiting = gate.waiting + 1
    while not gate.is_open do
        gate.cond:wait(60)
    end
    return id
end

function hooks.gate_waiting(key)
    return gate_of(key).waiting
end

function hooks.gate_twice(key)
    return gate_of(key).twice
end

function hooks.gate_open(key)
    local gate = gate_of(key)
    gate.is_open = true
    gate.seen = {}
    gate.cond:broadcast()
end

function hooks.executed(key)
    return executed[key] or 0
end

function hooks.executed_all()
    return executed
end

function hooks.executed_reset()
    executed = {}
end

function functions.install()
    for name, f in pairs(functions) do
        if name ~= 'install' then
            _G[name] = f
        end
    end
    for name, f in pairs(hooks) do
        _G['test_' .. name] = f
    end
end

return functions
