//! Integers of any width and sign, read and written in their shortest form.

use crate::wire::mp::{self, Cursor, Fault};

/// An integer of any width and sign.
pub(super) fn integer(cursor: &mut Cursor<'_>) -> mp::Result<i128> {
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
        Err(fault) => Err(fault),
    }
}

/// From -2^63 to 2^64. Gives the length.
pub(super) fn write_integer(value: i128, out: &mut [u8; 9]) -> usize {
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
