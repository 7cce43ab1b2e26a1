//! Whether the host can decode what a storage sent. Its decoder recurses by its input and trusts what is inside of an
//! extension, so values are looked at here before it gets them.

use super::mp::{Cursor, Kind};

/// The other types that hold something inside.
const EXT_DECIMAL: i8 = 1;
const EXT_UUID: i8 = 2;
const EXT_DATETIME: i8 = 4;
const EXT_INTERVAL: i8 = 6;

/// Bytes of the host's 38 digits and a sign.
const MAX_DECIMAL_LEN: usize = 20;

/// Why values are not given to the host's decoder, which recurses by its input and, before some version or other, takes the
/// lengths inside of an extension on trust.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unfit {
    /// Not well-formed, which counts as endless, or nested too deep.
    TooDeep,
    /// An extension that is damaged, or of a kind that is sent only to who has asked for it.
    Extension,
}

/// Whether the host may decode `values`: nested no deeper than `levels`, and each extension in them sound. A scalar has level
/// 0, an array or map one level more than the deepest value in it, an empty one level 1.
pub fn fit_for_host(values: &[u8], levels: usize) -> std::result::Result<(), Unfit> {
    // Fewer bytes than levels cannot be too deep.
    if values.len() <= levels && Cursor::new(values).is_plain() {
        return Ok(());
    }
    let mut cursor = Cursor::new(values);
    // How many values are left in each array and map around the next value.
    let mut around: Vec<u64> = Vec::new();
    loop {
        while around.last() == Some(&0) {
            around.pop();
        }
        if cursor.is_at_end() {
            return Ok(());
        }
        if let Some(left) = around.last_mut() {
            *left -= 1;
        }
        let inside = match cursor.peek() {
            Ok(Kind::Array) => cursor.array().map(u64::from),
            Ok(Kind::Map) => cursor.map().map(|pairs| 2 * u64::from(pairs)),
            Ok(Kind::Ext) => {
                let (kind, payload) = cursor.extension().map_err(|_| Unfit::TooDeep)?;
                if !is_sound(kind, payload) {
                    return Err(Unfit::Extension);
                }
                continue;
            }
            _ => {
                cursor.skip().map_err(|_| Unfit::TooDeep)?;
                continue;
            }
        };
        let inside = inside.map_err(|_| Unfit::TooDeep)?;
        if around.len() == levels {
            return Err(Unfit::TooDeep);
        }
        around.push(inside);
    }
}

/// Whether an extension is one that the host decodes, and its payload of the form that this takes. Errors and tuples are not
/// among them: a storage sends those only if asked to.
fn is_sound(kind: i8, payload: &[u8]) -> bool {
    match kind {
        EXT_DECIMAL => is_decimal(payload),
        EXT_UUID => payload.len() == 16,
        EXT_DATETIME => matches!(payload.len(), 8 | 16),
        EXT_INTERVAL => is_interval(payload),
        _ => false,
    }
}

/// A scale, then packed decimal digits with the sign in the last half byte.
fn is_decimal(payload: &[u8]) -> bool {
    let mut cursor = Cursor::new(payload);
    if !cursor.int_within(i32::MAX) {
        return false;
    }
    let Some((last, digits)) = cursor.rest().split_last() else { return false };
    digits.len() < MAX_DECIMAL_LEN
        && digits.iter().all(|pair| pair >> 4 <= 9 && pair & 0x0f <= 9)
        && last >> 4 <= 9
        && last & 0x0f > 9
}

/// A count of fields, then of each its number and its value.
fn is_interval(payload: &[u8]) -> bool {
    let Some((count, fields)) = payload.split_first() else { return false };
    let mut cursor = Cursor::new(fields);
    for _ in 0..*count {
        if cursor.byte().is_err()
            || !matches!(cursor.peek(), Ok(Kind::Uint | Kind::Int))
            || cursor.skip().is_err()
        {
            return false;
        }
    }
    cursor.is_at_end()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_is_counted_to_the_deepest() {
        let cases: &[(&[u8], usize)] = &[
            (b"\x01", 0),
            (b"\xa3abc\xc0", 0),
            (b"\x90", 1),
            (b"\x80\x01", 1),
            (b"\x92\x01\x90\x91\x01", 2),
            (b"\x92\x91\x91\x01\x02", 3),
            (b"\x81\x91\x01\x92\x01\x81\x01\x02", 3),
        ];
        for (values, depth) in cases {
            assert_eq!(fit_for_host(values, *depth), Ok(()), "{values:02x?}");
            assert!(*depth == 0 || fit_for_host(values, depth - 1) == Err(Unfit::TooDeep), "{values:02x?}");
        }
        let deep = [&[0x91; 1_000_000][..], &[0x01]].concat();
        assert_eq!(fit_for_host(&deep, 1_000_000), Ok(()));
        assert_eq!(fit_for_host(&deep, 999_999), Err(Unfit::TooDeep));
        for levels in [5, 1000] {
            assert_eq!(
                fit_for_host(b"\xdd\xff\xff\xff\xff\xc1", levels),
                Err(Unfit::TooDeep),
                "not well-formed"
            );
        }
    }

    #[test]
    fn extensions_are_looked_into() {
        let sound: &[&[u8]] = &[
            // 0, 1.5, -12 and 38 nines.
            b"\xd5\x01\x00\x0c",
            b"\xc7\x03\x01\x01\x01\x5c",
            b"\xc7\x03\x01\x00\x01\x2d",
            b"\xc7\x15\x01\x00\x09\x99\x99\x99\x99\x99\x99\x99\x99\x99\x99\x99\x99\x99\x99\x99\x99\x99\x99\x9c",
            // 1e10 has a negative scale.
            b"\xd5\x01\xf6\x1c",
            b"\xd8\x020123456789abcdef",
            b"\xd7\x0401234567",
            b"\xd8\x040123456789abcdef",
            b"\xd4\x06\x00",
            b"\xc7\x09\x06\x02\x00\x01\x05\xd2\xff\xff\xff\xff",
        ];
        let unsound: &[&[u8]] = &[
            b"\xc7\x00\x01",
            b"\xd4\x01\x00",
            b"\xc7\x05\x01\xd3\x01\x02\x03\x04",
            b"\xd5\x01\xc0\x0c",
            b"\xd5\x01\x00\x01",
            b"\xd5\x01\x00\xac",
            b"\xc7\x03\x01\x00\xa1\x0c",
            b"\xc7\x06\x01\xce\xff\xff\xff\xff\x0c",
            b"\xc7\x16\x01\x00\x00\x09\x99\x99\x99\x99\x99\x99\x99\x99\x99\x99\x99\x99\x99\x99\x99\x99\x99\x99\x9c",
            b"\xc7\x00\x02",
            b"\xd7\x0201234567",
            b"\xc7\x0f\x020123456789abcde",
            b"\xd4\x04\x00",
            b"\xc7\x00\x06",
            b"\xd4\x06\x01",
            b"\xd5\x06\x00\x00",
            b"\xd6\x06\x01\x00\xd3\x00",
            b"\xc7\x03\x06\x01\x00\xc0",
            // Errors, tuples, what nobody knows.
            b"\xc7\x03\x03\x81\x00\x90",
            b"\xd5\x07\x00\x90",
            b"\xd4\x05\x00",
            b"\xd4\xff\x00",
            b"\xd4\x7f\x00",
        ];
        let around: [&[u8]; 3] = [b"", b"\x92\x01", b"\x81\xa1k"];
        for around in around {
            // Looked at both ways: as few bytes and as many.
            for levels in [1, 1000] {
                for ext in sound {
                    assert_eq!(fit_for_host(&[around, ext].concat(), levels), Ok(()), "{ext:02x?}");
                }
                for ext in unsound {
                    let found = fit_for_host(&[around, ext].concat(), levels);
                    assert_eq!(found, Err(Unfit::Extension), "{ext:02x?}");
                }
            }
        }
    }
}
