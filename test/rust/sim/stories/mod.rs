//! One case each, one subject a file.

mod calls;
mod discovery;
mod futures;
mod identity;
mod leaving;
mod limits;
mod masters;
mod naming;
mod peers;
mod reconfiguration;
mod redirects;
mod replicas;
mod resolve;
mod starting;
mod stopping;
mod timeouts;

use std::time::Duration;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}
