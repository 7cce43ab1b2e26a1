//! Numbers at random: which bucket is called, which storage is killed.

use std::time::{SystemTime, UNIX_EPOCH};

/// xorshift64*: small, and the same everywhere for one seed.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed | 1)
    }

    #[inline]
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    #[inline]
    pub fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 32) % n
    }

    pub fn between(&mut self, from: f64, to: f64) -> f64 {
        from + (self.next() >> 11) as f64 / (1u64 << 53) as f64 * (to - from)
    }
}

/// Another one each time.
pub fn seed_of_now() -> u64 {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::from(time.subsec_nanos()) ^ (time.as_secs() << 20 & 0xffff_ffff)
}
