std = 'luajit'
max_line_length = 130
globals = {'box', '_TARANTOOL', 'tonumber64', 'vshard', 'router', 'config', 'fiber', 'msgpack', 'is_ready'}
read_globals = {
    package = {other_fields = true, read_only = false},
    string = {fields = {'split', 'startswith', 'endswith', 'strip', 'hex', 'fromhex'}},
    table = {fields = {'copy', 'deepcopy', 'new', 'clear', 'maxn'}},
    os = {fields = {'environ', 'setenv'}},
    utf8 = {fields = {'len'}},
}
-- `not (x >= y)` is also true for NaN, and that is why it is written.
ignore = {'581'}
exclude_files = {'build', 'target', '.rocks'}
