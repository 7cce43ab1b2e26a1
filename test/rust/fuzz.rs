//! The fuzz targets of test/fuzz without a fuzzer: the seed corpus, and random mutations of it.

#[path = "../fuzz/entries.rs"]
mod entries;

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use common::random::Random;

#[test]
fn decoder() {
    mutate("decoder", 30_000, entries::decoder);
}

#[test]
fn connection() {
    mutate("connection", 8_000, entries::connection);
}

#[test]
fn raw_args() {
    mutate("raw_args", 30_000, entries::raw_args);
}

fn mutate(target: &str, runs: u64, entry: fn(&[u8])) {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let (runs, start) =
        (number("RAWSHARD_FUZZ_RUNS").unwrap_or(runs), number("RAWSHARD_FUZZ_SEED").unwrap_or(0));
    let corpus = corpus(target);
    for seed in &corpus {
        attempt(entry, seed, "the corpus");
    }
    for seed in start..start + runs {
        let mut random = Random::new(seed);
        let input = mutation(&corpus, &mut random);
        attempt(entry, &input, &format!("RAWSHARD_FUZZ_SEED={seed} RAWSHARD_FUZZ_RUNS=1"));
    }
}

fn attempt(entry: fn(&[u8]), input: &[u8], whence: &str) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| entry(input))) {
        println!("{whence}: {}", input.escape_ascii());
        std::panic::resume_unwind(panic);
    }
}

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("test/fuzz/corpus").join(target);
    let files = std::fs::read_dir(&folder).expect("a corpus");
    let mut paths: Vec<_> = files.map(|file| file.expect("a file").path()).collect();
    paths.sort();
    assert!(!paths.is_empty());
    paths.iter().map(|path| std::fs::read(path).expect("a file")).collect()
}

/// A seed, changed here and there: bytes that mean something, parts doubled, dropped, or taken from another seed.
fn mutation(corpus: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    const TELLING: [u8; 24] = [
        0x00, 0x01, 0x07, 0x30, 0x31, 0x52, 0x7f, 0x80, 0x81, 0x90, 0x92, 0xa0, 0xc0, 0xc1, 0xc2, 0xc3, 0xc7,
        0xce, 0xcf, 0xd6, 0xd9, 0xdd, 0xdf, 0xff,
    ];
    let mut bytes = random.pick(corpus).clone();
    for _ in 0..random.between(1, 6) {
        let at = random.below(bytes.len() as u64 + 1) as usize;
        let end = at + random.below(16).min((bytes.len() - at) as u64) as usize;
        match random.below(8) {
            0..=2 if at < bytes.len() => bytes[at] = *random.pick(&TELLING),
            3 if at < bytes.len() => bytes[at] = random.next() as u8,
            4 => {
                bytes.drain(at..end);
            }
            5 => {
                let part = bytes[at..end].to_vec();
                bytes.splice(at..at, part);
            }
            6 => {
                let other = random.pick(corpus);
                let from = random.below(other.len() as u64 + 1) as usize;
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..]);
            }
            _ => bytes.insert(at, *random.pick(&TELLING)),
        }
    }
    bytes
}
