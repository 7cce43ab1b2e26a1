//! `make soak`: full load on the router for a long time while storages are killed, frozen and restarted at random.
//!
//! What must hold: every call is answered exactly once and within its deadline; a right answer carries the call's own
//! id; a call that fails does so by `nil, err`, never by a raised error; after each disturbance the storage is reached
//! again; the memory of the router does not grow.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::args::Args;
use crate::client::Client;
use crate::cluster::{Cluster, Env, Process, TempDir, link};
use crate::generator::{Generator, Plan, Stats};
use crate::hosts;
use crate::kinds::{self, Kind};
use crate::mp::{self, Val};
use crate::random::{self, Random};
use crate::sys;
use crate::table::Table;
use crate::workload::Workload;

/// Deadline that every call carries.
const CALL_TIMEOUT: f64 = 2.0;
/// An answer may come this much later than the deadline: the machine is overloaded on purpose.
const GRACE: Duration = Duration::from_secs(5);
/// After this long a storage that came back must be reached again.
const HEAL: Duration = Duration::from_secs(20);
/// Resident memory may grow by so much between the second and the last quarter of the run. A run of ten minutes makes
/// tens of millions of calls, so a leak of one byte per call would be more than this; what the allocators of the
/// process keep from the worst moment (all calls in flight failing at once) is less, and was kept in the first half.
const RSS_BOUND_MB: f64 = 16.0;
/// The same for the Lua heap after a full collection. There is no allocator slack here: 2 MB are room for tables that
/// grow once (interned strings, the JIT's traces).
const LUA_BOUND_MB: f64 = 2.0;
const SAMPLE: Duration = Duration::from_secs(1);

struct Options {
    seconds: f64,
    seed: u64,
    conns: usize,
    depth: usize,
    payload: usize,
}

struct Load {
    kind: &'static Kind,
    progress: Arc<AtomicU64>,
    thread: JoinHandle<Result<Stats, String>>,
}

#[derive(Clone, Copy)]
struct Memory {
    at: f64,
    rss_mb: f64,
    /// After a full collection.
    lua_mb: f64,
    right: u64,
}

/// What is seen and done while the loads run.
struct Watch<'a> {
    options: &'a Options,
    router: &'a Process,
    loads: &'a [Load],
    start: Instant,
    control: Option<Client>,
    random: Random,
    seen: Seen,
}

#[derive(Default)]
struct Seen {
    memory: Vec<Memory>,
    disturbances: BTreeMap<&'static str, u64>,
    /// Seconds from a storage's return to the first call that reached it.
    heals: Vec<f64>,
    failures: Vec<String>,
}

pub fn main(args: &[String]) -> Result<(), String> {
    let values = [
        "root",
        "build",
        "host",
        "seconds",
        "seed",
        "conns",
        "depth",
        "payload",
        "io-threads",
        "buckets",
        "out",
        "kinds",
    ];
    let args = Args::parse(args, &values, &["no-vshard", "keep"])?;
    let root = PathBuf::from(args.text("root").unwrap_or("."));
    let root = root.canonicalize().map_err(|e| format!("{}: {e}", root.display()))?;
    let build = args.text("build").map(PathBuf::from).unwrap_or(root.join("build"));
    let options = Options {
        seconds: args.get("seconds", 600.0)?,
        seed: args.get("seed", random::seed_of_now())?,
        conns: args.get("conns", 50)?,
        depth: args.get("depth", 20)?,
        payload: args.get("payload", 64)?,
    };
    let libs = TempDir::new(false)?;
    // Where it is not built, the router will say so.
    let _ = link(
        libs.path(),
        "rawshard.so",
        &[build.join("rawshard.so"), root.join("target/release/librawshard.so")],
    );
    // Other kinds than rawshard's: to see how the others fare, and to try the soak itself.
    let kinds = args.list("kinds").unwrap_or(vec!["rawshard-c".into(), "rawshard-lua".into()]);
    let kinds = kinds.iter().map(|k| kinds::by_name(k)).collect::<Result<Vec<_>, _>>()?;
    let mut failed = false;
    for host in hosts::chosen(&args.all("host"), false)? {
        let env = Env {
            root: root.clone(),
            tarantool: host.path.clone(),
            libs: libs.path().to_owned(),
            no_vshard: args.flag("no-vshard"),
            bucket_count: args.get("buckets", 300)?,
            io_threads: args.get("io-threads", 1)?,
        };
        println!(
            "Tarantool {}, {:.0} s, seed {} (again: --seed {})",
            host.label(),
            options.seconds,
            options.seed,
            options.seed
        );
        let mut cluster = Cluster::start(&env, args.flag("keep"))?;
        let mut router = cluster.router(kinds[0].setup, &[kinds[0].setup])?;
        let info = router.wait_ready()?;
        let missing = |name: &str| info.field("missing").and_then(|m| m.field(name)).and_then(Val::str);
        if let Some(why) = missing(kinds[0].setup) {
            return Err(format!("no router to load: {why}"));
        }
        let present: Vec<_> = kinds.iter().copied().filter(|k| missing(k.name).is_none()).collect();
        let loads = start_loads(&options, &env, &router, &present)?;
        let mut watch = Watch {
            options: &options,
            router: &router,
            loads: &loads,
            start: Instant::now(),
            control: None,
            random: Random::new(options.seed),
            seen: Seen::default(),
        };
        watch.disturb(&mut cluster);
        let seen = watch.seen;
        let result = report(&options, seen, loads, &mut router)?;
        failed |= result["failures"].as_array().is_some_and(|f| !f.is_empty());
        if let Some(out) = args.text("out") {
            let text = serde_json::to_string_pretty(&result).map_err(|e| e.to_string())?;
            std::fs::write(out, text + "\n").map_err(|e| format!("{out}: {e}"))?;
        }
    }
    if failed { Err("failed, see above".into()) } else { Ok(()) }
}

/// One thread per entry that this host has.
fn start_loads(
    options: &Options,
    env: &Env,
    router: &Process,
    kinds: &[&'static Kind],
) -> Result<Vec<Load>, String> {
    let workload = Workload::by_name(&format!("id:{}", options.payload))?;
    let mut loads = Vec::new();
    for (i, kind) in kinds.iter().copied().enumerate() {
        let progress = Arc::new(AtomicU64::new(0));
        let plan = Plan {
            duration: Duration::from_secs_f64(options.seconds),
            buckets: env.bucket_count,
            tolerant: true,
            // No id is used twice, not even by two threads.
            first_id: (i as u64 + 1) << 48,
            rest: Duration::from_millis(20),
            drain: Duration::from_secs_f64(CALL_TIMEOUT) + GRACE,
            max_latency: Some(Duration::from_secs_f64(CALL_TIMEOUT) + GRACE),
            progress: Some(progress.clone()),
            ..Plan::new(&workload, kind.entry, kind.shape, kind.returns, CALL_TIMEOUT)
        };
        let (addr, depth) = (router.addr, options.depth);
        let conns = options.conns.div_ceil(kinds.len());
        let thread = std::thread::spawn(move || Generator::connect(addr, conns, depth)?.run(&plan));
        loads.push(Load { kind, progress, thread });
    }
    Ok(loads)
}

impl Watch<'_> {
    /// The main loop: samples memory, and does something bad to a storage every few seconds.
    fn disturb(&mut self, cluster: &mut Cluster) {
        let end = self.start + Duration::from_secs_f64(self.options.seconds);
        // Quiet at both ends: the first calls must find everything well, and the last must not fail for a reason.
        let last = end.checked_sub(Duration::from_secs(3)).unwrap_or(self.start);
        let mut next = self.start + Duration::from_secs_f64(self.random.between(1.0, 4.0));
        while Instant::now() < end && !sys::stopped() && !self.loads.iter().all(|l| l.thread.is_finished()) {
            self.sample();
            if (next..last).contains(&Instant::now()) {
                self.disturb_once(cluster);
                next = Instant::now() + Duration::from_secs_f64(self.random.between(1.0, 8.0));
            }
            if !self.seen.failures.is_empty() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn disturb_once(&mut self, cluster: &mut Cluster) {
        let i = self.random.below(cluster.storages().len() as u64) as usize;
        let what = ["killed", "terminated", "frozen"][self.random.below(3) as usize];
        // Often shorter than the calls' deadline, often longer.
        let pause = Duration::from_secs_f64(self.random.between(0.1, 3.5));
        *self.seen.disturbances.entry(what).or_default() += 1;
        let pid = cluster.storages()[i].pid();
        match what {
            "killed" => cluster.kill_storage(i),
            "terminated" => sys::signal(pid, libc::SIGTERM),
            _ => sys::signal(pid, libc::SIGSTOP),
        }
        let until = Instant::now() + pause;
        while Instant::now() < until && !sys::stopped() {
            self.sample();
            std::thread::sleep(Duration::from_millis(20));
        }
        let back = match what {
            "frozen" => {
                sys::signal(pid, libc::SIGCONT);
                Ok(())
            }
            "terminated" => {
                cluster.kill_storage(i);
                cluster.restart_storage(i)
            }
            _ => cluster.restart_storage(i),
        };
        if let Err(e) = back {
            if !sys::stopped() {
                self.seen.failures.push(format!("the bench itself: {e}"));
            }
            return;
        }
        let came_back = Instant::now();
        let bucket = cluster.first_bucket(i);
        loop {
            match reach(self.router, self.loads[0].kind, bucket, self.options) {
                Ok(()) => break self.seen.heals.push(came_back.elapsed().as_secs_f64()),
                Err(e) if came_back.elapsed() > HEAL => {
                    break self.seen.failures.push(format!(
                        "storage {} was {what}, came back, and is not reached after {:.0} s: {e}",
                        i + 1,
                        HEAL.as_secs_f64()
                    ));
                }
                Err(_) if sys::stopped() => break,
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    /// Once a second.
    fn sample(&mut self) {
        let at = self.start.elapsed().as_secs_f64();
        if self.seen.memory.last().is_some_and(|m| at - m.at < SAMPLE.as_secs_f64()) {
            return;
        }
        let right = self.loads.iter().map(|l| l.progress.load(Ordering::Relaxed)).sum();
        let (router, control) = (self.router, &mut self.control);
        let mut ask = || -> Result<Memory, String> {
            let client = match control {
                Some(client) => client,
                None => control.insert(router.client()?),
            };
            let stat = client.ask("bench_settle")?;
            let get = |name: &str| stat.field(name).and_then(Val::f64).unwrap_or(f64::NAN);
            Ok(Memory { at, rss_mb: get("rss_kb") / 1024.0, lua_mb: get("lua_kb") / 1024.0, right })
        };
        match ask() {
            Ok(memory) => self.seen.memory.push(memory),
            Err(e) => {
                self.seen.failures.push(format!("the router does not answer: {e}; {}", router.log_tail()))
            }
        }
    }
}

/// One call of our own to a bucket of that storage.
fn reach(router: &Process, kind: &Kind, bucket: u32, options: &Options) -> Result<(), String> {
    let values = router.client()?.call(kind.entry, |b| {
        mp::array(b, 5);
        mp::uint(b, bucket.into());
        mp::string(b, "read");
        mp::string(b, "bench_echo");
        mp::array(b, 1);
        mp::uint(b, options.payload as u64);
        mp::map(b, 1);
        mp::string(b, "timeout");
        mp::float(b, 0.5);
    })?;
    let echoed = Val::Int(options.payload as i128);
    match &values[..] {
        [one] if *one == echoed || *one.items() == [echoed.clone()] => Ok(()),
        other => Err(Val::Array(other.to_vec()).json().to_string()),
    }
}

fn report(
    options: &Options,
    mut seen: Seen,
    loads: Vec<Load>,
    router: &mut Process,
) -> Result<serde_json::Value, String> {
    let cut_short = sys::stopped();
    if !seen.failures.is_empty() {
        // Nothing to wait for: the loads end when the flag or the router goes.
        sys::stop();
    }
    let mut table = Table::new(&[
        "", "calls", "right", "refused", "raised", "wrong", "lost", "late", "calls/s", "p50 ms", "p99.9 ms",
    ]);
    let mut reasons: BTreeMap<String, u64> = BTreeMap::new();
    let mut entries = serde_json::Map::new();
    for load in loads {
        let name = load.kind.name;
        let stats = match load.thread.join() {
            Ok(Ok(stats)) => stats,
            Ok(Err(e)) => {
                seen.failures.push(format!("{name}: {e}; {}", router.log_tail()));
                continue;
            }
            Err(_) => return Err("a load thread panicked".into()),
        };
        let mut fail = |what: String| seen.failures.push(format!("{name}: {what}"));
        if stats.wrong > 0 {
            fail(format!(
                "{} answers that are wrong or nobody's: {}",
                stats.wrong,
                stats.samples.join(" | ")
            ));
        }
        if stats.lost > 0 {
            fail(format!("{} calls were never answered", stats.lost));
        }
        if stats.raised > 0 {
            fail(format!("{} calls raised an error instead of returning nil, err", stats.raised));
        }
        if stats.late > 0 {
            fail(format!("{} answers came more than {GRACE:?} after their deadline", stats.late));
        }
        if stats.right == 0 {
            fail("no call succeeded".into());
        }
        if stats.right + stats.refused + stats.raised + stats.lost != stats.sent {
            fail("answers do not add up".into());
        }
        table.row(&[
            name.into(),
            stats.sent.to_string(),
            stats.right.to_string(),
            stats.refused.to_string(),
            stats.raised.to_string(),
            stats.wrong.to_string(),
            stats.lost.to_string(),
            stats.late.to_string(),
            format!("{:.0}", stats.per_second()),
            format!("{:.1}", stats.percentile_us(50.0) / 1e3),
            format!("{:.1}", stats.percentile_us(99.9) / 1e3),
        ]);
        for (reason, n) in &stats.reasons {
            *reasons.entry(reason.clone()).or_default() += n;
        }
        entries.insert(name.into(), stats.json());
    }
    table.print();
    if !reasons.is_empty() {
        println!("Refused because");
        reasons.iter().for_each(|(reason, n)| println!("  {n:>9}  {reason}"));
    }
    let list: Vec<_> = seen.disturbances.iter().map(|(what, n)| format!("{n} × {what}")).collect();
    println!("Storages: {}", if list.is_empty() { "never disturbed".into() } else { list.join(", ") });
    if !seen.heals.is_empty() {
        let (sum, max) = seen.heals.iter().fold((0.0, 0f64), |(s, m), h| (s + h, m.max(*h)));
        println!("Reached again after {:.2} s on average, {max:.2} s at most", sum / seen.heals.len() as f64);
    }
    judge_memory(&mut seen);
    if !router.is_alive() {
        seen.failures.push(format!("the router died: {}", router.log_tail()));
    }
    if cut_short {
        println!("Stopped before its time");
    }
    for failure in &seen.failures {
        println!("FAILED: {failure}");
    }
    if seen.failures.is_empty() {
        println!("Passed: each call answered once, no foreign answer, memory flat");
    }
    let memory: Vec<_> = seen
        .memory
        .iter()
        .map(|m| json!({"at": m.at, "rss_mb": m.rss_mb, "lua_mb": m.lua_mb, "right": m.right}))
        .collect();
    Ok(json!({
        "seed": options.seed,
        "seconds": options.seconds,
        "entries": entries,
        "disturbances": seen.disturbances,
        "heals": seen.heals,
        "memory": memory,
        "failures": seen.failures,
    }))
}

/// Compares the second quarter of the run with the last: by then everything that is allocated once has been.
fn judge_memory(seen: &mut Seen) {
    let end = seen.memory.last().map_or(0.0, |m| m.at);
    let quarter = |q: f64| -> Vec<Memory> {
        let (from, to) = (end * (q - 1.0) / 4.0, end * q / 4.0);
        seen.memory.iter().copied().filter(|m| m.at > from && m.at <= to).collect()
    };
    let (early, late) = (quarter(2.0), quarter(4.0));
    if early.len() < 3 || late.len() < 3 {
        println!("Memory: too short a run to say anything");
        return;
    }
    let median = |samples: &[Memory], get: &dyn Fn(&Memory) -> f64| {
        let mut values: Vec<f64> = samples.iter().map(get).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let calls = late[late.len() / 2].right.saturating_sub(early[early.len() / 2].right).max(1) as f64;
    let rss = |m: &Memory| m.rss_mb;
    let lua = |m: &Memory| m.lua_mb;
    for (name, a, b, bound) in [
        ("RSS", median(&early, &rss), median(&late, &rss), RSS_BOUND_MB),
        ("Lua heap", median(&early, &lua), median(&late, &lua), LUA_BOUND_MB),
    ] {
        println!(
            "{name}: {a:.1} MB in the second quarter, {b:.1} MB in the last: {:+.2} MB in {calls:.0} calls, {:+.3} bytes a call (bound: {bound:+.0} MB)",
            b - a,
            (b - a) * 1048576.0 / calls
        );
        if (b - a).is_nan() || b - a > bound {
            seen.failures.push(format!("{name} grew by {:.1} MB", b - a));
        }
    }
}
