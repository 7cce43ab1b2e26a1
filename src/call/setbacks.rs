//! What has come between a call and its result so far.

use crate::ids::InstanceIdx;

#[derive(Default)]
pub struct Setbacks {
    /// Instances that failed the call. Reads alone have such.
    pub tried: Vec<InstanceIdx>,
    /// The newest refusal or resolve error, encoded: what the caller gets if the deadline comes.
    pub last_error: Option<Box<[u8]>>,
    /// A redirect named this replicaset, which was not in the configuration.
    pub destination: Option<Box<str>>,
}
