//! One case each, one subject a file.

mod calls;
mod discovery;
mod failover;
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

use crate::cluster::{Hook, Reaction};
use crate::common::server;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// An instance on which vshard's functions may not be called: reads leave it alone for a while.
fn denied() -> Hook {
    Box::new(|request| {
        (request.kind == server::TYPE_CALL).then(|| {
            let text = "Execute access to function 'vshard.storage.call' is denied for user 'storage'";
            Reaction::Answer(0, server::error(request.sync, server::ER_ACCESS_DENIED, text))
        })
    })
}
