//! How long replies may lie before the host is woken for them, so that it is woken once for several.
//!
//! Being woken costs TX what a dozen calls do. Where storages are the limit, and hundreds of calls wait for them, answers
//! come a few at a time, and TX would wake for those few over and over. A call that has waited for long already
//! does not mind to wait a little longer, one that was quick does, whatever else is under way. So it is the call's own
//! time that says how long.

use std::time::Duration;

use crate::time::Time;

/// A call is made longer by this part of itself at most, and so many of the calls under way may be held: what is
/// answered beside few others is told at once.
const PART: u32 = 16;
const LONGEST: Duration = Duration::from_millis(4);
/// What the poller can wait at least.
const TICK: Duration = Duration::from_millis(1);

/// When the host is to be woken for the result of a call whose storage took so long.
pub fn ring_by(took: Duration, now: Time) -> Time {
    let span = (took / PART).min(LONGEST);
    if span < TICK { Time::ZERO } else { now.after(span) }
}

/// With so many replies the host is woken, beside `under_way` other calls.
pub fn enough(under_way: usize) -> usize {
    under_way / PART as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(took: Duration) -> Duration {
        let now = Time::ZERO.after(Duration::from_secs(1));
        ring_by(took, now).since(now)
    }

    #[test]
    fn a_sixteenth_of_what_it_took() {
        let millis = Duration::from_millis;
        assert_eq!(held(Duration::ZERO), Duration::ZERO);
        assert_eq!(held(millis(15)), Duration::ZERO, "less than the poller can wait");
        assert_eq!(held(millis(16)), millis(1));
        assert_eq!(held(millis(48)), millis(3));
        assert_eq!(held(Duration::from_secs(3600)), millis(4));
        assert_eq!(held(Duration::MAX), millis(4));
    }

    #[test]
    fn beside_few_others_nothing_is_held() {
        assert_eq!([0, 15, 16, 100, 2000].map(enough), [0, 0, 1, 6, 125]);
    }
}
