//! Identities as types, so that a signature tells a bucket from a replicaset from a sync.

use std::fmt;

/// A bucket's number: 1..=bucket_count.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct BucketId(u32);

impl BucketId {
    /// None unless `1 <= id <= bucket_count`.
    pub fn new(id: u64, bucket_count: u32) -> Option<BucketId> {
        (1..=u64::from(bucket_count)).contains(&id).then_some(BucketId(id as u32))
    }

    pub fn number(self) -> u32 {
        self.0
    }

    /// Position in a table of buckets.
    pub fn slot(self) -> usize {
        self.0 as usize - 1
    }
}

impl fmt::Display for BucketId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A replicaset of this router. Given out once and never reused, so that an index held by a call or a bucket cell
/// survives any reconfiguration: at worst it names a replicaset that is gone.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ReplicasetIdx(pub u32);

/// An instance of this router, never reused, like [`ReplicasetIdx`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct InstanceIdx(pub u32);

impl ReplicasetIdx {
    pub fn slot(self) -> usize {
        self.0 as usize
    }
}

impl InstanceIdx {
    pub fn slot(self) -> usize {
        self.0 as usize
    }
}

/// IPROTO's request number, chosen by the side that asks and echoed by the one that answers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Sync(pub u64);

/// A call inside one engine: slot and generation of its slab.
pub type CallId = crate::slab::Key;
