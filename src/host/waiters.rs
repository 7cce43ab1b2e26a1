//! The slots of calls under way. Each is a fiber that is parked until the answer comes, or a future: whoever wants its
//! answer sleeps on it, any number of fibers, or comes back later.

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use super::answers::Remote;
use super::buffers::Buffers;
use super::failure::Failure;
use super::result::Held;
use super::sys::{self, Fiber};
use crate::call::request::{Outcome, Reply, Token};
use crate::slab::{Key, Slab};
use crate::time::Time;

pub struct Waiters {
    slab: Slab<Waiter>,
    /// Fibers that sleep on futures.
    sleepers: Slab<Sleeper>,
    /// Bytes that futures hold for whoever reads them.
    kept: usize,
    /// Of these, what came since [`Waiters::pressure`] was told of last.
    grown: usize,
}

struct Waiter {
    owner: Owner,
    router: u32,
    /// The engine that has the call.
    engine: u32,
    state: State,
}

/// Whom the answer is for.
pub enum Owner {
    /// It waits for nothing else.
    Fiber(NonNull<Fiber>),
    Future(Future),
    /// A client's request, which no fiber waits for.
    Session(Remote),
    /// The answer is dropped.
    Nobody,
}

pub struct Future {
    shape: u8,
    /// The engine answers until then.
    answer_by: Time,
    /// The newest of those that sleep on it.
    sleepers: Key,
    /// What the function has pushed and nobody has taken. Few are pushed to, and each takes a slot of the same size.
    #[expect(clippy::box_collection, reason = "a queue in its place would be a quarter of a slot")]
    pushed: Option<Box<VecDeque<Reply>>>,
}

struct Sleeper {
    fiber: NonNull<Fiber>,
    next: Key,
}

enum State {
    Waiting,
    Answered(Reply),
    /// No answer will come.
    Abandoned,
}

/// What a future shows.
pub enum Sight<'a> {
    Pending,
    /// The answer and the shape that was asked for.
    Answered(&'a Reply, u8),
    Abandoned,
    /// The slot is not the future's any more: it was discarded.
    Gone,
}

/// Where a call is, for its cancel.
pub struct Place {
    pub router: u32,
    pub engine: usize,
}

/// No slot has it.
pub const NOBODY: Key = Key { index: 0, generation: 0 };

/// So many bytes may lie with futures that the collector has not come to yet.
const KEPT: usize = 16 << 20;
/// Growth beyond it that is worth a step of the collector.
const STEP: usize = 1 << 20;

impl Future {
    /// `shape` is for whoever reads the answer. The engine answers until `answer_by`.
    pub fn new(shape: u8, answer_by: Time) -> Future {
        Future { shape, answer_by, sleepers: NOBODY, pushed: None }
    }
}

impl Waiters {
    pub const fn new() -> Waiters {
        Waiters { slab: Slab::new(), sleepers: Slab::new(), kept: 0, grown: 0 }
    }

    pub fn is_empty(&self) -> bool {
        self.slab.used() == 0
    }

    /// Slots: carved, in use, the most that were in use at once.
    pub fn occupancy(&self) -> (u32, u32, u32) {
        (self.slab.capacity(), self.slab.used(), self.slab.peak())
    }

    pub fn link(&mut self, owner: Owner, router: u32, engine: usize) -> Link<'_> {
        let token = self.slab.insert(Waiter { owner, router, engine: engine as u32, state: State::Waiting });
        Link { waiters: self, token }
    }

    // What happens to a call.

    /// Hands an answer to whom it is for and wakes the fibers; drops the answer if the caller has left. Gives it back if it is
    /// for a session.
    pub fn deliver(&mut self, reply: Reply, buffers: &mut Buffers) -> Option<(Remote, Reply)> {
        let Some(waiter) = self.slab.get_mut(reply.token) else {
            buffers.put(reply.into_buffer());
            return None;
        };
        if !matches!(waiter.state, State::Waiting) {
            return None;
        }
        if reply.outcome == Outcome::Push {
            if let Owner::Future(future) = &mut waiter.owner {
                self.kept += reply.capacity();
                self.grown += reply.capacity();
                future.pushed.get_or_insert_default().push_back(reply);
                let sleepers = future.sleepers;
                self.nudge(sleepers);
            }
            return None;
        }
        match &mut waiter.owner {
            Owner::Fiber(fiber) => {
                wake(*fiber);
                waiter.state = State::Answered(reply);
            }
            Owner::Future(future) => {
                self.kept += reply.capacity();
                self.grown += reply.capacity();
                let sleepers = std::mem::replace(&mut future.sleepers, NOBODY);
                waiter.state = State::Answered(reply);
                self.rouse(sleepers);
            }
            Owner::Session(remote) => {
                let remote = *remote;
                self.slab.remove(reply.token);
                return Some((remote, reply));
            }
            Owner::Nobody => {
                self.slab.remove(reply.token);
                buffers.put(reply.into_buffer());
            }
        }
        None
    }

    /// Ends the waits for routers that `gone` names; `tell` is told of those that no fiber waits for.
    pub fn abandon(&mut self, gone: impl Fn(u32) -> bool, mut tell: impl FnMut(Remote)) {
        let keys: Vec<Token> = self.slab.keys().collect();
        for key in keys {
            let Some(waiter) = self.slab.get_mut(key) else { continue };
            if !gone(waiter.router) || !matches!(waiter.state, State::Waiting) {
                continue;
            }
            waiter.state = State::Abandoned;
            match &mut waiter.owner {
                Owner::Fiber(fiber) => wake(*fiber),
                Owner::Future(future) => {
                    let sleepers = std::mem::replace(&mut future.sleepers, NOBODY);
                    self.rouse(sleepers);
                }
                Owner::Session(remote) => {
                    tell(*remote);
                    self.slab.remove(key);
                }
                Owner::Nobody => {
                    self.slab.remove(key);
                }
            }
        }
    }

    // For a fiber that is parked.

    /// The end of its wait, if it has come; the slot is free then.
    pub fn poll(&mut self, token: Token) -> Option<Result<Reply, Failure>> {
        match self.slab.get(token).map(|waiter| &waiter.state) {
            Some(State::Waiting) => return None,
            Some(State::Answered(_) | State::Abandoned) | None => {}
        }
        Some(match self.slab.remove(token).map(|waiter| waiter.state) {
            Some(State::Answered(reply)) => Ok(reply),
            _ => Err(Failure::stopped()),
        })
    }

    /// It does not wait any more. Where its call is, if that is under way.
    pub fn leave(&mut self, token: Token) -> Option<Place> {
        self.slab.remove(token).map(|waiter| waiter.place())
    }

    // For futures.

    pub fn look(&self, token: Token) -> Sight<'_> {
        match self.slab.get(token) {
            Some(Waiter { state: State::Answered(reply), owner: Owner::Future(future), .. }) => {
                Sight::Answered(reply, future.shape)
            }
            Some(Waiter { state: State::Waiting, .. }) => Sight::Pending,
            Some(_) => Sight::Abandoned,
            None => Sight::Gone,
        }
    }

    /// Until when a future is answered; None if it has ended, or has been pushed to `pushes` times.
    pub fn pending(&self, token: Token, pushes: usize) -> Option<Time> {
        match self.slab.get(token)? {
            Waiter { state: State::Waiting, owner: Owner::Future(future), .. } => {
                let pushed = future.pushed.as_ref().map_or(0, |pushed| pushed.len());
                (pushed < pushes).then_some(future.answer_by)
            }
            _ => None,
        }
    }

    /// What was pushed to a future, counted from 1, and the shape that was asked for.
    pub fn pushed(&self, token: Token, number: usize) -> Option<(&Reply, u8)> {
        match self.slab.get(token)? {
            Waiter { owner: Owner::Future(future), .. } => {
                Some((future.pushed.as_ref()?.get(number.checked_sub(1)?)?, future.shape))
            }
            _ => None,
        }
    }

    /// The first of what was pushed, which is the caller's from now on.
    pub fn take_pushed(&mut self, token: Token) -> Option<(Reply, u8)> {
        let Owner::Future(future) = &mut self.slab.get_mut(token)?.owner else { return None };
        let reply = future.pushed.as_mut()?.pop_front()?;
        self.kept -= reply.capacity();
        Some((reply, future.shape))
    }

    /// Has `fiber` woken when the future ends. Until then, whoever goes must [`Waiters::rise`].
    pub fn sleep(&mut self, token: Token, fiber: NonNull<Fiber>) -> Key {
        match self.slab.get_mut(token).map(|waiter| &mut waiter.owner) {
            Some(Owner::Future(future)) => {
                let key = self.sleepers.insert(Sleeper { fiber, next: future.sleepers });
                future.sleepers = key;
                key
            }
            _ => NOBODY,
        }
    }

    /// `sleeper` does not sleep on the future any more.
    pub fn rise(&mut self, token: Token, sleeper: Key) {
        let Some(Sleeper { next, .. }) = self.sleepers.remove(sleeper) else { return };
        let Some(Owner::Future(future)) = self.slab.get_mut(token).map(|waiter| &mut waiter.owner) else {
            return;
        };
        if future.sleepers == sleeper {
            future.sleepers = next;
            return;
        }
        let mut at = future.sleepers;
        while let Some(other) = self.sleepers.get_mut(at) {
            if other.next == sleeper {
                other.next = next;
                return;
            }
            at = other.next;
        }
    }

    /// Nobody wants the answer of a future that has none yet: its slot is free, those that sleep on it are woken. Where its
    /// call is. One that has its answer keeps it.
    pub fn discard(&mut self, token: Token, held: &mut Held, buffers: &mut Buffers) -> Option<Place> {
        match self.slab.get(token)?.state {
            State::Waiting => {}
            State::Answered(_) | State::Abandoned => return None,
        }
        let waiter = self.slab.remove(token)?;
        let place = waiter.place();
        if let Owner::Future(future) = waiter.owner {
            self.rouse(future.sleepers);
            self.drop_pushed(future, held, buffers);
        }
        Some(place)
    }

    /// The future is gone: the collector has found it. Where its call is, if that is under way.
    pub fn free(&mut self, token: Token, held: &mut Held, buffers: &mut Buffers) -> Option<Place> {
        let waiter = self.slab.remove(token)?;
        let place = waiter.place();
        if let Owner::Future(future) = waiter.owner {
            self.drop_pushed(future, held, buffers);
        }
        match waiter.state {
            State::Answered(reply) => {
                self.kept -= reply.capacity();
                held.inherit(reply, buffers);
                None
            }
            // Who sleeps on a future has it on his stack.
            State::Waiting => Some(place),
            State::Abandoned => None,
        }
    }

    /// Lua may be reading one of these.
    fn drop_pushed(&mut self, future: Future, held: &mut Held, buffers: &mut Buffers) {
        for reply in future.pushed.into_iter().flat_map(|pushed| *pushed) {
            self.kept -= reply.capacity();
            held.inherit(reply, buffers);
        }
    }

    /// The call goes on, and nobody will ask for its answer.
    pub fn detach(&mut self, token: Token, held: &mut Held, buffers: &mut Buffers) {
        match self.slab.get_mut(token) {
            Some(Waiter { state: State::Waiting, owner: owner @ Owner::Future(_), .. }) => {
                if let Owner::Future(future) = std::mem::replace(owner, Owner::Nobody) {
                    self.rouse(future.sleepers);
                    self.drop_pushed(future, held, buffers);
                }
            }
            _ => {
                self.free(token, held, buffers);
            }
        }
    }

    /// How many bytes' worth of work the collector should do, if futures that it has not found yet hold too much.
    pub fn pressure(&mut self) -> Option<usize> {
        if self.kept < KEPT || self.grown < STEP {
            return None;
        }
        Some(std::mem::take(&mut self.grown))
    }

    /// Wakes a list of sleepers, who stay in it.
    fn nudge(&self, mut key: Key) {
        while let Some(Sleeper { fiber, next }) = self.sleepers.get(key) {
            wake(*fiber);
            key = *next;
        }
    }

    /// Wakes a list of sleepers and dissolves it.
    fn rouse(&mut self, mut key: Key) {
        while let Some(Sleeper { fiber, next }) = self.sleepers.remove(key) {
            wake(fiber);
            key = next;
        }
    }
}

impl Waiter {
    fn place(&self) -> Place {
        Place { router: self.router, engine: self.engine as usize }
    }
}

/// A slot whose call is being sent. Should that panic, it must not stay for a fiber that does not wait.
pub struct Link<'a> {
    waiters: &'a mut Waiters,
    pub token: Token,
}

impl Link<'_> {
    pub fn keep(self) -> Token {
        ManuallyDrop::new(self).token
    }
}

impl Drop for Link<'_> {
    fn drop(&mut self) {
        self.waiters.slab.remove(self.token);
    }
}

fn wake(fiber: NonNull<Fiber>) {
    // SAFETY: a fiber that is linked to a slot lives: it takes itself out before it goes on. Waking does not switch.
    unsafe { sys::fiber_wakeup(fiber.as_ptr()) };
}
