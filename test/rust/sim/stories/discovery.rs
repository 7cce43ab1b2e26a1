//! How routes become known in the background.

use super::ms;
use crate::cluster::Reaction;
use crate::common::{server, value::Value};
use crate::world::{Ask, Setup, World};
use rawshard::control::Command;
use rawshard::control::config::DiscoveryMode;

const DISCOVERY: &str = "vshard.storage.buckets_discovery";

fn discovering(setup: Setup) -> World {
    World::new(Setup { discovery: DiscoveryMode::On, ..setup })
}

#[test]
fn all_buckets_become_known_page_by_page() {
    let mut world = discovering(Setup { bucket_count: 3000, ..Setup::default() });
    for storage in &mut world.cluster.storages {
        storage.page = 100;
    }
    world.start();
    world.run_until("all buckets are known", |world| world.buckets.known() == 3000);
    let took = world.now.since(crate::world::START);
    assert!(took < ms(1000), "{took:?}");
    for bucket in [1, 2, 2999, 3000] {
        let expected = if bucket % 2 == 1 { "rs1" } else { "rs2" };
        assert_eq!(world.route(bucket).as_deref(), Some(expected));
    }
    world.settle();
}

#[test]
fn a_page_may_be_empty_and_still_have_a_successor() {
    let mut world = discovering(Setup { shards: vec![1], bucket_count: 300, ..Setup::default() });
    world.cluster.storage("rs1-a").page = 50;
    for bucket in 1..=100 {
        let sent = crate::cluster::Bucket::Sent { to: None };
        world.cluster.shard("rs1").buckets.insert(bucket, sent);
    }
    world.start();
    world.run_until("the rest is known", |world| world.buckets.known() == 200);
    assert_eq!((world.route(100), world.route(101).as_deref()), (None, Some("rs1")));
    assert!(world.now.since(crate::world::START) < ms(500));
    world.settle();
}

#[test]
fn ids_above_bucket_count_are_nobodys() {
    // P18: the storages have more buckets than the router.
    let mut world = discovering(Setup { shards: vec![1], bucket_count: 30, ..Setup::default() });
    for bucket in 31..=90 {
        world.cluster.shard("rs1").buckets.insert(bucket, crate::cluster::Bucket::Active);
    }
    world.cluster.shard("rs1").buckets.insert(u64::from(u32::MAX) + 5, crate::cluster::Bucket::Active);
    world.cluster.storage("rs1-a").page = 7;
    world.start();
    world.run_for(ms(3000));
    assert_eq!(world.buckets.known(), 30);
    world.call(Ask::rw(30)).values();
    world.settle();
}

#[test]
fn a_replica_is_asked_when_the_master_is_away() {
    // P19
    let mut world = discovering(Setup::default());
    world.cluster.storage("rs1-a").up = false;
    world.start();
    world.run_until("all buckets are known", |world| world.buckets.known() == 30);
    let took = world.now.since(crate::world::START);
    assert!(took < ms(2000), "{took:?}");
    world.call(Ask::ro(1)).values();
    assert_eq!(world.call(Ask::rw(1)).error_name(), "ClientError 77");
    world.settle();
}

#[test]
fn a_cluster_that_is_partly_down_is_served_partly() {
    // P20
    let mut world = discovering(Setup::default());
    for id in ["rs2-a", "rs2-b"] {
        world.cluster.storage(id).up = false;
    }
    world.start();
    world.run_until("what can be known is known", |world| world.buckets.known() == 15);
    world.call(Ask::rw(1)).values();
    for id in ["rs2-a", "rs2-b"] {
        world.revive(id);
    }
    world.run_until("all buckets are known", |world| world.buckets.known() == 30);
    let took = world.now.since(crate::world::START);
    assert!(took < ms(3000), "{took:?}");
    world.call(Ask::rw(2)).values();
    world.settle();
}

#[test]
fn buckets_that_move_are_followed_without_calls() {
    let mut world = discovering(Setup::default());
    world.start();
    world.run_until("all buckets are known", |world| world.buckets.known() == 30);
    world.cluster.move_bucket(1, "rs1", "rs2");
    world.control(Command::DiscoveryWakeup);
    world.run_until("the new owner is known", |world| world.route(1).as_deref() == Some("rs2"));
    world.settle();
}

#[test]
fn nonsense_for_pages_is_reported_and_asked_again() {
    let odd: [&[u8]; 5] =
        [b"\x90", b"\x91\xc0", b"\x91\x05", b"\x91\x81\xa7buckets\x05", b"\x91\x81\xa7buckets\x92\x01\xa1x"];
    for data in odd {
        let mut world = discovering(Setup { shards: vec![1], ..Setup::default() });
        let data = data.to_vec();
        world.cluster.storage("rs1-a").hook = Some(Box::new(move |request| {
            (request.kind == server::TYPE_CALL && request.func() == DISCOVERY).then(|| {
                let body = [&b"\x81\x30"[..], &data].concat();
                Reaction::Answer(0, server::frame(0, request.sync, &body))
            })
        }));
        world.start();
        world.run_for(ms(2500));
        assert!(!world.publisher.services().discovery.as_ref().expect("it is on").is_ok());
        let asked = world.cluster.asked(None, DISCOVERY);
        assert!((2..=4).contains(&asked), "{asked} questions in 2.5 s");
        world.cluster.storage("rs1-a").hook = None;
        world.run_until("all buckets are known", |world| world.buckets.known() == 30);
        assert!(world.publisher.services().discovery.as_ref().expect("it is on").is_ok());
        world.settle();
    }
}

#[test]
fn the_flat_list_of_old_storages() {
    let mut world = discovering(Setup { shards: vec![1], ..Setup::default() });
    world.cluster.storage("rs1-a").hook = Some(Box::new(|request| {
        (request.kind == server::TYPE_CALL && request.func() == DISCOVERY).then(|| {
            let all = (1..=30).map(Value::Uint).collect();
            Reaction::Answer(0, server::values(request.sync, &[Value::Array(all)]))
        })
    }));
    world.start();
    world.run_until("all buckets are known", |world| world.buckets.known() == 30);
    world.settle();
}

#[test]
fn modes_can_be_changed() {
    let mut world = World::new(Setup { discovery: DiscoveryMode::Once, ..Setup::default() });
    world.start();
    world.run_until("all buckets are known", |world| world.buckets.known() == 30);
    let asked = world.cluster.asked(None, DISCOVERY);
    world.run_for(ms(30_000));
    assert_eq!(world.cluster.asked(None, DISCOVERY), asked, "once");
    world.buckets.clear();
    world.control(Command::DiscoverySet(DiscoveryMode::On));
    world.run_until("all buckets are known again", |world| world.buckets.known() == 30);
    world.control(Command::DiscoverySet(DiscoveryMode::Off));
    world.run_for(ms(100));
    let asked = world.cluster.asked(None, DISCOVERY);
    world.run_for(ms(30_000));
    assert_eq!(world.cluster.asked(None, DISCOVERY), asked, "off");
    world.settle();
}
