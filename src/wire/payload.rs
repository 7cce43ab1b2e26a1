//! The body of a CALL on its way to a peer: a head that is written for each attempt, and bytes that stay as the caller gave
//! them.

use std::ops::Range;
use std::sync::Arc;

use crate::ids::BucketId;
use crate::wire::mp::{self, Cursor};

/// Bodies of this size or more are shared with the send queue instead of copied into it.
const SHARE: usize = 16 << 10;

/// What comes before the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Head {
    /// Nothing: the bytes are the whole body.
    Empty,
    /// `{FUNCTION_NAME: 'vshard.storage.call', TUPLE: [bucket, mode, …` of which the bytes are the rest: function and
    /// arguments.
    StorageCall { bucket: BucketId, mode: Mode },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    Read,
    Write,
}

impl Mode {
    /// As `vshard.storage.call` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Read => "read",
            Mode::Write => "write",
        }
    }
}

/// The longest head.
pub const HEAD_MAX: usize = STORAGE_CALL.len() + 5 + 1 + 5;

/// IPROTO's key of it.
const FUNCTION_NAME: u64 = 0x22;
const STORAGE_CALL: &[u8] = b"\x82\x22\xb3vshard.storage.call\x21\x94";

impl Head {
    /// Writes it and gives its length.
    pub fn write(self, out: &mut [u8; HEAD_MAX]) -> usize {
        match self {
            Head::Empty => 0,
            Head::StorageCall { bucket, mode } => {
                let mode = mode.name();
                let fixed = STORAGE_CALL.len();
                out[..fixed].copy_from_slice(STORAGE_CALL);
                // Always in five bytes: every storage reads any width.
                out[fixed] = 0xce;
                out[fixed + 1..fixed + 5].copy_from_slice(&bucket.number().to_be_bytes());
                out[fixed + 5] = 0xa0 | mode.len() as u8;
                out[fixed + 6..fixed + 6 + mode.len()].copy_from_slice(mode.as_bytes());
                fixed + 6 + mode.len()
            }
        }
    }
}

/// Invariant: `range` lies in `bytes`.
#[derive(Debug, Clone)]
pub struct Payload {
    head: Head,
    bytes: Bytes,
    range: Range<usize>,
}

#[derive(Debug, Clone)]
enum Bytes {
    Own(Vec<u8>),
    Shared(Arc<Vec<u8>>),
}

impl Payload {
    /// A body of `head` and all of `bytes`.
    pub fn new(head: Head, bytes: Vec<u8>) -> Payload {
        let all = 0..bytes.len();
        Payload::of(head, bytes, all)
    }

    /// A body of `head` and a part of `bytes`.
    pub fn of(head: Head, bytes: Vec<u8>, range: Range<usize>) -> Payload {
        assert!(range.start <= range.end && range.end <= bytes.len());
        let bytes = if range.len() < SHARE { Bytes::Own(bytes) } else { Bytes::Shared(Arc::new(bytes)) };
        Payload { head, bytes, range }
    }

    pub fn head(&self) -> Head {
        self.head
    }

    /// The function that a body without a head calls.
    pub fn function(&self) -> Option<&[u8]> {
        let mut cursor = Cursor::new(self.bytes());
        cursor.map().ok()?;
        (cursor.uint() == Ok(FUNCTION_NAME)).then(|| cursor.str().ok()).flatten()
    }

    pub fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Own(bytes) => &bytes[self.range.clone()],
            Bytes::Shared(bytes) => &bytes[self.range.clone()],
        }
    }

    /// What is to be shared rather than copied, and where in it the bytes lie.
    pub fn shared(&self) -> Option<(&Arc<Vec<u8>>, Range<usize>)> {
        match &self.bytes {
            Bytes::Own(_) => None,
            Bytes::Shared(bytes) => Some((bytes, self.range.clone())),
        }
    }

    /// The buffer to be used again, if it is ours alone.
    pub fn into_buffer(self) -> Vec<u8> {
        match self.bytes {
            Bytes::Own(bytes) => bytes,
            Bytes::Shared(bytes) => Arc::try_unwrap(bytes).unwrap_or_default(),
        }
    }
}

/// Appends what follows the head of a storage call: `func`, a name, and `args`, an array.
pub fn write_func_and_args(out: &mut Vec<u8>, func: &[u8], args: &[u8]) {
    mp::write_bytes_as_str(out, func);
    out.extend_from_slice(args);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_and_its_rest_are_one_body() {
        for (id, mode, name) in [(1, Mode::Read, "read"), (u32::MAX, Mode::Write, "write")] {
            let bucket = BucketId::new(u64::from(id), u32::MAX).unwrap();
            let mut head = [0; HEAD_MAX];
            let len = Head::StorageCall { bucket, mode }.write(&mut head);
            let mut body = head[..len].to_vec();
            write_func_and_args(&mut body, b"echo", b"\x91\x05");
            let mut cursor = Cursor::new(&body);
            assert_eq!(
                (cursor.map(), cursor.uint(), cursor.str()),
                (Ok(2), Ok(0x22), Ok(&b"vshard.storage.call"[..]))
            );
            assert_eq!((cursor.uint(), cursor.array(), cursor.uint()), (Ok(0x21), Ok(4), Ok(u64::from(id))));
            assert_eq!((cursor.str(), cursor.str()), (Ok(name.as_bytes()), Ok(&b"echo"[..])));
            assert_eq!((cursor.span(), cursor.is_at_end()), (Ok(&b"\x91\x05"[..]), true));
        }
    }
}
