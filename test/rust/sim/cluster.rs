//! The simulated cluster: replicasets with buckets, instances that answer requests as vshard's storage does, and a book
//! of what was run.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::common::server::{self, Request};
use crate::common::value::Value;

/// Where a bucket is in its life, on one replicaset. `to` and `from` are ids of replicasets.
#[derive(Clone, Debug, PartialEq)]
pub enum Bucket {
    Active,
    Sending { to: String },
    Receiving { from: String },
    Sent { to: Option<String> },
}

pub struct Shard {
    pub id: String,
    pub buckets: BTreeMap<u64, Bucket>,
    /// Refused with BUCKET_IS_LOCKED.
    pub locked: HashSet<u64>,
    pub master: Option<usize>,
}

/// A whole instance: what it is and how it behaves.
pub struct Storage {
    pub id: String,
    pub uuid: String,
    /// What it says when asked; None: it has none yet.
    pub name: Option<String>,
    /// As its greeting shows it. Watchers came with 2.10.
    pub version: &'static str,
    pub shard: usize,
    pub port: u16,
    /// User and password that it asks for.
    pub login: Option<(String, String)>,
    /// Connects are refused while not.
    pub up: bool,
    /// Its main thread is stuck: connects succeed, bytes are not read.
    pub frozen: bool,
    /// Connects are neither accepted nor refused.
    pub unreachable: bool,
    /// vshard.storage.disable()
    pub disabled: bool,
    /// Status, lag and idle time of a replica's upstream, as it tells them; None: it has none.
    pub upstream: Option<(&'static str, f64, f64)>,
    /// A NON_MASTER refusal names the master.
    pub names_master: bool,
    /// Rows looked at for one page of discovery.
    pub page: u64,
    /// Asked before anything else; None: as usual.
    pub hook: Option<Hook>,
}

pub type Hook = Box<dyn FnMut(&Request) -> Option<Reaction>>;

/// How an instance takes a request.
#[derive(Clone, Debug)]
pub enum Reaction {
    /// Frames to send, after so many microseconds.
    Answer(u64, Vec<u8>),
    Silence,
    /// These bytes, then the connection is closed.
    Break(Vec<u8>),
}

#[derive(Default)]
pub struct Cluster {
    pub shards: Vec<Shard>,
    pub storages: Vec<Storage>,
    /// How often the function of a call was run, by the call's id.
    pub executed: HashMap<u64, u32>,
    /// Ids of calls in the order in which they were run.
    pub order: Vec<u64>,
    /// How often which function was called on which instance.
    pub asked: HashMap<(usize, String), u64>,
}

impl Cluster {
    pub fn at_port(&self, port: u16) -> Option<usize> {
        self.storages.iter().position(|storage| storage.port == port)
    }

    pub fn by_id(&self, id: &str) -> usize {
        self.storages.iter().position(|storage| storage.id == id).expect("an instance of this id")
    }

    pub fn storage(&mut self, id: &str) -> &mut Storage {
        let number = self.by_id(id);
        &mut self.storages[number]
    }

    pub fn shard(&mut self, id: &str) -> &mut Shard {
        self.shards.iter_mut().find(|shard| shard.id == id).expect("a replicaset of this id")
    }

    pub fn executions(&self, call: u64) -> u32 {
        self.executed.get(&call).copied().unwrap_or(0)
    }

    /// Calls of `func` on one instance, or on all.
    pub fn asked(&self, storage: Option<&str>, func: &str) -> u64 {
        let number = storage.map(|id| self.by_id(id));
        let counted =
            |(at, name): &(usize, String)| name == func && number.is_none_or(|number| number == *at);
        self.asked.iter().filter(|(key, _)| counted(key)).map(|(_, count)| count).sum()
    }

    /// Moves a bucket in one step.
    pub fn move_bucket(&mut self, bucket: u64, from: &str, to: &str) {
        self.shard(from).buckets.insert(bucket, Bucket::Sent { to: Some(to.into()) });
        self.shard(to).buckets.insert(bucket, Bucket::Active);
    }

    /// The first step of a move.
    pub fn send_bucket(&mut self, bucket: u64, from: &str, to: &str) {
        self.shard(from).buckets.insert(bucket, Bucket::Sending { to: to.into() });
        self.shard(to).buckets.insert(bucket, Bucket::Receiving { from: from.into() });
    }

    pub fn answer(&mut self, at: usize, request: &Request) -> Reaction {
        if request.kind == server::TYPE_CALL {
            *self.asked.entry((at, request.func().into())).or_default() += 1;
        }
        if let Some(hook) = &mut self.storages[at].hook
            && let Some(reaction) = hook(request)
        {
            return reaction;
        }
        match request.kind {
            server::TYPE_PING => Reaction::Answer(0, server::ok(request.sync)),
            server::TYPE_CALL => self.call(at, request),
            server::TYPE_WATCH => {
                assert_ne!(self.storages[at].version, "2.6.0", "it knows no watchers");
                assert_eq!(request.watched(), "box.shutdown");
                Reaction::Answer(0, server::event(request.sync, request.watched(), None))
            }
            other => panic!("the router sent a request of type {other}"),
        }
    }

    fn call(&mut self, at: usize, request: &Request) -> Reaction {
        let sync = request.sync;
        if request.func().starts_with("vshard.") && self.storages[at].disabled {
            let json = r#"{"type":"ShardingError","code":33,"name":"STORAGE_IS_DISABLED","message":"off"}"#;
            return Reaction::Answer(0, server::error(sync, server::ER_PROC_LUA, json));
        }
        match request.func() {
            "vshard.storage.call" => self.storage_call(at, request),
            "vshard.storage.bucket_stat" => self.bucket_stat(at, request),
            "vshard.storage.buckets_discovery" => self.discovery(at, request),
            "vshard.storage._call" => {
                let is_master = self.shards[self.storages[at].shard].master == Some(at);
                let name = self.storages[at].name.as_deref().map_or(Value::Nil, Value::str);
                let args = request.args();
                assert_eq!(args.first().and_then(Value::text), Some("info"));
                let mut info =
                    vec![(Value::str("is_master"), Value::Bool(is_master)), (Value::str("name"), name)];
                if args.get(1).and_then(|opts| opts.field("with_health")) == Some(&Value::Bool(true)) {
                    let upstream =
                        if is_master { Some(("follow", 0.0, 0.0)) } else { self.storages[at].upstream };
                    let health = upstream.map(|(status, lag, idle)| {
                        let all = [
                            ("status", Value::str(status)),
                            ("lag", Value::F64(lag)),
                            ("idle", Value::F64(idle)),
                        ];
                        Value::map([("master_upstream", Value::map(all))])
                    });
                    // An empty Lua table is an array.
                    info.push((Value::str("health"), health.unwrap_or(Value::Array(vec![]))));
                }
                Reaction::Answer(0, server::values(sync, &[Value::Map(info)]))
            }
            func => {
                let args = request.raw_args();
                match self.run(func, args) {
                    Ran::Values { delay, count, data } => {
                        Reaction::Answer(delay, server::raw_values(sync, count, &data))
                    }
                    Ran::Raised(_) => Reaction::Answer(0, server::error(sync, server::ER_PROC_LUA, "boom")),
                    Ran::Silent => Reaction::Silence,
                }
            }
        }
    }

    fn storage_call(&mut self, at: usize, request: &Request) -> Reaction {
        let sync = request.sync;
        let [Value::Uint(bucket), Value::Str(mode), Value::Str(func), Value::Array(_)] = request.args()
        else {
            panic!("vshard.storage.call takes bucket, mode, function and arguments: {:?}", request.args());
        };
        if let Some(refusal) = self.refusal(at, *bucket, mode == b"write") {
            return Reaction::Answer(0, server::values(sync, &[Value::Nil, refusal]));
        }
        let func = String::from_utf8(func.clone()).expect("tests name functions in ASCII");
        match self.run(&func, last_item(request.raw_args())) {
            Ran::Values { delay, count, mut data } => {
                data.insert(0, 0xc3);
                Reaction::Answer(delay, server::raw_values(sync, count + 1, &data))
            }
            Ran::Raised(error) => Reaction::Answer(0, server::values(sync, &[Value::Bool(false), error])),
            Ran::Silent => Reaction::Silence,
        }
    }

    /// storage/init.lua: bucket_check_state.
    fn refusal(&self, at: usize, bucket: u64, is_write: bool) -> Option<Value> {
        let storage = &self.storages[at];
        let shard = &self.shards[storage.shard];
        let refuse = |code, name, destination: Option<&String>| {
            let id = ("bucket_id", Value::Uint(bucket));
            Some(match destination {
                Some(to) => Value::sharding_error(code, name, [id, ("destination", Value::str(to))]),
                None => Value::sharding_error(code, name, [id]),
            })
        };
        if shard.locked.contains(&bucket) {
            return refuse(22, "BUCKET_IS_LOCKED", None);
        }
        match (shard.buckets.get(&bucket), is_write) {
            (Some(Bucket::Active), true) if shard.master != Some(at) => {
                let ids = [("replica", Value::str(&storage.id)), ("replicaset", Value::str(&shard.id))];
                let Value::Map(mut error) = Value::sharding_error(2, "NON_MASTER", ids) else {
                    unreachable!()
                };
                if let Some(master) = shard.master.filter(|_| storage.names_master) {
                    error.push((Value::str("master"), Value::str(&self.storages[master].id)));
                }
                Some(Value::Map(error))
            }
            (Some(Bucket::Active), _) | (Some(Bucket::Sending { .. }), false) => None,
            (Some(Bucket::Sending { to: other } | Bucket::Receiving { from: other }), true) => {
                refuse(7, "TRANSFER_IS_IN_PROGRESS", Some(other))
            }
            (Some(Bucket::Receiving { from }), false) => refuse(1, "WRONG_BUCKET", Some(from)),
            (Some(Bucket::Sent { to }), _) => refuse(1, "WRONG_BUCKET", to.as_ref()),
            (None, _) => refuse(1, "WRONG_BUCKET", None),
        }
    }

    fn bucket_stat(&self, at: usize, request: &Request) -> Reaction {
        let Some(Value::Uint(bucket)) = request.args().first() else { panic!("bucket_stat takes a bucket") };
        // Keys as tuple:tomap gives them: numbers and names.
        let stat = |status: &str| {
            Value::Map(vec![
                (Value::Uint(1), Value::Uint(*bucket)),
                (Value::Uint(2), Value::str(status)),
                (Value::str("id"), Value::Uint(*bucket)),
                (Value::str("status"), Value::str(status)),
            ])
        };
        let wrong = Value::sharding_error(1, "WRONG_BUCKET", [("bucket_id", Value::Uint(*bucket))]);
        let answer = match self.shards[self.storages[at].shard].buckets.get(bucket) {
            Some(Bucket::Active) => vec![stat("active"), Value::Nil],
            Some(Bucket::Sending { .. }) => vec![stat("sending"), Value::Nil],
            Some(_) => vec![stat("sent"), wrong],
            None => vec![Value::Nil, wrong],
        };
        Reaction::Answer(0, server::values(request.sync, &answer))
    }

    fn discovery(&self, at: usize, request: &Request) -> Reaction {
        let storage = &self.storages[at];
        let from =
            request.args()[0].field("from").and_then(Value::uint).expect("discovery asks from a bucket on");
        let rows: Vec<(&u64, &Bucket)> =
            self.shards[storage.shard].buckets.range(from..).take(storage.page as usize).collect();
        let active =
            rows.iter().filter(|(_, state)| **state == Bucket::Active).map(|(id, _)| Value::Uint(**id));
        let mut page = vec![(Value::str("buckets"), Value::Array(active.collect()))];
        if let Some((last, _)) = rows.last().filter(|_| rows.len() as u64 == storage.page) {
            page.push((Value::str("next_from"), Value::Uint(**last + 1)));
        }
        Reaction::Answer(0, server::values(request.sync, &[Value::Map(page)]))
    }

    /// A user's function. Its first argument is the id of the call.
    fn run(&mut self, func: &str, raw_args: &[u8]) -> Ran {
        let args = Value::only(raw_args).expect("arguments are one array");
        let Some(id) = args.items().first().and_then(Value::uint) else { panic!("no call id: {args:?}") };
        *self.executed.entry(id).or_default() += 1;
        self.order.push(id);
        let number = || args.items()[1].uint().expect("a number");
        let values = |delay: u64, values: &[Value]| {
            let data = values.iter().flat_map(Value::bytes).collect();
            Ran::Values { delay, count: values.len(), data }
        };
        match func {
            "echo" => Ran::Values { delay: 0, count: args.items().len(), data: items(raw_args).to_vec() },
            "slow" => values(number(), &[Value::Uint(id)]),
            "big" => values(0, &[Value::Uint(id), Value::Bin(vec![id as u8; number() as usize])]),
            "nothing" => values(0, &[]),
            "nilerr" => values(
                0,
                &[Value::Nil, Value::sharding_error(1, "WRONG_BUCKET", [("call", Value::Uint(id))])],
            ),
            "boom" => Ran::Raised(Value::map([
                ("type", Value::str("ClientError")),
                ("code", Value::Uint(32)),
                ("message", Value::str("boom")),
                ("call", Value::Uint(id)),
            ])),
            // A user's error that looks like a refusal.
            "mimic" => Ran::Raised(Value::sharding_error(1, "WRONG_BUCKET", [("call", Value::Uint(id))])),
            "never" => Ran::Silent,
            other => panic!("no function {other}"),
        }
    }
}

enum Ran {
    Values { delay: u64, count: usize, data: Vec<u8> },
    Raised(Value),
    Silent,
}

/// What stands in an array of fewer than 16 items, or behind a longer header.
pub fn items(array: &[u8]) -> &[u8] {
    match array[0] {
        0xdc => &array[3..],
        0xdd => &array[5..],
        _ => &array[1..],
    }
}

fn last_item(array: &[u8]) -> &[u8] {
    let mut rest = items(array);
    loop {
        let (_, len) = Value::decode(rest).expect("well-formed arguments");
        if len == rest.len() {
            return rest;
        }
        rest = &rest[len..];
    }
}
