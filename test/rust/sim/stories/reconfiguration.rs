//! New configurations under load.

use super::ms;
use crate::common::value::Value;
use crate::world::{Ask, Setup, World, instance_config};
use rawshard::route::address::Address;

/// Calls of all kinds, a tenth of a second each.
fn load(world: &mut World, count: u64) -> Vec<usize> {
    (0..count)
        .map(|i| {
            let bucket = i % 30 + 1;
            let ask = match i % 4 {
                0 | 1 => Ask::rw(bucket),
                2 => Ask::ro(bucket),
                _ => Ask::re(bucket),
            };
            world.post(ask.func("slow").arg(Value::Uint(100_000)).timeout(ms(2000)))
        })
        .collect()
}

#[test]
fn the_same_configuration_again_changes_nothing() {
    let mut world = World::ready(Setup::default());
    for _ in 0..50 {
        let calls = load(&mut world, 20);
        world.start();
        world.run_for(ms(2));
        world.start();
        for call in calls {
            world.answer(call).values();
        }
    }
    assert!(world.connects.values().all(|count| *count == 1), "connections are kept");
    world.settle();
}

#[test]
fn an_instance_removed_lets_its_calls_end() {
    let mut world = World::ready(Setup { shards: vec![3, 1], ..Setup::default() });
    let calls: Vec<usize> =
        (0..20).map(|_| world.post(Ask::re(1).func("slow").arg(Value::Uint(100_000)))).collect();
    world.run_for(ms(10));
    assert_eq!(world.cluster.asked(Some("rs1-b"), "vshard.storage.call"), 20);
    world.config.replicasets[0].instances.remove(1);
    world.start();
    for call in calls {
        world.answer(call).values();
    }
    world.call(Ask::re(1)).values();
    assert_eq!(world.cluster.asked(Some("rs1-b"), "vshard.storage.call"), 20, "nothing new for it");
    world.run_for(ms(2000));
    assert!(world.core.address(rawshard::ids::InstanceIdx(1)).is_none(), "its connection is closed");
    world.settle();
}

#[test]
fn an_instance_removed_while_calls_wait_for_it() {
    let mut world = World::ready(Setup { shards: vec![2], ..Setup::default() });
    world.kill("rs1-a");
    let write = world.post(Ask::rw(1).timeout(ms(2000)));
    let direct = world.post(Ask::instance("rs1-a").timeout(ms(2000)));
    world.run_for(ms(100));
    // b takes over.
    let b = world.cluster.by_id("rs1-b");
    world.cluster.shard("rs1").master = Some(b);
    world.config.replicasets[0].instances.remove(0);
    world.config.replicasets[0].instances[0].is_master = true;
    world.start();
    let answer = world.answer(write);
    answer.values();
    assert!(answer.at.since(world.calls[write].posted) < ms(150), "at once, at the new master");
    assert_eq!(world.answer(direct).error_name(), "OBJECT_IS_OUTDATED");
    world.settle();
}

#[test]
fn a_changed_address_is_used() {
    // P23
    let mut world = World::new(Setup::default());
    let right = world.instance_config("rs1-a").address.clone();
    world.instance_config("rs1-a").address = Address::Tcp { host: "sim".into(), port: 9 };
    world.start();
    world.run_for(ms(500));
    world.learn_routes();
    let call = world.post(Ask::rw(1).timeout(ms(2000)));
    world.run_for(ms(100));
    assert!(world.calls[call].answer.is_none());
    world.instance_config("rs1-a").address = right;
    world.start();
    let answer = world.answer(call);
    answer.values();
    assert!(answer.at.since(world.calls[call].posted) < ms(110), "at once");
    assert_eq!(world.connects[&1], 1, "others keep their connections");
    world.settle();
}

#[test]
fn a_changed_password_makes_a_new_connection() {
    let mut world = World::ready(Setup::default());
    let calls = load(&mut world, 40);
    world.run_for(ms(5));
    let login = ("storage".to_string(), "another".to_string());
    world.cluster.storage("rs1-a").login = Some(login);
    let config = instance_config(world.cluster.storage("rs1-a"), true);
    *world.instance_config("rs1-a") = config;
    world.start();
    for call in calls {
        world.answer(call).values();
    }
    world.call(Ask::rw(1)).values();
    assert_eq!(world.connects[&0], 2);
    assert_eq!(world.connects[&1], 1);
    world.settle();
}

#[test]
fn instances_and_replicasets_come_and_go_under_load() {
    // P17
    let mut world = World::ready(Setup { shards: vec![2, 2], ..Setup::default() });
    let added = world.add_shard(2);
    let with = world.shard_config(&added);
    for round in 0..30u64 {
        let calls = load(&mut world, 30);
        if round % 2 == 0 {
            world.config.replicasets.push(with.clone());
            for bucket in 1..=10u64 {
                let from = if bucket % 2 == 1 { "rs1" } else { "rs2" };
                world.cluster.move_bucket(bucket, from, &added);
            }
        } else {
            world.config.replicasets.pop();
            for bucket in 1..=10u64 {
                let to = if bucket % 2 == 1 { "rs1" } else { "rs2" };
                world.cluster.move_bucket(bucket, &added, to);
            }
        }
        world.start();
        world.run_for(ms(20));
        for call in calls {
            world.answer(call).values();
            assert_eq!(world.executions(call), 1);
        }
    }
    world.settle();
}

#[test]
fn new_ping_times_hold_for_old_connections() {
    let mut world = World::ready(Setup { shards: vec![2], ..Setup::default() });
    world.config.failover_interval = ms(100);
    world.config.failover_ping_timeout = ms(200);
    world.start();
    world.run_for(ms(1));
    world.freeze("rs1-a");
    world.run_for(ms(400));
    let call = world.post(Ask::ro(1).timeout(ms(2000)));
    let answer = world.answer(call);
    answer.values();
    assert!(answer.at.since(world.calls[call].posted) < ms(10), "known to be silent");
    world.settle();
}

#[test]
fn a_replicaset_removed_and_added_again_is_another_one() {
    let mut world = World::ready(Setup::default());
    let config = world.config.replicasets.pop().unwrap();
    let before = world.replicaset("rs2");
    world.start();
    world.run_for(ms(10));
    world.config.replicasets.push(config);
    world.start();
    world.run_for(ms(10));
    assert_ne!(world.replicaset("rs2"), before, "an index is never used again");
    world.call(Ask::rw(2)).values();
    world.settle();
}

#[test]
fn an_empty_configuration_and_back() {
    let mut world = World::ready(Setup::default());
    let replicasets = std::mem::take(&mut world.config.replicasets);
    let calls = load(&mut world, 20);
    world.run_for(ms(1));
    world.start();
    for call in calls {
        world.answer(call).values();
    }
    let answer = world.call(Ask::rw(1).timeout(ms(100)));
    assert_eq!(answer.error_name(), "NO_ROUTE_TO_BUCKET");
    world.config.replicasets = replicasets;
    world.start();
    world.call(Ask::rw(1)).values();
    world.settle();
}
