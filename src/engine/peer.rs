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
            let until = Some(now.after(BACKOFF));
            state.set_backoff(self.until, until);
            *self = Backoff { until, since: now, passes, error: error.into() };
        }
    }

    /// It is over, whatever the clock says.
    fn cease(&mut self, state: &InstanceState) {
        state.set_backoff(self.until, None);
        *self = Backoff::default();
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
    suspects: bool,
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
            suspects: false,
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
            self.backoff.cease(&self.state);
        }
        let in_flight = self.conn.in_flight();
        self.state.in_flight.fetch_add(in_flight.wrapping_sub(self.published_in_flight), Ordering::Relaxed);
        self.published_in_flight = in_flight;
        let suspect = self.conn.is_silent(now) || self.conn.is_failing(now);
        self.suspect(suspect);
    }

    /// Something has come: a suspicion may be over, which others need not learn only from the next timer.
    pub fn heard(&mut self, now: Time) {
        if self.suspects {
            self.publish(now);
        }
    }

    fn suspect(&mut self, suspects: bool) {
        match (self.suspects, suspects) {
            (false, true) => self.state.suspects.fetch_add(1, Ordering::Relaxed),
            (true, false) => self.state.suspects.fetch_sub(1, Ordering::Relaxed),
            _ => return,
        };
        self.suspects = suspects;
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
        self.suspect(false);
        self.backoff.cease(&self.state);
        self.state.in_flight.fetch_sub(self.published_in_flight, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::topology::Endpoint;

    const ERROR: &[u8] = b"\x80";

    fn at(ms: u64) -> Time {
        Time::from_nanos(1_000_000_000 + ms * 1_000_000)
    }

    /// One instance as so many engines see it, all connected.
    fn peers(count: usize) -> (Vec<Peer>, Arc<InstanceState>) {
        let state = Arc::new(InstanceState::default());
        let instance = Instance {
            idx: InstanceIdx(0),
            replicaset: ReplicasetIdx(0),
            id: "a".into(),
            name: None,
            endpoint: Endpoint {
                address: Address::Unix("a.sock".into()),
                user: None,
                password: None,
                uuid: None,
                name: None,
            },
            state: Arc::clone(&state),
        };
        let topology = Topology::default();
        let mut peers: Vec<Peer> = (0..count).map(|_| Peer::new(&instance, &topology, at(0))).collect();
        peers.iter_mut().for_each(|peer| peer.count(true));
        (peers, state)
    }

    #[test]
    fn a_backoff_lasts_while_one_engine_has_it() {
        let (mut peers, state) = peers(3);
        peers[0].backoff.begin(ERROR, true, &state, at(0));
        // This one's is no matter of starting.
        peers[1].backoff.begin(ERROR, false, &state, at(100));
        state.served.store(at(1000).nanos(), Ordering::Relaxed);
        peers.iter_mut().for_each(|peer| peer.publish(at(1000)));
        assert!(!peers[0].backoff.lasts(&state, at(1000)));
        assert!(peers[1].backoff.lasts(&state, at(1000)));
        assert_eq!(state.health(at(1000)), Mark::Red, "for one engine it goes on");
        assert_eq!(state.backoff_until(), at(5100));
        // Again, later than the other.
        peers[0].backoff.begin(ERROR, true, &state, at(2000));
        assert_eq!(state.backoff_until(), at(7000));
        state.served.store(at(3000).nanos(), Ordering::Relaxed);
        peers.iter_mut().for_each(|peer| peer.publish(at(3000)));
        assert_eq!(state.backoff_until(), at(5100), "what is left is the other's");
        // An engine that panics, or whose instance is removed.
        peers.remove(1);
        assert_eq!(state.backoff_until(), Time::ZERO);
        assert_eq!(state.health(at(3000)), state.lag.get());
    }

    #[test]
    fn a_backoff_that_is_over_by_the_clock_makes_way() {
        let (mut peers, state) = peers(1);
        for start in [0, 5000, 20_000] {
            peers[0].backoff.begin(ERROR, false, &state, at(start));
            assert_eq!(state.backoff_until(), at(start + 5000));
            peers[0].publish(at(start + 5000));
            assert_eq!(state.health(at(start + 5000)), state.lag.get());
        }
        drop(peers);
        assert_eq!(state.backoff_until(), Time::ZERO);
    }

    #[test]
    fn an_instance_is_suspect_while_it_is_to_one_engine() {
        let (mut peers, state) = peers(2);
        for _ in 0..Topology::default().pings.failures.max(1) {
            peers[0].conn.gave_up(at(0));
        }
        for _ in 0..2 {
            peers.iter_mut().for_each(|peer| peer.publish(at(60_000)));
            assert!(peers[0].conn.is_failing(at(60_000)) && !peers[1].conn.is_failing(at(60_000)));
            assert!(state.is_suspect(), "what one sees is not undone by what another does not");
        }
        assert_eq!(state.health(at(60_000)), Mark::Red);
        peers.remove(0);
        assert!(!state.is_suspect(), "the engine that saw it so is gone");
    }
}
