//! What is counted, and when. Valgrind counts instructions from entry to exit of [`counted`], but not inside of
//! [`uncounted`]: both are found by their symbols. The allocator counts by the same borders.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};

/// Names of the two borders for `--toggle-collect`. They must not begin alike: callgrind 3.19 then takes the last alone.
pub const COUNTED: &str = "counted_by_rawshard_bench";
pub const UNCOUNTED: &str = "not_counted_by_rawshard_bench";

static ON: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);
static LIVE: AtomicI64 = AtomicI64::new(0);

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

impl Counting {
    fn note(size: usize) {
        if ON.load(Relaxed) {
            ALLOCATIONS.fetch_add(1, Relaxed);
            BYTES.fetch_add(size as u64, Relaxed);
        }
    }
}

// SAFETY: the system's allocator does the work; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Counting::note(layout.size());
        LIVE.fetch_add(layout.size() as i64, Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as i64, Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Counting::note(size);
        LIVE.fetch_add(size as i64 - layout.size() as i64, Relaxed);
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { System.realloc(at, layout, size) }
    }
}

/// Runs `run(times)`, counted. Gives allocations and bytes.
pub fn counted(run: &mut dyn FnMut(u64), times: u64) -> (u64, u64) {
    ALLOCATIONS.store(0, Relaxed);
    BYTES.store(0, Relaxed);
    counted_by_rawshard_bench(run, times);
    (ALLOCATIONS.load(Relaxed), BYTES.load(Relaxed))
}

/// A part of an operation that is not the router's: the peer's side, or the client's.
pub fn uncounted<R>(part: impl FnOnce() -> R) -> R {
    // A part of a part, or a run that is not counted at all: a second toggle would turn counting on.
    if !ON.load(Relaxed) {
        return part();
    }
    let (mut part, mut result) = (Some(part), None);
    not_counted_by_rawshard_bench(&mut || result = part.take().map(|part| part()));
    result.expect("it was run")
}

/// Bytes allocated and not freed.
pub fn live() -> i64 {
    LIVE.load(Relaxed)
}

#[inline(never)]
#[unsafe(no_mangle)]
fn counted_by_rawshard_bench(run: &mut dyn FnMut(u64), times: u64) {
    ON.store(true, Relaxed);
    run(times);
    ON.store(false, Relaxed);
}

#[inline(never)]
#[unsafe(no_mangle)]
fn not_counted_by_rawshard_bench(part: &mut dyn FnMut()) {
    ON.store(false, Relaxed);
    part();
    ON.store(true, Relaxed);
}
