//! `msgpack.object`: reading its bytes in place, and making ones.
//!
//! The userdata's layout is private to the host. It is checked once against objects of known bytes; where the check
//! fails, `msgpack.encode` gives the bytes at the price of a Lua string.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use super::sys::{self, lua, lua_State};
use super::tx::TxCell;

static HOST: TxCell<Host> = TxCell::new(Host::NONE);

/// What of the host is used here, found once. All of it is plain data: references into Lua's registry and addresses of
/// things that the host keeps.
#[derive(Clone, Copy)]
struct Host {
    /// The metatable of `msgpack.object`; null where there is none, before 2.10.
    metatable: *const c_void,
    /// Objects are laid out as [`DATA`] and [`DATA_END`] say.
    layout_known: bool,
    encode: c_int,
    object_from_raw: c_int,
    /// `fiber.testcancel`.
    testcancel: c_int,
    char_ptr: u32,
    const_char_ptr: u32,
    /// The type of `buffer.ibuf()`, and where in it the pointer to what can be read lies.
    ibuf: u32,
    ibuf_rpos: usize,
    /// A `const char *` that every object is made with, and where it points from. LuaJIT moves no value.
    source: c_int,
    source_at: *mut *const u8,
    /// `msgpack.object`, and an object of ours, whose pointers are set to the bytes that another one is to be made of. Null
    /// where that does not work.
    object: c_int,
    window: c_int,
    window_at: *mut c_void,
}

/// Offsets of the two pointers in the userdata, 2.10 and later.
const DATA: usize = 16;
const DATA_END: usize = 24;

impl Host {
    const NONE: Host = Host {
        metatable: ptr::null(),
        layout_known: false,
        encode: lua::LUA_NOREF,
        object_from_raw: lua::LUA_NOREF,
        testcancel: lua::LUA_NOREF,
        char_ptr: 0,
        const_char_ptr: 0,
        ibuf: 0,
        ibuf_rpos: 0,
        source: lua::LUA_NOREF,
        source_at: ptr::null_mut(),
        object: lua::LUA_NOREF,
        window: lua::LUA_NOREF,
        window_at: ptr::null_mut(),
    };
}

fn host() -> Host {
    HOST.with(|host| *host)
}

/// Whether this Tarantool has `msgpack.object`, and whether its bytes are read in place.
pub fn support() -> (bool, bool) {
    let host = host();
    (!host.metatable.is_null(), host.layout_known)
}

/// Finds all that is used of the host.
///
/// # Safety
/// On TX, with a Lua state whose callers up to Lua have nothing to drop: any step may raise.
pub unsafe fn setup(l: *mut lua_State) {
    // SAFETY: the stack is balanced by each helper; the caller's promise covers errors.
    unsafe {
        let mut found = Host::NONE;
        found.char_ptr = sys::luaL_ctypeid(l, c"char *".as_ptr());
        found.const_char_ptr = sys::luaL_ctypeid(l, c"const char *".as_ptr());
        found.ibuf = ctypeid_of_ibuf(l);
        found.ibuf_rpos = offset_of(l, c"struct ibuf", c"rpos");
        found.testcancel = reference(l, c"fiber", c"testcancel");
        found.encode = reference(l, c"msgpack", c"encode");
        let object = reference(l, c"msgpack", c"object");
        if object != lua::LUA_REFNIL {
            found.object_from_raw = reference(l, c"msgpack", c"object_from_raw");
            found.source_at = sys::luaL_pushcdata(l, found.const_char_ptr).cast();
            found.source = lua::luaL_ref(l, lua::LUA_REGISTRYINDEX);
            found.metatable = metatable_of_objects(l, object);
            found.layout_known = layout_is_known(l, object);
            found.object = object;
            if found.layout_known {
                push_sample(l, object, c"what the window shows while it is not in use");
                found.window_at = lua::lua_touserdata(l, -1);
                found.window = lua::luaL_ref(l, lua::LUA_REGISTRYINDEX);
                if !window_works(l, &found) {
                    found.window_at = ptr::null_mut();
                }
            }
        }
        HOST.with(|host| *host = found);
    }
}

/// Puts what [`bytes`] needs in the place of the object at `index`, if it needs anything.
///
/// # Safety
/// As [`setup`].
pub unsafe fn prepare(l: *mut lua_State, index: c_int) {
    let host = host();
    if host.layout_known || host.metatable.is_null() {
        return;
    }
    // SAFETY: `index` is positive and the stack has room: a C function has 20 slots.
    unsafe {
        if is_object(l, index, host.metatable) {
            lua::lua_rawgeti(l, lua::LUA_REGISTRYINDEX, host.encode.into());
            lua::lua_pushvalue(l, index);
            lua::lua_call(l, 1, 1);
            lua::lua_replace(l, index);
        }
    }
}

/// The bytes of the object at `index`, which [`prepare`] has seen. None if there is no object. Never raises.
///
/// # Safety
/// On TX; the bytes are the object's, to be used while it is on the stack and before the fiber yields.
pub unsafe fn bytes<'a>(l: *mut lua_State, index: c_int) -> Option<&'a [u8]> {
    let host = host();
    if host.metatable.is_null() {
        return None;
    }
    // SAFETY: an object of the layout that was checked, or else the string that `prepare` left.
    unsafe {
        if host.layout_known {
            if !is_object(l, index, host.metatable) {
                return None;
            }
            let (data, end) = pointers(lua::lua_touserdata(l, index));
            return Some(std::slice::from_raw_parts(data, end.addr() - data.addr()));
        }
        if lua::lua_type(l, index) != lua::LUA_TSTRING {
            return None;
        }
        let mut len = 0;
        let data = lua::lua_tolstring(l, index, &mut len);
        Some(std::slice::from_raw_parts(data.cast(), len))
    }
}

/// The first `len` bytes that a `char *` at `index` points to, or that an ibuf there has to read: naming its `rpos` in Lua
/// makes a value for the collector. None if it is neither. Never raises.
///
/// # Safety
/// On TX; the Lua caller vouches for `len` readable bytes, to be used before the fiber yields.
pub unsafe fn pointed<'a>(l: *mut lua_State, index: c_int, len: usize) -> Option<&'a [u8]> {
    let host = host();
    // SAFETY: luaL_checkcdata raises only for what is no cdata; a pointer's payload is the pointer, a struct's the struct,
    // and LuaJIT told where the field is in it.
    unsafe {
        if lua::lua_type(l, index) != sys::LUA_TCDATA {
            return None;
        }
        let mut ctypeid = 0;
        let payload = sys::luaL_checkcdata(l, index, &mut ctypeid);
        let pointer = match ctypeid {
            id if id == host.char_ptr || id == host.const_char_ptr => payload,
            id if id == host.ibuf => payload.byte_add(host.ibuf_rpos),
            _ => return None,
        };
        let data: *const u8 = pointer.cast::<*const u8>().read_unaligned();
        if data.is_null() { None } else { Some(std::slice::from_raw_parts(data, len)) }
    }
}

/// Pushes a new object that holds a copy of `len` bytes, one well-formed value. False, and the host's error in its place, if the
/// host refuses it: it looks closer than we do, into extensions. Of what `is_plain`, known to have none, nothing is to be
/// learned by a second look at all bytes.
///
/// # Safety
/// As [`setup`].
pub unsafe fn push(l: *mut lua_State, data: *const u8, len: usize, is_plain: bool) -> bool {
    let host = host();
    // SAFETY: the caller left room for three values; the host copies the bytes before it returns, and nobody else has the
    // pointer that it gets them by, which the registry keeps.
    unsafe {
        if is_plain && len <= MAX_COPIED && !host.window_at.is_null() {
            return push_copy(l, &host, data, len);
        }
        lua::lua_rawgeti(l, lua::LUA_REGISTRYINDEX, host.object_from_raw.into());
        host.source_at.write_unaligned(data);
        lua::lua_rawgeti(l, lua::LUA_REGISTRYINDEX, host.source.into());
        lua::lua_pushinteger(l, len as lua::lua_Integer);
        lua::lua_pcall(l, 2, 1, 0) == 0
    }
}

/// The host copies through a buffer that it keeps, as long as the longest value so far; so this is for values of common size.
const MAX_COPIED: usize = 1024 * 1024;

/// `msgpack.object(window)` while the window shows these bytes: an object is made of an object by copying its bytes.
unsafe fn push_copy(l: *mut lua_State, host: &Host, data: *const u8, len: usize) -> bool {
    // SAFETY: the window is an object of the layout that was checked, which the registry keeps and nobody else has. It shows
    // the caller's bytes only during the call, which raises nothing out of here. A finalizer that the collector runs in it may
    // come here again and leaves the window as it found it.
    unsafe {
        lua::lua_rawgeti(l, lua::LUA_REGISTRYINDEX, host.object.into());
        lua::lua_rawgeti(l, lua::LUA_REGISTRYINDEX, host.window.into());
        let own = pointers(host.window_at);
        set_pointers(host.window_at, (data, data.add(len)));
        let made = lua::lua_pcall(l, 1, 1, 0) == 0;
        set_pointers(host.window_at, own);
        made
    }
}

/// Raises the host's own error of a cancelled fiber.
///
/// # Safety
/// As [`setup`].
pub unsafe fn raise_cancelled(l: *mut lua_State) -> c_int {
    // SAFETY: the stack has room: its values are of no use any more.
    unsafe {
        lua::lua_settop(l, 0);
        lua::lua_rawgeti(l, lua::LUA_REGISTRYINDEX, host().testcancel.into());
        lua::lua_call(l, 0, 0);
        // It has not raised: somebody has made the fiber a different one.
        lua::lua_pushstring(l, c"fiber is cancelled".as_ptr());
        lua::lua_error(l)
    }
}

/// A reference to `require(module)[name]`, `LUA_REFNIL` if that is nil.
unsafe fn reference(l: *mut lua_State, module: &std::ffi::CStr, name: &std::ffi::CStr) -> c_int {
    // SAFETY: as `setup`.
    unsafe {
        lua::lua_getglobal(l, c"require".as_ptr());
        lua::lua_pushstring(l, module.as_ptr());
        lua::lua_call(l, 1, 1);
        lua::lua_getfield(l, -1, name.as_ptr());
        let reference = lua::luaL_ref(l, lua::LUA_REGISTRYINDEX);
        lua::lua_settop(l, -2);
        reference
    }
}

/// The module `buffer` defines the type.
unsafe fn ctypeid_of_ibuf(l: *mut lua_State) -> u32 {
    // SAFETY: as `setup`.
    unsafe {
        let ibuf = reference(l, c"buffer", c"ibuf");
        lua::luaL_unref(l, lua::LUA_REGISTRYINDEX, ibuf);
        sys::luaL_ctypeid(l, c"struct ibuf".as_ptr())
    }
}

/// `ffi.offsetof(type, field)`
unsafe fn offset_of(l: *mut lua_State, ctype: &std::ffi::CStr, field: &std::ffi::CStr) -> usize {
    // SAFETY: as `setup`.
    unsafe {
        let offsetof = reference(l, c"ffi", c"offsetof");
        lua::lua_rawgeti(l, lua::LUA_REGISTRYINDEX, offsetof.into());
        lua::lua_pushstring(l, ctype.as_ptr());
        lua::lua_pushstring(l, field.as_ptr());
        lua::lua_call(l, 2, 1);
        let offset = lua::lua_tointeger(l, -1);
        lua::lua_settop(l, -2);
        lua::luaL_unref(l, lua::LUA_REGISTRYINDEX, offsetof);
        offset as usize
    }
}

/// Pushes `msgpack.object(text)`.
unsafe fn push_sample(l: *mut lua_State, object: c_int, text: &std::ffi::CStr) {
    // SAFETY: as `setup`.
    unsafe {
        lua::lua_rawgeti(l, lua::LUA_REGISTRYINDEX, object.into());
        lua::lua_pushstring(l, text.as_ptr());
        lua::lua_call(l, 1, 1);
    }
}

unsafe fn metatable_of_objects(l: *mut lua_State, object: c_int) -> *const c_void {
    // SAFETY: as `setup`.
    unsafe {
        push_sample(l, object, c"sample");
        let has_one = lua::lua_getmetatable(l, -1) != 0;
        let metatable = if has_one { lua::lua_topointer(l, -1) } else { ptr::null() };
        lua::lua_settop(l, if has_one { -3 } else { -2 });
        metatable
    }
}

/// Compares two objects with the bytes that they must hold. A wrong layout shows before anything is followed: the two
/// words would have to lie exactly as far apart as the samples are long, twice.
unsafe fn layout_is_known(l: *mut lua_State, object: c_int) -> bool {
    let samples = [(c"a", &b"\xa1a"[..]), (c"sixteen bytes it", b"\xb0sixteen bytes it")];
    // SAFETY: as `setup`; the words are read within the userdata, and followed only if their distance is right.
    unsafe {
        samples.iter().all(|(text, expected)| {
            push_sample(l, object, text);
            let userdata = lua::lua_touserdata(l, -1);
            let known = !userdata.is_null() && lua::lua_objlen(l, -1) >= DATA_END + size_of::<usize>() && {
                let (data, end) = pointers(userdata);
                !data.is_null()
                    && end.addr().wrapping_sub(data.addr()) == expected.len()
                    && std::slice::from_raw_parts(data, expected.len()) == *expected
            };
            lua::lua_settop(l, -2);
            known
        })
    }
}

/// Makes an object through the window and compares: it must hold a copy of the bytes that the window showed.
unsafe fn window_works(l: *mut lua_State, host: &Host) -> bool {
    const SAMPLE: &[u8] = b"\x92\xa6window\xcb\x40\x09\x21\xfb\x54\x44\x2d\x18";
    // SAFETY: as `setup`. What is pushed is an object of the known layout, or an error, which is no userdata of that kind.
    unsafe {
        let made = push_copy(l, host, SAMPLE.as_ptr(), SAMPLE.len()) && is_object(l, -1, host.metatable) && {
            let (data, end) = pointers(lua::lua_touserdata(l, -1));
            data != SAMPLE.as_ptr()
                && end.addr().wrapping_sub(data.addr()) == SAMPLE.len()
                && std::slice::from_raw_parts(data, SAMPLE.len()) == SAMPLE
        };
        lua::lua_settop(l, -2);
        made
    }
}

/// Whether the value at `index` is a `msgpack.object`. Never raises.
unsafe fn is_object(l: *mut lua_State, index: c_int, metatable: *const c_void) -> bool {
    // SAFETY: one slot of the stack is used and given back.
    unsafe {
        if lua::lua_type(l, index) != lua::LUA_TUSERDATA || lua::lua_getmetatable(l, index) == 0 {
            return false;
        }
        let same = lua::lua_topointer(l, -1) == metatable;
        lua::lua_settop(l, -2);
        same
    }
}

unsafe fn pointers(userdata: *mut c_void) -> (*const u8, *const u8) {
    let at = |offset: usize| {
        // SAFETY: the caller knows that the userdata is long enough.
        unsafe { userdata.cast::<c_char>().add(offset).cast::<*const u8>().read_unaligned() }
    };
    (at(DATA), at(DATA_END))
}

unsafe fn set_pointers(userdata: *mut c_void, (data, end): (*const u8, *const u8)) {
    let set = |offset: usize, to: *const u8| {
        // SAFETY: as `pointers`.
        unsafe { userdata.cast::<c_char>().add(offset).cast::<*const u8>().write_unaligned(to) }
    };
    set(DATA, data);
    set(DATA_END, end);
}
