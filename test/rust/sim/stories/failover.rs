//! Which instances reads leave alone, for how long, and what ends it.

use super::ms;
use crate::world::{Ask, Setup, World};

fn three() -> World {
    World::ready(Setup { shards: vec![3], ..Setup::default() })
}

fn two() -> World {
    World::ready(Setup { shards: vec![2], ..Setup::default() })
}

fn calls_at(world: &World, id: &str) -> u64 {
    world.cluster.asked(Some(id), "vshard.storage.call")
}

/// A read with attempts of 300 ms; gives how long it took.
fn read(world: &mut World) -> u64 {
    let call = world.post(Ask::ro(1).timeout(ms(2000)).request_timeout(ms(300)));
    let answer = world.answer(call);
    answer.values();
    answer.at.since(world.calls[call].posted).as_millis() as u64
}

#[test]
fn one_that_leaves_requests_unanswered_is_passed_over_until_it_answers() {
    for limit in [1, 3] {
        let mut world = World::new(Setup { shards: vec![3], ..Setup::default() });
        world.config.failover_sequential_fail_count = limit;
        world.start();
        world.run_for(ms(50));
        world.learn_routes();
        world.freeze("rs1-a");
        for _ in 0..limit {
            let took = read(&mut world);
            assert!((300..350).contains(&took), "{took}");
        }
        for _ in 0..20 {
            let took = read(&mut world);
            assert!(took < 10, "it is known to be stuck by now: {took}");
        }
        world.thaw("rs1-a");
        world.run_for(ms(20));
        let before = calls_at(&world, "rs1-a");
        assert!(read(&mut world) < 10);
        assert_eq!(calls_at(&world, "rs1-a"), before + 1, "as soon as it answers");
        world.settle();
    }
}

#[test]
fn one_that_is_slow_with_some_requests_and_answers_others_is_in_order() {
    let mut world = three();
    for _ in 0..6 {
        let slow = Ask::ro(1).func("slow").arg(crate::common::value::Value::Uint(3_000_000));
        let slow = world.post(slow.timeout(ms(2000)).request_timeout(ms(200)));
        world.run_for(ms(100));
        world.call(Ask::rw(1)).values();
        world.run_for(ms(150));
        world.cancel(slow);
    }
    let before = calls_at(&world, "rs1-a");
    world.call(Ask::ro(1)).values();
    assert_eq!(calls_at(&world, "rs1-a"), before + 1);
    world.run_for(ms(4000));
    world.settle();
}

#[test]
fn callers_in_a_hurry_prove_nothing() {
    let mut world = three();
    world.net.latency = (10_000, 10_000);
    let calls: Vec<usize> =
        (0..10).map(|_| world.post(Ask::ro(1).timeout(ms(200)).request_timeout(ms(2)))).collect();
    for call in calls {
        world.answer(call);
    }
    // What is under way arrives.
    world.run_for(ms(15));
    let before = calls_at(&world, "rs1-a");
    world.call(Ask::ro(1)).values();
    assert_eq!(calls_at(&world, "rs1-a"), before + 1);
    world.run_for(ms(100));
    world.settle();
}

#[test]
fn a_write_that_is_refused_sends_no_read_away() {
    let mut world = two();
    world.cluster.storage("rs1-a").disabled = true;
    assert_eq!(world.call(Ask::rw(1)).error_name(), "STORAGE_IS_DISABLED");
    world.cluster.storage("rs1-a").disabled = false;
    let before = calls_at(&world, "rs1-a");
    world.call(Ask::ro(1)).values();
    assert_eq!(calls_at(&world, "rs1-a"), before + 1);
    world.settle();
}

#[test]
fn a_read_that_waits_for_a_dead_master_goes_on_where_a_backoff_ends() {
    let mut world = two();
    world.cluster.storage("rs1-b").hook = Some(crate::stories::denied());
    world.call(Ask::re(1)).values();
    let began = world.now;
    world.cluster.storage("rs1-b").hook = None;
    world.kill("rs1-a");
    let call = world.post(Ask::ro(1).timeout(ms(20_000)));
    let answer = world.answer(call);
    answer.values();
    let took = answer.at.since(began);
    assert!(took >= ms(4990) && took < ms(5050), "{took:?}");
    world.settle();
}

#[test]
fn a_read_that_waits_for_a_dead_master_goes_on_where_a_stuck_one_answers() {
    let mut world = two();
    world.freeze("rs1-b");
    // One ping interval, one ping timeout.
    world.run_for(ms(6100));
    world.kill("rs1-a");
    let call = world.post(Ask::ro(1).timeout(ms(20_000)));
    world.after(ms(1000), |world| world.thaw("rs1-b"));
    let answer = world.answer(call);
    answer.values();
    let took = answer.at.since(world.calls[call].posted);
    assert!(took >= ms(1000) && took < ms(1600), "{took:?}");
    world.settle();
}

#[test]
fn each_of_very_many_instances_is_tried_once() {
    let mut world = World::ready(Setup { shards: vec![70], ..Setup::default() });
    let ids: Vec<String> = world.cluster.storages.iter().map(|storage| storage.id.clone()).collect();
    for id in &ids[..69] {
        world.freeze(id);
    }
    let call = world.post(Ask::ro(1).timeout(ms(2000)).request_timeout(ms(10)));
    world.answer(call).values();
    assert_eq!(calls_at(&world, &ids[69]), 1);
    for id in &ids[..69] {
        world.thaw(id);
    }
    world.run_for(ms(50));
    let asked: Vec<u64> = ids.iter().map(|id| calls_at(&world, id)).collect();
    assert_eq!(asked, vec![1; 70]);
    world.settle();
}
