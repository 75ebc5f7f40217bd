//! What the command line says.

use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;

use rowmill_peers::PeerKind;
use rowmill_rows::Dtype;

use crate::optimizer::Optimizer;

/// Any failure, told to a person.
pub(crate) type Failure = Box<dyn std::error::Error>;

/// The settings of a cell; what a cell does not use is ignored.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) cell: String,
    /// What the command line says behind the cell.
    pub(crate) options: Vec<String>,
    /// Distinct rows.
    pub(crate) rows: u64,
    /// Bytes of a row of 32-bit weights, its optimizer state included.
    pub(crate) row_bytes: usize,
    pub(crate) optimizer: Optimizer,
    /// How the store keeps the weights.
    pub(crate) dtype: Dtype,
    /// Threads that call the engine.
    pub(crate) threads: usize,
    /// Rows per call.
    pub(crate) batch: usize,
    /// Memory of the engine.
    pub(crate) memory: u64,
    /// Exponent of the distribution of ids; 0 is uniform.
    pub(crate) zipf: f64,
    /// Length of one round of one engine.
    pub(crate) seconds: f64,
    pub(crate) rounds: usize,
    /// Rounds before the measured ones at most, until the share of rows read from the device is steady.
    pub(crate) warm_up: usize,
    /// Accesses after which a tenth of the hot set is replaced; 0 is never.
    pub(crate) drift_every: u64,
    /// How often every row is rewritten while space is watched.
    pub(crate) rewrites: f64,
    /// Tables of a training loop, of `rows` rows each.
    pub(crate) tables: u64,
    /// Training steps of a round.
    pub(crate) steps: usize,
    /// Engines that run the same work beside the store.
    pub(crate) peers: Vec<PeerKind>,
    /// Threads that call a peer: one round each.
    pub(crate) peer_threads: Vec<usize>,
    /// Where stores and files are made.
    pub(crate) folder: PathBuf,
    /// The file over which a peer serves rows: `--batch` keys, then as many rows.
    pub(crate) exchange: PathBuf,
    /// Whether a loop over a peer changes the rows it reads.
    pub(crate) changes: bool,
    pub(crate) seed: u64,
}

impl Settings {
    pub(crate) fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, Failure> {
        let mut settings = Self {
            cell: arguments.next().ok_or("which cell? they are listed in main.rs")?,
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
            other => return Err(format!("unknown option {other}; Settings lists them").into()),
        }
        Ok(())
    }

    fn check(&self) -> Result<(), Failure> {
        let floats = self.row_bytes / size_of::<f32>();
        if !self.row_bytes.is_multiple_of(size_of::<f32>()) || floats <= self.optimizer.state_floats() {
            let least = (self.optimizer.state_floats() + 1) * size_of::<f32>();
            return Err(format!("--row-bytes {}: a multiple of 4, {least} at least", self.row_bytes).into());
        }
        let counts = [
            ("--rows", self.rows),
            ("--threads", self.threads as u64),
            ("--batch", self.batch as u64),
            ("--tables", self.tables),
            ("--steps", self.steps as u64),
            ("--peer-threads", self.peer_threads.iter().copied().min().unwrap_or(0) as u64),
        ];
        if let Some((name, _)) = counts.iter().find(|(_, count)| *count == 0) {
            return Err(format!("{name} 0: 1 at least").into());
        }
        let figures = [("--zipf", self.zipf), ("--seconds", self.seconds), ("--rewrites", self.rewrites)];
        if let Some((name, figure)) = figures.iter().find(|(_, figure)| !(0.0..=1e6).contains(figure)) {
            return Err(format!("{name} {figure}: between 0 and 1000000").into());
        }
        if self.drift_every > 0 && self.zipf == 0.0 {
            return Err("--drift-every needs --zipf: uniform ids have no hot set".into());
        }
        Ok(())
    }

    /// Weights of a row of `row_bytes`.
    pub(crate) fn dim(&self) -> usize {
        self.row_bytes / size_of::<f32>() - self.optimizer.state_floats()
    }
}

/// The value of an option, or what was wrong with it.
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
            ("", "which cell?"),
            ("x --rows", "--rows needs a value"),
            ("x --rows many", "--rows \"many\""),
            ("x --rows 0", "--rows 0: 1 at least"),
            ("x --row-bytes 66", "--row-bytes 66"),
            ("x --row-bytes 4 --optimizer rowwise-adagrad", "8 at least"),
            ("x --optimizer adam", "\"adam\": use sgd or rowwise-adagrad"),
            ("x --dtype fp16", "dtype must be \"fp32\", \"bf16\" or \"split-bf16\", got \"fp16\""),
            ("x --peers berkeley", "\"berkeley\": use rocksdb, lmdb, wiredtiger or faster"),
            ("x --peer-threads 2,0", "--peer-threads 0"),
            ("x --seconds -1", "--seconds -1"),
            ("x --drift-every 5", "--drift-every needs --zipf"),
            ("x --fast 1", "unknown option --fast"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(said), "{line:?} gave {error:?}");
        }
    }
}
