//! Reads, and who answers them.

use super::ms;
use crate::cluster::Reaction;
use crate::common::{server, value::Value};
use crate::world::{Ask, Setup, World};
use rawshard::call::request::Access;

fn three() -> World {
    World::ready(Setup { shards: vec![3], ..Setup::default() })
}

fn calls_at(world: &World, id: &str) -> u64 {
    world.cluster.asked(Some(id), "vshard.storage.call")
}

#[test]
fn reads_have_their_order_and_balanced_ones_take_turns() {
    let mut world = three();
    for _ in 0..6 {
        world.call(Ask::ro(1)).values();
    }
    assert_eq!(calls_at(&world, "rs1-a"), 6, "of equal distance the master comes first");
    for _ in 0..6 {
        world.call(Ask::re(1)).values();
    }
    assert_eq!(calls_at(&world, "rs1-b"), 6);
    for _ in 0..6 {
        world.call(Ask::bro(1)).values();
    }
    assert_eq!([calls_at(&world, "rs1-a"), calls_at(&world, "rs1-b"), calls_at(&world, "rs1-c")], [8, 8, 2]);
    world.settle();
}

#[test]
fn a_silent_replica_does_not_swallow_the_whole_timeout() {
    let mut world = three();
    world.freeze("rs1-a");
    let call = world.post(Ask::ro(1).timeout(ms(2000)).request_timeout(ms(300)));
    let answer = world.answer(call);
    answer.values();
    let took = answer.at.since(world.calls[call].posted);
    assert!(took >= ms(300) && took < ms(350), "{took:?}");
    // Without attempts the deadline decides.
    let call = world.post(Ask::ro(1).timeout(ms(600)));
    assert_eq!(world.answer(call).error_name(), "ClientError 78");
    world.thaw("rs1-a");
    world.run_for(ms(10));
    world.settle();
}

#[test]
fn a_replica_known_to_be_silent_is_passed_over() {
    let mut world = three();
    world.freeze("rs1-a");
    // One ping interval, one ping timeout.
    world.run_for(ms(6100));
    let call = world.post(Ask::ro(1).timeout(ms(2000)));
    let answer = world.answer(call);
    answer.values();
    assert!(answer.at.since(world.calls[call].posted) < ms(10));
    world.settle();
}

#[test]
fn a_suspicion_ends_with_the_first_answer() {
    let is_suspect = |world: &World| {
        world.publisher.topology().instance(world.instance("rs1-a")).unwrap().state.is_suspect()
    };
    // Pings without an answer while a request is waited for, which keeps the connection; requests without one.
    for [count, timeout] in [[1, 60_000], [8, 150]] {
        let mut world = three();
        world.freeze("rs1-a");
        for _ in 0..count {
            world.post(Ask::rw(1).timeout(ms(timeout)));
            world.run_for(ms(60));
        }
        world.run_until("it is suspect", is_suspect);
        world.thaw("rs1-a");
        world.run_for(ms(10));
        world.call(Ask::ro(1)).values();
        assert_eq!(calls_at(&world, "rs1-a"), count + 1, "reads go there again");
        assert!(!is_suspect(&world), "and so others are told");
        world.settle();
    }
}

#[test]
fn the_last_attempt_gets_what_is_left() {
    let mut world = three();
    for id in ["rs1-a", "rs1-b", "rs1-c"] {
        world.cluster.storage(id).hook =
            Some(Box::new(move |request| (request.kind == server::TYPE_CALL).then_some(Reaction::Silence)));
    }
    let call = world.post(Ask::ro(1).timeout(ms(1000)).request_timeout(ms(300)));
    let answer = world.answer(call);
    assert_eq!(answer.error_name(), "ClientError 78");
    assert!(answer.at >= world.calls[call].deadline);
    let asked = world.cluster.asked(None, "vshard.storage.call");
    assert_eq!(asked, 4, "300 + 300 + 300 + 100 ms");
    world.settle();
}

#[test]
fn a_short_last_attempt_may_be_the_one_that_is_answered() {
    let mut world = three();
    world.freeze("rs1-a");
    let call = world.post(Ask::ro(1).timeout(ms(1000)).request_timeout(ms(800)));
    let answer = world.answer(call);
    answer.values();
    assert!(answer.at.since(world.calls[call].posted) < ms(850));
    world.thaw("rs1-a");
    world.run_for(ms(10));
    world.settle();
}

#[test]
fn an_attempt_without_time_is_not_made() {
    let mut world = three();
    let call = world.post(Ask::ro(1).timeout(ms(1000)).request_timeout(ms(0)));
    assert_eq!(world.answer(call).error_name(), "ClientError 78");
    assert_eq!(world.cluster.asked(None, "vshard.storage.call"), 0);
    // A write has no attempts.
    let call = world.post(Ask::rw(1).timeout(ms(1000)).request_timeout(ms(0)));
    world.answer(call).values();
    world.settle();
}

#[test]
fn writes_have_no_attempts() {
    let mut world = three();
    world.freeze("rs1-a");
    let call = world.post(Ask::rw(1).timeout(ms(1000)).request_timeout(ms(100)));
    world.answer(call).error();
    world.thaw("rs1-a");
    world.run_for(ms(10));
    assert_eq!(world.cluster.asked(None, "vshard.storage.call"), 1);
    world.settle();
}

#[test]
fn a_read_goes_on_at_a_replica_rather_than_wait_for_a_dead_master() {
    let mut world = World::ready(Setup { shards: vec![2], ..Setup::default() });
    world.kill("rs1-a");
    world.freeze("rs1-b");
    let call = world.post(Ask::ro(1).timeout(ms(2000)).request_timeout(ms(300)));
    world.after(ms(400), |world| world.thaw("rs1-b"));
    let answer = world.answer(call);
    answer.values();
    assert!(answer.at.since(world.calls[call].posted) < ms(700));
    world.settle();
}

#[test]
fn a_read_that_waits_takes_whichever_connection_comes() {
    let mut world = World::new(Setup { shards: vec![2], ..Setup::default() });
    world.cluster.storage("rs1-a").up = false;
    world.cluster.storage("rs1-b").up = false;
    world.start();
    world.run_for(ms(1));
    world.learn_routes();
    let read = world.post(Ask::ro(1).timeout(ms(3000)));
    let write = world.post(Ask::rw(1).timeout(ms(3000)));
    world.after(ms(100), |world| world.revive("rs1-b"));
    let answer = world.answer(read);
    answer.values();
    assert!(
        answer.at.since(world.calls[read].posted) < ms(700),
        "{:?}",
        answer.at.since(world.calls[read].posted)
    );
    assert_eq!(world.answer(write).error_name(), "ClientError 77", "no replica takes a write");
    world.settle();
}

#[test]
fn a_disabled_replica_is_left_alone_for_a_while() {
    let mut world = three();
    world.cluster.storage("rs1-b").disabled = true;
    world.call(Ask::re(1)).values();
    assert_eq!(calls_at(&world, "rs1-b"), 1);
    for _ in 0..10 {
        world.call(Ask::re(1)).values();
    }
    assert_eq!(calls_at(&world, "rs1-b"), 1, "not asked in its pause");
    assert_eq!(calls_at(&world, "rs1-c"), 11);
    world.cluster.storage("rs1-b").disabled = false;
    world.run_for(ms(5100));
    world.call(Ask::re(1)).values();
    assert_eq!(calls_at(&world, "rs1-b"), 2);
    world.settle();
}

#[test]
fn when_all_are_in_backoff_reads_are_told_why() {
    let mut world = World::ready(Setup { shards: vec![2], ..Setup::default() });
    for id in ["rs1-a", "rs1-b"] {
        world.cluster.storage(id).disabled = true;
    }
    for _ in 0..2 {
        let answer = world.call(Ask::ro(1));
        assert_eq!(answer.error_name(), "REPLICASET_IN_BACKOFF");
        let cause = answer.error().field("error").expect("the cause");
        assert_eq!(cause.field("name"), Some(&Value::str("STORAGE_IS_DISABLED")));
    }
    assert_eq!(world.call(Ask::rw(1)).error_name(), "STORAGE_IS_DISABLED");
    // P10: the pause is over by the clock, whatever else ticks.
    for id in ["rs1-a", "rs1-b"] {
        world.cluster.storage(id).disabled = false;
    }
    world.kill("rs1-b");
    world.run_for(ms(5100));
    world.call(Ask::ro(1)).values();
    world.settle();
}

#[test]
fn a_function_missing_on_one_instance_of_vshard_is_looked_for_elsewhere() {
    let mut world = three();
    world.cluster.storage("rs1-a").hook = Some(Box::new(|request| {
        (request.kind == server::TYPE_CALL).then(|| {
            let text = "Procedure 'vshard.storage.call' is not defined";
            Reaction::Answer(0, server::error(request.sync, server::ER_NO_SUCH_PROC, text))
        })
    }));
    world.call(Ask::ro(1)).values();
    assert_eq!(world.call(Ask::rw(1)).error_name(), "ClientError 33");
    world.settle();
}

#[test]
fn a_user_function_that_is_missing_is_the_callers_error() {
    let mut world = three();
    world.cluster.storage("rs1-a").hook = Some(Box::new(|request| {
        (request.kind == server::TYPE_CALL && request.func() == "echo").then(|| {
            let text = "Procedure 'echo' is not defined";
            Reaction::Answer(0, server::error(request.sync, server::ER_NO_SUCH_PROC, text))
        })
    }));
    assert_eq!(world.call(Ask::replicaset("rs1", Access::RO)).error_name(), "ClientError 33");
    assert_eq!(world.cluster.asked(None, "echo"), 1);
    world.settle();
}

#[test]
fn an_attempt_that_ends_as_its_refusal_arrives_is_followed_by_one_request() {
    let mut world = World::ready(Setup { shards: vec![2, 1], ..Setup::default() });
    world.quantum = 5_000_000;
    world.cluster.storage("rs1-a").hook = Some(Box::new(move |request| {
        (request.kind == server::TYPE_CALL).then(|| {
            let fields = [("bucket_id", Value::Uint(1)), ("destination", Value::str("rs2"))];
            let error = Value::sharding_error(1, "WRONG_BUCKET", fields);
            Reaction::Answer(92_000, server::values(request.sync, &[Value::Nil, error]))
        })
    }));
    world.cluster.shard("rs2").buckets.insert(1, crate::cluster::Bucket::Active);
    let call = world.post(Ask::ro(1).timeout(ms(1000)).request_timeout(ms(100)));
    world.answer(call).values();
    assert_eq!(world.cluster.asked(Some("rs1-b"), "vshard.storage.call"), 0, "the refusal came in time");
    assert_eq!(world.cluster.asked(Some("rs2-a"), "vshard.storage.call"), 1);
    world.settle();
}
