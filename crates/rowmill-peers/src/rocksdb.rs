//! `RocksDB` (7.8) as an engine: a log-structured merge tree, tuned for reads of single rows.

use std::ffi::{CStr, CString, c_char, c_double, c_int, c_uchar, c_void};
use std::os::unix::ffi::OsStrExt;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use crate::error::none_missing;
use crate::{Engine, Options, PeerError};

const NAME: &str = "RocksDB";
const MEMTABLES: u64 = 2;
/// The block size of the store, too.
const BLOCK_BYTES: usize = 4096;
const FORMAT_VERSION: c_int = 5;
/// At ten bits per key, one in a hundred block reads finds no row.
const FILTER_BITS: c_double = 10.0;
/// Load factor of the hash table of keys in each block.
const HASH_RATIO: c_double = 0.75;
const BINARY_AND_HASH: c_int = 1;
const NO_COMPRESSION: c_int = 0;
/// Keys per call: the blocks of all of them stay in memory until it ends.
const KEYS_PER_CALL: usize = 256;
const BACKGROUND_JOBS: c_int = 2;
/// Longest wait for compactions, and pause between two checks.
const SETTLE: Duration = Duration::from_mins(1);
const LOOK: Duration = Duration::from_millis(20);

// The C API as declared in rocksdb/c.h. All pointers except strings are opaque.
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
    fn rocksdb_options_set_row_cache(options: *mut c_void, cache: *mut c_void);
    fn rocksdb_options_set_inplace_update_support(options: *mut c_void, value: c_uchar);
    fn rocksdb_options_set_allow_concurrent_memtable_write(options: *mut c_void, value: c_uchar);
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

pub(crate) struct RocksDb {
    db: *mut c_void,
    family: *mut c_void,
    options: *mut c_void,
    blocks: *mut c_void,
    rows: *mut c_void,
    read: *mut c_void,
    write: *mut c_void,
    row_bytes: usize,
}

// SAFETY: several threads may use a database at once, and options that do not change any more.
unsafe impl Send for RocksDb {}
// SAFETY: as above: database and unchanged options are thread-safe.
unsafe impl Sync for RocksDb {}

/// Division of the memory, in bytes.
struct Shares {
    memtables: u64,
    rows: u64,
    blocks: u64,
}

impl Shares {
    /// If rows are only read, a cache of rows holds more frequent rows than a cache of blocks. If rows
    /// change, cached rows are outdated at once, so memtables serve as the cache.
    fn of(options: &Options) -> Self {
        let memory = options.memory;
        let (memtables, rows) = if options.changes { (memory / 2, 0) } else { (memory / 8, memory / 2) };
        Self { memtables, rows, blocks: memory - memtables - rows }
    }
}

impl RocksDb {
    /// A database within the memory of the options.
    pub(crate) fn open(options: &Options) -> Result<Self, PeerError> {
        let path = CString::new(options.folder.as_os_str().as_bytes())
            .map_err(|error| PeerError::Invalid(format!("{}: {error}", options.folder.display())))?;
        let shares = Shares::of(options);
        let row_bytes = options.row_bytes;
        // SAFETY: every object is created before use and destroyed once, when the struct that holds it is
        // dropped. The caches are reference-counted.
        let mut rocksdb = unsafe {
            Self {
                db: null_mut(),
                family: null_mut(),
                options: rocksdb_options_create(),
                blocks: rocksdb_cache_create_lru(shares.blocks as usize),
                rows: rocksdb_cache_create_lru(shares.rows as usize),
                read: rocksdb_readoptions_create(),
                write: rocksdb_writeoptions_create(),
                row_bytes,
            }
        };
        rocksdb.set_up(&shares);
        let name = c"default".as_ptr();
        let options_of_family = rocksdb.options.cast_const();
        let mut error = null_mut();
        // SAFETY: path and name end with a zero byte, and all arguments live during the call.
        unsafe {
            rocksdb.db = rocksdb_open_column_families(
                rocksdb.options,
                path.as_ptr(),
                1,
                &raw const name,
                &raw const options_of_family,
                &raw mut rocksdb.family,
                &raw mut error,
            );
            check(error)?;
        }
        Ok(rocksdb)
    }

    fn set_up(&self, shares: &Shares) {
        let options = self.options;
        // SAFETY: the table options take over the filter policy, and the options copy the table options.
        unsafe {
            rocksdb_options_set_create_if_missing(options, 1);
            rocksdb_options_set_use_direct_reads(options, 1);
            rocksdb_options_set_use_direct_io_for_flush_and_compaction(options, 1);
            rocksdb_options_set_compression(options, NO_COMPRESSION);
            rocksdb_options_set_write_buffer_size(options, (shares.memtables / MEMTABLES) as usize);
            rocksdb_options_set_max_write_buffer_number(options, MEMTABLES as c_int);
            rocksdb_options_set_max_background_jobs(options, BACKGROUND_JOBS);
            rocksdb_options_set_level_compaction_dynamic_level_bytes(options, 1);
            // A row that is put again replaces the row in the memtable, which leaves room for other rows.
            rocksdb_options_set_inplace_update_support(options, 1);
            rocksdb_options_set_allow_concurrent_memtable_write(options, 0);
            // Every requested row exists, so the last level needs no filter.
            rocksdb_options_set_optimize_filters_for_hits(options, 1);
            if shares.rows > 0 {
                rocksdb_options_set_row_cache(options, self.rows);
            }
            let tables = rocksdb_block_based_options_create();
            rocksdb_block_based_options_set_block_size(tables, BLOCK_BYTES);
            rocksdb_block_based_options_set_format_version(tables, FORMAT_VERSION);
            let policy = rocksdb_filterpolicy_create_bloom_full(FILTER_BITS);
            rocksdb_block_based_options_set_filter_policy(tables, policy);
            rocksdb_block_based_options_set_block_cache(tables, self.blocks);
            rocksdb_block_based_options_set_data_block_index_type(tables, BINARY_AND_HASH);
            rocksdb_block_based_options_set_data_block_hash_ratio(tables, HASH_RATIO);
            rocksdb_block_based_options_set_cache_index_and_filter_blocks(tables, 1);
            rocksdb_block_based_options_set_cache_index_and_filter_blocks_with_high_priority(tables, 1);
            rocksdb_block_based_options_set_pin_l0_filter_and_index_blocks_in_cache(tables, 1);
            rocksdb_options_set_block_based_table_factory(options, tables);
            rocksdb_block_based_options_destroy(tables);
            // No write-ahead log: the store's changes are not durable before the next checkpoint either.
            rocksdb_writeoptions_disable_WAL(self.write, 1);
        }
    }

    fn property(&self, name: &CStr) -> u64 {
        let mut value = 0;
        // SAFETY: the database is open, and the name ends with a zero byte.
        let unknown = unsafe { rocksdb_property_int(self.db, name.as_ptr(), &raw mut value) };
        assert_eq!(unknown, 0, "RocksDB has no property {name:?}");
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

    /// Call `take(position, value)` for each key with a value. Returns the number of keys without one.
    fn multi_get(&self, keys: &[u64], mut take: impl FnMut(usize, &[u8])) -> Result<usize, PeerError> {
        // Big-endian bytes sort like the numbers.
        let keys: Vec<[u8; 8]> = keys.iter().map(|key| key.to_be_bytes()).collect();
        let pointers: Vec<*const c_char> = keys.iter().map(|key| key.as_ptr().cast()).collect();
        let sizes = vec![8; keys.len()];
        let mut values = vec![null_mut(); keys.len()];
        let mut errors = vec![null_mut(); keys.len()];
        // SAFETY: every array has one entry per key, and lives during the call.
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
        let (mut missing, mut result) = (0, Ok(()));
        for (position, (value, error)) in values.into_iter().zip(errors).enumerate() {
            // SAFETY: the library has set value and error of every key; each is freed once.
            unsafe {
                result = result.and(check(error));
                if value.is_null() {
                    missing += 1;
                } else {
                    let mut bytes = 0;
                    let data = rocksdb_pinnableslice_value(value, &raw mut bytes);
                    take(position, std::slice::from_raw_parts(data.cast(), bytes));
                    rocksdb_pinnableslice_destroy(value);
                }
            }
        }
        result.map(|()| missing)
    }
}

impl Engine for RocksDb {
    fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    fn get(&self, keys: &[u64], rows: &mut [f32]) -> Result<(), PeerError> {
        let row_floats = self.row_bytes / 4;
        let mut missing = 0;
        for (keys, rows) in keys.chunks(KEYS_PER_CALL).zip(rows.chunks_mut(KEYS_PER_CALL * row_floats)) {
            missing += self.multi_get(keys, |position, value| {
                let row = &mut rows[position * row_floats..][..row_floats];
                assert_eq!(value.len(), size_of_val(row), "rows are of one size");
                for (float, bytes) in row.iter_mut().zip(value.as_chunks().0) {
                    *float = f32::from_ne_bytes(*bytes);
                }
            })?;
        }
        none_missing(NAME, missing)
    }

    fn put(&self, keys: &[u64], rows: &[f32]) -> Result<(), PeerError> {
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

    fn read_ahead(&self, keys: &[u64]) -> Result<(), PeerError> {
        // A get brings its rows into the caches.
        let missing = keys.chunks(KEYS_PER_CALL).map(|keys| self.multi_get(keys, |_, _| {}));
        none_missing(NAME, missing.sum::<Result<usize, _>>()?)
    }

    fn settle(&self) -> Result<(), PeerError> {
        let end = Instant::now() + SETTLE;
        // Between a flush and the compaction that it causes, nothing is pending for a moment.
        let mut idle = 0;
        while idle < 2 {
            idle = if self.is_idle() { idle + 1 } else { 0 };
            if Instant::now() > end {
                let message = format!("compactions are not finished after {SETTLE:?}");
                return Err(PeerError::Engine { engine: NAME, message });
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }
}

impl Drop for RocksDb {
    fn drop(&mut self) {
        // SAFETY: no thread uses the database any more. Each object is destroyed once, and the database
        // before the options and caches it uses. Closing flushes the memtables.
        unsafe {
            if !self.db.is_null() {
                rocksdb_column_family_handle_destroy(self.family);
                rocksdb_close(self.db);
            }
            rocksdb_options_destroy(self.options);
            rocksdb_cache_destroy(self.blocks);
            rocksdb_cache_destroy(self.rows);
            rocksdb_readoptions_destroy(self.read);
            rocksdb_writeoptions_destroy(self.write);
        }
    }
}

/// # Safety
/// `error` is null or a message of the library, which only this call frees.
unsafe fn check(error: *mut c_char) -> Result<(), PeerError> {
    if error.is_null() {
        return Ok(());
    }
    // SAFETY: the caller guarantees that this is a string of the library.
    let message = unsafe { CStr::from_ptr(error) }.to_string_lossy().into_owned();
    // SAFETY: the message was allocated by the library, and is freed once.
    unsafe { rocksdb_free(error.cast()) };
    Err(PeerError::Engine { engine: NAME, message })
}
