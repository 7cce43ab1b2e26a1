//! Which sessions may have which function called without the host.
//!
//! Only the host knows whose right it is, and only by calling the function does it say so. So the first call of each
//! session is left to it.

use std::collections::HashSet;
use std::ffi::{CStr, c_int};
use std::hash::{BuildHasherDefault, Hasher};
use std::ptr::{self, NonNull};

use super::iproto::IPROTO;
use super::runtime::RUNTIME;
use super::served::{FunctionId, Job};
use super::sys::{self, Fiber, lua, lua_State};

pub struct Admission {
    admitted: HashSet<(u64, FunctionId), BuildHasherDefault<IdHasher>>,
    /// Those of `admitted`: most that log in are not among them.
    sessions: HashSet<u64, BuildHasherDefault<IdHasher>>,
    as_of: AsOf,
    asked: Option<Asked>,
    /// Of the function that was asked for.
    name: Vec<u8>,
}

/// A state of everybody's rights.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AsOf {
    /// How often users, privileges or functions have changed.
    pub changes: u64,
    /// How often sessions have got another user.
    pub logins: u64,
}

/// A call that was left to the host.
struct Asked {
    session: u64,
    function: Option<FunctionId>,
    fiber: Option<NonNull<Fiber>>,
    /// Where its arguments begin in the connection's input, and their length. Nothing but the host's own call of a C function has
    /// this address.
    args: (usize, usize),
}

/// Nobody tells of sessions that have gone. With more than this all are forgotten.
const MOST: usize = 100_000;

impl Admission {
    pub const fn new() -> Admission {
        Admission {
            admitted: HashSet::with_hasher(BuildHasherDefault::new()),
            sessions: HashSet::with_hasher(BuildHasherDefault::new()),
            as_of: AsOf { changes: 0, logins: 0 },
            asked: None,
            name: Vec::new(),
        }
    }

    /// A CALL has come: the host has ended with the one before.
    pub fn begin(&mut self) {
        self.asked = None;
    }

    pub fn has(&self, session: u64, function: FunctionId) -> bool {
        self.admitted.contains(&(session, function))
    }

    /// The host is asked, by leaving to it this call of a function, which may be unknown.
    pub fn ask(&mut self, session: u64, function: Option<FunctionId>, name: &[u8], args: &[u8]) {
        self.name.clear();
        self.name.extend_from_slice(name);
        let args = (args.as_ptr().addr(), args.len());
        self.asked = Some(Asked { session, function, fiber: current(), args });
    }

    /// The stored function is entered with these arguments. The session that has sent them, if the host was asked by that:
    /// its user may execute the function.
    fn stored_is_entered(&mut self, args: &[u8]) -> Option<(u64, AsOf)> {
        let asked = self.asked.take()?;
        let is_stored = asked.function.is_some_and(|function| function.job() == Job::Stored);
        let is_it = is_stored && asked.args == (args.as_ptr().addr(), args.len()) && asked.is_here();
        is_it.then_some((asked.session, self.as_of))
    }

    /// A function of Lua is entered, in the fiber of the call that was left to the host last: the function that was called,
    /// if it is known, and its name. It need not be the one that was entered.
    pub fn asked(&mut self) -> Option<(Option<FunctionId>, &[u8], AsOf)> {
        let asked = self.asked.take().filter(Asked::is_here)?;
        Some((asked.function, &self.name, self.as_of))
    }

    /// The host has said, as of then, that the session's user may execute the function.
    pub fn admit(&mut self, session: u64, function: FunctionId, as_of: AsOf) {
        if self.as_of != as_of {
            return;
        }
        if self.admitted.len() >= MOST {
            self.clear();
        }
        self.admitted.insert((session, function));
        self.sessions.insert(session);
    }

    fn clear(&mut self) {
        self.admitted.clear();
        self.sessions.clear();
    }

    /// Users, privileges or functions may have changed.
    pub fn forget_all(&mut self) {
        self.clear();
        self.as_of.changes += 1;
        self.asked = None;
    }

    /// The session gets another user.
    pub fn forget(&mut self, session: u64) {
        if self.sessions.remove(&session) {
            self.admitted.retain(|admitted| admitted.0 != session);
        }
        self.as_of.logins += 1;
        self.asked = None;
    }
}

/// The stored function is entered with these arguments: whoever has sent them may execute it. Calls Lua, but under protection.
pub fn stored_is_entered(args: &[u8]) {
    let entered = RUNTIME.with(|runtime| runtime.direct.admission.stored_is_entered(args));
    if let Some((session, as_of)) = entered
        && is_settled()
    {
        RUNTIME.with(|runtime| runtime.direct.admission.admit(session, FunctionId::STORED, as_of));
    }
}

/// Lua's registry has under it what tells whether the session's user stays who he is.
pub const IS_SETTLED: &CStr = c"rawshard.direct.is_settled";

fn is_settled() -> bool {
    let mut settled = false;
    // SAFETY: on TX; the main state's stack is as before when this ends, and no fiber runs in between.
    unsafe {
        let l = sys::luaT_state();
        if lua::lua_cpcall(l, ask, ptr::from_mut(&mut settled).cast()) != 0 {
            lua::lua_settop(l, -2);
            return false;
        }
    }
    settled
}

/// Leaves the answer where its argument points to.
unsafe extern "C-unwind" fn ask(l: *mut lua_State) -> c_int {
    // SAFETY: the argument is what `lua_cpcall` was given. The main state may be somebody's who sleeps in it, so code runs in a
    // thread of its own, which its place on the stack keeps alive.
    unsafe {
        let settled = lua::lua_touserdata(l, 1).cast::<bool>();
        let thread = lua::lua_newthread(l);
        lua::lua_getfield(thread, lua::LUA_REGISTRYINDEX, IS_SETTLED.as_ptr());
        *settled = lua::lua_pcall(thread, 0, 1, 0) == 0 && lua::lua_toboolean(thread, -1) != 0;
    }
    0
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

/// Ids are small numbers that count up.
#[derive(Default)]
pub struct IdHasher(u64);

impl Hasher for IdHasher {
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
