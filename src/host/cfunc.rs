//! The stored function `rawshard.callraw`: argument bytes in, result bytes out, no Lua value on the way.

use std::ffi::{c_char, c_int};

use super::admission;
use super::door;
use super::failure::Failure;
use super::guard;
use super::park;
use super::runtime::RUNTIME;
use super::sys::{self, BoxFunctionCtx};
use super::tx;
use crate::call::request::{Form, Outcome, Reply, Token};
use crate::wire::mp::Cursor;

/// What `box.schema.func.create('rawshard.callraw', {language = 'C'})` finds: usually a second mapping of the library,
/// which has nothing but the way to the first.
///
/// # Safety
/// Called by Tarantool: on TX, with a MessagePack array in `args..end`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn callraw(ctx: *mut BoxFunctionCtx, args: *const c_char, end: *const c_char) -> c_int {
    tx::adopt();
    let mut serve = None;
    let found = guard::stored(|| {
        serve = Some(door::find()?.callraw);
        Ok(())
    });
    match serve {
        // SAFETY: the arguments are passed on as they came.
        Some(serve) => unsafe { serve(ctx, args, end) },
        None => found,
    }
}

/// The same, in the mapping that has the runtime.
///
/// # Safety
/// As [`callraw`].
pub unsafe extern "C" fn serve(ctx: *mut BoxFunctionCtx, args: *const c_char, end: *const c_char) -> c_int {
    guard::stored(|| {
        // The bytes lie in the connection's input buffer, which is gone as soon as the fiber yields.
        // SAFETY: the host gives two ends of one buffer, valid until then; `post` copies what it needs.
        let args = unsafe { std::slice::from_raw_parts(args.cast(), end.offset_from_unsigned(args)) };
        admission::stored_is_entered(args);
        let token = post(args)?;
        let reply = park::wait(token)?;
        let returned = give(ctx, &reply);
        RUNTIME.with(|runtime| runtime.buffers.put(reply.into_buffer()));
        returned
    })
}

/// Sends the call that `bytes` ask of the static router.
pub fn post(bytes: &[u8]) -> Result<Token, Failure> {
    let router = RUNTIME.with(|runtime| {
        let (id, entry) = runtime.static_entry()?;
        if !entry.enabled {
            return Err(Failure::state("Router is disabled: router is disabled explicitly"));
        }
        Ok(id)
    })?;
    park::post_raw(router, Form::Callraw, bytes)
}

/// Returns each value by itself, a failure as nil and the error.
fn give(ctx: *mut BoxFunctionCtx, reply: &Reply) -> Result<(), Failure> {
    if reply.outcome != Outcome::Values {
        give_one(ctx, b"\xc0")?;
    }
    if reply.count() == 1 {
        return give_one(ctx, reply.values());
    }
    let mut values = Cursor::new(reply.values());
    while !values.is_at_end() {
        let value =
            values.span().map_err(|fault| Failure::state(format!("rawshard: bad result: {fault}")))?;
        give_one(ctx, value)?;
    }
    Ok(())
}

fn give_one(ctx: *mut BoxFunctionCtx, value: &[u8]) -> Result<(), Failure> {
    let range = value.as_ptr_range();
    // SAFETY: the host copies the bytes before it returns; `ctx` is the one it gave for this call.
    match unsafe { sys::box_return_mp(ctx, range.start.cast(), range.end.cast()) } {
        0 => Ok(()),
        _ => Err(Failure::state("rawshard: not enough memory for the result")),
    }
}
