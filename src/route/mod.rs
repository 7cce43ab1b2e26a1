//! Where a call goes: bucket hashes, the bucket table, the topology snapshot, and the choice of an instance.

pub mod address;
pub mod buckets;
mod decimal;
mod fourteen_digits;
pub mod hash;
mod integer;
mod number_text;
pub mod pick;
#[cfg(test)]
mod samples;
pub mod topology;
