//! `RocksDB` (7.8) as an engine: a log-structured merge tree, tuned for reads of single rows.

use std::ffi::{CStr, CString, c_char, c_double, c_int, c_uchar, c_void};
use std::os::unix::ffi::OsStrExt;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use crate::peer::{Engine, Loading};
use crate::settings::{Failure, Settings};

/// Memtables take one part in this many of the memory; the block cache has the rest, and in it are index
/// and filter blocks.
const MEMTABLE_SHARE: u64 = 8;
const MEMTABLES: u64 = 2;
/// The block that the store reads, too.
const BLOCK_BYTES: usize = 4096;
const FORMAT_VERSION: c_int = 5;
/// Ten bits per key let one in a hundred blocks be read in vain.
const FILTER_BITS: c_double = 10.0;
/// Blocks have a hash table of their keys; this is how full it is.
const HASH_RATIO: c_double = 0.75;
const BINARY_AND_HASH: c_int = 1;
const NO_COMPRESSION: c_int = 0;
/// Keys of one call: the blocks of all of them are held in memory until it ends.
const KEYS_PER_CALL: usize = 256;
const BACKGROUND_JOBS: c_int = 2;
/// Longest wait for compactions.
const SETTLE: Duration = Duration::from_mins(1);
const LOOK: Duration = Duration::from_millis(20);

// The C API as rocksdb/c.h declares it. All pointers but strings are opaque.
#[link(name = "rocksdb")]
unsafe extern "C" {
    fn rocksdb_free(memory: *mut c_void);
    fn rocksdb_options_create() -> *mut c_void;
    fn rocksdb_options_destroy(options: *mut c_void);
    fn rocksdb_options_set_create_if_missing(options: *mut c_void, value: c_uchar);
    fn rocksdb_options_set_use_direct_reads(options: *mut c_void, value: c_uchar);
    fn rocksdb_options_set_use_direct_io_for_flush_and_compaction(options: *mut c_void, value: c_uchar);
    fn rocksdb_options_set_compression(options: *mut c_void, value: c_int);
    fn rocksdb_options_set_write_buffer_size(options: *mut c_void, bytes: usize);
    fn rocksdb_options_set_max_write_buffer_number(options: *mut c_void, value: c_int);
    fn rocksdb_options_set_max_background_jobs(options: *mut c_void, value: c_int);
    fn rocksdb_options_set_level_compaction_dynamic_level_bytes(options: *mut c_void, value: c_uchar);
    fn rocksdb_options_set_optimize_filters_for_hits(options: *mut c_void, value: c_int);
    fn rocksdb_options_set_block_based_table_factory(options: *mut c_void, tables: *mut c_void);
    fn rocksdb_block_based_options_create() -> *mut c_void;
    fn rocksdb_block_based_options_destroy(tables: *mut c_void);
    fn rocksdb_block_based_options_set_block_size(tables: *mut c_void, bytes: usize);
    fn rocksdb_block_based_options_set_format_version(tables: *mut c_void, value: c_int);
    fn rocksdb_block_based_options_set_filter_policy(tables: *mut c_void, policy: *mut c_void);
    fn rocksdb_block_based_options_set_block_cache(tables: *mut c_void, cache: *mut c_void);
    fn rocksdb_block_based_options_set_data_block_index_type(tables: *mut c_void, value: c_int);
    fn rocksdb_block_based_options_set_data_block_hash_ratio(tables: *mut c_void, value: c_double);
    fn rocksdb_block_based_options_set_cache_index_and_filter_blocks(tables: *mut c_void, value: c_uchar);
    fn rocksdb_block_based_options_set_cache_index_and_filter_blocks_with_high_priority(
        tables: *mut c_void,
        value: c_uchar,
    );
    fn rocksdb_block_based_options_set_pin_l0_filter_and_index_blocks_in_cache(
        tables: *mut c_void,
        value: c_uchar,
    );
    fn rocksdb_filterpolicy_create_bloom_full(bits_per_key: c_double) -> *mut c_void;
    fn rocksdb_cache_create_lru(bytes: usize) -> *mut c_void;
    fn rocksdb_cache_destroy(cache: *mut c_void);
    fn rocksdb_readoptions_create() -> *mut c_void;
    fn rocksdb_readoptions_destroy(options: *mut c_void);
    fn rocksdb_writeoptions_create() -> *mut c_void;
    fn rocksdb_writeoptions_destroy(options: *mut c_void);
    fn rocksdb_writeoptions_disable_WAL(options: *mut c_void, value: c_int);
    fn rocksdb_open_column_families(
        options: *const c_void,
        path: *const c_char,
        count: c_int,
        names: *const *const c_char,
        family_options: *const *const c_void,
        families: *mut *mut c_void,
        error: *mut *mut c_char,
    ) -> *mut c_void;
    fn rocksdb_column_family_handle_destroy(family: *mut c_void);
    fn rocksdb_close(db: *mut c_void);
    fn rocksdb_batched_multi_get_cf(
        db: *mut c_void,
        options: *const c_void,
        family: *mut c_void,
        count: usize,
        keys: *const *const c_char,
        key_bytes: *const usize,
        values: *mut *mut c_void,
        errors: *mut *mut c_char,
        sorted: bool,
    );
    fn rocksdb_pinnableslice_value(slice: *const c_void, bytes: *mut usize) -> *const c_char;
    fn rocksdb_pinnableslice_destroy(slice: *mut c_void);
    fn rocksdb_writebatch_create() -> *mut c_void;
    fn rocksdb_writebatch_destroy(batch: *mut c_void);
    fn rocksdb_writebatch_put(
        batch: *mut c_void,
        key: *const c_char,
        key_bytes: usize,
        value: *const c_char,
        value_bytes: usize,
    );
    fn rocksdb_write(db: *mut c_void, options: *const c_void, batch: *mut c_void, error: *mut *mut c_char);
    fn rocksdb_property_int(db: *mut c_void, name: *const c_char, value: *mut u64) -> c_int;
}

pub(super) struct RocksDb {
    db: *mut c_void,
    family: *mut c_void,
    options: *mut c_void,
    cache: *mut c_void,
    read: *mut c_void,
    write: *mut c_void,
    row_bytes: usize,
}

// SAFETY: a database, and options that nobody changes, may be used by all threads.
unsafe impl Sync for RocksDb {}

impl RocksDb {
    /// A new database within the memory of the settings.
    pub(super) fn create(settings: &Settings) -> Result<Self, Failure> {
        let folder = settings.folder.join("rocksdb");
        std::fs::create_dir_all(&folder)?;
        let path = CString::new(folder.as_os_str().as_bytes())?;
        let memtables = settings.memory / MEMTABLE_SHARE;
        let name = c"default".as_ptr();
        // SAFETY: every object is created before it is used; the table options take the filter policy over
        // and are copied by the options, the cache is counted.
        unsafe {
            let cache = rocksdb_cache_create_lru((settings.memory - memtables) as usize);
            let options = rocksdb_options_create();
            rocksdb_options_set_create_if_missing(options, 1);
            rocksdb_options_set_use_direct_reads(options, 1);
            rocksdb_options_set_use_direct_io_for_flush_and_compaction(options, 1);
            rocksdb_options_set_compression(options, NO_COMPRESSION);
            rocksdb_options_set_write_buffer_size(options, (memtables / MEMTABLES) as usize);
            rocksdb_options_set_max_write_buffer_number(options, MEMTABLES as c_int);
            rocksdb_options_set_max_background_jobs(options, BACKGROUND_JOBS);
            rocksdb_options_set_level_compaction_dynamic_level_bytes(options, 1);
            // Every row that is asked for is there: the last level needs no filter.
            rocksdb_options_set_optimize_filters_for_hits(options, 1);
            let tables = rocksdb_block_based_options_create();
            rocksdb_block_based_options_set_block_size(tables, BLOCK_BYTES);
            rocksdb_block_based_options_set_format_version(tables, FORMAT_VERSION);
            let policy = rocksdb_filterpolicy_create_bloom_full(FILTER_BITS);
            rocksdb_block_based_options_set_filter_policy(tables, policy);
            rocksdb_block_based_options_set_block_cache(tables, cache);
            rocksdb_block_based_options_set_data_block_index_type(tables, BINARY_AND_HASH);
            rocksdb_block_based_options_set_data_block_hash_ratio(tables, HASH_RATIO);
            rocksdb_block_based_options_set_cache_index_and_filter_blocks(tables, 1);
            rocksdb_block_based_options_set_cache_index_and_filter_blocks_with_high_priority(tables, 1);
            rocksdb_block_based_options_set_pin_l0_filter_and_index_blocks_in_cache(tables, 1);
            rocksdb_options_set_block_based_table_factory(options, tables);
            rocksdb_block_based_options_destroy(tables);
            let (read, write) = (rocksdb_readoptions_create(), rocksdb_writeoptions_create());
            // No log of writes: the store's changes last from the next checkpoint on, too.
            rocksdb_writeoptions_disable_WAL(write, 1);
            let (mut family, mut error) = (null_mut(), null_mut());
            let options_of_family = options.cast_const();
            let db = rocksdb_open_column_families(
                options,
                path.as_ptr(),
                1,
                &raw const name,
                &raw const options_of_family,
                &raw mut family,
                &raw mut error,
            );
            check(error)?;
            Ok(Self { db, family, options, cache, read, write, row_bytes: settings.row_bytes })
        }
    }

    fn property(&self, name: &CStr) -> u64 {
        let mut value = 0;
        // SAFETY: the database is open, the name ends in zero.
        let unknown = unsafe { rocksdb_property_int(self.db, name.as_ptr(), &raw mut value) };
        assert_eq!(unknown, 0, "no property {name:?}");
        value
    }

    fn is_idle(&self) -> bool {
        [
            c"rocksdb.mem-table-flush-pending",
            c"rocksdb.num-running-flushes",
            c"rocksdb.compaction-pending",
            c"rocksdb.num-running-compactions",
        ]
        .iter()
        .all(|name| self.property(name) == 0)
    }
}

impl RocksDb {
    fn multi_get(&self, keys: &[u64], rows: &mut [f32]) -> Result<(), Failure> {
        // Bytes that sort as the numbers do.
        let keys: Vec<[u8; 8]> = keys.iter().map(|key| key.to_be_bytes()).collect();
        let pointers: Vec<*const c_char> = keys.iter().map(|key| key.as_ptr().cast()).collect();
        let sizes = vec![8; keys.len()];
        let mut values = vec![null_mut(); keys.len()];
        let mut errors = vec![null_mut(); keys.len()];
        // SAFETY: every array has one entry per key, and lives as long as the call.
        unsafe {
            rocksdb_batched_multi_get_cf(
                self.db,
                self.read,
                self.family,
                keys.len(),
                pointers.as_ptr(),
                sizes.as_ptr(),
                values.as_mut_ptr(),
                errors.as_mut_ptr(),
                keys.is_sorted(),
            );
        }
        let mut result = Ok(());
        for ((row, value), error) in rows.chunks_mut(self.row_bytes / 4).zip(values).zip(errors) {
            // SAFETY: the library filled value and error of every key; each is taken over once.
            let copied = unsafe { check(error).and_then(|()| take(value, row)) };
            result = result.and(copied);
        }
        result
    }
}

impl Engine for RocksDb {
    fn get(&self, keys: &[u64], rows: &mut [f32]) -> Result<(), Failure> {
        let row_floats = self.row_bytes / 4;
        keys.chunks(KEYS_PER_CALL)
            .zip(rows.chunks_mut(KEYS_PER_CALL * row_floats))
            .try_for_each(|(keys, rows)| self.multi_get(keys, rows))
    }

    fn put(&self, keys: &[u64], rows: &[f32]) -> Result<(), Failure> {
        let mut error = null_mut();
        // SAFETY: the batch copies keys and rows, and is destroyed once, after it was written.
        unsafe {
            let batch = rocksdb_writebatch_create();
            for (key, row) in keys.iter().zip(rows.chunks(self.row_bytes / 4)) {
                let key = key.to_be_bytes();
                rocksdb_writebatch_put(batch, key.as_ptr().cast(), 8, row.as_ptr().cast(), self.row_bytes);
            }
            rocksdb_write(self.db, self.write, batch, &raw mut error);
            rocksdb_writebatch_destroy(batch);
            check(error)
        }
    }
}

impl Loading for RocksDb {
    fn append(&self, keys: &[u64], rows: &[f32]) -> Result<(), Failure> {
        self.put(keys, rows)
    }

    fn settle(&self) -> Result<(), Failure> {
        let end = Instant::now() + SETTLE;
        // Between a flush and the compaction it causes nothing is pending for a moment.
        let mut idle = 0;
        while idle < 2 {
            idle = if self.is_idle() { idle + 1 } else { 0 };
            if Instant::now() > end {
                return Err(format!("RocksDB still compacts after {SETTLE:?}").into());
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }
}

impl Drop for RocksDb {
    fn drop(&mut self) {
        // SAFETY: nobody uses the database any more; each object is destroyed once, the database before
        // what it was opened with.
        unsafe {
            rocksdb_column_family_handle_destroy(self.family);
            rocksdb_close(self.db);
            rocksdb_options_destroy(self.options);
            rocksdb_cache_destroy(self.cache);
            rocksdb_readoptions_destroy(self.read);
            rocksdb_writeoptions_destroy(self.write);
        }
    }
}

/// Copy a value to `row` and free it.
///
/// # Safety
/// `value` is null or a slice of the library that nobody else frees.
unsafe fn take(value: *mut c_void, row: &mut [f32]) -> Result<(), Failure> {
    if value.is_null() {
        return Err("RocksDB: a row is missing".into());
    }
    let mut bytes = 0;
    // SAFETY: the caller's; the slice's bytes live until it is destroyed.
    unsafe {
        let data = rocksdb_pinnableslice_value(value, &raw mut bytes);
        assert_eq!(bytes, size_of_val(row), "rows are of one size");
        std::ptr::copy_nonoverlapping(data.cast::<u8>(), row.as_mut_ptr().cast(), bytes);
        rocksdb_pinnableslice_destroy(value);
    }
    Ok(())
}

/// # Safety
/// `error` is null or a message of the library that nobody else frees.
unsafe fn check(error: *mut c_char) -> Result<(), Failure> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: the caller's.
    let message = unsafe { CStr::from_ptr(error) }.to_string_lossy().into_owned();
    // SAFETY: as above.
    unsafe { rocksdb_free(error.cast()) };
    Err(format!("RocksDB: {message}").into())
}
