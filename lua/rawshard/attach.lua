-- Routers beside vshard's own: configured by what a vshard router was configured with, and again whenever that changes.
--
-- vshard offers nothing to be told of a configuration by, and its functions stay as they are. But a router of its has a new
-- `current_cfg` after each successful one, whoever made it, be it a reload of vshard: a fiber looks for that.

local fiber = require('fiber')
local log = require('log')
local lcfg = require('rawshard.cfg')

-- Seconds, between looks.
local PERIOD = 0.2
-- After a configuration that was not taken over, which is tried again: what it fails by may pass.
local RETRY_PERIOD = 1
-- The log is told of one that goes on failing no more often than this.
local LOG_PERIOD = 60

local USAGE = 'Usage: attach(router, [options]), with a configured vshard.router or a router that vshard.router.new() gave'

-- The router object behind vshard.router, or of vshard.router.new().
local function source_of(router)
    local source = type(router) == 'table' and (router.static or router) or nil
    if source == nil or type(source.current_cfg) ~= 'table' or type(source.name) ~= 'string' then
        error(USAGE, 0)
    end
    return source
end

local function check_options(options)
    if options ~= nil and type(options) ~= 'table' then
        error(USAGE, 0)
    end
    for key in pairs(options or {}) do
        if not lcfg.is_added_option[key] then
            error(('attach: "%s" is not an option of rawshard, everything else comes from vshard'):format(tostring(key)), 0)
        end
    end
    return options or {}
end

-- Whoever configured vshard has configured the box as well.
local function cfg_of(attached)
    local cfg = table.copy(attached.source.current_cfg)
    cfg.box_cfg_mode = 'manual'
    for key, value in pairs(attached.options) do
        cfg[key] = value
    end
    return cfg
end

local function new(router, options)
    local source = source_of(router)
    return {source = source, options = check_options(options), seen = source.current_cfg,
            is_enabled = source.is_enabled ~= false}
end

-- `attached.failed`: when the newest configuration is tried again, and when the log may be told next; nil once it is the
-- router's.
local function take_over(attached, router)
    local failed = attached.failed
    local is_new = attached.source.current_cfg ~= attached.seen
    if not is_new and (failed == nil or fiber.clock() < failed.retry_at) then
        return
    end
    attached.seen = attached.source.current_cfg
    local ok, err = pcall(router.cfg, router, cfg_of(attached))
    local now = fiber.clock()
    if ok then
        if failed ~= nil then
            log.info('The router "%s" has taken over the configuration of vshard', router.name)
        end
        attached.failed = nil
        return
    end
    -- One more, whatever was told of the one before.
    local log_at = not is_new and failed.log_at or now
    if log_at <= now then
        log.error('The router "%s" does not take over the new configuration of vshard and tries again: %s', router.name, err)
        log_at = now + LOG_PERIOD
    end
    attached.failed = {retry_at = now + RETRY_PERIOD, log_at = log_at}
end

local function follow_once(attached, router)
    local source = attached.source
    take_over(attached, router)
    local is_enabled = source.is_enabled ~= false
    if is_enabled ~= attached.is_enabled then
        attached.is_enabled = is_enabled
        if is_enabled then
            router:enable()
        else
            router:disable()
        end
    end
end

-- Has `router` follow, in the place of whoever did so before a reload of this module.
local function follow(attached, router)
    if attached.fiber ~= nil then
        pcall(attached.fiber.cancel, attached.fiber)
    end
    attached.fiber = fiber.new(function()
        while router.native_id ~= nil do
            fiber.sleep(PERIOD)
            follow_once(attached, router)
        end
    end)
    attached.fiber:name('rawshard.attach', {truncate = true})
end

return {
    cfg_of = cfg_of,
    follow = follow,
    new = new,
}
