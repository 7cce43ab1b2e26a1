//! Made-up schedules: a random cluster, random calls, random troubles; then all is healed, and everything must work again and
//! nothing be left behind.
//!
//! `RAWSHARD_SIM_SEED=n` runs the schedule of one seed, `RAWSHARD_SIM_SEEDS=count` so many. A failure names its seed.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crate::cluster::{Bucket, Reaction};
use crate::common::random::Random;
use crate::common::server;
use crate::common::value::Value;
use crate::world::{Ask, Net, Setup, World};
use rawshard::call::request::{Access, Mode};
use rawshard::control::Command;
use rawshard::control::config::DiscoveryMode;
use rawshard::route::topology::{Limits, Mark};

#[test]
fn schedules_from_seeds() {
    let variable = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let seeds = match variable("RAWSHARD_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 1..variable("RAWSHARD_SIM_SEEDS").unwrap_or(40) + 1,
    };
    for seed in seeds {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(seed))) {
            println!("this was RAWSHARD_SIM_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

fn run(seed: u64) {
    let mut schedule = Schedule::new(seed);
    for _ in 0..schedule.random.between(50, 400) {
        schedule.act();
        let pause = schedule.random.below(1 << schedule.random.clone().below(24));
        schedule.world.run_for(Duration::from_nanos(pause * 10));
        schedule.world.check_books();
    }
    schedule.heal();
}

struct Schedule {
    world: World,
    random: Random,
    /// Calls that may still be cancelled.
    open: Vec<usize>,
    /// Instances on whose connections were bytes out of nowhere.
    noisy: HashSet<String>,
    bucket_count: u64,
    auto: bool,
}

impl Schedule {
    fn new(seed: u64) -> Schedule {
        let mut random = Random::new(seed ^ 0x5eed);
        let shards = (0..random.between(1, 4)).map(|_| random.between(1, 3) as usize).collect();
        let bucket_count = *random.pick(&[1, 7, 30, 100]);
        let net = Net {
            latency: *random.pick(&[(0, 0), (50, 100), (100, 20_000)]),
            work: *random.pick(&[(0, 0), (0, 1000), (0, 100_000)]),
            piece: *random.pick(&[usize::MAX, 1000, 50]),
            window: *random.pick(&[usize::MAX, 100_000, 2000]),
        };
        let discovery = *random.pick(&[DiscoveryMode::On, DiscoveryMode::Off, DiscoveryMode::Once]);
        let mut world = World::new(Setup { seed, shards, bucket_count: bucket_count as u32, discovery, net });
        world.quantum = *random.pick(&[1, 1, 1000, 1_000_000, 5_000_000]);
        world.config.limits = Limits {
            in_flight: *random.pick(&[1, 5, 100_000]),
            queued_bytes: *random.pick(&[0, 5000, 256 << 20]),
            ..Limits::default()
        };
        world.config.failover_interval = *random.pick(&[Duration::from_millis(50), Duration::from_secs(1)]);
        world.config.failover_ping_timeout =
            *random.pick(&[Duration::from_millis(100), Duration::from_secs(5)]);
        world.config.failover_sequential_fail_count = *random.pick(&[1, 3]);
        let auto = random.one_in(3);
        world.config.name_as_key = random.one_in(3);
        for storage in &mut world.cluster.storages {
            storage.page = *random.pick(&[1000, 5]);
            storage.names_master = !random.one_in(3);
            storage.version = *random.pick(&["2.6.0", "2.11.5", "3.2.1"]);
            storage.name = Some(storage.id.clone());
        }
        let mut schedule =
            Schedule { world, random, open: Vec::new(), noisy: HashSet::new(), bucket_count, auto };
        schedule.configure();
        schedule
    }

    fn configure(&mut self) {
        let auto = self.auto;
        for replicaset in &mut self.world.config.replicasets {
            replicaset.master_auto = auto;
            for instance in &mut replicaset.instances {
                instance.name = Some(instance.id.clone());
            }
            if auto {
                replicaset.instances.iter_mut().for_each(|instance| instance.is_master = false);
            }
        }
        self.world.start();
    }

    fn act(&mut self) {
        match self.random.below(100) {
            0..=59 => self.call(),
            60..=69 => self.cancel(),
            70..=84 => self.storage_trouble(),
            85..=92 => self.bucket_trouble(),
            93..=96 => self.reconfigure(),
            _ => self.command(),
        }
    }

    fn call(&mut self) {
        let count = if self.random.one_in(10) { self.random.between(1, 50) } else { 1 };
        for _ in 0..count {
            let ask = self.ask();
            let number = self.world.post(ask);
            self.open.push(number);
        }
    }

    fn ask(&mut self) -> Ask {
        let random = &mut self.random;
        let bucket = random.between(1, self.bucket_count);
        let read = Access { mode: Mode::Read, prefer_replica: random.one_in(2), balance: random.one_in(2) };
        let mut ask = match random.below(10) {
            0..=4 => Ask::rw(bucket),
            5..=8 => Ask { access: read, ..Ask::ro(bucket) },
            _ => Ask::route(bucket),
        };
        ask = match random.below(20) {
            0 => ask.func("never"),
            1 => ask.func("boom"),
            2 => ask.func("mimic"),
            3 => ask.func("nothing"),
            4 => ask.func("nilerr"),
            5..=7 => ask.func("slow").arg(Value::Uint(random.below(300_000))),
            8 => ask.func("big").arg(Value::Uint(random.below(200_000))),
            9 => ask.arg(Value::Bin(vec![9; random.below(50_000) as usize])),
            _ => ask.arg(Value::Int(-(random.below(1000) as i64) - 1)),
        };
        let timeout = Duration::from_micros(*random.pick(&[0, 100, 10_000, 100_000, 500_000, 3_000_000]));
        ask = ask.timeout(timeout);
        if random.one_in(5) {
            ask = ask.answer_by(*random.pick(&[Duration::from_secs(1), Duration::MAX]));
        }
        if random.one_in(3) {
            ask = ask.request_timeout(timeout / random.between(1, 5) as u32);
        }
        ask
    }

    fn cancel(&mut self) {
        let calls = &self.world.calls;
        self.open.retain(|number| calls[*number].answer.is_none());
        if !self.open.is_empty() {
            let at = self.random.below(self.open.len() as u64) as usize;
            self.world.cancel(self.open.swap_remove(at));
        }
    }

    fn any_storage(&mut self) -> String {
        let at = self.random.below(self.world.cluster.storages.len() as u64) as usize;
        self.world.cluster.storages[at].id.clone()
    }

    fn any_shard(&mut self) -> String {
        let at = self.random.below(self.world.cluster.shards.len() as u64) as usize;
        self.world.cluster.shards[at].id.clone()
    }

    fn storage_trouble(&mut self) {
        let id = self.any_storage();
        let world = &mut self.world;
        match self.random.below(20) {
            17 | 18 => {
                let lag = *self.random.pick(&[0.0, 29.0, 31.0]);
                let status = *self.random.pick(&["follow", "sync", "stopped"]);
                let upstream = (status, lag, lag);
                world.cluster.storage(&id).upstream = Some(upstream).filter(|_| !self.random.one_in(4));
            }
            15 => world.shut_down(&id),
            16 => {
                let name = *self.random.pick(&[Some("somebody"), None]);
                world.cluster.storage(&id).name = name.map(String::from);
            }
            0 => world.kill(&id),
            1 | 2 => world.revive(&id),
            3 => world.freeze(&id),
            4 | 5 => world.thaw(&id),
            6 => world.break_connections(&id),
            7 => world.cut_after(&id, self.random.between(1, 300) as usize),
            8 => world.cluster.storage(&id).unreachable = true,
            9 | 10 => world.cluster.storage(&id).unreachable = false,
            11 => world.cluster.storage(&id).disabled ^= true,
            12 => {
                let len = self.random.between(1, 20) as usize;
                let noise = self.random.bytes(len);
                world.inject(&id, &noise);
                self.noisy.insert(id);
            }
            13 => {
                // An answer to nobody, or to somebody: nonsense, but no foreign value.
                let sync = self.random.below(3) << 32 | self.random.below(30);
                let body =
                    *self.random.pick(&[&b""[..], b"\x80", b"\x81\x30\x90", b"\x81\x30\x91\x05", b"\xc1"]);
                world.inject(&id, &server::frame(*self.random.pick(&[0, 0x8005]), sync, body));
                self.noisy.insert(id);
            }
            14 => {
                // Breaks off in the middle of an answer now and then.
                let mut random = Random::new(self.random.next());
                world.cluster.storage(&id).hook = Some(Box::new(move |_| {
                    let len = random.below(30) as usize;
                    random.one_in(10).then(|| Reaction::Break(random.bytes(len)))
                }));
            }
            _ => world.cluster.storage(&id).hook = None,
        }
    }

    fn bucket_trouble(&mut self) {
        let bucket = self.random.between(1, self.bucket_count);
        let (from, to) = (self.any_shard(), self.any_shard());
        let cluster = &mut self.world.cluster;
        match self.random.below(8) {
            0 | 1 if from != to && cluster.shard(&from).buckets.get(&bucket) == Some(&Bucket::Active) => {
                cluster.send_bucket(bucket, &from, &to);
            }
            2..=4 => self.finish_moves(bucket),
            5 => {
                cluster.shard(&from).locked.insert(bucket);
            }
            6 => cluster.shard(&from).locked.clear(),
            _ => {
                let number = cluster.shards.iter().position(|shard| shard.id == from).expect("just picked");
                let of_shard = |storage: &&usize| cluster.storages[**storage].shard == number;
                let all: Vec<usize> = (0..cluster.storages.len()).collect();
                let instances: Vec<usize> = all.iter().filter(of_shard).copied().collect();
                cluster.shard(&from).master = Some(*self.random.pick(&instances));
            }
        }
    }

    /// A bucket that moves arrives.
    fn finish_moves(&mut self, bucket: u64) {
        let cluster = &mut self.world.cluster;
        let sender = cluster.shards.iter().find_map(|shard| match shard.buckets.get(&bucket) {
            Some(Bucket::Sending { to }) => Some((shard.id.clone(), to.clone())),
            _ => None,
        });
        if let Some((from, to)) = sender {
            cluster.move_bucket(bucket, &from, &to);
            if self.random.one_in(2) {
                // Collected: the sender does not know any more where it went.
                cluster.shard(&from).buckets.remove(&bucket);
            }
        }
    }

    fn reconfigure(&mut self) {
        let world = &mut self.world;
        match self.random.below(5) {
            0 => {
                let at = self.random.below(world.config.replicasets.len() as u64) as usize;
                let instances = &mut world.config.replicasets[at].instances;
                if instances.len() > 1 {
                    instances.pop();
                }
            }
            1 if world.config.replicasets.len() > 1 => {
                let at = self.random.below(world.config.replicasets.len() as u64) as usize;
                world.config.replicasets.remove(at);
            }
            2 => self.whole_config(),
            3 => {
                let password = format!("another {}", self.random.below(1000));
                let id = self.any_storage();
                self.world.cluster.storage(&id).login = Some(("storage".into(), password));
                self.whole_config();
            }
            _ => world.config.limits.in_flight = *self.random.pick(&[1, 5, 100_000]),
        }
        self.configure();
    }

    /// All replicasets and instances as they are; connections of the same endpoints are kept.
    fn whole_config(&mut self) {
        let ids: Vec<String> = self.world.cluster.shards.iter().map(|shard| shard.id.clone()).collect();
        self.world.config.replicasets = ids.iter().map(|id| self.world.shard_config(id)).collect();
    }

    fn command(&mut self) {
        let mode = *self.random.pick(&[DiscoveryMode::On, DiscoveryMode::Off, DiscoveryMode::Once]);
        match self.random.below(4) {
            0 => self.world.control(Command::DiscoveryWakeup),
            1 => self.world.control(Command::MasterSearchWakeup),
            2 => self.world.control(Command::DiscoverySet(mode)),
            _ => self.world.buckets.clear(),
        }
    }

    fn heal(&mut self) {
        // Some would wait for ever, and keep their place on a connection as long.
        for number in std::mem::take(&mut self.open) {
            if self.world.calls[number].answer.is_none() {
                self.world.cancel(number);
            }
        }
        let ids: Vec<String> = self.world.cluster.storages.iter().map(|storage| storage.id.clone()).collect();
        for id in &ids {
            let storage = self.world.cluster.storage(id);
            storage.up = true;
            storage.unreachable = false;
            storage.disabled = false;
            storage.upstream = Some(("follow", 0.0, 0.0));
            storage.name = Some(id.clone());
            storage.hook = None;
            self.world.spare(id);
            self.world.thaw(id);
            if self.noisy.contains(id) {
                // It may have announced a frame of gigabytes, in which all that follows is lost: nobody can tell.
                self.world.break_connections(id);
            }
        }
        for bucket in 1..=self.bucket_count {
            self.finish_moves(bucket);
        }
        self.world.cluster.shards.iter_mut().for_each(|shard| shard.locked.clear());
        self.whole_config();
        self.configure();
        // The longest that a healthy cluster may need: a handshake that hangs, then a pause; a replica's backoff.
        self.world.run_for(Duration::from_secs(12));
        // Where a storage may take as long as is waited for it, nobody can tell.
        let is_patient = self.world.config.failover_ping_timeout >= Duration::from_secs(1);
        for instance in self.world.publisher.topology().instances.iter().flatten().filter(|_| is_patient) {
            assert_eq!(
                instance.state.health(self.world.now),
                Mark::Green,
                "{} is in order again",
                instance.id
            );
        }
        for bucket in 1..=self.bucket_count {
            for ask in [Ask::rw(bucket), Ask::re(bucket)] {
                let call = self.world.post(ask.timeout(Duration::from_secs(5)));
                self.world.answer(call).values();
            }
        }
        self.world.settle();
    }
}

/// The schedules reach what they are meant to reach.
#[test]
fn schedules_are_eventful() {
    let mut seen = [0; 9];
    for seed in 1..=12 {
        let mut schedule = Schedule::new(seed);
        for _ in 0..150 {
            schedule.act();
            schedule.world.run_for(Duration::from_millis(5));
        }
        let counted = schedule.world.counters.snapshot();
        let part = [
            counted.replies - counted.failures,
            counted.retries,
            counted.redirects,
            counted.timeouts,
            counted.cancelled,
            counted.late,
            counted.connects,
            counted.disconnects,
            counted.protocol_errors,
        ];
        seen.iter_mut().zip(part).for_each(|(sum, count)| *sum += count);
    }
    assert!(seen.iter().all(|count| *count >= 5), "{seen:?}");
}
