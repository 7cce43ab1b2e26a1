//! Ports of 127.0.0.1 for processes that begin to listen a moment later.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

/// The first that is given out.
const FIRST: u32 = 10_240;

/// Where the kernel's own begin by default (Linux, `net/ipv4/af_inet.c`), should it not say.
const FIRST_OF_KERNEL: u32 = 32_768;

/// A port that nobody listens on, never the same twice. It lies below those that the kernel gives to outgoing connections: one of
/// these is anybody's until the process that it is meant for listens.
pub fn free() -> Result<u16, String> {
    static TRIED: AtomicU32 = AtomicU32::new(0);
    let count = first_of_kernel().saturating_sub(FIRST).max(1);
    // Drivers that run side by side begin at different places.
    let begin = std::process::id().wrapping_mul(7919) % count;
    let mut last = String::from("none is left");
    for _ in 0..count {
        let n = TRIED.fetch_add(1, Ordering::Relaxed);
        if n >= count {
            break;
        }
        let port = (FIRST + (begin + n) % count) as u16;
        match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            Ok(_) => return Ok(port),
            Err(error) => last = error.to_string(),
        }
    }
    Err(format!("no free port of 127.0.0.1 from {FIRST} on: {last}"))
}

fn first_of_kernel() -> u32 {
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    range.split_whitespace().next().and_then(|first| first.parse().ok()).unwrap_or(FIRST_OF_KERNEL)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_port_is_given_twice_nor_is_one_of_the_kernels() {
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, free().unwrap())).unwrap();
        let mut ports: Vec<u16> = (0..500).map(|_| free().unwrap()).collect();
        assert!(ports.iter().all(|port| u32::from(*port) < first_of_kernel()), "{ports:?}");
        ports.push(taken.local_addr().unwrap().port());
        assert_eq!(ports.iter().collect::<BTreeSet<_>>().len(), 501);
        let mut open = Vec::new();
        for port in &ports[..500] {
            open.push(TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).unwrap());
        }
    }
}
