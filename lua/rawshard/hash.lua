-- Key -> hash, bit for bit vshard's: CRC-32C without the final inversion, as `digest.crc32` computes it. A sharded data
-- set lives by these values, so odd corners (see test/unit/hash_test.lua) are kept, not mended.

local digest = require('digest')
local msgpack = require('msgpack')
-- This encoder and not `msgpack.encode`: they differ in floating point cdata, and the hash was defined by this one.
local encode = require('msgpackffi').encode

local crc32, crc32_new = digest.crc32, digest.crc32.new
local is_object = msgpack.is_object or function() return false end

-- Items up to the first nil, one after another without anything in between.
local function crc32_of_items(key, bytes_of)
    local crc = crc32_new()
    for _, item in ipairs(key) do
        crc:update(bytes_of(item))
    end
    return crc:result()
end

-- Text of the key. The text of a number depends on its Lua type: 1 and 1LL have different hashes.
local function strcrc32(key)
    if is_object(key) then
        key = key:decode()
    end
    if type(key) == 'table' then
        return crc32_of_items(key, tostring)
    end
    return crc32(tostring(key))
end

-- MessagePack of the key, but strings are taken as they are, without header.
local function mp_bytes(value)
    return type(value) == 'string' and value or encode(value)
end

local function mpcrc32(key)
    if is_object(key) then
        key = key:decode()
    end
    if type(key) == 'table' then
        return crc32_of_items(key, mp_bytes)
    end
    return crc32(mp_bytes(key))
end

return {
    strcrc32 = strcrc32,
    mpcrc32 = mpcrc32,
}
