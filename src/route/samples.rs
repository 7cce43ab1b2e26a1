//! Hashes of keys for the tests.

use crate::route::hash::{Hash, Hasher, Rules, Unhashable};
use crate::wire::mp::Cursor;

type Result<T> = std::result::Result<T, Unhashable>;

pub fn hash(hash: Hash, rules: Rules, key: &[u8]) -> Result<u32> {
    let mut hasher = Hasher::new(hash, rules);
    let mut cursor = Cursor::new(key);
    hasher.key(&mut cursor)?;
    assert!(cursor.is_at_end(), "{key:02x?}");
    Ok(hasher.finish())
}

pub fn mp(key: &[u8]) -> Result<u32> {
    hash(Hash::MpCrc32, Rules::default(), key)
}

pub fn string(key: &[u8]) -> Result<u32> {
    hash(Hash::StrCrc32, Rules::default(), key)
}

pub fn crc(bytes: &[u8]) -> Result<u32> {
    Ok(!crc32c::crc32c(bytes))
}

pub fn double(value: f64) -> Vec<u8> {
    [&[0xcb][..], &value.to_be_bytes()].concat()
}
