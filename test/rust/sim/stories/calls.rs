//! What functions return and raise, as callers get it.

use super::ms;
use crate::cluster::Reaction;
use crate::common::{server, value::Value};
use crate::world::{Ask, Setup, World};
use rawshard::call::request::Access;

#[test]
fn an_answer_comes_back_bit_for_bit() {
    let mut world = World::ready(Setup::default());
    let odd =
        Value::Array(vec![Value::F64(f64::INFINITY), Value::Ext(5, vec![1, 2, 3]), Value::Bin(vec![0; 300])]);
    // The reply's bytes are compared with those sent for any `echo`.
    let answer = world.call(Ask::rw(1).arg(odd).arg(Value::Nil));
    assert_eq!(answer.values().len(), 3);
    world.settle();
}

#[test]
fn no_value_and_nil_with_an_error_are_values() {
    let mut world = World::ready(Setup::default());
    assert_eq!(world.call(Ask::rw(1).func("nothing")).values(), []);
    let answer = world.call(Ask::rw(2).func("nilerr"));
    assert_eq!(answer.values()[0], Value::Nil);
    world.settle();
}

#[test]
fn a_raised_error_ends_the_call_whatever_it_looks_like() {
    let mut world = World::ready(Setup::default());
    assert_eq!(world.call(Ask::rw(1).func("boom")).error_name(), "ClientError 32");
    let number = world.post(Ask::rw(1).func("mimic"));
    assert_eq!(world.answer(number).error_name(), "WRONG_BUCKET");
    assert_eq!(world.executions(number), 1, "a user's error is not taken for a refusal");
    assert_eq!(world.route(1).as_deref(), Some("rs1"), "nor does it change the route");
    world.settle();
}

#[test]
fn calls_to_a_replicaset_and_to_an_instance_have_no_envelope() {
    let mut world = World::ready(Setup::default());
    assert_eq!(world.call(Ask::replicaset("rs2", Access::RW).arg(Value::Uint(7))).values().len(), 2);
    assert_eq!(world.call(Ask::instance("rs2-b").func("nothing")).values(), []);
    assert_eq!(world.call(Ask::instance("rs2-b").func("boom")).error_name(), "ClientError 32");
    assert_eq!(world.cluster.asked(Some("rs2-b"), "boom"), 1);
    world.settle();
}

#[test]
fn answers_overtake_each_other_and_find_their_callers() {
    let mut world = World::ready(Setup::default());
    world.net.work = (0, 20_000);
    world.net.piece = 100;
    let calls: Vec<usize> = (0..2000).map(|i| world.post(Ask::rw(i % 30 + 1).arg(Value::Uint(i)))).collect();
    for call in calls {
        world.answer(call).values();
    }
    world.settle();
}

#[test]
fn large_arguments_and_answers_arrive_whole() {
    let mut world = World::ready(Setup::default());
    world.net.piece = 50_000;
    for size in [1000, 16 << 10, 64 << 10, 300_000, 3 << 20] {
        world.call(Ask::rw(1).arg(Value::Bin(vec![7; size]))).values();
        world.call(Ask::rw(1).func("big").arg(Value::Uint(size as u64))).values();
    }
    world.settle();
}

#[test]
fn no_connection_keeps_a_buffer_that_nothing_is_in() {
    for (sent, answered) in [(10, 10), (10, 64 << 10), (10, 3 << 20), (100_000, 10), (100_000, 200_000)] {
        let mut world = World::ready(Setup::default());
        for piece in [1000, 50_000, usize::MAX] {
            world.net.piece = piece;
            let calls: Vec<usize> = (1..=30)
                .map(|bucket| {
                    let call = Ask::rw(bucket).func("big").arg(Value::Uint(answered));
                    world.post(call.arg(Value::Bin(vec![7; sent])))
                })
                .collect();
            for call in calls {
                world.answer(call).values();
            }
            assert_eq!(world.core.reading(), 0, "{sent} bytes sent, {answered} received");
        }
        world.settle();
    }
}

#[test]
fn a_caller_that_left_gets_nothing_and_holds_nothing() {
    let mut world = World::ready(Setup::default());
    let calls: Vec<usize> =
        (0..100).map(|i| world.post(Ask::rw(1).func("slow").arg(Value::Uint(20_000 + i)))).collect();
    world.run_for(ms(5));
    assert_eq!(world.core.held().calls, 100);
    for call in &calls {
        world.cancel(*call);
    }
    world.run_for(ms(1));
    assert_eq!(world.core.held().calls, 0);
    assert_eq!(world.core.held().requests, 0, "nobody waits for the answers");
    world.run_for(ms(100));
    assert_eq!(world.counters.snapshot().late, 100);
    assert_eq!(world.counters.snapshot().cancelled, 100);
    world.call(Ask::rw(1)).values();
    world.settle();
}

#[test]
fn what_a_function_called_on_a_replicaset_raises_is_no_refusal() {
    for code in [1, 7, 33] {
        for access in [Access::RW, Access::RO] {
            let mut world = World::ready(Setup::default());
            world.cluster.storage("rs1-a").hook = Some(Box::new(move |request| {
                (request.kind == server::TYPE_CALL && request.func() == "mimic").then(|| {
                    let json =
                        format!(r#"{{"type":"ShardingError","code":{code},"name":"X","message":"mine"}}"#);
                    Reaction::Answer(0, server::error(request.sync, server::ER_PROC_LUA, &json))
                })
            }));
            let call = world.post(Ask::replicaset("rs1", access).func("mimic").timeout(ms(1000)));
            let answer = world.answer(call);
            assert_eq!(answer.error_name(), "ClientError 32", "code {code}");
            assert!(answer.error().field("message").unwrap().text().unwrap().contains("mine"));
            assert!(answer.at.since(world.calls[call].posted) < ms(5), "at once");
            assert_eq!(world.cluster.asked(None, "mimic"), 1, "code {code}: it is run once");
            world.call(Ask::ro(1)).values();
            world.call(Ask::replicaset("rs1", Access::RO)).values();
            assert_eq!(world.cluster.asked(Some("rs1-a"), "vshard.storage.call"), 1, "no backoff");
            assert_eq!(world.cluster.asked(Some("rs1-a"), "echo"), 1, "no backoff");
            world.settle();
        }
    }
}
