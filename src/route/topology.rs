//! The cluster as one immutable snapshot, replaced as a whole. The control loop alone publishes one.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::ids::{InstanceIdx, ReplicasetIdx};
use crate::route::hash::Rules;
use crate::time::Time;

/// vshard's marks of health (consts.lua: STATUS).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Mark {
    Green,
    /// Nothing is known yet, or can be. It serves.
    #[default]
    Yellow,
    /// Reads go elsewhere if they can.
    Red,
}

impl Mark {
    /// As vshard counts them.
    pub fn number(self) -> u8 {
        match self {
            Mark::Green => 0,
            Mark::Yellow => 1,
            Mark::Red => 3,
        }
    }
}

/// A mark that threads share.
#[derive(Debug)]
pub struct AtomicMark(AtomicU8);

impl Default for AtomicMark {
    fn default() -> Self {
        AtomicMark(AtomicU8::new(Mark::default().number()))
    }
}

impl AtomicMark {
    pub fn get(&self) -> Mark {
        match self.0.load(Ordering::Relaxed) {
            0 => Mark::Green,
            1 => Mark::Yellow,
            _ => Mark::Red,
        }
    }

    /// Gives the mark so far.
    pub fn set(&self, mark: Mark) -> Mark {
        let before = self.get();
        self.0.store(mark.number(), Ordering::Relaxed);
        before
    }
}

/// What engines report of an instance, summed over engines. It outlives snapshots: the same object is in each.
#[derive(Debug, Default)]
pub struct InstanceState {
    /// Engines whose connection is ready.
    pub ready: AtomicU32,
    pub connects: AtomicU64,
    pub in_flight: AtomicU32,
    /// The last reason why a connection failed or ended; empty when none did.
    last_error: Mutex<String>,
    /// Engines that see it silent past the ping timeout, or too many requests in a row unanswered.
    pub suspects: AtomicU32,
    /// Until when reads of an engine leave it alone because of what it answered, for each engine that has such a backoff.
    backoffs: Mutex<Vec<Time>>,
    /// The latest of them, nanoseconds; zero if there are none.
    backoff_until: AtomicU64,
    /// How it replicates from its master, by its own words. The control loop's, as the two below.
    pub replication: AtomicMark,
    /// The same as far as it counts: where replication has stopped altogether, for nothing.
    pub lag: AtomicMark,
    /// When it was asked the newest question that it has answered well: vshard is loaded and enabled there. Nanoseconds.
    pub served: AtomicU64,
}

impl InstanceState {
    pub fn set_last_error(&self, reason: &str) {
        let mut text = self.last_error.lock().unwrap_or_else(PoisonError::into_inner);
        text.clear();
        text.push_str(reason);
    }

    /// A text that never shows a secret.
    pub fn last_error(&self) -> String {
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn is_connected(&self) -> bool {
        self.ready.load(Ordering::Relaxed) > 0
    }

    /// An engine has a backoff until `new` from now on, in the place of the one until `old`.
    pub fn set_backoff(&self, old: Option<Time>, new: Option<Time>) {
        if old == new {
            return;
        }
        let mut backoffs = self.backoffs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(position) = backoffs.iter().position(|until| Some(*until) == old) {
            backoffs.swap_remove(position);
        }
        backoffs.extend(new);
        let latest = backoffs.iter().max().map_or(0, |until| until.nanos());
        self.backoff_until.store(latest, Ordering::Relaxed);
    }

    /// When all engines' reads may go there again.
    pub fn backoff_until(&self) -> Time {
        Time::from_nanos(self.backoff_until.load(Ordering::Relaxed))
    }

    pub fn is_suspect(&self) -> bool {
        self.suspects.load(Ordering::Relaxed) > 0
    }

    /// Whether reads may go there, and how good that is.
    pub fn health(&self, now: Time) -> Mark {
        if !self.is_connected() || self.is_suspect() || self.backoff_until() > now {
            return Mark::Red;
        }
        self.lag.get()
    }
}

/// How to reach an instance, and as whom.
#[derive(Clone, PartialEq, Debug)]
pub struct Endpoint {
    pub address: crate::route::address::Address,
    pub user: Option<String>,
    pub password: Option<crate::route::address::Secret>,
    /// The UUID that the greeting must show; None accepts any.
    pub uuid: Option<String>,
    /// The name that the instance must give when asked; None asks for none.
    pub name: Option<String>,
}

#[derive(Clone, Debug)]
pub struct Instance {
    pub idx: InstanceIdx,
    pub replicaset: ReplicasetIdx,
    pub id: String,
    pub name: Option<String>,
    pub endpoint: Endpoint,
    pub state: Arc<InstanceState>,
}

#[derive(Clone, Debug)]
pub struct Replicaset {
    pub idx: ReplicasetIdx,
    pub id: String,
    pub uuid: Option<String>,
    pub name: Option<String>,
    pub weight: f64,
    pub master_auto: bool,
    pub master: Option<InstanceIdx>,
    /// In the order of the configuration.
    pub instances: Vec<InstanceIdx>,
    /// Nearest first; the master before others of equal distance.
    pub by_priority: Vec<InstanceIdx>,
}

/// Bounds of D12. Beyond them a caller waits within its deadline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Calls under way per instance and engine; further ones queue behind them.
    pub in_flight: u32,
    /// Calls that wait for one instance, for its connection or for their turn; further ones fail at once.
    pub waiting: u32,
    /// Bytes written to one connection that the peer has not taken yet.
    pub queued_bytes: usize,
    /// Bytes that were pushed to one call and not read; a push beyond them ends the call.
    pub unread_pushes: usize,
    /// How long at most an engine that has nothing to do looks around before it sleeps.
    pub busy_poll: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            in_flight: 100_000,
            waiting: 200_000,
            queued_bytes: 256 << 20,
            unread_pushes: 64 << 20,
            busy_poll: Duration::from_micros(100),
        }
    }
}

/// How often engines look whether a silent peer still answers, how long they wait for it, and how many requests in a row it
/// may leave unanswered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pings {
    pub interval: Duration,
    pub timeout: Duration,
    pub failures: u32,
}

impl Default for Pings {
    /// vshard's failover_interval, failover_ping_timeout and failover_sequential_fail_count (`vshard/consts.lua`).
    fn default() -> Self {
        Pings { interval: Duration::from_secs(1), timeout: Duration::from_secs(5), failures: 3 }
    }
}

/// The default of vshard's failover_replica_lag_limit (consts.lua: REPLICA_LAG_LIMIT).
pub const LAG_LIMIT: Duration = Duration::from_secs(30);

#[derive(Clone, Debug, Default)]
pub struct Topology {
    /// Grows with each snapshot.
    pub epoch: u64,
    /// By [`ReplicasetIdx`]; None where one was removed.
    pub replicasets: Vec<Option<Replicaset>>,
    /// By [`InstanceIdx`]; None where one was removed.
    pub instances: Vec<Option<Instance>>,
    /// Live replicasets in the order of the newest configuration.
    pub order: Vec<ReplicasetIdx>,
    pub limits: Limits,
    pub pings: Pings,
    /// A replica that is further behind its master is out of reads.
    pub lag_limit: Duration,
    pub hash_rules: Rules,
    /// Made of the above by [`Topology::index`].
    pub by_id: HashMap<String, ReplicasetIdx>,
}

impl Topology {
    pub fn replicaset(&self, idx: ReplicasetIdx) -> Option<&Replicaset> {
        self.replicasets.get(idx.slot())?.as_ref()
    }

    pub fn instance(&self, idx: InstanceIdx) -> Option<&Instance> {
        self.instances.get(idx.slot())?.as_ref()
    }

    /// The instance of `replicaset` that a storage names so.
    pub fn instance_by_id(&self, replicaset: &Replicaset, id: &str) -> Option<InstanceIdx> {
        let named = |instance: &Instance| {
            instance.id == id
                || instance.endpoint.uuid.as_deref() == Some(id)
                || instance.name.as_deref() == Some(id)
        };
        replicaset.instances.iter().copied().find(|idx| self.instance(*idx).is_some_and(named))
    }

    /// By the key of the configuration; storages name replicasets so in redirects.
    pub fn replicaset_by_id(&self, id: &str) -> Option<ReplicasetIdx> {
        self.by_id.get(id).copied()
    }

    pub fn live(&self) -> impl Iterator<Item = &Replicaset> {
        self.order.iter().filter_map(|idx| self.replicaset(*idx))
    }

    /// To be called by the publisher when `order` and `replicasets` are complete. UUIDs find their replicaset too, since
    /// a storage may name one by either.
    pub fn index(&mut self) {
        self.by_id.clear();
        for idx in &self.order {
            if let Some(replicaset) = self.replicasets.get(idx.slot()).and_then(Option::as_ref) {
                for id in [Some(&replicaset.id), replicaset.uuid.as_ref(), replicaset.name.as_ref()]
                    .into_iter()
                    .flatten()
                {
                    self.by_id.insert(id.clone(), *idx);
                }
            }
        }
    }
}
