-- Key -> hash, bit for bit vshard's: CRC-32C without the final inversion, as `digest.crc32` computes it. A sharded data
-- set lives by these values, so odd corners (see test/unit/hash_test.lua) are kept, not mended. The native half has the same
-- for keys that are MessagePack (src/route/hash.rs).

local decimal = require('decimal')
local digest = require('digest')
local msgpack = require('msgpack')
-- This encoder and not `msgpack.encode`: they differ in floating point cdata, and the hash was defined by this one.
local encode = require('msgpackffi').encode

local crc32, concat = digest.crc32, table.concat
local is_object = msgpack.is_object or function() return false end

-- In what hosts differ, in the bits that `Rules` of the native half knows.
local BINARY_IS_TEXT, WIDE_INTEGERS, SCIENTIFIC_DECIMALS = 1, 2, 4

-- Asked of the host itself.
local function ask_host()
    local bits = 0
    if type(msgpack.decode('\xc4\x01a')) == 'string' then
        bits = bits + BINARY_IS_TEXT
    end
    if encode(-2^70):byte() == 0xd3 then
        bits = bits + WIDE_INTEGERS
    end
    -- A one with an exponent of one.
    local ten = msgpack.decode('\xd5\x01\xff\x1c')
    if decimal.is_decimal(ten) and tostring(ten) ~= '10' then
        bits = bits + SCIENTIFIC_DECIMALS
    end
    return bits
end

local current_rules = ask_host()

-- The rules as they are now: the first may change at run time, with `compat.binary_data_decoding`. Each cfg() asks anew.
local function rules()
    current_rules = ask_host()
    return current_rules
end

-- The native function for keys that are a `msgpack.object`, given by the router: this module stands alone.
local native_hash

-- The hash of an object without decoding it; else the value in it, decoded, where only Lua can tell.
local function hash_of_object(key, is_strcrc32)
    if native_hash ~= nil then
        local hash = native_hash(key, is_strcrc32, current_rules)
        if hash >= 0 then
            return hash
        end
    end
    return nil, key:decode()
end

-- Items up to the first nil, one after another without anything in between. Joined first: the compiler of Tarantool 2.6 now and
-- then loses items that a digest object is given in a loop, as vshard does it (test/unit/key_bytes_test.lua).
local function crc32_of_items(key, bytes_of)
    local parts = {}
    for i, item in ipairs(key) do
        parts[i] = bytes_of(item)
    end
    return crc32(concat(parts))
end

-- Text of the key. The text of a number depends on its Lua type: 1 and 1LL have different hashes.
local function strcrc32(key)
    if is_object(key) then
        local hash
        hash, key = hash_of_object(key, true)
        if hash ~= nil then
            return hash
        end
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
        local hash
        hash, key = hash_of_object(key, false)
        if hash ~= nil then
            return hash
        end
    end
    if type(key) == 'table' then
        return crc32_of_items(key, mp_bytes)
    end
    return crc32(mp_bytes(key))
end

local function use(hash_object)
    native_hash = hash_object
end

return {
    rules = rules,
    use = use,
    strcrc32 = strcrc32,
    mpcrc32 = mpcrc32,
}
