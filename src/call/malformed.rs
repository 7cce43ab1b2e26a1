//! What is wrong with the bytes of a call, and how a message names what it met there.

use crate::wire::mp::{Cursor, Fault, Kind};

/// What is wrong, with the position and what was expected there.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub(super) String);

pub(super) fn broken(fault: Fault) -> Malformed {
    Malformed(format!("callraw: the arguments are not well-formed MessagePack: {fault}"))
}

/// The value that comes next, for "got …": its kind, and the value itself where it is short.
pub(super) fn describe(mut cursor: Cursor<'_>) -> String {
    let Ok(kind) = cursor.peek() else { return "nothing".to_owned() };
    match kind {
        Kind::Uint | Kind::Int => {
            let mut number = cursor;
            match number.uint() {
                Ok(value) => value.to_string(),
                // A number below zero: exact as a double as far as a message needs.
                Err(_) => cursor.number().map_or_else(|_| kind.name().to_owned(), |value| value.to_string()),
            }
        }
        Kind::Float => cursor.number().map_or_else(|_| kind.name().to_owned(), |value| value.to_string()),
        Kind::Str => {
            cursor.str().map_or_else(|_| kind.name().to_owned(), |text| format!("string {}", quoted(text)))
        }
        _ => kind.name().to_owned(),
    }
}

/// A user's text, short and printable.
pub(super) fn quoted(text: &[u8]) -> String {
    const MOST: usize = 40;
    let shown = text[..text.len().min(MOST)].escape_ascii();
    let more = if text.len() > MOST { "..." } else { "" };
    format!("'{shown}{more}'")
}
