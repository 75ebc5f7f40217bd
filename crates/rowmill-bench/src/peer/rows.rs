//! Rows of an engine for a loop in another program, over a file that both have in memory.
//!
//! A line `COMMAND COUNT` asks for something to be done with the first so many keys of the file, and `done` answers
//! it. The file holds `--batch` keys of 8 bytes, then as many rows; keys are distinct and ascend.
//!
//! | command | |
//! |---|---|
//! | `append` | store rows behind all there are |
//! | `get` | copy rows to the file, by as many threads as `--peer-threads` says first |
//! | `put` | replace rows |
//! | `settle` | wait until nothing is left to do in the background |

use std::fs::File;
use std::io::{BufRead, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::peer::Loading;
use crate::settings::{Failure, Settings};

/// Do what the lines of `requests` ask for until they end.
pub(super) fn serve(
    engine: &impl Loading,
    settings: &Settings,
    requests: impl BufRead,
    mut answers: impl Write,
) -> Result<(), Failure> {
    let exchange = Exchange::open(&settings.exchange, settings)?;
    let threads = settings.peer_threads.first().copied().unwrap_or(1);
    writeln!(answers, "ready")?;
    for line in requests.lines() {
        let line = line?;
        let (command, count) = line.split_once(' ').ok_or("a request is COMMAND COUNT")?;
        let keys = exchange.keys(count.parse()?)?;
        match command {
            "append" => engine.append(&keys, &exchange.rows(keys.len())?)?,
            "put" => engine.put(&keys, &exchange.rows(keys.len())?)?,
            "get" => exchange.give(&get(engine, settings, &keys, threads)?)?,
            "settle" => engine.settle()?,
            other => return Err(format!("no command {other:?}: append, get, put or settle").into()),
        }
        writeln!(answers, "done")?;
    }
    Ok(())
}

/// The rows of `keys`, which the threads share evenly: those of an engine that waits for the device in the thread
/// that reads.
fn get(
    engine: &impl Loading,
    settings: &Settings,
    keys: &[u64],
    threads: usize,
) -> Result<Vec<f32>, Failure> {
    let row_floats = settings.row_bytes / size_of::<f32>();
    let mut rows = vec![0.0; keys.len() * row_floats];
    let part = keys.len().div_ceil(threads).max(1);
    std::thread::scope(|scope| {
        let parts = keys.chunks(part).zip(rows.chunks_mut(part * row_floats));
        let readers: Vec<_> = parts
            .map(|(keys, rows)| {
                scope.spawn(move || engine.get(keys, rows).map_err(|error| error.to_string()))
            })
            .collect();
        readers.into_iter().try_for_each(|reader| reader.join().expect("a reader does not panic"))
    })?;
    Ok(rows)
}

/// The file.
struct Exchange {
    file: File,
    batch: usize,
    row_bytes: usize,
}

impl Exchange {
    fn open(path: &Path, settings: &Settings) -> Result<Self, Failure> {
        let file = File::options()
            .read(true)
            .write(true)
            .open(path)
            .map_err(|error| format!("--exchange {}: {error}", path.display()))?;
        Ok(Self { file, batch: settings.batch, row_bytes: settings.row_bytes })
    }

    fn keys(&self, count: usize) -> Result<Vec<u64>, Failure> {
        if count > self.batch {
            return Err(format!("{count} keys, but --batch is {}", self.batch).into());
        }
        Ok(self.read(0, count)?.into_iter().map(u64::from_le_bytes).collect())
    }

    fn rows(&self, count: usize) -> Result<Vec<f32>, Failure> {
        let floats = self.read(self.rows_begin(), count * self.row_bytes / size_of::<f32>())?;
        Ok(floats.into_iter().map(f32::from_le_bytes).collect())
    }

    fn give(&self, rows: &[f32]) -> Result<(), Failure> {
        let bytes: Vec<u8> = rows.iter().flat_map(|value| value.to_le_bytes()).collect();
        Ok(self.file.write_all_at(&bytes, self.rows_begin())?)
    }

    fn rows_begin(&self) -> u64 {
        (self.batch * size_of::<u64>()) as u64
    }

    /// So many numbers of N bytes.
    fn read<const N: usize>(&self, begin: u64, count: usize) -> Result<Vec<[u8; N]>, Failure> {
        let mut bytes = vec![0; count * N];
        self.file.read_exact_at(&mut bytes, begin)?;
        Ok(bytes.as_chunks::<N>().0.to_vec())
    }
}
