//! What the router says to the log.

use std::cell::Cell;
use std::sync::Once;

thread_local! {
    static LINES: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

impl log::Log for Counting {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, _: &log::Record<'_>) {
        LINES.with(|lines| lines.set(lines.get() + 1));
    }

    fn flush(&self) {}
}

/// Lines that this thread has logged, from the first call of this on: a simulated router has no thread of its own.
pub fn lines() -> usize {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        log::set_logger(&Counting).expect("nobody else sets one");
        log::set_max_level(log::LevelFilter::Info);
    });
    LINES.with(Cell::get)
}
