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

use crate::call::Stage;
use crate::call::endpoint;
use crate::call::key::Keyspace;
use crate::call::raw_args;
use crate::call::request::{CLIENTS, Client, Form, Outcome, RawRequest, Reply, Target, Token};
use crate::call::wheel::Wheel;
use crate::call::{Call, UNKNOWN_DESTINATION_PAUSE};
use crate::conn::{self, Event};
use crate::engine::inbox::Message;
use crate::engine::peer::{Owner, Peer};
use crate::engine::quiet::Quiet;
use crate::engine::resolve::Searches;
use crate::error::Failure;
use crate::ids::{CallId, InstanceIdx, ReplicasetIdx};
use crate::metrics::Counters;
use crate::route::address::Address;
use crate::route::buckets::Buckets;
use crate::route::pick;
use crate::route::topology::Topology;
use crate::slab::Slab;
use crate::time::Time;
use crate::wire::mp;
use crate::wire::vshard::write_failure;

/// Pause of a write that waits for the control loop to learn who the master is.
pub(super) const MASTER_PAUSE: Duration = Duration::from_millis(10);

/// A retry with less time than this is not made.
const SHORTEST_RETRY: Duration = Duration::from_millis(50);
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
    /// Instances where calls wait and there may be room for them.
    pub(super) roomy: Vec<InstanceIdx>,
    pub(super) replies: [Vec<Reply>; CLIENTS],
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
            roomy: Vec::new(),
            replies: Default::default(),
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
        self.peer_mut(idx).map(|peer| peer.conn.recv_space())
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

    pub fn reports(&mut self) -> &mut Vec<Report> {
        &mut self.reports
    }

    // Calls.

    pub(super) fn accept_raw(&mut self, request: RawRequest, now: Time) {
        let RawRequest { token, form, bytes } = request;
        let keyspace = Keyspace { bucket_count: self.buckets.count(), rules: self.topology.hash_rules };
        let read = match form {
            Form::Callraw => raw_args::read(bytes, keyspace),
            Form::Endpoint(endpoint, bucket) => endpoint::read(bytes, &endpoint, bucket, keyspace),
        };
        match read {
            Ok(read) => self.accept(Call::from_raw(token, read, now), now),
            Err((buffer, malformed)) => {
                self.counters.calls.add(1);
                let text = malformed.to_string();
                let reply = Reply::single(token, Outcome::Malformed, buffer, |out| mp::write_str(out, &text));
                self.reply(Client::Host, reply);
            }
        }
    }

    pub(super) fn accept(&mut self, call: Call, now: Time) {
        self.counters.calls.add(1);
        let (client, token, deadline) = (call.client as usize, call.token, call.deadline);
        let is_over = deadline <= now || call.has_no_attempt();
        let id = self.calls.insert(call);
        let table = &mut self.by_token[client];
        if table.len() <= token.index as usize {
            table.resize(token.index as usize + 1, u64::MAX);
        }
        table[token.index as usize] = id.pack();
        if self.stopped {
            return self.fail(id, &Failure::Stopped);
        }
        if is_over {
            // Not sent, not even a write: its caller has given up already.
            self.counters.timeouts.add(1);
            return self.fail(id, &Failure::Timeout);
        }
        self.wheel.set(id.index, deadline);
        self.dispatch(id, now);
    }

    pub(super) fn cancel(&mut self, client: Client, token: Token) {
        if let Some(id) = self.find(client, token) {
            self.counters.cancelled.add(1);
            self.end(id);
        }
    }

    /// The call of this token, while it is under way.
    pub(super) fn find(&self, client: Client, token: Token) -> Option<CallId> {
        let id = CallId::unpack(*self.by_token[client as usize].get(token.index as usize)?);
        self.calls.get(id).is_some_and(|call| call.token == token && call.client == client).then_some(id)
    }

    pub(super) fn stop(&mut self) {
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

    /// Sends a call, or puts it where it waits.
    pub(super) fn dispatch(&mut self, id: CallId, now: Time) {
        let Some(call) = self.calls.get_mut(id) else { return };
        if call.deadline <= now {
            return self.deadline(id);
        }
        if let Some(destination) = call.destination.take() {
            let known = self.topology.replicaset_by_id(&destination);
            match (known, call.target) {
                (Some(replicaset), Target::Bucket(bucket)) => self.buckets.set(bucket, replicaset),
                _ => {
                    call.destination = Some(destination);
                    return self.pause(id, UNKNOWN_DESTINATION_PAUSE, now);
                }
            }
        }
        match call.target {
            Target::Bucket(bucket) => match self.buckets.get(bucket) {
                Some(replicaset) => self.dispatch_to_replicaset(id, replicaset, now),
                None => self.resolve(bucket, id, now),
            },
            Target::Route(bucket) => match self.buckets.get(bucket) {
                Some(replicaset) => self.finish_route(id, replicaset),
                None => self.resolve(bucket, id, now),
            },
            Target::Replicaset(replicaset) => self.dispatch_to_replicaset(id, replicaset, now),
            Target::Instance(idx) => self.dispatch_to_instance(id, idx, now),
        }
    }

    pub(super) fn dispatch_to_replicaset(&mut self, id: CallId, idx: ReplicasetIdx, now: Time) {
        let Some(call) = self.calls.get_mut(id) else { return };
        let Some(replicaset) = self.topology.replicaset(idx) else {
            if let Target::Bucket(bucket) = call.target {
                self.buckets.forget_if(bucket, idx);
                return self.resolve(bucket, id, now);
            }
            return self.fail(id, &Failure::Outdated);
        };
        call.replicaset = Some(idx);
        if self.balance.len() <= idx.slot() {
            self.balance.resize(idx.slot() + 1, 0);
        }
        let peers = &self.peers;
        let usable = |idx: InstanceIdx| {
            peers.get(idx.slot()).and_then(Option::as_ref).is_some_and(|peer| peer.is_usable(now))
        };
        let turn = &mut self.balance[idx.slot()];
        if let Some(instance) = pick::pick(replicaset, call.access, &call.tried, turn, usable) {
            return self.dispatch_to_instance(id, instance, now);
        }
        let failure = Failure::MissingMaster { replicaset: replicaset.id.clone() };
        if !replicaset.master_auto {
            return self.fail(id, &failure);
        }
        let pause = call.next_pause().max(MASTER_PAUSE);
        let report = Report::MissingMaster(idx);
        if self.reports.last() != Some(&report) {
            self.reports.push(report);
        }
        self.remember(id, &failure);
        self.pause(id, pause, now);
    }

    pub(super) fn dispatch_to_instance(&mut self, id: CallId, idx: InstanceIdx, now: Time) {
        let limits = self.topology.limits;
        let Some(call) = self.calls.get_mut(id) else { return };
        let Some(peer) = self.peers.get_mut(idx.slot()).and_then(Option::as_mut).filter(|peer| !peer.retired)
        else {
            return self.fail(id, &Failure::Outdated);
        };
        let is_read = call.access.mode == pick::Mode::Read;
        if is_read && !matches!(call.target, Target::Instance(_)) && peer.backoff.lasts(&peer.state, now) {
            let replicaset = call.replicaset.and_then(|idx| self.topology.replicaset(idx));
            let replicaset = replicaset.map(|replicaset| replicaset.id.clone()).unwrap_or_default();
            let failure = Failure::ReplicasetInBackoff { replicaset, error: peer.backoff.error.clone() };
            return self.fail(id, &failure);
        }
        // Behind those that wait already, unless it is its turn.
        let waits = peer.waiting() > 0 && call.stage != Stage::Admitted(idx);
        if waits || !peer.has_room(&limits) {
            call.stage = Stage::Waiting(idx);
            if !peer.wait(id, &limits, &self.calls) {
                let instance = peer.id.clone();
                if let Some(call) = self.calls.get_mut(id) {
                    call.stage = Stage::Ready;
                }
                self.fail(id, &Failure::Overloaded { instance });
            }
            return;
        }
        if call.attempts > 0 {
            self.counters.retries.add(1);
        }
        call.attempts += 1;
        call.sent = now;
        let key = peer.conn.send(Owner::Call(id), crate::wire::iproto::TYPE_CALL, &call.payload);
        call.stage = Stage::Sent(idx, key);
        let timer = call.attempt_deadline(now);
        if timer != call.timer {
            call.timer = timer;
            self.wheel.set(id.index, timer);
        }
        if !peer.dirty {
            peer.dirty = true;
            self.dirty.push(idx);
        }
    }

    pub(super) fn timer_fired(&mut self, id: CallId, now: Time) {
        let Some(call) = self.calls.get_mut(id) else { return };
        let is_sent = matches!(call.stage, Stage::Sent(..));
        let end = if is_sent { call.answer_by } else { call.deadline };
        if end <= now {
            return self.deadline(id);
        }
        match call.stage {
            Stage::Sent(idx, key) => {
                // This attempt's time is over; the answer, should it come, is late.
                call.stage = Stage::Ready;
                if call.tried.contains(&idx) {
                    call.tried.clear();
                }
                call.tried.push(idx);
                let sent = call.sent;
                self.give_up(idx, sent);
                self.abandon(idx, key);
                self.set_timer(id);
                self.dispatch(id, now);
            }
            Stage::Paused => {
                self.set_timer(id);
                self.dispatch(id, now);
            }
            // The timer of an attempt before: what it waits for now is bounded by the deadline alone. Those that are ready
            // are sent in this turn anyway, and must not be sent twice.
            Stage::Ready | Stage::Admitted(_) | Stage::Waiting(_) | Stage::Resolving => self.set_timer(id),
        }
    }

    pub(super) fn set_timer(&mut self, id: CallId) {
        let Some(call) = self.calls.get_mut(id) else { return };
        call.timer = call.deadline;
        self.wheel.set(id.index, call.deadline);
    }

    /// The call's time is over: it ends with the newest thing known about it.
    pub(super) fn deadline(&mut self, id: CallId) {
        self.counters.timeouts.add(1);
        let Some(call) = self.calls.get_mut(id) else { return };
        let sent = call.sent;
        match (call.stage, call.last_error.take()) {
            (Stage::Waiting(idx), None) if self.peer(idx).is_some_and(|peer| !peer.conn.is_ready()) => {
                let failure = self.no_connection(idx);
                self.fail(id, &failure);
            }
            (Stage::Waiting(idx), None) => {
                let instance = self.peer(idx).map(|peer| peer.id.clone()).unwrap_or_default();
                self.fail(id, &Failure::Overloaded { instance });
            }
            (Stage::Sent(idx, _), _) => {
                self.give_up(idx, sent);
                self.fail(id, &Failure::Timeout);
            }
            (_, None) => self.fail(id, &Failure::Timeout),
            (_, Some(error)) => self.fail_with(id, &error),
        }
    }

    /// It is sent in this turn once more.
    pub(super) fn again(&mut self, id: CallId) {
        let Some(call) = self.calls.get_mut(id) else { return };
        call.stage = Stage::Ready;
        self.ready.push_back(id);
        if call.timer > call.deadline {
            // The longer time was for the answer that has come.
            self.set_timer(id);
        }
    }

    pub(super) fn pause(&mut self, id: CallId, span: Duration, now: Time) {
        let Some(call) = self.calls.get_mut(id) else { return };
        if span.is_zero() {
            return self.again(id);
        }
        call.stage = Stage::Paused;
        let again = now.after(span);
        // What is asked too late to be answered would end as a bare timeout, and hide why the call has waited.
        call.timer = if again.after(SHORTEST_RETRY) > call.deadline { call.deadline } else { again };
        self.wheel.set(id.index, call.timer);
    }

    pub(super) fn remember(&mut self, id: CallId, failure: &Failure) {
        if let Some(call) = self.calls.get_mut(id) {
            let mut error = Vec::new();
            write_failure(&mut error, failure);
            call.last_error = Some(error.into());
        }
    }

    pub(super) fn finish_route(&mut self, id: CallId, replicaset: ReplicasetIdx) {
        let Some(call) = self.end(id) else { return };
        let reply = Reply::single(call.token, Outcome::Values, call.payload.into_buffer(), |out| {
            mp::write_uint(out, u64::from(replicaset.0));
        });
        self.reply(call.client, reply);
    }

    pub(super) fn fail(&mut self, id: CallId, failure: &Failure) {
        let Some(call) = self.end(id) else { return };
        let buffer = call.payload.into_buffer();
        let reply = Reply::single(call.token, Outcome::Failed, buffer, |out| write_failure(out, failure));
        self.reply(call.client, reply);
    }

    pub(super) fn fail_with(&mut self, id: CallId, error: &[u8]) {
        let Some(call) = self.end(id) else { return };
        let reply = Reply::copied(call.token, Outcome::Failed, call.payload.into_buffer(), error, 1);
        self.reply(call.client, reply);
    }

    pub(super) fn reply(&mut self, client: Client, reply: Reply) {
        self.counters.replies.add(1);
        self.counters.failures.add(u64::from(reply.outcome != Outcome::Values));
        self.replies[client as usize].push(reply);
    }

    /// Takes a call out of everything that knows it.
    pub(super) fn end(&mut self, id: CallId) -> Option<Call> {
        let call = self.calls.remove(id)?;
        self.wheel.clear(id.index);
        match call.stage {
            Stage::Sent(idx, key) => self.abandon(idx, key),
            Stage::Waiting(idx) => {
                if let Some(peer) = self.peer_mut(idx) {
                    peer.left();
                }
            }
            Stage::Ready | Stage::Admitted(_) | Stage::Resolving | Stage::Paused => {}
        }
        Some(call)
    }

    pub(super) fn no_connection(&self, idx: InstanceIdx) -> Failure {
        let Some(peer) = self.peer(idx) else { return Failure::Outdated };
        if let Some((expected, actual)) = peer.conn.name_mismatch() {
            return Failure::NameMismatch { expected: expected.into(), actual: actual.map(String::from) };
        }
        Failure::NoConnection {
            instance: peer.id.clone(),
            address: peer.address.to_string(),
            reason: peer.conn.last_error().to_string(),
        }
    }

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
