//! The TX thread: which one it is, and values that only it may touch.

use std::cell::{Cell, UnsafeCell};
use std::sync::atomic::{AtomicUsize, Ordering};

thread_local! {
    /// Its address tells threads apart for the price of a load.
    static MARK: u8 = const { 0 };
}

/// The mark of the TX thread; 0 until [`adopt`].
static TX: AtomicUsize = AtomicUsize::new(0);

/// The calling thread is TX: Tarantool loads Lua modules and calls stored functions on no other. The first word stays.
pub fn adopt() {
    // Failing means that it is known.
    let _ = TX.compare_exchange(0, mark(), Ordering::Relaxed, Ordering::Relaxed);
}

pub fn is_here() -> bool {
    // Relaxed: TX compares with what it stored itself, any other thread differs from it whatever it sees.
    TX.load(Ordering::Relaxed) == mark()
}

fn mark() -> usize {
    MARK.with(|mark| std::ptr::from_ref(mark) as usize)
}

/// A value of the TX thread. Borrowed only inside [`TxCell::with`], which must not yield: what another fiber or a
/// callback would do with a value that is half changed is nobody's guess. Both rules are checked at each use.
pub struct TxCell<T> {
    borrowed: Cell<bool>,
    value: UnsafeCell<T>,
}

// SAFETY: `with` lets only the TX thread in.
unsafe impl<T> Sync for TxCell<T> {}

impl<T> TxCell<T> {
    pub const fn new(value: T) -> TxCell<T> {
        TxCell { borrowed: Cell::new(false), value: UnsafeCell::new(value) }
    }

    pub fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        assert!(is_here(), "not the TX thread");
        assert!(!self.borrowed.replace(true), "a value of TX is in use");
        let _release = Release(&self.borrowed);
        // SAFETY: on the TX thread, and no other borrow is alive: `borrowed` was false.
        f(unsafe { &mut *self.value.get() })
    }
}

/// Ends the borrow, also when the user of it panics.
struct Release<'a>(&'a Cell<bool>);

impl Drop for Release<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}
