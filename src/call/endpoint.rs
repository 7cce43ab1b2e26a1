//! An endpoint: a function of the storages under a name of its own. Its calls give the function's arguments alone, and the
//! bucket is that of the sharding key in these.

use std::time::Duration;

use crate::call::key::{self, Keyspace};
use crate::call::request::Access;
use crate::ids::BucketId;
use crate::route::hash::Hash;
use crate::wire::mp;
use crate::wire::path::Path;

#[derive(Debug)]
pub struct Endpoint {
    /// For messages.
    pub name: String,
    /// A MessagePack string.
    func: Vec<u8>,
    pub paths: Vec<Path>,
    /// None: somebody else finds the bucket.
    pub hash: Option<Hash>,
    pub access: Access,
    pub timeout: Duration,
    /// Bound of one attempt; None for writes.
    pub attempt_timeout: Option<Duration>,
}

impl Endpoint {
    pub fn new(
        name: String,
        func: &[u8],
        paths: Vec<Path>,
        hash: Option<Hash>,
        access: Access,
        timeout: Duration,
        attempt_timeout: Option<Duration>,
    ) -> Endpoint {
        let mut name_of_func = Vec::new();
        mp::write_bytes_as_str(&mut name_of_func, func);
        Endpoint { name, func: name_of_func, paths, hash, access, timeout, attempt_timeout }
    }

    /// Puts in `buffer` what comes before the arguments of a call, instead of what is there.
    pub fn begin(&self, buffer: &mut Vec<u8>) {
        buffer.clear();
        buffer.extend_from_slice(&self.func);
    }

    /// The length of that.
    pub fn func_len(&self) -> usize {
        self.func.len()
    }

    /// The bucket of the key in `args`. An error says what is wrong with the key.
    pub fn bucket(&self, args: &[u8], keyspace: Keyspace) -> Result<BucketId, String> {
        let hash = self.hash.ok_or("the bucket is to be given")?;
        key::bucket_at(&self.paths, hash, args, keyspace)
    }
}
