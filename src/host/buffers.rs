//! Buffers of calls that have ended, kept for the next ones.

/// A buffer that has grown beyond this is not kept: after a burst of big values the memory goes back.
const LARGEST: usize = 16 << 10;
/// How many are kept at most.
const MOST: usize = 1024;

pub struct Buffers {
    free: Vec<Vec<u8>>,
}

impl Buffers {
    pub const fn new() -> Buffers {
        Buffers { free: Vec::new() }
    }

    /// A buffer of any content.
    pub fn take(&mut self) -> Vec<u8> {
        self.free.pop().unwrap_or_default()
    }

    pub fn put(&mut self, buffer: Vec<u8>) {
        if (1..=LARGEST).contains(&buffer.capacity()) && self.free.len() < MOST {
            self.free.push(buffer);
        }
    }
}
