//! Around every entry from the host: panics end here, and failures become errors of the host.
//!
//! A Rust panic that reaches C or LuaJIT aborts the process, and so does a Lua error that meets `catch_unwind`. So Rust
//! code runs inside [`run`], calls into Lua happen outside of it, in frames that have nothing to drop.

use std::ffi::{c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::failure::Failure;
use super::sys::{self, lua, lua_State};
use super::tx::TxCell;

/// What a failed entry has to tell. It stays until the next one, so that raising it drops nothing.
static LAST: TxCell<Last> = TxCell::new(Last { code: 0, text: Vec::new() });

struct Last {
    code: u32,
    /// Ends with a NUL, holds no other.
    text: Vec<u8>,
}

/// How an entry ended. Plain data: it is alive while Lua errors are raised.
#[derive(Clone, Copy)]
pub enum End<T: Copy> {
    Done(T),
    Cancelled,
    /// The text is in [`LAST`].
    Failed,
}

/// Runs `f`, which may yield, but may call Lua under protection only (`lua_cpcall`, mlua).
pub fn run<T: Copy>(f: impl FnOnce() -> Result<T, Failure>) -> End<T> {
    let failure = match catch_unwind(AssertUnwindSafe(f)) {
        Ok(Ok(value)) => return End::Done(value),
        Ok(Err(failure)) => failure,
        Err(payload) => Failure::panic(&*payload),
    };
    let stored = catch_unwind(|| {
        LAST.with(|last| {
            last.code = failure.code();
            last.text.clear();
            last.text.extend(failure.text_for_host());
            last.text.push(0);
        });
    });
    match failure {
        Failure::Cancelled if stored.is_ok() => End::Cancelled,
        _ => End::Failed,
    }
}

/// The entry of a stored function: 0, or -1 with the error set in the fiber's diagnostics area.
pub fn stored(f: impl FnOnce() -> Result<(), Failure>) -> c_int {
    match run(f) {
        End::Done(()) => 0,
        End::Cancelled | End::Failed => set_error(),
    }
}

fn set_error() -> c_int {
    let (code, text) = last();
    // SAFETY: the strings end with NUL; the format takes one of them. The host copies the text.
    unsafe { sys::box_error_set(c"rawshard".as_ptr(), 0, code, c"%s".as_ptr(), text) }
}

/// Raises the last failure as a Lua string.
///
/// # Safety
/// On the TX thread, on the state that the caller was given; no frame up to the Lua function that called may have
/// anything to drop.
pub unsafe fn raise(l: *mut lua_State) -> c_int {
    let (_, text) = last();
    // SAFETY: `text` ends with NUL and stays as it is; the rest is the caller's promise.
    unsafe {
        lua::lua_pushstring(l, text);
        lua::lua_error(l)
    }
}

fn last() -> (u32, *const c_char) {
    // Called right after a failure on this thread, or, if even storing that failed, with nothing to show.
    let stored = catch_unwind(|| LAST.with(|last| (last.code, last.text.as_ptr(), last.text.is_empty())));
    match stored {
        Ok((code, text, false)) => (code, text.cast()),
        _ => (Failure::state("").code(), c"rawshard: called outside of the TX thread".as_ptr()),
    }
}
