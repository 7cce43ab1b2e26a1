//! The workloads with every kind side by side: on real storages, and on simulated ones.

use std::collections::BTreeMap;

use super::sample::{Sample, engine_us, median_sample, samples_json};
use super::{Bench, Subject, Target};
use crate::kinds::{self, Kind};
use crate::sys;
use crate::table::Table;
use crate::workload::Workload;

impl Bench<'_> {
    /// The seven workloads, every kind.
    pub(super) fn proxy(&mut self) -> Result<(), String> {
        let table = self.workloads(&kinds::PROXY, "")?;
        self.results.insert("proxy".into(), table.into());
        Ok(())
    }

    /// The seven workloads on storages that cost nothing. Real ones take most of two cores, and then a turn of TX finds few
    /// calls; here, as in the runs that the workloads come from, TX is what limits.
    pub(super) fn saturated(&mut self) -> Result<(), String> {
        // The forwarder stands for a vshard that is missing.
        let has_vshard = self.has_vshard;
        let all = kinds::SATURATED.into_iter().filter(|kind| *kind != "forwarder" || !has_vshard);
        let table = self.workloads(&all.collect::<Vec<_>>(), " on simulated storages")?;
        self.results.insert("saturated".into(), table.into());
        Ok(())
    }

    /// The workloads in turn, `all` kinds of them unless others were asked for. `where_` is put behind a workload's name.
    fn workloads(
        &mut self,
        all: &[&'static str],
        where_: &str,
    ) -> Result<serde_json::Map<String, serde_json::Value>, String> {
        let mut json_out = serde_json::Map::new();
        for name in &self.options.workloads.clone() {
            let workload = Workload::by_name(name)?;
            let names = match &self.options.kinds {
                Some(names) => names.iter().map(String::as_str).collect::<Vec<_>>(),
                None => all
                    .iter()
                    .copied()
                    // Where the workload echoes, the echoing floors return the same payload.
                    .filter(|k| !k.contains("-fixed") || workload.func != "bench_echo")
                    .filter(|k| !k.contains("-park") || !self.options.quick)
                    .collect(),
            };
            let mut subjects = self.subjects(&names, &workload, self.options.conns, self.options.depth)?;
            self.rounds(&mut subjects)?;
            if sys::stopped() {
                break;
            }
            let medians: BTreeMap<&str, Sample> =
                subjects.iter().map(|s| (s.kind.name, median_sample(&s.samples))).collect();
            self.print_proxy(name, where_, &subjects, &medians);
            self.judge_proxy(name, where_, &medians);
            json_out.insert(name.clone(), samples_json(&subjects));
        }
        Ok(json_out)
    }

    fn print_proxy(&self, name: &str, where_: &str, subjects: &[Subject], medians: &BTreeMap<&str, Sample>) {
        let (reference, _) = self.reference(medians);
        println!("\n{name}{where_}: {}", description(name));
        let over = format!("TX: {reference} ÷ it");
        let over_process = format!("process: {reference} ÷ it");
        let mut table = Table::new(&[
            "",
            "req/s",
            "TX µs",
            "TX busy",
            "process µs",
            "engine µs",
            "TX ÷ floor",
            &over,
            &over_process,
            "peak MB",
            "Lua +MB",
            "load µs",
            "at once",
        ]);
        for s in subjects {
            let m = &medians[s.kind.name];
            let floor = floor_of(s.kind, name).and_then(|f| medians.get(f));
            let ratio = |a: Option<f64>, b: f64| match a {
                Some(a) if b > 0.0 => format!("{:.2}", a / b),
                _ => String::new(),
            };
            let base = medians.get(reference);
            table.row(&[
                s.kind.name.into(),
                format!("{:.0}", m.per_second),
                format!("{:.2}", m.tx_us),
                format!("{:.0} %", m.tx_busy * 100.0),
                format!("{:.2}", m.process_us),
                engine_us(m).map(|v| format!("{v:.2}")).unwrap_or_default(),
                floor.map(|f| ratio(Some(m.tx_us), f.tx_us)).unwrap_or_default(),
                ratio(base.map(|b| b.tx_us), m.tx_us),
                ratio(base.map(|b| b.process_us), m.process_us),
                format!("{:.1}", m.peak_mb),
                format!("{:+.1}", m.lua_growth_mb),
                format!("{:.2}", m.load_us),
                format!("{:.0}", m.batch),
            ]);
        }
        table.print();
    }

    /// vshard, or what stands in its place.
    fn reference(&self, medians: &BTreeMap<&str, Sample>) -> (&'static str, bool) {
        if medians.contains_key("vshard") { ("vshard", true) } else { ("forwarder", false) }
    }

    fn judge_proxy(&mut self, name: &str, where_: &str, medians: &BTreeMap<&str, Sample>) {
        let mut judge = |what: String, measured: f64, wanted: &str, met: bool| {
            self.targets.push(Target { what, measured: format!("{measured:.2}"), wanted: wanted.into(), met })
        };
        let get = |kind: &str| medians.get(kind);
        let echo = if matches!(name, "T5" | "T6") { "c-fixed-paced" } else { "c-echo-paced" };
        if let Some(c) = get("rawshard-c") {
            if let Some(f) = get(echo) {
                let r = c.tx_us / f.tx_us;
                judge(format!("{name}{where_} TX, stored function ÷ {echo}"), r, "≤ 1.5", r <= 1.5);
            }
            if let Some(v) = get("vshard") {
                let r = v.tx_us / c.tx_us;
                let wanted = match name {
                    "T1" => 8.0,
                    "T3" | "T6" => 20.0,
                    _ => 1.0,
                };
                let shown = if wanted > 1.0 { format!("≥ {wanted}") } else { "> 1".into() };
                judge(format!("{name}{where_} TX, vshard ÷ stored function"), r, &shown, r >= wanted);
                if let Some(raw) = get("vshard-raw") {
                    let r = raw.tx_us / c.tx_us;
                    judge(format!("{name}{where_} TX, vshard raw ÷ stored function"), r, "> 1", r > 1.0);
                }
                let wanted = match name {
                    "T1" => Some(3.0),
                    "T3" | "T6" => Some(6.0),
                    _ => None,
                };
                if let Some(wanted) = wanted {
                    let r = v.process_us / c.process_us;
                    judge(
                        format!("{name}{where_} process, vshard ÷ stored function"),
                        r,
                        &format!("≥ {wanted}"),
                        r >= wanted,
                    );
                }
            }
        }
        if let (Some(p), Some(f)) = (get("rawshard-c-parked"), get(echo)) {
            let r = p.tx_us / f.tx_us;
            judge(format!("{name}{where_} TX, without iproto_override ÷ {echo}"), r, "≤ 1.5", r <= 1.5);
        }
        let floor = if matches!(name, "T5" | "T6") { "lua-raw-fixed-paced" } else { "lua-raw-floor-paced" };
        for (kind, shown) in [("rawshard-lua", "Lua entry"), ("rawshard-lua-wrapped", "Lua entry, wrapped")] {
            if let (Some(l), Some(f)) = (get(kind), get(floor)) {
                let r = l.tx_us / f.tx_us;
                judge(format!("{name}{where_} TX, {shown} ÷ {floor}"), r, "≤ 1.4", r <= 1.4);
            }
        }
    }
}

/// The floor that a kind stands on.
fn floor_of(kind: &Kind, workload: &str) -> Option<&'static str> {
    match kind.name {
        "rawshard-c" | "rawshard-c-parked" if matches!(workload, "T5" | "T6") => Some("c-fixed-paced"),
        "rawshard-c" | "rawshard-c-parked" => Some("c-echo-paced"),
        "rawshard-lua" | "rawshard-lua-wrapped" if matches!(workload, "T5" | "T6") => {
            Some("lua-raw-fixed-paced")
        }
        "rawshard-lua" | "rawshard-lua-wrapped" => Some("lua-raw-floor-paced"),
        _ => None,
    }
}

fn description(workload: &str) -> &'static str {
    match workload {
        "T0" => "echo of nothing",
        "T1" => "echo of the number 1",
        "T2" => "echo of 10 numbers at depth 5",
        "T3" => "echo of 10 big objects at depth 5",
        "T4" => "echo of 4 big objects",
        "T5" => "select of 10 tuples of 5 numbers",
        "T6" => "select of 10 tuples of one big object",
        "T7" => "echo of 20 numbers",
        _ => "",
    }
}
