//! The arguments of `callraw`, read in place: `[bucket_id, opts, func, args, call_opts]`, those of `vshard.router.call`
//! in its order. The last two may be nil or left out. In the place of the bucket id there may be a map that says where
//! the sharding key is, and by which hash it becomes one: `{key = …, hash = …}` or `{path = …, hash = …}`.

use std::fmt;
use std::time::Duration;

use crate::call::key::{self, Keyspace};
use crate::call::malformed::{Malformed, broken};
use crate::call::position::{NO_ARGS, Position, SHAPE, Times};
use crate::call::request::{Access, Mode};
use crate::call::selector::{Bucket, Place};
use crate::ids::BucketId;
use crate::wire::mp::{self, Cursor, Fault, Kind};
use crate::wire::payload::{Head, Payload};

/// vshard's `CALL_TIMEOUT_MIN`, the timeout of a call that names none.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_millis(500);

/// Checked arguments; the spans lie in the caller's bytes.
#[derive(Debug, PartialEq)]
pub struct RawArgs<'a> {
    pub bucket: Bucket<'a>,
    pub access: Access,
    /// A MessagePack string.
    pub func: &'a [u8],
    /// Where it lies in the bytes.
    func_at: usize,
    /// A MessagePack array.
    pub args: &'a [u8],
    /// `args` hold a tuple extension somewhere.
    pub has_tuples: bool,
    /// Zero where the caller gave nothing to wait for, be it 0 or less.
    pub timeout: Duration,
    /// Bound of one attempt; None for writes, which vshard does not bound either.
    pub attempt_timeout: Option<Duration>,
}

impl<'a> RawArgs<'a> {
    /// Reads all of `bytes`, which must be one array.
    pub fn parse(bytes: &'a [u8], bucket_count: u32) -> Result<RawArgs<'a>, Malformed> {
        let mut cursor = Cursor::new(bytes);
        let kind = cursor.peek().map_err(broken)?;
        if kind != Kind::Array {
            return Err(Malformed(format!("callraw: expected {SHAPE}, got {}", kind.name())));
        }
        let count = cursor.array().map_err(broken)?;
        if count > 5 {
            return Err(Malformed(format!("callraw: expected {SHAPE}, got {count} elements")));
        }
        let bucket = Position::BUCKET.require(count)?.bucket(&mut cursor, bucket_count)?;
        let access = Position::OPTS.require(count)?.access(&mut cursor)?;
        let func_at = cursor.position();
        let func = Position::FUNC.require(count)?.func(&mut cursor)?;
        let (args, has_tuples) = if count > 3 { Position::ARGS.args(&mut cursor)? } else { (NO_ARGS, false) };
        let times = if count > 4 { Position::CALL_OPTS.times(&mut cursor)? } else { Times::default() };
        cursor.finish().map_err(broken)?;

        let timeout = times.timeout.map_or(DEFAULT_TIMEOUT, span);
        let attempt = times.request_timeout.map(span);
        if attempt.is_some_and(|attempt| attempt > timeout) {
            return Err(Malformed(format!(
                "callraw: argument 5 (call_opts): request_timeout must not be greater than timeout, got {} and {}",
                seconds(times.request_timeout),
                seconds(times.timeout)
            )));
        }
        let attempt_timeout = if access.mode == Mode::Read { attempt } else { None };
        Ok(RawArgs { bucket, access, func, func_at, args, has_tuples, timeout, attempt_timeout })
    }

    /// Where function and arguments lie in what was parsed, one after the other. None if they have to be written anew: the
    /// arguments were left out, or hold tuples.
    fn place(&self) -> Option<std::ops::Range<usize>> {
        let from = self.func_at;
        // Left out, they are a constant somewhere else.
        let follow = std::ptr::eq(self.args.as_ptr(), self.func.as_ptr_range().end);
        (follow && !self.has_tuples).then(|| from..from + self.func.len() + self.args.len())
    }

    /// Function and arguments, without tuples.
    fn written(&self) -> Result<Vec<u8>, Malformed> {
        let mut bytes = self.func.to_vec();
        if self.has_tuples {
            mp::copy_without_tuples(self.args, &mut bytes)
                .map_err(|fault| Position::ARGS.fault("an array".to_owned(), fault.to_string()))?;
        } else {
            bytes.extend_from_slice(self.args);
        }
        Ok(bytes)
    }

    /// The bucket; `args` are those without tuples.
    fn resolve(&self, args: &[u8], keyspace: Keyspace) -> Result<BucketId, Malformed> {
        match &self.bucket {
            Bucket::Id(id) => Ok(*id),
            Bucket::Of(selector) => selector.bucket(args, keyspace).map_err(|fault| match selector.place {
                Place::Key(_) => Malformed(format!("callraw: argument 1 (bucket_id.key): {fault}")),
                _ => Malformed(format!("callraw: argument 1 (bucket_id.path): {fault}")),
            }),
        }
    }
}

/// What [`read`] makes of the arguments.
#[derive(Debug)]
pub struct Read {
    pub bucket: BucketId,
    pub access: Access,
    pub timeout: Duration,
    pub attempt_timeout: Option<Duration>,
    pub payload: Payload,
}

/// Reads the arguments of `callraw` into what a call needs. The bytes are kept where they are whenever they can be sent as
/// they came; on an error they are given back.
pub fn read(bytes: Vec<u8>, keyspace: Keyspace) -> Result<Read, (Vec<u8>, Malformed)> {
    let parsed = RawArgs::parse(&bytes, keyspace.bucket_count).and_then(|args| {
        let written = if args.place().is_none() { Some(args.written()?) } else { None };
        let plain = written.as_deref().map_or(args.args, |written| &written[args.func.len()..]);
        let bucket = args.resolve(plain, keyspace)?;
        Ok((bucket, args.access, args.timeout, args.attempt_timeout, args.place(), written))
    });
    let (bucket, access, timeout, attempt_timeout, place, written) = match parsed {
        Ok(parsed) => parsed,
        Err(malformed) => return Err((bytes, malformed)),
    };
    let head = Head::StorageCall { bucket, mode: access.mode };
    let payload = match (written, place) {
        (None, Some(place)) => Payload::of(head, bytes, place),
        (written, _) => Payload::new(head, written.unwrap_or_default()),
    };
    Ok(Read { bucket, access, timeout, attempt_timeout, payload })
}

/// The number of the bucket of `callraw`'s arguments, if it is there or its key is, and looks like one: enough to choose who is
/// to read the rest. It is the one that [`read`] finds, of whatever spelling. What comes behind the key is not looked at.
pub fn peek_bucket(bytes: &[u8], keyspace: Keyspace) -> Option<u32> {
    let mut cursor = Cursor::new(bytes);
    let count = cursor.array().ok().filter(|count| *count > 0)?;
    let selector = match Position::BUCKET.bucket(&mut cursor, keyspace.bucket_count).ok()? {
        Bucket::Id(id) => return Some(id.number()),
        Bucket::Of(selector) => selector,
    };
    // Without arguments a path leads nowhere.
    let mut args = NO_ARGS;
    if count > 3 {
        cursor.skip_many(2).ok()?;
        args = cursor.rest();
    }
    key::with_or_without_tuples(args, |args| selector.bucket(args, keyspace)).ok().map(BucketId::number)
}

/// Not NaN. What cannot be waited for is zero, what cannot be expressed is for ever.
fn span(seconds: f64) -> Duration {
    if seconds <= 0.0 {
        Duration::ZERO
    } else {
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }
}

fn seconds(given: Option<f64>) -> impl fmt::Display {
    given.unwrap_or(DEFAULT_TIMEOUT.as_secs_f64())
}

/// Appends well-formed `args` to `out` without tuple extensions; refuses what is not one MessagePack array.
pub fn append_args(args: &[u8], out: &mut Vec<u8>) -> mp::Result<()> {
    let mut cursor = Cursor::new(args);
    if cursor.peek()? != Kind::Array {
        return Err(Fault::Expected("an array"));
    }
    let met = cursor.skip_many(1)?;
    cursor.finish()?;
    if met.tuples {
        return mp::copy_without_tuples(args, out);
    }
    out.extend_from_slice(args);
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::call::samples::{array, id, keyspace, parsed, refusal, with_args, with_bucket};

    /// What is sent behind the head.
    fn sent(bytes: &[u8]) -> Vec<u8> {
        let read =
            read(bytes.to_vec(), keyspace()).unwrap_or_else(|(_, refusal)| panic!("{refusal}: {bytes:02x?}"));
        let head = Head::StorageCall { bucket: read.bucket, mode: read.access.mode };
        assert_eq!(read.payload.head(), head);
        read.payload.bytes().to_vec()
    }

    #[test]
    fn three_elements_are_enough() {
        let bytes = with_bucket(b"\x07");
        let call = parsed(&bytes);
        assert_eq!(id(&call), 7);
        assert_eq!(call.access, Access::RW);
        assert_eq!((call.func, call.args, call.has_tuples), (&b"\xa4echo"[..], &b"\x90"[..], false));
        assert_eq!((call.timeout, call.attempt_timeout), (DEFAULT_TIMEOUT, None));
        let nils = array(&[b"\x07", b"\xc0", b"\xa4echo", b"\xc0", b"\xc0"]);
        assert_eq!(parsed(&nils), call);
        let empty = array(&[b"\x07", b"\x90", b"\xa4echo", b"\x90", b"\x90"]);
        assert_eq!(parsed(&empty), call, "Lua sends an empty table as an empty array");
        let maps = array(&[b"\x07", b"\x80", b"\xa4echo", b"\x90", b"\x80"]);
        assert_eq!(parsed(&maps), call);
    }

    #[test]
    fn five_elements_are_all_read() {
        let bytes = array(&[
            b"\xcd\x0b\xb8",
            b"\x83\xa4mode\xa4read\xaeprefer_replica\xc3\xa7balance\xc3",
            b"\xd9\x04echo",
            b"\xdc\x00\x02\xcc\x01\xc4\x01x",
            b"\x82\xa7timeout\x02\xafrequest_timeout\xcb\x3f\xe0\x00\x00\x00\x00\x00\x00",
        ]);
        let call = parsed(&bytes);
        assert_eq!(id(&call), 3000);
        assert_eq!(call.access, Access { mode: Mode::Read, prefer_replica: true, balance: true });
        assert_eq!(call.func, b"\xd9\x04echo", "as it was spelt");
        assert_eq!(call.args, b"\xdc\x00\x02\xcc\x01\xc4\x01x", "bit for bit");
        assert_eq!(call.timeout, Duration::from_secs(2));
        assert_eq!(call.attempt_timeout, Some(Duration::from_millis(500)));
    }

    #[test]
    fn tuples_in_arguments_leave_as_arrays() {
        let with_tuple = with_args(b"\x92\x01\xd6\x07\x00\x92\x01\x02");
        let call = parsed(&with_tuple);
        assert!(call.has_tuples);
        assert_eq!(sent(&with_tuple), sent(&with_args(b"\x92\x01\x92\x01\x02")));
        let broken = with_args(b"\x91\xd4\x07\x00");
        assert_eq!(
            read(broken, keyspace()).unwrap_err().1.to_string(),
            "callraw: argument 4 (args): expected an array, got a tuple extension that does not hold one array"
        );
    }

    #[test]
    fn function_and_arguments_are_sent_as_they_came() {
        let bytes = array(&[b"\x07", b"\xa4read", b"\xd9\x04echo", b"\xdc\x00\x01\xcc\x2a", b"\x80"]);
        assert_eq!(sent(&bytes), b"\xd9\x04echo\xdc\x00\x01\xcc\x2a");
        for none in [
            &with_bucket(b"\x07"),
            &with_args(b"\xc0"),
            &array(&[b"\x07", b"\xc0", b"\xa4echo", b"\xc0", b"\x80"]),
        ] {
            assert_eq!(sent(none), b"\xa4echo\x90");
        }
    }

    #[test]
    fn a_bucket_to_choose_an_engine_by() {
        for same in
            [&b"\xcd\x01\x00"[..], b"\xcb\x40\x70\0\0\0\0\0\0", b"\xca\x43\x80\0\0", b"\xd2\0\0\x01\0"]
        {
            let bytes = with_bucket(same);
            assert_eq!(peek_bucket(&bytes, keyspace()), Some(256));
            assert_eq!(read(bytes, keyspace()).unwrap().bucket.number(), 256);
        }
        for odd in [&b""[..], b"\x90", b"\x91\xa1x", b"\xc0", b"\x91\xcd\x01"] {
            assert_eq!(peek_bucket(odd, keyspace()), None);
        }
    }

    #[test]
    fn a_write_has_no_attempts_to_bound() {
        let opts = b"\x82\xa7timeout\x02\xafrequest_timeout\x01";
        let write = array(&[b"\x01", b"\xa5write", b"\xa1f", b"\x90", opts]);
        assert_eq!(parsed(&write).attempt_timeout, None);
        let read = array(&[b"\x01", b"\xa4read", b"\xa1f", b"\x90", opts]);
        assert_eq!(parsed(&read).attempt_timeout, Some(Duration::from_secs(1)));
    }

    #[test]
    fn the_wrong_number_of_elements() {
        const MISSING: &str = "is missing: expected an array [bucket_id, opts, func, args, call_opts]";
        for (bytes, what) in [
            (&b"\x90"[..], "argument 1 (bucket_id)"),
            (b"\x91\x01", "argument 2 (opts)"),
            (b"\x92\x01\xc0", "argument 3 (func)"),
        ] {
            assert_eq!(refusal(bytes), format!("callraw: {what} {MISSING}"));
        }
        let six = array(&[b"\x01", b"\xc0", b"\xa1f", b"\x90", b"\xc0", b"\xc0"]);
        assert_eq!(
            refusal(&six),
            "callraw: expected an array [bucket_id, opts, func, args, call_opts], got 6 elements"
        );
        assert_eq!(
            refusal(b"\x81\x01\x02"),
            "callraw: expected an array [bucket_id, opts, func, args, call_opts], got map"
        );
    }

    #[test]
    fn cut_or_trailing_bytes_are_refused() {
        let whole = array(&[
            b"\xcd\x0b\xb8",
            b"\x83\xa4mode\xa4read\xaeprefer_replica\xc3\xa7balance\xc3",
            b"\xd9\x04echo",
            b"\x92\x01\xd6\x07\x00\x92\x01\x02",
            b"\x82\xa7timeout\x02\xafrequest_timeout\xcb\x3f\xe0\x00\x00\x00\x00\x00\x00",
        ]);
        parsed(&whole);
        for cut in 0..whole.len() {
            let text = refusal(&whole[..cut]);
            assert!(text.contains("not well-formed") || text.contains("got nothing"), "{cut}: {text}");
        }
        let mut longer = whole.clone();
        longer.push(0xc0);
        assert_eq!(
            refusal(&longer),
            "callraw: the arguments are not well-formed MessagePack: bytes follow where the value should end"
        );
    }

    #[test]
    fn plain_arguments_are_checked_and_copied() {
        let mut out = b"before".to_vec();
        append_args(b"\x92\x01\xcc\x02", &mut out).unwrap();
        assert_eq!(out, b"before\x92\x01\xcc\x02");
        out.clear();
        append_args(b"\x91\xd6\x07\x00\x92\x01\x02", &mut out).unwrap();
        assert_eq!(out, b"\x91\x92\x01\x02");
        assert_eq!(append_args(b"\x81\x01\x02", &mut out), Err(Fault::Expected("an array")));
        assert_eq!(append_args(b"\x92\x01", &mut out), Err(Fault::Truncated));
        assert_eq!(append_args(b"\x91\x01\x01", &mut out), Err(Fault::Trailing));
        assert_eq!(append_args(b"", &mut out), Err(Fault::Truncated));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = (peek_bucket(&bytes, keyspace()), read(bytes, keyspace()));
        }

        #[test]
        fn no_damage_makes_it_panic(at in 0usize..64, byte in any::<u8>()) {
            let mut bytes = array(&[
                b"\xcd\x0b\xb8",
                b"\x81\xa4mode\xa4read",
                b"\xa4echo",
                b"\x92\x01\xd6\x07\x00\x92\x01\x02",
                b"\x82\xa7timeout\x02\xafrequest_timeout\x01",
            ]);
            let at = at % bytes.len();
            bytes[at] = byte;
            let _ = (peek_bucket(&bytes, keyspace()), read(bytes, keyspace()));
        }
    }
}
