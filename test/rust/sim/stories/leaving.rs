//! Storages that say that they are about to stop.

use super::ms;
use crate::common::{server, value::Value};
use crate::world::{Ask, Setup, World};

/// The sync under which the router watches `box.shutdown`.
const WATCHING: u64 = u64::MAX - 3;

/// `box.shutdown` is true.
fn shutdown() -> Vec<u8> {
    server::frame(server::TYPE_EVENT, WATCHING, b"\x82\x57\xacbox.shutdown\x58\xc3")
}

#[test]
fn a_storage_that_stops_answers_what_it_has_and_gets_no_more() {
    let mut world = World::ready(Setup { shards: vec![1, 1], ..Setup::default() });
    let held = world.post(Ask::rw(1).func("slow").arg(Value::Uint(100_000)).timeout(ms(2000)));
    world.run_for(ms(10));
    world.inject("rs1-a", &shutdown());
    world.run_for(ms(1));
    // Whoever connects from now on is refused.
    world.cluster.storage("rs1-a").up = false;
    let waits: Vec<usize> = (0..10).map(|_| world.post(Ask::rw(1).timeout(ms(3000)))).collect();
    world.run_for(ms(80));
    assert_eq!(world.cluster.asked(Some("rs1-a"), "vshard.storage.call"), 1, "nothing more is sent to it");
    assert_eq!(world.counters.snapshot().disconnects, 0, "it still has a call");
    world.call(Ask::rw(2)).values();
    world.answer(held).values();
    assert_eq!(world.counters.snapshot().disconnects, 1, "closed by the router with the last answer");
    assert_eq!(world.counters.snapshot().protocol_errors, 0, "as agreed");
    world.run_for(ms(500));
    world.revive("rs1-a");
    for call in waits {
        world.answer(call).values();
        assert_eq!(world.executions(call), 1);
    }
    world.settle();
}

#[test]
fn a_storage_that_stops_with_nothing_to_do_is_left_at_once() {
    let mut world = World::ready(Setup { shards: vec![2], ..Setup::default() });
    world.cluster.storage("rs1-a").up = false;
    world.inject("rs1-a", &shutdown());
    world.run_for(ms(10));
    assert!(world.counters.snapshot().disconnects >= 1);
    // Reads go elsewhere, writes wait for the storage.
    world.call(Ask::ro(1)).values();
    let write = world.post(Ask::rw(1).timeout(ms(2000)));
    world.run_for(ms(300));
    world.revive("rs1-a");
    world.answer(write).values();
    world.settle();
}

#[test]
fn a_storage_that_stops_is_left_when_the_last_caller_has_gone() {
    let mut world = World::ready(Setup { shards: vec![1], ..Setup::default() });
    let held = world.post(Ask::rw(1).func("never").timeout(ms(200)));
    world.run_for(ms(10));
    world.inject("rs1-a", &shutdown());
    assert_eq!(world.answer(held).error_name(), "ClientError 78");
    world.run_for(ms(20));
    assert_eq!(world.counters.snapshot().disconnects, 1);
    world.call(Ask::rw(1).timeout(ms(1000))).values();
    world.settle();
}
