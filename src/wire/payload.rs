//! Bodies of requests on their way to a peer.

use std::sync::Arc;

/// The body of a request. What is small is copied beside others; what is large is shared.
#[derive(Debug, Clone)]
pub enum Payload {
    Small(Vec<u8>),
    Large(Arc<Vec<u8>>),
}

impl Payload {
    pub fn new(bytes: Vec<u8>) -> Payload {
        const SHARE: usize = 16 << 10;
        if bytes.len() < SHARE { Payload::Small(bytes) } else { Payload::Large(Arc::new(bytes)) }
    }

    /// The buffer, if it is ours alone.
    pub fn into_buffer(self) -> Vec<u8> {
        match self {
            Payload::Small(bytes) => bytes,
            Payload::Large(bytes) => Arc::try_unwrap(bytes).unwrap_or_default(),
        }
    }
}
