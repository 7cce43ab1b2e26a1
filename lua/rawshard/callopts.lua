-- The options of one call, as the last argument of every call function gives them.

local codec = require('rawshard.codec')

-- Options of net.box that cannot mean anything here. Ignoring them would lose data silently, so they are refused;
-- other unknown keys are let pass.
local function refuse(opts)
    for _, key in ipairs({'buffer', 'skip_header', 'on_push', 'on_push_ctx'}) do
        if opts[key] then
            error(('option "%s" is not supported'):format(key), 0)
        end
    end
end

-- Timeout, request_timeout or nil, whether raw, whether a future is wanted. Wrong types raise `usage`. A future without a
-- timeout of its own has none: its call may take long, whoever waits says how long that is worth it.
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
    if opts.buffer or opts.skip_header or opts.on_push or opts.on_push_ctx then
        refuse(opts)
    end
    if is_async and not opts.timeout then
        timeout = nil
    end
    if opts.return_raw then
        codec.check_raw_supported()
        return timeout, request_timeout, true, is_async
    end
    return timeout, request_timeout, false, is_async
end

return {
    read = read,
}
