//! Where a call goes: bucket hashes, the bucket table, the topology snapshot, and the choice of an instance.

pub mod address;
pub mod buckets;
pub mod hash;
pub mod pick;
pub mod topology;
