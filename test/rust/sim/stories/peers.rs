//! Peers that do not keep to the protocol.

use super::ms;
use crate::cluster::Reaction;
use crate::common::log::lines;
use crate::common::random::Random;
use crate::common::{server, value::Value};
use crate::world::{Ask, Net, Setup, World};
use rawshard::route::address::Secret;

#[test]
fn garbage_closes_the_connection_and_nothing_else() {
    for bytes in
        [&b"\xc1"[..], b"\xa3abc", b"\xce\xff\xff\xff\xff", b"\x05\x80\x80\x80\x80\x80", b"\x01\x80", b"\x00"]
    {
        let mut world = World::ready(Setup::default());
        let call = world.post(Ask::rw(1).func("never").timeout(ms(5000)));
        world.run_for(ms(1));
        world.inject("rs1-a", bytes);
        let answer = world.answer(call);
        assert_eq!(answer.error_name(), "ClientError 77", "{bytes:02x?}");
        assert!(answer.at.since(world.calls[call].posted) < ms(5), "at once");
        assert_eq!(world.counters.snapshot().protocol_errors, 1);
        world.call(Ask::rw(1).timeout(ms(1000))).values();
        world.settle();
    }
}

#[test]
fn an_answer_that_makes_no_sense_fails_that_call_alone() {
    let odd: &[&[u8]] = &[
        b"",
        b"\x80",
        b"\x81\x30\x90",
        b"\x81\x30\x91\x05",
        b"\x81\x30\x92\xc0\x05",
        b"\x81\x30\x92\xc2\xc0",
        b"\x81\x30\x92\xc3",
        b"\x81\x30\xc1",
        b"\x81\x30\x91\xc3\xc0",
        b"\x91\x30",
    ];
    for body in odd {
        let mut world = World::ready(Setup::default());
        let body = body.to_vec();
        world.cluster.storage("rs1-a").hook = Some(Box::new(move |request| {
            (request.kind == server::TYPE_CALL && request.raw_args().windows(3).any(|part| part == b"bad"))
                .then(|| Reaction::Answer(0, server::frame(0, request.sync, &body)))
        }));
        let good = world.post(Ask::rw(1).func("slow").arg(Value::Uint(50_000)));
        let bad = world.post(Ask::rw(1).arg(Value::str("bad")));
        assert_eq!(world.answer(bad).error_name(), "ClientError 20");
        world.answer(good).values();
        assert_eq!(world.counters.snapshot().disconnects, 0);
        world.settle();
    }
}

#[test]
fn an_answer_without_a_sync_is_nobodys() {
    let mut world = World::ready(Setup::default());
    let call = world.post(Ask::rw(1).func("slow").arg(Value::Uint(100_000)));
    world.run_for(ms(1));
    // Header {TYPE: OK}, body {DATA: [true, "foreign"]}.
    world.inject("rs1-a", b"\x0f\x81\x00\x00\x81\x30\x92\xc3\xa7foreign");
    let answer = world.answer(call);
    assert!(!format!("{answer:?}").contains("foreign"));
    world.settle();
}

#[test]
fn an_answer_to_nobody_is_dropped() {
    let mut world = World::ready(Setup::default());
    let call = world.post(Ask::rw(1).func("slow").arg(Value::Uint(10_000)));
    world.run_for(ms(1));
    world.inject("rs1-a", &server::values(77 << 32, &[Value::Bool(true), Value::str("foreign")]));
    world.answer(call).values();
    assert_eq!(world.counters.snapshot().late, 1);
    world.settle();
}

#[test]
fn pushes_and_events_are_no_answers() {
    let mut world = World::ready(Setup::default());
    world.cluster.storage("rs1-a").hook = Some(Box::new(|request| {
        (request.kind == server::TYPE_CALL).then(|| {
            let mut bytes = server::frame(128, request.sync, b"\x81\x30\x91\xa4push");
            bytes.extend(server::frame(76, 0, b"\x81\x57\xaabox.status"));
            let id = request.args()[3].items()[0].clone();
            bytes.extend(server::values(request.sync, &[Value::Bool(true), id]));
            Reaction::Answer(0, bytes)
        })
    }));
    let first = world.post(Ask::rw(1));
    let second = world.post(Ask::rw(1));
    // They are answered by the hook, not run.
    for call in [first, second] {
        world.cluster.executed.insert(world.calls[call].id, 1);
    }
    for call in [first, second] {
        world.answer(call).values();
    }
    world.settle();
}

#[test]
fn keys_behind_the_values_are_passed_over_however_large_the_values_are() {
    for size in [10, 100_000] {
        let mut world = World::ready(Setup::default());
        world.cluster.storage("rs1-a").hook = Some(Box::new(move |request| {
            (request.kind == server::TYPE_CALL).then(|| {
                let id = request.args()[3].items()[0].clone();
                let values =
                    [Value::Bool(true), id.clone(), Value::Bin(vec![id.uint().unwrap() as u8; size])];
                let mut body = vec![0x82, 0x30];
                Value::Array(values.to_vec()).encode(&mut body);
                // TUPLE_FORMATS: {}
                body.extend_from_slice(&[0x60, 0x80]);
                Reaction::Answer(0, server::frame(0, request.sync, &body))
            })
        }));
        let call = world.post(Ask::rw(1).func("big").arg(Value::Uint(size as u64)));
        world.cluster.executed.insert(world.calls[call].id, 1);
        world.answer(call).values();
        world.settle();
    }
}

#[test]
fn a_wrong_password_is_told_to_those_who_wait() {
    let mut world = World::new(Setup::default());
    world.instance_config("rs1-a").password = Some(Secret::new("wrong".into()));
    world.start();
    world.run_for(ms(1));
    world.learn_routes();
    let answer = world.call(Ask::rw(1));
    assert_eq!(answer.error_name(), "ClientError 77");
    let text = answer.error().field("message").unwrap().text().unwrap().to_owned();
    assert!(text.contains("Incorrect password"), "{text}");
    assert!(!text.contains("wrong"));
    let tries = world.connects[&0];
    assert!((2..20).contains(&tries), "{tries} tries in half a second");
    world.settle();
}

#[test]
fn a_stranger_at_the_address_gets_no_request() {
    // P26
    let mut world = World::new(Setup::default());
    let right = std::mem::replace(
        &mut world.cluster.storage("rs1-a").uuid,
        "ffffffff-0000-4000-8000-000000000000".into(),
    );
    world.start();
    world.run_for(ms(5000));
    world.learn_routes();
    let answer = world.call(Ask::rw(1));
    assert!(answer.error().field("message").unwrap().text().unwrap().contains("UUID mismatch"));
    assert_eq!(world.cluster.asked(Some("rs1-a"), "vshard.storage.call"), 0);
    world.cluster.storage("rs1-a").uuid = right;
    world.call(Ask::rw(1).timeout(ms(1000))).values();
    world.settle();
}

#[test]
fn one_who_accepts_and_says_nothing() {
    let mut world = World::new(Setup { shards: vec![2], ..Setup::default() });
    world.freeze("rs1-a");
    world.start();
    world.run_for(ms(50));
    world.learn_routes();
    let call = world.post(Ask::rw(1));
    assert_eq!(world.answer(call).error_name(), "ClientError 77");
    world.call(Ask::ro(1)).values();
    // The handshake has an end, and the next one succeeds.
    world.run_for(ms(10_100));
    assert!(world.counters.snapshot().disconnects >= 1);
    world.thaw("rs1-a");
    world.call(Ask::rw(1).timeout(ms(1000))).values();
    world.settle();
}

#[test]
fn an_address_that_neither_accepts_nor_refuses() {
    let mut world = World::new(Setup { shards: vec![2], ..Setup::default() });
    world.cluster.storage("rs1-a").unreachable = true;
    world.start();
    world.run_for(ms(10_100));
    world.learn_routes();
    assert!(world.counters.snapshot().disconnects >= 1);
    world.cluster.storage("rs1-a").unreachable = false;
    world.call(Ask::rw(1).timeout(ms(11_000))).values();
    world.settle();
}

#[test]
fn a_connection_cut_at_any_byte_of_an_answer() {
    for cut in 1..60 {
        let mut world = World::ready(Setup { shards: vec![1], ..Setup::default() });
        world.cut_after("rs1-a", cut);
        let call = world.post(Ask::rw(1).arg(Value::str("0123456789")));
        let answer = world.answer(call);
        let whole = server::raw_values(0, 3, b"\xc3\x01\xaa0123456789").len();
        if cut < whole {
            assert_eq!(answer.error_name(), "ClientError 77", "cut after {cut}");
        } else {
            answer.values();
        }
        assert_eq!(world.executions(call), 1);
        world.break_connections("rs1-a");
        world.run_for(ms(1));
        world.call(Ask::rw(1).timeout(ms(1000))).values();
        world.settle();
    }
}

#[test]
fn noise_in_an_answer_never_goes_beyond_that_connection() {
    for seed in 0..300 {
        let mut world = World::ready(Setup { seed, ..Setup::default() });
        let mut random = Random::new(seed);
        let calls: Vec<usize> = (0..20).map(|_| world.post(Ask::rw(1).timeout(ms(300)))).collect();
        world.run_for(ms(0));
        let len = random.between(1, 40) as usize;
        let mut noise = random.bytes(len);
        if random.one_in(2) {
            // Looks like an answer to one of the calls.
            let sync = random.below(20);
            let body = random.bytes(len);
            noise = server::frame(if random.one_in(2) { 0 } else { 0x8000 | random.below(100) }, sync, &body);
        }
        world.inject("rs1-a", &noise);
        let other = world.post(Ask::rw(2));
        world.answer(other).values();
        for call in calls {
            // Foreign values would be found by the check of each reply.
            world.answer(call);
        }
        world.call(Ask::rw(1).timeout(ms(2000))).values();
        world.settle();
    }
}

#[test]
fn one_who_hangs_up_on_everybody_is_tried_at_a_walking_pace() {
    let mut world = World::new(Setup { shards: vec![1, 1], ..Setup::default() });
    // It greets, lets the router in, and closes: each connection gets as far as it can.
    world.cluster.storage("rs1-a").hook =
        Some(Box::new(|request| (request.kind == server::TYPE_WATCH).then(|| Reaction::Break(Vec::new()))));
    let before = lines();
    world.start();
    world.run_for(ms(3000));
    world.learn_routes();
    let tries = world.connects[&0];
    assert!((5..=15).contains(&tries), "{tries} tries in three seconds");
    world.run_for(ms(57_000));
    let (tries, lines) = (world.connects[&0], lines() - before);
    assert!((100..=250).contains(&tries), "{tries} tries in a minute");
    assert!((2..=20).contains(&lines), "{lines} lines in the log");
    world.call(Ask::rw(2)).values();
    world.cluster.storage("rs1-a").hook = None;
    world.call(Ask::rw(1).timeout(ms(1000))).values();
    world.settle();
}

#[test]
fn one_who_is_down_for_long_does_not_fill_the_log() {
    let mut world = World::ready(Setup { shards: vec![1], ..Setup::default() });
    let before = lines();
    world.kill("rs1-a");
    world.run_for(ms(60_000));
    assert!(world.connects[&0] > 100, "tried again and again");
    let lines = lines() - before;
    assert!((1..=10).contains(&lines), "{lines} lines in the log");
    world.settle();
}

/// An event of the key that the router watches, whose value is nil.
fn event() -> Vec<u8> {
    server::frame(server::TYPE_EVENT, u64::MAX - 3, b"\x81\x57\xacbox.shutdown")
}

#[test]
fn one_who_floods_with_events_is_left() {
    let mut world = World::ready(Setup { shards: vec![1, 1], ..Setup::default() });
    world.inject("rs1-a", &event().repeat(10_000));
    world.run_for(ms(1));
    let counted = world.counters.snapshot();
    assert_eq!((counted.protocol_errors, counted.disconnects), (1, 1));
    world.call(Ask::rw(2)).values();
    world.call(Ask::rw(1).timeout(ms(1000))).values();
    world.settle();
}

#[test]
fn one_who_sends_events_and_reads_nothing_does_not_grow_the_queue() {
    let net = Net { window: 2000, ..Net::default() };
    let mut world = World::ready(Setup { shards: vec![1], net, ..Setup::default() });
    world.freeze("rs1-a");
    let idx = world.instance("rs1-a");
    let mut longest = 0;
    for _ in 0..1000 {
        world.inject("rs1-a", &event());
        world.run_for(ms(1));
        longest = longest.max(world.core.send_queue(idx).map_or(0, |queue| queue.len()));
        if world.counters.snapshot().protocol_errors > 0 {
            break;
        }
    }
    assert_eq!(world.counters.snapshot().protocol_errors, 1, "it is left");
    assert!(longest < 1000, "{longest} bytes");
    world.thaw("rs1-a");
    world.settle();
}

#[test]
fn events_in_their_time_are_acknowledged() {
    let mut world = World::ready(Setup { shards: vec![1], ..Setup::default() });
    for _ in 0..1000 {
        let call = world.post(Ask::rw(1));
        world.inject("rs1-a", &event());
        world.run_for(ms(1));
        world.answer(call).values();
    }
    assert_eq!(world.counters.snapshot().disconnects, 0);
    world.settle();
}
