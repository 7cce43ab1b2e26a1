//! The answer that Lua looks at: kept here after a call, described in a struct that FFI reads.

use std::cell::UnsafeCell;
use std::ffi::{c_char, c_void};
use std::ptr;

use super::buffers::Buffers;
use super::sys::{self, lua};
use super::tx;
use crate::call::request::Reply;

/// `struct rawshard_result` of `lua/rawshard/native.lua`. Valid until the fiber yields or calls a native again.
#[repr(C)]
#[derive(Clone, Copy)]
struct View {
    /// The values with an array header in front.
    array: *const c_char,
    /// The first value.
    data: *const c_char,
    /// Behind the last one; where `array` ends too.
    end: *const c_char,
    count: u32,
}

struct ViewCell(UnsafeCell<View>);

// SAFETY: written in `Held` only, which is part of the runtime and thus of TX; read by Lua, which runs on TX.
unsafe impl Sync for ViewCell {}

static VIEW: ViewCell = ViewCell(UnsafeCell::new(View::EMPTY));

impl View {
    fn of(reply: &Reply) -> View {
        let (array, values) = (reply.array().as_ptr_range(), reply.values().as_ptr_range());
        View {
            array: array.start.cast(),
            data: values.start.cast(),
            end: values.end.cast(),
            count: reply.count(),
        }
    }

    const EMPTY: View = View { array: ptr::null(), data: ptr::null(), end: ptr::null(), count: 0 };
}

/// Where the struct is.
pub fn address() -> *mut c_void {
    VIEW.0.get().cast()
}

/// What is longer gives its memory back at once instead of keeping it for the next call, as `codec.lua` does with what it
/// encodes.
pub const BIG: usize = 64 * 1024;

/// The owner of the bytes that the struct points to, unless it is a future's slot: that one hands them over when it goes,
/// which is whenever the collector likes, also while Lua reads them.
pub struct Held {
    reply: Option<Reply>,
    /// Replaced by what a finalizer has asked for, while somebody was perhaps reading them.
    set_aside: Vec<Reply>,
    /// It is known that no extension is in what is shown.
    is_plain: bool,
    /// The same two of the answer that was shown when a finalizer first asked for another one: whoever was about to read it gets it
    /// back.
    outer: Option<(View, bool)>,
}

impl Held {
    pub const fn new() -> Held {
        Held { reply: None, set_aside: Vec::new(), is_plain: false, outer: None }
    }

    /// Shows `reply` in the place of the one before.
    pub fn hold(&mut self, reply: Reply, buffers: &mut Buffers) {
        self.show(&reply, buffers);
        // A Vec's bytes stay where they are when it moves.
        self.reply = Some(reply);
    }

    /// Shows a `reply` that somebody else keeps, who must give it to [`Held::inherit`] in the end.
    pub fn show(&mut self, reply: &Reply, buffers: &mut Buffers) {
        if !in_finalizer() {
            self.outer = None;
        } else if self.outer.is_none() && !view().array.is_null() {
            self.outer = Some((view(), self.is_plain));
        }
        if let Some(before) = self.reply.take() {
            self.replace(before, buffers);
        }
        show(View::of(reply));
        self.is_plain = reply.is_plain();
    }

    /// Takes a reply that its keeper needs no more: it stays for as long as it is shown.
    pub fn inherit(&mut self, reply: Reply, buffers: &mut Buffers) {
        if view().array == reply.array().as_ptr().cast() {
            // As in `hold`: nothing moves. What is shown is one reply, so there is none here yet.
            self.reply = Some(reply);
        } else {
            self.replace(reply, buffers);
        }
    }

    /// A reply that is shown no more. Whoever reads one allocates, and so the collector may run a user's finalizer in between, which
    /// may ask for another answer: then the first one stays until nobody can be reading any more.
    fn replace(&mut self, reply: Reply, buffers: &mut Buffers) {
        if !in_finalizer() {
            buffers.put(reply.into_buffer());
        } else {
            self.set_aside.push(reply);
        }
    }

    /// Whoever begins to read sees what its own call has shown, whatever finalizers have asked for since.
    pub fn begin_reading(&mut self) {
        if self.outer.is_some()
            && !in_finalizer()
            && let Some((view, is_plain)) = self.outer.take()
        {
            show(view);
            self.is_plain = is_plain;
        }
    }

    /// For a fiber that has just been resumed: no other one is in the middle of reading, and no finalizer yields.
    pub fn reclaim(&mut self, buffers: &mut Buffers) {
        if self.outer.take().is_some() {
            show(View::EMPTY);
        }
        self.set_aside.drain(..).for_each(|reply| buffers.put(reply.into_buffer()));
    }

    /// What is shown, as one array.
    pub fn array(&self) -> &[u8] {
        let View { array, end, .. } = view();
        if array.is_null() {
            return b"";
        }
        // SAFETY: two ends of one reply's bytes, which stay while they are shown.
        unsafe { std::slice::from_raw_parts(array.cast(), end.offset_from_unsigned(array)) }
    }

    /// What is shown without the array's header: the first value, where there is one.
    pub fn values(&self) -> &[u8] {
        let View { data, end, .. } = view();
        if data.is_null() {
            return b"";
        }
        // SAFETY: as in `array`.
        unsafe { std::slice::from_raw_parts(data.cast(), end.offset_from_unsigned(data)) }
    }

    /// Whether it is known that no extension is in what is shown.
    pub fn is_plain(&self) -> bool {
        self.is_plain
    }

    pub fn reply(&self) -> Option<&Reply> {
        self.reply.as_ref()
    }

    pub fn release(&mut self, buffers: &mut Buffers) {
        if self.outer.is_some() && !in_finalizer() {
            self.outer = None;
        }
        show(View::EMPTY);
        self.is_plain = false;
        if let Some(reply) = self.reply.take() {
            buffers.put(reply.into_buffer());
        }
    }
}

/// Whether this may run inside of a finalizer: LuaJIT stops the collector for it (`gc_call_finalizer`). So does
/// `collectgarbage('stop')`, which costs nothing but keeping replies for a while.
fn in_finalizer() -> bool {
    debug_assert!(tx::is_here());
    // SAFETY: on TX. It reads one field of the state that all of Lua has in common.
    unsafe { lua::lua_gc(sys::luaT_state(), sys::LUA_GCISRUNNING, 0) == 0 }
}

fn view() -> View {
    debug_assert!(tx::is_here());
    // SAFETY: on TX, as `show`.
    unsafe { *VIEW.0.get() }
}

fn show(view: View) {
    debug_assert!(tx::is_here());
    // SAFETY: on TX, and no reference to the struct exists anywhere.
    unsafe { *VIEW.0.get() = view };
}
