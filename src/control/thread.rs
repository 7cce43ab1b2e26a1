//! The thread of the control loop: waits for replies, reports, commands or its next timeout.

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
    /// The engine that carries out the control loop's requests.
    pub engine: Arc<Inbox>,
    pub status: Arc<Mutex<Status>>,
}

impl Thread {
    /// Until a `Stop` command.
    pub fn run(mut self) {
        let (mut commands, mut replies, mut reports) = (Vec::new(), Vec::new(), Vec::new());
        let mut posts = Vec::new();
        loop {
            let now = sys::now();
            self.commands.take(&mut commands);
            for command in commands.drain(..) {
                if command == Command::Stop {
                    return;
                }
                self.control.handle_command(command, now);
            }
            for outbox in &self.reports {
                outbox.take(&mut reports);
                reports.drain(..).for_each(|report| self.control.handle_report(&report, now));
            }
            for outbox in &self.replies {
                outbox.take(&mut replies);
                replies.drain(..).for_each(|reply: Reply| self.control.handle_reply(&reply, now));
            }
            self.control.handle_timeout(now);
            posts.extend(std::iter::from_fn(|| self.control.poll_request()).map(Message::Call));
            if !posts.is_empty() {
                self.engine.post_all(&mut posts);
                // Left only if the engine is gone; then this thread is told to stop as well.
                posts.clear();
            }
            *self.status.lock().unwrap_or_else(PoisonError::into_inner) = self.control.status();
            self.signal.wait(self.control.next_timeout());
        }
    }
}
