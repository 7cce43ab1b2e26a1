//! An instance as one engine sees it: its connection, and the calls that wait for it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::call::{Call, Stage};
use crate::conn::Conn;
use crate::engine::quiet::Quiet;
use crate::ids::{BucketId, CallId, InstanceIdx, ReplicasetIdx};
use crate::route::address::Address;
use crate::route::topology::{Instance, InstanceState, Limits, Mark, Topology};
use crate::slab::Slab;
use crate::time::Time;

/// Whom a connection's answer is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    Call(CallId),
    /// One question of a bucket search: bucket, serial number of the search, whom it was put to.
    Probe {
        bucket: BucketId,
        serial: u32,
        replicaset: ReplicasetIdx,
    },
}

/// Reads leave an instance alone for so long after it said that it can not serve (consts.lua: REPLICA_BACKOFF_INTERVAL).
const BACKOFF: Duration = Duration::from_secs(5);

/// While it lasts, reads go elsewhere.
#[derive(Default)]
pub(super) struct Backoff {
    until: Option<Time>,
    since: Time,
    /// It is over as soon as the instance answers the control loop: vshard was not loaded or not enabled.
    passes: bool,
    /// What the instance said.
    pub error: Box<[u8]>,
}

impl Backoff {
    pub fn begin(&mut self, error: &[u8], passes: bool, state: &InstanceState, now: Time) {
        // Answers to reads that were under way by then prolong nothing.
        if !self.lasts(state, now) {
            let until = now.after(BACKOFF);
            *self = Backoff { until: Some(until), since: now, passes, error: error.into() };
            state.backoff_until.fetch_max(until.nanos(), Ordering::Relaxed);
        }
    }

    pub fn lasts(&self, state: &InstanceState, now: Time) -> bool {
        self.until.is_some_and(|until| until > now)
            && !(self.passes && state.served.load(Ordering::Relaxed) > self.since.nanos())
    }

    /// When it ends by itself.
    pub fn end(&self, now: Time) -> Time {
        self.until.filter(|until| *until > now).unwrap_or(Time::NEVER)
    }
}

pub(super) struct Peer {
    pub idx: InstanceIdx,
    pub id: String,
    pub address: Address,
    pub conn: Conn<Owner>,
    pub state: Arc<InstanceState>,
    pub backoff: Backoff,
    /// Whether it was usable when the timers of connections were last looked at.
    pub was_usable: bool,
    /// Not in the topology any more: closed when its last answer has come.
    pub retired: bool,
    /// Named in the engine's list of those with bytes to write.
    pub dirty: bool,
    /// Named in the engine's list of those that may have room.
    pub roomy: bool,
    /// In their order; ids of calls that have left may be among them.
    waiting: VecDeque<CallId>,
    /// How many of `waiting` have not left.
    live: usize,
    /// This engine's share in the figures of `state`.
    published_in_flight: u32,
    counted: bool,
    losses: Quiet,
    /// The log believes that there is no connection.
    told_lost: bool,
}

impl Peer {
    pub fn new(instance: &Instance, topology: &Topology, now: Time) -> Peer {
        Peer {
            idx: instance.idx,
            id: instance.id.clone(),
            address: instance.endpoint.address.clone(),
            conn: Conn::new(instance.endpoint.clone(), topology.pings, now),
            state: Arc::clone(&instance.state),
            backoff: Backoff::default(),
            was_usable: false,
            retired: false,
            dirty: false,
            roomy: false,
            waiting: VecDeque::new(),
            live: 0,
            published_in_flight: 0,
            counted: false,
            losses: Quiet::default(),
            told_lost: true,
        }
    }

    /// Reads may go there.
    pub fn is_usable(&self, now: Time) -> bool {
        self.conn.is_ready()
            && !self.retired
            && !self.backoff.lasts(&self.state, now)
            && !self.conn.is_silent(now)
            && !self.conn.is_failing(now)
            && self.state.lag.get() != Mark::Red
    }

    /// One more request can be sent now.
    pub fn has_room(&self, limits: &Limits) -> bool {
        self.conn.is_ready()
            && self.conn.in_flight() < limits.in_flight
            && self.conn.send.len() <= limits.queued_bytes
    }

    /// False: as many wait as may.
    pub fn wait(&mut self, id: CallId, limits: &Limits, calls: &Slab<Call>) -> bool {
        if self.live >= limits.waiting as usize {
            return false;
        }
        // Calls that time out while a storage is down leave their ids behind: swept when they are the most of the queue.
        if self.waiting.len() > 64 && self.waiting.len() > 2 * self.live {
            let idx = self.idx;
            self.waiting.retain(|id| calls.get(*id).is_some_and(|call| call.stage == Stage::Waiting(idx)));
            self.live = self.waiting.len();
        }
        self.waiting.push_back(id);
        self.live += 1;
        true
    }

    /// Calls that wait here.
    pub fn waiting(&self) -> usize {
        self.live
    }

    /// A call that waited has ended.
    pub fn left(&mut self) {
        self.live -= 1;
    }

    /// Moves all waiting calls to `ready`.
    pub fn release(&mut self, calls: &mut Slab<Call>, ready: &mut VecDeque<CallId>) {
        while let Some(id) = self.next(calls) {
            if let Some(call) = calls.get_mut(id) {
                call.stage = Stage::Ready;
                ready.push_back(id);
            }
        }
        self.waiting.clear();
    }

    /// The first waiting call, if there is room for it.
    pub fn admit(&mut self, limits: &Limits, calls: &mut Slab<Call>) -> Option<CallId> {
        let id = self.has_room(limits).then(|| self.next(calls)).flatten()?;
        calls.get_mut(id)?.stage = Stage::Admitted(self.idx);
        Some(id)
    }

    /// Takes the first that has not left out of the queue.
    fn next(&mut self, calls: &Slab<Call>) -> Option<CallId> {
        while self.live > 0 {
            let id = self.waiting.pop_front()?;
            if calls.get(id).is_some_and(|call| call.stage == Stage::Waiting(self.idx)) {
                self.live -= 1;
                return Some(id);
            }
        }
        None
    }

    /// Brings the figures that others read up to date.
    pub fn publish(&mut self, now: Time) {
        if self.backoff.end(now) != Time::NEVER && !self.backoff.lasts(&self.state, now) {
            // Over before its time.
            self.backoff = Backoff::default();
            self.state.backoff_until.store(0, Ordering::Relaxed);
        }
        let in_flight = self.conn.in_flight();
        self.state.in_flight.fetch_add(in_flight.wrapping_sub(self.published_in_flight), Ordering::Relaxed);
        self.published_in_flight = in_flight;
        let suspect = self.conn.is_silent(now) || self.conn.is_failing(now);
        self.state.suspect.store(suspect, Ordering::Relaxed);
    }

    /// Whether this engine's connection counts among those that are ready.
    pub fn count(&mut self, ready: bool) {
        match (self.counted, ready) {
            (false, true) => self.state.ready.fetch_add(1, Ordering::Relaxed),
            (true, false) => self.state.ready.fetch_sub(1, Ordering::Relaxed),
            _ => return,
        };
        self.counted = ready;
    }

    /// Tells the log that the connection was lost: a storage that is down, or a peer that hangs up on everybody, must not
    /// fill the disk.
    pub fn log_lost(&mut self, reason: &str, now: Time) {
        let text = format!("connection to {} at {} is lost: {reason}", self.id, self.address);
        self.told_lost |= self.losses.warn(text, now);
    }

    /// Tells the log of a new connection, if it knows that there was none.
    pub fn log_connected(&mut self) {
        if std::mem::take(&mut self.told_lost) {
            log::info!("connected to {} at {}", self.id, self.address);
        }
    }
}

impl Drop for Peer {
    /// Takes this engine's share out of the published figures, whatever ended the peer.
    fn drop(&mut self) {
        self.count(false);
        self.state.in_flight.fetch_sub(self.published_in_flight, Ordering::Relaxed);
    }
}
