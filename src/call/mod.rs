//! Calls: the request and the reply, what a storage's answer means, and what follows from it.

pub mod endpoint;
pub mod key;
pub mod malformed;
mod position;
pub mod raw_args;
pub mod request;
#[cfg(test)]
mod samples;
pub mod selector;
pub mod setbacks;
pub mod verdict;
pub mod wheel;

use std::time::Duration;

use crate::ids::{InstanceIdx, ReplicasetIdx};
use crate::slab::Key;
use crate::time::Time;
use crate::wire::payload::{Head, Payload};
use raw_args::Read;
use request::{Access, Client, Request, Target, Token, Unread};
use setbacks::Setbacks;
use verdict::Envelope;

/// Pause while a redirect names a replicaset that this router does not have (router: 50 ms polls of the configuration).
pub const UNKNOWN_DESTINATION_PAUSE: Duration = Duration::from_millis(50);
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);
/// So many refusals of one call are followed at once; a cycle of storages that redirect to each other is slowed down after.
const FREE_HOPS: u32 = 2;

/// One call from accepted to answered.
pub struct Call {
    pub token: Token,
    pub client: Client,
    pub target: Target,
    pub access: Access,
    pub deadline: Time,
    pub answer_by: Time,
    pub attempt_timeout: Option<Duration>,
    pub pushes: bool,
    /// What was pushed and not read; there is none before the first push.
    pub unread: Option<Unread>,
    pub payload: Payload,
    pub stage: Stage,
    /// What the timer is set to: the deadline, or something before it.
    pub timer: Time,
    /// The replicaset of the last attempt.
    pub replicaset: Option<ReplicasetIdx>,
    /// What has come between so far. Most calls have none, and each takes a slot of the same size.
    setbacks: Option<Box<Setbacks>>,
    /// Refusals and failed resolves so far.
    pub hops: u32,
    pub attempts: u32,
    /// When the newest attempt was sent.
    pub sent: Time,
}

/// Where a call is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// To be sent in this turn.
    Ready,
    /// In the queue of an instance that has no connection, or too much to do.
    Waiting(InstanceIdx),
    /// The first in the queue of an instance, which has room now.
    Admitted(InstanceIdx),
    /// An instance has it, under this key of its connection.
    Sent(InstanceIdx, Key),
    /// Its bucket is being looked for.
    Resolving,
    /// Until the timer.
    Paused,
}

impl Call {
    pub fn new(request: Request) -> Call {
        let head = match request.target {
            Target::Bucket(bucket) => Head::StorageCall { bucket, mode: request.access.mode },
            _ => Head::Empty,
        };
        let Request { token, client, target, access, deadline, answer_by, attempt_timeout, pushes, body } =
            request;
        let payload = Payload::new(head, body.0);
        let call = Call::begin(token, client, target, access, deadline, attempt_timeout, payload);
        Call { answer_by, pushes, ..call }
    }

    /// A call that came as the arguments of `callraw`.
    pub fn from_raw(token: Token, read: Read, now: Time) -> Call {
        let Read { bucket, access, timeout, attempt_timeout, payload } = read;
        let target = Target::Bucket(bucket);
        Call::begin(token, Client::Host, target, access, now.after(timeout), attempt_timeout, payload)
    }

    fn begin(
        token: Token,
        client: Client,
        target: Target,
        access: Access,
        deadline: Time,
        attempt_timeout: Option<Duration>,
        payload: Payload,
    ) -> Call {
        Call {
            token,
            client,
            target,
            access,
            deadline,
            answer_by: deadline,
            attempt_timeout,
            pushes: false,
            unread: None,
            payload,
            stage: Stage::Ready,
            timer: deadline,
            replicaset: None,
            setbacks: None,
            hops: 0,
            attempts: 0,
            sent: Time::ZERO,
        }
    }

    /// Instances that failed this call; see [`crate::route::pick`].
    pub fn tried(&self) -> &[InstanceIdx] {
        self.setbacks.as_ref().map_or(&[], |setbacks| &setbacks.tried)
    }

    /// For one more.
    pub fn setbacks(&mut self) -> &mut Setbacks {
        self.setbacks.get_or_insert_default()
    }

    /// Takes the newest error.
    pub fn take_error(&mut self) -> Option<Box<[u8]>> {
        self.setbacks.as_mut()?.last_error.take()
    }

    /// Takes the destination of a redirect that could not be followed.
    pub fn take_destination(&mut self) -> Option<Box<str>> {
        self.setbacks.as_mut()?.destination.take()
    }

    /// A read whose attempts have no time.
    pub fn has_no_attempt(&self) -> bool {
        self.access.mode == request::Mode::Read
            && self.attempt_timeout.is_some_and(|timeout| timeout.is_zero())
    }

    pub fn envelope(&self) -> Envelope {
        match self.target {
            Target::Bucket(_) => Envelope::Storage,
            _ if self.payload.function().is_some_and(|name| name.starts_with(b"vshard.")) => Envelope::Vshard,
            _ => Envelope::Plain,
        }
    }

    /// Another refusal: how long to wait before asking again.
    pub fn next_pause(&mut self) -> Duration {
        self.hops += 1;
        match self.hops.checked_sub(FREE_HOPS + 1) {
            None => Duration::ZERO,
            Some(doublings) => FIRST_PAUSE.saturating_mul(1 << doublings.min(10)).min(LONGEST_PAUSE),
        }
    }

    /// When an attempt that starts now is given up in favour of another instance: `request_timeout`; the last attempt has what
    /// is left, which may be less. Only reads have attempts.
    pub fn attempt_deadline(&self, now: Time) -> Time {
        match self.attempt_timeout {
            Some(timeout)
                if self.access.mode == request::Mode::Read && !matches!(self.target, Target::Instance(_)) =>
            {
                let end = now.after(timeout);
                if end >= self.deadline { self.answer_by } else { end }
            }
            _ => self.answer_by,
        }
    }
}
