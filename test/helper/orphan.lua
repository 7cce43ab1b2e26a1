-- A child must not outlive its driver: the kernel's parent-death signal, and end-of-file on the stdin pipe for the case that
-- the driver died before the signal was asked for.

local ffi = require('ffi')
local fiber = require('fiber')
local socket = require('socket')

ffi.cdef([[
    int prctl(int option, unsigned long arg2, unsigned long arg3, unsigned long arg4, unsigned long arg5);
    ssize_t read(int fd, void *buf, size_t count);
    void _exit(int status);
]])

local PR_SET_PDEATHSIG = 1

-- signal: what the kernel sends when the driver dies. on_orphaned: called at end-of-file; default: leave without ceremony.
local function watch(signal, on_orphaned)
    ffi.C.prctl(PR_SET_PDEATHSIG, signal, 0, 0, 0)
    fiber.create(function()
        fiber.name('driver_watch')
        local buf = ffi.new('char[16]')
        while true do
            if socket.iowait(0, 'R', 3600) ~= nil and ffi.C.read(0, buf, 16) == 0 then
                if on_orphaned ~= nil then
                    on_orphaned()
                end
                ffi.C._exit(3)
            end
            fiber.sleep(0)
        end
    end)
end

return {watch = watch}
