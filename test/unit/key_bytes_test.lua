#!/usr/bin/env tarantool
-- Sharding keys in bytes: what the native half finds and hashes, beside what Tarantool's own msgpack decodes and vshard's own
-- functions make of it.
--
-- Generated argument trees, in every width and spelling that MessagePack has, and paths into them. $KEY_CASES says how many
-- (5000; `make test-keys`, the nightly run, takes 1000000), $SEED repeats a run.

local fio = require('fio')
local root = fio.dirname(fio.dirname(fio.dirname(fio.abspath(arg[0]))))
local build = os.getenv('RAWSHARD_BUILD') or fio.pathjoin(root, 'build')
package.cpath = build .. '/?.so;' .. package.cpath
package.path = root .. '/lua/?.lua;' .. package.path

local digest = require('digest')
local ffi = require('ffi')
local log = require('log')
local msgpack = require('msgpack')
local tap = require('tap')
local hash = require('rawshard.hash')
local native = require('rawshard.native')

local CASES = tonumber(os.getenv('KEY_CASES')) or 5000
local BUCKETS = 1000003
local has_objects = msgpack.object ~= nil
local rules = hash.rules()

package.path = package.path .. ';' .. (os.getenv('VSHARD_PATH') or '/opt/vshard') .. '/?.lua'
local has_vshard, oracle = pcall(require, 'vshard.hash')
if not has_vshard then
    -- The same as vshard's, says hash_test.lua where there is vshard.
    oracle = hash
end
-- The compiler of 2.6 now and then loses the first items of a composite key, in vshard's functions too.
jit.off(oracle.mpcrc32, true)
jit.off(oracle.strcrc32, true)

local function hex(bytes)
    return (bytes:gsub('.', function(c) return ('%02x'):format(c:byte()) end))
end

--
-- Bytes
--

-- A xorshift of our own: math.random differs between hosts.
local state = tonumber(os.getenv('SEED')) or ffi.cast('uint32_t *', ffi.cast('const char *', digest.urandom(4)))[0] % 2147483647
local seed = state
state = state == 0 and 1 or state

local function random32()
    state = bit.bxor(state, bit.lshift(state, 13))
    state = bit.bxor(state, bit.rshift(state, 17))
    state = bit.bxor(state, bit.lshift(state, 5))
    return state % 4294967296
end

-- 1 … n.
local function random(n)
    return random32() % n + 1
end

local function one_of(list)
    return list[random(#list)]
end

local function be(value, width)
    local bytes = {}
    value = ffi.cast('uint64_t', value)
    for i = width, 1, -1 do
        bytes[i] = string.char(tonumber(value % 256ULL))
        value = value / 256ULL
    end
    return table.concat(bytes)
end

local double_buf, float_buf = ffi.new('double[1]'), ffi.new('float[1]')

local function double(x)
    double_buf[0] = x
    return '\xcb' .. ffi.string(double_buf, 8):reverse()
end

local function float(x)
    float_buf[0] = x
    return '\xca' .. ffi.string(float_buf, 4):reverse()
end

local function any_bytes(n)
    local bytes = {}
    for i = 1, n do
        bytes[i] = string.char(random(256) - 1)
    end
    return table.concat(bytes)
end

-- Any header that holds the length.
local function header(len, short, short_limit, len8, len16, len32)
    local forms = {}
    if len < short_limit then
        table.insert(forms, string.char(short + len))
        -- Twice as likely.
        table.insert(forms, forms[1])
    end
    if len8 ~= nil and len < 256 then
        table.insert(forms, len8 .. be(len, 1))
    end
    if len < 65536 then
        table.insert(forms, len16 .. be(len, 2))
    end
    table.insert(forms, len32 .. be(len, 4))
    return one_of(forms)
end

local function str(text)
    return header(#text, 0xa0, 32, '\xd9', '\xda', '\xdb') .. text
end

-- Both signs of encoding, any width that holds it. `value` is an int64_t, or a uint64_t beyond.
local function integer(value)
    local forms = {}
    if ffi.istype('uint64_t', value) or value >= 0 then
        local u = ffi.cast('uint64_t', value)
        for _, form in ipairs({{'\xcc', 1, 0xffULL}, {'\xcd', 2, 0xffffULL}, {'\xce', 4, 0xffffffffULL},
                               {'\xcf', 8, 0xffffffffffffffffULL}}) do
            if u <= form[3] then
                table.insert(forms, form[1] .. be(u, form[2]))
            end
        end
        if u <= 0x7fULL then
            table.insert(forms, be(u, 1))
        end
    end
    if not ffi.istype('uint64_t', value) then
        for _, form in ipairs({{'\xd0', 1, 0x80LL}, {'\xd1', 2, 0x8000LL}, {'\xd2', 4, 0x80000000LL}}) do
            if value >= -form[3] and value < form[3] then
                table.insert(forms, form[1] .. be(value, form[2]))
            end
        end
        table.insert(forms, '\xd3' .. be(value, 8))
        if value < 0 and value >= -32 then
            table.insert(forms, be(value, 1))
        end
    end
    return one_of(forms)
end

local EDGES = {
    0, 1, 31, 32, 33, 127, 128, 129, 255, 256, 32767, 32768, 65535, 65536, 2147483647LL, 2147483648LL, 4294967295LL, 4294967296LL,
    99999999999998LL, 99999999999999LL, 100000000000000LL, 100000000000001LL, 9007199254740991LL, 9007199254740992LL,
    9007199254740993LL, 9223372036854775807LL,
}

local function any_integer()
    local kind = random(6)
    if kind == 1 then
        return integer(ffi.cast('uint64_t', 0x8000000000000000ULL + random32() * random32()))
    elseif kind == 2 then
        return integer(ffi.cast('int64_t', random32()) * ffi.cast('int64_t', random32()))
    elseif kind == 3 then
        return integer(ffi.cast('int64_t', random(300) - 150))
    end
    local edge = ffi.cast('int64_t', one_of(EDGES))
    return integer(random(2) == 1 and edge or -edge)
end

local function any_float()
    local kind = random(9)
    if kind == 1 then
        return '\xcb' .. any_bytes(8)
    elseif kind == 2 then
        return '\xca' .. any_bytes(4)
    elseif kind == 3 then
        return float((random(2000) - 1000) / one_of({1, 1, 2, 3, 10}))
    elseif kind == 4 then
        local x = tonumber(ffi.cast('int64_t', one_of(EDGES))) + one_of({0, 0, 0, 0.5, -0.5})
        return double(random(2) == 1 and x or -x)
    elseif kind == 5 then
        return double(one_of({2^63, -2^63, 2^64, 2^64 - 2048, -2^63 - 2048, 1e20, -1e20, 1e63, 1e64, -1e63, -1e64, 0/0, 1/0,
                              -1/0, -0.0, 5e-324, 1.7976931348623157e308}))
    elseif kind == 6 then
        -- Fourteen digits and a half: where rounding decides.
        return double(random32() * 23283 + random(23283) + 0.5)
    elseif kind == 7 then
        return double(random(999) * 10 ^ (random(40) - 20))
    end
    return double((random32() - 2^31) / one_of({1, 1, 2, 4, 10, 1000, 2^20}))
end

local function extension(kind, payload)
    local len = #payload
    local fixed = ({[1] = '\xd4', [2] = '\xd5', [4] = '\xd6', [8] = '\xd7', [16] = '\xd8'})[len]
    local forms = {'\xc7' .. be(len, 1), '\xc8' .. be(len, 2), '\xc9' .. be(len, 4)}
    if fixed ~= nil then
        forms = {fixed, fixed, fixed, forms[random(3)]}
    end
    return one_of(forms) .. string.char(kind) .. payload
end

local function decimal()
    local count = random(4) == 1 and random(38) or random(8)
    local digits = {}
    for i = 1, count do
        digits[i] = random(10) - 1
    end
    -- Sometimes zeros in front; and one where the number of half bytes is odd.
    for _ = 1, random(8) == 1 and random(4) or 0 do
        table.insert(digits, 1, 0)
    end
    if #digits % 2 == 0 then
        table.insert(digits, 1, 0)
    end
    local sign = random(3) == 1 and one_of({0xa, 0xb, 0xd, 0xe, 0xf}) or 0xc
    table.insert(digits, sign)
    local packed = {}
    for i = 1, #digits, 2 do
        packed[#packed + 1] = string.char(digits[i] * 16 + digits[i + 1])
    end
    local scale = random(5) == 1 and random(76) - 38 or random(count + 1) - 1
    return extension(1, integer(ffi.cast('int64_t', scale)) .. table.concat(packed))
end

local function uuid()
    local bytes = any_bytes(16)
    -- Old hosts look at the variant.
    return extension(2, bytes:sub(1, 8) .. '\x80' .. bytes:sub(10))
end

local function any_text()
    local kind = random(8)
    if kind == 1 then
        return any_bytes(random(40) - 1)
    elseif kind == 2 then
        return ('x'):rep(one_of({31, 32, 33, 255, 256, 257}))
    end
    return one_of({'', 'a', 'id', 'key', 'customer', '1', 'имя'})
end

local function scalar()
    local kind = random(12)
    if kind <= 3 then
        return any_integer()
    elseif kind <= 5 then
        return any_float()
    elseif kind <= 7 then
        return str(any_text())
    elseif kind == 8 then
        local text = any_text()
        return header(#text, 0, 0, '\xc4', '\xc5', '\xc6') .. text
    elseif kind == 9 then
        return decimal()
    elseif kind == 10 then
        return uuid()
    elseif kind == 11 then
        return one_of({'\xc2', '\xc3'})
    end
    return '\xc0'
end

--
-- Trees
--

local NAMES = {'a', 'id', 'customer', 'first name', '_x1', 'имя', "it's", '1'}

local function quoted(name)
    if name:find('"', 1, true) == nil and random(2) == 1 or name:find("'", 1, true) ~= nil then
        return '["' .. name .. '"]'
    end
    return "['" .. name .. "']"
end

local function name_step(name)
    if name:match('^[%a_][%w_]*$') and random(3) > 1 then
        return '.' .. name
    end
    return quoted(name)
end

local tree

-- Of an array, as tree() gives it.
local function array(count, depth)
    local res, parts = {}, {}
    for i = 1, count do
        local inner = tree(depth)
        parts[i] = inner.bytes
        res[i] = {('[%d]'):format(i), inner}
    end
    res.bytes = header(count, 0x90, 16, nil, '\xdc', '\xdd') .. table.concat(parts)
    return res
end

-- {bytes =, [1] = {text of a step, tree} …}
function tree(depth)
    local kind = depth > 0 and random(10) or 1
    if kind <= 5 then
        return {bytes = scalar()}
    end
    local count = random(5) - 1
    if kind <= 8 then
        return array(count, depth - 1)
    end
    local res, parts, used, pairs_count = {}, {}, {}, 0
    for _ = 1, count do
        local inner = tree(depth - 1)
        if random(4) == 1 then
            local number = random(6)
            if not used[number] then
                used[number] = true
                pairs_count = pairs_count + 1
                table.insert(parts, integer(ffi.cast('int64_t', number)) .. inner.bytes)
                table.insert(res, {('[%d]'):format(number), inner})
            end
        else
            local name = one_of(NAMES)
            if not used[name] then
                used[name] = true
                pairs_count = pairs_count + 1
                table.insert(parts, str(name) .. inner.bytes)
                table.insert(res, {name_step(name), inner})
            end
        end
    end
    res.is_map = true
    res.bytes = header(pairs_count, 0x80, 16, nil, '\xde', '\xdf') .. table.concat(parts)
    return res
end

local function arguments()
    return array(random(4), 4)
end

-- A path into a tree, and the bytes at its end; nil where it leads nowhere.
local function any_path(from)
    local text, at = '', from
    repeat
        local step = at[random(math.max(#at, 1))]
        if random(25) == 1 then
            local tail = one_of({'[9]', '.none', '["no such"]', '[4294967295]'})
            -- `[9]` is nowhere in any tree, nor are these names.
            return text == '' and tail:sub(1, 1) == '.' and '[9]' or text .. tail, nil
        end
        if step == nil then
            break
        end
        text, at = text .. step[1], step[2]
    until random(12) == 1
    if text == '' then
        return '[9]', nil
    end
    return text, at.bytes
end

--
-- The oracle
--

local function is_map(value)
    local mt = getmetatable(value)
    return mt ~= nil and mt.__serialize == 'map'
end

local function has_map(value)
    if type(value) ~= 'table' then
        return false
    end
    if is_map(value) then
        return true
    end
    for _, item in ipairs(value) do
        if has_map(item) then
            return true
        end
    end
    return false
end

-- What 2.6 makes of it depends on whether the encoder was compiled.
local function is_unstable(value)
    if type(value) == 'table' then
        for _, item in ipairs(value) do
            if is_unstable(item) then
                return true
            end
        end
    end
    return bit.band(rules, 2) ~= 0 and type(value) == 'number' and value >= 2^64 and value < 1e64
end

-- The bucket of a decoded key, nil where it must be refused. `functions`: vshard's, or others.
local function bucket_of(name, key, functions)
    if key == nil or has_map(key) then
        return nil
    end
    if name == 'strcrc32' and type(key) == 'table' then
        for _, item in ipairs(key) do
            if type(item) == 'table' then
                return nil
            end
        end
    end
    if name == 'mpcrc32' and is_unstable(key) then
        return nil
    end
    return (functions or oracle)[name](key) % BUCKETS + 1
end

local test = tap.test('key bytes')
test:plan(6)

local function raw_call(selector, args)
    return '\x94' .. selector .. '\xc0\xa4echo' .. args
end

local function native_bucket(selector, args)
    return native.raw_bucket(raw_call(selector, args), BUCKETS, rules)
end

local function key_selector(name, key)
    return '\x82\xa4hash' .. str(name) .. '\xa3key' .. key
end

local function path_selector(name, paths)
    local list = #paths == 1 and random(2) == 1 and str(paths[1])
    if not list then
        local parts = {}
        for i, path in ipairs(paths) do
            parts[i] = str(path)
        end
        list = string.char(0x90 + #paths) .. table.concat(parts)
    end
    return '\x82\xa4hash' .. str(name) .. '\xa4path' .. list
end

local decode = msgpack.decode

--
-- The cases
--

test:test('values of every kind', function(t)
    t:plan(2)
    local wrong, decoded = {}, 0
    for i = 1, math.max(CASES / 2, 2000) do
        local bytes = scalar()
        local ok, value = pcall(decode, bytes)
        if ok then
            decoded = decoded + 1
            for _, name in ipairs({'mpcrc32', 'strcrc32'}) do
                local got, why = native_bucket(key_selector(name, bytes), '\x90')
                -- As one of a key of several too, where nil has a hash.
                local in_list = native_bucket(key_selector(name, '\x92\x01' .. bytes), '\x90')
                if value == nil then
                    got, why = nil, nil
                end
                if got ~= bucket_of(name, value) and #wrong < 10 then
                    table.insert(wrong, ('%s of %s (%s): got %s %s'):format(name, hex(bytes), value, got, why))
                end
                local of_value = bucket_of(name, {1, value}, hash)
                if of_value ~= bucket_of(name, {1, value}) and #wrong < 10 then
                    table.insert(wrong, ('%s of the decoded {1, %s}: got %s'):format(name, value, of_value))
                end
                if in_list ~= bucket_of(name, {1, value}) and #wrong < 10 then
                    table.insert(wrong, ('%s of {1, %s (%s)}: got %s, wanted %s'):format(
                        name, hex(bytes), value, in_list, bucket_of(name, {1, value})))
                end
            end
        end
        if i % 10000 == 0 then
            collectgarbage()
        end
    end
    t:is(table.concat(wrong, '\n'), '', ('%d values, seed %d'):format(decoded, seed))
    t:ok(decoded > CASES / 3, 'nearly all of them this host decodes')
end)

test:test('trees and paths', function(t)
    t:plan(has_objects and 4 or 3)
    local wrong, found, refused, compared = {}, 0, 0, 0
    local function note(fmt, ...)
        if #wrong < 10 then
            table.insert(wrong, fmt:format(...))
        end
    end
    local cases, undecoded = 0, 0
    while cases < CASES do
        local args = arguments()
        local ok, whole = pcall(decode, args.bytes)
        if not ok then
            undecoded = undecoded + 1
        else
            local object = has_objects and msgpack.object_from_raw(args.bytes) or nil
            for _ = 1, 4 do
                cases = cases + 1
                local paths, at, key = {}, {}, nil
                local count = random(4) == 1 and random(3) or 1
                local is_whole = true
                for i = 1, count do
                    local bytes
                    paths[i], bytes = any_path(args)
                    is_whole = is_whole and bytes ~= nil
                    at[i] = bytes
                end
                if is_whole then
                    -- Each part is decoded by itself, and must be what lies in the whole.
                    key = {}
                    for i = 1, count do
                        key[i] = decode(at[i])
                        if key[i] == nil or type(key[i]) == 'table' and is_map(key[i]) then
                            is_whole = false
                        end
                    end
                    if count == 1 then
                        key = key[1]
                    end
                end
                for _, name in ipairs({'mpcrc32', 'strcrc32'}) do
                    local wanted = is_whole and bucket_of(name, key) or nil
                    local got, why = native_bucket(path_selector(name, paths), args.bytes)
                    if got ~= wanted then
                        note('%s of %s in %s: got %s (%s), wanted %s', name, table.concat(paths, ', '), hex(args.bytes), got, why,
                             wanted)
                    end
                    if wanted ~= nil then
                        found = found + 1
                    else
                        refused = refused + 1
                    end
                end
                if has_objects then
                    local part = native.extract(object, paths[1])
                    local wanted = at[1] ~= '\xc0' and at[1] or nil
                    local got = part ~= nil and msgpack.encode(part) or nil
                    if got ~= wanted then
                        note('%s in %s: got %s, wanted %s', paths[1], hex(args.bytes), got and hex(got), wanted and hex(wanted))
                    end
                    if got ~= nil then
                        for _, name in ipairs({'mpcrc32', 'strcrc32'}) do
                            local value = decode(at[1])
                            local bucket = bucket_of(name, value)
                            local native_hash = native.hash_object(part, name == 'strcrc32', rules)
                            local hashed = native_hash >= 0 and native_hash % BUCKETS + 1 or nil
                            if hashed ~= bucket then
                                note('%s of the object %s: got %s, wanted %s', name, hex(got), hashed, bucket)
                            end
                        end
                        compared = compared + 1
                    end
                end
            end
            -- The decoded whole, walked by Lua, agrees with the bytes of the parts.
            for i, step in ipairs(args) do
                if type(whole[i]) ~= 'table' and tostring(whole[i]) ~= tostring(decode(step[2].bytes)) then
                    note('argument %d of %s', i, hex(args.bytes))
                end
            end
        end
    end
    t:is(table.concat(wrong, '\n'), '', ('%d cases, seed %d'):format(cases, seed))
    t:ok(found > cases / 2, ('%d keys were found'):format(found))
    t:ok(refused > cases / 20, ('%d were refused'):format(refused))
    if has_objects then
        t:ok(compared > cases / 2, ('%d parts were compared'):format(compared))
    end
    log.info('%d trees are not decoded by this host', undecoded)
end)

test:test('damaged arguments', function(t)
    t:plan(2)
    local answered = 0
    for _ = 1, CASES / 10 do
        local args = arguments()
        local path = any_path(args)
        local bytes = raw_call(path_selector('mpcrc32', {path}), args.bytes)
        local at = random(#bytes)
        local kind = random(3)
        if kind == 1 then
            bytes = bytes:sub(1, at - 1)
        elseif kind == 2 then
            bytes = bytes:sub(1, at - 1) .. string.char(random(256) - 1) .. bytes:sub(at + 1)
        else
            bytes = bytes .. '\x01'
        end
        local bucket, why = native.raw_bucket(bytes, BUCKETS, rules)
        answered = answered + ((bucket ~= nil or type(why) == 'string') and 1 or 0)
        if kind ~= 2 and bucket ~= nil then
            answered = answered - 1
        end
    end
    t:is(answered, math.floor(CASES / 10), 'a bucket or an error; nothing that is cut is taken')
    local deep = ('\x91'):rep(100000)
    local _, why = native_bucket(key_selector('mpcrc32', deep .. '\x01'), '\x90')
    t:is(why, 'callraw: argument 1 (bucket_id.key): a sharding key can not be nested deeper than 128 levels', 'depth')
end)

test:test('memory does not follow the size', function(t)
    -- Pages that the process has in memory.
    local function resident()
        local f = fio.open('/proc/self/statm', {'O_RDONLY'})
        local text = f:read(200)
        f:close()
        return tonumber(text:match('^%d+ (%d+)')) * 4096
    end
    t:plan(2)
    local path = ('[1]'):rep(99999)
    local selector = '\x81\xa4path' .. str(path)
    local args = ('\x91'):rep(100000) .. '\x01'
    local bytes = raw_call(selector, args)
    local wanted = oracle.mpcrc32(1) % BUCKETS + 1
    t:is(native.raw_bucket(bytes, BUCKETS, rules), wanted, 'a path of 100 000 steps')
    collectgarbage()
    local before = resident()
    for _ = 1, 200 do
        native.raw_bucket(bytes, BUCKETS, rules)
        native.raw_bucket(raw_call('\x81\xa4path\xac[4294967295]', '\xdd\xff\xff\xff\xff\x01'), BUCKETS, rules)
    end
    collectgarbage()
    t:ok(resident() - before < 8 * 2^20, 'nothing is kept')
end)

test:test('depth that the encoder bounds', function(t)
    t:plan(3)
    local function nested(levels)
        return ('\x91'):rep(levels + 1) .. '\x01'
    end
    local wanted = oracle.mpcrc32(decode(nested(128))) % BUCKETS + 1
    t:is(native_bucket(key_selector('mpcrc32', nested(128)), '\x90'), wanted, '128 levels in a key')
    t:is(pcall(oracle.mpcrc32, decode(nested(129))), false, 'vshard refuses more')
    t:is(native_bucket(key_selector('mpcrc32', nested(129)), '\x90'), nil, 'as we do')
end)

test:test('binary data, decoded as the user wants it', function(t)
    local has_compat, compat = pcall(require, 'compat')
    if not has_compat or not pcall(function() return compat.binary_data_decoding.current end) then
        t:plan(1)
        t:skip('this host has no choice')
        return
    end
    t:plan(4)
    for _, choice in ipairs({'old', 'new'}) do
        compat.binary_data_decoding = choice
        local now = hash.rules()
        for _, bytes in ipairs({'\xc4\x02ab', '\x92\xc5\x00\x02ab\x91\xc4\x01c'}) do
            local got = native.raw_bucket(raw_call(key_selector('mpcrc32', bytes), '\x90'), BUCKETS, now)
            t:is(got, oracle.mpcrc32(decode(bytes)) % BUCKETS + 1, choice)
        end
    end
    compat.binary_data_decoding = 'default'
    hash.rules()
end)

os.exit(test:check() and 0 or 1)
