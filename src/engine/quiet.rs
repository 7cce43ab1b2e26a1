//! A line of the log that many calls would write: the first is written, then one per interval, with the number of those
//! that were not.

use std::time::Duration;

use crate::time::Time;

const INTERVAL: Duration = Duration::from_secs(10);

#[derive(Default)]
pub(super) struct Quiet {
    /// The newest line, and until when it is not written again.
    said: Option<(String, Time)>,
    unsaid: u32,
}

impl Quiet {
    /// Writes `text`, unless it is what was written a short while ago. Tells whether it did.
    pub fn warn(&mut self, text: String, now: Time) -> bool {
        if self.said.as_ref().is_some_and(|(said, until)| *said == text && now < *until) {
            self.unsaid += 1;
            return false;
        }
        match std::mem::take(&mut self.unsaid) {
            0 => log::warn!("{text}"),
            count => log::warn!("{text} ({count} more like the one before)"),
        }
        self.said = Some((text, now.after(INTERVAL)));
        true
    }
}
