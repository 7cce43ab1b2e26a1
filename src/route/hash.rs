//! Sharding key → hash, over its MessagePack bytes in place: what vshard's functions (`vshard/hash.lua`) give for the value
//! that Tarantool decodes from those bytes. Nothing recurses, nothing is allocated.
//!
//! Both are CRC-32C without the final inversion. `mpcrc32` takes the value as `msgpackffi` encodes it anew: numbers in their
//! shortest form, whole doubles as integers; but strings alone, without header. `strcrc32` takes the text of `tostring`. A
//! key that is an array is the sequence of its items.

use std::fmt::{self, Write};

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

/// From here on integers are 64-bit cdata in Lua, whose text has a suffix.
const BIG: u64 = 100_000_000_000_000;

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

    fn feed(&mut self, bytes: &[u8]) {
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
            Kind::Ext => match cursor.extension()? {
                (EXT_UUID, payload) if payload.len() == 16 => {
                    self.feed(&[0xd8, EXT_UUID as u8]);
                    self.feed(payload);
                }
                (EXT_DECIMAL, payload) => self.decimal(&Decimal::unpack(payload)?),
                (kind, _) => return Err(Unhashable::Extension(kind)),
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
            Kind::Ext => match cursor.extension()? {
                (EXT_UUID, payload) if payload.len() == 16 => self.uuid_text(payload),
                (EXT_DECIMAL, payload) => {
                    let decimal = Decimal::unpack(payload)?;
                    self.decimal_text(&decimal);
                }
                (kind, _) => return Err(Unhashable::Extension(kind)),
            },
            Kind::Array => return Err(Unhashable::Nested),
            Kind::Map => return Err(Unhashable::Map),
        }
        Ok(())
    }

    fn write(&mut self, text: fmt::Arguments<'_>) {
        // `write_str` never fails.
        let _ = self.write_fmt(text);
    }

    /// C's `%.14g`.
    fn number_text(&mut self, number: f64) {
        if !number.is_finite() {
            let text = if number.is_nan() {
                "nan"
            } else if number > 0.0 {
                "inf"
            } else {
                "-inf"
            };
            return self.feed(text.as_bytes());
        }
        // Whole and exact: the most frequent, and the only ones that need no rounding.
        if number.fract() == 0.0 && number.abs() < BIG as f64 && (number != 0.0 || number.is_sign_positive())
        {
            return self.write(format_args!("{}", number as i64));
        }
        if number.is_sign_negative() {
            self.feed(b"-");
        }
        let (digits, exponent) = fourteen_digits(number.abs());
        let significant = digits.iter().rposition(|digit| *digit != b'0').map_or(1, |last| last + 1);
        let digits = &digits[..significant];
        if (-4..14).contains(&exponent) {
            return self.plain_text(digits, exponent + 1);
        }
        self.feed(&digits[..1]);
        if significant > 1 {
            self.feed(b".");
            self.feed(&digits[1..]);
        }
        self.write(format_args!("e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs()));
    }

    /// Digits with the point behind `point` of them, zeros filled in on either side.
    fn plain_text(&mut self, digits: &[u8], point: i32) {
        if point <= 0 {
            self.feed(b"0.");
            self.zeros(-point);
            return self.feed(digits);
        }
        match digits.split_at_checked(point as usize) {
            Some((whole, [])) => self.feed(whole),
            Some((whole, part)) => {
                self.feed(whole);
                self.feed(b".");
                self.feed(part);
            }
            None => {
                self.feed(digits);
                self.zeros(point - digits.len() as i32);
            }
        }
    }

    fn zeros(&mut self, count: i32) {
        // Never more than there are: numbers have fourteen digits.
        self.feed(ZEROS.get(..count as usize).unwrap_or(&ZEROS));
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

/// An integer of any width and sign.
fn integer(cursor: &mut Cursor<'_>) -> Result<i128> {
    let mut number = *cursor;
    match number.uint() {
        Ok(value) => {
            *cursor = number;
            Ok(value.into())
        }
        Err(Fault::Expected(_)) => {
            let bytes = cursor.span()?;
            // A marker, or a marker and a two's complement of its width.
            let bytes = if bytes.len() > 1 { &bytes[1..] } else { bytes };
            Ok(bytes.iter().fold(-1i128, |value, byte| value << 8 | i128::from(*byte)))
        }
        Err(fault) => Err(fault.into()),
    }
}

/// From -2^63 to 2^64. Gives the length.
fn write_integer(value: i128, out: &mut [u8; 9]) -> usize {
    let bits = (value as u64).to_be_bytes();
    let (marker, width) = match value {
        -0x20..=0x7f => {
            out[0] = value as u8;
            return 1;
        }
        0x80..=0xff => (0xcc, 1),
        0x100..=0xffff => (0xcd, 2),
        0x1_0000..=0xffff_ffff => (0xce, 4),
        0x1_0000_0000.. => (0xcf, 8),
        -0x80.. => (0xd0, 1),
        -0x8000.. => (0xd1, 2),
        -0x8000_0000.. => (0xd2, 4),
        _ => (0xd3, 8),
    };
    out[0] = marker;
    out[1..=width].copy_from_slice(&bits[8 - width..]);
    1 + width
}

/// LuaJIT has one NaN.
fn canonical_bits(number: f64) -> u64 {
    if number.is_nan() { 0xfff8 << 48 } else { number.to_bits() }
}

/// Bytes of a decimal's digits and sign: more than any host takes.
const MAX_PACKED: usize = 40;
/// Of a decimal's scale, either way: more than any host takes, which is 38. Each one is a zero in a text.
const MAX_SCALE: i128 = 128;
const ZEROS: [u8; MAX_SCALE as usize] = [b'0'; MAX_SCALE as usize];

/// `negative` digits × 10^-scale.
struct Decimal {
    /// Characters, right-aligned; without leading zeros.
    text: [u8; 2 * MAX_PACKED],
    from: usize,
    scale: i32,
    negative: bool,
}

impl Decimal {
    /// A scale, then packed digits with the sign in the last half byte.
    fn unpack(payload: &[u8]) -> Result<Decimal> {
        let mut cursor = Cursor::new(payload);
        let bad = |_| Unhashable::BadDecimal;
        if !matches!(cursor.peek().map_err(bad)?, Kind::Uint | Kind::Int) {
            return Err(Unhashable::BadDecimal);
        }
        let scale = integer(&mut cursor).map_err(|_| Unhashable::BadDecimal)?;
        if scale.abs() > MAX_SCALE {
            return Err(Unhashable::BadDecimal);
        }
        let packed = cursor.rest();
        let Some(last) = packed.last() else { return Err(Unhashable::BadDecimal) };
        if packed.len() > MAX_PACKED || last & 0x0f < 10 {
            return Err(Unhashable::BadDecimal);
        }
        let mut text = [b'0'; 2 * MAX_PACKED];
        let count = 2 * packed.len() - 1;
        let end = text.len();
        let from = end - count;
        for (i, place) in text[from..].iter_mut().enumerate() {
            let digit = if i % 2 == 0 { packed[i / 2] >> 4 } else { packed[i / 2] & 0x0f };
            if digit > 9 {
                return Err(Unhashable::BadDecimal);
            }
            *place = b'0' + digit;
        }
        // At least one digit stays.
        let leading = text[from..end - 1].iter().take_while(|digit| **digit == b'0').count();
        Ok(Decimal {
            text,
            from: from + leading,
            scale: scale as i32,
            negative: matches!(last & 0x0f, 0x0b | 0x0d),
        })
    }

    fn digits(&self) -> &[u8] {
        &self.text[self.from..]
    }

    /// As the host packs it. Gives the length.
    fn pack(&self, out: &mut [u8]) -> usize {
        let len = self.digits().len() / 2 + 1;
        // The sign comes last, and half a byte is free in front where the number of digits is even.
        let mut halves = self.digits().iter().rev().map(|digit| digit - b'0').chain(std::iter::repeat(0));
        let mut low = if self.negative { 0x0d } else { 0x0c };
        for byte in out[..len].iter_mut().rev() {
            *byte = halves.next().unwrap_or(0) << 4 | low;
            low = halves.next().unwrap_or(0);
        }
        len
    }
}

/// The digits of a finite number that is not negative, rounded to fourteen, and the exponent of the first one. LuaJIT rounds
/// halves up.
fn fourteen_digits(number: f64) -> ([u8; 14], i32) {
    // One digit more decides, unless it is a 5 that may have been rounded to be one. Fifty are enough to tell then: no double
    // is closer to a half than that without being one.
    let rounded = Scientific::of(number, 14);
    let next = match rounded.digit(14) {
        b'5' => Scientific::of(number, 50).digit(14),
        digit => digit,
    };
    let mut digits = [b'0'; 14];
    for (i, place) in digits.iter_mut().enumerate() {
        *place = rounded.digit(i);
    }
    let mut exponent = rounded.exponent();
    if next >= b'5' {
        for place in digits.iter_mut().rev() {
            if *place < b'9' {
                *place += 1;
                return (digits, exponent);
            }
            *place = b'0';
        }
        digits[0] = b'1';
        exponent += 1;
    }
    (digits, exponent)
}

/// A number as `d.ddde-7`.
struct Scientific {
    bytes: [u8; 64],
    len: usize,
}

impl Scientific {
    /// With so many digits behind the point, at most fifty.
    fn of(number: f64, decimals: usize) -> Scientific {
        let mut text = Scientific { bytes: [0; 64], len: 0 };
        // It has room.
        let _ = write!(text, "{number:.decimals$e}");
        text
    }

    /// Counted from 0.
    fn digit(&self, i: usize) -> u8 {
        self.bytes[if i == 0 { 0 } else { i + 1 }]
    }

    fn exponent(&self) -> i32 {
        let text = &self.bytes[..self.len];
        let digits = text.rsplit(|byte| *byte == b'e').next().unwrap_or_default();
        std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()).unwrap_or(0)
    }
}

impl Write for Scientific {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.len + text.len();
        self.bytes.get_mut(self.len..end).ok_or(fmt::Error)?.copy_from_slice(text.as_bytes());
        self.len = end;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(hash: Hash, rules: Rules, key: &[u8]) -> Result<u32> {
        let mut hasher = Hasher::new(hash, rules);
        let mut cursor = Cursor::new(key);
        hasher.key(&mut cursor)?;
        assert!(cursor.is_at_end(), "{key:02x?}");
        Ok(hasher.finish())
    }

    fn mp(key: &[u8]) -> Result<u32> {
        hash(Hash::MpCrc32, Rules::default(), key)
    }

    fn string(key: &[u8]) -> Result<u32> {
        hash(Hash::StrCrc32, Rules::default(), key)
    }

    fn crc(bytes: &[u8]) -> Result<u32> {
        Ok(!crc32c::crc32c(bytes))
    }

    fn double(value: f64) -> Vec<u8> {
        [&[0xcb][..], &value.to_be_bytes()].concat()
    }

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

    /// The values, encodings and texts are those that Tarantool shows: see test/unit/key_bytes_test.lua, which compares them.
    #[test]
    fn numbers_in_their_host_form() {
        let cases: &[(&[u8], &[u8], &str)] = &[
            (&double(-0.0), b"\x00", "-0"),
            (&double(0.1), b"\xcb\x3f\xb9\x99\x99\x99\x99\x99\x9a", "0.1"),
            (b"\xca\x3d\xcc\xcc\xcd", b"\xcb\x3f\xb9\x99\x99\xa0\x00\x00\x00", "0.10000000149012"),
            (&double(99_999_999_999_999.0), b"\xcf\x00\x00\x5a\xf3\x10\x7a\x3f\xff", "99999999999999"),
            (&double(1e14), b"\xcf\x00\x00\x5a\xf3\x10\x7a\x40\x00", "1e+14"),
            (
                b"\xcf\x00\x00\x5a\xf3\x10\x7a\x3f\xff",
                b"\xcf\x00\x00\x5a\xf3\x10\x7a\x3f\xff",
                "99999999999999",
            ),
            (
                b"\xcf\x00\x00\x5a\xf3\x10\x7a\x40\x00",
                b"\xcf\x00\x00\x5a\xf3\x10\x7a\x40\x00",
                "100000000000000ULL",
            ),
            (
                b"\xd3\x00\x00\x5a\xf3\x10\x7a\x40\x00",
                b"\xcf\x00\x00\x5a\xf3\x10\x7a\x40\x00",
                "100000000000000LL",
            ),
            (
                b"\xd3\xff\xff\xa5\x0c\xef\x85\xc0\x00",
                b"\xd3\xff\xff\xa5\x0c\xef\x85\xc0\x00",
                "-100000000000000LL",
            ),
            (
                b"\xd3\xff\xff\xa5\x0c\xef\x85\xc0\x01",
                b"\xd3\xff\xff\xa5\x0c\xef\x85\xc0\x01",
                "-99999999999999",
            ),
            (
                &double(9_223_372_036_854_775_808.0),
                b"\xcf\x80\x00\x00\x00\x00\x00\x00\x00",
                "9.2233720368548e+18",
            ),
            (
                &double(-9_223_372_036_854_775_808.0),
                b"\xd3\x80\x00\x00\x00\x00\x00\x00\x00",
                "-9.2233720368548e+18",
            ),
            (
                &double(18_446_744_073_709_551_616.0),
                b"\xcb\x43\xf0\x00\x00\x00\x00\x00\x00",
                "1.844674407371e+19",
            ),
            (&double(1e300), b"\xcb\x7e\x37\xe4\x3c\x88\x00\x75\x9c", "1e+300"),
            (&double(5e-324), b"\xcb\x00\x00\x00\x00\x00\x00\x00\x01", "4.9406564584125e-324"),
            (&double(0.0001), b"\xcb\x3f\x1a\x36\xe2\xeb\x1c\x43\x2d", "0.0001"),
            (&double(0.00001), b"\xcb\x3e\xe4\xf8\xb5\x88\xe3\x68\xf1", "1e-05"),
            (&double(123456.789), b"\xcb\x40\xfe\x24\x0c\x9f\xbe\x76\xc9", "123456.789"),
            (&double(99_999_999_999_999.5), b"\xcb\x42\xd6\xbc\xc4\x1e\x8f\xff\xe0", "1e+14"),
            (&double(14_353_011_078_702.5), b"\xcb\x42\xaa\x1b\xa4\x40\xec\x5d\x00", "14353011078703"),
            (&double(14_353_011_078_703.5), b"\xcb\x42\xaa\x1b\xa4\x40\xec\x5f\x00", "14353011078704"),
            (&double(0.5), b"\xcb\x3f\xe0\x00\x00\x00\x00\x00\x00", "0.5"),
            (&double(f64::NAN), b"\xcb\xff\xf8\x00\x00\x00\x00\x00\x00", "nan"),
            (b"\xca\x7f\xc0\x00\x01", b"\xcb\xff\xf8\x00\x00\x00\x00\x00\x00", "nan"),
            (&double(f64::INFINITY), b"\xcb\x7f\xf0\x00\x00\x00\x00\x00\x00", "inf"),
            (&double(f64::NEG_INFINITY), b"\xcb\xff\xf0\x00\x00\x00\x00\x00\x00", "-inf"),
        ];
        for (key, encoded, text) in cases {
            assert_eq!(mp(key), crc(encoded), "{text}");
            assert_eq!(string(key), crc(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn decimals_in_their_host_form() {
        let cases: &[(&[u8], &[u8], &str, &str)] = &[
            (b"\xd5\x01\x00\x1c", b"\xd5\x01\x00\x1c", "1", "1"),
            (b"\xd5\x01\x00\x1a", b"\xd5\x01\x00\x1c", "1", "1"),
            (b"\xd5\x01\x00\x1b", b"\xd5\x01\x00\x1d", "-1", "-1"),
            (b"\xd5\x01\x00\x0d", b"\xd5\x01\x00\x0d", "-0", "-0"),
            (b"\xc7\x03\x01\x02\x15\x0c", b"\xc7\x03\x01\x02\x15\x0c", "1.50", "1.50"),
            (b"\xc7\x05\x01\x02\x00\x00\x15\x0c", b"\xc7\x03\x01\x02\x15\x0c", "1.50", "1.50"),
            (b"\xd6\x01\x00\x00\x00\x1c", b"\xd5\x01\x00\x1c", "1", "1"),
            (b"\xc7\x03\x01\x06\x00\x1c", b"\xd5\x01\x06\x1c", "0.000001", "0.000001"),
            (b"\xd5\x01\x07\x1c", b"\xd5\x01\x07\x1c", "0.0000001", "1E-7"),
            (b"\xd5\x01\xff\x1c", b"\xd5\x01\xff\x1c", "10", "1E+1"),
            (b"\xc7\x03\x01\xff\x01\x2c", b"\xc7\x03\x01\xff\x01\x2c", "120", "1.2E+2"),
            (b"\xd5\x01\xff\x0c", b"\xd5\x01\xff\x0c", "00", "0E+1"),
            (b"\xc7\x05\x01\xd0\xff\x00\x00\x1c", b"\xd5\x01\xff\x1c", "10", "1E+1"),
            (b"\xd5\x01\x01\x0c", b"\xd5\x01\x01\x0c", "0.0", "0.0"),
        ];
        let scientific = Rules { scientific_decimals: true, ..Rules::default() };
        for (key, encoded, text, long) in cases {
            assert_eq!(mp(key), crc(encoded), "{text}");
            assert_eq!(string(key), crc(text.as_bytes()), "{text}");
            assert_eq!(hash(Hash::StrCrc32, scientific, key), crc(long.as_bytes()), "{long}");
        }
        for bad in [
            &b"\xd5\x01\x00\x01"[..],
            b"\xd5\x01\x00\xac",
            b"\xd4\x01\x00",
            b"\xd5\x01\xa0\x1c",
            b"\xc7\x00\x01",
            b"\xc7\x06\x01\xd2\x80\x00\x00\x00\x1c",
        ] {
            assert_eq!(mp(bad), Err(Unhashable::BadDecimal), "{bad:02x?}");
        }
        // Each of few bytes, and of up to two billion zeros.
        for zeros in [
            &b"\xc7\x06\x01\xd2\xc0\x00\x00\x01\x1c"[..],
            b"\xc7\x04\x01\xcd\x27\x0f\x1c",
            b"\xc7\x04\x01\xd1\xd8\xf1\x1c",
            b"\xc7\x04\x01\xcd\x00\x81\x1c",
            b"\xc7\x0a\x01\xd3\x80\x00\x00\x00\x00\x00\x00\x00\x1c",
            b"\xc7\x0a\x01\xcf\xff\xff\xff\xff\xff\xff\xff\xff\x1c",
        ] {
            assert_eq!(string(zeros), Err(Unhashable::BadDecimal), "{zeros:02x?}");
            assert_eq!(mp(zeros), Err(Unhashable::BadDecimal), "{zeros:02x?}");
        }
        // What hosts take at most, and a little more.
        for (scale, point) in
            [(&b"\x26"[..], -37), (b"\xd0\xdb", 38), (b"\xcc\x80", -127), (b"\xd0\x80", 129)]
        {
            let text = if point > 0 {
                format!("1{}", "0".repeat(point as usize - 1))
            } else {
                format!("0.{}1", "0".repeat(-point as usize))
            };
            let key = [b"\xc7", &[scale.len() as u8 + 1, 1][..], scale, b"\x1c"].concat();
            assert_eq!(string(&key), crc(text.as_bytes()), "{text}");
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
