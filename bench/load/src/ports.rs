//! Ports of 127.0.0.1 for processes that begin to listen a moment later.

use std::collections::BTreeSet;
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Mutex;

/// The first that is given out.
const FIRST: u32 = 10_240;

/// Where the kernel's own begin by default (Linux, `net/ipv4/af_inet.c`), should it not say.
const FIRST_OF_KERNEL: u32 = 32_768;

/// With fewer below the kernel's it is one of these, as for the tests.
const FEW: u32 = 1000;

/// All that were given out.
static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// A port that nobody listens on, never the same twice. It lies below those that the kernel gives to outgoing connections, if
/// there are enough: one of these is anybody's until the process that it is meant for listens.
pub fn free() -> Result<u16, String> {
    free_below(first_of_kernel())
}

fn free_below(first_of_kernel: u32) -> Result<u16, String> {
    let count = first_of_kernel.saturating_sub(FIRST);
    // Drivers that run side by side begin at different places.
    let begin = std::process::id().wrapping_mul(7919);
    let own = (0..if count < FEW { 0 } else { count }).map(|n| (FIRST + (begin % count + n) % count) as u16);
    let mut given = GIVEN.lock().map_err(|e| e.to_string())?;
    let mut last = String::from("none is left");
    // At the end whatever the kernel gives.
    for wanted in own.chain([0; FEW as usize]) {
        if given.contains(&wanted) {
            continue;
        }
        match TcpListener::bind((Ipv4Addr::LOCALHOST, wanted)).and_then(|listener| listener.local_addr()) {
            Ok(addr) if given.insert(addr.port()) => return Ok(addr.port()),
            Ok(_) => {}
            Err(error) => last = error.to_string(),
        }
    }
    Err(format!("no port of 127.0.0.1 is free: {last}"))
}

fn first_of_kernel() -> u32 {
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    range.split_whitespace().next().and_then(|first| first.parse().ok()).unwrap_or(FIRST_OF_KERNEL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_port_is_given_twice_nor_is_one_of_the_kernels() {
        let ports: Vec<u16> = (0..500).map(|_| free_below(FIRST_OF_KERNEL).unwrap()).collect();
        assert!(ports.iter().all(|port| (FIRST..FIRST_OF_KERNEL).contains(&u32::from(*port))), "{ports:?}");
        // Where the kernel's begin below ours, or leave few, or all are given.
        let others = [1024, FIRST, FIRST + 1, FIRST + FEW - 1].repeat(20);
        let others: Vec<u16> = others.into_iter().map(|first| free_below(first).unwrap()).collect();
        assert_eq!(ports.iter().chain(&others).collect::<BTreeSet<_>>().len(), 580);
    }
}
