//! Calls: the request and the reply, what a storage's answer means, and what follows.

pub mod request;
