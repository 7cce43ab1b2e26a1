//! The processes of a bench: two storages, and routers. Real Tarantools on free ports of 127.0.0.1, in a directory of
//! their own under the temporary one; all of it is gone when the values are dropped.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::client::Client;
use crate::mp::{self, Val};
use crate::peers::Peers;
use crate::{ports, sys, workload};

/// What all processes of a run share.
#[derive(Clone)]
pub struct Env {
    /// The source tree.
    pub root: PathBuf,
    pub tarantool: PathBuf,
    /// Tarantool looks here for rawshard.so and bench_floor.so.
    pub libs: PathBuf,
    pub no_vshard: bool,
    pub bucket_count: u32,
    pub io_threads: u32,
}

/// A directory that goes when it is dropped.
pub struct TempDir {
    path: PathBuf,
    keep: bool,
}

pub struct Process {
    pub name: String,
    pub addr: SocketAddr,
    child: Child,
    log: PathBuf,
}

pub struct Cluster {
    pub env: Env,
    storages: Vec<Process>,
    places: Vec<Place>,
    /// In the place of storages.
    _peers: Option<Peers>,
    dir: TempDir,
    spawned: AtomicU32,
}

/// Where a storage is: the same before and after a restart.
#[derive(Clone)]
struct Place {
    port: u16,
    replicaset: String,
    instance: String,
}

const STORAGES: usize = 2;
const START_TIMEOUT: Duration = Duration::from_secs(40);

impl TempDir {
    pub fn new(keep: bool) -> Result<TempDir, String> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("rawshard-bench-{}-{n}", std::process::id()));
        fs::create_dir_all(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(TempDir { path, keep })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        if self.keep {
            eprintln!("kept {}", self.path.display());
        } else {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

impl Process {
    /// Runs a script of bench/ with its orders in the environment.
    fn spawn(
        env: &Env,
        script: &str,
        name: &str,
        dir: &Path,
        port: u16,
        config: &serde_json::Value,
    ) -> Result<Process, String> {
        fs::create_dir_all(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
        let log = dir.join("log");
        let out = File::create(&log).map_err(|e| format!("{}: {e}", log.display()))?;
        let err = out.try_clone().map_err(|e| e.to_string())?;
        let mut command = Command::new(&env.tarantool);
        command
            .arg(env.root.join("bench").join(script))
            .current_dir(dir)
            .env("BENCH_CONFIG", config.to_string())
            .env("BENCH_ROOT", &env.root)
            .env("BENCH_CPATH", &env.libs)
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err);
        sys::tie_to_parent(&mut command);
        let child = command.spawn().map_err(|e| format!("{}: {e}", env.tarantool.display()))?;
        Ok(Process { name: name.into(), addr: local(port), child, log })
    }

    /// Waits until `bench_info` says ready, and gives what it says.
    pub fn wait_ready(&mut self) -> Result<Val, String> {
        let deadline = Instant::now() + START_TIMEOUT;
        let mut last = String::from("no connection");
        while Instant::now() < deadline && !sys::stopped() {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(format!("{} ended while starting ({status}): {}", self.name, self.log_tail()));
            }
            match Client::connect(self.addr).and_then(|mut c| c.ask("bench_info")) {
                Ok(info) if info.field("ready") == Some(&Val::Bool(true)) => return Ok(info),
                Ok(info) => last = info.json().to_string(),
                Err(e) => last = e,
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err(format!("{} is not ready: {last}; its log ends: {}", self.name, self.log_tail()))
    }

    pub fn client(&self) -> Result<Client, String> {
        Client::connect(self.addr).map_err(|e| format!("{}: {e}", self.name))
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    pub fn log_tail(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(12)..].join("\n  ")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.is_alive() {
            sys::signal(self.child.id(), libc::SIGTERM);
            // It may be frozen.
            sys::signal(self.child.id(), libc::SIGCONT);
            let deadline = Instant::now() + Duration::from_secs(5);
            while Instant::now() < deadline && self.is_alive() {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        self.kill();
    }
}

impl Cluster {
    /// Starts the storages and fills them.
    pub fn start(env: &Env, keep: bool) -> Result<Cluster, String> {
        let dir = TempDir::new(keep)?;
        let places = (1..=STORAGES)
            .map(|i| {
                Ok(Place {
                    port: ports::free()?,
                    replicaset: format!("aaaaaaaa-0000-4000-8000-{i:012}"),
                    instance: format!("bbbbbbbb-0000-4000-8000-{i:012}"),
                })
            })
            .collect::<Result<Vec<Place>, String>>()?;
        let mut cluster = Cluster {
            env: env.clone(),
            storages: Vec::new(),
            places,
            _peers: None,
            dir,
            spawned: AtomicU32::new(0),
        };
        for i in 0..STORAGES {
            let storage = cluster.spawn_storage(i)?;
            cluster.storages.push(storage);
        }
        for i in 0..STORAGES {
            cluster.wait_storage(i)?;
        }
        Ok(cluster)
    }

    /// `count` simulated storages: for routers that are to have many.
    pub fn simulated(env: &Env, count: usize, keep: bool) -> Result<Cluster, String> {
        let dir = TempDir::new(keep)?;
        let instances: Vec<String> =
            (1..=count).map(|i| format!("bbbbbbbb-0000-4000-8000-{i:012}")).collect();
        let peers = Peers::start(&instances, env.bucket_count)?;
        let places = instances.into_iter().zip(&peers.ports).enumerate().map(|(i, (instance, port))| Place {
            port: *port,
            replicaset: format!("aaaaaaaa-0000-4000-8000-{:012}", i + 1),
            instance,
        });
        let places = places.collect();
        let spawned = AtomicU32::new(0);
        Ok(Cluster { env: env.clone(), storages: Vec::new(), places, _peers: Some(peers), dir, spawned })
    }

    fn spawn_storage(&self, i: usize) -> Result<Process, String> {
        let name = format!("storage_{}", i + 1);
        let n = self.spawned.fetch_add(1, Ordering::Relaxed);
        // A new directory each time: a restarted storage makes its buckets anew and needs no log of its past.
        let dir = self.dir.path().join(format!("{name}-{n}"));
        let mut config = self.config(&dir);
        config["me"] = json!(i + 1);
        Process::spawn(&self.env, "storage.lua", &name, &dir, self.places[i].port, &config)
    }

    fn wait_storage(&mut self, i: usize) -> Result<(), String> {
        let storage = &mut self.storages[i];
        storage.wait_ready()?;
        storage.client()?.call("bench_fill", |b| {
            mp::array(b, 2);
            workload::tuples_t5(b);
            workload::tuples_t6(b);
        })?;
        Ok(())
    }

    /// A router process with what `setup` names: vshard, rawshard, floor, forwarder.
    pub fn router(&self, name: &str, setup: &[&str]) -> Result<Process, String> {
        let n = self.spawned.fetch_add(1, Ordering::Relaxed);
        let dir = self.dir.path().join(format!("router-{name}-{n}"));
        let port = ports::free()?;
        let mut config = self.config(&dir);
        config["port"] = json!(port);
        config["setup"] = json!(setup);
        config["io_threads"] = json!(self.env.io_threads);
        Process::spawn(&self.env, "router.lua", name, &dir, port, &config)
    }

    pub fn storages(&self) -> &[Process] {
        &self.storages
    }

    /// A bucket that lives on that storage: see bench/common.lua.
    pub fn first_bucket(&self, i: usize) -> u32 {
        i as u32 * self.env.bucket_count.div_ceil(STORAGES as u32) + 1
    }

    pub fn kill_storage(&mut self, i: usize) {
        self.storages[i].kill();
    }

    /// Starts a killed storage again, in its old place.
    pub fn restart_storage(&mut self, i: usize) -> Result<(), String> {
        self.storages[i] = self.spawn_storage(i)?;
        self.wait_storage(i)
    }

    fn config(&self, dir: &Path) -> serde_json::Value {
        let storages: Vec<_> = self
            .places
            .iter()
            .map(|p| json!({"port": p.port, "replicaset": p.replicaset, "instance": p.instance}))
            .collect();
        json!({
            "dir": dir,
            "bucket_count": self.env.bucket_count,
            "storages": storages,
            "no_vshard": self.env.no_vshard,
        })
    }
}

fn local(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// Puts the first of the files that exists into `dir`, under the name that Tarantool looks for.
pub fn link(dir: &Path, name: &str, candidates: &[PathBuf]) -> Result<(), String> {
    for file in candidates {
        if let Ok(file) = file.canonicalize() {
            return std::os::unix::fs::symlink(&file, dir.join(name)).map_err(|e| format!("{name}: {e}"));
        }
    }
    Err(format!("{name} is not built"))
}
