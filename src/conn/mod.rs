//! One upstream connection as a state machine: greeting, authentication, pipelined requests, pings, reconnecting. It
//! holds the bytes both ways and knows neither sockets nor calls: whoever sends gives an owner of type `T` and finds it
//! again with the answer.

mod backoff;
mod recv;
mod send;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

pub use recv::LARGE;
pub use send::SendQueue;

use crate::ids::Sync;
use crate::route::topology::{Endpoint, Pings};
use crate::slab::{Key, Slab};
use crate::time::Time;
use crate::wire::auth;
use crate::wire::iproto::{
    self, GREETING_LEN, Greeting, TYPE_CALL, TYPE_CHUNK, TYPE_ERROR, TYPE_EVENT, TYPE_OK,
};
use crate::wire::mp;
use crate::wire::payload::{HEAD_MAX, Payload};
use crate::wire::vshard;
use backoff::Backoff;
use recv::RecvBuf;

/// A row of unanswered requests shorter than this proves nothing: their callers may have been in a hurry.
const SHORTEST_ROW: Duration = Duration::from_millis(100);

/// Slots of a chunk of the requests under way. Few, since there may be hundreds of connections with few requests each: large
/// chunks begin at the same offset in a page, and such beginnings drive one another out of the processor's caches.
const PENDING: usize = 32;

/// From the first packet to the answer to AUTH: net.box's own connect timeout.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

// Syncs of the connection itself: no slab index gets so high.
const SYNC_AUTH: Sync = Sync(u64::MAX);
const SYNC_PING: Sync = Sync(u64::MAX - 1);
const SYNC_NAME: Sync = Sync(u64::MAX - 2);
const SYNC_WATCH: Sync = Sync(u64::MAX - 3);

/// The key by which a server tells that it is about to stop: it goes on serving who watches it, and waits for them to leave
/// (Tarantool 2.10 and later, `src/box/session.c`).
const SHUTDOWN_KEY: &str = "box.shutdown";
/// The first version that knows watchers.
const WATCHERS_SINCE: (u32, u32) = (2, 10);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// No connection until then.
    Down {
        retry_at: Time,
    },
    Connecting {
        since: Time,
    },
    Greeting {
        since: Time,
    },
    Auth {
        since: Time,
    },
    /// The instance is asked for its name.
    Naming {
        since: Time,
    },
    Ready,
    /// The peer is about to stop: what it has is waited for, nothing more is sent.
    Leaving,
}

#[derive(Debug)]
pub enum Event<T> {
    /// Requests can be sent.
    Ready,
    /// Requests can not be sent any more.
    Leaving,
    /// The last answer of a peer that is leaving has come: the connection is to be closed.
    Left,
    Answer(Answer<T>),
    /// Something before the answer: its owner stays.
    Push(Answer<T>),
    /// An answer to nobody: its owner has left.
    Late,
    /// The peer broke the protocol or refused us; the connection must be closed with this reason.
    Fatal(String),
}

/// An answer's place in the receive buffer.
#[derive(Debug)]
pub struct Answer<T> {
    pub owner: T,
    pub kind: u64,
    /// For [`Conn::received`]: the body of the packet.
    pub body: Range<usize>,
}

/// A ping has not been answered in time.
struct Silence {
    /// When to look again.
    look_at: Time,
    /// What the peer had when that was noticed.
    held: Vec<Key>,
}

pub struct Conn<T> {
    endpoint: Endpoint,
    pings: Pings,
    state: State,
    backoff: Backoff,
    recv: RecvBuf,
    pub send: SendQueue,
    /// sync → owner. A sync carries the slot's generation, so that an answer finds its owner or nobody.
    pending: Slab<T, PENDING>,
    last_received: Time,
    ping_sent: Option<Time>,
    silence: Option<Silence>,
    /// Requests in a row that the peer left unanswered, saying nothing else either; and since when.
    failures: u32,
    failing_since: Time,
    /// The peer tells when it stops, if asked.
    has_watchers: bool,
    /// An event was acknowledged, perhaps with bytes that are not written yet.
    acknowledges: bool,
    /// Why there is no connection; empty at first.
    last_error: String,
    /// The peer's own name, where that is why.
    mismatch: Option<Mismatch>,
}

/// The peer's name, which is not the one that was expected, and the reason that was made of it.
struct Mismatch {
    reason: String,
    actual: Option<String>,
}

impl<T: Copy> Conn<T> {
    pub fn new(endpoint: Endpoint, pings: Pings, now: Time) -> Conn<T> {
        Conn {
            endpoint,
            pings,
            state: State::Down { retry_at: now },
            backoff: Backoff::default(),
            recv: RecvBuf::new(),
            send: SendQueue::default(),
            pending: Slab::of_chunks(),
            last_received: now,
            ping_sent: None,
            silence: None,
            failures: 0,
            failing_since: now,
            has_watchers: false,
            acknowledges: false,
            last_error: String::new(),
            mismatch: None,
        }
    }

    pub fn is_ready(&self) -> bool {
        self.state == State::Ready
    }

    /// There is a socket, or one is being made.
    pub fn is_open(&self) -> bool {
        !matches!(self.state, State::Down { .. })
    }

    /// There was a failure since the last time it was ready.
    pub fn has_failed(&self) -> bool {
        !self.last_error.is_empty() && !self.is_ready()
    }

    /// Requests that wait for an answer.
    pub fn in_flight(&self) -> u32 {
        self.pending.used()
    }

    pub fn last_error(&self) -> &str {
        if self.last_error.is_empty() { "connecting" } else { &self.last_error }
    }

    /// The name that was expected and the one there is, if they are why there is no connection.
    pub fn name_mismatch(&self) -> Option<(&str, Option<&str>)> {
        let mismatch = self.mismatch.as_ref()?;
        Some((self.endpoint.name.as_deref()?, mismatch.actual.as_deref()))
    }

    pub fn is_connecting(&self) -> bool {
        matches!(self.state, State::Connecting { .. })
    }

    /// A ping has not been answered in time.
    pub fn is_silent(&self, now: Time) -> bool {
        self.ping_sent.is_some_and(|sent| now.since(sent) >= self.pings.timeout)
    }

    /// It has left so many requests in a row unanswered as are enough to look for another instance. An answer, to a ping too,
    /// ends the row; a new connection does not.
    pub fn is_failing(&self, now: Time) -> bool {
        self.failures >= self.pings.failures && now.since(self.failing_since) >= SHORTEST_ROW
    }

    /// As many, in however short a time: a ping is to tell.
    pub fn is_doubtful(&self) -> bool {
        self.failures >= self.pings.failures && self.ping_sent.is_none()
    }

    // Commands.

    /// Sends a request whose body is `body`. Only while ready. `owner` comes back with the answer, or from
    /// [`Conn::handle_closed`].
    pub fn send(&mut self, owner: T, kind: u8, body: &Payload) -> Key {
        let key = self.pending.insert(owner);
        let sync = Sync(key.pack());
        let mut head = [0; HEAD_MAX];
        let head_len = body.head().write(&mut head);
        let bytes = body.bytes();
        self.send.append(|out| {
            iproto::write_request_head(out, kind, sync, head_len + bytes.len());
            out.extend_from_slice(&head[..head_len]);
            if body.shared().is_none() {
                out.extend_from_slice(bytes);
            }
        });
        if let Some((bytes, range)) = body.shared() {
            self.send.append_shared(Arc::clone(bytes), range);
        }
        key
    }

    /// The owner has left; a late answer will be counted and dropped.
    pub fn abandon(&mut self, key: Key) -> Option<T> {
        self.pending.remove(key)
    }

    /// A request that was sent at `sent` was given up. It counts if nothing at all has come since: a peer that is busy with one
    /// request and answers others is not out of order.
    pub fn gave_up(&mut self, sent: Time) {
        if self.last_received > sent {
            return;
        }
        if self.failures == 0 {
            self.failing_since = sent;
        }
        self.failures = self.failures.saturating_add(1);
    }

    /// The peer did what it was asked.
    fn has_answered(&mut self) {
        self.backoff.reset();
        self.failures = 0;
    }

    /// Holds from the next look at the clock on.
    pub fn set_pings(&mut self, pings: Pings) {
        self.pings = pings;
    }

    /// Try again now, not when the pause is over.
    pub fn hurry(&mut self, now: Time) {
        if let State::Down { retry_at } = &mut self.state {
            *retry_at = (*retry_at).min(now);
        }
    }

    // What happened.

    /// The pause is over: true once, and a socket is to be opened.
    pub fn start_connecting(&mut self, now: Time) -> bool {
        match self.state {
            State::Down { retry_at } if retry_at <= now => {
                self.state = State::Connecting { since: now };
                true
            }
            _ => false,
        }
    }

    pub fn handle_connected(&mut self, now: Time) {
        if let State::Connecting { since } = self.state {
            self.state = State::Greeting { since };
            self.last_received = now;
        }
    }

    /// The connection is gone, or was never made. Gives the owners that wait for answers which will not come.
    pub fn handle_closed(&mut self, reason: &str, random: u64, now: Time) -> Vec<T> {
        self.last_error.clear();
        self.last_error.push_str(reason);
        self.mismatch.take_if(|mismatch| mismatch.reason != reason);
        self.state = State::Down { retry_at: now.after(self.backoff.next(random)) };
        self.recv.clear();
        self.send.clear();
        self.acknowledges = false;
        self.silence = None;
        self.ping_sent = None;
        let keys: Vec<Key> = self.pending.keys().collect();
        keys.into_iter().filter_map(|key| self.pending.remove(key)).collect()
    }

    /// Where to read into; then say how much with [`Conn::handle_received`].
    pub fn recv_space(&mut self) -> &mut [u8] {
        self.recv.space()
    }

    pub fn handle_received(&mut self, count: usize, now: Time) {
        self.recv.filled(count);
        self.last_received = now;
        self.ping_sent = None;
    }

    /// Why the connection is to be closed, if it is: the peer did not do its part in time. `busies` tells of the owner of a
    /// request whether the peer may be busy with it.
    pub fn handle_timeout(&mut self, now: Time, busies: impl Fn(&T) -> bool) -> Option<&'static str> {
        match self.state {
            State::Connecting { since } if now.since(since) >= HANDSHAKE_TIMEOUT => {
                Some("connecting timed out")
            }
            State::Greeting { since } | State::Auth { since } | State::Naming { since }
                if now.since(since) >= HANDSHAKE_TIMEOUT =>
            {
                Some("the handshake timed out")
            }
            State::Leaving => (self.in_flight() == 0).then_some(STOPPING),
            State::Ready => {
                let is_quiet = now.since(self.last_received) >= self.pings.interval;
                if self.ping_sent.is_none() && (is_quiet || self.is_doubtful()) {
                    self.send.append(|out| iproto::write_ping(out, SYNC_PING));
                    self.ping_sent = Some(now);
                }
                self.is_dead(now, busies).then_some("no answer to a ping")
            }
            _ => None,
        }
    }

    /// A peer that does not answer pings may be busy with a request that it had before: it is left alone while one of those is
    /// waited for. One that takes requests and answers none is dead, however many come.
    fn is_dead(&mut self, now: Time, busies: impl Fn(&T) -> bool) -> bool {
        if !self.is_silent(now) {
            self.silence = None;
            return false;
        }
        let holds = |key: &Key| self.pending.get(*key).is_some_and(&busies);
        if !self.pending.keys().any(|key| holds(&key)) {
            return true;
        }
        let look_at = now.after(self.pings.timeout);
        match &mut self.silence {
            None => {
                let held = self.pending.keys().filter(holds).collect();
                self.silence = Some(Silence { look_at, held });
            }
            Some(silence) if silence.look_at > now => {}
            Some(silence) => {
                silence.look_at = look_at;
                return !silence.held.iter().any(|key| self.pending.get(*key).is_some());
            }
        }
        false
    }

    /// When [`Conn::handle_timeout`] or [`Conn::start_connecting`] has something to do.
    pub fn next_timeout(&self) -> Time {
        match self.state {
            State::Down { retry_at } => retry_at,
            State::Connecting { since }
            | State::Greeting { since }
            | State::Auth { since }
            | State::Naming { since } => since.after(HANDSHAKE_TIMEOUT),
            // Callers may leave without an answer: looked at soon.
            State::Leaving => Time::ZERO,
            State::Ready => match self.ping_sent {
                None if self.is_doubtful() => Time::ZERO,
                None => self.last_received.after(self.pings.interval),
                Some(sent) => self.silence.as_ref().map_or(sent.after(self.pings.timeout), |it| it.look_at),
            },
        }
    }

    // What to do next.

    /// The next thing in what was received; None when more bytes are needed.
    pub fn poll_event(&mut self) -> Option<Event<T>> {
        match self.state {
            State::Down { .. } | State::Connecting { .. } => None,
            State::Greeting { since } => self.greet(since),
            State::Auth { .. } | State::Naming { .. } | State::Ready => self.next_answer(),
            State::Leaving => match self.next_answer() {
                None if self.in_flight() == 0 => Some(Event::Left),
                event => event,
            },
        }
    }

    /// Bytes of an answer. Good until [`Conn::recv_space`] is called.
    pub fn received(&self, range: Range<usize>) -> &[u8] {
        self.recv.bytes(range)
    }

    /// The buffer of the answer just polled, if nothing else is in it; ranges stay good in it.
    pub fn take_received(&mut self) -> Option<Vec<u8>> {
        self.recv.take_buffer()
    }

    /// There is none to read into.
    pub fn has_no_buffer(&self) -> bool {
        self.recv.has_no_buffer()
    }

    /// The buffer, if it has been read to the end and another connection may have use for it.
    pub fn release_buffer(&mut self) -> Option<Vec<u8>> {
        self.recv.release_buffer()
    }

    /// A buffer of any content that may take the place of the one taken.
    pub fn give_received(&mut self, buffer: Vec<u8>) {
        self.recv.give_buffer(buffer);
    }

    fn greet(&mut self, since: Time) -> Option<Event<T>> {
        let bytes: &[u8; GREETING_LEN] = self.recv.unread().first_chunk()?;
        let greeting = match Greeting::parse(bytes) {
            Ok(greeting) => greeting,
            Err(what) => return Some(Event::Fatal(what.to_string())),
        };
        self.recv.consume(GREETING_LEN);
        self.has_watchers = greeting.version >= WATCHERS_SINCE;
        if let Some(expected) = &self.endpoint.uuid
            && !expected.eq_ignore_ascii_case(&greeting.uuid)
            // A stub server before its box is configured (tarantool/cartridge) shows this one; vshard accepts it too.
            && greeting.uuid != NIL_UUID
        {
            return Some(Event::Fatal(format!(
                "instance UUID mismatch: expected {expected}, got {}",
                greeting.uuid
            )));
        }
        match &self.endpoint.user {
            Some(user) if user != "guest" || self.endpoint.password.is_some() => {
                let password = self.endpoint.password.as_ref().map_or("", |password| password.reveal());
                let scramble = auth::chap_sha1(password, &greeting.salt);
                self.send.append(|out| iproto::write_auth(out, SYNC_AUTH, user, &scramble));
                self.state = State::Auth { since };
                self.next_answer()
            }
            _ => self.ask_name(since),
        }
    }

    /// Where instances are known by name, each is asked for its own before anything is sent to it (vshard: vconnect).
    fn ask_name(&mut self, since: Time) -> Option<Event<T>> {
        if self.endpoint.name.is_none() {
            return Some(self.become_ready());
        }
        let mut body = Vec::new();
        iproto::begin_call_body(&mut body, "vshard.storage._call");
        mp::write_array_len(&mut body, 1);
        mp::write_str(&mut body, "info");
        self.send.append(|out| {
            iproto::write_request_head(out, TYPE_CALL, SYNC_NAME, body.len());
            out.extend_from_slice(&body);
        });
        self.state = State::Naming { since };
        self.next_answer()
    }

    fn named(&mut self, kind: u64, body: Range<usize>) -> Event<T> {
        if kind != TYPE_OK {
            return Event::Fatal(format!(
                "the instance does not tell its name: {}",
                self.refusal(kind, body)
            ));
        }
        let answer = iproto::answer(self.recv.bytes(body));
        let info = answer.ok().and_then(|answer| vshard::instance_info(answer.data?).ok());
        let (Some(info), Some(expected)) = (info, self.endpoint.name.as_deref()) else {
            return Event::Fatal("the instance does not tell its name".to_string());
        };
        match info.name {
            Some(name) if name == expected.as_bytes() => self.become_ready(),
            // Not named yet: its UUID, checked in the greeting, has to do.
            None if self.endpoint.uuid.is_some() => self.become_ready(),
            name => {
                let actual = name.map(|name| String::from_utf8_lossy(name).into_owned());
                let shown = actual.as_deref().unwrap_or("nil");
                let reason = format!("Mismatch server name: expected \"{expected}\", but got \"{shown}\"");
                self.mismatch = Some(Mismatch { reason: reason.clone(), actual });
                Event::Fatal(reason)
            }
        }
    }

    fn become_ready(&mut self) -> Event<T> {
        self.state = State::Ready;
        if self.has_watchers {
            self.send.append(|out| iproto::write_watch(out, SYNC_WATCH, SHUTDOWN_KEY));
        }
        self.last_error.clear();
        self.mismatch = None;
        Event::Ready
    }

    fn next_answer(&mut self) -> Option<Event<T>> {
        loop {
            let packet = match self.recv.next_frame() {
                Ok(packet) => packet?,
                Err(fault) => return Some(Event::Fatal(format!("invalid frame: {fault}"))),
            };
            let header = match iproto::header(self.recv.bytes(packet.clone())) {
                Ok(header) => header,
                Err(fault) => return Some(Event::Fatal(format!("invalid packet header: {fault}"))),
            };
            let body = packet.start + header.body..packet.end;
            match header.sync {
                SYNC_PING => self.has_answered(),
                SYNC_AUTH if let State::Auth { since } = self.state => {
                    if header.kind != TYPE_OK {
                        return Some(Event::Fatal(self.refusal(header.kind, body)));
                    }
                    return self.ask_name(since);
                }
                SYNC_NAME if matches!(self.state, State::Naming { .. }) => {
                    return Some(self.named(header.kind, body));
                }
                _ if header.kind == TYPE_EVENT => {
                    if self.state != State::Ready {
                        continue;
                    }
                    if self.is_shutdown(body) {
                        self.state = State::Leaving;
                        return Some(Event::Leaving);
                    }
                    if header.sync == SYNC_WATCH {
                        // One that floods and does not read would have us queue without end.
                        if self.acknowledges && !self.send.is_empty() {
                            return Some(Event::Fatal("events come unasked for".to_string()));
                        }
                        self.acknowledges = true;
                        // Watching again says that this one has come; the next one is sent only after that.
                        self.send.append(|out| iproto::write_watch(out, SYNC_WATCH, SHUTDOWN_KEY));
                    }
                }
                // The answer to WATCH is an event; anything else says that there will be none.
                SYNC_WATCH => continue,
                sync if header.kind == TYPE_CHUNK => match self.pending.get(Key::unpack(sync.0)) {
                    Some(owner) => {
                        let owner = *owner;
                        return Some(Event::Push(Answer { owner, kind: header.kind, body }));
                    }
                    None => continue,
                },
                sync => {
                    if header.kind != TYPE_OK && header.kind & TYPE_ERROR == 0 {
                        return Some(Event::Fatal(format!("unexpected packet type {}", header.kind)));
                    }
                    return Some(match self.pending.remove(Key::unpack(sync.0)) {
                        Some(owner) => {
                            self.has_answered();
                            Event::Answer(Answer { owner, kind: header.kind, body })
                        }
                        None if matches!(self.state, State::Ready | State::Leaving) => {
                            self.has_answered();
                            Event::Late
                        }
                        None => Event::Fatal(self.refusal(header.kind, body)),
                    });
                }
            }
        }
    }

    fn is_shutdown(&self, body: Range<usize>) -> bool {
        iproto::event(self.recv.bytes(body))
            .is_ok_and(|event| event.key == SHUTDOWN_KEY.as_bytes() && event.data == Some(b"\xc3"))
    }

    fn refusal(&self, kind: u64, body: Range<usize>) -> String {
        match iproto::answer(self.recv.bytes(body)) {
            Ok(answer) if kind & TYPE_ERROR != 0 => {
                String::from_utf8_lossy(answer.message.unwrap_or_default()).into_owned()
            }
            _ => format!("unexpected packet of type {kind} in the handshake"),
        }
    }
}

/// Why the connection to a peer that is leaving is closed.
pub const STOPPING: &str = "the instance is being stopped";
const NIL_UUID: &str = "00000000-0000-0000-0000-000000000000";
