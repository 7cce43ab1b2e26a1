//! The sharding key of a call that does not name its bucket: a value, or where in the arguments it is.

use std::borrow::Cow;

use crate::ids::BucketId;
use crate::route::hash::{Hash, Hasher, Rules};
use crate::wire::mp::{self, Cursor, Kind};
use crate::wire::path::{Inline, Lost, Path, Stray};

/// What a hash becomes a bucket by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keyspace {
    pub bucket_count: u32,
    pub rules: Rules,
}

impl Keyspace {
    pub fn new(bucket_count: u32) -> Keyspace {
        Keyspace { bucket_count, rules: Rules::default() }
    }

    pub(super) fn bucket(self, hash: u32) -> BucketId {
        let id = u64::from(hash) % u64::from(self.bucket_count) + 1;
        BucketId::new(id, self.bucket_count).expect("what is left of a division is less than the divisor")
    }
}

/// The bucket of the key that `paths` find in `args`: several make one of several items.
pub fn bucket_at(paths: &[Path], hash: Hash, args: &[u8], keyspace: Keyspace) -> Result<BucketId, String> {
    let mut hasher = Hasher::new(hash, keyspace.rules);
    let whole = if paths.len() == 1 { Whole::Key } else { Whole::Item };
    for path in paths {
        take(&mut hasher, args, path, whole)?;
    }
    Ok(keyspace.bucket(hasher.finish()))
}

/// The paths of one key at most. Each is a walk over the arguments, and a client may send as many as it likes.
pub const MAX_PATHS: u32 = 32;

/// What `find` gives for `args`, or where it fails and they hold tuples, for arrays in their place.
pub fn with_or_without_tuples<T>(
    args: &[u8],
    find: impl Fn(&[u8]) -> Result<T, String>,
) -> Result<T, String> {
    find(args).or_else(|fault| match without_tuples(args) {
        Some(plain) => find(&plain),
        None => Err(fault),
    })
}

/// The first value in `bytes` with arrays in the place of tuples; None if it has none of these, or they are damaged.
pub fn without_tuples(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut cursor = Cursor::new(bytes);
    if !cursor.skip_many(1).ok()?.tuples {
        return None;
    }
    let mut plain = Vec::new();
    mp::copy_without_tuples(&bytes[..cursor.position()], &mut plain).ok()?;
    Some(plain)
}

/// Whether what a path finds is the key, of which an array is the items, or one item among others.
#[derive(Clone, Copy)]
pub(super) enum Whole {
    Key,
    Item,
}

/// Gives the value at `path` in `args` to the hasher.
pub(super) fn take(hasher: &mut Hasher, args: &[u8], path: &impl Walk, whole: Whole) -> Result<(), String> {
    let mut cursor = find_key(args, path)?;
    let taken = match whole {
        Whole::Key => hasher.key(&mut cursor),
        Whole::Item => hasher.item(&mut cursor),
    };
    taken.map_err(|fault| format!("path {}: {fault}", shown(path)))
}

/// A cursor at what `path` leads to in `args`: neither a map nor nil.
pub fn find_key<'a>(args: &'a [u8], path: &impl Walk) -> Result<Cursor<'a>, String> {
    let cursor = find(args, path)?;
    match cursor.peek() {
        Ok(Kind::Nil) => Err(format!("path {} leads to nil", shown(path))),
        Ok(Kind::Map) => Err(format!("path {} leads to a map", shown(path))),
        _ => Ok(cursor),
    }
}

fn find<'a>(args: &'a [u8], path: &impl Walk) -> Result<Cursor<'a>, String> {
    let mut cursor = Cursor::new(args);
    match path.walk(&mut cursor) {
        Ok(()) => Ok(cursor),
        Err(Stray { why: Lost::Broken(fault), .. }) => Err(fault.to_string()),
        Err(Stray { walked, why }) => {
            let text = path.text();
            let whole = String::from_utf8_lossy(&text.as_bytes()[..walked]).into_owned();
            let place = if walked == 0 { "args".into() } else { short(whole.as_bytes()) };
            Err(format!("path {} leads nowhere: {place} {why}", shown(path)))
        }
    }
}

pub trait Walk {
    fn text(&self) -> Cow<'_, str>;
    fn walk(&self, cursor: &mut Cursor<'_>) -> Result<(), Stray>;
}

impl Walk for Path {
    fn text(&self) -> Cow<'_, str> {
        self.text().into()
    }

    fn walk(&self, cursor: &mut Cursor<'_>) -> Result<(), Stray> {
        self.walk(cursor)
    }
}

impl Walk for Inline<'_> {
    fn text(&self) -> Cow<'_, str> {
        self.text().into()
    }

    fn walk(&self, cursor: &mut Cursor<'_>) -> Result<(), Stray> {
        self.walk(cursor)
    }
}

fn shown(path: &impl Walk) -> String {
    format!("'{}'", short(path.text().as_bytes()))
}

/// A path's text, short and printable.
pub fn short(text: &[u8]) -> String {
    const MOST: usize = 100;
    let shown = String::from_utf8_lossy(&text[..text.len().min(MOST)]).escape_debug().to_string();
    // Quotes are a part of paths.
    let shown = shown.replace("\\\"", "\"").replace("\\'", "'");
    if text.len() > MOST { format!("{shown}...") } else { shown }
}
