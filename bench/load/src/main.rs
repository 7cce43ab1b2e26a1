//! Load generator and driver of rawshard's benches. bench/README.md says how to use it and what the figures mean.
//!
//! - `template`, `workload`, `check`: prebuilt requests, and what must come back.
//! - `generator`: the load itself. `client`: calls that are not measured.
//! - `hosts`, `cluster`, `ports`, `peers`, `kinds`: Tarantools found, processes started, storages simulated, things compared.
//! - `table`, `plot`: figures for people.
//! - `bench`, `soak`, `run`: the subcommands.

mod args;
mod bench;
mod check;
mod client;
mod cluster;
mod generator;
mod hosts;
mod kinds;
mod mp;
mod peers;
mod plot;
mod ports;
mod random;
mod run;
mod soak;
mod sys;
mod table;
mod template;
mod workload;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (command, rest) = match args.split_first() {
        Some((command, rest)) => (command.as_str(), rest),
        None => ("help", &[][..]),
    };
    sys::catch_signals();
    sys::raise_open_files();
    let result = match command {
        "bench" => bench::main(rest),
        "soak" => soak::main(rest),
        "run" => run::main(rest),
        _ => {
            eprintln!("load bench | soak | run, each with options: see bench/README.md");
            std::process::exit(2);
        }
    };
    match result {
        Ok(()) if sys::stopped() => std::process::exit(130),
        Ok(()) => {}
        Err(e) => {
            eprintln!("load {command}: {e}");
            std::process::exit(1);
        }
    }
}
