//! Decimals as MessagePack has them.

use crate::route::integer::integer;
use crate::wire::mp::{Cursor, Kind};

/// `negative` digits × 10^-scale.
pub(super) struct Decimal {
    /// Characters, right-aligned; without leading zeros.
    text: [u8; 2 * MAX_PACKED],
    from: usize,
    pub scale: i32,
    pub negative: bool,
}

impl Decimal {
    /// A scale, then packed digits with the sign in the last half byte.
    pub fn unpack(payload: &[u8]) -> Option<Decimal> {
        let mut cursor = Cursor::new(payload);
        if !matches!(cursor.peek().ok()?, Kind::Uint | Kind::Int) {
            return None;
        }
        let scale = integer(&mut cursor).ok()?;
        if scale.abs() > MAX_SCALE {
            return None;
        }
        let packed = cursor.rest();
        let last = packed.last()?;
        if packed.len() > MAX_PACKED || last & 0x0f < 10 {
            return None;
        }
        let mut text = [b'0'; 2 * MAX_PACKED];
        let count = 2 * packed.len() - 1;
        let end = text.len();
        let from = end - count;
        for (i, place) in text[from..].iter_mut().enumerate() {
            let digit = if i % 2 == 0 { packed[i / 2] >> 4 } else { packed[i / 2] & 0x0f };
            if digit > 9 {
                return None;
            }
            *place = b'0' + digit;
        }
        // At least one digit stays.
        let leading = text[from..end - 1].iter().take_while(|digit| **digit == b'0').count();
        Some(Decimal {
            text,
            from: from + leading,
            scale: scale as i32,
            negative: matches!(last & 0x0f, 0x0b | 0x0d),
        })
    }

    pub fn digits(&self) -> &[u8] {
        &self.text[self.from..]
    }

    /// As the host packs it. Gives the length.
    pub fn pack(&self, out: &mut [u8]) -> usize {
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

/// Bytes of a decimal's digits and sign: more than any host takes.
pub(super) const MAX_PACKED: usize = 40;
/// Of a decimal's scale, either way: more than any host takes, which is 38. Each one is a zero in a text.
pub(super) const MAX_SCALE: i128 = 128;

#[cfg(test)]
mod tests {
    use crate::route::hash::{Hash, Rules, Unhashable};
    use crate::route::samples::{crc, hash, mp, string};

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
}
