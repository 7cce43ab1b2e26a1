//! Simulated storages: as many as wanted in one thread, each on a port of its own. They greet, let everybody in, name their
//! buckets, echo, and select what the storages have in their spaces: what a router sees of a storage, without its cost.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener as StdListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};

use crate::{mp, workload};

const TYPE_AUTH: u64 = 7;
const TYPE_CALL: u64 = 10;
const TYPE_PING: u64 = 64;
const NO_SUCH_PROC: u64 = 33;

pub struct Peers {
    pub ports: Vec<u16>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Peers {
    /// One for each of `uuids`; the buckets are shared out as in bench/common.lua.
    pub fn start(uuids: &[String], bucket_count: u32) -> Result<Peers, String> {
        let told = |e: std::io::Error| format!("simulated storages: {e}");
        let poll = Poll::new().map_err(told)?;
        let (mut ports, mut listeners) = (Vec::new(), Vec::new());
        for (i, _) in uuids.iter().enumerate() {
            let listener = StdListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(told)?;
            listener.set_nonblocking(true).map_err(told)?;
            ports.push(listener.local_addr().map_err(told)?.port());
            let mut listener = TcpListener::from_std(listener);
            poll.registry().register(&mut listener, Token(i), Interest::READABLE).map_err(told)?;
            listeners.push(listener);
        }
        let (mut t5, mut t6) = (Vec::new(), Vec::new());
        workload::tuples_t5(&mut t5);
        workload::tuples_t6(&mut t6);
        let selects = Arc::new(Selects { t5, t6 });
        let share = bucket_count.div_ceil(uuids.len() as u32);
        let identities = uuids.iter().zip(0u32..).map(|(uuid, i)| Identity {
            greeting: greeting(uuid),
            first: i * share + 1,
            last: ((i + 1) * share).min(bucket_count),
            selects: Arc::clone(&selects),
        });
        let stop = Arc::new(AtomicBool::new(false));
        let server = Server { poll, listeners, identities: identities.collect(), conns: Vec::new() };
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || server.run(&stopped));
        Ok(Peers { ports, stop, thread: Some(thread) })
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Identity {
    greeting: Vec<u8>,
    first: u32,
    last: u32,
    selects: Arc<Selects>,
}

/// What the selects give, as one value each.
struct Selects {
    t5: Vec<u8>,
    t6: Vec<u8>,
}

struct Server {
    poll: Poll,
    /// By token, and so are identities; connections follow.
    listeners: Vec<TcpListener>,
    identities: Vec<Identity>,
    conns: Vec<Option<Conn>>,
}

struct Conn {
    stream: TcpStream,
    identity: usize,
    input: Vec<u8>,
    output: Vec<u8>,
    written: usize,
}

impl Server {
    fn run(mut self, stop: &AtomicBool) {
        let mut events = Events::with_capacity(1024);
        while !stop.load(Ordering::Relaxed) {
            if let Err(error) = self.poll.poll(&mut events, Some(Duration::from_millis(50)))
                && error.kind() != ErrorKind::Interrupted
            {
                return;
            }
            for event in &events {
                let Token(number) = event.token();
                match number.checked_sub(self.listeners.len()) {
                    None => self.accept(number),
                    Some(slot) => self.serve(slot),
                }
            }
        }
    }

    fn accept(&mut self, number: usize) {
        while let Ok((mut stream, _)) = self.listeners[number].accept() {
            let _ = stream.set_nodelay(true);
            let token = Token(self.listeners.len() + self.conns.len());
            let both = Interest::READABLE | Interest::WRITABLE;
            if self.poll.registry().register(&mut stream, token, both).is_err() {
                continue;
            }
            let output = self.identities[number].greeting.clone();
            self.conns.push(Some(Conn { stream, identity: number, input: Vec::new(), output, written: 0 }));
            self.serve(self.conns.len() - 1);
        }
    }

    fn serve(&mut self, slot: usize) {
        let Some(conn) = self.conns.get_mut(slot).and_then(Option::as_mut) else { return };
        if !conn.turn(&self.identities[conn.identity]) {
            self.conns[slot] = None;
        }
    }
}

impl Conn {
    /// Reads, answers, writes as far as it goes. False: it is over.
    fn turn(&mut self, identity: &Identity) -> bool {
        let mut part = [0; 64 << 10];
        loop {
            match self.stream.read(&mut part) {
                Ok(0) => return false,
                Ok(count) => self.input.extend_from_slice(&part[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        let mut at = 0;
        while let Some(length) = self.input.get(at + 1..at + 5) {
            let end = at + 5 + u32::from_be_bytes(length.try_into().expect("four bytes")) as usize;
            if end > self.input.len() {
                break;
            }
            // Routers write lengths in five bytes.
            if self.input[at] != 0xce
                || answer(&self.input[at + 5..end], identity, &mut self.output).is_none()
            {
                return false;
            }
            at = end;
        }
        self.input.drain(..at);
        while self.written < self.output.len() {
            match self.stream.write(&self.output[self.written..]) {
                Ok(count) => self.written += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        self.output.clear();
        self.written = 0;
        true
    }
}

/// None: it is not understood.
fn answer(mut packet: &[u8], identity: &Identity, out: &mut Vec<u8>) -> Option<()> {
    let rest = &mut packet;
    let (mut kind, mut sync) = (0, 0);
    for _ in 0..small(rest, 0x80)? {
        match (mp::read_uint(rest)?, mp::read_uint(rest)?) {
            (0x00, value) => kind = value,
            (0x01, value) => sync = value,
            _ => {}
        }
    }
    match kind {
        TYPE_AUTH | TYPE_PING => frame(out, 0, sync, |out| mp::map(out, 0)),
        TYPE_CALL => return call(rest, sync, identity, out),
        _ => frame(out, 0x8000 | NO_SUCH_PROC, sync, |out| error(out, "not simulated")),
    }
    Some(())
}

/// `{FUNCTION_NAME: …, TUPLE: …}`, in this order.
fn call(rest: &mut &[u8], sync: u64, identity: &Identity, out: &mut Vec<u8>) -> Option<()> {
    if small(rest, 0x80)? != 2 || mp::read_uint(rest)? != 0x22 {
        return None;
    }
    let func = mp::read(rest)?;
    if mp::read_uint(rest)? != 0x21 {
        return None;
    }
    match func.str()? {
        // [bucket, mode, function, arguments]: the arguments are the values of all functions but the selects.
        "vshard.storage.call" => {
            if small(rest, 0x90)? != 4 {
                return None;
            }
            for _ in 0..2 {
                mp::read(rest)?;
            }
            let func = mp::read(rest)?;
            let count = small(rest, 0x90)?;
            let (count, values) = match func.str()? {
                workload::SELECT_T5 => (1, &identity.selects.t5[..]),
                workload::SELECT_T6 => (1, &identity.selects.t6[..]),
                _ => (count, &**rest),
            };
            frame(out, 0, sync, |out| {
                data(out, 1 + count);
                mp::boolean(out, true);
                out.extend_from_slice(values);
            });
        }
        "vshard.storage.buckets_discovery" => frame(out, 0, sync, |out| {
            data(out, 1);
            mp::map(out, 1);
            mp::string(out, "buckets");
            mp::array(out, (identity.last + 1).saturating_sub(identity.first));
            (identity.first..=identity.last).for_each(|bucket| mp::uint(out, bucket.into()));
        }),
        _ => frame(out, 0x8000 | NO_SUCH_PROC, sync, |out| error(out, "not simulated")),
    }
    Some(())
}

/// The length in a short array's or map's header.
fn small(rest: &mut &[u8], tag: u8) -> Option<u32> {
    let (head, tail) = rest.split_first()?;
    *rest = tail;
    (head & 0xf0 == tag).then_some(u32::from(head & 0x0f))
}

fn frame(out: &mut Vec<u8>, kind: u64, sync: u64, body: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    out.extend_from_slice(&[0xce, 0, 0, 0, 0, 0x82, 0x00, 0xce]);
    out.extend_from_slice(&(kind as u32).to_be_bytes());
    out.extend_from_slice(&[0x01, 0xcf]);
    out.extend_from_slice(&sync.to_be_bytes());
    body(out);
    let len = (out.len() - at - 5) as u32;
    out[at + 1..at + 5].copy_from_slice(&len.to_be_bytes());
}

fn data(out: &mut Vec<u8>, count: u32) {
    out.extend_from_slice(&[0x81, 0x30, 0xdd]);
    out.extend_from_slice(&count.to_be_bytes());
}

fn error(out: &mut Vec<u8>, message: &str) {
    mp::map(out, 1);
    mp::uint(out, 0x31);
    mp::string(out, message);
}

fn greeting(uuid: &str) -> Vec<u8> {
    // Everybody is let in, so any salt will do.
    let first = format!("Tarantool 3.2.1 (Binary) {uuid}");
    let second = "QUFBQUFBQUFBQUFBQUFBQUFBQUFCQkJCQkJCQkJCQkI=";
    format!("{first:<63}\n{second:<63}\n").into_bytes()
}
