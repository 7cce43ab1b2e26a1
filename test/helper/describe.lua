-- Any Lua value as one line of text that shows all that a caller can tell about it: types, nil and box.NULL apart, what is in
-- objects, how a table wants to be serialized, whether it is an error with a text of its own. Two values with the same text are
-- the same for him. Runs inside the routers that are compared.

local msgpack = require('msgpack')

local is_object = msgpack.is_object or function() return false end

local describe

-- The place in a file that `error` puts before its text is nobody's contract, nor is an address in memory.
local function without_place(text)
    local n
    repeat
        text, n = text:gsub('^[^%s:]+%.lua[^%s:]*:%d+: ', '')
    until n == 0
    return (text:gsub('0x%x+', '0x…'))
end

local function number(value)
    if value == math.floor(value) and math.abs(value) < 1e15 then
        return ('%d'):format(value)
    end
    return ('%.17g'):format(value)
end

local function cdata(value)
    if box.tuple.is(value) then
        return 'tuple ' .. describe(value:totable())
    end
    local kind = require('ffi').typeof(value)
    kind = tostring(kind):match('ctype<(.*)>')
    if kind:find('struct error', 1, true) then
        return 'error object ' .. describe(value:unpack())
    end
    return ('%s(%s)'):format(kind, tostring(value))
end

local function sorted_keys(value)
    local keys = {}
    for key in pairs(value) do
        table.insert(keys, key)
    end
    table.sort(keys, function(a, b)
        if type(a) == type(b) and (type(a) == 'number' or type(a) == 'string') then
            return a < b
        end
        return type(a) .. tostring(a) < type(b) .. tostring(b)
    end)
    return keys
end

local function items(value)
    local parts = {}
    for _, key in ipairs(sorted_keys(value)) do
        local item, name
        -- Where in the host's source an error was made.
        if key == 'trace' then
            goto continue
        elseif key == 'message' and type(value[key]) == 'string' then
            item = ('%q'):format(without_place(value[key]))
        else
            item = describe(value[key])
        end
        name = type(key) == 'string' and key:match('^[%a_][%w_]*$') and key or ('[%s]'):format(describe(key))
        table.insert(parts, ('%s=%s'):format(name, item))
        ::continue::
    end
    return '{' .. table.concat(parts, ', ') .. '}'
end

local function plain_table(value)
    local mt = getmetatable(value)
    if type(mt) == 'string' then
        return mt
    end
    if mt == nil then
        return items(value)
    end
    if mt.__tostring ~= nil then
        local text = tostring(value)
        if text:match('^%(?o?u?t?d?a?t?e?d?%)? ?repl') then
            return (text:gsub(', .*', ')'))
        end
        -- vshard's errors, whose text is JSON.
        return 'err' .. items(value)
    end
    return (type(mt.__serialize) == 'string' and mt.__serialize or '') .. items(value)
end

function describe(value)
    local kind = type(value)
    if kind == 'nil' then
        return 'nil'
    elseif value == nil then
        return 'null'
    elseif kind == 'number' then
        return number(value)
    elseif kind == 'string' then
        return ('%q'):format(#value > 2000 and #value .. ' bytes' or value)
    elseif is_object(value) then
        return 'object ' .. describe(value:decode())
    elseif kind == 'table' then
        return plain_table(value)
    elseif kind == 'cdata' then
        return cdata(value)
    elseif kind == 'function' or kind == 'userdata' or kind == 'thread' then
        return kind
    end
    return tostring(value)
end

-- What a function did: returned these values, or raised this.
local function outcome(ok, ...)
    if not ok then
        local raised = ...
        return 'raised ' .. (type(raised) == 'string' and ('%q'):format(without_place(raised)) or describe(raised))
    end
    local parts, n = {}, select('#', ...)
    if n > 2 and (...) == nil then
        -- What is behind an error: nothing, however many.
        while n > 2 and select(n, ...) == nil do
            n = n - 1
        end
    end
    for i = 1, n do
        parts[i] = describe((select(i, ...)))
    end
    return 'returned ' .. (#parts > 0 and table.concat(parts, ', ') or 'nothing')
end

return {value = describe, outcome = outcome}
