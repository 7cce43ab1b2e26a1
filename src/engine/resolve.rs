//! Looking for a bucket on demand: all replicasets are asked at once, and all calls for that bucket share one search.
//!
//! vshard asks the masters one after another, once per caller (router: bucket_resolve). A replica will do here when the master
//! has no connection: what it says is checked by the call that follows.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::core::Core;
use super::peer::Owner;
use crate::call::Stage;
use crate::call::request::Target;
use crate::error::{Failure, code};
use crate::ids::{BucketId, CallId, InstanceIdx, ReplicasetIdx};
use crate::route::topology::Replicaset;
use crate::slab::Key;
use crate::time::Time;
use crate::wire::iproto::{self, TYPE_CALL, TYPE_ERROR};
use crate::wire::mp;
use crate::wire::payload::{Head, Payload};
use crate::wire::vshard::{self, BucketStat, ErrorView, write_failure};

/// Time for all answers of one search (consts.lua: CALL_TIMEOUT_MIN).
const SEARCH_TIMEOUT: Duration = Duration::from_millis(500);

#[derive(Default)]
pub(super) struct Searches {
    by_bucket: HashMap<BucketId, Search>,
    serial: u32,
    /// In the order of their ends: all get the same time.
    ends: std::collections::VecDeque<(Time, BucketId, u32)>,
}

struct Search {
    serial: u32,
    /// May hold ids of calls that have left.
    waiters: Vec<CallId>,
    /// Questions without answer yet.
    open: Vec<(InstanceIdx, Key, ReplicasetIdx)>,
    /// A replicaset that could not be asked.
    unreachable: Option<ReplicasetIdx>,
    /// The newest error that is neither "not here" nor "no connection".
    error: Option<Vec<u8>>,
}

impl Searches {
    /// Searches under way.
    pub fn len(&self) -> usize {
        self.by_bucket.len()
    }

    pub fn next_end(&self) -> Option<Time> {
        self.ends.front().map(|(end, _, _)| *end)
    }
}

impl Core {
    /// The call waits until the bucket is found.
    pub(super) fn resolve(&mut self, bucket: BucketId, id: CallId, now: Time) {
        let Some(call) = self.calls.get_mut(id) else { return };
        call.stage = Stage::Resolving;
        if let Some(search) = self.searches.by_bucket.get_mut(&bucket) {
            search.waiters.push(id);
            return;
        }
        self.searches.serial = self.searches.serial.wrapping_add(1);
        let serial = self.searches.serial;
        let mut search =
            Search { serial, waiters: vec![id], open: Vec::new(), unreachable: None, error: None };
        let mut body = Vec::new();
        iproto::begin_call_body(&mut body, "vshard.storage.bucket_stat");
        mp::write_array_len(&mut body, 1);
        mp::write_uint(&mut body, u64::from(bucket.number()));
        let body = Payload::new(Head::Empty, body);
        let topology = Arc::clone(&self.topology);
        for replicaset in topology.live() {
            let Some(peer) =
                self.whom_to_ask(replicaset, now).and_then(|idx| self.peers[idx.slot()].as_deref_mut())
            else {
                search.unreachable = Some(replicaset.idx);
                continue;
            };
            let key =
                peer.conn.send(Owner::Probe { bucket, serial, replicaset: replicaset.idx }, TYPE_CALL, &body);
            search.open.push((peer.idx, key, replicaset.idx));
            let idx = peer.idx;
            self.mark_dirty(idx);
        }
        let asked = !search.open.is_empty();
        self.searches.by_bucket.insert(bucket, search);
        if asked {
            self.searches.ends.push_back((now.after(SEARCH_TIMEOUT), bucket, serial));
        } else {
            self.not_found(bucket, now);
        }
    }

    /// The master, or else the nearest; one that is silent or has said that it can not serve if there is no other.
    fn whom_to_ask(&self, replicaset: &Replicaset, now: Time) -> Option<InstanceIdx> {
        let usable = |idx: &InstanceIdx| self.peer(*idx).is_some_and(|peer| peer.is_usable(now));
        let ready =
            |idx: &InstanceIdx| self.peer(*idx).is_some_and(|peer| peer.conn.is_ready() && !peer.retired);
        let all = || replicaset.master.into_iter().chain(replicaset.by_priority.iter().copied());
        all().find(usable).or_else(|| all().find(ready))
    }

    /// `body` is the packet body of the answer to a question.
    pub(super) fn handle_probe(
        &mut self,
        probe: (BucketId, u32, ReplicasetIdx),
        kind: u64,
        body: &[u8],
        now: Time,
    ) {
        let (bucket, serial, replicaset) = probe;
        let Some(search) = self.searches.by_bucket.get_mut(&bucket).filter(|search| search.serial == serial)
        else {
            return self.counters.late.add(1);
        };
        search.open.retain(|(_, _, asked)| *asked != replicaset);
        match read_probe(kind, body) {
            // It may have left the configuration meanwhile.
            Probe::Held if self.topology.replicaset(replicaset).is_none() => {}
            Probe::Held => {
                self.buckets.set(bucket, replicaset);
                return self.found(bucket);
            }
            Probe::NotHere => {}
            Probe::Error(error) => search.error = Some(error),
        }
        if search.open.is_empty() {
            self.not_found(bucket, now);
        }
    }

    /// The connection of a question was lost.
    pub(super) fn probe_lost(&mut self, probe: (BucketId, u32, ReplicasetIdx), now: Time) {
        let (bucket, serial, replicaset) = probe;
        let Some(search) = self.searches.by_bucket.get_mut(&bucket).filter(|search| search.serial == serial)
        else {
            return;
        };
        search.open.retain(|(_, _, asked)| *asked != replicaset);
        search.unreachable = Some(replicaset);
        if search.open.is_empty() {
            self.not_found(bucket, now);
        }
    }

    /// Ends searches whose time is over.
    pub(super) fn end_searches(&mut self, now: Time) {
        while let Some((end, bucket, serial)) = self.searches.ends.front().copied()
            && end <= now
        {
            self.searches.ends.pop_front();
            let Some(search) =
                self.searches.by_bucket.get_mut(&bucket).filter(|search| search.serial == serial)
            else {
                continue;
            };
            let mut error = Vec::new();
            write_failure(&mut error, &Failure::Timeout);
            search.error = Some(error);
            self.not_found(bucket, now);
        }
    }

    fn found(&mut self, bucket: BucketId) {
        let waiters = self.end_search(bucket).map(|search| search.waiters).unwrap_or_default();
        for id in waiters {
            if let Some(call) = self.calls.get_mut(id).filter(|call| call.stage == Stage::Resolving) {
                call.stage = Stage::Ready;
                self.ready.push_back(id);
            }
        }
    }

    /// A connection to an instance of the replicaset is being made, for the first time or after one that was in order.
    fn is_on_its_way(&self, replicaset: ReplicasetIdx) -> bool {
        let is_coming = |idx: &InstanceIdx| {
            self.peer(*idx)
                .is_some_and(|peer| !peer.conn.is_ready() && !peer.conn.has_failed() && !peer.retired)
        };
        self.topology.replicaset(replicaset).is_some_and(|it| it.instances.iter().any(is_coming))
    }

    /// Calls try again until their deadline, as in vshard; a question for the route alone is answered, unless somebody could
    /// not be asked yet.
    fn not_found(&mut self, bucket: BucketId, now: Time) {
        let Some(search) = self.end_search(bucket) else { return };
        let waits = search.unreachable.is_some_and(|replicaset| self.is_on_its_way(replicaset));
        let mut error = search.error.unwrap_or_default();
        if error.is_empty() {
            let unreachable = search.unreachable.and_then(|idx| self.topology.replicaset(idx));
            let failure = match unreachable {
                Some(replicaset) => Failure::UnreachableReplicaset {
                    replicaset: replicaset.id.clone(),
                    bucket: bucket.number(),
                },
                None => Failure::NoRouteToBucket { bucket: bucket.number() },
            };
            write_failure(&mut error, &failure);
        }
        for id in search.waiters {
            let Some(call) = self.calls.get_mut(id).filter(|call| call.stage == Stage::Resolving) else {
                continue;
            };
            if matches!(call.target, Target::Route(_)) && !waits {
                self.fail_with(id, &error);
                continue;
            }
            call.setbacks().last_error = Some(error.as_slice().into());
            let pause = call.next_pause().max(Duration::from_millis(1));
            self.pause(id, pause, now);
        }
    }

    fn end_search(&mut self, bucket: BucketId) -> Option<Search> {
        let mut search = self.searches.by_bucket.remove(&bucket)?;
        for (idx, key, _) in search.open.drain(..) {
            self.abandon(idx, key);
        }
        Some(search)
    }
}

enum Probe {
    Held,
    NotHere,
    Error(Vec<u8>),
}

fn read_probe(kind: u64, body: &[u8]) -> Probe {
    let bad = |what: &str| {
        let mut error = Vec::new();
        let failure = Failure::BadAnswer { instance: "vshard.storage.bucket_stat".into(), what: what.into() };
        write_failure(&mut error, &failure);
        Probe::Error(error)
    };
    let answer = match iproto::answer(body) {
        Ok(answer) => answer,
        Err(fault) => return bad(&fault.to_string()),
    };
    if kind & TYPE_ERROR != 0 {
        let mut error = Vec::new();
        return match vshard::write_exception(&mut error, kind, &answer) {
            Ok(()) => Probe::Error(error),
            Err(fault) => bad(&fault.to_string()),
        };
    }
    match answer.data.map(vshard::bucket_stat) {
        Some(Ok(BucketStat::Held)) => Probe::Held,
        Some(Ok(BucketStat::Refused(error))) => {
            let view = ErrorView::parse(error);
            if view.is_sharding(code::WRONG_BUCKET) {
                return Probe::NotHere;
            }
            Probe::Error(error.to_vec())
        }
        Some(Err(fault)) => bad(&fault.to_string()),
        None => bad("no data"),
    }
}
