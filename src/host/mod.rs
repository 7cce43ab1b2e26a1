//! The edges that run inside Tarantool, and the only `unsafe` that is about it. `docs/safety.md` has the rules that hold for
//! all of it.
//!
//! - `sys` declares the host's functions; `tx` knows the one thread that may call them; `guard` turns panics and
//!   failures into errors of the host.
//! - `runtime` is what a process has once; `door` leads every mapping of the library to it.
//! - `waiters` are the slots of calls under way, `park` sends calls and parks fibers, `completion` is the fiber that
//!   wakes them, `bell` how engines wake that one.
//! - `cfunc` is the stored function; `calls` are the Lua functions that wait, `future` those of futures, `lua` all other ones,
//!   with `config` and `info` for its tables, `object` for `msgpack.object`, `result` for the answer that Lua reads.
//! - `direct` takes calls before the host starts a fiber to wait for them, by the functions of `iproto`; `served` and
//!   `globals` tell which, `admission` whose, `answers` sends what becomes of them.

mod admission;
mod answers;
mod bell;
mod buffers;
mod calls;
mod cfunc;
mod completion;
mod config;
mod direct;
mod door;
mod endpoints;
mod failure;
mod future;
mod globals;
mod guard;
mod info;
mod iproto;
mod keys;
mod log;
mod lua;
mod object;
mod park;
mod result;
mod runtime;
mod served;
mod sys;
mod tx;
mod waiters;
