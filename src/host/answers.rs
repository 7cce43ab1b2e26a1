//! Answers to calls for which no fiber waits (`direct.rs`), on their way to the clients' connections.
//!
//! The host's function for that, `box_iproto_send`, puts the answer into the connection's output and then always yields, until
//! the next turn of the event loop if nobody wakes the fiber before. So there are a few fibers that do nothing else, and
//! the completion fiber wakes them again and again until all is sent.

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::panic::catch_unwind;
use std::ptr::NonNull;

use super::failure::Failure;
use super::iproto::IPROTO;
use super::runtime::{RUNTIME, Runtime};
use super::sys::{self, Fiber};
use crate::call::request::{Outcome, Reply};
use crate::wire::mp::Cursor;
use crate::wire::serve::{self, Begun, Head};

/// Whom an answer is for.
#[derive(Clone, Copy)]
pub struct Remote {
    /// The host's id of the session, never used again for another one.
    pub session: u64,
    /// Of the request.
    pub sync: u64,
    /// Of the request's arguments.
    pub bytes: u32,
    pub function: Function,
}

/// What was called.
#[derive(Clone, Copy)]
pub enum Function {
    Stored,
    /// The same in Lua.
    Callraw,
    /// An endpoint by its id, and of what age it was.
    Endpoint(u32, u32),
}

pub struct Answers {
    queue: VecDeque<(Remote, Answer)>,
    /// Fibers that have nothing to send.
    idle: Vec<NonNull<Fiber>>,
    /// Those that have sent something and wait for no more than to go on.
    sent: Vec<NonNull<Fiber>>,
    /// All of them.
    senders: usize,
    /// Where what a C function returns leaves as one array.
    pub wraps: bool,
    /// Errors have a name.
    pub names_errors: bool,
    /// Whose client had gone.
    pub undeliverable: u64,
}

enum Answer {
    Reply(Reply),
    /// There is none.
    Abandoned,
}

/// `ER_PROC_LUA`
const PROC_LUA: u32 = 32;

/// As many answers leave in one turn of the event loop. Each is a fiber with a stack of its own.
const SENDERS: usize = 64;

impl Answers {
    pub const fn new() -> Answers {
        Answers {
            queue: VecDeque::new(),
            idle: Vec::new(),
            sent: Vec::new(),
            senders: 0,
            wraps: false,
            names_errors: false,
            undeliverable: 0,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub fn push(&mut self, remote: Remote, reply: Reply) {
        self.queue.push_back((remote, Answer::Reply(reply)));
    }

    pub fn push_abandoned(&mut self, remote: Remote) {
        self.queue.push_back((remote, Answer::Abandoned));
    }

    /// Wakes those that can go on.
    fn wake(&mut self) -> Next {
        let mut awake = 0;
        // Even if there is nothing more to send: a fiber that sleeps for no time keeps the event loop from sleeping.
        for fiber in self.sent.drain(..) {
            wake(fiber);
            awake += 1;
        }
        while awake < self.queue.len()
            && let Some(fiber) = self.idle.pop()
        {
            wake(fiber);
            awake += 1;
        }
        if awake < self.queue.len() && self.senders < SENDERS {
            Next::Start
        } else if awake > 0 && !self.queue.is_empty() {
            Next::LetRun
        } else {
            Next::Nothing
        }
    }
}

/// What is to be done so that all is sent.
enum Next {
    /// One more sender is needed.
    Start,
    /// They have been woken.
    LetRun,
    Nothing,
}

fn wake(fiber: NonNull<Fiber>) {
    // SAFETY: a fiber on one of the lists lives: it takes itself out before it goes on. Waking does not switch.
    unsafe { sys::fiber_wakeup(fiber.as_ptr()) };
}

/// Has all answers sent that there are. Switches fibers.
pub fn send() {
    loop {
        match RUNTIME.with(|runtime| runtime.answers.wake()) {
            // SAFETY: on TX, in a fiber; nothing is borrowed.
            Next::LetRun => unsafe { sys::fiber_reschedule() },
            Next::Start => {
                if !start() {
                    return;
                }
            }
            Next::Nothing => return,
        }
    }
}

/// Starts a sender, which sends the next answer before this goes on.
fn start() -> bool {
    // SAFETY: a name and a function that live for ever; the fiber is started as soon as it is made.
    unsafe {
        let Some(fiber) = NonNull::new(sys::fiber_new(c"rawshard.answers".as_ptr(), main)) else {
            // The process is stopping.
            RUNTIME.with(|runtime| {
                if runtime.answers.senders == 0 {
                    runtime.answers.queue.clear();
                }
            });
            return false;
        };
        RUNTIME.with(|runtime| runtime.answers.senders += 1);
        // Switches to the fiber, and back when it waits for the first time.
        sys::fiber_start(fiber.as_ptr());
    }
    true
}

unsafe extern "C" fn main(_: *mut c_void) -> c_int {
    // SAFETY: on TX, in a fiber.
    let own = NonNull::new(unsafe { sys::fiber_self() });
    let failed = catch_unwind(|| {
        let Some(own) = own else { return };
        while let Some((remote, answer)) = next(own) {
            RUNTIME.with(|runtime| runtime.answers.sent.push(own));
            send_one(remote, &answer);
            // Whoever has woken it may be a stranger, or the host's timer.
            RUNTIME.with(|runtime| runtime.answers.sent.retain(|fiber| *fiber != own));
            if let Answer::Reply(reply) = answer {
                RUNTIME.with(|runtime| runtime.buffers.put(reply.into_buffer()));
            }
        }
    })
    .is_err();
    if failed {
        log::error!("a fiber that sends answers has failed");
    }
    let _ = catch_unwind(|| {
        RUNTIME.with(|runtime| {
            // Should it have failed, it may still be there, and whoever has its memory next must not be woken.
            runtime.answers.sent.retain(|fiber| Some(*fiber) != own);
            runtime.answers.idle.retain(|fiber| Some(*fiber) != own);
            runtime.answers.senders -= 1;
        });
    });
    0
}

/// The next answer; waits for one. None: the fiber is cancelled and nothing is left.
fn next(own: NonNull<Fiber>) -> Option<(Remote, Answer)> {
    loop {
        if let Some(next) = RUNTIME.with(|runtime| runtime.answers.queue.pop_front()) {
            return Some(next);
        }
        // SAFETY: plain calls of the fiber API on TX; nothing is borrowed while the fiber waits.
        unsafe {
            if sys::fiber_is_cancelled() {
                return None;
            }
            RUNTIME.with(|runtime| runtime.answers.idle.push(own));
            sys::fiber_yield();
        }
        RUNTIME.with(|runtime| runtime.answers.idle.retain(|fiber| *fiber != own));
    }
}

/// Yields.
fn send_one(remote: Remote, answer: &Answer) {
    let Some(iproto) = IPROTO.with(|iproto| *iproto) else { return };
    let wraps = RUNTIME.with(|runtime| runtime.answers.wraps && matches!(remote.function, Function::Stored));
    let schema_version = iproto.schema_version();
    let values = |count, begun| Head::of_values(remote.sync, schema_version, count, begun);
    let sent = match answer {
        Answer::Reply(reply) if reply.outcome == Outcome::Values => {
            if wraps {
                iproto.send(remote.session, values(1, Begun::Nothing).bytes(), reply.array())
            } else {
                iproto.send(remote.session, values(reply.count(), Begun::Nothing).bytes(), reply.values())
            }
        }
        Answer::Reply(reply) if reply.outcome == Outcome::Failed => {
            let head = if wraps { values(1, Begun::PairWithNil) } else { values(2, Begun::Nil) };
            iproto.send(remote.session, head.bytes(), reply.values())
        }
        Answer::Reply(reply) => {
            let text = Cursor::new(reply.values()).str().unwrap_or_default();
            send_failure(remote, &Failure::arguments(String::from_utf8_lossy(text)))
        }
        Answer::Abandoned => send_failure(remote, &Failure::stopped()),
    };
    if !sent {
        RUNTIME.with(|runtime| runtime.answers.undeliverable += 1);
    }
}

fn send_failure(remote: Remote, failure: &Failure) -> bool {
    let Some(iproto) = IPROTO.with(|iproto| *iproto) else { return false };
    // What Lua raises is a string.
    let (kind, code) = match remote.function {
        Function::Stored => ("ClientError", failure.code()),
        Function::Callraw | Function::Endpoint(..) => ("LuajitError", PROC_LUA),
    };
    let head = Head::of_error(remote.sync, iproto.schema_version(), code);
    let mut body = Vec::new();
    let names_errors = RUNTIME.with(|runtime| runtime.answers.names_errors);
    let has_name = names_errors && matches!(remote.function, Function::Stored);
    let text: Vec<u8> = failure.text_for_host().collect();
    serve::write_error_body(&mut body, kind, code, has_name, &text);
    iproto.send(remote.session, head.bytes(), &body)
}

impl Runtime {
    /// Has the fibers that are there send what there is; if there are none, the completion fiber will start some. Does not
    /// switch.
    pub fn send_soon(&mut self) {
        if !matches!(self.answers.wake(), Next::Nothing) {
            self.completion.wake();
        }
    }
}
