//! `log` records of any thread → Tarantool's log.

use std::ffi::{CStr, CString, c_int};
use std::sync::atomic::{AtomicBool, Ordering};

use log::{Level, LevelFilter, Log, Metadata, Record};

use super::sys;

struct HostLog;

static LOG: HostLog = HostLog;
/// Set when the process exits: engine threads may outlive what `_say` uses.
static CLOSED: AtomicBool = AtomicBool::new(false);

/// To be called once, on TX.
pub fn init() {
    if log::set_logger(&LOG).is_err() {
        return;
    }
    log::set_max_level(LevelFilter::Debug);
    // Panics are caught at every entry; where they came from is told here.
    std::panic::set_hook(Box::new(|panic| log::error!("{panic}")));
    // SAFETY: the function lives as long as the process: the library is never unmapped.
    unsafe { libc::atexit(close) };
}

extern "C" fn close() {
    CLOSED.store(true, Ordering::SeqCst);
}

/// `enum say_level` of module.h.
fn say_level(level: Level) -> c_int {
    match level {
        Level::Error => 2,
        Level::Warn => 4,
        Level::Info => 5,
        Level::Debug | Level::Trace => 7,
    }
}

impl Log for HostLog {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // SAFETY: an int that TX seldom changes; a stale value costs or spares a line.
        let most = unsafe { std::ptr::read_volatile(&raw const sys::LOG_LEVEL) };
        say_level(metadata.level()) <= most
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) || CLOSED.load(Ordering::SeqCst) {
            return;
        }
        let text = format!("rawshard: {}", record.args()).replace('\0', "?");
        let Ok(text) = CString::new(text) else { return };
        let line = record.line().map_or(0, |line| line as c_int);
        // SAFETY: `say` prints from any thread. The strings end with NUL; the format takes one of them.
        unsafe {
            if let Some(say) = std::ptr::read_volatile(&raw const sys::SAY_FN) {
                let format: &CStr = c"%s";
                say(
                    say_level(record.level()),
                    c"rawshard".as_ptr(),
                    line,
                    std::ptr::null(),
                    format.as_ptr(),
                    text.as_ptr(),
                );
            }
        }
    }

    fn flush(&self) {}
}
