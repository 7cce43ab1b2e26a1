//! Calls whose answers may take long, though what cannot be sent fails soon.

use std::time::Duration;

use super::ms;
use crate::cluster::Reaction;
use crate::common::{server, value::Value};
use crate::world::{Ask, Setup, World};

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
