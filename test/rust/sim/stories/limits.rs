//! Bounds beyond which callers wait.

use super::ms;
use crate::common::value::Value;
use crate::world::{Ask, Net, Setup, World};
use rawshard::route::topology::Limits;

fn limited(in_flight: u32, queued_bytes: usize, net: Net) -> World {
    let mut world = World::new(Setup { shards: vec![1], net, ..Setup::default() });
    world.config.limits = Limits { in_flight, queued_bytes, ..Limits::default() };
    world.start();
    world.run_for(ms(100));
    world.learn_routes();
    world
}

#[test]
fn no_more_are_under_way_than_allowed_and_none_is_lost() {
    let mut world = limited(10, usize::MAX, Net::default());
    let calls: Vec<usize> = (0..500)
        .map(|_| world.post(Ask::rw(1).func("slow").arg(Value::Uint(1000)).timeout(ms(5000))))
        .collect();
    world.run_for(ms(1));
    let held = world.core.held();
    assert_eq!((held.requests, held.waiting), (10, 490));
    for call in &calls {
        world.answer(*call).values();
    }
    let order: Vec<u64> = calls.iter().map(|call| world.calls[*call].id).collect();
    assert_eq!(world.cluster.order, order, "first come, first served");
    world.settle();
}

#[test]
fn a_slow_socket_makes_callers_wait_in_their_order() {
    let net = Net { window: 4000, latency: (1000, 1000), ..Net::default() };
    let mut world = limited(100_000, 10_000, net);
    let mut calls = Vec::new();
    for _ in 0..20 {
        // New ones keep coming while others wait.
        for _ in 0..20 {
            calls.push(world.post(Ask::rw(1).arg(Value::Bin(vec![1; 300])).timeout(ms(20_000))));
        }
        world.run_for(ms(1));
    }
    let held = world.core.held();
    let waiting = held.waiting + held.ready;
    assert!(waiting > 100, "{waiting}");
    for call in &calls {
        world.answer(*call).values();
    }
    let order: Vec<u64> = calls.iter().map(|call| world.calls[*call].id).collect();
    assert_eq!(world.cluster.order, order, "first come, first served");
    world.settle();
}

#[test]
fn those_that_wait_keep_their_deadlines_and_leave_no_trace() {
    let mut world = limited(5, usize::MAX, Net::default());
    let held: Vec<usize> = (0..5).map(|_| world.post(Ask::rw(1).func("never").timeout(ms(1000)))).collect();
    let waiting: Vec<usize> = (0..300).map(|_| world.post(Ask::rw(1).timeout(ms(200)))).collect();
    let patient = world.post(Ask::rw(1).timeout(ms(2000)));
    for call in &waiting {
        assert_eq!(world.answer(*call).error_name(), "ClientError 78");
        assert_eq!(world.executions(*call), 0, "never sent");
    }
    for call in &held {
        world.answer(*call).error();
    }
    // Their time is over, so there is room although the storage still owes answers.
    let answer = world.answer(patient);
    answer.values();
    assert!(answer.at <= world.calls[patient].posted.after(ms(1010)));
    world.settle();
}

#[test]
fn cancelled_calls_make_room() {
    let mut world = limited(5, usize::MAX, Net::default());
    let held: Vec<usize> = (0..5).map(|_| world.post(Ask::rw(1).func("never").timeout(ms(5000)))).collect();
    let waiting = world.post(Ask::rw(1).timeout(ms(1000)));
    world.run_for(ms(100));
    for call in held {
        world.cancel(call);
    }
    let answer = world.answer(waiting);
    answer.values();
    assert!(answer.at <= world.calls[waiting].posted.after(ms(110)));
    world.settle();
}

#[test]
fn one_stuck_replicaset_does_not_take_the_slots_of_others() {
    let mut world = World::new(Setup::default());
    world.config.limits = Limits { in_flight: 10, queued_bytes: usize::MAX, ..Limits::default() };
    world.start();
    world.run_for(ms(50));
    world.learn_routes();
    let stuck: Vec<usize> =
        (0..1000).map(|_| world.post(Ask::rw(1).func("never").timeout(ms(300)))).collect();
    world.run_for(ms(10));
    let call = world.post(Ask::rw(2));
    let answer = world.answer(call);
    answer.values();
    assert!(answer.at.since(world.calls[call].posted) < ms(5));
    for call in stuck {
        world.answer(call).error();
    }
    world.settle();
}

#[test]
fn a_lower_limit_holds_from_the_next_configuration_on() {
    let mut world = limited(100, usize::MAX, Net::default());
    world.config.limits.in_flight = 3;
    world.start();
    world.run_for(ms(1));
    let calls: Vec<usize> =
        (0..20).map(|_| world.post(Ask::rw(1).func("slow").arg(Value::Uint(1000)))).collect();
    world.run_for(ms(1));
    assert_eq!(world.core.held().requests, 3);
    for call in calls {
        world.answer(call).values();
    }
    world.settle();
}

#[test]
fn no_more_wait_than_allowed() {
    let mut world = limited(5, usize::MAX, Net::default());
    world.config.limits.waiting = 10;
    world.start();
    world.run_for(ms(1));
    let held: Vec<usize> = (0..5)
        .map(|_| world.post(Ask::rw(1).func("slow").arg(Value::Uint(50_000)).timeout(ms(1000))))
        .collect();
    let waiting: Vec<usize> = (0..10).map(|_| world.post(Ask::rw(1).timeout(ms(1000)))).collect();
    for _ in 0..3 {
        let call = world.post(Ask::rw(1).timeout(ms(1000)));
        let answer = world.answer(call);
        assert_eq!(answer.error_name(), "ClientError 78");
        let text = answer.error().field("message").unwrap().text().unwrap().to_owned();
        assert!(text.contains("too many calls"), "{text}");
        assert!(answer.at.since(world.calls[call].posted) < ms(1), "at once");
        assert_eq!(world.executions(call), 0);
    }
    for call in held.into_iter().chain(waiting) {
        world.answer(call).values();
    }
    world.call(Ask::rw(1)).values();
    world.settle();
}

#[test]
fn no_more_wait_for_a_storage_that_is_down_than_allowed() {
    let mut world = limited(5, usize::MAX, Net::default());
    world.config.limits.waiting = 10;
    world.start();
    world.run_for(ms(1));
    world.kill("rs1-a");
    for round in 0..20 {
        // Those before have left: their places are free again.
        let waiting: Vec<usize> = (0..10).map(|_| world.post(Ask::rw(1).timeout(ms(20)))).collect();
        let more: Vec<usize> = (0..50).map(|_| world.post(Ask::rw(1).timeout(ms(20)))).collect();
        for call in more {
            let answer = world.answer(call);
            assert_eq!(answer.error_name(), "ClientError 78", "round {round}");
            assert!(answer.at.since(world.calls[call].posted) < ms(1), "at once");
        }
        assert_eq!(world.core.held().waiting, 10);
        for call in waiting {
            assert_eq!(world.answer(call).error_name(), "ClientError 77", "round {round}");
        }
    }
    world.revive("rs1-a");
    world.call(Ask::rw(1).timeout(ms(1000))).values();
    world.settle();
}
