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

/// A question that was put and not answered yet.
#[derive(Debug)]
struct Question {
    whom: InstanceIdx,
    /// The round in which it was put.
    serial: u32,
    /// An answer after this is none.
    until: Time,
}

/// Searches in rounds of questions. A round ends with its last answer, or after [`WORK`]: one that is stuck delays nobody,
/// and is asked again when it has answered.
#[derive(Debug)]
struct Search {
    due: Time,
    open: Vec<Question>,
    /// Answers that this round still waits for, until `expires`.
    missing: u32,
    expires: Time,
    serial: u32,
    /// The master at the start, as long as it was asked and has not said no.
    current: Option<InstanceIdx>,
    /// The first other one that says it is the master.
    candidate: Option<InstanceIdx>,
    found: bool,
}

impl Search {
    /// Gives the new master if what was answered makes one known.
    fn decide(&mut self) -> Option<InstanceIdx> {
        let decided = self.current.is_none() || self.missing == 0;
        let news = if decided && !self.found { self.candidate } else { None };
        self.found |= news.is_some();
        news
    }

    fn pause(&self) -> Duration {
        if self.found { IDLE } else { WORK }
    }
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
            let search = old.remove(&idx).unwrap_or(Search {
                due: now,
                open: Vec::new(),
                missing: 0,
                expires: now,
                serial: 0,
                current: None,
                candidate: None,
                found: false,
            });
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

    /// Ends a round whose time is over and in which somebody else than the present master, which is silent, says that it is
    /// the master.
    pub fn poll_expired(&mut self, now: Time) -> Option<(ReplicasetIdx, InstanceIdx)> {
        for (idx, search) in &mut self.searches {
            if search.missing > 0 && search.expires <= now {
                search.missing = 0;
                let news = search.decide();
                search.due = if search.found { now.after(IDLE) } else { now };
                if let Some(master) = news {
                    return Some((*idx, master));
                }
            }
        }
        None
    }

    /// A replicaset whose instances are to be asked now; say who is with [`Masters::asked`].
    pub fn poll_search(&mut self, now: Time) -> Option<ReplicasetIdx> {
        let is_due = |search: &Search| search.missing == 0 && search.due <= now;
        self.searches.iter().find(|(_, search)| is_due(search)).map(|(idx, _)| *idx)
    }

    /// Whether this one still owes an answer, and is not to be asked again.
    pub fn is_asked(&self, idx: ReplicasetIdx, instance: InstanceIdx, now: Time) -> bool {
        let open = self.searches.get(&idx).map(|search| search.open.as_slice()).unwrap_or_default();
        open.iter().any(|question| question.whom == instance && question.until > now)
    }

    /// These are asked, those that have a connection; `current` is the master so far. Gives the number of this round.
    pub fn asked(
        &mut self,
        idx: ReplicasetIdx,
        whom: &[InstanceIdx],
        current: Option<InstanceIdx>,
        now: Time,
    ) -> u32 {
        let Some(search) = self.searches.get_mut(&idx) else { return 0 };
        let (serial, until) = (search.serial.wrapping_add(1), now.after(2 * TIMEOUT));
        let mut open = std::mem::take(&mut search.open);
        open.retain(|question| question.until > now);
        open.extend(whom.iter().map(|whom| Question { whom: *whom, serial, until }));
        *search = Search {
            due: now.after(WORK),
            open,
            missing: whom.len() as u32,
            expires: now.after(WORK),
            serial,
            current: current.filter(|current| whom.contains(current)),
            candidate: None,
            found: false,
        };
        serial
    }

    /// An instance has answered. Gives the new master if this makes one known: the present one stays as long as it says that
    /// it is, and otherwise the first to say so follows it.
    pub fn handle_answer(
        &mut self,
        idx: ReplicasetIdx,
        serial: u32,
        instance: InstanceIdx,
        is_master: bool,
        now: Time,
    ) -> Option<InstanceIdx> {
        let search = self.searches.get_mut(&idx)?;
        let is_it = |question: &Question| question.whom == instance && question.serial == serial;
        let at = search.open.iter().position(is_it)?;
        search.open.swap_remove(at);
        let in_time = serial == search.serial && search.missing > 0;
        if in_time {
            search.missing -= 1;
        }
        if is_master && search.current == Some(instance) {
            search.found = true;
        } else if is_master {
            search.candidate = search.candidate.or(Some(instance));
        } else if search.current == Some(instance) {
            search.current = None;
        }
        let news = search.decide();
        if news.is_some() || in_time && search.missing == 0 {
            search.due = now.after(search.pause());
        }
        news
    }

    /// What the newest round has brought; None while it goes on.
    pub fn outcome(&self, idx: ReplicasetIdx) -> Option<bool> {
        let search = self.searches.get(&idx).filter(|search| search.missing == 0)?;
        Some(search.found)
    }

    pub fn next_timeout(&self) -> Option<Time> {
        let next = |search: &Search| if search.missing == 0 { search.due } else { search.expires };
        self.searches.values().map(next).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RS: ReplicasetIdx = ReplicasetIdx(0);
    const A: InstanceIdx = InstanceIdx(0);
    const B: InstanceIdx = InstanceIdx(1);

    fn at(ms: u64) -> Time {
        Time::from_nanos(ms * 1_000_000)
    }

    fn started() -> Masters {
        let mut masters = Masters::default();
        masters.set_replicasets([RS].into_iter(), at(0));
        assert_eq!(masters.poll_search(at(0)), Some(RS));
        masters
    }

    #[test]
    fn asks_until_one_says_yes_then_rarely() {
        let mut masters = started();
        let first = masters.asked(RS, &[A, B], None, at(0));
        assert_eq!(masters.poll_search(at(0)), None);
        assert_eq!(masters.handle_answer(RS, first, A, false, at(1)), None);
        assert_eq!(masters.handle_answer(RS, first, B, false, at(2)), None);
        assert_eq!(masters.next_timeout(), Some(at(502)));
        let second = masters.asked(RS, &[A, B], None, at(502));
        assert_eq!(masters.handle_answer(RS, first, A, true, at(503)), None, "an answer of the first round");
        assert_eq!(masters.handle_answer(RS, second, B, true, at(503)), Some(B));
        assert_eq!(masters.handle_answer(RS, second, A, true, at(504)), None, "the first wins");
        assert_eq!(masters.next_timeout(), Some(at(5504)));
        masters.wakeup_one(RS, at(600));
        assert_eq!(masters.poll_search(at(600)), Some(RS));
    }

    #[test]
    fn a_master_that_says_it_is_stays() {
        let mut masters = started();
        let round = masters.asked(RS, &[A, B], Some(A), at(0));
        assert_eq!(
            masters.handle_answer(RS, round, B, true, at(1)),
            None,
            "the present one has the first word"
        );
        assert_eq!(masters.handle_answer(RS, round, A, true, at(2)), None);
        let round = masters.asked(RS, &[A, B], Some(A), at(10));
        assert_eq!(masters.handle_answer(RS, round, B, true, at(11)), None);
        assert_eq!(masters.handle_answer(RS, round, A, false, at(12)), Some(B), "it resigns");
        // Without a connection it is not asked, and not waited for.
        let round = masters.asked(RS, &[B], Some(A), at(20));
        assert_eq!(masters.handle_answer(RS, round, B, true, at(21)), Some(B));
    }

    #[test]
    fn one_that_is_stuck_delays_nobody() {
        let mut masters = started();
        let first = masters.asked(RS, &[A, B], None, at(0));
        masters.wakeup(at(1));
        assert_eq!(masters.poll_search(at(1)), None, "one round at a time");
        assert_eq!(masters.handle_answer(RS, first, B, false, at(2)), None);
        assert_eq!(masters.next_timeout(), Some(at(500)));
        assert_eq!(masters.poll_expired(at(500)), None);
        assert_eq!(masters.poll_search(at(500)), Some(RS));
        assert!(masters.is_asked(RS, A, at(500)) && !masters.is_asked(RS, B, at(500)));
        let second = masters.asked(RS, &[B], None, at(500));
        assert_eq!(masters.handle_answer(RS, second, B, false, at(501)), None);
        assert_eq!(masters.next_timeout(), Some(at(1001)));
        assert_eq!(masters.handle_answer(RS, first, A, true, at(700)), Some(A), "better late than never");
        assert_eq!(masters.next_timeout(), Some(at(5700)));
        masters.asked(RS, &[], None, at(10_000));
        assert_eq!(masters.next_timeout(), Some(at(10_500)), "nobody to ask");
    }

    #[test]
    fn a_master_that_is_silent_gives_way_to_one_that_says_yes() {
        let mut masters = started();
        let first = masters.asked(RS, &[A, B], Some(A), at(0));
        assert_eq!(
            masters.handle_answer(RS, first, B, true, at(1)),
            None,
            "the present one has the first word"
        );
        assert_eq!(masters.poll_expired(at(499)), None);
        assert_eq!(masters.poll_expired(at(500)), Some((RS, B)));
        assert_eq!(masters.poll_search(at(500)), None);
        assert_eq!(masters.handle_answer(RS, first, A, true, at(600)), None, "too late");
        assert_eq!(masters.next_timeout(), Some(at(5500)));
    }

    #[test]
    fn an_answer_that_never_comes_is_given_up() {
        let mut masters = started();
        masters.asked(RS, &[A], None, at(0));
        assert!(masters.is_asked(RS, A, at(9999)) && !masters.is_asked(RS, A, at(10_000)));
    }
}
