//! The other side of a CALL: the request as a server reads it, and what its answer begins with.
//!
//! Source of the numbers: Tarantool `src/box/iproto_constants.h`.

use crate::wire::mp::{self, Cursor, Fault};

/// A CALL that is nothing but that: no stream, no expected schema.
#[derive(Debug, PartialEq, Eq)]
pub struct CallRequest<'a> {
    pub sync: u64,
    pub func: &'a [u8],
    /// One MessagePack array; what is in it is not looked at here.
    pub args: &'a [u8],
}

const KEY_REQUEST_TYPE: u64 = 0x00;
const KEY_SYNC: u64 = 0x01;
const KEY_SCHEMA_VERSION: u64 = 0x05;
const KEY_STREAM_ID: u64 = 0x0a;
const KEY_TUPLE: u64 = 0x21;
const KEY_FUNCTION_NAME: u64 = 0x22;
const KEY_DATA: u64 = 0x30;
const KEY_ERROR_24: u64 = 0x31;
const KEY_ERROR: u64 = 0x52;
const KEY_TUPLE_FORMATS: u64 = 0x60;

/// What net.box of 3.x ends each request with: no formats of tuples (key 0x60).
const NO_TUPLE_FORMATS: &[u8] = b"\x60\x80";

/// Reads a CALL of which the host has read the header and passed over the body. None: it has more to it, or is not as it should
/// be, and somebody else is to say so.
pub fn call_request<'a>(header: &[u8], body: &'a [u8]) -> Option<CallRequest<'a>> {
    let sync = plain_sync(header).ok()??;
    let (func, args) = func_and_args(body).ok()??;
    Some(CallRequest { sync, func, args })
}

fn plain_sync(header: &[u8]) -> Result<Option<u64>, Fault> {
    let mut cursor = Cursor::new(header);
    let mut sync = 0;
    for _ in 0..cursor.map()? {
        match cursor.uint()? {
            KEY_SYNC => sync = cursor.uint()?,
            KEY_SCHEMA_VERSION => return Ok(None),
            KEY_STREAM_ID if cursor.uint()? != 0 => return Ok(None),
            KEY_STREAM_ID => {}
            _ => cursor.skip()?,
        }
    }
    Ok(Some(sync))
}

/// Name and arguments.
type Called<'a> = (&'a [u8], &'a [u8]);

fn func_and_args(body: &[u8]) -> Result<Option<Called<'_>>, Fault> {
    let mut cursor = Cursor::new(body);
    let (mut func, mut args) = (None, None);
    let count = cursor.map()?;
    for left in (0..count).rev() {
        match cursor.uint()? {
            KEY_FUNCTION_NAME if func.is_none() => func = Some(cursor.str()?),
            KEY_TUPLE if args.is_none() => {
                let rest = &body[cursor.position()..];
                // A payload may be large, and whoever gets it passes over it anyway, to its last byte: its end is known
                // without if it is the last value, or the last but that. Another value that ends in the same bytes makes it
                // malformed.
                args = match (left, rest.strip_suffix(NO_TUPLE_FORMATS)) {
                    (0, _) => Some(rest),
                    (1, Some(args)) => Some(args),
                    _ => Some(cursor.span()?),
                };
                if left == 0 || left == 1 && rest.ends_with(NO_TUPLE_FORMATS) {
                    break;
                }
            }
            KEY_TUPLE_FORMATS if cursor.map()? == 0 => {}
            // The host has more to say about these: that one is too much, of the wrong type, or not well-formed.
            _ => return Ok(None),
        }
    }
    Ok(func.zip(args.filter(|args| is_array(args))))
}

fn is_array(value: &[u8]) -> bool {
    Cursor::new(value).array().is_ok()
}

/// The beginning of an answer: all of it but the values that it returns, or the message that it raises.
pub struct Head {
    bytes: [u8; HEAD_MAX],
    len: usize,
}

/// What the values of an answer begin with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Begun {
    Nothing,
    Nil,
    /// An array of two, and nil as its first.
    PairWithNil,
}

/// Header; `81 30 dd …`; the longest beginning of the values.
const HEAD_MAX: usize = HEADER_LEN + 7 + 2;
const HEADER_LEN: usize = 27;

impl Head {
    /// Of an answer that returns `count` values. `begun`: what stands before the rest of them.
    pub fn of_values(sync: u64, schema_version: u64, count: u32, begun: Begun) -> Head {
        let mut head = Head::new(0, sync, schema_version);
        // The host's own form: always of this width.
        head.push(&[0x81, KEY_DATA as u8, 0xdd]);
        head.push(&count.to_be_bytes());
        head.push(match begun {
            Begun::Nothing => b"",
            Begun::Nil => b"\xc0",
            Begun::PairWithNil => b"\x92\xc0",
        });
        head
    }

    /// Of an error.
    pub fn of_error(sync: u64, schema_version: u64, code: u32) -> Head {
        Head::new(0x8000 | code, sync, schema_version)
    }

    fn new(kind: u32, sync: u64, schema_version: u64) -> Head {
        let mut head = Head { bytes: [0; HEAD_MAX], len: 0 };
        head.push(&[0x83, KEY_REQUEST_TYPE as u8, 0xce]);
        head.push(&kind.to_be_bytes());
        head.push(&[KEY_SYNC as u8, 0xcf]);
        head.push(&sync.to_be_bytes());
        head.push(&[KEY_SCHEMA_VERSION as u8, 0xcf]);
        head.push(&schema_version.to_be_bytes());
        head
    }

    fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The body of an error, as the host makes it of one of this type (`ClientError`, `LuajitError`) that a function has raised.
/// `has_name`: as it does since 3.1.
pub fn write_error_body(out: &mut Vec<u8>, kind: &str, code: u32, has_name: bool, message: &[u8]) {
    mp::write_map_len(out, 2);
    mp::write_uint(out, KEY_ERROR_24);
    mp::write_bytes_as_str(out, message);
    mp::write_uint(out, KEY_ERROR);
    // {stack: [{type, line, file, message, errno, code, fields: {name}}]}
    out.extend_from_slice(&[0x81, 0x00, 0x91]);
    mp::write_map_len(out, 6 + u32::from(has_name));
    out.push(0x00);
    mp::write_str(out, kind);
    out.extend_from_slice(&[0x02, 0x00, 0x01]);
    mp::write_str(out, "rawshard");
    out.push(0x03);
    mp::write_bytes_as_str(out, message);
    out.extend_from_slice(&[0x04, 0x00, 0x05]);
    mp::write_uint(out, code.into());
    if has_name {
        out.extend_from_slice(&[0x06, 0x81]);
        mp::write_str(out, "name");
        // Whatever the code is: it is put into the error later.
        mp::write_str(out, "UNKNOWN");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::iproto;

    fn request<'a>(header: &[u8], body: &'a [u8]) -> Option<(u64, &'a [u8], &'a [u8])> {
        call_request(header, body).map(|call| (call.sync, call.func, call.args))
    }

    const HEADER: &[u8] = b"\x82\x00\x0a\x01\x07";

    #[test]
    fn plain_requests() {
        for header in [
            HEADER,
            b"\x82\x01\x07\x00\x0a",
            b"\x83\x00\x0a\x01\xcc\x07\x0a\x00",
            b"\x83\x00\x0a\x01\x07\x6f\xa1x",
        ] {
            assert_eq!(request(header, b"\x82\x22\xa1f\x21\x91\x01"), Some((7, &b"f"[..], &b"\x91\x01"[..])));
        }
        assert_eq!(request(b"\x81\x00\x0a", b"\x82\x22\xa1f\x21\x90"), Some((0, &b"f"[..], &b"\x90"[..])));
        for body in [
            &b"\x82\x21\x91\x01\x22\xa1f"[..],
            b"\x83\x22\xa1f\x21\x91\x01\x60\x80",
            b"\x83\x60\x80\x22\xa1f\x21\x91\x01",
            b"\x83\x21\x91\x01\x22\xa1f\x60\x80",
        ] {
            assert_eq!(request(HEADER, body), Some((7, &b"f"[..], &b"\x91\x01"[..])), "{body:02x?}");
        }
    }

    #[test]
    fn whatever_is_more_than_a_call() {
        let body = b"\x82\x22\xa1f\x21\x90";
        assert!(request(HEADER, body).is_some());
        for header in [
            &b"\x83\x00\x0a\x01\x07\x05\x01"[..],
            b"\x83\x00\x0a\x01\x07\x0a\x01",
            b"\x82\x00\x0a\x01",
            b"",
            b"\x01",
        ] {
            assert_eq!(request(header, body), None, "{header:02x?}");
        }
        for body in [
            &b""[..],
            b"\x80",
            b"\x81\x22\xa1f",
            b"\x81\x21\x90",
            b"\x82\x22\x01\x21\x90",
            b"\x83\x22\xa1f\x22\xa1g\x21\x90",
            b"\x82\x22\xa1f\x21\x80",
            b"\x82\x22\xa1f\x21\x05",
            b"\x82\x21\xa1x\x22\xa1f",
            b"\x83\x22\xa1f\x21\x90\x60\x05",
            b"\x83\x22\xa1f\x21\x90\x27\x05",
            b"\x84\x22\xa1f\x21\x91\x01\x6f\x01\x60\x80",
            b"\x83\x22\xa1f\x21\x90\x21\x90",
            b"\x82\x22\xd9\xfff\x21\x90",
            b"\x82\x22\xa1f\x21\x80",
            b"\x82\x22\xa1f\x21\xc0",
            b"\x82\x22\xa1f\x21",
            b"\x83\x22\xa1f\x21\x07\x60\x80",
            b"\x83\x22\xa1f\x21\x91\x01\x60\x01",
            b"\x83\x22\xa1f\x21\x91\x01\x60\x81\x01\x90",
            b"\x83\x60\x81\x01\x90\x22\xa1f\x21\x91\x01",
            b"\x83\x22\xa1f\x27\x01\x21\x90",
            b"\x90",
        ] {
            assert_eq!(request(HEADER, body), None, "{body:02x?}");
        }
    }

    #[test]
    fn answers_read_back() {
        for (count, begun, rest, expected) in [
            (2, Begun::Nothing, &b"\x01\x02"[..], &b"\xdd\x00\x00\x00\x02\x01\x02"[..]),
            (0, Begun::Nothing, b"", b"\xdd\x00\x00\x00\x00"),
            (2, Begun::Nil, b"\x80", b"\xdd\x00\x00\x00\x02\xc0\x80"),
            (1, Begun::PairWithNil, b"\x80", b"\xdd\x00\x00\x00\x01\x92\xc0\x80"),
        ] {
            let mut packet = Head::of_values(u64::MAX, 5, count, begun).bytes().to_vec();
            packet.extend_from_slice(rest);
            let header = iproto::header(&packet).unwrap();
            assert_eq!((header.kind, header.sync.0, header.body), (0, u64::MAX, HEADER_LEN));
            assert_eq!(iproto::answer(&packet[header.body..]).unwrap().data, Some(expected));
        }
    }

    #[test]
    fn errors_read_back() {
        let mut packet = Head::of_error(3, 5, 102).bytes().to_vec();
        write_error_body(&mut packet, "ClientError", 102, true, b"no");
        let header = iproto::header(&packet).unwrap();
        assert_eq!((header.kind, header.sync.0), (0x8000 | 102, 3));
        let answer = iproto::answer(&packet[header.body..]).unwrap();
        assert_eq!(answer.message, Some(&b"no"[..]));
        assert_eq!(
            answer.error_stack,
            Some(
                &b"\x91\x87\x00\xabClientError\x02\x00\x01\xa8rawshard\x03\xa2no\x04\x00\x05\x66\x06\x81\xa4name\xa7UNKNOWN"[..]
            )
        );
    }
}
