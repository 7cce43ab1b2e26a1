//! Command line options: `--name value`, `--name=value` and flags, each known by name.

use std::str::FromStr;

pub struct Args {
    given: Vec<(String, Option<String>)>,
}

impl Args {
    /// `values`: options that take a value. `flags`: options that do not.
    pub fn parse(args: &[String], values: &[&str], flags: &[&str]) -> Result<Args, String> {
        let mut given = Vec::new();
        let mut rest = args.iter();
        while let Some(arg) = rest.next() {
            let Some(name) = arg.strip_prefix("--") else {
                return Err(format!("unexpected argument {arg}"));
            };
            let (name, inline) = match name.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (name, None),
            };
            if flags.contains(&name) && inline.is_none() {
                given.push((name.to_owned(), None));
            } else if values.contains(&name) {
                let value =
                    inline.or_else(|| rest.next().cloned()).ok_or(format!("--{name} needs a value"))?;
                given.push((name.to_owned(), Some(value)));
            } else {
                let known: Vec<_> = values.iter().chain(flags).map(|n| format!("--{n}")).collect();
                return Err(format!("unknown option {arg}; known: {}", known.join(" ")));
            }
        }
        Ok(Args { given })
    }

    pub fn flag(&self, name: &str) -> bool {
        self.given.iter().any(|(n, _)| n == name)
    }

    pub fn text(&self, name: &str) -> Option<&str> {
        self.given.iter().rev().find(|(n, _)| n == name).and_then(|(_, v)| v.as_deref())
    }

    pub fn all(&self, name: &str) -> Vec<&str> {
        self.given.iter().filter(|(n, _)| n == name).filter_map(|(_, v)| v.as_deref()).collect()
    }

    /// The option as a number, or what it is when not given.
    pub fn get<T: FromStr>(&self, name: &str, default: T) -> Result<T, String> {
        Ok(self.opt(name)?.unwrap_or(default))
    }

    pub fn opt<T: FromStr>(&self, name: &str) -> Result<Option<T>, String> {
        match self.text(name) {
            None => Ok(None),
            Some(text) => text.parse().map(Some).map_err(|_| format!("--{name} {text}: not a number")),
        }
    }

    /// A list with commas.
    pub fn list(&self, name: &str) -> Option<Vec<String>> {
        self.text(name).map(|text| text.split(',').map(str::to_owned).collect())
    }
}
