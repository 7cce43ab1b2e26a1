//! Looking for a bucket on demand.

use super::ms;
use crate::cluster::Reaction;
use crate::common::{server, value::Value};
use crate::world::{Ask, Setup, World};

const STAT: &str = "vshard.storage.bucket_stat";

/// All connections, no route.
fn ignorant() -> World {
    let mut world = World::new(Setup { shards: vec![2, 2, 2], ..Setup::default() });
    world.start();
    world.run_for(ms(50));
    world
}

#[test]
fn a_thousand_callers_share_one_search() {
    let mut world = ignorant();
    let calls: Vec<usize> = (0..1000).map(|_| world.post(Ask::rw(5))).collect();
    for call in calls {
        world.answer(call).values();
    }
    assert_eq!(world.cluster.asked(None, STAT), 3, "one question per replicaset");
    for id in ["rs1-a", "rs2-a", "rs3-a"] {
        assert_eq!(world.cluster.asked(Some(id), STAT), 1, "the masters are asked");
    }
    world.settle();
}

#[test]
fn a_bucket_that_nobody_has() {
    let mut world = ignorant();
    world.cluster.shard("rs1").buckets.remove(&1);
    let call = world.post(Ask::rw(1).timeout(ms(400)));
    let answer = world.answer(call);
    assert_eq!(answer.error_name(), "NO_ROUTE_TO_BUCKET");
    assert!(answer.at >= world.calls[call].deadline, "it may still appear: looked for until the deadline");
    let asked = world.cluster.asked(None, STAT);
    assert!((9..90).contains(&asked), "{asked} questions");
    // Asking for the route alone ends after one look.
    let call = world.post(Ask::route(1).timeout(ms(400)));
    let answer = world.answer(call);
    assert_eq!(answer.error_name(), "NO_ROUTE_TO_BUCKET");
    assert!(answer.at.since(world.calls[call].posted) < ms(10));
    world.settle();
}

#[test]
fn a_bucket_that_appears_while_it_is_looked_for() {
    let mut world = ignorant();
    world.cluster.shard("rs1").buckets.remove(&1);
    let call = world.post(Ask::rw(1).timeout(ms(1000)));
    world.after(ms(200), |world| {
        world.cluster.shard("rs3").buckets.insert(1, crate::cluster::Bucket::Active);
    });
    let answer = world.answer(call);
    answer.values();
    assert!(answer.at.since(world.calls[call].posted) < ms(300));
    world.settle();
}

#[test]
fn the_route_alone_can_be_asked_for() {
    let mut world = ignorant();
    let answer = world.call(Ask::route(2));
    let rs2 = world.replicaset("rs2");
    assert_eq!(answer.values(), [Value::Uint(u64::from(rs2.0))]);
    world.settle();
}

#[test]
fn a_replica_knows_as_well_when_the_master_is_away() {
    let mut world = ignorant();
    world.kill("rs1-a");
    world.call(Ask::ro(1)).values();
    world.settle();
}

#[test]
fn a_replica_knows_as_well_when_the_master_is_silent() {
    let mut world = ignorant();
    world.freeze("rs1-a");
    world.run_for(ms(6100));
    let call = world.post(Ask::ro(1).timeout(ms(2000)));
    let answer = world.answer(call);
    answer.values();
    assert!(answer.at.since(world.calls[call].posted) < ms(100));
    world.settle();
}

#[test]
fn an_unreachable_replicaset_is_named() {
    let mut world = ignorant();
    world.kill("rs1-a");
    world.kill("rs1-b");
    let call = world.post(Ask::rw(1).timeout(ms(300)));
    let answer = world.answer(call);
    assert_eq!(answer.error_name(), "UNREACHABLE_REPLICASET");
    assert_eq!(answer.error().field("replicaset"), Some(&Value::str("rs1")));
    assert_eq!(answer.error().field("bucket_id"), Some(&Value::Uint(1)));
    // Those of others are found all the same.
    world.call(Ask::rw(2)).values();
    world.settle();
}

#[test]
fn a_replicaset_that_does_not_answer_ends_the_search_in_time() {
    let mut world = ignorant();
    world.freeze("rs1-a");
    let call = world.post(Ask::rw(1).timeout(ms(700)));
    let answer = world.answer(call);
    assert_eq!(answer.error_name(), "ClientError 78");
    // The bucket of another is found as soon as that one answers.
    let call = world.post(Ask::rw(2).timeout(ms(700)));
    let answer = world.answer(call);
    answer.values();
    assert!(answer.at.since(world.calls[call].posted) < ms(10));
    world.settle();
}

#[test]
fn a_connection_lost_in_the_search() {
    let mut world = ignorant();
    world.freeze("rs1-a");
    let call = world.post(Ask::ro(1).timeout(ms(2000)));
    world.after(ms(100), |world| world.kill("rs1-a"));
    let answer = world.answer(call);
    answer.values();
    assert!(answer.at.since(world.calls[call].posted) < ms(200), "the replica is asked next");
    world.settle();
}

#[test]
fn odd_answers_to_a_question_are_errors_not_routes() {
    let odd: [(&str, Vec<Value>); 5] = [
        ("ClientError 20", vec![]),
        ("ClientError 20", vec![Value::Nil]),
        (
            "ClientError 77",
            vec![
                Value::Nil,
                Value::map([
                    ("type", Value::str("ClientError")),
                    ("code", Value::Uint(77)),
                    ("message", Value::str("Connection is closed")),
                ]),
            ],
        ),
        ("STORAGE_IS_DISABLED", vec![Value::Nil, Value::sharding_error(33, "STORAGE_IS_DISABLED", [])]),
        (
            "ClientError 1",
            vec![
                Value::Nil,
                Value::map([
                    ("type", Value::str("ClientError")),
                    ("code", Value::Uint(1)),
                    ("message", Value::str("not a refusal")),
                ]),
            ],
        ),
    ];
    for (name, answer) in odd {
        let mut world = ignorant();
        world.cluster.storage("rs1-a").hook = Some(Box::new(move |request| {
            (request.kind == server::TYPE_CALL && request.func() == STAT)
                .then(|| Reaction::Answer(0, server::values(request.sync, &answer)))
        }));
        let call = world.post(Ask::rw(1).timeout(ms(200)));
        assert_eq!(world.answer(call).error_name(), name);
        world.call(Ask::rw(2)).values();
        world.settle();
    }
}

#[test]
fn an_answer_from_a_replicaset_that_is_gone_makes_no_route() {
    let mut world = ignorant();
    world.cluster.storage("rs2-a").hook = Some(Box::new(|request| {
        let sync = request.sync;
        (request.kind == server::TYPE_CALL && request.func() == STAT)
            .then(|| Reaction::Answer(100_000, server::values(sync, &[Value::Map(vec![]), Value::Nil])))
    }));
    let call = world.post(Ask::rw(2).timeout(ms(400)));
    world.run_for(ms(20));
    world.config.replicasets.remove(1);
    world.start();
    assert_eq!(world.answer(call).error_name(), "NO_ROUTE_TO_BUCKET");
    assert_eq!(world.buckets.known(), 0);
    world.settle();
}

#[test]
fn callers_that_leave_in_a_search_are_forgotten() {
    let mut world = World::new(Setup { shards: vec![2, 2, 2], ..Setup::default() });
    // Nobody is asked for his health meanwhile.
    world.config.failover_interval = ms(60_000);
    world.start();
    world.run_for(ms(50));
    for id in ["rs1-a", "rs2-a", "rs3-a"] {
        world.freeze(id);
    }
    let calls: Vec<usize> = (0..50).map(|_| world.post(Ask::rw(1).timeout(ms(5000)))).collect();
    world.run_for(ms(100));
    for call in calls {
        world.cancel(call);
    }
    world.run_for(ms(1000));
    assert_eq!(world.core.held(), Default::default());
    world.settle();
}

#[test]
fn a_question_for_the_route_waits_for_the_first_connections() {
    let mut world = World::new(Setup { shards: vec![2, 2], ..Setup::default() });
    world.start();
    let route = world.post(Ask::route(2));
    world.answer(route).values();
    assert_eq!(world.route(2).as_deref(), Some("rs2"));
    // Those that cannot be made are not waited for.
    let mut world = World::new(Setup { shards: vec![2, 2], ..Setup::default() });
    for id in ["rs2-a", "rs2-b"] {
        world.cluster.storage(id).up = false;
    }
    world.start();
    let route = world.post(Ask::route(2));
    let answer = world.answer(route);
    assert_eq!(answer.error_name(), "UNREACHABLE_REPLICASET");
    assert!(answer.at.since(world.calls[route].posted) < ms(100));
    world.settle();
}
