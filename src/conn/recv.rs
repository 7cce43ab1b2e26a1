//! Bytes that came and are not consumed yet, cut into frames.

use std::ops::Range;

use crate::wire::iproto::{self, Split};
use crate::wire::mp::Fault;

const BASE: usize = 64 << 10;
/// A frame of this size or more leaves with the buffer that it was read into, uncopied.
pub const LARGE: usize = 64 << 10;
/// A buffer that one burst made larger than this is given up when empty.
const KEEP: usize = 1 << 20;

/// Invariant: `start <= end <= bytes.len()`; `bytes[start..end]` is unread.
pub struct RecvBuf {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    /// Size of the frame at `start`, known once its length has come; the buffer grows towards it only as bytes arrive, so
    /// that a length alone allocates nothing.
    wanted: usize,
}

impl RecvBuf {
    pub fn new() -> RecvBuf {
        RecvBuf { bytes: Vec::new(), start: 0, end: 0, wanted: 0 }
    }

    pub fn clear(&mut self) {
        *self = RecvBuf::new();
    }

    pub fn unread(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    pub fn consume(&mut self, count: usize) {
        self.start += count;
    }

    /// Where to read into; never empty. While a large frame is coming, it ends where that frame ends, so that nothing of
    /// the next one has to be moved out of its buffer.
    pub fn space(&mut self) -> &mut [u8] {
        if self.start == self.end {
            if self.bytes.len() > KEEP {
                self.bytes = Vec::new();
            }
            self.start = 0;
            self.end = 0;
        }
        let large = self.wanted >= LARGE;
        if self.start > 0 && (large || self.bytes.len() - self.end < BASE / 2) {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if self.end == self.bytes.len() || self.bytes.len() < BASE {
            let doubled = (2 * self.bytes.len()).max(BASE);
            let size = if large { doubled.min(self.wanted) } else { doubled };
            self.bytes.resize(size.max(self.end + 1), 0);
        }
        let limit = if large { self.bytes.len().min(self.start + self.wanted) } else { self.bytes.len() };
        &mut self.bytes[self.end..limit]
    }

    /// `count` bytes were read into [`RecvBuf::space`].
    pub fn filled(&mut self, count: usize) {
        self.end += count;
        debug_assert!(self.end <= self.bytes.len());
    }

    /// The packet of the next whole frame, consumed; its range is good for [`RecvBuf::bytes`] until the next `space`.
    pub fn next_frame(&mut self) -> Result<Option<Range<usize>>, Fault> {
        if self.end - self.start < self.wanted {
            return Ok(None);
        }
        match iproto::split(self.unread())? {
            Split::Frame { packet, end } => {
                let range = self.start + packet..self.start + end;
                self.start = range.end;
                self.wanted = 0;
                Ok(Some(range))
            }
            Split::Partial { wanted } => {
                self.wanted = wanted;
                Ok(None)
            }
        }
    }

    pub fn bytes(&self, range: Range<usize>) -> &[u8] {
        &self.bytes[range]
    }

    /// Gives the whole buffer away, if nothing but the frame just taken is in it. Ranges of that frame stay good in it.
    pub fn take_buffer(&mut self) -> Option<Vec<u8>> {
        // A small frame in a large buffer is better copied: the buffer would live as long as the answer.
        if self.start != self.end || self.bytes.capacity() > 2 * self.end {
            return None;
        }
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.truncate(self.end);
        self.start = 0;
        self.end = 0;
        Some(bytes)
    }

    pub fn has_no_buffer(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Has no buffer any more if nothing is in it: gives it, unless it is of a size that [`RecvBuf::give_buffer`] would not take.
    pub fn release_buffer(&mut self) -> Option<Vec<u8>> {
        if self.start != self.end {
            return None;
        }
        self.start = 0;
        self.end = 0;
        Some(std::mem::take(&mut self.bytes)).filter(|buffer| (BASE..=KEEP).contains(&buffer.capacity()))
    }

    /// In the place of a buffer given away: one that is large enough saves making another.
    pub fn give_buffer(&mut self, buffer: Vec<u8>) {
        if self.bytes.is_empty() && (BASE..=KEEP).contains(&buffer.capacity()) {
            self.bytes = buffer;
        }
    }
}

impl Default for RecvBuf {
    fn default() -> Self {
        RecvBuf::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(len: usize, fill: u8) -> Vec<u8> {
        let mut bytes = vec![0xce];
        bytes.extend_from_slice(&(len as u32).to_be_bytes());
        bytes.resize(5 + len, fill);
        bytes
    }

    fn feed(buf: &mut RecvBuf, mut bytes: &[u8], step: usize, frames: &mut Vec<Vec<u8>>) {
        while !bytes.is_empty() {
            let space = buf.space();
            let count = space.len().min(step).min(bytes.len());
            space[..count].copy_from_slice(&bytes[..count]);
            buf.filled(count);
            bytes = &bytes[count..];
            while let Some(range) = buf.next_frame().unwrap() {
                frames.push(buf.bytes(range).to_vec());
            }
        }
    }

    #[test]
    fn frames_come_out_whole_however_they_arrive() {
        let sizes = [0, 1, 100, LARGE, 3, 5 * LARGE, 17, BASE - 5, BASE];
        let stream: Vec<u8> = sizes.iter().enumerate().flat_map(|(i, size)| frame(*size, i as u8)).collect();
        for step in [1, 7, 4096, 1 << 20] {
            let mut buf = RecvBuf::new();
            let mut frames = Vec::new();
            feed(&mut buf, &stream, step, &mut frames);
            let expected: Vec<Vec<u8>> =
                sizes.iter().enumerate().map(|(i, size)| vec![i as u8; *size]).collect();
            assert!(frames == expected, "step {step}");
        }
    }

    #[test]
    fn a_length_alone_allocates_nothing() {
        let mut buf = RecvBuf::new();
        let head = [0xce, 0x7f, 0xff, 0xff, 0xff];
        buf.space()[..5].copy_from_slice(&head);
        buf.filled(5);
        assert_eq!(buf.next_frame(), Ok(None));
        let room = buf.space().len();
        assert!(room <= 2 * BASE, "{room}");
    }

    #[test]
    fn a_given_buffer_is_read_into() {
        for (capacity, used) in [(BASE - 1, false), (3 * BASE, true), (2 * KEEP, false)] {
            let mut given = Vec::with_capacity(capacity);
            given.extend_from_slice(b"old content");
            let mut buf = RecvBuf::new();
            buf.give_buffer(given);
            assert_eq!(!buf.bytes.is_empty(), used, "{capacity}");
            let mut frames = Vec::new();
            feed(&mut buf, &frame(2 * BASE, 3), usize::MAX, &mut frames);
            assert!(frames == [vec![3; 2 * BASE]]);
            assert!(buf.take_buffer().is_some());
        }
    }

    #[test]
    fn a_buffer_is_released_when_it_is_read_to_the_end() {
        let mut buf = RecvBuf::new();
        assert!(buf.has_no_buffer() && buf.release_buffer().is_none());
        let (first, second) = (frame(10, 1), frame(3 * BASE, 2));
        let mut frames = Vec::new();
        feed(&mut buf, &[&first[..], &second[..100]].concat(), usize::MAX, &mut frames);
        assert!(buf.release_buffer().is_none(), "a part of the second is in it");
        feed(&mut buf, &second[100..], usize::MAX, &mut frames);
        assert!(frames == [vec![1; 10], vec![2; 3 * BASE]]);
        let released = buf.release_buffer().expect("it is empty");
        assert!(buf.has_no_buffer());
        // Another one reads into it, whatever was in it.
        let mut other = RecvBuf::new();
        other.give_buffer(released);
        assert!(!other.has_no_buffer());
        feed(&mut other, &first, 1, &mut frames);
        assert_eq!(frames.pop(), Some(vec![1; 10]));
        // One that a burst has made very large is nobody else's.
        feed(&mut buf, &frame(2 * KEEP, 3), usize::MAX, &mut frames);
        assert!(buf.release_buffer().is_none() && buf.has_no_buffer());
    }

    #[test]
    fn a_large_frame_ends_its_buffer() {
        let mut buf = RecvBuf::new();
        let mut frames = Vec::new();
        let big = frame(2 * LARGE, 9);
        feed(&mut buf, &big[..100], 100, &mut frames);
        let mut sent = 100;
        loop {
            let space = buf.space();
            assert!(space.len() <= big.len() - sent);
            let count = space.len();
            space.copy_from_slice(&big[sent..sent + count]);
            buf.filled(count);
            sent += count;
            if let Some(range) = buf.next_frame().unwrap() {
                let bytes = buf.take_buffer().unwrap();
                assert!(bytes[range] == big[5..]);
                break;
            }
        }
        assert_eq!(sent, big.len());
    }
}
