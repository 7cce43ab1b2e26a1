//! What goes wrong in a call, and vshard's names and codes for it.

/// `type` of vshard's own errors.
pub const SHARDING_ERROR: &str = "ShardingError";

/// vshard's error codes as far as the router judges or makes them (`vshard/error.lua`).
pub mod code {
    pub const WRONG_BUCKET: u64 = 1;
    pub const NON_MASTER: u64 = 2;
    pub const MISSING_MASTER: u64 = 6;
    pub const TRANSFER_IS_IN_PROGRESS: u64 = 7;
    pub const UNREACHABLE_REPLICASET: u64 = 8;
    pub const NO_ROUTE_TO_BUCKET: u64 = 9;
    pub const OBJECT_IS_OUTDATED: u64 = 20;
    pub const BUCKET_IS_LOCKED: u64 = 22;
    pub const REPLICASET_IN_BACKOFF: u64 = 32;
    pub const STORAGE_IS_DISABLED: u64 = 33;
    pub const INSTANCE_NAME_MISMATCH: u64 = 41;
}

/// Codes of Tarantool's ClientError (`src/box/errcode.h`).
pub mod box_code {
    pub const INVALID_MSGPACK: u64 = 20;
    pub const PROC_LUA: u64 = 32;
    pub const NO_SUCH_PROC: u64 = 33;
    pub const ACCESS_DENIED: u64 = 42;
    pub const NO_CONNECTION: u64 = 77;
    pub const TIMEOUT: u64 = 78;
}

/// A failure that the router itself states; storages' errors pass through as bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The deadline came while a storage had the request, or before anything else was known.
    Timeout,
    /// The deadline came while the call waited for its turn at an instance that has as much to do as the limits allow.
    Overloaded {
        instance: String,
    },
    NoConnection {
        instance: String,
        address: String,
        reason: String,
    },
    /// The instance at the address has another name, or none.
    NameMismatch {
        expected: String,
        actual: Option<String>,
    },
    MissingMaster {
        replicaset: String,
    },
    UnreachableReplicaset {
        replicaset: String,
        bucket: u32,
    },
    NoRouteToBucket {
        bucket: u32,
    },
    /// `error` is the cause, one encoded map.
    ReplicasetInBackoff {
        replicaset: String,
        error: Box<[u8]>,
    },
    /// So many bytes were pushed to the call and not read, and there is more.
    PushOverflow {
        limit: usize,
    },
    /// The replicaset or instance was removed from the configuration.
    Outdated,
    /// A peer's answer that makes no sense.
    BadAnswer {
        instance: String,
        what: String,
    },
    /// The router was stopped.
    Stopped,
}
