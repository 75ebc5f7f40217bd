//! Other engines that run the same work beside the store, each in a process of its own.
//!
//! A peer is this program again, told what to be: it loads its rows, then does a round whenever a line asks
//! for one and answers with what the round took. So its memory, CPU time and device reads are counted apart,
//! a memory limit of the kernel holds it alone, and rounds of all engines interleave.
//!
//! With `rows` for its work it serves rows to a loop in another program, in Python say, instead.
//!
//! Adapters are compiled by the features `rocksdb` and `lmdb` and link the system's libraries.

#[cfg(any(feature = "rocksdb", feature = "lmdb", test))]
mod change;
#[cfg(feature = "lmdb")]
mod lmdb;
#[cfg(feature = "lmdb")]
mod memory_limit;
#[cfg(feature = "rocksdb")]
mod rocksdb;
#[cfg(any(feature = "rocksdb", feature = "lmdb"))]
mod rows;
#[cfg(any(feature = "rocksdb", feature = "lmdb"))]
mod serve;
#[cfg(all(test, any(feature = "rocksdb", feature = "lmdb")))]
mod tests;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::measure::{Sample, print};
use crate::settings::{Failure, Settings};
use crate::warm_up::warm_up;

/// An engine that is not ours.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum PeerKind {
    RocksDb,
    Lmdb,
}

/// What an engine does in a round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Work {
    Get,
    Rmw,
    Train,
}

/// Rows by key, as the adapters provide them. A row is floats: weights, then optimizer state.
#[cfg(any(feature = "rocksdb", feature = "lmdb", test))]
pub(crate) trait Engine: Sync {
    /// Copy the rows of `keys` to `rows`, one after the other.
    fn get(&self, keys: &[u64], rows: &mut [f32]) -> Result<(), Failure>;

    /// Replace the rows of `keys`, which are distinct and ascend.
    fn put(&self, keys: &[u64], rows: &[f32]) -> Result<(), Failure>;
}

/// An engine that can be made ready for a round.
#[cfg(any(feature = "rocksdb", feature = "lmdb"))]
pub(crate) trait Loading: Engine {
    /// Store rows behind all there are: as [`Engine::put`], where the fastest way for that differs.
    fn append(&self, keys: &[u64], rows: &[f32]) -> Result<(), Failure>;

    /// Wait until nothing is left to do in the background.
    fn settle(&self) -> Result<(), Failure>;
}

/// The process of a peer.
pub(crate) struct Peer {
    kind: PeerKind,
    process: Child,
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl PeerKind {
    pub(crate) fn parse(name: &str) -> Result<Self, Failure> {
        match name {
            "rocksdb" => Ok(Self::RocksDb),
            "lmdb" => Ok(Self::Lmdb),
            other => Err(format!("peer {other:?}: use rocksdb or lmdb").into()),
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::RocksDb => "rocksdb",
            Self::Lmdb => "lmdb",
        }
    }
}

impl Work {
    /// Only a peer's process asks.
    #[cfg(any(feature = "rocksdb", feature = "lmdb"))]
    pub(crate) fn parse(name: &str) -> Result<Self, Failure> {
        match name {
            "get" => Ok(Self::Get),
            "rmw" => Ok(Self::Rmw),
            "train" => Ok(Self::Train),
            other => Err(format!("work {other:?}: use get, rmw, train or rows").into()),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Rmw => "rmw",
            Self::Train => "train",
        }
    }
}

impl Peer {
    /// Start the peers of the settings; each has its rows when this returns.
    pub(crate) fn start_all(settings: &Settings, work: Work) -> Result<Vec<Self>, Failure> {
        settings.peers.iter().map(|kind| Self::start(settings, *kind, work)).collect()
    }

    fn start(settings: &Settings, kind: PeerKind, work: Work) -> Result<Self, Failure> {
        let mut process = Command::new(std::env::current_exe()?)
            .args(["peer", kind.name(), work.name()])
            .args(&settings.options)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let answers = BufReader::new(process.stdout.take().expect("piped"));
        let mut peer = Self { kind, requests: process.stdin.take(), answers, process };
        peer.answer()?;
        Ok(peer)
    }

    /// One round with so many threads.
    fn round(&mut self, round: usize, threads: usize) -> Result<Sample, Failure> {
        let requests = self.requests.as_mut().expect("open until the peer is dropped");
        writeln!(requests, "{round} {threads}")?;
        let line = self.answer()?;
        Ok(serde_json::from_str(&line)?)
    }

    /// The next line of the peer.
    fn answer(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        if self.answers.read_line(&mut line)? == 0 {
            return Err(format!("{} ended; its last words are above", self.kind.name()).into());
        }
        Ok(line)
    }

    /// Rounds until the peer reads no fewer bytes per row from the device.
    pub(crate) fn warm_up(&mut self, settings: &Settings) -> Result<(), Failure> {
        let threads = settings.peer_threads.iter().copied().max().unwrap_or(1);
        let rounds = warm_up(settings.warm_up, || {
            let sample = self.round(0, threads)?;
            Ok(sample.device_read_bytes as f64 / sample.rows.max(1) as f64)
        })?;
        eprintln!("{}: {rounds} rounds to warm up", self.kind.name());
        Ok(())
    }

    /// A round for each number of threads, printed.
    pub(crate) fn rounds(&mut self, settings: &Settings, round: usize) -> Result<(), Failure> {
        for &threads in &settings.peer_threads {
            print(&self.round(round, threads)?);
        }
        Ok(())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // The end of its requests ends the process.
        self.requests = None;
        let _ = self.process.wait();
    }
}

/// Be a peer: `arguments` are its kind, its work and the options.
pub(crate) fn serve(arguments: impl Iterator<Item = String>) -> Result<(), Failure> {
    let mut arguments = arguments;
    let kind = PeerKind::parse(&arguments.next().ok_or("which peer?")?)?;
    let work = arguments.next().ok_or("which work?")?;
    let settings = Settings::parse(std::iter::once(format!("peer-{}", kind.name())).chain(arguments))?;
    match kind {
        #[cfg(feature = "rocksdb")]
        PeerKind::RocksDb => serve_by(&settings, kind, &work, || rocksdb::RocksDb::create(&settings)),
        #[cfg(feature = "lmdb")]
        PeerKind::Lmdb => serve_by(&settings, kind, &work, || lmdb::Lmdb::create(&settings)),
        #[cfg(not(all(feature = "rocksdb", feature = "lmdb")))]
        missing => {
            let _ = (settings, work);
            let name = missing.name();
            Err(format!("this build has no {name}: add --features {name} (needs lib{name}-dev)").into())
        }
    }
}

#[cfg(any(feature = "rocksdb", feature = "lmdb"))]
fn serve_by<E: Loading>(
    settings: &Settings,
    kind: PeerKind,
    work: &str,
    create: impl FnOnce() -> Result<E, Failure>,
) -> Result<(), Failure> {
    if work == "rows" {
        return rows::serve(&create()?, settings, std::io::stdin().lock(), std::io::stdout());
    }
    serve::serve(settings, kind, Work::parse(work)?, create)
}
