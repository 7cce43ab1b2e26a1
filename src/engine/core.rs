//! All state of one engine thread, as a *turn*: what happened and `now` in, what to do out. It introduces connections
//! and calls to each other; no syscall, no clock.
//!
//! A turn is [`Core::begin_turn`], any `handle_*`, then [`Core::finish_turn`]; after it the thread carries out
//! [`Core::poll_action`], writes what [`Core::take_dirty`] names, and hands over [`Core::replies`].

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use arc_swap::ArcSwap;

use crate::call::Call;
use crate::call::request::{CLIENTS, Client, Outcome, Reply, Token};
use crate::call::wheel::Wheel;
use crate::conn::{self, Event};
use crate::engine::hold;
use crate::engine::inbox::Message;
use crate::engine::peer::{Owner, Peer};
use crate::engine::quiet::Quiet;
use crate::engine::resolve::Searches;
use crate::error::Failure;
use crate::ids::{CallId, InstanceIdx, ReplicasetIdx};
use crate::metrics::Counters;
use crate::route::address::Address;
use crate::route::buckets::Buckets;
use crate::route::topology::Topology;
use crate::slab::Slab;
use crate::time::Time;
use crate::wire::vshard::write_failure;

/// Something for the thread to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    Connect(InstanceIdx),
    Close(InstanceIdx),
}

/// Something for the control loop to know.
#[derive(Debug, PartialEq, Eq, Clone)]
pub enum Report {
    /// `replica` says that it is not the master of `replicaset`; `master` may be the one.
    NonMaster { replicaset: ReplicasetIdx, replica: InstanceIdx, master: Option<InstanceIdx> },
    /// A write found no master, or the connection to the master is lost.
    MissingMaster(ReplicasetIdx),
}

/// What an engine keeps for calls under way: all zero when there are none.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    pub calls: usize,
    /// Requests that connections wait to be answered.
    pub requests: usize,
    /// Calls that wait for a connection or for room on one.
    pub waiting: usize,
    /// Calls to be sent in this turn.
    pub ready: usize,
    pub searches: usize,
    pub timers: usize,
}

/// Buffers that are kept for reading. More are in use while parts of answers lie in them.
const RECV_BUFFERS: usize = 4;

pub struct Core {
    pub(super) source: Arc<ArcSwap<Topology>>,
    pub(super) topology: Arc<Topology>,
    pub(super) buckets: Arc<Buckets>,
    pub(super) counters: Arc<Counters>,
    /// By [`InstanceIdx`]. Boxed, so that one is taken out of its place while its answers are handled.
    pub(super) peers: Vec<Option<Box<Peer>>>,
    pub(super) calls: Slab<Call>,
    pub(super) wheel: Wheel,
    /// By client and token index: the call of that token, packed.
    pub(super) by_token: [Vec<u64>; CLIENTS],
    /// Calls to be sent in this turn.
    pub(super) ready: VecDeque<CallId>,
    pub(super) searches: Searches,
    pub(super) balance: Vec<u32>,
    pub(super) actions: VecDeque<Action>,
    pub(super) dirty: Vec<InstanceIdx>,
    /// What connections read into. One has a buffer while there is something in it, so that they all use the same one, which
    /// stays in the processor's caches, as long as whole answers come.
    recv_buffers: Vec<Vec<u8>>,
    /// Instances where calls wait and there may be room for them.
    pub(super) roomy: Vec<InstanceIdx>,
    pub(super) replies: [Vec<Reply>; CLIENTS],
    /// When the host is to be woken for its new replies.
    pub(super) ring_by: Time,
    pub(super) reports: Vec<Report>,
    /// No connection has a timeout before this.
    pub(super) conn_timer: Time,
    pub(super) random: u64,
    pub(super) expired: Vec<u32>,
    /// Redirects to replicasets that are not configured, and masters that say they are none.
    pub(super) moved_away: Quiet,
    pub(super) resigned: Quiet,
    pub(super) stopped: bool,
}

impl Core {
    /// `seed` drives the jitter of reconnects.
    pub fn new(
        source: Arc<ArcSwap<Topology>>,
        buckets: Arc<Buckets>,
        counters: Arc<Counters>,
        seed: u64,
        now: Time,
    ) -> Core {
        Core {
            source,
            topology: Arc::new(Topology::default()),
            buckets,
            counters,
            peers: Vec::new(),
            calls: Slab::new(),
            wheel: Wheel::new(now),
            by_token: Default::default(),
            ready: VecDeque::new(),
            searches: Searches::default(),
            balance: Vec::new(),
            actions: VecDeque::new(),
            dirty: Vec::new(),
            recv_buffers: Vec::new(),
            roomy: Vec::new(),
            replies: Default::default(),
            ring_by: Time::NEVER,
            reports: Vec::new(),
            conn_timer: Time::ZERO,
            random: seed | 1,
            expired: Vec::new(),
            moved_away: Quiet::default(),
            resigned: Quiet::default(),
            stopped: false,
        }
    }

    // Plain getters.

    pub fn address(&self, idx: InstanceIdx) -> Option<&Address> {
        self.peer(idx).map(|peer| &peer.address)
    }

    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Calls under way.
    pub fn in_flight(&self) -> u32 {
        self.calls.used()
    }

    /// How long its thread may look around before it sleeps.
    pub fn busy_poll(&self) -> Duration {
        self.topology.limits.busy_poll
    }

    /// For tests and diagnosis: it looks at every connection.
    pub fn held(&self) -> Held {
        let peers = || self.peers.iter().flatten();
        Held {
            calls: self.calls.used() as usize,
            requests: peers().map(|peer| peer.conn.in_flight() as usize).sum(),
            waiting: peers().map(|peer| peer.waiting()).sum(),
            ready: self.ready.len(),
            searches: self.searches.len(),
            timers: self.wheel.len() as usize,
        }
    }

    /// Connections that have a buffer to read into.
    pub fn reading(&self) -> usize {
        self.peers.iter().flatten().filter(|peer| !peer.conn.has_no_buffer()).count()
    }

    /// When [`Core::finish_turn`] has something to do even if nothing happens; None: never.
    pub fn next_timeout(&self) -> Option<Time> {
        if !self.ready.is_empty() || !self.roomy.is_empty() {
            return Some(Time::ZERO);
        }
        let conns = (self.conn_timer != Time::NEVER).then_some(self.conn_timer);
        [self.wheel.next(), self.searches.next_end(), conns].into_iter().flatten().min()
    }

    // What happened.

    /// Adopts a new topology if there is one; a turn sees exactly one.
    pub fn begin_turn(&mut self, now: Time) {
        let newest = self.source.load();
        if newest.epoch != self.topology.epoch {
            let newest = Arc::clone(&newest);
            self.adopt(newest, now);
        }
        self.counters.turns.add(1);
    }

    pub fn handle_message(&mut self, message: Message, now: Time) {
        match message {
            Message::Call(request) => self.accept(Call::new(request), now),
            Message::Raw(request) => self.accept_raw(request, now),
            Message::Cancel(client, token) => self.cancel(client, token),
            Message::Refresh => {
                self.peers.iter_mut().flatten().for_each(|peer| peer.conn.hurry(now));
                self.conn_timer = now;
            }
            // The turn that takes it adopts the topology.
            Message::Topology => self.conn_timer = now,
            // The thread's affair.
            Message::Resolved(..) => {}
            Message::Stop => self.stop(),
        }
    }

    /// A call whose message was taken and then lost to a panic ends with an error, unless the core has accepted it.
    pub fn refuse(&mut self, client: Client, token: Token) {
        if self.find(client, token).is_some() {
            return;
        }
        let reply =
            Reply::single(token, Outcome::Failed, Vec::new(), |out| write_failure(out, &Failure::Stopped));
        self.reply(client, reply);
    }

    fn stop(&mut self) {
        self.stopped = true;
        let ids: Vec<CallId> = self.calls.keys().collect();
        for id in ids {
            self.fail(id, &Failure::Stopped);
        }
        for (slot, peer) in self.peers.iter_mut().enumerate() {
            if peer.take().is_some() {
                self.actions.push_back(Action::Close(InstanceIdx(slot as u32)));
            }
        }
    }

    /// A socket is being made for this instance.
    pub fn is_connecting(&self, idx: InstanceIdx) -> bool {
        self.peer(idx).is_some_and(|peer| peer.conn.is_connecting())
    }

    pub fn handle_connected(&mut self, idx: InstanceIdx, now: Time) {
        if let Some(peer) = self.peer_mut(idx) {
            peer.conn.handle_connected(now);
        }
    }

    /// Where bytes from this instance go; None if it is unknown.
    pub fn recv_space(&mut self, idx: InstanceIdx) -> Option<&mut [u8]> {
        let peer = self.peers.get_mut(idx.slot())?.as_mut()?;
        if peer.conn.has_no_buffer()
            && let Some(buffer) = self.recv_buffers.pop()
        {
            peer.conn.give_received(buffer);
        }
        Some(peer.conn.recv_space())
    }

    /// There was nothing to be read into [`Core::recv_space`].
    pub fn handle_nothing(&mut self, idx: InstanceIdx) {
        let buffer = self.peer_mut(idx).and_then(|peer| peer.conn.release_buffer());
        self.take_back(buffer);
    }

    /// `count` bytes were read into [`Core::recv_space`].
    pub fn handle_received(&mut self, idx: InstanceIdx, count: usize, now: Time) {
        self.counters.bytes_in.add(count as u64);
        // Out of its place while its answers are handled: those may look at all other peers.
        let Some(mut peer) = self.peers.get_mut(idx.slot()).and_then(Option::take) else { return };
        let was_usable = peer.is_usable(now);
        peer.conn.handle_received(count, now);
        let mut ended = None;
        let mut became_ready = false;
        while let Some(event) = peer.conn.poll_event() {
            match event {
                Event::Answer(answer) => self.handle_answer(idx, &mut peer, answer, now),
                Event::Push(push) => self.handle_push(&mut peer, push),
                Event::Late => self.counters.late.add(1),
                Event::Ready => became_ready = true,
                Event::Leaving => {
                    log::info!(
                        "{} at {} is being stopped: nothing more is sent to it",
                        peer.id,
                        peer.address
                    );
                    peer.count(false);
                    self.conn_timer = now;
                }
                Event::Left => {
                    ended = Some(conn::STOPPING.to_string());
                    break;
                }
                Event::Fatal(reason) => {
                    self.counters.protocol_errors.add(1);
                    ended = Some(reason);
                    break;
                }
            }
        }
        if became_ready {
            self.counters.connects.add(1);
            // It may be leaving already.
            peer.count(peer.conn.is_ready());
            peer.state.connects.fetch_add(1, Ordering::Relaxed);
            peer.log_connected();
            // Whoever has just come may be the master that is looked for.
            let replicaset =
                self.topology.instance(idx).and_then(|it| self.topology.replicaset(it.replicaset));
            if let Some(rs) = replicaset.filter(|rs| rs.master_auto && rs.master.is_none()) {
                self.reports.push(Report::MissingMaster(rs.idx));
            }
            // Pings begin: sooner than the handshake would have timed out.
            self.conn_timer = self.conn_timer.min(peer.conn.next_timeout());
        }
        self.take_back(peer.conn.release_buffer());
        let retired_idle = peer.retired && peer.conn.in_flight() == 0;
        peer.heard(now);
        let became_usable = !was_usable && peer.is_usable(now);
        peer.was_usable |= became_usable;
        self.peers[idx.slot()] = Some(peer);
        if became_usable {
            self.release_neighbours(idx);
        }
        // Answers make room, a new connection even more.
        self.mark_roomy(idx);
        self.mark_dirty(idx);
        if let Some(reason) = ended {
            self.actions.push_back(Action::Close(idx));
            self.handle_closed(idx, &reason, now);
        } else if retired_idle {
            self.retire(idx);
        }
    }

    /// What a connection has read to the end is for any of them.
    fn take_back(&mut self, buffer: Option<Vec<u8>>) {
        if self.recv_buffers.len() < RECV_BUFFERS {
            self.recv_buffers.extend(buffer);
        }
    }

    /// The connection is gone, or could not be made.
    pub fn handle_closed(&mut self, idx: InstanceIdx, reason: &str, now: Time) {
        let random = self.next_random();
        let Some(peer) = self.peer_mut(idx) else { return };
        if !peer.conn.is_open() {
            return;
        }
        let owners = peer.conn.handle_closed(reason, random, now);
        let next = peer.conn.next_timeout();
        peer.count(false);
        peer.state.set_last_error(reason);
        peer.log_lost(reason, now);
        let retired = peer.retired;
        // A master that is gone may have a successor by now.
        let replicaset = self.topology.instance(idx).and_then(|it| self.topology.replicaset(it.replicaset));
        if let Some(replicaset) = replicaset.filter(|rs| rs.master_auto && rs.master == Some(idx)) {
            self.reports.push(Report::MissingMaster(replicaset.idx));
        }
        self.counters.disconnects.add(1);
        self.conn_timer = self.conn_timer.min(next);
        for owner in owners {
            match owner {
                Owner::Call(id) => {
                    let failure = self.no_connection(idx);
                    self.fail(id, &failure);
                }
                Owner::Probe { bucket, serial, replicaset } => {
                    self.probe_lost((bucket, serial, replicaset), now)
                }
            }
        }
        if retired {
            self.retire(idx);
        }
    }

    /// Deadlines, pauses, pings; then sends what became ready.
    pub fn finish_turn(&mut self, now: Time) {
        let mut expired = std::mem::take(&mut self.expired);
        self.wheel.expire(now, &mut expired);
        for index in expired.drain(..) {
            if let Some(id) = self.calls.key_at(index) {
                self.timer_fired(id, now);
            }
        }
        self.expired = expired;
        self.end_searches(now);
        if now >= self.conn_timer {
            self.conn_timers(now);
        }
        while let Some(id) = self.ready.pop_front() {
            self.dispatch(id, now);
        }
        self.admit(now);
        self.counters.in_flight.set(u64::from(self.calls.used()));
        self.counters.in_flight_peak.set(u64::from(self.calls.peak()));
        self.counters.slots.set(u64::from(self.calls.capacity()));
    }

    // What to do next.

    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Instances with bytes to write; those not written whole must be remembered by the thread.
    pub fn take_dirty(&mut self, into: &mut Vec<InstanceIdx>) {
        for idx in &self.dirty {
            if let Some(peer) = self.peers.get_mut(idx.slot()).and_then(Option::as_mut) {
                peer.dirty = false;
            }
        }
        into.append(&mut self.dirty);
    }

    pub fn send_queue(&mut self, idx: InstanceIdx) -> Option<&mut conn::SendQueue> {
        self.peer_mut(idx).map(|peer| &mut peer.conn.send)
    }

    /// `count` bytes were written: room for calls that wait.
    pub fn handle_sent(&mut self, idx: InstanceIdx, count: usize) {
        self.counters.bytes_out.add(count as u64);
        if let Some(peer) = self.peers.get_mut(idx.slot()).and_then(Option::as_mut) {
            peer.conn.send.advance(count);
        }
        self.mark_roomy(idx);
    }

    /// Replies for a client, to be taken out by the thread.
    pub fn replies(&mut self, client: Client) -> &mut Vec<Reply> {
        &mut self.replies[client as usize]
    }

    /// When the host is to be woken for those of this turn, at the latest.
    pub fn take_ring_by(&mut self) -> Time {
        std::mem::replace(&mut self.ring_by, Time::NEVER)
    }

    /// With so many that it has not taken yet, at once.
    pub fn enough_replies(&self) -> usize {
        hold::enough(self.calls.used() as usize)
    }

    pub fn reports(&mut self) -> &mut Vec<Report> {
        &mut self.reports
    }

    // What the other files of this struct go by.

    pub(super) fn peer(&self, idx: InstanceIdx) -> Option<&Peer> {
        self.peers.get(idx.slot())?.as_deref()
    }

    pub(super) fn peer_mut(&mut self, idx: InstanceIdx) -> Option<&mut Peer> {
        self.peers.get_mut(idx.slot())?.as_deref_mut()
    }

    /// xorshift64: for jitter, nothing else.
    pub(super) fn next_random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}
