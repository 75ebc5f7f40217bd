//! Time from opening a store to its first row.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Instant;

use rowmill_rows::StalenessBound;
use serde::Serialize;

use crate::measure::{cpu_time, print};
use crate::settings::{Failure, Settings};
use crate::stores;

/// One opening.
#[derive(Debug, Serialize)]
struct Opening {
    round: usize,
    rows: u64,
    /// Whether the page cache held the index files.
    cached: bool,
    open_s: f64,
    /// Time from the start of the opening until a row was read.
    first_row_s: f64,
    cpu_s: f64,
    index_bytes: u64,
}

/// Make a store, close it after a checkpoint, and open it repeatedly.
pub(crate) fn run(settings: &Settings) -> Result<(), Failure> {
    let folder = settings.folder.join("open");
    {
        let (store, table) = stores::create(settings, &folder)?;
        stores::load(&table, settings.rows)?;
        store.checkpoint(&[])?;
        store.close();
    }
    for round in 0..settings.rounds {
        for cached in [false, true] {
            if !cached {
                forget(&folder)?;
            }
            let (begin, cpu) = (Instant::now(), cpu_time());
            let store = stores::open_store(settings, &folder)?;
            let open_s = begin.elapsed().as_secs_f64();
            let table = store.table("rows", &stores::spec(settings, StalenessBound::Infinite))?;
            let mut row = vec![0.0; settings.dim()];
            let id = settings.rows / 2;
            table.get(&[id], &mut row)?;
            let first_row_s = begin.elapsed().as_secs_f64();
            if row[0] != id as f32 {
                return Err(format!("row {id} must have the first weight {id}, got {}", row[0]).into());
            }
            print(&Opening {
                round,
                rows: settings.rows,
                cached,
                open_s,
                first_row_s,
                cpu_s: cpu_time().saturating_sub(cpu).as_secs_f64(),
                index_bytes: store.stats().index_bytes,
            });
            store.close();
        }
    }
    std::fs::remove_dir_all(folder)?;
    Ok(())
}

/// Drop the files of a folder from the page cache.
fn forget(folder: &Path) -> Result<(), Failure> {
    for entry in std::fs::read_dir(folder)? {
        let file = File::open(entry?.path())?;
        file.sync_all()?;
        // SAFETY: an advisory call on an open file.
        let refused = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        if refused != 0 {
            return Err(std::io::Error::from_raw_os_error(refused).into());
        }
    }
    Ok(())
}
