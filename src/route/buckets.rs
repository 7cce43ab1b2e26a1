//! bucket → replicaset: one atomic cell per bucket, read and written by any thread without a lock.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::ids::{BucketId, ReplicasetIdx};

const UNKNOWN: u32 = u32::MAX;

pub struct Buckets {
    cells: Box<[AtomicU32]>,
}

impl Buckets {
    pub fn new(count: u32) -> Buckets {
        Buckets { cells: (0..count).map(|_| AtomicU32::new(UNKNOWN)).collect() }
    }

    pub fn count(&self) -> u32 {
        self.cells.len() as u32
    }

    // Relaxed everywhere: a cell guards no other memory, and a stale route costs one redirect.

    pub fn get(&self, bucket: BucketId) -> Option<ReplicasetIdx> {
        let owner = self.cells[bucket.slot()].load(Ordering::Relaxed);
        (owner != UNKNOWN).then_some(ReplicasetIdx(owner))
    }

    pub fn set(&self, bucket: BucketId, owner: ReplicasetIdx) {
        self.cells[bucket.slot()].store(owner.0, Ordering::Relaxed);
    }

    pub fn forget(&self, bucket: BucketId) {
        self.cells[bucket.slot()].store(UNKNOWN, Ordering::Relaxed);
    }

    /// Forgets the route only if it still leads to `owner`: somebody may have learned a better one meanwhile.
    pub fn forget_if(&self, bucket: BucketId, owner: ReplicasetIdx) {
        let cell = &self.cells[bucket.slot()];
        // Losing the race means that the route has changed, which is as good.
        let _ = cell.compare_exchange(owner.0, UNKNOWN, Ordering::Relaxed, Ordering::Relaxed);
    }

    pub fn clear(&self) {
        self.cells.iter().for_each(|cell| cell.store(UNKNOWN, Ordering::Relaxed));
    }

    /// Keeps only routes to replicasets that `keep` accepts.
    pub fn retain(&self, keep: impl Fn(ReplicasetIdx) -> bool) {
        for cell in &self.cells {
            let owner = cell.load(Ordering::Relaxed);
            if owner != UNKNOWN && !keep(ReplicasetIdx(owner)) {
                let _ = cell.compare_exchange(owner, UNKNOWN, Ordering::Relaxed, Ordering::Relaxed);
            }
        }
    }

    /// Owner of each bucket, in order.
    pub fn iter(&self) -> impl Iterator<Item = Option<ReplicasetIdx>> + '_ {
        self.cells.iter().map(|cell| {
            let owner = cell.load(Ordering::Relaxed);
            (owner != UNKNOWN).then_some(ReplicasetIdx(owner))
        })
    }

    pub fn known(&self) -> u32 {
        self.iter().flatten().count() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_is_forgotten_only_while_it_is_the_same() {
        let buckets = Buckets::new(3);
        let bucket = BucketId::new(3, 3).unwrap();
        buckets.set(bucket, ReplicasetIdx(1));
        buckets.forget_if(bucket, ReplicasetIdx(0));
        assert_eq!(buckets.get(bucket), Some(ReplicasetIdx(1)));
        buckets.forget_if(bucket, ReplicasetIdx(1));
        assert_eq!((buckets.get(bucket), buckets.known()), (None, 0));
    }
}
