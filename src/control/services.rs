//! What the control loop's work looks like from outside: a record for each service, in vshard's shape (service_info.lua).

use std::collections::BTreeMap;

use crate::ids::{InstanceIdx, ReplicasetIdx};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// How often the state was set.
    pub status_idx: u64,
    pub activity: &'static str,
    /// Empty: all is well.
    pub error: String,
}

impl Default for Service {
    fn default() -> Self {
        Service { status_idx: 0, activity: "unknown", error: String::new() }
    }
}

impl Service {
    pub fn is_ok(&self) -> bool {
        self.error.is_empty()
    }

    fn end(&mut self, outcome: Result<(), String>) {
        self.status_idx += 1;
        self.activity = IDLING;
        self.error = outcome.err().unwrap_or_default();
    }
}

pub const IDLING: &str = "idling";
const PINGING: &str = "pinging";
const LOCATING: &str = "locating master";
const ASKING: &str = "sending requests";
const COLLECTING: &str = "collecting responses and updating route map";

#[derive(Debug, Clone, Default)]
pub struct Services {
    /// None: discovery is off, or has finished.
    pub discovery: Option<Service>,
    /// Empty unless some master is to be searched for.
    pub master_search: BTreeMap<ReplicasetIdx, Service>,
    /// Of whole replicasets, and of each of their instances.
    pub failover: BTreeMap<ReplicasetIdx, Service>,
    pub pings: BTreeMap<InstanceIdx, Service>,
}

/// Those that stay keep their records.
fn keep<K: Ord + Copy>(records: &mut BTreeMap<K, Service>, keys: impl Iterator<Item = K>) {
    let mut old = std::mem::take(records);
    records.extend(keys.map(|key| (key, old.remove(&key).unwrap_or_default())));
}

impl Services {
    pub fn set_discovery(&mut self, is_active: bool) {
        match (is_active, &self.discovery) {
            (true, None) => self.discovery = Some(Service::default()),
            (false, Some(_)) => self.discovery = None,
            _ => {}
        }
    }

    pub fn set_replicasets(&mut self, all: &[ReplicasetIdx], instances: &[InstanceIdx], searches: bool) {
        keep(&mut self.failover, all.iter().copied());
        keep(&mut self.pings, instances.iter().copied());
        // As vshard: once one is searched for, all have the service.
        keep(&mut self.master_search, all.iter().copied().filter(|_| searches));
    }

    pub fn discovery_asks(&mut self) {
        if let Some(service) = &mut self.discovery {
            service.activity = ASKING;
        }
    }

    /// An answer was taken; `waits`: for others. As long as it is not complete, one good answer does not make up for another's
    /// failure.
    pub fn discovery_took(&mut self, waits: bool, is_complete: bool, outcome: Result<(), String>) {
        let Some(service) = &mut self.discovery else { return };
        match outcome {
            _ if is_complete => service.end(Ok(())),
            Ok(()) if !service.is_ok() => {}
            outcome => service.end(outcome),
        }
        service.activity = if waits { COLLECTING } else { IDLING };
    }

    pub fn search_begins(&mut self, idx: ReplicasetIdx) {
        if let Some(service) = self.master_search.get_mut(&idx) {
            service.activity = LOCATING;
        }
    }

    /// A round has ended; `found`: with a master.
    pub fn search_ends(&mut self, idx: ReplicasetIdx, found: bool, error: Option<&str>) {
        let Some(service) = self.master_search.get_mut(&idx) else { return };
        match (found, error) {
            (true, _) => service.end(Ok(())),
            (false, Some(error)) => service.end(Err(format!("no master is found: {error}"))),
            // Everybody has answered, nobody is the master: so it may be.
            (false, None) => {}
        }
        if !found {
            service.activity = LOCATING;
        }
    }

    pub fn ping_begins(&mut self, idx: InstanceIdx) {
        if let Some(service) = self.pings.get_mut(&idx) {
            service.activity = PINGING;
        }
    }

    pub fn ping_ends(&mut self, idx: InstanceIdx, outcome: Result<(), String>) {
        if let Some(service) = self.pings.get_mut(&idx) {
            service.end(outcome);
        }
    }

    pub fn failover_ends(&mut self, idx: ReplicasetIdx) {
        if let Some(service) = self.failover.get_mut(&idx) {
            service.end(Ok(()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RS: ReplicasetIdx = ReplicasetIdx(0);
    const A: InstanceIdx = InstanceIdx(0);

    fn state(service: &Service) -> (u64, &'static str, &str) {
        (service.status_idx, service.activity, service.error.as_str())
    }

    #[test]
    fn discovery_is_well_when_it_has_failed_nowhere_or_knows_all() {
        let mut services = Services::default();
        services.discovery_asks();
        assert_eq!(services.discovery, None, "it is off");
        services.set_discovery(true);
        assert_eq!(state(services.discovery.as_ref().unwrap()), (0, "unknown", ""));
        services.discovery_asks();
        services.discovery_took(true, false, Ok(()));
        assert_eq!(state(services.discovery.as_ref().unwrap()), (1, COLLECTING, ""));
        services.discovery_took(false, false, Err("away".into()));
        assert_eq!(state(services.discovery.as_ref().unwrap()), (2, IDLING, "away"));
        services.discovery_took(false, false, Ok(()));
        assert_eq!(state(services.discovery.as_ref().unwrap()), (2, IDLING, "away"));
        services.discovery_took(false, true, Err("away".into()));
        assert_eq!(state(services.discovery.as_ref().unwrap()), (3, IDLING, ""));
        services.set_discovery(true);
        assert_eq!(services.discovery.as_ref().unwrap().status_idx, 3);
        services.set_discovery(false);
        assert_eq!(services.discovery, None);
    }

    #[test]
    fn those_that_stay_keep_their_records() {
        let mut services = Services::default();
        services.set_replicasets(&[RS], &[A], false);
        assert!(services.master_search.is_empty(), "nobody is searched for");
        services.ping_begins(A);
        assert_eq!(state(&services.pings[&A]), (0, PINGING, ""));
        services.ping_ends(A, Err("no".into()));
        services.set_replicasets(&[RS, ReplicasetIdx(1)], &[A, InstanceIdx(1)], true);
        assert_eq!(state(&services.pings[&A]), (1, IDLING, "no"));
        assert_eq!(state(&services.pings[&InstanceIdx(1)]), (0, "unknown", ""));
        services.search_begins(RS);
        services.search_ends(RS, false, Some("a is not connected"));
        assert_eq!(
            state(&services.master_search[&RS]),
            (1, LOCATING, "no master is found: a is not connected")
        );
        services.search_ends(RS, true, None);
        assert_eq!(state(&services.master_search[&RS]), (2, IDLING, ""));
        services.set_replicasets(&[], &[], true);
        assert!(services.pings.is_empty() && services.failover.is_empty());
    }
}
