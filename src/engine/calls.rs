//! The calls that an engine has: how they come in, how to find one, and their ends.

use super::core::Core;
use crate::call::key::Keyspace;
use crate::call::request::{Client, Form, Outcome, RawRequest, Reply, Token};
use crate::call::{Call, Stage, endpoint, raw_args};
use crate::error::Failure;
use crate::ids::{CallId, InstanceIdx, ReplicasetIdx};
use crate::time::Time;
use crate::wire::mp;
use crate::wire::vshard::write_failure;

impl Core {
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
        self.reply_by(client, reply, Time::ZERO);
    }

    /// The client may not hear of it before this time.
    pub(super) fn reply_by(&mut self, client: Client, reply: Reply, ring_by: Time) {
        self.counters.replies.add(1);
        self.counters.failures.add(u64::from(reply.outcome != Outcome::Values));
        self.push_reply(client, reply, ring_by);
    }

    pub(super) fn push_reply(&mut self, client: Client, reply: Reply, ring_by: Time) {
        if client == Client::Host {
            self.ring_by = self.ring_by.min(ring_by);
        }
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
}
