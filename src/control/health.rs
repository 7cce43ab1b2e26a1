//! How far behind its master an instance is: whom to ask, when, and what an answer means.
//!
//! As vshard's failover pings (replicaset.lua: replica_failover_ping, failover_check_upstream); whether a peer answers at all is
//! the engines' affair.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::ids::InstanceIdx;
use crate::route::topology::Mark;
use crate::time::Time;
use crate::wire::vshard::{InstanceInfo, Upstream};

/// Between two looks at one instance, however short the configured interval is.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(1);

#[derive(Debug)]
struct Check {
    due: Time,
    asked: bool,
}

#[derive(Debug, Default)]
pub struct Health {
    checks: BTreeMap<InstanceIdx, Check>,
}

impl Health {
    /// The configuration has these instances now. First looks are spread over one interval from now.
    pub fn set_instances(&mut self, instances: &[InstanceIdx], interval: Duration, now: Time) {
        let mut old = std::mem::take(&mut self.checks);
        let step = interval / instances.len().max(1) as u32;
        for (i, idx) in instances.iter().enumerate() {
            let mut check =
                old.remove(idx).unwrap_or(Check { due: now.after(step * (i as u32 + 1)), asked: false });
            check.due = check.due.min(now.after(interval));
            self.checks.insert(*idx, check);
        }
    }

    /// Who is to be looked at now; then say that it was asked, or that this look is over.
    pub fn poll_check(&self, now: Time) -> Option<InstanceIdx> {
        self.checks.iter().find(|(_, check)| !check.asked && check.due <= now).map(|(idx, _)| *idx)
    }

    pub fn asked(&mut self, idx: InstanceIdx) {
        if let Some(check) = self.checks.get_mut(&idx) {
            check.asked = true;
        }
    }

    pub fn done(&mut self, idx: InstanceIdx, interval: Duration, now: Time) {
        if let Some(check) = self.checks.get_mut(&idx) {
            *check = Check { due: now.after(interval.max(SHORTEST_INTERVAL)), asked: false };
        }
    }

    pub fn next_timeout(&self) -> Option<Time> {
        self.checks.values().filter(|check| !check.asked).map(|check| check.due).min()
    }
}

/// What an instance's own words say of its replication; and, where it is not in order, why.
pub fn judge(info: &InstanceInfo<'_>, lag_limit: Duration) -> (Mark, Option<String>) {
    let Some(health) = &info.health else {
        return (Mark::Yellow, Some("it does not tell its health: vshard there is older than 0.1.31".into()));
    };
    let Some(Upstream { status, lag, idle }) = &health.master_upstream else {
        return (Mark::Red, Some("it does not replicate from the master".into()));
    };
    // Of one that replicates, lag is the measure; of one that does not, the time since it last did. `loading` is what broken
    // ones of Tarantool 1.10 say, whose idle time is always fresh.
    let follows = matches!(status, Some(b"follow" | b"sync" | b"loading"));
    let (name, value) = if follows { ("lag", lag) } else { ("idle", idle) };
    match value {
        None => (Mark::Yellow, Some(format!("it does not tell its {name} behind the master"))),
        Some(value) if *value > lag_limit.as_secs_f64() => {
            let limit = lag_limit.as_secs_f64();
            (Mark::Red, Some(format!("{name} behind the master is {value:.3} s, more than {limit} s")))
        }
        Some(_) => (Mark::Green, None),
    }
}

/// Whether reads go by the marks of replication that the connected instances have. They go by none where nobody is in order:
/// then replication has stopped altogether, and that must not stop reads (replicaset.lua: replicaset_failover_update_health).
pub fn is_replicating(marks: impl IntoIterator<Item = (bool, Mark)>) -> bool {
    marks.into_iter().any(|(is_master, mark)| mark == Mark::Green || !is_master && mark != Mark::Red)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::vshard::InstanceHealth;

    fn at(ms: u64) -> Time {
        Time::from_nanos(ms * 1_000_000)
    }

    fn mark(upstream: Option<(&'static str, Option<f64>, Option<f64>)>) -> Mark {
        let master_upstream =
            upstream.map(|(status, lag, idle)| Upstream { status: Some(status.as_bytes()), lag, idle });
        let info =
            InstanceInfo { health: Some(InstanceHealth { master_upstream }), ..InstanceInfo::default() };
        judge(&info, Duration::from_secs(30)).0
    }

    #[test]
    fn marks_are_those_of_vshard() {
        assert_eq!(
            judge(&InstanceInfo::default(), Duration::from_secs(30)).0,
            Mark::Yellow,
            "an old storage"
        );
        assert_eq!(mark(None), Mark::Red);
        for status in ["follow", "sync", "loading"] {
            assert_eq!(mark(Some((status, Some(30.0), Some(1e9)))), Mark::Green);
            assert_eq!(mark(Some((status, Some(30.1), Some(0.0)))), Mark::Red);
            assert_eq!(mark(Some((status, None, Some(0.0)))), Mark::Yellow);
        }
        for status in ["stopped", "disconnected", "auth", "no such thing"] {
            assert_eq!(mark(Some((status, Some(1e9), Some(30.0)))), Mark::Green);
            assert_eq!(mark(Some((status, Some(0.0), Some(30.1)))), Mark::Red);
            assert_eq!(mark(Some((status, Some(0.0), None))), Mark::Yellow);
        }
    }

    #[test]
    fn a_total_stop_of_replication_counts_for_nothing() {
        use Mark::{Green, Red, Yellow};
        assert!(is_replicating([(true, Green), (false, Red)]));
        assert!(is_replicating([(true, Red), (false, Yellow)]));
        assert!(!is_replicating([(true, Yellow), (false, Red)]));
        assert!(!is_replicating([(true, Red), (false, Red)]));
        assert!(!is_replicating([]));
    }

    #[test]
    fn each_has_its_pace() {
        let mut health = Health::default();
        let (a, b, second) = (InstanceIdx(0), InstanceIdx(1), Duration::from_secs(1));
        health.set_instances(&[a, b], second, at(0));
        assert_eq!(health.next_timeout(), Some(at(500)), "there is no connection at once");
        assert_eq!(health.poll_check(at(500)), Some(a));
        health.asked(a);
        assert_eq!(health.poll_check(at(500)), None);
        assert_eq!(health.next_timeout(), Some(at(1000)), "spread");
        assert_eq!(health.poll_check(at(1000)), Some(b));
        health.done(b, second, at(1000));
        assert_eq!(health.next_timeout(), Some(at(2000)));
        health.done(a, second, at(1200));
        assert_eq!(health.poll_check(at(2100)), Some(b));
        health.set_instances(&[a], second, at(2100));
        assert_eq!(health.next_timeout(), Some(at(2200)), "one that stays keeps its pace");
        health.set_instances(&[a], second / 100, at(2100));
        assert_eq!(health.next_timeout(), Some(at(2110)), "unless it is to be faster");
        health.done(a, Duration::ZERO, at(2110));
        assert_eq!(health.poll_check(at(2110)), None, "no interval is no reason to ask for ever");
    }
}
