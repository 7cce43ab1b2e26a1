//! The only place where topology snapshots are made and published.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;

use crate::control::config::{Config, InstanceConfig, ReplicasetConfig};
use crate::control::services::Services;
use crate::ids::{InstanceIdx, ReplicasetIdx};
use crate::route::buckets::Buckets;
use crate::route::topology::{Endpoint, Instance, InstanceState, Pings, Replicaset, Topology};

pub struct Publisher {
    /// Held from reading the old snapshot to publishing the next: configuration comes from TX, masters from the control
    /// thread.
    publishing: Mutex<()>,
    source: Arc<ArcSwap<Topology>>,
    buckets: Arc<Buckets>,
    services: Mutex<Services>,
}

impl Publisher {
    pub fn new(source: Arc<ArcSwap<Topology>>, buckets: Arc<Buckets>) -> Publisher {
        Publisher { publishing: Mutex::new(()), source, buckets, services: Mutex::default() }
    }

    /// Publishes what `config` says. A replicaset keeps its index if its id stays; an instance if its id and all that makes
    /// its connection stay, so that the connection and the calls on it go on. Routes to replicasets that are gone are forgotten.
    pub fn configure(&self, config: &Config) {
        let _alone = self.publishing.lock().unwrap_or_else(PoisonError::into_inner);
        let old = self.source.load_full();
        let mut next = Topology {
            epoch: old.epoch + 1,
            replicasets: vec![None; old.replicasets.len()],
            instances: vec![None; old.instances.len()],
            limits: config.limits,
            lag_limit: config.failover_replica_lag_limit,
            pings: Pings {
                interval: config.failover_interval,
                timeout: config.failover_ping_timeout,
                failures: config.failover_sequential_fail_count,
            },
            hash_rules: config.hash_rules,
            ..Topology::default()
        };
        let old_ids: HashMap<&str, &Replicaset> = old.live().map(|rs| (rs.id.as_str(), rs)).collect();
        for replicaset in &config.replicasets {
            let before = old_ids.get(replicaset.id.as_str()).copied();
            add_replicaset(&mut next, replicaset, config.name_as_key, before, &old);
        }
        next.index();
        let next = Arc::new(next);
        self.source.store(Arc::clone(&next));
        self.buckets.retain(|idx| next.replicaset(idx).is_some());
    }

    /// `master` is the master of `replicaset` from now on; None: nobody is known to be. Tells whether that is news.
    pub fn set_master(&self, replicaset: ReplicasetIdx, master: Option<InstanceIdx>) -> bool {
        let _alone = self.publishing.lock().unwrap_or_else(PoisonError::into_inner);
        let old = self.source.load_full();
        let known = |rs: &&Replicaset| master.is_none_or(|idx| rs.instances.contains(&idx));
        if old.replicaset(replicaset).filter(known).is_none_or(|rs| rs.master == master) {
            return false;
        }
        let mut next = Topology::clone(&old);
        next.epoch += 1;
        if let Some(Some(rs)) = next.replicasets.get_mut(replicaset.slot()) {
            log::info!(
                "replicaset {}: master is {}",
                rs.id,
                master.and_then(|idx| old.instance(idx)).map_or("unknown", |instance| &instance.id)
            );
            rs.master = master;
        }
        self.source.store(Arc::new(next));
        true
    }

    /// What the control loop says of itself.
    pub fn services(&self) -> MutexGuard<'_, Services> {
        self.services.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn topology(&self) -> Arc<Topology> {
        self.source.load_full()
    }
}

fn add_replicaset(
    next: &mut Topology,
    config: &ReplicasetConfig,
    name_as_key: bool,
    before: Option<&Replicaset>,
    old: &Topology,
) {
    let idx = before.map_or(ReplicasetIdx(next.replicasets.len() as u32), |rs| rs.idx);
    let mut order: Vec<(f64, bool, InstanceIdx)> = Vec::new();
    let mut master = None;
    for instance in &config.instances {
        let instance_idx = add_instance(next, idx, instance, name_as_key, before, old);
        if instance.is_master {
            master = Some(instance_idx);
        }
        order.push((instance.zone_weight, !instance.is_master, instance_idx));
    }
    let instances: Vec<InstanceIdx> = order.iter().map(|(_, _, idx)| *idx).collect();
    if config.master_auto {
        // The one found so far is as good a guess as any.
        master = before.and_then(|rs| rs.master).filter(|idx| instances.contains(idx));
    }
    // Stable: instances of equal distance keep the order of the configuration.
    order.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let replicaset = Replicaset {
        idx,
        id: config.id.clone(),
        uuid: config.uuid.clone(),
        name: config.name.clone(),
        weight: config.weight,
        master_auto: config.master_auto,
        master,
        instances,
        by_priority: order.into_iter().map(|(_, _, idx)| idx).collect(),
    };
    place(&mut next.replicasets, idx.slot(), replicaset);
    next.order.push(idx);
}

fn add_instance(
    next: &mut Topology,
    replicaset: ReplicasetIdx,
    config: &InstanceConfig,
    name_as_key: bool,
    before: Option<&Replicaset>,
    old: &Topology,
) -> InstanceIdx {
    let endpoint = Endpoint {
        address: config.address.clone(),
        user: config.user.clone(),
        password: config.password.clone(),
        uuid: config.uuid.clone(),
        name: if name_as_key { config.name.clone() } else { None },
    };
    let same = |instance: &&Instance| instance.id == config.id && instance.endpoint == endpoint;
    let kept = before.and_then(|rs| rs.instances.iter().filter_map(|idx| old.instance(*idx)).find(same));
    let idx = kept.map_or(InstanceIdx(next.instances.len() as u32), |instance| instance.idx);
    let state =
        kept.map_or_else(|| Arc::new(InstanceState::default()), |instance| Arc::clone(&instance.state));
    let instance =
        Instance { idx, replicaset, id: config.id.clone(), name: config.name.clone(), endpoint, state };
    place(&mut next.instances, idx.slot(), instance);
    idx
}

fn place<T: Clone>(table: &mut Vec<Option<T>>, slot: usize, value: T) {
    if table.len() <= slot {
        table.resize(slot + 1, None);
    }
    table[slot] = Some(value);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::BucketId;
    use crate::route::address::Address;

    fn instance(id: &str, port: u16, is_master: bool, zone_weight: f64) -> InstanceConfig {
        InstanceConfig {
            id: id.into(),
            uuid: None,
            name: None,
            address: Address::Tcp { host: "127.0.0.1".into(), port },
            user: None,
            password: None,
            is_master,
            zone_weight,
        }
    }

    fn replicaset(id: &str, instances: Vec<InstanceConfig>) -> ReplicasetConfig {
        ReplicasetConfig { id: id.into(), uuid: None, name: None, weight: 1.0, master_auto: false, instances }
    }

    fn config(replicasets: Vec<ReplicasetConfig>) -> Config {
        Config { replicasets, ..Config::default() }
    }

    #[test]
    fn indexes_stay_while_ids_and_endpoints_do() {
        let source = Arc::new(ArcSwap::from_pointee(Topology::default()));
        let buckets = Arc::new(Buckets::new(10));
        let publisher = Publisher::new(Arc::clone(&source), Arc::clone(&buckets));
        let one = || replicaset("rs1", vec![instance("a", 1, true, 0.0), instance("b", 2, false, 0.0)]);
        let two = || replicaset("rs2", vec![instance("c", 3, true, 0.0)]);
        publisher.configure(&config(vec![one(), two()]));
        let first = source.load_full();
        let bucket = |id| BucketId::new(id, 10).unwrap();
        buckets.set(bucket(1), first.replicaset_by_id("rs1").unwrap());
        buckets.set(bucket(2), first.replicaset_by_id("rs2").unwrap());
        // rs2 goes, b moves, rs3 comes.
        let moved = replicaset("rs1", vec![instance("a", 1, true, 0.0), instance("b", 9, false, 0.0)]);
        publisher.configure(&config(vec![replicaset("rs3", vec![instance("d", 4, true, 0.0)]), moved]));
        let second = source.load_full();
        assert_eq!(first.replicaset_by_id("rs1"), second.replicaset_by_id("rs1"));
        assert_eq!(second.replicaset_by_id("rs2"), None);
        let (before, after) = (first.live().next().unwrap(), second.live().nth(1).unwrap());
        assert_eq!(before.instances[0], after.instances[0]);
        assert_ne!(before.instances[1], after.instances[1]);
        assert_eq!(buckets.get(bucket(1)), second.replicaset_by_id("rs1"));
        assert_eq!(buckets.get(bucket(2)), None);
        assert!(
            second.replicaset_by_id("rs3").unwrap() > first.replicaset_by_id("rs2").unwrap(),
            "never reused"
        );
    }

    #[test]
    fn two_publishers_lose_nothing() {
        let source = Arc::new(ArcSwap::from_pointee(Topology::default()));
        let publisher = Publisher::new(Arc::clone(&source), Arc::new(Buckets::new(1)));
        let of = |port| {
            config(vec![replicaset("rs", vec![instance("a", 1, true, 0.0), instance("b", port, false, 0.0)])])
        };
        publisher.configure(&of(2));
        let rs = source.load().live().next().unwrap().clone();
        const ROUNDS: u64 = 2000;
        let swaps: u64 = std::thread::scope(|scope| {
            let swaps = scope.spawn(|| {
                let swap = |round: u64| {
                    publisher.set_master(rs.idx, round.is_multiple_of(2).then_some(rs.instances[0]))
                };
                (0..ROUNDS).map(|round| u64::from(swap(round))).sum()
            });
            (0..ROUNDS).for_each(|_| publisher.configure(&of(3)));
            swaps.join().unwrap()
        });
        assert_eq!(source.load().epoch, 1 + ROUNDS + swaps, "each snapshot was made of the one before");
        assert_eq!(
            source
                .load()
                .instance(source.load().live().next().unwrap().instances[1])
                .unwrap()
                .endpoint
                .address,
            Address::Tcp { host: "127.0.0.1".into(), port: 3 }
        );
    }

    #[test]
    fn nearest_first_and_the_master_before_its_equals() {
        let source = Arc::new(ArcSwap::from_pointee(Topology::default()));
        let publisher = Publisher::new(Arc::clone(&source), Arc::new(Buckets::new(1)));
        let far = f64::INFINITY;
        let instances = vec![
            instance("far", 1, false, far),
            instance("b", 2, false, 1.0),
            instance("master", 3, true, 1.0),
        ];
        publisher.configure(&config(vec![replicaset("rs", instances)]));
        let topology = source.load_full();
        let rs = topology.live().next().unwrap();
        let names: Vec<&str> =
            rs.by_priority.iter().map(|idx| topology.instance(*idx).unwrap().id.as_str()).collect();
        assert_eq!(names, ["master", "b", "far"]);
    }

    #[test]
    fn a_new_master_is_news_once() {
        let source = Arc::new(ArcSwap::from_pointee(Topology::default()));
        let publisher = Publisher::new(Arc::clone(&source), Arc::new(Buckets::new(1)));
        publisher.configure(&config(vec![replicaset(
            "rs",
            vec![instance("a", 1, true, 0.0), instance("b", 2, false, 0.0)],
        )]));
        let rs = source.load().live().next().unwrap().clone();
        assert!(publisher.set_master(rs.idx, Some(rs.instances[1])));
        assert!(!publisher.set_master(rs.idx, Some(rs.instances[1])));
        assert!(!publisher.set_master(rs.idx, Some(InstanceIdx(77))), "nobody's instance");
        assert_eq!(source.load().replicaset(rs.idx).unwrap().master, Some(rs.instances[1]));
    }
}
