-- The checks of one scenario. They are collected here and become one TAP line; only failures are told in detail.

local json = require('json')

local check = {}
check.__index = check

function check.new()
    return setmetatable({total = 0, failed = 0, notes = {}}, check)
end

-- Deep equality of decoded MessagePack: nil and box.NULL are one, NaN equals itself, integers compare by value.
local function equal(a, b)
    if a == nil or b == nil then
        return a == nil and b == nil
    end
    if type(a) == 'table' and type(b) == 'table' then
        for k, v in pairs(a) do
            if not equal(v, b[k]) then
                return false
            end
        end
        for k in pairs(b) do
            if a[k] == nil and b[k] ~= nil then
                return false
            end
        end
        return true
    end
    if type(a) == 'number' and type(b) == 'number' and a ~= a then
        return b ~= b
    end
    if type(a) == 'table' or type(b) == 'table' then
        return false
    end
    return a == b
end

local function show(value)
    local ok, text = pcall(json.encode, value)
    text = ok and text or tostring(value)
    if #text > 1500 then
        text = text:sub(1, 1500) .. '…'
    end
    return text
end

-- Where in the scenario the check stands.
local function place()
    for level = 3, 12 do
        local info = debug.getinfo(level, 'Sl')
        if info == nil then
            return ''
        end
        if not info.source:find('test/helper/', 1, true) and info.currentline > 0 then
            return (' (%s:%d)'):format(info.short_src:match('[^/]+$'), info.currentline)
        end
    end
    return ''
end

function check:note(format, ...)
    local text = select('#', ...) > 0 and format:format(...) or format
    table.insert(self.notes, text)
end
check.diag = check.note

function check:ok(is_true, message, ...)
    self.total = self.total + 1
    if not is_true then
        self.failed = self.failed + 1
        self:note('%s', 'failed: ' .. (message or 'check') .. place())
        if select('#', ...) > 0 then
            self:note(...)
        end
    end
    return is_true and true or false
end

function check:fail(message)
    return self:ok(false, message)
end

function check:is(got, wanted, message)
    local is_same = equal(got, wanted)
    self:ok(is_same, message)
    if not is_same then
        self:note('  got:    %s', show(got))
        self:note('  wanted: %s', show(wanted))
    end
    return is_same
end

function check:isnt(got, unwanted, message)
    local is_same = equal(got, unwanted)
    self:ok(not is_same, message)
    if is_same then
        self:note('  got just that: %s', show(got))
    end
    return not is_same
end

-- low <= number <= high.
function check:within(number, low, high, message)
    local is_in = type(number) == 'number' and number >= low and number <= high
    self:ok(is_in, message)
    if not is_in then
        self:note('  got %s, wanted %g … %g', tostring(number), low, high)
    end
    return is_in
end

function check:has(text, part, message)
    local is_in = type(text) == 'string' and text:find(part, 1, true) ~= nil
    self:ok(is_in, message)
    if not is_in then
        self:note('  got:              %s', show(text))
        self:note('  wanted to be in it: %s', show(part))
    end
    return is_in
end

-- The terms of the raw contract; `res` is what a front end gave (frontends.lua).

-- The call succeeded with exactly these values; the decoded way shows the first one.
function check:values(fe, res, wanted, message)
    message = message or 'values'
    if res.raised ~= nil then
        self:fail(message)
        self:note('  raised: %s', show(res.raised))
        return false
    end
    local n = wanted.n or table.maxn(wanted)
    if fe ~= nil and fe.only_first then
        n = math.min(n, 1)
        if n == 1 and wanted[1] == nil then
            n = res.n
        end
    end
    local is_same = res.n == n
    for i = 1, n do
        is_same = is_same and equal(res[i], wanted[i])
    end
    self:ok(is_same, message)
    if not is_same then
        self:note('  got %d:    %s', res.n, show(res))
        self:note('  wanted %d: %s', n, show(wanted))
    end
    return is_same
end

-- The call failed by `nil, err`; err has these fields. A function instead of a value judges the field.
function check:error(res, wanted, message)
    message = message or 'error'
    if res.raised ~= nil then
        self:fail(message)
        self:note('  raised: %s', show(res.raised))
        return false
    end
    local err = res[2]
    local is_good = res.n == 2 and res[1] == nil and type(err) == 'table'
    if is_good then
        for k, v in pairs(wanted) do
            if type(v) == 'function' then
                is_good = is_good and v(err[k])
            else
                is_good = is_good and equal(err[k], v)
            end
        end
    end
    self:ok(is_good, message)
    if not is_good then
        self:note('  got:           %s', show(res))
        self:note('  wanted fields: %s', show(wanted))
    end
    return is_good
end

-- A timeout in any of the forms that vshard's is_timeout accepts.
function check:timeout(res, message)
    message = message or 'timeout'
    local err = res[2]
    local is_timeout = res.raised == nil and res[1] == nil and type(err) == 'table' and
        (err.code == 78 or err.type == 'TimedOut' or err.code == 32 and err.message == 'Timeout exceeded')
    self:ok(is_timeout, message)
    if not is_timeout then
        self:note('  got: %s', show(res))
    end
    return is_timeout
end

-- The call raised; its message has this text.
function check:raised(res, text, message)
    local has = res.raised ~= nil and tostring(res.raised):find(text, 1, true) ~= nil
    self:ok(has, message or ('raises: ' .. text))
    if not has then
        self:note('  got: %s', show(res))
        self:note('  wanted to be raised with: %s', text)
    end
    return has
end

check.equal = equal
check.show = show

return check
