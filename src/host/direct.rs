//! Calls of `rawshard.callraw`, of `callraw` in Lua and of endpoints that come by IPROTO and for which no fiber waits.
//!
//! Where the host lets us (`box_iproto_override`, since 2.11), we see each CALL before it is served. One of these functions
//! is sent on at once, and its fiber goes on to the next request; its answer is sent by another fiber (`answers.rs`). What is
//! saved is what waiting costs: a fiber of its own for each call, whose stack has left the caches when the answer comes.
//!
//! All others, and whatever is unusual about one, are left to the host. So is the first call of each session: the
//! host checks then whether its user may execute the function, and only it knows how. Once the stored function was entered, the
//! session's further calls are taken, until somebody's rights change. For functions of Lua the host is asked once more
//! (`lua/rawshard/override.lua`).

use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::catch_unwind;

use super::admission::{Admission, AsOf, IS_SETTLED};
use super::answers::{Function, Remote};
use super::calls::Stack;
use super::endpoints::{Ended, Endpoints};
use super::failure::Failure;
use super::globals::Global;
use super::guard::{self, End};
use super::iproto::{self, HANDLER_FALLBACK, HANDLER_OK, IPROTO};
use super::park;
use super::runtime::{RUNTIME, Runtime};
use super::served::{Found, FunctionId, Job, Names};
use super::sys::{lua, lua_State};
use super::waiters::Owner;
use crate::call::request::Form;
use crate::wire::iproto::TYPE_CALL;
use crate::wire::serve;

pub struct Direct {
    /// Our handler is the host's.
    installed: bool,
    /// The process is: the host drops all handlers then.
    pub ending: bool,
    enabled: bool,
    pub names: Names,
    pub admission: Admission,
    /// Under way.
    in_flight: usize,
    /// Of their arguments.
    bytes: usize,
    /// All that were taken.
    calls: u64,
}

/// Beyond these calls are left to the host, which parks a fiber for each and at `net_msg_max` of them reads no further
/// requests.
const MOST_CALLS: usize = 32_768;
const MOST_BYTES: usize = 64 << 20;

impl Direct {
    pub const fn new() -> Direct {
        Direct {
            installed: false,
            ending: false,
            enabled: false,
            names: Names::new(),
            admission: Admission::new(),
            in_flight: 0,
            bytes: 0,
            calls: 0,
        }
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

/// Name and function of each.
pub const FUNCTIONS: &[(&CStr, lua::lua_CFunction)] = &[
    (c"direct_enable", direct_enable),
    (c"direct_asked", direct_asked),
    (c"direct_serve_endpoint", direct_serve_endpoint),
    (c"direct_serve_callraw", direct_serve_callraw),
];

/// `() -> name, function, changes, logins`, or nothing: see [`Admission::asked`]. The function is a number, or nil.
unsafe extern "C-unwind" fn direct_asked(l: *mut lua_State) -> c_int {
    /// Plain data; the name's bytes stay until the next CALL, and nothing yields before they are copied.
    #[derive(Clone, Copy)]
    struct Told(Option<FunctionId>, *const u8, usize, AsOf);
    let asked = guard::run(|| {
        Ok(RUNTIME.with(|runtime| {
            let (function, name, as_of) = runtime.direct.admission.asked()?;
            Some(Told(function, name.as_ptr(), name.len(), as_of))
        }))
    });
    let End::Done(Some(Told(function, name, len, as_of))) = asked else { return 0 };
    // SAFETY: Lua calls it with its own state, on TX; there is nothing to drop.
    unsafe {
        lua::lua_pushlstring(l, name.cast(), len);
        match function {
            Some(function) => lua::lua_pushinteger(l, function.number() as lua::lua_Integer),
            None => lua::lua_pushnil(l),
        }
        // They count up from 0: doubles do.
        lua::lua_pushnumber(l, as_of.changes as f64);
        lua::lua_pushnumber(l, as_of.logins as f64);
    }
    4
}

/// `(id, name, is_served, function, names…) -> nothing`. The names are those between the dots of the name, the function is
/// what is there.
unsafe extern "C-unwind" fn direct_serve_endpoint(l: *mut lua_State) -> c_int {
    // SAFETY: Lua calls it with its own state, on TX; what is alive while it may raise is plain data.
    unsafe {
        let global = if lua::lua_toboolean(l, 3) != 0 { Global::new(l, 4, 5) } else { None };
        let done = guard::run(|| {
            let stack = Stack(l);
            let (id, name) = (stack.index(1, "endpoint")?, stack.string(2, "name")?);
            RUNTIME.with(|runtime| runtime.direct.names.set_endpoint(name, id, global));
            Ok(())
        });
        if let End::Done(()) = done { 0 } else { guard::raise(l) }
    }
}

/// `(name, function, names…) -> function`, a number, if `callraw`, given as the function, is what has this name; else nothing.
unsafe extern "C-unwind" fn direct_serve_callraw(l: *mut lua_State) -> c_int {
    // SAFETY: Lua calls it with its own state, on TX; what is alive while it may raise is plain data.
    unsafe {
        let global = Global::new(l, 2, 3);
        let served = guard::run(|| {
            let stack = Stack(l);
            let name = stack.string(1, "name")?;
            Ok(RUNTIME.with(|runtime| runtime.direct.names.set_callraw(name, global)))
        });
        match served {
            End::Done(Some(function)) => {
                lua::lua_pushinteger(l, function.number() as lua::lua_Integer);
                1
            }
            End::Done(None) => 0,
            End::Cancelled | End::Failed => guard::raise(l),
        }
    }
}

/// `(is_enabled, wraps, names_errors, is_settled) -> nothing`
unsafe extern "C-unwind" fn direct_enable(l: *mut lua_State) -> c_int {
    // SAFETY: Lua calls it with its own state, on TX; should it raise, there is nothing to drop.
    let [enabled, wraps, names_errors] = unsafe {
        lua::lua_settop(l, 4);
        lua::lua_setfield(l, lua::LUA_REGISTRYINDEX, IS_SETTLED.as_ptr());
        [1, 2, 3].map(|at| lua::lua_toboolean(l, at) != 0)
    };
    let done = guard::run(|| enable(enabled, wraps, names_errors));
    // SAFETY: as above, and there is nothing to drop.
    if let End::Done(()) = done { 0 } else { unsafe { guard::raise(l) } }
}

/// Begins to take calls, or ends it. `wraps`: several values are returned as one array; `names_errors`: errors have a name.
/// Yields. The handler stays once it is the host's: 2.11 may not survive that one is taken back while requests for it are on
/// their way.
fn enable(enabled: bool, wraps: bool, names_errors: bool) -> Result<(), Failure> {
    let installed = RUNTIME.with(|runtime| {
        // Otherwise when the host has agreed.
        if runtime.direct.installed || !enabled {
            runtime.direct.enabled = enabled;
        }
        runtime.answers.wraps = wraps;
        runtime.answers.names_errors = names_errors;
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
    RUNTIME.with(|runtime| runtime.direct.enabled = true);
    Ok(())
}

/// # Safety
/// Called by the host on TX.
unsafe extern "C" fn replaced(_: *mut c_void) {
    let _ = catch_unwind(|| {
        let ending = RUNTIME.with(|runtime| {
            runtime.direct.installed = false;
            runtime.direct.admission.forget_all();
            runtime.direct.ending
        });
        if !ending {
            log::warn!(
                "somebody else handles IPROTO_CALL now: calls of rawshard.callraw wait in fibers of their own"
            );
        }
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
    let Runtime { direct, routers, endpoints, buffers, completion, static_router, .. } = runtime;
    direct.admission.begin();
    if !direct.enabled {
        return None;
    }
    let call = serve::call_request(header, body)?;
    let function = match direct.names.find(call.func) {
        Found::Ours(function) => Some(function),
        Found::Unknown => None,
        Found::Foreign => return None,
    };
    let session = IPROTO.with(|iproto| *iproto)?.session_id();
    let Some(function) = function.filter(|function| direct.admission.has(session, *function)) else {
        direct.admission.ask(session, function, call.func, call.args);
        return None;
    };
    if direct.in_flight >= MOST_CALLS
        || direct.bytes + call.args.len() > MOST_BYTES
        || !completion.is_running()
    {
        return None;
    }
    let router = match function.job() {
        Job::Stored | Job::Callraw => (*static_router)?,
        Job::Endpoint(id) => endpoints.router(id)?,
    };
    if !routers.get(router).ok()?.enabled {
        return None;
    }
    let mut buffer = buffers.take();
    buffer.clear();
    let (form, function) = match function.job() {
        Job::Stored => (Form::Callraw, Function::Stored),
        Job::Callraw => (Form::Callraw, Function::Callraw),
        Job::Endpoint(id) => {
            let (endpoint, age) = endpoints.begin(id).ok()?;
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
