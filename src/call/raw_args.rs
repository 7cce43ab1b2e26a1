//! The arguments of `callraw`, read in place: `[bucket_id, opts, func, args, call_opts]`, those of `vshard.router.call`
//! in its order. The last two may be nil or left out.

use std::fmt;
use std::time::Duration;

use crate::call::request::{Access, Mode};
use crate::ids::BucketId;
use crate::wire::mp::{self, Cursor, Fault, Kind};
use crate::wire::payload::{Head, Payload};

/// vshard's `CALL_TIMEOUT_MIN`, the timeout of a call that names none.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_millis(500);

/// What is wrong, with the position and what was expected there.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(String);

/// Checked arguments; the spans lie in the caller's bytes.
#[derive(Debug, PartialEq)]
pub struct RawArgs<'a> {
    pub bucket: BucketId,
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
pub fn read(bytes: Vec<u8>, bucket_count: u32) -> Result<Read, (Vec<u8>, Malformed)> {
    let parsed = RawArgs::parse(&bytes, bucket_count).and_then(|args| {
        let written = if args.place().is_none() { Some(args.written()?) } else { None };
        Ok((args.bucket, args.access, args.timeout, args.attempt_timeout, args.place(), written))
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

/// The bucket id of `callraw`'s arguments, if it is there and looks like one: enough to choose who is to read the rest.
pub fn peek_bucket(bytes: &[u8]) -> Option<u32> {
    let mut cursor = Cursor::new(bytes);
    cursor.array().ok().filter(|count| *count > 0)?;
    u32::try_from(cursor.uint().ok()?).ok()
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
    fn bucket(self, cursor: &mut Cursor<'_>, bucket_count: u32) -> Result<BucketId, Malformed> {
        let before = *cursor;
        let id = match cursor.peek().map_err(broken)? {
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
        id.and_then(|id| BucketId::new(id, bucket_count)).ok_or_else(|| {
            self.fault(format!("an unsigned integer from 1 to {bucket_count}"), describe(before))
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
            read(bytes.to_vec(), BUCKETS).unwrap_or_else(|(_, refusal)| panic!("{refusal}: {bytes:02x?}"));
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
        assert_eq!(call.bucket, BucketId::new(7, BUCKETS).unwrap());
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
        assert_eq!(call.bucket.number(), 3000);
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
            assert_eq!(parsed(&with_bucket(spelling)).bucket.number(), 5, "{spelling:02x?}");
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
            (b"\x80", "map"),
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
            read(broken, BUCKETS).unwrap_err().1.to_string(),
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
        assert_eq!(peek_bucket(&with_bucket(b"\xcd\x01\x00")), Some(256));
        for odd in [&b""[..], b"\x90", b"\x91\xa1x", b"\xc0", b"\x91\xcd\x01"] {
            assert_eq!(peek_bucket(odd), None);
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
            let _ = (peek_bucket(&bytes), read(bytes, BUCKETS));
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
            let _ = (peek_bucket(&bytes), read(bytes, BUCKETS));
        }
    }
}
