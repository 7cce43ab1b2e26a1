//! The endpoints of this process, and what their calls came to. `lua/rawshard/endpoint.lua` makes them.

use std::sync::Arc;

use mlua::{Lua, Table};

use super::failure::Failure;
use super::park;
use super::runtime::RUNTIME;
use crate::call::endpoint::Endpoint;
use crate::call::key;
use crate::call::raw_args::DEFAULT_TIMEOUT;
use crate::call::request::{Access, Form, Mode, Outcome, Token};
use crate::ids::BucketId;
use crate::route::hash::Hash;
use crate::wire::fit::{self, Unfit};
use crate::wire::mp;
use crate::wire::path::{Path, To};

/// By id - 1. An id is its name's for ever: an endpoint that is bound anew takes the place of the one before.
pub struct Endpoints(Vec<Bound>);

struct Bound {
    router: u32,
    endpoint: Arc<Endpoint>,
    counts: Counts,
    /// How many endpoints were bound in this place before: a call that ends is counted where it began.
    age: u32,
}

/// Of calls since the endpoint was bound.
#[derive(Clone, Copy, Default)]
struct Counts {
    calls: u64,
    /// Ended with an error.
    failed: u64,
    /// Raised one: wrong arguments, no key in them. Nothing was sent.
    refused: u64,
}

impl Endpoints {
    pub const fn new() -> Endpoints {
        Endpoints(Vec::new())
    }

    fn get(&mut self, id: u32) -> Result<&mut Bound, Failure> {
        let slot = (id as usize).checked_sub(1).and_then(|slot| self.0.get_mut(slot));
        slot.ok_or_else(|| Failure::state(format!("rawshard: there is no endpoint {id}")))
    }
}

/// How a call of an endpoint ended.
pub enum Ended {
    WithValues,
    WithError,
    Refused,
}

impl Ended {
    pub fn with(outcome: Outcome) -> Ended {
        match outcome {
            Outcome::Values | Outcome::Push => Ended::WithValues,
            Outcome::Failed => Ended::WithError,
            Outcome::Malformed => Ended::Refused,
        }
    }
}

impl Endpoints {
    pub fn router(&mut self, id: u32) -> Option<u32> {
        self.get(id).ok().map(|bound| bound.router)
    }

    /// Counts a call that begins: what is to be sent, and the age that [`Endpoints::count`] needs.
    pub fn begin(&mut self, id: u32) -> Result<(Arc<Endpoint>, u32), Failure> {
        let bound = self.get(id)?;
        bound.counts.calls += 1;
        Ok((Arc::clone(&bound.endpoint), bound.age))
    }

    /// Counts how a call ended that began when the endpoint was of this `age`. Does nothing if another one has taken its place.
    pub fn count(&mut self, id: u32, age: u32, ended: Ended) {
        let Ok(bound) = self.get(id) else { return };
        if bound.age != age {
            return;
        }
        match ended {
            Ended::WithValues => {}
            Ended::WithError => bound.counts.failed += 1,
            Ended::Refused => bound.counts.refused += 1,
        }
    }
}

/// Takes `spec` for endpoint `id`, or for a new one. Gives the id.
pub fn bind(router: u32, id: Option<u32>, spec: &Table) -> Result<u32, String> {
    let endpoint = Arc::new(parse(spec)?);
    super::runtime::router(router)?;
    let mut bound = Bound { router, endpoint, counts: Counts::default(), age: 0 };
    RUNTIME.with(|runtime| {
        let endpoints = &mut runtime.endpoints;
        match id {
            Some(id) => {
                let place = endpoints.get(id).map_err(|failure| failure.text().to_owned())?;
                bound.age = place.age.wrapping_add(1);
                *place = bound;
                Ok(id)
            }
            None => {
                endpoints.0.push(bound);
                Ok(endpoints.0.len() as u32)
            }
        }
    })
}

fn parse(spec: &Table) -> Result<Endpoint, String> {
    fn field<T: mlua::FromLua>(spec: &Table, name: &str) -> Result<T, String> {
        spec.raw_get(name).map_err(|error| format!("bind: {name}: {error}"))
    }
    let paths: Vec<mlua::LuaString> = field(spec, "key")?;
    let paths =
        paths.iter().enumerate().map(|(i, text)| path(i + 1, &text.as_bytes())).collect::<Result<_, _>>();
    let hash: Option<mlua::LuaString> = field(spec, "hash")?;
    let hash = match hash {
        Some(name) => {
            let named = Hash::named(&name.as_bytes());
            Some(named.ok_or_else(|| format!("bind: hash '{}' is unknown", name.to_string_lossy()))?)
        }
        None => None,
    };
    let func: mlua::LuaString = field(spec, "func")?;
    let flags: u32 = field(spec, "flags")?;
    let mode = if flags & 1 != 0 { Mode::Read } else { Mode::Write };
    let access = Access { mode, prefer_replica: flags & 2 != 0, balance: flags & 4 != 0 };
    let timeout = |seconds: f64| {
        std::time::Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(std::time::Duration::MAX)
    };
    let attempt: Option<f64> = field(spec, "request_timeout")?;
    Ok(Endpoint::new(
        field(spec, "name")?,
        &func.as_bytes(),
        paths?,
        hash,
        access,
        field::<Option<f64>>(spec, "timeout")?.map_or(DEFAULT_TIMEOUT, timeout),
        attempt.map(timeout).filter(|_| mode == Mode::Read),
    ))
}

fn path(number: usize, text: &[u8]) -> Result<Path, String> {
    Path::new(text).map_err(|fault| format!("bind: key {number}: path '{}': {fault}", key::short(text)))
}

/// The steps of a path, indexes as numbers and names as strings, and how much of its text stands before each.
pub fn steps(lua: &Lua, text: &[u8]) -> Result<(Table, Table), String> {
    let path = path(1, text)?;
    let made = || {
        let (steps, starts) = (lua.create_table()?, lua.create_table()?);
        for step in path.steps() {
            match step.to {
                To::Index(index) => steps.raw_push(index as f64)?,
                To::Key(name) => steps.raw_push(lua.create_string(name)?)?,
            }
            starts.raw_push(step.start)?;
        }
        Ok((steps, starts))
    };
    made().map_err(|error: mlua::Error| error.to_string())
}

/// `calls`, `failed`, `refused`.
pub fn info(lua: &Lua, id: u32) -> Result<Table, String> {
    let counts = RUNTIME
        .with(|runtime| runtime.endpoints.get(id).map(|bound| bound.counts))
        .map_err(|failure| failure.text().to_owned())?;
    let made = || {
        let table = lua.create_table()?;
        table.set("calls", counts.calls)?;
        table.set("failed", counts.failed)?;
        table.set("refused", counts.refused)?;
        Ok(table)
    };
    made().map_err(|error: mlua::Error| error.to_string())
}

/// Counts a call that begins. Gives what [`count`] needs when it ends.
pub fn begin(id: u32) -> Result<u32, Failure> {
    RUNTIME.with(|runtime| Ok(runtime.endpoints.begin(id)?.1))
}

/// Sends a call of an endpoint. `bucket` is given where a Lua function has found it.
pub fn post(id: u32, args: &[u8], bucket: Option<f64>) -> Result<Token, Failure> {
    let (router, form) = RUNTIME.with(|runtime| {
        let bound = runtime.endpoints.get(id)?;
        let (router, endpoint) = (bound.router, Arc::clone(&bound.endpoint));
        let entry = runtime.routers.get(router)?;
        if !entry.enabled {
            return Err(Failure::state("Router is disabled: router is disabled explicitly"));
        }
        // Checked in Lua. The cast saturates, and what it saturates to is out of range.
        let bucket = bucket.and_then(|number| BucketId::new(number as u64, entry.bucket_count));
        Ok((router, Form::Endpoint(endpoint, bucket)))
    })?;
    park::post_raw(router, form, args)
}

/// As [`Endpoints::count`].
pub fn count(id: u32, age: u32, ended: Ended) {
    RUNTIME.with(|runtime| runtime.endpoints.count(id, age, ended));
}

/// Counts a call that ended before it could be posted.
pub fn refuse(id: u32) {
    RUNTIME.with(|runtime| {
        if let Ok(bound) = runtime.endpoints.get(id) {
            bound.counts.calls += 1;
            bound.counts.refused += 1;
        }
    });
}

/// Levels of a key that the host's decoder is given. It recurses, and has crashed by some thousands.
pub const MAX_DEPTH: usize = 1024;

/// Why a key is not given to the host's decoder, behind what names the key.
pub fn unfit(why: Unfit) -> String {
    match why {
        Unfit::TooDeep => format!("can not be decoded: it is nested deeper than {MAX_DEPTH} levels"),
        Unfit::Extension => {
            "can not be decoded: a MessagePack extension in it is damaged or unknown".to_owned()
        }
    }
}

/// Writes the sharding key in `args`, for the host to decode: the value where the one path leads, or an array of what several
/// find. Tuples become arrays.
pub fn write_key(id: u32, args: &[u8], out: &mut Vec<u8>) -> Result<(), Failure> {
    let endpoint =
        RUNTIME.with(|runtime| runtime.endpoints.get(id).map(|bound| Arc::clone(&bound.endpoint)))?;
    let fault = |text: String| Failure::arguments(format!("{}: {text}", endpoint.name));
    let plain = key::without_tuples(args);
    let args = plain.as_deref().unwrap_or(args);
    if endpoint.paths.len() > 1 {
        mp::write_array_len(out, endpoint.paths.len() as u32);
    }
    for path in &endpoint.paths {
        let mut found = key::find_key(args, path).map_err(fault)?;
        out.extend_from_slice(found.span().map_err(|broken| fault(broken.to_string()))?);
    }
    fit::fit_for_host(out, MAX_DEPTH).map_err(|why| fault(format!("the sharding key {}", unfit(why))))
}
