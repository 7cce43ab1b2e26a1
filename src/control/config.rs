//! Typed configuration, made once from what a front end was given. It holds what a router needs of vshard's table,
//! under vshard's names.

use std::time::Duration;

use crate::route::address::{Address, Secret};
use crate::route::hash::Rules;
use crate::route::topology::LAG_LIMIT;
pub use crate::route::topology::Limits;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiscoveryMode {
    On,
    Off,
    /// Until all buckets are known for the first time.
    Once,
}

#[derive(Clone, Debug)]
pub struct InstanceConfig {
    /// The key in vshard's table: a UUID, or a name in name_as_key mode.
    pub id: String,
    pub uuid: Option<String>,
    pub name: Option<String>,
    pub address: Address,
    pub user: Option<String>,
    pub password: Option<Secret>,
    pub is_master: bool,
    /// Distance from this router; reads prefer the smallest. Infinite where no weight is set.
    pub zone_weight: f64,
}

#[derive(Clone, Debug)]
pub struct ReplicasetConfig {
    pub id: String,
    pub uuid: Option<String>,
    pub name: Option<String>,
    /// Share of buckets in bootstrap.
    pub weight: f64,
    pub master_auto: bool,
    pub instances: Vec<InstanceConfig>,
}

#[derive(Clone, Debug)]
pub struct Config {
    pub bucket_count: u32,
    pub io_threads: u32,
    pub discovery_mode: DiscoveryMode,
    pub name_as_key: bool,
    pub failover_ping_timeout: Duration,
    pub failover_interval: Duration,
    pub failover_sequential_fail_count: u32,
    pub failover_replica_lag_limit: Duration,
    pub limits: Limits,
    pub hash_rules: Rules,
    pub replicasets: Vec<ReplicasetConfig>,
}

impl Default for Config {
    /// vshard's defaults (`vshard/consts.lua`).
    fn default() -> Self {
        Config {
            bucket_count: 3000,
            io_threads: 1,
            discovery_mode: DiscoveryMode::On,
            name_as_key: false,
            failover_ping_timeout: Duration::from_secs(5),
            failover_interval: Duration::from_secs(1),
            failover_sequential_fail_count: 3,
            failover_replica_lag_limit: LAG_LIMIT,
            limits: Limits::default(),
            hash_rules: Rules::default(),
            replicasets: Vec::new(),
        }
    }
}
