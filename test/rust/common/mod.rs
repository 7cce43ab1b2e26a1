//! What several test programs need: values, randomness, the server's half of IPROTO. Each uses its part of it.
#![allow(dead_code)]

pub mod log;
pub mod random;
pub mod server;
pub mod value;
