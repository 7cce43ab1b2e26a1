//! The control loop: configuration, discovery, master search; the only publisher of topology.

pub mod config;
