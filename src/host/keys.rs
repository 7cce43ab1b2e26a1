//! The natives of sharding keys and endpoints that are given `msgpack.object`s: raw C functions, as in `calls.rs`.

use std::ffi::{CStr, c_int};

use super::calls::{self, Stack};
use super::endpoints::{self, Ended};
use super::failure::Failure;
use super::guard::{self, End};
use super::object;
use super::runtime::{RUNTIME, Runtime};
use super::sys::{lua, lua_State};
use super::waiters::NOBODY;
use crate::call::key;
use crate::call::request::{Outcome, Reply};
use crate::route::hash::{Hash, Hasher, Rules, Unhashable};
use crate::wire::fit;
use crate::wire::mp::{Cursor, Kind, Met};
use crate::wire::path::{Inline, Lost};

/// Name and function of each.
pub const FUNCTIONS: &[(&CStr, lua::lua_CFunction)] = &[
    (c"endpoint_call", endpoint_call),
    (c"endpoint_key", endpoint_key),
    (c"extract", extract),
    (c"hash_object", hash_object),
];

/// `(endpoint, obj, bucket) -> values…`, or `nil, err`. The bucket is nil where the endpoint finds it.
unsafe extern "C-unwind" fn endpoint_call(l: *mut lua_State) -> c_int {
    // SAFETY: Lua calls it with its own state, on TX.
    unsafe {
        object::prepare(l, 2);
        let returned = guard::run(|| {
            let stack = Stack(l);
            let id = stack.index(1, "endpoint")?;
            let bucket = if stack.is_nil(3) { None } else { Some(stack.number(3, "bucket_id")?) };
            let args = arguments(&stack)?;
            let age = endpoints::begin(id)?;
            let ended = endpoints::post(id, args, bucket).and_then(calls::hold);
            match &ended {
                Ok(0..) => endpoints::count(id, age, Ended::WithValues),
                Ok(_) => endpoints::count(id, age, Ended::WithError),
                Err(Failure::Cancelled) => {}
                Err(_) => endpoints::count(id, age, Ended::Refused),
            }
            ended
        });
        calls::give_objects(l, returned)
    }
}

/// `(endpoint, obj) -> obj`: the key of a call. Several paths make an array.
unsafe extern "C-unwind" fn endpoint_key(l: *mut lua_State) -> c_int {
    // SAFETY: Lua calls it with its own state, on TX.
    unsafe {
        object::prepare(l, 2);
        let found = guard::run(|| {
            let stack = Stack(l);
            let id = stack.index(1, "endpoint")?;
            let args = arguments(&stack)?;
            let mut bytes = RUNTIME.with(|runtime| runtime.buffers.take());
            bytes.clear();
            endpoints::write_key(id, args, &mut bytes)?;
            // One value, though it was written by itself.
            hold(bytes);
            Ok(1)
        });
        calls::give_objects(l, found)
    }
}

/// `(obj, path) -> obj`, or nil where the path leads nowhere, or to nil.
unsafe extern "C-unwind" fn extract(l: *mut lua_State) -> c_int {
    // SAFETY: Lua calls it with its own state, on TX.
    unsafe {
        object::prepare(l, 1);
        let found = guard::run(|| {
            let stack = Stack(l);
            let value = object::bytes(l, 1)
                .filter(|_| object::support().0)
                .ok_or_else(|| Failure::arguments("extract: expected a msgpack.object and a path"))?;
            let text = stack.string(2, "extract: path")?;
            let path = Inline::new(text).map_err(|fault| {
                Failure::arguments(format!("extract: path '{}': {fault}", key::short(text)))
            })?;
            let span = span_at(&path, value);
            // A tuple in the way, or in what is found: its fields are elsewhere in the object, and would be lost.
            let (has_tuples, is_plain) = match span {
                Ok((_, met)) => (met.tuples, !met.extensions),
                Err(why) => (why == Lost::Not(Kind::Ext), false),
            };
            if has_tuples && let Some(without) = key::without_tuples(value) {
                let span = span_at(&path, &without).map(|(span, _)| span.to_vec());
                return Ok((hold(span.unwrap_or_default()), false));
            }
            let span: &[u8] = span.map(|(span, _)| span).unwrap_or_default();
            Ok(((span.as_ptr(), span.len()), is_plain))
        });
        match found {
            End::Done(((data, len), is_plain)) => {
                let is_nil = len == 0 || len == 1 && *data == 0xc0;
                // The object given, or what `prepare` left, keeps the bytes; else they are held.
                if is_nil || !object::push(l, data, len, is_plain) {
                    lua::lua_pushnil(l);
                }
                1
            }
            _ => guard::raise(l),
        }
    }
}

/// The bytes of what is at `path` in `value`, and what is in it.
fn span_at<'a>(path: &Inline<'_>, value: &'a [u8]) -> Result<(&'a [u8], Met), Lost> {
    let mut cursor = Cursor::new(value);
    path.walk(&mut cursor).map_err(|stray| stray.why)?;
    cursor.walked().map_err(Lost::Broken)
}

/// Keeps a value until the next native call. Gives where it lies.
fn hold(bytes: Vec<u8>) -> (*const u8, usize) {
    RUNTIME.with(|runtime| {
        let Runtime { held, buffers, .. } = runtime;
        let end = bytes.len();
        held.hold(Reply::new(NOBODY, Outcome::Values, bytes, 0, end, 1), buffers);
        let values = held.reply().map(|reply| reply.values()).unwrap_or_default();
        (values.as_ptr(), values.len())
    })
}

/// `(obj, is_strcrc32, rules) -> hash`: -1 if only decoding can tell, -2 for nil. Raises for what the host must not decode.
unsafe extern "C-unwind" fn hash_object(l: *mut lua_State) -> c_int {
    // SAFETY: Lua calls it with its own state, on TX.
    unsafe {
        object::prepare(l, 1);
        let hash = guard::run(|| {
            let value = object::bytes(l, 1).ok_or_else(|| Failure::arguments("expected a msgpack.object"))?;
            let hash = if lua::lua_toboolean(l, 2) != 0 { Hash::StrCrc32 } else { Hash::MpCrc32 };
            let rules = Rules::from_bits(Stack(l).number(3, "rules")? as u32);
            let mut hasher = Hasher::new(hash, rules);
            Ok(match hasher.key(&mut Cursor::new(value)) {
                Ok(()) => i64::from(hasher.finish()),
                Err(Unhashable::Nil) => -2,
                Err(_) => {
                    fit::fit_for_host(value, endpoints::MAX_DEPTH).map_err(|why| {
                        Failure::arguments(format!("a sharding key {}", endpoints::unfit(why)))
                    })?;
                    -1
                }
            })
        });
        calls::finish(l, hash)
    }
}

/// The arguments of an endpoint's function.
fn arguments<'a>(stack: &Stack) -> Result<&'a [u8], Failure> {
    // SAFETY: on TX; the object stays on the stack, and who gets the bytes copies them before the fiber yields.
    let found = unsafe { object::bytes(stack.0, 2) }.filter(|_| object::support().0);
    match found {
        Some(args) if Cursor::new(args).peek() == Ok(Kind::Array) => Ok(args),
        _ => Err(Failure::arguments(
            "expected the arguments as one msgpack.object, as takes_raw_args gives it",
        )),
    }
}
