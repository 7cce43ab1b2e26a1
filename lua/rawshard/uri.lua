-- Addresses of instances: every form of URI that vshard's configuration takes, brought to one table
--     {host=, port= | unix=, user=, password=}
-- and a form without secrets for messages.

local luri = require('uri')

-- Since 2.10 `uri.parse` takes numbers and tables and splits the query into params. Asked once, by trying: version
-- numbers lie about backports.
local parses_tables = (function()
    local ok, parsed = pcall(luri.parse, {'localhost:1', params = {transport = 'plain'}})
    return ok and type(parsed) == 'table' and type(parsed.params) == 'table'
end)()

local ER_INVALID = 'Invalid URI'
local ER_TLS = 'Invalid URI: TLS is not supported, "transport" must be "plain" and there must be no "ssl_*" parameters'
local ER_TABLE = 'Invalid URI: table must be {uri = string, params = table} or {string, params = table}'

-- A query of a string URI, for hosts whose parser leaves it alone.
local function parse_query(query)
    local params = {}
    for pair in query:gmatch('[^&]+') do
        local key, value = pair:match('^([^=]+)=?(.*)$')
        if key ~= nil then
            params[key] = params[key] or {}
            table.insert(params[key], value)
        end
    end
    return params
end

local function merge_params(into, params)
    for key, value in pairs(params or {}) do
        into[key] = type(value) == 'table' and value or {value}
    end
    return into
end

-- The table form without help from the host.
local function parse_table(uri)
    local text = uri.uri
    if text == nil then
        text = uri[1]
    end
    if type(text) == 'number' then
        text = tostring(text)
    end
    if type(text) ~= 'string' or uri[2] ~= nil or (uri.params ~= nil and type(uri.params) ~= 'table') then
        return nil, ER_TABLE
    end
    local parsed = luri.parse(text)
    if parsed == nil then
        return nil, ER_INVALID
    end
    parsed.login = uri.login or parsed.login
    parsed.password = uri.password or parsed.password
    parsed.params = parsed.query ~= nil and parse_query(parsed.query) or {}
    merge_params(parsed.params, uri.default_params)
    merge_params(parsed.params, uri.params)
    return parsed
end

-- Host's own fields (host, service, login, password, unix, params), or nil and a message free of secrets.
local function parse_any(uri)
    if type(uri) == 'number' then
        uri = tostring(uri)
    end
    if type(uri) == 'string' then
        local parsed = luri.parse(uri)
        if parsed == nil then
            return nil, ER_INVALID
        end
        if parsed.params == nil and parsed.query ~= nil then
            parsed.params = parse_query(parsed.query)
        end
        return parsed
    end
    if type(uri) ~= 'table' then
        return nil, ER_INVALID
    end
    if not parses_tables then
        return parse_table(uri)
    end
    local ok, parsed = pcall(luri.parse, uri)
    if not ok or parsed == nil then
        -- The host's message may quote what it was given.
        return nil, ER_TABLE
    end
    -- Only 3.x knows these two.
    parsed.login = uri.login or parsed.login
    parsed.password = uri.password or parsed.password
    return parsed
end

local function wants_tls(params)
    for key, values in pairs(params or {}) do
        if key:sub(1, 4) == 'ssl_' then
            return true
        end
        if key == 'transport' then
            for _, value in pairs(values) do
                if value ~= '' and value ~= 'plain' then
                    return true
                end
            end
        end
    end
    return false
end

-- Syntax and transport only, as vshard checks it: whether the address can be connected to is asked by `address`.
local function check(uri)
    local parsed, err = parse_any(uri)
    if parsed == nil then
        return nil, err
    end
    if wants_tls(parsed.params) then
        return nil, ER_TLS
    end
    return parsed
end

local function address(uri)
    local parsed, err = check(uri)
    if parsed == nil then
        return nil, err
    end
    local res = {user = parsed.login, password = parsed.password}
    if parsed.unix ~= nil then
        res.unix = parsed.unix
        return res
    end
    local port = tonumber(parsed.service)
    if port == nil or port < 1 or port > 65535 or port % 1 ~= 0 then
        return nil, 'Invalid URI: port must be a number from 1 to 65535'
    end
    res.host = parsed.host or 'localhost'
    res.port = port
    return res
end

-- For messages and info(): what `uri.format` prints without the password, without query and params.
local function safe(uri)
    local parsed = parse_any(uri)
    if parsed == nil then
        return '<invalid uri>'
    end
    local host = parsed.host
    if parsed.ipv6 ~= nil then
        host = '[' .. parsed.ipv6 .. ']'
    end
    local text = parsed.service or ''
    if host ~= nil then
        text = parsed.service ~= nil and host .. ':' .. parsed.service or host
    end
    if parsed.login ~= nil then
        text = parsed.login .. '@' .. text
    end
    return text
end

return {
    check = check,
    address = address,
    safe = safe,
}
