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
