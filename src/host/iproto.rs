//! The host's functions for whoever serves IPROTO requests itself. They are there since 2.11, so they are looked up.

use std::ffi::{CStr, c_char, c_int, c_void};

use super::tx::TxCell;

/// Found by [`find`].
pub static IPROTO: TxCell<Option<Iproto>> = TxCell::new(None);

/// `iproto_handler_t` of module.h.
pub type Handler = unsafe extern "C" fn(
    header: *const c_char,
    header_end: *const c_char,
    body: *const c_char,
    body_end: *const c_char,
    ctx: *mut c_void,
) -> c_int;

/// `iproto_handler_destroy_t`
pub type Destroy = unsafe extern "C" fn(ctx: *mut c_void);

type Override =
    unsafe extern "C" fn(kind: u32, handler: Handler, destroy: Destroy, ctx: *mut c_void) -> c_int;
type Send = unsafe extern "C" fn(
    session: u64,
    header: *const c_char,
    header_end: *const c_char,
    body: *const c_char,
    body_end: *const c_char,
) -> c_int;
type Number = unsafe extern "C" fn() -> u64;

/// `enum iproto_handler_status`: the request is taken.
pub const HANDLER_OK: c_int = 0;
/// The host is to handle it.
pub const HANDLER_FALLBACK: c_int = 2;

#[derive(Clone, Copy)]
pub struct Iproto {
    override_: Override,
    send: Send,
    session_id: Number,
    schema_version: Number,
}

/// Looks for them, once. Whether they are there. Must not be asked on a host before 2.11, which may have something else under
/// these names.
pub fn find() -> bool {
    // SAFETY: the types are those of module.h of 2.11 and 3.x.
    let found = unsafe {
        (|| {
            Some(Iproto {
                override_: std::mem::transmute::<*mut c_void, Override>(symbol(c"box_iproto_override")?),
                send: std::mem::transmute::<*mut c_void, Send>(symbol(c"box_iproto_send")?),
                session_id: std::mem::transmute::<*mut c_void, Number>(symbol(c"box_session_id")?),
                schema_version: std::mem::transmute::<*mut c_void, Number>(symbol(c"box_schema_version")?),
            })
        })()
    };
    IPROTO.with(|iproto| *iproto = found);
    found.is_some()
}

fn symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: a name that ends with NUL; the process's own symbols.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!address.is_null()).then_some(address)
}

impl Iproto {
    /// Has requests of a type handled by `handler`, instead of whatever did before. Yields. Whether the host took it.
    pub fn override_type(&self, kind: u8, handler: Handler, destroy: Destroy) -> bool {
        // SAFETY: on TX, in a fiber; both functions live for ever and need no context.
        unsafe { (self.override_)(kind.into(), handler, destroy, std::ptr::null_mut()) == 0 }
    }

    /// Sends a packet of header and body, both well-formed. Yields, unless the session is gone, which is false.
    pub fn send(&self, session: u64, header: &[u8], body: &[u8]) -> bool {
        let (header, body) = (header.as_ptr_range(), body.as_ptr_range());
        // SAFETY: on TX, in a fiber; the host copies both before it yields.
        let sent = unsafe {
            (self.send)(session, header.start.cast(), header.end.cast(), body.start.cast(), body.end.cast())
        };
        sent == 0
    }

    /// Of the request that the fiber handles.
    pub fn session_id(&self) -> u64 {
        // SAFETY: on TX, in a fiber.
        unsafe { (self.session_id)() }
    }

    pub fn schema_version(&self) -> u64 {
        // SAFETY: on TX.
        unsafe { (self.schema_version)() }
    }
}
