//! The store's speed beside the limits of the machine, which probes measure in the same run.
//!
//! ```text
//! cargo run --release -p rowmill-bench -- CELL [--rows N] [--seconds S] [--rounds N] [--folder DIR] [...]
//! ```
//!
//! A cell is one kind of work, done by several engines in interleaved rounds: the probe that shows the
//! limit, the store, and peers. Every round of every engine is one line of JSON on the standard output;
//! `benchmarks/store/run.py` runs the cells and sums up.

mod cold;
mod device_probe;
mod measure;
mod memory;
mod memory_probe;
mod settings;
mod stores;
mod workload;

use std::process::ExitCode;

use settings::Settings;

fn main() -> ExitCode {
    let outcome = Settings::parse(std::env::args().skip(1)).and_then(|settings| match &*settings.cell {
        "memory-get" => memory::get(&settings),
        "memory-rmw" => memory::rmw(&settings),
        "cold-get" => cold::get(&settings),
        "cold-rmw" => cold::rmw(&settings),
        other => Err(format!("no cell is called {other:?}; they are listed in main.rs").into()),
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rowmill-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
