-- Versions: our own, the border's, and what the host can do.

-- The first number must be Cargo.toml's: native.lua compares them.
local VERSION = '0.1.0'
-- The border of lua/rawshard and rawshard.so; grows when a function of it changes its meaning.
local ABI = 4

local host_text = rawget(_G, '_TARANTOOL')

local function parse(text)
    local major, minor, patch = tostring(text):match('^(%d+)%.(%d+)%.(%d+)')
    return tonumber(major) or 0, tonumber(minor) or 0, tonumber(patch) or 0
end

local host_major, host_minor = parse(host_text)

local function host_is_at_least(major, minor)
    return host_major > major or (host_major == major and host_minor >= minor)
end

return {
    VERSION = VERSION,
    ABI = ABI,
    HOST = host_text,
    host_is_at_least = host_is_at_least,
}
