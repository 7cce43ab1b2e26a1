//! vshard's conventions on top of IPROTO: what `vshard.storage.call` answers, and error objects.
//!
//! Source: vshard 0.1.42, `vshard/storage/init.lua` (storage_call, bucket_stat, buckets_discovery) and `vshard/error.lua`.

use serde_json::Value;

use crate::error::{Failure, SHARDING_ERROR, box_code, code};
use crate::wire::iproto::{Answer, TYPE_ERROR};
use crate::wire::mp::{self, Cursor, Fault, Kind};

/// Messages of errors nested deeper than this are cut off; Tarantool's own chains are a few long.
const MAX_CAUSES: u32 = 64;

/// An answer of `vshard.storage.call`: `[true, values…]`, `[false, err]` or `[nil, err]`.
#[derive(Debug, PartialEq, Eq)]
pub enum StorageAnswer<'a> {
    /// `count` values that the user's function returned.
    Values { values: &'a [u8], count: u32 },
    /// The function raised; the error, one value.
    Raised(&'a [u8]),
    /// The storage did not run the function, or cannot vouch for its result.
    Refused(&'a [u8]),
}

/// `data` is the array of an IPROTO answer, known to be well-formed.
pub fn storage_answer(data: &[u8]) -> Result<StorageAnswer<'_>, Fault> {
    let mut cursor = Cursor::new(data);
    let count = cursor.array()?;
    if count == 0 {
        return Err(Fault::Expected("a status flag before the values"));
    }
    if cursor.take_nil()? {
        if count < 2 || cursor.peek()? != Kind::Map {
            return Err(Fault::Expected("an error object behind a status of nil"));
        }
        return Ok(StorageAnswer::Refused(cursor.span()?));
    }
    if cursor.bool().map_err(|_| Fault::Expected("a status flag before the values"))? {
        return Ok(StorageAnswer::Values { values: cursor.rest(), count: count - 1 });
    }
    // A function may raise any value but nothing at all: its caller could not tell that from success.
    if count < 2 || cursor.peek()? == Kind::Nil {
        return Err(Fault::Expected("an error behind a status of false"));
    }
    Ok(StorageAnswer::Raised(cursor.span()?))
}

/// The fields of an error object by which the router acts. Anything else in it is passed over.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ErrorView<'a> {
    pub kind: &'a [u8],
    pub code: u64,
    pub message: &'a [u8],
    pub destination: Option<&'a [u8]>,
    pub replica: Option<&'a [u8]>,
    pub master: Option<&'a [u8]>,
}

impl<'a> ErrorView<'a> {
    /// Anything that is not a map with string keys reads as an error without type and code.
    pub fn parse(error: &'a [u8]) -> ErrorView<'a> {
        Self::read(error).unwrap_or_default()
    }

    pub fn is_sharding(&self, code: u64) -> bool {
        self.kind == SHARDING_ERROR.as_bytes() && self.code == code
    }

    fn read(error: &'a [u8]) -> Result<ErrorView<'a>, Fault> {
        let mut view = ErrorView::default();
        let mut cursor = Cursor::new(error);
        for _ in 0..cursor.map()? {
            if cursor.peek()? != Kind::Str {
                cursor.skip_many(2)?;
                continue;
            }
            let key = cursor.str()?;
            match (key, cursor.peek()?) {
                (b"type", Kind::Str) => view.kind = cursor.str()?,
                (b"message", Kind::Str) => view.message = cursor.str()?,
                (b"code", Kind::Uint) => view.code = cursor.uint()?,
                (b"destination", Kind::Str) => view.destination = Some(cursor.str()?),
                (b"replica", Kind::Str) => view.replica = Some(cursor.str()?),
                (b"master", Kind::Str) => view.master = Some(cursor.str()?),
                _ => cursor.skip()?,
            }
        }
        Ok(view)
    }
}

/// Appends the error that one of vshard's functions raised as the map that vshard makes of it (error.lua: box_error,
/// from_string).
pub fn write_exception(out: &mut Vec<u8>, kind: u64, answer: &Answer<'_>) -> Result<(), Fault> {
    let message = answer.message.unwrap_or_default();
    // A table raised on the storage arrives as its JSON: vshard's way to carry a typed error through an exception.
    if message.first() == Some(&b'{') && sharding_error_from_json(message, out) {
        return Ok(());
    }
    write_user_exception(out, kind, answer)
}

/// Appends the error that a user's function raised, whatever its text looks like.
pub fn write_user_exception(out: &mut Vec<u8>, kind: u64, answer: &Answer<'_>) -> Result<(), Fault> {
    let message = answer.message.unwrap_or_default();
    if let Some(stack) = answer.error_stack {
        let start = out.len();
        if write_error_stack(out, stack)? {
            return Ok(());
        }
        out.truncate(start);
    }
    write_client_error(out, kind & !TYPE_ERROR, message);
    Ok(())
}

fn sharding_error_from_json(text: &[u8], out: &mut Vec<u8>) -> bool {
    let Ok(value) = serde_json::from_slice::<Value>(text) else { return false };
    if value.get("type").and_then(Value::as_str) != Some(SHARDING_ERROR) {
        return false;
    }
    write_json(out, &value);
    true
}

/// serde_json bounds the depth of what it reads, so this recursion is bounded too.
fn write_json(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Null => mp::write_nil(out),
        Value::Bool(value) => mp::write_bool(out, *value),
        Value::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(value), _) => mp::write_uint(out, value),
            (None, Some(value)) => mp::write_int(out, value),
            (None, None) => mp::write_double(out, number.as_f64().unwrap_or(f64::NAN)),
        },
        Value::String(text) => mp::write_str(out, text),
        Value::Array(items) => {
            mp::write_array_len(out, items.len() as u32);
            items.iter().for_each(|item| write_json(out, item));
        }
        Value::Object(fields) => {
            mp::write_map_len(out, fields.len() as u32);
            for (key, value) in fields {
                mp::write_str(out, key);
                write_json(out, value);
            }
        }
    }
}

/// One entry of an extended error (Tarantool `src/box/mp_error.cc`).
#[derive(Default)]
struct StackedError<'a> {
    kind: &'a [u8],
    file: &'a [u8],
    line: u64,
    message: &'a [u8],
    errno: u64,
    code: u64,
    /// Number of payload fields and their bytes: string keys, any values.
    fields: (u32, &'a [u8]),
}

fn stacked_error<'a>(cursor: &mut Cursor<'a>) -> Result<StackedError<'a>, Fault> {
    let mut error = StackedError::default();
    for _ in 0..cursor.map()? {
        match cursor.uint()? {
            0 => error.kind = cursor.str()?,
            1 => error.file = cursor.str()?,
            2 => error.line = cursor.uint()?,
            3 => error.message = cursor.str()?,
            4 => error.errno = cursor.uint()?,
            5 => error.code = cursor.uint()?,
            6 => {
                let mut inside = Cursor::new(cursor.span()?);
                let count = inside.map()?;
                error.fields = (count, inside.rest());
            }
            _ => cursor.skip()?,
        }
    }
    Ok(error)
}

/// The map that `err:unpack()` gives, causes under `prev`. False if the stack is empty.
fn write_error_stack(out: &mut Vec<u8>, stack: &[u8]) -> Result<bool, Fault> {
    let mut cursor = Cursor::new(stack);
    let count = cursor.array()?.min(MAX_CAUSES);
    for i in 0..count {
        let error = stacked_error(&mut cursor)?;
        let custom = field(&error, b"custom_type")?;
        let has_prev = i + 1 < count;
        let fixed = 5 + u32::from(error.errno != 0) + u32::from(has_prev);
        mp::write_map_len(out, fixed + error.fields.0);
        mp::write_str(out, "type");
        mp::write_bytes_as_str(out, custom.unwrap_or(error.kind));
        mp::write_str(out, "base_type");
        mp::write_bytes_as_str(out, error.kind);
        mp::write_str(out, "code");
        mp::write_uint(out, error.code);
        mp::write_str(out, "message");
        mp::write_bytes_as_str(out, error.message);
        mp::write_str(out, "trace");
        out.extend_from_slice(&[0x91, 0x82]);
        mp::write_str(out, "file");
        mp::write_bytes_as_str(out, error.file);
        mp::write_str(out, "line");
        mp::write_uint(out, error.line);
        if error.errno != 0 {
            mp::write_str(out, "errno");
            mp::write_uint(out, error.errno);
        }
        out.extend_from_slice(error.fields.1);
        if has_prev {
            mp::write_str(out, "prev");
        }
    }
    Ok(count > 0)
}

fn field<'a>(error: &StackedError<'a>, name: &[u8]) -> Result<Option<&'a [u8]>, Fault> {
    let mut cursor = Cursor::new(error.fields.1);
    for _ in 0..error.fields.0 {
        let key = cursor.span()?;
        let value = cursor.span()?;
        if Cursor::new(key).str() == Ok(name) {
            return Ok(Cursor::new(value).str().ok());
        }
    }
    Ok(None)
}

/// Appends an error of the host as a map.
pub fn write_client_error(out: &mut Vec<u8>, code: u64, message: &[u8]) {
    mp::write_map_len(out, 4);
    mp::write_str(out, "type");
    mp::write_str(out, "ClientError");
    mp::write_str(out, "base_type");
    mp::write_str(out, "ClientError");
    mp::write_str(out, "code");
    mp::write_uint(out, code);
    mp::write_str(out, "message");
    mp::write_bytes_as_str(out, message);
}

/// Appends the error object that vshard gives for a failure stated by its router.
pub fn write_failure(out: &mut Vec<u8>, failure: &Failure) {
    match failure {
        Failure::Timeout => write_client_error(out, box_code::TIMEOUT, b"Timeout exceeded"),
        Failure::NoConnection { instance, address, reason } => {
            let message = format!("Connection to {instance} at {address} is not established: {reason}");
            write_client_error(out, box_code::NO_CONNECTION, message.as_bytes());
        }
        Failure::Overloaded { instance } => {
            let message = format!("Timeout exceeded: too many calls are under way to {instance}");
            write_client_error(out, box_code::TIMEOUT, message.as_bytes());
        }
        Failure::BadAnswer { instance, what } => {
            let message = format!("Invalid answer from {instance}: {what}");
            write_client_error(out, box_code::INVALID_MSGPACK, message.as_bytes());
        }
        Failure::PushOverflow { limit } => {
            let message = format!(
                "More than {limit} bytes that the function has pushed are not read: the call is given up, the function may go on"
            );
            write_client_error(out, box_code::PROC_LUA, message.as_bytes());
        }
        Failure::Stopped => write_client_error(out, box_code::NO_CONNECTION, b"The router is stopped"),
        Failure::NameMismatch { expected, actual } => {
            let shown = actual.as_deref().unwrap_or("nil");
            let message = format!("Mismatch server name: expected \"{expected}\", but got \"{shown}\"");
            let fields = [("expected_name", Field::Text(expected)), ("actual_name", Field::Text(shown))];
            let fields = if actual.is_some() { &fields[..] } else { &fields[..1] };
            write_sharding_error(
                out,
                code::INSTANCE_NAME_MISMATCH,
                "INSTANCE_NAME_MISMATCH",
                &message,
                fields,
            );
        }
        Failure::MissingMaster { replicaset } => {
            let message = format!("Master is not configured for replicaset {replicaset}");
            let fields = [("replicaset", Field::Text(replicaset))];
            write_sharding_error(out, code::MISSING_MASTER, "MISSING_MASTER", &message, &fields);
        }
        Failure::UnreachableReplicaset { replicaset, bucket } => {
            let message = format!("There is no active replicas in replicaset {replicaset}");
            let fields = [("replicaset", Field::Text(replicaset)), ("bucket_id", Field::Number(*bucket))];
            write_sharding_error(
                out,
                code::UNREACHABLE_REPLICASET,
                "UNREACHABLE_REPLICASET",
                &message,
                &fields,
            );
        }
        Failure::NoRouteToBucket { bucket } => {
            let message = format!("Bucket {bucket} cannot be found. Is rebalancing in progress?");
            let fields = [("bucket_id", Field::Number(*bucket))];
            write_sharding_error(out, code::NO_ROUTE_TO_BUCKET, "NO_ROUTE_TO_BUCKET", &message, &fields);
        }
        Failure::ReplicasetInBackoff { replicaset, error } => {
            let cause = ErrorView::parse(error);
            let message = format!(
                "Replicaset {replicaset} is in backoff, can't take requests right now. Last error was {}",
                String::from_utf8_lossy(cause.message)
            );
            let fields = [("replicaset", Field::Text(replicaset)), ("error", Field::Encoded(error))];
            write_sharding_error(
                out,
                code::REPLICASET_IN_BACKOFF,
                "REPLICASET_IN_BACKOFF",
                &message,
                &fields,
            );
        }
        Failure::Outdated => write_sharding_error(
            out,
            code::OBJECT_IS_OUTDATED,
            "OBJECT_IS_OUTDATED",
            "Object is outdated after module reload/reconfigure. Use new instance.",
            &[],
        ),
    }
}

enum Field<'a> {
    Text(&'a str),
    Number(u32),
    Encoded(&'a [u8]),
}

fn write_sharding_error(
    out: &mut Vec<u8>,
    code: u64,
    name: &str,
    message: &str,
    fields: &[(&str, Field<'_>)],
) {
    mp::write_map_len(out, 4 + fields.len() as u32);
    mp::write_str(out, "type");
    mp::write_str(out, SHARDING_ERROR);
    mp::write_str(out, "code");
    mp::write_uint(out, code);
    mp::write_str(out, "name");
    mp::write_str(out, name);
    mp::write_str(out, "message");
    mp::write_str(out, message);
    for (key, value) in fields {
        mp::write_str(out, key);
        match value {
            Field::Text(text) => mp::write_str(out, text),
            Field::Number(number) => mp::write_uint(out, u64::from(*number)),
            Field::Encoded(bytes) => out.extend_from_slice(bytes),
        }
    }
}

/// What `vshard.storage.bucket_stat` says: does this instance's replicaset hold the bucket?
#[derive(Debug, PartialEq, Eq)]
pub enum BucketStat<'a> {
    Held,
    Refused(&'a [u8]),
}

/// `[map]` or `[map, nil]`: held. With an error second: not, or not readable.
pub fn bucket_stat(data: &[u8]) -> Result<BucketStat<'_>, Fault> {
    let mut cursor = Cursor::new(data);
    let count = cursor.array()?;
    if count == 0 {
        return Err(Fault::Expected("a bucket's state"));
    }
    let absent = cursor.take_nil()?;
    if !absent {
        cursor.skip()?;
    }
    if count > 1 && !cursor.take_nil()? {
        return Ok(BucketStat::Refused(cursor.span()?));
    }
    if absent { Err(Fault::Expected("a bucket's state or an error")) } else { Ok(BucketStat::Held) }
}

/// What `vshard.storage._call('info')` tells of an instance.
#[derive(Debug, PartialEq, Default)]
pub struct InstanceInfo<'a> {
    pub is_master: bool,
    /// Its name, if it has one.
    pub name: Option<&'a [u8]>,
    /// Only if it was asked for, and not of storages before 0.1.31.
    pub health: Option<InstanceHealth<'a>>,
}

#[derive(Debug, PartialEq, Default)]
pub struct InstanceHealth<'a> {
    /// How it replicates from the master; None: it does not.
    pub master_upstream: Option<Upstream<'a>>,
}

/// As `box.info.replication` has it; times in seconds.
#[derive(Debug, PartialEq, Default)]
pub struct Upstream<'a> {
    pub status: Option<&'a [u8]>,
    pub lag: Option<f64>,
    pub idle: Option<f64>,
}

/// `data` is the array of an IPROTO answer: one map.
pub fn instance_info(data: &[u8]) -> Result<InstanceInfo<'_>, Fault> {
    let mut info = InstanceInfo::default();
    let mut cursor = Cursor::new(data);
    if cursor.array()? == 0 {
        return Err(Fault::Expected("a map"));
    }
    for _ in 0..cursor.map()? {
        if cursor.peek()? != Kind::Str {
            cursor.skip_many(2)?;
            continue;
        }
        match (cursor.str()?, cursor.peek()?) {
            (b"is_master", Kind::Bool) => info.is_master = cursor.bool()?,
            (b"name", Kind::Str) => info.name = Some(cursor.str()?),
            (b"health", Kind::Map) => info.health = Some(instance_health(&mut cursor)?),
            (b"health", Kind::Array) => {
                // An empty Lua table.
                cursor.skip()?;
                info.health = Some(InstanceHealth::default());
            }
            _ => cursor.skip()?,
        }
    }
    Ok(info)
}

fn instance_health<'a>(cursor: &mut Cursor<'a>) -> Result<InstanceHealth<'a>, Fault> {
    let mut health = InstanceHealth::default();
    for _ in 0..cursor.map()? {
        if cursor.peek()? != Kind::Str {
            cursor.skip_many(2)?;
            continue;
        }
        match (cursor.str()?, cursor.peek()?) {
            (b"master_upstream", Kind::Map) => health.master_upstream = Some(upstream(cursor)?),
            (b"master_upstream", Kind::Array) => {
                cursor.skip()?;
                health.master_upstream = Some(Upstream::default());
            }
            _ => cursor.skip()?,
        }
    }
    Ok(health)
}

fn upstream<'a>(cursor: &mut Cursor<'a>) -> Result<Upstream<'a>, Fault> {
    let mut upstream = Upstream::default();
    for _ in 0..cursor.map()? {
        if cursor.peek()? != Kind::Str {
            cursor.skip_many(2)?;
            continue;
        }
        match (cursor.str()?, cursor.peek()?) {
            (b"status", Kind::Str) => upstream.status = Some(cursor.str()?),
            (b"lag", Kind::Uint | Kind::Int | Kind::Float) => upstream.lag = Some(cursor.number()?),
            (b"idle", Kind::Uint | Kind::Int | Kind::Float) => upstream.idle = Some(cursor.number()?),
            _ => cursor.skip()?,
        }
    }
    Ok(upstream)
}

/// One page of `vshard.storage.buckets_discovery`.
#[derive(Debug, PartialEq, Eq, Default)]
pub struct DiscoveryPage {
    pub buckets: Vec<u32>,
    /// Where the next page starts; None at the end.
    pub next_from: Option<u64>,
}

/// `values` is what the function returned first: a map `{buckets, next_from?}`, or, from storages before 0.1.16, the flat
/// array of all. Ids that do not fit in 32 bits are no buckets of anybody and passed over.
pub fn discovery_page(values: &[u8]) -> Result<DiscoveryPage, Fault> {
    let mut page = DiscoveryPage::default();
    let mut cursor = Cursor::new(values);
    if cursor.peek()? == Kind::Array {
        page.buckets = bucket_ids(&mut cursor)?;
        return Ok(page);
    }
    for _ in 0..cursor.map()? {
        if cursor.peek()? != Kind::Str {
            cursor.skip_many(2)?;
            continue;
        }
        match cursor.str()? {
            b"buckets" => page.buckets = bucket_ids(&mut cursor)?,
            b"next_from" if cursor.peek()? != Kind::Nil => page.next_from = Some(cursor.uint()?),
            _ => cursor.skip()?,
        }
    }
    Ok(page)
}

fn bucket_ids(cursor: &mut Cursor<'_>) -> Result<Vec<u32>, Fault> {
    // An empty Lua table may arrive as an empty map.
    if cursor.peek()? == Kind::Map {
        return if cursor.map()? == 0 {
            Ok(Vec::new())
        } else {
            Err(Fault::Expected("an array of bucket ids"))
        };
    }
    let count = cursor.array()?;
    let mut ids = Vec::with_capacity(count.min(4096) as usize);
    for _ in 0..count {
        ids.extend(u32::try_from(cursor.uint()?).ok());
    }
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn storage_answers() {
        let values = |values, count| Ok(StorageAnswer::Values { values, count });
        assert_eq!(storage_answer(b"\x91\xc3"), values(b"", 0));
        assert_eq!(storage_answer(b"\xdd\x00\x00\x00\x03\xc3\xc0\x05"), values(b"\xc0\x05", 2));
        assert_eq!(storage_answer(b"\x92\xc2\xa1e"), Ok(StorageAnswer::Raised(b"\xa1e")));
        assert_eq!(storage_answer(b"\x92\xc0\x81\x01\x02"), Ok(StorageAnswer::Refused(b"\x81\x01\x02")));
        for bad in
            [&b"\x90"[..], b"\x91\x05", b"\x80", b"\x91\xc0", b"\x92\xc0\x05", b"\x91\xc2", b"\x92\xc2\xc0"]
        {
            assert!(storage_answer(bad).is_err(), "{bad:02x?}");
        }
    }

    #[test]
    fn an_error_is_judged_by_type_and_code() {
        let mut error = Vec::new();
        write_sharding_error(&mut error, 1, "WRONG_BUCKET", "m", &[("destination", Field::Text("rs2"))]);
        let view = ErrorView::parse(&error);
        assert!(view.is_sharding(code::WRONG_BUCKET));
        assert_eq!(view.destination, Some(&b"rs2"[..]));
        error.clear();
        write_client_error(&mut error, 1, b"m");
        assert!(!ErrorView::parse(&error).is_sharding(code::WRONG_BUCKET));
        assert_eq!(ErrorView::parse(b"\xa1x"), ErrorView::default());
    }

    #[test]
    fn an_exception_becomes_what_unpack_gives() {
        // {0: 'CustomError', 1: 'f', 2: 7, 3: 'top', 4: 0, 5: 9, 6: {custom_type: 'Mine'}}, then a cause.
        let mut stack = vec![0x92, 0x87, 0x00];
        mp::write_str(&mut stack, "CustomError");
        stack.extend_from_slice(
            b"\x01\xa1f\x02\x07\x03\xa3top\x04\x00\x05\x09\x06\x81\xabcustom_type\xa4Mine",
        );
        stack.extend_from_slice(b"\x85\x00\xabClientError\x01\xa1g\x02\x08\x03\xa5cause\x05\x20");
        let answer = Answer { message: Some(b"top"), error_stack: Some(&stack), ..Answer::default() };
        let mut out = Vec::new();
        write_exception(&mut out, TYPE_ERROR | 9, &answer).unwrap();
        let mut cursor = Cursor::new(&out);
        assert_eq!(cursor.map(), Ok(7));
        cursor = Cursor::new(&out);
        assert_eq!(cursor.span().map(<[u8]>::len), Ok(out.len()));
        let view = ErrorView::parse(&out);
        assert_eq!((view.kind, view.code, view.message), (&b"Mine"[..], 9, &b"top"[..]));
        assert!(out.windows(4).any(|part| part == b"prev"));
    }

    #[test]
    fn a_raised_sharding_error_is_read_back_from_its_json() {
        let text = br#"{"type":"ShardingError","code":33,"name":"STORAGE_IS_DISABLED","reason":"off","message":"m"}"#;
        let mut out = Vec::new();
        let answer = Answer { message: Some(text), ..Answer::default() };
        write_exception(&mut out, TYPE_ERROR | 32, &answer).unwrap();
        assert!(ErrorView::parse(&out).is_sharding(code::STORAGE_IS_DISABLED));
        // Cut by an old core: stays a plain Lua error with its text.
        out.clear();
        let answer = Answer { message: Some(&text[..40]), ..answer };
        write_exception(&mut out, TYPE_ERROR | 32, &answer).unwrap();
        let view = ErrorView::parse(&out);
        assert_eq!((view.kind, view.code, view.message), (&b"ClientError"[..], 32, &text[..40]));
    }

    #[test]
    fn discovery_pages() {
        let page = discovery_page(b"\x82\xa7buckets\x93\x01\x02\xcd\x01\x00\xa9next_from\x05").unwrap();
        assert_eq!(page, DiscoveryPage { buckets: vec![1, 2, 256], next_from: Some(5) });
        let flat = discovery_page(b"\x92\x03\x04").unwrap();
        assert_eq!(flat, DiscoveryPage { buckets: vec![3, 4], next_from: None });
        assert_eq!(discovery_page(b"\x81\xa7buckets\x80").unwrap(), DiscoveryPage::default());
        assert!(discovery_page(b"\x81\xa7buckets\x81\x01\x01").is_err());
        assert!(discovery_page(b"\xc0").is_err());
    }

    #[test]
    fn instance_infos() {
        let info = instance_info(b"\x91\x83\xa9is_master\xc3\xa4name\xa1a\x01\x02").unwrap();
        assert_eq!(info, InstanceInfo { is_master: true, name: Some(b"a"), health: None });
        assert_eq!(instance_info(b"\x91\x81\xa4name\xc0"), Ok(InstanceInfo::default()));
        let health = |bytes: &[u8]| {
            let bytes = [b"\x91\x81\xa6health", bytes].concat();
            let health = instance_info(&bytes).unwrap().health?;
            let it = health.master_upstream.unwrap_or_default();
            Some((it.status.is_some(), it.lag, it.idle))
        };
        assert_eq!(health(b"\xc0"), None);
        for empty in [&b"\x90"[..], b"\x80", b"\x81\xafmaster_upstream\x90"] {
            assert_eq!(health(empty), Some((false, None, None)));
        }
        let full = b"\x81\xafmaster_upstream\x83\xa6status\xa6follow\xa3lag\xca\xbf\x00\x00\x00\xa4idle\x02";
        assert_eq!(health(full), Some((true, Some(-0.5), Some(2.0))));
        assert!(instance_info(b"\x90").is_err() && instance_info(b"\x92\xc0\x80").is_err());
    }

    #[test]
    fn bucket_stats() {
        assert_eq!(bucket_stat(b"\x91\x80"), Ok(BucketStat::Held));
        assert_eq!(bucket_stat(b"\x92\x81\x01\x02\xc0"), Ok(BucketStat::Held));
        assert_eq!(bucket_stat(b"\x92\x80\x81\x01\x02"), Ok(BucketStat::Refused(b"\x81\x01\x02")));
        assert_eq!(bucket_stat(b"\x92\xc0\x80"), Ok(BucketStat::Refused(b"\x80")));
        assert!(bucket_stat(b"\x90").is_err() && bucket_stat(b"\x91\xc0").is_err());
    }
}
