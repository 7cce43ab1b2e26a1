//! Arguments of `callraw` for the tests: whole ones around an element of them, and what is read of these.

use crate::call::key::Keyspace;
use crate::call::raw_args::RawArgs;
use crate::call::selector::Bucket;
use crate::wire::mp;

pub const BUCKETS: u32 = 3000;

pub fn keyspace() -> Keyspace {
    Keyspace::new(BUCKETS)
}

pub fn id(call: &RawArgs<'_>) -> u32 {
    match &call.bucket {
        Bucket::Id(id) => id.number(),
        Bucket::Of(selector) => panic!("a key: {selector:?}"),
    }
}

pub fn array(elements: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    mp::write_array_len(&mut bytes, elements.len() as u32);
    elements.iter().for_each(|element| bytes.extend_from_slice(element));
    bytes
}

/// A call whose other elements are right.
pub fn with_bucket(bucket: &[u8]) -> Vec<u8> {
    array(&[bucket, b"\xc0", b"\xa4echo"])
}

pub fn with_opts(opts: &[u8]) -> Vec<u8> {
    array(&[b"\x01", opts, b"\xa4echo"])
}

pub fn with_args(args: &[u8]) -> Vec<u8> {
    array(&[b"\x01", b"\xc0", b"\xa4echo", args])
}

pub fn with_call_opts(call_opts: &[u8]) -> Vec<u8> {
    array(&[b"\x01", b"\xa4read", b"\xa4echo", b"\x90", call_opts])
}

pub fn refusal(bytes: &[u8]) -> String {
    RawArgs::parse(bytes, BUCKETS).expect_err("it must be refused").to_string()
}

pub fn parsed(bytes: &[u8]) -> RawArgs<'_> {
    RawArgs::parse(bytes, BUCKETS).unwrap_or_else(|refusal| panic!("{refusal}: {bytes:02x?}"))
}

pub fn double(value: f64) -> Vec<u8> {
    [&[0xcb][..], &value.to_be_bytes()].concat()
}

/// Of what vshard's functions are given.
pub fn crc_bucket(bytes: &[u8]) -> u32 {
    !crc32c::crc32c(bytes) % BUCKETS + 1
}
