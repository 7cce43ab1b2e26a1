//! The load: many connections, each with a fixed number of requests in flight, in one thread.
//!
//! Nothing is allocated per request: a request is a copy of the template into the connection's output, an answer is
//! compared where it was read. Everything that one read brought is answered by one write.
//!
//! Closed loop: an answer sends the next request. Open loop: requests are due at a fixed rate whatever the answers do,
//! and latency counts from when a request was *due*: a stall then shows in every request it held up (no coordinated
//! omission).

use std::collections::{BTreeMap, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use mio::net::TcpStream;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};

use crate::check::{Check, Verdict};
use crate::mp;
use crate::random::Random;
use crate::sys;
use crate::template::{Fill, Template};
use crate::workload::{Returns, Shape, Workload};

pub struct Plan {
    pub request: Template,
    pub answers: Vec<Template>,
    /// Bytes must be equal even inside maps.
    pub exact: bool,
    pub duration: Duration,
    /// Stops earlier than `duration`.
    pub count: Option<u64>,
    /// Requests a second, open loop. None: closed loop.
    pub rate: Option<f64>,
    /// Open loop: requests that are due together.
    pub burst: u64,
    /// Buckets 1..=buckets are named at random: who hashes keys has no runs of neighbours, which live on the same instance.
    pub buckets: u32,
    /// Refusals and raised errors are counted, not held against the router.
    pub tolerant: bool,
    /// Ids of this run count from here.
    pub first_id: u64,
    /// Closed loop: after a refusal the slot rests this long, else a router that refuses at once would be asked
    /// millions of times a second.
    pub rest: Duration,
    /// Answers that take longer than this after the end are given up.
    pub drain: Duration,
    /// Answers of any kind that take longer are counted as late.
    pub max_latency: Option<Duration>,
    /// Right answers so far, for whoever watches from another thread.
    pub progress: Option<Arc<AtomicU64>>,
}

impl Plan {
    /// A closed loop of one second.
    pub fn new(workload: &Workload, entry: &str, shape: Shape, returns: Returns, timeout: f64) -> Plan {
        Plan {
            request: workload.request(entry, shape, timeout),
            answers: workload.answers(shape, timeout, returns),
            exact: false,
            duration: Duration::from_secs(1),
            count: None,
            rate: None,
            burst: 1,
            buckets: 3000,
            tolerant: false,
            // Wide enough for the ids to keep one width, whoever encodes them.
            first_id: 1 << 40,
            rest: Duration::ZERO,
            drain: Duration::from_secs(60),
            max_latency: None,
            progress: None,
        }
    }
}

pub struct Stats {
    pub sent: u64,
    pub right: u64,
    pub refused: u64,
    pub raised: u64,
    /// Answers that are wrong, or fit no request.
    pub wrong: u64,
    pub lost: u64,
    pub late: u64,
    pub elapsed: Duration,
    pub cpu: Duration,
    pub bytes_in: u64,
    pub bytes_out: u64,
    pub reads: u64,
    pub writes: u64,
    /// Turns of the loop that sent something.
    pub turns: u64,
    pub variants: usize,
    /// Tenths of a microsecond.
    pub latency: Histogram<u64>,
    /// What was refused or raised, and how often.
    pub reasons: BTreeMap<String, u64>,
    /// The first few wrong answers.
    pub samples: Vec<String>,
}

/// Latencies are kept in units of this many nanoseconds.
pub const TICK_NS: u64 = 100;

pub struct Generator {
    poll: Poll,
    conns: Vec<Conn>,
    timer: sys::Timer,
}

struct Conn {
    sock: TcpStream,
    input: Vec<u8>,
    /// `input[from..to]` is read and not yet looked at.
    from: usize,
    to: usize,
    output: Vec<u8>,
    written: usize,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Slots that rest after a refusal, until when.
    resting: VecDeque<(Instant, u32)>,
}

#[derive(Clone, Default)]
struct Slot {
    live: bool,
    fill: Fill,
    /// Nanoseconds since the start of the run.
    due: u64,
}

const TIMER: Token = Token(usize::MAX);
const SLOT_BITS: u32 = 16;
const READ_SIZE: usize = 256 * 1024;
const GREETING: usize = 128;

impl Generator {
    pub fn connect(addr: SocketAddr, conns: usize, depth: usize) -> Result<Generator, String> {
        if depth == 0 || depth > 1 << SLOT_BITS {
            return Err(format!("depth must be 1..{}", 1 << SLOT_BITS));
        }
        let poll = Poll::new().map_err(|e| e.to_string())?;
        let timer = sys::Timer::new().map_err(|e| e.to_string())?;
        poll.registry()
            .register(&mut SourceFd(&timer.fd()), TIMER, Interest::READABLE)
            .map_err(|e| e.to_string())?;
        let mut all = Vec::with_capacity(conns);
        for i in 0..conns {
            // Blocking until greeted: simpler, and not part of any measurement.
            let mut sock = std::net::TcpStream::connect(addr).map_err(|e| format!("connect {addr}: {e}"))?;
            sock.set_nodelay(true).map_err(|e| e.to_string())?;
            let mut greeting = [0; GREETING];
            sock.read_exact(&mut greeting).map_err(|e| format!("greeting of {addr}: {e}"))?;
            if !greeting.starts_with(b"Tarantool ") {
                return Err(format!("{addr} does not greet like a Tarantool"));
            }
            sock.set_nonblocking(true).map_err(|e| e.to_string())?;
            let mut sock = TcpStream::from_std(sock);
            poll.registry()
                .register(&mut sock, Token(i), Interest::READABLE | Interest::WRITABLE)
                .map_err(|e| e.to_string())?;
            all.push(Conn {
                sock,
                input: vec![0; READ_SIZE],
                from: 0,
                to: 0,
                output: Vec::new(),
                written: 0,
                slots: vec![Slot::default(); depth],
                free: (0..depth as u32).rev().collect(),
                resting: VecDeque::new(),
            });
        }
        Ok(Generator { poll, conns: all, timer })
    }

    /// Sends until the plan says stop, then waits until every request is answered. An error is the end of the
    /// connections: the peer closed one, or sent what is no IPROTO.
    pub fn run(&mut self, plan: &Plan) -> Result<Stats, String> {
        let cpu = sys::thread_cpu();
        let mut run = Run {
            plan,
            start: Instant::now(),
            check: Check::new(plan.answers.clone(), plan.exact),
            left: plan.count.unwrap_or(u64::MAX),
            in_flight: 0,
            random: Random::new(SEED),
            stats: Stats::new(),
        };
        self.drive(&mut run)?;
        for conn in &mut self.conns {
            conn.free.extend(conn.resting.drain(..).map(|(_, slot)| slot));
        }
        let mut stats = run.stats;
        stats.elapsed = run.start.elapsed();
        stats.cpu = sys::thread_cpu() - cpu;
        stats.lost = run.in_flight;
        stats.variants = run.check.variants();
        Ok(stats)
    }

    fn drive(&mut self, run: &mut Run) -> Result<(), String> {
        let mut events = Events::with_capacity(1024);
        let mut end = run.start + run.plan.duration;
        let mut sending = true;
        // Open loop: requests issued so far, and the connection whose turn it is.
        let (mut issued, mut turn) = (0u64, 0usize);
        if run.plan.rate.is_none() {
            for conn in &mut self.conns {
                while let Some(slot) = conn.free.pop() {
                    if !run.send(conn, slot, 0) {
                        break;
                    }
                }
                run.flush(conn)?;
            }
        }
        let mut now = Instant::now();
        let mut sent_before = 0;
        loop {
            if sending && (now >= end || run.left == 0 || sys::stopped()) {
                sending = false;
                end = now;
                run.left = 0;
            }
            if !sending && (run.in_flight == 0 || now >= end + run.plan.drain) {
                return Ok(());
            }
            let mut wait = Duration::from_millis(20);
            if let (true, Some(rate)) = (sending, run.plan.rate) {
                let burst = run.plan.burst;
                let due = ((now - run.start).as_secs_f64() * rate) as u64 / burst * burst;
                issued = self.send_due(run, issued, due, &mut turn)?;
                if issued >= due {
                    let next = Duration::from_secs_f64((issued + burst) as f64 / rate);
                    self.timer.arm(next.saturating_sub(run.start.elapsed()).max(Duration::from_micros(20)));
                }
            } else if run.plan.tolerant && sending {
                let rested = self.wake_rested(run, now)?;
                if rested {
                    wait = Duration::from_millis(1);
                }
            }
            if run.stats.sent != sent_before {
                sent_before = run.stats.sent;
                run.stats.turns += 1;
            }
            match self.poll.poll(&mut events, Some(wait)) {
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => return Err(format!("poll: {e}")),
                Ok(()) => {}
            }
            for event in &events {
                if event.token() == TIMER {
                    continue;
                }
                let conn = &mut self.conns[event.token().0];
                if event.is_readable() || event.is_read_closed() {
                    run.read(conn)?;
                }
                run.flush(conn)?;
            }
            now = Instant::now();
            if let Some(progress) = &run.plan.progress {
                progress.store(run.stats.right, Ordering::Relaxed);
            }
        }
    }

    /// Open loop: sends what is due, as far as there are free slots; what stays behind keeps its due time.
    fn send_due(
        &mut self,
        run: &mut Run,
        mut issued: u64,
        due: u64,
        turn: &mut usize,
    ) -> Result<u64, String> {
        let (rate, burst) = (run.plan.rate.unwrap_or(f64::INFINITY), run.plan.burst);
        let conns = self.conns.len();
        let mut busy = 0;
        while issued < due && busy < conns && run.left > 0 {
            let conn = &mut self.conns[*turn % conns];
            *turn = turn.wrapping_add(1);
            match conn.free.pop() {
                None => busy += 1,
                Some(slot) => {
                    busy = 0;
                    issued += 1;
                    let due_at = (issued.div_ceil(burst) * burst) as f64 / rate;
                    run.send(conn, slot, (due_at * 1e9) as u64);
                }
            }
        }
        for conn in &mut self.conns {
            run.flush(conn)?;
        }
        Ok(issued)
    }

    /// Whether some slot still rests.
    fn wake_rested(&mut self, run: &mut Run, now: Instant) -> Result<bool, String> {
        let due = (now - run.start).as_nanos() as u64;
        let mut rested = false;
        for conn in &mut self.conns {
            while let Some(&(until, slot)) = conn.resting.front() {
                if until > now {
                    rested = true;
                    break;
                }
                conn.resting.pop_front();
                run.send(conn, slot, due);
            }
            run.flush(conn)?;
        }
        Ok(rested)
    }
}

/// Of all runs, so that all kinds get the same calls.
const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// One run: what is common to all connections.
struct Run<'a> {
    plan: &'a Plan,
    start: Instant,
    check: Check,
    left: u64,
    in_flight: u64,
    random: Random,
    stats: Stats,
}

impl Run<'_> {
    /// False: no more to send, the slot is free again.
    #[inline]
    fn send(&mut self, conn: &mut Conn, slot: u32, due: u64) -> bool {
        if self.left == 0 {
            conn.free.push(slot);
            return false;
        }
        self.left -= 1;
        let s = &mut conn.slots[slot as usize];
        // The upper bits count how often the slot was used: an answer given twice fits no request.
        s.fill.sync = (s.fill.sync.wrapping_add(1 << SLOT_BITS) & !((1 << SLOT_BITS) - 1)) | slot;
        s.fill.bucket = self.random.below(self.plan.buckets.max(1).into()) as u32 + 1;
        s.fill.id = self.plan.first_id + self.stats.sent;
        s.live = true;
        s.due = due;
        self.plan.request.render(&s.fill, &mut conn.output);
        self.stats.sent += 1;
        self.in_flight += 1;
        true
    }

    fn flush(&mut self, conn: &mut Conn) -> Result<(), String> {
        while conn.written < conn.output.len() {
            match conn.sock.write(&conn.output[conn.written..]) {
                Ok(n) => {
                    conn.written += n;
                    self.stats.bytes_out += n as u64;
                    self.stats.writes += 1;
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(format!("write: {e}")),
            }
        }
        if conn.written == conn.output.len() {
            conn.output.clear();
            conn.written = 0;
        } else if conn.written > 1 << 20 {
            conn.output.drain(..conn.written);
            conn.written = 0;
        }
        Ok(())
    }

    fn read(&mut self, conn: &mut Conn) -> Result<(), String> {
        loop {
            let room = conn.input.len() - conn.to;
            match conn.sock.read(&mut conn.input[conn.to..]) {
                Ok(0) => return Err("the router closed a connection".into()),
                Ok(n) => {
                    conn.to += n;
                    self.stats.bytes_in += n as u64;
                    self.stats.reads += 1;
                    self.take_frames(conn)?;
                    // A short read emptied the socket; the next data is a new event.
                    if n < room {
                        return Ok(());
                    }
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(format!("read: {e}")),
            }
        }
    }

    fn take_frames(&mut self, conn: &mut Conn) -> Result<(), String> {
        let now = Instant::now();
        let now_ns = (now - self.start).as_nanos() as u64;
        let input = std::mem::take(&mut conn.input);
        let mut need = 0;
        let taken = loop {
            let rest = &input[conn.from..conn.to];
            if rest.len() < 5 {
                break Ok(());
            }
            if rest[0] != 0xce {
                break Err(format!("a frame starts with byte {:02x}", rest[0]));
            }
            let len = 5 + u32::from_be_bytes([rest[1], rest[2], rest[3], rest[4]]) as usize;
            if rest.len() < len {
                need = len;
                break Ok(());
            }
            let frame = &rest[5..len];
            conn.from += len;
            if let Err(e) = self.take_answer(conn, frame, now, now_ns) {
                break Err(e);
            }
        };
        conn.input = input;
        // Make room: for the rest of a frame that is longer than the buffer, or because the end is near.
        if conn.from == conn.to {
            conn.from = 0;
            conn.to = 0;
        } else if conn.input.len() - conn.from < need.max(READ_SIZE / 4) {
            conn.input.copy_within(conn.from..conn.to, 0);
            conn.to -= conn.from;
            conn.from = 0;
        }
        if conn.input.len() < need {
            conn.input.resize(need.max(READ_SIZE), 0);
        }
        taken
    }

    #[inline]
    fn take_answer(
        &mut self,
        conn: &mut Conn,
        frame: &[u8],
        now: Instant,
        now_ns: u64,
    ) -> Result<(), String> {
        let Some((kind, sync, body)) = split_frame(frame) else {
            return Err("a frame with a broken header".into());
        };
        let slot = (sync & ((1 << SLOT_BITS) - 1)) as u32;
        let known = conn.slots.get_mut(slot as usize).filter(|s| s.live && u64::from(s.fill.sync) == sync);
        let Some(s) = known else {
            self.wrong(format!("an answer that fits no request: sync {sync}"));
            return Ok(());
        };
        s.live = false;
        self.in_flight -= 1;
        let due = s.due;
        let fill = s.fill;
        let mut good = true;
        if self.plan.max_latency.is_some_and(|max| u128::from(now_ns.saturating_sub(due)) > max.as_nanos()) {
            self.stats.late += 1;
        }
        if kind == 0 && body.len() > 2 && body[..2] == [0x81, 0x30] {
            match self.check.judge(&fill, &body[2..]) {
                Verdict::Right => {
                    self.stats.right += 1;
                    let ticks = now_ns.saturating_sub(due) / TICK_NS;
                    self.stats.latency.saturating_record(ticks.max(1));
                }
                Verdict::Refused(name) => {
                    good = false;
                    self.refused(name);
                }
                Verdict::Wrong(why) => self.wrong(why),
            }
        } else {
            good = false;
            self.raised(kind, body);
        }
        if good {
            if self.plan.rate.is_none() {
                self.send(conn, slot, now_ns);
            } else {
                conn.free.push(slot);
            }
        } else if self.plan.rate.is_none() && self.left > 0 {
            if self.plan.rest.is_zero() {
                self.send(conn, slot, now_ns);
            } else {
                conn.resting.push_back((now + self.plan.rest, slot));
            }
        } else {
            conn.free.push(slot);
        }
        Ok(())
    }

    #[cold]
    fn refused(&mut self, name: String) {
        self.stats.refused += 1;
        if !self.plan.tolerant {
            self.sample(format!("refused: {name}"));
        }
        self.stats.count_reason(name);
    }

    #[cold]
    fn raised(&mut self, kind: u64, body: &[u8]) {
        self.stats.raised += 1;
        let message = match mp::read_all(body) {
            Some(mp::Val::Map(pairs)) => pairs
                .iter()
                .find(|(k, _)| *k == mp::Val::Int(0x31))
                .and_then(|(_, v)| v.str().map(str::to_owned))
                .unwrap_or_default(),
            _ => String::new(),
        };
        let text = format!("raised {}: {message}", kind & 0x7fff);
        if !self.plan.tolerant {
            self.sample(text.clone());
        }
        self.stats.count_reason(text);
    }

    #[cold]
    fn wrong(&mut self, why: String) {
        self.stats.wrong += 1;
        self.sample(why);
    }

    fn sample(&mut self, text: String) {
        if self.stats.samples.len() < 5 {
            self.stats.samples.push(text);
        }
    }
}

impl Stats {
    fn new() -> Stats {
        Stats {
            sent: 0,
            right: 0,
            refused: 0,
            raised: 0,
            wrong: 0,
            lost: 0,
            late: 0,
            elapsed: Duration::ZERO,
            cpu: Duration::ZERO,
            bytes_in: 0,
            bytes_out: 0,
            reads: 0,
            writes: 0,
            turns: 0,
            variants: 0,
            // Up to two minutes, three digits.
            latency: Histogram::new_with_bounds(1, 1_200_000_000, 3).expect("constant bounds"),
            reasons: BTreeMap::new(),
            samples: Vec::new(),
        }
    }

    fn count_reason(&mut self, reason: String) {
        // Messages may hold what varies; what is kept of them may not grow without end.
        let key = if self.reasons.len() < 50 || self.reasons.contains_key(&reason) {
            reason
        } else {
            "other".into()
        };
        *self.reasons.entry(key).or_default() += 1;
    }

    /// Sums the runs of several threads.
    pub fn merge(mut self, other: Stats) -> Stats {
        self.sent += other.sent;
        self.right += other.right;
        self.refused += other.refused;
        self.raised += other.raised;
        self.wrong += other.wrong;
        self.lost += other.lost;
        self.late += other.late;
        self.elapsed = self.elapsed.max(other.elapsed);
        self.cpu += other.cpu;
        self.bytes_in += other.bytes_in;
        self.bytes_out += other.bytes_out;
        self.reads += other.reads;
        self.writes += other.writes;
        self.turns += other.turns;
        self.variants = self.variants.max(other.variants);
        self.latency.add(&other.latency).expect("same bounds");
        for (reason, n) in other.reasons {
            *self.reasons.entry(reason).or_default() += n;
        }
        self.samples.extend(other.samples);
        self.samples.truncate(5);
        self
    }

    /// Sums runs that followed each other.
    pub fn append(self, other: Stats) -> Stats {
        let elapsed = self.elapsed + other.elapsed;
        Stats { elapsed, ..self.merge(other) }
    }

    pub fn per_second(&self) -> f64 {
        self.right as f64 / self.elapsed.as_secs_f64()
    }

    pub fn percentile_us(&self, p: f64) -> f64 {
        self.latency.value_at_percentile(p) as f64 * TICK_NS as f64 / 1000.0
    }

    /// Every request has exactly one answer, and each is the one expected.
    pub fn verdict(&self) -> Result<(), String> {
        if self.right == self.sent && self.wrong == 0 {
            return Ok(());
        }
        Err(format!(
            "{} of {} answers right, {} refused, {} raised, {} wrong, {} never answered: {}",
            self.right,
            self.sent,
            self.refused,
            self.raised,
            self.wrong,
            self.lost,
            self.samples.join(" | ")
        ))
    }

    pub fn json(&self) -> serde_json::Value {
        let mut latency = serde_json::Map::new();
        for p in PERCENTILES {
            latency.insert(format!("p{p}"), self.percentile_us(p).into());
        }
        latency.insert("max".into(), (self.latency.max() as f64 * TICK_NS as f64 / 1000.0).into());
        latency.insert("mean".into(), (self.latency.mean() * TICK_NS as f64 / 1000.0).into());
        serde_json::json!({
            "sent": self.sent,
            "right": self.right,
            "refused": self.refused,
            "raised": self.raised,
            "wrong": self.wrong,
            "lost": self.lost,
            "late": self.late,
            "seconds": self.elapsed.as_secs_f64(),
            "per_second": self.per_second(),
            "latency_us": latency,
            "generator": {
                "cpu_us_per_request": self.cpu.as_secs_f64() * 1e6 / self.sent.max(1) as f64,
                "bytes_in": self.bytes_in,
                "bytes_out": self.bytes_out,
                "reads": self.reads,
                "writes": self.writes,
                "turns": self.turns,
                "byte_variants": self.variants,
            },
            "reasons": self.reasons,
            "samples": self.samples,
        })
    }
}

pub const PERCENTILES: [f64; 9] = [10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.99];

/// Type, sync and body of a frame without its length.
#[inline]
fn split_frame(frame: &[u8]) -> Option<(u64, u64, &[u8])> {
    let (&tag, mut rest) = frame.split_first()?;
    if tag & 0xf0 != 0x80 {
        return None;
    }
    let (mut kind, mut sync) = (None, None);
    for _ in 0..tag & 0x0f {
        let key = mp::read_uint(&mut rest)?;
        let value = mp::read_uint(&mut rest)?;
        match key {
            0x00 => kind = Some(value),
            0x01 => sync = Some(value),
            _ => {}
        }
    }
    Some((kind?, sync?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_every_width_are_split() {
        let long = [
            &[0x83, 0x00, 0xce, 0, 0, 0, 0, 0x01, 0xcf][..],
            &7u64.to_be_bytes(),
            &[0x05, 0xce, 0, 0, 0, 80],
        ]
        .concat();
        assert_eq!(split_frame(&[&long[..], &[0x80]].concat()), Some((0, 7, &[0x80][..])));
        assert_eq!(
            split_frame(&[0x82, 0x00, 0xcd, 0x80, 0x20, 0x01, 3, 0x80]),
            Some((0x8020, 3, &[0x80][..]))
        );
        assert_eq!(split_frame(&[0x81, 0x00, 0]), None);
        assert_eq!(split_frame(&[0x82, 0x00]), None);
        assert_eq!(split_frame(&[]), None);
    }
}
