//! Who is the master, where the configuration leaves that to be found out (`master = 'auto'`): pace of asking.
//!
//! As vshard's master search service (replicaset.lua: replicaset_locate_master).

use std::collections::HashMap;
use std::time::Duration;

use crate::ids::{InstanceIdx, ReplicasetIdx};
use crate::time::Time;

/// Between looks at a known master (consts.lua: MASTER_SEARCH_IDLE_INTERVAL).
const IDLE: Duration = Duration::from_secs(5);
/// Between searches while there is none (MASTER_SEARCH_WORK_INTERVAL).
const WORK: Duration = Duration::from_millis(500);
/// For one answer (MASTER_SEARCH_TIMEOUT).
pub const TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug)]
struct Search {
    due: Time,
    open: u32,
    found: bool,
}

#[derive(Debug, Default)]
pub struct Masters {
    searches: HashMap<ReplicasetIdx, Search>,
}

impl Masters {
    /// These replicasets have `master = 'auto'`.
    pub fn set_replicasets(&mut self, replicasets: impl Iterator<Item = ReplicasetIdx>, now: Time) {
        let mut old = std::mem::take(&mut self.searches);
        for idx in replicasets {
            let search = old.remove(&idx).unwrap_or(Search { due: now, open: 0, found: false });
            self.searches.insert(idx, search);
        }
    }

    pub fn wakeup(&mut self, now: Time) {
        self.searches.values_mut().for_each(|search| search.due = search.due.min(now));
    }

    /// Somebody needs to know now.
    pub fn wakeup_one(&mut self, idx: ReplicasetIdx, now: Time) {
        if let Some(search) = self.searches.get_mut(&idx) {
            search.due = search.due.min(now);
        }
    }

    /// A replicaset whose instances are to be asked now; say how many were with [`Masters::asked`].
    pub fn poll_search(&mut self, now: Time) -> Option<ReplicasetIdx> {
        self.searches.iter().find(|(_, search)| search.open == 0 && search.due <= now).map(|(idx, _)| *idx)
    }

    pub fn asked(&mut self, idx: ReplicasetIdx, questions: u32, now: Time) {
        if let Some(search) = self.searches.get_mut(&idx) {
            search.open = questions;
            search.found = false;
            // While answers are missing; should all be lost, the search begins anew.
            search.due = now.after(if questions == 0 { WORK } else { 2 * TIMEOUT });
        }
    }

    /// An instance has answered. Gives the new master if this makes one known.
    pub fn handle_answer(
        &mut self,
        idx: ReplicasetIdx,
        instance: InstanceIdx,
        is_master: bool,
        now: Time,
    ) -> Option<InstanceIdx> {
        let search = self.searches.get_mut(&idx)?;
        search.open = search.open.saturating_sub(1);
        let first = is_master && !search.found;
        search.found |= is_master;
        if search.open == 0 {
            search.due = now.after(if search.found { IDLE } else { WORK });
        }
        first.then_some(instance)
    }

    pub fn next_timeout(&self) -> Option<Time> {
        self.searches.values().filter(|search| search.open == 0).map(|search| search.due).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn asks_until_one_says_yes_then_rarely() {
        let (rs, a, b) = (ReplicasetIdx(0), InstanceIdx(0), InstanceIdx(1));
        let mut masters = Masters::default();
        masters.set_replicasets([rs].into_iter(), at(0));
        assert_eq!(masters.poll_search(at(0)), Some(rs));
        masters.asked(rs, 2, at(0));
        assert_eq!(masters.poll_search(at(0)), None);
        assert_eq!(masters.handle_answer(rs, a, false, at(1)), None);
        assert_eq!(masters.handle_answer(rs, b, false, at(2)), None);
        assert_eq!(masters.next_timeout(), Some(at(502)));
        masters.asked(rs, 2, at(502));
        assert_eq!(masters.handle_answer(rs, b, true, at(503)), Some(b));
        assert_eq!(masters.handle_answer(rs, a, true, at(504)), None, "the first wins");
        assert_eq!(masters.next_timeout(), Some(at(5504)));
        masters.wakeup_one(rs, at(600));
        assert_eq!(masters.poll_search(at(600)), Some(rs));
    }
}
