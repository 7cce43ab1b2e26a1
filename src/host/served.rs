//! The functions whose calls need no Lua and no fiber, by the names under which the host knows them.

use std::collections::BTreeMap;

use super::globals::Global;

/// Names one function for all times.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FunctionId(u32);

/// What a function does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Job {
    /// The stored function `rawshard.callraw`.
    Stored,
    /// `callraw` of Lua, under whatever name.
    Callraw,
    /// The function of the endpoint with this id.
    Endpoint(u32),
}

/// Set in ids of [`Job::Callraw`].
const CALLRAW: u32 = 1 << 31;

impl FunctionId {
    pub const STORED: FunctionId = FunctionId(0);

    pub fn endpoint(id: u32) -> FunctionId {
        FunctionId(id & !CALLRAW)
    }

    pub fn job(self) -> Job {
        match self.0 {
            0 => Job::Stored,
            id if id & CALLRAW != 0 => Job::Callraw,
            id => Job::Endpoint(id),
        }
    }

    pub fn number(self) -> u32 {
        self.0
    }

    pub fn from_number(number: u32) -> FunctionId {
        FunctionId(number)
    }
}

pub struct Names {
    known: BTreeMap<Vec<u8>, Name>,
    /// How many there are of [`Job::Callraw`].
    callraws: u32,
}

enum Name {
    /// As long as the global is the function.
    Ours(FunctionId, Global),
    Foreign,
}

pub enum Found {
    Ours(FunctionId),
    /// Nothing that is served here.
    Foreign,
    Unknown,
}

const STORED: &[u8] = b"rawshard.callraw";

/// `BOX_NAME_MAX`: no function's name is longer, so that what a peer sends as one is not kept.
const LONGEST: usize = 65_000;

/// Names that are not ours are noted so that nobody asks for them again.
const MOST_NAMES: usize = 10_000;

impl Names {
    pub const fn new() -> Names {
        Names { known: BTreeMap::new(), callraws: 0 }
    }

    pub fn find(&self, name: &[u8]) -> Found {
        if name == STORED {
            return Found::Ours(FunctionId::STORED);
        }
        match self.known.get(name) {
            Some(Name::Ours(id, global)) if global.is_in_place() => Found::Ours(*id),
            // Somebody has put another function into its place, which may be a newer one of ours.
            Some(Name::Ours(FunctionId(id), _)) if id & CALLRAW != 0 => Found::Unknown,
            Some(Name::Ours(..) | Name::Foreign) => Found::Foreign,
            None if name.len() > LONGEST => Found::Foreign,
            None => Found::Unknown,
        }
    }

    /// The function of an endpoint needs no Lua; None: it does.
    pub fn set_endpoint(&mut self, name: &[u8], id: u32, global: Option<Global>) {
        let name = name.to_vec();
        _ = match global {
            Some(global) => self.known.insert(name, Name::Ours(FunctionId::endpoint(id), global)),
            None => self.known.insert(name, Name::Foreign),
        };
    }

    /// What has this name is `callraw` if that is in place, and none of ours else. Its id.
    pub fn set_callraw(&mut self, name: &[u8], global: Option<Global>) -> Option<FunctionId> {
        self.forget_foreign();
        match global {
            Some(global) => {
                let id = match self.known.get(name) {
                    Some(Name::Ours(id, _)) => *id,
                    Some(Name::Foreign) | None => {
                        self.callraws += 1;
                        FunctionId(CALLRAW | self.callraws)
                    }
                };
                self.known.insert(name.to_vec(), Name::Ours(id, global));
                Some(id)
            }
            None => {
                self.known.insert(name.to_vec(), Name::Foreign);
                None
            }
        }
    }

    /// Functions may have been made or dropped.
    pub fn reconsider(&mut self) {
        self.known.retain(|_, name| !matches!(name, Name::Foreign));
    }

    fn forget_foreign(&mut self) {
        if self.known.len() >= MOST_NAMES {
            self.reconsider();
        }
    }
}
