//! Calls whose answers may take long, though what cannot be sent fails soon.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use super::ms;
use crate::cluster::Reaction;
use crate::common::{server, value::Value};
use crate::world::{Ask, Setup, World};
use rawshard::call::request::Reply;

const FOR_EVER: Duration = Duration::MAX;

#[test]
fn an_answer_may_come_long_after_the_deadline() {
    let mut world = World::ready(Setup::default());
    let call = world.post(Ask::rw(1).answer_by(FOR_EVER).func("slow").arg(Value::Uint(60_000_000)));
    world.answer(call).values();
    assert!(world.now.since(world.calls[call].deadline) > ms(59_000));
    let call = world.post(Ask::rw(1).answer_by(ms(2000)).func("never"));
    let answer = world.answer(call);
    assert_eq!(answer.error_name(), "ClientError 78");
    assert!(answer.at >= world.calls[call].answer_by);
    world.settle();
}

#[test]
fn what_cannot_be_sent_fails_by_the_deadline() {
    let mut world = World::ready(Setup::default());
    world.kill("rs1-a");
    let call = world.post(Ask::rw(1).answer_by(FOR_EVER));
    let answer = world.answer(call);
    assert_eq!(answer.error_name(), "ClientError 77");
    assert!(answer.at.since(world.calls[call].deadline) < ms(5));
    world.settle();
}

#[test]
fn one_that_was_redirected_to_a_dead_master_fails_by_the_deadline() {
    let mut world = World::ready(Setup::default());
    world.cluster.move_bucket(1, "rs1", "rs2");
    world.kill("rs2-a");
    let call = world.post(Ask::rw(1).answer_by(Duration::from_secs(100)));
    let answer = world.answer(call);
    assert_eq!(answer.error_name(), "WRONG_BUCKET");
    assert!(
        answer.at.since(world.calls[call].deadline) < ms(5),
        "{:?}",
        answer.at.since(world.calls[call].posted)
    );
    world.settle();
}

#[test]
fn a_read_that_was_refused_and_waits_fails_by_the_deadline() {
    let mut world = World::ready(Setup { shards: vec![2], ..Setup::default() });
    world.kill("rs1-a");
    world.cluster.storage("rs1-b").disabled = true;
    let call = world.post(Ask::ro(1).answer_by(Duration::from_secs(100)));
    let answer = world.answer(call);
    assert_eq!(answer.error_name(), "STORAGE_IS_DISABLED");
    assert!(
        answer.at.since(world.calls[call].deadline) < ms(5),
        "{:?}",
        answer.at.since(world.calls[call].posted)
    );
    world.settle();
}

#[test]
fn one_that_was_refused_and_is_looked_for_fails_by_the_deadline() {
    let mut world = World::ready(Setup::default());
    world.cluster.shard("rs1").buckets.remove(&1);
    world.freeze("rs2-a");
    let call = world.post(Ask::rw(1).timeout(ms(200)).answer_by(Duration::from_secs(100)));
    let answer = world.answer(call);
    answer.error();
    assert!(
        answer.at.since(world.calls[call].deadline) < ms(5),
        "{:?}",
        answer.at.since(world.calls[call].posted)
    );
    world.settle();
}

#[test]
fn what_is_pushed_comes_in_order_before_the_answer_to_who_asked_for_it() {
    let mut world = World::ready(Setup::default());
    world.cluster.storage("rs1-a").hook = Some(Box::new(|request| {
        (request.kind == server::TYPE_CALL).then(|| {
            let id = request.args()[3].items()[0].clone();
            let mut bytes = Vec::new();
            // Three are damaged or empty, one is for nobody.
            for (sync, body) in [
                (request.sync, b"\x81\x30\x91\x01".as_slice()),
                (request.sync, b"\x81\x30\x91\x02"),
                (request.sync, b"\x81\x30\xc0"),
                (request.sync, b"\x80"),
                (request.sync, b"\x81\x30\x90"),
                (request.sync ^ 1 << 40, b"\x81\x30\x91\x04"),
                (request.sync, b"\x81\x30\x91\x03"),
            ] {
                bytes.extend(server::frame(128, sync, body));
            }
            bytes.extend(server::values(request.sync, &[Value::Bool(true), id]));
            Reaction::Answer(0, bytes)
        })
    }));
    let future = world.post(Ask::rw(1).answer_by(FOR_EVER));
    let blocking = world.post(Ask::rw(1));
    // They are answered by the hook, not run.
    for call in [future, blocking] {
        world.cluster.executed.insert(world.calls[call].id, 1);
    }
    for call in [future, blocking] {
        world.answer(call).values();
    }
    assert_eq!(world.calls[future].pushed, [Value::Uint(1), Value::Uint(2), Value::Uint(3)]);
    assert_eq!(world.calls[blocking].pushed, []);
    world.settle();
}

/// `count` pushes of `size` bytes, for the request of this sync.
fn pushes(sync: u64, count: usize, size: usize) -> Vec<u8> {
    let mut body = b"\x81\x30\x91".to_vec();
    body.extend(Value::str(&"x".repeat(size)).bytes());
    server::frame(128, sync, &body).repeat(count)
}

/// An instance that pushes what `pushes` gives for a request, then nothing. 1 MB may lie unread.
fn pushing(mut pushes: impl FnMut(u64) -> Vec<u8> + 'static) -> World {
    let mut world = World::new(Setup::default());
    world.config.limits.unread_pushes = 1_000_000;
    world.start();
    world.run_for(ms(50));
    world.learn_routes();
    world.cluster.storage("rs1-a").hook = Some(Box::new(move |request| {
        let is_call = request.kind == server::TYPE_CALL && request.func() == "vshard.storage.call";
        is_call.then(|| Reaction::Answer(0, pushes(request.sync)))
    }));
    world.net.piece = 100_000;
    world
}

#[test]
fn what_is_pushed_and_not_read_has_a_limit() {
    for (size, least, most) in [(100_000, 10, 11), (10, 2000, 20_000)] {
        let mut world = pushing(move |sync| pushes(sync, 2 * most, size));
        world.keeps_pushes = true;
        let call = world.post(Ask::rw(1).answer_by(ms(5000)));
        let neighbour = world.post(Ask::rw(2).answer_by(ms(5000)));
        let answer = world.answer(call);
        let error = answer.error();
        assert_eq!(error.field("code"), Some(&Value::Uint(32)));
        let text = error.field("message").and_then(Value::text).unwrap();
        assert!(text.contains("1000000 bytes") && text.contains("pushed"), "{text}");
        let count = world.calls[call].pushed.len();
        assert!((least..=most).contains(&count), "{count} are kept, and none is lost");
        let held: usize = world.kept.iter().map(Reply::capacity).sum();
        assert!(held + count * size_of::<Reply>() <= 1_000_000 + 2 * size + 200, "{held} bytes in {count}");
        assert_eq!(world.counters.push_overflows.get(), 1);
        world.answer(neighbour).values();
        world.run_for(ms(100));
        assert_eq!(world.calls[call].pushed.len(), count, "nothing comes after the end");
        world.settle();
    }
}

#[test]
fn what_is_pushed_and_read_has_none() {
    let asked = Rc::new(Cell::new(0));
    let sync = Rc::clone(&asked);
    let mut world = pushing(move |of| {
        sync.set(of);
        Vec::new()
    });
    let call = world.post(Ask::rw(1).answer_by(ms(5000)));
    world.run_for(ms(10));
    for _ in 0..20 {
        world.inject("rs1-a", &pushes(asked.get(), 9, 100_000));
        world.run_for(ms(10));
    }
    let id = Value::Uint(world.calls[call].id);
    world.cluster.executed.insert(world.calls[call].id, 1);
    world.inject("rs1-a", &server::values(asked.get(), &[Value::Bool(true), id]));
    world.answer(call).values();
    assert_eq!(world.calls[call].pushed.len(), 180);
    assert_eq!(world.counters.push_overflows.get(), 0);
    world.settle();
}

#[test]
fn one_that_is_larger_than_the_limit_comes_too() {
    let mut world = pushing(|sync| pushes(sync, 1, 1_500_000));
    world.keeps_pushes = true;
    let call = world.post(Ask::rw(1).answer_by(ms(1000)));
    assert_eq!(world.answer(call).error_name(), "ClientError 78");
    assert_eq!(world.calls[call].pushed.len(), 1);
    world.settle();
}
