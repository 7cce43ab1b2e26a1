//! When to try to connect again. Randomness is passed in.

use std::time::Duration;

/// vshard reconnects every 0.5 s (consts.lua: RECONNECT_TIMEOUT); a first try comes sooner, since most interruptions are short.
const FIRST: Duration = Duration::from_millis(50);
const MOST: Duration = Duration::from_millis(500);

#[derive(Debug, Default)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The pause after one more failure: doubled each time up to a bound, and shortened by up to half, so that many
    /// routers do not come back in step. `random` is any number.
    pub fn next(&mut self, random: u64) -> Duration {
        let full = FIRST.saturating_mul(1 << self.failures.min(10)).min(MOST);
        self.failures = self.failures.saturating_add(1);
        let spread = full.as_nanos() as u64 / 2;
        full - Duration::from_nanos(random % (spread + 1))
    }

    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound_and_are_spread() {
        let mut backoff = Backoff::default();
        let longest: Vec<u128> = (0..6).map(|_| backoff.next(0).as_millis()).collect();
        assert_eq!(longest, [50, 100, 200, 400, 500, 500]);
        for random in [1, 7_777_777, u64::MAX] {
            let pause = backoff.next(random);
            assert!(pause >= MOST / 2 && pause <= MOST, "{pause:?}");
        }
        backoff.reset();
        assert_eq!(backoff.next(0), FIRST);
    }
}
