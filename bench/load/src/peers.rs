//! Simulated storages: as many as wanted in one thread, each on a port of its own. They greet, let everybody in, name their
//! buckets, echo, and select what the storages have in their spaces: what a router sees of a storage, without its cost. To
//! net.box, and so to vshard's own router, they are a Tarantool 3.2 whose spaces nobody may see.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener as StdListener};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};

use crate::mp::{self, Val};
use crate::workload;

const TYPE_SELECT: u64 = 1;
const TYPE_AUTH: u64 = 7;
const TYPE_CALL: u64 = 10;
const TYPE_PING: u64 = 64;
const TYPE_ID: u64 = 73;
const TYPE_WATCH: u64 = 74;
const TYPE_UNWATCH: u64 = 75;
const NO_SUCH_PROC: u64 = 33;
const UNKNOWN_REQUEST_TYPE: u64 = 48;

/// What a storage of the benches on Tarantool 3.2 says: bench/storage.lua has tuples as plain arrays.
const PROTOCOL_VERSION: u64 = 7;
const FEATURES: [u64; 8] = [0, 1, 2, 3, 4, 5, 6, 7];
/// Never changes, so that net.box fetches the schema once.
const SCHEMA_VERSION: u32 = 80;
/// Rows in one answer of the discovery, as in vshard.
const PAGE: u32 = 1000;

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

impl Identity {
    fn rows(&self, from: u32) -> RangeInclusive<u32> {
        from..=self.last
    }
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
        TYPE_CALL => return call(rest, sync, identity, out),
        TYPE_AUTH | TYPE_PING => frame(out, 0, sync, |out| mp::map(out, 0)),
        // The schema: net.box asks for it, and calls of functions need none of it.
        TYPE_SELECT => frame(out, 0, sync, |out| data(out, 0)),
        TYPE_ID => frame(out, 0, sync, |out| {
            mp::map(out, 3);
            mp::uint(out, 0x54);
            mp::uint(out, PROTOCOL_VERSION);
            mp::uint(out, 0x55);
            mp::array(out, FEATURES.len() as u32);
            FEATURES.iter().for_each(|feature| mp::uint(out, *feature));
            mp::uint(out, 0x5b);
            mp::string(out, "chap-sha1");
        }),
        // Nothing ever happens that could be watched.
        TYPE_WATCH | TYPE_UNWATCH => {}
        _ => frame(out, 0x8000 | UNKNOWN_REQUEST_TYPE, sync, |out| error(out, "not simulated")),
    }
    Some(())
}

/// `{FUNCTION_NAME: …, TUPLE: …}`, in this order; net.box of Tarantool 3 puts formats of tuples behind.
fn call(rest: &mut &[u8], sync: u64, identity: &Identity, out: &mut Vec<u8>) -> Option<()> {
    let pairs = small(rest, 0x80)?;
    if !(2..=3).contains(&pairs) || mp::read_uint(rest)? != 0x22 {
        return None;
    }
    let func = mp::read(rest)?;
    if mp::read_uint(rest)? != 0x21 {
        return None;
    }
    // Nothing behind the arguments: no need to look where they end.
    if pairs == 3 {
        let mut behind = *rest;
        mp::skip(&mut behind)?;
        *rest = &rest[..rest.len() - behind.len()];
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
        "vshard.storage.buckets_discovery" => {
            let args = mp::read(rest)?;
            let from = args.items().first().and_then(|opts| opts.field("from")?.f64());
            frame(out, 0, sync, |out| discovery(identity, from, out));
        }
        "vshard.storage.buckets_count" => frame(out, 0, sync, |out| {
            data(out, 1);
            mp::uint(out, identity.rows(identity.first).count() as u64);
        }),
        "vshard.storage._call" => {
            let args = mp::read(rest)?;
            match args.items() {
                [service, opts @ ..] if service.str() == Some("info") => {
                    let with_health = opts.first().and_then(|opts| opts.field("with_health"));
                    frame(out, 0, sync, |out| info(with_health == Some(&Val::Bool(true)), out));
                }
                _ => frame(out, 0x8000 | NO_SUCH_PROC, sync, |out| error(out, "not simulated")),
            }
        }
        _ => frame(out, 0x8000 | NO_SUCH_PROC, sync, |out| error(out, "not simulated")),
    }
    Some(())
}

/// A page of buckets, and where the next one starts; without `from` the list of all.
fn discovery(identity: &Identity, from: Option<f64>, out: &mut Vec<u8>) {
    data(out, 1);
    let Some(from) = from else {
        return buckets(identity.rows(identity.first), out);
    };
    let rows = identity.rows((from as u32).max(identity.first));
    let next = (rows.clone().count() >= PAGE as usize).then(|| rows.start() + PAGE);
    mp::map(out, 1 + u32::from(next.is_some()));
    mp::string(out, "buckets");
    buckets(*rows.start()..=next.map_or(*rows.end(), |next| next - 1), out);
    if let Some(next) = next {
        mp::string(out, "next_from");
        mp::uint(out, next.into());
    }
}

fn buckets(rows: RangeInclusive<u32>, out: &mut Vec<u8>) {
    mp::array(out, rows.clone().count() as u32);
    rows.for_each(|bucket| mp::uint(out, bucket.into()));
}

/// Of a master, which is never behind itself.
fn info(with_health: bool, out: &mut Vec<u8>) {
    data(out, 1);
    mp::map(out, 1 + u32::from(with_health));
    mp::string(out, "is_master");
    mp::boolean(out, true);
    if with_health {
        mp::string(out, "health");
        mp::map(out, 1);
        mp::string(out, "master_upstream");
        mp::map(out, 3);
        mp::string(out, "status");
        mp::string(out, "follow");
        mp::string(out, "idle");
        mp::uint(out, 0);
        mp::string(out, "lag");
        mp::uint(out, 0);
    }
}

/// The length in a short array's or map's header.
fn small(rest: &mut &[u8], tag: u8) -> Option<u32> {
    let (head, tail) = rest.split_first()?;
    *rest = tail;
    (head & 0xf0 == tag).then_some(u32::from(head & 0x0f))
}

fn frame(out: &mut Vec<u8>, kind: u64, sync: u64, body: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    out.extend_from_slice(&[0xce, 0, 0, 0, 0, 0x83, 0x00, 0xce]);
    out.extend_from_slice(&(kind as u32).to_be_bytes());
    out.extend_from_slice(&[0x01, 0xcf]);
    out.extend_from_slice(&sync.to_be_bytes());
    out.extend_from_slice(&[0x05, 0xce]);
    out.extend_from_slice(&SCHEMA_VERSION.to_be_bytes());
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

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> Identity {
        let selects = Arc::new(Selects { t5: vec![0x91, 5], t6: vec![0x91, 6] });
        Identity { greeting: Vec::new(), first: 1501, last: 3000, selects }
    }

    /// As net.box writes it: the sync first. Gives the header and the body.
    fn ask(kind: u8, body: &[u8]) -> (Val, Val) {
        let packet = [&[0x82, 0x01, 0x2a, 0x00, kind], body].concat();
        let mut out = Vec::new();
        answer(&packet, &identity(), &mut out).unwrap();
        assert_eq!(out[0], 0xce);
        assert_eq!(u32::from_be_bytes(out[1..5].try_into().unwrap()) as usize, out.len() - 5);
        let mut rest = &out[5..];
        let header = mp::read(&mut rest).unwrap();
        assert_eq!(header.at(0x01), Some(&Val::Int(0x2a)));
        // net.box before 2.10 compares it without looking whether it is there.
        assert_eq!(header.at(0x05), Some(&Val::Int(80)));
        (header, mp::read_all(rest).unwrap())
    }

    /// The values of an answer to a call, with formats of tuples behind the arguments and without.
    fn call(func: &str, args: impl Fn(&mut Vec<u8>)) -> Vec<Val> {
        let values = [2, 3].map(|pairs| {
            let mut body = Vec::new();
            mp::map(&mut body, pairs);
            mp::uint(&mut body, 0x22);
            mp::string(&mut body, func);
            mp::uint(&mut body, 0x21);
            args(&mut body);
            if pairs == 3 {
                body.extend_from_slice(&[0x60, 0x80]);
            }
            let (header, body) = ask(TYPE_CALL as u8, &body);
            assert_eq!(header.at(0), Some(&Val::Int(0)), "{func}: {}", body.json());
            body.at(0x30).unwrap().items().to_vec()
        });
        assert_eq!(values[0], values[1]);
        values[0].clone()
    }

    #[test]
    fn net_box_can_connect() {
        let (header, body) = ask(TYPE_ID as u8, &[0x82, 0x54, 4, 0x55, 0x92, 0, 1]);
        assert_eq!(header.at(0), Some(&Val::Int(0)));
        assert_eq!(body.at(0x54), Some(&Val::Int(7)));
        assert_eq!(body.at(0x5b).and_then(Val::str), Some("chap-sha1"));
        // _vspace
        let (header, body) = ask(TYPE_SELECT as u8, &[0x82, 0x10, 0xcd, 1, 25, 0x20, 0x90]);
        assert_eq!(header.at(0), Some(&Val::Int(0)));
        assert_eq!(body.at(0x30), Some(&Val::Array(Vec::new())));
        // An event at each WATCH would be confirmed by another one, without end.
        let mut out = Vec::new();
        answer(&[0x81, 0x00, TYPE_WATCH as u8, 0x81, 0x57, 0xa1, b'k'], &identity(), &mut out).unwrap();
        assert!(out.is_empty());
        let (header, _) = ask(77, &[0x80]);
        assert_eq!(header.at(0), Some(&Val::Int(0x8000 | 48)));
    }

    #[test]
    fn storage_call_returns_what_the_function_would() {
        let told = |func: &'static str| {
            call("vshard.storage.call", move |b| {
                mp::array(b, 4);
                mp::uint(b, 1501);
                mp::string(b, "read");
                mp::string(b, func);
                mp::array(b, 2);
                mp::uint(b, 7);
                mp::string(b, "x");
            })
        };
        assert_eq!(told("bench_echo"), [Val::Bool(true), Val::Int(7), Val::Str(b"x".to_vec())]);
        assert_eq!(told(workload::SELECT_T5), [Val::Bool(true), Val::Array(vec![Val::Int(5)])]);
        assert_eq!(told(workload::SELECT_T6), [Val::Bool(true), Val::Array(vec![Val::Int(6)])]);
    }

    #[test]
    fn discovery_is_paged() {
        let page = |from: u64| {
            let mut values = call("vshard.storage.buckets_discovery", move |b| {
                mp::array(b, 1);
                mp::map(b, 1);
                mp::string(b, "from");
                mp::uint(b, from);
            });
            let page = values.pop().unwrap();
            let ids: Vec<f64> = page.field("buckets").unwrap().items().iter().filter_map(Val::f64).collect();
            (ids.len(), ids.first().copied(), ids.last().copied(), page.field("next_from").and_then(Val::f64))
        };
        assert_eq!(page(1), (1000, Some(1501.0), Some(2500.0), Some(2501.0)));
        assert_eq!(page(2501), (500, Some(2501.0), Some(3000.0), None));
        // A full page says that there may be more, and then there is nothing.
        assert_eq!(page(2001), (1000, Some(2001.0), Some(3000.0), Some(3001.0)));
        assert_eq!(page(3001), (0, None, None, None));
        let all = call("vshard.storage.buckets_discovery", |b| mp::array(b, 0));
        assert_eq!(all[0].items().len(), 1500);
        assert_eq!(call("vshard.storage.buckets_count", |b| mp::array(b, 0)), [Val::Int(1500)]);
    }

    #[test]
    fn info_has_health_if_asked_for() {
        let plain = call("vshard.storage._call", |b| {
            mp::array(b, 1);
            mp::string(b, "info");
        });
        assert_eq!(plain[0].field("is_master"), Some(&Val::Bool(true)));
        assert_eq!(plain[0].field("health"), None);
        let with_health = call("vshard.storage._call", |b| {
            mp::array(b, 2);
            mp::string(b, "info");
            mp::map(b, 2);
            mp::string(b, "timeout");
            mp::uint(b, 5);
            mp::string(b, "with_health");
            mp::boolean(b, true);
        });
        let upstream =
            with_health[0].field("health").and_then(|health| health.field("master_upstream")).unwrap();
        assert_eq!(upstream.field("status").and_then(Val::str), Some("follow"));
        assert_eq!(upstream.field("lag"), Some(&Val::Int(0)));
    }
}
