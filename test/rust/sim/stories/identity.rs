//! Who an instance is, where instances are known by name.

use super::ms;
use crate::cluster::Reaction;
use crate::common::{server, value::Value};
use crate::world::{Ask, Setup, World};

const INFO: &str = "vshard.storage._call";

/// Connections are about to be made; storages know their names.
fn named() -> World {
    let mut world = World::new(Setup::default());
    world.config.name_as_key = true;
    for replicaset in &mut world.config.replicasets {
        for instance in &mut replicaset.instances {
            instance.name = Some(instance.id.clone());
            instance.uuid = None;
        }
    }
    for storage in &mut world.cluster.storages {
        storage.name = Some(storage.id.clone());
    }
    world
}

fn message(answer: &crate::world::Answered) -> String {
    answer.error().field("message").and_then(Value::text).expect("a message").to_string()
}

#[test]
fn each_is_asked_for_its_name_first() {
    let mut world = named();
    world.start();
    let call = world.post(Ask::rw(1));
    world.answer(call).values();
    for id in ["rs1-a", "rs1-b", "rs2-a", "rs2-b"] {
        assert_eq!(world.cluster.asked(Some(id), INFO), 1, "once a connection");
    }
    world.settle();
}

#[test]
fn a_wrong_name_gets_no_request_and_may_become_right() {
    let mut world = named();
    world.cluster.storage("rs1-a").name = Some("somebody".into());
    world.start();
    world.run_for(ms(50));
    world.learn_routes();
    let answer = world.call(Ask::rw(1));
    assert!(message(&answer).contains("somebody"), "{}", message(&answer));
    assert_eq!(world.cluster.asked(Some("rs1-a"), "vshard.storage.call"), 0);
    world.cluster.storage("rs1-a").name = Some("rs1-a".into());
    world.call(Ask::rw(1).timeout(ms(1000))).values();
    world.settle();
}

#[test]
fn one_without_a_name_needs_the_right_uuid() {
    let mut world = named();
    world.cluster.storage("rs1-a").name = None;
    world.cluster.storage("rs2-a").name = None;
    let uuid = world.cluster.storage("rs1-a").uuid.clone();
    world.instance_config("rs1-a").uuid = Some(uuid);
    world.start();
    world.run_for(ms(50));
    world.learn_routes();
    world.call(Ask::rw(1)).values();
    assert_eq!(world.call(Ask::rw(2)).error_name(), "INSTANCE_NAME_MISMATCH");
    world.settle();
}

#[test]
fn one_that_cannot_tell_is_asked_again_later() {
    let answers: [fn(u64) -> Reaction; 4] = [
        |sync| Reaction::Answer(0, server::error(sync, server::ER_NO_SUCH_PROC, "Procedure is not defined")),
        |sync| Reaction::Answer(0, server::values(sync, &[])),
        |sync| Reaction::Answer(0, server::values(sync, &[Value::Uint(5)])),
        |_| Reaction::Silence,
    ];
    for answer in answers {
        let mut world = named();
        world.cluster.storage("rs1-a").hook =
            Some(Box::new(move |request| (request.kind == server::TYPE_CALL).then(|| answer(request.sync))));
        world.start();
        world.run_for(ms(50));
        world.learn_routes();
        assert_eq!(world.call(Ask::rw(1)).error_name(), "ClientError 77");
        world.call(Ask::ro(1)).values();
        world.cluster.storage("rs1-a").hook = None;
        world.call(Ask::rw(1).timeout(ms(11_000))).values();
        world.settle();
    }
}
