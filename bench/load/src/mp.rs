//! MessagePack: small helpers to write templates, and an owned tree to compare and read answers off the hot path.

use rmp::encode as w;

pub fn array(out: &mut Vec<u8>, len: u32) {
    w::write_array_len(out, len).unwrap();
}

pub fn map(out: &mut Vec<u8>, len: u32) {
    w::write_map_len(out, len).unwrap();
}

pub fn string(out: &mut Vec<u8>, s: &str) {
    w::write_str(out, s).unwrap();
}

pub fn uint(out: &mut Vec<u8>, v: u64) {
    w::write_uint(out, v).unwrap();
}

pub fn float(out: &mut Vec<u8>, v: f64) {
    w::write_f64(out, v).unwrap();
}

pub fn boolean(out: &mut Vec<u8>, v: bool) {
    w::write_bool(out, v).unwrap();
}

pub fn nil(out: &mut Vec<u8>) {
    w::write_nil(out).unwrap();
}

/// One value. The order of a map's pairs carries no meaning, so a map keeps them sorted: two values are equal exactly
/// if Lua would see the same.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Val {
    Nil,
    Bool(bool),
    Int(i128),
    /// Bits of the double: NaN equals itself here.
    Float(u64),
    Str(Vec<u8>),
    Bin(Vec<u8>),
    Array(Vec<Val>),
    Map(Vec<(Val, Val)>),
    Ext(i8, Vec<u8>),
}

impl Val {
    pub fn str(&self) -> Option<&str> {
        match self {
            Val::Str(s) => std::str::from_utf8(s).ok(),
            _ => None,
        }
    }

    pub fn f64(&self) -> Option<f64> {
        match self {
            Val::Int(i) => Some(*i as f64),
            Val::Float(b) => Some(f64::from_bits(*b)),
            _ => None,
        }
    }

    pub fn field(&self, key: &str) -> Option<&Val> {
        match self {
            Val::Map(pairs) => pairs.iter().find(|(k, _)| k.str() == Some(key)).map(|(_, v)| v),
            _ => None,
        }
    }

    /// The value at a key of IPROTO.
    pub fn at(&self, key: i128) -> Option<&Val> {
        match self {
            Val::Map(pairs) => pairs.iter().find(|(k, _)| *k == Val::Int(key)).map(|(_, v)| v),
            _ => None,
        }
    }

    pub fn items(&self) -> &[Val] {
        match self {
            Val::Array(items) => items,
            _ => &[],
        }
    }

    /// For messages to people.
    pub fn json(&self) -> serde_json::Value {
        use serde_json::Value as J;
        match self {
            Val::Nil => J::Null,
            Val::Bool(b) => J::Bool(*b),
            Val::Int(i) => i64::try_from(*i).map(J::from).unwrap_or_else(|_| J::from(*i as f64)),
            Val::Float(b) => J::from(f64::from_bits(*b)),
            Val::Str(s) | Val::Bin(s) => J::from(String::from_utf8_lossy(s).into_owned()),
            Val::Array(a) => J::Array(a.iter().map(Val::json).collect()),
            Val::Map(m) => J::Object(
                m.iter()
                    .map(|(k, v)| {
                        (k.str().map(str::to_owned).unwrap_or_else(|| k.json().to_string()), v.json())
                    })
                    .collect(),
            ),
            Val::Ext(t, b) => J::from(format!("ext {t}, {} bytes", b.len())),
        }
    }
}

/// Reads one value off the front of `buf`. None: truncated, reserved byte, or nested deeper than any answer of ours.
pub fn read(buf: &mut &[u8]) -> Option<Val> {
    read_at(buf, 0)
}

/// A value that takes up all of `buf`.
pub fn read_all(mut buf: &[u8]) -> Option<Val> {
    let val = read(&mut buf)?;
    buf.is_empty().then_some(val)
}

fn read_at(buf: &mut &[u8], depth: usize) -> Option<Val> {
    if depth > 64 {
        return None;
    }
    let tag = take(buf, 1)?[0];
    Some(match tag {
        0x00..=0x7f => Val::Int(tag.into()),
        0xe0..=0xff => Val::Int((tag as i8).into()),
        0x80..=0x8f => return read_map(buf, (tag & 0x0f).into(), depth),
        0x90..=0x9f => return read_array(buf, (tag & 0x0f).into(), depth),
        0xa0..=0xbf => Val::Str(take(buf, (tag & 0x1f).into())?.to_vec()),
        0xc0 => Val::Nil,
        0xc1 => return None,
        0xc2 => Val::Bool(false),
        0xc3 => Val::Bool(true),
        0xc4..=0xc6 => {
            let len = be(buf, 1 << (tag - 0xc4))?;
            Val::Bin(take(buf, len as usize)?.to_vec())
        }
        0xc7..=0xc9 => {
            let len = be(buf, 1 << (tag - 0xc7))?;
            let kind = take(buf, 1)?[0] as i8;
            Val::Ext(kind, take(buf, len as usize)?.to_vec())
        }
        0xca => Val::Float((f32::from_bits(be(buf, 4)? as u32) as f64).to_bits()),
        0xcb => Val::Float(be(buf, 8)?),
        0xcc..=0xcf => Val::Int(be(buf, 1 << (tag - 0xcc))?.into()),
        0xd0 => Val::Int((be(buf, 1)? as i8).into()),
        0xd1 => Val::Int((be(buf, 2)? as i16).into()),
        0xd2 => Val::Int((be(buf, 4)? as i32).into()),
        0xd3 => Val::Int((be(buf, 8)? as i64).into()),
        0xd4..=0xd8 => {
            let kind = take(buf, 1)?[0] as i8;
            Val::Ext(kind, take(buf, 1 << (tag - 0xd4))?.to_vec())
        }
        0xd9..=0xdb => {
            let len = be(buf, 1 << (tag - 0xd9))?;
            Val::Str(take(buf, len as usize)?.to_vec())
        }
        0xdc => {
            let len = be(buf, 2)?;
            return read_array(buf, len, depth);
        }
        0xdd => {
            let len = be(buf, 4)?;
            return read_array(buf, len, depth);
        }
        0xde => {
            let len = be(buf, 2)?;
            return read_map(buf, len, depth);
        }
        0xdf => {
            let len = be(buf, 4)?;
            return read_map(buf, len, depth);
        }
    })
}

fn read_array(buf: &mut &[u8], len: u64, depth: usize) -> Option<Val> {
    // Grown as items arrive: a peer's length is no reason to allocate.
    let mut items = Vec::new();
    for _ in 0..len {
        items.push(read_at(buf, depth + 1)?);
    }
    Some(Val::Array(items))
}

fn read_map(buf: &mut &[u8], len: u64, depth: usize) -> Option<Val> {
    let mut pairs = Vec::new();
    for _ in 0..len {
        pairs.push((read_at(buf, depth + 1)?, read_at(buf, depth + 1)?));
    }
    pairs.sort();
    Some(Val::Map(pairs))
}

fn take<'a>(buf: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    if buf.len() < len {
        return None;
    }
    let (head, tail) = buf.split_at(len);
    *buf = tail;
    Some(head)
}

fn be(buf: &mut &[u8], len: usize) -> Option<u64> {
    Some(take(buf, len)?.iter().fold(0, |v, b| v << 8 | u64::from(*b)))
}

/// Passes over one value.
pub fn skip(buf: &mut &[u8]) -> Option<()> {
    let mut left = 1u64;
    while left > 0 {
        left -= 1;
        let tag = take(buf, 1)?[0];
        let (values, bytes) = match tag {
            0x00..=0x7f | 0xe0..=0xff | 0xc0 | 0xc2 | 0xc3 => (0, 0),
            0x80..=0x8f => (2 * u64::from(tag & 0x0f), 0),
            0x90..=0x9f => (u64::from(tag & 0x0f), 0),
            0xa0..=0xbf => (0, u64::from(tag & 0x1f)),
            0xc1 => return None,
            0xc4..=0xc6 => (0, be(buf, 1 << (tag - 0xc4))?),
            0xc7..=0xc9 => (0, be(buf, 1 << (tag - 0xc7))? + 1),
            0xca | 0xcb => (0, 4 << (tag - 0xca)),
            0xcc..=0xcf => (0, 1 << (tag - 0xcc)),
            0xd0..=0xd3 => (0, 1 << (tag - 0xd0)),
            0xd4..=0xd8 => (0, (1 << (tag - 0xd4)) + 1),
            0xd9..=0xdb => (0, be(buf, 1 << (tag - 0xd9))?),
            0xdc | 0xdd => (be(buf, 2 << (tag - 0xdc))?, 0),
            0xde | 0xdf => (2 * be(buf, 2 << (tag - 0xde))?, 0),
        };
        left += values;
        take(buf, bytes as usize)?;
    }
    Some(())
}

/// An unsigned integer of any width: the values of IPROTO headers.
#[inline]
pub fn read_uint(buf: &mut &[u8]) -> Option<u64> {
    match take(buf, 1)?[0] {
        tag @ 0x00..=0x7f => Some(tag.into()),
        tag @ 0xcc..=0xcf => be(buf, 1 << (tag - 0xcc)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_of_pairs_is_no_difference() {
        let ab = [0x82, 0xa1, b'a', 1, 0xa1, b'b', 2];
        let ba = [0x82, 0xa1, b'b', 2, 0xa1, b'a', 0xcc, 1];
        assert_eq!(read_all(&ab), read_all(&ba));
        let other = [0x82, 0xa1, b'b', 2, 0xa1, b'a', 2];
        assert_ne!(read_all(&ab), read_all(&other));
    }

    #[test]
    fn what_is_read_can_be_skipped() {
        let all: [&[u8]; 16] = [
            &[0x7f],
            &[0xe0],
            &[0xc0],
            &[0xc2],
            &[0x81, 1, 2],
            &[0x92, 0x91, 1, 2],
            &[0xa2, b'a', b'b'],
            &[0xc4, 1, 9],
            &[0xc7, 2, 5, 8, 9],
            &[0xca, 0, 0, 0, 0],
            &[0xcb, 0, 0, 0, 0, 0, 0, 0, 0],
            &[0xcd, 1, 2],
            &[0xd3, 0, 0, 0, 0, 0, 0, 0, 1],
            &[0xd5, 4, 1, 2],
            &[0xda, 0, 1, b'a'],
            &[0xdf, 0, 0, 0, 1, 1, 0x90],
        ];
        for value in all {
            for end in 0..value.len() {
                assert_eq!(skip(&mut &value[..end]), None, "{value:x?}");
            }
            let longer = [value, &[0x33]].concat();
            let (mut read_to, mut skipped_to) = (&longer[..], &longer[..]);
            assert!(read(&mut read_to).is_some() && skip(&mut skipped_to).is_some());
            assert_eq!((read_to, skipped_to), (&[0x33][..], &[0x33][..]), "{value:x?}");
        }
    }

    #[test]
    fn broken_input_is_none() {
        assert_eq!(read_all(&[0x92, 1]), None);
        assert_eq!(read_all(&[0xdd, 0xff, 0xff, 0xff, 0xff]), None);
        assert_eq!(read_all(&[0xc1]), None);
        assert_eq!(read_all(&[1, 2]), None);
        assert_eq!(read_all(&[0x91; 100]), None);
    }
}
