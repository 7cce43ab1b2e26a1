//! `make bench`: every kind on every workload, side by side, in one run.
//!
//! Kinds run in rounds, one after the other, so that whatever else happens on the machine hits all of them; figures are
//! medians over the rounds. CPU times are differences of the router process's own clocks around a run that starts and
//! ends with nothing in flight.

mod growth;
mod proxy;
mod sample;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::json;

use self::sample::{Sample, engine_us, median_sample, paired, samples_json};
use crate::args::Args;
use crate::client::Client;
use crate::cluster::{Cluster, Env, Process, TempDir, link};
use crate::generator::{Generator, PERCENTILES, Plan, Stats};
use crate::hosts::{self, Host};
use crate::kinds::{self, Kind};
use crate::mp::{self, Val};
use crate::sys;
use crate::table::Table;
use crate::workload::{self, Shape, Workload};

struct Options {
    root: PathBuf,
    build: PathBuf,
    floor: PathBuf,
    hosts: Vec<Host>,
    sections: Vec<String>,
    workloads: Vec<String>,
    kinds: Option<Vec<String>>,
    rounds: usize,
    seconds: f64,
    conns: usize,
    depth: usize,
    no_vshard: bool,
    keep: bool,
    quick: bool,
    io_threads: u32,
    buckets: u32,
    out: PathBuf,
}

pub fn main(args: &[String]) -> Result<(), String> {
    let options = Options::parse(args)?;
    for host in &options.hosts {
        if sys::stopped() {
            break;
        }
        Bench::new(&options, host)?.run()?;
    }
    Ok(())
}

impl Options {
    fn parse(args: &[String]) -> Result<Options, String> {
        let values = [
            "root",
            "build",
            "floor",
            "host",
            "sections",
            "workloads",
            "kinds",
            "rounds",
            "seconds",
            "conns",
            "depth",
            "io-threads",
            "buckets",
            "out",
        ];
        let args = Args::parse(args, &values, &["quick", "all-hosts", "no-vshard", "keep"])?;
        let quick = args.flag("quick");
        let root = PathBuf::from(args.text("root").unwrap_or("."));
        let root = root.canonicalize().map_err(|e| format!("{}: {e}", root.display()))?;
        let hosts = hosts::chosen(&args.all("host"), args.flag("all-hosts"))?;
        let all = |names: &[&str]| names.iter().map(|n| n.to_string()).collect::<Vec<_>>();
        Ok(Options {
            build: args.text("build").map(PathBuf::from).unwrap_or(root.join("build")),
            floor: args.text("floor").map(PathBuf::from).unwrap_or(root.join("target/bench/release")),
            hosts,
            sections: args.list("sections").unwrap_or(all(if quick { &QUICK_SECTIONS } else { &SECTIONS })),
            workloads: args.list("workloads").unwrap_or(all(&workload::NAMES)),
            kinds: args.list("kinds"),
            rounds: args.get("rounds", if quick { 1 } else { 5 })?.max(1),
            seconds: args.get("seconds", if quick { 0.25 } else { 1.0 })?,
            conns: args.get("conns", 100)?,
            depth: args.get("depth", 20)?,
            no_vshard: args.flag("no-vshard"),
            keep: args.flag("keep"),
            quick,
            io_threads: args.get("io-threads", 1)?,
            buckets: args.get("buckets", 3000)?,
            out: args.text("out").map(PathBuf::from).unwrap_or(root.join("bench/results")),
            root,
        })
    }
}

/// One host.
struct Bench<'a> {
    options: &'a Options,
    host: &'a Host,
    cluster: Cluster,
    has_vshard: bool,
    missing: BTreeMap<String, String>,
    results: serde_json::Map<String, serde_json::Value>,
    targets: Vec<Target>,
    /// Holds the libraries under the names that Tarantool looks for.
    _libs: TempDir,
}

/// A kind on a workload, ready to be loaded.
struct Subject {
    kind: &'static Kind,
    /// None: the storage itself is loaded.
    _process: Option<Process>,
    control: Client,
    generator: Generator,
    plan: Plan,
    samples: Vec<Sample>,
}

/// Calls made in Lua: see bench/calls.lua.
struct LuaPlan {
    title: &'static str,
    mode: &'static str,
    width: u64,
    func: &'static str,
    /// Echoes the number 1; else without arguments, any result is right.
    echo: bool,
    return_raw: bool,
}

const LUA_PLANS: [LuaPlan; 5] = [
    LuaPlan {
        title: "64 fibers, echo",
        mode: "fibers",
        width: 64,
        func: "bench_echo",
        echo: true,
        return_raw: false,
    },
    LuaPlan {
        title: "64 fibers, select of T6",
        mode: "fibers",
        width: 64,
        func: "bench_select_t6",
        echo: false,
        return_raw: false,
    },
    LuaPlan {
        title: "64 fibers, select of T6, return_raw",
        mode: "fibers",
        width: 64,
        func: "bench_select_t6",
        echo: false,
        return_raw: true,
    },
    LuaPlan {
        title: "1000 futures, echo",
        mode: "futures",
        width: 1000,
        func: "bench_echo",
        echo: true,
        return_raw: false,
    },
    LuaPlan {
        title: "1000 futures, echo, return_raw",
        mode: "futures",
        width: 1000,
        func: "bench_echo",
        echo: true,
        return_raw: true,
    },
];

#[derive(Clone)]
struct LuaCost {
    per_second: f64,
    tx_us: f64,
    process_us: f64,
    lua_bytes: f64,
}

impl LuaPlan {
    /// The inner error: this router cannot do it.
    fn run(&self, client: &mut Client, seconds: f64) -> Result<Result<LuaCost, String>, String> {
        // A fixed number of calls, or the passes could not be compared: about what vshard makes in that time.
        let count = (seconds * if self.func == "bench_echo" { 60_000.0 } else { 6_000.0 }) as u64;
        let count = (count / self.width).max(2) * self.width;
        let mut values = client.call("bench_calls", |b| {
            mp::array(b, 1);
            mp::map(b, if self.echo && !self.return_raw { 7 } else { 6 });
            mp::string(b, "mode");
            mp::string(b, self.mode);
            mp::string(b, "width");
            mp::uint(b, self.width);
            mp::string(b, "count");
            mp::uint(b, count);
            mp::string(b, "func");
            mp::string(b, self.func);
            mp::string(b, "args");
            if self.echo {
                mp::array(b, 1);
                mp::uint(b, 1);
            } else {
                mp::array(b, 0);
            }
            mp::string(b, "return_raw");
            mp::boolean(b, self.return_raw);
            if self.echo && !self.return_raw {
                mp::string(b, "expect");
                mp::uint(b, 1);
            }
        })?;
        let res = values.pop().unwrap_or(Val::Nil);
        if let Some(problem) = res.field("problem").and_then(Val::str) {
            return Ok(Err(problem.to_owned()));
        }
        let get = |name: &str| res.field(name).and_then(Val::f64).unwrap_or(f64::NAN);
        Ok(Ok(LuaCost {
            per_second: get("per_second"),
            tx_us: get("tx_us"),
            process_us: get("process_us"),
            lua_bytes: get("lua_bytes"),
        }))
    }
}

impl LuaCost {
    fn median(all: &[LuaCost]) -> Option<LuaCost> {
        let pick = |get: &dyn Fn(&LuaCost) -> f64| {
            let mut values: Vec<f64> = all.iter().map(get).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        (!all.is_empty()).then(|| LuaCost {
            per_second: pick(&|c| c.per_second),
            tx_us: pick(&|c| c.tx_us),
            process_us: pick(&|c| c.process_us),
            lua_bytes: pick(&|c| c.lua_bytes),
        })
    }

    fn json(&self) -> serde_json::Value {
        json!({"per_second": self.per_second, "tx_us": self.tx_us, "process_us": self.process_us,
               "lua_bytes_per_call": self.lua_bytes})
    }
}

struct Target {
    what: String,
    measured: String,
    wanted: String,
    met: bool,
}

impl<'a> Bench<'a> {
    fn new(options: &'a Options, host: &'a Host) -> Result<Bench<'a>, String> {
        let libs = TempDir::new(false)?;
        let mut missing = BTreeMap::new();
        link(libs.path(), "bench_floor.so", &[options.floor.join("libbench_floor.so")])?;
        let built = [options.build.join("rawshard.so"), options.root.join("target/release/librawshard.so")];
        if let Err(e) = link(libs.path(), "rawshard.so", &built) {
            missing.insert("rawshard".into(), e);
        }
        let env = Env {
            root: options.root.clone(),
            tarantool: host.path.clone(),
            libs: libs.path().to_owned(),
            no_vshard: options.no_vshard,
            bucket_count: options.buckets,
            io_threads: options.io_threads,
        };
        let cluster = Cluster::start(&env, options.keep)?;
        let storage = cluster.storages()[0].client()?.ask("bench_info")?;
        let storage = storage.field("storage").and_then(Val::str).unwrap_or("?").to_owned();
        let has_vshard = storage.starts_with("vshard");
        println!("\nTarantool {}, storages: {storage}", host.label());
        let mut results = serde_json::Map::new();
        results.insert("tarantool".into(), host.label().into());
        results.insert("storages".into(), storage.into());
        results.insert("machine".into(), machine());
        results.insert(
            "options".into(),
            json!({"rounds": options.rounds, "seconds": options.seconds, "connections": options.conns,
                   "depth": options.depth, "io_threads": options.io_threads, "buckets": options.buckets}),
        );
        Ok(Bench { options, host, cluster, has_vshard, missing, results, targets: Vec::new(), _libs: libs })
    }

    fn run(mut self) -> Result<(), String> {
        let started = SystemTime::now();
        for section in &self.options.sections {
            if sys::stopped() {
                return Ok(());
            }
            match section.as_str() {
                "proxy" => self.proxy()?,
                "saturated" => self.simulated(Self::saturated)?,
                "serialization" => self.serialization()?,
                "latency" => self.latency()?,
                "lua" => self.lua()?,
                "keys" => self.simulated(Self::keys)?,
                "growth" => self.growth()?,
                other => return Err(format!("unknown section {other}: {}", SECTIONS.join(", "))),
            }
        }
        if !self.targets.is_empty() {
            println!("\nTargets");
            let mut table = Table::new(&["", "measured", "target", ""]);
            for t in &self.targets {
                let verdict = if t.met { "met" } else { "MISSED" };
                table.row(&[t.what.clone(), t.measured.clone(), t.wanted.clone(), verdict.into()]);
            }
            table.print();
        }
        if !self.missing.is_empty() {
            println!("\nNot measured here");
            for (what, why) in &self.missing {
                println!("  {what}: {why}");
            }
        }
        let targets: Vec<_> = self
            .targets
            .iter()
            .map(|t| json!({"what": t.what, "measured": t.measured, "target": t.wanted, "met": t.met}))
            .collect();
        self.results.insert("targets".into(), targets.into());
        self.results.insert("missing".into(), json!(self.missing));
        self.results.insert("load_average_after".into(), load_average().into());
        let seconds = started.duration_since(UNIX_EPOCH).map(|d| d.as_secs()).unwrap_or(0);
        let path = self.options.out.join(format!("{seconds}-tarantool-{}.json", self.host.label()));
        fs::create_dir_all(&self.options.out).map_err(|e| e.to_string())?;
        let text = serde_json::to_string_pretty(&self.results).map_err(|e| e.to_string())?;
        fs::write(&path, text + "\n").map_err(|e| format!("{}: {e}", path.display()))?;
        let shown = path.strip_prefix(&self.options.root).unwrap_or(&path);
        println!("\nAll figures: {}", shown.display());
        Ok(())
    }

    /// Runs a section on two simulated storages.
    fn simulated(&mut self, section: fn(&mut Self) -> Result<(), String>) -> Result<(), String> {
        let simulated = Cluster::simulated(&self.cluster.env.clone(), 2, self.options.keep)?;
        let was = std::mem::replace(&mut self.cluster, simulated);
        let done = section(self);
        self.cluster = was;
        done
    }
    /// Which share of a call's cost is its payload: T3 against the same call with nothing in it.
    fn serialization(&mut self) -> Result<(), String> {
        let names = ["vshard", "vshard-raw", "forwarder", "rawshard-c", "rawshard-lua", "c-echo"];
        let mut costs: Vec<BTreeMap<&str, Sample>> = Vec::new();
        for workload in ["T3", "T0"] {
            let workload = Workload::by_name(workload)?;
            let mut subjects = self.subjects(&names, &workload, self.options.conns, self.options.depth)?;
            self.rounds(&mut subjects)?;
            if sys::stopped() {
                return Ok(());
            }
            costs.push(subjects.iter().map(|s| (s.kind.name, median_sample(&s.samples))).collect());
        }
        println!("\nWhat serialization costs: T3, and the same call with its payload replaced by nothing");
        let mut table = Table::new(&["", "TX µs", "empty", "payload", "process µs", "empty", "payload"]);
        let mut json_out = serde_json::Map::new();
        for name in names {
            let (Some(full), Some(empty)) = (costs[0].get(name), costs[1].get(name)) else {
                continue;
            };
            let share = |full: f64, empty: f64| format!("{:.0} %", (1.0 - empty / full) * 100.0);
            table.row(&[
                name.into(),
                format!("{:.2}", full.tx_us),
                format!("{:.2}", empty.tx_us),
                share(full.tx_us, empty.tx_us),
                format!("{:.2}", full.process_us),
                format!("{:.2}", empty.process_us),
                share(full.process_us, empty.process_us),
            ]);
            json_out.insert(name.into(), json!({"T3": full.json(), "empty": empty.json()}));
        }
        table.print();
        self.results.insert("serialization".into(), json_out.into());
        Ok(())
    }

    /// Percentiles at a fixed number of connections; last at a fixed rate.
    fn latency(&mut self) -> Result<(), String> {
        let workload = Workload::by_name("T1")?;
        let names = ["vshard", "forwarder", "rawshard-c", "storage"];
        let mut json_out = serde_json::Map::new();
        let mut slowest = f64::INFINITY;
        let mut p50 = BTreeMap::new();
        for (conns, depth, rate) in
            [(1, 1, None), (16, 1, None), (100, 1, None), (100, 100, None), (100, 100, Some(0.5))]
        {
            let mut subjects = self.subjects(&names, &workload, conns, depth)?;
            let rate = rate.map(|share: f64| (share * slowest).round());
            let title = match rate {
                None => format!("{conns} connections, {depth} in flight each"),
                Some(rate) => {
                    format!("{conns} connections, {rate:.0} requests/s in all (half of what the slowest can)")
                }
            };
            println!("\nLatency of T1, µs: {title}");
            let mut head = vec!["".to_owned(), "req/s".to_owned()];
            head.extend(PERCENTILES.iter().map(|p| format!("{p} %")));
            head.push("max".into());
            let mut table = Table::new(&head.iter().map(String::as_str).collect::<Vec<_>>());
            let mut rows = serde_json::Map::new();
            for s in &mut subjects {
                s.plan.rate = rate;
            }
            let mut merged: Vec<Option<Stats>> = subjects.iter().map(|_| None).collect();
            for _ in 0..self.options.rounds {
                for (s, sum) in subjects.iter_mut().zip(&mut merged) {
                    let stats = s.load(self.options.seconds)?;
                    *sum = Some(match sum.take() {
                        Some(sum) => sum.append(stats),
                        None => stats,
                    });
                }
            }
            if sys::stopped() {
                return Ok(());
            }
            for (s, stats) in subjects.iter().zip(merged.into_iter().flatten()) {
                let mut row = vec![s.kind.name.to_owned(), format!("{:.0}", stats.per_second())];
                row.extend(PERCENTILES.iter().map(|p| format!("{:.0}", stats.percentile_us(*p))));
                row.push(format!("{:.0}", stats.percentile_us(100.0)));
                table.row(&row);
                if (conns, depth) == (100, 100) && rate.is_none() {
                    slowest = slowest.min(stats.per_second());
                }
                if (conns, depth) == (1, 1) {
                    p50.insert(s.kind.name, stats.percentile_us(50.0));
                }
                rows.insert(s.kind.name.into(), stats.json());
            }
            table.print();
            json_out.insert(title, rows.into());
        }
        if let (Some(r), Some(v)) = (p50.get("rawshard-c"), p50.get("vshard")) {
            self.targets.push(Target {
                what: "p50, one call at a time, stored function ÷ vshard".into(),
                measured: format!("{:.2}", r / v),
                wanted: "≤ 1".into(),
                met: r <= v,
            });
        }
        self.results.insert("latency".into(), json_out.into());
        Ok(())
    }

    /// Calls made in Lua, inside the router process.
    fn lua(&mut self) -> Result<(), String> {
        let mut routers = Vec::new();
        let setups =
            [("net.box", "forwarder"), ("vshard", "vshard"), ("rawshard", "rawshard"), ("floor", "floor")];
        for (name, setup) in setups {
            if !self.missing.contains_key(setup) {
                routers.push((name, setup, self.cluster.router(setup, &[setup])?));
            }
        }
        let mut clients = Vec::new();
        for (name, setup, process) in &mut routers {
            let info = process.wait_ready()?;
            match info.field("missing").and_then(|m| m.field(setup)).and_then(Val::str) {
                Some(why) => {
                    self.missing.insert((*setup).into(), why.to_owned());
                }
                None => clients.push((*name, process.client()?)),
            }
        }
        println!("\nCalls made in Lua");
        let mut table = Table::new(&["", "", "calls/s", "TX µs", "process µs", "Lua bytes per call"]);
        let mut json_out = serde_json::Map::new();
        let mut medians: BTreeMap<(&str, &str), LuaCost> = BTreeMap::new();
        for plan in &LUA_PLANS {
            if plan.return_raw && self.host.version < (2, 10, 0) {
                continue;
            }
            let mut costs: Vec<Vec<LuaCost>> = clients.iter().map(|_| Vec::new()).collect();
            for _ in 0..self.options.rounds {
                for ((name, client), costs) in clients.iter_mut().zip(&mut costs) {
                    if sys::stopped() {
                        return Ok(());
                    }
                    // It has no futures.
                    if *name == "floor" && plan.mode == "futures" {
                        continue;
                    }
                    match plan.run(client, self.options.seconds)? {
                        Ok(cost) => costs.push(cost),
                        Err(problem) => {
                            let what = format!("{name}, {}", plan.title);
                            self.missing.insert(what, problem);
                        }
                    }
                }
            }
            for ((name, _), costs) in clients.iter().zip(costs) {
                let Some(cost) = LuaCost::median(&costs) else { continue };
                table.row(&[
                    plan.title.into(),
                    (*name).into(),
                    format!("{:.0}", cost.per_second),
                    format!("{:.2}", cost.tx_us),
                    format!("{:.2}", cost.process_us),
                    format!("{:.0}", cost.lua_bytes),
                ]);
                json_out.insert(format!("{}, {name}", plan.title), cost.json());
                medians.insert((plan.title, name), cost);
            }
        }
        table.print();
        self.results.insert("lua".into(), json_out.into());
        let get = |plan: &LuaPlan, name: &'static str| medians.get(&(plan.title, name));
        let mut judge = |what: String, measured: f64, wanted: &str, met: bool| {
            self.targets.push(Target { what, measured: format!("{measured:.2}"), wanted: wanted.into(), met })
        };
        let [small, big, big_raw, futures, _] = &LUA_PLANS;
        if let (Some(r), Some(v)) = (get(small, "rawshard"), get(small, "vshard")) {
            let ratio = r.tx_us / v.tx_us;
            judge("Lua blocking call, small, TX, rawshard ÷ vshard".into(), ratio, "≤ 1", ratio <= 1.0);
        }
        if let (Some(r), Some(v)) = (get(big_raw, "rawshard"), get(big, "vshard")) {
            let ratio = v.tx_us / r.tx_us;
            judge(
                "Lua blocking call, big, TX, vshard ÷ rawshard return_raw".into(),
                ratio,
                "≥ 5",
                ratio >= 5.0,
            );
        }
        if let Some(r) = get(futures, "rawshard") {
            for other in ["vshard", "net.box"] {
                if let Some(o) = get(futures, other) {
                    let ratio = o.tx_us / r.tx_us;
                    judge(format!("Lua futures, TX, {other} ÷ rawshard"), ratio, "≥ 2", ratio >= 2.0);
                }
            }
            judge("Lua futures, Lua bytes per call".into(), r.lua_bytes, "≤ 64", r.lua_bytes <= 64.0);
        }
        Ok(())
    }

    /// What it costs to find the bucket by a sharding key in the arguments, beside the same call with the bucket id in it.
    fn keys(&mut self) -> Result<(), String> {
        if self.missing.contains_key("rawshard") {
            return Ok(());
        }
        println!(
            "\nWhat a sharding key costs, on simulated storages: found in the arguments and hashed, beside the bucket id given"
        );
        let names = ["rawshard-c", "rawshard-key", "rawshard-lua", "rawshard-key-lua", "rawshard-endpoint"];
        let mut table = Table::new(&[
            "",
            "",
            "req/s",
            "TX µs",
            "÷ given",
            "process µs",
            "÷ given",
            "engine µs",
            "÷ given",
        ]);
        let mut json_out = serde_json::Map::new();
        for (name, shown) in [
            ("key:T3", "T3, two paths, one into it".to_owned()),
            ("key:10", "10 B behind the key".to_owned()),
            ("key:1000", "1000 B".to_owned()),
            ("key:10000", "10 000 B".to_owned()),
            ("key:100000", "100 000 B".to_owned()),
        ] {
            let workload = Workload::by_name(name)?;
            // Not more bytes in flight than the others have.
            let (conns, depth) =
                if name == "key:100000" { (50, 1) } else { (self.options.conns, self.options.depth) };
            let mut subjects = self.subjects(&names, &workload, conns, depth)?;
            self.rounds(&mut subjects)?;
            if sys::stopped() {
                return Ok(());
            }
            let medians: BTreeMap<&str, Sample> =
                subjects.iter().map(|s| (s.kind.name, median_sample(&s.samples))).collect();
            for kind in names {
                let Some(m) = medians.get(kind) else { continue };
                let given = match kind {
                    "rawshard-key" => medians.get("rawshard-c"),
                    "rawshard-key-lua" | "rawshard-endpoint" => medians.get("rawshard-lua"),
                    _ => None,
                };
                let over = |of: fn(&Sample) -> Option<f64>| match given.and_then(of).zip(of(m)) {
                    Some((given, it)) if given > 0.0 => format!("{:.2}", it / given),
                    _ => String::new(),
                };
                table.row(&[
                    shown.clone(),
                    kind.into(),
                    format!("{:.0}", m.per_second),
                    format!("{:.2}", m.tx_us),
                    over(|s| Some(s.tx_us)),
                    format!("{:.2}", m.process_us),
                    over(|s| Some(s.process_us)),
                    engine_us(m).map(|v| format!("{v:.2}")).unwrap_or_default(),
                    over(engine_us),
                ]);
            }
            let samples = |name| subjects.iter().find(|s| s.kind.name == name).map(|s| &s.samples[..]);
            if let (Some(key), Some(given)) = (samples("rawshard-key"), samples("rawshard-c")) {
                let ratio = paired(key, given, |s| s.tx_us);
                self.targets.push(Target {
                    what: format!("{name} TX, stored function, by key ÷ by bucket id"),
                    measured: format!("{ratio:.3}"),
                    wanted: "< 1.05".into(),
                    met: ratio < 1.05,
                });
            }
            json_out.insert(name.into(), samples_json(&subjects));
        }
        table.print();
        self.results.insert("keys".into(), json_out.into());
        Ok(())
    }

    /// Starts a router for each kind (all at once: they start slower than they run) and connects the load to them.
    fn subjects(
        &mut self,
        names: &[&str],
        workload: &Workload,
        conns: usize,
        depth: usize,
    ) -> Result<Vec<Subject>, String> {
        let mut started = Vec::new();
        for name in names {
            let kind = kinds::by_name(name)?;
            // Nobody to keep pace with.
            if kind.paced_by.is_some_and(|pace| !names.contains(&pace) || self.missing.contains_key(pace)) {
                continue;
            }
            if kind.paced_by.is_some() && self.missing.contains_key("rawshard") {
                continue;
            }
            if self.missing.contains_key(kind.setup) || self.missing.contains_key(kind.name) {
                continue;
            }
            let process = if kind.setup.is_empty() {
                None
            } else {
                Some(self.cluster.router(kind.name, &[kind.setup])?)
            };
            started.push((kind, process));
        }
        let mut subjects = Vec::new();
        for (kind, mut process) in started {
            // One that was found missing only now has nobody keeping its pace.
            if kind.paced_by.is_some_and(|pace| self.missing.contains_key(pace)) {
                continue;
            }
            if let Some(process) = &mut process {
                let info = process.wait_ready()?;
                let why =
                    info.field("missing").and_then(|m| m.field(kind.name).or_else(|| m.field(kind.setup)));
                if let Some(why) = why.and_then(Val::str) {
                    self.missing.insert(kind.name.into(), why.to_owned());
                    continue;
                }
            }
            let target = process.as_ref().unwrap_or_else(|| &self.cluster.storages()[0]);
            let mut control = target.client()?;
            let setter = match kind.entry {
                "bench_floor.fixed" => Some("bench_floor.set_fixed"),
                "bench_floor.handed" => Some("bench_floor.set_handed"),
                "bench_raw_fixed" => Some("bench_set_raw_fixed"),
                "bench_raw_park" => Some("bench_set_raw_park"),
                _ => None,
            };
            if let Some(setter) = setter {
                control.call(setter, |b| {
                    mp::array(b, 1);
                    b.extend_from_slice(&workload.values[0].bytes);
                })?;
            }
            let generator = Generator::connect(target.addr, conns, depth)?;
            let mut plan = Plan::new(workload, kind.entry, kind.shape, kind.returns, CALL_TIMEOUT);
            plan.exact = kind.exact;
            // Straight to the first storage: it has the first half of the buckets.
            plan.buckets = if kind.shape == Shape::Storage {
                (self.cluster.env.bucket_count / 2).max(1)
            } else {
                self.cluster.env.bucket_count
            };
            subjects.push(Subject { kind, _process: process, control, generator, plan, samples: Vec::new() });
        }
        // Buckets are known and the JIT sees the code before anything counts.
        for s in &mut subjects {
            s.load(WARM_UP.min(self.options.seconds))?;
        }
        Ok(subjects)
    }

    fn rounds(&self, subjects: &mut [Subject]) -> Result<(), String> {
        for _ in 0..self.options.rounds {
            for i in 0..subjects.len() {
                if sys::stopped() {
                    return Ok(());
                }
                if let Some(pace) = subjects[i].kind.paced_by {
                    let last = subjects.iter().find(|s| s.kind.name == pace).and_then(|s| s.samples.last());
                    let Some((rate, batch)) = last.map(|s| (s.per_second, s.batch)) else { continue };
                    subjects[i].plan.rate = Some(rate);
                    // At least ten bursts, however slow the other one was.
                    let most = rate * self.options.seconds / 10.0;
                    subjects[i].plan.burst = batch.min(most).round().max(1.0) as u64;
                }
                subjects[i].measure(self.options.seconds)?;
            }
        }
        Ok(())
    }
}

impl Subject {
    fn load(&mut self, seconds: f64) -> Result<Stats, String> {
        self.plan.duration = Duration::from_secs_f64(seconds);
        let stats = self.generator.run(&self.plan).map_err(|e| format!("{}: {e}", self.kind.name))?;
        stats.verdict().map_err(|e| format!("{}: {e}", self.kind.name))?;
        Ok(stats)
    }

    fn measure(&mut self, seconds: f64) -> Result<(), String> {
        let before = self.control.ask("bench_settle")?;
        let stats = self.load(seconds)?;
        let after = self.control.ask("bench_stat")?;
        let get = |v: &Val, name: &str| v.field(name).and_then(Val::f64).unwrap_or(f64::NAN);
        let diff = |name: &str| get(&after, name) - get(&before, name);
        let n = stats.sent.max(1) as f64;
        let mut threads = BTreeMap::new();
        if let Some(Val::Map(pairs)) = after.field("threads") {
            for (name, ns) in pairs {
                let (Some(name), Some(ns)) = (name.str(), ns.f64()) else { continue };
                let was =
                    before.field("threads").and_then(|t| t.field(name)).and_then(Val::f64).unwrap_or(0.0);
                threads.insert(name.to_owned(), (ns - was) / 1e3 / n);
            }
        }
        self.samples.push(Sample {
            per_second: stats.per_second(),
            tx_us: diff("tx") * 1e6 / n,
            process_us: diff("process") * 1e6 / n,
            tx_busy: diff("tx") / stats.elapsed.as_secs_f64(),
            peak_mb: get(&after, "peak_kb") / 1024.0,
            rss_growth_mb: diff("rss_kb") / 1024.0,
            lua_growth_mb: diff("lua_kb") / 1024.0,
            load_us: stats.cpu.as_secs_f64() * 1e6 / n,
            batch: n / stats.turns.max(1) as f64,
            p50_us: stats.percentile_us(50.0),
            p99_us: stats.percentile_us(99.0),
            threads,
            variants: stats.variants,
        });
        Ok(())
    }
}

fn bytes(n: usize) -> String {
    match n {
        n if n >= 1 << 20 => format!("{} MB", n >> 20),
        n if n >= 1 << 10 => format!("{} KB", n >> 10),
        n => format!("{n} B"),
    }
}

fn machine() -> serde_json::Value {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo
        .lines()
        .find(|l| l.starts_with("model name"))
        .and_then(|l| l.split(": ").nth(1))
        .unwrap_or("?");
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    json!({
        "cpus": std::thread::available_parallelism().map(|n| n.get()).unwrap_or(0),
        "cpu": model,
        "kernel": kernel.trim(),
        "load_average_before": load_average(),
    })
}

fn load_average() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').take(3).collect::<Vec<_>>().join(" ")
}

/// In less than two minutes.
const QUICK_SECTIONS: [&str; 3] = ["proxy", "serialization", "latency"];
const SECTIONS: [&str; 7] = ["proxy", "saturated", "serialization", "latency", "lua", "keys", "growth"];
/// Seconds; far more than a call takes even when the machine is overloaded: a timeout would be a wrong answer.
const CALL_TIMEOUT: f64 = 30.0;
const WARM_UP: f64 = 0.2;
