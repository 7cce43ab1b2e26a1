//! Sending calls, and fibers that wait for their answers.
//!
//! A call's slot (`waiters.rs`) has a key, which travels as the request's token. The engine answers every call by its
//! deadline, so a parked fiber needs no timer. A fiber that leaves early gives its slot up first: a late answer finds
//! nothing then, and nobody wakes a fiber that has gone.

use std::ptr::NonNull;
use std::time::Duration;

use super::completion;
use super::failure::Failure;
use super::runtime::{RUNTIME, Runtime};
use super::sys::{self, Fiber};
use super::waiters::{Future, NOBODY, Owner, Place};
use crate::call::raw_args::DEFAULT_TIMEOUT;
use crate::call::request::{Access, Body, Client, Form, Outcome, RawRequest, Reply, Request, Target, Token};
use crate::engine;
use crate::engine::inbox::Message;
use crate::time::Time;
use crate::wire::mp::Cursor;

/// One call, as an entry asks for it.
pub struct Call {
    pub router: u32,
    pub target: Target,
    pub access: Access,
    /// None: the default; but then a future waits for an answer without end once its request was sent.
    pub timeout: Option<Duration>,
    pub attempt_timeout: Option<Duration>,
}

/// Who gets the answer.
#[derive(Clone, Copy)]
pub enum Recipient {
    /// The current fiber, which must then [`wait`] for it.
    Fiber,
    /// A future with this shape, to be made of the key that [`post`] gives.
    Future(u8),
}

/// Sends a call. `body` is given a buffer to build the request in; nothing is sent if it fails. What it borrows is not
/// needed afterwards.
pub fn post(
    call: Call,
    recipient: Recipient,
    body: impl FnOnce(Vec<u8>) -> Result<Body, Failure>,
) -> Result<Token, Failure> {
    let buffer = RUNTIME.with(|runtime| {
        runtime.routers.serving(call.router)?;
        Ok::<_, Failure>(runtime.buffers.take())
    })?;
    // Now: starting the completion fiber switches, and what is borrowed may be gone afterwards.
    let body = body(buffer)?;
    completion::ensure()?;
    RUNTIME.with(|runtime| {
        let Runtime { routers, waiters, completion, .. } = runtime;
        let entry = routers.serving(call.router)?;
        let engine = entry.router.engine_of(call.target);
        let deadline = entry.router.now().after(call.timeout.unwrap_or(DEFAULT_TIMEOUT));
        let (owner, answer_by) = match recipient {
            Recipient::Fiber => (Owner::Fiber(current()?), deadline),
            Recipient::Future(shape) => {
                let answer_by = if call.timeout.is_some() { deadline } else { Time::NEVER };
                (Owner::Future(Future::new(shape, answer_by)), answer_by)
            }
        };
        let link = waiters.link(owner, call.router, engine);
        let token = link.token;
        let request = Request {
            token,
            client: Client::Host,
            target: call.target,
            access: call.access,
            deadline,
            answer_by,
            attempt_timeout: call.attempt_timeout,
            pushes: matches!(recipient, Recipient::Future(_)),
            body,
        };
        entry.outgoing[engine].push(Message::Call(request));
        completion.flush_soon(&entry.router);
        Ok(link.keep())
    })
}

/// Sends the call that `bytes` ask of a router: the arguments of `callraw`, or those of an endpoint's function. They are copied
/// here and read by the engine.
pub fn post_raw(router: u32, form: Form, bytes: &[u8]) -> Result<Token, Failure> {
    let mut buffer = RUNTIME.with(|runtime| runtime.buffers.take());
    match &form {
        Form::Callraw => buffer.clear(),
        Form::Endpoint(endpoint, _) => endpoint.begin(&mut buffer),
    }
    buffer.extend_from_slice(bytes);
    // Not before: starting the completion fiber switches. The host then runs the triggers of the fiber that yields, which
    // give the input that the bytes lie in back to the connection.
    completion::ensure()?;
    RUNTIME.with(|runtime| enqueue(runtime, router, form, buffer, Owner::Fiber(current()?)))
}

/// Sends a raw call, whose answer is for `owner`.
pub fn enqueue(
    runtime: &mut Runtime,
    router: u32,
    form: Form,
    bytes: Vec<u8>,
    owner: Owner,
) -> Result<Token, Failure> {
    let Runtime { routers, waiters, completion, .. } = runtime;
    let entry = routers.serving(router)?;
    let engine = entry.router.engine_of_raw(&form, &bytes);
    let link = waiters.link(owner, router, engine);
    entry.outgoing[engine].push(Message::Raw(RawRequest { token: link.token, form, bytes }));
    completion.flush_soon(&entry.router);
    Ok(link.keep())
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
                if let Some(place) = RUNTIME.with(|runtime| runtime.waiters.leave(token)) {
                    cancel(token, place);
                }
                return Err(Failure::Cancelled);
            }
            // Any wake-up ends it, ours or not: the loop looks for itself.
            sys::fiber_yield();
        }
    }
}

/// Parks the current fiber until a future has ended, has been pushed to `pushes` times, or `timeout` is over; None waits without
/// end. Yields, unless there is nothing to wait for.
pub fn wait_future(token: Token, pushes: usize, timeout: Option<Duration>) -> Result<(), Failure> {
    let fiber = current()?;
    let end = timeout.map_or(Time::NEVER, |timeout| engine::sys::now().after(timeout));
    let mut sleeper = NOBODY;
    let (mut waited, mut looked) = (false, false);
    loop {
        let Some(answer_by) = RUNTIME.with(|runtime| runtime.waiters.pending(token, pushes)) else {
            if waited {
                // After a push it is still on the list.
                RUNTIME.with(|runtime| runtime.waiters.rise(token, sleeper));
            }
            return Ok(());
        };
        let now = engine::sys::now();
        // SAFETY: plain calls of the fiber API on TX; nothing is borrowed.
        unsafe {
            let cancelled = sys::fiber_is_cancelled();
            if !cancelled && waited && end <= now && !looked {
                // An engine may hold the answer back for a moment (`engine/hold.rs`): the completion fiber fetches it first.
                looked = true;
                RUNTIME.with(|runtime| runtime.completion.wake());
                sys::fiber_sleep(0.0);
                continue;
            }
            // A wait of no time at all gives others their turn, once: whoever asks again and again must not stop them.
            if cancelled || (waited && end <= now) {
                RUNTIME.with(|runtime| runtime.waiters.rise(token, sleeper));
                return if cancelled { Err(Failure::Cancelled) } else { Ok(()) };
            }
            if !waited {
                sleeper = RUNTIME.with(|runtime| runtime.waiters.sleep(token, fiber));
                waited = true;
            }
            if end < answer_by {
                sys::fiber_sleep(end.since(now).as_secs_f64());
            } else {
                // The engine is first.
                sys::fiber_yield();
            }
        }
    }
}

/// Tells the engine that nobody wants the answer of a call any more.
pub fn cancel(token: Token, Place { router, engine }: Place) {
    RUNTIME.with(|runtime| {
        let Runtime { routers, completion, .. } = runtime;
        if let Some(entry) = routers.get_mut(router) {
            // Behind its call in the same queue.
            entry.outgoing[engine].push(Message::Cancel(Client::Host, token));
            completion.flush_soon(&entry.router);
        }
    });
}

fn current() -> Result<NonNull<Fiber>, Failure> {
    // SAFETY: on TX: whoever calls has come through the runtime, or is about to.
    NonNull::new(unsafe { sys::fiber_self() })
        .ok_or_else(|| Failure::state("rawshard: called outside of a fiber"))
}
