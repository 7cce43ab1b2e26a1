//! Lua functions that are reached by dotted global names, as the host reaches those of its space of functions.

use std::ffi::c_int;

use super::sys::{self, lua, lua_State};

/// A global name, and the function that was there once.
#[derive(Clone, Copy)]
pub struct Global {
    /// References to the strings between the dots.
    names: [c_int; MOST_NAMES],
    count: usize,
    /// Only to be compared. It is in Lua's registry, so that no other one gets its address.
    function: usize,
}

/// Between dots. Names of more are none of ours.
pub const MOST_NAMES: usize = 8;

impl Global {
    /// Of the function at `function`, and of the names from `first` to the top of the stack. None: these are too many, or lead to
    /// something else.
    ///
    /// # Safety
    /// On TX, with a Lua state whose callers up to Lua have nothing to drop: it may raise.
    pub unsafe fn new(l: *mut lua_State, function: c_int, first: c_int) -> Option<Global> {
        // SAFETY: only what is on the stack is looked at; the caller's promise covers errors.
        unsafe {
            let count = usize::try_from(lua::lua_gettop(l) - first + 1).ok().filter(|n| *n <= MOST_NAMES)?;
            let address = lua::lua_topointer(l, function).addr();
            // Before anything is put into the registry, where it stays.
            if follow(l, count, |i| lua::lua_pushvalue(l, first + i as c_int)) != address {
                return None;
            }
            lua::lua_pushvalue(l, function);
            lua::luaL_ref(l, lua::LUA_REGISTRYINDEX);
            let mut names = [lua::LUA_NOREF; MOST_NAMES];
            for (name, index) in names[..count].iter_mut().zip(first..) {
                lua::lua_pushvalue(l, index);
                *name = lua::luaL_ref(l, lua::LUA_REGISTRYINDEX);
            }
            Some(Global { names, count, function: address })
        }
    }

    /// Whether the function is still there. On TX; calls Lua, but nothing that runs code, or can raise unless there is no memory
    /// for three slots of the stack.
    pub fn is_in_place(&self) -> bool {
        // SAFETY: nothing yields and the stack is as before in the end, so that whoever uses the main state does not notice.
        // Raw reads of tables raise nothing once there is room on the stack.
        unsafe {
            let l = sys::luaT_state();
            if lua::lua_checkstack(l, 3) == 0 {
                return false;
            }
            let found = follow(l, self.count, |i| {
                lua::lua_rawgeti(l, lua::LUA_REGISTRYINDEX, self.names[i].into());
            });
            found == self.function
        }
    }
}

/// Where so many names, each pushed by `push`, lead to from the globals; 0 if to no value that has an address.
///
/// # Safety
/// On TX, with room for three values on the stack, which is as before afterwards. Raises nothing.
unsafe fn follow(l: *mut lua_State, count: usize, push: impl Fn(usize)) -> usize {
    // SAFETY: raw reads of tables raise nothing and run no code.
    unsafe {
        let top = lua::lua_gettop(l);
        lua::lua_pushvalue(l, lua::LUA_GLOBALSINDEX);
        for i in 0..count {
            if lua::lua_type(l, -1) != lua::LUA_TTABLE {
                lua::lua_settop(l, top);
                return 0;
            }
            push(i);
            lua::lua_rawget(l, -2);
            lua::lua_replace(l, -2);
        }
        let found = lua::lua_topointer(l, -1).addr();
        lua::lua_settop(l, top);
        found
    }
}
