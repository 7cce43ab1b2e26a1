std = 'luajit'
max_line_length = 130
globals = {'box', '_TARANTOOL', 'tonumber64', 'vshard', 'router', 'config', 'fiber', 'msgpack', 'is_ready'}
read_globals = {
    string = {fields = {'split', 'startswith', 'endswith', 'strip', 'hex', 'fromhex'}},
    table = {fields = {'copy', 'deepcopy', 'new', 'clear', 'maxn'}},
    os = {fields = {'environ', 'setenv'}},
    utf8 = {fields = {'len'}},
}
exclude_files = {'build', 'target', '.rocks'}
