//! Compares the store's speed with the limits of the machine, which probes measure in the same run.
//!
//! ```text
//! cargo run --release -p rowmill-bench -- CELL [--rows N] [--seconds S] [--rounds N] [--folder DIR] [...]
//! ```
//!
//! A cell is one kind of work. Several engines do it in interleaved rounds: the probe that shows the limit,
//! the store, and peers (`--peers rocksdb,lmdb`, in a build with these features). Every round of every engine
//! is printed as one line of JSON. `benchmarks/store/run.py` runs the cells and summarizes the results.

mod arrivals;
mod checkpoint;
mod clocks;
mod cold;
mod device_probe;
mod measure;
mod memory;
mod memory_probe;
mod open;
mod optimizer;
mod peer;
mod pooling;
mod settings;
mod space;
mod stalls;
mod stores;
mod training;
mod warm_up;
mod workload;

use std::process::ExitCode;

use settings::{Failure, Settings};

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).peekable();
    let outcome = if arguments.next_if(|cell| cell == "peer").is_some() {
        peer::serve(arguments)
    } else {
        Settings::parse(arguments).and_then(|settings| run(&settings))
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rowmill-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(settings: &Settings) -> Result<(), Failure> {
    match &*settings.cell {
        "memory-get" => memory::get(settings),
        "memory-rmw" => memory::rmw(settings),
        "cold-get" => cold::get(settings),
        "cold-rmw" => cold::rmw(settings),
        "clocks" => clocks::run(settings),
        "space" => space::run(settings),
        "checkpoint" => checkpoint::run(settings),
        "open" => open::run(settings),
        "device" => device_probe::run(settings),
        "training" => training::run(settings),
        "stalls" => {
            stalls::run(settings);
            Ok(())
        }
        "pooling" => {
            pooling::run(settings);
            Ok(())
        }
        other => Err(format!("cell {other:?} does not exist: see the list in main.rs").into()),
    }
}
