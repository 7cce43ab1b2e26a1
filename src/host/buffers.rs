//! Buffers of calls that have ended, kept for the next ones.

/// A buffer that has grown beyond this is not kept: after a burst of big values the memory goes back.
const LARGEST: usize = 16 << 10;
/// Bytes kept at most.
const MOST: usize = 16 << 20;

pub struct Buffers {
    free: Vec<Vec<u8>>,
    /// Sum of their capacities.
    kept: usize,
}

impl Buffers {
    pub const fn new() -> Buffers {
        Buffers { free: Vec::new(), kept: 0 }
    }

    /// A buffer of any content.
    pub fn take(&mut self) -> Vec<u8> {
        let buffer = self.free.pop().unwrap_or_default();
        self.kept -= buffer.capacity();
        buffer
    }

    pub fn put(&mut self, buffer: Vec<u8>) {
        let size = buffer.capacity();
        if (1..=LARGEST).contains(&size) && self.kept + size <= MOST {
            self.kept += size;
            self.free.push(buffer);
        }
    }
}
