//! Settings of a cell, parsed from the command line.

use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;

use rowmill_peers::PeerKind;
use rowmill_rows::Dtype;

use crate::optimizer::Optimizer;

/// Any failure, as a message for users.
pub(crate) type Failure = Box<dyn std::error::Error>;

/// The settings of a cell. Cells ignore settings that they do not use.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) cell: String,
    /// Arguments after the cell.
    pub(crate) options: Vec<String>,
    /// Distinct rows.
    pub(crate) rows: u64,
    /// Bytes per row of 32-bit weights, including optimizer state.
    pub(crate) row_bytes: usize,
    pub(crate) optimizer: Optimizer,
    /// Type of the store's weights.
    pub(crate) dtype: Dtype,
    /// Number of threads that call the engine.
    pub(crate) threads: usize,
    /// Rows per call.
    pub(crate) batch: usize,
    /// Memory of the engine in bytes.
    pub(crate) memory: u64,
    /// Zipf exponent of the ids; 0 is uniform.
    pub(crate) zipf: f64,
    /// Length of one round of one engine.
    pub(crate) seconds: f64,
    pub(crate) rounds: usize,
    /// Most warm-up rounds, which end when the share of rows read from the device is steady.
    pub(crate) warm_up: usize,
    /// Accesses after which a tenth of the hot set is replaced; 0 means never.
    pub(crate) drift_every: u64,
    /// How often every row is rewritten while space is measured.
    pub(crate) rewrites: f64,
    /// Number of tables of a training loop, with `rows` rows each.
    pub(crate) tables: u64,
    /// Ids of each pooled vector.
    pub(crate) bag: usize,
    /// Training steps per round.
    pub(crate) steps: usize,
    /// Engines that run the same work as the store.
    pub(crate) peers: Vec<PeerKind>,
    /// Numbers of threads that call a peer, with one round each.
    pub(crate) peer_threads: Vec<usize>,
    /// Folder for stores and files.
    pub(crate) folder: PathBuf,
    /// The file through which a peer serves rows: `--batch` keys, then as many rows.
    pub(crate) exchange: PathBuf,
    /// Whether a loop over a peer changes the rows that it reads.
    pub(crate) changes: bool,
    pub(crate) seed: u64,
}

impl Settings {
    pub(crate) fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, Failure> {
        let mut settings = Self {
            cell: arguments.next().ok_or("name a cell: see the list in main.rs")?,
            options: Vec::new(),
            rows: 1 << 20,
            row_bytes: 64,
            optimizer: Optimizer::Sgd,
            dtype: Dtype::F32,
            threads: 1,
            batch: 4096,
            memory: 1 << 30,
            zipf: 0.0,
            seconds: 2.0,
            rounds: 5,
            warm_up: 0,
            drift_every: 0,
            rewrites: 3.0,
            tables: 26,
            bag: 1,
            steps: 64,
            peers: Vec::new(),
            peer_threads: vec![2],
            folder: PathBuf::from("out/bench"),
            exchange: PathBuf::new(),
            changes: true,
            seed: 1,
        };
        while let Some(name) = arguments.next() {
            let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
            settings.set(&name, &value)?;
            settings.options.extend([name, value]);
        }
        settings.check()?;
        Ok(settings)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), Failure> {
        match name {
            "--rows" => self.rows = number(name, value)?,
            "--row-bytes" => self.row_bytes = number(name, value)?,
            "--optimizer" => self.optimizer = Optimizer::parse(value)?,
            "--dtype" => self.dtype = Dtype::from_name(value)?,
            "--threads" => self.threads = number(name, value)?,
            "--batch" => self.batch = number(name, value)?,
            "--memory" => self.memory = number(name, value)?,
            "--zipf" => self.zipf = number(name, value)?,
            "--seconds" => self.seconds = number(name, value)?,
            "--rounds" => self.rounds = number(name, value)?,
            "--warm-up" => self.warm_up = number(name, value)?,
            "--drift-every" => self.drift_every = number(name, value)?,
            "--rewrites" => self.rewrites = number(name, value)?,
            "--tables" => self.tables = number(name, value)?,
            "--bag" => self.bag = number(name, value)?,
            "--steps" => self.steps = number(name, value)?,
            "--peers" => self.peers = value.split(',').map(PeerKind::parse).collect::<Result<_, _>>()?,
            "--peer-threads" => {
                self.peer_threads =
                    value.split(',').map(|part| number(name, part)).collect::<Result<_, _>>()?;
            }
            "--folder" => self.folder = value.into(),
            "--changes" => self.changes = number(name, value)?,
            "--exchange" => self.exchange = value.into(),
            "--seed" => self.seed = number(name, value)?,
            other => return Err(format!("unknown option {other}: see the list in Settings").into()),
        }
        Ok(())
    }

    fn check(&self) -> Result<(), Failure> {
        let floats = self.row_bytes / size_of::<f32>();
        if !self.row_bytes.is_multiple_of(size_of::<f32>()) || floats <= self.optimizer.state_floats() {
            let least = (self.optimizer.state_floats() + 1) * size_of::<f32>();
            return Err(format!(
                "--row-bytes must be a multiple of 4 and at least {least}, got {}",
                self.row_bytes
            )
            .into());
        }
        let counts = [
            ("--rows", self.rows),
            ("--threads", self.threads as u64),
            ("--batch", self.batch as u64),
            ("--tables", self.tables),
            ("--bag", self.bag as u64),
            ("--steps", self.steps as u64),
            ("--peer-threads", self.peer_threads.iter().copied().min().unwrap_or(0) as u64),
        ];
        if let Some((name, _)) = counts.iter().find(|(_, count)| *count == 0) {
            return Err(format!("{name} must be at least 1, got 0").into());
        }
        let figures = [("--zipf", self.zipf), ("--seconds", self.seconds), ("--rewrites", self.rewrites)];
        if let Some((name, figure)) = figures.iter().find(|(_, figure)| !(0.0..=1e6).contains(figure)) {
            return Err(format!("{name} must be between 0 and 1000000, got {figure}").into());
        }
        if self.drift_every > 0 && self.zipf == 0.0 {
            return Err("--drift-every needs --zipf: uniform ids have no hot set".into());
        }
        Ok(())
    }

    /// Weights per row of `row_bytes`.
    pub(crate) fn dim(&self) -> usize {
        self.row_bytes / size_of::<f32>() - self.optimizer.state_floats()
    }
}

/// Parse the value of an option; the error names both.
fn number<T: FromStr<Err: Display>>(name: &str, value: &str) -> Result<T, Failure> {
    value.parse().map_err(|error| format!("{name} {value:?}: {error}").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Settings, String> {
        Settings::parse(line.split_whitespace().map(str::to_owned)).map_err(|error| error.to_string())
    }

    #[test]
    fn options_set_what_they_name() {
        let settings =
            parse("cold-get --rows 9 --row-bytes 68 --optimizer rowwise-adagrad --peers rocksdb,lmdb --peer-threads 2,16 --zipf 0.99")
                .unwrap();
        assert_eq!((settings.rows, settings.dim(), settings.zipf), (9, 16, 0.99));
        assert_eq!(settings.peers, [PeerKind::RocksDb, PeerKind::Lmdb]);
        assert_eq!(settings.peer_threads, [2, 16]);
    }

    #[test]
    fn a_wrong_option_is_named_with_its_value() {
        for (line, said) in [
            ("", "name a cell"),
            ("x --rows", "--rows needs a value"),
            ("x --rows many", "--rows \"many\""),
            ("x --rows 0", "--rows must be at least 1, got 0"),
            ("x --row-bytes 66", "at least 4, got 66"),
            ("x --row-bytes 4 --optimizer rowwise-adagrad", "at least 8"),
            ("x --optimizer adam", "\"adam\": use sgd or rowwise-adagrad"),
            ("x --dtype fp16", "dtype must be \"fp32\", \"bf16\" or \"split-bf16\", got \"fp16\""),
            ("x --peers berkeley", "\"berkeley\": use rocksdb, lmdb, wiredtiger or faster"),
            ("x --peer-threads 2,0", "--peer-threads must be at least 1, got 0"),
            ("x --seconds -1", "--seconds must be between 0 and 1000000, got -1"),
            ("x --drift-every 5", "--drift-every needs --zipf"),
            ("x --fast 1", "unknown option --fast"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(said), "{line:?} gave {error:?}");
        }
    }
}
