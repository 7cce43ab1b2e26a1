//! The things that are compared: who stands between client and storages, and how it is called.

use crate::workload::{Returns, Shape};

pub struct Kind {
    pub name: &'static str,
    /// What bench/router.lua sets up for it. Empty: the load goes straight to a storage.
    pub setup: &'static str,
    pub entry: &'static str,
    pub shape: Shape,
    pub returns: Returns,
    /// Bytes must come back equal even inside maps: nothing on the way decodes them.
    pub exact: bool,
    /// Not loaded to its limit but at the pace that this other kind reached in the same round: as many requests a
    /// second, as many of them at once.
    pub paced_by: Option<&'static str>,
}

pub const KINDS: [Kind; 26] = [
    kind("vshard", "vshard", "bench_vshard", Returns::Values),
    kind("vshard-raw", "vshard", "bench_vshard_raw", Returns::Values),
    kind("forwarder", "forwarder", "bench_forwarder", Returns::Values),
    kind("rawshard-c", "rawshard", "rawshard.callraw", Returns::Values),
    kind("rawshard-c-parked", "rawshard-parked", "rawshard.callraw", Returns::Values),
    kind("rawshard-lua", "rawshard", "bench_rawshard_lua", Returns::Values),
    kind("rawshard-lua-wrapped", "rawshard", "bench_rawshard_lua_wrapped", Returns::Values),
    kind("rawshard-decoded", "rawshard", "bench_rawshard_decoded", Returns::Values),
    Kind { shape: Shape::Keyed, ..kind("rawshard-key", "rawshard", "rawshard.callraw", Returns::Values) },
    Kind {
        shape: Shape::Keyed,
        ..kind("rawshard-key-lua", "rawshard", "bench_rawshard_lua", Returns::Values)
    },
    Kind { shape: Shape::Plain, ..kind("rawshard-endpoint", "rawshard", "bench_endpoint", Returns::Values) },
    Kind { exact: true, ..kind("c-echo", "floor", "bench_floor.echo", Returns::Args) },
    Kind { exact: true, ..kind("c-park", "floor", "bench_floor.park", Returns::Args) },
    Kind {
        exact: true,
        paced_by: Some("rawshard-c"),
        ..kind("c-park-paced", "floor", "bench_floor.park", Returns::Args)
    },
    Kind { exact: true, ..kind("c-fixed", "floor", "bench_floor.fixed", Returns::Values) },
    Kind { exact: true, ..kind("lua-raw-floor", "floor", "bench_raw_floor", Returns::Args) },
    Kind {
        exact: true,
        paced_by: Some("rawshard-c"),
        ..kind("c-echo-paced", "floor", "bench_floor.echo", Returns::Args)
    },
    Kind {
        exact: true,
        paced_by: Some("rawshard-c"),
        ..kind("c-fixed-paced", "floor", "bench_floor.fixed", Returns::Values)
    },
    Kind {
        exact: true,
        paced_by: Some("rawshard-lua-wrapped"),
        ..kind("lua-raw-floor-paced", "floor", "bench_raw_floor", Returns::Args)
    },
    Kind { exact: true, ..kind("lua-raw-fixed", "floor", "bench_raw_fixed", Returns::Values) },
    Kind {
        exact: true,
        paced_by: Some("rawshard-lua-wrapped"),
        ..kind("lua-raw-fixed-paced", "floor", "bench_raw_fixed", Returns::Values)
    },
    Kind {
        exact: true,
        paced_by: Some("rawshard-c"),
        ..kind("c-handed-paced", "floor", "bench_floor.handed", Returns::Values)
    },
    Kind { exact: true, ..kind("lua-raw-park", "floor", "bench_raw_park", Returns::Values) },
    Kind {
        exact: true,
        paced_by: Some("rawshard-lua-wrapped"),
        ..kind("lua-raw-park-paced", "floor", "bench_raw_park", Returns::Values)
    },
    kind("lua-noop", "floor", "bench_noop", Returns::Nothing),
    Kind { shape: Shape::Storage, ..kind("storage", "", "vshard.storage.call", Returns::StatusAndValues) },
];

/// What `make bench` compares on every workload, in this order.
pub const PROXY: [&str; 21] = [
    "vshard",
    "vshard-raw",
    "forwarder",
    "rawshard-c",
    "rawshard-c-parked",
    "rawshard-lua",
    "rawshard-lua-wrapped",
    "c-echo",
    "c-echo-paced",
    "c-fixed",
    "c-fixed-paced",
    "c-handed-paced",
    "c-park",
    "c-park-paced",
    "lua-raw-floor",
    "lua-raw-floor-paced",
    "lua-raw-fixed",
    "lua-raw-fixed-paced",
    "lua-raw-park",
    "lua-raw-park-paced",
    "lua-noop",
];

/// What is compared where storages cost nothing: vshard, rawshard and what it stands on.
pub const SATURATED: [&str; 14] = [
    "vshard",
    "vshard-raw",
    "forwarder",
    "rawshard-c",
    "rawshard-c-parked",
    "rawshard-lua",
    "rawshard-lua-wrapped",
    "c-echo-paced",
    "c-fixed-paced",
    "c-handed-paced",
    "c-park-paced",
    "lua-raw-floor-paced",
    "lua-raw-fixed-paced",
    "lua-raw-park-paced",
];

pub fn by_name(name: &str) -> Result<&'static Kind, String> {
    KINDS.iter().find(|k| k.name == name).ok_or_else(|| {
        let names: Vec<_> = KINDS.iter().map(|k| k.name).collect();
        format!("unknown kind {name}; known: {}", names.join(" "))
    })
}

const fn kind(name: &'static str, setup: &'static str, entry: &'static str, returns: Returns) -> Kind {
    Kind { name, setup, entry, shape: Shape::Callraw, returns, exact: false, paced_by: None }
}
