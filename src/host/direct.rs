//! Calls of `rawshard.callraw` and of endpoints that come by IPROTO and for which no fiber waits.
//!
//! Where the host lets us (`box_iproto_override`, since 2.11), we see each CALL before it is served. One of these functions
//! is sent on at once, and its fiber goes on to the next request; its answer is sent by another fiber (`answers.rs`). What is
//! saved is what waiting costs: a fiber of its own for each call, whose stack has left the caches when the answer comes.
//!
//! All others, and whatever is unusual about one, are left to the host. So is the first call of each session: the
//! host checks then whether its user may execute the function, and only it knows how. Once the stored function was entered, the
//! session's further calls are taken, until somebody's rights change. For endpoints, which are Lua functions, the host
//! is asked once more (`lua/rawshard/override.lua`).

use std::collections::HashSet;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::hash::{BuildHasherDefault, Hasher};
use std::panic::catch_unwind;
use std::ptr::NonNull;

use super::answers::{Function, Remote};
use super::endpoints::{Ended, Endpoints};
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
    /// Sessions, and ids of what their user may execute: endpoints, and [`CALLRAW`].
    admitted: HashSet<(u64, u32), BuildHasherDefault<SessionHasher>>,
    /// How often rights may have changed.
    changes: u64,
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
    function: u32,
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
/// No endpoint has this id.
const CALLRAW: u32 = 0;

impl Direct {
    pub const fn new() -> Direct {
        Direct {
            installed: false,
            enabled: false,
            admitted: HashSet::with_hasher(BuildHasherDefault::new()),
            changes: 0,
            asked: None,
            in_flight: 0,
            bytes: 0,
            calls: 0,
        }
    }

    /// The stored function is entered with these arguments: whoever has sent them may execute it.
    pub fn admit(&mut self, args: &[u8]) {
        let Some(asked) = self.asked.take() else { return };
        if asked.function == CALLRAW && asked.args == (args.as_ptr().addr(), args.len()) && asked.is_here() {
            self.insert(asked.session, CALLRAW);
        }
    }

    /// The function of this endpoint is entered. Whether it is worth to find out if the session's user may execute it; and what
    /// [`Direct::admit_endpoint`] needs then.
    pub fn wants(&mut self, endpoint: u32) -> Option<u64> {
        let asked = self.asked.take()?;
        (asked.function == endpoint && asked.is_here()).then_some(self.changes)
    }

    /// The session's user may execute the endpoint's function, as of so many `changes`.
    pub fn admit_endpoint(&mut self, session: u64, endpoint: u32, changes: u64) {
        if self.changes == changes {
            self.insert(session, endpoint);
        }
    }

    fn insert(&mut self, session: u64, function: u32) {
        if self.admitted.len() >= MOST_SESSIONS {
            self.admitted.clear();
        }
        self.admitted.insert((session, function));
    }

    /// Somebody's rights may have changed: all are to be checked anew, or those of one session.
    pub fn forget(&mut self, session: Option<u64>) {
        match session {
            Some(session) => self.admitted.retain(|admitted| admitted.0 != session),
            None => self.admitted.clear(),
        }
        self.changes += 1;
        self.asked = None;
    }

    /// A call that was taken has been answered.
    pub fn ended(&mut self, remote: &Remote, ended: Ended, endpoints: &mut Endpoints) {
        self.in_flight -= 1;
        self.bytes -= remote.bytes as usize;
        if let Function::Endpoint(id, age) = remote.function {
            endpoints.count(id, age, ended);
        }
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
    let call = serve::call_request(header, body)?;
    let function = if call.func == FUNCTION { CALLRAW } else { runtime.endpoints.served(call.func)? };
    let session = IPROTO.with(|iproto| *iproto)?.session_id();
    if !runtime.direct.admitted.contains(&(session, function)) {
        let args = (call.args.as_ptr().addr(), call.args.len());
        runtime.direct.asked = Some(Asked { session, function, fiber: current(), args });
        return None;
    }
    if runtime.direct.in_flight >= MOST_CALLS
        || runtime.direct.bytes + call.args.len() > MOST_BYTES
        || !runtime.completion.is_running()
    {
        return None;
    }
    let router = match function {
        CALLRAW => runtime.static_entry().ok()?.0,
        endpoint => runtime.endpoints.router(endpoint)?,
    };
    if !runtime.routers.get(router).ok()?.enabled {
        return None;
    }
    let mut buffer = runtime.buffers.take();
    let (form, function) = match function {
        CALLRAW => {
            buffer.clear();
            (Form::Callraw, Function::Callraw)
        }
        id => {
            let (_, endpoint, age) = runtime.endpoints.begin(id).ok()?;
            endpoint.begin(&mut buffer);
            (Form::Endpoint(endpoint, None), Function::Endpoint(id, age))
        }
    };
    buffer.extend_from_slice(call.args);
    let remote = Remote { session, sync: call.sync, bytes: call.args.len() as u32, function };
    park::enqueue(runtime, router, form, buffer, Owner::Session(remote)).ok()?;
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

    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
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
