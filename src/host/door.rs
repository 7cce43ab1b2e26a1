//! How the mappings of this library in one process find each other.
//!
//! Tarantool loads the library of a stored function from a private copy of the file: two mappings, two sets of statics.
//! The mapping that was loaded as a Lua module first holds the runtime and leaves a table of its functions in Lua's
//! registry, as an address; any other one looks it up there.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::cfunc;
use super::failure::Failure;
use super::runtime::NOT_CONFIGURED;
use super::sys::{self, BoxFunctionCtx, lua, lua_State};

/// Changes with [`Door`] and with what its functions mean.
pub const ABI: u32 = 4;
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

const KEY: &CStr = c"rawshard.runtime";
const MAGIC: u64 = u64::from_be_bytes(*b"rawshard");

pub type StoredFunction =
    unsafe extern "C" fn(ctx: *mut BoxFunctionCtx, args: *const c_char, end: *const c_char) -> c_int;

/// Read by other builds of this library: the first four fields never change.
#[repr(C)]
pub struct Door {
    magic: u64,
    abi: u32,
    version_len: u32,
    version: *const u8,
    pub callraw: StoredFunction,
}

// SAFETY: it never changes and points to statics.
unsafe impl Sync for Door {}

static OWN: Door = Door {
    magic: MAGIC,
    abi: ABI,
    version_len: VERSION.len() as u32,
    version: VERSION.as_ptr(),
    callraw: cfunc::serve,
};

/// The door that this mapping uses, once found. It stays: libraries are never unmapped.
static FOUND: AtomicPtr<Door> = AtomicPtr::new(ptr::null_mut());

/// Makes this mapping's door the one of the process.
///
/// # Safety
/// On TX, with a Lua state whose callers up to Lua have nothing to drop.
pub unsafe fn publish(l: *mut lua_State) {
    let door = ptr::from_ref(&OWN).cast_mut();
    // SAFETY: the stack is balanced; the address is a static's, valid as long as the process.
    unsafe {
        lua::lua_pushlightuserdata(l, door.cast());
        lua::lua_setfield(l, lua::LUA_REGISTRYINDEX, KEY.as_ptr());
    }
    FOUND.store(door, Ordering::Release);
}

/// The door of the process. Calls Lua, but under protection.
pub fn find() -> Result<&'static Door, Failure> {
    let known = FOUND.load(Ordering::Acquire);
    if !known.is_null() {
        // SAFETY: only doors that were checked below are stored, and they live for ever.
        return Ok(unsafe { &*known });
    }
    let door = look_up()?.ok_or_else(|| Failure::state(NOT_CONFIGURED))?;
    FOUND.store(ptr::from_ref(door).cast_mut(), Ordering::Release);
    Ok(door)
}

/// The door that a mapping has published, if one has.
fn look_up() -> Result<Option<&'static Door>, Failure> {
    let mut address: *mut c_void = ptr::null_mut();
    // SAFETY: on TX; the main state's stack is as before when this ends, and no fiber runs in between.
    unsafe {
        let l = sys::luaT_state();
        if lua::lua_cpcall(l, read, ptr::from_mut(&mut address).cast()) != 0 {
            lua::lua_settop(l, -2);
            return Err(Failure::state("rawshard: can not look into Lua's registry"));
        }
    }
    if address.is_null() {
        return Ok(None);
    }
    // SAFETY: nothing but `publish` of some build of this library writes under the key, and all builds agree on the
    // first fields.
    let door = unsafe { &*address.cast::<Door>() };
    door.check()?;
    Ok(Some(door))
}

/// Leaves the address in the registry, or null, where its argument points to.
unsafe extern "C-unwind" fn read(l: *mut lua_State) -> c_int {
    // SAFETY: the argument is what `lua_cpcall` was given.
    unsafe {
        let address = lua::lua_touserdata(l, 1).cast::<*mut c_void>();
        lua::lua_getfield(l, lua::LUA_REGISTRYINDEX, KEY.as_ptr());
        *address = lua::lua_touserdata(l, -1);
    }
    0
}

impl Door {
    fn check(&self) -> Result<(), Failure> {
        // SAFETY: a version is a static string of the mapping that made the door.
        let version = unsafe { std::slice::from_raw_parts(self.version, self.version_len as usize) };
        if self.magic == MAGIC && self.abi == ABI && version == VERSION.as_bytes() {
            return Ok(());
        }
        Err(Failure::state(format!(
            "rawshard: version {} (abi {}) runs in this process, and this library is {VERSION} (abi {ABI}): \
             restart the process to change versions",
            String::from_utf8_lossy(version),
            self.abi
        )))
    }
}

/// Whether some mapping has opened already; an error if it is one of another version.
pub fn is_open() -> Result<bool, Failure> {
    Ok(look_up()?.is_some())
}
