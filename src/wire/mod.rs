//! Bytes on the wire: MessagePack, IPROTO, authentication, and vshard's storage conventions.

pub mod auth;
pub mod fit;
pub mod iproto;
pub mod mp;
pub mod path;
pub mod payload;
pub mod serve;
pub mod vshard;
