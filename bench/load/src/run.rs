//! One run against something that already listens.

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use crate::args::Args;
use crate::generator::{Generator, Plan, Stats};
use crate::workload::{Returns, Shape, Workload};

pub fn main(args: &[String]) -> Result<(), String> {
    let values = [
        "addr", "entry", "shape", "returns", "workload", "size", "conns", "depth", "seconds", "count",
        "rate", "burst", "threads", "buckets", "timeout",
    ];
    let args = Args::parse(args, &values, &["exact", "tolerant"])?;
    let addr = args.text("addr").ok_or("--addr host:port is needed")?;
    let addr = addr.to_socket_addrs().map_err(|e| format!("{addr}: {e}"))?.next().ok_or("no such address")?;
    let entry = args.text("entry").unwrap_or("rawshard.callraw");
    let shape = match args.text("shape").unwrap_or("callraw") {
        "callraw" => Shape::Callraw,
        "keyed" => Shape::Keyed,
        "storage" => Shape::Storage,
        "plain" => Shape::Plain,
        other => return Err(format!("--shape {other}: callraw, keyed, storage or plain")),
    };
    let returns = match args.text("returns").unwrap_or("values") {
        "values" => Returns::Values,
        "status" => Returns::StatusAndValues,
        "args" => Returns::Args,
        "nothing" => Returns::Nothing,
        other => return Err(format!("--returns {other}: values, status, args or nothing")),
    };
    let name = match args.opt::<usize>("size")? {
        Some(size) => format!("size:{size}"),
        None => args.text("workload").unwrap_or("T1").to_owned(),
    };
    let workload = Workload::by_name(&name)?;
    let timeout = args.get("timeout", 30.0)?;
    let threads = args.get("threads", 1usize)?.max(1);
    let make_plan = |i: usize| -> Result<Plan, String> {
        Ok(Plan {
            exact: args.flag("exact"),
            duration: Duration::from_secs_f64(args.get("seconds", 5.0)?),
            count: args.opt::<u64>("count")?.map(|n| n.div_ceil(threads as u64)),
            rate: args.opt::<f64>("rate")?.map(|r| r / threads as f64),
            burst: args.get("burst", 1u64)?.max(1),
            buckets: args.get("buckets", 3000)?,
            tolerant: args.flag("tolerant"),
            first_id: (i as u64 + 1) << 40,
            ..Plan::new(&workload, entry, shape, returns, timeout)
        })
    };
    let plans = (0..threads).map(make_plan).collect::<Result<Vec<_>, _>>()?;
    let conns = args.get("conns", 100usize)?.div_ceil(threads).max(1);
    let stats = run_threads(addr, conns, args.get("depth", 20)?, &plans)?;
    println!("{}", serde_json::to_string_pretty(&stats.json()).map_err(|e| e.to_string())?);
    if args.flag("tolerant") { Ok(()) } else { stats.verdict() }
}

/// Each plan in a thread of its own, with `conns` connections each.
fn run_threads(addr: SocketAddr, conns: usize, depth: usize, plans: &[Plan]) -> Result<Stats, String> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = plans
            .iter()
            .map(|plan| scope.spawn(move || Generator::connect(addr, conns, depth)?.run(plan)))
            .collect();
        let mut sum: Option<Stats> = None;
        for thread in threads {
            let stats = thread.join().map_err(|_| "a load thread panicked")??;
            sum = Some(match sum {
                Some(sum) => sum.merge(stats),
                None => stats,
            });
        }
        sum.ok_or("no plan".into())
    })
}
