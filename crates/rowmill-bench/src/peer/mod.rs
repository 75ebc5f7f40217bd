//! Other engines that run the same work as the store, each in a process of its own.
//!
//! A peer is this program, started as `peer ENGINE WORK`. It loads its rows, then runs a round for every
//! input line and prints the round's measurements. So its memory, CPU time and device reads are counted
//! separately, a kernel memory limit applies to it alone, and rounds of all engines interleave.
//!
//! With the work `rows`, it instead serves rows to a loop in another program, for example in Python.
//!
//! The engines are the features of `rowmill-peers`.

mod rounds;
mod step;
#[cfg(test)]
mod tests;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;

use rowmill_peers::{Engine, Exchange, Options, PeerError, PeerKind, serve_rows};

use crate::measure::{Sample, print};
use crate::settings::{Failure, Settings};
use crate::warm_up::warm_up;

/// Work of an engine in a round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Work {
    Get,
    Rmw,
    Train,
}

/// The process of a peer.
pub(crate) struct Peer {
    kind: PeerKind,
    process: Child,
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Work {
    pub(crate) fn parse(name: &str) -> Result<Self, Failure> {
        match name {
            "get" => Ok(Self::Get),
            "rmw" => Ok(Self::Rmw),
            "train" => Ok(Self::Train),
            other => Err(format!("work must be get, rmw, train or rows, got {other:?}").into()),
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
    /// Start the peers of the settings. Each has loaded its rows when this returns.
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

    /// Run one round with `threads` threads.
    fn round(&mut self, round: usize, threads: usize) -> Result<Sample, Failure> {
        let requests = self.requests.as_mut().expect("open until the peer is dropped");
        writeln!(requests, "{round} {threads}")?;
        let line = self.answer()?;
        Ok(serde_json::from_str(&line)?)
    }

    /// The next output line of the peer.
    fn answer(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        if self.answers.read_line(&mut line)? == 0 {
            return Err(format!("the process of {} ended; see its messages above", self.kind.name()).into());
        }
        Ok(line)
    }

    /// Run rounds until the number of bytes per row read from the device stops falling.
    pub(crate) fn warm_up(&mut self, settings: &Settings) -> Result<(), Failure> {
        let threads = settings.peer_threads.iter().copied().max().unwrap_or(1);
        let rounds = warm_up(settings.warm_up, || {
            let sample = self.round(0, threads)?;
            Ok(sample.device_read_bytes as f64 / sample.rows.max(1) as f64)
        })?;
        eprintln!("{}: {rounds} rounds to warm up", self.kind.name());
        Ok(())
    }

    /// Run and print a round for each number of threads.
    pub(crate) fn rounds(&mut self, settings: &Settings, round: usize) -> Result<(), Failure> {
        for &threads in &settings.peer_threads {
            print(&self.round(round, threads)?);
        }
        Ok(())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // The end of its input ends the process.
        self.requests = None;
        let _ = self.process.wait();
    }
}

/// Run as a peer. `arguments` are its kind, its work and the options.
pub(crate) fn serve(mut arguments: impl Iterator<Item = String>) -> Result<(), Failure> {
    let kind = PeerKind::parse(&arguments.next().ok_or("peer needs an engine and a kind of work")?)?;
    let work = arguments.next().ok_or("peer needs a kind of work after the engine")?;
    let settings = Settings::parse(std::iter::once(format!("peer-{}", kind.name())).chain(arguments))?;
    if work == "rows" {
        let engine: Arc<dyn Engine> = open(kind, &settings, 1, settings.changes)?.into();
        let exchange = Exchange::open(&settings.exchange, settings.batch, settings.row_bytes)?;
        let threads = settings.peer_threads.first().copied().unwrap_or(1);
        let (requests, answers) = (std::io::stdin().lock(), std::io::stdout());
        return Ok(serve_rows(&engine, &exchange, threads, ahead_max(&settings), requests, answers)?);
    }
    rounds::serve(&settings, kind, Work::parse(&work)?)
}

/// Most rows to read ahead, as many as the store does: they may take half of the memory.
fn ahead_max(settings: &Settings) -> usize {
    settings.memory as usize / settings.row_bytes / 2
}

/// Open an empty engine with room for the rows of `tables` tables.
fn open(
    kind: PeerKind,
    settings: &Settings,
    tables: u64,
    changes: bool,
) -> Result<Box<dyn Engine>, PeerError> {
    let options = Options {
        folder: settings.folder.join(kind.name()),
        rows: settings.rows * tables,
        row_bytes: settings.row_bytes,
        memory: settings.memory,
        changes,
    };
    rowmill_peers::open(kind, &options)
}
