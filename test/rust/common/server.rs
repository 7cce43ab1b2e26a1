//! The server's half of IPROTO, as a test needs it: greeting, requests, answers.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rawshard::wire::auth;

use super::value::Value;

pub const TYPE_AUTH: u64 = 7;
pub const TYPE_CALL: u64 = 10;
pub const TYPE_PING: u64 = 64;
pub const TYPE_WATCH: u64 = 74;
pub const TYPE_EVENT: u64 = 76;
/// Errors are this bit and the code.
pub const ERROR: u64 = 0x8000;

pub const ER_NO_SUCH_PROC: u64 = 33;
pub const ER_ACCESS_DENIED: u64 = 42;
pub const ER_PASSWORD_MISMATCH: u64 = 47;
pub const ER_PROC_LUA: u64 = 32;

/// 128 bytes.
pub fn greeting(uuid: &str, salt: &[u8; 32]) -> Vec<u8> {
    let first = format!("Tarantool 2.11.5 (Binary) {uuid}");
    let second = STANDARD.encode(salt);
    format!("{first:<63}\n{second:<63}\n").into_bytes()
}

/// One request, cut out of what a client sent.
#[derive(Clone, Debug)]
pub struct Request {
    pub kind: u64,
    pub sync: u64,
    body: Value,
    raw_args: Vec<u8>,
}

impl Request {
    /// The first whole request in `bytes`, and its length. Panics on what is no request: the router must not send such.
    pub fn cut(bytes: &[u8]) -> Option<(Request, usize)> {
        let (length, head) = Value::decode(bytes)?;
        let end = head + length.uint().expect("a frame's length is unsigned") as usize;
        let packet = bytes.get(head..end)?;
        let (header, body_at) = Value::decode(packet).expect("a header");
        let body_bytes = &packet[body_at..];
        let body = Value::only(body_bytes).expect("one body, whole and nothing behind it");
        let key = |key: u64| find(&header, key).and_then(Value::uint);
        let Value::Map(fields) = &header else { panic!("the header is no map") };
        assert!(fields.iter().all(|(key, _)| matches!(key, Value::Uint(0 | 1))), "2.6 refuses other keys");
        let request = Request {
            kind: key(0).expect("a request type"),
            sync: key(1).expect("a sync"),
            raw_args: raw_tuple(body_bytes, &body),
            body,
        };
        Some((request, end))
    }

    /// Name of the called function.
    pub fn func(&self) -> &str {
        find(&self.body, 0x22).and_then(Value::text).expect("a function's name")
    }

    pub fn args(&self) -> &[Value] {
        find(&self.body, 0x21).expect("arguments").items()
    }

    /// The arguments as they came, one array.
    pub fn raw_args(&self) -> &[u8] {
        &self.raw_args
    }

    /// Of an AUTH request.
    pub fn is_from(&self, user: &str, password: &str, salt: &[u8; 32]) -> bool {
        let expected = auth::chap_sha1(password, salt.first_chunk().expect("32 bytes"));
        let [method, Value::Str(scramble)] = self.args() else { return false };
        find(&self.body, 0x23) == Some(&Value::str(user))
            && *method == Value::str("chap-sha1")
            && *scramble == expected
    }
}

fn find(map: &Value, key: u64) -> Option<&Value> {
    let Value::Map(fields) = map else { return None };
    fields.iter().find(|(name, _)| *name == Value::Uint(key)).map(|(_, value)| value)
}

/// The bytes under key TUPLE.
fn raw_tuple(mut bytes: &[u8], body: &Value) -> Vec<u8> {
    let Value::Map(fields) = body else { return Vec::new() };
    // Requests have few keys: a map header of one byte.
    bytes = &bytes[1..];
    for (key, _) in fields {
        let (_, key_len) = Value::decode(bytes).expect("checked");
        let (_, len) = Value::decode(&bytes[key_len..]).expect("checked");
        if *key == Value::Uint(0x21) {
            return bytes[key_len..key_len + len].to_vec();
        }
        bytes = &bytes[key_len + len..];
    }
    Vec::new()
}

/// A frame of this type whose body is already encoded; none for an answer without one.
pub fn frame(kind: u64, sync: u64, body: &[u8]) -> Vec<u8> {
    // As Tarantool writes it: fixed widths, the schema version as a third key.
    let mut packet = vec![0x83, 0x00, 0xce];
    packet.extend_from_slice(&(kind as u32).to_be_bytes());
    packet.extend_from_slice(&[0x01, 0xcf]);
    packet.extend_from_slice(&sync.to_be_bytes());
    packet.extend_from_slice(&[0x05, 0xce, 0, 0, 0, 80]);
    packet.extend_from_slice(body);
    let mut bytes = vec![0xce];
    bytes.extend_from_slice(&(packet.len() as u32).to_be_bytes());
    bytes.extend_from_slice(&packet);
    bytes
}

/// The answer to a CALL: what the function returned.
pub fn values(sync: u64, values: &[Value]) -> Vec<u8> {
    let mut data = Vec::new();
    for value in values {
        value.encode(&mut data);
    }
    raw_values(sync, values.len(), &data)
}

/// The same for values that are encoded already.
pub fn raw_values(sync: u64, count: usize, data: &[u8]) -> Vec<u8> {
    let mut body = vec![0x81, 0x30, 0xdd];
    body.extend_from_slice(&(count as u32).to_be_bytes());
    body.extend_from_slice(data);
    frame(0, sync, &body)
}

/// An error, stated as every server since 1.6 does.
pub fn error(sync: u64, code: u64, message: &str) -> Vec<u8> {
    let mut body = vec![0x81, 0x31];
    Value::str(message).encode(&mut body);
    frame(ERROR | code, sync, &body)
}

pub fn ok(sync: u64) -> Vec<u8> {
    frame(0, sync, &[0x80])
}
