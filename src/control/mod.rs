//! The control loop: bucket discovery and master search as a state machine, whose questions are ordinary requests to an
//! engine. It and reconfiguration are the only ones to publish topology.

pub mod config;
mod discovery;
mod health;
mod masters;
pub mod publish;
pub mod services;
pub mod thread;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::call::request::{Access, Body, Client, Outcome, Reply, Request, Target};
use crate::engine::core::Report;
use crate::ids::{BucketId, InstanceIdx, ReplicasetIdx};
use crate::route::buckets::Buckets;
use crate::route::topology::{Mark, Pings, Replicaset, Topology};
use crate::slab::Slab;
use crate::time::Time;
use crate::wire::mp;
use crate::wire::vshard::{self, ErrorView};
use config::DiscoveryMode;
use discovery::Discovery;
use health::Health;
use masters::Masters;
use publish::Publisher;

/// Between two changes of a replicaset's master on the word of storages.
const HINT_INTERVAL: Duration = Duration::from_millis(100);

/// What a request of the control loop was for.
#[derive(Clone, Copy)]
enum Purpose {
    Discovery(ReplicasetIdx),
    /// The round of the search, and who was asked.
    Master(ReplicasetIdx, u32, InstanceIdx),
    /// When it was asked.
    Health(InstanceIdx, Time),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// The topology was configured anew.
    Configured(DiscoveryMode),
    DiscoveryWakeup,
    DiscoverySet(DiscoveryMode),
    MasterSearchWakeup,
    Stop,
}

/// What `info` shows of the control loop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    pub discovery_mode: DiscoveryMode,
    /// The highest bucket that a storage has beyond the configured count, if one has any.
    pub bucket_beyond: Option<u32>,
}

pub struct Control {
    publisher: Arc<Publisher>,
    buckets: Arc<Buckets>,
    discovery: Discovery,
    masters: Masters,
    health: Health,
    /// Why an instance could not be asked whether it is the master, in this round.
    search_errors: HashMap<ReplicasetIdx, String>,
    /// Engines are to look at instances again.
    has_news: bool,
    /// When a storage's word on its master was last believed.
    hinted: HashMap<ReplicasetIdx, Time>,
    open: Slab<Purpose>,
    requests: VecDeque<Request>,
}

impl Control {
    pub fn new(publisher: Arc<Publisher>, buckets: Arc<Buckets>, mode: DiscoveryMode) -> Control {
        Control {
            publisher,
            buckets,
            discovery: Discovery::new(mode),
            masters: Masters::default(),
            health: Health::default(),
            search_errors: HashMap::new(),
            has_news: false,
            hinted: HashMap::new(),
            open: Slab::new(),
            requests: VecDeque::new(),
        }
    }

    /// The loop that goes on after this one has panicked, with the topology and the routes as they are. Engines may still answer
    /// what this one has asked: no question of the new one has the token of an old one.
    pub fn anew(&self, now: Time) -> Control {
        let mode = self.discovery.mode();
        let mut fresh = Control::new(Arc::clone(&self.publisher), Arc::clone(&self.buckets), mode);
        fresh.open = Slab::after(&self.open);
        // What was published last may not have been told.
        fresh.has_news = true;
        fresh.handle_command(Command::Configured(mode), now);
        fresh
    }

    /// Of the topology as it is now.
    pub fn epoch(&self) -> u64 {
        self.publisher.topology().epoch
    }

    /// True once after something has changed that engines go by and that is not in the topology.
    pub fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.has_news)
    }

    pub fn status(&self) -> Status {
        Status { discovery_mode: self.discovery.mode(), bucket_beyond: self.discovery.beyond() }
    }

    pub fn handle_command(&mut self, command: Command, now: Time) {
        match command {
            Command::Configured(mode) => {
                let topology = self.publisher.topology();
                self.discovery.set_mode(mode, now);
                self.discovery.set_replicasets(topology.live().map(|rs| rs.idx), now);
                let auto = topology.live().filter(|rs| rs.master_auto).map(|rs| rs.idx);
                self.masters.set_replicasets(auto, now);
                let all: Vec<InstanceIdx> = topology.instances.iter().flatten().map(|it| it.idx).collect();
                self.health.set_instances(&all, topology.pings.interval, now);
                let searches = topology.live().any(|rs| rs.master_auto);
                self.publisher.services().set_replicasets(&topology.order, &all, searches);
                self.search_errors.clear();
            }
            Command::DiscoveryWakeup => self.discovery.wakeup(now),
            Command::DiscoverySet(mode) => self.discovery.set_mode(mode, now),
            Command::MasterSearchWakeup => self.masters.wakeup(now),
            Command::Stop => {}
        }
        self.publisher.services().set_discovery(self.discovery.is_active());
    }

    pub fn handle_report(&mut self, report: &Report, now: Time) {
        match *report {
            Report::NonMaster { replicaset, replica, master } => {
                let topology = self.publisher.topology();
                // Old news once the master has changed. Two that name each other are followed at a walking pace.
                let is_news = topology.replicaset(replicaset).is_some_and(|rs| rs.master == Some(replica));
                let last = self.hinted.get(&replicaset).copied().unwrap_or(Time::ZERO);
                if is_news && now.since(last) >= HINT_INTERVAL {
                    self.hinted.insert(replicaset, now);
                    self.publisher.set_master(replicaset, master);
                }
                self.masters.wakeup_one(replicaset, now);
            }
            Report::MissingMaster(replicaset) => self.masters.wakeup_one(replicaset, now),
        }
    }

    pub fn handle_reply(&mut self, reply: &Reply, now: Time) {
        match self.open.remove(reply.token) {
            Some(Purpose::Discovery(replicaset)) => self.handle_page(replicaset, reply, now),
            Some(Purpose::Master(replicaset, round, instance)) => {
                let is_master = reply.outcome == Outcome::Values
                    && vshard::instance_info(reply.array()).is_ok_and(|info| info.is_master);
                if reply.outcome != Outcome::Values {
                    self.search_errors.insert(replicaset, describe(reply.values()));
                }
                if let Some(master) = self.masters.handle_answer(replicaset, round, instance, is_master, now)
                {
                    self.publisher.set_master(replicaset, Some(master));
                }
                self.tell_search(replicaset);
            }
            Some(Purpose::Health(instance, asked)) => self.handle_health(instance, asked, reply, now),
            None => {}
        }
    }

    pub fn handle_timeout(&mut self, now: Time) {
        while let Some((replicaset, from)) = self.discovery.poll_page(now) {
            let mut args = vec![0x91, 0x81];
            mp::write_str(&mut args, "from");
            mp::write_uint(&mut args, from);
            let body = Body::call(Vec::new(), "vshard.storage.buckets_discovery", &args);
            let target = Target::Replicaset(replicaset);
            self.ask(Purpose::Discovery(replicaset), target, Access::RO, body, discovery::TIMEOUT, now);
            self.publisher.services().discovery_asks();
        }
        while let Some((replicaset, master)) = self.masters.poll_expired(now) {
            self.publisher.set_master(replicaset, Some(master));
            self.tell_search(replicaset);
        }
        while let Some(replicaset) = self.masters.poll_search(now) {
            let topology = self.publisher.topology();
            let rs = topology.replicaset(replicaset);
            // Only those who can answer at once: the one that is down is often the master whose successor is looked for.
            let is_connected =
                |idx: &InstanceIdx| topology.instance(*idx).is_some_and(|it| it.state.is_connected());
            let all = rs.map(|rs| rs.instances.as_slice()).unwrap_or_default();
            let owes = |idx: &InstanceIdx| self.masters.is_asked(replicaset, *idx, now);
            let whom: Vec<InstanceIdx> =
                all.iter().copied().filter(|idx| is_connected(idx) && !owes(idx)).collect();
            let mut away =
                all.iter().copied().filter_map(|idx| topology.instance(idx).filter(|_| !is_connected(&idx)));
            match away.next_back() {
                Some(it) => self.search_errors.insert(replicaset, format!("{} is not connected", it.id)),
                None => self.search_errors.remove(&replicaset),
            };
            let round = self.masters.asked(replicaset, &whom, rs.and_then(|rs| rs.master), now);
            self.publisher.services().search_begins(replicaset);
            self.tell_search(replicaset);
            for instance in whom {
                let mut args = vec![0x91];
                mp::write_str(&mut args, "info");
                let body = Body::call(Vec::new(), "vshard.storage._call", &args);
                let purpose = Purpose::Master(replicaset, round, instance);
                self.ask(purpose, Target::Instance(instance), Access::RW, body, masters::TIMEOUT, now);
            }
        }
        self.check_health(now);
    }

    fn check_health(&mut self, now: Time) {
        let Some(mut next) = self.health.poll_check(now) else { return };
        let topology = self.publisher.topology();
        let Pings { interval, timeout, .. } = topology.pings;
        loop {
            if topology.instance(next).is_some_and(|it| it.state.is_connected()) {
                let mut args = vec![0x92];
                mp::write_str(&mut args, "info");
                mp::write_map_len(&mut args, 2);
                mp::write_str(&mut args, "timeout");
                mp::write_double(&mut args, timeout.as_secs_f64());
                mp::write_str(&mut args, "with_health");
                mp::write_bool(&mut args, true);
                let body = Body::call(Vec::new(), "vshard.storage._call", &args);
                let purpose = Purpose::Health(next, now);
                self.ask(purpose, Target::Instance(next), Access::RW, body, timeout, now);
                self.health.asked(next);
                self.publisher.services().ping_begins(next);
            } else {
                // What is down is nobody's choice anyway.
                self.health.done(next, interval, now);
                self.publisher.services().ping_ends(next, Err("there is no connection".into()));
            }
            match self.health.poll_check(now) {
                Some(idx) => next = idx,
                None => return,
            }
        }
    }

    fn handle_health(&mut self, idx: InstanceIdx, asked: Time, reply: &Reply, now: Time) {
        let topology = self.publisher.topology();
        self.health.done(idx, topology.pings.interval, now);
        let Some(instance) = topology.instance(idx) else { return };
        let info = match reply.outcome {
            Outcome::Values => vshard::instance_info(reply.array()).ok(),
            Outcome::Failed | Outcome::Malformed | Outcome::Push => None,
        };
        let state = &instance.state;
        if reply.outcome == Outcome::Values {
            state.served.store(asked.nanos(), Ordering::Relaxed);
            // The end of a backoff is what somebody may wait for.
            self.has_news |= state.backoff_until() > now;
        }
        let outcome = match reply.outcome {
            Outcome::Values => Ok(()),
            _ => Err(format!("{} does not answer: {}", instance.id, describe(reply.values()))),
        };
        self.publisher.services().ping_ends(idx, outcome);
        let (mark, reason) = match &info {
            Some(info) => health::judge(info, topology.lag_limit),
            // Old storages, those that know no master, and those that did not answer: nothing is known.
            None => (Mark::Yellow, None),
        };
        let before = state.replication.set(mark);
        match (before, mark) {
            (Mark::Red, Mark::Green | Mark::Yellow) => {
                log::info!("{}: replication is in order again", instance.id);
            }
            (Mark::Green | Mark::Yellow, Mark::Red) => {
                log::warn!("{}: {}", instance.id, reason.as_deref().unwrap_or("replication is out of order"));
            }
            _ => {}
        }
        if let Some(replicaset) = topology.replicaset(instance.replicaset) {
            self.apply_lag(&topology, replicaset);
            self.publisher.services().failover_ends(replicaset.idx);
        }
    }

    /// Records the end of a round of master search, if it has ended.
    fn tell_search(&self, replicaset: ReplicasetIdx) {
        if let Some(found) = self.masters.outcome(replicaset) {
            let error = self.search_errors.get(&replicaset).map(String::as_str);
            self.publisher.services().search_ends(replicaset, found, error);
        }
    }

    fn apply_lag(&mut self, topology: &Topology, replicaset: &Replicaset) {
        let all = || replicaset.instances.iter().filter_map(|idx| topology.instance(*idx));
        // What those that are away said last is no news: the master's last words were that it is in order.
        let present = all().filter(|it| it.state.is_connected());
        let marks = present.map(|it| (replicaset.master == Some(it.idx), it.state.replication.get()));
        let counts = health::is_replicating(marks);
        for instance in all() {
            let mark = if counts { instance.state.replication.get() } else { Mark::Green };
            let before = instance.state.lag.set(mark);
            self.has_news |= (before == Mark::Red) != (mark == Mark::Red);
        }
    }

    pub fn next_timeout(&self) -> Option<Time> {
        let all = [self.discovery.next_timeout(), self.masters.next_timeout(), self.health.next_timeout()];
        all.into_iter().flatten().min()
    }

    pub fn poll_request(&mut self) -> Option<Request> {
        self.requests.pop_front()
    }

    fn ask(
        &mut self,
        purpose: Purpose,
        target: Target,
        access: Access,
        body: Body,
        timeout: Duration,
        now: Time,
    ) {
        let token = self.open.insert(purpose);
        let deadline = now.after(timeout);
        let client = Client::Control;
        self.requests.push_back(Request {
            token,
            client,
            target,
            access,
            deadline,
            answer_by: deadline,
            attempt_timeout: None,
            pushes: false,
            body,
        });
    }

    fn handle_page(&mut self, replicaset: ReplicasetIdx, reply: &Reply, now: Time) {
        let topology = self.publisher.topology();
        let Some(rs) = topology.replicaset(replicaset) else { return };
        // A storage may refuse by value: `nil, err`.
        let page = match reply.outcome {
            Outcome::Failed | Outcome::Malformed | Outcome::Push => Err(describe(reply.values())),
            Outcome::Values => vshard::discovery_page(reply.values()).map_err(|fault| fault.to_string()),
        };
        match page {
            Ok(page) => {
                let count = self.buckets.count();
                for id in &page.buckets {
                    match BucketId::new(u64::from(*id), count) {
                        Some(bucket) => self.buckets.set(bucket, replicaset),
                        None => self.discovery.handle_beyond(replicaset, *id),
                    }
                }
                let unknown = count - self.buckets.known();
                self.discovery.handle_page(replicaset, page.next_from, unknown, now);
                self.tell_discovery(Ok(()));
            }
            Err(error) => {
                let text = format!("replicaset {} gives no buckets: {error}", rs.id);
                if self.discovery.handle_failure(replicaset, now) {
                    log::warn!("discovery: {text}");
                }
                self.tell_discovery(Err(text));
            }
        }
    }
}

impl Control {
    /// As in vshard, a failure counts as long as buckets are unknown.
    fn tell_discovery(&self, outcome: Result<(), String>) {
        let mut services = self.publisher.services();
        let is_complete = self.buckets.known() == self.buckets.count();
        services.discovery_took(self.discovery.is_waiting(), is_complete, outcome);
        services.set_discovery(self.discovery.is_active());
    }
}

fn describe(error: &[u8]) -> String {
    String::from_utf8_lossy(ErrorView::parse(error).message).into_owned()
}
