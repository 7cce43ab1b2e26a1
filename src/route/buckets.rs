//! bucket → replicaset: one atomic cell per bucket, read and written by any thread without a lock.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::ids::{BucketId, ReplicasetIdx};

const UNKNOWN: u32 = u32::MAX;

pub struct Buckets {
    cells: Box<[AtomicU32]>,
    /// How many cells hold a route.
    known: AtomicU32,
}

impl Buckets {
    pub fn new(count: u32) -> Buckets {
        Buckets { cells: (0..count).map(|_| AtomicU32::new(UNKNOWN)).collect(), known: AtomicU32::new(0) }
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
        if self.cells[bucket.slot()].swap(owner.0, Ordering::Relaxed) == UNKNOWN {
            self.known.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub fn forget(&self, bucket: BucketId) {
        self.lose(&self.cells[bucket.slot()]);
    }

    /// Forgets the route only if it still leads to `owner`: somebody may have learned a better one meanwhile.
    pub fn forget_if(&self, bucket: BucketId, owner: ReplicasetIdx) {
        self.lose_if(&self.cells[bucket.slot()], owner.0);
    }

    pub fn clear(&self) {
        self.cells.iter().for_each(|cell| self.lose(cell));
    }

    /// Keeps only routes to replicasets that `keep` accepts.
    pub fn retain(&self, keep: impl Fn(ReplicasetIdx) -> bool) {
        for cell in &self.cells {
            let owner = cell.load(Ordering::Relaxed);
            if owner != UNKNOWN && !keep(ReplicasetIdx(owner)) {
                self.lose_if(cell, owner);
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

    /// How many buckets have a route.
    pub fn known(&self) -> u32 {
        self.known.load(Ordering::Relaxed)
    }

    fn lose(&self, cell: &AtomicU32) {
        if cell.swap(UNKNOWN, Ordering::Relaxed) != UNKNOWN {
            self.known.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Losing the race means that the route has changed, which is as good.
    fn lose_if(&self, cell: &AtomicU32, owner: u32) {
        if cell.compare_exchange(owner, UNKNOWN, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            self.known.fetch_sub(1, Ordering::Relaxed);
        }
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

    #[test]
    fn the_count_follows_the_cells() {
        let buckets = Buckets::new(10);
        let bucket = |id| BucketId::new(id, 10).unwrap();
        for id in [1, 2, 3, 2] {
            buckets.set(bucket(id), ReplicasetIdx(id as u32));
        }
        assert_eq!(buckets.known(), 3);
        buckets.forget(bucket(9));
        buckets.forget(bucket(1));
        buckets.forget(bucket(1));
        assert_eq!(buckets.known(), 2);
        buckets.retain(|owner| owner == ReplicasetIdx(3));
        assert_eq!((buckets.known(), buckets.iter().flatten().count()), (1, 1));
        buckets.clear();
        assert_eq!(buckets.known(), 0);
    }
}
