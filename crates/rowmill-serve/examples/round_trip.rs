//! Round trips of one request at a time: p50 and p99 over both transports, by size.
//!
//!     cargo run --release -p rowmill-serve --example round_trip -- [requests] [copied]
//!
//! The dense half is another process, which answers with one small tensor. Writing the payload is not timed: a CPU half
//! pools rows straight into the arena. With `copied`, the payload is copied once more on each side, as without zero-copy
//! messages; both copies are timed. With other work on the machine the figures say little.

use std::error::Error;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rowmill_serve::{
    Address, Arena, Buffer, Client, ClientOptions, DType, Incoming, Limits, Listener, Serving, Tensor,
    TensorName, serve,
};
use rowmill_server::{Exposure, Server};

const PROGRAM: u64 = 1;
const WIRE_MEMORY: usize = 64 << 20;
const SIZES: [usize; 3] = [64 << 10, 4 << 20, 8 << 20];
const WARM_UP: usize = 20;
const DEADLINE: Duration = Duration::from_secs(10);

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        Some("dense") => {
            let address = arguments.next().ok_or("an address is missing")?.parse()?;
            dense(&address, is_copied(arguments.next().as_deref())?)
        }
        Some(requests) => measure(requests.parse()?, is_copied(arguments.next().as_deref())?),
        None => measure(500, false),
    }
}

fn is_copied(argument: Option<&str>) -> Result<bool, Box<dyn Error>> {
    match argument {
        None => Ok(false),
        Some("copied") => Ok(true),
        Some(other) => Err(format!("{other:?} is not \"copied\"").into()),
    }
}

/// The same bytes elsewhere in an arena.
fn copy(arena: &Arena, bytes: &[u8]) -> Result<Buffer, Box<dyn Error>> {
    let mut lease = arena.lease(bytes.len())?;
    lease.copy_from_slice(bytes);
    Ok(lease.share())
}

fn dense(address: &Address, copied: bool) -> Result<(), Box<dyn Error>> {
    let server = Server::start(1)?;
    let listener = server.handle().block_on(Listener::bind(address, Exposure::Loopback))?;
    println!("{}", listener.address()?);
    let arena = Arena::new(WIRE_MEMORY)?;
    let serving = Serving {
        programs: vec![PROGRAM],
        arena: arena.clone(),
        limits: Limits::default(),
        connections_max: 8,
        in_flight_max: 64,
    };
    server.handle().spawn(serve(listener, serving, server.drain().clone(), move |incoming: Incoming| {
        if copied {
            let payload = copy(&arena, &incoming.request.tensors[0].data).expect("the arena has room");
            std::hint::black_box(&*payload);
        }
        let scores = Tensor::new(TensorName::Number(0), DType::Float32, &[256], Buffer::from(&[0; 1024][..]));
        drop(incoming.request);
        incoming.replier.reply(vec![scores]);
    }));
    Ok(server.run(DEADLINE)?)
}

fn measure(requests: usize, copied: bool) -> Result<(), Box<dyn Error>> {
    let folder = std::env::temp_dir().join(format!("rowmill-round-trip-{}", std::process::id()));
    std::fs::create_dir(&folder)?;
    let result = measure_in(&folder, requests, copied);
    std::fs::remove_dir_all(&folder)?;
    result
}

fn measure_in(folder: &std::path::Path, requests: usize, copied: bool) -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    println!(
        "{requests} round trips each\n{:<10} {:>10} {:>10} {:>10}",
        "transport", "KiB", "p50 us", "p99 us"
    );
    for address in [Address::Tcp("127.0.0.1:0".into()), Address::Shm(folder.join("dense.sock"))] {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["dense", &address.to_string()])
            .args(copied.then_some("copied"))
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().ok_or("the child has no output")?).read_line(&mut line)?;
        let arena = Arena::new(WIRE_MEMORY)?;
        let client = Client::new(line.trim().parse()?, PROGRAM, arena.clone(), ClientOptions::default());
        for bytes in SIZES {
            let mut times = Histogram::<u64>::new(3)?;
            for number in 0..WARM_UP + requests {
                let mut lease = arena.lease(bytes)?;
                lease.fill(number as u8);
                let shape = [bytes as u64 / 4];
                let mut payload = lease.share();
                let begin = Instant::now();
                if copied {
                    payload = copy(&arena, &payload)?;
                }
                let tensor = Tensor::new(TensorName::Number(0), DType::Float32, &shape, payload);
                runtime.block_on(client.call(vec![tensor], [0; 16], begin + DEADLINE))?;
                if number >= WARM_UP {
                    times.record(begin.elapsed().as_nanos() as u64 / 100)?;
                }
            }
            let tenths = |quantile| times.value_at_quantile(quantile) as f64 / 10.0;
            let transport = if matches!(address, Address::Tcp(_)) { "tcp" } else { "shm" };
            println!("{transport:<10} {:>10} {:>10.1} {:>10.1}", bytes >> 10, tenths(0.5), tenths(0.99));
        }
        child.kill()?;
        child.wait()?;
    }
    Ok(())
}
