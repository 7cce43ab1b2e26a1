//! What the engine thread asks of the system: time, signals, sockets. Safe code over mio, socket2 and nix.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use mio::event::Source;
use mio::net::{TcpStream, UnixStream};
use mio::{Interest, Registry, Token};
use nix::sys::signal::{SigSet, Signal};
use socket2::TcpKeepalive;

use crate::engine::inbox::Wake;
use crate::time::Time;

/// Nanoseconds since this process first asked; never zero, so that [`Time::ZERO`] lies before all.
pub fn now() -> Time {
    static START: OnceLock<Instant> = OnceLock::new();
    let elapsed = START.get_or_init(Instant::now).elapsed();
    Time::from_nanos(1 + u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX - 1))
}

/// Leaves all signals but those of a crash to the host's threads: one taken here would interrupt the poll and never reach
/// the host's handlers. To be called by the parent around spawning, so that no instant is left open.
pub fn block_signals() -> io::Result<SigSet> {
    let mut set = SigSet::all();
    for synchronous in [Signal::SIGSEGV, Signal::SIGBUS, Signal::SIGILL, Signal::SIGFPE, Signal::SIGABRT] {
        set.remove(synchronous);
    }
    let before = SigSet::thread_get_mask()?;
    set.thread_block()?;
    Ok(before)
}

pub fn restore_signals(before: &SigSet) -> io::Result<()> {
    Ok(before.thread_set_mask()?)
}

/// Wakes a thread out of its poller.
pub struct PollWaker(pub Arc<mio::Waker>);

impl Wake for PollWaker {
    fn wake(&self) {
        if let Err(error) = self.0.wake() {
            log::error!("can not wake an engine thread: {error}");
        }
    }
}

/// A peer that has acknowledged nothing for so long is gone.
const VANISHED: Duration = Duration::from_secs(10);
/// Between probes of an idle connection.
const PROBE: Duration = Duration::from_secs(5);

/// A non-blocking stream to an instance.
pub enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    pub fn connect_unix(path: &str) -> io::Result<Stream> {
        Ok(Stream::Unix(UnixStream::connect(path)?))
    }

    /// Begins to connect.
    pub fn connect_tcp(address: SocketAddr) -> io::Result<Stream> {
        let stream = TcpStream::connect(address)?;
        let socket = socket2::SockRef::from(&stream);
        socket.set_tcp_nodelay(true)?;
        // A host that vanished without a word: noticed by what it does not acknowledge, or, while nothing is
        // sent, by probes. A process that is merely frozen still acknowledges; pings find that.
        socket.set_tcp_user_timeout(Some(VANISHED))?;
        socket
            .set_tcp_keepalive(&TcpKeepalive::new().with_time(PROBE).with_interval(PROBE).with_retries(2))?;
        Ok(Stream::Tcp(stream))
    }

    /// After the socket became writable: whether it is connected. None: not yet.
    pub fn finish_connect(&self) -> io::Result<Option<()>> {
        let (error, connected) = match self {
            Stream::Tcp(stream) => (stream.take_error()?, stream.peer_addr().map(|_| ())),
            Stream::Unix(stream) => (stream.take_error()?, stream.peer_addr().map(|_| ())),
        };
        match (error, connected) {
            (Some(error), _) => Err(error),
            (None, Ok(())) => Ok(Some(())),
            (None, Err(error)) if error.kind() == io::ErrorKind::NotConnected => Ok(None),
            (None, Err(error)) => Err(error),
        }
    }

    pub fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        let interest = Interest::READABLE | Interest::WRITABLE;
        match self {
            Stream::Tcp(stream) => stream.register(registry, token, interest),
            Stream::Unix(stream) => stream.register(registry, token, interest),
        }
    }

    pub fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(into),
            Stream::Unix(stream) => stream.read(into),
        }
    }

    pub fn write_vectored(&mut self, slices: &[io::IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write_vectored(slices),
            Stream::Unix(stream) => stream.write_vectored(slices),
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Tcp(stream) => stream.as_fd(),
            Stream::Unix(stream) => stream.as_fd(),
        }
    }
}

/// A poll's timeout that does not end before `until`: epoll counts milliseconds and mio rounds up.
pub fn poll_timeout(until: Option<Time>, now: Time) -> Option<Duration> {
    until.map(|until| until.since(now))
}
