//! Counters of one engine: written by its thread without atomic read-modify-write, read by any.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        #[derive(Debug, Default)]
        pub struct Counters { $($(#[$doc])* pub $name: Counter,)* }

        /// The counters at one moment.
        #[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
        pub struct Snapshot { $($(#[$doc])* pub $name: u64,)* }

        impl Counters {
            pub fn snapshot(&self) -> Snapshot {
                Snapshot { $($name: self.$name.0.load(Ordering::Relaxed),)* }
            }
        }

        impl Snapshot {
            /// Name and value of each, for `info`.
            pub fn fields(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }
        }
    };
}

counters! {
    /// Calls accepted.
    calls,
    /// Replies given, failures among them.
    replies,
    /// Replies that are failures.
    failures,
    /// Attempts beyond a call's first.
    retries,
    /// Refusals that named another replicaset.
    redirects,
    /// Calls ended by their deadline.
    timeouts,
    /// Calls whose caller left.
    cancelled,
    /// Answers that came after their call had ended; dropped.
    late,
    /// Calls ended since too much of what was pushed to them was not read.
    push_overflows,
    /// Connections made ready.
    connects,
    /// Connections lost or refused.
    disconnects,
    /// Peers that broke the protocol; their connections were closed.
    protocol_errors,
    bytes_in,
    bytes_out,
    /// Turns of the loop, and those that ended in sleep.
    turns,
    sleeps,
    /// Calls under way now, the most at once, and slots carved for them.
    in_flight,
    in_flight_peak,
    slots,
}

#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// By the owning thread only: a plain load and store.
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
