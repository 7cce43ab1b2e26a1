//! Deadlines of many calls: a hashed timing wheel. Setting and clearing cost the same however many there are, and
//! nothing is left behind by those that are cleared.

use std::time::Duration;

use crate::time::Time;

/// About a millisecond: 2^20 ns. A deadline fires in the tick after the one it lies in, so never early.
const TICK_SHIFT: u32 = 20;
/// One rotation is about 4.3 s; what lies beyond is met once per rotation and stays.
const SLOTS: usize = 4096;
/// As many as a word has bits.
const WORDS: usize = SLOTS / 64;
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Link {
    prev: u32,
    next: u32,
    tick: u64,
    set: bool,
}

const UNSET: Link = Link { prev: NONE, next: NONE, tick: 0, set: false };

/// Entries are slab indexes: small and dense.
pub struct Wheel {
    heads: Box<[u32]>,
    /// A bit per slot that holds something.
    occupied: [u64; WORDS],
    /// A bit per word of `occupied` that is not zero: one word, so that `next` need not look at all of them.
    words: u64,
    links: Vec<Link>,
    /// All ticks up to this one are done.
    done: u64,
    len: u32,
}

impl Wheel {
    pub fn new(now: Time) -> Wheel {
        Wheel {
            heads: vec![NONE; SLOTS].into_boxed_slice(),
            occupied: [0; WORDS],
            words: 0,
            links: Vec::new(),
            done: tick(now),
            len: 0,
        }
    }

    /// Sets or moves the deadline of `index`.
    pub fn set(&mut self, index: u32, at: Time) {
        self.clear(index);
        if self.links.len() <= index as usize {
            self.links.resize(index as usize + 1, UNSET);
        }
        let tick = (tick(at) + 1).max(self.done + 1);
        let slot = tick as usize % SLOTS;
        let head = self.heads[slot];
        self.links[index as usize] = Link { prev: NONE, next: head, tick, set: true };
        if head != NONE {
            self.links[head as usize].prev = index;
        }
        self.heads[slot] = index;
        self.occupied[slot / 64] |= 1 << (slot % 64);
        self.words |= 1 << (slot / 64);
        self.len += 1;
    }

    pub fn clear(&mut self, index: u32) {
        let Some(link) = self.links.get_mut(index as usize) else { return };
        if !link.set {
            return;
        }
        let Link { prev, next, tick, .. } = *link;
        *link = UNSET;
        if next != NONE {
            self.links[next as usize].prev = prev;
        }
        if prev != NONE {
            self.links[prev as usize].next = next;
        } else {
            let slot = tick as usize % SLOTS;
            self.heads[slot] = next;
            if next == NONE {
                self.occupied[slot / 64] &= !(1 << (slot % 64));
                if self.occupied[slot / 64] == 0 {
                    self.words &= !(1 << (slot / 64));
                }
            }
        }
        self.len -= 1;
    }

    /// Appends the entries whose time has come, which are cleared by that.
    pub fn expire(&mut self, now: Time, expired: &mut Vec<u32>) {
        let now = tick(now);
        if now <= self.done {
            return;
        }
        let from = self.done + 1;
        self.done = now;
        if self.len == 0 {
            return;
        }
        let steps = (now - from + 1).min(SLOTS as u64);
        for step in 0..steps {
            let slot = (from + step) as usize % SLOTS;
            if self.occupied[slot / 64] & 1 << (slot % 64) == 0 {
                continue;
            }
            let mut index = self.heads[slot];
            while index != NONE {
                let link = self.links[index as usize];
                if link.tick <= now {
                    self.clear(index);
                    expired.push(index);
                }
                index = link.next;
            }
        }
    }

    /// How many deadlines are set.
    pub fn len(&self) -> u32 {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// When to look again; None while empty. It may come early for entries beyond one rotation.
    pub fn next(&self) -> Option<Time> {
        if self.len == 0 {
            return None;
        }
        let start = (self.done + 1) as usize % SLOTS;
        let (word, bit) = (start / 64, start % 64);
        // From `start` to the end of its word, then the words behind it, around to its own beginning.
        let here = self.occupied[word] >> bit;
        let distance = if here != 0 {
            here.trailing_zeros() as usize
        } else {
            let behind = self.words.rotate_right(word as u32) & !1;
            let ahead = if behind != 0 { behind.trailing_zeros() as usize } else { WORDS };
            let first = self.occupied[(word + ahead) % WORDS].trailing_zeros() as usize;
            64 * ahead + first - bit
        };
        Some(Time::from_nanos((self.done + 1 + distance as u64) << TICK_SHIFT))
    }
}

fn tick(at: Time) -> u64 {
    at.nanos() >> TICK_SHIFT
}

/// The longest that an entry may fire after its time, apart from when `expire` is called.
pub const PRECISION: Duration = Duration::from_nanos(1 << TICK_SHIFT);

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Time {
        Time::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn entries_fire_in_time_and_never_early() {
        // A plain list as the oracle; the schedule is a fixed pseudo-random walk.
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut random = move |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        let mut wheel = Wheel::new(ms(5));
        let mut due = vec![None; 200];
        let mut now = ms(5);
        for _ in 0..20_000 {
            let index = random(200) as u32;
            match random(4) {
                0 => {
                    wheel.clear(index);
                    due[index as usize] = None;
                }
                1 | 2 => {
                    let at = now.after(Duration::from_micros(random(12_000_000)));
                    wheel.set(index, at);
                    due[index as usize] = Some(at);
                }
                _ => {
                    now = now.after(Duration::from_micros(random(30_000)));
                    let mut expired = Vec::new();
                    wheel.expire(now, &mut expired);
                    for index in expired {
                        let at = due[index as usize].take().expect("fired once");
                        assert!(at <= now, "{at:?} at {now:?}");
                    }
                    for at in due.iter().flatten() {
                        assert!(at.after(2 * PRECISION) >= now, "{at:?} missed at {now:?}");
                    }
                    if let Some(next) = wheel.next() {
                        let first = due.iter().flatten().min().expect("not empty");
                        assert!(next <= first.after(2 * PRECISION));
                    } else {
                        assert_eq!(due.iter().flatten().count(), 0);
                    }
                }
            }
        }
    }
}
