//! Sharding key → hash, over its MessagePack bytes in place: what vshard's functions (`vshard/hash.lua`) give for the value
//! that Tarantool decodes from those bytes. Nothing recurses, nothing is allocated.
//!
//! Both are CRC-32C without the final inversion. `mpcrc32` takes the value as `msgpackffi` encodes it anew: numbers in their
//! shortest form, whole doubles as integers; but strings alone, without header. `strcrc32` takes the text of `tostring`. A
//! key that is an array is the sequence of its items.

use std::fmt::{self, Write};

use crate::route::decimal::{Decimal, MAX_PACKED};
use crate::route::integer::{integer, write_integer};
use crate::route::number_text::BIG;
use crate::wire::mp::{Cursor, Fault, Kind};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hash {
    MpCrc32,
    StrCrc32,
}

impl Hash {
    pub fn named(name: &[u8]) -> Option<Hash> {
        match name {
            b"mpcrc32" => Some(Hash::MpCrc32),
            b"strcrc32" => Some(Hash::StrCrc32),
            _ => None,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Hash::MpCrc32 => "mpcrc32",
            Hash::StrCrc32 => "strcrc32",
        }
    }
}

/// In what versions of Tarantool differ. The default is 3.x.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rules {
    /// Decoding makes a string of binary data, not a `varbinary`: before 3.0, and after with `binary_data_decoding = 'old'`.
    pub binary_is_text: bool,
    /// The encoder of 2.6 takes doubles far beyond 64 bits for integers.
    pub wide_integers: bool,
    /// Decimals whose exponent is positive are written with an E, as are those below 0.000001.
    pub scientific_decimals: bool,
}

impl Rules {
    /// The bits in which `lua/rawshard/hash.lua` counts.
    pub fn from_bits(bits: u32) -> Rules {
        Rules {
            binary_is_text: bits & 1 != 0,
            wide_integers: bits & 2 != 0,
            scientific_decimals: bits & 4 != 0,
        }
    }
}

/// Why a value has no hash.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unhashable {
    Nil,
    /// The order of its pairs, and so its hash, would be that of a Lua table.
    Map,
    /// In a `strcrc32`: the text of a Lua table is an address.
    Nested,
    TooDeep,
    /// Of a type that is neither decimal nor uuid.
    Extension(i8),
    BadDecimal,
    /// What vshard gives for it on this host depends on whether the code was compiled.
    Unstable,
    Broken(Fault),
}

impl fmt::Display for Unhashable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unhashable::Nil => f.write_str("nil can not be a sharding key"),
            Unhashable::Map => f.write_str("a map can not be a sharding key"),
            Unhashable::Nested => f.write_str("an array in a sharding key has no strcrc32"),
            Unhashable::TooDeep => {
                write!(f, "a sharding key can not be nested deeper than {MAX_DEPTH} levels")
            }
            Unhashable::Extension(kind) => {
                write!(f, "a MessagePack extension of type {kind} can not be a sharding key")
            }
            Unhashable::BadDecimal => f.write_str("a damaged decimal can not be a sharding key"),
            Unhashable::Unstable => {
                f.write_str("a double of 2^64 or more has no stable hash on this Tarantool")
            }
            Unhashable::Broken(fault) => fault.fmt(f),
        }
    }
}

impl From<Fault> for Unhashable {
    fn from(fault: Fault) -> Unhashable {
        Unhashable::Broken(fault)
    }
}

type Result<T> = std::result::Result<T, Unhashable>;

/// The host's `encode_max_depth`.
const MAX_DEPTH: usize = 128;

const EXT_DECIMAL: i8 = 1;
const EXT_UUID: i8 = 2;

/// A hash under way: of a key, or of the items of one that has several.
#[derive(Clone, Copy, Debug)]
pub struct Hasher {
    hash: Hash,
    rules: Rules,
    crc: u32,
}

impl Hasher {
    pub fn new(hash: Hash, rules: Rules) -> Hasher {
        Hasher { hash, rules, crc: 0 }
    }

    /// From 0.
    pub fn finish(self) -> u32 {
        // The crate inverts at the end, vshard's digest does not.
        !self.crc
    }

    /// Takes a whole key, one value.
    pub fn key(&mut self, cursor: &mut Cursor<'_>) -> Result<()> {
        match cursor.peek()? {
            Kind::Nil => Err(Unhashable::Nil),
            Kind::Array => {
                for _ in 0..cursor.array()? {
                    self.item(cursor)?;
                }
                Ok(())
            }
            _ => self.item(cursor),
        }
    }

    /// Takes one item of a key.
    pub fn item(&mut self, cursor: &mut Cursor<'_>) -> Result<()> {
        match self.hash {
            Hash::MpCrc32 => self.encoded(cursor),
            Hash::StrCrc32 => self.text(cursor),
        }
    }

    pub(super) fn feed(&mut self, bytes: &[u8]) {
        self.crc = crc32c::crc32c_append(self.crc, bytes);
    }

    // mpcrc32

    fn encoded(&mut self, cursor: &mut Cursor<'_>) -> Result<()> {
        match cursor.peek()? {
            Kind::Str => self.feed(cursor.str()?),
            Kind::Bin if self.rules.binary_is_text => self.feed(cursor.bytes()?),
            Kind::Array => self.nested(cursor)?,
            _ => self.scalar(cursor)?,
        }
        Ok(())
    }

    /// An array within a key: encoded whole, with headers.
    fn nested(&mut self, cursor: &mut Cursor<'_>) -> Result<()> {
        // Of each array around the next value, how many items are left.
        let mut left = [0u32; MAX_DEPTH];
        let mut depth = 0;
        loop {
            if cursor.peek()? == Kind::Array {
                let count = cursor.array()?;
                let slot = left.get_mut(depth).ok_or(Unhashable::TooDeep)?;
                *slot = count;
                depth += 1;
                self.header(ARRAY, count);
            } else {
                self.scalar(cursor)?;
            }
            while depth > 0 && left[depth - 1] == 0 {
                depth -= 1;
            }
            match depth {
                0 => return Ok(()),
                _ => left[depth - 1] -= 1,
            }
        }
    }

    /// Anything but arrays and maps, with its header.
    fn scalar(&mut self, cursor: &mut Cursor<'_>) -> Result<()> {
        match cursor.peek()? {
            Kind::Nil => {
                cursor.skip()?;
                self.feed(b"\xc0");
            }
            Kind::Bool => {
                let value = cursor.bool()?;
                self.feed(if value { b"\xc3" } else { b"\xc2" });
            }
            Kind::Uint | Kind::Int => self.integer(integer(cursor)?),
            Kind::Float => {
                let number = cursor.number()?;
                match self.whole(number)? {
                    Some(whole) => self.integer(whole),
                    None => {
                        let mut bytes = [0xcb; 9];
                        bytes[1..].copy_from_slice(&canonical_bits(number).to_be_bytes());
                        self.feed(&bytes);
                    }
                }
            }
            Kind::Str => {
                let text = cursor.str()?;
                self.header(STR, text.len() as u32);
                self.feed(text);
            }
            Kind::Bin => {
                let bytes = cursor.bytes()?;
                self.header(if self.rules.binary_is_text { STR } else { BIN }, bytes.len() as u32);
                self.feed(bytes);
            }
            Kind::Ext => match Extension::read(cursor)? {
                Extension::Uuid(bytes) => {
                    self.feed(&[0xd8, EXT_UUID as u8]);
                    self.feed(bytes);
                }
                Extension::Decimal(decimal) => self.decimal(&decimal),
            },
            Kind::Array => return Err(Unhashable::Nested),
            Kind::Map => return Err(Unhashable::Map),
        }
        Ok(())
    }

    /// The integer that the host's encoder makes of a double, if it does.
    fn whole(&self, number: f64) -> Result<Option<i128>> {
        const TWO_63: f64 = 9_223_372_036_854_775_808.0;
        const TWO_64: f64 = 2.0 * TWO_63;
        if number.fract() != 0.0 || !number.is_finite() {
            return Ok(None);
        }
        if (-TWO_63..TWO_64).contains(&number) {
            return Ok(Some(number as i128));
        }
        if self.rules.wide_integers && number > -1e63 && number < 1e64 {
            return if number > 0.0 { Err(Unhashable::Unstable) } else { Ok(Some(i64::MIN.into())) };
        }
        Ok(None)
    }

    /// From -2^63 to 2^64, in the shortest form.
    fn integer(&mut self, value: i128) {
        let mut bytes = [0; 9];
        let len = write_integer(value, &mut bytes);
        self.feed(&bytes[..len]);
    }

    fn header(&mut self, forms: Header, len: u32) {
        let [_, b2, b1, b0] = len.to_be_bytes();
        if len < forms.fix_limit {
            self.feed(&[forms.fix | b0]);
        } else if len <= 0xff && forms.len8 != 0 {
            self.feed(&[forms.len8, b0]);
        } else if len <= 0xffff {
            self.feed(&[forms.len16, b1, b0]);
        } else {
            self.feed(&[forms.len16 + 1, (len >> 24) as u8, b2, b1, b0]);
        }
    }

    fn decimal(&mut self, decimal: &Decimal) {
        let mut scale = [0; 9];
        let scale_len = write_integer(decimal.scale.into(), &mut scale);
        let mut body = [0; 9 + MAX_PACKED];
        body[..scale_len].copy_from_slice(&scale[..scale_len]);
        let len = scale_len + decimal.pack(&mut body[scale_len..]);
        match len {
            1 | 2 | 4 | 8 | 16 => self.feed(&[0xd4 + len.trailing_zeros() as u8, EXT_DECIMAL as u8]),
            _ => self.feed(&[0xc7, len as u8, EXT_DECIMAL as u8]),
        }
        self.feed(&body[..len]);
    }

    // strcrc32

    fn text(&mut self, cursor: &mut Cursor<'_>) -> Result<()> {
        match cursor.peek()? {
            Kind::Str | Kind::Bin => self.feed(cursor.bytes()?),
            Kind::Nil => {
                cursor.skip()?;
                self.feed(b"cdata<void *>: NULL");
            }
            Kind::Bool => {
                let value = cursor.bool()?;
                self.feed(if value { b"true" } else { b"false" });
            }
            Kind::Uint | Kind::Int => {
                // `d3`, the signed form of 64 bits, stays signed in Lua whatever its value.
                let suffix = if cursor.peek()? == Kind::Int { "LL" } else { "ULL" };
                let value = integer(cursor)?;
                let suffix = if value.unsigned_abs() < u128::from(BIG) { "" } else { suffix };
                self.write(format_args!("{value}{suffix}"));
            }
            Kind::Float => {
                let number = cursor.number()?;
                self.number_text(number);
            }
            Kind::Ext => match Extension::read(cursor)? {
                Extension::Uuid(bytes) => self.uuid_text(bytes),
                Extension::Decimal(decimal) => self.decimal_text(&decimal),
            },
            Kind::Array => return Err(Unhashable::Nested),
            Kind::Map => return Err(Unhashable::Map),
        }
        Ok(())
    }

    pub(super) fn write(&mut self, text: fmt::Arguments<'_>) {
        // `write_str` never fails.
        let _ = self.write_fmt(text);
    }

    fn uuid_text(&mut self, bytes: &[u8]) {
        for (i, byte) in bytes.iter().enumerate() {
            let dash = if matches!(i, 4 | 6 | 8 | 10) { "-" } else { "" };
            self.write(format_args!("{dash}{byte:02x}"));
        }
    }

    fn decimal_text(&mut self, decimal: &Decimal) {
        let digits = decimal.digits();
        let point = digits.len() as i32 - decimal.scale;
        if decimal.negative {
            self.feed(b"-");
        }
        if self.rules.scientific_decimals && (decimal.scale < 0 || point < -5) {
            self.feed(&digits[..1]);
            if digits.len() > 1 {
                self.feed(b".");
                self.feed(&digits[1..]);
            }
            if point != 1 {
                self.write(format_args!("E{:+}", point - 1));
            }
            return;
        }
        self.plain_text(digits, point);
    }
}

impl Write for Hasher {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.feed(text.as_bytes());
        Ok(())
    }
}

/// The extensions that have a hash.
enum Extension<'a> {
    /// Sixteen bytes.
    Uuid(&'a [u8]),
    Decimal(Decimal),
}

impl<'a> Extension<'a> {
    fn read(cursor: &mut Cursor<'a>) -> Result<Extension<'a>> {
        match cursor.extension()? {
            (EXT_UUID, payload) if payload.len() == 16 => Ok(Extension::Uuid(payload)),
            (EXT_DECIMAL, payload) => {
                Decimal::unpack(payload).map(Extension::Decimal).ok_or(Unhashable::BadDecimal)
            }
            (kind, _) => Err(Unhashable::Extension(kind)),
        }
    }
}

/// Markers of a value that has a length.
struct Header {
    fix: u8,
    /// From here on the short form has no room.
    fix_limit: u32,
    /// 0: there is none.
    len8: u8,
    /// The next marker has 32 bits.
    len16: u8,
}

const STR: Header = Header { fix: 0xa0, fix_limit: 32, len8: 0xd9, len16: 0xda };
const BIN: Header = Header { fix: 0, fix_limit: 0, len8: 0xc4, len16: 0xc5 };
const ARRAY: Header = Header { fix: 0x90, fix_limit: 16, len8: 0, len16: 0xdc };

/// LuaJIT has one NaN.
fn canonical_bits(number: f64) -> u64 {
    if number.is_nan() { 0xfff8 << 48 } else { number.to_bits() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::samples::{crc, double, hash, mp, string};

    #[test]
    fn vectors_of_vshard() {
        // test/unit/router.result of vshard 0.1.42, for 3000 buckets.
        let bucket = |hash: Result<u32>| hash.unwrap() % 3000 + 1;
        assert_eq!(bucket(string(b"\x01")), 477);
        assert_eq!(bucket(mp(b"\x01")), 1614);
        assert_eq!(bucket(mp(b"\xa11")), 477);
        assert_eq!(bucket(mp(b"\xd5\x01\x00\x1c")), 1696);
        assert_eq!(string(b"\xa0"), Ok(0xFFFF_FFFF), "no bytes: the initial value");
    }

    #[test]
    fn integers_of_every_width_are_one() {
        for spelling in [
            &b"\x05"[..],
            b"\xcc\x05",
            b"\xcd\x00\x05",
            b"\xce\x00\x00\x00\x05",
            b"\xcf\x00\x00\x00\x00\x00\x00\x00\x05",
            b"\xd0\x05",
            b"\xd1\x00\x05",
            b"\xd2\x00\x00\x00\x05",
            b"\xd3\x00\x00\x00\x00\x00\x00\x00\x05",
            b"\xca\x40\xa0\x00\x00",
            &double(5.0),
        ] {
            assert_eq!(mp(spelling), crc(b"\x05"), "{spelling:02x?}");
            assert_eq!(string(spelling), crc(b"5"), "{spelling:02x?}");
        }
        for spelling in [
            &b"\xfb"[..],
            b"\xd0\xfb",
            b"\xd1\xff\xfb",
            b"\xd2\xff\xff\xff\xfb",
            b"\xd3\xff\xff\xff\xff\xff\xff\xff\xfb",
            &double(-5.0),
        ] {
            assert_eq!(mp(spelling), crc(b"\xfb"), "{spelling:02x?}");
            assert_eq!(string(spelling), crc(b"-5"), "{spelling:02x?}");
        }
    }

    #[test]
    fn the_rest_of_what_can_be_a_key() {
        let uuid = b"\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f\x10";
        let long = [&b"\xc7\x10\x02"[..], uuid].concat();
        assert_eq!(mp(&long), crc(&[&b"\xd8\x02"[..], uuid].concat()));
        assert_eq!(string(&long), crc(b"01020304-0506-0708-090a-0b0c0d0e0f10"));
        assert_eq!(mp(b"\xd9\x03key"), crc(b"key"), "a string is taken as it is");
        assert_eq!(mp(b"\xc5\x00\x02ab"), crc(b"\xc4\x02ab"));
        let old = Rules { binary_is_text: true, ..Rules::default() };
        assert_eq!(hash(Hash::MpCrc32, old, b"\xc5\x00\x02ab"), crc(b"ab"));
        assert_eq!(string(b"\xc5\x00\x02ab"), crc(b"ab"));
        assert_eq!(mp(b"\xc3"), crc(b"\xc3"));
        assert_eq!(string(b"\xc2"), crc(b"false"));
    }

    #[test]
    fn composite_keys() {
        assert_eq!(mp(b"\xdc\x00\x03\xcc\x01\xa3two\xc0"), crc(b"\x01two\xc0"));
        assert_eq!(string(b"\x93\xcc\x01\xa3two\xc0"), crc(b"1twocdata<void *>: NULL"));
        assert_eq!(mp(b"\x90"), Ok(0xFFFF_FFFF));
        assert_eq!(
            mp(b"\x92\xdc\x00\x02\xcc\x01\xd9\x01a\x91\xdd\x00\x00\x00\x00"),
            crc(b"\x92\x01\xa1a\x91\x90"),
            "arrays in a key are encoded anew"
        );
        let old = Rules { binary_is_text: true, ..Rules::default() };
        assert_eq!(hash(Hash::MpCrc32, old, b"\x91\x91\xc4\x01a"), crc(b"\x91\xa1a"));
        for len in [31, 32, 255, 256, 65535, 65536] {
            let mut key = b"\x91\x91".to_vec();
            crate::wire::mp::write_bytes_as_str(&mut key, &vec![b'x'; len]);
            assert_eq!(mp(&key), crc(&key[1..]), "{len}");
            let mut key = b"\x91".to_vec();
            crate::wire::mp::write_array_len(&mut key, len as u32);
            key.extend(vec![0x07; len]);
            assert_eq!(mp(&key), crc(&key[1..]), "{len}");
        }
    }

    #[test]
    fn what_can_not_be_a_key() {
        assert_eq!(mp(b"\xc0"), Err(Unhashable::Nil));
        assert_eq!(mp(b"\x80"), Err(Unhashable::Map));
        assert_eq!(mp(b"\x91\x81\x01\x02"), Err(Unhashable::Map));
        assert_eq!(mp(b"\x91\x91\x80"), Err(Unhashable::Map));
        assert_eq!(string(b"\x91\x80"), Err(Unhashable::Map));
        assert_eq!(string(b"\x91\x90"), Err(Unhashable::Nested));
        assert_eq!(mp(b"\xd7\x04\x00\x00\x00\x00\x00\x00\x00\x00"), Err(Unhashable::Extension(4)));
        assert_eq!(mp(b"\xd7\x02\x00\x00\x00\x00\x00\x00\x00\x00"), Err(Unhashable::Extension(2)));
        assert_eq!(mp(b"\xc1"), Err(Unhashable::Broken(Fault::Reserved)));
        assert_eq!(mp(b"\x92\x01"), Err(Unhashable::Broken(Fault::Truncated)));
        assert_eq!(mp(b""), Err(Unhashable::Broken(Fault::Truncated)));
    }

    #[test]
    fn depth_is_bounded_and_needs_no_stack() {
        let nested = |levels: usize| [vec![0x91; levels + 1], vec![0x01]].concat();
        assert_eq!(mp(&nested(128)), crc(&nested(128)[1..]));
        assert_eq!(mp(&nested(129)), Err(Unhashable::TooDeep));
        assert_eq!(mp(&nested(100_000)), Err(Unhashable::TooDeep));
        assert_eq!(string(&nested(100_000)), Err(Unhashable::Nested));
    }

    #[test]
    fn doubles_that_an_old_host_takes_for_integers() {
        let old = Rules { wide_integers: true, ..Rules::default() };
        let mp = |number: f64| hash(Hash::MpCrc32, old, &double(number));
        assert_eq!(mp(1e20), Err(Unhashable::Unstable));
        assert_eq!(mp(-1e20), crc(b"\xd3\x80\x00\x00\x00\x00\x00\x00\x00"));
        assert_eq!(mp(1e64), crc(&double(1e64)));
        assert_eq!(mp(-1e63), crc(&double(-1e63)));
        assert_eq!(mp(1.5), crc(&double(1.5)));
        assert_eq!(mp(f64::INFINITY), crc(&double(f64::INFINITY)));
    }
}
