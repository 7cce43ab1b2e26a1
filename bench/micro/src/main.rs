//! Counted benches: instructions and allocations per operation, the same on a busy machine as on an idle one.
//!
//! This program is both sides. Started by hand it runs itself under callgrind, reads what that counted, and prints it beside
//! the saved base; started with `--count` it runs the operations. Each is run N times and 2N times, and the difference
//! is N operations, without what comes before and after.

mod bytes;
mod measure;
// The same bytes as in the load.
#[allow(dead_code)]
#[path = "../../load/src/mp.rs"]
mod mp;
mod ops;
#[allow(dead_code)]
#[path = "../../load/src/template.rs"]
mod template;
#[allow(dead_code)]
#[path = "../../load/src/workload.rs"]
mod workload;
mod world;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::{env, fs};

use measure::{COUNTED, UNCOUNTED};

const USAGE: &str = "micro --base FILE [--save] [--list] [part of an operation's name…]";

fn main() -> ExitCode {
    let mut options = Options::default();
    let mut args = env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--count" => options.count = true,
            "--save" => options.save = true,
            "--list" => options.list = true,
            "--base" => options.base = args.next().map(PathBuf::from),
            other if other.starts_with('-') => {
                eprintln!("unknown option {other}\n{USAGE}");
                return ExitCode::FAILURE;
            }
            part => options.parts.push(part.to_owned()),
        }
    }
    let done = if options.list {
        ops::all().iter().for_each(|op| println!("{}", op.name));
        Ok(())
    } else if options.count {
        count(&options);
        Ok(())
    } else {
        drive(&options)
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            eprintln!("micro: {what}");
            ExitCode::FAILURE
        }
    }
}

#[derive(Default)]
struct Options {
    count: bool,
    save: bool,
    list: bool,
    base: Option<PathBuf>,
    parts: Vec<String>,
}

impl Options {
    fn wants(&self, name: &str) -> bool {
        self.parts.is_empty() || self.parts.iter().any(|part| name.contains(part.as_str()))
    }
}

/// The counted side. One line for each operation, in the order of callgrind's files.
fn count(options: &Options) {
    for op in ops::all().iter().filter(|op| options.wants(&op.name)) {
        let ops::Run { mut run, times, per } = (op.make)();
        // The first runs carve slots and make buffers.
        run(times);
        let once = measure::counted(&mut run, times);
        let twice = measure::counted(&mut run, 2 * times);
        let operations = times * per;
        let (allocations, bytes) = (twice.0 as i64 - once.0 as i64, twice.1 as i64 - once.1 as i64);
        println!("op\t{}\t{operations}\t{allocations}\t{bytes}", op.name);
    }
    if options.parts.is_empty() {
        let [some, many] = ops::held();
        println!("held\t{some}\t{many}");
    }
}

/// Per operation.
#[derive(Clone, Copy, Default)]
struct Counts {
    instructions: f64,
    /// Data misses of the first and of the last cache that callgrind simulates.
    first_misses: f64,
    last_misses: f64,
    allocations: f64,
    bytes: f64,
}

fn drive(options: &Options) -> Result<(), String> {
    let dir = env::temp_dir().join(format!("rawshard-micro-{}", std::process::id()));
    fs::create_dir_all(&dir).map_err(|e| e.to_string())?;
    let counted = under_callgrind(&dir, options);
    let _ = fs::remove_dir_all(&dir);
    let (counts, held) = counted?;

    let base = match &options.base {
        Some(path) => fs::read_to_string(path).map(|text| read_base(&text)).unwrap_or_default(),
        None => BTreeMap::new(),
    };
    let head = ["instructions", "Δ base", "D1 misses", "LL misses", "allocations", "Δ base", "bytes"];
    let [a, b, c, d, e, f, g] = head;
    println!("{:<46}{a:>13}{b:>9}{c:>11}{d:>11}{e:>13}{f:>8}{g:>9}", "");
    for (name, now) in &counts {
        let (mut more, mut allocations) = (String::new(), String::new());
        if let Some(then) = base.get(name.as_str()) {
            more = format!("{:+.1} %", 100.0 * (now.instructions / then.instructions - 1.0));
            allocations = match now.allocations - then.allocations {
                same if same.abs() < 0.005 => "0".into(),
                other => format!("{other:+.2}"),
            };
        }
        println!(
            "{name:<46}{:>13.1}{more:>9}{:>11.2}{:>11.2}{:>13.2}{allocations:>8}{:>9.0}",
            now.instructions, now.first_misses, now.last_misses, now.allocations, now.bytes
        );
    }
    if let Some((some, many)) = held {
        println!(
            "\nheld by an engine for a call in flight beyond its bytes: {some} B with 1 000, {many} B with 20 000"
        );
    }
    if let (true, Some(path)) = (options.save, &options.base) {
        if !options.parts.is_empty() {
            return Err("only a run of all operations can be saved".into());
        }
        fs::write(path, write_base(&counts)).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    Ok(())
}

type Counted = (Vec<(String, Counts)>, Option<(String, String)>);

fn under_callgrind(dir: &Path, options: &Options) -> Result<Counted, String> {
    let me = env::current_exe().map_err(|e| e.to_string())?;
    let output = Command::new("valgrind")
        .args(["-q", "--tool=callgrind", "--cache-sim=yes", "--combine-dumps=no", "--compress-strings=no"])
        // The same caches on every machine: small ones, so that what does not fit shows.
        .args(["--I1=32768,8,64", "--D1=32768,8,64", "--LL=2097152,16,64"])
        .arg(format!("--toggle-collect={COUNTED}"))
        .arg(format!("--toggle-collect={UNCOUNTED}"))
        .arg(format!("--dump-after={COUNTED}"))
        .arg(format!("--callgrind-out-file={}", dir.join("out").display()))
        .arg(me)
        .arg("--count")
        .args(&options.parts)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|e| format!("valgrind: {e}"))?;
    if !output.status.success() {
        return Err(format!("the counted run has failed: {}", output.status));
    }
    let (mut counts, mut held, mut dumps) = (Vec::new(), None, 0);
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        match fields[..] {
            ["op", name, operations, allocations, bytes] => {
                let number = |text: &str| text.parse::<f64>().map_err(|e| format!("{line}: {e}"));
                let operations = number(operations)?;
                let (once, twice) = (totals(dir, dumps + 1)?, totals(dir, dumps + 2)?);
                dumps += 2;
                let per = |event: &str| {
                    let of = |all: &BTreeMap<String, f64>| all.get(event).copied().unwrap_or(0.0);
                    (of(&twice) - of(&once)) / operations
                };
                let now = Counts {
                    instructions: per("Ir"),
                    first_misses: per("D1mr") + per("D1mw"),
                    last_misses: per("DLmr") + per("DLmw"),
                    allocations: number(allocations)? / operations,
                    bytes: number(bytes)? / operations,
                };
                counts.push((name.to_owned(), now));
            }
            ["held", some, many] => held = Some((some.to_owned(), many.to_owned())),
            _ => return Err(format!("unexpected: {line}")),
        }
    }
    Ok((counts, held))
}

/// The sums of one of callgrind's files.
fn totals(dir: &Path, number: usize) -> Result<BTreeMap<String, f64>, String> {
    let path = dir.join(format!("out.{number}"));
    let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let after = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
    let events = after("events:").split_whitespace().map(str::to_owned);
    // Trailing zeros are left out of sums.
    let sums = after("summary:").split_whitespace().map(|sum| sum.parse().unwrap_or(f64::NAN));
    Ok(events.zip(sums.chain(std::iter::repeat(0.0))).collect())
}

fn read_base(text: &str) -> BTreeMap<String, Counts> {
    let mut base = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let fields: Vec<&str> = line.split('\t').map(str::trim).collect();
        if let [name, instructions, allocations, ..] = fields[..]
            && let (Ok(instructions), Ok(allocations)) = (instructions.parse(), allocations.parse())
        {
            base.insert(name.to_owned(), Counts { instructions, allocations, ..Counts::default() });
        }
    }
    base
}

fn write_base(counts: &[(String, Counts)]) -> String {
    let mut text = String::from(
        "# operation, instructions, allocations, bytes allocated; written by bench/micro.sh --save\n",
    );
    for (name, counts) in counts {
        let Counts { instructions, allocations, bytes, .. } = counts;
        text += &format!("{name}\t{instructions:.1}\t{allocations:.2}\t{bytes:.0}\n");
    }
    text
}
