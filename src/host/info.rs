//! What a router is and does, as a Lua table.

use std::sync::atomic::Ordering;

use mlua::{Lua, Result, Table};

use super::config::discovery_mode_name;
use super::runtime::RUNTIME;
use crate::control::services::Service;
use crate::ids::{InstanceIdx, ReplicasetIdx};
use crate::metrics::Snapshot;
use crate::route::pick::{self, Access, Mode};
use crate::route::topology::{Instance, Mark, Replicaset, Topology};
use crate::router::Router;
use crate::time::Time;

pub fn table(lua: &Lua, router: &Router, with_services: bool) -> Result<Table> {
    let topology = router.topology();
    let info = lua.create_table()?;
    info.set("bucket_count", router.buckets().count())?;
    let owned = owned(router, &topology);
    info.set("known", owned.iter().sum::<u32>())?;
    info.set("buckets", owned)?;

    let replicasets = lua.create_table()?;
    for replicaset in topology.live() {
        replicasets.raw_push(replicaset_table(lua, &topology, replicaset, router.now())?)?;
    }
    info.set("replicasets", replicasets)?;

    let engines = lua.create_table()?;
    let mut slab = (0, 0, 0);
    for counters in router.engines() {
        let Snapshot { slots, in_flight, in_flight_peak, .. } = counters;
        slab = (slab.0 + slots, slab.1 + in_flight, slab.2 + in_flight_peak);
        let engine = lua.create_table()?;
        for (name, value) in counters.fields() {
            engine.set(name, value)?;
        }
        engines.raw_push(engine)?;
    }
    info.set("engines", engines)?;
    info.set("slab", occupancy(lua, slab)?)?;
    let (capacity, used, peak) = RUNTIME.with(|runtime| runtime.waiters.occupancy());
    info.set("waiters", occupancy(lua, (capacity.into(), used.into(), peak.into()))?)?;

    let (direct, undeliverable) =
        RUNTIME.with(|runtime| (runtime.direct.counts(), runtime.answers.undeliverable));
    if let (true, calls, in_flight) = direct {
        let table = lua.create_table()?;
        table.set("calls", calls)?;
        table.set("in_flight", in_flight)?;
        table.set("undeliverable", undeliverable)?;
        info.set("iproto_override", table)?;
    }

    info.set("bucket_beyond", router.control_status().bucket_beyond)?;
    if with_services {
        info.set("services", services_table(lua, router, &topology)?)?;
    }
    Ok(info)
}

// What is asked often, each for itself: the whole table costs a look at every bucket. Replicasets and instances are named by
// position, counted from 1; of what is not there any more there is nothing to tell.

pub fn master(router: &Router, rs: usize) -> Option<usize> {
    let topology = router.topology();
    let replicaset = at(&topology, rs)?;
    let master = replicaset.master?;
    replicaset.instances.iter().position(|instance| *instance == master).map(|position| position + 1)
}

/// As [`master`], the other way round; None: nobody is known to be.
pub fn set_master(router: &Router, rs: usize, i: Option<usize>) {
    let topology = router.topology();
    let Some(replicaset) = at(&topology, rs) else { return };
    let master = i.and_then(|i| replicaset.instances.get(i.checked_sub(1)?));
    router.set_master(replicaset.idx, master.copied());
}

pub fn is_connected(router: &Router, rs: usize, i: usize) -> bool {
    let topology = router.topology();
    instance_at(&topology, rs, i).is_some_and(|instance| instance.state.is_connected())
}

/// Why there was no connection the last time that there was none; empty if there always was.
pub fn last_error(router: &Router, rs: usize, i: usize) -> String {
    let topology = router.topology();
    instance_at(&topology, rs, i).map(|instance| instance.state.last_error()).unwrap_or_default()
}

/// The instance that a read would go to now, as far as TX can tell; see [`pick::pick`]. `turn`: of a balanced one. `tried`:
/// those that have failed already.
pub fn pick_instance(
    router: &Router,
    rs: usize,
    prefer_replica: bool,
    turn: Option<u32>,
    tried: &[usize],
) -> Option<usize> {
    let (topology, now) = (router.topology(), router.now());
    let replicaset = at(&topology, rs)?;
    let instance = |i: &usize| replicaset.instances.get(i.checked_sub(1)?).copied();
    let tried: Vec<InstanceIdx> = tried.iter().filter_map(instance).collect();
    let access = Access { mode: Mode::Read, prefer_replica, balance: turn.is_some() };
    let usable = |idx| topology.instance(idx).is_some_and(|it| it.state.health(now) != Mark::Red);
    let picked = pick::pick(replicaset, access, &tried, &mut turn.unwrap_or(0), usable)?;
    replicaset.instances.iter().position(|instance| *instance == picked).map(|position| position + 1)
}

/// Health, replication, and for how many seconds more reads leave it alone because it said that it can not serve.
pub fn marks(router: &Router, rs: usize, i: usize) -> (Option<u8>, Option<u8>, f64) {
    let (topology, now) = (router.topology(), router.now());
    let Some(instance) = instance_at(&topology, rs, i) else { return (None, None, 0.0) };
    let state = &instance.state;
    let backoff = state.backoff_until().since(now);
    (Some(state.health(now).number()), Some(state.replication.get().number()), backoff.as_secs_f64())
}

/// How many buckets are known to be there.
pub fn known_buckets(router: &Router, rs: usize) -> usize {
    let topology = router.topology();
    let Some(replicaset) = at(&topology, rs) else { return 0 };
    router.buckets().iter().filter(|owner| *owner == Some(replicaset.idx)).count()
}

fn at(topology: &Topology, rs: usize) -> Option<&Replicaset> {
    topology.replicaset(*topology.order.get(rs.checked_sub(1)?)?)
}

fn instance_at(topology: &Topology, rs: usize, i: usize) -> Option<&Instance> {
    topology.instance(*at(topology, rs)?.instances.get(i.checked_sub(1)?)?)
}

/// Known buckets of each live replicaset, in order.
fn owned(router: &Router, topology: &Topology) -> Vec<u32> {
    let mut counts = vec![0; topology.replicasets.len()];
    for owner in router.buckets().iter().flatten() {
        if let Some(count) = counts.get_mut(owner.slot()) {
            *count += 1;
        }
    }
    topology.order.iter().map(|ReplicasetIdx(idx)| counts.get(*idx as usize).copied().unwrap_or(0)).collect()
}

fn replicaset_table(lua: &Lua, topology: &Topology, replicaset: &Replicaset, now: Time) -> Result<Table> {
    let table = lua.create_table()?;
    let position = |idx| replicaset.instances.iter().position(|instance| *instance == idx);
    table.set("master", replicaset.master.and_then(position).map(|position| position + 1))?;
    let instances = lua.create_table()?;
    for idx in &replicaset.instances {
        // An instance without an entry keeps its place in the list.
        let entry = match topology.instance(*idx) {
            Some(instance) => instance_table(lua, instance, now)?,
            None => lua.create_table()?,
        };
        instances.raw_push(entry)?;
    }
    table.set("instances", instances)?;
    Ok(table)
}

fn instance_table(lua: &Lua, instance: &Instance, now: Time) -> Result<Table> {
    let state = &instance.state;
    let table = lua.create_table()?;
    let last_error = state.last_error();
    let connects = state.connects.load(Ordering::Relaxed);
    let name = match (state.is_connected(), last_error.is_empty()) {
        (true, _) => "ready",
        (false, true) => "connecting",
        (false, false) => "backoff",
    };
    table.set("state", name)?;
    table.set("connected", state.is_connected())?;
    table.set("suspect", state.is_suspect())?;
    table.set("health", state.health(now).number())?;
    table.set("replication", state.replication.get().number())?;
    table.set("in_flight", state.in_flight.load(Ordering::Relaxed))?;
    table.set("reconnects", connects.saturating_sub(1))?;
    if !last_error.is_empty() {
        table.set("last_error", last_error)?;
    }
    Ok(table)
}

/// By position, as replicasets and instances are elsewhere.
fn services_table(lua: &Lua, router: &Router, topology: &Topology) -> Result<Table> {
    let services = router.services();
    let table = lua.create_table()?;
    if let Some(discovery) = &services.discovery {
        let record = service(lua, "discovery", discovery)?;
        record.set("mode", discovery_mode_name(router.control_status().discovery_mode))?;
        table.set("discovery", record)?;
    }
    let (failover, searches, pings) = (lua.create_table()?, lua.create_table()?, lua.create_table()?);
    for (at, replicaset) in topology.live().enumerate() {
        if let Some(record) = services.failover.get(&replicaset.idx) {
            failover.set(at + 1, service(lua, "replicaset_failover", record)?)?;
        }
        if let Some(record) = services.master_search.get(&replicaset.idx) {
            searches.set(at + 1, service(lua, "master_search", record)?)?;
        }
        let instances = lua.create_table()?;
        for (i, idx) in replicaset.instances.iter().enumerate() {
            if let Some(record) = services.pings.get(idx) {
                instances.set(i + 1, service(lua, "replica_failover", record)?)?;
            }
        }
        pings.set(at + 1, instances)?;
    }
    table.set("failover", failover)?;
    table.set("master_search", searches)?;
    table.set("pings", pings)?;
    Ok(table)
}

fn service(lua: &Lua, name: &str, service: &Service) -> Result<Table> {
    let table = lua.create_table()?;
    table.set("name", name)?;
    table.set("status", if service.is_ok() { "ok" } else { "error" })?;
    table.set("status_idx", service.status_idx)?;
    table.set("activity", service.activity)?;
    table.set("error", service.error.as_str())?;
    Ok(table)
}

fn occupancy(lua: &Lua, (capacity, used, peak): (u64, u64, u64)) -> Result<Table> {
    let table = lua.create_table()?;
    table.set("capacity", capacity)?;
    table.set("used", used)?;
    table.set("peak", peak)?;
    Ok(table)
}
