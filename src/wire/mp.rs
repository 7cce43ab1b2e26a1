//! A cursor over borrowed MessagePack: peek, skip, span. Nothing is decoded into trees, nothing recurses, and every
//! length is checked against the bytes that are really there. Writing is rmp's, into a plain `Vec<u8>`.
//!
//! Format: <https://github.com/msgpack/msgpack/blob/master/spec.md>.

use rmp::Marker;

/// MessagePack extension type of a Tarantool tuple (IPROTO feature `dml_tuple_extension`, Tarantool 3.0 and later):
/// a format id, then the plain array.
pub const EXT_TUPLE: i8 = 7;

/// Tuples within tuples deeper than this are refused; Tarantool itself produces one level.
const MAX_TUPLE_DEPTH: usize = 256;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    #[error("the bytes end in the middle of a value")]
    Truncated,
    #[error("byte 0xc1 is not MessagePack")]
    Reserved,
    #[error("expected {0}")]
    Expected(&'static str),
    #[error("a tuple extension that does not hold one array")]
    BadTuple,
    #[error("bytes follow where the value should end")]
    Trailing,
}

pub type Result<T> = std::result::Result<T, Fault>;

/// What kind of value comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Nil,
    Bool,
    Uint,
    Int,
    Float,
    Str,
    Bin,
    Array,
    Map,
    Ext,
}

impl Kind {
    /// The type's name as an error message for users spells it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Nil => "nil",
            Kind::Bool => "boolean",
            Kind::Uint | Kind::Int => "integer",
            Kind::Float => "double",
            Kind::Str => "string",
            Kind::Bin => "varbinary",
            Kind::Array => "array",
            Kind::Map => "map",
            Kind::Ext => "extension",
        }
    }
}

/// What a walk over values has met that somebody may have to look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Met {
    pub extensions: bool,
    pub tuples: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub fn new(bytes: &'a [u8]) -> Cursor<'a> {
        Cursor { bytes, at: 0 }
    }

    /// Offset of the next unread byte.
    pub fn position(&self) -> usize {
        self.at
    }

    pub fn is_at_end(&self) -> bool {
        self.at == self.bytes.len()
    }

    /// Succeeds only if everything was read.
    pub fn finish(self) -> Result<()> {
        if self.is_at_end() { Ok(()) } else { Err(Fault::Trailing) }
    }

    #[inline]
    pub fn peek(&self) -> Result<Kind> {
        let byte = *self.bytes.get(self.at).ok_or(Fault::Truncated)?;
        KINDS[byte as usize].ok_or(Fault::Reserved)
    }

    /// Takes a nil if one comes next.
    pub fn take_nil(&mut self) -> Result<bool> {
        let nil = self.peek()? == Kind::Nil;
        self.at += usize::from(nil);
        Ok(nil)
    }

    pub fn bool(&mut self) -> Result<bool> {
        match self.byte()? {
            0xc2 => Ok(false),
            0xc3 => Ok(true),
            _ => Err(Fault::Expected("a boolean")),
        }
    }

    /// An unsigned integer of any width; a signed encoding of a value that is not negative counts too.
    #[inline]
    pub fn uint(&mut self) -> Result<u64> {
        const WHAT: Fault = Fault::Expected("an unsigned integer");
        // Keys, types and small numbers: most of what is read.
        if let Some(&byte @ 0..=0x7f) = self.bytes.get(self.at) {
            self.at += 1;
            return Ok(u64::from(byte));
        }
        self.wide_uint(WHAT)
    }

    #[inline(never)]
    fn wide_uint(&mut self, what: Fault) -> Result<u64> {
        let signed = |value: i64| u64::try_from(value).map_err(|_| what);
        match Marker::from_u8(self.byte()?) {
            Marker::FixPos(value) => Ok(u64::from(value)),
            Marker::U8 => Ok(u64::from(self.byte()?)),
            Marker::U16 => Ok(self.be(2)?),
            Marker::U32 => Ok(self.be(4)?),
            Marker::U64 => self.be(8),
            Marker::I8 => signed(i64::from(self.byte()? as i8)),
            Marker::I16 => signed(i64::from(self.be(2)? as i16)),
            Marker::I32 => signed(i64::from(self.be(4)? as i32)),
            Marker::I64 => signed(self.be(8)? as i64),
            _ => Err(what),
        }
    }

    /// Any number as a double.
    pub fn number(&mut self) -> Result<f64> {
        match Marker::from_u8(self.byte()?) {
            Marker::FixPos(value) => Ok(f64::from(value)),
            Marker::FixNeg(value) => Ok(f64::from(value)),
            Marker::U8 => Ok(f64::from(self.byte()?)),
            Marker::U16 => Ok(self.be(2)? as f64),
            Marker::U32 => Ok(self.be(4)? as f64),
            Marker::U64 => Ok(self.be(8)? as f64),
            Marker::I8 => Ok(f64::from(self.byte()? as i8)),
            Marker::I16 => Ok(f64::from(self.be(2)? as i16)),
            Marker::I32 => Ok(f64::from(self.be(4)? as i32)),
            Marker::I64 => Ok(self.be(8)? as i64 as f64),
            Marker::F32 => Ok(f64::from(f32::from_bits(self.be(4)? as u32))),
            Marker::F64 => Ok(f64::from_bits(self.be(8)?)),
            _ => Err(Fault::Expected("a number")),
        }
    }

    /// A string's bytes; Tarantool does not promise UTF-8.
    #[inline]
    pub fn str(&mut self) -> Result<&'a [u8]> {
        if let Some(&byte @ 0xa0..=0xbf) = self.bytes.get(self.at) {
            self.at += 1;
            return self.take(u64::from(byte & 0x1f));
        }
        self.long_str()
    }

    #[inline(never)]
    fn long_str(&mut self) -> Result<&'a [u8]> {
        let len = match Marker::from_u8(self.byte()?) {
            Marker::FixStr(len) => u64::from(len),
            Marker::Str8 => u64::from(self.byte()?),
            Marker::Str16 => self.be(2)?,
            Marker::Str32 => self.be(4)?,
            _ => return Err(Fault::Expected("a string")),
        };
        self.take(len)
    }

    /// A string or binary: IPROTO peers send either for a scramble.
    pub fn bytes(&mut self) -> Result<&'a [u8]> {
        if self.peek()? != Kind::Bin {
            return self.str();
        }
        let len = match Marker::from_u8(self.byte()?) {
            Marker::Bin8 => u64::from(self.byte()?),
            Marker::Bin16 => self.be(2)?,
            _ => self.be(4)?,
        };
        self.take(len)
    }

    /// Number of items that follow.
    pub fn array(&mut self) -> Result<u32> {
        match Marker::from_u8(self.byte()?) {
            Marker::FixArray(len) => Ok(u32::from(len)),
            Marker::Array16 => Ok(self.be(2)? as u32),
            Marker::Array32 => Ok(self.be(4)? as u32),
            _ => Err(Fault::Expected("an array")),
        }
    }

    /// Number of key-value pairs that follow.
    pub fn map(&mut self) -> Result<u32> {
        match Marker::from_u8(self.byte()?) {
            Marker::FixMap(len) => Ok(u32::from(len)),
            Marker::Map16 => Ok(self.be(2)? as u32),
            Marker::Map32 => Ok(self.be(4)? as u32),
            _ => Err(Fault::Expected("a map")),
        }
    }

    /// Passes over one value of any kind and depth.
    #[inline]
    pub fn skip(&mut self) -> Result<()> {
        // A value without children, seen at a glance.
        if let Some(byte) = self.bytes.get(self.at)
            && let Shape { len, children: 0 } = SHAPES[*byte as usize]
            && len != Shape::LONG.len
            && len as usize <= self.bytes.len() - self.at
        {
            self.at += len as usize;
            return Ok(());
        }
        self.skip_many(1).map(|_| ())
    }

    /// Passes over `count` values; tells what was among them at any depth.
    ///
    /// This is what walks every payload. Where the next value begins is known when the length of this one is; looked up in a
    /// table, each length waits for the one before. So the common kinds are told apart by branches: a processor that
    /// foresees them, as it does in rows of one shape, is values ahead.
    pub fn skip_many(&mut self, count: u64) -> Result<Met> {
        let bytes = self.bytes;
        let mut at = self.at;
        let mut pending = count;
        let mut met = Met::default();
        while pending > 0 {
            let byte = *bytes.get(at).ok_or(Fault::Truncated)?;
            pending -= 1;
            // A short string.
            if matches!(byte, 0xa0..=0xbf) {
                at += 1 + usize::from(byte & 0x1f);
                continue;
            }
            // A small integer, nil, false or true.
            if matches!(byte, 0x00..=0x7f | 0xe0..=0xff | 0xc0 | 0xc2 | 0xc3) {
                at += 1;
                continue;
            }
            // A double, or an integer of 64 bits.
            if matches!(byte, 0xcb | 0xcf | 0xd3) {
                at += 9;
                continue;
            }
            // A string of up to 255 bytes.
            if byte == 0xd9 {
                at += 2 + usize::from(*bytes.get(at + 1).ok_or(Fault::Truncated)?);
                continue;
            }
            if matches!(byte, 0x80..=0x9f) {
                // Half of the small containers are maps, with two values for each of what they count.
                let count = u64::from(byte & 0x0f);
                pending += if byte < 0x90 { 2 * count } else { count };
                at += 1;
            } else if let Shape { len: len @ 1.., .. } = SHAPES[byte as usize] {
                at += usize::from(len);
            } else {
                let step = Cursor { bytes, at }.long_step(byte)?;
                met.extensions |= step.is_ext;
                met.tuples |= step.tuple;
                pending += step.children;
                at = step.end;
            }
            // Each value takes a byte at least: a header that promises more than is left fails here, early.
            if pending > bytes.len().saturating_sub(at) as u64 {
                return Err(Fault::Truncated);
            }
        }
        if at > bytes.len() {
            return Err(Fault::Truncated);
        }
        self.at = at;
        Ok(met)
    }

    /// The bytes of the next value, passed over, and what was met in it.
    pub fn walked(&mut self) -> Result<(&'a [u8], Met)> {
        let from = self.at;
        let met = self.skip_many(1)?;
        Ok((&self.bytes[from..self.at], met))
    }

    /// The bytes of the next value, passed over.
    pub fn span(&mut self) -> Result<&'a [u8]> {
        let from = self.at;
        self.skip()?;
        Ok(&self.bytes[from..self.at])
    }

    /// Type and payload of an extension.
    pub(crate) fn extension(&mut self) -> Result<(i8, &'a [u8])> {
        let step = self.step()?;
        if !step.is_ext {
            return Err(Fault::Expected("an extension"));
        }
        self.at = step.end;
        Ok((self.bytes[step.body - 1] as i8, &self.bytes[step.body..step.end]))
    }

    /// Passes over an integer from `-most` to `most`; tells whether there was one.
    pub(super) fn int_within(&mut self, most: i32) -> bool {
        matches!(self.peek(), Ok(Kind::Uint | Kind::Int))
            && self.number().is_ok_and(|number| number.abs() <= f64::from(most))
    }

    /// Whether all that is left is well-formed and has no extension in it.
    pub(super) fn is_plain(mut self) -> bool {
        while !self.is_at_end() {
            match self.step() {
                Ok(Step { end, is_ext: false, .. }) => self.at = end,
                _ => return false,
            }
        }
        true
    }

    /// What is left, unread.
    pub fn rest(&self) -> &'a [u8] {
        &self.bytes[self.at..]
    }

    /// Where the value here ends without its children, and how many of those follow it. The shape of each marker is looked up.
    pub(super) fn step(&self) -> Result<Step> {
        let at = self.at;
        let byte = *self.bytes.get(at).ok_or(Fault::Truncated)?;
        let shape = SHAPES[byte as usize];
        if shape.is_short() {
            let end = at + shape.len as usize;
            if end > self.bytes.len() {
                return Err(Fault::Truncated);
            }
            return Ok(Step {
                body: at + 1,
                end,
                children: u64::from(shape.children),
                is_ext: false,
                tuple: false,
            });
        }
        self.long_step(byte)
    }

    /// The same for what has a length of its own, is an extension, or is nothing.
    #[inline(never)]
    fn long_step(&self, byte: u8) -> Result<Step> {
        let mut here = Cursor { bytes: self.bytes, at: self.at + 1 };
        let marker = Marker::from_u8(byte);
        let (payload, children) = match marker {
            Marker::Str8 | Marker::Bin8 | Marker::Ext8 => (here.be(1)?, 0),
            Marker::Str16 | Marker::Bin16 | Marker::Ext16 => (here.be(2)?, 0),
            Marker::Str32 | Marker::Bin32 | Marker::Ext32 => (here.be(4)?, 0),
            Marker::Array16 => (0, here.be(2)?),
            Marker::Array32 => (0, here.be(4)?),
            Marker::Map16 => (0, 2 * here.be(2)?),
            Marker::Map32 => (0, 2 * here.be(4)?),
            Marker::FixExt1 => (1, 0),
            Marker::FixExt2 => (2, 0),
            Marker::FixExt4 => (4, 0),
            Marker::FixExt8 => (8, 0),
            Marker::FixExt16 => (16, 0),
            _ => return Err(Fault::Reserved),
        };
        let is_ext = matches!(
            marker,
            Marker::Ext8
                | Marker::Ext16
                | Marker::Ext32
                | Marker::FixExt1
                | Marker::FixExt2
                | Marker::FixExt4
                | Marker::FixExt8
                | Marker::FixExt16
        );
        let tuple = is_ext && here.byte()? as i8 == EXT_TUPLE;
        let body = here.at;
        here.take(payload)?;
        Ok(Step { body, end: here.at, children, is_ext, tuple })
    }

    pub(super) fn byte(&mut self) -> Result<u8> {
        let byte = *self.bytes.get(self.at).ok_or(Fault::Truncated)?;
        self.at += 1;
        Ok(byte)
    }

    /// A big-endian number of `width` bytes (1, 2, 4 or 8).
    #[inline]
    fn be(&mut self, width: usize) -> Result<u64> {
        let bytes = self.take(width as u64)?;
        let mut wide = [0; 8];
        wide[8 - width..].copy_from_slice(bytes);
        Ok(u64::from_be_bytes(wide))
    }

    #[inline]
    fn take(&mut self, len: u64) -> Result<&'a [u8]> {
        let rest = &self.bytes[self.at..];
        if len > rest.len() as u64 {
            return Err(Fault::Truncated);
        }
        self.at += len as usize;
        Ok(&rest[..len as usize])
    }
}

static KINDS: [Option<Kind>; 256] = kinds();

const fn kinds() -> [Option<Kind>; 256] {
    let mut kinds = [None; 256];
    let mut byte = 0;
    while byte < 256 {
        kinds[byte] = match byte as u8 {
            0xc0 => Some(Kind::Nil),
            0xc1 => None,
            0xc2 | 0xc3 => Some(Kind::Bool),
            0x00..=0x7f | 0xcc..=0xcf => Some(Kind::Uint),
            0xe0..=0xff | 0xd0..=0xd3 => Some(Kind::Int),
            0xca | 0xcb => Some(Kind::Float),
            0xa0..=0xbf | 0xd9..=0xdb => Some(Kind::Str),
            0xc4..=0xc6 => Some(Kind::Bin),
            0x90..=0x9f | 0xdc | 0xdd => Some(Kind::Array),
            0x80..=0x8f | 0xde | 0xdf => Some(Kind::Map),
            0xc7..=0xc9 | 0xd4..=0xd8 => Some(Kind::Ext),
        };
        byte += 1;
    }
    kinds
}

/// What a marker says of its value: how many bytes it takes, the marker among them, and how many children follow.
#[derive(Clone, Copy)]
struct Shape {
    len: u8,
    children: u8,
}

impl Shape {
    /// It takes more than a look at the marker: a length follows, it is an extension, or it is nothing.
    const LONG: Shape = Shape { len: 0, children: 0 };

    fn is_short(self) -> bool {
        self.len != Shape::LONG.len
    }
}

static SHAPES: [Shape; 256] = shapes();

const fn shapes() -> [Shape; 256] {
    let mut shapes = [Shape::LONG; 256];
    let mut byte = 0;
    while byte < 256 {
        let low = (byte & 0x1f) as u8;
        let (len, children) = match byte as u8 {
            0x00..=0x7f | 0xe0..=0xff | 0xc0 | 0xc2 | 0xc3 => (1, 0),
            0x80..=0x8f => (1, 2 * (low & 0x0f)),
            0x90..=0x9f => (1, low & 0x0f),
            0xa0..=0xbf => (1 + low, 0),
            0xcc | 0xd0 => (2, 0),
            0xcd | 0xd1 => (3, 0),
            0xce | 0xd2 | 0xca => (5, 0),
            0xcf | 0xd3 | 0xcb => (9, 0),
            _ => (Shape::LONG.len, 0),
        };
        shapes[byte] = Shape { len, children };
        byte += 1;
    }
    shapes
}

pub(super) struct Step {
    /// Where the payload starts.
    pub(super) body: usize,
    pub(super) end: usize,
    pub(super) children: u64,
    pub(super) is_ext: bool,
    /// An extension of that type.
    pub(super) tuple: bool,
}

/// Copies one well-formed value to `out` with each tuple extension replaced by the plain array inside it.
pub fn copy_without_tuples(value: &[u8], out: &mut Vec<u8>) -> Result<()> {
    // Inside a tuple: how many values were pending around it, and where its bytes must end.
    let mut open: Vec<(u64, usize)> = Vec::new();
    let mut cursor = Cursor::new(value);
    let mut copied = 0;
    let mut pending = 1u64;
    while pending > 0 {
        let step = cursor.step()?;
        pending = pending - 1 + step.children;
        if step.tuple {
            if open.len() == MAX_TUPLE_DEPTH {
                return Err(Fault::BadTuple);
            }
            let mut inside = Cursor { bytes: &value[..step.end], at: step.body };
            inside.uint().map_err(|_| Fault::BadTuple)?;
            if inside.peek().map_err(|_| Fault::BadTuple)? != Kind::Array {
                return Err(Fault::BadTuple);
            }
            out.extend_from_slice(&value[copied..cursor.at]);
            copied = inside.at;
            cursor.at = inside.at;
            open.push((pending, step.end));
            pending += 1;
        } else {
            cursor.at = step.end;
        }
        while let Some(&(around, end)) = open.last() {
            if cursor.at > end {
                return Err(Fault::BadTuple);
            }
            if pending != around {
                break;
            }
            if cursor.at != end {
                return Err(Fault::BadTuple);
            }
            open.pop();
        }
    }
    out.extend_from_slice(&value[copied..cursor.at]);
    cursor.finish()
}

/// Appends a map key.
pub fn write_str(out: &mut Vec<u8>, text: &str) {
    write_bytes_as_str(out, text.as_bytes());
}

/// Appends bytes under a string header, whatever their encoding.
pub fn write_bytes_as_str(out: &mut Vec<u8>, text: &[u8]) {
    infallible(rmp::encode::write_str_len(out, text.len() as u32));
    out.extend_from_slice(text);
}

pub fn write_uint(out: &mut Vec<u8>, value: u64) {
    infallible(rmp::encode::write_uint(out, value));
}

pub fn write_int(out: &mut Vec<u8>, value: i64) {
    infallible(rmp::encode::write_sint(out, value));
}

pub fn write_array_len(out: &mut Vec<u8>, len: u32) {
    infallible(rmp::encode::write_array_len(out, len));
}

pub fn write_map_len(out: &mut Vec<u8>, len: u32) {
    infallible(rmp::encode::write_map_len(out, len));
}

pub fn write_nil(out: &mut Vec<u8>) {
    out.push(0xc0);
}

pub fn write_bool(out: &mut Vec<u8>, value: bool) {
    out.push(if value { 0xc3 } else { 0xc2 });
}

pub fn write_double(out: &mut Vec<u8>, value: f64) {
    infallible(rmp::encode::write_f64(out, value));
}

/// rmp reports the writer's errors; a `Vec` has none.
fn infallible<T, E>(written: std::result::Result<T, E>) {
    debug_assert!(written.is_ok());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skips_every_marker() {
        let samples: &[&[u8]] = &[
            b"\x00",
            b"\x7f",
            b"\xe0",
            b"\xc0",
            b"\xc2",
            b"\xc3",
            b"\xcc\x01",
            b"\xcd\x00\x01",
            b"\xce\x00\x00\x00\x01",
            b"\xcf\x00\x00\x00\x00\x00\x00\x00\x01",
            b"\xd0\xff",
            b"\xd1\xff\xff",
            b"\xd2\xff\xff\xff\xff",
            b"\xd3\xff\xff\xff\xff\xff\xff\xff\xff",
            b"\xca\x7f\xc0\x00\x00",
            b"\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00",
            b"\xa1a",
            b"\xd9\x01a",
            b"\xda\x00\x01a",
            b"\xdb\x00\x00\x00\x01a",
            b"\xc4\x01a",
            b"\xc5\x00\x01a",
            b"\xc6\x00\x00\x00\x01a",
            b"\x91\x01",
            b"\xdc\x00\x01\x01",
            b"\xdd\x00\x00\x00\x01\x01",
            b"\x81\x01\x02",
            b"\xde\x00\x01\x01\x02",
            b"\xdf\x00\x00\x00\x01\x01\x02",
            b"\xd4\x01a",
            b"\xd5\x01ab",
            b"\xd6\x01abcd",
            b"\xd7\x01abcdefgh",
            b"\xd8\x01abcdefghijklmnop",
            b"\xc7\x01\x01a",
            b"\xc8\x00\x01\x01a",
            b"\xc9\x00\x00\x00\x01\x01a",
        ];
        for sample in samples {
            let mut cursor = Cursor::new(sample);
            assert_eq!(cursor.span(), Ok(*sample));
            assert_eq!(cursor.finish(), Ok(()));
            for cut in 0..sample.len() {
                assert_eq!(
                    Cursor::new(&sample[..cut]).skip(),
                    Err(Fault::Truncated),
                    "{sample:02x?} cut at {cut}"
                );
            }
        }
        assert_eq!(Cursor::new(b"\xc1").skip(), Err(Fault::Reserved));
    }

    #[test]
    fn a_deep_value_needs_no_stack() {
        let mut deep = vec![0x91; 1_000_000];
        deep.push(0x01);
        assert_eq!(Cursor::new(&deep).skip(), Ok(()));
        deep.pop();
        assert_eq!(Cursor::new(&deep).skip(), Err(Fault::Truncated));
    }

    #[test]
    fn a_promise_of_more_than_there_is_fails_at_once() {
        assert_eq!(Cursor::new(b"\xdf\xff\xff\xff\xff\x01").skip(), Err(Fault::Truncated));
        let bomb: Vec<u8> = [0xdd, 0xff, 0xff, 0xff, 0xff].repeat(100_000);
        assert_eq!(Cursor::new(&bomb).skip(), Err(Fault::Truncated));
    }

    #[test]
    fn tuples_become_arrays() {
        let cases: &[(&[u8], &[u8])] = &[
            (b"\x92\x01\xd6\x07\x00\x92\x01\x02", b"\x92\x01\x92\x01\x02"),
            // A tuple in a map in a tuple, then a value behind it.
            (b"\x92\xc7\x09\x07\x00\x91\x81\x05\xd5\x07\x00\x90\xc0\xc0", b"\x92"),
        ];
        let mut out = Vec::new();
        copy_without_tuples(cases[0].0, &mut out).unwrap();
        assert_eq!(out, cases[0].1);
        let nested = b"\x92\xc7\x07\x07\x00\x91\x81\x05\xd4\x07\x00\x03";
        out.clear();
        assert_eq!(copy_without_tuples(nested, &mut out), Err(Fault::BadTuple), "a tuple without its array");
        let nested = b"\x92\xc7\x08\x07\x00\x91\x81\x05\xd5\x07\x00\x90\x03";
        out.clear();
        copy_without_tuples(nested, &mut out).unwrap();
        assert_eq!(out, b"\x92\x91\x81\x05\x90\x03");
        assert_eq!(Cursor::new(nested).skip_many(1), Ok(Met { extensions: true, tuples: true }));
    }

    #[test]
    fn a_walk_tells_of_extensions_at_any_depth() {
        let cases: &[(&[u8], bool, bool)] = &[
            (b"\x93\x01\xa3\xd8\xc7\xc9\x81\xc0\xc4\x02\xd4\xd5", false, false),
            (b"\xd4\x01\x00", true, false),
            (b"\x92\x91\x91\xd8\x020123456789abcdef\x01", true, false),
            (b"\x81\xd5\x04\x00\x00\x01", true, false),
            (b"\x81\x01\xc7\x00\x05", true, false),
            (b"\x92\xc8\x00\x01\x06\x00\xc7\x02\x07\x00\x90", true, true),
            (b"\xc9\x00\x00\x00\x01\x08\x00", true, false),
        ];
        for (bytes, extensions, tuples) in cases {
            let mut cursor = Cursor::new(bytes);
            let met = Met { extensions: *extensions, tuples: *tuples };
            assert_eq!(cursor.walked(), Ok((*bytes, met)), "{bytes:02x?}");
            assert!(cursor.is_at_end());
        }
    }

    #[test]
    fn a_tuple_must_end_with_its_array() {
        let cases: &[(&[u8], Fault)] = &[
            (b"\x91\xd6\x07\x00\x91\x01\x02", Fault::BadTuple),
            (b"\x91\xd6\x07\x00\x93\x01\x02\x03", Fault::BadTuple),
            (b"\x91\xd6\x07\x00\x93\x01\x02", Fault::Truncated),
            (b"\x91\xd4\x07\x00", Fault::BadTuple),
        ];
        for (bad, fault) in cases {
            assert_eq!(copy_without_tuples(bad, &mut Vec::new()), Err(*fault), "{bad:02x?}");
        }
    }

    #[test]
    fn numbers_of_every_width() {
        assert_eq!(Cursor::new(b"\xcf\x00\x00\x00\x00\x00\x00\x00\x05").uint(), Ok(5));
        assert_eq!(Cursor::new(b"\xd1\x00\x05").uint(), Ok(5));
        assert_eq!(Cursor::new(b"\xff").uint(), Err(Fault::Expected("an unsigned integer")));
        assert_eq!(Cursor::new(b"\xca\x3f\x80\x00\x00").number(), Ok(1.0));
        assert_eq!(Cursor::new(b"\xe0").number(), Ok(-32.0));
    }
}
