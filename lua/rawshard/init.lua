-- rawshard: a native vshard router. Modules of the Lua half:
--   router       the public API, under vshard.router's names
--   replicaset   objects of one replicaset and of its replicas
--   monitor      info() and buckets_info()
--   bootstrap    first distribution of buckets
--   codec        arguments into bytes, answers into values
--   cfg, uri     the configuration table
--   hash, error  vshard's hashes and error tables
--   native       finds and loads rawshard.so
--   version      versions, and what the host can do

return {
    router = require('rawshard.router'),
    version = require('rawshard.version').VERSION,
}
