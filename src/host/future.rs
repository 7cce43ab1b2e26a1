//! Futures as Lua sees them: a userdata that holds the key of a slot, nothing else. What there is to know of the call is
//! in the slot (`waiters.rs`); the methods are Lua's (`lua/rawshard/future.lua`), over the functions of this file.

use std::ffi::{CStr, c_int};
use std::panic::catch_unwind;
use std::time::Duration;

use super::calls::{self, Stack};
use super::failure::Failure;
use super::guard::{self, End};
use super::object;
use super::park::{self, Recipient};
use super::runtime::{RUNTIME, Runtime};
use super::sys::{lua, lua_State};
use super::tx::TxCell;
use super::waiters::{NOBODY, Sight};
use crate::call::request::{Outcome, Token};
use crate::wire::mp::Cursor;

/// Name and function of each.
pub const FUNCTIONS: &[(&CStr, lua::lua_CFunction)] = &[
    (c"future_bucket", future_bucket),
    (c"future_replicaset", future_replicaset),
    (c"future_instance", future_instance),
    (c"future_is_ready", is_ready),
    (c"future_result", result),
    (c"future_wait", wait),
    (c"future_wait_push", wait_push),
    (c"future_take_push", take_push),
    (c"future_discard", discard),
    (c"future_detach", detach),
];

/// Where Lua's registry keeps the metatable of all futures. Lua gives it methods.
pub const METATABLE: &CStr = c"rawshard.future";

/// The metatable's address and its reference.
static HOST: TxCell<(usize, c_int)> = TxCell::new((0, lua::LUA_NOREF));

/// Instead of a count of values.
const FAILED: i64 = -1;
const NOT_READY: i64 = -2;
const DISCARDED: i64 = -3;
const STOPPED: i64 = -4;
/// The value that is wanted follows: it needs no decoder.
const SCALAR: i64 = -5;
/// Something pushed is shown.
const PUSHED: i64 = -6;

/// The shape of which only the first value is wanted, decoded.
const FIRST: u8 = 0;

/// The host's decoder makes cdata of integers from here on.
const SMALL: u64 = 100_000_000_000_000;

/// Makes the metatable.
///
/// # Safety
/// On TX, with a Lua state whose callers up to Lua have nothing to drop: any step may raise.
pub unsafe fn setup(l: *mut lua_State) {
    // SAFETY: the stack is balanced; the caller's promise covers errors.
    unsafe {
        lua::luaL_newmetatable(l, METATABLE.as_ptr());
        lua::lua_pushcclosure(l, collect, 0);
        lua::lua_setfield(l, -2, c"__gc".as_ptr());
        let address = lua::lua_topointer(l, -1).addr();
        let reference = lua::luaL_ref(l, lua::LUA_REGISTRYINDEX);
        HOST.with(|host| *host = (address, reference));
    }
}

/// `(id, bucket, flags, func, args, args_len, timeout, request_timeout, shape) -> future`
unsafe extern "C-unwind" fn future_bucket(l: *mut lua_State) -> c_int {
    // SAFETY: Lua calls it with its own state, on TX.
    unsafe { start(l, 9, calls::ask_bucket) }
}

/// `(id, rs, flags, func, args, args_len, timeout, request_timeout, shape) -> future`
unsafe extern "C-unwind" fn future_replicaset(l: *mut lua_State) -> c_int {
    // SAFETY: Lua calls it with its own state, on TX.
    unsafe { start(l, 9, calls::ask_replicaset) }
}

/// `(id, rs, i, func, args, args_len, timeout, shape) -> future`
unsafe extern "C-unwind" fn future_instance(l: *mut lua_State) -> c_int {
    // SAFETY: Lua calls it with its own state, on TX.
    unsafe { start(l, 8, calls::ask_instance) }
}

/// Makes a future of the call that the `arity` arguments describe; the last one is the shape.
///
/// # Safety
/// As [`setup`].
unsafe fn start(
    l: *mut lua_State,
    arity: c_int,
    ask: fn(&Stack, Recipient) -> Result<Token, Failure>,
) -> c_int {
    // SAFETY: a C function has 20 slots of the stack. The cell is the userdata's own, which stays on the stack.
    unsafe {
        lua::lua_settop(l, arity);
        object::prepare(l, 5);
        // Before the call is sent: making it may raise, and then nobody would have the call.
        let cell: *mut Token = lua::lua_newuserdata(l, size_of::<Token>()).cast();
        cell.write(NOBODY);
        lua::lua_rawgeti(l, lua::LUA_REGISTRYINDEX, HOST.with(|host| host.1).into());
        lua::lua_setmetatable(l, -2);
        let asked = guard::run(|| {
            let stack = Stack(l);
            ask(&stack, Recipient::Future(stack.number(arity, "shape")? as u8))
        });
        let End::Done(token) = asked else { return calls::finish(l, End::Failed) };
        cell.write(token);
        // The collector does not know what futures hold. A step of n KB is the work for n KB of garbage; four times that, so
        // that its next cycle ends before much more has come.
        if let End::Done(Some(bytes)) = guard::run(|| Ok(RUNTIME.with(|runtime| runtime.waiters.pressure())))
        {
            lua::lua_gc(l, lua::LUA_GCSTEP, (bytes >> 8) as c_int);
        }
        1
    }
}

/// `(future) -> boolean`
unsafe extern "C-unwind" fn is_ready(l: *mut lua_State) -> c_int {
    // SAFETY: Lua calls it with its own state, on TX.
    unsafe {
        let ready = guard::run(|| {
            let token = token(l)?;
            Ok(RUNTIME.with(|runtime| !matches!(runtime.waiters.look(token), Sight::Pending)))
        });
        let End::Done(ready) = ready else { return guard::raise(l) };
        lua::lua_pushboolean(l, ready.into());
        1
    }
}

/// `(future) -> n, shape, value`; n is negative where there are no values to decode.
unsafe extern "C-unwind" fn result(l: *mut lua_State) -> c_int {
    // SAFETY: Lua calls it with its own state, on TX.
    unsafe { give(l, guard::run(|| Ok(show(token(l)?)))) }
}

/// `(future, timeout) -> n, shape, value`, the same when it has ended or the time is over. Yields.
unsafe extern "C-unwind" fn wait(l: *mut lua_State) -> c_int {
    // SAFETY: Lua calls it with its own state, on TX. The future stays on the stack, so that it is not collected.
    unsafe {
        let shown = guard::run(|| {
            let token = token(l)?;
            let timeout: Option<Duration> = Stack(l).time(2)?;
            if RUNTIME.with(|runtime| matches!(runtime.waiters.look(token), Sight::Pending)) {
                park::wait_future(token, usize::MAX, timeout)?;
            }
            Ok(show(token))
        });
        give(l, shown)
    }
}

/// `(future, number, timeout) -> n, shape, value`: as [`wait`], but ends with the push of this number, counted from 1, if there
/// is one. Yields.
unsafe extern "C-unwind" fn wait_push(l: *mut lua_State) -> c_int {
    // SAFETY: as `wait`.
    unsafe {
        let shown = guard::run(|| {
            let token = token(l)?;
            let number = Stack(l).number(2, "number")? as usize;
            let timeout: Option<Duration> = Stack(l).time(3)?;
            if RUNTIME.with(|runtime| runtime.waiters.pending(token, number).is_some()) {
                park::wait_future(token, number, timeout)?;
            }
            Ok(show_push(token, number).unwrap_or_else(|| show(token)))
        });
        give(l, shown)
    }
}

/// `(future) -> n, shape, value`: the next push, which is taken out of the future, or its end. For whoever has the future alone:
/// if its fiber is cancelled the call is given up. Yields.
unsafe extern "C-unwind" fn take_push(l: *mut lua_State) -> c_int {
    // SAFETY: as `wait`.
    unsafe {
        let shown = guard::run(|| {
            let token = token(l)?;
            if RUNTIME.with(|runtime| runtime.waiters.pending(token, 1).is_some()) {
                park::wait_future(token, 1, None).inspect_err(|_| give_up(token))?;
            }
            Ok(show_taken(token).unwrap_or_else(|| show(token)))
        });
        give(l, shown)
    }
}

/// `(future) -> nothing`
unsafe extern "C-unwind" fn discard(l: *mut lua_State) -> c_int {
    // SAFETY: Lua calls it with its own state, on TX.
    unsafe {
        let done = guard::run(|| {
            give_up(token(l)?);
            Ok(())
        });
        if let End::Done(()) = done { 0 } else { guard::raise(l) }
    }
}

/// `(future) -> nothing`. The call goes on, its answer is dropped; the future counts as discarded.
unsafe extern "C-unwind" fn detach(l: *mut lua_State) -> c_int {
    // SAFETY: Lua calls it with its own state, on TX; the cell is a future's.
    unsafe {
        let done = guard::run(|| {
            let cell = cell(l)?;
            let token = cell.replace(NOBODY);
            RUNTIME.with(|runtime| {
                let Runtime { waiters, held, buffers, .. } = runtime;
                waiters.detach(token, held, buffers);
            });
            Ok(())
        });
        if let End::Done(()) = done { 0 } else { guard::raise(l) }
    }
}

/// `__gc`. Runs inside of any allocation, in any fiber: nothing here yields or calls Lua, and the text of a failure that is
/// about to be raised stays as it is.
unsafe extern "C-unwind" fn collect(l: *mut lua_State) -> c_int {
    // What fails is the runtime being in use, which it is not while Lua runs; a slot would be lost.
    let _ = catch_unwind(|| {
        // SAFETY: the collector gives a future; whoever else calls is told apart.
        let Ok(cell) = (unsafe { cell(l) }) else { return };
        // SAFETY: as above. The key is taken out, should somebody call twice.
        let token = unsafe { cell.replace(NOBODY) };
        let place = RUNTIME.with(|runtime| {
            let Runtime { waiters, held, buffers, .. } = runtime;
            waiters.free(token, held, buffers)
        });
        if let Some(place) = place {
            park::cancel(token, place);
        }
    });
    0
}

/// Nobody wants the answer of a call that has none yet.
fn give_up(token: Token) {
    let place = RUNTIME.with(|runtime| {
        let Runtime { waiters, held, buffers, .. } = runtime;
        waiters.discard(token, held, buffers)
    });
    if let Some(place) = place {
        park::cancel(token, place);
    }
}

/// What a future has to tell. Plain data.
#[derive(Clone, Copy)]
struct Shown {
    /// How many values are shown, or what else.
    n: i64,
    shape: u8,
    scalar: Option<Scalar>,
}

/// A first value that is pushed as it is.
#[derive(Clone, Copy)]
enum Scalar {
    Bool(bool),
    Number(f64),
    /// Bytes in the future's slot.
    Text(*const u8, usize),
}

/// Has Lua see what a future has.
fn show(token: Token) -> Shown {
    RUNTIME.with(|runtime| {
        let Runtime { waiters, held, buffers, .. } = runtime;
        let (n, shape) = match waiters.look(token) {
            Sight::Pending => (NOT_READY, 0),
            Sight::Gone => (DISCARDED, 0),
            Sight::Abandoned => (STOPPED, 0),
            Sight::Answered(reply, shape) => {
                if shape == FIRST
                    && reply.outcome == Outcome::Values
                    && let scalar @ Some(_) = first_scalar(reply.values())
                {
                    return Shown { n: SCALAR, shape, scalar };
                }
                held.show(reply, buffers);
                match reply.outcome {
                    Outcome::Values => (i64::from(reply.count()), shape),
                    Outcome::Failed | Outcome::Malformed | Outcome::Push => (FAILED, shape),
                }
            }
        };
        Shown { n, shape, scalar: None }
    })
}

/// Has Lua see what was pushed to a future.
fn show_push(token: Token, number: usize) -> Option<Shown> {
    RUNTIME.with(|runtime| {
        let Runtime { waiters, held, buffers, .. } = runtime;
        let (reply, shape) = waiters.pushed(token, number)?;
        held.show(reply, buffers);
        Some(Shown { n: PUSHED, shape, scalar: None })
    })
}

/// The same of the first push, which does not stay with the future.
fn show_taken(token: Token) -> Option<Shown> {
    RUNTIME.with(|runtime| {
        let Runtime { waiters, held, buffers, .. } = runtime;
        let (reply, shape) = waiters.take_pushed(token)?;
        held.hold(reply, buffers);
        Some(Shown { n: PUSHED, shape, scalar: None })
    })
}

/// The first value, if decoding it takes no more than looking. Nil is not among them: an error may follow.
fn first_scalar(values: &[u8]) -> Option<Scalar> {
    let mut cursor = Cursor::new(values);
    match *values.first()? {
        0x00..=0x7f | 0xcc..=0xcf => {
            cursor.uint().ok().filter(|n| *n < SMALL).map(|n| Scalar::Number(n as f64))
        }
        n @ 0xe0..=0xff => Some(Scalar::Number(f64::from(n as i8))),
        0xc2 => Some(Scalar::Bool(false)),
        0xc3 => Some(Scalar::Bool(true)),
        0xcb => values.get(1..9)?.try_into().ok().map(|bytes| Scalar::Number(f64::from_be_bytes(bytes))),
        0xa0..=0xbf | 0xd9..=0xdb => cursor.str().ok().map(|text| Scalar::Text(text.as_ptr(), text.len())),
        _ => None,
    }
}

/// # Safety
/// As [`guard::raise`].
unsafe fn give(l: *mut lua_State, shown: End<Shown>) -> c_int {
    // SAFETY: `End` is plain data.
    unsafe {
        match shown {
            End::Done(Shown { n, shape, scalar }) => {
                lua::lua_pushinteger(l, n as lua::lua_Integer);
                lua::lua_pushinteger(l, shape.into());
                match scalar {
                    None => return 2,
                    Some(Scalar::Bool(value)) => lua::lua_pushboolean(l, value.into()),
                    Some(Scalar::Number(value)) => lua::lua_pushnumber(l, value),
                    // The future is on the stack, so that its slot stays.
                    Some(Scalar::Text(data, len)) => lua::lua_pushlstring_(l, data.cast(), len),
                }
                3
            }
            End::Cancelled => object::raise_cancelled(l),
            End::Failed => guard::raise(l),
        }
    }
}

/// # Safety
/// On TX, in a C function of this state.
unsafe fn token(l: *mut lua_State) -> Result<Token, Failure> {
    // SAFETY: the cell is a future's.
    unsafe { cell(l).map(|cell| cell.read()) }
}

/// The key of the future that is the first argument. Never raises.
///
/// # Safety
/// On TX, in a C function of this state.
unsafe fn cell(l: *mut lua_State) -> Result<*mut Token, Failure> {
    // SAFETY: one slot of the stack is used and given back. Only `start` makes userdata with this metatable, which Lua code
    // cannot give to others.
    unsafe {
        if lua::lua_type(l, 1) == lua::LUA_TUSERDATA && lua::lua_getmetatable(l, 1) != 0 {
            let address = lua::lua_topointer(l, -1).addr();
            lua::lua_settop(l, -2);
            if address == HOST.with(|host| host.0) {
                return Ok(lua::lua_touserdata(l, 1).cast());
            }
        }
    }
    Err(Failure::arguments("Use future:method(...) instead of future.method(...)"))
}
