//! IPROTO, Tarantool's binary protocol: the greeting, frames, headers, bodies.
//!
//! Source of the numbers: Tarantool `src/box/iproto_constants.h`.

use base64::Engine;

use crate::ids::Sync;
use crate::wire::auth::SCRAMBLE_LEN;
use crate::wire::mp::{self, Cursor, Fault, Kind};

pub const GREETING_LEN: usize = 128;

/// A frame longer than this is refused: Tarantool's own limit.
pub const FRAME_MAX: u64 = i32::MAX as u64;

pub const TYPE_OK: u64 = 0;
pub const TYPE_AUTH: u8 = 7;
pub const TYPE_CALL: u8 = 10;
pub const TYPE_PING: u8 = 64;
/// A push of `box.session.push`: not the answer, which follows under the same sync.
pub const TYPE_CHUNK: u64 = 128;
pub const TYPE_WATCH: u8 = 74;
/// News of a watched key.
pub const TYPE_EVENT: u64 = 76;
/// Errors are this bit and the code.
pub const TYPE_ERROR: u64 = 0x8000;

const KEY_REQUEST_TYPE: u64 = 0x00;
const KEY_SYNC: u64 = 0x01;
const KEY_DATA: u64 = 0x30;
const KEY_ERROR_24: u64 = 0x31;
const KEY_ERROR: u64 = 0x52;
const KEY_EVENT_KEY: u64 = 0x57;
const KEY_EVENT_DATA: u64 = 0x58;

const KEY_ERROR_STACK: u64 = 0;

/// What the server says first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Greeting {
    /// First bytes of the salt, as much as scrambles use.
    pub salt: [u8; SCRAMBLE_LEN],
    /// The instance's UUID in lower case, as text.
    pub uuid: String,
    /// The server's major and minor version; zeros if it tells none.
    pub version: (u32, u32),
}

impl Greeting {
    pub fn parse(bytes: &[u8; GREETING_LEN]) -> Result<Greeting, &'static str> {
        if !bytes.starts_with(b"Tarantool ") || bytes[63] != b'\n' || bytes[127] != b'\n' {
            return Err("the greeting is not Tarantool's");
        }
        let line = std::str::from_utf8(&bytes[..63]).map_err(|_| "the greeting is not text")?;
        let (_, uuid) =
            line.trim_end().split_once("(Binary) ").ok_or("the peer does not speak the binary protocol")?;
        if uuid.len() != 36 || !uuid.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-') {
            return Err("the greeting has no instance UUID");
        }
        let text = bytes[64..108].trim_ascii_end();
        let decoded = base64::engine::general_purpose::STANDARD
            .decode(text)
            .map_err(|_| "the greeting's salt is not base64")?;
        let salt = decoded.first_chunk().ok_or("the greeting's salt is too short")?;
        let mut numbers = line["Tarantool ".len()..].split(['.', ' ', '-']).map(str::parse);
        let version = match (numbers.next(), numbers.next()) {
            (Some(Ok(major)), Some(Ok(minor))) => (major, minor),
            _ => (0, 0),
        };
        Ok(Greeting { salt: *salt, uuid: uuid.to_ascii_lowercase(), version })
    }
}

/// The next frame in a receive buffer: where its packet starts and ends. None: more bytes are needed, and `wanted` in all.
#[derive(Debug, PartialEq, Eq)]
pub enum Split {
    Frame { packet: usize, end: usize },
    Partial { wanted: usize },
}

/// Finds the first frame in `bytes`. Any width of the length is accepted.
pub fn split(bytes: &[u8]) -> Result<Split, Fault> {
    let mut cursor = Cursor::new(bytes);
    if bytes.is_empty() {
        return Ok(Split::Partial { wanted: 1 });
    }
    if cursor.peek()? != Kind::Uint {
        return Err(Fault::Expected("a frame's length"));
    }
    let len = match cursor.uint() {
        Ok(len) => len,
        // At most 9 bytes; the next read tells.
        Err(Fault::Truncated) => return Ok(Split::Partial { wanted: bytes.len() + 1 }),
        Err(fault) => return Err(fault),
    };
    if len > FRAME_MAX {
        return Err(Fault::Expected("a frame of at most 2 GiB"));
    }
    let end = cursor.position() + len as usize;
    if end <= bytes.len() {
        Ok(Split::Frame { packet: cursor.position(), end })
    } else {
        Ok(Split::Partial { wanted: end })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    pub kind: u64,
    pub sync: Sync,
    /// Where the body starts in the packet.
    pub body: usize,
}

/// The header of a packet; unknown keys are passed over.
pub fn header(packet: &[u8]) -> Result<Header, Fault> {
    let mut cursor = Cursor::new(packet);
    let mut kind = None;
    let mut sync = 0;
    for _ in 0..cursor.map()? {
        match cursor.uint()? {
            KEY_REQUEST_TYPE => kind = Some(cursor.uint()?),
            KEY_SYNC => sync = cursor.uint()?,
            _ => cursor.skip()?,
        }
    }
    let kind = kind.ok_or(Fault::Expected("a request type in the header"))?;
    Ok(Header { kind, sync: Sync(sync), body: cursor.position() })
}

/// The body of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Answer<'a> {
    /// What follows key DATA: the values that the function returned, one array.
    pub data: Option<&'a [u8]>,
    /// No extension is in `data`.
    pub is_plain: bool,
    pub message: Option<&'a [u8]>,
    /// The array of the extended error: the top one, then its causes.
    pub error_stack: Option<&'a [u8]>,
}

/// An answer may come without a body. All of it is walked, so that what it holds is well-formed.
pub fn answer(body: &[u8]) -> Result<Answer<'_>, Fault> {
    let mut answer = Answer::default();
    if body.is_empty() {
        return Ok(answer);
    }
    let mut cursor = Cursor::new(body);
    for _ in 0..cursor.map()? {
        match cursor.uint()? {
            KEY_DATA => {
                let (data, met) = cursor.walked()?;
                answer.data = Some(data);
                answer.is_plain = !met.extensions;
            }
            KEY_ERROR_24 => answer.message = Some(cursor.str()?),
            KEY_ERROR => answer.error_stack = error_stack(cursor.span()?)?,
            _ => cursor.skip()?,
        }
    }
    cursor.finish()?;
    Ok(answer)
}

/// The body of an event: a watched key, and its value if it has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Event<'a> {
    pub key: &'a [u8],
    pub data: Option<&'a [u8]>,
}

pub fn event(body: &[u8]) -> Result<Event<'_>, Fault> {
    let mut event = Event::default();
    let mut cursor = Cursor::new(body);
    for _ in 0..cursor.map()? {
        match cursor.uint()? {
            KEY_EVENT_KEY => event.key = cursor.str()?,
            KEY_EVENT_DATA => event.data = Some(cursor.span()?),
            _ => cursor.skip()?,
        }
    }
    Ok(event)
}

fn error_stack(error: &[u8]) -> Result<Option<&[u8]>, Fault> {
    let mut cursor = Cursor::new(error);
    let mut stack = None;
    for _ in 0..cursor.map()? {
        if cursor.uint()? == KEY_ERROR_STACK {
            stack = Some(cursor.span()?);
        } else {
            cursor.skip()?;
        }
    }
    Ok(stack)
}

/// Length and header of a request whose body of `body_len` bytes follows. Only the keys that every server knows:
/// 2.6 refuses others.
pub fn write_request_head(out: &mut Vec<u8>, kind: u8, sync: Sync, body_len: usize) {
    const HEADER_LEN: usize = 13;
    let mut head = [0u8; 5 + HEADER_LEN];
    head[0] = 0xce;
    head[1..5].copy_from_slice(&((HEADER_LEN + body_len) as u32).to_be_bytes());
    head[5..10].copy_from_slice(&[0x82, KEY_REQUEST_TYPE as u8, kind, KEY_SYNC as u8, 0xcf]);
    head[10..18].copy_from_slice(&sync.0.to_be_bytes());
    out.extend_from_slice(&head);
}

pub fn write_ping(out: &mut Vec<u8>, sync: Sync) {
    // An explicit empty body: some servers want one.
    write_request_head(out, TYPE_PING, sync, 1);
    out.push(0x80);
}

/// Asks for events about `key`. It has no answer but those.
pub fn write_watch(out: &mut Vec<u8>, sync: Sync, key: &str) {
    let mut body = vec![0x81, KEY_EVENT_KEY as u8];
    mp::write_str(&mut body, key);
    write_request_head(out, TYPE_WATCH, sync, body.len());
    out.extend_from_slice(&body);
}

pub fn write_auth(out: &mut Vec<u8>, sync: Sync, user: &str, scramble: &[u8; SCRAMBLE_LEN]) {
    let mut body = vec![0x82, 0x23];
    mp::write_str(&mut body, user);
    body.extend_from_slice(&[0x21, 0x92]);
    mp::write_str(&mut body, "chap-sha1");
    mp::write_bytes_as_str(&mut body, scramble);
    write_request_head(out, TYPE_AUTH, sync, body.len());
    out.extend_from_slice(&body);
}

/// The body of a CALL up to its arguments, which are to follow as one array.
pub fn begin_call_body(out: &mut Vec<u8>, func: &str) {
    out.extend_from_slice(&[0x82, 0x22]);
    mp::write_str(out, func);
    out.push(0x21);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn greeting(first: &str, second: &str) -> [u8; GREETING_LEN] {
        format!("{first:<63}\n{second:<63}\n").into_bytes().try_into().unwrap()
    }

    const UUID: &str = "8a274925-a26d-47fc-9e1b-af88ce939412";
    const SALT: &str = "QUFBQUFBQUFBQUFBQUFBQUFBQUFCQkJCQkJCQkJCQkI=";

    #[test]
    fn greetings() {
        let good = greeting(&format!("Tarantool 2.6.0 (Binary) {}", UUID.to_uppercase()), SALT);
        assert_eq!(
            Greeting::parse(&good),
            Ok(Greeting { salt: [b'A'; 20], uuid: UUID.into(), version: (2, 6) })
        );
        for bad in [
            greeting("Redis", SALT),
            greeting("Tarantool 2.6.0 (Lua console)", SALT),
            greeting("Tarantool 2.6.0 (Binary) 1234", SALT),
            greeting(&format!("Tarantool 2.6.0 (Binary) {UUID}"), "QUFB"),
            greeting(&format!("Tarantool 2.6.0 (Binary) {UUID}"), "%%%"),
        ] {
            assert!(Greeting::parse(&bad).is_err(), "{}", String::from_utf8_lossy(&bad));
        }
    }

    #[test]
    fn frames_of_any_length_width() {
        for (prefix, len) in
            [(&b"\x03"[..], 1), (b"\xcc\x03", 2), (b"\xcd\x00\x03", 3), (b"\xce\x00\x00\x00\x03", 5)]
        {
            let bytes = [prefix, b"abcd"].concat();
            assert_eq!(split(&bytes), Ok(Split::Frame { packet: len, end: len + 3 }));
            assert_eq!(split(&bytes[..len + 2]), Ok(Split::Partial { wanted: len + 3 }));
            for cut in 0..len {
                assert_eq!(split(&bytes[..cut]), Ok(Split::Partial { wanted: cut + 1 }));
            }
        }
        assert!(split(b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff").is_err());
        assert!(split(b"\xa3abc").is_err());
        assert!(split(b"\xc1").is_err());
    }

    #[test]
    fn a_request_reads_back() {
        let mut bytes = Vec::new();
        write_request_head(&mut bytes, TYPE_CALL, Sync(u64::MAX - 1), 2);
        bytes.extend_from_slice(b"\x81\x01");
        let Ok(Split::Frame { packet, end }) = split(&bytes) else { panic!("no frame") };
        assert_eq!(end, bytes.len());
        let header = header(&bytes[packet..end]).unwrap();
        assert_eq!((header.kind, header.sync), (u64::from(TYPE_CALL), Sync(u64::MAX - 1)));
        assert_eq!(&bytes[packet + header.body..end], b"\x81\x01");
    }

    #[test]
    fn answers() {
        assert_eq!(answer(b""), Ok(Answer::default()));
        assert_eq!(
            answer(b"\x81\x30\xdd\x00\x00\x00\x01\x05").unwrap().data,
            Some(&b"\xdd\x00\x00\x00\x01\x05"[..])
        );
        let error = answer(b"\x82\x31\xa1x\x52\x81\x00\x91\x81\x03\xa1x").unwrap();
        assert_eq!((error.message, error.error_stack), (Some(&b"x"[..]), Some(&b"\x91\x81\x03\xa1x"[..])));
        assert_eq!(answer(b"\x81\x30\xdd\xff\xff\xff\xff"), Err(Fault::Truncated));
        assert_eq!(answer(b"\x80\x80"), Err(Fault::Trailing));
        assert!(answer(b"\x81\xa1x\x01").is_err());
    }
}
