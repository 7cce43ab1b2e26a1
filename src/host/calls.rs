//! The natives that wait: raw C functions on the state they are given, since the fiber yields inside them.
//!
//! Each has the same shape: what may raise before, then Rust under [`guard::run`], then what may raise after. No frame
//! of this file has anything to drop while Lua is called.

use std::ffi::{CStr, c_int};
use std::time::Duration;

use super::cfunc;
use super::completion;
use super::failure::Failure;
use super::guard::{self, End};
use super::object;
use super::park::{self, Call, Recipient};
use super::result::{self, Held};
use super::runtime::{RUNTIME, Runtime};
use super::sys::{lua, lua_State};
use super::waiters::NOBODY;
use crate::call::raw_args::append_args;
use crate::call::request::{Access, Body, Mode, Outcome, Reply, Target, Token};
use crate::error::box_code;
use crate::ids::{BucketId, InstanceIdx, ReplicasetIdx};
use crate::wire::fit::{self, Unfit};
use crate::wire::mp::Cursor;
use crate::wire::vshard;

/// Name and function of each.
pub const FUNCTIONS: &[(&CStr, lua::lua_CFunction)] = &[
    (c"call_bucket", call_bucket),
    (c"call_replicaset", call_replicaset),
    (c"call_instance", call_instance),
    (c"route", route),
    (c"callraw", callraw),
    (c"prepare", prepare),
    (c"result_fault", result_fault),
    (c"begin_reading", begin_reading),
    (c"release", release),
    (c"raw_array", raw_array),
    (c"raw_value", raw_value),
];

/// `(id, bucket, flags, func, args, args_len, timeout, request_timeout) -> n`
unsafe extern "C-unwind" fn call_bucket(l: *mut lua_State) -> c_int {
    // SAFETY: Lua calls it with its own state, on TX.
    unsafe {
        object::prepare(l, 5);
        finish(l, guard::run(|| hold(ask_bucket(&Stack(l), Recipient::Fiber)?)))
    }
}

/// `(id, rs, flags, func, args, args_len, timeout, request_timeout) -> n`
unsafe extern "C-unwind" fn call_replicaset(l: *mut lua_State) -> c_int {
    // SAFETY: Lua calls it with its own state, on TX.
    unsafe {
        object::prepare(l, 5);
        finish(l, guard::run(|| hold(ask_replicaset(&Stack(l), Recipient::Fiber)?)))
    }
}

/// `(id, rs, i, func, args, args_len, timeout) -> n`
unsafe extern "C-unwind" fn call_instance(l: *mut lua_State) -> c_int {
    // SAFETY: Lua calls it with its own state, on TX.
    unsafe {
        object::prepare(l, 5);
        finish(l, guard::run(|| hold(ask_instance(&Stack(l), Recipient::Fiber)?)))
    }
}

/// Sends the call that the arguments of `call_bucket` describe.
pub fn ask_bucket(stack: &Stack, recipient: Recipient) -> Result<Token, Failure> {
    let router = stack.index(1, "id")?;
    let access = stack.access(3)?;
    let bucket = bucket(router, stack.number(2, "bucket_id")?)?;
    let (func, args) = (stack.string(4, "func")?, stack.args(5)?);
    let call = Call {
        router,
        target: Target::Bucket(bucket),
        access,
        timeout: stack.time(7)?,
        attempt_timeout: stack.time(8)?,
    };
    park::post(call, recipient, |buffer| {
        let mut body = Body::storage_call(buffer, func, b"");
        append(args, &mut body)?;
        Ok(body)
    })
}

/// Sends the call that the arguments of `call_replicaset` describe.
pub fn ask_replicaset(stack: &Stack, recipient: Recipient) -> Result<Token, Failure> {
    let router = stack.index(1, "id")?;
    let target = Target::Replicaset(replicaset(router, stack.index(2, "rs")?)?);
    let (func, args) = (stack.name(4)?, stack.args(5)?);
    let call = Call {
        router,
        target,
        access: stack.access(3)?,
        timeout: stack.time(7)?,
        attempt_timeout: stack.time(8)?,
    };
    park::post(call, recipient, |buffer| plain_call(buffer, func, args))
}

/// Sends the call that the arguments of `call_instance` describe.
pub fn ask_instance(stack: &Stack, recipient: Recipient) -> Result<Token, Failure> {
    let router = stack.index(1, "id")?;
    let target = Target::Instance(instance(router, stack.index(2, "rs")?, stack.index(3, "i")?)?);
    let (func, args) = (stack.name(4)?, stack.args(5)?);
    let call = Call { router, target, access: Access::RW, timeout: stack.time(7)?, attempt_timeout: None };
    park::post(call, recipient, |buffer| plain_call(buffer, func, args))
}

/// `(id, bucket, timeout) -> rs | -1`
unsafe extern "C-unwind" fn route(l: *mut lua_State) -> c_int {
    // SAFETY: Lua calls it with its own state, on TX.
    unsafe {
        let n = guard::run(|| {
            let stack = Stack(l);
            let router = stack.index(1, "id")?;
            let call = Call {
                router,
                target: Target::Route(bucket(router, stack.number(2, "bucket_id")?)?),
                access: Access::RW,
                timeout: stack.time(3)?,
                attempt_timeout: None,
            };
            let token = park::post(call, Recipient::Fiber, |buffer| Ok(Body::empty(buffer)))?;
            if hold(token)? < 0 {
                return Ok(-1);
            }
            owner(router)
        });
        finish(l, n)
    }
}

/// `(obj) -> values…`, or `nil, err`
unsafe extern "C-unwind" fn callraw(l: *mut lua_State) -> c_int {
    // SAFETY: Lua calls it with its own state, on TX.
    unsafe {
        object::prepare(l, 1);
        let returned = guard::run(|| {
            if !object::support().0 {
                return Err(Failure::state("callraw: msgpack.object needs Tarantool 2.10 or newer"));
            }
            let Some(bytes) = object::bytes(l, 1) else {
                return Err(Failure::arguments(
                    "callraw: expected one msgpack.object, as takes_raw_args gives it",
                ));
            };
            hold(cfunc::post(bytes)?)
        });
        give_objects(l, returned)
    }
}

/// Returns the values that are held as objects, `count` of them; for -1 nil and the error.
///
/// # Safety
/// As [`guard::raise`].
pub unsafe fn give_objects(l: *mut lua_State, returned: End<i64>) -> c_int {
    // SAFETY: the caller's promise; `End` is plain data.
    unsafe {
        let End::Done(count) = returned else { return finish(l, returned) };
        lua::lua_settop(l, 0);
        if count >= 0 {
            // `push` needs three slots more.
            let fits = count <= MOST_VALUES && lua::lua_checkstack(l, count as c_int + 4) != 0;
            if fits && push_values(l) {
                return lua::lua_gettop(l);
            }
            // The function has run, so nothing is raised: the call ends as one that has failed.
            hold_error(l, if fits { NO_OBJECT } else { TOO_MANY });
            lua::lua_settop(l, 0);
        }
        lua::lua_pushnil(l);
        if !push_values(l) {
            // An error that came as bytes may have in it what the host refuses.
            hold_error(l, NO_OBJECT);
            lua::lua_settop(l, 1);
            push_values(l);
        }
        lua::lua_gettop(l)
    }
}

const NO_OBJECT: &str =
    "The host does not make a msgpack.object of the result: a MessagePack extension in it is damaged";
const TOO_MANY: &str = "The result has too many values for Lua's stack";

/// `() -> nothing`. Starts what the first call would start: that switches fibers, which a call that gives a future must not do.
unsafe extern "C-unwind" fn prepare(l: *mut lua_State) -> c_int {
    let done = guard::run(completion::ensure);
    // SAFETY: Lua calls it with its own state, on TX.
    if let End::Done(()) = done { 0 } else { unsafe { guard::raise(l) } }
}

/// `() -> nothing`. What the caller's own call has shown is shown.
unsafe extern "C-unwind" fn begin_reading(_: *mut lua_State) -> c_int {
    let _ = guard::run(|| {
        RUNTIME.with(|runtime| runtime.held.begin_reading());
        Ok(())
    });
    0
}

/// `() -> nothing`
unsafe extern "C-unwind" fn release(_: *mut lua_State) -> c_int {
    let _ = guard::run(|| {
        RUNTIME.with(|runtime| {
            let Runtime { held, buffers, .. } = runtime;
            held.release(buffers);
        });
        Ok(())
    });
    0
}

/// `() -> object` of all values that are shown, in one array. Or `nil, err`: the host may look closer than we do and refuse it,
/// and the function was executed.
unsafe extern "C-unwind" fn raw_array(l: *mut lua_State) -> c_int {
    // SAFETY: Lua calls it with its own state, on TX.
    unsafe { give_object(l, Held::array) }
}

/// `() -> object` of the only value that is shown, or `nil, err`.
unsafe extern "C-unwind" fn raw_value(l: *mut lua_State) -> c_int {
    // SAFETY: Lua calls it with its own state, on TX.
    unsafe { give_object(l, Held::values) }
}

/// # Safety
/// As [`guard::raise`].
unsafe fn give_object(l: *mut lua_State, part: fn(&Held) -> &[u8]) -> c_int {
    // SAFETY: the caller's promise. What is shown stays until the next fiber runs, whatever finalizers ask for meanwhile.
    unsafe {
        let shown = guard::run(|| {
            Ok(RUNTIME.with(|runtime| {
                runtime.held.begin_reading();
                let bytes = part(&runtime.held);
                (bytes.as_ptr(), bytes.len(), runtime.held.is_plain())
            }))
        });
        let End::Done((data, len, is_plain)) = shown else { return guard::raise(l) };
        lua::lua_settop(l, 0);
        lua::lua_pushnil(l);
        let made = object::push(l, data, len, is_plain);
        if len > result::BIG {
            release(l);
        }
        if made { 1 } else { 2 }
    }
}

/// `(levels) -> number`: whether the host may decode the result, and if not, why. Asked for every result: so it is none of
/// mlua's.
unsafe extern "C-unwind" fn result_fault(l: *mut lua_State) -> c_int {
    // SAFETY: Lua calls it with its own state, on TX.
    unsafe {
        let fault = guard::run(|| {
            let levels = Stack(l).number(1, "levels")? as usize;
            // The values' own array is not theirs.
            let fit = RUNTIME.with(|runtime| {
                let Runtime { held, .. } = runtime;
                held.begin_reading();
                // Fewer bytes than levels cannot be too deep.
                if held.is_plain() && held.array().len() <= levels {
                    return Ok(());
                }
                fit::fit_for_host(held.array(), levels.saturating_add(1))
            });
            Ok(match fit {
                Ok(()) => 0,
                Err(Unfit::TooDeep) => 1,
                Err(Unfit::Extension) => 2,
            })
        });
        finish(l, fault)
    }
}

/// Lua's own limit of values on a C function's stack is 8000.
const MOST_VALUES: i64 = 7000;

/// Pushes the held values, nil for each MP_NIL and an object for any other. Whether the host has made all of these.
unsafe fn push_values(l: *mut lua_State) -> bool {
    let held = guard::run(|| {
        Ok(RUNTIME.with(|runtime| {
            let reply = runtime.held.reply()?;
            Some((reply.values().as_ptr(), reply.values().len(), reply.count(), reply.is_plain()))
        }))
    });
    let End::Done(Some((data, len, count, is_plain))) = held else { return true };
    // SAFETY: they stay until the next fiber runs, whatever finalizers ask for meanwhile; making an object yields to nobody.
    let values = unsafe { std::slice::from_raw_parts(data, len) };
    let mut offset = 0;
    while let End::Done(Some(value)) = guard::run(|| Ok(next_value(&values[offset..], count))) {
        offset += value.len();
        // SAFETY: the caller made room.
        unsafe {
            if value == b"\xc0" {
                lua::lua_pushnil(l);
            } else if !object::push(l, value.as_ptr(), value.len(), is_plain) {
                return false;
            }
        }
    }
    true
}

/// The first of the values that are left of `count`.
fn next_value(rest: &[u8], count: u32) -> Option<&[u8]> {
    match count {
        // One value is not walked over to find where it ends.
        1 if !rest.is_empty() => Some(rest),
        _ => Cursor::new(rest).span().ok(),
    }
}

/// Puts an error in the place of the held values.
///
/// # Safety
/// As [`guard::raise`].
unsafe fn hold_error(l: *mut lua_State, text: &str) {
    let done = guard::run(|| {
        RUNTIME.with(|runtime| {
            let Runtime { held, buffers, .. } = runtime;
            let reply = Reply::single(NOBODY, Outcome::Failed, buffers.take(), |out| {
                vshard::write_client_error(out, box_code::INVALID_MSGPACK, text.as_bytes());
            });
            held.hold(reply, buffers);
        });
        Ok(())
    });
    if !matches!(done, End::Done(())) {
        // SAFETY: the caller's promise.
        unsafe { guard::raise(l) };
    }
}

/// Waits for the answer and shows it to Lua.
pub fn hold(token: Token) -> Result<i64, Failure> {
    let reply: Reply = park::wait(token)?;
    let n = match reply.outcome {
        Outcome::Values => i64::from(reply.count()),
        Outcome::Failed | Outcome::Malformed | Outcome::Push => -1,
    };
    RUNTIME.with(|runtime| {
        let Runtime { held, buffers, .. } = runtime;
        held.hold(reply, buffers);
    });
    Ok(n)
}

/// # Safety
/// As [`guard::raise`].
pub unsafe fn finish(l: *mut lua_State, n: End<i64>) -> c_int {
    // SAFETY: `End` is plain data.
    unsafe {
        match n {
            End::Done(n) => {
                lua::lua_pushinteger(l, n as lua::lua_Integer);
                1
            }
            End::Cancelled => object::raise_cancelled(l),
            End::Failed => guard::raise(l),
        }
    }
}

fn plain_call(buffer: Vec<u8>, func: &str, args: &[u8]) -> Result<Body, Failure> {
    let mut body = Body::call(buffer, func, b"");
    append(args, &mut body)?;
    Ok(body)
}

fn append(args: &[u8], body: &mut Body) -> Result<(), Failure> {
    append_args(args, &mut body.0)
        .map_err(|fault| Failure::arguments(format!("rawshard: arguments: {fault}")))
}

fn bucket(router: u32, number: f64) -> Result<BucketId, Failure> {
    let count = RUNTIME.with(|runtime| Ok::<_, Failure>(runtime.routers.get(router)?.bucket_count))?;
    // The cast saturates, and what it saturates to is out of range.
    let id = (number.fract() == 0.0 && number > 0.0).then_some(number as u64);
    id.and_then(|id| BucketId::new(id, count)).ok_or_else(|| {
        Failure::arguments(format!("bucket_id must be an integer from 1 to {count}, got {number}"))
    })
}

/// The replicaset at a position of the newest configuration, counted from 1.
fn replicaset(router: u32, position: u32) -> Result<ReplicasetIdx, Failure> {
    RUNTIME.with(|runtime| {
        let topology = runtime.routers.get(router)?.router.topology();
        let idx = topology.order.get(position as usize - 1).copied();
        idx.ok_or_else(|| Failure::state(format!("rawshard: there is no replicaset {position}")))
    })
}

fn instance(router: u32, position: u32, i: u32) -> Result<InstanceIdx, Failure> {
    RUNTIME.with(|runtime| {
        let topology = runtime.routers.get(router)?.router.topology();
        let replicaset = topology.order.get(position as usize - 1).and_then(|idx| topology.replicaset(*idx));
        let idx = replicaset.and_then(|replicaset| replicaset.instances.get(i as usize - 1).copied());
        idx.ok_or_else(|| {
            Failure::state(format!("rawshard: there is no instance {i} in replicaset {position}"))
        })
    })
}

/// The position of the replicaset that the held answer to [`Target::Route`] names.
fn owner(router: u32) -> Result<i64, Failure> {
    RUNTIME.with(|runtime| {
        let reply = runtime.held.reply().map(|reply| reply.values()).unwrap_or_default();
        let idx =
            Cursor::new(reply).uint().map_err(|fault| Failure::state(format!("rawshard: route: {fault}")))?;
        let topology = runtime.routers.get(router)?.router.topology();
        let position = topology.order.iter().position(|live| u64::from(live.0) == idx);
        position
            .map(|position| position as i64 + 1)
            .ok_or_else(|| Failure::state("rawshard: the bucket's replicaset is not configured any more"))
    })
}

/// A C function's arguments. Nothing here raises.
pub struct Stack(pub *mut lua_State);

impl Stack {
    fn kind(&self, index: c_int) -> c_int {
        // SAFETY: the state is the caller's own; any index may be asked for.
        unsafe { lua::lua_type(self.0, index) }
    }

    pub fn is_nil(&self, index: c_int) -> bool {
        matches!(self.kind(index), lua::LUA_TNIL | lua::LUA_TNONE)
    }

    pub fn number(&self, index: c_int, what: &str) -> Result<f64, Failure> {
        if self.kind(index) != lua::LUA_TNUMBER {
            return Err(Failure::arguments(format!("{what} must be a number")));
        }
        // SAFETY: it is a number, so nothing is converted.
        Ok(unsafe { lua::lua_tonumber(self.0, index) })
    }

    /// A position, counted from 1.
    pub fn index(&self, index: c_int, what: &str) -> Result<u32, Failure> {
        let number = self.number(index, what)?;
        if number.fract() == 0.0 && (1.0..=f64::from(u32::MAX)).contains(&number) {
            return Ok(number as u32);
        }
        Err(Failure::arguments(format!("{what} must be a positive integer, got {number}")))
    }

    /// Seconds, None for nil. What is not positive, NaN included, is no time at all.
    pub fn time(&self, index: c_int) -> Result<Option<Duration>, Failure> {
        if self.is_nil(index) {
            return Ok(None);
        }
        let seconds = self.number(index, "timeout")?;
        if seconds > 0.0 {
            return Ok(Some(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)));
        }
        Ok(Some(Duration::ZERO))
    }

    fn access(&self, index: c_int) -> Result<Access, Failure> {
        let flags = self.number(index, "flags")? as u32;
        let mode = if flags & 1 != 0 { Mode::Read } else { Mode::Write };
        Ok(Access { mode, prefer_replica: flags & 2 != 0, balance: flags & 4 != 0 })
    }

    /// Bytes of a string; they stay while it is on the stack.
    pub fn string(&self, index: c_int, what: &str) -> Result<&[u8], Failure> {
        if self.kind(index) != lua::LUA_TSTRING {
            return Err(Failure::arguments(format!("{what} must be a string")));
        }
        let mut len = 0;
        // SAFETY: it is a string, so nothing is converted.
        Ok(unsafe { std::slice::from_raw_parts(lua::lua_tolstring(self.0, index, &mut len).cast(), len) })
    }

    fn name(&self, index: c_int) -> Result<&str, Failure> {
        std::str::from_utf8(self.string(index, "func")?)
            .map_err(|_| Failure::arguments("func must be valid UTF-8"))
    }

    /// A MessagePack array: of an object, or behind a pointer or in an ibuf, whose length follows.
    fn args(&self, index: c_int) -> Result<&[u8], Failure> {
        if self.is_nil(index) {
            return Ok(b"\x90");
        }
        // SAFETY: on TX; the caller vouches for the length that it gives with a pointer.
        let found = unsafe {
            match object::bytes(self.0, index) {
                Some(bytes) => Some(bytes),
                None => object::pointed(self.0, index, self.len(index + 1)?),
            }
        };
        found.ok_or_else(|| {
            Failure::arguments(
                "args must be nil, a msgpack.object, or a pointer to or an ibuf of MessagePack",
            )
        })
    }

    fn len(&self, index: c_int) -> Result<usize, Failure> {
        if self.is_nil(index) { Ok(0) } else { Ok(self.number(index, "args_len")? as usize) }
    }
}
