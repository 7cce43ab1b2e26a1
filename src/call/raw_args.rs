//! The arguments of `callraw`, read in place: `[bucket_id, opts, func, args, call_opts]`, those of `vshard.router.call`
//! in its order. The last two may be nil or left out. In the place of the bucket id there may be a map that says where
//! the sharding key is, and by which hash it becomes one: `{key = …, hash = …}` or `{path = …, hash = …}`.

use std::fmt;
use std::time::Duration;

use crate::call::endpoint::Endpoint;
use crate::call::key::{self, Keyspace, MAX_PATHS, Place, Selector, short};
use crate::call::request::{Access, Mode};
use crate::ids::BucketId;
use crate::route::hash::Hash;
use crate::wire::mp::{self, Cursor, Fault, Kind};
use crate::wire::path::Inline;
use crate::wire::payload::{Head, Payload};

/// vshard's `CALL_TIMEOUT_MIN`, the timeout of a call that names none.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_millis(500);

/// What is wrong, with the position and what was expected there.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(String);

/// The hash of a key for which none is named: the same for all widths of a number.
pub const DEFAULT_HASH: Hash = Hash::MpCrc32;

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

/// A bucket, or how to find it.
#[derive(Debug, PartialEq)]
pub enum Bucket<'a> {
    Id(BucketId),
    Of(Selector<'a>),
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
    let head = Head::StorageCall { bucket, mode: access.mode.name() };
    let payload = match (written, place) {
        (None, Some(place)) => Payload::of(head, bytes, place),
        (written, _) => Payload::new(head, written.unwrap_or_default()),
    };
    Ok(Read { bucket, access, timeout, attempt_timeout, payload })
}

/// Reads a call of an endpoint: `bytes` are its function's name and the arguments ([`Endpoint::begin`]). `bucket` is None where
/// the key is to be found in these.
pub fn read_endpoint(
    mut bytes: Vec<u8>,
    endpoint: &Endpoint,
    bucket: Option<BucketId>,
    keyspace: Keyspace,
) -> Result<Read, (Vec<u8>, Malformed)> {
    let fault = |text: &dyn fmt::Display| Malformed(format!("{}: {text}", endpoint.name));
    let from = endpoint.func_len();
    let found = (|| {
        let mut cursor = Cursor::new(bytes.get(from..).unwrap_or_default());
        let not_well_formed =
            |broken: Fault| fault(&format!("the arguments are not well-formed MessagePack: {broken}"));
        if cursor.peek().map_err(not_well_formed)? != Kind::Array {
            return Err(fault(&format!(
                "expected the function's arguments, an array, got {}",
                describe(cursor)
            )));
        }
        let tuples = cursor.skip_many(1).map_err(not_well_formed)?;
        cursor.finish().map_err(not_well_formed)?;
        let mut written = None;
        if tuples {
            let mut plain = bytes[..from].to_vec();
            mp::copy_without_tuples(&bytes[from..], &mut plain).map_err(|broken| fault(&broken))?;
            written = Some(plain);
        }
        let args = &written.as_ref().unwrap_or(&bytes)[from..];
        let bucket = match bucket {
            Some(bucket) => bucket,
            None => endpoint.bucket(args, keyspace).map_err(|text| fault(&text))?,
        };
        Ok((bucket, written))
    })();
    let bucket = match found {
        Ok((bucket, written)) => {
            bytes = written.unwrap_or(bytes);
            bucket
        }
        Err(malformed) => return Err((bytes, malformed)),
    };
    let Endpoint { access, timeout, attempt_timeout, .. } = *endpoint;
    let payload = Payload::new(Head::StorageCall { bucket, mode: access.mode.name() }, bytes);
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

/// One of the five elements, for messages.
#[derive(Clone, Copy)]
struct Position {
    number: u32,
    name: &'static str,
}

impl Position {
    const BUCKET: Position = Position { number: 1, name: "bucket_id" };
    const OPTS: Position = Position { number: 2, name: "opts" };
    const FUNC: Position = Position { number: 3, name: "func" };
    const ARGS: Position = Position { number: 4, name: "args" };
    const CALL_OPTS: Position = Position { number: 5, name: "call_opts" };

    fn require(self, count: u32) -> Result<Position, Malformed> {
        if count >= self.number {
            return Ok(self);
        }
        Err(Malformed(format!(
            "callraw: argument {} ({}) is missing: expected {SHAPE}",
            self.number, self.name
        )))
    }

    fn fault(self, expected: String, got: String) -> Malformed {
        self.fault_at("", &expected, &got)
    }

    /// `field`: where inside the element, as `.name`; empty for the element itself.
    fn fault_at(self, field: &str, expected: &str, got: &str) -> Malformed {
        let Position { number, name } = self;
        Malformed(format!("callraw: argument {number} ({name}{field}): expected {expected}, got {got}"))
    }

    /// Any spelling of a Lua number with an integral value counts: clients choose widths and signs as they like, and
    /// some send every number as a double.
    fn bucket<'a>(self, cursor: &mut Cursor<'a>, bucket_count: u32) -> Result<Bucket<'a>, Malformed> {
        let before = *cursor;
        let id = match cursor.peek().map_err(broken)? {
            Kind::Map => return self.selector(cursor).map(Bucket::Of),
            Kind::Uint | Kind::Int => match cursor.uint() {
                Ok(id) => Some(id),
                Err(Fault::Expected(_)) => None,
                Err(fault) => return Err(broken(fault)),
            },
            Kind::Float => {
                let number = cursor.number().map_err(broken)?;
                // The cast saturates, and what it saturates to is out of range.
                (number.fract() == 0.0 && number > 0.0).then_some(number as u64)
            }
            _ => None,
        };
        id.and_then(|id| BucketId::new(id, bucket_count)).map(Bucket::Id).ok_or_else(|| {
            self.fault(format!("an unsigned integer from 1 to {bucket_count}"), describe(before))
        })
    }

    /// A map in the place of the bucket id.
    fn selector<'a>(self, cursor: &mut Cursor<'a>) -> Result<Selector<'a>, Malformed> {
        let (mut place, mut hash) = (None, DEFAULT_HASH);
        for _ in 0..cursor.map().map_err(broken)? {
            let key = self.key("key, path or hash", cursor)?;
            let found = match key {
                b"key" | b"path" if cursor.peek() == Ok(Kind::Nil) => {
                    cursor.skip().map_err(broken)?;
                    continue;
                }
                b"key" => Place::Key(cursor.span().map_err(broken)?),
                b"path" => self.paths(cursor)?,
                b"hash" => {
                    hash = self.hash(cursor)?;
                    continue;
                }
                _ => return Err(self.unknown(key, "key, path, hash")),
            };
            if place.replace(found).is_some() {
                return Err(self.fault("one of key and path".to_owned(), "both".to_owned()));
            }
        }
        let place =
            place.ok_or_else(|| self.fault("one of key and path".to_owned(), "none of them".to_owned()))?;
        Ok(Selector { place, hash })
    }

    fn hash(self, cursor: &mut Cursor<'_>) -> Result<Hash, Malformed> {
        let before = *cursor;
        if cursor.take_nil().map_err(broken)? {
            return Ok(DEFAULT_HASH);
        }
        match cursor.str() {
            Err(fault) if !matches!(fault, Fault::Expected(_)) => Err(broken(fault)),
            name => name
                .ok()
                .and_then(Hash::named)
                .ok_or_else(|| self.fault_at(".hash", "'mpcrc32' or 'strcrc32'", &describe(before))),
        }
    }

    fn paths<'a>(self, cursor: &mut Cursor<'a>) -> Result<Place<'a>, Malformed> {
        let all = cursor.rest();
        let from = cursor.position();
        match cursor.peek().map_err(broken)? {
            Kind::Str => self.path(cursor).map(Place::Path),
            Kind::Array => match cursor.array().map_err(broken)? {
                0 => Err(self.fault_at(".path", "a path or a list of them", "an empty list")),
                1 => self.path(cursor).map(Place::Path),
                count if count > MAX_PATHS => Err(self.fault_at(
                    ".path",
                    &format!("at most {MAX_PATHS} paths"),
                    &format!("{count} of them"),
                )),
                count => {
                    for _ in 0..count {
                        self.path(cursor)?;
                    }
                    Ok(Place::Paths(&all[..cursor.position() - from]))
                }
            },
            _ => Err(self.fault_at(".path", "a path or a list of them", &describe(*cursor))),
        }
    }

    fn path<'a>(self, cursor: &mut Cursor<'a>) -> Result<Inline<'a>, Malformed> {
        if cursor.peek().map_err(broken)? != Kind::Str {
            return Err(self.fault_at(".path", "a path", &describe(*cursor)));
        }
        let text = cursor.str().map_err(broken)?;
        Inline::new(text).map_err(|fault| {
            self.fault_at(".path", "a path like [1].name", &format!("'{}': {fault}", short(text)))
        })
    }

    fn access(self, cursor: &mut Cursor<'_>) -> Result<Access, Malformed> {
        let mut access = Access::RW;
        match cursor.peek().map_err(broken)? {
            Kind::Str => access.mode = self.mode("", cursor)?,
            Kind::Nil => cursor.skip().map_err(broken)?,
            _ => {
                let pairs = self.map("nil, 'read', 'write' or a map", cursor)?;
                for _ in 0..pairs {
                    let key = self.key("mode, prefer_replica or balance", cursor)?;
                    match key {
                        b"mode" if cursor.peek() == Ok(Kind::Nil) => cursor.skip().map_err(broken)?,
                        b"mode" => access.mode = self.mode(".mode", cursor)?,
                        b"prefer_replica" => access.prefer_replica = self.flag(".prefer_replica", cursor)?,
                        b"balance" => access.balance = self.flag(".balance", cursor)?,
                        _ => return Err(self.unknown(key, "mode, prefer_replica, balance")),
                    }
                }
            }
        }
        Ok(access)
    }

    fn func<'a>(self, cursor: &mut Cursor<'a>) -> Result<&'a [u8], Malformed> {
        if cursor.peek().map_err(broken)? != Kind::Str {
            return Err(self.fault("a string".to_owned(), describe(*cursor)));
        }
        cursor.span().map_err(broken)
    }

    /// The array's bytes, and whether they hold tuple extensions.
    fn args<'a>(self, cursor: &mut Cursor<'a>) -> Result<(&'a [u8], bool), Malformed> {
        match cursor.peek().map_err(broken)? {
            Kind::Nil => {
                cursor.skip().map_err(broken)?;
                Ok((NO_ARGS, false))
            }
            Kind::Array => {
                let all = cursor.rest();
                let from = cursor.position();
                let tuples = cursor.skip_many(1).map_err(broken)?;
                Ok((&all[..cursor.position() - from], tuples))
            }
            _ => Err(self.fault("an array or nil".to_owned(), describe(*cursor))),
        }
    }

    fn times(self, cursor: &mut Cursor<'_>) -> Result<Times, Malformed> {
        let mut times = Times::default();
        if cursor.take_nil().map_err(broken)? {
            return Ok(times);
        }
        let pairs = self.map("a map or nil", cursor)?;
        for _ in 0..pairs {
            let key = self.key("timeout or request_timeout", cursor)?;
            match key {
                b"timeout" => times.timeout = self.time(".timeout", cursor)?,
                b"request_timeout" => times.request_timeout = self.time(".request_timeout", cursor)?,
                _ => return Err(self.unknown(key, "timeout, request_timeout")),
            }
        }
        Ok(times)
    }

    fn mode(self, field: &str, cursor: &mut Cursor<'_>) -> Result<Mode, Malformed> {
        let before = *cursor;
        match cursor.str() {
            Ok(b"read") => Ok(Mode::Read),
            Ok(b"write") => Ok(Mode::Write),
            Err(fault) if !matches!(fault, Fault::Expected(_)) => Err(broken(fault)),
            _ => Err(self.fault_at(field, "'read' or 'write'", &describe(before))),
        }
    }

    fn flag(self, field: &str, cursor: &mut Cursor<'_>) -> Result<bool, Malformed> {
        match cursor.peek().map_err(broken)? {
            Kind::Nil => cursor.skip().map(|()| false).map_err(broken),
            Kind::Bool => cursor.bool().map_err(broken),
            _ => Err(self.fault_at(field, "a boolean", &describe(*cursor))),
        }
    }

    fn time(self, field: &str, cursor: &mut Cursor<'_>) -> Result<Option<f64>, Malformed> {
        let before = *cursor;
        match cursor.peek().map_err(broken)? {
            Kind::Nil => cursor.skip().map(|()| None).map_err(broken),
            Kind::Uint | Kind::Int | Kind::Float => {
                let seconds = cursor.number().map_err(broken)?;
                if seconds.is_nan() {
                    return Err(self.fault_at(field, "a number of seconds", &describe(before)));
                }
                Ok(Some(seconds))
            }
            _ => Err(self.fault_at(field, "a number of seconds", &describe(before))),
        }
    }

    /// Number of pairs. Lua sends an empty table as an empty array, so that is an empty map too.
    fn map(self, expected: &str, cursor: &mut Cursor<'_>) -> Result<u32, Malformed> {
        let before = *cursor;
        match cursor.peek().map_err(broken)? {
            Kind::Map => return cursor.map().map_err(broken),
            Kind::Array if cursor.array().map_err(broken)? == 0 => return Ok(0),
            _ => {}
        }
        Err(self.fault(expected.to_owned(), describe(before)))
    }

    fn key<'a>(self, expected: &str, cursor: &mut Cursor<'a>) -> Result<&'a [u8], Malformed> {
        if cursor.peek().map_err(broken)? != Kind::Str {
            return Err(self.fault(format!("only the keys {expected}"), describe(*cursor)));
        }
        cursor.str().map_err(broken)
    }

    fn unknown(self, key: &[u8], known: &str) -> Malformed {
        let Position { number, name } = self;
        Malformed(format!(
            "callraw: argument {number} ({name}): unknown option {}, expected one of {known}",
            quoted(key)
        ))
    }
}

/// Seconds as given; None where the default holds.
#[derive(Default)]
struct Times {
    timeout: Option<f64>,
    request_timeout: Option<f64>,
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

/// The value that comes next, for "got …": its kind, and the value itself where it is short.
fn describe(mut cursor: Cursor<'_>) -> String {
    let Ok(kind) = cursor.peek() else { return "nothing".to_owned() };
    match kind {
        Kind::Uint | Kind::Int => {
            let mut number = cursor;
            match number.uint() {
                Ok(value) => value.to_string(),
                // A number below zero: exact as a double as far as a message needs.
                Err(_) => cursor.number().map_or_else(|_| kind.name().to_owned(), |value| value.to_string()),
            }
        }
        Kind::Float => cursor.number().map_or_else(|_| kind.name().to_owned(), |value| value.to_string()),
        Kind::Str => {
            cursor.str().map_or_else(|_| kind.name().to_owned(), |text| format!("string {}", quoted(text)))
        }
        _ => kind.name().to_owned(),
    }
}

/// A user's text, short and printable.
fn quoted(text: &[u8]) -> String {
    const MOST: usize = 40;
    let shown = text[..text.len().min(MOST)].escape_ascii();
    let more = if text.len() > MOST { "..." } else { "" };
    format!("'{shown}{more}'")
}

fn broken(fault: Fault) -> Malformed {
    Malformed(format!("callraw: the arguments are not well-formed MessagePack: {fault}"))
}

const SHAPE: &str = "an array [bucket_id, opts, func, args, call_opts]";
/// An empty MessagePack array.
const NO_ARGS: &[u8] = b"\x90";

/// Appends well-formed `args` to `out` without tuple extensions; refuses what is not one MessagePack array.
pub fn append_args(args: &[u8], out: &mut Vec<u8>) -> mp::Result<()> {
    let mut cursor = Cursor::new(args);
    if cursor.peek()? != Kind::Array {
        return Err(Fault::Expected("an array"));
    }
    let tuples = cursor.skip_many(1)?;
    cursor.finish()?;
    if tuples {
        return mp::copy_without_tuples(args, out);
    }
    out.extend_from_slice(args);
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BUCKETS: u32 = 3000;

    fn keyspace() -> Keyspace {
        Keyspace::new(BUCKETS)
    }

    fn id(call: &RawArgs<'_>) -> u32 {
        match &call.bucket {
            Bucket::Id(id) => id.number(),
            Bucket::Of(selector) => panic!("a key: {selector:?}"),
        }
    }

    fn array(elements: &[&[u8]]) -> Vec<u8> {
        let mut bytes = Vec::new();
        mp::write_array_len(&mut bytes, elements.len() as u32);
        elements.iter().for_each(|element| bytes.extend_from_slice(element));
        bytes
    }

    /// A call whose other elements are right.
    fn with_bucket(bucket: &[u8]) -> Vec<u8> {
        array(&[bucket, b"\xc0", b"\xa4echo"])
    }

    fn with_opts(opts: &[u8]) -> Vec<u8> {
        array(&[b"\x01", opts, b"\xa4echo"])
    }

    fn with_args(args: &[u8]) -> Vec<u8> {
        array(&[b"\x01", b"\xc0", b"\xa4echo", args])
    }

    fn with_call_opts(call_opts: &[u8]) -> Vec<u8> {
        array(&[b"\x01", b"\xa4read", b"\xa4echo", b"\x90", call_opts])
    }

    fn refusal(bytes: &[u8]) -> String {
        RawArgs::parse(bytes, BUCKETS).expect_err("it must be refused").to_string()
    }

    fn parsed(bytes: &[u8]) -> RawArgs<'_> {
        RawArgs::parse(bytes, BUCKETS).unwrap_or_else(|refusal| panic!("{refusal}: {bytes:02x?}"))
    }

    /// What is sent behind the head.
    fn sent(bytes: &[u8]) -> Vec<u8> {
        let read =
            read(bytes.to_vec(), keyspace()).unwrap_or_else(|(_, refusal)| panic!("{refusal}: {bytes:02x?}"));
        let head = Head::StorageCall { bucket: read.bucket, mode: read.access.mode.name() };
        assert_eq!(read.payload.head(), head);
        read.payload.bytes().to_vec()
    }

    fn timeout(call_opts: &[u8]) -> Duration {
        parsed(&with_call_opts(call_opts)).timeout
    }

    fn double(value: f64) -> Vec<u8> {
        [&[0xcb][..], &value.to_be_bytes()].concat()
    }

    fn timeout_of(value: f64) -> Vec<u8> {
        [b"\x81\xa7timeout", &double(value)[..]].concat()
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
    fn a_bucket_id_of_any_spelling() {
        let spellings: &[&[u8]] = &[
            b"\x05",
            b"\xcc\x05",
            b"\xcd\x00\x05",
            b"\xce\x00\x00\x00\x05",
            b"\xcf\x00\x00\x00\x00\x00\x00\x00\x05",
            b"\xd0\x05",
            b"\xd1\x00\x05",
            b"\xd2\x00\x00\x00\x05",
            b"\xd3\x00\x00\x00\x00\x00\x00\x00\x05",
            b"\xca\x40\xa0\x00\x00",
            b"\xcb\x40\x14\x00\x00\x00\x00\x00\x00",
        ];
        for spelling in spellings {
            assert_eq!(id(&parsed(&with_bucket(spelling))), 5, "{spelling:02x?}");
        }
    }

    #[test]
    fn a_bucket_id_that_is_none() {
        let cases: &[(&[u8], &str)] = &[
            (b"\x00", "0"),
            (b"\xcd\x0b\xb9", "3001"),
            (b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff", "18446744073709551615"),
            (b"\xff", "-1"),
            (b"\xd2\x80\x00\x00\x00", "-2147483648"),
            (&double(1.5), "1.5"),
            (&double(0.0), "0"),
            (&double(-3.0), "-3"),
            (&double(1e300), &format!("{}", 1e300)),
            (&double(f64::NAN), "NaN"),
            (&double(f64::INFINITY), "inf"),
            (b"\xa11", "string '1'"),
            (b"\xc0", "nil"),
            (b"\xc3", "boolean"),
            (b"\x90", "array"),
            (b"\xc4\x00", "varbinary"),
            (b"\xd4\x01\x00", "extension"),
        ];
        for (bucket, got) in cases {
            assert_eq!(
                refusal(&with_bucket(bucket)),
                format!(
                    "callraw: argument 1 (bucket_id): expected an unsigned integer from 1 to 3000, got {got}"
                )
            );
        }
    }

    fn keyed(selector: &[u8]) -> Vec<u8> {
        // args: [{customer: {id: 7, name: "Bob"}, none: nil}, "key", [1, "two"]]
        let args = b"\x93\x82\xa8customer\x82\xa2id\x07\xa4name\xa3Bob\xa4none\xc0\xa3key\x92\x01\xa3two";
        array(&[selector, b"\xc0", b"\xa4echo", args])
    }

    fn bucket_of(selector: &[u8]) -> u32 {
        let bytes = keyed(selector);
        let read = read(bytes.clone(), keyspace()).unwrap_or_else(|(_, refusal)| panic!("{refusal}"));
        assert_eq!(peek_bucket(&bytes, keyspace()), Some(read.bucket.number()), "both find the same");
        assert_eq!(
            read.payload.bytes(),
            &bytes[bytes.len() - read.payload.bytes().len()..],
            "sent as it came"
        );
        read.bucket.number()
    }

    /// Of what vshard's functions are given.
    fn crc_bucket(bytes: &[u8]) -> u32 {
        !crc32c::crc32c(bytes) % BUCKETS + 1
    }

    #[test]
    fn a_key_in_the_place_of_the_bucket_id() {
        assert_eq!(bucket_of(b"\x81\xa3key\x01"), 1614, "mpcrc32 by default");
        assert_eq!(bucket_of(b"\x82\xa3key\xcb\x3f\xf0\0\0\0\0\0\0\xa4hash\xa7mpcrc32"), 1614);
        assert_eq!(bucket_of(b"\x82\xa4hash\xa8strcrc32\xa3key\x01"), 477);
        assert_eq!(bucket_of(b"\x82\xa4hash\xc0\xa3key\x92\x01\xa3two"), crc_bucket(b"\x01two"));
        let without_args = array(&[b"\x81\xa3key\x01", b"\xc0", b"\xa4echo"]);
        assert_eq!(read(without_args.clone(), keyspace()).unwrap().bucket.number(), 1614);
        assert_eq!(peek_bucket(&without_args, keyspace()), Some(1614));
    }

    #[test]
    fn a_path_in_the_place_of_the_bucket_id() {
        assert_eq!(bucket_of(b"\x81\xa4path\xaf[1].customer.id"), crc_bucket(b"\x07"));
        assert_eq!(bucket_of(b"\x81\xa4path\xb2[1][\"customer\"].id"), crc_bucket(b"\x07"));
        assert_eq!(bucket_of(b"\x82\xa4hash\xa8strcrc32\xa4path\xaf[1].customer.id"), crc_bucket(b"7"));
        assert_eq!(bucket_of(b"\x81\xa4path\xa3[2]"), crc_bucket(b"key"));
        assert_eq!(bucket_of(b"\x81\xa4path\x91\xa3[2]"), crc_bucket(b"key"));
        assert_eq!(bucket_of(b"\x81\xa4path\xa3[3]"), crc_bucket(b"\x01two"), "an array is its items");
        assert_eq!(bucket_of(b"\x81\xa4path\x92\xa3[2]\xaf[1].customer.id"), crc_bucket(b"key\x07"));
        assert_eq!(
            bucket_of(b"\x81\xa4path\x92\xa3[2]\xa3[3]"),
            crc_bucket(b"key\x92\x01\xa3two"),
            "an item that is an array"
        );
    }

    #[test]
    fn a_key_that_is_none() {
        let cases: &[(&[u8], &str)] = &[
            (b"\x80", "bucket_id): expected one of key and path, got none of them"),
            (b"\x81\xa3key\xc0", "bucket_id): expected one of key and path, got none of them"),
            (b"\x82\xa3key\x01\xa4path\xa3[1]", "bucket_id): expected one of key and path, got both"),
            (b"\x81\xa3kye\x01", "bucket_id): unknown option 'kye', expected one of key, path, hash"),
            (b"\x81\x01\x01", "bucket_id): expected only the keys key, path or hash, got 1"),
            (
                b"\x82\xa3key\x01\xa4hash\xa3md5",
                "bucket_id.hash): expected 'mpcrc32' or 'strcrc32', got string 'md5'",
            ),
            (b"\x82\xa3key\x01\xa4hash\x01", "bucket_id.hash): expected 'mpcrc32' or 'strcrc32', got 1"),
            (b"\x81\xa3key\x80", "bucket_id.key): a map can not be a sharding key"),
            (
                b"\x81\xa3key\xd4\x07\x00",
                "bucket_id.key): a MessagePack extension of type 7 can not be a sharding key",
            ),
            (b"\x81\xa4path\x01", "bucket_id.path): expected a path or a list of them, got 1"),
            (b"\x81\xa4path\x90", "bucket_id.path): expected a path or a list of them, got an empty list"),
            (b"\x81\xa4path\x92\xa3[1]\x02", "bucket_id.path): expected a path, got 2"),
            (
                b"\x81\xa4path\xa3[0]",
                "bucket_id.path): expected a path like [1].name, got '[0]': syntax error at character 2",
            ),
            (b"\x81\xa4path\xa0", "bucket_id.path): expected a path like [1].name, got '': it is empty"),
            (
                b"\x81\xa4path\xa6[1][*]",
                "bucket_id.path): expected a path like [1].name, got '[1][*]': [*] stands for many values",
            ),
            (b"\x81\xa4path\xa3[4]", "bucket_id.path): path '[4]' leads nowhere: args has 3 items"),
            (b"\x81\xa4path\xa1x", "bucket_id.path): path 'x' leads nowhere: args is an array"),
            (
                b"\x81\xa4path\xb2[1][\"customer\"].no",
                "bucket_id.path): path '[1][\"customer\"].no' leads nowhere: [1][\"customer\"] has no such key",
            ),
            (
                b"\x81\xa4path\xab[1].none.id",
                "bucket_id.path): path '[1].none.id' leads nowhere: [1].none is nil",
            ),
            (b"\x81\xa4path\xa6[2].id", "bucket_id.path): path '[2].id' leads nowhere: [2] is a string"),
            (b"\x81\xa4path\xa8[1].none", "bucket_id.path): path '[1].none' leads to nil"),
            (
                b"\x81\xa4path\x92\xa3[2]\xac[1].customer",
                "bucket_id.path): path '[1].customer' leads to a map",
            ),
            (
                b"\x82\xa4hash\xa8strcrc32\xa4path\x92\xa3[2]\xa3[3]",
                "bucket_id.path): path '[3]': an array in a sharding key has no strcrc32",
            ),
        ];
        for (selector, text) in cases {
            let bytes = keyed(selector);
            let (given_back, refusal) = read(bytes.clone(), keyspace()).expect_err(text);
            assert_eq!(refusal.to_string(), format!("callraw: argument 1 ({text}"));
            assert_eq!(given_back, bytes);
            assert_eq!(peek_bucket(&bytes, keyspace()), None, "{text}");
        }
    }

    #[test]
    fn a_key_within_a_tuple() {
        let args = b"\x91\xd6\x07\x00\x92\x05\x01";
        for (path, expected) in [(&b"\xa6[1][2]"[..], 1614), (b"\xa3[1]", crc_bucket(b"\x05\x01"))] {
            let bytes = array(&[&[b"\x81\xa4path", path].concat(), b"\xc0", b"\xa4echo", args, b"\x80"]);
            assert_eq!(peek_bucket(&bytes, keyspace()), Some(expected), "both find the same");
            assert_eq!(read(bytes, keyspace()).unwrap().bucket.number(), expected);
        }
    }

    #[test]
    fn as_many_paths_as_a_key_may_have() {
        let of = |count: u32| {
            let mut selector = b"\x81\xa4path".to_vec();
            mp::write_array_len(&mut selector, count);
            (0..count).for_each(|_| mp::write_str(&mut selector, "[2]"));
            read(keyed(&selector), keyspace()).map(|read| read.bucket.number())
        };
        assert_eq!(of(MAX_PATHS).unwrap(), crc_bucket(&b"key".repeat(MAX_PATHS as usize)));
        for count in [MAX_PATHS + 1, 10_000] {
            assert_eq!(
                of(count).unwrap_err().1.to_string(),
                format!(
                    "callraw: argument 1 (bucket_id.path): expected at most {MAX_PATHS} paths, got {count} of them"
                )
            );
        }
    }

    fn endpoint(paths: &[&str]) -> Endpoint {
        let paths = paths.iter().map(|path| crate::wire::path::Path::new(path.as_bytes()).unwrap()).collect();
        let timeout = Duration::from_secs(1);
        Endpoint::new(
            "customer.get".into(),
            b"customer_get",
            paths,
            Some(Hash::MpCrc32),
            Access::RO,
            timeout,
            None,
        )
    }

    fn of_endpoint(endpoint: &Endpoint, args: &[u8], bucket: Option<BucketId>) -> Result<Read, String> {
        let mut bytes = b"anything".to_vec();
        endpoint.begin(&mut bytes);
        bytes.extend_from_slice(args);
        read_endpoint(bytes, endpoint, bucket, keyspace()).map_err(|(_, refusal)| refusal.to_string())
    }

    #[test]
    fn a_call_of_an_endpoint() {
        let read = of_endpoint(&endpoint(&["[1]"]), b"\x92\x01\xcc\x02", None).unwrap();
        assert_eq!(
            (read.bucket.number(), read.access, read.timeout),
            (1614, Access::RO, Duration::from_secs(1))
        );
        assert_eq!(read.payload.bytes(), b"\xaccustomer_get\x92\x01\xcc\x02", "bit for bit");
        let read = of_endpoint(&endpoint(&["[2]", "[1].id"]), b"\x92\x81\xa2id\x07\xa3key", None).unwrap();
        assert_eq!(read.bucket.number(), crc_bucket(b"key\x07"));
        let read = of_endpoint(&endpoint(&["[1][2]"]), b"\x91\xd6\x07\x00\x92\x05\x01", None).unwrap();
        assert_eq!(read.bucket.number(), 1614);
        assert_eq!(read.payload.bytes(), b"\xaccustomer_get\x91\x92\x05\x01", "tuples leave as arrays");
        let given = BucketId::new(5, BUCKETS);
        assert_eq!(of_endpoint(&endpoint(&["[1]"]), b"\x90", given).unwrap().bucket.number(), 5);
    }

    #[test]
    fn wrong_arguments_of_an_endpoint() {
        let cases: &[(&[u8], &str)] = &[
            (b"\x81\x01\x02", "expected the function's arguments, an array, got map"),
            (b"\x90", "path '[1].id' leads nowhere: args is empty"),
            (b"\x91\x81\xa2id\xc0", "path '[1].id' leads to nil"),
            (b"\x91\xa2id", "path '[1].id' leads nowhere: [1] is a string"),
            (
                b"\x92\x01",
                "the arguments are not well-formed MessagePack: the bytes end in the middle of a value",
            ),
            (b"", "the arguments are not well-formed MessagePack: the bytes end in the middle of a value"),
            (b"\x91\xd4\x07\x00", "a tuple extension that does not hold one array"),
            (
                b"\x91\x01\x01",
                "the arguments are not well-formed MessagePack: bytes follow where the value should end",
            ),
        ];
        for (args, text) in cases {
            let refusal = of_endpoint(&endpoint(&["[1].id"]), args, None).expect_err(text);
            assert_eq!(refusal, format!("customer.get: {text}"));
        }
    }

    #[test]
    fn keys_that_are_deep_or_promise_too_much() {
        let deep = [vec![0x91; 100_000], vec![0x01]].concat();
        let path = vec!["[1]"; 99_999].concat();
        let mut selector = b"\x81\xa4path".to_vec();
        mp::write_bytes_as_str(&mut selector, path.as_bytes());
        let bytes = array(&[&selector, b"\xc0", b"\xa4echo", &deep]);
        assert_eq!(read(bytes.clone(), keyspace()).unwrap().bucket.number(), 1614);
        let key = [&b"\x81\xa3key"[..], &deep].concat();
        let (_, refusal) = read(array(&[&key, b"\xc0", b"\xa4echo"]), keyspace()).unwrap_err();
        assert_eq!(
            refusal.to_string(),
            "callraw: argument 1 (bucket_id.key): a sharding key can not be nested deeper than 128 levels"
        );
        for index in ["[4294967295]", "[18446744073709551615]"] {
            let mut selector = b"\x81\xa4path".to_vec();
            mp::write_str(&mut selector, index);
            let (_, refusal) = read(keyed(&selector), keyspace()).unwrap_err();
            let text = format!(
                "callraw: argument 1 (bucket_id.path): path '{index}' leads nowhere: args has 3 items"
            );
            assert_eq!(refusal.to_string(), text);
        }
        for cut in 0..bytes.len().min(2000) {
            assert!(read(bytes[..cut].to_vec(), keyspace()).is_err());
            peek_bucket(&bytes[..cut], keyspace());
        }
    }

    #[test]
    fn options_name_the_mode() {
        assert_eq!(parsed(&with_opts(b"\xa4read")).access, Access::RO);
        assert_eq!(parsed(&with_opts(b"\xa5write")).access, Access::RW);
        assert_eq!(parsed(&with_opts(b"\x81\xa4mode\xc0")).access, Access::RW);
        assert_eq!(
            parsed(&with_opts(b"\x82\xa7balance\xc3\xaeprefer_replica\xc0")).access,
            Access { mode: Mode::Write, prefer_replica: false, balance: true }
        );
        let cases: &[(&[u8], &str)] = &[
            (b"\xa5reads", "callraw: argument 2 (opts): expected 'read' or 'write', got string 'reads'"),
            (b"\x01", "callraw: argument 2 (opts): expected nil, 'read', 'write' or a map, got 1"),
            (b"\xc2", "callraw: argument 2 (opts): expected nil, 'read', 'write' or a map, got boolean"),
            (b"\x91\x01", "callraw: argument 2 (opts): expected nil, 'read', 'write' or a map, got array"),
            (b"\x81\xa4mode\x01", "callraw: argument 2 (opts.mode): expected 'read' or 'write', got 1"),
            (b"\x81\xa7balance\x01", "callraw: argument 2 (opts.balance): expected a boolean, got 1"),
            (
                b"\x81\xaeprefer_replica\xa1x",
                "callraw: argument 2 (opts.prefer_replica): expected a boolean, got string 'x'",
            ),
            (
                b"\x81\xa5balnc\xc3",
                "callraw: argument 2 (opts): unknown option 'balnc', expected one of mode, prefer_replica, balance",
            ),
            (
                b"\x81\x01\xc3",
                "callraw: argument 2 (opts): expected only the keys mode, prefer_replica or balance, got 1",
            ),
        ];
        for (opts, text) in cases {
            assert_eq!(refusal(&with_opts(opts)), *text);
        }
    }

    #[test]
    fn a_function_is_a_string() {
        for (func, got) in
            [(&b"\x01"[..], "1"), (b"\xc0", "nil"), (b"\xc4\x01f", "varbinary"), (b"\x90", "array")]
        {
            assert_eq!(
                refusal(&array(&[b"\x01", b"\xc0", func])),
                format!("callraw: argument 3 (func): expected a string, got {got}")
            );
        }
    }

    #[test]
    fn arguments_are_an_array_or_nil() {
        for (args, got) in
            [(&b"\x01"[..], "1"), (b"\x80", "map"), (b"\xa1x", "string 'x'"), (b"\xc2", "boolean")]
        {
            assert_eq!(
                refusal(&with_args(args)),
                format!("callraw: argument 4 (args): expected an array or nil, got {got}")
            );
        }
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
    fn timeouts_of_every_size() {
        assert_eq!(timeout(b"\x81\xa7timeout\x03"), Duration::from_secs(3));
        assert_eq!(timeout(b"\x81\xa7timeout\xca\x3f\x00\x00\x00"), Duration::from_millis(500));
        assert_eq!(timeout(b"\x81\xa7timeout\xc0"), DEFAULT_TIMEOUT);
        assert_eq!(timeout(b"\x81\xa7timeout\x00"), Duration::ZERO);
        assert_eq!(timeout(b"\x81\xa7timeout\xff"), Duration::ZERO, "less than nothing is nothing");
        assert_eq!(timeout(&timeout_of(-1e300)), Duration::ZERO);
        assert_eq!(timeout(&timeout_of(f64::NEG_INFINITY)), Duration::ZERO);
        assert_eq!(timeout(&timeout_of(1e300)), Duration::MAX);
        assert_eq!(timeout(&timeout_of(f64::INFINITY)), Duration::MAX);
        assert_eq!(timeout(&timeout_of(0.05)), Duration::from_millis(50));
    }

    #[test]
    fn call_options_that_are_none() {
        let nan = timeout_of(f64::NAN);
        let cases: &[(&[u8], &str)] = &[
            (b"\x01", "callraw: argument 5 (call_opts): expected a map or nil, got 1"),
            (b"\x91\x01", "callraw: argument 5 (call_opts): expected a map or nil, got array"),
            (
                b"\x81\xa7timeout\xa11",
                "callraw: argument 5 (call_opts.timeout): expected a number of seconds, got string '1'",
            ),
            (&nan, "callraw: argument 5 (call_opts.timeout): expected a number of seconds, got NaN"),
            (
                b"\x81\xafrequest_timeout\xc3",
                "callraw: argument 5 (call_opts.request_timeout): expected a number of seconds, got boolean",
            ),
            (
                b"\x81\xa8is_async\xc3",
                "callraw: argument 5 (call_opts): unknown option 'is_async', \
                 expected one of timeout, request_timeout",
            ),
            (
                b"\x81\xa2\xff\x00\xc3",
                "callraw: argument 5 (call_opts): unknown option '\\xff\\x00', \
                 expected one of timeout, request_timeout",
            ),
            (
                b"\x82\xa7timeout\x01\xafrequest_timeout\x02",
                "callraw: argument 5 (call_opts): \
                 request_timeout must not be greater than timeout, got 2 and 1",
            ),
            (
                b"\x81\xafrequest_timeout\x01",
                "callraw: argument 5 (call_opts): \
                 request_timeout must not be greater than timeout, got 1 and 0.5",
            ),
        ];
        for (call_opts, text) in cases {
            assert_eq!(refusal(&with_call_opts(call_opts)), *text);
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
