//! Which Tarantools there are.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Host {
    /// major, minor, patch
    pub version: (u32, u32, u32),
    pub path: PathBuf,
}

impl Host {
    pub fn at(path: &Path) -> Result<Host, String> {
        let out = Command::new(path).arg("-V").output().map_err(|e| format!("{}: {e}", path.display()))?;
        let text = String::from_utf8_lossy(&out.stdout);
        let version = parse(&text).ok_or(format!("{} is no Tarantool", path.display()))?;
        Ok(Host { version, path: path.to_owned() })
    }

    pub fn label(&self) -> String {
        let (major, minor, patch) = self.version;
        format!("{major}.{minor}.{patch}")
    }
}

/// The given ones, else those in TARANTOOL, else the newest that is found, or all of them.
pub fn chosen(given: &[&str], all: bool) -> Result<Vec<Host>, String> {
    let named = std::env::var("TARANTOOL").unwrap_or_default();
    let named: Vec<&str> = if given.is_empty() { named.split_whitespace().collect() } else { given.to_vec() };
    if !named.is_empty() && !all {
        return named.iter().map(|p| Host::at(p.as_ref())).collect();
    }
    let mut found = find();
    if found.is_empty() {
        return Err("no Tarantool found (TARANTOOL=, PATH, /opt/tarantool*/bin/tarantool)".into());
    }
    let newest = found.len() - 1;
    Ok(if all { found } else { found.split_off(newest) })
}

/// TARANTOOL, the one on PATH, /opt/tarantool*/bin/tarantool; oldest first, one of each version.
pub fn find() -> Vec<Host> {
    let mut paths = Vec::new();
    let named = std::env::var("TARANTOOL").unwrap_or_default();
    paths.extend(named.split_whitespace().map(PathBuf::from));
    if let Some(path) = std::env::var_os("PATH") {
        paths.extend(std::env::split_paths(&path).map(|dir| dir.join("tarantool")).find(|p| p.is_file()));
    }
    for entry in std::fs::read_dir("/opt").into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with("tarantool") {
            paths.push(entry.path().join("bin/tarantool"));
        }
    }
    let mut seen = BTreeSet::new();
    let mut hosts: Vec<Host> = paths
        .iter()
        .filter(|p| p.components().count() == 1 || p.is_file())
        .filter_map(|p| Host::at(p).ok())
        .filter(|h| seen.insert(h.version))
        .collect();
    hosts.sort();
    hosts
}

/// "Tarantool 2.6.0-0-g47aa4e01e" and what follows.
fn parse(text: &str) -> Option<(u32, u32, u32)> {
    let word = text.lines().next()?.strip_prefix("Tarantool ")?;
    let word = word.strip_prefix("Enterprise ").unwrap_or(word);
    let mut numbers = word.split(['.', '-']).map(|n| n.parse::<u32>());
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        assert_eq!(parse("Tarantool 2.6.0-0-g47aa4e01e\nTarget: …"), Some((2, 6, 0)));
        assert_eq!(parse("Tarantool 3.2.1-0-g1234567"), Some((3, 2, 1)));
        assert_eq!(parse("Lua 5.1"), None);
    }
}
