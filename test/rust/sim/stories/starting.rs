//! Writes to storages that are not ready yet.

use super::ms;
use crate::cluster::Reaction;
use crate::common::server;
use crate::world::{Ask, Setup, World};

fn without_vshard(world: &mut World, id: &str) {
    world.cluster.storage(id).hook = Some(Box::new(|request| {
        (request.kind == server::TYPE_CALL && request.func() == "vshard.storage.call").then(|| {
            let text = "Procedure 'vshard.storage.call' is not defined";
            Reaction::Answer(0, server::error(request.sync, server::ER_NO_SUCH_PROC, text))
        })
    }));
}

#[test]
fn a_write_waits_until_the_storage_is_enabled() {
    let mut world = World::ready(Setup::default());
    world.cluster.storage("rs1-a").disabled = true;
    let call = world.post(Ask::rw(1).timeout(ms(1000)));
    world.after(ms(400), |world| world.cluster.storage("rs1-a").disabled = false);
    let answer = world.answer(call);
    answer.values();
    let took = answer.at.since(world.calls[call].posted);
    assert!(took >= ms(400) && took < ms(500), "{took:?}");
    assert_eq!(world.executions(call), 1);
    world.settle();
}

#[test]
fn a_write_waits_until_vshard_is_loaded() {
    let mut world = World::ready(Setup::default());
    without_vshard(&mut world, "rs1-a");
    let call = world.post(Ask::rw(1).timeout(ms(1000)));
    world.after(ms(400), |world| world.cluster.storage("rs1-a").hook = None);
    let answer = world.answer(call);
    answer.values();
    assert!(answer.at.since(world.calls[call].posted) < ms(500));
    assert_eq!(world.executions(call), 1);
    let asked = world.cluster.asked(Some("rs1-a"), "vshard.storage.call");
    assert!((5..50).contains(&asked), "{asked} requests in 0.4 s");
    world.settle();
}

#[test]
fn a_write_to_a_storage_that_never_gets_ready_ends_with_its_reason() {
    let mut world = World::ready(Setup::default());
    world.cluster.storage("rs1-a").disabled = true;
    without_vshard(&mut world, "rs2-a");
    for (bucket, name) in [(1, "STORAGE_IS_DISABLED"), (2, "ClientError 33")] {
        let call = world.post(Ask::rw(bucket).timeout(ms(300)));
        let answer = world.answer(call);
        assert_eq!(answer.error_name(), name);
        assert!(answer.at >= world.calls[call].deadline, "asked until its deadline");
        assert_eq!(world.executions(call), 0);
    }
    world.settle();
}
