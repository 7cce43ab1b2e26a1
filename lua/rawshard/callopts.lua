-- The options of one call, as the last argument of every call function gives them.

local codec = require('rawshard.codec')

-- Futures are to come; until then this is the only place that knows of them.
local function refuse_async()
    error('is_async is not supported yet', 0)
end

-- Options of net.box that cannot mean anything here. Ignoring them would lose data silently, so they are refused;
-- other unknown keys are let pass.
local function refuse(opts)
    if opts.is_async then
        refuse_async()
    end
    for _, key in ipairs({'buffer', 'skip_header', 'on_push', 'on_push_ctx'}) do
        if opts[key] then
            error(('option "%s" is not supported'):format(key), 0)
        end
    end
end

-- Timeout, request_timeout or nil, whether raw. Wrong types raise `usage`.
local function read(opts, default_timeout, usage)
    if type(opts) ~= 'table' then
        error(usage, 0)
    end
    local timeout, request_timeout = opts.timeout, opts.request_timeout
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
    if opts.is_async or opts.buffer or opts.skip_header or opts.on_push or opts.on_push_ctx then
        refuse(opts)
    end
    if opts.return_raw then
        codec.check_raw_supported()
        return timeout, request_timeout, true
    end
    return timeout, request_timeout, false
end

return {
    read = read,
}
