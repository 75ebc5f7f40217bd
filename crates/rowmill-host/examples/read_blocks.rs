//! Reads blocks of a namespace, each with a command of its own:
//!
//! ```text
//! read_blocks URL < NUMBERS
//! ```
//!
//! The input has numbers of blocks of 4 KiB, separated by white space. `benchmarks/storage_node` counts the bytes that this
//! sends and receives.

use std::collections::VecDeque;
use std::io::Read;
use std::time::{Duration, Instant};

use rowmill_host::{Client, HostSettings, NvmeUrl, Request};
use rowmill_nvme::{BlockRange, Exchange, commands};

const BLOCK_BYTES: usize = 4096;
/// The namespace of a storage node with one folder or disk.
const NAMESPACE: u32 = 1;
/// Commands in flight.
const DEPTH: usize = 32;
const WAIT: Duration = Duration::from_secs(30);

fn main() {
    let url = std::env::args().nth(1).expect("usage: read_blocks URL < NUMBERS");
    let url: NvmeUrl = url.parse().expect("an URL of a namespace");
    let client = Client::connect(&url, &HostSettings::of_machine().unwrap()).unwrap();
    let shift = client.identify_namespace(NAMESPACE).unwrap().block_shift;
    // Blocks of the namespace in 4 KiB.
    let count = BLOCK_BYTES as u64 >> shift;
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).unwrap();
    let mut sent = VecDeque::new();
    let mut blocks = 0;
    let mut numbers = text.split_ascii_whitespace();
    loop {
        while sent.len() < DEPTH
            && let Some(number) = numbers.next()
        {
            let first = number.parse::<u64>().expect("numbers of blocks") * count;
            let request = Request {
                name: "read",
                command: commands::read(NAMESPACE, BlockRange { first, count }),
                exchange: Exchange::Receive(BLOCK_BYTES),
                is_repeatable: true,
            };
            sent.push_back(client.submit(request, Instant::now() + WAIT).unwrap());
        }
        let Some(pending) = sent.pop_front() else { break };
        assert_eq!(pending.wait().unwrap().data.len(), BLOCK_BYTES);
        blocks += 1;
    }
    println!("{blocks}");
}
