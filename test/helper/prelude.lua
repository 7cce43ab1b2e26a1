-- Code that a test runs on the router of its cluster, with what much of that code uses in front.
--
--     local on_router = prelude.on_router([[
--         local rs1 = router.routeall()['…']
--     ]])
--     t:is(on_router(c, 'return wait(function() return rs1.master end).id'), '…', 'the master')

local TEXT = [[
    local fiber = require('fiber')
    -- The name or the text of what is raised.
    local function raised(f, ...)
        local ok, err = pcall(f, ...)
        return ok and 'nothing raised' or type(err) == 'table' and err.name or tostring(err)
    end
    -- Until f gives something, which is what it gives then; or what it gave last.
    local function wait(f, timeout)
        local deadline = fiber.clock() + (timeout or 10)
        local res = f()
        while not res and fiber.clock() < deadline do
            fiber.sleep(0.005)
            res = f()
        end
        return res
    end
    -- f(i) in n fibers at once, until all of them have ended.
    local function in_fibers(n, f)
        local running = n
        for i = 1, n do
            fiber.create(function()
                f(i)
                running = running - 1
            end)
        end
        while running > 0 do
            fiber.sleep(0.005)
        end
    end
    -- The module is loaded anew when it is required the next time.
    local function unload()
        for name in pairs(package.loaded) do
            if name:find('^rawshard') then
                package.loaded[name] = nil
            end
        end
    end
]]

-- on_router(c, code, ...): what the code gives for the arguments. `own` stands between the common text and the code.
local function on_router(own)
    local before = TEXT .. (own or '')
    return function(c, code, ...)
        return c.router:eval(before .. code, {...}, {timeout = 60})
    end
end

return {TEXT = TEXT, on_router = on_router}
