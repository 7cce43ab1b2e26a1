//! Bare declarations of the host. Only what Tarantool 2.6 exports too: libraries are opened with RTLD_NOW, where one
//! missing symbol makes the whole library unloadable.
//!
//! Lua's functions are `extern "C-unwind"`: a Lua error unwinds through the frames of its callers.

use std::ffi::{c_char, c_int, c_void};

pub use mlua::ffi::{self as lua, lua_State};
pub use tarantool::ffi::tarantool::{
    BoxFunctionCtx, Fiber, LOG_LEVEL, SAY_FN, box_error_set, box_return_mp, coio_wait, fiber_is_cancelled,
    fiber_self, fiber_sleep, fiber_start, fiber_wakeup, fiber_yield,
};

/// `enum COIO_EVENT` of module.h.
pub const COIO_READ: c_int = 1;
/// LuaJIT's own type for FFI values, `LUA_TCDATA`.
pub const LUA_TCDATA: c_int = 10;
/// LuaJIT's own question to `lua_gc`: neither stopped nor running a finalizer.
pub const LUA_GCISRUNNING: c_int = 9;

/// What a fiber runs. The argument is a `va_list`, of which nothing is read: 2.6 leaves it unset in some ways of
/// starting a fiber.
pub type FiberMain = unsafe extern "C" fn(arguments: *mut c_void) -> c_int;

unsafe extern "C" {
    pub fn fiber_new(name: *const c_char, main: FiberMain) -> *mut Fiber;
    pub fn fiber_reschedule();
}

unsafe extern "C-unwind" {
    pub fn luaT_state() -> *mut lua_State;
    pub fn luaL_pushcdata(l: *mut lua_State, ctypeid: u32) -> *mut c_void;
    pub fn luaL_checkcdata(l: *mut lua_State, index: c_int, ctypeid: *mut u32) -> *mut c_void;
    pub fn luaL_ctypeid(l: *mut lua_State, name: *const c_char) -> u32;
}
