//! What a call costs as things grow: calls in flight, payload, engine threads, buckets, instances.

use std::collections::BTreeMap;
use std::fs;

use super::sample::{Sample, engine_us, median_sample, paired};
use super::{Bench, Subject, Target, bytes};
use crate::cluster::{Cluster, Env};
use crate::plot::{self, Panel};
use crate::sys;
use crate::table::Table;
use crate::workload::Workload;

const BUSY_INSTANCES: &str = "instances at 20 000 in flight";

/// What is compared with each other, interleaved in rounds.
struct Group {
    what: &'static str,
    /// How much of it, as a number and in words.
    points: Vec<(u64, String)>,
    subjects: Vec<Subject>,
    /// Where they are not the section's own.
    clusters: Vec<Cluster>,
}

impl Group {
    fn new(what: &'static str) -> Group {
        Group { what, points: Vec::new(), subjects: Vec::new(), clusters: Vec::new() }
    }

    fn add(&mut self, n: u64, shown: String, subject: Subject) {
        self.points.push((n, shown));
        self.subjects.push(subject);
    }
}

impl Bench<'_> {
    pub(super) fn growth(&mut self) -> Result<(), String> {
        if self.missing.contains_key("rawshard") {
            return Ok(());
        }
        println!("\nWhat a call through the stored function costs as things grow");
        let mut table = Table::new(&[
            "",
            "",
            "req/s",
            "TX µs",
            "process µs",
            "engine µs",
            "peak MB",
            "bytes a call, host's fiber too",
            "at once",
        ]);
        let mut json_out = serde_json::Map::new();
        let mut points: BTreeMap<(&str, u64), Vec<Sample>> = BTreeMap::new();
        let mut rss_at_rest = None;
        let groups = [
            Self::in_flight,
            Self::payload,
            Self::engine_threads,
            Self::buckets,
            Self::instances,
            Self::busy_instances,
        ];
        for group in groups {
            let mut group = group(self)?;
            self.rounds(&mut group.subjects)?;
            if sys::stopped() {
                return Ok(());
            }
            for ((n, shown), subject) in group.points.into_iter().zip(group.subjects) {
                let s = median_sample(&subject.samples);
                let rest = *rss_at_rest.get_or_insert(s.peak_mb);
                let is_held = group.what == "in flight" && n >= 1000;
                let per_call = if is_held { (s.peak_mb - rest) * 1048576.0 / n as f64 } else { 0.0 };
                table.row(&[
                    group.what.into(),
                    shown,
                    format!("{:.0}", s.per_second),
                    format!("{:.2}", s.tx_us),
                    format!("{:.2}", s.process_us),
                    engine_us(&s).map(|v| format!("{v:.2}")).unwrap_or_default(),
                    format!("{:.1}", s.peak_mb),
                    if is_held { format!("{per_call:.0}") } else { String::new() },
                    format!("{:.0}", s.batch),
                ]);
                json_out.insert(format!("{} {n}", group.what), s.json());
                points.insert((group.what, n), subject.samples);
            }
        }
        table.print();
        self.results.insert("growth".into(), json_out.into());
        let medians = points.iter().map(|(point, samples)| (*point, median_sample(samples))).collect();
        self.picture(&medians)?;
        let grown = [
            ("in flight", 1_000, 20_000),
            ("buckets", 1_000, 1_000_000),
            ("instances", 2, 200),
            (BUSY_INSTANCES, 2, 200),
        ];
        for (what, from, to) in grown {
            if let (Some(few), Some(many)) = (points.get(&(what, from)), points.get(&(what, to))) {
                let ratio = paired(many, few, |s| s.process_us);
                self.targets.push(Target {
                    what: format!("process, {to} {what} ÷ {from}"),
                    measured: format!("{ratio:.2}"),
                    wanted: "≤ 1.2".into(),
                    met: ratio <= 1.2,
                });
            }
        }
        Ok(())
    }

    fn in_flight(&mut self) -> Result<Group, String> {
        let mut group = Group::new("in flight");
        for (conns, depth) in [(1, 1), (100, 1), (100, 10), (200, 100)] {
            let n = (conns * depth) as u64;
            group.add(n, n.to_string(), self.one("T1", conns, depth)?);
        }
        Ok(group)
    }

    fn payload(&mut self) -> Result<Group, String> {
        let mut group = Group::new("payload");
        for size in [1, 1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 24] {
            // As many bytes in flight for each, but one call at the least.
            let conns = ((4usize << 20) / size).clamp(1, 100);
            group.add(size as u64, bytes(size), self.one(&format!("size:{size}"), conns, 1)?);
        }
        Ok(group)
    }

    fn engine_threads(&mut self) -> Result<Group, String> {
        let mut group = Group::new("engine threads");
        for threads in [1, 2, 4] {
            let was = std::mem::replace(&mut self.cluster.env.io_threads, threads);
            let subject = self.one("T1", self.options.conns, self.options.depth);
            self.cluster.env.io_threads = was;
            group.add(threads.into(), threads.to_string(), subject?);
        }
        Ok(group)
    }

    fn buckets(&mut self) -> Result<Group, String> {
        let mut group = Group::new("buckets");
        for buckets in [1_000u32, 30_000, 1_000_000] {
            let env = Env { bucket_count: buckets, ..self.cluster.env.clone() };
            let cluster = Cluster::start(&env, self.options.keep)?;
            let load = (self.options.conns, self.options.depth);
            self.add_on(cluster, &mut group, buckets.into(), load)?;
        }
        Ok(group)
    }

    fn instances(&mut self) -> Result<Group, String> {
        self.on_instances("instances", (self.options.conns, self.options.depth))
    }

    /// The same with so many calls in flight that each of 200 instances has a hundred.
    fn busy_instances(&mut self) -> Result<Group, String> {
        self.on_instances(BUSY_INSTANCES, (200, 100))
    }

    fn on_instances(&mut self, what: &'static str, load: (usize, usize)) -> Result<Group, String> {
        let mut group = Group::new(what);
        for instances in [2, 20, 200] {
            let cluster = Cluster::simulated(&self.cluster.env, instances, self.options.keep)?;
            self.add_on(cluster, &mut group, instances as u64, load)?;
        }
        Ok(group)
    }

    /// One more of the group, on a cluster of its own.
    fn add_on(
        &mut self,
        cluster: Cluster,
        group: &mut Group,
        n: u64,
        (conns, depth): (usize, usize),
    ) -> Result<(), String> {
        let was = std::mem::replace(&mut self.cluster, cluster);
        let subject = self.one("T1", conns, depth);
        group.clusters.push(std::mem::replace(&mut self.cluster, was));
        group.add(n, n.to_string(), subject?);
        Ok(())
    }

    /// The stored function alone.
    fn one(&mut self, workload: &str, conns: usize, depth: usize) -> Result<Subject, String> {
        let workload = Workload::by_name(workload)?;
        let subject = self.subjects(&["rawshard-c"], &workload, conns, depth)?.pop();
        subject.ok_or_else(|| self.missing.get("rawshard-c").cloned().unwrap_or("no rawshard".into()))
    }

    /// The growth as a picture beside the table.
    fn picture(&self, points: &BTreeMap<(&str, u64), Sample>) -> Result<(), String> {
        let titles = [
            ("in flight", "calls in flight"),
            ("payload", "bytes of payload (log)"),
            ("engine threads", "engine threads"),
            ("buckets", "buckets"),
            ("instances", "instances (simulated)"),
            (BUSY_INSTANCES, "instances, 20 000 calls in flight"),
        ];
        let panels: Vec<Panel> = titles
            .iter()
            .map(|(key, title)| {
                let line = |cost: &dyn Fn(&Sample) -> Option<f64>| {
                    let of_this = points.iter().filter(|((what, _), _)| what == key);
                    of_this.filter_map(|((_, n), s)| Some((*n as f64, cost(s)?))).collect::<Vec<_>>()
                };
                Panel {
                    title: format!("µs per call over {title}"),
                    log_cost: *key == "payload",
                    lines: vec![
                        ("process", line(&|s| Some(s.process_us))),
                        ("TX", line(&|s| Some(s.tx_us))),
                        ("engine", line(&engine_us)),
                    ],
                }
            })
            .collect();
        let title = format!("CPU time of a call through rawshard.callraw, Tarantool {}", self.host.label());
        let path = self.options.out.join(format!("growth-tarantool-{}.svg", self.host.label()));
        fs::create_dir_all(&self.options.out).map_err(|e| e.to_string())?;
        fs::write(&path, plot::svg(&title, &panels)).map_err(|e| format!("{}: {e}", path.display()))?;
        println!(
            "\nThe same as a picture: {}",
            path.strip_prefix(&self.options.root).unwrap_or(&path).display()
        );
        Ok(())
    }
}
