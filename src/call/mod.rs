//! Calls: the request and the reply, what a storage's answer means, and what follows.

pub mod raw_args;
pub mod request;
