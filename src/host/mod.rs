//! The edges that run inside Tarantool.
