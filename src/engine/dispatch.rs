//! Where a call is sent, and when: at once, after a pause, once more; and when its time is over.

use std::time::Duration;

use super::core::{Core, Report};
use super::peer::Owner;
use crate::call::request::Target;
use crate::call::{Stage, UNKNOWN_DESTINATION_PAUSE};
use crate::error::Failure;
use crate::ids::{CallId, InstanceIdx, ReplicasetIdx};
use crate::route::pick;
use crate::time::Time;
use crate::wire::iproto;
use crate::wire::vshard::write_failure;

/// Pause of a write that waits for the control loop to learn who the master is.
pub(super) const MASTER_PAUSE: Duration = Duration::from_millis(10);

/// A retry with less time than this is not made.
const SHORTEST_RETRY: Duration = Duration::from_millis(50);

impl Core {
    /// Sends a call, or puts it where it waits.
    pub(super) fn dispatch(&mut self, id: CallId, now: Time) {
        let Some(call) = self.calls.get_mut(id) else { return };
        if call.deadline <= now {
            return self.deadline(id);
        }
        if let Some(destination) = call.take_destination() {
            let known = self.topology.replicaset_by_id(&destination);
            match (known, call.target) {
                (Some(replicaset), Target::Bucket(bucket)) => self.buckets.set(bucket, replicaset),
                _ => {
                    call.setbacks().destination = Some(destination);
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

    fn dispatch_to_replicaset(&mut self, id: CallId, idx: ReplicasetIdx, now: Time) {
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
        if let Some(instance) = pick::pick(replicaset, call.access, call.tried(), turn, usable) {
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

    fn dispatch_to_instance(&mut self, id: CallId, idx: InstanceIdx, now: Time) {
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
        let key = peer.conn.send(Owner::Call(id), iproto::TYPE_CALL, &call.payload);
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
                let tried = &mut call.setbacks().tried;
                if tried.contains(&idx) {
                    tried.clear();
                }
                tried.push(idx);
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

    fn set_timer(&mut self, id: CallId) {
        let Some(call) = self.calls.get_mut(id) else { return };
        call.timer = call.deadline;
        self.wheel.set(id.index, call.deadline);
    }

    /// The call's time is over: it ends with the newest thing known about it.
    fn deadline(&mut self, id: CallId) {
        self.counters.timeouts.add(1);
        let Some(call) = self.calls.get_mut(id) else { return };
        let sent = call.sent;
        match (call.stage, call.take_error()) {
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

    fn remember(&mut self, id: CallId, failure: &Failure) {
        if let Some(call) = self.calls.get_mut(id) {
            let mut error = Vec::new();
            write_failure(&mut error, failure);
            call.setbacks().last_error = Some(error.into());
        }
    }
}
