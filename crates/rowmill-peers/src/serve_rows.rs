//! Serve rows of an engine to a loop in another program, through a shared file.
//!
//! Each request line is an operation on the first COUNT keys of the file; the answer is `done`. The file has
//! room for a fixed number of 8-byte keys, then for as many rows. Keys are distinct and ascend.
//!
//! | request | |
//! |---|---|
//! | `append COUNT` | store rows behind all there are |
//! | `announce COUNT STEPS` | read rows ahead in the background; the get that needs them is the STEPS-th from now |
//! | `get COUNT` | copy rows to the file |
//! | `put COUNT` | replace rows |
//! | `settle 0` | wait until nothing is left to do in the background, reads ahead included |

use std::fs::File;
use std::io::{BufRead, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use crate::{Engine, PeerError, ReadAhead};

/// Serve `requests` until they end, with `threads` threads for gets and as many for reads ahead, which read
/// at most `ahead_max` rows ahead.
///
/// # Errors
/// A request is not valid, or the engine failed.
pub fn serve_rows(
    engine: &Arc<dyn Engine>,
    exchange: &Exchange,
    threads: usize,
    ahead_max: usize,
    requests: impl BufRead,
    mut answers: impl Write,
) -> Result<(), PeerError> {
    let ahead = ReadAhead::start(engine, threads, ahead_max);
    writeln!(answers, "ready")?;
    for line in requests.lines() {
        let line = line?;
        let words: Vec<&str> = line.split(' ').collect();
        let wrong = || {
            PeerError::Invalid(format!(
                "request {line:?} is not valid: use COMMAND COUNT, or announce COUNT STEPS"
            ))
        };
        let (command, numbers) = words.split_first().ok_or_else(wrong)?;
        let numbers = numbers.iter().map(|word| word.parse().map_err(|_| wrong()));
        let numbers = numbers.collect::<Result<Vec<u64>, _>>()?;
        match (*command, &numbers[..]) {
            ("append", &[count]) => engine.append(&exchange.keys(count)?, &exchange.rows(count)?)?,
            ("put", &[count]) => engine.put(&exchange.keys(count)?, &exchange.rows(count)?)?,
            ("announce", &[count, steps]) => ahead.announce(&exchange.keys(count)?, steps),
            ("get", &[count]) => {
                ahead.begin_step()?;
                exchange.give(&get(&**engine, &exchange.keys(count)?, threads)?)?;
            }
            ("settle", &[0]) => {
                ahead.wait()?;
                engine.settle()?;
            }
            _ => return Err(wrong()),
        }
        writeln!(answers, "done")?;
    }
    Ok(())
}

/// Read the rows of `keys`, divided evenly among threads: engines wait for the device in the calling thread.
fn get(engine: &dyn Engine, keys: &[u64], threads: usize) -> Result<Vec<f32>, PeerError> {
    let row_floats = engine.row_bytes() / size_of::<f32>();
    let mut rows = vec![0.0; keys.len() * row_floats];
    let part = keys.len().div_ceil(threads).max(1);
    std::thread::scope(|scope| {
        let parts = keys.chunks(part).zip(rows.chunks_mut(part * row_floats));
        let readers: Vec<_> = parts.map(|(keys, rows)| scope.spawn(move || engine.get(keys, rows))).collect();
        readers.into_iter().try_for_each(|reader| reader.join().expect("a reader does not panic"))
    })?;
    Ok(rows)
}

/// The shared file.
#[derive(Debug)]
pub struct Exchange {
    file: File,
    keys_max: usize,
    row_bytes: usize,
}

impl Exchange {
    /// Open a file with room for `keys_max` keys and as many rows of `row_bytes` bytes.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn open(path: &Path, keys_max: usize, row_bytes: usize) -> Result<Self, PeerError> {
        let file = File::options().read(true).write(true).open(path).map_err(|error| {
            PeerError::Invalid(format!("the exchange file {} cannot be opened: {error}", path.display()))
        })?;
        Ok(Self { file, keys_max, row_bytes })
    }

    fn keys(&self, count: u64) -> Result<Vec<u64>, PeerError> {
        let count = count as usize;
        if count > self.keys_max {
            let message =
                format!("the request has {count} keys, but the exchange file has room for {}", self.keys_max);
            return Err(PeerError::Invalid(message));
        }
        Ok(self.read(0, count)?.into_iter().map(u64::from_le_bytes).collect())
    }

    fn rows(&self, count: u64) -> Result<Vec<f32>, PeerError> {
        let floats = self.read(self.rows_begin(), count as usize * self.row_bytes / size_of::<f32>())?;
        Ok(floats.into_iter().map(f32::from_le_bytes).collect())
    }

    fn give(&self, rows: &[f32]) -> Result<(), PeerError> {
        let bytes: Vec<u8> = rows.iter().flat_map(|value| value.to_le_bytes()).collect();
        Ok(self.file.write_all_at(&bytes, self.rows_begin())?)
    }

    fn rows_begin(&self) -> u64 {
        (self.keys_max * size_of::<u64>()) as u64
    }

    /// Read `count` numbers of N bytes each.
    fn read<const N: usize>(&self, begin: u64, count: usize) -> Result<Vec<[u8; N]>, PeerError> {
        let mut bytes = vec![0; count * N];
        self.file.read_exact_at(&mut bytes, begin)?;
        Ok(bytes.as_chunks::<N>().0.to_vec())
    }
}
