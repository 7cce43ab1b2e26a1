//! A simulated cluster drives one engine and the control loop on a virtual clock: no socket, no thread, no waiting.
//! Stories tell one case each; `chaos` makes up schedules from seeds.

#[path = "../common/mod.rs"]
mod common;

mod cluster;
mod world;

mod chaos;
mod stories;
