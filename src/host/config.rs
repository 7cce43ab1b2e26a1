//! The neutral configuration table of `lua/rawshard/cfg.lua` → [`Config`]. The Lua layer has validated it as vshard does;
//! what is checked here is what Rust's types demand.

use std::time::Duration;

use mlua::{Table, Value};

use crate::control::config::{Config, DiscoveryMode, InstanceConfig, Limits, ReplicasetConfig};
use crate::route::address::{Address, Secret};
use crate::route::hash::Rules;

type Result<T> = std::result::Result<T, String>;

pub fn parse(cfg: &Table) -> Result<Config> {
    let cfg = Fields { table: cfg.clone(), path: "cfg".to_owned() };
    let default = Config::default();
    let config = Config {
        bucket_count: cfg.integer("bucket_count")?.unwrap_or(default.bucket_count),
        io_threads: cfg.integer("io_threads")?.unwrap_or(default.io_threads),
        discovery_mode: match cfg.string("discovery_mode")? {
            Some(mode) => discovery_mode(&mode)?,
            None => default.discovery_mode,
        },
        name_as_key: cfg.boolean("name_as_key")?,
        failover_ping_timeout: cfg.time("failover_ping_timeout")?.unwrap_or(default.failover_ping_timeout),
        failover_interval: cfg.time("failover_interval")?.unwrap_or(default.failover_interval),
        failover_sequential_fail_count: cfg
            .integer("failover_sequential_fail_count")?
            .unwrap_or(default.failover_sequential_fail_count),
        failover_replica_lag_limit: cfg
            .time("failover_replica_lag_limit")?
            .unwrap_or(default.failover_replica_lag_limit),
        limits: match cfg.nested("limits")? {
            Some(limits) => parse_limits(&limits)?,
            None => default.limits,
        },
        hash_rules: Rules::from_bits(cfg.integer("hash_rules")?.unwrap_or(0)),
        replicasets: cfg.list("replicasets")?.iter().map(parse_replicaset).collect::<Result<_>>()?,
    };
    for (name, value) in [("bucket_count", config.bucket_count), ("io_threads", config.io_threads)] {
        if value == 0 {
            return Err(cfg.fault(name, "a positive integer"));
        }
    }
    Ok(config)
}

pub fn discovery_mode(mode: &str) -> Result<DiscoveryMode> {
    match mode {
        "on" => Ok(DiscoveryMode::On),
        "off" => Ok(DiscoveryMode::Off),
        "once" => Ok(DiscoveryMode::Once),
        _ => Err(format!("discovery_mode must be 'on', 'off' or 'once', got '{mode}'")),
    }
}

pub fn discovery_mode_name(mode: DiscoveryMode) -> &'static str {
    match mode {
        DiscoveryMode::On => "on",
        DiscoveryMode::Off => "off",
        DiscoveryMode::Once => "once",
    }
}

fn parse_limits(limits: &Fields) -> Result<Limits> {
    let default = Limits::default();
    Ok(Limits {
        in_flight: limits.integer("max_in_flight")?.unwrap_or(default.in_flight),
        waiting: limits.integer("max_waiting")?.unwrap_or(default.waiting),
        unread_pushes: default.unread_pushes,
        queued_bytes: match limits.number("max_queued_bytes")? {
            Some(bytes) if bytes >= 1.0 => bytes as usize,
            Some(_) => return Err(limits.fault("max_queued_bytes", "a positive number")),
            None => default.queued_bytes,
        },
        busy_poll: match limits.number("busy_poll")? {
            Some(seconds) => Duration::try_from_secs_f64(seconds)
                .map_err(|_| limits.fault("busy_poll", "a non-negative number of seconds"))?,
            None => default.busy_poll,
        },
    })
}

fn parse_replicaset(replicaset: &Fields) -> Result<ReplicasetConfig> {
    Ok(ReplicasetConfig {
        id: replicaset.required("id")?,
        uuid: replicaset.string("uuid")?,
        name: replicaset.string("name")?,
        weight: replicaset.number("weight")?.unwrap_or(1.0),
        master_auto: replicaset.boolean("master_auto")?,
        instances: replicaset.list("replicas")?.iter().map(parse_instance).collect::<Result<_>>()?,
    })
}

fn parse_instance(instance: &Fields) -> Result<InstanceConfig> {
    let address = match instance.string("unix")? {
        Some(path) => Address::Unix(path),
        None => Address::Tcp {
            host: instance.required("host")?,
            port: instance
                .integer("port")?
                .and_then(|port| u16::try_from(port).ok())
                .ok_or_else(|| instance.fault("port", "a port number"))?,
        },
    };
    Ok(InstanceConfig {
        id: instance.required("id")?,
        uuid: instance.string("uuid")?,
        name: instance.string("name")?,
        address,
        user: instance.string("user")?,
        password: instance.string("password")?.map(Secret::new),
        is_master: instance.boolean("is_master")?,
        zone_weight: instance.number("zone_weight")?.unwrap_or(f64::INFINITY),
    })
}

/// A table and where it was found, for messages. A message never shows a value: it may be a password.
struct Fields {
    table: Table,
    path: String,
}

impl Fields {
    fn fault(&self, name: &str, expected: &str) -> String {
        format!("{}.{name} must be {expected}", self.path)
    }

    fn value(&self, name: &str) -> Result<Value> {
        self.table.raw_get(name).map_err(|error| format!("{}.{name}: {error}", self.path))
    }

    fn number(&self, name: &str) -> Result<Option<f64>> {
        match self.value(name)? {
            Value::Nil => Ok(None),
            Value::Integer(number) => Ok(Some(number as f64)),
            Value::Number(number) if !number.is_nan() => Ok(Some(number)),
            _ => Err(self.fault(name, "a number")),
        }
    }

    fn integer(&self, name: &str) -> Result<Option<u32>> {
        match self.number(name)? {
            None => Ok(None),
            Some(number) if number.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&number) => {
                Ok(Some(number as u32))
            }
            Some(_) => Err(self.fault(name, "a non-negative integer")),
        }
    }

    fn time(&self, name: &str) -> Result<Option<Duration>> {
        match self.number(name)? {
            None => Ok(None),
            Some(seconds) if seconds > 0.0 => {
                Ok(Some(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)))
            }
            Some(_) => Err(self.fault(name, "a positive number of seconds")),
        }
    }

    fn boolean(&self, name: &str) -> Result<bool> {
        match self.value(name)? {
            Value::Nil => Ok(false),
            Value::Boolean(value) => Ok(value),
            _ => Err(self.fault(name, "a boolean")),
        }
    }

    fn string(&self, name: &str) -> Result<Option<String>> {
        match self.value(name)? {
            Value::Nil => Ok(None),
            Value::String(text) => match text.to_str() {
                Ok(text) => Ok(Some(text.to_owned())),
                Err(_) => Err(self.fault(name, "valid UTF-8")),
            },
            _ => Err(self.fault(name, "a string")),
        }
    }

    fn required(&self, name: &str) -> Result<String> {
        self.string(name)?.ok_or_else(|| self.fault(name, "a string"))
    }

    fn nested(&self, name: &str) -> Result<Option<Fields>> {
        match self.value(name)? {
            Value::Nil => Ok(None),
            Value::Table(table) => Ok(Some(Fields { table, path: format!("{}.{name}", self.path) })),
            _ => Err(self.fault(name, "a table")),
        }
    }

    /// The tables of an array; an absent one is empty.
    fn list(&self, name: &str) -> Result<Vec<Fields>> {
        let Some(Fields { table, path }) = self.nested(name)? else { return Ok(Vec::new()) };
        let item = |i: usize| match table.raw_get(i) {
            Ok(Value::Table(table)) => Ok(Fields { table, path: format!("{path}[{i}]") }),
            _ => Err(format!("{path}[{i}] must be a table")),
        };
        (1..=table.raw_len()).map(item).collect()
    }
}
