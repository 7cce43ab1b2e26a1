-- Routers beside vshard's own: configured by what a vshard router was configured with, and again whenever that changes.
--
-- vshard offers nothing to be told of a configuration by, and its functions stay as they are. But a router of its has a new
-- `current_cfg` after each successful one, whoever made it, be it a reload of vshard: a fiber looks for that.

local fiber = require('fiber')
local log = require('log')
local lcfg = require('rawshard.cfg')

-- Seconds, between looks.
local PERIOD = 0.2

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

local function follow_once(attached, router)
    local source = attached.source
    if source.current_cfg ~= attached.seen then
        attached.seen = source.current_cfg
        local ok, err = pcall(router.cfg, router, cfg_of(attached))
        if not ok then
            log.error('The router "%s" does not take over the new configuration of vshard: %s', router.name, err)
        end
    end
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
