//! The end.

use super::ms;
use crate::common::value::Value;
use crate::world::{Ask, Setup, World};
use rawshard::engine::core::Held;

#[test]
fn stop_answers_calls_wherever_they_are() {
    let mut world = World::ready(Setup { shards: vec![1, 1, 1], ..Setup::default() });
    // Sent, waiting for a connection, in a search, paused after a refusal.
    world.kill("rs2-a");
    world.buckets.forget(world.bucket(3));
    world.freeze("rs3-a");
    world.cluster.shard("rs1").locked.insert(4);
    let calls: Vec<usize> = [
        Ask::rw(1).func("never"),
        Ask::rw(2),
        Ask::rw(3),
        Ask::rw(4),
        Ask::route(3),
        Ask::ro(1).func("slow").arg(Value::Uint(1_000_000)).request_timeout(ms(100)),
    ]
    .into_iter()
    .map(|ask| world.post(ask.timeout(ms(60_000))))
    .collect();
    world.run_for(ms(50));
    assert_eq!(world.core.held().calls, 6);
    world.stop();
    let late = world.post(Ask::rw(1));
    world.step(world.now);
    for call in calls.into_iter().chain([late]) {
        let answer = world.calls[call].answer.clone().expect("answered in the turn of the stop");
        assert!(answer.error().field("message").unwrap().text().unwrap().contains("stopped"));
    }
    assert!(world.core.is_stopped());
    assert_eq!(world.core.held(), Held { searches: world.core.held().searches, ..Held::default() });
}

/// P44
#[test]
fn a_planned_stop_of_a_storage_is_no_error_for_anybody() {
    let mut world = World::new(Setup { shards: vec![2], ..Setup::default() });
    world.cluster.storage("rs1-a").version = "2.11.5";
    world.start();
    world.run_for(ms(50));
    world.learn_routes();
    let mut calls: Vec<usize> = (0..50)
        .map(|i| {
            let ask = if i % 2 == 0 { Ask::rw(1) } else { Ask::ro(1) };
            world.post(ask.func("slow").arg(Value::Uint(200_000)).timeout(ms(5000)))
        })
        .collect();
    world.run_for(ms(10));
    world.shut_down("rs1-a");
    world.run_for(ms(10));
    let served = world.cluster.asked(Some("rs1-a"), "vshard.storage.call");
    // Reads move over, writes wait for the restart.
    calls.extend((0..20).map(|_| world.post(Ask::ro(1))));
    calls.extend((0..20).map(|_| world.post(Ask::rw(1).timeout(ms(5000)))));
    world.after(ms(1000), |world| world.revive("rs1-a"));
    world.run_for(ms(900));
    assert_eq!(
        world.cluster.asked(Some("rs1-a"), "vshard.storage.call"),
        served,
        "nothing more is sent to it"
    );
    for call in calls {
        world.answer(call).values();
        assert_eq!(world.executions(call), 1);
    }
    world.settle();
}

#[test]
fn a_storage_that_is_stopped_while_idle_is_left_at_once() {
    let mut world = World::ready(Setup { shards: vec![1], ..Setup::default() });
    world.shut_down("rs1-a");
    world.run_for(ms(10));
    let disconnects = world.counters.snapshot().disconnects;
    assert!(disconnects >= 1);
    world.revive("rs1-a");
    world.call(Ask::rw(1).timeout(ms(1000))).values();
    world.settle();
}

#[test]
fn a_call_that_hangs_does_not_outlive_its_storage() {
    let mut world = World::ready(Setup { shards: vec![1], ..Setup::default() });
    let hangs = world.post(Ask::rw(1).func("never").timeout(ms(60_000)));
    let leaves = world.post(Ask::rw(1).func("never").timeout(ms(500)));
    world.run_for(ms(10));
    world.shut_down("rs1-a");
    assert_eq!(world.answer(leaves).error_name(), "ClientError 78");
    let answer = world.answer(hangs);
    assert_eq!(answer.error_name(), "ClientError 77");
    assert!(answer.at.since(world.calls[hangs].posted) < ms(3100));
    world.settle();
}
