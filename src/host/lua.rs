//! `luaopen_rawshard_native`: the table that `lua/rawshard/native.lua` is given. What waits is in `calls.rs`; what is here
//! never yields, and so may use mlua.

use std::ffi::{CStr, c_int};

use mlua::{FromLuaMulti, Function, IntoLuaMulti, LightUserData, Lua, MultiValue, Table, Value};

use super::admission::AsOf;
use super::failure::Failure;
use super::guard::{self, End};
use super::served::FunctionId;
use super::sys::{self, lua, lua_State};
use super::{calls, config, direct, door, endpoints, future, info, keys, log, object, result, runtime, tx};
use crate::call::key::Keyspace;
use crate::call::raw_args;
use crate::ids::BucketId;
use crate::route::hash::Rules;

/// Where Lua's registry keeps the table, for every later opening by whatever mapping.
const TABLE: &CStr = c"rawshard.native";

/// # Safety
/// Called by Lua: on TX, with its own state.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn luaopen_rawshard_native(l: *mut lua_State) -> c_int {
    tx::adopt();
    // SAFETY: no frame here has anything to drop while Lua is called.
    unsafe {
        match guard::run(door::is_open) {
            End::Done(true) => {}
            End::Done(false) => {
                object::setup(l);
                future::setup(l);
                if !matches!(guard::run(build), End::Done(())) {
                    return guard::raise(l);
                }
                door::publish(l);
            }
            End::Cancelled | End::Failed => return guard::raise(l),
        }
        lua::lua_getfield(l, lua::LUA_REGISTRYINDEX, TABLE.as_ptr());
    }
    1
}

/// Makes the table and leaves it in the registry.
fn build() -> Result<(), Failure> {
    log::init();
    // SAFETY: the main state lives as long as the process. mlua takes the state that it sees first for the one to use
    // outside of callbacks, and any other may be collected.
    let lua = unsafe { Lua::get_or_init_from_ptr(sys::luaT_state()) };
    fill(lua).map_err(|error| Failure::state(format!("rawshard: {error}")))
}

fn fill(lua: &Lua) -> mlua::Result<()> {
    let table = lua.create_table()?;
    table.set("version", door::VERSION)?;
    table.set("abi", door::ABI)?;
    table.set("result", LightUserData(result::address()))?;
    let (has_objects, in_place) = object::support();
    table.set("big", result::BIG)?;
    table.set("has_msgpack_object", has_objects)?;
    table.set("reads_msgpack_object_in_place", in_place)?;
    table.set("future_mt", lua.named_registry_value::<Table>(&future::METATABLE.to_string_lossy())?)?;
    for (name, function) in
        calls::FUNCTIONS.iter().chain(keys::FUNCTIONS).chain(future::FUNCTIONS).chain(direct::FUNCTIONS)
    {
        // SAFETY: they obey the rules of raw C functions, written down in `calls.rs`.
        table.set(name.to_string_lossy(), unsafe { lua.create_c_function(*function)? })?;
    }

    let natives = Natives { lua, table: &table, raising: lua.load(RAISING).set_name("=rawshard").eval()? };
    natives
        .add("router_new", |_, (name, cfg): (String, Table)| runtime::start(name, config::parse(&cfg)?))?;
    natives.add("router_cfg", |_, (id, cfg): (u32, Table)| runtime::reconfigure(id, config::parse(&cfg)?))?;
    natives.add("cfg_check", |_, cfg: Table| config::parse(&cfg).map(|_| ()))?;
    natives.add("router_stop", |_, id: u32| {
        runtime::stop(id);
        Ok(())
    })?;
    natives.add("stop_all", |_, ()| {
        runtime::stop_all();
        Ok(())
    })?;
    natives.add("set_static", |_, id: u32| {
        runtime::router(id)?;
        runtime::RUNTIME.with(|runtime| runtime.static_router = Some(id));
        Ok(())
    })?;
    natives.add("set_enabled", |_, (id, enabled): (u32, bool)| runtime::set_enabled(id, enabled))?;
    natives.add("info", |lua, (id, with_services): (u32, Option<bool>)| {
        let router = runtime::router(id)?;
        info::table(lua, &router, with_services.unwrap_or(false)).map_err(|error| error.to_string())
    })?;
    natives.add("master", |_, (id, rs): (u32, usize)| Ok(info::master(&*runtime::router(id)?, rs)))?;
    natives.add("set_master", |_, (id, rs, i): (u32, usize, Option<usize>)| {
        info::set_master(&*runtime::router(id)?, rs, i);
        Ok(())
    })?;
    natives.add("last_error", |_, (id, rs, i): (u32, usize, usize)| {
        Ok(info::last_error(&*runtime::router(id)?, rs, i))
    })?;
    natives.add("is_connected", |_, (id, rs, i): (u32, usize, usize)| {
        Ok(info::is_connected(&*runtime::router(id)?, rs, i))
    })?;
    natives.add(
        "pick_instance",
        |_, (id, rs, prefer_replica, turn, tried): (u32, usize, bool, Option<u32>, Vec<usize>)| {
            Ok(info::pick_instance(&*runtime::router(id)?, rs, prefer_replica, turn, &tried))
        },
    )?;
    natives.add("instance_health", |_, (id, rs, i): (u32, usize, usize)| {
        Ok(info::marks(&*runtime::router(id)?, rs, i).0)
    })?;
    natives.add("instance_replication", |_, (id, rs, i): (u32, usize, usize)| {
        Ok(info::marks(&*runtime::router(id)?, rs, i).1)
    })?;
    natives.add("instance_backoff", |_, (id, rs, i): (u32, usize, usize)| {
        Ok(info::marks(&*runtime::router(id)?, rs, i).2)
    })?;
    natives.add("known_buckets", |_, (id, rs): (u32, usize)| {
        Ok(info::known_buckets(&*runtime::router(id)?, rs))
    })?;
    natives.add("bucket_get", |_, (id, bucket): (u32, u64)| {
        let router = runtime::router(id)?;
        let owner = router.buckets().get(bucket_id(bucket, router.buckets().count())?);
        let topology = router.topology();
        Ok(owner.and_then(|owner| topology.order.iter().position(|idx| *idx == owner)).map(|at| at + 1))
    })?;
    natives.add("bucket_set", |_, (id, bucket, rs): (u32, u64, Option<usize>)| {
        let router = runtime::router(id)?;
        let bucket = bucket_id(bucket, router.buckets().count())?;
        let Some(rs) = rs else {
            router.buckets().forget(bucket);
            return Ok(());
        };
        let topology = router.topology();
        let owner = rs.checked_sub(1).and_then(|at| topology.order.get(at));
        router.buckets().set(bucket, *owner.ok_or_else(|| format!("there is no replicaset {rs}"))?);
        Ok(())
    })?;
    natives.add("route_map_clear", |_, id: u32| {
        runtime::router(id)?.buckets().clear();
        Ok(())
    })?;
    natives.add("endpoint_bind", |_, (router, id, spec): (u32, Option<u32>, Table)| {
        endpoints::bind(router, id, &spec)
    })?;
    natives.add("endpoint_info", |lua, id: u32| endpoints::info(lua, id))?;
    natives.add("endpoint_refuse", |_, id: u32| {
        endpoints::refuse(id);
        Ok(())
    })?;
    natives.add("path_steps", |lua, text: mlua::LuaString| endpoints::steps(lua, &text.as_bytes()))?;
    // What an engine would make of the arguments of `callraw`: the bucket, or why not. For tests, on hosts of all versions.
    natives.add("raw_bucket", |_, (bytes, bucket_count, rules): (mlua::LuaString, u32, u32)| {
        let keyspace = Keyspace { bucket_count, rules: Rules::from_bits(rules) };
        Ok(match raw_args::read(bytes.as_bytes().to_vec(), keyspace) {
            Ok(read) => (Some(read.bucket.number()), None),
            Err((_, malformed)) => (None, Some(malformed.to_string())),
        })
    })?;
    natives.add("direct_admit", |_, (session, function, changes, logins): (u64, u32, u64, u64)| {
        runtime::RUNTIME.with(|runtime| {
            let function = FunctionId::from_number(function);
            runtime.direct.admission.admit(session, function, AsOf { changes, logins });
        });
        Ok(())
    })?;
    natives.add("direct_forget", |_, session: Option<u64>| {
        runtime::RUNTIME.with(|runtime| match session {
            Some(session) => runtime.direct.admission.forget(session),
            None => {
                runtime.direct.admission.forget_all();
                runtime.direct.names.reconsider();
            }
        });
        Ok(())
    })?;
    natives.add("discovery_wakeup", |_, id: u32| {
        runtime::router(id)?.discovery_wakeup();
        Ok(())
    })?;
    natives.add("discovery_set", |_, (id, mode): (u32, String)| {
        runtime::router(id)?.discovery_set(config::discovery_mode(&mode)?);
        Ok(())
    })?;
    natives.add("master_search_wakeup", |_, id: u32| {
        runtime::router(id)?.master_search_wakeup();
        Ok(())
    })?;
    lua.set_named_registry_value(&TABLE.to_string_lossy(), table)
}

fn bucket_id(number: u64, count: u32) -> Result<BucketId, String> {
    BucketId::new(number, count).ok_or_else(|| format!("bucket_id must be from 1 to {count}, got {number}"))
}

/// mlua raises errors as userdata; these functions raise plain strings. So the native half returns its error, and this
/// half raises it.
const RAISING: &str = "
    local function pass(ok, ...)
        if not ok then
            error((...), 0)
        end
        return ...
    end
    return function(native)
        return function(...)
            return pass(native(...))
        end
    end";

struct Natives<'a> {
    lua: &'a Lua,
    table: &'a Table,
    raising: Function,
}

impl Natives<'_> {
    fn add<A, R>(&self, name: &str, f: impl Fn(&Lua, A) -> Result<R, String> + 'static) -> mlua::Result<()>
    where
        A: FromLuaMulti,
        R: IntoLuaMulti,
    {
        let native = self.lua.create_function(move |lua, args: A| {
            let (ok, mut values): (bool, MultiValue) = match f(lua, args) {
                Ok(value) => (true, value.into_lua_multi(lua)?),
                Err(text) => (false, text.into_lua_multi(lua)?),
            };
            values.push_front(Value::Boolean(ok));
            Ok(values)
        })?;
        self.table.set(name, self.raising.call::<Function>(native)?)
    }
}
