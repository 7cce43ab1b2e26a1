//! The world around one engine: virtual clock, network, control loop, callers. It carries out what the engine thread would,
//! and checks after each reply what must hold of any.

use std::collections::{BTreeSet, BinaryHeap, HashMap, VecDeque};
use std::io::IoSlice;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;

use rawshard::call::endpoint::Endpoint;
use rawshard::call::request::{Access, Body, Client, Form, Outcome, RawRequest, Reply, Request, Target};
use rawshard::call::wheel;
use rawshard::control::config::{Config, DiscoveryMode, InstanceConfig, ReplicasetConfig};
use rawshard::control::publish::Publisher;
use rawshard::control::{Command, Control};
use rawshard::engine::core::{Action, Core, Held};
use rawshard::engine::inbox::Message;
use rawshard::ids::{BucketId, InstanceIdx, ReplicasetIdx};
use rawshard::metrics::Counters;
use rawshard::route::address::{Address, Secret};
use rawshard::route::buckets::Buckets;
use rawshard::route::hash::{Hash, Hasher, Rules};
use rawshard::route::pick::Mode;
use rawshard::route::topology::Topology;
use rawshard::slab::{Key, Slab};
use rawshard::time::Time;
use rawshard::wire::mp::Cursor;
use rawshard::wire::path::Path;

use crate::cluster::{Bucket, Cluster, Reaction, Shard, Storage, items};
use crate::common::random::Random;
use crate::common::server;
use crate::common::value::Value;

/// What the network does to all connections.
#[derive(Clone, Debug)]
pub struct Net {
    /// One way, microseconds: from and to.
    pub latency: (u64, u64),
    /// Time of a storage for a request, microseconds: answers overtake each other within it.
    pub work: (u64, u64),
    /// The most bytes that arrive in one piece.
    pub piece: usize,
    /// Bytes that a socket takes before its peer has read some.
    pub window: usize,
}

impl Default for Net {
    fn default() -> Self {
        Net { latency: (100, 100), work: (0, 0), piece: usize::MAX, window: usize::MAX }
    }
}

type ConnId = u64;

struct Link {
    idx: InstanceIdx,
    storage: usize,
    open: bool,
    salt: [u8; 32],
    logged_in: bool,
    /// Bytes at the storage that hold no whole request yet.
    input: Vec<u8>,
    /// Bytes under way to the storage, or there and not read; and how many of them are there.
    unread: usize,
    waiting: usize,
    arrived: VecDeque<u8>,
    /// Nothing overtakes within a direction.
    last: [Time; 2],
    /// So many bytes still reach the router, then the connection breaks.
    cut_after: Option<usize>,
    /// No byte is read from it any more.
    broken: bool,
    greeted: bool,
    /// The sync under which it watches for the storage's stop.
    watching: Option<u64>,
    /// Answers that a frozen storage has still to send.
    held: Vec<(Vec<u8>, bool)>,
}

enum What {
    Connected(ConnId),
    Refused(ConnId),
    ToStorage(ConnId, Vec<u8>),
    /// A storage has done its work.
    Answer(ConnId, Vec<u8>, bool),
    ToRouter(ConnId, Vec<u8>),
    Closed(ConnId, &'static str),
    Do(Box<dyn FnOnce(&mut World)>),
}

struct Event {
    at: Time,
    /// Those of one instant happen in the order in which they were planned.
    number: u64,
    what: What,
}

impl PartialEq for Event {
    fn eq(&self, other: &Event) -> bool {
        self.number == other.number
    }
}

impl Eq for Event {}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Event) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Event {
    /// The heap gives the greatest: the earliest.
    fn cmp(&self, other: &Event) -> std::cmp::Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

/// One call to make; see the constructors.
#[derive(Clone, Debug)]
pub struct Ask {
    pub target: Where,
    pub access: Access,
    pub func: &'static str,
    /// Behind the id of the call, which is the first argument of any.
    pub args: Vec<Value>,
    pub timeout: Duration,
    pub request_timeout: Option<Duration>,
    /// A future: how long its answer is waited for once it is sent.
    pub answer_by: Option<Duration>,
}

#[derive(Clone, Debug)]
pub enum Where {
    Bucket(u64),
    Route(u64),
    Replicaset(&'static str),
    Instance(&'static str),
}

impl Ask {
    fn new(target: Where, access: Access) -> Ask {
        let timeout = Duration::from_millis(500);
        Ask {
            target,
            access,
            func: "echo",
            args: Vec::new(),
            timeout,
            request_timeout: None,
            answer_by: None,
        }
    }

    pub fn rw(bucket: u64) -> Ask {
        Ask::new(Where::Bucket(bucket), Access::RW)
    }

    pub fn ro(bucket: u64) -> Ask {
        Ask::new(Where::Bucket(bucket), Access::RO)
    }

    /// callre
    pub fn re(bucket: u64) -> Ask {
        Ask::new(Where::Bucket(bucket), Access { mode: Mode::Read, prefer_replica: true, balance: false })
    }

    /// callbro
    pub fn bro(bucket: u64) -> Ask {
        Ask::new(Where::Bucket(bucket), Access { mode: Mode::Read, prefer_replica: false, balance: true })
    }

    pub fn route(bucket: u64) -> Ask {
        Ask::new(Where::Route(bucket), Access::RO)
    }

    pub fn replicaset(id: &'static str, access: Access) -> Ask {
        Ask::new(Where::Replicaset(id), access)
    }

    pub fn instance(id: &'static str) -> Ask {
        Ask::new(Where::Instance(id), Access::RW)
    }

    pub fn func(mut self, func: &'static str) -> Ask {
        self.func = func;
        self
    }

    pub fn arg(mut self, arg: Value) -> Ask {
        self.args.push(arg);
        self
    }

    pub fn timeout(mut self, timeout: Duration) -> Ask {
        self.timeout = timeout;
        self
    }

    pub fn answer_by(mut self, span: Duration) -> Ask {
        self.answer_by = Some(span);
        self
    }

    pub fn request_timeout(mut self, timeout: Duration) -> Ask {
        self.request_timeout = Some(timeout);
        self
    }
}

/// A call that was made.
pub struct Issued {
    pub ask: Ask,
    /// The id that it carries.
    pub id: u64,
    token: Key,
    target: Target,
    pub posted: Time,
    pub deadline: Time,
    pub answer_by: Time,
    pub cancelled: bool,
    args: Vec<u8>,
    /// What its function has pushed, where it is a future.
    pub pushed: Vec<Value>,
    pub answer: Option<Answered>,
}

#[derive(Clone, Debug)]
pub struct Answered {
    pub at: Time,
    /// The values, or the error.
    pub outcome: Result<Vec<Value>, Value>,
}

impl Answered {
    #[track_caller]
    pub fn values(&self) -> &[Value] {
        self.outcome.as_deref().expect("the call succeeds")
    }

    #[track_caller]
    pub fn error(&self) -> &Value {
        self.outcome.as_ref().expect_err("the call fails")
    }

    /// Name of vshard's error, or type and code.
    #[track_caller]
    pub fn error_name(&self) -> String {
        let error = self.error();
        let text = |name| error.field(name).and_then(Value::text).map(String::from);
        text("name").unwrap_or_else(|| {
            let code = error.field("code").and_then(Value::uint).unwrap_or_default();
            format!("{} {code}", text("type").unwrap_or_default())
        })
    }
}

/// How a world begins.
pub struct Setup {
    pub seed: u64,
    /// Instances of each replicaset; the first is its master. They are called rs1-a, rs1-b, rs2-a…
    pub shards: Vec<usize>,
    pub bucket_count: u32,
    pub discovery: DiscoveryMode,
    pub net: Net,
}

impl Default for Setup {
    fn default() -> Self {
        Setup {
            seed: 1,
            shards: vec![2, 2],
            bucket_count: 30,
            discovery: DiscoveryMode::Off,
            net: Net::default(),
        }
    }
}

pub struct World {
    pub now: Time,
    pub cluster: Cluster,
    pub net: Net,
    pub random: Random,
    pub config: Config,
    pub core: Core,
    pub control: Control,
    pub publisher: Arc<Publisher>,
    pub buckets: Arc<Buckets>,
    pub counters: Arc<Counters>,
    pub calls: Vec<Issued>,
    tokens: Slab<usize>,
    links: HashMap<ConnId, Link>,
    by_idx: HashMap<InstanceIdx, ConnId>,
    unsent: BTreeSet<InstanceIdx>,
    events: BinaryHeap<Event>,
    inbox: VecDeque<Message>,
    serial: u64,
    /// Turns since the clock last moved.
    still: u32,
    in_turn: bool,
    /// Callers that have left since the last turn: one reply may have crossed with that.
    leaving: Vec<Key>,
    pub turns: u64,
    /// The clock moves in steps of this many nanoseconds: what happens within one meets in one turn.
    pub quantum: u64,
    /// Connections opened so far, by instance.
    pub connects: HashMap<usize, u64>,
    /// A sharding key of each bucket that was asked for by one.
    keys: HashMap<u64, Value>,
    /// Callers leave what is pushed unread.
    pub keeps_pushes: bool,
    pub kept: Vec<Reply>,
    /// When the host was to be woken for the newest replies.
    pub ring_by: Time,
}

const CLOSED: &str = "Peer closed";

/// The clock never starts at zero.
pub const START: Time = Time::from_nanos(1_000_000_000);

impl World {
    /// A cluster with its buckets spread evenly, and a router that knows nothing yet.
    pub fn new(setup: Setup) -> World {
        let mut cluster = Cluster::default();
        let mut config =
            Config { bucket_count: setup.bucket_count, discovery_mode: setup.discovery, ..Config::default() };
        for (shard, instances) in setup.shards.iter().enumerate() {
            let id = format!("rs{}", shard + 1);
            let first = cluster.storages.len();
            let mut replicaset = ReplicasetConfig {
                id: id.clone(),
                uuid: None,
                name: None,
                weight: 1.0,
                master_auto: false,
                instances: Vec::new(),
            };
            for number in 0..*instances {
                let storage = storage(&id, shard, cluster.storages.len(), number);
                replicaset.instances.push(instance_config(&storage, number == 0));
                cluster.storages.push(storage);
            }
            config.replicasets.push(replicaset);
            cluster.shards.push(Shard {
                id,
                buckets: (1..=u64::from(setup.bucket_count))
                    .filter(|bucket| (*bucket - 1) as usize % setup.shards.len() == shard)
                    .map(|bucket| (bucket, Bucket::Active))
                    .collect(),
                locked: Default::default(),
                master: Some(first),
            });
        }
        let source = Arc::new(ArcSwap::from_pointee(Topology::default()));
        let buckets = Arc::new(Buckets::new(config.bucket_count));
        let publisher = Arc::new(Publisher::new(Arc::clone(&source), Arc::clone(&buckets)));
        let counters = Arc::new(Counters::default());
        let core = Core::new(source, Arc::clone(&buckets), Arc::clone(&counters), setup.seed, START);
        let control = Control::new(Arc::clone(&publisher), Arc::clone(&buckets), config.discovery_mode);
        World {
            keys: HashMap::new(),
            now: START,
            cluster,
            net: setup.net,
            random: Random::new(setup.seed),
            config,
            core,
            control,
            publisher,
            buckets,
            counters,
            calls: Vec::new(),
            tokens: Slab::new(),
            links: HashMap::new(),
            by_idx: HashMap::new(),
            unsent: BTreeSet::new(),
            events: BinaryHeap::new(),
            inbox: VecDeque::new(),
            serial: 0,
            still: 0,
            in_turn: false,
            leaving: Vec::new(),
            turns: 0,
            quantum: 1,
            connects: HashMap::new(),
            keeps_pushes: false,
            kept: Vec::new(),
            ring_by: Time::NEVER,
        }
    }

    /// A started router that knows all routes and has all connections.
    pub fn ready(setup: Setup) -> World {
        let mut world = World::new(setup);
        world.start();
        world.run_for(Duration::from_millis(50));
        world.learn_routes();
        world
    }

    /// Publishes `config` as `cfg` does, the first time and later.
    pub fn start(&mut self) {
        self.publisher.configure(&self.config);
        self.control.handle_command(Command::Configured(self.config.discovery_mode), self.now);
        self.inbox.push_back(Message::Refresh);
    }

    /// The routes that the cluster really has.
    pub fn learn_routes(&mut self) {
        let topology = self.publisher.topology();
        for shard in &self.cluster.shards {
            let Some(idx) = topology.replicaset_by_id(&shard.id) else { continue };
            for (bucket, state) in &shard.buckets {
                if let Some(bucket) = BucketId::new(*bucket, self.buckets.count())
                    && *state == Bucket::Active
                {
                    self.buckets.set(bucket, idx);
                }
            }
        }
    }

    pub fn bucket(&self, id: u64) -> BucketId {
        BucketId::new(id, self.buckets.count()).expect("a bucket")
    }

    /// Id of the replicaset to which the router's route of this bucket leads.
    pub fn route(&self, id: u64) -> Option<String> {
        let owner = self.buckets.get(self.bucket(id))?;
        self.publisher.topology().replicaset(owner).map(|rs| rs.id.clone())
    }

    pub fn replicaset(&self, id: &str) -> ReplicasetIdx {
        self.publisher.topology().replicaset_by_id(id).expect("a replicaset of the configuration")
    }

    pub fn instance(&self, id: &str) -> InstanceIdx {
        let topology = self.publisher.topology();
        let mut instances = topology.instances.iter().flatten();
        instances.find(|instance| instance.id == id).expect("an instance of the configuration").idx
    }

    /// Changes the configuration of an instance and tells the router nothing yet.
    pub fn instance_config(&mut self, id: &str) -> &mut InstanceConfig {
        let mut all = self.config.replicasets.iter_mut().flat_map(|rs| &mut rs.instances);
        all.find(|instance| instance.id == id).expect("an instance of the configuration")
    }

    // Callers.

    /// Posts a call, to be seen by the engine in its next turn. Gives its number.
    pub fn post(&mut self, ask: Ask) -> usize {
        let number = self.calls.len();
        let id = number as u64 + 1;
        let mut all = vec![Value::Uint(id)];
        all.extend(ask.args.iter().cloned());
        let args = Value::Array(all).bytes();
        let buffer = Vec::new;
        let (target, body) = match ask.target {
            Where::Bucket(bucket) => (
                Target::Bucket(self.bucket(bucket)),
                Body::storage_call(buffer(), ask.func.as_bytes(), &args),
            ),
            Where::Route(bucket) => (Target::Route(self.bucket(bucket)), Body::empty(buffer())),
            Where::Replicaset(id) => {
                (Target::Replicaset(self.replicaset(id)), Body::call(buffer(), ask.func, &args))
            }
            Where::Instance(id) => {
                (Target::Instance(self.instance(id)), Body::call(buffer(), ask.func, &args))
            }
        };
        let token = self.tokens.insert(number);
        let mut deadline = self.now.after(ask.timeout);
        let answer_by = ask.answer_by.map_or(deadline, |span| self.now.after(span).max(deadline));
        let message = match ask.target {
            // The doors for calls to a bucket take turns: checked numbers, and bytes with a bucket id, with a key that
            // becomes it, or of an endpoint.
            Where::Bucket(bucket) if id.is_multiple_of(2) && ask.answer_by.is_none() => {
                deadline = self.now.after(in_seconds(ask.timeout));
                let (form, bytes) = match id % 8 {
                    0 | 4 => (Form::Callraw, raw_args(Value::Uint(bucket), &ask, &args)),
                    2 => {
                        let count = self.config.bucket_count;
                        let key = self.keys.entry(bucket).or_insert_with(|| key_of(bucket, count)).clone();
                        (Form::Callraw, raw_args(Value::map([("key", key)]), &ask, &args))
                    }
                    _ => {
                        let endpoint = endpoint(&ask);
                        let mut bytes = Vec::new();
                        endpoint.begin(&mut bytes);
                        bytes.extend_from_slice(&args);
                        (Form::Endpoint(Arc::new(endpoint), Some(self.bucket(bucket))), bytes)
                    }
                };
                Message::Raw(RawRequest { token, form, bytes })
            }
            _ => Message::Call(Request {
                token,
                client: Client::Host,
                target,
                access: ask.access,
                deadline,
                answer_by,
                attempt_timeout: ask.request_timeout,
                pushes: ask.answer_by.is_some(),
                body,
            }),
        };
        self.inbox.push_back(message);
        let (posted, cancelled, answer) = (self.now, false, None);
        let answer_by = answer_by.max(deadline);
        self.calls.push(Issued {
            ask,
            id,
            token,
            target,
            posted,
            deadline,
            answer_by,
            cancelled,
            args,
            pushed: Vec::new(),
            answer,
        });
        number
    }

    /// The caller of a call leaves; its token may be used again at once.
    pub fn cancel(&mut self, number: usize) {
        let call = &mut self.calls[number];
        assert!(call.answer.is_none() && !call.cancelled);
        call.cancelled = true;
        self.tokens.remove(call.token);
        self.leaving.push(call.token);
        self.inbox.push_back(Message::Cancel(Client::Host, call.token));
    }

    /// Runs until the call is answered.
    #[track_caller]
    pub fn answer(&mut self, number: usize) -> Answered {
        let limit = self.calls[number].answer_by.after(self.precision());
        while self.calls[number].answer.is_none() {
            assert!(self.now <= limit, "call {} of {:?} has no answer", number + 1, self.calls[number].ask);
            self.step(Time::NEVER);
        }
        self.calls[number].answer.clone().expect("just seen")
    }

    /// Posts one call and runs until it is answered.
    #[track_caller]
    pub fn call(&mut self, ask: Ask) -> Answered {
        let number = self.post(ask);
        self.answer(number)
    }

    pub fn executions(&self, number: usize) -> u32 {
        self.cluster.executions(self.calls[number].id)
    }

    pub fn open_calls(&self) -> usize {
        self.tokens.used() as usize
    }

    pub fn stop(&mut self) {
        self.inbox.push_back(Message::Stop);
    }

    /// The control loop panics between two turns and goes on anew, as its thread has it.
    pub fn restart_control(&mut self) {
        self.control = self.control.anew(self.now);
    }

    pub fn control(&mut self, command: Command) {
        self.control.handle_command(command, self.now);
    }

    // Time.

    pub fn after(&mut self, span: Duration, what: impl FnOnce(&mut World) + 'static) {
        self.plan(self.now.after(span), What::Do(Box::new(what)));
    }

    pub fn run_for(&mut self, span: Duration) {
        let end = self.now.after(span);
        while self.now < end {
            self.step(end);
        }
    }

    #[track_caller]
    pub fn run_until(&mut self, what: &str, condition: impl Fn(&World) -> bool) {
        let end = self.now.after(Duration::from_secs(60));
        while !condition(self) {
            assert!(self.now < end, "not within a minute: {what}");
            self.step(end);
        }
    }

    /// Moves the clock to the next thing that happens, at most to `limit`, and gives the engine a turn.
    pub fn step(&mut self, limit: Time) {
        let idle = self.inbox.is_empty() && !self.has_unread();
        let next = [
            self.core.next_timeout(),
            self.control.next_timeout(),
            self.events.peek().map(|event| event.at),
            (!idle).then_some(self.now),
            Some(limit),
        ];
        let next = next.into_iter().flatten().min().expect("not empty").max(self.now);
        assert!(next < Time::NEVER, "nothing will ever happen again");
        let next = Time::from_nanos(next.nanos().div_ceil(self.quantum) * self.quantum);
        if next > self.now {
            self.now = next;
            self.still = 0;
        }
        self.still += 1;
        assert!(self.still < 20_000, "the engine spins at {:?}", self.now);
        self.turn();
    }

    /// How late a deadline may be kept.
    fn precision(&self) -> Duration {
        wheel::PRECISION + Duration::from_nanos(self.quantum)
    }

    /// As engine/thread.rs does it.
    fn turn(&mut self) {
        let now = self.now;
        self.in_turn = true;
        self.core.begin_turn(now);
        while let Some(message) = self.inbox.pop_front() {
            self.core.handle_message(message, now);
        }
        while self.events.peek().is_some_and(|event| event.at <= now) {
            let event = self.events.pop().expect("just seen");
            self.happen(event.what);
        }
        self.read();
        self.core.finish_turn(now);
        self.act();
        self.write();
        self.hand_over();
        self.leaving.clear();
        self.turns += 1;
        self.in_turn = false;
    }

    fn plan(&mut self, at: Time, what: What) {
        self.serial += 1;
        self.events.push(Event { at, number: self.serial, what });
    }

    // The network.

    fn delay(&mut self, (low, high): (u64, u64)) -> Duration {
        Duration::from_micros(self.random.between(low, high))
    }

    /// When something sent now in this direction (0: to the storage) arrives.
    fn arrival(&mut self, conn: ConnId, direction: usize) -> Time {
        let latency = self.delay(self.net.latency);
        let at = self.now.after(latency);
        let Some(link) = self.links.get_mut(&conn) else { return at };
        link.last[direction] = link.last[direction].max(at);
        link.last[direction]
    }

    fn happen(&mut self, what: What) {
        match what {
            What::Do(action) => action(self),
            What::Connected(conn) => {
                let Some(link) = self.links.get_mut(&conn) else { return };
                link.open = true;
                let idx = link.idx;
                self.core.handle_connected(idx, self.now);
                self.greet(conn);
            }
            What::Refused(conn) => self.lose(conn, "Connection refused"),
            What::Closed(conn, reason) => {
                if reason == CLOSED {
                    // What came before the end is read before it.
                    self.read_one(conn);
                }
                self.lose(conn, reason);
            }
            What::ToStorage(conn, bytes) => {
                if let Some(link) = self.links.get_mut(&conn) {
                    link.input.extend_from_slice(&bytes);
                    link.waiting += bytes.len();
                    self.serve(conn);
                }
            }
            What::Answer(conn, bytes, last) => {
                let Some(link) = self.links.get_mut(&conn) else { return };
                if self.cluster.storages[link.storage].frozen {
                    return link.held.push((bytes, last));
                }
                self.send_to_router(conn, bytes);
                if last {
                    self.close_gently(conn);
                }
            }
            What::ToRouter(conn, bytes) => {
                if let Some(link) = self.links.get_mut(&conn) {
                    link.arrived.extend(bytes);
                }
            }
        }
    }

    fn greet(&mut self, conn: ConnId) {
        let Some(link) = self.links.get_mut(&conn) else { return };
        let storage = &self.cluster.storages[link.storage];
        if link.open && !link.greeted && !storage.frozen {
            link.greeted = true;
            let greeting = server::greeting(storage.version, &storage.uuid, &link.salt);
            self.send_to_router(conn, greeting);
        }
    }

    fn lose(&mut self, conn: ConnId, reason: &str) {
        if let Some(link) = self.links.remove(&conn) {
            self.by_idx.remove(&link.idx);
            self.core.handle_closed(link.idx, reason, self.now);
        }
    }

    /// All that was sent arrives, then the end.
    fn close_gently(&mut self, conn: ConnId) {
        let at = self.arrival(conn, 1);
        if let Some(link) = self.links.get_mut(&conn) {
            link.broken = true;
        }
        self.plan(at, What::Closed(conn, CLOSED));
    }

    fn send_to_router(&mut self, conn: ConnId, mut bytes: Vec<u8>) {
        let Some(link) = self.links.get_mut(&conn) else { return };
        if link.broken {
            return;
        }
        let mut cut = false;
        if let Some(left) = &mut link.cut_after {
            cut = bytes.len() >= *left;
            bytes.truncate(*left);
            *left -= bytes.len();
        }
        let piece = self.piece(bytes.len());
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let most = piece.min(rest.len()) as u64;
            let size = if piece == usize::MAX { most } else { self.random.between(1, most) };
            let (head, tail) = rest.split_at(size as usize);
            let at = self.arrival(conn, 1);
            self.plan(at, What::ToRouter(conn, head.to_vec()));
            rest = tail;
        }
        if cut {
            self.close_gently(conn);
        }
    }

    /// The most that arrives of so many bytes at once: large ones do not come in myriads of pieces.
    fn piece(&self, len: usize) -> usize {
        self.net.piece.max(len / 200)
    }

    /// A storage looks at what has come.
    fn serve(&mut self, conn: ConnId) {
        loop {
            let Some(link) = self.links.get_mut(&conn) else { return };
            let storage = link.storage;
            if self.cluster.storages[storage].frozen || link.broken {
                return;
            }
            // What is read makes room in the socket, whole request or not.
            link.unread -= std::mem::take(&mut link.waiting);
            let Some((request, len)) = server::Request::cut(&link.input) else { return };
            link.input.drain(..len);
            let (sync, salt) = (request.sync, link.salt);
            if request.kind == server::TYPE_AUTH {
                let accepted = match &self.cluster.storages[storage].login {
                    Some((user, password)) => request.is_from(user, password, &salt),
                    None => true,
                };
                link.logged_in |= accepted;
                let answer = if accepted {
                    server::ok(sync)
                } else {
                    server::error(sync, server::ER_PASSWORD_MISMATCH, "Incorrect password supplied for user")
                };
                self.send_to_router(conn, answer);
                continue;
            }
            if !link.logged_in && request.kind == server::TYPE_CALL {
                let text = "Execute access to function 'vshard.storage.call' is denied for user 'guest'";
                self.send_to_router(conn, server::error(sync, server::ER_ACCESS_DENIED, text));
                continue;
            }
            // Watching again only says that the news has come.
            if request.kind == server::TYPE_WATCH && link.watching.replace(sync).is_some() {
                continue;
            }
            let (delay, bytes, last) = match self.cluster.answer(storage, &request) {
                Reaction::Answer(delay, bytes) => (delay, bytes, false),
                Reaction::Break(bytes) => (0, bytes, true),
                Reaction::Silence => continue,
            };
            let work = self.delay(self.net.work).max(Duration::from_micros(delay));
            if work.is_zero() {
                self.happen(What::Answer(conn, bytes, last));
            } else {
                self.plan(self.now.after(work), What::Answer(conn, bytes, last));
            }
        }
    }

    fn has_unread(&self) -> bool {
        self.links.values().any(|link| !link.arrived.is_empty())
    }

    fn read(&mut self) {
        // In an order that follows from the seed.
        let mut ready: Vec<ConnId> =
            self.links.iter().filter(|(_, link)| !link.arrived.is_empty()).map(|(conn, _)| *conn).collect();
        ready.sort_unstable();
        self.random.shuffle(&mut ready);
        for conn in ready {
            self.read_one(conn);
        }
    }

    fn read_one(&mut self, conn: ConnId) {
        while let Some(link) = self.links.get_mut(&conn).filter(|link| !link.arrived.is_empty()) {
            let idx = link.idx;
            let Some(space) = self.core.recv_space(idx) else { break };
            assert!(!space.is_empty(), "a read into nothing looks like the end");
            let room = space.len();
            let count = room.min(link.arrived.len());
            for (place, byte) in space.iter_mut().zip(link.arrived.drain(..count)) {
                *place = byte;
            }
            self.core.handle_received(idx, count, self.now);
            self.act();
            // A read that fills its room does not tell whether there is more.
            if count == room
                && self.links.get(&conn).is_some_and(|link| link.arrived.is_empty())
                && self.core.recv_space(idx).is_some()
            {
                self.core.handle_nothing(idx);
            }
        }
    }

    fn act(&mut self) {
        while let Some(action) = self.core.poll_action() {
            match action {
                Action::Connect(idx) => self.connect(idx),
                Action::Close(idx) => {
                    if let Some(conn) = self.by_idx.remove(&idx) {
                        self.links.remove(&conn);
                    }
                }
            }
        }
    }

    fn connect(&mut self, idx: InstanceIdx) {
        let Some(address) = self.core.address(idx) else { return };
        let Address::Tcp { port, .. } = *address else { panic!("simulated storages have ports") };
        self.serial += 1;
        let conn = self.serial;
        let Some(storage) = self.cluster.at_port(port) else {
            return self.core.handle_closed(idx, "No route to host", self.now);
        };
        *self.connects.entry(storage).or_default() += 1;
        let mut salt = [0; 32];
        salt.copy_from_slice(&self.random.bytes(32));
        let link = Link {
            idx,
            storage,
            open: false,
            salt,
            logged_in: self.cluster.storages[storage].login.is_none(),
            input: Vec::new(),
            unread: 0,
            waiting: 0,
            arrived: VecDeque::new(),
            last: [self.now; 2],
            cut_after: None,
            broken: false,
            greeted: false,
            watching: None,
            held: Vec::new(),
        };
        assert!(self.by_idx.insert(idx, conn).is_none(), "one connection at a time");
        self.links.insert(conn, link);
        let at = self.arrival(conn, 1);
        let target = &self.cluster.storages[storage];
        if target.unreachable {
            return;
        }
        self.plan(at, if target.up { What::Connected(conn) } else { What::Refused(conn) });
    }

    fn write(&mut self) {
        let mut dirty = Vec::new();
        self.core.take_dirty(&mut dirty);
        self.unsent.extend(dirty);
        for idx in std::mem::take(&mut self.unsent) {
            if self.write_one(idx) {
                self.unsent.insert(idx);
            }
        }
    }

    /// True: there is more than the socket takes now.
    fn write_one(&mut self, idx: InstanceIdx) -> bool {
        let Some(conn) = self.by_idx.get(&idx).copied() else { return false };
        let Some(link) = self.links.get_mut(&conn).filter(|link| link.open) else { return true };
        let mut sent = Vec::new();
        let mut room = self.net.window.saturating_sub(link.unread);
        let piece = self.core.send_queue(idx).map_or(0, |queue| queue.len());
        let piece = self.net.piece.max(piece / 200);
        loop {
            let Some(queue) = self.core.send_queue(idx) else { return false };
            if queue.is_empty() || room == 0 {
                break;
            }
            let mut slices = [IoSlice::new(&[]); 4];
            let count = queue.gather(&mut slices);
            let flat: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.iter().copied()).collect();
            assert!(!flat.is_empty(), "a queue that is not empty has bytes");
            let most = flat.len().min(room);
            let size = most.min(piece);
            sent.push(flat[..size].to_vec());
            room -= size;
            self.core.handle_sent(idx, size);
        }
        let more = self.core.send_queue(idx).is_some_and(|queue| !queue.is_empty());
        for piece in sent {
            if let Some(link) = self.links.get_mut(&conn) {
                link.unread += piece.len();
            }
            let at = self.arrival(conn, 0);
            self.plan(at, What::ToStorage(conn, piece));
        }
        more
    }

    // Troubles.

    fn conns_of(&self, id: &str) -> Vec<ConnId> {
        let storage = self.cluster.by_id(id);
        let mut conns: Vec<ConnId> =
            self.links.iter().filter(|(_, link)| link.storage == storage).map(|(conn, _)| *conn).collect();
        conns.sort_unstable();
        conns
    }

    /// The process dies: connections break at once, new ones are refused.
    pub fn kill(&mut self, id: &str) {
        self.cluster.storage(id).up = false;
        self.break_connections(id);
    }

    pub fn revive(&mut self, id: &str) {
        self.cluster.storage(id).up = true;
    }

    pub fn break_connections(&mut self, id: &str) {
        for conn in self.conns_of(id) {
            if self.links[&conn].open {
                self.plan(self.now, What::Closed(conn, "Connection reset by peer"));
            }
        }
        if !self.in_turn {
            self.step(self.now);
        }
    }

    /// A planned stop: it says so to whoever watches, serves what it has, and is gone three seconds later at most.
    pub fn shut_down(&mut self, id: &str) {
        self.cluster.storage(id).up = false;
        for conn in self.conns_of(id) {
            if let Some(sync) = self.links[&conn].watching {
                let bytes = server::event(sync, "box.shutdown", Some(&Value::Bool(true)));
                self.happen(What::Answer(conn, bytes, false));
            }
        }
        let id = id.to_string();
        self.after(Duration::from_secs(3), move |world| {
            if !world.cluster.storage(&id).up {
                world.break_connections(&id);
            }
        });
    }

    /// So many bytes from this instance still arrive.
    pub fn cut_after(&mut self, id: &str, bytes: usize) {
        for conn in self.conns_of(id) {
            if let Some(link) = self.links.get_mut(&conn) {
                link.cut_after = Some(bytes.max(1));
            }
        }
    }

    /// Cuts that were planned are not made.
    pub fn spare(&mut self, id: &str) {
        for conn in self.conns_of(id) {
            if let Some(link) = self.links.get_mut(&conn) {
                link.cut_after = None;
            }
        }
    }

    pub fn freeze(&mut self, id: &str) {
        self.cluster.storage(id).frozen = true;
    }

    pub fn thaw(&mut self, id: &str) {
        self.cluster.storage(id).frozen = false;
        for conn in self.conns_of(id) {
            self.greet(conn);
            let held =
                self.links.get_mut(&conn).map(|link| std::mem::take(&mut link.held)).unwrap_or_default();
            for (bytes, last) in held {
                self.happen(What::Answer(conn, bytes, last));
            }
            self.serve(conn);
        }
    }

    /// Bytes out of nowhere on all connections of an instance.
    pub fn inject(&mut self, id: &str, bytes: &[u8]) {
        for conn in self.conns_of(id) {
            if self.links[&conn].open {
                self.send_to_router(conn, bytes.to_vec());
            }
        }
    }

    // Answers.

    fn hand_over(&mut self) {
        let now = self.now;
        let replies = std::mem::take(self.core.replies(Client::Host));
        self.check_ring(&replies);
        for reply in replies {
            self.take_reply(&reply);
            if self.keeps_pushes && reply.outcome == Outcome::Push {
                self.kept.push(reply);
            }
        }
        for report in std::mem::take(self.core.reports()) {
            self.control.handle_report(&report, now);
        }
        for reply in std::mem::take(self.core.replies(Client::Control)) {
            self.control.handle_reply(&reply, now);
        }
        self.control.handle_timeout(now);
        if self.control.take_news() {
            self.inbox.push_back(Message::Topology);
        }
        while let Some(request) = self.control.poll_request() {
            self.inbox.push_back(Message::Call(request));
        }
    }

    /// When the host is to be woken for these.
    fn check_ring(&mut self, replies: &[Reply]) {
        let ring_by = self.core.take_ring_by();
        assert_eq!(ring_by == Time::NEVER, replies.is_empty());
        self.ring_by = if replies.is_empty() { self.ring_by } else { ring_by };
        for reply in replies {
            let Some(number) = self.tokens.get(reply.token) else { continue };
            let call = &self.calls[*number];
            let held = ring_by.since(self.now);
            if reply.outcome != Outcome::Values {
                assert_eq!(ring_by, Time::ZERO, "only success is held back");
            }
            assert!(held <= self.now.since(call.posted) / 16, "{held:?} more for call {}", call.id);
            assert!(ring_by <= call.answer_by.max(self.now), "call {} is told of too late", call.id);
        }
    }

    /// What must hold of any reply.
    fn take_reply(&mut self, reply: &Reply) {
        if reply.outcome == Outcome::Push {
            // A push that crosses with its caller's leaving is for nobody.
            if let Some(number) = self.tokens.get(reply.token) {
                let call = &mut self.calls[*number];
                assert!(call.ask.answer_by.is_some(), "call {} has not asked for pushes", call.id);
                assert!(call.answer.is_none(), "call {} is pushed to after its answer", call.id);
                let values = Value::sequence(reply.values()).expect("well-formed values");
                assert!(!values.is_empty(), "what is shown of a push is its first value");
                assert_eq!(values.len(), reply.count() as usize);
                call.pushed.extend(values);
            }
            return;
        }
        let Some(number) = self.tokens.remove(reply.token) else {
            let crossed = self.leaving.iter().position(|token| *token == reply.token);
            self.leaving.swap_remove(crossed.expect("a reply is for somebody who waits"));
            return;
        };
        let executed = self.cluster.executions(self.calls[number].id);
        let precision = self.precision();
        let call = &mut self.calls[number];
        let late = self.now.since(call.answer_by);
        assert!(late <= precision, "call {} was answered {late:?} too late", call.id);
        let values = Value::sequence(reply.values()).expect("well-formed values");
        assert_eq!(values.len(), reply.count() as usize);
        assert_eq!(Value::only(reply.array()), Some(Value::Array(values.clone())));
        let outcome = match reply.outcome {
            Outcome::Values => {
                check_values(call, &values, reply.values());
                if !matches!(call.ask.target, Where::Route(_)) {
                    assert!(executed > 0, "call {} succeeded without being run", call.id);
                }
                Ok(values)
            }
            Outcome::Malformed => panic!("arguments are well-formed: {values:?}"),
            Outcome::Push => unreachable!("taken above"),
            Outcome::Failed => {
                assert_eq!(values.len(), 1, "one error");
                let error = values.into_iter().next().expect("just counted");
                check_error(call, &error, executed);
                Err(error)
            }
        };
        call.answer = Some(Answered { at: self.now, outcome });
    }

    /// What must hold after any turn.
    pub fn check_books(&self) {
        let held = self.core.held();
        let questions = held.searches * self.cluster.shards.len();
        assert!(held.requests <= held.calls + questions, "requests are waited for by nobody: {held:?}");
        assert_eq!(held.timers, held.calls, "each call has its deadline");
        assert!(held.waiting + held.ready <= held.calls, "{held:?}");
        let counted = self.counters.snapshot();
        assert_eq!(counted.calls, counted.replies + counted.cancelled + held.calls as u64);
    }

    /// What must hold when no call is under way; and of all calls so far.
    pub fn check_quiet(&self) {
        assert_eq!(self.open_calls(), 0, "each call is answered");
        let held = self.core.held();
        assert_eq!(held, Held::default(), "nothing is left of calls that have ended");
        let counted = self.counters.snapshot();
        assert_eq!(counted.calls, counted.replies + counted.cancelled);
        assert_eq!(counted.in_flight, 0);
        for call in &self.calls {
            assert!(call.answer.is_some() != call.cancelled, "call {}: one end each", call.id);
            let executed = self.cluster.executions(call.id);
            let may_repeat = call.ask.access.mode == Mode::Read && call.ask.request_timeout.is_some();
            assert!(executed <= 1 || may_repeat, "call {} was run {executed} times", call.id);
        }
    }

    /// Lets calls and internal searches end, then looks whether anything is left.
    #[track_caller]
    pub fn settle(&mut self) {
        self.control(Command::DiscoverySet(DiscoveryMode::Off));
        self.run_until("the engine has no call", |world| {
            world.inbox.is_empty() && world.core.held() == Held::default()
        });
        self.check_quiet();
    }
}

/// A key whose `mpcrc32` makes it one of the bucket.
fn key_of(bucket: u64, bucket_count: u32) -> Value {
    let keys = (0..).map(Value::Uint);
    let bucket_of = |key: &Value| {
        let mut hasher = Hasher::new(Hash::MpCrc32, Rules::default());
        hasher.key(&mut Cursor::new(&key.bytes())).expect("a number has a hash");
        u64::from(hasher.finish() % bucket_count) + 1
    };
    keys.into_iter().find(|key| bucket_of(key) == bucket).expect("there are many numbers")
}

/// What is bound to serve such calls.
fn endpoint(ask: &Ask) -> Endpoint {
    let attempt = ask.request_timeout.filter(|_| ask.access.mode == Mode::Read);
    let paths = vec![Path::new(b"[1]").expect("a path")];
    let func = ask.func.as_bytes();
    Endpoint::new(
        "endpoint".into(),
        func,
        paths,
        None,
        ask.access,
        in_seconds(ask.timeout),
        attempt.map(in_seconds),
    )
}

/// The arguments of `callraw`.
fn raw_args(bucket: Value, ask: &Ask, args: &[u8]) -> Vec<u8> {
    let Access { mode, prefer_replica, balance } = ask.access;
    let opts = Value::map([
        ("mode", Value::str(mode.name())),
        ("prefer_replica", Value::Bool(prefer_replica)),
        ("balance", Value::Bool(balance)),
    ]);
    let mut call_opts = vec![(Value::str("timeout"), Value::F64(ask.timeout.as_secs_f64()))];
    if let Some(timeout) = ask.request_timeout {
        call_opts.push((Value::str("request_timeout"), Value::F64(timeout.as_secs_f64())));
    }
    let mut bytes = vec![0x95];
    for value in [bucket, opts, Value::str(ask.func)] {
        value.encode(&mut bytes);
    }
    bytes.extend_from_slice(args);
    Value::Map(call_opts).encode(&mut bytes);
    bytes
}

/// What is left of a time that was given as a number of seconds.
fn in_seconds(span: Duration) -> Duration {
    Duration::try_from_secs_f64(span.as_secs_f64()).unwrap_or(Duration::MAX)
}

fn check_values(call: &Issued, values: &[Value], bytes: &[u8]) {
    if matches!(call.target, Target::Route(_)) {
        assert!(matches!(values, [Value::Uint(_)]));
        return;
    }
    let id = Value::Uint(call.id);
    match call.ask.func {
        "echo" => assert_eq!(bytes, items(&call.args), "call {}: the bytes that were sent", call.id),
        "slow" => assert_eq!(values, [id]),
        "big" => {
            let size = call.ask.args[0].uint().expect("a number") as usize;
            assert!(values == [id, Value::Bin(vec![call.id as u8; size])], "call {}: its own bytes", call.id);
        }
        "nothing" => assert_eq!(values, []),
        "nilerr" => assert_eq!(values[1].field("call"), Some(&id)),
        other => panic!("{other} returns nothing"),
    }
}

fn check_error(call: &Issued, error: &Value, executed: u32) {
    let text = |name| error.field(name).and_then(Value::text);
    let code = error.field("code").and_then(Value::uint);
    assert!(
        text("type").is_some() && text("message").is_some() && code.is_some(),
        "an error object: {error:?}"
    );
    if let Some(owner) = error.field("call") {
        assert_eq!(owner, &Value::Uint(call.id), "an error raised by somebody else's call");
        return;
    }
    let refused = text("type") == Some("ShardingError") && matches!(code, Some(1 | 2 | 7 | 22 | 33));
    // A read that was given up at one instance may have been run there before another refused it.
    if refused && call.ask.request_timeout.is_none() {
        assert_eq!(executed, 0, "call {} was refused, yet run", call.id);
    }
}

fn storage(replicaset: &str, shard: usize, all: usize, number: usize) -> Storage {
    Storage {
        id: format!("{replicaset}-{}", (b'a' + number as u8) as char),
        uuid: format!("00000000-0000-4000-8000-{:012}", all + 1),
        name: None,
        version: if all.is_multiple_of(2) { "2.11.5" } else { "2.6.0" },
        shard,
        port: 3301 + all as u16,
        login: Some(("storage".into(), format!("secret {all}"))),
        up: true,
        frozen: false,
        unreachable: false,
        disabled: false,
        upstream: Some(("follow", 0.001, 0.1)),
        names_master: true,
        page: 1000,
        hook: None,
    }
}

/// How a router reaches this instance.
pub fn instance_config(storage: &Storage, is_master: bool) -> InstanceConfig {
    let login = storage.login.clone();
    InstanceConfig {
        id: storage.id.clone(),
        uuid: Some(storage.uuid.clone()),
        name: None,
        address: Address::Tcp { host: "sim".into(), port: storage.port },
        user: login.as_ref().map(|(user, _)| user.clone()),
        password: login.map(|(_, password)| Secret::new(password)),
        is_master,
        zone_weight: 0.0,
    }
}

impl World {
    /// A replicaset that the router does not know yet.
    pub fn add_shard(&mut self, instances: usize) -> String {
        let shard = self.cluster.shards.len();
        let id = format!("rs{}", shard + 1);
        let first = self.cluster.storages.len();
        for number in 0..instances {
            self.cluster.storages.push(storage(&id, shard, first + number, number));
        }
        self.cluster.shards.push(Shard {
            id: id.clone(),
            buckets: Default::default(),
            locked: Default::default(),
            master: Some(first),
        });
        id
    }

    /// As the router would be told of it.
    pub fn shard_config(&self, id: &str) -> ReplicasetConfig {
        let number = self.cluster.shards.iter().position(|shard| shard.id == id).expect("a replicaset");
        let master = self.cluster.shards[number].master;
        let instances =
            self.cluster.storages.iter().enumerate().filter(|(_, storage)| storage.shard == number);
        ReplicasetConfig {
            id: id.into(),
            uuid: None,
            name: None,
            weight: 1.0,
            master_auto: false,
            instances: instances.map(|(at, storage)| instance_config(storage, master == Some(at))).collect(),
        }
    }
}
