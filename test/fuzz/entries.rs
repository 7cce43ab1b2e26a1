//! What is fuzzed: functions of any bytes that must come back without a panic, and whose promises are checked on the way.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;

use rawshard::call::endpoint::{self, Endpoint};
use rawshard::call::key::Keyspace;
use rawshard::call::raw_args;
use rawshard::call::request::{Access, Body, Client, Form, Outcome, RawRequest, Request, Target};
use rawshard::call::verdict::{self, Envelope};
use rawshard::control::config::{Config, InstanceConfig, ReplicasetConfig};
use rawshard::control::publish::Publisher;
use rawshard::engine::core::{Core, Held};
use rawshard::engine::inbox::Message;
use rawshard::ids::{BucketId, InstanceIdx};
use rawshard::metrics::Counters;
use rawshard::route::address::Address;
use rawshard::route::buckets::Buckets;
use rawshard::route::hash::{Hash, Hasher, Rules};
use rawshard::route::topology::Topology;
use rawshard::slab::Key;
use rawshard::time::Time;
use rawshard::wire::fit;
use rawshard::wire::iproto::{self, Split, TYPE_ERROR};
use rawshard::wire::mp::{self, Cursor};
use rawshard::wire::path::{Inline, Path};
use rawshard::wire::vshard::{self, ErrorView};

/// Every decoder that meets a peer's or a user's bytes.
pub fn decoder(data: &[u8]) {
    let whole = Cursor::new(data).span().ok();
    let mut copy = Vec::new();
    if mp::copy_without_tuples(data, &mut copy).is_ok() {
        assert_eq!(whole.map(<[u8]>::len), Some(data.len()));
        // Tuples are gone, and what was none is what it was.
        assert!(Cursor::new(&copy).skip_many(1).is_ok_and(|met| !met.tuples));
        assert!(Cursor::new(data).skip_many(1).is_ok_and(|met| met.tuples) || copy == data);
    }
    let _ = fit::fit_for_host(data, 3);
    let _ = fit::fit_for_host(data, data.len());
    if let Ok(Split::Frame { packet, end }) = iproto::split(data)
        && let Ok(header) = iproto::header(&data[packet..end])
    {
        body(header.kind, &data[packet + header.body..end]);
    }
    body(0, data);
    body(TYPE_ERROR | 32, data);
    if let Some(greeting) = data.first_chunk() {
        let _ = iproto::Greeting::parse(greeting);
    }
    let _ = (vshard::storage_answer(data), vshard::bucket_stat(data), vshard::discovery_page(data));
    ErrorView::parse(data);
}

fn body(kind: u64, bytes: &[u8]) {
    for envelope in [Envelope::Storage, Envelope::Plain] {
        let _ = verdict::judge(envelope, kind, bytes);
    }
    if let Ok(answer) = iproto::answer(bytes) {
        let mut error = Vec::new();
        if vshard::write_exception(&mut error, kind, &answer).is_ok() {
            assert_eq!(Cursor::new(&error).span().map(<[u8]>::len), Ok(error.len()));
        }
        if let Some(data) = answer.data {
            let _ = (vshard::storage_answer(data), vshard::bucket_stat(data));
        }
    }
}

/// The arguments of `callraw`.
pub fn raw_args(data: &[u8]) {
    raw_args::peek_bucket(data, Keyspace::new(3000));
    match raw_args::read(data.to_vec(), Keyspace::new(3000)) {
        Ok(read) => {
            let mut cursor = Cursor::new(read.payload.bytes());
            assert!(cursor.str().is_ok(), "a function's name");
            assert!(cursor.skip_many(1).is_ok_and(|met| !met.tuples), "arguments without tuples");
            assert!(cursor.is_at_end());
        }
        Err((bytes, _)) => assert_eq!(bytes, data),
    }
    let mut args = Vec::new();
    let _ = raw_args::append_args(data, &mut args);
    // The same bytes as the arguments of an endpoint, and as a path and what it leads into.
    let paths = ["[1].customer[\"an \"]", "[2][7]"].map(|path| Path::new(path.as_bytes()).expect("a path"));
    let hash = [Hash::MpCrc32, Hash::StrCrc32][data.len() % 2];
    let timeout = std::time::Duration::from_secs(1);
    let endpoint = Endpoint::new("f".into(), b"f", paths.into(), Some(hash), Access::RO, timeout, None);
    let mut bytes = Vec::new();
    endpoint.begin(&mut bytes);
    bytes.extend_from_slice(data);
    if let Ok(read) = endpoint::read(bytes, &endpoint, None, Keyspace::new(3000)) {
        let mut cursor = Cursor::new(read.payload.bytes());
        assert!(cursor.str().is_ok(), "a function's name");
        assert!(cursor.skip_many(1).is_ok_and(|met| !met.tuples), "arguments without tuples");
        assert!(cursor.is_at_end());
    }
    let (text, value) = data.split_at(data.len() / 2);
    let (compiled, inline) = (Path::new(text), Inline::new(text));
    assert_eq!(compiled.as_ref().err(), inline.as_ref().err());
    if let (Ok(compiled), Ok(inline)) = (compiled, inline) {
        let (mut cursor, mut same) = (Cursor::new(value), Cursor::new(value));
        assert_eq!(compiled.walk(&mut cursor), inline.walk(&mut same));
        assert_eq!(cursor.position(), same.position());
    }
    let mut hasher = Hasher::new(hash, Rules::default());
    let mut cursor = Cursor::new(data);
    if hasher.key(&mut cursor).is_ok() {
        assert_eq!(Cursor::new(data).span().map(<[u8]>::len), Ok(cursor.position()), "a key is one value");
    }
}

/// Bytes from a storage into an engine that has calls and a search under way. The first byte says how: whether the handshake is
/// done for the fuzzer, and in what pieces the rest arrives.
pub fn connection(data: &[u8]) {
    let Some((mode, data)) = data.split_first() else { return };
    let mut now = Time::from_nanos(1_000_000_000);
    let (mut core, instance) = engine(now);
    core.begin_turn(now);
    core.finish_turn(now);
    while core.poll_action().is_some() {}
    core.handle_connected(instance, now);
    let handshake = mode & 1 == 0;
    if handshake {
        receive(&mut core, instance, GREETING, usize::MAX, now);
    }
    for index in 0..CALLS {
        core.handle_message(call(index), now);
    }
    core.finish_turn(now);
    let piece = match mode >> 1 {
        0 => usize::MAX,
        size => usize::from(size),
    };
    receive(&mut core, instance, data, piece, now);
    core.finish_turn(now);
    let mut replies = answers(&mut core);
    core.handle_closed(instance, "the end of the bytes", now);
    // Two more turns: what is to be tried again is tried, then all deadlines are over.
    for _ in 0..2 {
        now = now.after(Duration::from_secs(30));
        core.begin_turn(now);
        core.finish_turn(now);
    }
    for reply in core.replies(Client::Host).iter() {
        let mut cursor = Cursor::new(reply.values());
        assert!(cursor.skip_many(u64::from(reply.count())).is_ok() && cursor.is_at_end());
    }
    replies = replies.max(answers(&mut core));
    assert_eq!(replies, CALLS as usize, "one reply each");
    assert_eq!(core.held(), Held::default());
}

/// Replies that end a call.
fn answers(core: &mut Core) -> usize {
    core.replies(Client::Host).iter().filter(|reply| reply.outcome != Outcome::Push).count()
}

const CALLS: u32 = 6;

const GREETING: &[u8; 128] = b"Tarantool 2.11.5 (Binary) 00000000-0000-4000-8000-000000000001 \n\
QUFBQUFBQUFBQUFBQUFBQUFBQUFCQkJCQkJCQkJCQkI=                   \n";

fn call(index: u32) -> Message {
    let token = Key { index, generation: 1 };
    if index == 1 {
        return Message::Raw(RawRequest {
            token,
            form: Form::Callraw,
            bytes: b"\x94\x02\xa4read\xa4echo\x91\x01".to_vec(),
        });
    }
    let bucket = BucketId::new(u64::from(index) + 1, 10).expect("a bucket");
    let instance = InstanceIdx(0);
    Message::Call(Request {
        token,
        client: Client::Host,
        target: match index {
            2 => Target::Instance(instance),
            3 => Target::Route(bucket),
            _ => Target::Bucket(bucket),
        },
        access: if index == 4 { Access::RO } else { Access::RW },
        deadline: Time::from_nanos(20_000_000_000),
        answer_by: Time::from_nanos(if index == 5 { 40_000_000_000 } else { 20_000_000_000 }),
        attempt_timeout: None,
        pushes: index.is_multiple_of(2),
        body: match index {
            2 => Body::call(Vec::new(), "echo", b"\x90"),
            _ => Body::storage_call(Vec::new(), b"echo", b"\x90"),
        },
    })
}

/// One replicaset of one instance; it is known to have the first three buckets.
fn engine(now: Time) -> (Core, InstanceIdx) {
    let config = Config {
        bucket_count: 10,
        replicasets: vec![ReplicasetConfig {
            id: "rs".into(),
            uuid: None,
            name: None,
            weight: 1.0,
            master_auto: false,
            instances: vec![InstanceConfig {
                id: "a".into(),
                uuid: None,
                name: None,
                address: Address::Tcp { host: "storage".into(), port: 3301 },
                user: None,
                password: None,
                is_master: true,
                zone_weight: 0.0,
            }],
        }],
        ..Config::default()
    };
    let source = Arc::new(ArcSwap::from_pointee(Topology::default()));
    let buckets = Arc::new(Buckets::new(config.bucket_count));
    Publisher::new(Arc::clone(&source), Arc::clone(&buckets)).configure(&config);
    let replicaset = source.load().live().next().expect("one").clone();
    for id in 1..=3 {
        buckets.set(BucketId::new(id, config.bucket_count).expect("a bucket"), replicaset.idx);
    }
    (Core::new(source, buckets, Arc::new(Counters::default()), 1, now), replicaset.instances[0])
}

fn receive(core: &mut Core, instance: InstanceIdx, mut bytes: &[u8], piece: usize, now: Time) {
    while !bytes.is_empty() {
        let Some(space) = core.recv_space(instance) else { return };
        let count = space.len().min(piece).min(bytes.len());
        assert!(count > 0, "a read into nothing looks like the end");
        space[..count].copy_from_slice(&bytes[..count]);
        bytes = &bytes[count..];
        core.handle_received(instance, count, now);
        if core.poll_action().is_some() {
            // Closed: no more is read.
            return;
        }
    }
}
