//! The floors of the benches: C stored functions that return bytes and do nothing else.
//!
//! What Tarantool itself spends on receiving a CALL, running a C function and sending its answer is the least that any
//! router behind a C stored function can cost. `echo` measures that with the payload of the request, `fixed` with a
//! small request and the payload of the answer (for workloads whose result is bigger than their arguments).
//! `park` lets its fiber wait for one turn of the event loop before it echoes: whoever asks somebody else for the answer has to
//! do at least that. `handed` returns bytes that another thread has just written: an answer that a network thread has read lies
//! in that thread's caches, and whoever returns it waits for each line of them.
//!
//! All functions run in the TX thread only.

use std::cell::UnsafeCell;
use std::ffi::{c_char, c_int};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Opaque: the host's context of one call.
#[repr(C)]
pub struct Ctx {
    _private: [u8; 0],
}

unsafe extern "C" {
    fn box_return_mp(ctx: *mut Ctx, mp: *const c_char, mp_end: *const c_char) -> c_int;
    fn fiber_reschedule();
}

/// Returns its argument array as one value.
///
/// # Safety
/// Called by the host, with `args..args_end` readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn echo(ctx: *mut Ctx, args: *const c_char, args_end: *const c_char) -> c_int {
    // SAFETY: the host's own pointers, handed straight back.
    unsafe { box_return_mp(ctx, args, args_end) }
}

/// Returns its argument array as one value, after other fibers had their turn.
///
/// # Safety
/// Called by the host in a fiber of the TX thread, with `args..args_end` readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn park(ctx: *mut Ctx, args: *const c_char, args_end: *const c_char) -> c_int {
    // SAFETY: the host promises a readable range. It lies in the connection's input, which is released at the first
    // yield: hence the copy.
    let copy = unsafe {
        let len = args_end.offset_from(args) as usize;
        std::slice::from_raw_parts(args, len).to_vec()
    };
    let range = copy.as_ptr_range();
    // SAFETY: we are in a fiber; the copy outlives both calls.
    unsafe {
        fiber_reschedule();
        box_return_mp(ctx, range.start, range.end)
    }
}

/// Remembers its only argument; `fixed` returns it from now on.
///
/// # Safety
/// Called by the host in the TX thread, with `args..args_end` readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn set_fixed(_: *mut Ctx, args: *const c_char, args_end: *const c_char) -> c_int {
    // SAFETY: the host promises a readable range.
    let bytes = unsafe {
        let len = args_end.offset_from(args) as usize;
        std::slice::from_raw_parts(args.cast::<u8>(), len)
    };
    // An array of one: a header of one byte, then the argument.
    if bytes.first() != Some(&0x91) {
        return -1;
    }
    // SAFETY: TX only, and nothing holds a reference across a call.
    unsafe { *FIXED.0.get() = bytes[1..].to_vec() };
    0
}

/// Returns the value that `set_fixed` was given, whatever its own arguments are.
///
/// # Safety
/// Called by the host in the TX thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fixed(ctx: *mut Ctx, _: *const c_char, _: *const c_char) -> c_int {
    // SAFETY: TX only; box_return_mp copies the bytes before it returns.
    unsafe {
        let bytes = &*FIXED.0.get();
        if bytes.is_empty() {
            return 0;
        }
        let range = bytes.as_ptr_range();
        box_return_mp(ctx, range.start.cast(), range.end.cast())
    }
}

/// Has another thread write copies of the only argument, for `handed`.
///
/// # Safety
/// Called by the host in the TX thread, once, with `args..args_end` readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn set_handed(_: *mut Ctx, args: *const c_char, args_end: *const c_char) -> c_int {
    // SAFETY: the host promises a readable range.
    let bytes = unsafe {
        let len = args_end.offset_from(args) as usize;
        std::slice::from_raw_parts(args.cast::<u8>(), len)
    };
    // An array of one: a header of one byte, then the argument.
    if bytes.first() != Some(&0x91) {
        return -1;
    }
    let value = bytes[1..].to_vec();
    // It ends with the process.
    match std::thread::Builder::new().name("writer".into()).spawn(move || write_copies(&value)) {
        Ok(_) => 0,
        Err(_) => -1,
    }
}

/// Returns a copy that the other thread has written since the last call, the same bytes as `fixed`.
///
/// # Safety
/// Called by the host in the TX thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn handed(ctx: *mut Ctx, _: *const c_char, _: *const c_char) -> c_int {
    let at = TAKEN.load(Ordering::Relaxed);
    // Waits for the writer where it is behind: that is not what is to be measured, and it is rare.
    while WRITTEN.load(Ordering::Acquire) == at {
        std::hint::spin_loop();
    }
    let Ok(copy) = COPIES[at % COPIES.len()].lock() else { return -1 };
    let range = copy.as_ptr_range();
    // SAFETY: box_return_mp copies the bytes before it returns, and the lock keeps the writer away.
    let returned = unsafe { box_return_mp(ctx, range.start.cast(), range.end.cast()) };
    TAKEN.store(at + 1, Ordering::Release);
    returned
}

/// Keeps all places filled, in turn.
fn write_copies(value: &[u8]) {
    loop {
        let at = WRITTEN.load(Ordering::Relaxed);
        if at - TAKEN.load(Ordering::Acquire) == COPIES.len() {
            std::thread::sleep(Duration::from_micros(20));
            continue;
        }
        if let Ok(mut copy) = COPIES[at % COPIES.len()].lock() {
            copy.clear();
            copy.extend_from_slice(value);
        }
        WRITTEN.store(at + 1, Ordering::Release);
    }
}

/// As many as calls that a router has under way in the benches.
static COPIES: [Mutex<Vec<u8>>; 2048] = [const { Mutex::new(Vec::new()) }; 2048];
static WRITTEN: AtomicUsize = AtomicUsize::new(0);
static TAKEN: AtomicUsize = AtomicUsize::new(0);

struct TxOnly(UnsafeCell<Vec<u8>>);

// SAFETY: only the TX thread calls the functions above.
unsafe impl Sync for TxOnly {}

static FIXED: TxOnly = TxOnly(UnsafeCell::new(Vec::new()));
