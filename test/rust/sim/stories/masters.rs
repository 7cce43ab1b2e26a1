//! Writes, and who takes them.

use super::ms;
use crate::cluster::Reaction;
use crate::common::{server, value::Value};
use crate::world::{Ask, Setup, World};
use rawshard::call::request::Access;
use rawshard::control::Command;

fn promote(world: &mut World, shard: &str, instance: &str) {
    let master = world.cluster.by_id(instance);
    world.cluster.shard(shard).master = Some(master);
}

fn auto() -> World {
    let mut world = World::new(Setup::default());
    for replicaset in &mut world.config.replicasets {
        replicaset.master_auto = true;
        replicaset.instances.iter_mut().for_each(|instance| instance.is_master = false);
    }
    world.start();
    world
}

#[test]
fn a_refusal_that_names_the_master_is_followed() {
    let mut world = World::ready(Setup::default());
    promote(&mut world, "rs1", "rs1-b");
    let call = world.post(Ask::rw(1));
    let answer = world.answer(call);
    answer.values();
    assert!(answer.at <= world.calls[call].posted.after(ms(50)));
    assert_eq!(world.executions(call), 1);
    let refused = world.cluster.asked(Some("rs1-a"), "vshard.storage.call");
    world.call(Ask::rw(3)).values();
    assert_eq!(world.cluster.asked(Some("rs1-a"), "vshard.storage.call"), refused, "it is remembered");
    world.settle();
}

#[test]
fn a_refusal_that_names_nobody_is_the_callers() {
    let mut world = World::ready(Setup::default());
    promote(&mut world, "rs1", "rs1-b");
    world.cluster.storage("rs1-a").names_master = false;
    let call = world.post(Ask::rw(1).timeout(ms(1000)));
    let answer = world.answer(call);
    assert_eq!(answer.error_name(), "NON_MASTER");
    assert!(answer.at <= world.calls[call].posted.after(ms(50)), "at once: a static master does not change");
    assert_eq!(world.executions(call), 0);
    world.settle();
}

#[test]
fn a_master_that_the_configuration_does_not_have_is_nobody() {
    let mut world = World::ready(Setup::default());
    promote(&mut world, "rs1", "rs1-b");
    world.config.replicasets[0].instances.pop();
    world.start();
    let answer = world.call(Ask::rw(1));
    assert_eq!(answer.error_name(), "NON_MASTER");
    world.settle();
}

#[test]
fn two_that_name_each_other_make_no_storm() {
    let mut world = World::ready(Setup::default());
    let other = world.cluster.by_id("rs2-a");
    world.cluster.shard("rs1").master = Some(other);
    for (id, names) in [("rs1-a", "rs1-b"), ("rs1-b", "rs1-a")] {
        world.cluster.storage(id).hook = Some(Box::new(move |request| {
            use crate::cluster::Reaction;
            use crate::common::{server, value::Value};
            (request.kind == server::TYPE_CALL).then(|| {
                let fields = [
                    ("replica", Value::str(id)),
                    ("replicaset", Value::str("rs1")),
                    ("master", Value::str(names)),
                ];
                let error = Value::sharding_error(2, "NON_MASTER", fields);
                Reaction::Answer(0, server::values(request.sync, &[Value::Nil, error]))
            })
        }));
    }
    let answer = world.call(Ask::rw(1).timeout(ms(1000)));
    assert_eq!(answer.error_name(), "NON_MASTER");
    let asked = world.cluster.asked(None, "vshard.storage.call");
    assert!((10..110).contains(&asked), "{asked} requests in a second");
    world.settle();
}

#[test]
fn without_a_master_a_write_fails_at_once() {
    let mut world = World::new(Setup::default());
    world.config.replicasets[0].instances[0].is_master = false;
    world.start();
    world.run_for(ms(50));
    world.learn_routes();
    assert_eq!(world.call(Ask::rw(1)).error_name(), "MISSING_MASTER");
    world.call(Ask::ro(1)).values();
    world.settle();
}

#[test]
fn an_automatic_master_is_found_as_soon_as_it_connects() {
    let mut world = auto();
    world.run_for(ms(100));
    let rs1 = world.replicaset("rs1");
    let master = world.publisher.topology().replicaset(rs1).unwrap().master;
    assert_eq!(master, Some(world.instance("rs1-a")), "not by the next round of the search");
    world.settle();
}

#[test]
fn an_automatic_master_is_found() {
    let mut world = auto();
    let call = world.post(Ask::rw(1));
    world.answer(call).values();
    let rs1 = world.replicaset("rs1");
    assert_eq!(world.publisher.topology().replicaset(rs1).unwrap().master, Some(world.instance("rs1-a")));
    world.settle();
}

#[test]
fn an_automatic_master_is_found_again_after_it_has_moved() {
    let mut world = auto();
    world.call(Ask::rw(1)).values();
    // Silent about who it is now: the search finds out.
    promote(&mut world, "rs1", "rs1-b");
    world.cluster.storage("rs1-a").names_master = false;
    let call = world.post(Ask::rw(1).timeout(ms(2000)));
    let answer = world.answer(call);
    answer.values();
    assert_eq!(world.executions(call), 1);
    assert!(
        answer.at <= world.calls[call].posted.after(ms(200)),
        "within {:?}",
        answer.at.since(world.calls[call].posted)
    );
    world.settle();
}

#[test]
fn nobody_is_master_until_somebody_is() {
    let mut world = auto();
    world.cluster.shard("rs1").master = None;
    world.run_for(ms(100));
    world.learn_routes();
    let early = world.post(Ask::rw(1).timeout(ms(100)));
    assert_eq!(world.answer(early).error_name(), "MISSING_MASTER");
    assert_eq!(world.executions(early), 0);
    world.call(Ask::ro(1)).values();
    let call = world.post(Ask::rw(1).timeout(ms(3000)));
    world.after(ms(1000), |world| promote(world, "rs1", "rs1-b"));
    let answer = world.answer(call);
    answer.values();
    assert!(answer.at <= world.calls[call].posted.after(ms(1700)), "one search interval later at most");
    let asked = world.cluster.asked(None, "vshard.storage._call");
    assert!(asked < 700, "{asked} questions in a second");
    world.settle();
}

#[test]
fn a_write_waits_for_the_connection_to_the_master() {
    let mut world = World::ready(Setup::default());
    world.kill("rs1-a");
    let call = world.post(Ask::rw(1).timeout(ms(2000)));
    world.after(ms(700), |world| world.revive("rs1-a"));
    let answer = world.answer(call);
    answer.values();
    assert!(answer.at <= world.calls[call].posted.after(ms(1300)), "the longest pause is half a second");
    let call = world.post(Ask::replicaset("rs1", Access::RW).timeout(ms(100)));
    world.answer(call).values();
    world.settle();
}

#[test]
fn a_write_to_a_master_that_stays_away_says_so_in_time() {
    let mut world = World::ready(Setup::default());
    world.kill("rs1-a");
    let call = world.post(Ask::rw(1).timeout(ms(300)));
    let answer = world.answer(call);
    assert_eq!(answer.error_name(), "ClientError 77");
    let text = answer.error().field("message").unwrap().text().unwrap().to_owned();
    assert!(text.contains("rs1-a") && text.contains("Connection refused"), "{text}");
    assert!(answer.at >= world.calls[call].deadline);
    world.settle();
}

#[test]
fn a_write_under_way_when_the_connection_breaks_is_not_repeated() {
    let mut world = World::ready(Setup::default());
    let call = world.post(Ask::rw(1).func("never").timeout(ms(2000)));
    world.run_for(ms(10));
    world.break_connections("rs1-a");
    let answer = world.answer(call);
    assert_eq!(answer.error_name(), "ClientError 77");
    assert!(answer.at <= world.calls[call].posted.after(ms(20)), "at once");
    assert_eq!(world.executions(call), 1);
    world.settle();
}

/// A cluster of three instances each, whose master is to be found out.
fn three() -> World {
    let mut world = World::new(Setup { shards: vec![3], ..Setup::default() });
    let replicaset = &mut world.config.replicasets[0];
    replicaset.master_auto = true;
    replicaset.instances.iter_mut().for_each(|instance| instance.is_master = false);
    world.start();
    world.run_for(ms(1000));
    world.learn_routes();
    world.call(Ask::rw(1)).values();
    world
}

/// How a write that is posted when b has become master fares.
fn find_the_next(world: &mut World) {
    let call = world.post(Ask::rw(1).timeout(ms(30_000)));
    world.run_for(ms(2000));
    promote(world, "rs1", "rs1-b");
    let promoted = world.now;
    let answer = world.answer(call);
    answer.values();
    let took = answer.at.since(promoted);
    assert!(took <= ms(1100), "found after {took:?}");
    assert_eq!(world.executions(call), 1);
}

#[test]
fn a_master_that_is_down_does_not_delay_its_successor() {
    let mut world = three();
    world.cluster.shard("rs1").master = None;
    world.kill("rs1-a");
    find_the_next(&mut world);
    world.settle();
}

#[test]
fn a_replica_that_is_down_does_not_delay_the_next_master() {
    for stuck in [false, true] {
        let mut world = three();
        world.cluster.shard("rs1").master = None;
        if stuck {
            world.freeze("rs1-c");
        } else {
            world.kill("rs1-c");
        }
        find_the_next(&mut world);
        world.thaw("rs1-c");
        world.settle();
    }
}

#[test]
fn a_master_that_has_vanished_does_not_delay_its_successor() {
    let mut world = three();
    // Its connection is still there, or has been given up already.
    for before in [0, 15_000] {
        world.freeze("rs1-a");
        world.run_for(ms(before));
        promote(&mut world, "rs1", "rs1-b");
        let promoted = world.now;
        world.control(Command::MasterSearchWakeup);
        let (rs1, b) = (world.replicaset("rs1"), world.instance("rs1-b"));
        world.run_until("the successor is known", |world| {
            world.publisher.topology().replicaset(rs1).unwrap().master == Some(b)
        });
        let took = world.now.since(promoted);
        assert!(took <= ms(1100), "found after {took:?}");
        world.call(Ask::rw(1)).values();
        promote(&mut world, "rs1", "rs1-a");
        world.thaw("rs1-a");
        world.call(Ask::rw(1).timeout(ms(2000))).values();
    }
    world.settle();
}

#[test]
fn a_second_one_that_claims_to_be_master_changes_nothing() {
    let mut world = three();
    let (rs1, a) = (world.replicaset("rs1"), world.instance("rs1-a"));
    for claims in ["rs1-b", "rs1-c"] {
        world.cluster.storage(claims).hook = Some(Box::new(|request| {
            (request.kind == server::TYPE_CALL && request.func() == "vshard.storage._call").then(|| {
                let info = Value::map([("is_master", Value::Bool(true))]);
                Reaction::Answer(0, server::values(request.sync, &[info]))
            })
        }));
    }
    // Sometimes the one, sometimes the other is heard first.
    world.net.latency = (50, 5000);
    let epoch = world.publisher.topology().epoch;
    for _ in 0..100 {
        world.control(Command::MasterSearchWakeup);
        world.run_for(ms(50));
        let topology = world.publisher.topology();
        assert_eq!(topology.replicaset(rs1).unwrap().master, Some(a), "it says yes each time");
        assert_eq!(topology.epoch, epoch);
    }
    assert!(world.cluster.asked(Some("rs1-b"), "vshard.storage._call") >= 100);
    // It resigns: one of the others is taken.
    world.cluster.shard("rs1").master = None;
    world.control(Command::MasterSearchWakeup);
    world.run_for(ms(50));
    assert_ne!(world.publisher.topology().replicaset(rs1).unwrap().master, Some(a));
    world.settle();
}

#[test]
fn words_that_flip_change_the_master_at_a_walking_pace() {
    let mut world = World::ready(Setup::default());
    for (id, names) in [("rs1-a", "rs1-b"), ("rs1-b", "rs1-a")] {
        world.cluster.storage(id).hook = Some(Box::new(move |request| {
            (request.kind == server::TYPE_CALL).then(|| {
                let fields = [("replica", Value::str(id)), ("master", Value::str(names))];
                let error = Value::sharding_error(2, "NON_MASTER", fields);
                Reaction::Answer(0, server::values(request.sync, &[Value::Nil, error]))
            })
        }));
    }
    let epoch = world.publisher.topology().epoch;
    let calls: Vec<usize> = (0..1000)
        .map(|number| {
            if number % 10 == 0 {
                world.run_for(ms(10));
            }
            world.post(Ask::rw(1).timeout(ms(1000)))
        })
        .collect();
    world.run_for(ms(1000));
    let changes = world.publisher.topology().epoch - epoch;
    assert!((10..=21).contains(&changes), "{changes} changes in two seconds");
    for call in calls {
        assert_eq!(world.answer(call).error_name(), "NON_MASTER");
    }
    world.settle();
}

#[test]
fn the_service_of_master_search_says_whom_it_could_not_ask() {
    let mut world = World::new(Setup::default());
    world.start();
    assert!(world.publisher.services().master_search.is_empty(), "nobody is searched for");
    let mut world = auto();
    for id in ["rs1-a", "rs1-b"] {
        world.cluster.storage(id).up = false;
    }
    world.run_for(ms(1000));
    let rs1 = world.replicaset("rs1");
    let rs2 = world.replicaset("rs2");
    let error = world.publisher.services().master_search[&rs1].error.clone();
    assert!(error.contains("rs1-b is not connected"), "{error}");
    assert!(world.publisher.services().master_search[&rs2].is_ok());
    world.revive("rs1-a");
    world.run_until("its master is found", |world| {
        world.publisher.services().master_search[&world.replicaset("rs1")].is_ok()
    });
    assert_eq!(world.call(Ask::replicaset("rs1", Access::RW)).values().len(), 1);
    world.settle();
}

#[test]
fn an_answer_to_a_control_loop_that_has_panicked_is_nobodys() {
    let mut world = World::new(Setup { shards: vec![2], ..Setup::default() });
    world.config.replicasets[0].master_auto = true;
    world.config.replicasets[0].instances.iter_mut().for_each(|instance| instance.is_master = false);
    for (id, is_master, late) in [("rs1-a", true, 200_000), ("rs1-b", false, 10_000_000)] {
        world.cluster.storage(id).hook = Some(Box::new(move |request| {
            (request.kind == server::TYPE_CALL).then(|| {
                let info = Value::map([("is_master", Value::Bool(is_master))]);
                Reaction::Answer(late, server::values(request.sync, &[info]))
            })
        }));
    }
    world.start();
    world.run_for(ms(100));
    assert_eq!(world.cluster.asked(Some("rs1-a"), "vshard.storage._call"), 1);
    // The new loop asks in another order.
    world.config.replicasets[0].instances.reverse();
    world.start();
    world.restart_control();
    let rs1 = world.replicaset("rs1");
    let master = |world: &World| world.publisher.topology().replicaset(rs1).unwrap().master;
    world.run_until("somebody is the master", |world| master(world).is_some());
    assert_eq!(master(&world), Some(world.instance("rs1-a")), "the word of one is not that of another");
    world.restart_control();
    world.restart_control();
    world.run_for(ms(11_000));
    assert_eq!(master(&world), Some(world.instance("rs1-a")));
    world.settle();
}
