//! The loop of an engine thread: clock, readiness, reads, one batched write per socket per turn. It moves bytes and decides
//! nothing.

use std::io::{self, ErrorKind, IoSlice};
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use mio::event::Event;
use mio::{Events, Poll, Token};

use crate::call::request::{Client, Reply, Token as RequestToken};
use crate::engine::core::{Action, Core, Report};
use crate::engine::inbox::{Inbox, Message, Outbox};
use crate::engine::names;
use crate::engine::patience::Patience;
use crate::engine::sys::{self, Stream};
use crate::ids::InstanceIdx;
use crate::route::address::Address;
use crate::time::Time;

pub const WAKER: Token = Token(usize::MAX);

/// Bytes read from one socket before others get their turn.
const READ_SHARE: usize = 1 << 20;
/// Pieces of one vectored write.
const SLICES: usize = 32;

/// Where an engine's results go.
pub struct Outlets {
    pub host: Arc<Outbox<Reply>>,
    pub control: Arc<Outbox<Reply>>,
    pub reports: Arc<Outbox<Report>>,
}

struct Link {
    stream: Stream,
    connected: bool,
    /// What the edge-triggered poller said and no call has refuted since.
    readable: bool,
    writable: bool,
    /// The peer has ended its side, or there is an error: reading goes on until that is met.
    ended: bool,
    /// It is in `unsent`.
    queued: bool,
}

/// Makes a fresh core: at the start, and after a panic.
pub type MakeCore = Box<dyn Fn() -> Core + Send>;

pub struct Thread {
    make_core: MakeCore,
    core: Core,
    poll: Poll,
    inbox: Arc<Inbox>,
    outlets: Outlets,
    /// By [`InstanceIdx`].
    links: Vec<Option<Link>>,
    /// Tries to connect by name, so that each address gets its turn.
    attempts: Vec<usize>,
    /// Its name is being looked up.
    resolving: Vec<bool>,
    /// Instances with bytes to write that their sockets could not take yet.
    unsent: Vec<InstanceIdx>,
    /// Empty between turns, like `messages`.
    dirty: Vec<InstanceIdx>,
    /// Sockets that had more to read than their share.
    unread: Vec<InstanceIdx>,
    /// The call of the message that is being handled.
    handled: Option<(Client, RequestToken)>,
    /// Empty between turns; kept for its capacity.
    messages: Vec<Message>,
    patience: Patience,
    /// The host has not been woken for some replies yet, and is to be then.
    ring_by: Option<Time>,
}

impl Thread {
    pub fn new(make_core: MakeCore, poll: Poll, inbox: Arc<Inbox>, outlets: Outlets) -> Thread {
        let core = make_core();
        let (links, attempts, unsent, unread) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Thread {
            make_core,
            core,
            poll,
            inbox,
            outlets,
            links,
            attempts,
            resolving: Vec::new(),
            handled: None,
            unsent,
            unread,
            messages: Vec::new(),
            dirty: Vec::new(),
            patience: Patience::new(),
            ring_by: None,
        }
    }

    /// Until a `Stop` message; all calls are answered then, those that are still in the inbox as well.
    pub fn run(mut self) {
        self.work();
        let rest = self.inbox.close();
        self.messages.extend(rest);
        self.end_calls();
    }

    /// A panic in a turn ends the calls under way with an error; then it starts anew with fresh connections.
    fn work(&mut self) {
        let mut events = Events::with_capacity(1024);
        loop {
            match catch_unwind(AssertUnwindSafe(|| self.turn(&mut events))) {
                Ok(Ok(true)) => {}
                Ok(Ok(false)) => return,
                Ok(Err(error)) => return log::error!("the poller of an engine thread failed: {error}"),
                Err(_) => {
                    log::error!("an engine thread has panicked and starts anew; its calls end with an error");
                    let stops = |message: &Message| matches!(message, Message::Stop);
                    let stopped = self.core.is_stopped() || self.messages.iter().any(stops);
                    if let Some((client, token)) = self.handled.take() {
                        self.core.refuse(client, token);
                    }
                    if catch_unwind(AssertUnwindSafe(|| self.end_calls())).is_err() {
                        log::error!("it panicked again while ending them");
                    }
                    self.links.clear();
                    self.unsent.clear();
                    self.unread.clear();
                    self.core = (self.make_core)();
                    if stopped {
                        return;
                    }
                }
            }
        }
    }

    /// All calls of the core and in `messages`.
    fn end_calls(&mut self) {
        let now = sys::now();
        self.core.handle_message(Message::Stop, now);
        for message in self.messages.drain(..) {
            self.core.handle_message(message, now);
        }
        // Whatever is still held back, too.
        self.hand_over(Time::NEVER);
    }

    /// False: stopped.
    fn turn(&mut self, events: &mut Events) -> io::Result<bool> {
        let now = sys::now();
        self.inbox.take(&mut self.messages);
        // After the messages: what they name was published before they were sent.
        self.core.begin_turn(now);
        // They stay where a panic over one of them does not lose the others.
        for next in 0..self.messages.len() {
            let message = std::mem::replace(&mut self.messages[next], Message::Topology);
            if let Message::Resolved(idx, addresses) = message {
                self.resolved(idx, addresses, now);
                continue;
            }
            self.handled = message.call();
            self.core.handle_message(message, now);
            self.handled = None;
        }
        self.messages.clear();
        let again = std::mem::take(&mut self.unread);
        for event in events.iter().filter(|event| event.token() != WAKER) {
            self.note(event, now);
        }
        for idx in again.into_iter().chain(events.iter().map(|event| InstanceIdx(event.token().0 as u32))) {
            self.read(idx, now);
        }
        self.core.finish_turn(now);
        self.act(now);
        self.write(now);
        self.hand_over(now);
        if self.core.is_stopped() {
            return Ok(false);
        }
        self.wait(events)?;
        Ok(true)
    }

    /// Until a socket is ready, a message is there or a timer has run out.
    fn wait(&mut self, events: &mut Events) -> io::Result<()> {
        let began = sys::now();
        let timer = if self.unread.is_empty() { self.core.next_timeout() } else { Some(Time::ZERO) };
        let until = timer.into_iter().chain(self.ring_by).min();
        let limit = self.core.busy_poll();
        let look_until = began.after(self.patience.span(limit));
        let mut now = began;
        // Looks around, and lets others run in between: who waits for this core may be who has to answer.
        while now < look_until && until.is_none_or(|until| now < until) {
            if self.poll(events, Some(Duration::ZERO))? || self.inbox.is_filled() {
                self.patience.learn(sys::now().since(began), limit);
                return Ok(());
            }
            thread::yield_now();
            now = sys::now();
        }
        let mut timeout = sys::poll_timeout(until, now);
        let sleeps = timeout.is_none_or(|span| !span.is_zero());
        if sleeps && !self.inbox.prepare_sleep() {
            timeout = Some(Duration::ZERO);
        }
        let polled = self.poll(events, timeout);
        if sleeps {
            self.inbox.awake();
            self.patience.learn(sys::now().since(began), limit);
        }
        polled.map(|_| ())
    }

    /// Whether there are events.
    fn poll(&mut self, events: &mut Events, timeout: Option<Duration>) -> io::Result<bool> {
        match self.poll.poll(events, timeout) {
            Ok(()) => Ok(!events.is_empty()),
            Err(error) if error.kind() == ErrorKind::Interrupted => {
                events.clear();
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    fn link(&mut self, idx: InstanceIdx) -> Option<&mut Link> {
        self.links.get_mut(idx.slot())?.as_mut()
    }

    fn note(&mut self, event: &Event, now: Time) {
        let idx = InstanceIdx(event.token().0 as u32);
        let Some(link) = self.link(idx) else { return };
        link.ended |= event.is_read_closed() || event.is_error();
        link.readable |= event.is_readable() || link.ended;
        link.writable |= event.is_writable();
        if link.connected {
            return;
        }
        match link.stream.finish_connect() {
            Ok(None) => {}
            Ok(Some(())) => {
                link.connected = true;
                self.core.handle_connected(idx, now);
            }
            Err(error) => self.closed(idx, &reason(&error), now),
        }
    }

    fn read(&mut self, idx: InstanceIdx, now: Time) {
        let mut share = READ_SHARE;
        loop {
            let Some(link) = self.links.get_mut(idx.slot()).and_then(Option::as_mut) else { return };
            if !link.readable || !link.connected {
                return;
            }
            if share == 0 {
                self.unread.push(idx);
                return;
            }
            let Some(space) = self.core.recv_space(idx) else { return };
            let room = space.len();
            match link.stream.read(space) {
                Ok(0) => return self.closed(idx, "Peer closed", now),
                Ok(count) => {
                    // A short read has emptied the socket, and the poller tells when there is more; but not of an end that
                    // it told together with the last bytes.
                    link.readable = count == room || link.ended;
                    share = share.saturating_sub(count);
                    self.core.handle_received(idx, count, now);
                    self.act(now);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    link.readable = false;
                    self.core.handle_nothing(idx);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return self.closed(idx, &reason(&error), now),
            }
        }
    }

    /// One write for all that a turn has for a socket, more only if that takes more pieces.
    fn write(&mut self, now: Time) {
        self.core.take_dirty(&mut self.dirty);
        for idx in self.dirty.drain(..) {
            if let Some(link) = self.links.get_mut(idx.slot()).and_then(Option::as_mut)
                && !std::mem::replace(&mut link.queued, true)
            {
                self.unsent.push(idx);
            }
        }
        let mut unsent = std::mem::take(&mut self.unsent);
        unsent.retain(|idx| {
            let more = self.write_one(*idx, now);
            if !more && let Some(link) = self.link(*idx) {
                link.queued = false;
            }
            more
        });
        self.unsent = unsent;
    }

    /// True: there is more to write, when the socket allows.
    fn write_one(&mut self, idx: InstanceIdx, now: Time) -> bool {
        loop {
            let Some(link) = self.links.get_mut(idx.slot()).and_then(Option::as_mut) else { return false };
            let Some(queue) = self.core.send_queue(idx) else { return false };
            if queue.is_empty() {
                return false;
            }
            if !link.writable || !link.connected {
                return true;
            }
            let mut slices = [IoSlice::new(&[]); SLICES];
            let count = queue.gather(&mut slices);
            match link.stream.write_vectored(&slices[..count]) {
                Ok(0) => {
                    self.closed(idx, "Peer closed", now);
                    return false;
                }
                Ok(written) => self.core.handle_sent(idx, written),
                Err(error) if error.kind() == ErrorKind::WouldBlock => link.writable = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    self.closed(idx, &reason(&error), now);
                    return false;
                }
            }
        }
    }

    fn act(&mut self, now: Time) {
        while let Some(action) = self.core.poll_action() {
            match action {
                Action::Close(idx) => self.drop_link(idx),
                Action::Connect(idx) => self.connect(idx, now),
            }
        }
    }

    fn connect(&mut self, idx: InstanceIdx, now: Time) {
        let slots = idx.slot() + 1;
        if self.links.len() < slots {
            self.links.resize_with(slots, || None);
            self.attempts.resize(slots, 0);
            self.resolving.resize(slots, false);
        }
        let Some(address) = self.core.address(idx) else { return };
        let stream = match address {
            Address::Unix(path) => Stream::connect_unix(path),
            Address::Tcp { host, port } => match names::literal(host, *port) {
                Some(address) => Stream::connect_tcp(address),
                None => {
                    // One question at a time: a slow resolver is not asked again meanwhile.
                    if !std::mem::replace(&mut self.resolving[idx.slot()], true) {
                        let inbox = Arc::clone(&self.inbox);
                        if let Err(error) = names::look_up(host.clone(), *port, idx, inbox) {
                            self.resolving[idx.slot()] = false;
                            self.closed(idx, &reason(&error), now);
                        }
                    }
                    return;
                }
            },
        };
        self.open(idx, stream, now);
    }

    /// The resolver has answered. A name with several addresses is tried in turn.
    fn resolved(&mut self, idx: InstanceIdx, addresses: io::Result<Vec<SocketAddr>>, now: Time) {
        let Some(resolving) = self.resolving.get_mut(idx.slot()) else { return };
        *resolving = false;
        if !self.core.is_connecting(idx) || self.link(idx).is_some() {
            return;
        }
        let attempt = self.attempts[idx.slot()];
        self.attempts[idx.slot()] = attempt.wrapping_add(1);
        let stream = addresses.and_then(|addresses| match addresses.get(attempt % addresses.len().max(1)) {
            Some(address) => Stream::connect_tcp(*address),
            None => Err(io::Error::new(ErrorKind::NotFound, "the name has no address")),
        });
        self.open(idx, stream, now);
    }

    fn open(&mut self, idx: InstanceIdx, stream: io::Result<Stream>, now: Time) {
        let opened = stream.and_then(|mut stream| {
            stream.register(self.poll.registry(), Token(idx.slot()))?;
            Ok(stream)
        });
        match opened {
            Ok(stream) => {
                self.links[idx.slot()] = Some(Link {
                    stream,
                    connected: false,
                    readable: false,
                    writable: false,
                    ended: false,
                    queued: false,
                });
            }
            Err(error) => self.closed(idx, &reason(&error), now),
        }
    }

    fn closed(&mut self, idx: InstanceIdx, reason: &str, now: Time) {
        self.drop_link(idx);
        self.core.handle_closed(idx, reason, now);
    }

    /// Closing takes the socket out of the poller as well.
    fn drop_link(&mut self, idx: InstanceIdx) {
        if let Some(link) = self.links.get_mut(idx.slot()) {
            *link = None;
        }
    }

    fn hand_over(&mut self, now: Time) {
        let ring_by = self.core.take_ring_by();
        let enough = self.core.enough_replies();
        let replies = self.core.replies(Client::Host);
        if !replies.is_empty() || self.ring_by.is_some() {
            self.ring_by = self.outlets.host.put_by(replies, ring_by, now, enough);
        }
        self.outlets.control.put_all(self.core.replies(Client::Control));
        self.outlets.reports.put_all(self.core.reports());
    }
}

/// The system's words without Rust's number behind them.
fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    match text.find(" (os error") {
        Some(end) => text[..end].to_string(),
        None => text,
    }
}
