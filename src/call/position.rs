//! How each of the five elements of `callraw`'s arguments is read, and what is said of one that is wrong. The first has a file of
//! its own, [`crate::call::selector`].

use crate::call::malformed::{Malformed, broken, describe, quoted};
use crate::call::request::{Access, Mode};
use crate::wire::mp::{Cursor, Fault, Kind};

/// One of the five elements, for messages.
#[derive(Clone, Copy)]
pub(super) struct Position {
    number: u32,
    name: &'static str,
}

impl Position {
    pub(super) const BUCKET: Position = Position { number: 1, name: "bucket_id" };
    pub(super) const OPTS: Position = Position { number: 2, name: "opts" };
    pub(super) const FUNC: Position = Position { number: 3, name: "func" };
    pub(super) const ARGS: Position = Position { number: 4, name: "args" };
    pub(super) const CALL_OPTS: Position = Position { number: 5, name: "call_opts" };

    pub(super) fn require(self, count: u32) -> Result<Position, Malformed> {
        if count >= self.number {
            return Ok(self);
        }
        Err(Malformed(format!(
            "callraw: argument {} ({}) is missing: expected {SHAPE}",
            self.number, self.name
        )))
    }

    pub(super) fn fault(self, expected: String, got: String) -> Malformed {
        self.fault_at("", &expected, &got)
    }

    /// `field`: where inside the element, as `.name`; empty for the element itself.
    pub(super) fn fault_at(self, field: &str, expected: &str, got: &str) -> Malformed {
        let Position { number, name } = self;
        Malformed(format!("callraw: argument {number} ({name}{field}): expected {expected}, got {got}"))
    }

    pub(super) fn access(self, cursor: &mut Cursor<'_>) -> Result<Access, Malformed> {
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

    pub(super) fn func<'a>(self, cursor: &mut Cursor<'a>) -> Result<&'a [u8], Malformed> {
        if cursor.peek().map_err(broken)? != Kind::Str {
            return Err(self.fault("a string".to_owned(), describe(*cursor)));
        }
        cursor.span().map_err(broken)
    }

    /// The array's bytes, and whether they hold tuple extensions.
    pub(super) fn args<'a>(self, cursor: &mut Cursor<'a>) -> Result<(&'a [u8], bool), Malformed> {
        match cursor.peek().map_err(broken)? {
            Kind::Nil => {
                cursor.skip().map_err(broken)?;
                Ok((NO_ARGS, false))
            }
            Kind::Array => {
                let all = cursor.rest();
                let from = cursor.position();
                let tuples = cursor.skip_many(1).map_err(broken)?.tuples;
                Ok((&all[..cursor.position() - from], tuples))
            }
            _ => Err(self.fault("an array or nil".to_owned(), describe(*cursor))),
        }
    }

    pub(super) fn times(self, cursor: &mut Cursor<'_>) -> Result<Times, Malformed> {
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

    pub(super) fn key<'a>(self, expected: &str, cursor: &mut Cursor<'a>) -> Result<&'a [u8], Malformed> {
        if cursor.peek().map_err(broken)? != Kind::Str {
            return Err(self.fault(format!("only the keys {expected}"), describe(*cursor)));
        }
        cursor.str().map_err(broken)
    }

    pub(super) fn unknown(self, key: &[u8], known: &str) -> Malformed {
        let Position { number, name } = self;
        Malformed(format!(
            "callraw: argument {number} ({name}): unknown option {}, expected one of {known}",
            quoted(key)
        ))
    }
}

/// Seconds as given; None where the default holds.
#[derive(Default)]
pub(super) struct Times {
    pub timeout: Option<f64>,
    pub request_timeout: Option<f64>,
}

pub(super) const SHAPE: &str = "an array [bucket_id, opts, func, args, call_opts]";
/// An empty MessagePack array.
pub(super) const NO_ARGS: &[u8] = b"\x90";

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::call::raw_args::DEFAULT_TIMEOUT;
    use crate::call::samples::{array, double, parsed, refusal, with_args, with_call_opts, with_opts};

    fn timeout(call_opts: &[u8]) -> Duration {
        parsed(&with_call_opts(call_opts)).timeout
    }

    fn timeout_of(value: f64) -> Vec<u8> {
        [b"\x81\xa7timeout", &double(value)[..]].concat()
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
}
