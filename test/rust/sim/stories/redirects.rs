//! Buckets that are not where the router believes.

use super::ms;
use crate::common::value::Value;
use crate::world::{Ask, Setup, World};
use rawshard::control::Command;

#[test]
fn a_refusal_that_names_the_new_owner_is_followed() {
    let mut world = World::ready(Setup::default());
    world.cluster.move_bucket(1, "rs1", "rs2");
    let call = world.post(Ask::rw(1));
    world.answer(call).values();
    assert_eq!(world.executions(call), 1);
    assert_eq!(world.route(1).as_deref(), Some("rs2"), "the route is learned");
    assert_eq!(world.cluster.asked(None, "vshard.storage.bucket_stat"), 0, "nobody had to be asked");
    assert_eq!(world.counters.snapshot().redirects, 1);
    world.settle();
}

#[test]
fn a_refusal_without_destination_leads_to_a_search() {
    let mut world = World::ready(Setup::default());
    world.cluster.move_bucket(1, "rs1", "rs2");
    world.cluster.shard("rs1").buckets.remove(&1);
    world.call(Ask::ro(1)).values();
    assert_eq!(world.route(1).as_deref(), Some("rs2"));
    assert_eq!(world.cluster.asked(None, "vshard.storage.bucket_stat"), 2, "each replicaset once");
    world.settle();
}

#[test]
fn an_unknown_destination_may_appear_by_reconfiguration() {
    let mut world = World::ready(Setup::default());
    let id = world.add_shard(1);
    world.cluster.move_bucket(1, "rs1", &id);
    let call = world.post(Ask::rw(1).timeout(ms(2000)));
    world.run_for(ms(500));
    assert!(world.calls[call].answer.is_none(), "it waits for the destination");
    let refused = world.cluster.asked(None, "vshard.storage.call");
    assert_eq!(refused, 1, "the one that moved it is not asked again and again");
    let config = world.shard_config(&id);
    world.config.replicasets.push(config);
    world.start();
    let answer = world.answer(call);
    answer.values();
    assert!(answer.at <= world.calls[call].posted.after(ms(600)), "soon after it appeared");
    assert_eq!(world.executions(call), 1);
    world.settle();
}

#[test]
fn a_destination_that_never_appears_ends_with_the_refusal() {
    let mut world = World::ready(Setup::default());
    let id = world.add_shard(1);
    world.cluster.move_bucket(1, "rs1", &id);
    let call = world.post(Ask::rw(1).timeout(ms(300)));
    let answer = world.answer(call);
    assert_eq!(answer.error_name(), "WRONG_BUCKET");
    assert_eq!(answer.error().field("destination"), Some(&Value::str(&id)));
    assert!(answer.at >= world.calls[call].deadline, "not before its time is over");
    assert_eq!(world.executions(call), 0);
    world.settle();
}

#[test]
fn a_write_to_a_moving_bucket_waits_for_the_move() {
    let mut world = World::ready(Setup::default());
    world.cluster.send_bucket(1, "rs1", "rs2");
    let call = world.post(Ask::rw(1).timeout(ms(2000)));
    world.after(ms(300), |world| world.cluster.move_bucket(1, "rs1", "rs2"));
    let answer = world.answer(call);
    answer.values();
    assert!(answer.at <= world.calls[call].posted.after(ms(400)), "soon after the move");
    assert_eq!(world.executions(call), 1);
    assert_eq!(world.route(1).as_deref(), Some("rs2"));
    let asked = world.cluster.asked(None, "vshard.storage.call");
    assert!(asked < 30, "{asked} requests in 300 ms: refusals slow a call down");
    world.settle();
}

#[test]
fn a_move_that_takes_too_long_ends_with_the_last_refusal() {
    let mut world = World::ready(Setup::default());
    world.cluster.send_bucket(1, "rs1", "rs2");
    let call = world.post(Ask::rw(1).timeout(ms(100)));
    let answer = world.answer(call);
    assert_eq!(answer.error_name(), "TRANSFER_IS_IN_PROGRESS");
    assert!(answer.at >= world.calls[call].deadline);
    assert_eq!(world.executions(call), 0);
    world.settle();
}

#[test]
fn reads_of_a_moving_bucket_go_on_where_it_is() {
    let mut world = World::ready(Setup::default());
    world.cluster.send_bucket(1, "rs1", "rs2");
    let call = world.post(Ask::ro(1));
    world.answer(call).values();
    // And one that believes the receiver to have it already is sent back.
    let rs2 = world.replicaset("rs2");
    world.buckets.set(world.bucket(1), rs2);
    world.call(Ask::ro(1)).values();
    assert_eq!(world.route(1).as_deref(), Some("rs1"));
    world.settle();
}

#[test]
fn a_locked_bucket_is_asked_again() {
    let mut world = World::ready(Setup::default());
    world.cluster.shard("rs1").locked.insert(1);
    let call = world.post(Ask::rw(1).timeout(ms(1000)));
    world.after(ms(100), |world| {
        world.cluster.shard("rs1").locked.clear();
    });
    world.answer(call).values();
    assert_eq!(world.executions(call), 1);
    world.settle();
}

#[test]
fn a_cycle_of_redirects_is_slowed_down() {
    let mut world = World::ready(Setup::default());
    // Each says that the other has it.
    for (shard, other) in [("rs1", "rs2"), ("rs2", "rs1")] {
        let sent = crate::cluster::Bucket::Sent { to: Some(other.into()) };
        world.cluster.shard(shard).buckets.insert(1, sent);
    }
    let call = world.post(Ask::rw(1).timeout(ms(1000)));
    let answer = world.answer(call);
    assert_eq!(answer.error_name(), "WRONG_BUCKET");
    let asked = world.cluster.asked(None, "vshard.storage.call");
    assert!((10..40).contains(&asked), "{asked} requests in a second");
    world.settle();
}

#[test]
fn a_route_to_a_removed_replicaset_is_looked_for_anew() {
    let mut world = World::ready(Setup::default());
    world.cluster.move_bucket(2, "rs2", "rs1");
    world.config.replicasets.pop();
    world.start();
    world.run_for(ms(1));
    assert_eq!(world.route(2), None, "routes to it are forgotten at once");
    world.call(Ask::rw(2)).values();
    assert_eq!(world.route(2).as_deref(), Some("rs1"));
    world.control(Command::DiscoveryWakeup);
    world.settle();
}
