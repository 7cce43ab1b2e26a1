//! `Request` and `Reply`: the one door into the data plane, for all front ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::call::endpoint::Endpoint;
use crate::ids::{BucketId, InstanceIdx, ReplicasetIdx};
pub use crate::route::pick::{Access, Mode};
use crate::slab::Key;
use crate::time::Time;
use crate::wire::{iproto, payload};

/// The client's own handle of a call, given back in its [`Reply`]. The index is small and dense: engines keep tables by it.
pub type Token = Key;

/// Who waits for the answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Client {
    /// Fibers of the host.
    Host = 0,
    /// The control loop: discovery, health, master search.
    Control = 1,
}

pub const CLIENTS: usize = 2;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// `vshard.storage.call` at the owner of the bucket, with retries and redirects.
    Bucket(BucketId),
    /// A plain CALL at an instance of the replicaset that `access` picks.
    Replicaset(ReplicasetIdx),
    /// A plain CALL at this instance.
    Instance(InstanceIdx),
    /// Nothing is called: the answer is the replicaset that owns the bucket, one unsigned integer ([`ReplicasetIdx`]).
    Route(BucketId),
}

/// One call to carry out. Every accepted request gets exactly one [`Reply`], by `answer_by` at the latest; before it any number
/// of [`Outcome::Push`], if it asked for them.
#[derive(Debug)]
pub struct Request {
    pub token: Token,
    pub client: Client,
    pub target: Target,
    pub access: Access,
    pub deadline: Time,
    /// Until when the answer to a request that was sent is waited for; not before the deadline, which bounds all else. Later,
    /// or never, for a future without a timeout: it may take long, but one that cannot be sent fails soon.
    pub answer_by: Time,
    /// Bound of one attempt of a read (vshard's `request_timeout`); None: the whole time.
    pub attempt_timeout: Option<Duration>,
    /// What the function pushes (`box.session.push`) is handed on, in replies before the last.
    pub pushes: bool,
    pub body: Body,
}

/// The body of an IPROTO CALL, built once in the caller's buffer and sent as often as needed.
#[derive(Debug, Default)]
pub struct Body(pub Vec<u8>);

impl Body {
    /// A body without anything, for [`Target::Route`].
    pub fn empty(buffer: Vec<u8>) -> Body {
        Body(buffer)
    }

    /// For [`Target::Bucket`]: function and arguments; the rest of the call follows from target and access. `func` is the
    /// function's name, `args` a MessagePack array. `buffer` is used again: its content is dropped, its capacity kept.
    pub fn storage_call(mut buffer: Vec<u8>, func: &[u8], args: &[u8]) -> Body {
        buffer.clear();
        payload::write_func_and_args(&mut buffer, func, args);
        Body(buffer)
    }

    /// A plain CALL of `func`, a function's name, with `args`, a MessagePack array.
    pub fn call(mut buffer: Vec<u8>, func: &str, args: &[u8]) -> Body {
        buffer.clear();
        iproto::begin_call_body(&mut buffer, func);
        buffer.extend_from_slice(args);
        Body(buffer)
    }
}

/// A call as it came, to be read by the engine: its caller has nothing to do but copy.
#[derive(Debug)]
pub struct RawRequest {
    pub token: Token,
    pub form: Form,
    pub bytes: Vec<u8>,
}

/// What the bytes of a raw request are, see [`crate::call::raw_args`].
#[derive(Debug, Clone)]
pub enum Form {
    /// Those of `callraw`: `[bucket_id, opts, func, args, call_opts]`.
    Callraw,
    /// The function's name and its arguments. The bucket is that of the key in these if it is not given.
    Endpoint(Arc<Endpoint>, Option<BucketId>),
}

/// What became of a request.
#[derive(Debug)]
pub struct Reply {
    pub token: Token,
    pub outcome: Outcome,
    /// To their end the values, right before them an array header that counts them.
    bytes: Vec<u8>,
    /// Where the values begin.
    data: usize,
    count: u32,
    /// It is known that no extension is in the values.
    is_plain: bool,
    /// Of a push: its part in what is unread. Boxed, since few replies have one.
    #[expect(dead_code, reason = "it is there to be dropped")]
    share: Option<Box<Share>>,
}

/// Bytes that one call was pushed and nobody has read yet, wherever they are: with the engine, on their way, with the caller.
#[derive(Debug, Clone, Default)]
pub struct Unread(Arc<AtomicUsize>);

impl Unread {
    pub fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// It ends with the reply, or when the bytes are taken out of that.
#[derive(Debug)]
struct Share {
    unread: Unread,
    bytes: usize,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.unread.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The values that the function returned.
    Values,
    /// One value, the error as vshard would give it: a map.
    Failed,
    /// What the function has pushed, one value as a rule. The call goes on.
    Push,
    /// One value, a string: what is wrong with the arguments of `callraw`. To be raised; nothing was sent.
    Malformed,
}

impl Reply {
    /// `bytes[data..end]` are `count` well-formed values. An array header is put in front of them, in place if the bytes
    /// before them leave room.
    pub(crate) fn new(
        token: Token,
        outcome: Outcome,
        mut bytes: Vec<u8>,
        data: usize,
        end: usize,
        count: u32,
    ) -> Reply {
        let mut header = [0u8; 5];
        let len = array_header(count, &mut header);
        if data >= len {
            bytes.truncate(end);
            bytes[data - len..data].copy_from_slice(&header[..len]);
            return Reply::holding(token, outcome, bytes, data, count);
        }
        let mut moved = Vec::with_capacity(len + end - data);
        moved.extend_from_slice(&header[..len]);
        moved.extend_from_slice(&bytes[data..end]);
        Reply::holding(token, outcome, moved, len, count)
    }

    fn holding(token: Token, outcome: Outcome, bytes: Vec<u8>, data: usize, count: u32) -> Reply {
        Reply { token, outcome, bytes, data, count, is_plain: false, share: None }
    }

    /// One value written by `write` into `buffer`, whose content is dropped.
    pub(crate) fn single(
        token: Token,
        outcome: Outcome,
        mut buffer: Vec<u8>,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Reply {
        buffer.clear();
        buffer.push(0x91);
        write(&mut buffer);
        Reply::holding(token, outcome, buffer, 1, 1)
    }

    /// A copy of `values` in `buffer`.
    pub(crate) fn copied(
        token: Token,
        outcome: Outcome,
        mut buffer: Vec<u8>,
        values: &[u8],
        count: u32,
    ) -> Reply {
        buffer.clear();
        let mut header = [0u8; 5];
        let len = array_header(count, &mut header);
        buffer.reserve(len + values.len());
        buffer.extend_from_slice(&header[..len]);
        buffer.extend_from_slice(values);
        Reply::holding(token, outcome, buffer, len, count)
    }

    /// Something pushed, which counts as `unread` until this reply is dropped.
    pub(crate) fn pushed(token: Token, values: &[u8], count: u32, unread: &Unread) -> Reply {
        let reply = Reply::copied(token, Outcome::Push, Vec::new(), values, count);
        // Small ones cost more than their bytes.
        let bytes = reply.capacity() + size_of::<Reply>() + size_of::<Share>();
        unread.0.fetch_add(bytes, Ordering::Relaxed);
        Reply { share: Some(Box::new(Share { unread: unread.clone(), bytes })), ..reply }
    }

    /// Says whether all values are known to have no extension in them.
    pub(crate) fn set_plain(&mut self, is_plain: bool) {
        self.is_plain = is_plain;
    }

    /// Whether all values are known to have no extension in them.
    pub fn is_plain(&self) -> bool {
        self.is_plain
    }

    /// How many values there are; for a failure one, the error.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The values, one after another.
    pub fn values(&self) -> &[u8] {
        &self.bytes[self.data..]
    }

    /// The values as one MessagePack array.
    pub fn array(&self) -> &[u8] {
        &self.bytes[self.data - array_header_len(self.count)..]
    }

    /// Bytes of memory that it holds.
    pub fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// The buffer, to be used again.
    pub fn into_buffer(self) -> Vec<u8> {
        self.bytes
    }
}

/// Writes it and gives its length.
fn array_header(count: u32, header: &mut [u8; 5]) -> usize {
    let len = array_header_len(count);
    match len {
        1 => header[0] = 0x90 | count as u8,
        3 => {
            header[0] = 0xdc;
            header[1..3].copy_from_slice(&(count as u16).to_be_bytes());
        }
        _ => {
            header[0] = 0xdd;
            header[1..5].copy_from_slice(&count.to_be_bytes());
        }
    }
    len
}

fn array_header_len(count: u32) -> usize {
    match count {
        0..=0xf => 1,
        0x10..=0xffff => 3,
        _ => 5,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::mp::Cursor;

    #[test]
    fn the_array_of_a_reply_is_its_values_behind_their_count() {
        let token = Key { index: 1, generation: 1 };
        for count in [0, 1, 15, 16, 0xffff, 0x1_0000] {
            let values = vec![7; count as usize];
            let mut replies = vec![Reply::copied(token, Outcome::Values, vec![1, 2, 3], &values, count)];
            // With less and with more before the values than the header takes, and with something behind them.
            for before in 0..8 {
                let bytes = [&vec![9; before][..], &values, b"rest"].concat();
                let end = before + values.len();
                replies.push(Reply::new(token, Outcome::Values, bytes, before, end, count));
            }
            for reply in replies {
                let mut cursor = Cursor::new(reply.array());
                assert_eq!((cursor.array(), cursor.rest()), (Ok(count), &values[..]));
                assert_eq!((reply.values(), reply.count()), (&values[..], count));
            }
        }
    }
}
