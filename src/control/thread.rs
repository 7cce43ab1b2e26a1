//! The thread of the control loop: waits for replies, reports, commands or its next timeout.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use crate::call::request::Reply;
use crate::control::{Command, Control, Status};
use crate::engine::core::Report;
use crate::engine::inbox::{Inbox, Message, Outbox, Wake};
use crate::engine::sys;

/// Wakes the control thread: something lies in one of its queues.
#[derive(Default)]
pub struct Signal {
    raised: Mutex<bool>,
    changed: Condvar,
}

impl Wake for Signal {
    fn wake(&self) {
        *self.raised.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_one();
    }
}

impl Signal {
    fn wait(&self, until: Option<crate::time::Time>) {
        let mut raised = self.raised.lock().unwrap_or_else(PoisonError::into_inner);
        while !*raised {
            match until {
                None => raised = self.changed.wait(raised).unwrap_or_else(PoisonError::into_inner),
                Some(until) => {
                    let left = until.since(sys::now());
                    if left.is_zero() {
                        break;
                    }
                    raised =
                        self.changed.wait_timeout(raised, left).unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
        *raised = false;
    }
}

pub struct Thread {
    pub control: Control,
    pub signal: Arc<Signal>,
    pub commands: Arc<Outbox<Command>>,
    pub replies: Vec<Arc<Outbox<Reply>>>,
    pub reports: Vec<Arc<Outbox<Report>>>,
    /// The first one carries out the control loop's requests; all are told of a new topology.
    pub engines: Vec<Arc<Inbox>>,
    pub status: Arc<Mutex<Status>>,
}

impl Thread {
    /// Until a `Stop` command. After a panic it goes on with a fresh control loop.
    pub fn run(mut self) {
        loop {
            match catch_unwind(AssertUnwindSafe(|| self.work())) {
                Ok(()) => return,
                Err(_) => {
                    log::error!("the control thread has panicked and starts anew");
                    self.control = self.control.anew(sys::now());
                }
            }
        }
    }

    fn work(&mut self) {
        let control = &mut self.control;
        let (mut commands, mut replies, mut reports) = (Vec::new(), Vec::new(), Vec::new());
        let mut posts = Vec::new();
        let mut epoch = control.epoch();
        loop {
            let now = sys::now();
            self.commands.take(&mut commands);
            for command in commands.drain(..) {
                if command == Command::Stop {
                    return;
                }
                control.handle_command(command, now);
            }
            for outbox in &self.reports {
                outbox.take(&mut reports);
                reports.drain(..).for_each(|report| control.handle_report(&report, now));
            }
            for outbox in &self.replies {
                outbox.take(&mut replies);
                replies.drain(..).for_each(|reply: Reply| control.handle_reply(&reply, now));
            }
            control.handle_timeout(now);
            posts.extend(std::iter::from_fn(|| control.poll_request()).map(Message::Call));
            if control.take_news() | (control.epoch() != epoch) {
                epoch = control.epoch();
                self.engines.iter().for_each(|engine| {
                    engine.post(Message::Topology);
                });
            }
            if !posts.is_empty() {
                self.engines[0].post_all(&mut posts);
                // Left only if the engine is gone; then this thread is told to stop as well.
                posts.clear();
            }
            *self.status.lock().unwrap_or_else(PoisonError::into_inner) = control.status();
            self.signal.wait(control.next_timeout());
        }
    }
}
