-- Child processes of the driver: started, signalled, waited for, and never left behind.
--
-- Three nets keep a child from outliving the driver: the driver's own clean-up, a pipe on the child's stdin that reports
-- end-of-file when the driver is gone, and the kernel's parent-death signal, which reaches even a stopped child
-- (instance.lua sets up the last two).

local fiber = require('fiber')
local fio = require('fio')
local popen = require('popen')

local process = {}
process.__index = process

-- Every process still alive, so that one call can end them all.
local alive = {}

-- argv: program and arguments. opts: cwd, log (file that takes stdout and stderr), err (file for stderr alone), env (table
-- added to ours).
function process.spawn(argv, opts)
    local env = os.environ()
    for k, v in pairs(opts.env or {}) do
        env[k] = v
    end
    -- popen cannot redirect into a file, a shell that replaces itself can; the pid stays the child's.
    local cmd = {
        '/bin/sh', '-c', 'cd "$0" && log="$1" && err="$2" && shift 2 && exec "$@" >>"$log" 2>>"$err"',
        opts.cwd or '.', opts.log, opts.err or opts.log,
    }
    for _, arg in ipairs(argv) do
        table.insert(cmd, arg)
    end
    local handle, err = popen.new(cmd, {
        stdin = popen.opts.PIPE,
        stdout = popen.opts.INHERIT,
        stderr = popen.opts.INHERIT,
        env = env,
        restore_signals = true,
        close_fds = true,
    })
    if handle == nil then
        error(('cannot start %s: %s'):format(argv[1], err))
    end
    local self = setmetatable({handle = handle, pid = handle.pid, log = opts.log}, process)
    alive[self] = true
    return self
end

function process:is_alive()
    return self.handle ~= nil and self.handle.status.state == popen.state.ALIVE
end

-- How it ended: a number (exit code) or 'signal N'; nil while it runs.
function process:exit_status()
    local status = self.status or (self.handle and self.handle.status)
    if status == nil or status.state == popen.state.ALIVE then
        return nil
    end
    if status.state == popen.state.SIGNALED then
        return 'signal ' .. status.signo
    end
    return status.exit_code
end

function process:signal(signo)
    if self:is_alive() then
        self.handle:signal(signo)
    end
end

function process:wait(timeout)
    local deadline = fiber.clock() + (timeout or 30)
    while self:is_alive() do
        if fiber.clock() > deadline then
            return false
        end
        fiber.sleep(0.005)
    end
    return true
end

-- Forget a process that ended: closes its stdin pipe and keeps its exit status.
function process:reap()
    if self.handle ~= nil and not self:is_alive() then
        self.status = self.handle.status
        self.handle:close()
        self.handle = nil
    end
    alive[self] = nil
end

function process:terminate(timeout)
    self:signal(popen.signal.SIGTERM)
    local in_time = self:wait(timeout or 15)
    if not in_time then
        self:kill()
    end
    self:reap()
    return in_time
end

function process:kill()
    self:signal(popen.signal.SIGKILL)
    self:wait(10)
    self:reap()
end

function process:freeze()
    self:signal(popen.signal.SIGSTOP)
    -- The signal is on its way; the scenario starts only when the kernel shows the process as stopped.
    local deadline = fiber.clock() + 10
    while fiber.clock() < deadline do
        local f = fio.open(('/proc/%d/stat'):format(self.pid), {'O_RDONLY'})
        local stat = f ~= nil and f:read(1024) or ''
        if f ~= nil then
            f:close()
        end
        if stat:match('%) (%a)') == 'T' then
            return
        end
        fiber.sleep(0.002)
    end
    error('process ' .. self.pid .. ' does not stop')
end

function process:thaw()
    self:signal(popen.signal.SIGCONT)
end

function process:log_tail(lines)
    local f = fio.open(self.log, {'O_RDONLY'})
    if f == nil then
        return '(no log)'
    end
    local size = f:stat().size
    f:seek(math.max(0, size - 16384))
    local text = f:read(16384)
    f:close()
    local all = text:split('\n')
    local first = math.max(1, #all - (lines or 30))
    return table.concat(all, '\n', first)
end

-- End everything at once; used on the way out, so it does not wait for good manners.
function process.kill_all()
    for p in pairs(alive) do
        pcall(p.signal, p, popen.signal.SIGKILL)
    end
    for p in pairs(alive) do
        pcall(p.kill, p)
    end
end

return process
