//! What one process has once: the routers, the calls that wait for their answers, and the answer that Lua looks at.
//!
//! It lives in the statics of the mapping of this library that was loaded first as a Lua module; `door.rs` leads the
//! other ones here. Only the TX thread comes in.

use std::sync::Arc;

use super::answers::Answers;
use super::bell::Bell;
use super::buffers::Buffers;
use super::completion::Completion;
use super::direct::Direct;
use super::endpoints::{Ended, Endpoints};
use super::failure::Failure;
use super::result::Held;
use super::tx::TxCell;
use super::waiters::Waiters;
use crate::call::request::Reply;
use crate::control::config::Config;
use crate::engine::inbox::Message;
use crate::router::Router;

pub static RUNTIME: TxCell<Runtime> = TxCell::new(Runtime::new());

pub struct Runtime {
    pub routers: Routers,
    /// The one that both `callraw` use.
    pub static_router: Option<u32>,
    /// Made with the first router.
    pub bell: Option<Arc<Bell>>,
    pub completion: Completion,
    pub waiters: Waiters,
    pub direct: Direct,
    pub answers: Answers,
    pub buffers: Buffers,
    pub held: Held,
    pub endpoints: Endpoints,
}

/// What a call hears that comes before any configuration.
pub const NOT_CONFIGURED: &str =
    "rawshard: no router is configured: call require('rawshard.router').cfg(...) first";

/// By id - 1. Ids are never reused, so that a stale one finds nothing.
pub struct Routers(Vec<Option<Entry>>);

pub struct Entry {
    pub router: Arc<Router>,
    pub name: String,
    pub bucket_count: u32,
    /// vshard's enable() and disable(). The Lua layer asks its own flag; this one is for the stored function.
    pub enabled: bool,
    /// By engine: what is to be sent at the end of this turn of the event loop.
    pub outgoing: Vec<Vec<Message>>,
}

impl Entry {
    pub fn flush(&mut self) {
        for (engine, messages) in self.outgoing.iter_mut().enumerate() {
            if !messages.is_empty() {
                self.router.post_all(engine, messages);
            }
        }
    }
}

impl Runtime {
    const fn new() -> Runtime {
        Runtime {
            routers: Routers(Vec::new()),
            static_router: None,
            bell: None,
            completion: Completion::new(),
            waiters: Waiters::new(),
            direct: Direct::new(),
            answers: Answers::new(),
            buffers: Buffers::new(),
            held: Held::new(),
            endpoints: Endpoints::new(),
        }
    }

    /// The static router and its id.
    pub fn static_entry(&self) -> Result<(u32, &Entry), Failure> {
        let id = self.static_router.ok_or_else(|| Failure::state(NOT_CONFIGURED))?;
        Ok((id, self.routers.get(id)?))
    }

    /// Hands an answer to whom it is for.
    pub fn deliver(&mut self, reply: Reply) {
        let Runtime { waiters, direct, answers, buffers, endpoints, .. } = self;
        if let Some((remote, reply)) = waiters.deliver(reply, buffers) {
            direct.ended(&remote, Ended::with(reply.outcome), endpoints);
            answers.push(remote, reply);
        }
    }

    /// Ends the waits for routers that `gone` names.
    pub fn abandon(&mut self, gone: impl Fn(u32) -> bool) {
        let Runtime { waiters, direct, answers, endpoints, .. } = self;
        waiters.abandon(gone, |remote| {
            direct.ended(&remote, Ended::Refused, endpoints);
            answers.push_abandoned(remote);
        });
    }

    fn bell(&mut self) -> Result<Arc<Bell>, String> {
        if let Some(bell) = &self.bell {
            return Ok(Arc::clone(bell));
        }
        let bell = Arc::new(Bell::new().map_err(|error| format!("can not create an eventfd: {error}"))?);
        self.bell = Some(Arc::clone(&bell));
        Ok(bell)
    }
}

impl Routers {
    pub fn get(&self, id: u32) -> Result<&Entry, Failure> {
        let slot = (id as usize).checked_sub(1).and_then(|slot| self.0.get(slot));
        slot.and_then(Option::as_ref)
            .ok_or_else(|| Failure::state(format!("rawshard: router {id} is stopped")))
    }

    /// None: no router has had this id yet.
    pub fn slot(&self, id: u32) -> Option<Option<&Entry>> {
        self.0.get((id as usize).checked_sub(1)?).map(Option::as_ref)
    }

    /// For sending something.
    pub fn serving(&mut self, id: u32) -> Result<&mut Entry, Failure> {
        self.get_mut(id).ok_or_else(|| Failure::state(format!("rawshard: router {id} is stopped")))
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Entry> {
        self.0.iter_mut().flatten()
    }

    pub fn get_mut(&mut self, id: u32) -> Option<&mut Entry> {
        self.0.get_mut((id as usize).checked_sub(1)?)?.as_mut()
    }

    fn insert(&mut self, entry: Entry) -> u32 {
        self.0.push(Some(entry));
        self.0.len() as u32
    }

    fn remove(&mut self, id: u32) -> Option<Entry> {
        self.0.get_mut((id as usize).checked_sub(1)?)?.take()
    }

    fn ids(&self) -> Vec<u32> {
        (1..).zip(&self.0).filter(|(_, entry)| entry.is_some()).map(|(id, _)| id).collect()
    }
}

/// Starts a router.
pub fn start(name: String, config: Config) -> Result<u32, String> {
    let bell = RUNTIME.with(Runtime::bell)?;
    let bucket_count = config.bucket_count;
    let router = Arc::new(Router::start(config, bell).map_err(|error| error.to_string())?);
    log::info!("router '{name}' is started");
    let outgoing = (0..router.engine_count()).map(|_| Vec::new()).collect();
    let entry = Entry { router, name, bucket_count, enabled: true, outgoing };
    Ok(RUNTIME.with(|runtime| runtime.routers.insert(entry)))
}

pub fn reconfigure(id: u32, config: Config) -> Result<(), String> {
    router(id)?.reconfigure(config).map_err(|error| error.to_string())
}

pub fn set_enabled(id: u32, enabled: bool) -> Result<(), String> {
    RUNTIME.with(|runtime| match runtime.routers.get_mut(id) {
        Some(entry) => {
            entry.enabled = enabled;
            Ok(())
        }
        None => Err(format!("rawshard: router {id} is stopped")),
    })
}

pub fn router(id: u32) -> Result<Arc<Router>, String> {
    RUNTIME
        .with(|runtime| runtime.routers.get(id).map(|entry| Arc::clone(&entry.router)))
        .map_err(|failure| failure.text().to_owned())
}

/// Stops a router; nobody waits for it afterwards. Does nothing the second time.
pub fn stop(id: u32) {
    let Some(mut entry) = RUNTIME.with(|runtime| runtime.routers.remove(id)) else { return };
    entry.flush();
    entry.router.stop();
    let mut replies = Vec::new();
    entry.router.take_replies(&mut replies);
    RUNTIME.with(|runtime| {
        for reply in replies {
            runtime.deliver(reply);
        }
        // Every call has had its answer by now. Should one not, its fiber must not wait for ever.
        runtime.abandon(|router| router == id);
        runtime.send_soon();
    });
    log::info!("router '{}' is stopped", entry.name);
}

/// At the end of the process.
pub fn stop_all() {
    RUNTIME.with(|runtime| runtime.direct.ending = true);
    for id in RUNTIME.with(|runtime| runtime.routers.ids()) {
        stop(id);
    }
}
