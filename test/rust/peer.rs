//! The real router, its threads and sockets, against scripted storages on loopback: what the simulation cannot show.

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use common::random::Random;
use common::server::{self, Request};
use common::value::Value;
use rawshard::call::request::{self, Access, Body, Client, Outcome, Reply, Target};
use rawshard::control::config::{Config, DiscoveryMode, InstanceConfig, ReplicasetConfig};
use rawshard::engine::inbox::{Message, Wake};
use rawshard::ids::{BucketId, ReplicasetIdx};
use rawshard::route::address::{Address, Secret};
use rawshard::router::Router;
use rawshard::slab::{Key, Slab};

const PATIENCE: Duration = Duration::from_secs(30);

/// A stream of either kind.
trait Stream: Read + Write + Send {}

impl<T: Read + Write + Send> Stream for T {}

/// What a scripted storage does with the requests that have come together. None: it hangs up.
type Script = Box<dyn FnMut(Vec<Request>) -> Option<Vec<u8>> + Send>;

/// Makes the script of each new connection; None: it is accepted, and then nothing.
type Scripts = Arc<dyn Fn() -> Option<Script> + Send + Sync>;

struct Storage {
    address: Address,
    stopped: Arc<AtomicBool>,
    accepted: Arc<AtomicU32>,
    thread: Option<JoinHandle<()>>,
    socket: Option<PathBuf>,
}

const SALT: [u8; 32] = *b"salt of the scripted storage 123";
const PASSWORD: &str = "open";

impl Storage {
    fn tcp(scripts: Scripts) -> Storage {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let address = Address::Tcp { host: "127.0.0.1".into(), port };
        listener.set_nonblocking(true).expect("it can");
        Storage::start(address, None, scripts, move || {
            let (stream, _) = listener.accept().ok()?;
            stream.set_nonblocking(false).ok()?;
            stream.set_read_timeout(Some(Duration::from_millis(20))).ok()?;
            Some(Box::new(stream))
        })
    }

    fn unix(scripts: Scripts) -> Storage {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("rawshard-{}-{number}.sock", std::process::id()));
        let listener = UnixListener::bind(&path).expect("a new socket");
        let address = Address::Unix(path.to_str().expect("plain").into());
        listener.set_nonblocking(true).expect("it can");
        Storage::start(address, Some(path), scripts, move || {
            let (stream, _) = listener.accept().ok()?;
            stream.set_nonblocking(false).ok()?;
            stream.set_read_timeout(Some(Duration::from_millis(20))).ok()?;
            Some(Box::new(stream))
        })
    }

    /// One that a test serves by itself.
    fn elsewhere(port: u16) -> Storage {
        let address = Address::Tcp { host: "127.0.0.1".into(), port };
        Storage { address, stopped: Arc::default(), accepted: Arc::default(), thread: None, socket: None }
    }

    fn start(
        address: Address,
        socket: Option<PathBuf>,
        scripts: Scripts,
        mut accept: impl FnMut() -> Option<Box<dyn Stream>> + Send + 'static,
    ) -> Storage {
        let (stopped, accepted) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
        let (stop, count) = (Arc::clone(&stopped), Arc::clone(&accepted));
        let thread = std::thread::spawn(move || {
            let mut sessions = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                let Some(stream) = accept() else {
                    std::thread::sleep(Duration::from_millis(2));
                    continue;
                };
                count.fetch_add(1, Ordering::Relaxed);
                let (script, stop) = (scripts(), Arc::clone(&stop));
                sessions.push(std::thread::spawn(move || serve(stream, script, &stop)));
            }
            for session in sessions {
                session.join().expect("a storage does not panic");
            }
        });
        Storage { address, stopped, accepted, thread: Some(thread), socket }
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        let panicked = self.thread.take().is_some_and(|thread| thread.join().is_err());
        if let Some(path) = &self.socket {
            let _ = std::fs::remove_file(path);
        }
        assert!(!panicked || std::thread::panicking(), "a storage has panicked");
    }
}

fn serve(mut stream: Box<dyn Stream>, script: Option<Script>, stopped: &AtomicBool) {
    let Some(mut script) = script else {
        while !stopped.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(5));
        }
        return;
    };
    if stream.write_all(&server::greeting("2.6.0", "00000000-0000-4000-8000-000000000001", &SALT)).is_err() {
        return;
    }
    let (mut input, mut chunk) = (Vec::new(), vec![0; 1 << 20]);
    while !stopped.load(Ordering::Relaxed) {
        match stream.read(&mut chunk) {
            Ok(0) => return,
            Ok(count) => input.extend_from_slice(&chunk[..count]),
            Err(error)
                if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {}
            Err(_) => return,
        }
        let (mut requests, mut output, mut at) = (Vec::new(), Vec::new(), 0);
        while let Some((request, len)) = Request::cut(&input[at..]) {
            at += len;
            match request.kind {
                server::TYPE_AUTH => {
                    assert!(request.is_from("storage", PASSWORD, &SALT));
                    output.extend(server::ok(request.sync));
                }
                // The watched key never changes here.
                server::TYPE_WATCH => {}
                server::TYPE_PING => output.extend(server::ok(request.sync)),
                _ => requests.push(request),
            }
        }
        input.drain(..at);
        let answers = script(requests);
        let hangs_up = answers.is_none();
        output.extend(answers.unwrap_or_default());
        if stream.write_all(&output).is_err() || hangs_up {
            return;
        }
    }
}

/// `[true, id]`, `id` being the first argument of the user's function.
fn echo(request: &Request) -> Vec<u8> {
    assert_eq!(request.func(), "vshard.storage.call");
    server::values(request.sync, &[Value::Bool(true), request.args()[3].items()[0].clone()])
}

fn echoing() -> Scripts {
    Arc::new(|| Some(Box::new(|requests: Vec<Request>| Some(requests.iter().flat_map(echo).collect()))))
}

/// Who waits for replies.
#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Wake for Bell {
    fn wake(&self) {
        *self.rung.lock().expect("no panic") = true;
        self.changed.notify_all();
    }
}

struct Host {
    router: Router,
    bell: Arc<Bell>,
    tokens: Slab<u64>,
    next: u64,
}

impl Host {
    /// One replicaset an instance.
    fn new(storages: &[&Storage], io_threads: u32) -> Host {
        let config = configuration(storages, io_threads);
        let bell = Arc::new(Bell::default());
        let router = Router::start(config, Arc::clone(&bell) as Arc<dyn Wake>).expect("it starts");
        let host = Host { router, bell, tokens: Slab::new(), next: 1 };
        let owners: Vec<ReplicasetIdx> = host.router.topology().live().map(|rs| rs.idx).collect();
        for bucket in 1..=100 {
            host.router.buckets().set(host.bucket(bucket), owners[bucket as usize % owners.len()]);
        }
        host
    }

    fn bucket(&self, id: u64) -> BucketId {
        BucketId::new(id, 100).expect("a bucket")
    }

    fn post(&mut self, bucket: u64, payload: &[u8], timeout: Duration) -> Key {
        let id = self.next;
        self.next += 1;
        let token = self.tokens.insert(id);
        self.router.post(make(&self.router, token, self.bucket(bucket), id, payload, timeout));
        token
    }

    /// So many replies, each to a call that waits; with the ids of their calls.
    fn replies(&mut self, count: usize) -> Vec<(u64, Reply)> {
        let end = Instant::now() + PATIENCE;
        let mut replies = Vec::new();
        loop {
            let mut batch = Vec::new();
            self.router.take_replies(&mut batch);
            for reply in batch {
                let id = self.tokens.remove(reply.token).expect("one reply each");
                replies.push((id, reply));
            }
            if replies.len() >= count {
                assert_eq!(replies.len(), count);
                return replies;
            }
            let rung = self.bell.rung.lock().expect("no panic");
            let left = end.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{} of {count} replies came", replies.len());
            let (mut rung, _) =
                self.bell.changed.wait_timeout_while(rung, left, |rung| !*rung).expect("no panic");
            *rung = false;
        }
    }

    /// All succeed with their own ids.
    fn own_ids(&mut self, count: usize) {
        for (id, reply) in self.replies(count) {
            assert_eq!(
                (reply.outcome, Value::sequence(reply.values())),
                (Outcome::Values, Some(vec![Value::Uint(id)]))
            );
        }
    }

    fn error(&mut self) -> Value {
        let (_, reply) = self.replies(1).pop().expect("one");
        assert_eq!(reply.outcome, Outcome::Failed);
        Value::only(reply.values()).expect("one error")
    }
}

fn configuration(storages: &[&Storage], io_threads: u32) -> Config {
    let replicasets = storages.iter().enumerate().map(|(number, storage)| replicaset(number, storage));
    Config {
        bucket_count: 100,
        io_threads,
        discovery_mode: DiscoveryMode::Off,
        // No ping helps to notice anything.
        failover_interval: Duration::from_secs(3600),
        replicasets: replicasets.collect(),
        ..Config::default()
    }
}

fn replicaset(number: usize, storage: &Storage) -> ReplicasetConfig {
    ReplicasetConfig {
        id: format!("rs{number}"),
        uuid: None,
        name: None,
        weight: 1.0,
        master_auto: false,
        instances: vec![InstanceConfig {
            id: format!("rs{number}-a"),
            uuid: None,
            name: None,
            address: storage.address.clone(),
            user: Some("storage".into()),
            password: Some(Secret::new(PASSWORD.into())),
            is_master: true,
            zone_weight: 0.0,
        }],
    }
}

fn make(
    router: &Router,
    token: Key,
    bucket: BucketId,
    id: u64,
    payload: &[u8],
    timeout: Duration,
) -> request::Request {
    let args = Value::Array(vec![Value::Uint(id), Value::Bin(payload.to_vec())]).bytes();
    let deadline = router.now().after(timeout);
    request::Request {
        token,
        client: Client::Host,
        target: Target::Bucket(bucket),
        access: Access::RW,
        deadline,
        answer_by: deadline,
        attempt_timeout: None,
        pushes: false,
        body: Body::storage_call(Vec::new(), b"echo", &args),
    }
}

fn code(error: &Value) -> Option<u64> {
    error.field("code").and_then(Value::uint)
}

#[test]
fn twenty_thousand_calls_in_flight_answered_in_any_order() {
    const CALLS: usize = 20_000;
    let scripts: Scripts = Arc::new(|| {
        let (mut held, mut random) = (Vec::new(), Random::new(7));
        Some(Box::new(move |requests: Vec<Request>| {
            held.extend(requests.iter().map(echo));
            if held.len() < CALLS {
                return Some(Vec::new());
            }
            random.shuffle(&mut held);
            Some(held.drain(..).flatten().collect())
        }))
    });
    let storage = Storage::tcp(scripts);
    let mut host = Host::new(&[&storage], 1);
    for call in 0..CALLS as u64 {
        host.post(call % 100 + 1, b"payload", PATIENCE);
    }
    host.own_ids(CALLS);
    let counted = host.router.engines()[0];
    assert_eq!((counted.in_flight_peak, counted.in_flight), (CALLS as u64, 0));
    assert_eq!((counted.calls, counted.replies, counted.late), (CALLS as u64, CALLS as u64, 0));
}

#[test]
fn stop_answers_all_and_leaves_no_thread() {
    let storage = Storage::tcp(Arc::new(|| Some(Box::new(|_| Some(Vec::new())))));
    let mut host = Host::new(&[&storage], 2);
    for call in 0..1000 {
        host.post(call % 100 + 1, b"", Duration::from_secs(3600));
    }
    host.router.stop();
    host.post(1, b"", Duration::from_secs(3600));
    for (_, reply) in host.replies(1001) {
        assert_eq!(reply.outcome, Outcome::Failed);
    }
    let Host { router, bell, .. } = host;
    drop(router);
    assert_eq!(Arc::strong_count(&bell), 1, "no thread keeps anything");
}

#[test]
fn calls_that_cross_with_the_stop_are_answered() {
    let storage = Storage::tcp(echoing());
    for _ in 0..200 {
        let host = Host::new(&[&storage], 1);
        let router = &host.router;
        let (bucket, mut replies) = (host.bucket(1), Vec::new());
        let posted: u32 = std::thread::scope(|scope| {
            let poster = scope.spawn(move || {
                let mut posted = 0;
                // A few beyond the stop, of which this thread knows nothing.
                for index in 0..300 {
                    let token = Key { index, generation: 1 };
                    router.post(make(router, token, bucket, 1, b"", Duration::from_secs(3600)));
                    posted += 1;
                }
                posted
            });
            std::thread::sleep(Duration::from_micros(300));
            router.stop();
            poster.join().expect("no panic")
        });
        host.router.take_replies(&mut replies);
        assert_eq!(replies.len(), posted as usize, "each call is answered once");
    }
}

/// Of a hundred calls that wait for long one is answered, and nothing happens after that.
#[test]
fn one_answer_among_many_slow_ones_arrives() {
    let one_of_all = || -> Script {
        let mut asked = Vec::new();
        Box::new(move |requests| {
            asked.extend(requests.iter().map(echo));
            if asked.len() < 100 {
                return Some(Vec::new());
            }
            // Long enough for the router to hold back what is told of it.
            std::thread::sleep(Duration::from_millis(40));
            Some(asked.drain(..).next().expect("a hundred"))
        })
    };
    let storage = Storage::tcp(Arc::new(move || Some(one_of_all())));
    let mut host = Host::new(&[&storage], 1);
    for call in 0..100 {
        host.post(call + 1, b"", PATIENCE);
    }
    host.own_ids(1);
    // Those that wait at the end are answered too.
    host.router.stop();
    assert_eq!(host.replies(99).iter().filter(|(_, reply)| reply.outcome == Outcome::Failed).count(), 99);
}

#[test]
fn a_unix_socket() {
    let storage = Storage::unix(echoing());
    let mut host = Host::new(&[&storage], 1);
    for call in 0..100 {
        host.post(call + 1, b"payload", PATIENCE);
    }
    host.own_ids(100);
}

#[test]
fn one_who_accepts_and_says_nothing() {
    let (silent, storage) = (Storage::tcp(Arc::new(|| None)), Storage::tcp(echoing()));
    let mut host = Host::new(&[&silent, &storage], 1);
    let began = Instant::now();
    host.post(2, b"", Duration::from_millis(300));
    host.post(1, b"", PATIENCE);
    host.own_ids(1);
    assert_eq!(code(&host.error()), Some(77));
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(300) && took < Duration::from_secs(5), "{took:?}");
}

#[test]
fn four_threads_share_the_buckets() {
    let storage = Storage::tcp(echoing());
    let mut host = Host::new(&[&storage], 4);
    for call in 0..4000 {
        host.post(call % 100 + 1, b"", PATIENCE);
    }
    host.own_ids(4000);
    assert_eq!(storage.accepted.load(Ordering::Relaxed), 4, "a connection each");
    for counted in host.router.engines() {
        assert_eq!((counted.calls, counted.replies), (1000, 1000));
    }
}

/// The last answer of a storage that goes away, and its end, often arrive as one event.
#[test]
fn an_answer_and_the_end_that_come_together_are_both_seen() {
    for _ in 0..20 {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let storage = std::thread::spawn(move || answer_and_close(&listener.accept().expect("the router").0));
        let mut host = Host::new(&[&Storage::elsewhere(port)], 1);
        let began = Instant::now();
        host.post(1, b"", PATIENCE);
        host.post(2, b"", Duration::from_secs(20));
        let outcomes: Vec<Outcome> = host.replies(2).iter().map(|(_, reply)| reply.outcome).collect();
        assert_eq!(outcomes, [Outcome::Values, Outcome::Failed]);
        let took = began.elapsed();
        assert!(took < Duration::from_secs(5), "the end was seen after {took:?}");
        storage.join().expect("the storage does its part");
    }
}

/// Answers the first of two calls and closes, so that answer and end are one packet more often than not.
fn answer_and_close(mut stream: &TcpStream) {
    stream
        .write_all(&server::greeting("2.6.0", "00000000-0000-4000-8000-000000000001", &SALT))
        .expect("connected");
    let (mut input, mut chunk, mut calls) = (Vec::new(), [0; 4096], Vec::new());
    while calls.len() < 2 {
        let count = stream.read(&mut chunk).expect("requests come");
        assert!(count > 0);
        input.extend_from_slice(&chunk[..count]);
        while let Some((request, len)) = Request::cut(&input) {
            input.drain(..len);
            match request.kind {
                server::TYPE_CALL => calls.push(request),
                _ => stream.write_all(&server::ok(request.sync)).expect("connected"),
            }
        }
    }
    let socket = socket2::SockRef::from(stream);
    // The last packet waits for the end, which leaves with it.
    socket.set_tcp_cork(true).expect("it can");
    stream.write_all(&echo(&calls[0])).expect("connected");
    stream.shutdown(std::net::Shutdown::Both).expect("connected");
}

#[test]
fn large_payloads_both_ways() {
    const SIZE: usize = 8 << 20;
    let scripts: Scripts = Arc::new(|| {
        Some(Box::new(|requests: Vec<Request>| {
            let whole = |request: &Request| {
                let mut values = vec![Value::Bool(true)];
                values.extend(request.args()[3].items().iter().cloned());
                server::values(request.sync, &values)
            };
            Some(requests.iter().flat_map(whole).collect())
        }))
    });
    let storage = Storage::tcp(scripts);
    let mut host = Host::new(&[&storage], 1);
    let payload = Random::new(1).bytes(SIZE);
    for _ in 0..3 {
        host.post(1, &payload, PATIENCE);
    }
    for (id, reply) in host.replies(3) {
        let values = Value::sequence(reply.values()).expect("well-formed");
        assert!(values == [Value::Uint(id), Value::Bin(payload.clone())]);
    }
}

#[test]
fn a_storage_that_goes_and_comes_back() {
    // Hangs up after each hundredth call.
    let scripts: Scripts = Arc::new(|| {
        let mut served = 0;
        Some(Box::new(move |requests: Vec<Request>| {
            served += requests.len();
            if served > 100 { None } else { Some(requests.iter().flat_map(echo).collect()) }
        }))
    });
    let storage = Storage::tcp(scripts);
    let mut host = Host::new(&[&storage], 1);
    let (mut good, mut bad) = (0, 0);
    while good < 1000 {
        host.post(1, b"", Duration::from_secs(5));
        let (id, reply) = host.replies(1).pop().expect("one");
        match reply.outcome {
            Outcome::Values => {
                assert_eq!(Value::sequence(reply.values()), Some(vec![Value::Uint(id)]));
                good += 1;
            }
            _ => bad += 1,
        }
    }
    assert!((9..=12).contains(&bad), "one call dies with each connection: {bad}");
    assert!(storage.accepted.load(Ordering::Relaxed) >= 10);
}

#[test]
fn a_web_server_at_the_address() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.set_nonblocking(true).expect("it can");
    let port = listener.local_addr().expect("an address").port();
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let server = std::thread::spawn(move || {
        while !stopped.load(Ordering::Relaxed) {
            if let Ok((mut stream, _)) = listener.accept() {
                let _ = stream.write_all(&b"HTTP/1.1 400 Bad Request\r\n\r\n".repeat(10));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    });
    let mut host = Host::new(&[&Storage::elsewhere(port)], 1);
    host.post(1, b"", Duration::from_millis(300));
    let error = host.error();
    let text = error.field("message").and_then(Value::text).expect("a message");
    assert!(code(&error) == Some(77) && text.contains("not Tarantool's"), "{text}");
    stop.store(true, Ordering::Relaxed);
    server.join().expect("no panic");
}

#[test]
fn a_panic_ends_the_calls_under_way_and_no_others() {
    let storage = Storage::tcp(Arc::new(|| {
        let mut held = Vec::new();
        Some(Box::new(move |requests: Vec<Request>| {
            // The first three are never answered.
            held.extend(requests);
            Some(held.drain(held.len().min(3)..).flat_map(|request| echo(&request)).collect())
        }))
    }));
    let mut host = Host::new(&[&storage], 1);
    for _ in 0..3 {
        host.post(1, b"", PATIENCE);
    }
    while host.router.engines()[0].in_flight < 3 {
        std::thread::sleep(Duration::from_millis(1));
    }
    // A bucket of some other router: nobody can have made one by mistake, and the table of buckets ends before it.
    let foreign = BucketId::new(5000, 10_000).expect("a bucket");
    let mut batch = Vec::new();
    for call in 0..10 {
        let bucket = if call == 4 { foreign } else { host.bucket(1) };
        let token = host.tokens.insert(100 + call);
        batch.push(Message::Call(make(&host.router, token, bucket, 100 + call, b"", PATIENCE)));
    }
    host.router.post_all(0, &mut batch);
    for (_, reply) in host.replies(13) {
        assert_eq!(reply.outcome, Outcome::Failed);
    }
    // The next connection has a script of its own: three more are held.
    for _ in 0..3 {
        host.post(1, b"", Duration::from_millis(100));
    }
    host.replies(3);
    host.post(1, b"", PATIENCE);
    let (id, reply) = host.replies(1).pop().expect("one");
    assert_eq!(
        (reply.outcome, Value::sequence(reply.values())),
        (Outcome::Values, Some(vec![Value::Uint(id)]))
    );
}

#[test]
fn names_are_looked_up_and_those_without_an_address_say_why() {
    let mut named = Storage::tcp(echoing());
    let Address::Tcp { port, .. } = named.address else { unreachable!("a port") };
    named.address = Address::Tcp { host: "localhost".into(), port };
    // A label may have 63 characters: no resolver asks anybody for this one.
    let mut nowhere = Storage::elsewhere(port);
    nowhere.address = Address::Tcp { host: "x".repeat(70), port };
    let storage = Storage::tcp(echoing());
    // Bucket 1: nowhere, 2: plain, 3: named.
    let mut host = Host::new(&[&named, &nowhere, &storage], 1);
    for _ in 0..20 {
        host.post(2, b"", PATIENCE);
        host.post(3, b"", PATIENCE);
        host.own_ids(2);
    }
    let began = Instant::now();
    host.post(1, b"", Duration::from_millis(500));
    let error = host.error();
    let text = error.field("message").and_then(Value::text).expect("a message");
    assert!(code(&error) == Some(77) && text.contains("lookup"), "{text}");
    assert!(began.elapsed() >= Duration::from_millis(500), "it may still get one");
    let began = Instant::now();
    host.router.stop();
    let took = began.elapsed();
    assert!(took < Duration::from_secs(5), "stopped after {took:?}");
}

#[test]
fn what_was_configured_is_known_to_the_calls_that_follow() {
    let (storage, added) = (Storage::tcp(echoing()), Storage::tcp(echoing()));
    let mut host = Host::new(&[&storage], 2);
    for round in 1..=200 {
        let mut config = configuration(&[&storage], 2);
        // A new one each time: neither the index nor the connection was known before.
        config.replicasets.push(replicaset(round, &added));
        // The engines are busy.
        for bucket in 1..=20 {
            host.post(bucket, b"", PATIENCE);
        }
        host.router.reconfigure(config).expect("it is fine");
        let idx = host.router.topology().replicaset_by_id(&format!("rs{round}")).expect("just added");
        let id = host.next;
        host.next += 1;
        let token = host.tokens.insert(id);
        let args = Value::Array(vec![
            Value::Uint(1),
            Value::str("write"),
            Value::str("echo"),
            Value::Array(vec![Value::Uint(id)]),
        ]);
        let mut request = make(&host.router, token, host.bucket(1), id, b"", PATIENCE);
        request.target = Target::Replicaset(idx);
        request.body = Body::call(Vec::new(), "vshard.storage.call", &args.bytes());
        host.router.post(request);
        for (_, reply) in host.replies(21) {
            assert_eq!(reply.outcome, Outcome::Values, "{:?}", Value::sequence(reply.values()));
        }
    }
}

/// A storage that lets everybody in and hangs up.
#[test]
fn one_who_hangs_up_on_everybody_is_tried_at_a_walking_pace() {
    let rude = Storage::tcp(Arc::new(|| Some(Box::new(|_| None))));
    let storage = Storage::tcp(echoing());
    let mut host = Host::new(&[&rude, &storage], 1);
    let began = Instant::now();
    while rude.accepted.load(Ordering::Relaxed) < 10 {
        assert!(began.elapsed() < PATIENCE);
        host.post(1, b"", PATIENCE);
        host.own_ids(1);
        std::thread::sleep(Duration::from_millis(5));
    }
    // Nine pauses: 25, 50, 100 and 200 ms at least, then a quarter of a second each.
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(1500), "ten tries in {took:?}");
}

/// A storage that has every other bucket, and says so when asked.
fn with_buckets(remainder: u64) -> Scripts {
    Arc::new(move || {
        Some(Box::new(move |requests: Vec<Request>| {
            let answer = |request: &Request| {
                let wrong = || Value::sharding_error(1, "WRONG_BUCKET", []);
                let has = |bucket: &Value| bucket.uint().is_some_and(|bucket| bucket % 2 == remainder);
                let values = match request.func() {
                    "vshard.storage.call" if has(&request.args()[0]) => return echo(request),
                    "vshard.storage.call" => vec![Value::Nil, wrong()],
                    "vshard.storage.bucket_stat" if has(&request.args()[0]) => vec![Value::Map(vec![])],
                    "vshard.storage.bucket_stat" => vec![Value::Nil, wrong()],
                    "vshard.storage.buckets_discovery" => {
                        let own = (1..=100).map(Value::Uint).filter(has).collect();
                        vec![Value::map([("buckets", Value::Array(own))])]
                    }
                    other => panic!("no function {other}"),
                };
                server::values(request.sync, &values)
            };
            Some(requests.iter().flat_map(answer).collect())
        }))
    })
}

/// P17
#[test]
fn the_configuration_again_and_again_under_load() {
    let (even, odd) = (Storage::tcp(with_buckets(0)), Storage::tcp(with_buckets(1)));
    let mut host = Host::new(&[&even, &odd], 2);
    let mut config = configuration(&[&even, &odd], 2);
    let end = Instant::now() + Duration::from_secs(2);
    let (mut calls, mut rounds) = (0, 0);
    for bucket in 1..=100 {
        host.post(bucket, b"", PATIENCE);
    }
    while Instant::now() < end {
        let count = 100;
        host.own_ids(count);
        calls += count;
        rounds += 1;
        match rounds % 3 {
            0 => host.router.buckets().clear(),
            1 => {
                config.discovery_mode = DiscoveryMode::On;
                // The order of replicasets means nothing.
                config.replicasets.reverse();
                host.router.reconfigure(config.clone()).expect("it is the same");
            }
            _ => host.router.discovery_wakeup(),
        }
        for bucket in 1..=100 {
            host.post(bucket, b"", PATIENCE);
        }
    }
    host.own_ids(100);
    assert!(calls >= 1000, "{calls} calls");
    assert_eq!((even.accepted.load(Ordering::Relaxed), odd.accepted.load(Ordering::Relaxed)), (2, 2), "kept");
    let until = Instant::now() + PATIENCE;
    while host.router.buckets().known() < 100 {
        assert!(Instant::now() < until, "discovery finds all buckets");
        host.router.discovery_wakeup();
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn callers_that_leave_free_their_slots() {
    let storage = Storage::tcp(Arc::new(|| Some(Box::new(|_| Some(Vec::new())))));
    let mut host = Host::new(&[&storage], 2);
    let tokens: Vec<Key> = (0..1000).map(|call| host.post(call % 100 + 1, b"", PATIENCE)).collect();
    for (call, token) in tokens.into_iter().enumerate() {
        host.tokens.remove(token);
        host.router.cancel(token, Target::Bucket(host.bucket(call as u64 % 100 + 1)));
    }
    let until = Instant::now() + PATIENCE;
    loop {
        let all = host.router.engines();
        let sum = |of: fn(&rawshard::metrics::Snapshot) -> u64| all.iter().map(of).sum::<u64>();
        if (sum(|it| it.cancelled), sum(|it| it.in_flight), sum(|it| it.replies)) == (1000, 0, 0) {
            break;
        }
        assert!(Instant::now() < until, "{all:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut replies = Vec::new();
    host.router.take_replies(&mut replies);
    assert_eq!(replies.len(), 0);
}
