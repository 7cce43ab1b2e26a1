//! Engine threads: all sockets to storages, one turn at a time.

pub mod inbox;
