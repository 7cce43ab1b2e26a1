-- MessagePack as bytes: skipping and building without decoding, so that a test sees what is on the wire and not what the
-- host makes of it.

local mp = {}

local function be(str, pos, n)
    local value = 0
    for i = pos, pos + n - 1 do
        value = value * 256 + str:byte(i)
    end
    return value
end

-- The position behind the value at pos. Containers are counted, not recursed into.
function mp.skip(str, pos)
    local left = 1
    while left > 0 do
        left = left - 1
        local c = str:byte(pos)
        assert(c ~= nil, 'truncated MessagePack')
        pos = pos + 1
        if c <= 0x7f or c >= 0xe0 or c == 0xc0 or c == 0xc2 or c == 0xc3 then
            -- one byte
            pos = pos + 0
        elseif c <= 0x8f then
            left = left + 2 * (c - 0x80)
        elseif c <= 0x9f then
            left = left + c - 0x90
        elseif c <= 0xbf then
            pos = pos + c - 0xa0
        elseif c == 0xc4 or c == 0xd9 then
            pos = pos + 1 + be(str, pos, 1)
        elseif c == 0xc5 or c == 0xda then
            pos = pos + 2 + be(str, pos, 2)
        elseif c == 0xc6 or c == 0xdb then
            pos = pos + 4 + be(str, pos, 4)
        elseif c >= 0xc7 and c <= 0xc9 then
            local n = ({1, 2, 4})[c - 0xc6]
            pos = pos + n + 1 + be(str, pos, n)
        elseif c == 0xca or c == 0xce or c == 0xd2 then
            pos = pos + 4
        elseif c == 0xcb or c == 0xcf or c == 0xd3 then
            pos = pos + 8
        elseif c == 0xcc or c == 0xd0 then
            pos = pos + 1
        elseif c == 0xcd or c == 0xd1 then
            pos = pos + 2
        elseif c >= 0xd4 and c <= 0xd8 then
            pos = pos + 1 + ({1, 2, 4, 8, 16})[c - 0xd3]
        elseif c == 0xdc then
            left = left + be(str, pos, 2)
            pos = pos + 2
        elseif c == 0xdd then
            left = left + be(str, pos, 4)
            pos = pos + 4
        elseif c == 0xde then
            left = left + 2 * be(str, pos, 2)
            pos = pos + 2
        elseif c == 0xdf then
            left = left + 2 * be(str, pos, 4)
            pos = pos + 4
        else
            error(('byte %02x is no MessagePack'):format(c))
        end
    end
    assert(pos <= #str + 1, 'truncated MessagePack')
    return pos
end

-- Count of an array at pos, and the position of its first element.
function mp.array(str, pos)
    local c = str:byte(pos)
    if c >= 0x90 and c <= 0x9f then
        return c - 0x90, pos + 1
    elseif c == 0xdc then
        return be(str, pos + 1, 2), pos + 3
    elseif c == 0xdd then
        return be(str, pos + 1, 4), pos + 5
    end
    error(('no array: %02x'):format(c))
end

-- The elements of an array as byte strings.
function mp.elements(str)
    local n, pos = mp.array(str, 1)
    local res = {}
    for i = 1, n do
        local next_pos = mp.skip(str, pos)
        res[i] = str:sub(pos, next_pos - 1)
        pos = next_pos
    end
    return res
end

-- A map with small unsigned keys (IPROTO's headers and bodies): key -> bytes of the value. Second: position behind it.
function mp.uint_map(str, pos)
    local c = str:byte(pos)
    assert(c >= 0x80 and c <= 0x8f, 'no small map')
    local res = {}
    pos = pos + 1
    for _ = 1, c - 0x80 do
        local key = str:byte(pos)
        local value_pos = pos + 1
        pos = mp.skip(str, value_pos)
        res[key] = str:sub(value_pos, pos - 1)
    end
    return res, pos
end

function mp.u32(n)
    return string.char(0xce, math.floor(n / 2 ^ 24) % 256, math.floor(n / 2 ^ 16) % 256, math.floor(n / 256) % 256, n % 256)
end

function mp.uint(n)
    return n < 128 and string.char(n) or mp.u32(n)
end

function mp.str(s)
    if #s < 32 then
        return string.char(0xa0 + #s) .. s
    end
    return '\xdb' .. mp.u32(#s):sub(2) .. s
end

function mp.array_of(...)
    local n = select('#', ...)
    return string.char(0x90 + n) .. table.concat({...})
end

function mp.decode_uint(bytes)
    local c = bytes:byte(1)
    if c < 0x80 then
        return c
    end
    return be(bytes, 2, ({[0xcc] = 1, [0xcd] = 2, [0xce] = 4, [0xcf] = 8})[c])
end

function mp.hex(bytes)
    return (bytes:gsub('.', function(c) return ('%02x '):format(c:byte()) end))
end

return mp
