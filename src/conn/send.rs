//! Bytes on their way to a peer. Small requests are copied together, so that one write takes many; large ones are
//! shared with their call, uncopied.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

/// A chunk of copied requests is closed at this size.
const CHUNK: usize = 128 << 10;

enum Chunk {
    Copied(Vec<u8>),
    Shared(Arc<Vec<u8>>, Range<usize>),
}

impl Chunk {
    fn bytes(&self) -> &[u8] {
        match self {
            Chunk::Copied(bytes) => bytes,
            Chunk::Shared(bytes, range) => &bytes[range.clone()],
        }
    }
}

#[derive(Default)]
pub struct SendQueue {
    chunks: VecDeque<Chunk>,
    /// How much of the first chunk is written.
    written: usize,
    len: usize,
    spare: Vec<u8>,
}

impl SendQueue {
    /// Bytes not yet written.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends what `write` writes.
    pub fn append(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        if !matches!(self.chunks.back(), Some(Chunk::Copied(bytes)) if bytes.len() < CHUNK) {
            let mut bytes = std::mem::take(&mut self.spare);
            // Behind other chunks more is likely to come: room for a whole one at once, instead of growing and copying.
            // Between shared chunks there are heads alone.
            if bytes.capacity() == 0 && matches!(self.chunks.back(), Some(Chunk::Copied(_))) {
                bytes.reserve(CHUNK + CHUNK / 4);
            }
            self.chunks.push_back(Chunk::Copied(bytes));
        }
        if let Some(Chunk::Copied(bytes)) = self.chunks.back_mut() {
            let before = bytes.len();
            write(bytes);
            self.len += bytes.len() - before;
        }
    }

    /// Appends a part of `bytes` without copying it.
    pub fn append_shared(&mut self, bytes: Arc<Vec<u8>>, range: Range<usize>) {
        self.len += range.len();
        self.chunks.push_back(Chunk::Shared(bytes, range));
    }

    /// The first unwritten bytes, for one vectored write; at most `slices.len()` pieces. Gives their number.
    pub fn gather<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut count = 0;
        let mut skip = self.written;
        for (slice, chunk) in slices.iter_mut().zip(&self.chunks) {
            *slice = IoSlice::new(&chunk.bytes()[skip..]);
            skip = 0;
            count += 1;
        }
        count
    }

    /// `count` bytes were written.
    pub fn advance(&mut self, count: usize) {
        self.len -= count;
        self.written += count;
        while let Some(chunk) = self.chunks.front() {
            let size = chunk.bytes().len();
            if self.written < size {
                break;
            }
            self.written -= size;
            if let Some(Chunk::Copied(mut bytes)) = self.chunks.pop_front()
                && bytes.capacity() <= 2 * CHUNK
            {
                bytes.clear();
                self.spare = bytes;
            }
        }
    }

    pub fn clear(&mut self) {
        self.chunks.clear();
        self.written = 0;
        self.len = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_leave_in_order_whatever_the_writes_take() {
        for take in [1, 3, 1000, usize::MAX] {
            let mut queue = SendQueue::default();
            let mut expected = Vec::new();
            for i in 0..50u8 {
                if i % 7 == 3 {
                    queue.append_shared(Arc::new(vec![i; 400]), 50..350);
                    expected.extend(vec![i; 300]);
                } else {
                    queue.append(|out| out.extend([i; 10]));
                    expected.extend([i; 10]);
                }
            }
            assert_eq!(queue.len(), expected.len());
            let mut written = Vec::new();
            while !queue.is_empty() {
                let mut slices = [IoSlice::new(&[]); 4];
                let count = queue.gather(&mut slices);
                let flat: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.to_vec()).collect();
                let part = flat.len().min(take);
                written.extend_from_slice(&flat[..part]);
                queue.advance(part);
            }
            assert!(written == expected, "take {take}");
        }
    }
}
