//! An engine's connections: which there are, when to look at them, and who may send on them.

use std::sync::Arc;
use std::time::Duration;

use super::core::{Action, Core};
use super::peer::{Owner, Peer};
use crate::call::Call;
use crate::call::request::Client;
use crate::ids::InstanceIdx;
use crate::route::topology::Topology;
use crate::slab::{Key, Slab};
use crate::time::Time;

/// What the control loop asks, it asks again and again: no peer is busy with that.
fn is_waited_for(calls: &Slab<Call>, owner: &Owner) -> bool {
    match owner {
        Owner::Call(id) => calls.get(*id).is_some_and(|call| call.client == Client::Host),
        Owner::Probe { .. } => true,
    }
}

impl Core {
    pub(super) fn adopt(&mut self, newest: Arc<Topology>, now: Time) {
        self.topology = newest;
        let topology = Arc::clone(&self.topology);
        if self.peers.len() < topology.instances.len() {
            self.peers.resize_with(topology.instances.len(), || None);
        }
        let mut idle = Vec::new();
        for (slot, place) in self.peers.iter_mut().enumerate() {
            let idx = InstanceIdx(slot as u32);
            match (topology.instance(idx), place.as_mut()) {
                (Some(instance), None) => *place = Some(Box::new(Peer::new(instance, &topology, now))),
                (None, Some(peer)) if !peer.retired => {
                    peer.retired = true;
                    if peer.conn.in_flight() == 0 {
                        idle.push(idx);
                    }
                }
                _ => {}
            }
            // Whoever waited for this instance may be served by another one now.
            if let Some(peer) = place {
                peer.conn.set_pings(topology.pings);
                peer.release(&mut self.calls, &mut self.ready);
            }
        }
        for idx in idle {
            self.retire(idx);
        }
        self.conn_timer = now;
    }

    /// Closes a connection that nothing uses any more.
    pub(super) fn retire(&mut self, idx: InstanceIdx) {
        if self.peers.get_mut(idx.slot()).and_then(Option::take).is_some() {
            self.actions.push_back(Action::Close(idx));
        }
    }

    /// Reads that wait for another instance of the replicaset to connect can go to this one, which has become usable. Writes will
    /// wait again, in their order.
    pub(super) fn release_neighbours(&mut self, usable: InstanceIdx) {
        let topology = Arc::clone(&self.topology);
        let Some(instance) = topology.instance(usable) else { return };
        let Some(replicaset) = topology.replicaset(instance.replicaset) else { return };
        for idx in &replicaset.instances {
            if let Some(peer) = self.peers.get_mut(idx.slot()).and_then(Option::as_mut)
                && !peer.conn.is_ready()
            {
                peer.release(&mut self.calls, &mut self.ready);
            }
        }
    }

    /// Looks at every connection: pauses that are over, handshakes that hang, pings that are due.
    pub(super) fn conn_timers(&mut self, now: Time) {
        let mut closed = Vec::new();
        let mut next = Time::NEVER;
        let mut unused = Vec::new();
        let mut usable = Vec::new();
        let calls = &self.calls;
        for peer in self.peers.iter_mut().flatten() {
            if peer.retired && peer.conn.in_flight() == 0 {
                unused.push(peer.idx);
                continue;
            }
            if peer.conn.start_connecting(now) {
                self.actions.push_back(Action::Connect(peer.idx));
            } else if let Some(reason) = peer.conn.handle_timeout(now, |owner| is_waited_for(calls, owner)) {
                closed.push((peer.idx, reason));
            }
            peer.publish(now);
            let is_usable = peer.is_usable(now);
            if is_usable && !peer.was_usable {
                usable.push(peer.idx);
            }
            peer.was_usable = is_usable;
            if !peer.dirty && !peer.conn.send.is_empty() {
                peer.dirty = true;
                self.dirty.push(peer.idx);
            }
            // An overdue one is looked at again soon, not at once.
            next = next.min(peer.conn.next_timeout().max(now.after(Duration::from_millis(5))));
            next = next.min(peer.backoff.end(now));
        }
        self.conn_timer = next;
        for idx in unused {
            self.retire(idx);
        }
        for idx in usable {
            self.release_neighbours(idx);
        }
        for (idx, reason) in closed {
            self.actions.push_back(Action::Close(idx));
            self.handle_closed(idx, reason, now);
        }
    }

    /// No answer to this request is wanted any more, which makes room for another.
    pub(super) fn abandon(&mut self, idx: InstanceIdx, key: Key) {
        if let Some(peer) = self.peers.get_mut(idx.slot()).and_then(Option::as_mut) {
            peer.conn.abandon(key);
            self.mark_roomy(idx);
        }
    }

    /// A request that was sent at `sent` has got no answer in its time.
    pub(super) fn give_up(&mut self, idx: InstanceIdx, sent: Time) {
        if let Some(peer) = self.peers.get_mut(idx.slot()).and_then(Option::as_mut) {
            peer.conn.gave_up(sent);
            if peer.conn.is_doubtful() {
                self.conn_timer = Time::ZERO;
            }
        }
    }

    pub(super) fn mark_roomy(&mut self, idx: InstanceIdx) {
        let limits = &self.topology.limits;
        if let Some(peer) = self.peers.get_mut(idx.slot()).and_then(Option::as_mut)
            && !peer.roomy
            && peer.waiting() > 0
            && peer.has_room(limits)
        {
            peer.roomy = true;
            self.roomy.push(idx);
        }
    }

    /// Sends calls that wait, in their order, as far as there is room.
    pub(super) fn admit(&mut self, now: Time) {
        while let Some(idx) = self.roomy.pop() {
            let limits = self.topology.limits;
            while let Some(peer) = self.peers.get_mut(idx.slot()).and_then(Option::as_mut)
                && let Some(id) = peer.admit(&limits, &mut self.calls)
            {
                self.dispatch(id, now);
            }
            if let Some(peer) = self.peer_mut(idx) {
                peer.roomy = false;
            }
        }
    }

    /// Its send queue is to be written at the end of this turn.
    pub(super) fn mark_dirty(&mut self, idx: InstanceIdx) {
        if let Some(peer) = self.peers.get_mut(idx.slot()).and_then(Option::as_mut)
            && !peer.dirty
            && !peer.conn.send.is_empty()
        {
            peer.dirty = true;
            self.dirty.push(idx);
        }
    }
}
