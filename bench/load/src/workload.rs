//! What is sent and what must come back: the seven proxy workloads, and a few of our own.

use crate::mp;
use crate::template::{Field, Template};

/// A function on the storages, its arguments, and what it returns.
pub struct Workload {
    pub func: &'static str,
    /// MessagePack array of the arguments.
    pub args: Template,
    /// The returned values, each one a MessagePack value.
    pub values: Vec<Template>,
    /// Paths to the sharding key in the arguments, for entries that are told so.
    pub key: &'static [&'static str],
}

/// The first argument.
const FIRST: &[&str] = &["[1]"];

/// How the arguments of the called entry are laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// `[bucket_id, opts, func, args, call_opts]`: the raw entry, and whatever forwards in its place.
    Callraw,
    /// The same with `{path = …}` in the place of the bucket id.
    Keyed,
    /// `[bucket_id, mode, func, args]`: `vshard.storage.call`.
    Storage,
    /// The arguments alone: the function is called with no router between.
    Plain,
}

/// What the called entry returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Returns {
    /// The values of the workload.
    Values,
    /// `true`, then the values of the workload.
    StatusAndValues,
    /// Its own arguments, as one array, bit for bit.
    Args,
    Nothing,
}

pub const NAMES: [&str; 7] = ["T1", "T2", "T3", "T4", "T5", "T6", "T7"];

/// Functions of bench/storage.lua.
pub const SELECT_T5: &str = "bench_select_t5";
pub const SELECT_T6: &str = "bench_select_t6";

impl Workload {
    pub fn by_name(name: &str) -> Result<Workload, String> {
        let size = |s: &str| s.parse::<usize>().map_err(|_| format!("workload {name}: size is not a number"));
        Ok(match name {
            "T0" => Workload {
                func: "bench_echo",
                args: Template::new(|b, _| mp::array(b, 0)),
                values: Vec::new(),
                key: FIRST,
            },
            "T1" => echo(|b| mp::uint(b, 1)),
            "T2" => echo(|b| {
                mp::array(b, 10);
                for _ in 0..10 {
                    wrapped(b, 5, number);
                }
            }),
            "T3" => echo(t3),
            "T4" => echo(|b| {
                mp::array(b, 4);
                for i in 0..4 {
                    big_object(b, i);
                }
            }),
            "T5" => select(SELECT_T5, tuples_t5),
            "T6" => select(SELECT_T6, tuples_t6),
            "T7" => echo(|b| {
                mp::array(b, 20);
                for _ in 0..20 {
                    number(b);
                }
            }),
            _ if name.starts_with("size:") => {
                let len = size(&name["size:".len()..])?;
                echo(|b| mp::string(b, &"x".repeat(len)))
            }
            // Every call carries its own number and gets it back: an answer that belongs to another call shows.
            _ if name.starts_with("id:") => {
                let len = size(&name["id:".len()..])?;
                let value = Template::new(|b, patches| {
                    mp::array(b, 2);
                    patches.push(Field::Id.write(b));
                    mp::string(b, &"x".repeat(len));
                });
                Workload {
                    func: "bench_echo",
                    args: Template::new(|b, patches| {
                        mp::array(b, 1);
                        value.append_to(b, patches);
                    }),
                    values: vec![value],
                    key: FIRST,
                }
            }
            // The sharding key is an argument of its own, another one in each call; T3 has a second part of it inside.
            "key:T3" => keyed(&["[1]", "[2][1][1][1][1][1].id"], t3),
            _ if name.starts_with("key:") => {
                let len = size(&name["key:".len()..])?;
                keyed(FIRST, |b| mp::string(b, &"x".repeat(len)))
            }
            _ => return Err(format!("unknown workload {name}: T0-T7, size:N, id:N, key:T3 or key:N")),
        })
    }

    /// The whole CALL frame.
    pub fn request(&self, entry: &str, shape: Shape, timeout: f64) -> Template {
        Template::new(|b, patches| {
            b.extend_from_slice(&[0xce, 0, 0, 0, 0]);
            mp::map(b, 2);
            b.extend_from_slice(&[0x00, 0x0a, 0x01]);
            patches.push(Field::Sync.write(b));
            mp::map(b, 2);
            mp::uint(b, 0x22);
            mp::string(b, entry);
            mp::uint(b, 0x21);
            self.entry_args(shape, timeout).append_to(b, patches);
            let len = (b.len() - 5) as u32;
            b[1..5].copy_from_slice(&len.to_be_bytes());
        })
    }

    /// The arguments of the entry, as it is given them.
    pub fn entry_args(&self, shape: Shape, timeout: f64) -> Template {
        Template::new(|b, patches| match shape {
            Shape::Callraw | Shape::Keyed => {
                mp::array(b, 5);
                if shape == Shape::Keyed {
                    mp::map(b, 1);
                    mp::string(b, "path");
                    mp::array(b, self.key.len() as u32);
                    self.key.iter().for_each(|path| mp::string(b, path));
                } else {
                    patches.push(Field::Bucket.write(b));
                }
                mp::map(b, 2);
                mp::string(b, "mode");
                mp::string(b, "read");
                mp::string(b, "balance");
                mp::boolean(b, true);
                mp::string(b, self.func);
                self.args.append_to(b, patches);
                mp::map(b, 1);
                mp::string(b, "timeout");
                if timeout.fract() == 0.0 { mp::uint(b, timeout as u64) } else { mp::float(b, timeout) }
            }
            Shape::Storage => {
                mp::array(b, 4);
                patches.push(Field::Bucket.write(b));
                mp::string(b, "read");
                mp::string(b, self.func);
                self.args.append_to(b, patches);
            }
            Shape::Plain => self.args.append_to(b, patches),
        })
    }

    /// The bodies of an answer that are right: IPROTO's data array with the returned values in it, and the same
    /// wrapped in one more array (results of C functions before Tarantool 3, and vshard's `return_raw`).
    pub fn answers(&self, shape: Shape, timeout: f64, returns: Returns) -> Vec<Template> {
        let status = Template::new(|b, _| mp::boolean(b, true));
        let args;
        let values: Vec<&Template> = match returns {
            Returns::Values => self.values.iter().collect(),
            Returns::StatusAndValues => std::iter::once(&status).chain(&self.values).collect(),
            Returns::Args => {
                args = self.entry_args(shape, timeout);
                vec![&args]
            }
            Returns::Nothing => Vec::new(),
        };
        let plain = Template::new(|b, patches| {
            b.push(0xdd);
            b.extend_from_slice(&(values.len() as u32).to_be_bytes());
            values.iter().for_each(|v| v.append_to(b, patches));
        });
        let in_array = Template::new(|b, patches| {
            b.extend_from_slice(&[0xdd, 0, 0, 0, 1]);
            mp::array(b, values.len() as u32);
            values.iter().for_each(|v| v.append_to(b, patches));
        });
        let mut answers = vec![plain, in_array];
        if values.is_empty() {
            // Lua functions that forward a result of theirs turn "nothing" into one nil.
            answers.push(Template::new(|b, _| {
                b.extend_from_slice(&[0xdd, 0, 0, 0, 1]);
                mp::nil(b);
            }));
        }
        answers
    }
}

fn t3(b: &mut Vec<u8>) {
    mp::array(b, 10);
    for i in 0..10 {
        wrapped(b, 4, |b| big_object(b, i));
    }
}

/// Echo of a number of the call's own, and of what follows.
fn keyed(key: &'static [&'static str], rest: impl FnOnce(&mut Vec<u8>)) -> Workload {
    let id = Template::new(|b, patches| patches.push(Field::Id.write(b)));
    let rest = Template::new(|b, _| rest(b));
    let args = Template::new(|b, patches| {
        mp::array(b, 2);
        id.append_to(b, patches);
        rest.append_to(b, patches);
    });
    Workload { func: "bench_echo", args, values: vec![id, rest], key }
}

/// Tuples that the storages are filled with, so that the selects return what is expected here.
pub fn tuples_t5(b: &mut Vec<u8>) {
    mp::array(b, 10);
    for i in 0..10 {
        mp::array(b, 5);
        // The first field is the primary key, hence not the same number in all.
        mp::uint(b, NUMBER + i);
        (1..5).for_each(|_| number(b));
    }
}

pub fn tuples_t6(b: &mut Vec<u8>) {
    mp::array(b, 10);
    for i in 0..10 {
        mp::array(b, 1);
        big_object(b, i);
    }
}

fn echo(value: impl Fn(&mut Vec<u8>)) -> Workload {
    Workload {
        func: "bench_echo",
        args: Template::new(|b, _| {
            mp::array(b, 1);
            value(b);
        }),
        values: vec![Template::new(|b, _| value(b))],
        key: FIRST,
    }
}

fn select(func: &'static str, value: impl Fn(&mut Vec<u8>)) -> Workload {
    Workload {
        func,
        args: Template::new(|b, _| mp::array(b, 0)),
        values: vec![Template::new(|b, _| value(b))],
        key: FIRST,
    }
}

fn wrapped(b: &mut Vec<u8>, times: usize, value: impl Fn(&mut Vec<u8>)) {
    (0..times).for_each(|_| mp::array(b, 1));
    value(b);
}

fn number(b: &mut Vec<u8>) {
    mp::uint(b, NUMBER);
}

/// A record as a web service would keep it: 17 fields, half a kilobyte.
fn big_object(b: &mut Vec<u8>, i: u64) {
    mp::map(b, 17);
    let key = |b: &mut Vec<u8>, k: &str| mp::string(b, k);
    let text = |b: &mut Vec<u8>, k: &str, v: &str| {
        mp::string(b, k);
        mp::string(b, v);
    };
    key(b, "id");
    mp::uint(b, NUMBER + i);
    key(b, "age");
    mp::uint(b, 31 + i);
    key(b, "score");
    mp::float(b, 87.25);
    key(b, "latitude");
    mp::float(b, -41.327_815);
    key(b, "active");
    mp::boolean(b, true);
    key(b, "verified");
    mp::boolean(b, false);
    text(b, "name", "Marianne");
    text(b, "surname", "Oldenburg");
    text(b, "registered", "2021-11-04T08:15:30.250+13:00");
    text(b, "token", "5f1c2b7e-93aa-4d60-8c11-0e27d4b6a9f35");
    text(b, "email", "marianne.oldenburg@example.com");
    text(b, "recovery", "m.oldenburg.1990@example.org");
    text(b, "city", "Palmerston North");
    text(b, "country", "New Zealand");
    key(b, "friends");
    mp::array(b, 5);
    ["Aroha", "Bartholomew", "Cornelia", "Dmitri", "Eleonora"].iter().for_each(|f| mp::string(b, f));
    key(b, "orders");
    mp::array(b, 3);
    for (sku, count) in [("K-1842", 2), ("Q-77", 1), ("Z-90015", 12)] {
        mp::map(b, 2);
        text(b, "sku", sku);
        key(b, "count");
        mp::uint(b, count);
    }
    key(b, "settings");
    mp::map(b, 2);
    text(b, "theme", "solarized dark, large print");
    key(b, "page_size");
    mp::uint(b, 50);
}

const NUMBER: u64 = 11_352_534_231;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn big_object_is_half_a_kilobyte() {
        let mut b = Vec::new();
        big_object(&mut b, 0);
        assert!((450..600).contains(&b.len()), "{}", b.len());
        assert!(mp::read_all(&b).is_some());
    }

    #[test]
    fn every_template_is_well_formed() {
        for name in NAMES.iter().copied().chain(["T0", "size:70000", "id:10", "key:T3", "key:10"]) {
            let w = Workload::by_name(name).unwrap();
            for shape in [Shape::Callraw, Shape::Keyed, Shape::Storage, Shape::Plain] {
                let request = w.request("entry", shape, 30.0);
                let len = u32::from_be_bytes(request.bytes[1..5].try_into().unwrap());
                assert_eq!(len as usize + 5, request.bytes.len());
                let mut rest = &request.bytes[5..];
                assert!(mp::read(&mut rest).is_some());
                assert!(mp::read_all(rest).is_some(), "{name} {shape:?}");
                for returns in [Returns::Values, Returns::StatusAndValues, Returns::Args, Returns::Nothing] {
                    for answer in w.answers(shape, 30.0, returns) {
                        assert!(mp::read_all(&answer.bytes).is_some(), "{name} {shape:?} {returns:?}");
                    }
                }
            }
        }
    }
}
