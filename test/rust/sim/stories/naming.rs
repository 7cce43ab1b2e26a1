//! Instances that are known by their names (`name_as_key`).

use super::ms;
use crate::cluster::Reaction;
use crate::common::{server, value::Value};
use crate::world::{Ask, Setup, World};

const INFO: &str = "vshard.storage._call";

/// One storage that must be called `storage_a`, and answers so when it is asked for its name.
fn named(with_uuid: bool, answer: impl Fn(u64) -> Vec<u8> + 'static) -> World {
    let mut world = World::new(Setup { shards: vec![1], ..Setup::default() });
    world.config.name_as_key = true;
    let config = world.instance_config("rs1-a");
    config.name = Some("storage_a".into());
    if !with_uuid {
        config.uuid = None;
    }
    world.cluster.storage("rs1-a").hook = Some(Box::new(move |request| {
        (request.kind == server::TYPE_CALL && request.func() == INFO)
            .then(|| Reaction::Answer(0, answer(request.sync)))
    }));
    world.start();
    world.run_for(ms(50));
    world.learn_routes();
    world
}

fn called(name: Option<&str>) -> impl Fn(u64) -> Vec<u8> + 'static {
    let name = name.map_or(Value::Nil, Value::str);
    move |sync| {
        server::values(sync, &[Value::map([("is_master", Value::Bool(true)), ("name", name.clone())])])
    }
}

/// A call ends with this reason, and nothing but the question was sent to the storage.
#[track_caller]
fn is_refused(mut world: World, reason: &str) {
    let answer = world.call(Ask::rw(1));
    let is_mismatch = reason.contains("expected");
    assert_eq!(answer.error_name(), if is_mismatch { "INSTANCE_NAME_MISMATCH" } else { "ClientError 77" });
    let text = answer.error().field("message").unwrap().text().unwrap().to_owned();
    assert!(text.contains(reason), "{text}");
    assert_eq!(world.cluster.asked(None, "vshard.storage.call"), 0);
    let asked = world.cluster.asked(None, INFO);
    assert!((2..20).contains(&asked), "asked again at a walking pace: {asked}");
    // It gets its name in the end.
    world.cluster.storage("rs1-a").hook = Some(Box::new(move |request| {
        (request.kind == server::TYPE_CALL && request.func() == INFO)
            .then(|| Reaction::Answer(0, called(Some("storage_a"))(request.sync)))
    }));
    world.call(Ask::rw(1).timeout(ms(1000))).values();
    world.settle();
}

#[test]
fn the_right_name_is_served() {
    for with_uuid in [true, false] {
        let mut world = named(with_uuid, called(Some("storage_a")));
        world.call(Ask::rw(1)).values();
        assert_eq!(world.cluster.asked(None, INFO), 1, "asked once for each connection");
        world.settle();
    }
}

#[test]
fn another_name_gets_no_request() {
    for with_uuid in [true, false] {
        let world = named(with_uuid, called(Some("storage_b")));
        is_refused(world, r#"Mismatch server name: expected "storage_a", but got "storage_b""#);
    }
}

#[test]
fn without_a_name_the_uuid_has_to_do() {
    let mut world = named(true, called(None));
    world.call(Ask::rw(1)).values();
    world.settle();
    is_refused(named(false, called(None)), r#"expected "storage_a", but got "nil""#);
}

#[test]
fn one_that_does_not_tell_its_name_gets_no_request() {
    let denied = "Execute access to function 'vshard.storage._call' is denied for user 'storage'";
    let world = named(true, move |sync| server::error(sync, server::ER_ACCESS_DENIED, denied));
    is_refused(world, denied);
    is_refused(named(true, |sync| server::values(sync, &[])), "does not tell its name");
    is_refused(named(true, |sync| server::values(sync, &[Value::Uint(1)])), "does not tell its name");
}

#[test]
fn names_are_not_asked_for_where_uuids_are_the_keys() {
    let mut world = World::ready(Setup { shards: vec![1], ..Setup::default() });
    world.call(Ask::rw(1)).values();
    assert_eq!(world.cluster.asked(None, INFO), 0);
    world.settle();
}
