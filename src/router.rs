//! A running router: its engine threads, its control thread, and the door for front ends.

use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::call::request::{Reply, Request, Token};
use crate::control::config::Config;
use crate::engine::inbox::Wake;
use crate::route::buckets::Buckets;
use crate::route::topology::Topology;
use crate::time::Time;

/// Why a router could not be started or reconfigured.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("bucket_count can not be changed from {0} to {1}")]
    BucketCount(u32, u32),
    #[error("io_threads can not be changed from {0} to {1}")]
    IoThreads(u32, u32),
    #[error("can not start a thread: {0}")]
    Thread(#[from] std::io::Error),
}

/// All methods are for any thread. Dropping it stops it.
pub struct Router {
    topology: Arc<ArcSwap<Topology>>,
    buckets: Arc<Buckets>,
}

impl Router {
    /// Starts the threads. `host` is woken when replies for [`crate::call::request::Client::Host`] wait in
    /// [`Router::take_replies`].
    pub fn start(_config: Config, _host: Arc<dyn Wake>) -> Result<Router, ConfigError> {
        todo!()
    }

    /// Replaces the configuration; calls under way go on. On an error the old one stays.
    pub fn reconfigure(&self, _config: Config) -> Result<(), ConfigError> {
        todo!()
    }

    /// Ends all calls with an error and joins the threads; the replies can still be taken. Does nothing the second time.
    pub fn stop(&self) {
        todo!()
    }

    /// Accepts a call. Its reply comes by its deadline.
    pub fn post(&self, _request: Request) {
        todo!()
    }

    /// The caller of `token`, which was sent to `target`, has left. A reply may still come and must then be dropped.
    pub fn cancel(&self, _token: Token, _target: crate::call::request::Target) {
        todo!()
    }

    /// Replies for the host since the last time; `into` must be empty.
    pub fn take_replies(&self, _into: &mut Vec<Reply>) {
        todo!()
    }

    /// Now, on the clock of deadlines.
    pub fn now(&self) -> Time {
        todo!()
    }

    pub fn topology(&self) -> Arc<Topology> {
        self.topology.load_full()
    }

    pub fn buckets(&self) -> &Buckets {
        &self.buckets
    }

    pub fn discovery_wakeup(&self) {
        todo!()
    }

    pub fn discovery_set(&self, _mode: crate::control::config::DiscoveryMode) {
        todo!()
    }

    pub fn master_search_wakeup(&self) {
        todo!()
    }

    /// Counters of each engine.
    pub fn engines(&self) -> Vec<crate::metrics::Snapshot> {
        todo!()
    }
}
