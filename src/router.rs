//! A running router: its engine threads, its control thread, and the door for front ends.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use arc_swap::ArcSwap;

use crate::call::key::{self, Keyspace};
use crate::call::raw_args;
use crate::call::request::{Form, Outcome, Reply, Request, Target, Token};
use crate::control::config::{Config, DiscoveryMode};
use crate::control::publish::Publisher;
use crate::control::services::Services;
use crate::control::thread::Signal;
use crate::control::{self, Command, Control, Status};
use crate::engine::core::Core;
use crate::engine::inbox::{Inbox, Message, Outbox, Wake};
use crate::engine::sys::{self, PollWaker};
use crate::engine::thread::{Outlets, Thread, WAKER};
use crate::error::Failure;
use crate::ids::{BucketId, InstanceIdx, ReplicasetIdx};
use crate::metrics::{Counters, Snapshot};
use crate::route::buckets::Buckets;
use crate::route::topology::Topology;
use crate::time::Time;
use crate::wire::vshard::write_failure;

/// Why a router could not be started or reconfigured.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("bucket_count can not be changed from {0} to {1}")]
    BucketCount(u32, u32),
    #[error("io_threads can not be changed from {0} to {1}")]
    IoThreads(u32, u32),
    #[error("can not start a thread: {0}")]
    Thread(#[from] io::Error),
}

/// All methods are for any thread. Dropping it stops it.
pub struct Router {
    topology: Arc<ArcSwap<Topology>>,
    buckets: Arc<Buckets>,
    publisher: Arc<Publisher>,
    engines: Vec<Engine>,
    commands: Arc<Outbox<Command>>,
    status: Arc<Mutex<Status>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Replies made here, not by an engine: to requests that came after it had left.
    refused: Outbox<Reply>,
    /// There are such.
    refusing: AtomicBool,
    stopped: AtomicBool,
}

struct Engine {
    inbox: Arc<Inbox>,
    host: Arc<Outbox<Reply>>,
    counters: Arc<Counters>,
}

impl Router {
    /// Starts the threads. `host` is woken when replies for [`crate::call::request::Client::Host`] wait in
    /// [`Router::take_replies`].
    pub fn start(config: Config, host: Arc<dyn Wake>) -> Result<Router, ConfigError> {
        let topology = Arc::new(ArcSwap::from_pointee(Topology::default()));
        let buckets = Arc::new(Buckets::new(config.bucket_count));
        let publisher = Arc::new(Publisher::new(Arc::clone(&topology), Arc::clone(&buckets)));
        publisher.configure(&config);
        let signal = Arc::new(Signal::default());
        let commands = Arc::new(Outbox::new(Arc::clone(&signal) as Arc<dyn Wake>));
        let mode = config.discovery_mode;
        let control = Control::new(Arc::clone(&publisher), Arc::clone(&buckets), mode);
        let status = Arc::new(Mutex::new(control.status()));
        let mut router = Router {
            topology,
            buckets,
            publisher,
            engines: Vec::new(),
            commands,
            status,
            threads: Mutex::new(Vec::new()),
            refused: Outbox::new(Arc::clone(&host)),
            refusing: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
        };
        // Threads take over the mask of the one that starts them.
        let mask = sys::block_signals()?;
        let started = router.start_threads(&config, control, signal, &host);
        sys::restore_signals(&mask)?;
        // On a failure the router is dropped, which stops the threads that did start.
        started?;
        router.command(Command::Configured(config.discovery_mode));
        Ok(router)
    }

    fn start_threads(
        &mut self,
        config: &Config,
        control: Control,
        signal: Arc<Signal>,
        host: &Arc<dyn Wake>,
    ) -> io::Result<()> {
        let (mut replies, mut reports) = (Vec::new(), Vec::new());
        for number in 0..config.io_threads.max(1) {
            let poll = mio::Poll::new()?;
            let waker = Arc::new(mio::Waker::new(poll.registry(), WAKER)?);
            let inbox = Arc::new(Inbox::new(Arc::new(PollWaker(waker))));
            let outlets = Outlets {
                host: Arc::new(Outbox::new(Arc::clone(host))),
                control: Arc::new(Outbox::new(Arc::clone(&signal) as Arc<dyn Wake>)),
                reports: Arc::new(Outbox::new(Arc::clone(&signal) as Arc<dyn Wake>)),
            };
            replies.push(Arc::clone(&outlets.control));
            reports.push(Arc::clone(&outlets.reports));
            let counters = Arc::new(Counters::default());
            self.engines.push(Engine {
                inbox: Arc::clone(&inbox),
                host: Arc::clone(&outlets.host),
                counters: Arc::clone(&counters),
            });
            let (source, buckets) = (Arc::clone(&self.topology), Arc::clone(&self.buckets));
            let core = move || {
                let now = sys::now();
                let seed = now.nanos() ^ u64::from(number) << 32 ^ u64::from(std::process::id());
                Core::new(Arc::clone(&source), Arc::clone(&buckets), Arc::clone(&counters), seed, now)
            };
            let thread = Thread::new(Box::new(core), poll, inbox, outlets);
            self.spawn(format!("rawshard-io{number}"), move || thread.run())?;
        }
        let thread = control::thread::Thread {
            control,
            signal,
            commands: Arc::clone(&self.commands),
            replies,
            reports,
            engines: self.engines.iter().map(|engine| Arc::clone(&engine.inbox)).collect(),
            status: Arc::clone(&self.status),
        };
        self.spawn("rawshard-ctl".into(), move || thread.run())
    }

    fn spawn(&self, name: String, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let thread = std::thread::Builder::new().name(name).spawn(run)?;
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        Ok(())
    }

    /// Replaces the configuration; calls under way go on. On an error the old one stays.
    pub fn reconfigure(&self, config: Config) -> Result<(), ConfigError> {
        let threads = self.engines.len() as u32;
        if config.bucket_count != self.buckets.count() {
            return Err(ConfigError::BucketCount(self.buckets.count(), config.bucket_count));
        }
        if config.io_threads.max(1) != threads {
            return Err(ConfigError::IoThreads(threads, config.io_threads));
        }
        self.publisher.configure(&config);
        self.command(Command::Configured(config.discovery_mode));
        // Adopts the snapshot and tries at once what had failed.
        self.engines.iter().for_each(|engine| engine.inbox.post(Message::Refresh));
        Ok(())
    }

    /// Ends all calls with an error and joins the threads; the replies can still be taken. Does nothing the second time.
    pub fn stop(&self) {
        if self.stopped.swap(true, Ordering::SeqCst) {
            return;
        }
        self.command(Command::Stop);
        self.engines.iter().for_each(|engine| engine.inbox.post(Message::Stop));
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            let name = thread.thread().name().unwrap_or("?").to_string();
            if thread.join().is_err() {
                log::error!("thread {name} has panicked");
            }
        }
    }

    /// Accepts a call. Its reply comes by its deadline.
    pub fn post(&self, request: Request) {
        let engine = self.engine_of(request.target);
        self.post_all(engine, &mut vec![Message::Call(request)]);
    }

    /// Accepts messages for one engine, in their order; `batch` is left empty. Calls, raw calls and cancels alone are for
    /// front ends to send.
    pub fn post_all(&self, engine: usize, batch: &mut Vec<Message>) {
        if self.engines[engine].inbox.post_all(batch) {
            return;
        }
        let mut error = Vec::new();
        write_failure(&mut error, &Failure::Stopped);
        let refuse = |message| {
            let (token, buffer) = match message {
                Message::Call(request) => (request.token, request.body.0),
                Message::Raw(request) => (request.token, request.bytes),
                _ => return None,
            };
            Some(Reply::copied(token, Outcome::Failed, buffer, &error, 1))
        };
        self.refusing.store(true, Ordering::Relaxed);
        self.refused.put_all(&mut batch.drain(..).filter_map(refuse).collect());
    }

    /// The caller of `token`, which was sent to `target`, has left. A reply may still come and must then be dropped.
    pub fn cancel(&self, token: Token, target: Target) {
        let message = Message::Cancel(crate::call::request::Client::Host, token);
        self.post_all(self.engine_of(target), &mut vec![message]);
    }

    pub fn engine_count(&self) -> usize {
        self.engines.len()
    }

    /// The engine for calls to `target`. Those for one bucket go through one engine, so that they leave in the order in which
    /// they came.
    pub fn engine_of(&self, target: Target) -> usize {
        let number = match target {
            Target::Bucket(bucket) | Target::Route(bucket) => bucket.number() as usize,
            Target::Replicaset(idx) => idx.slot(),
            Target::Instance(idx) => idx.slot(),
        };
        number % self.engines.len()
    }

    /// The same for a raw call, whatever its bytes are. With several engines the bucket of a sharding key is found here for
    /// that, and once more by the engine: so that calls for one bucket keep their order however they name it. One that can not
    /// be found goes to the first engine, which says why, or finds it after all where tuples are in the way.
    pub fn engine_of_raw(&self, form: &Form, bytes: &[u8]) -> usize {
        let count = self.engines.len();
        if count == 1 {
            return 0;
        }
        let keyspace =
            Keyspace { bucket_count: self.buckets.count(), rules: self.topology.load().hash_rules };
        let bucket = match form {
            Form::Callraw => raw_args::peek_bucket(bytes, keyspace),
            Form::Endpoint(_, Some(bucket)) => Some(bucket.number()),
            Form::Endpoint(endpoint, None) => {
                let args = bytes.get(endpoint.func_len()..).unwrap_or_default();
                let found = key::with_or_without_tuples(args, |args| endpoint.bucket(args, keyspace));
                found.ok().map(BucketId::number)
            }
        };
        bucket.unwrap_or(0) as usize % count
    }

    /// The host is about to [`Router::take_replies`]: until then it need not be woken for them.
    pub fn expect_replies(&self) {
        self.engines.iter().for_each(|engine| engine.host.expect());
    }

    /// Replies for the host since the last time; `into` must be empty.
    pub fn take_replies(&self, into: &mut Vec<Reply>) {
        if let [engine] = &self.engines[..] {
            engine.host.take(into);
        } else {
            let mut part = Vec::new();
            for engine in &self.engines {
                engine.host.take(&mut part);
                into.append(&mut part);
            }
        }
        if self.refusing.load(Ordering::Relaxed) {
            let mut part = Vec::new();
            self.refused.take(&mut part);
            into.append(&mut part);
        }
    }

    /// Now, on the clock of deadlines.
    pub fn now(&self) -> Time {
        sys::now()
    }

    pub fn topology(&self) -> Arc<Topology> {
        self.topology.load_full()
    }

    pub fn buckets(&self) -> &Buckets {
        &self.buckets
    }

    pub fn discovery_wakeup(&self) {
        self.command(Command::DiscoveryWakeup);
    }

    pub fn discovery_set(&self, mode: DiscoveryMode) {
        self.command(Command::DiscoverySet(mode));
    }

    pub fn master_search_wakeup(&self) {
        self.command(Command::MasterSearchWakeup);
    }

    /// `master` is the master of `replicaset` from now on, as somebody knows who is not the control loop; None: nobody is.
    pub fn set_master(&self, replicaset: ReplicasetIdx, master: Option<InstanceIdx>) {
        if self.publisher.set_master(replicaset, master) {
            self.engines.iter().for_each(|engine| engine.inbox.post(Message::Topology));
        }
    }

    /// What the control loop last said of itself.
    pub fn control_status(&self) -> Status {
        self.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How the control loop's services are.
    pub fn services(&self) -> Services {
        self.publisher.services().clone()
    }

    /// Counters of each engine.
    pub fn engines(&self) -> Vec<Snapshot> {
        self.engines.iter().map(|engine| engine.counters.snapshot()).collect()
    }

    fn command(&self, command: Command) {
        self.commands.put_all(&mut vec![command]);
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        self.stop();
    }
}
