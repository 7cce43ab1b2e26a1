//! Why an entry from the host fails: not a call that was answered with an error, but one that was not made or left.

use std::any::Any;

use crate::call::malformed::Malformed;

#[derive(Debug)]
pub enum Failure {
    /// The fiber was cancelled while it waited.
    Cancelled,
    /// An error under a code of the host (`ER_…` of `box_error_code`).
    Error { code: u32, text: String },
}

/// `ER_ILLEGAL_PARAMS`: the caller's arguments are wrong.
const ILLEGAL_PARAMS: u32 = 1;
/// `ER_PROC_C`: a C function failed.
const PROC_C: u32 = 102;

impl Failure {
    pub fn arguments(text: impl Into<String>) -> Failure {
        Failure::Error { code: ILLEGAL_PARAMS, text: text.into() }
    }

    pub fn state(text: impl Into<String>) -> Failure {
        Failure::Error { code: PROC_C, text: text.into() }
    }

    /// No answer will come.
    pub fn stopped() -> Failure {
        Failure::state("rawshard: the router is stopped")
    }

    pub fn panic(payload: &(dyn Any + Send)) -> Failure {
        let text = payload
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("no text");
        Failure::state(format!("rawshard: internal error: {text}"))
    }

    pub fn code(&self) -> u32 {
        match self {
            Failure::Cancelled => PROC_C,
            Failure::Error { code, .. } => *code,
        }
    }

    /// The text as the host takes it: a NUL would end it early.
    pub fn text_for_host(&self) -> impl Iterator<Item = u8> + '_ {
        self.text().bytes().map(|byte| if byte == 0 { b'?' } else { byte })
    }

    pub fn text(&self) -> &str {
        match self {
            Failure::Cancelled => "fiber is cancelled",
            Failure::Error { text, .. } => text,
        }
    }
}

impl From<Malformed> for Failure {
    fn from(malformed: Malformed) -> Failure {
        Failure::arguments(malformed.to_string())
    }
}
