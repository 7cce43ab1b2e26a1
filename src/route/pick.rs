//! Which instance of a replicaset serves a call, given the snapshot and what the engine knows of its connections.

use crate::ids::InstanceIdx;
use crate::route::topology::Replicaset;
pub use crate::wire::payload::Mode;

/// How an instance is chosen: vshard's mode, `prefer_replica` and `balance`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    pub mode: Mode,
    pub prefer_replica: bool,
    pub balance: bool,
}

impl Access {
    pub const RW: Access = Access { mode: Mode::Write, prefer_replica: false, balance: false };
    pub const RO: Access = Access { mode: Mode::Read, prefer_replica: false, balance: false };
}

/// Chooses as vshard does (replicaset.lua: replicaset_template_multicallro): writes go to the master; reads to the first usable
/// instance by priority, or in turn with `balance`; without the master where `prefer_replica` says so; and to the master,
/// usable or not, when nobody else is usable. None: there is no master to fall back on.
///
/// `tried` are those that failed this call; they come last. `turn` is the shared counter of balanced calls.
pub fn pick(
    replicaset: &Replicaset,
    access: Access,
    tried: &[InstanceIdx],
    turn: &mut u32,
    usable: impl Fn(InstanceIdx) -> bool,
) -> Option<InstanceIdx> {
    if access.mode == Mode::Write {
        return replicaset.master;
    }
    let order = &replicaset.by_priority;
    let start = if access.balance && !order.is_empty() { *turn as usize % order.len() } else { 0 };
    let fresh = |idx: InstanceIdx| !tried.contains(&idx);
    let mut second = None;
    for step in 0..order.len() {
        let idx = order[(start + step) % order.len()];
        if (access.prefer_replica && replicaset.master == Some(idx)) || !usable(idx) {
            continue;
        }
        if fresh(idx) {
            if access.balance {
                *turn = (start + step + 1) as u32;
            }
            return Some(idx);
        }
        second = second.or(Some(idx));
    }
    match replicaset.master {
        Some(master) if second.is_none() || (fresh(master) && usable(master)) => Some(master),
        _ => second,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::ReplicasetIdx;

    const MASTER: InstanceIdx = InstanceIdx(0);
    const NEAR: InstanceIdx = InstanceIdx(1);
    const FAR: InstanceIdx = InstanceIdx(2);

    fn replicaset() -> Replicaset {
        Replicaset {
            idx: ReplicasetIdx(0),
            id: "rs".into(),
            uuid: None,
            name: None,
            weight: 1.0,
            master_auto: false,
            master: Some(MASTER),
            instances: vec![MASTER, NEAR, FAR],
            by_priority: vec![NEAR, MASTER, FAR],
        }
    }

    fn access(prefer_replica: bool, balance: bool) -> Access {
        Access { mode: Mode::Read, prefer_replica, balance }
    }

    #[test]
    fn writes_go_to_the_master_whatever_its_state() {
        assert_eq!(pick(&replicaset(), Access::RW, &[], &mut 0, |_| false), Some(MASTER));
    }

    #[test]
    fn reads_go_to_the_nearest_usable() {
        let rs = replicaset();
        assert_eq!(pick(&rs, access(false, false), &[], &mut 0, |_| true), Some(NEAR));
        assert_eq!(pick(&rs, access(false, false), &[], &mut 0, |idx| idx != NEAR), Some(MASTER));
        assert_eq!(pick(&rs, access(true, false), &[], &mut 0, |idx| idx != NEAR), Some(FAR));
        assert_eq!(pick(&rs, access(true, false), &[], &mut 0, |_| false), Some(MASTER));
    }

    #[test]
    fn those_that_failed_come_last() {
        let rs = replicaset();
        assert_eq!(pick(&rs, access(false, false), &[NEAR], &mut 0, |_| true), Some(MASTER));
        assert_eq!(pick(&rs, access(true, false), &[NEAR, FAR], &mut 0, |_| true), Some(MASTER));
        assert_eq!(pick(&rs, access(false, false), &[MASTER, NEAR, FAR], &mut 0, |_| true), Some(NEAR));
        assert_eq!(pick(&rs, access(false, false), &[NEAR], &mut 0, |idx| idx == NEAR), Some(NEAR));
    }

    #[test]
    fn balanced_reads_take_turns() {
        let rs = replicaset();
        let mut turn = 0;
        let all: Vec<_> =
            (0..6).map(|_| pick(&rs, access(false, true), &[], &mut turn, |_| true).unwrap()).collect();
        assert_eq!(all, [NEAR, MASTER, FAR, NEAR, MASTER, FAR]);
        turn = 0;
        let replicas: Vec<_> =
            (0..4).map(|_| pick(&rs, access(true, true), &[], &mut turn, |_| true).unwrap()).collect();
        assert_eq!(replicas, [NEAR, FAR, NEAR, FAR]);
    }
}
