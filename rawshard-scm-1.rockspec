package = 'rawshard'
version = 'scm-1'
source = {
    url = 'git+https://github.com/rawshard/rawshard.git',
    branch = 'main',
}
description = {
    summary = 'A native vshard router for Tarantool: requests cross it as MessagePack bytes',
    license = 'BSD-2-Clause',
}
dependencies = {
    'lua >= 5.1',
}
build = {
    type = 'make',
    build_target = 'build',
    install_variables = {
        LIBDIR = '$(LIBDIR)',
        LUADIR = '$(LUADIR)',
    },
}
