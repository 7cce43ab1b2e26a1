//! A mempool of fixed-size slots. Slots are carved from chunks that never move, freed slots are used again, and a
//! key carries a generation, so that a stale key finds nothing instead of a stranger.

const NONE: u32 = u32::MAX;

/// Names one value of one slab for as long as that value lives.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Key {
    pub index: u32,
    pub generation: u32,
}

impl Key {
    /// Both halves in one number, for an IPROTO sync.
    pub fn pack(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    pub fn unpack(packed: u64) -> Key {
        Key { index: packed as u32, generation: (packed >> 32) as u32 }
    }
}

struct Slot<T> {
    generation: u32,
    next_free: u32,
    value: Option<T>,
}

/// Not thread-safe: one thread owns a slab. It grows by `CHUNK` slots.
pub struct Slab<T, const CHUNK: usize = 1024> {
    chunks: Vec<Box<[Slot<T>]>>,
    free: u32,
    used: u32,
    peak: u32,
    /// Generation of a slot that is carved.
    first: u32,
}

impl<T> Slab<T> {
    pub const fn new() -> Slab<T> {
        Slab::of_chunks()
    }
}

impl<T, const CHUNK: usize> Slab<T, CHUNK> {
    pub const fn of_chunks() -> Slab<T, CHUNK> {
        // No key is all zeros: the sync of an answer that names none finds nobody.
        Slab { chunks: Vec::new(), free: NONE, used: 0, peak: 0, first: 1 }
    }

    /// An empty one, in which no key of `old`, nor of those that it came after, finds anything.
    pub fn after(old: &Slab<T, CHUNK>) -> Slab<T, CHUNK> {
        let slots = old.chunks.iter().flatten().map(|slot| slot.generation);
        let newest = slots.fold(old.first, u32::max);
        Slab { first: newest.wrapping_add(1).max(1), ..Slab::of_chunks() }
    }

    pub fn insert(&mut self, value: T) -> Key {
        if self.free == NONE {
            self.grow();
        }
        let index = self.free;
        let slot = &mut self.chunks[index as usize / CHUNK][index as usize % CHUNK];
        self.free = slot.next_free;
        slot.value = Some(value);
        self.used += 1;
        self.peak = self.peak.max(self.used);
        Key { index, generation: slot.generation }
    }

    pub fn get(&self, key: Key) -> Option<&T> {
        let slot = self.chunks.get(key.index as usize / CHUNK)?.get(key.index as usize % CHUNK)?;
        if slot.generation == key.generation { slot.value.as_ref() } else { None }
    }

    pub fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let slot = self.chunks.get_mut(key.index as usize / CHUNK)?.get_mut(key.index as usize % CHUNK)?;
        if slot.generation == key.generation { slot.value.as_mut() } else { None }
    }

    pub fn remove(&mut self, key: Key) -> Option<T> {
        let slot = self.chunks.get_mut(key.index as usize / CHUNK)?.get_mut(key.index as usize % CHUNK)?;
        if slot.generation != key.generation {
            return None;
        }
        let value = slot.value.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        slot.next_free = self.free;
        self.free = key.index;
        self.used -= 1;
        Some(value)
    }

    /// The key of the value that lives in slot `index` now, if one does.
    pub fn key_at(&self, index: u32) -> Option<Key> {
        let slot = self.chunks.get(index as usize / CHUNK)?.get(index as usize % CHUNK)?;
        slot.value.is_some().then_some(Key { index, generation: slot.generation })
    }

    pub fn keys(&self) -> impl Iterator<Item = Key> + '_ {
        (0..self.capacity()).filter_map(|index| self.key_at(index))
    }

    /// Slots in use.
    pub fn used(&self) -> u32 {
        self.used
    }

    /// The most slots that were ever in use at once.
    pub fn peak(&self) -> u32 {
        self.peak
    }

    /// Slots carved so far.
    pub fn capacity(&self) -> u32 {
        (self.chunks.len() * CHUNK) as u32
    }

    fn grow(&mut self) {
        let base = self.capacity();
        // Linked so that low indexes are handed out first.
        let slots = (0..CHUNK as u32).map(|i| Slot {
            generation: self.first,
            next_free: if i + 1 < CHUNK as u32 { base + i + 1 } else { NONE },
            value: None,
        });
        self.chunks.push(slots.collect());
        self.free = base;
    }
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: usize = 1024;

    #[test]
    fn a_stale_key_finds_nothing() {
        let mut slab = Slab::new();
        let first = slab.insert("first");
        assert_eq!(slab.remove(first), Some("first"));
        let second = slab.insert("second");
        assert_eq!(second.index, first.index, "the slot is used again");
        assert_eq!(slab.get(first), None);
        assert_eq!(slab.remove(first), None);
        assert_eq!(slab.get(second), Some(&"second"));
    }

    #[test]
    fn keys_of_a_slab_before_find_nothing() {
        let mut old = Slab::new();
        let mut keys: Vec<Key> = (0..CHUNK + 1).map(|i| old.insert(i)).collect();
        for _ in 0..5 {
            keys.push(old.insert(0));
            old.remove(*keys.last().unwrap());
        }
        for _ in 0..3 {
            let mut new = Slab::after(&old);
            assert_eq!(new.used(), 0);
            let fresh: Vec<Key> = (0..2 * CHUNK).map(|i| new.insert(i)).collect();
            assert!(keys.iter().all(|key| new.get(*key).is_none()));
            keys.extend(fresh);
            // One that nothing was put into is no step back.
            old = Slab::after(&new);
        }
    }

    #[test]
    fn counts_follow_use() {
        let mut slab = Slab::new();
        let keys: Vec<Key> = (0..CHUNK + 1).map(|i| slab.insert(i)).collect();
        assert_eq!((slab.used(), slab.capacity()), (CHUNK as u32 + 1, 2 * CHUNK as u32));
        for (i, key) in keys.iter().enumerate() {
            assert_eq!(slab.remove(*key), Some(i));
        }
        assert_eq!((slab.used(), slab.peak()), (0, CHUNK as u32 + 1));
        assert_eq!(Key::unpack(keys[7].pack()), keys[7]);
    }
}
