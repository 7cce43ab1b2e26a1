//! Which instances reads leave alone, for how long, and what ends it.

use super::ms;
use crate::cluster::Reaction;
use crate::common::{server, value::Value};
use crate::world::{Ask, Setup, World};
use rawshard::control::config::DiscoveryMode;

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
        let slow = Ask::ro(1).func("slow").arg(Value::Uint(3_000_000));
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
fn a_replica_that_lags_is_out_of_reads_until_it_has_caught_up() {
    let mut world = three();
    world.cluster.storage("rs1-b").upstream = Some(("follow", 31.0, 0.0));
    world.cluster.storage("rs1-c").upstream = Some(("stopped", 0.0, 29.0));
    world.call(Ask::re(1)).values();
    assert_eq!(calls_at(&world, "rs1-b"), 1, "nothing is known yet");
    // One interval of failover.
    world.run_for(ms(2000));
    for _ in 0..6 {
        world.call(Ask::re(1)).values();
        world.call(Ask::bro(1)).values();
    }
    assert_eq!(calls_at(&world, "rs1-b"), 1);
    assert_eq!(calls_at(&world, "rs1-c"), 9);
    assert_eq!(calls_at(&world, "rs1-a"), 3);
    world.cluster.storage("rs1-b").upstream = Some(("follow", 30.0, 0.0));
    world.run_for(ms(1100));
    world.call(Ask::re(1)).values();
    assert_eq!(calls_at(&world, "rs1-b"), 2);
    world.settle();
}

#[test]
fn the_limit_of_lag_is_configured() {
    let mut world = three();
    world.config.failover_replica_lag_limit = ms(500);
    world.config.failover_interval = ms(100);
    world.start();
    world.cluster.storage("rs1-b").upstream = Some(("sync", 0.6, 0.0));
    world.run_for(ms(1200));
    world.call(Ask::re(1)).values();
    assert_eq!(calls_at(&world, "rs1-b"), 0);
    world.cluster.storage("rs1-b").upstream = Some(("sync", 0.4, 0.0));
    world.run_for(ms(110));
    world.call(Ask::re(1)).values();
    assert_eq!(calls_at(&world, "rs1-b"), 1);
    world.settle();
}

#[test]
fn when_replication_has_stopped_altogether_reads_go_on() {
    let mut world = two();
    world.cluster.storage("rs1-b").upstream = None;
    world.run_for(ms(2000));
    world.call(Ask::re(1)).values();
    assert_eq!(calls_at(&world, "rs1-a"), 1, "its master is in order: the replica is left out");
    // The master is gone, and nobody has ever said that it replicates.
    world.cluster.storage("rs1-a").hook = Some(Box::new(|request| {
        (request.kind == server::TYPE_CALL && request.func() == "vshard.storage._call")
            .then(|| Reaction::Answer(0, server::error(request.sync, server::ER_PROC_LUA, "cannot tell")))
    }));
    world.run_for(ms(2100));
    world.call(Ask::re(1)).values();
    assert_eq!(calls_at(&world, "rs1-b"), 1);
    world.settle();
}

/// Those who replicate from it say that they do not, and what the dead have said before is no news.
#[test]
fn when_the_master_is_dead_for_long_reads_go_on() {
    let mut world = three();
    world.run_for(ms(2000));
    world.kill("rs1-a");
    for id in ["rs1-b", "rs1-c"] {
        world.cluster.storage(id).upstream = Some(("disconnected", 0.0, 31.0));
    }
    world.run_for(ms(2000));
    for ask in [Ask::ro(1), Ask::re(1)] {
        world.call(ask).values();
    }
    assert_eq!(calls_at(&world, "rs1-b"), 2);
    world.kill("rs1-b");
    world.run_for(ms(2000));
    for ask in [Ask::ro(1), Ask::re(1)] {
        world.call(ask).values();
    }
    assert_eq!(calls_at(&world, "rs1-c"), 2, "the only one left");
    world.settle();
}

#[test]
fn a_read_that_waits_for_a_dead_master_goes_on_where_a_replica_catches_up() {
    let mut world = World::ready(Setup { shards: vec![3], ..Setup::default() });
    world.cluster.storage("rs1-b").upstream = Some(("follow", 31.0, 0.0));
    world.run_for(ms(2000));
    world.kill("rs1-a");
    // Nothing says that it lags as well: so replication has not stopped altogether.
    world.cluster.storage("rs1-c").disabled = true;
    let call = world.post(Ask::ro(1).timeout(ms(20_000)));
    world.after(ms(3000), |world| {
        world.cluster.storage("rs1-b").upstream = Some(("follow", 1.0, 0.0));
    });
    let answer = world.answer(call);
    answer.values();
    let took = answer.at.since(world.calls[call].posted);
    assert!(took >= ms(3000) && took < ms(4100), "{took:?}");
    world.settle();
}

#[test]
fn a_storage_that_was_starting_serves_reads_as_soon_as_it_has_started() {
    let mut world = two();
    world.cluster.storage("rs1-a").disabled = true;
    world.cluster.storage("rs1-b").disabled = true;
    assert_eq!(world.call(Ask::ro(1)).error_name(), "REPLICASET_IN_BACKOFF");
    world.run_for(ms(500));
    world.cluster.storage("rs1-a").disabled = false;
    // One interval of failover, not five seconds.
    world.run_for(ms(1100));
    world.call(Ask::ro(1)).values();
    // Where a permission is missing, answers to other questions prove nothing.
    world.cluster.storage("rs1-a").hook = Some(Box::new(|request| {
        let is_denied = request.kind == server::TYPE_CALL && request.func() == "vshard.storage.call";
        is_denied.then(|| {
            let text = "Execute access to function 'vshard.storage.call' is denied for user 'storage'";
            Reaction::Answer(0, server::error(request.sync, server::ER_ACCESS_DENIED, text))
        })
    }));
    assert_eq!(world.call(Ask::ro(1)).error_name(), "REPLICASET_IN_BACKOFF");
    let before = calls_at(&world, "rs1-a");
    world.run_for(ms(3000));
    assert_eq!(world.call(Ask::ro(1)).error_name(), "REPLICASET_IN_BACKOFF");
    assert_eq!(calls_at(&world, "rs1-a"), before);
    world.settle();
}

#[test]
fn a_dead_peer_is_left_although_it_is_asked_for_its_health() {
    let mut world = two();
    world.run_for(ms(3000));
    world.freeze("rs1-b");
    let connects = world.connects[&1];
    world.run_for(ms(7300));
    assert_eq!(world.connects[&1], connects + 1, "one ping interval, one ping timeout");
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

/// P10
#[test]
fn a_backoff_is_over_by_the_clock_whatever_the_pace_of_failover() {
    let mut world = World::new(Setup { shards: vec![2], ..Setup::default() });
    world.config.failover_interval = ms(600_000);
    world.start();
    world.run_for(ms(50));
    world.learn_routes();
    for id in ["rs1-a", "rs1-b"] {
        world.cluster.storage(id).disabled = true;
    }
    let answer = world.call(Ask::ro(1));
    assert_eq!(answer.error_name(), "REPLICASET_IN_BACKOFF");
    let cause = answer.error().field("error").and_then(|error| error.field("name")).cloned();
    assert_eq!(cause, Some(Value::str("STORAGE_IS_DISABLED")));
    for id in ["rs1-a", "rs1-b"] {
        world.cluster.storage(id).disabled = false;
    }
    world.kill("rs1-b");
    world.run_for(ms(4900));
    assert_eq!(world.call(Ask::ro(1)).error_name(), "REPLICASET_IN_BACKOFF");
    world.run_for(ms(200));
    world.call(Ask::ro(1)).values();
    assert_eq!(calls_at(&world, "rs1-a"), 2);
    world.settle();
}

/// P11
#[test]
fn the_nearest_is_read_from_as_soon_as_it_is_connected() {
    let mut world = World::new(Setup { shards: vec![3], ..Setup::default() });
    for (id, weight) in [("rs1-a", 10.0), ("rs1-b", f64::INFINITY), ("rs1-c", 1.0)] {
        world.instance_config(id).zone_weight = weight;
    }
    world.start();
    // At once, before there is any connection.
    let first = world.post(Ask::re(1).timeout(ms(1000)));
    world.answer(first).values();
    world.run_for(ms(5));
    let before = calls_at(&world, "rs1-c");
    for _ in 0..5 {
        world.call(Ask::re(1)).values();
        world.call(Ask::ro(1)).values();
    }
    assert_eq!(calls_at(&world, "rs1-c"), before + 10);
    world.kill("rs1-c");
    world.call(Ask::ro(1)).values();
    world.call(Ask::re(1)).values();
    assert_eq!([calls_at(&world, "rs1-a"), calls_at(&world, "rs1-b")], [1 + u64::from(before == 0), 1]);
    world.settle();
}

/// P12
#[test]
fn a_read_right_after_the_death_of_the_master_is_served_by_a_replica() {
    for is_auto in [false, true] {
        let mut world = World::new(Setup { shards: vec![3], ..Setup::default() });
        world.config.failover_interval = ms(600_000);
        if is_auto {
            world.config.replicasets[0].master_auto = true;
            world.instance_config("rs1-a").is_master = false;
        }
        world.start();
        world.run_for(ms(600));
        world.learn_routes();
        world.kill("rs1-a");
        let call = world.post(Ask::ro(1));
        let answer = world.answer(call);
        answer.values();
        assert!(answer.at.since(world.calls[call].posted) < ms(5));
        world.settle();
    }
}

/// P14, the half of discovery
#[test]
fn a_replicaset_that_answers_too_late_keeps_no_other_from_being_discovered() {
    let mut world = World::new(Setup { discovery: DiscoveryMode::On, ..Setup::default() });
    for id in ["rs1-a", "rs1-b"] {
        world.cluster.storage(id).hook = Some(Box::new(|request| {
            let is_page =
                request.kind == server::TYPE_CALL && request.func() == "vshard.storage.buckets_discovery";
            let page = Value::map([("buckets", Value::Array(vec![Value::Uint(1)]))]);
            is_page.then(|| Reaction::Answer(11_000_000, server::values(request.sync, &[page])))
        }));
    }
    world.start();
    world.run_for(ms(1000));
    assert_eq!(world.buckets.known(), 15, "those of the other one");
    world.run_for(ms(12_000));
    assert_eq!(world.buckets.known(), 15, "an answer after ten seconds is none");
    for id in ["rs1-a", "rs1-b"] {
        world.cluster.storage(id).hook = None;
    }
    world.run_until("all are known", |world| world.buckets.known() == 30);
    world.settle();
}
