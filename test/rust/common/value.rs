//! MessagePack values as trees, the plain and recursive way: what the router's cursor is checked against.

use rmp::encode as mp;

#[derive(Clone, PartialEq)]
pub enum Value {
    Nil,
    Bool(bool),
    Uint(u64),
    Int(i64),
    F32(f32),
    F64(f64),
    /// Any bytes: Tarantool does not promise UTF-8.
    Str(Vec<u8>),
    Bin(Vec<u8>),
    Array(Vec<Value>),
    Map(Vec<(Value, Value)>),
    Ext(i8, Vec<u8>),
}

impl std::fmt::Debug for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Value::Nil => f.write_str("nil"),
            Value::Bool(value) => value.fmt(f),
            Value::Uint(value) => value.fmt(f),
            Value::Int(value) => value.fmt(f),
            Value::F32(value) => value.fmt(f),
            Value::F64(value) => value.fmt(f),
            Value::Str(text) => write!(f, "'{}'", text.escape_ascii()),
            Value::Bin(bytes) => write!(f, "bin({})", bytes.len()),
            Value::Array(items) => items.fmt(f),
            Value::Map(fields) => {
                f.debug_map().entries(fields.iter().map(|(key, value)| (key, value))).finish()
            }
            Value::Ext(kind, bytes) => write!(f, "ext({kind}, {})", bytes.len()),
        }
    }
}

impl Value {
    pub fn str(text: &str) -> Value {
        Value::Str(text.as_bytes().to_vec())
    }

    /// A map with string keys.
    pub fn map<const N: usize>(fields: [(&str, Value); N]) -> Value {
        Value::Map(fields.into_iter().map(|(key, value)| (Value::str(key), value)).collect())
    }

    /// What vshard's storage makes of an error of its own.
    pub fn sharding_error<const N: usize>(code: u64, name: &str, fields: [(&str, Value); N]) -> Value {
        let Value::Map(mut map) = Value::map([
            ("type", Value::str("ShardingError")),
            ("code", Value::Uint(code)),
            ("name", Value::str(name)),
            ("message", Value::str(name)),
        ]) else {
            unreachable!("just made")
        };
        map.extend(fields.into_iter().map(|(key, value)| (Value::str(key), value)));
        Value::Map(map)
    }

    /// The value under a string key; None if there is none, or this is no map.
    pub fn field(&self, name: &str) -> Option<&Value> {
        let Value::Map(fields) = self else { return None };
        fields.iter().find(|(key, _)| *key == Value::str(name)).map(|(_, value)| value)
    }

    pub fn text(&self) -> Option<&str> {
        match self {
            Value::Str(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    pub fn uint(&self) -> Option<u64> {
        match self {
            Value::Uint(value) => Some(*value),
            _ => None,
        }
    }

    pub fn items(&self) -> &[Value] {
        match self {
            Value::Array(items) => items,
            _ => &[],
        }
    }

    /// In the shortest form.
    pub fn encode(&self, out: &mut Vec<u8>) {
        const WHY: &str = "a Vec takes all";
        match self {
            Value::Nil => out.push(0xc0),
            Value::Bool(value) => out.push(if *value { 0xc3 } else { 0xc2 }),
            Value::Uint(value) => {
                mp::write_uint(out, *value).expect(WHY);
            }
            Value::Int(value) => {
                mp::write_sint(out, *value).expect(WHY);
            }
            Value::F32(value) => mp::write_f32(out, *value).expect(WHY),
            Value::F64(value) => mp::write_f64(out, *value).expect(WHY),
            Value::Str(bytes) => {
                mp::write_str_len(out, bytes.len() as u32).expect(WHY);
                out.extend_from_slice(bytes);
            }
            Value::Bin(bytes) => mp::write_bin(out, bytes).expect(WHY),
            Value::Array(items) => {
                mp::write_array_len(out, items.len() as u32).expect(WHY);
                items.iter().for_each(|item| item.encode(out));
            }
            Value::Map(fields) => {
                mp::write_map_len(out, fields.len() as u32).expect(WHY);
                for (key, value) in fields {
                    key.encode(out);
                    value.encode(out);
                }
            }
            Value::Ext(kind, bytes) => {
                mp::write_ext_meta(out, bytes.len() as u32, *kind).expect(WHY);
                out.extend_from_slice(bytes);
            }
        }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.encode(&mut out);
        out
    }

    /// The first value in `bytes` and its length; None if there is no whole one.
    pub fn decode(bytes: &[u8]) -> Option<(Value, usize)> {
        let mut reader = Reader { bytes, at: 0 };
        let value = reader.value(0)?;
        Some((value, reader.at))
    }

    /// All of `bytes` as one value.
    pub fn only(bytes: &[u8]) -> Option<Value> {
        Value::decode(bytes).filter(|(_, len)| *len == bytes.len()).map(|(value, _)| value)
    }

    /// All of `bytes` as values one after another.
    pub fn sequence(mut bytes: &[u8]) -> Option<Vec<Value>> {
        let mut values = Vec::new();
        while !bytes.is_empty() {
            let (value, len) = Value::decode(bytes)?;
            values.push(value);
            bytes = &bytes[len..];
        }
        Some(values)
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn take(&mut self, len: usize) -> Option<&[u8]> {
        let taken = self.bytes.get(self.at..self.at.checked_add(len)?)?;
        self.at += len;
        Some(taken)
    }

    fn be(&mut self, width: usize) -> Option<u64> {
        Some(self.take(width)?.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn value(&mut self, depth: u32) -> Option<Value> {
        if depth > 512 {
            return None;
        }
        let marker = self.be(1)? as u8;
        Some(match marker {
            0x00..=0x7f => Value::Uint(u64::from(marker)),
            0x80..=0x8f => self.map(u64::from(marker & 15), depth)?,
            0x90..=0x9f => self.array(u64::from(marker & 15), depth)?,
            0xa0..=0xbf => Value::Str(self.take(usize::from(marker & 31))?.to_vec()),
            0xc0 => Value::Nil,
            0xc1 => return None,
            0xc2 | 0xc3 => Value::Bool(marker == 0xc3),
            0xc4..=0xc6 => {
                let len = self.be(1 << (marker - 0xc4))?;
                Value::Bin(self.take(len as usize)?.to_vec())
            }
            0xc7..=0xc9 => {
                let len = self.be(1 << (marker - 0xc7))?;
                self.ext(len as usize)?
            }
            0xca => Value::F32(f32::from_bits(self.be(4)? as u32)),
            0xcb => Value::F64(f64::from_bits(self.be(8)?)),
            0xcc..=0xcf => Value::Uint(self.be(1 << (marker - 0xcc))?),
            0xd0 => Value::Int(i64::from(self.be(1)? as i8)),
            0xd1 => Value::Int(i64::from(self.be(2)? as i16)),
            0xd2 => Value::Int(i64::from(self.be(4)? as i32)),
            0xd3 => Value::Int(self.be(8)? as i64),
            0xd4..=0xd8 => self.ext(1 << (marker - 0xd4))?,
            0xd9..=0xdb => {
                let len = self.be(1 << (marker - 0xd9))?;
                Value::Str(self.take(len as usize)?.to_vec())
            }
            0xdc => {
                let len = self.be(2)?;
                self.array(len, depth)?
            }
            0xdd => {
                let len = self.be(4)?;
                self.array(len, depth)?
            }
            0xde => {
                let len = self.be(2)?;
                self.map(len, depth)?
            }
            0xdf => {
                let len = self.be(4)?;
                self.map(len, depth)?
            }
            0xe0..=0xff => Value::Int(i64::from(marker as i8)),
        })
    }

    fn ext(&mut self, len: usize) -> Option<Value> {
        let kind = self.be(1)? as i8;
        Some(Value::Ext(kind, self.take(len)?.to_vec()))
    }

    fn array(&mut self, len: u64, depth: u32) -> Option<Value> {
        let mut items = Vec::new();
        for _ in 0..len {
            items.push(self.value(depth + 1)?);
        }
        Some(Value::Array(items))
    }

    fn map(&mut self, len: u64, depth: u32) -> Option<Value> {
        let mut fields = Vec::new();
        for _ in 0..len {
            fields.push((self.value(depth + 1)?, self.value(depth + 1)?));
        }
        Some(Value::Map(fields))
    }
}
