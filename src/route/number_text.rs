//! Doubles, and other strings of digits, as Lua writes them.

use crate::route::decimal::MAX_SCALE;
use crate::route::fourteen_digits::fourteen_digits;
use crate::route::hash::Hasher;

impl Hasher {
    /// C's `%.14g`.
    pub(super) fn number_text(&mut self, number: f64) {
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
    pub(super) fn plain_text(&mut self, digits: &[u8], point: i32) {
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
}

/// From here on integers are 64-bit cdata in Lua, whose text has a suffix.
pub(super) const BIG: u64 = 100_000_000_000_000;

const ZEROS: [u8; MAX_SCALE as usize] = [b'0'; MAX_SCALE as usize];

#[cfg(test)]
mod tests {
    use crate::route::samples::{crc, double, mp, string};

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
}
