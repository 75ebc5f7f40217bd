//! The schedule of one run, drawn from its seed.

use rowmill_store::*;
use rowmill_testkit::{Fault, Rng64, When};

use crate::common::{ADAGRAD, INITIALIZER, SGD};

/// Calls of a run, without faults and crashes.
const CALLS: u64 = 200;

const ROWWISE: OptimizerSpec =
    OptimizerSpec::RowwiseAdagrad { lr: 0.5, eps: 1e-10, initial_accumulator: 0.25 };
const ADAM: OptimizerSpec = OptimizerSpec::Adam { lr: 0.5, beta1: 0.75, beta2: 0.875, eps: 1e-10 };

/// The rows and the memory of a run; memory is too small for the rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    dim: u32,
    optimizer: OptimizerSpec,
    /// Bytes for the rows and write buffers of one group.
    pub(crate) row_memory: u64,
    /// Ids are below this.
    pub(crate) universe: u64,
    pub(crate) batch: u64,
}

/// Rows of 64 B in two layouts, 288 B, 1.5 KiB, one block, and two blocks.
const SHAPES: [Shape; 6] = [
    Shape { dim: 16, optimizer: SGD, row_memory: 80 << 10, universe: 500, batch: 40 },
    Shape { dim: 8, optimizer: ADAGRAD, row_memory: 80 << 10, universe: 500, batch: 40 },
    Shape { dim: 68, optimizer: ROWWISE, row_memory: 80 << 10, universe: 120, batch: 20 },
    Shape { dim: 125, optimizer: ADAM, row_memory: 88 << 10, universe: 60, batch: 12 },
    Shape { dim: 1024, optimizer: SGD, row_memory: 128 << 10, universe: 40, batch: 8 },
    Shape { dim: 1500, optimizer: SGD, row_memory: 160 << 10, universe: 30, batch: 6 },
];

#[derive(Clone, Copy, Debug)]
pub(crate) enum Call {
    Get,
    /// With a ticket that is dropped at once, or held for some time.
    GetOrInit {
        hold: bool,
    },
    Put,
    PutState,
    Rmw,
    /// A pooled lookup with a ticket, and its backward.
    Train,
    Delete,
    Contains,
    Scan,
    Announce(Destination),
    Turn(Work),
    Checkpoint,
    /// Close the store, which loses changes since the last checkpoint, and open it again.
    Reopen,
    Inject {
        fault: Fault,
        prefix: &'static str,
        when: When,
    },
    Heal,
    /// Lose power now.
    Crash,
    /// Lose power in one of the next changes of the device.
    PowerFailure {
        changes: u64,
    },
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) call: Call,
    /// Number of the table.
    pub(crate) table: usize,
    /// Seed of ids and values.
    pub(crate) seed: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    pub(crate) seed: u64,
    pub(crate) shape: Shape,
    /// Whether there is a third table, in a separate group.
    pub(crate) two_groups: bool,
    pub(crate) steps: Vec<Step>,
}

impl Schedule {
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = Rng64::new(seed);
        let mut shape = SHAPES[rng.below(SHAPES.len() as u64) as usize];
        let two_groups = rng.one_in(4);
        if two_groups {
            shape.row_memory *= 3;
        }
        let mut calls: Vec<Call> = (0..CALLS + rng.below(40)).map(|_| call(&mut rng)).collect();
        // Changes that can be lost, and a checkpoint to go back to.
        let early = 10 + rng.below(20) as usize;
        calls.insert(early, Call::Checkpoint);
        // Every kind of fault is the main fault of equally many seeds. One seed in twelve has none.
        let main = Fault::ALL.get((seed % 12) as usize).copied();
        let mut windows: Vec<Fault> = main.into_iter().collect();
        windows.extend(main.filter(|_| rng.one_in(2)));
        let other = Fault::ALL[rng.below(Fault::ALL.len() as u64) as usize];
        // Damage by a torn write or a lost sync cannot be distinguished from damage of the other kind.
        if rng.one_in(3) && !is_silent(other) {
            windows.push(other);
        }
        for fault in windows {
            add_window(&mut calls, fault, &mut rng);
        }
        for _ in 0..=rng.below(3) {
            add_crash(&mut calls, &mut rng);
        }
        let tables = if two_groups { 3 } else { 2 };
        let steps = calls
            .into_iter()
            .map(|call| Step { call, table: rng.below(tables) as usize, seed: rng.next_u64() })
            .collect();
        Self { seed, shape, two_groups, steps }
    }

    /// Specs of the tables: any ids with clocks, a range of ids without clocks, and wider rows.
    pub(crate) fn specs(&self) -> Vec<TableSpec> {
        let first = TableSpec {
            dim: self.shape.dim,
            dtype: Dtype::F32,
            optimizer: self.shape.optimizer,
            initializer: INITIALIZER,
            staleness: StalenessBound::Steps(0),
            ids: IdRange::Sparse,
            eviction: None,
            admission: None,
        };
        let ids = IdRange::Dense { rows: self.shape.universe };
        let second = TableSpec { staleness: StalenessBound::Infinite, ids, ..first };
        let third = TableSpec { dim: first.dim + 8, ..first };
        let mut specs = vec![first, second];
        specs.extend(self.two_groups.then_some(third));
        specs
    }

    /// Ids for a call, some repeated. Half of the batches use an eighth of the ids only, so that some rows
    /// are hotter than others.
    pub(crate) fn ids(&self, table: usize, rng: &mut Rng64) -> Vec<u64> {
        let universe = if rng.one_in(2) { self.shape.universe } else { self.shape.universe / 8 };
        (0..=rng.below(self.shape.batch)).map(|_| id_of(table, rng.below(universe))).collect()
    }
}

/// The id for a number: in tables of any ids they are spread over all 64 bits.
pub(crate) fn id_of(table: usize, number: u64) -> u64 {
    if table == 1 { number } else { number.wrapping_mul(0x9E37_79B9_7F4A_7C15) }
}

/// Faults that are not reported when they happen.
pub(crate) fn is_silent(fault: Fault) -> bool {
    matches!(fault, Fault::TornWrite | Fault::LostSync)
}

fn call(rng: &mut Rng64) -> Call {
    match rng.below(100) {
        0..12 => Call::Get,
        12..20 => Call::GetOrInit { hold: rng.one_in(3) },
        20..32 => Call::Put,
        32..34 => Call::PutState,
        34..50 => Call::Rmw,
        50..60 => Call::Train,
        60..65 => Call::Delete,
        65..67 => Call::Contains,
        67..68 => Call::Scan,
        68..73 => Call::Announce(if rng.one_in(2) {
            Destination::Cache
        } else {
            Destination::Buffer { steps: 1 + rng.below(3) }
        }),
        73..79 => Call::Turn(Work::Write),
        79..88 => Call::Turn(Work::Clean),
        88..92 => Call::Turn(Work::LookAhead),
        92..99 => Call::Checkpoint,
        _ => Call::Reopen,
    }
}

/// Adds a part of the run in which a fault may hit.
fn add_window(calls: &mut Vec<Call>, fault: Fault, rng: &mut Rng64) {
    const LOG: &str = "group-";
    const EVERYTHING: &str = "";
    let prefixes: &[&'static str] = match fault {
        Fault::ReadError | Fault::BitFlip => &[LOG, LOG, "index-", "MANIFEST", EVERYTHING],
        Fault::StaleRead | Fault::MisdirectedRead => &[LOG],
        Fault::RenameError => &[EVERYTHING],
        Fault::SyncError | Fault::LostSync => &[LOG, "index-", "MANIFEST", ".", EVERYTHING],
        _ => &[LOG, LOG, "index-", "attachment-", "MANIFEST", EVERYTHING],
    };
    let prefix = prefixes[rng.below(prefixes.len() as u64) as usize];
    let when = match rng.below(3) {
        0 => When::Nth(1 + rng.below(12)),
        1 => When::OneIn(1 + rng.below(8)),
        _ => When::Always,
    };
    let begin = rng.below(calls.len() as u64) as usize;
    let end = (begin + 4 + rng.below(50) as usize).min(calls.len());
    calls.insert(end, Call::Heal);
    // Index files and the manifest are read when the store is opened, and written at a checkpoint.
    let provoke = match fault {
        Fault::ReadError | Fault::BitFlip if prefix != LOG || rng.one_in(4) => Call::Reopen,
        _ => Call::Checkpoint,
    };
    if provoke_always(fault, prefix) || rng.one_in(2) {
        let at = begin + rng.below((end - begin) as u64 + 1) as usize;
        calls.insert(at, provoke);
    }
    calls.insert(begin, Call::Inject { fault, prefix, when });
}

fn provoke_always(fault: Fault, prefix: &str) -> bool {
    prefix != "group-" || matches!(fault, Fault::SyncError | Fault::RenameError)
}

fn add_crash(calls: &mut Vec<Call>, rng: &mut Rng64) {
    let at = rng.below(calls.len() as u64) as usize;
    if rng.one_in(2) {
        calls.insert(at, Call::Crash);
        return;
    }
    // If no write occurs for long, power fails anyway.
    let end = (at + 30).min(calls.len());
    calls.insert(end, Call::Crash);
    calls.insert(at, Call::PowerFailure { changes: 1 + rng.below(60) });
}
