//! Calls of `rawshard.callraw` that come by IPROTO and for which no fiber waits.
//!
//! Where the host lets us (`box_iproto_override`, since 2.11), we see each CALL before it is served. One of the stored function
//! is sent on at once, and its fiber goes on to the next request; its answer is sent by another fiber (`answers.rs`). What is
//! saved is what waiting costs: a fiber of its own for each call, whose stack has left the caches when the answer comes.
//!
//! All others, and whatever is unusual about one, are left to the host. So is the first call of each session: the
//! host checks then whether its user may execute the function, and only it knows how. Once the function was entered, the
//! session's further calls are taken, until somebody's rights change (`lua/rawshard/override.lua`).

use std::collections::HashSet;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::hash::{BuildHasherDefault, Hasher};
use std::panic::catch_unwind;
use std::ptr::NonNull;

use super::answers::Remote;
use super::failure::Failure;
use super::guard::{self, End};
use super::iproto::{self, HANDLER_FALLBACK, HANDLER_OK, IPROTO};
use super::park;
use super::runtime::{RUNTIME, Runtime};
use super::sys::{self, Fiber, lua, lua_State};
use super::waiters::Owner;
use crate::call::request::Form;
use crate::wire::iproto::TYPE_CALL;
use crate::wire::serve;

pub struct Direct {
    /// Our handler is the host's.
    installed: bool,
    enabled: bool,
    /// Sessions whose user may execute the function.
    admitted: HashSet<u64, BuildHasherDefault<SessionHasher>>,
    /// The call that the host is checking now.
    asked: Option<Asked>,
    /// Under way.
    in_flight: usize,
    /// Of their arguments.
    bytes: usize,
    /// All that were taken.
    calls: u64,
}

/// A call that was left to the host.
struct Asked {
    session: u64,
    fiber: Option<NonNull<Fiber>>,
    /// Where its arguments begin in the connection's input, and their length. Nobody but the host's own call of the function has
    /// this address.
    args: (usize, usize),
}

/// Beyond these calls are left to the host, which parks a fiber for each and at `net_msg_max` of them reads no further
/// requests.
const MOST_CALLS: usize = 32_768;
const MOST_BYTES: usize = 64 << 20;

/// Sessions that have gone are not told of. With more than this all of them are forgotten.
const MOST_SESSIONS: usize = 100_000;

const FUNCTION: &[u8] = b"rawshard.callraw";

impl Direct {
    pub const fn new() -> Direct {
        Direct {
            installed: false,
            enabled: false,
            admitted: HashSet::with_hasher(BuildHasherDefault::new()),
            asked: None,
            in_flight: 0,
            bytes: 0,
            calls: 0,
        }
    }

    /// The stored function is entered with these arguments: whoever has sent them may execute it.
    pub fn admit(&mut self, args: &[u8]) {
        let Some(asked) = self.asked.take() else { return };
        if asked.args == (args.as_ptr().addr(), args.len()) && asked.is_here() {
            if self.admitted.len() >= MOST_SESSIONS {
                self.admitted.clear();
            }
            self.admitted.insert(asked.session);
        }
    }

    /// Somebody's rights may have changed: all are to be checked anew, or those of one session.
    pub fn forget(&mut self, session: Option<u64>) {
        match session {
            Some(session) => _ = self.admitted.remove(&session),
            None => self.admitted.clear(),
        }
        self.asked = None;
    }

    /// A call that was taken has been answered.
    pub fn ended(&mut self, remote: &Remote) {
        self.in_flight -= 1;
        self.bytes -= remote.bytes as usize;
    }

    /// Whether it is on; calls taken, and under way.
    pub fn counts(&self) -> (bool, u64, usize) {
        (self.enabled && self.installed, self.calls, self.in_flight)
    }
}

impl Asked {
    fn is_here(&self) -> bool {
        let session = IPROTO.with(|iproto| iproto.map(|iproto| iproto.session_id()));
        session == Some(self.session) && current() == self.fiber
    }
}

fn current() -> Option<NonNull<Fiber>> {
    // SAFETY: on TX.
    NonNull::new(unsafe { sys::fiber_self() })
}

/// Name and function of each.
pub const FUNCTIONS: &[(&CStr, lua::lua_CFunction)] = &[(c"direct_enable", direct_enable)];

/// `(is_enabled, wraps) -> nothing`
unsafe extern "C-unwind" fn direct_enable(l: *mut lua_State) -> c_int {
    // SAFETY: Lua calls it with its own state, on TX.
    let (enabled, wraps) = unsafe { (lua::lua_toboolean(l, 1) != 0, lua::lua_toboolean(l, 2) != 0) };
    let done = guard::run(|| enable(enabled, wraps));
    // SAFETY: as above, and there is nothing to drop.
    if let End::Done(()) = done { 0 } else { unsafe { guard::raise(l) } }
}

/// Begins to take calls, or ends it. `wraps`: several values are returned as one array. Yields. The handler stays once it
/// is the host's: 2.11 may not survive that one is taken back while requests for it are on their way.
fn enable(enabled: bool, wraps: bool) -> Result<(), Failure> {
    let installed = RUNTIME.with(|runtime| {
        runtime.direct.enabled = enabled;
        runtime.answers.wraps = wraps;
        runtime.direct.installed
    });
    if installed || !enabled {
        return Ok(());
    }
    let refused = |why: &str| Failure::state(format!("rawshard: iproto_override: {why}"));
    if !iproto::find() {
        return Err(refused("this Tarantool has no box_iproto_override"));
    }
    let Some(iproto) = IPROTO.with(|iproto| *iproto) else { return Ok(()) };
    // Before, since it yields, and meanwhile somebody else may put his into the place of ours.
    RUNTIME.with(|runtime| runtime.direct.installed = true);
    if !iproto.override_type(TYPE_CALL, handle, replaced) {
        RUNTIME.with(|runtime| runtime.direct.installed = false);
        return Err(refused("Tarantool refuses it"));
    }
    Ok(())
}

/// # Safety
/// Called by the host on TX.
unsafe extern "C" fn replaced(_: *mut c_void) {
    let _ = catch_unwind(|| {
        RUNTIME.with(|runtime| {
            runtime.direct.installed = false;
            runtime.direct.forget(None);
        });
        log::warn!(
            "somebody else handles IPROTO_CALL now: calls of rawshard.callraw wait in fibers of their own"
        );
    });
}

/// # Safety
/// Called by the host on TX, in the fiber of a CALL, with the ends of its header and of its body.
unsafe extern "C" fn handle(
    header: *const c_char,
    header_end: *const c_char,
    body: *const c_char,
    body_end: *const c_char,
    _: *mut c_void,
) -> c_int {
    let taken = catch_unwind(|| {
        // SAFETY: the host's promise. They stay as long as this does not yield, which it does not.
        let (header, body) = unsafe {
            (
                std::slice::from_raw_parts(header.cast(), header_end.offset_from_unsigned(header)),
                std::slice::from_raw_parts(body.cast(), body_end.offset_from_unsigned(body)),
            )
        };
        RUNTIME.with(|runtime| take(runtime, header, body))
    });
    if let Ok(Some(())) = taken { HANDLER_OK } else { HANDLER_FALLBACK }
}

/// Sends the call on. None: it is for the host.
fn take(runtime: &mut Runtime, header: &[u8], body: &[u8]) -> Option<()> {
    // The host has ended with the one before.
    runtime.direct.asked = None;
    if !runtime.direct.enabled {
        return None;
    }
    let call = serve::call_request(header, body).filter(|call| call.func == FUNCTION)?;
    let session = IPROTO.with(|iproto| *iproto)?.session_id();
    if !runtime.direct.admitted.contains(&session) {
        let args = (call.args.as_ptr().addr(), call.args.len());
        runtime.direct.asked = Some(Asked { session, fiber: current(), args });
        return None;
    }
    if runtime.direct.in_flight >= MOST_CALLS
        || runtime.direct.bytes + call.args.len() > MOST_BYTES
        || !runtime.completion.is_running()
    {
        return None;
    }
    let (router, entry) = runtime.static_entry().ok()?;
    if !entry.enabled {
        return None;
    }
    let remote = Remote { session, sync: call.sync, bytes: call.args.len() as u32 };
    let mut buffer = runtime.buffers.take();
    buffer.clear();
    buffer.extend_from_slice(call.args);
    park::enqueue(runtime, router, Form::Callraw, buffer, Owner::Session(remote)).ok()?;
    runtime.direct.in_flight += 1;
    runtime.direct.bytes += call.args.len();
    runtime.direct.calls += 1;
    Some(())
}

/// Ids of sessions are small numbers that count up.
#[derive(Default)]
pub struct SessionHasher(u64);

impl Hasher for SessionHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        // 2^64 by the golden ratio: spreads neighbours over all bits.
        self.0 = (self.0.rotate_left(5) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        // The table takes the lowest bits, which a product spreads least.
        self.0.rotate_left(32)
    }
}
