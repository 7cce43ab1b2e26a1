//! The edges that run inside Tarantool, and the only `unsafe` that is about it. `docs/safety.md` has the rules that hold for
//! all of it.
//!
//! - `sys` declares the host's functions; `tx` knows the one thread that may call them; `guard` turns panics and
//!   failures into errors of the host.
//! - `runtime` is what a process has once; `door` leads every mapping of the library to it.
//! - `park` is a fiber that waits, `completion` the fiber that wakes it, `bell` how engines wake that one.
//! - `cfunc` is the stored function; `calls` are the Lua functions that wait, `lua` all other ones, with `config` and
//!   `info` for its tables, `object` for `msgpack.object`, `result` for the answer that Lua reads.

mod bell;
mod buffers;
mod calls;
mod cfunc;
mod completion;
mod config;
mod door;
mod failure;
mod guard;
mod info;
mod log;
mod lua;
mod object;
mod park;
mod result;
mod runtime;
mod sys;
mod tx;
