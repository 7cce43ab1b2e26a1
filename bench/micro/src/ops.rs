//! The operations. Each is made when its turn comes, so that worlds with many calls in flight do not live side by side.

use std::hint::black_box;
use std::io::IoSlice;
use std::sync::Arc;
use std::time::Duration;

use rawshard::call::key::{self, Keyspace};
use rawshard::call::raw_args;
use rawshard::call::request::{Client, Form, RawRequest, Token};
use rawshard::call::verdict::{self, Envelope, Verdict};
use rawshard::call::wheel::Wheel;
use rawshard::conn::{Conn, Event};
use rawshard::engine::inbox::{Inbox, Message, Wake};
use rawshard::ids::BucketId;
use rawshard::route::address::Address;
use rawshard::route::hash::Hash;
use rawshard::route::topology::{Endpoint, Pings};
use rawshard::slab::{Key, Slab};
use rawshard::time::Time;
use rawshard::wire::iproto::TYPE_CALL;
use rawshard::wire::mp::{self, Cursor};
use rawshard::wire::path::Path;
use rawshard::wire::payload::{Head, Mode, Payload};

use crate::bytes;
use crate::measure::{live, uncounted};
use crate::workload::{Shape, Workload};
use crate::world::World;

pub struct Op {
    pub name: String,
    pub make: Box<dyn Fn() -> Run>,
}

pub struct Run {
    /// Runs it so many times.
    pub run: Box<dyn FnMut(u64)>,
    /// How often, apart from warming up.
    pub times: u64,
    /// What is counted, per run.
    pub per: u64,
}

const BUCKETS: u32 = 3000;
/// Calls that one turn of an engine finds when it is busy.
const BATCH: usize = 32;

pub fn all() -> Vec<Op> {
    let mut ops = Ops(Vec::new());
    cursor(&mut ops);
    keys(&mut ops);
    connection(&mut ops);
    structures(&mut ops);
    inbox(&mut ops);
    engine(&mut ops);
    ops.0
}

struct Ops(Vec<Op>);

impl Ops {
    /// `make` gives what is run once, over and over.
    fn add<F: FnMut() + 'static>(&mut self, name: impl Into<String>, make: impl Fn() -> F + 'static) {
        self.batch(name, 100, 1, make);
    }

    fn batch<F: FnMut() + 'static>(
        &mut self,
        name: impl Into<String>,
        times: u64,
        per: usize,
        make: impl Fn() -> F + 'static,
    ) {
        let make = move || {
            let mut once = make();
            Run { run: Box::new(move |times| (0..times).for_each(|_| once())), times, per: per as u64 }
        };
        self.0.push(Op { name: name.into(), make: Box::new(make) });
    }
}

fn workload(name: &str) -> Workload {
    Workload::by_name(name).expect("a known workload")
}

fn cursor(ops: &mut Ops) {
    for name in ["T1", "T3"] {
        let bytes = workload(name).args.bytes;
        ops.add(format!("mp skip {name} ({} B)", bytes.len()), move || skip(bytes.clone()));
    }
    let deep: Vec<u8> = [vec![0x91; 1000], vec![0xc0]].concat();
    ops.add("mp skip 1000 arrays deep", move || skip(deep.clone()));
    for name in ["T1", "T3"] {
        let bytes = bytes::callraw(&workload(name));
        ops.add(format!("raw_args read {name} ({} B)", bytes.len()), move || {
            let bytes = bytes.clone();
            let mut buffer = Vec::new();
            move || {
                // The buffer of the call before, as a client's is used again.
                let mut given = std::mem::take(&mut buffer);
                uncounted(|| {
                    given.clear();
                    given.extend_from_slice(&bytes);
                });
                let read = raw_args::read(given, Keyspace::new(BUCKETS)).expect("it is right");
                buffer = black_box(read).payload.into_buffer();
            }
        });
    }
    let plain = workload("T3").args.bytes;
    let tuples = [&b"\x91"[..], &bytes::tuple(&plain)].concat();
    for (what, value) in [("none", plain), ("one", tuples)] {
        ops.add(format!("mp copy without tuples T3, {what} in it"), move || {
            let (value, mut out) = (value.clone(), Vec::new());
            move || {
                out.clear();
                mp::copy_without_tuples(black_box(&value), &mut out).expect("it is right");
            }
        });
    }
}

fn skip(bytes: Vec<u8>) -> impl FnMut() {
    move || {
        let mut cursor = Cursor::new(black_box(&bytes));
        cursor.skip().expect("it is right");
        black_box(cursor.position());
    }
}

/// Sharding keys: found in arguments, hashed, and both as a part of reading a call.
fn keys(ops: &mut Ops) {
    let found = |ops: &mut Ops, what: &str, hash: Hash, paths: &'static [&'static str], args: Vec<u8>| {
        ops.add(format!("key {what}, {} ({} B)", hash.name(), args.len()), move || {
            let paths: Vec<_> =
                paths.iter().map(|path| Path::new(path.as_bytes()).expect("a path")).collect();
            let args = args.clone();
            move || {
                let bucket = key::bucket_at(&paths, hash, black_box(&args), Keyspace::new(BUCKETS));
                black_box(bucket.expect("a key"));
            }
        });
    };
    let t3 = workload("key:T3");
    let args = |name: &str| workload(name).args.bytes;
    for hash in [Hash::MpCrc32, Hash::StrCrc32] {
        found(ops, "first of T3", hash, &["[1]"], args("key:T3"));
    }
    found(ops, "two paths into T3", Hash::MpCrc32, t3.key, args("key:T3"));
    found(ops, "behind T3", Hash::MpCrc32, &["[2]"], {
        // The number behind the records.
        let one = args("T3");
        [&b"\x92"[..], &one[1..], b"\x07"].concat()
    });
    for size in [10, 1_000, 100_000] {
        found(ops, "in front of a string", Hash::MpCrc32, &["[1]"], args(&format!("key:{size}")));
    }
    for (what, shape) in [("bucket id", Shape::Callraw), ("two paths", Shape::Keyed)] {
        let bytes = t3.entry_args(shape, 30.0).bytes;
        ops.add(format!("raw_args read key:T3 by {what} ({} B)", bytes.len()), move || {
            let bytes = bytes.clone();
            let mut buffer = Vec::new();
            move || {
                let mut given = std::mem::take(&mut buffer);
                uncounted(|| {
                    given.clear();
                    given.extend_from_slice(&bytes);
                });
                let read = raw_args::read(given, Keyspace::new(BUCKETS)).expect("it is right");
                buffer = black_box(read).payload.into_buffer();
            }
        });
    }
}

/// A connection that is ready.
fn ready() -> Conn<u64> {
    let now = Time::from_nanos(1 << 40);
    let endpoint = Endpoint {
        address: Address::Tcp { host: "127.0.0.1".into(), port: 1 },
        user: None,
        password: None,
        uuid: None,
        name: None,
    };
    let mut conn = Conn::new(endpoint, Pings::default(), now);
    assert!(conn.start_connecting(now));
    conn.handle_connected(now);
    give(&mut conn, &bytes::greeting());
    assert!(matches!(conn.poll_event(), Some(Event::Ready)));
    conn
}

fn give(conn: &mut Conn<u64>, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let space = conn.recv_space();
        let count = space.len().min(bytes.len());
        uncounted(|| space[..count].copy_from_slice(&bytes[..count]));
        conn.handle_received(count, Time::from_nanos(1 << 40));
        bytes = &bytes[count..];
    }
}

fn payload(args: &[u8]) -> Payload {
    let bucket = BucketId::new(7, BUCKETS).expect("in range");
    let mut body = Vec::new();
    rawshard::wire::payload::write_func_and_args(&mut body, b"bench_echo", args);
    Payload::new(Head::StorageCall { bucket, mode: Mode::Read }, body)
}

fn connection(ops: &mut Ops) {
    for name in ["T1", "T3", "size:100000"] {
        let args = workload(name).args.bytes;
        ops.batch(format!("conn send {name} ({} B)", args.len()), 20, BATCH, move || {
            let (mut conn, payload, mut keys) = (ready(), payload(&args), Vec::new());
            move || {
                for owner in 0..BATCH as u64 {
                    keys.push(conn.send(owner, TYPE_CALL, &payload));
                }
                while !conn.send.is_empty() {
                    let mut slices = [IoSlice::new(&[]); 32];
                    let count = conn.send.gather(&mut slices);
                    let len = slices[..count].iter().map(|slice| slice.len()).sum();
                    conn.send.advance(len);
                }
                uncounted(|| keys.drain(..).for_each(|key| assert!(conn.abandon(key).is_some())));
            }
        });
    }
    for name in ["T1", "T5", "T3"] {
        let workload = workload(name);
        let frame = bytes::answer(&workload);
        ops.batch(format!("conn answer and verdict {name} ({} B)", frame.len()), 20, BATCH, move || {
            let (mut conn, payload, frame) = (ready(), payload(b"\x90"), frame.clone());
            move || {
                let frames = uncounted(|| {
                    let mut frames = Vec::new();
                    for owner in 0..BATCH as u64 {
                        let sync = conn.send(owner, TYPE_CALL, &payload).pack();
                        let at = frames.len() + bytes::ANSWER_SYNC_AT;
                        frames.extend_from_slice(&frame);
                        frames[at..at + 8].copy_from_slice(&sync.to_be_bytes());
                    }
                    conn.send.advance(conn.send.len());
                    frames
                });
                // As a thread does: what one read brought is handled before the next.
                let (mut rest, mut answers) = (&frames[..], 0);
                while !rest.is_empty() {
                    let count = conn.recv_space().len().min(rest.len());
                    give(&mut conn, &rest[..count]);
                    rest = &rest[count..];
                    while let Some(event) = conn.poll_event() {
                        let Event::Answer(answer) = event else { panic!("answers alone") };
                        let body = conn.received(answer.body);
                        let verdict =
                            verdict::judge(Envelope::Storage, answer.kind, body).expect("it is right");
                        assert!(matches!(black_box(verdict), Verdict::Values { .. }));
                        answers += 1;
                    }
                }
                assert_eq!(answers, BATCH);
                uncounted(|| drop(frames));
            }
        });
    }
}

fn structures(ops: &mut Ops) {
    for standing in [1, 20_000] {
        ops.add(format!("slab insert, get, remove among {standing}"), move || {
            let mut slab = Slab::new();
            (0..standing).for_each(|i| {
                slab.insert([i; 8]);
            });
            move || {
                let key = slab.insert([1u64; 8]);
                black_box(slab.get(black_box(key)));
                black_box(slab.remove(key));
            }
        });
    }
    for standing in [1, 20_000] {
        let filled = move || {
            let now = Time::from_nanos(1 << 40);
            let mut wheel = Wheel::new(now);
            (1..=standing)
                .for_each(|i| wheel.set(i, now.after(Duration::from_micros(u64::from(i) + 30_000_000))));
            (wheel, now)
        };
        ops.add(format!("wheel set and clear among {standing}"), move || {
            let (mut wheel, now) = filled();
            move || {
                wheel.set(0, black_box(now.after(Duration::from_secs(30))));
                wheel.clear(0);
            }
        });
        ops.add(format!("wheel expire, a tick with one of {standing}"), move || {
            let (mut wheel, mut now) = filled();
            let mut expired = Vec::new();
            move || {
                now = now.after(Duration::from_micros(1100));
                uncounted(|| {
                    // Those ahead keep their distance, or they would be met once per rotation.
                    expired.clear();
                    wheel.set(0, Time::from_nanos(now.nanos() - (1 << 20)));
                });
                wheel.expire(now, &mut expired);
                assert_eq!(expired.len(), 1);
            }
        });
    }
    ops.add("wheel next, 4 s ahead", || {
        let now = Time::from_nanos(1 << 40);
        let mut wheel = Wheel::new(now);
        wheel.set(0, now.after(Duration::from_secs(4)));
        move || {
            black_box(black_box(&wheel).next());
        }
    });
}

struct NoWake;

impl Wake for NoWake {
    fn wake(&self) {}
}

fn inbox(ops: &mut Ops) {
    for count in [1, BATCH, 256] {
        ops.batch(format!("inbox post and take {count} at once"), 100, count, move || {
            let inbox = Inbox::new(Arc::new(NoWake));
            let (mut batch, mut taken) = (Vec::new(), Vec::new());
            move || {
                for index in 0..count as u32 {
                    let token = Token { index, generation: 1 };
                    batch.push(Message::Raw(RawRequest { token, form: Form::Callraw, bytes: Vec::new() }));
                }
                inbox.post_all(&mut batch);
                inbox.take(&mut taken);
                taken.drain(..).for_each(|message| {
                    black_box(message);
                });
            }
        });
    }
    ops.add("inbox cancel", || {
        let inbox = Inbox::new(Arc::new(NoWake));
        let mut taken = Vec::new();
        move || {
            inbox.post(Message::Cancel(Client::Host, Key { index: 1, generation: 1 }));
            inbox.take(&mut taken);
            taken.clear();
        }
    });
}

fn engine(ops: &mut Ops) {
    for name in ["T1", "T3"] {
        ops.batch(format!("engine accept and send {name}"), 20, BATCH, move || {
            let mut world = World::new(&workload(name), BUCKETS, 2);
            move || world.accept(BATCH)
        });
    }
    for name in ["T1", "T5", "T3", "size:100000"] {
        let times = if name.starts_with('T') { 20 } else { 3 };
        ops.batch(format!("engine answer and reply {name}"), times, BATCH, move || {
            let mut world = World::new(&workload(name), BUCKETS, 2);
            move || world.answer(BATCH)
        });
    }
    let mut whole =
        |what: String, name: &'static str, batch: usize, standing: usize, buckets: u32, instances: u32| {
            ops.batch(what, if batch == 1 { 200 } else { 50 }, batch, move || {
                let mut world = World::new(&workload(name), buckets, instances);
                world.fill(standing.max(batch));
                // Each slot has been used, each buffer has been made.
                (0..100).for_each(|_| world.turn(batch, batch));
                move || world.turn(batch, batch)
            });
        };
    for standing in [1, 100, 1000, 20_000] {
        whole(format!("engine turn of 1 call, {standing} in flight"), "T1", 1, standing, BUCKETS, 2);
    }
    for standing in [100, 1000, 20_000] {
        let what = format!("engine turn of {BATCH} calls, {standing} in flight");
        whole(what, "T1", BATCH, standing, BUCKETS, 2);
    }
    for buckets in [1000, 1_000_000] {
        whole(format!("engine turn of {BATCH} calls, {buckets} buckets"), "T1", BATCH, 1000, buckets, 2);
    }
    for instances in [2, 20, 200] {
        whole(
            format!("engine turn of {BATCH} calls, {instances} instances"),
            "T1",
            BATCH,
            1000,
            BUCKETS,
            instances,
        );
        whole(format!("engine turn of 1 call, {instances} instances"), "T1", 1, 1000, BUCKETS, instances);
    }
    whole(format!("engine turn of {BATCH} calls, T3"), "T3", BATCH, 1000, BUCKETS, 2);
}

/// Bytes that an engine holds for a call in flight beyond its payload: with 1 000 and with 20 000.
pub fn held() -> [i64; 2] {
    [1000, 20_000].map(|standing| {
        let workload = workload("T1");
        let size = bytes::callraw(&workload).len() as i64;
        let mut world = World::new(&workload, BUCKETS, 2);
        // What connections have anyway.
        world.turn(BATCH, 0);
        let before = live();
        world.fill(standing);
        (live() - before) / standing as i64 - size
    })
}
