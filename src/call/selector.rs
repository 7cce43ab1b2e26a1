//! The first element of `callraw`'s arguments: the bucket id, or in its place a map that says where the sharding key is.

use crate::call::key::{Keyspace, MAX_PATHS, Whole, short, take};
use crate::call::malformed::{Malformed, broken, describe};
use crate::call::position::Position;
use crate::ids::BucketId;
use crate::route::hash::{Hash, Hasher};
use crate::wire::mp::{Cursor, Fault, Kind};
use crate::wire::path::Inline;

/// The hash of a key for which none is named: the same for all widths of a number.
pub const DEFAULT_HASH: Hash = Hash::MpCrc32;

/// A bucket, or how to find it.
#[derive(Debug, PartialEq)]
pub enum Bucket<'a> {
    Id(BucketId),
    Of(Selector<'a>),
}

/// A sharding key as one call describes it; everything lies in the caller's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Selector<'a> {
    pub place: Place<'a>,
    pub hash: Hash,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place<'a> {
    /// The key itself, one value.
    Key(&'a [u8]),
    Path(Inline<'a>),
    /// A MessagePack array of strings, each a path; at least two.
    Paths(&'a [u8]),
}

impl Selector<'_> {
    /// The bucket of the key, which may be in `args`. An error says what is wrong with the key.
    pub fn bucket(&self, args: &[u8], keyspace: Keyspace) -> Result<BucketId, String> {
        let mut hasher = Hasher::new(self.hash, keyspace.rules);
        match &self.place {
            Place::Key(key) => hasher.key(&mut Cursor::new(key)).map_err(|fault| fault.to_string())?,
            Place::Path(path) => take(&mut hasher, args, path, Whole::Key)?,
            Place::Paths(paths) => {
                let mut paths = Cursor::new(paths);
                for _ in 0..paths.array().map_err(|fault| fault.to_string())? {
                    let text = paths.str().map_err(|fault| fault.to_string())?;
                    // It was read when the selector was.
                    let path = Inline::known(text).map_err(|fault| fault.to_string())?;
                    take(&mut hasher, args, &path, Whole::Item)?;
                }
            }
        }
        Ok(keyspace.bucket(hasher.finish()))
    }
}

impl Position {
    /// Any spelling of a Lua number with an integral value counts: clients choose widths and signs as they like, and
    /// some send every number as a double.
    pub(super) fn bucket<'a>(
        self,
        cursor: &mut Cursor<'a>,
        bucket_count: u32,
    ) -> Result<Bucket<'a>, Malformed> {
        let before = *cursor;
        let id = match cursor.peek().map_err(broken)? {
            Kind::Map => return self.selector(cursor).map(Bucket::Of),
            Kind::Uint | Kind::Int => match cursor.uint() {
                Ok(id) => Some(id),
                Err(Fault::Expected(_)) => None,
                Err(fault) => return Err(broken(fault)),
            },
            Kind::Float => {
                let number = cursor.number().map_err(broken)?;
                // The cast saturates, and what it saturates to is out of range.
                (number.fract() == 0.0 && number > 0.0).then_some(number as u64)
            }
            _ => None,
        };
        id.and_then(|id| BucketId::new(id, bucket_count)).map(Bucket::Id).ok_or_else(|| {
            self.fault(format!("an unsigned integer from 1 to {bucket_count}"), describe(before))
        })
    }

    /// A map in the place of the bucket id.
    fn selector<'a>(self, cursor: &mut Cursor<'a>) -> Result<Selector<'a>, Malformed> {
        let (mut place, mut hash) = (None, DEFAULT_HASH);
        for _ in 0..cursor.map().map_err(broken)? {
            let key = self.key("key, path or hash", cursor)?;
            let found = match key {
                b"key" | b"path" if cursor.peek() == Ok(Kind::Nil) => {
                    cursor.skip().map_err(broken)?;
                    continue;
                }
                b"key" => Place::Key(cursor.span().map_err(broken)?),
                b"path" => self.paths(cursor)?,
                b"hash" => {
                    hash = self.hash(cursor)?;
                    continue;
                }
                _ => return Err(self.unknown(key, "key, path, hash")),
            };
            if place.replace(found).is_some() {
                return Err(self.fault("one of key and path".to_owned(), "both".to_owned()));
            }
        }
        let place =
            place.ok_or_else(|| self.fault("one of key and path".to_owned(), "none of them".to_owned()))?;
        Ok(Selector { place, hash })
    }

    fn hash(self, cursor: &mut Cursor<'_>) -> Result<Hash, Malformed> {
        let before = *cursor;
        if cursor.take_nil().map_err(broken)? {
            return Ok(DEFAULT_HASH);
        }
        match cursor.str() {
            Err(fault) if !matches!(fault, Fault::Expected(_)) => Err(broken(fault)),
            name => name
                .ok()
                .and_then(Hash::named)
                .ok_or_else(|| self.fault_at(".hash", "'mpcrc32' or 'strcrc32'", &describe(before))),
        }
    }

    fn paths<'a>(self, cursor: &mut Cursor<'a>) -> Result<Place<'a>, Malformed> {
        let all = cursor.rest();
        let from = cursor.position();
        match cursor.peek().map_err(broken)? {
            Kind::Str => self.path(cursor).map(Place::Path),
            Kind::Array => match cursor.array().map_err(broken)? {
                0 => Err(self.fault_at(".path", "a path or a list of them", "an empty list")),
                1 => self.path(cursor).map(Place::Path),
                count if count > MAX_PATHS => Err(self.fault_at(
                    ".path",
                    &format!("at most {MAX_PATHS} paths"),
                    &format!("{count} of them"),
                )),
                count => {
                    for _ in 0..count {
                        self.path(cursor)?;
                    }
                    Ok(Place::Paths(&all[..cursor.position() - from]))
                }
            },
            _ => Err(self.fault_at(".path", "a path or a list of them", &describe(*cursor))),
        }
    }

    fn path<'a>(self, cursor: &mut Cursor<'a>) -> Result<Inline<'a>, Malformed> {
        if cursor.peek().map_err(broken)? != Kind::Str {
            return Err(self.fault_at(".path", "a path", &describe(*cursor)));
        }
        let text = cursor.str().map_err(broken)?;
        Inline::new(text).map_err(|fault| {
            self.fault_at(".path", "a path like [1].name", &format!("'{}': {fault}", short(text)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::raw_args::{peek_bucket, read};
    use crate::call::samples::{array, crc_bucket, double, id, keyspace, parsed, refusal, with_bucket};
    use crate::wire::mp;

    #[test]
    fn a_bucket_id_of_any_spelling() {
        let spellings: &[&[u8]] = &[
            b"\x05",
            b"\xcc\x05",
            b"\xcd\x00\x05",
            b"\xce\x00\x00\x00\x05",
            b"\xcf\x00\x00\x00\x00\x00\x00\x00\x05",
            b"\xd0\x05",
            b"\xd1\x00\x05",
            b"\xd2\x00\x00\x00\x05",
            b"\xd3\x00\x00\x00\x00\x00\x00\x00\x05",
            b"\xca\x40\xa0\x00\x00",
            b"\xcb\x40\x14\x00\x00\x00\x00\x00\x00",
        ];
        for spelling in spellings {
            assert_eq!(id(&parsed(&with_bucket(spelling))), 5, "{spelling:02x?}");
        }
    }

    #[test]
    fn a_bucket_id_that_is_none() {
        let cases: &[(&[u8], &str)] = &[
            (b"\x00", "0"),
            (b"\xcd\x0b\xb9", "3001"),
            (b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff", "18446744073709551615"),
            (b"\xff", "-1"),
            (b"\xd2\x80\x00\x00\x00", "-2147483648"),
            (&double(1.5), "1.5"),
            (&double(0.0), "0"),
            (&double(-3.0), "-3"),
            (&double(1e300), &format!("{}", 1e300)),
            (&double(f64::NAN), "NaN"),
            (&double(f64::INFINITY), "inf"),
            (b"\xa11", "string '1'"),
            (b"\xc0", "nil"),
            (b"\xc3", "boolean"),
            (b"\x90", "array"),
            (b"\xc4\x00", "varbinary"),
            (b"\xd4\x01\x00", "extension"),
        ];
        for (bucket, got) in cases {
            assert_eq!(
                refusal(&with_bucket(bucket)),
                format!(
                    "callraw: argument 1 (bucket_id): expected an unsigned integer from 1 to 3000, got {got}"
                )
            );
        }
    }

    fn keyed(selector: &[u8]) -> Vec<u8> {
        // args: [{customer: {id: 7, name: "Bob"}, none: nil}, "key", [1, "two"]]
        let args = b"\x93\x82\xa8customer\x82\xa2id\x07\xa4name\xa3Bob\xa4none\xc0\xa3key\x92\x01\xa3two";
        array(&[selector, b"\xc0", b"\xa4echo", args])
    }

    fn bucket_of(selector: &[u8]) -> u32 {
        let bytes = keyed(selector);
        let read = read(bytes.clone(), keyspace()).unwrap_or_else(|(_, refusal)| panic!("{refusal}"));
        assert_eq!(peek_bucket(&bytes, keyspace()), Some(read.bucket.number()), "both find the same");
        assert_eq!(
            read.payload.bytes(),
            &bytes[bytes.len() - read.payload.bytes().len()..],
            "sent as it came"
        );
        read.bucket.number()
    }

    #[test]
    fn a_key_in_the_place_of_the_bucket_id() {
        assert_eq!(bucket_of(b"\x81\xa3key\x01"), 1614, "mpcrc32 by default");
        assert_eq!(bucket_of(b"\x82\xa3key\xcb\x3f\xf0\0\0\0\0\0\0\xa4hash\xa7mpcrc32"), 1614);
        assert_eq!(bucket_of(b"\x82\xa4hash\xa8strcrc32\xa3key\x01"), 477);
        assert_eq!(bucket_of(b"\x82\xa4hash\xc0\xa3key\x92\x01\xa3two"), crc_bucket(b"\x01two"));
        let without_args = array(&[b"\x81\xa3key\x01", b"\xc0", b"\xa4echo"]);
        assert_eq!(read(without_args.clone(), keyspace()).unwrap().bucket.number(), 1614);
        assert_eq!(peek_bucket(&without_args, keyspace()), Some(1614));
    }

    #[test]
    fn a_path_in_the_place_of_the_bucket_id() {
        assert_eq!(bucket_of(b"\x81\xa4path\xaf[1].customer.id"), crc_bucket(b"\x07"));
        assert_eq!(bucket_of(b"\x81\xa4path\xb2[1][\"customer\"].id"), crc_bucket(b"\x07"));
        assert_eq!(bucket_of(b"\x82\xa4hash\xa8strcrc32\xa4path\xaf[1].customer.id"), crc_bucket(b"7"));
        assert_eq!(bucket_of(b"\x81\xa4path\xa3[2]"), crc_bucket(b"key"));
        assert_eq!(bucket_of(b"\x81\xa4path\x91\xa3[2]"), crc_bucket(b"key"));
        assert_eq!(bucket_of(b"\x81\xa4path\xa3[3]"), crc_bucket(b"\x01two"), "an array is its items");
        assert_eq!(bucket_of(b"\x81\xa4path\x92\xa3[2]\xaf[1].customer.id"), crc_bucket(b"key\x07"));
        assert_eq!(
            bucket_of(b"\x81\xa4path\x92\xa3[2]\xa3[3]"),
            crc_bucket(b"key\x92\x01\xa3two"),
            "an item that is an array"
        );
    }

    #[test]
    fn a_key_that_is_none() {
        let cases: &[(&[u8], &str)] = &[
            (b"\x80", "bucket_id): expected one of key and path, got none of them"),
            (b"\x81\xa3key\xc0", "bucket_id): expected one of key and path, got none of them"),
            (b"\x82\xa3key\x01\xa4path\xa3[1]", "bucket_id): expected one of key and path, got both"),
            (b"\x81\xa3kye\x01", "bucket_id): unknown option 'kye', expected one of key, path, hash"),
            (b"\x81\x01\x01", "bucket_id): expected only the keys key, path or hash, got 1"),
            (
                b"\x82\xa3key\x01\xa4hash\xa3md5",
                "bucket_id.hash): expected 'mpcrc32' or 'strcrc32', got string 'md5'",
            ),
            (b"\x82\xa3key\x01\xa4hash\x01", "bucket_id.hash): expected 'mpcrc32' or 'strcrc32', got 1"),
            (b"\x81\xa3key\x80", "bucket_id.key): a map can not be a sharding key"),
            (
                b"\x81\xa3key\xd4\x07\x00",
                "bucket_id.key): a MessagePack extension of type 7 can not be a sharding key",
            ),
            (b"\x81\xa4path\x01", "bucket_id.path): expected a path or a list of them, got 1"),
            (b"\x81\xa4path\x90", "bucket_id.path): expected a path or a list of them, got an empty list"),
            (b"\x81\xa4path\x92\xa3[1]\x02", "bucket_id.path): expected a path, got 2"),
            (
                b"\x81\xa4path\xa3[0]",
                "bucket_id.path): expected a path like [1].name, got '[0]': syntax error at character 2",
            ),
            (b"\x81\xa4path\xa0", "bucket_id.path): expected a path like [1].name, got '': it is empty"),
            (
                b"\x81\xa4path\xa6[1][*]",
                "bucket_id.path): expected a path like [1].name, got '[1][*]': [*] stands for many values",
            ),
            (b"\x81\xa4path\xa3[4]", "bucket_id.path): path '[4]' leads nowhere: args has 3 items"),
            (b"\x81\xa4path\xa1x", "bucket_id.path): path 'x' leads nowhere: args is an array"),
            (
                b"\x81\xa4path\xb2[1][\"customer\"].no",
                "bucket_id.path): path '[1][\"customer\"].no' leads nowhere: [1][\"customer\"] has no such key",
            ),
            (
                b"\x81\xa4path\xab[1].none.id",
                "bucket_id.path): path '[1].none.id' leads nowhere: [1].none is nil",
            ),
            (b"\x81\xa4path\xa6[2].id", "bucket_id.path): path '[2].id' leads nowhere: [2] is a string"),
            (b"\x81\xa4path\xa8[1].none", "bucket_id.path): path '[1].none' leads to nil"),
            (
                b"\x81\xa4path\x92\xa3[2]\xac[1].customer",
                "bucket_id.path): path '[1].customer' leads to a map",
            ),
            (
                b"\x82\xa4hash\xa8strcrc32\xa4path\x92\xa3[2]\xa3[3]",
                "bucket_id.path): path '[3]': an array in a sharding key has no strcrc32",
            ),
        ];
        for (selector, text) in cases {
            let bytes = keyed(selector);
            let (given_back, refusal) = read(bytes.clone(), keyspace()).expect_err(text);
            assert_eq!(refusal.to_string(), format!("callraw: argument 1 ({text}"));
            assert_eq!(given_back, bytes);
            assert_eq!(peek_bucket(&bytes, keyspace()), None, "{text}");
        }
    }

    #[test]
    fn a_key_within_a_tuple() {
        let args = b"\x91\xd6\x07\x00\x92\x05\x01";
        for (path, expected) in [(&b"\xa6[1][2]"[..], 1614), (b"\xa3[1]", crc_bucket(b"\x05\x01"))] {
            let bytes = array(&[&[b"\x81\xa4path", path].concat(), b"\xc0", b"\xa4echo", args, b"\x80"]);
            assert_eq!(peek_bucket(&bytes, keyspace()), Some(expected), "both find the same");
            assert_eq!(read(bytes, keyspace()).unwrap().bucket.number(), expected);
        }
    }

    #[test]
    fn as_many_paths_as_a_key_may_have() {
        let of = |count: u32| {
            let mut selector = b"\x81\xa4path".to_vec();
            mp::write_array_len(&mut selector, count);
            (0..count).for_each(|_| mp::write_str(&mut selector, "[2]"));
            read(keyed(&selector), keyspace()).map(|read| read.bucket.number())
        };
        assert_eq!(of(MAX_PATHS).unwrap(), crc_bucket(&b"key".repeat(MAX_PATHS as usize)));
        for count in [MAX_PATHS + 1, 10_000] {
            assert_eq!(
                of(count).unwrap_err().1.to_string(),
                format!(
                    "callraw: argument 1 (bucket_id.path): expected at most {MAX_PATHS} paths, got {count} of them"
                )
            );
        }
    }

    #[test]
    fn keys_that_are_deep_or_promise_too_much() {
        let deep = [vec![0x91; 100_000], vec![0x01]].concat();
        let path = vec!["[1]"; 99_999].concat();
        let mut selector = b"\x81\xa4path".to_vec();
        mp::write_bytes_as_str(&mut selector, path.as_bytes());
        let bytes = array(&[&selector, b"\xc0", b"\xa4echo", &deep]);
        assert_eq!(read(bytes.clone(), keyspace()).unwrap().bucket.number(), 1614);
        let key = [&b"\x81\xa3key"[..], &deep].concat();
        let (_, refusal) = read(array(&[&key, b"\xc0", b"\xa4echo"]), keyspace()).unwrap_err();
        assert_eq!(
            refusal.to_string(),
            "callraw: argument 1 (bucket_id.key): a sharding key can not be nested deeper than 128 levels"
        );
        for index in ["[4294967295]", "[18446744073709551615]"] {
            let mut selector = b"\x81\xa4path".to_vec();
            mp::write_str(&mut selector, index);
            let (_, refusal) = read(keyed(&selector), keyspace()).unwrap_err();
            let text = format!(
                "callraw: argument 1 (bucket_id.path): path '{index}' leads nowhere: args has 3 items"
            );
            assert_eq!(refusal.to_string(), text);
        }
        for cut in 0..bytes.len().min(2000) {
            assert!(read(bytes[..cut].to_vec(), keyspace()).is_err());
            peek_bucket(&bytes[..cut], keyspace());
        }
    }
}
