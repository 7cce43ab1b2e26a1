//! What one run of a kind measured.

use std::collections::BTreeMap;

use serde_json::json;

use super::Subject;

#[derive(Clone, Default)]
pub struct Sample {
    pub per_second: f64,
    pub tx_us: f64,
    pub process_us: f64,
    /// Share of the run that TX was on a processor.
    pub tx_busy: f64,
    pub peak_mb: f64,
    pub rss_growth_mb: f64,
    pub lua_growth_mb: f64,
    pub load_us: f64,
    /// Requests that the generator sent at once.
    pub batch: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    /// CPU µs per request by thread name.
    pub threads: BTreeMap<String, f64>,
    pub variants: usize,
}

impl Sample {
    pub fn json(&self) -> serde_json::Value {
        json!({
            "per_second": self.per_second,
            "tx_us": self.tx_us,
            "process_us": self.process_us,
            "tx_busy": self.tx_busy,
            "threads_us": self.threads,
            "peak_rss_mb": self.peak_mb,
            "rss_growth_mb": self.rss_growth_mb,
            "lua_growth_mb": self.lua_growth_mb,
            "generator_us": self.load_us,
            "requests_at_once": self.batch,
            "p50_us": self.p50_us,
            "p99_us": self.p99_us,
            "byte_variants": self.variants,
        })
    }
}

fn median_of(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    if n == 0 { f64::NAN } else { (values[(n - 1) / 2] + values[n / 2]) / 2.0 }
}

/// How many times as much `it` costs as `than` in the same round, the median of all rounds: what the machine does meanwhile changes
/// both.
pub fn paired(it: &[Sample], than: &[Sample], cost: fn(&Sample) -> f64) -> f64 {
    median_of(it.iter().zip(than).map(|(it, than)| cost(it) / cost(than)).collect())
}

/// Each figure's own median.
pub fn median_sample(samples: &[Sample]) -> Sample {
    let median = |get: &dyn Fn(&Sample) -> f64| median_of(samples.iter().map(get).collect());
    let names: Vec<String> = samples.iter().flat_map(|s| s.threads.keys().cloned()).collect();
    Sample {
        per_second: median(&|s| s.per_second),
        tx_us: median(&|s| s.tx_us),
        process_us: median(&|s| s.process_us),
        tx_busy: median(&|s| s.tx_busy),
        peak_mb: median(&|s| s.peak_mb),
        rss_growth_mb: median(&|s| s.rss_growth_mb),
        lua_growth_mb: median(&|s| s.lua_growth_mb),
        load_us: median(&|s| s.load_us),
        batch: median(&|s| s.batch),
        p50_us: median(&|s| s.p50_us),
        p99_us: median(&|s| s.p99_us),
        threads: names
            .into_iter()
            .map(|n| {
                let m = median(&|s| s.threads.get(&n).copied().unwrap_or(0.0));
                (n, m)
            })
            .collect(),
        variants: samples.iter().map(|s| s.variants).max().unwrap_or(0),
    }
}

pub fn samples_json(subjects: &[Subject]) -> serde_json::Value {
    let mut out = serde_json::Map::new();
    for s in subjects {
        let rounds: Vec<_> = s.samples.iter().map(Sample::json).collect();
        out.insert(s.kind.name.into(), json!({"median": median_sample(&s.samples).json(), "rounds": rounds}));
    }
    out.into()
}

/// CPU of the router's own threads, where it has some.
pub fn engine_us(s: &Sample) -> Option<f64> {
    let mine = s.threads.iter().filter(|(name, _)| name.starts_with("rawshard"));
    let (n, sum) = mine.fold((0, 0.0), |(n, sum), (_, us)| (n + 1, sum + us));
    (n > 0).then_some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_compared_round_by_round() {
        let of = |costs: &[f64]| -> Vec<Sample> {
            costs.iter().map(|tx_us| Sample { tx_us: *tx_us, ..Sample::default() }).collect()
        };
        // Each round has its own pace; the two medians would say 30.
        assert_eq!(paired(&of(&[3.0, 30.0, 200.0]), &of(&[1.0, 10.0, 1.0]), |s| s.tx_us), 3.0);
        assert_eq!(paired(&of(&[2.0, 60.0, 8.0, 9.0]), &of(&[2.0, 30.0, 2.0, 9.0]), |s| s.tx_us), 1.5);
        assert!(paired(&[], &[], |s| s.tx_us).is_nan());
    }
}
