//! The cluster as one immutable snapshot, replaced as a whole. The control loop alone publishes one.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::ids::{InstanceIdx, ReplicasetIdx};

/// What engines report of an instance, summed over engines. It outlives snapshots: the same object is in each.
#[derive(Debug, Default)]
pub struct InstanceState {
    /// Engines whose connection is ready.
    pub ready: AtomicU32,
    pub connects: AtomicU64,
    pub in_flight: AtomicU32,
    /// The last reason why a connection failed or ended; empty when none did.
    pub last_error: Mutex<String>,
    /// An engine saw it silent past the ping timeout.
    pub suspect: AtomicBool,
}

impl InstanceState {
    pub fn is_connected(&self) -> bool {
        self.ready.load(Ordering::Relaxed) > 0
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
    by_id: HashMap<String, ReplicasetIdx>,
}

impl Topology {
    pub fn replicaset(&self, idx: ReplicasetIdx) -> Option<&Replicaset> {
        self.replicasets.get(idx.slot())?.as_ref()
    }

    pub fn instance(&self, idx: InstanceIdx) -> Option<&Instance> {
        self.instances.get(idx.slot())?.as_ref()
    }

    /// By the key of the configuration; storages name replicasets so in redirects.
    pub fn by_id(&self, id: &str) -> Option<ReplicasetIdx> {
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
