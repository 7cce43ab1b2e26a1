//! rawshard: a vshard router whose requests cross it as MessagePack bytes.
//!
//! Each module uses only what stands to its left:
//! `ids time slab error metrics · wire · route · conn call · engine · control · router · host`.

#![deny(unsafe_code)]

pub mod call;
pub mod conn;
pub mod control;
pub mod engine;
pub mod error;
pub mod ids;
pub mod metrics;
pub mod route;
pub mod router;
pub mod slab;
pub mod time;
pub mod wire;

#[cfg(feature = "module")]
#[allow(unsafe_code)]
mod host;
