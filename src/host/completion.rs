//! The fiber between TX and the engines. It waits for the bell, hands each answer to its waiter and wakes all of their
//! fibers at once; and it sends what fibers have asked since its last turn, so that the calls of one turn of the event
//! loop cost one lock and one wake together.

use std::ffi::{c_int, c_void};
use std::panic::catch_unwind;
use std::ptr::NonNull;

use super::answers;
use super::failure::Failure;
use super::runtime::{Entry, RUNTIME, Runtime};
use super::sys::{self, Fiber};
use crate::call::request::Reply;
use crate::router::Router;

pub struct Completion {
    /// The fiber, while it runs.
    fiber: Option<NonNull<Fiber>>,
    /// It has been woken to send something.
    flushes: bool,
    /// Used by every batch in turn.
    batch: Vec<Reply>,
}

impl Completion {
    pub const fn new() -> Completion {
        Completion { fiber: None, flushes: false, batch: Vec::new() }
    }

    pub fn is_running(&self) -> bool {
        self.fiber.is_some()
    }

    /// Has the fiber look for what there is to do.
    pub fn wake(&self) {
        if let Some(fiber) = self.fiber {
            // SAFETY: on TX; the fiber takes itself out when it ends. Waking does not switch.
            unsafe { sys::fiber_wakeup(fiber.as_ptr()) };
        }
    }

    /// Has all outgoing messages sent when the fibers that are ready now have run.
    pub fn flush_soon(&mut self, router: &Router) {
        if let Some(fiber) = self.fiber
            && !self.flushes
        {
            self.flushes = true;
            // The fiber looks for answers then, too.
            router.expect_replies();
            // SAFETY: on TX; the fiber takes itself out when it ends. Waking does not switch.
            unsafe { sys::fiber_wakeup(fiber.as_ptr()) };
        }
    }
}

/// Starts the fiber unless it runs. Somebody may have cancelled it.
pub fn ensure() -> Result<(), Failure> {
    if RUNTIME.with(|runtime| runtime.completion.fiber.is_some()) {
        return Ok(());
    }
    // SAFETY: a name and a function that live for ever; the fiber is started as soon as it is made.
    unsafe {
        let Some(fiber) = NonNull::new(sys::fiber_new(c"rawshard".as_ptr(), main)) else {
            return Err(Failure::state("rawshard: can not start a fiber: the process is stopping"));
        };
        RUNTIME.with(|runtime| runtime.completion.fiber = Some(fiber));
        // Switches to the fiber, and back when it waits for the first time.
        sys::fiber_start(fiber.as_ptr());
    }
    Ok(())
}

unsafe extern "C" fn main(_: *mut c_void) -> c_int {
    // SAFETY: plain calls of the fiber API on TX; nothing is borrowed while the fiber waits.
    let failed = catch_unwind(|| unsafe {
        let bell = RUNTIME.with(|runtime| runtime.bell.clone());
        deliver();
        flush();
        answers::send();
        // A cancelled fiber must end: coio_wait does not wait any more, and 3.x counts on it when it stops.
        while let Some(bell) = &bell
            && !sys::fiber_is_cancelled()
        {
            if sys::coio_wait(bell.fd(), sys::COIO_READ, FOR_EVER) != 0 {
                bell.hush();
            }
            deliver();
            flush();
            answers::send();
        }
    })
    .is_err();
    if failed {
        log::error!("the completion fiber has failed");
    }
    let orphans = catch_unwind(|| {
        RUNTIME.with(|runtime| {
            // Should a wake-up have been lost with the fiber: the next one sends before it waits.
            runtime.completion.fiber = None;
            runtime.completion.flushes = false;
            if failed {
                // Nobody knows which answers are lost and what has been sent, and no call may wait for ever.
                runtime.routers.iter_mut().for_each(|entry| entry.outgoing.iter_mut().for_each(Vec::clear));
                runtime.abandon(|_| true);
                // Clients are to hear of it, which a successor sees to.
                return !runtime.answers.is_empty();
            }
            !runtime.waiters.is_empty() || !runtime.answers.is_empty()
        })
    });
    // Others still wait for answers: a successor takes over, or, where the host gives no fibers any more, they end.
    if let Ok(true) = orphans {
        let _ = catch_unwind(|| {
            if ensure().is_err() {
                RUNTIME.with(|runtime| {
                    runtime.abandon(|_| true);
                    runtime.send_soon();
                });
            }
        });
    }
    0
}

/// Hands out all answers there are.
fn deliver() {
    RUNTIME.with(|runtime| {
        let Runtime { held, buffers, .. } = runtime;
        held.reclaim(buffers);
        let mut batch = std::mem::take(&mut runtime.completion.batch);
        for id in 1.. {
            let Some(entry) = runtime.routers.slot(id) else { break };
            let Some(entry) = entry else { continue };
            // Into an empty one.
            entry.router.take_replies(&mut batch);
            for reply in batch.drain(..) {
                runtime.deliver(reply);
            }
        }
        runtime.completion.batch = batch;
    });
}

/// Sends what has been asked since the last time.
fn flush() {
    RUNTIME.with(|runtime| {
        runtime.completion.flushes = false;
        runtime.routers.iter_mut().for_each(Entry::flush);
    });
}

/// `TIMEOUT_INFINITY` of the host: what it takes for waiting without end.
const FOR_EVER: f64 = 500.0 * 365.0 * 86_400.0;
