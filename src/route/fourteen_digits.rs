//! A double rounded to fourteen digits. Clients choose the numbers, so none may be slow: what is near 1 is counted in integers of
//! 128 bits, exactly, and the rest with powers of ten whose error is known.

use std::fmt::{self, Write};

/// The digits of a finite number that is not negative, rounded to fourteen, and the exponent of the first one. LuaJIT rounds
/// halves up.
pub(super) fn fourteen_digits(number: f64) -> ([u8; 14], i32) {
    if number == 0.0 {
        return ([b'0'; 14], 0);
    }
    counted(number).unwrap_or_else(|| written(number))
}

/// Of a number above 0. None where the error of a power of ten could decide: there are no such doubles to be expected.
fn counted(number: f64) -> Option<([u8; 14], i32)> {
    const TOO_MANY: u64 = 100_000_000_000_000;
    let (mantissa, exponent) = parts(number);
    // That of the power of two below the number: the right one, or one less.
    let mut first = log10_of_two(exponent + mantissa.ilog2() as i32);
    loop {
        let scale = 13 - first;
        let rounded = if EXACT.contains(&scale) {
            exact(mantissa, exponent, scale)
        } else {
            near(mantissa, exponent, scale)?
        };
        if rounded < TOO_MANY {
            return Some((digits(rounded), first));
        }
        first += 1;
    }
}

fn digits(mut number: u64) -> [u8; 14] {
    let mut digits = [b'0'; 14];
    for place in digits.iter_mut().rev() {
        *place += (number % 10) as u8;
        number /= 10;
    }
    digits
}

/// The logarithm of 2^power, rounded down; right for all powers that doubles have.
fn log10_of_two(power: i32) -> i32 {
    // The factor is log10(2) × 2^32, cut: a product is too small by less than a millionth, and none is so close to an integer.
    ((i64::from(power) * 1_292_913_986) >> 32) as i32
}

/// The number is mantissa × 2^exponent.
fn parts(number: f64) -> (u64, i32) {
    let bits = number.to_bits();
    let fraction = bits & ((1 << 52) - 1);
    match (bits >> 52) as i32 & 0x7ff {
        0 => (fraction, -1074),
        exponent => (fraction | 1 << 52, exponent - 1075),
    }
}

/// Powers of ten by which [`exact`] has room. Halves, which have to be told from what is close to them, lie between -4 and 21:
/// twice a half is an odd number of 45 to 48 bits, times or by a power of five, and has 53 bits at most.
const EXACT: std::ops::RangeInclusive<i32> = -22..=32;

/// mantissa × 2^exponent × 10^scale, fourteen or fifteen digits, rounded.
fn exact(mantissa: u64, exponent: i32, scale: i32) -> u64 {
    if scale >= 0 {
        // 53 bits and 75 at most.
        let product = u128::from(mantissa) * 5u128.pow(scale as u32);
        return match exponent + scale {
            shift @ 0.. => (product << shift) as u64,
            // Fifteen digits are left of it at most.
            shift => ((product >> (-shift - 1)) as u64).div_ceil(2),
        };
    }
    // Below 10^37, which has 123 bits.
    let (number, unit) = match exponent {
        0.. => (u128::from(mantissa) << exponent, 0),
        _ => (mantissa.into(), -exponent),
    };
    let divisor = 10u128.pow(-scale as u32) << unit;
    ((2 * number + divisor) / (2 * divisor)) as u64
}

/// The same for any scale. None if it can not be told how to round.
fn near(mantissa: u64, exponent: i32, scale: i32) -> Option<u64> {
    // Each factor is cut to 128 bits, and too small by one part in 2^127 for every step; there are fewer than sixteen.
    const ERROR: u128 = 1 << 6;
    let power = Wide::power_of_five(scale);
    let product = Wide::new(mantissa.into(), exponent + scale).times(power);
    // Fifteen digits have fewer than fifty bits: there are some behind the point.
    let below = -product.exponent as u32;
    let round = |bits: u128| ((bits >> (below - 1)) as u64).div_ceil(2);
    let least = round(product.bits);
    (round(product.bits.saturating_add(ERROR)) == least).then_some(least)
}

/// bits × 2^exponent, of which the first bit is set.
#[derive(Clone, Copy)]
struct Wide {
    bits: u128,
    exponent: i32,
}

impl Wide {
    const fn new(bits: u128, exponent: i32) -> Wide {
        let zeros = bits.leading_zeros();
        Wide { bits: bits << zeros, exponent: exponent - zeros as i32 }
    }

    fn power_of_five(power: i32) -> Wide {
        let mut product = Wide::new(5u128.pow(power.rem_euclid(STEP) as u32), 0);
        let steps = power.div_euclid(STEP);
        for _ in 0..steps.abs() {
            product = product.times(if steps > 0 { FIVES } else { FIFTHS });
        }
        product
    }

    /// Cut, not rounded.
    fn times(self, other: Wide) -> Wide {
        const LOW: u128 = u64::MAX as u128;
        let (a, b) = (self.bits >> 64, self.bits & LOW);
        let (c, d) = (other.bits >> 64, other.bits & LOW);
        let (ad, bc) = (a * d, b * c);
        let bd = b * d;
        let middle = (bd >> 64) + (ad & LOW) + (bc & LOW);
        let low = middle << 64 | bd & LOW;
        let high = a * c + (ad >> 64) + (bc >> 64) + (middle >> 64);
        // The product of two first bits is the first bit or the second.
        let zeros = high.leading_zeros();
        let bits = if zeros == 0 { high } else { high << 1 | low >> 127 };
        Wide { bits, exponent: self.exponent + other.exponent + 128 - zeros as i32 }
    }
}

/// The powers of five that 128 bits hold.
const STEP: i32 = 54;
const FIVES: Wide = Wide::new(5u128.pow(STEP as u32), 0);
const FIFTHS: Wide = fifths();

/// 5^-STEP, cut: the digits of a division, one by one.
const fn fifths() -> Wide {
    let divisor = 5u128.pow(STEP as u32);
    let (mut bits, mut rest, mut exponent) = (0u128, 1u128, 0);
    while bits.leading_zeros() > 0 {
        rest *= 2;
        bits <<= 1;
        exponent -= 1;
        if rest >= divisor {
            rest -= divisor;
            bits |= 1;
        }
    }
    Wide { bits, exponent }
}

/// By the digits that Rust writes: right for every number, and slow for those far from 1.
fn written(number: f64) -> ([u8; 14], i32) {
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
    use proptest::prelude::*;

    use super::*;

    /// Exponents that nothing reaches otherwise, and what lies right beside a half or a power of ten.
    #[test]
    fn numbers_of_every_size() {
        let beside = |number: f64| {
            for bits in number.to_bits().saturating_sub(2)..=number.to_bits() + 2 {
                let number = f64::from_bits(bits);
                if number.is_finite() && number > 0.0 {
                    assert_eq!(counted(number), Some(written(number)), "{number:e}");
                }
            }
        };
        for exponent in -324..=308 {
            for digits in
                ["1", "9.99999999999995", "1.00000000000005", "4.35301107870245", "1.2345678901234567"]
            {
                beside(format!("{digits}e{exponent}").parse().unwrap());
            }
        }
        for exponent in 0..2047u64 {
            for mantissa in [0, 1, 1 << 51, (1 << 52) - 1] {
                beside(f64::from_bits(exponent << 52 | mantissa));
            }
        }
        beside(f64::MAX);
        assert_eq!(fourteen_digits(0.0), ([b'0'; 14], 0));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        #[test]
        fn counted_as_written(bits in 1..f64::INFINITY.to_bits()) {
            let number = f64::from_bits(bits);
            prop_assert_eq!(counted(number), Some(written(number)));
        }

        #[test]
        fn halves_round_up(digits in 10_000_000_000_000u64..100_000_000_000_000, scale in -4i32..=21) {
            // Exact ones where the division leaves nothing, and their neighbours elsewhere.
            let half = (2 * digits + 1) as f64 / 2.0;
            let number = if scale < 0 { half * 10f64.powi(-scale) } else { half / 10f64.powi(scale) };
            prop_assert_eq!(counted(number), Some(written(number)));
            let exact = half / 5f64.powi(scale) / 2f64.powi(scale);
            prop_assert_eq!(counted(exact), Some(written(exact)));
        }

        #[test]
        fn halves_that_are_doubles(odd in any::<u64>(), scale in 0i32..=20) {
            // An odd multiple of 5^scale with fourteen digits before its half.
            let five = 5u64.pow(scale as u32);
            let (least, most) = (20_000_000_000_000 / five, 200_000_000_000_000 / five);
            let twice = ((least + odd % (most - least)) | 1) * five;
            prop_assume!((20_000_000_000_000..200_000_000_000_000).contains(&twice));
            let number = (twice / five) as f64 / 2f64.powi(scale + 1);
            let found = counted(number).unwrap();
            prop_assert_eq!(found, written(number));
            let whole = (twice / 2 + 1).to_string();
            prop_assert_eq!(&whole.as_bytes()[..14], found.0);
        }
    }
}
