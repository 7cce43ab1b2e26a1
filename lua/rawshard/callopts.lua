-- The options of one call, as the last argument of every call function gives them.

local ffi = require('ffi')
local codec = require('rawshard.codec')

-- What a function pushes goes to `on_push`; with `buffer` the answer goes there undecoded. Rare, so that they are kept apart:
-- nil when none of them is given.
local function read_special(opts, is_async)
    local on_push, buffer = opts.on_push, opts.buffer
    if on_push == nil and buffer == nil and opts.on_push_ctx == nil then
        return nil
    end
    if is_async and (on_push ~= nil or opts.on_push_ctx ~= nil) then
        error('option "on_push" is not for calls with "is_async": take what is pushed from future:pairs()', 0)
    end
    if on_push ~= nil and type(on_push) ~= 'function' then
        error('option "on_push" must be a function', 0)
    end
    if buffer ~= nil then
        if type(buffer) ~= 'cdata' or not ffi.istype('struct ibuf', buffer) then
            error('option "buffer" must be a buffer.ibuf()', 0)
        end
        if opts.return_raw or on_push ~= nil then
            error('option "buffer" can be combined neither with "return_raw" nor with "on_push"', 0)
        end
    end
    if on_push == nil and buffer == nil then
        return nil
    end
    return {
        on_push = on_push, on_push_ctx = opts.on_push_ctx, buffer = buffer, skip_header = opts.skip_header and true or false,
    }
end

-- Timeout, request_timeout or nil, whether raw, whether a future is wanted, and special options or nil. Wrong types raise
-- `usage`, unknown keys are let pass. A future without a timeout of its own has none: its call may take long, whoever waits says
-- how long that is worth it.
local function read(opts, default_timeout, usage)
    if type(opts) ~= 'table' then
        error(usage, 0)
    end
    local timeout, request_timeout, is_async = opts.timeout, opts.request_timeout, opts.is_async and true or false
    if timeout then
        if type(timeout) ~= 'number' then
            error(usage, 0)
        end
    else
        timeout = default_timeout
    end
    if request_timeout then
        if type(request_timeout) ~= 'number' then
            error(usage, 0)
        end
        if request_timeout > timeout then
            error('request_timeout must be <= timeout', 0)
        end
    else
        request_timeout = nil
    end
    local special
    if opts.buffer or opts.on_push or opts.on_push_ctx then
        special = read_special(opts, is_async)
    end
    if is_async and not opts.timeout then
        timeout = nil
    end
    if opts.return_raw then
        codec.check_raw_supported()
        return timeout, request_timeout, true, is_async, special
    end
    return timeout, request_timeout, false, is_async, special
end

return {
    read = read,
}
