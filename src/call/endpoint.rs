//! An endpoint: a function of the storages under a name of its own. Its calls give the function's arguments alone, and the
//! bucket is that of the sharding key in these.

use std::fmt;
use std::time::Duration;

use crate::call::key::{self, Keyspace};
use crate::call::malformed::{Malformed, describe};
use crate::call::raw_args::Read;
use crate::call::request::Access;
use crate::ids::BucketId;
use crate::route::hash::Hash;
use crate::wire::mp::{self, Cursor, Fault, Kind};
use crate::wire::path::Path;
use crate::wire::payload::{Head, Payload};

#[derive(Debug)]
pub struct Endpoint {
    /// For messages.
    pub name: String,
    /// A MessagePack string.
    func: Vec<u8>,
    pub paths: Vec<Path>,
    /// None: somebody else finds the bucket.
    pub hash: Option<Hash>,
    pub access: Access,
    pub timeout: Duration,
    /// Bound of one attempt; None for writes.
    pub attempt_timeout: Option<Duration>,
}

impl Endpoint {
    pub fn new(
        name: String,
        func: &[u8],
        paths: Vec<Path>,
        hash: Option<Hash>,
        access: Access,
        timeout: Duration,
        attempt_timeout: Option<Duration>,
    ) -> Endpoint {
        let mut name_of_func = Vec::new();
        mp::write_bytes_as_str(&mut name_of_func, func);
        Endpoint { name, func: name_of_func, paths, hash, access, timeout, attempt_timeout }
    }

    /// Puts in `buffer` what comes before the arguments of a call, instead of what is there.
    pub fn begin(&self, buffer: &mut Vec<u8>) {
        buffer.clear();
        buffer.extend_from_slice(&self.func);
    }

    /// The length of that.
    pub fn func_len(&self) -> usize {
        self.func.len()
    }

    /// The bucket of the key in `args`. An error says what is wrong with the key.
    pub fn bucket(&self, args: &[u8], keyspace: Keyspace) -> Result<BucketId, String> {
        let hash = self.hash.ok_or("the bucket is to be given")?;
        key::bucket_at(&self.paths, hash, args, keyspace)
    }
}

/// Reads a call of an endpoint: `bytes` are its function's name and the arguments ([`Endpoint::begin`]). `bucket` is None where
/// the key is to be found in these.
pub fn read(
    mut bytes: Vec<u8>,
    endpoint: &Endpoint,
    bucket: Option<BucketId>,
    keyspace: Keyspace,
) -> Result<Read, (Vec<u8>, Malformed)> {
    let fault = |text: &dyn fmt::Display| Malformed(format!("{}: {text}", endpoint.name));
    let from = endpoint.func_len();
    let found = (|| {
        let mut cursor = Cursor::new(bytes.get(from..).unwrap_or_default());
        let not_well_formed =
            |broken: Fault| fault(&format!("the arguments are not well-formed MessagePack: {broken}"));
        if cursor.peek().map_err(not_well_formed)? != Kind::Array {
            return Err(fault(&format!(
                "expected the function's arguments, an array, got {}",
                describe(cursor)
            )));
        }
        let tuples = cursor.skip_many(1).map_err(not_well_formed)?.tuples;
        cursor.finish().map_err(not_well_formed)?;
        let mut written = None;
        if tuples {
            let mut plain = bytes[..from].to_vec();
            mp::copy_without_tuples(&bytes[from..], &mut plain).map_err(|broken| fault(&broken))?;
            written = Some(plain);
        }
        let args = &written.as_ref().unwrap_or(&bytes)[from..];
        let bucket = match bucket {
            Some(bucket) => bucket,
            None => endpoint.bucket(args, keyspace).map_err(|text| fault(&text))?,
        };
        Ok((bucket, written))
    })();
    let bucket = match found {
        Ok((bucket, written)) => {
            bytes = written.unwrap_or(bytes);
            bucket
        }
        Err(malformed) => return Err((bytes, malformed)),
    };
    let Endpoint { access, timeout, attempt_timeout, .. } = *endpoint;
    let payload = Payload::new(Head::StorageCall { bucket, mode: access.mode }, bytes);
    Ok(Read { bucket, access, timeout, attempt_timeout, payload })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::samples::{BUCKETS, crc_bucket, keyspace};

    fn endpoint(paths: &[&str]) -> Endpoint {
        let paths = paths.iter().map(|path| crate::wire::path::Path::new(path.as_bytes()).unwrap()).collect();
        let timeout = Duration::from_secs(1);
        Endpoint::new(
            "customer.get".into(),
            b"customer_get",
            paths,
            Some(Hash::MpCrc32),
            Access::RO,
            timeout,
            None,
        )
    }

    fn of_endpoint(endpoint: &Endpoint, args: &[u8], bucket: Option<BucketId>) -> Result<Read, String> {
        let mut bytes = b"anything".to_vec();
        endpoint.begin(&mut bytes);
        bytes.extend_from_slice(args);
        read(bytes, endpoint, bucket, keyspace()).map_err(|(_, refusal)| refusal.to_string())
    }

    #[test]
    fn a_call_of_an_endpoint() {
        let read = of_endpoint(&endpoint(&["[1]"]), b"\x92\x01\xcc\x02", None).unwrap();
        assert_eq!(
            (read.bucket.number(), read.access, read.timeout),
            (1614, Access::RO, Duration::from_secs(1))
        );
        assert_eq!(read.payload.bytes(), b"\xaccustomer_get\x92\x01\xcc\x02", "bit for bit");
        let read = of_endpoint(&endpoint(&["[2]", "[1].id"]), b"\x92\x81\xa2id\x07\xa3key", None).unwrap();
        assert_eq!(read.bucket.number(), crc_bucket(b"key\x07"));
        let read = of_endpoint(&endpoint(&["[1][2]"]), b"\x91\xd6\x07\x00\x92\x05\x01", None).unwrap();
        assert_eq!(read.bucket.number(), 1614);
        assert_eq!(read.payload.bytes(), b"\xaccustomer_get\x91\x92\x05\x01", "tuples leave as arrays");
        let given = BucketId::new(5, BUCKETS);
        assert_eq!(of_endpoint(&endpoint(&["[1]"]), b"\x90", given).unwrap().bucket.number(), 5);
    }

    #[test]
    fn wrong_arguments_of_an_endpoint() {
        let cases: &[(&[u8], &str)] = &[
            (b"\x81\x01\x02", "expected the function's arguments, an array, got map"),
            (b"\x90", "path '[1].id' leads nowhere: args is empty"),
            (b"\x91\x81\xa2id\xc0", "path '[1].id' leads to nil"),
            (b"\x91\xa2id", "path '[1].id' leads nowhere: [1] is a string"),
            (
                b"\x92\x01",
                "the arguments are not well-formed MessagePack: the bytes end in the middle of a value",
            ),
            (b"", "the arguments are not well-formed MessagePack: the bytes end in the middle of a value"),
            (b"\x91\xd4\x07\x00", "a tuple extension that does not hold one array"),
            (
                b"\x91\x01\x01",
                "the arguments are not well-formed MessagePack: bytes follow where the value should end",
            ),
        ];
        for (args, text) in cases {
            let refusal = of_endpoint(&endpoint(&["[1].id"]), args, None).expect_err(text);
            assert_eq!(refusal, format!("customer.get: {text}"));
        }
    }
}
