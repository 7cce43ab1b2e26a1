//! Whether a thread that has nothing to do should look around for a moment before it sleeps.
//!
//! Falling asleep and being woken costs two switches and, on an idle core, the time until that core runs again: more than
//! an answer of a near storage takes. But looking burns a core if nothing comes. So the thread looks only while most of its
//! recent waits were short.

use std::time::Duration;

/// Recent waits count half after so many newer ones.
const MEMORY: u32 = 8;
/// What waits that were all short add up to.
const FULL: u32 = 1 << 16;

pub struct Patience {
    /// 0, all recent waits were long, to [`FULL`].
    short: u32,
}

impl Patience {
    pub const fn new() -> Patience {
        Patience { short: 0 }
    }

    /// How long to look before sleeping, `limit` at most. Zero: sleep at once.
    pub fn span(&self, limit: Duration) -> Duration {
        if self.short > FULL / 2 { limit } else { Duration::ZERO }
    }

    /// A wait has ended that took `waited`, asleep or not.
    pub fn learn(&mut self, waited: Duration, limit: Duration) {
        self.short -= self.short / MEMORY;
        if waited <= limit {
            self.short += FULL / MEMORY;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_micros(100);
    const SHORT: Duration = Duration::from_micros(40);
    const LONG: Duration = Duration::from_millis(1);

    fn after(waits: impl IntoIterator<Item = Duration>) -> Patience {
        let mut patience = Patience::new();
        waits.into_iter().for_each(|waited| patience.learn(waited, LIMIT));
        patience
    }

    #[test]
    fn looks_only_while_most_waits_are_short() {
        let looks = |waits: Vec<Duration>| after(waits).span(LIMIT) == LIMIT;
        assert!(!looks(vec![]));
        assert!(!looks(vec![SHORT; 3]), "a few are no habit");
        assert!(looks(vec![SHORT; 20]));
        assert!(!looks([vec![SHORT; 1000], vec![LONG; 8]].concat()), "learns fast that it does not pay");
        assert!(looks([vec![LONG; 1000], vec![SHORT; 8]].concat()), "and that it does");
        assert!(looks([SHORT, SHORT, SHORT, LONG].repeat(100)));
        assert!(!looks([SHORT, LONG, LONG, LONG].repeat(100)));
    }

    #[test]
    fn a_limit_of_zero_never_looks() {
        let mut patience = Patience::new();
        (0..100).for_each(|_| patience.learn(Duration::ZERO, Duration::ZERO));
        assert_eq!(patience.span(Duration::ZERO), Duration::ZERO);
    }
}
