//! Pace and cursor of bucket discovery: every replicaset is asked for its buckets, page after page, forever.
//!
//! As vshard's discovery fiber (router: discovery_service_f), but pages of one replicaset follow at once while buckets are
//! unknown, where vshard waits a second between them.

use std::collections::HashMap;
use std::time::Duration;

use crate::control::config::DiscoveryMode;
use crate::ids::ReplicasetIdx;
use crate::time::Time;

/// Between pages while something is unknown (consts.lua: DISCOVERY_WORK_STEP).
const STEP: Duration = Duration::from_millis(10);
/// Between rounds while something is unknown, and after a failure (DISCOVERY_WORK_INTERVAL).
const WORK: Duration = Duration::from_secs(1);
/// Between pages when all is known (DISCOVERY_IDLE_INTERVAL).
const IDLE: Duration = Duration::from_secs(10);
/// For one answer (DISCOVERY_TIMEOUT).
pub const TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug)]
struct Cursor {
    from: u64,
    due: Time,
    asked: bool,
    failing: bool,
    /// The highest bucket beyond the configured count that this round has met, and the one before; 0: none.
    beyond: u32,
    beyond_before: u32,
}

impl Cursor {
    fn new(due: Time) -> Cursor {
        Cursor { from: 1, due, asked: false, failing: false, beyond: 0, beyond_before: 0 }
    }
}

#[derive(Debug)]
pub struct Discovery {
    mode: DiscoveryMode,
    cursors: HashMap<ReplicasetIdx, Cursor>,
    /// Mode `once` has done its work.
    finished: bool,
}

impl Discovery {
    pub fn new(mode: DiscoveryMode) -> Discovery {
        Discovery { mode, cursors: HashMap::new(), finished: false }
    }

    pub fn mode(&self) -> DiscoveryMode {
        self.mode
    }

    /// Setting the mode that is set already changes nothing, as in vshard.
    pub fn set_mode(&mut self, mode: DiscoveryMode, now: Time) {
        if mode != self.mode {
            self.mode = mode;
            self.finished = false;
            self.wakeup(now);
        }
    }

    /// Asks everybody now.
    pub fn wakeup(&mut self, now: Time) {
        self.cursors.values_mut().for_each(|cursor| cursor.due = cursor.due.min(now));
    }

    /// The configuration has these replicasets now.
    pub fn set_replicasets(&mut self, replicasets: impl Iterator<Item = ReplicasetIdx>, now: Time) {
        let mut old = std::mem::take(&mut self.cursors);
        for (i, idx) in replicasets.enumerate() {
            let due = now.after(STEP * i as u32);
            let cursor = old.remove(&idx).unwrap_or(Cursor::new(due));
            self.cursors.insert(idx, cursor);
        }
    }

    /// Whom to ask now, and from which bucket on.
    pub fn poll_page(&mut self, now: Time) -> Option<(ReplicasetIdx, u64)> {
        if !self.is_active() {
            return None;
        }
        let (idx, cursor) = self.cursors.iter_mut().find(|(_, cursor)| !cursor.asked && cursor.due <= now)?;
        cursor.asked = true;
        Some((*idx, cursor.from))
    }

    /// A page came; the next one starts at `next_from`, None at the end. `unknown` counts buckets without a route after it.
    pub fn handle_page(&mut self, idx: ReplicasetIdx, next_from: Option<u64>, unknown: u32, now: Time) {
        if unknown == 0 && self.mode == DiscoveryMode::Once {
            self.finished = true;
        }
        let Some(cursor) = self.cursors.get_mut(&idx) else { return };
        cursor.asked = false;
        cursor.failing = false;
        // A peer that names a page again and again gets no more than the pace of rounds.
        let advanced = next_from.filter(|next| *next > cursor.from);
        cursor.from = advanced.unwrap_or(1);
        if advanced.is_none() {
            cursor.beyond_before = std::mem::take(&mut cursor.beyond);
        }
        let pause = match (unknown, advanced) {
            (0, _) => IDLE,
            (_, Some(_)) => STEP,
            (_, None) => WORK,
        };
        cursor.due = now.after(pause);
    }

    /// A page names this bucket, which by the configuration does not exist.
    pub fn handle_beyond(&mut self, idx: ReplicasetIdx, bucket: u32) {
        if let Some(cursor) = self.cursors.get_mut(&idx) {
            cursor.beyond = cursor.beyond.max(bucket);
        }
    }

    /// The highest of such buckets; None: there are none.
    pub fn beyond(&self) -> Option<u32> {
        let highest = |cursor: &Cursor| cursor.beyond.max(cursor.beyond_before);
        self.cursors.values().map(highest).max().filter(|bucket| *bucket > 0)
    }

    /// No page came. True the first time in a row: worth a line in the log.
    pub fn handle_failure(&mut self, idx: ReplicasetIdx, now: Time) -> bool {
        let Some(cursor) = self.cursors.get_mut(&idx) else { return false };
        cursor.asked = false;
        cursor.due = now.after(WORK);
        !std::mem::replace(&mut cursor.failing, true)
    }

    pub fn next_timeout(&self) -> Option<Time> {
        if !self.is_active() {
            return None;
        }
        self.cursors.values().filter(|cursor| !cursor.asked).map(|cursor| cursor.due).min()
    }

    /// Questions are under way.
    pub fn is_waiting(&self) -> bool {
        self.cursors.values().any(|cursor| cursor.asked)
    }

    pub fn is_active(&self) -> bool {
        self.mode != DiscoveryMode::Off && !self.finished
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RS: ReplicasetIdx = ReplicasetIdx(0);

    fn at(ms: u64) -> Time {
        Time::from_nanos(ms * 1_000_000)
    }

    fn started(mode: DiscoveryMode) -> Discovery {
        let mut discovery = Discovery::new(mode);
        discovery.set_replicasets([RS].into_iter(), at(0));
        discovery
    }

    #[test]
    fn buckets_beyond_the_count_are_told_of_until_a_round_without_them() {
        let mut discovery = started(DiscoveryMode::On);
        let mut page = |beyond: &[u32], next| {
            beyond.iter().for_each(|bucket| discovery.handle_beyond(RS, *bucket));
            discovery.handle_page(RS, next, 0, at(0));
            discovery.beyond()
        };
        assert_eq!(page(&[], None), None);
        assert_eq!(page(&[35, 40, 31], Some(1001)), Some(40));
        assert_eq!(page(&[], None), Some(40), "the round has met it");
        assert_eq!(page(&[], Some(1001)), Some(40), "the next has not come to its end");
        assert_eq!(page(&[], None), None);
    }

    #[test]
    fn pages_follow_fast_while_something_is_unknown() {
        let mut discovery = started(DiscoveryMode::On);
        assert_eq!(discovery.poll_page(at(0)), Some((RS, 1)));
        assert_eq!(discovery.poll_page(at(0)), None, "one question at a time");
        discovery.handle_page(RS, Some(1001), 500, at(5));
        assert_eq!(discovery.next_timeout(), Some(at(15)));
        assert_eq!(discovery.poll_page(at(15)), Some((RS, 1001)));
        discovery.handle_page(RS, None, 500, at(20));
        assert_eq!(discovery.next_timeout(), Some(at(1020)));
        assert_eq!(discovery.poll_page(at(1020)), Some((RS, 1)));
        discovery.handle_page(RS, None, 0, at(1030));
        assert_eq!(discovery.next_timeout(), Some(at(11_030)));
    }

    #[test]
    fn a_failure_keeps_the_place() {
        let mut discovery = started(DiscoveryMode::On);
        discovery.poll_page(at(0));
        discovery.handle_page(RS, Some(7), 1, at(0));
        discovery.poll_page(at(10));
        assert!(discovery.handle_failure(RS, at(20)));
        assert_eq!(discovery.poll_page(at(1020)), Some((RS, 7)));
        assert!(!discovery.handle_failure(RS, at(1030)), "said once");
    }

    #[test]
    fn once_ends_when_all_is_known_and_off_never_asks() {
        let mut discovery = started(DiscoveryMode::Once);
        discovery.poll_page(at(0));
        discovery.handle_page(RS, None, 0, at(1));
        assert_eq!(discovery.next_timeout(), None);
        discovery.set_mode(DiscoveryMode::On, at(2));
        assert_eq!(discovery.poll_page(at(2)), Some((RS, 1)));
        assert_eq!(started(DiscoveryMode::Off).poll_page(at(100)), None);
    }

    #[test]
    fn a_page_that_names_itself_makes_no_loop() {
        let mut discovery = started(DiscoveryMode::On);
        discovery.poll_page(at(0));
        discovery.handle_page(RS, Some(1), 10, at(0));
        assert_eq!(discovery.next_timeout(), Some(at(1000)));
    }
}
