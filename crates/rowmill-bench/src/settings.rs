//! What the command line says.

use std::path::PathBuf;

use rowmill_rows::OptimizerSpec;

/// Any failure, told to a person.
pub(crate) type Failure = Box<dyn std::error::Error>;

/// The settings of a cell; what a cell does not use is ignored.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) cell: String,
    /// Distinct rows.
    pub(crate) rows: u64,
    /// Bytes of a row, its optimizer state included.
    pub(crate) row_bytes: usize,
    pub(crate) optimizer: Optimizer,
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
    /// Where stores and files are made.
    pub(crate) folder: PathBuf,
    pub(crate) seed: u64,
}

/// Optimizers of the cells that change rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Optimizer {
    Sgd,
    RowwiseAdagrad,
}

impl Settings {
    pub(crate) fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, Failure> {
        let mut settings = Self {
            cell: arguments.next().ok_or("which cell? they are listed in main.rs")?,
            rows: 1 << 20,
            row_bytes: 64,
            optimizer: Optimizer::Sgd,
            threads: 1,
            batch: 4096,
            memory: 1 << 30,
            zipf: 0.0,
            seconds: 2.0,
            rounds: 5,
            folder: PathBuf::from("out/bench"),
            seed: 1,
        };
        while let Some(name) = arguments.next() {
            let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
            match name.as_str() {
                "--rows" => settings.rows = value.parse()?,
                "--row-bytes" => settings.row_bytes = value.parse()?,
                "--optimizer" => settings.optimizer = Optimizer::parse(&value)?,
                "--threads" => settings.threads = value.parse()?,
                "--batch" => settings.batch = value.parse()?,
                "--memory" => settings.memory = value.parse()?,
                "--zipf" => settings.zipf = value.parse()?,
                "--seconds" => settings.seconds = value.parse()?,
                "--rounds" => settings.rounds = value.parse()?,
                "--folder" => settings.folder = value.into(),
                "--seed" => settings.seed = value.parse()?,
                other => return Err(format!("unknown option {other}").into()),
            }
        }
        Ok(settings)
    }

    /// Weights of a row of `row_bytes`.
    pub(crate) fn dim(&self) -> usize {
        let floats = self.row_bytes / size_of::<f32>();
        match self.optimizer {
            Optimizer::Sgd => floats,
            Optimizer::RowwiseAdagrad => floats - 1,
        }
    }
}

impl Optimizer {
    fn parse(name: &str) -> Result<Self, Failure> {
        match name {
            "sgd" => Ok(Self::Sgd),
            "rowwise-adagrad" => Ok(Self::RowwiseAdagrad),
            other => Err(format!("optimizer {other:?}: use sgd or rowwise-adagrad").into()),
        }
    }

    /// As tables name it. The rate is small, so that rows stay finite for hours.
    pub(crate) fn spec(self) -> OptimizerSpec {
        match self {
            Self::Sgd => OptimizerSpec::Sgd { lr: 1e-6 },
            Self::RowwiseAdagrad => {
                OptimizerSpec::RowwiseAdagrad { lr: 1e-6, eps: 1e-8, initial_accumulator: 0.1 }
            }
        }
    }
}
