//! Engine threads: all sockets to storages, one turn at a time. `core` decides, `thread` moves bytes.

mod answers;
mod calls;
mod connections;
pub mod core;
mod dispatch;
mod hold;
pub mod inbox;
mod names;
mod patience;
mod peer;
mod quiet;
mod resolve;
pub mod sys;
pub mod thread;
