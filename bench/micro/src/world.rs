//! An engine's core with peers that answer at once: what a thread does in a turn, without its system calls. Only calls into
//! the core are counted; what clients and peers do is not.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rawshard::call::request::{Client, Form, Outcome, RawRequest, Reply, Token};
use rawshard::engine::core::{Action, Core};
use rawshard::engine::inbox::Message;
use rawshard::ids::{BucketId, InstanceIdx, ReplicasetIdx};
use rawshard::metrics::Counters;
use rawshard::route::address::Address;
use rawshard::route::buckets::Buckets;
use rawshard::route::topology::{Endpoint, Instance, Replicaset, Topology};
use rawshard::time::Time;

use crate::bytes;
use crate::measure::uncounted;
use crate::workload::Workload;

/// From the start of a request's frame to its sync, see `write_request_head`.
const SYNC_AT: usize = 10;

pub struct World {
    core: Core,
    now: Time,
    bucket_count: u32,
    /// Arguments of `callraw`; a bucket goes in at [`bytes::BUCKET_AT`].
    request: Vec<u8>,
    answer: Vec<u8>,
    peers: Vec<Peer>,
    /// Requests that have come to peers, in their order: peer and sync.
    asked: VecDeque<(usize, [u8; 8])>,
    /// Clients' tokens and buffers that are free.
    tokens: Vec<Token>,
    clients: u32,
    buffers: Vec<Vec<u8>>,
    messages: Vec<Message>,
    replies: Vec<Reply>,
    dirty: Vec<InstanceIdx>,
    answering: Vec<usize>,
    random: u64,
}

#[derive(Default)]
struct Peer {
    /// Bytes for the router.
    out: Vec<u8>,
    written: usize,
    /// Bytes from the router that are no whole frame yet.
    partial: Vec<u8>,
}

impl World {
    /// `instances` replicasets of one instance each, all connected, all buckets known.
    pub fn new(workload: &Workload, buckets: u32, instances: u32) -> World {
        let table = Arc::new(Buckets::new(buckets));
        for id in 1..=buckets {
            let bucket = BucketId::new(u64::from(id), buckets).expect("in range");
            table.set(bucket, ReplicasetIdx(id % instances));
        }
        let topology = Arc::new(ArcSwap::from_pointee(topology(instances)));
        let now = Time::from_nanos(1 << 40);
        let core = Core::new(topology, table, Arc::new(Counters::default()), 1, now);
        let mut world = World {
            core,
            now,
            bucket_count: buckets,
            request: bytes::callraw(workload),
            answer: bytes::answer(workload),
            peers: (0..instances).map(|_| Peer::default()).collect(),
            asked: VecDeque::new(),
            tokens: Vec::new(),
            clients: 0,
            buffers: Vec::new(),
            messages: Vec::new(),
            replies: Vec::new(),
            dirty: Vec::new(),
            answering: Vec::new(),
            random: 0x9e37_79b9_7f4a_7c15,
        };
        world.connect();
        world
    }

    fn connect(&mut self) {
        self.core.begin_turn(self.now);
        self.core.finish_turn(self.now);
        while let Some(action) = self.core.poll_action() {
            let Action::Connect(idx) = action else { panic!("nothing is to be closed") };
            self.core.handle_connected(idx, self.now);
            self.peers[idx.slot()].out = bytes::greeting();
            self.answering.push(idx.slot());
        }
        self.turn(0, 0);
        assert_eq!(self.core.held().calls, 0);
    }

    /// Sends `count` calls that stay unanswered.
    pub fn fill(&mut self, count: usize) {
        let mut left = count;
        while left > 0 {
            let now = left.min(32);
            self.turn(now, 0);
            left -= now;
        }
    }

    /// One turn: `calls` come in, the `answers` oldest requests are answered.
    pub fn turn(&mut self, calls: usize, answers: usize) {
        uncounted(|| self.prepare(calls, answers));
        let now = self.now;
        self.core.begin_turn(now);
        for message in self.messages.drain(..) {
            self.core.handle_message(message, now);
        }
        while let Some(slot) = self.answering.pop() {
            self.receive(slot);
        }
        self.core.finish_turn(now);
        assert!(self.core.poll_action().is_none());
        self.core.take_dirty(&mut self.dirty);
        while let Some(idx) = self.dirty.pop() {
            self.send(idx);
        }
        self.core.next_timeout();
        std::mem::swap(self.core.replies(Client::Host), &mut self.replies);
        uncounted(|| self.finish());
    }

    /// Calls come in and are written: a turn without answers. They are answered outside of the count.
    pub fn accept(&mut self, calls: usize) {
        self.turn(calls, 0);
        uncounted(|| self.turn(0, calls));
    }

    /// Answers come in: a turn without new calls. Those were sent outside of the count.
    pub fn answer(&mut self, calls: usize) {
        uncounted(|| self.turn(calls, 0));
        self.turn(0, calls);
    }

    fn receive(&mut self, slot: usize) {
        let idx = InstanceIdx(slot as u32);
        loop {
            let Some(space) = self.core.recv_space(idx) else { panic!("no such peer") };
            let peer = &mut self.peers[slot];
            let (count, all) = uncounted(|| {
                let rest = &peer.out[peer.written..];
                let count = rest.len().min(space.len());
                space[..count].copy_from_slice(&rest[..count]);
                peer.written += count;
                let all = peer.written == peer.out.len();
                if all {
                    peer.out.clear();
                    peer.written = 0;
                }
                (count, all)
            });
            self.core.handle_received(idx, count, self.now);
            if all {
                return;
            }
        }
    }

    fn send(&mut self, idx: InstanceIdx) {
        loop {
            let Some(queue) = self.core.send_queue(idx) else { panic!("no such peer") };
            if queue.is_empty() {
                return;
            }
            let mut slices = [IoSlice::new(&[]); 32];
            let count = queue.gather(&mut slices);
            let (peers, asked) = (&mut self.peers, &mut self.asked);
            let written = uncounted(|| {
                slices[..count].iter().for_each(|slice| peers[idx.slot()].take(slice, idx.slot(), asked));
                slices[..count].iter().map(|slice| slice.len()).sum()
            });
            self.core.handle_sent(idx, written);
        }
    }

    fn prepare(&mut self, calls: usize, answers: usize) {
        for _ in 0..calls {
            let mut bytes = self.buffers.pop().unwrap_or_default();
            bytes.clear();
            bytes.extend_from_slice(&self.request);
            let bucket = self.next_bucket();
            bytes[bytes::BUCKET_AT..bytes::BUCKET_AT + 4].copy_from_slice(&bucket.to_be_bytes());
            let token = self.tokens.pop().unwrap_or_else(|| {
                self.clients += 1;
                Token { index: self.clients - 1, generation: 1 }
            });
            self.messages.push(Message::Raw(RawRequest { token, form: Form::Callraw, bytes }));
        }
        for _ in 0..answers {
            let (slot, sync) = self.asked.pop_front().expect("as many requests as answers");
            let out = &mut self.peers[slot].out;
            if out.is_empty() {
                self.answering.push(slot);
            }
            let at = out.len();
            out.extend_from_slice(&self.answer);
            out[at + bytes::ANSWER_SYNC_AT..at + bytes::ANSWER_SYNC_AT + 8].copy_from_slice(&sync);
        }
        // Half a million calls a second, but never so slow that a turn is a tick of the timer wheel.
        self.now = self.now.after(Duration::from_micros(2 * calls.max(answers) as u64));
    }

    fn finish(&mut self) {
        for reply in self.replies.drain(..) {
            assert_eq!(reply.outcome, Outcome::Values);
            self.tokens.push(reply.token);
            self.buffers.push(reply.into_buffer());
        }
    }

    /// Any order will do, as long as it has no locality.
    fn next_bucket(&mut self) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random % u64::from(self.bucket_count)) as u32 + 1
    }
}

impl Peer {
    fn take(&mut self, bytes: &[u8], slot: usize, asked: &mut VecDeque<(usize, [u8; 8])>) {
        self.partial.extend_from_slice(bytes);
        let mut at = 0;
        while let Some(length) = self.partial.get(at + 1..at + 5) {
            let end = at + 5 + u32::from_be_bytes(length.try_into().expect("four bytes")) as usize;
            if end > self.partial.len() {
                break;
            }
            let sync = self.partial[at + SYNC_AT..at + SYNC_AT + 8].try_into().expect("eight bytes");
            asked.push_back((slot, sync));
            at = end;
        }
        self.partial.drain(..at);
    }
}

fn topology(instances: u32) -> Topology {
    let instance = |number: u32| Instance {
        idx: InstanceIdx(number),
        replicaset: ReplicasetIdx(number),
        id: format!("instance-{number}"),
        name: None,
        endpoint: Endpoint {
            address: Address::Tcp { host: "127.0.0.1".into(), port: 1 },
            user: None,
            password: None,
            uuid: None,
            name: None,
        },
        state: Arc::default(),
    };
    let replicaset = |number: u32| Replicaset {
        idx: ReplicasetIdx(number),
        id: format!("replicaset-{number}"),
        uuid: None,
        name: None,
        weight: 1.0,
        master_auto: false,
        master: Some(InstanceIdx(number)),
        instances: vec![InstanceIdx(number)],
        by_priority: vec![InstanceIdx(number)],
    };
    let mut topology = Topology {
        epoch: 1,
        replicasets: (0..instances).map(|number| Some(replicaset(number))).collect(),
        instances: (0..instances).map(|number| Some(instance(number))).collect(),
        order: (0..instances).map(ReplicasetIdx).collect(),
        ..Topology::default()
    };
    topology.index();
    topology
}
