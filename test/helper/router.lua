-- The router under test: rawshard's, or vshard's own as the oracle; and the functions through which the driver calls it.

local msgpack = require('msgpack')

local has_msgpack_object = msgpack.object ~= nil

local function pack(...)
    return {n = select('#', ...), ...}
end

-- The result of a call in a form that survives the way to the driver: nil and box.NULL told apart, objects marked.
local function describe(res)
    local out = {ok = res[1], n = res.n - 1, v = {}, kinds = {}}
    for i = 2, res.n do
        local v = res[i]
        if v == nil then
            out.kinds[i - 1] = type(v) == 'nil' and 'nil' or 'null'
            out.v[i - 1] = box.NULL
        else
            out.kinds[i - 1] = has_msgpack_object and msgpack.is_object(v) and 'object' or type(v)
            if type(v) == 'cdata' and type(v.unpack) == 'function' and v.code ~= nil then
                v = v:unpack()
            end
            out.v[i - 1] = v
        end
    end
    if not out.ok then
        local raised = res[2]
        out.raised = type(raised) == 'table' and raised or tostring(raised)
        out.v = {}
        out.n = 0
    end
    return out
end

-- IPROTO knows only box.NULL; a Lua caller would write nil.
local function from_null(...)
    local res = pack(...)
    for i = 1, res.n do
        if res[i] == nil then
            res[i] = nil
        end
    end
    return unpack(res, 1, res.n)
end

local function start(config)
    local router
    box.cfg({
        listen = config.listen,
        work_dir = config.dir,
        memtx_memory = config.memtx_memory,
        net_msg_max = config.net_msg_max,
        log_level = 5,
    })
    box.schema.user.grant('guest', 'super', nil, nil, {if_not_exists = true})
    box.schema.user.create('client', {password = 'secret', if_not_exists = true})
    if config.kind == 'vshard' then
        _G.vshard = require('vshard')
        router = _G.vshard.router
    else
        router = require('rawshard.router')
        _G.vshard = {router = router}
    end
    _G.router = router
    _G.msgpack = msgpack
    if config.router_cfg ~= nil then
        router.cfg(config.router_cfg)
    end

    if config.kind == 'rawshard' then
        box.schema.func.create('rawshard.callraw', {language = 'C', if_not_exists = true})
        box.schema.user.grant('client', 'execute', 'function', 'rawshard.callraw', {if_not_exists = true})
        if has_msgpack_object then
            box.schema.func.create('vshard.router.callraw', {takes_raw_args = true, if_not_exists = true})
            box.schema.user.grant('client', 'execute', 'function', 'vshard.router.callraw', {if_not_exists = true})
        end
    end

    -- router.call(bucket, mode, func, args, opts). With args_object the arguments travel as a msgpack.object.
    function _G.test_call(bucket, mode, func, args, opts, args_object)
        bucket, mode, func, args, opts = from_null(bucket, mode, func, args, opts)
        if args_object then
            args = msgpack.object(args)
        end
        return describe(pack(pcall(router.call, bucket, mode, func, args, opts)))
    end

    -- [bucket, func, args] as bytes: the arguments go on as the msgpack.object they are, the result comes back as one.
    if has_msgpack_object then
        function _G.test_return_raw(object)
            local it = object:iterator()
            it:decode_array_header()
            local bucket, func, args = it:decode(), it:decode(), it:take()
            return router.callrw(bucket, func, args, {return_raw = true, timeout = 30})
        end
        box.schema.func.create('test_return_raw', {takes_raw_args = true, if_not_exists = true})
    end

    -- As the option iproto_override, without a configuration.
    function _G.rawshard_override(is_on)
        if router.static ~= nil then
            require('rawshard.override').set(rawget(_G, '__module_rawshard_router'), is_on)
        end
    end

    -- router[name](…) of any other function.
    function _G.test_api(name, args)
        return describe(pack(pcall(router[name], unpack(args, 1, table.maxn(args)))))
    end
end

return {start = start}
