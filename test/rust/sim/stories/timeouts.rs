//! Deadlines, and what comes after them.

use std::time::Duration;

use super::ms;
use crate::common::value::Value;
use crate::world::{Ask, Setup, World};

#[test]
fn a_storage_that_is_stuck_costs_a_caller_its_timeout_and_no_more() {
    let mut world = World::ready(Setup::default());
    world.freeze("rs1-a");
    for timeout in [0, 1, 7, 100, 5000] {
        let call = world.post(Ask::rw(1).timeout(ms(timeout)));
        let answer = world.answer(call);
        assert_eq!(answer.error_name(), "ClientError 78");
        assert!(answer.at >= world.calls[call].deadline, "not early");
    }
    world.settle();
}

#[test]
fn a_call_without_time_is_not_sent() {
    let mut world = World::ready(Setup::default());
    let call = world.post(Ask::rw(1).timeout(Duration::ZERO));
    assert_eq!(world.answer(call).error_name(), "ClientError 78");
    world.run_for(ms(10));
    assert_eq!(world.executions(call), 0);
    world.settle();
}

#[test]
fn a_timeout_without_end() {
    let mut world = World::ready(Setup::default());
    world.call(Ask::rw(1).timeout(Duration::MAX)).values();
    let call = world.post(Ask::rw(1).timeout(Duration::MAX).func("slow").arg(Value::Uint(3_600_000_000)));
    world.run_for(Duration::from_secs(3599));
    assert!(world.calls[call].answer.is_none());
    world.answer(call).values();
    world.settle();
}

#[test]
fn a_patient_call_waits_for_its_answer_but_not_for_its_way() {
    let mut world = World::ready(Setup { shards: vec![1, 1], ..Setup::default() });
    let slow = world.post(Ask::rw(1).func("slow").arg(Value::Uint(3_600_000_000)).answer_by(Duration::MAX));
    world.answer(slow).values();
    assert_eq!(world.executions(slow), 1);
    // On its way it has no more time than any other.
    world.cluster.send_bucket(1, "rs1", "rs2");
    let refused = world.post(Ask::rw(1).answer_by(Duration::MAX));
    let answer = world.answer(refused);
    assert_eq!(answer.error_name(), "TRANSFER_IS_IN_PROGRESS");
    let late = answer.at.since(world.calls[refused].deadline);
    assert!(late < ms(100), "{late:?} after the deadline");
    world.kill("rs2-a");
    world.run_for(ms(10));
    let unsent = world.post(Ask::rw(2).answer_by(Duration::MAX));
    let answer = world.answer(unsent);
    assert_eq!(answer.error_name(), "ClientError 77");
    assert!(answer.at.since(world.calls[unsent].deadline) < ms(100));
    assert_eq!(world.executions(unsent), 0);
    world.settle();
}

#[test]
fn a_patient_call_ends_with_its_connection() {
    let mut world = World::ready(Setup { shards: vec![1], ..Setup::default() });
    let call = world.post(Ask::rw(1).func("slow").arg(Value::Uint(3_600_000_000)).answer_by(Duration::MAX));
    world.run_for(ms(10_000));
    assert!(world.calls[call].answer.is_none());
    world.kill("rs1-a");
    assert_eq!(world.answer(call).error_name(), "ClientError 77");
    world.revive("rs1-a");
    world.settle();
}

#[test]
fn late_answers_reach_nobody() {
    // P32
    let mut world = World::ready(Setup { shards: vec![1], ..Setup::default() });
    let late: Vec<usize> = (0..5000)
        .map(|_| world.post(Ask::rw(1).func("slow").arg(Value::Uint(200_000)).timeout(ms(50))))
        .collect();
    for call in &late {
        assert_eq!(world.answer(*call).error_name(), "ClientError 78");
    }
    assert_eq!(world.core.held().calls, 0);
    // The same slots, while the late answers arrive. Each echo is compared with what it sent.
    world.run_for(ms(149));
    let echoes: Vec<usize> = (0..5000).map(|i| world.post(Ask::rw(1).arg(Value::Uint(i)))).collect();
    for call in echoes {
        world.answer(call).values();
    }
    world.run_for(ms(200));
    let counted = world.counters.snapshot();
    assert_eq!((counted.late, counted.timeouts, counted.disconnects), (5000, 5000, 0));
    assert_eq!(world.connects[&0], 1, "no reconnect");
    world.settle();
}

#[test]
fn silence_is_noticed_and_healed() {
    // P45: a host that vanishes without closing.
    let mut world = World::ready(Setup { shards: vec![1, 1], ..Setup::default() });
    world.freeze("rs1-a");
    world.run_for(ms(6100));
    assert!(world.counters.snapshot().disconnects >= 1, "the ping was not answered");
    let call = world.post(Ask::rw(1).timeout(ms(100)));
    assert_eq!(world.answer(call).error_name(), "ClientError 77");
    world.call(Ask::rw(2)).values();
    world.thaw("rs1-a");
    world.call(Ask::rw(1).timeout(ms(11_000))).values();
    world.settle();
}

#[test]
fn a_storage_busy_with_a_request_is_not_taken_for_dead() {
    let mut world = World::ready(Setup { shards: vec![1], ..Setup::default() });
    // Half a minute of work in its main thread: no ping is answered meanwhile.
    let call = world.post(Ask::rw(1).timeout(ms(60_000)));
    world.freeze("rs1-a");
    world.after(ms(30_000), |world| world.thaw("rs1-a"));
    world.answer(call).values();
    assert_eq!(world.counters.snapshot().disconnects, 0);
    world.settle();
}

#[test]
fn one_that_takes_requests_and_answers_none_is_left_however_many_come() {
    let mut world = World::ready(Setup { shards: vec![1], ..Setup::default() });
    world.freeze("rs1-a");
    let frozen = world.now;
    let pings = world.publisher.topology().pings;
    let mut calls = Vec::new();
    while world.counters.snapshot().disconnects == 0 {
        assert!(world.now.since(frozen) < pings.interval + 3 * pings.timeout, "it is never left");
        calls.push(world.post(Ask::rw(1).timeout(ms(100))));
        world.run_for(ms(10));
    }
    let took = world.now.since(frozen);
    assert!(took >= pings.timeout, "not before it had time to answer: {took:?}");
    for call in calls {
        world.answer(call).error();
    }
    world.thaw("rs1-a");
    // The connection that was being made may have met the frozen one.
    world.call(Ask::rw(1).timeout(ms(1000))).values();
    assert!(world.connects[&0] >= 2);
    world.settle();
}

#[test]
fn a_call_that_took_long_is_told_of_a_little_later() {
    let mut world = World::ready(Setup { shards: vec![1], ..Setup::default() });
    let mut held = |micros: u64, timeout: u64| {
        let call = world.post(Ask::rw(1).func("slow").arg(Value::Uint(micros)).timeout(ms(timeout)));
        let answer = world.answer(call);
        answer.values();
        let took = answer.at.since(world.calls[call].posted);
        (took, world.ring_by.since(answer.at))
    };
    // 200 us of each are the way.
    assert_eq!(held(0, 1000), (Duration::from_micros(200), Duration::ZERO));
    assert_eq!(held(15_799, 1000).1, Duration::ZERO, "less than a poller can wait");
    assert_eq!(held(15_800, 1000), (ms(16), ms(1)));
    assert_eq!(held(31_800, 1000), (ms(32), ms(2)));
    assert_eq!(held(500_000, 1000).1, ms(4));
    assert_eq!(held(89_800, 91), (ms(90), ms(1)), "not after its deadline");
    world.settle();
}
