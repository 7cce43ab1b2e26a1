//! What a storage's answer means for its call, and what follows: done, elsewhere, later, or failed.

use std::sync::Arc;
use std::time::Duration;

use super::core::{Core, Report};
use super::dispatch::MASTER_PAUSE;
use super::hold;
use super::peer::{Owner, Peer};
use crate::call::Stage;
use crate::call::UNKNOWN_DESTINATION_PAUSE;
use crate::call::request::{Outcome, Reply, Target};
use crate::call::verdict::{self, Verdict};
use crate::conn::{self, Answer};
use crate::error::{Failure, box_code, code};
use crate::ids::{CallId, InstanceIdx};
use crate::route::pick;
use crate::time::Time;
use crate::wire::iproto;
use crate::wire::mp::{Cursor, Fault};
use crate::wire::vshard::ErrorView;

/// Between looks at a storage that is starting.
const PAUSE_OF_STARTING: Duration = Duration::from_millis(10);

/// vshard is not loaded there, or not enabled: both pass when a storage has started. A missing permission does not.
fn is_starting(error: &[u8]) -> bool {
    let view = ErrorView::parse(error);
    view.is_sharding(code::STORAGE_IS_DISABLED) || view.code == box_code::NO_SUCH_PROC
}

impl Core {
    pub(super) fn handle_answer(
        &mut self,
        idx: InstanceIdx,
        peer: &mut Peer,
        answer: Answer<Owner>,
        now: Time,
    ) {
        let id = match answer.owner {
            Owner::Call(id) => id,
            Owner::Probe { bucket, serial, replicaset } => {
                let body = peer.conn.received(answer.body);
                return self.handle_probe((bucket, serial, replicaset), answer.kind, body, now);
            }
        };
        let Some(call) = self.calls.get_mut(id) else { return self.counters.late.add(1) };
        // The connection's entry is gone already: nothing is to be abandoned when the call ends.
        call.stage = Stage::Ready;
        let body = peer.conn.received(answer.body.clone());
        let ring_by = hold::ring_by(now.since(call.sent), now).min(call.answer_by);
        match verdict::judge(call.envelope(), answer.kind, body) {
            Ok(Verdict::Values { values, count, is_plain }) => {
                if body.len() < conn::LARGE {
                    let Some(call) = self.end(id) else { return };
                    let mut reply =
                        Reply::copied(call.token, Outcome::Values, call.payload.into_buffer(), values, count);
                    reply.set_plain(is_plain);
                    return self.reply_by(call.client, reply, ring_by);
                }
                // Not always the end of the body: keys may follow.
                let data = answer.body.start + (values.as_ptr() as usize - body.as_ptr() as usize);
                let end = data + values.len();
                let Some(call) = self.end(id) else { return };
                let buffer = call.payload.into_buffer();
                let mut reply = match peer.conn.take_received() {
                    Some(bytes) => {
                        // Whoever sends much, gets much: the request's buffer for the next answer.
                        peer.conn.give_received(buffer);
                        Reply::new(call.token, Outcome::Values, bytes, data, end, count)
                    }
                    None => {
                        let values = peer.conn.received(data..end);
                        Reply::copied(call.token, Outcome::Values, buffer, values, count)
                    }
                };
                reply.set_plain(is_plain);
                self.reply_by(call.client, reply, ring_by);
            }
            Ok(Verdict::Failed(error)) => self.fail_with(id, error.bytes()),
            Ok(Verdict::Moved(error)) => self.moved(id, error.bytes(), now),
            Ok(Verdict::NonMaster(error)) => self.non_master(id, idx, error.bytes(), now),
            Ok(Verdict::Unusable(error)) => {
                // As in vshard, what reads do not choose by themselves is no news for them: writes, and questions to this very
                // instance.
                if call.access.mode == pick::Mode::Read && !matches!(call.target, Target::Instance(_)) {
                    peer.backoff.begin(error.bytes(), is_starting(error.bytes()), &peer.state, now);
                    peer.was_usable = false;
                    self.conn_timer = self.conn_timer.min(peer.backoff.end(now));
                }
                self.try_elsewhere(id, idx, error.bytes(), now);
            }
            Ok(Verdict::Elsewhere(error)) => self.try_elsewhere(id, idx, error.bytes(), now),
            Err(fault) => {
                self.counters.protocol_errors.add(1);
                let failure = Failure::BadAnswer { instance: peer.id.clone(), what: fault.to_string() };
                self.fail(id, &failure);
            }
        }
    }

    /// What a function has pushed is for whoever asked for it. A caller that does not read it loses his call, lest it grow
    /// without end, and no push.
    pub(super) fn handle_push(&mut self, peer: &mut Peer, push: Answer<Owner>) {
        let Owner::Call(id) = push.owner else { return };
        let Some(call) = self.calls.get_mut(id).filter(|call| call.pushes) else { return };
        let pushed = iproto::answer(peer.conn.received(push.body)).and_then(|answer| {
            let mut cursor = Cursor::new(answer.data.ok_or(Fault::Expected("what was pushed"))?);
            match cursor.array()? {
                // Whoever looks counts on one value.
                0 => Err(Fault::Expected("what was pushed")),
                count => Ok((cursor.rest(), count)),
            }
        });
        match pushed {
            Ok((values, count)) => {
                let limit = self.topology.limits.unread_pushes;
                let unread = call.unread.get_or_insert_default();
                if unread.bytes() > limit {
                    if let Stage::Sent(_, key) = std::mem::replace(&mut call.stage, Stage::Ready) {
                        peer.conn.abandon(key);
                    }
                    self.counters.push_overflows.add(1);
                    return self.fail(id, &Failure::PushOverflow { limit });
                }
                let reply = Reply::pushed(call.token, values, count, unread);
                let client = call.client;
                self.push_reply(client, reply, Time::ZERO);
            }
            Err(_) => self.counters.protocol_errors.add(1),
        }
    }

    /// A refusal that says: not here, or not now.
    pub(super) fn moved(&mut self, id: CallId, error: &[u8], now: Time) {
        let Some(call) = self.calls.get_mut(id) else { return };
        let (Target::Bucket(bucket), Some(asked)) = (call.target, call.replicaset) else {
            return self.fail_with(id, error);
        };
        let setbacks = call.setbacks();
        setbacks.last_error = Some(error.into());
        setbacks.tried.clear();
        self.buckets.forget_if(bucket, asked);
        let destination = ErrorView::parse(error).destination.and_then(|id| std::str::from_utf8(id).ok());
        let pause = call.next_pause();
        match destination.map(|id| (id, self.topology.replicaset_by_id(id))) {
            None => self.pause(id, pause, now),
            Some((_, Some(replicaset))) => {
                self.counters.redirects.add(1);
                self.buckets.set(bucket, replicaset);
                self.pause(id, pause, now);
            }
            Some((unknown, None)) => {
                if call.setbacks().destination.is_none() {
                    let text =
                        format!("buckets move to replicaset {unknown}, which is not in the configuration");
                    self.moved_away.warn(text, now);
                }
                call.setbacks().destination = Some(unknown.into());
                self.pause(id, UNKNOWN_DESTINATION_PAUSE, now);
            }
        }
    }

    pub(super) fn non_master(&mut self, id: CallId, asked: InstanceIdx, error: &[u8], now: Time) {
        let topology = Arc::clone(&self.topology);
        let Some(call) = self.calls.get_mut(id) else { return };
        let Some(replicaset) = call.replicaset.and_then(|idx| topology.replicaset(idx)) else {
            return self.fail_with(id, error);
        };
        call.setbacks().last_error = Some(error.into());
        let hint = ErrorView::parse(error).master.and_then(|id| std::str::from_utf8(id).ok());
        let master = hint.and_then(|id| topology.instance_by_id(replicaset, id)).filter(|idx| *idx != asked);
        let pause = call.next_pause();
        if replicaset.master != Some(asked) {
            // The topology has changed since it was sent.
            return self.pause(id, pause, now);
        }
        if master.is_none() && !replicaset.master_auto {
            let text = format!(
                "replicaset {}: its master in the configuration says it is none; it names {}",
                replicaset.id,
                hint.unwrap_or("nobody")
            );
            self.resigned.warn(text, now);
            return self.fail_with(id, error);
        }
        self.reports.push(Report::NonMaster { replicaset: replicaset.idx, replica: asked, master });
        self.pause(id, pause.max(MASTER_PAUSE), now);
    }

    /// Another instance may do. A write has none; where the storage is only not ready yet, as after a restart, it asks again
    /// until its deadline: nothing was run.
    pub(super) fn try_elsewhere(&mut self, id: CallId, asked: InstanceIdx, error: &[u8], now: Time) {
        let Some(call) = self.calls.get_mut(id) else { return };
        match (call.access.mode, call.replicaset) {
            (pick::Mode::Read, Some(_)) if !call.tried().contains(&asked) => {
                let setbacks = call.setbacks();
                setbacks.tried.push(asked);
                setbacks.last_error = Some(error.into());
                self.again(id);
            }
            (pick::Mode::Write, Some(_))
                if matches!(call.target, Target::Bucket(_)) && is_starting(error) =>
            {
                call.setbacks().last_error = Some(error.into());
                let pause = call.next_pause().max(PAUSE_OF_STARTING);
                self.pause(id, pause, now);
            }
            _ => self.fail_with(id, error),
        }
    }
}
