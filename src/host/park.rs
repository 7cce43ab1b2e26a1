//! Fibers that wait for the answers of their calls.
//!
//! A waiter is one slot; its key travels as the request's token. The engine answers every call by its deadline, so a
//! waiting fiber needs no timer. A fiber that leaves early gives its slot up first: a late answer finds nothing then,
//! and nobody wakes a fiber that has gone.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::time::Duration;

use super::buffers::Buffers;
use super::completion;
use super::failure::Failure;
use super::runtime::{RUNTIME, Runtime};
use super::sys::{self, Fiber};
use crate::call::request::{Access, Body, Client, Outcome, RawRequest, Reply, Request, Target, Token};
use crate::engine::inbox::Message;
use crate::slab::Slab;
use crate::wire::mp::Cursor;

struct Waiter {
    fiber: NonNull<Fiber>,
    router: u32,
    /// The engine that has the call.
    engine: usize,
    state: State,
}

enum State {
    Waiting,
    Answered(Reply),
    /// No answer will come.
    Abandoned,
}

pub struct Waiters {
    slab: Slab<Waiter>,
}

/// One call, as an entry asks for it.
pub struct Call {
    pub router: u32,
    pub target: Target,
    pub access: Access,
    pub timeout: Duration,
    pub attempt_timeout: Option<Duration>,
}

/// Sends a call for the current fiber, which must then [`wait`] for it. `body` is given a buffer to build the request
/// in; nothing is sent if it fails. What it borrows is not needed afterwards.
pub fn post(call: Call, body: impl FnOnce(Vec<u8>) -> Result<Body, Failure>) -> Result<Token, Failure> {
    completion::ensure()?;
    RUNTIME.with(|runtime| {
        let Runtime { routers, waiters, buffers, completion, .. } = runtime;
        let entry = routers.serving(call.router)?;
        let body = body(buffers.take())?;
        let engine = entry.router.engine_of(call.target);
        let link = waiters.link(call.router, engine)?;
        let token = link.token;
        let deadline = entry.router.now().after(call.timeout);
        let request = Request {
            token,
            client: Client::Host,
            target: call.target,
            access: call.access,
            deadline,
            attempt_timeout: call.attempt_timeout,
            body,
        };
        entry.outgoing[engine].push(Message::Call(request));
        completion.flush_soon();
        Ok(link.keep())
    })
}

/// Sends the call that `bytes`, the arguments of `callraw`, ask of a router. They are copied here and read by the engine.
pub fn post_raw(router: u32, bytes: &[u8]) -> Result<Token, Failure> {
    completion::ensure()?;
    RUNTIME.with(|runtime| {
        let Runtime { routers, waiters, buffers, completion, .. } = runtime;
        let entry = routers.serving(router)?;
        let engine = entry.router.engine_of_raw(bytes);
        let mut buffer = buffers.take();
        buffer.clear();
        buffer.extend_from_slice(bytes);
        let link = waiters.link(router, engine)?;
        entry.outgoing[engine].push(Message::Raw(RawRequest { token: link.token, bytes: buffer }));
        completion.flush_soon();
        Ok(link.keep())
    })
}

/// Parks the current fiber until the answer is there or the fiber is cancelled. Yields. That the arguments of a raw call
/// are wrong is a failure like any other.
pub fn wait(token: Token) -> Result<Reply, Failure> {
    loop {
        if let Some(end) = RUNTIME.with(|runtime| runtime.waiters.poll(token)) {
            let reply = end?;
            if reply.outcome == Outcome::Malformed {
                let text = Cursor::new(reply.values()).str().unwrap_or_default();
                return Err(Failure::arguments(String::from_utf8_lossy(text)));
            }
            return Ok(reply);
        }
        // SAFETY: plain calls of the fiber API on TX; nothing is borrowed.
        unsafe {
            if sys::fiber_is_cancelled() {
                leave(token);
                return Err(Failure::Cancelled);
            }
            // Any wake-up ends it, ours or not: the loop looks for itself.
            sys::fiber_yield();
        }
    }
}

fn leave(token: Token) {
    RUNTIME.with(|runtime| {
        let Runtime { routers, waiters, completion, .. } = runtime;
        if let Some(waiter) = waiters.slab.remove(token)
            && let Some(entry) = routers.get_mut(waiter.router)
        {
            // Behind its call in the same queue.
            entry.outgoing[waiter.engine].push(Message::Cancel(Client::Host, token));
            completion.flush_soon();
        }
    });
}

impl Waiters {
    pub const fn new() -> Waiters {
        Waiters { slab: Slab::new() }
    }

    pub fn is_empty(&self) -> bool {
        self.slab.used() == 0
    }

    /// Slots: carved, in use, the most that were in use at once.
    pub fn occupancy(&self) -> (u32, u32, u32) {
        (self.slab.capacity(), self.slab.used(), self.slab.peak())
    }

    fn link(&mut self, router: u32, engine: usize) -> Result<Link<'_>, Failure> {
        // SAFETY: on TX, as all of the runtime.
        let fiber = NonNull::new(unsafe { sys::fiber_self() })
            .ok_or_else(|| Failure::state("rawshard: called outside of a fiber"))?;
        let token = self.slab.insert(Waiter { fiber, router, engine, state: State::Waiting });
        Ok(Link { waiters: self, token })
    }

    /// The end of a wait, if it has come; the slot is free then.
    fn poll(&mut self, token: Token) -> Option<Result<Reply, Failure>> {
        match self.slab.get(token).map(|waiter| &waiter.state) {
            Some(State::Waiting) => return None,
            Some(State::Answered(_) | State::Abandoned) | None => {}
        }
        Some(match self.slab.remove(token).map(|waiter| waiter.state) {
            Some(State::Answered(reply)) => Ok(reply),
            _ => Err(Failure::state("rawshard: the router is stopped")),
        })
    }

    /// Hands an answer to its waiter and wakes the fiber; drops the answer if the caller has left.
    pub fn deliver(&mut self, reply: Reply, buffers: &mut Buffers) {
        match self.slab.get_mut(reply.token) {
            Some(waiter) => waiter.end(State::Answered(reply)),
            None => buffers.put(reply.into_buffer()),
        }
    }

    /// Ends the waits for routers that `gone` names.
    pub fn abandon(&mut self, gone: impl Fn(u32) -> bool) {
        let keys: Vec<Token> = self.slab.keys().collect();
        for key in keys {
            if let Some(waiter) = self.slab.get_mut(key)
                && gone(waiter.router)
            {
                waiter.end(State::Abandoned);
            }
        }
    }
}

/// A waiter whose call is being sent. Should that panic, the slot must not keep a fiber that does not wait.
struct Link<'a> {
    waiters: &'a mut Waiters,
    token: Token,
}

impl Link<'_> {
    fn keep(self) -> Token {
        ManuallyDrop::new(self).token
    }
}

impl Drop for Link<'_> {
    fn drop(&mut self) {
        self.waiters.slab.remove(self.token);
    }
}

impl Waiter {
    fn end(&mut self, state: State) {
        if matches!(self.state, State::Waiting) {
            self.state = state;
            // SAFETY: a linked waiter's fiber lives: it frees its slot before it goes on. Waking does not switch.
            unsafe { sys::fiber_wakeup(self.fiber.as_ptr()) };
        }
    }
}
