//! LMDB (0.9) as an engine: one memory-mapped B-tree.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::ptr::null_mut;

use crate::error::none_missing;
use crate::memory_limit::MemoryLimit;
use crate::{Engine, Options, PeerError};

const NAME: &str = "LMDB";
/// Commits do not wait for the device, like the store's changes between checkpoints.
const NO_SYNC: c_uint = 0x10000;
/// Reader slots belong to transactions, so that any number of threads can read.
const NO_TLS: c_uint = 0x20_0000;
/// Random reads gain nothing from neighbouring pages.
const NO_READ_AHEAD: c_uint = 0x80_0000;
const NO_MEMORY_INIT: c_uint = 0x100_0000;
/// Pages are changed in the memory map: a commit writes none, and the kernel writes them back.
const WRITE_MAP: c_uint = 0x80000;
const INTEGER_KEY: c_uint = 0x08;
const CREATE: c_uint = 0x40000;
const APPEND: c_uint = 0x20000;
const READ_ONLY: c_uint = 0x20000;
const NOT_FOUND: c_int = -30798;
const MODE: c_uint = 0o644;
const READERS: c_uint = 256;

#[repr(C)]
struct Value {
    bytes: usize,
    data: *mut c_void,
}

// The C API as declared in lmdb.h. Environments, transactions and databases are opaque.
#[link(name = "lmdb")]
unsafe extern "C" {
    fn mdb_strerror(code: c_int) -> *const c_char;
    fn mdb_env_create(env: *mut *mut c_void) -> c_int;
    fn mdb_env_set_mapsize(env: *mut c_void, bytes: usize) -> c_int;
    fn mdb_env_set_maxreaders(env: *mut c_void, readers: c_uint) -> c_int;
    fn mdb_env_open(env: *mut c_void, path: *const c_char, flags: c_uint, mode: c_uint) -> c_int;
    fn mdb_env_sync(env: *mut c_void, force: c_int) -> c_int;
    fn mdb_env_close(env: *mut c_void);
    fn mdb_txn_begin(env: *mut c_void, parent: *mut c_void, flags: c_uint, out: *mut *mut c_void) -> c_int;
    fn mdb_txn_commit(transaction: *mut c_void) -> c_int;
    fn mdb_txn_abort(transaction: *mut c_void);
    fn mdb_dbi_open(transaction: *mut c_void, name: *const c_char, flags: c_uint, out: *mut c_uint) -> c_int;
    fn mdb_get(transaction: *mut c_void, dbi: c_uint, key: *mut Value, value: *mut Value) -> c_int;
    fn mdb_put(
        transaction: *mut c_void,
        dbi: c_uint,
        key: *mut Value,
        value: *mut Value,
        flags: c_uint,
    ) -> c_int;
}

pub(crate) struct Lmdb {
    env: *mut c_void,
    dbi: c_uint,
    row_bytes: usize,
    /// Dropped last, when nothing is mapped any more.
    _limit: MemoryLimit,
}

// SAFETY: several threads may use an environment at once; each transaction stays in its thread.
unsafe impl Send for Lmdb {}
// SAFETY: as above: environments are shared, transactions are not.
unsafe impl Sync for Lmdb {}

impl Lmdb {
    /// A database within the memory of the options, including its share of the page cache.
    pub(crate) fn open(options: &Options) -> Result<Self, PeerError> {
        let limit = MemoryLimit::new(options.memory)?;
        let path = CString::new(options.folder.as_os_str().as_bytes())
            .map_err(|error| PeerError::Invalid(format!("{}: {error}", options.folder.display())))?;
        // Address space only: room for the tree, half-filled pages and the versions of a transaction.
        let map = options.rows as usize * (options.row_bytes + 64) * 4 + (1 << 30);
        let mut lmdb = Self { env: null_mut(), dbi: 0, row_bytes: options.row_bytes, _limit: limit };
        // SAFETY: the environment is created, configured and opened in this order, with a path that ends with
        // a zero byte.
        unsafe {
            check(mdb_env_create(&raw mut lmdb.env))?;
            check(mdb_env_set_mapsize(lmdb.env, map))?;
            check(mdb_env_set_maxreaders(lmdb.env, READERS))?;
            let flags = NO_SYNC | NO_TLS | NO_READ_AHEAD | NO_MEMORY_INIT | WRITE_MAP;
            check(mdb_env_open(lmdb.env, path.as_ptr(), flags, MODE))?;
        }
        lmdb.dbi = lmdb.transaction(0, |transaction| {
            let mut dbi = 0;
            // SAFETY: this is a write transaction of the environment; no name means the only database.
            check(unsafe {
                mdb_dbi_open(transaction, std::ptr::null(), INTEGER_KEY | CREATE, &raw mut dbi)
            })?;
            Ok(dbi)
        })?;
        Ok(lmdb)
    }

    /// Run `work` in a transaction, which is committed if `work` succeeds.
    fn transaction<T>(
        &self,
        flags: c_uint,
        work: impl FnOnce(*mut c_void) -> Result<T, PeerError>,
    ) -> Result<T, PeerError> {
        let mut transaction = null_mut();
        // SAFETY: the environment is open.
        check(unsafe { mdb_txn_begin(self.env, null_mut(), flags, &raw mut transaction) })?;
        let result = work(transaction);
        // SAFETY: the transaction began above and is ended once.
        unsafe {
            if result.is_ok() {
                check(mdb_txn_commit(transaction))?;
            } else {
                mdb_txn_abort(transaction);
            }
        }
        result
    }

    /// The bytes of a row, valid until the transaction writes; `None` if the row does not exist.
    fn find(&self, transaction: *mut c_void, key: &u64) -> Result<Option<*const u8>, PeerError> {
        let mut key = value(std::ptr::from_ref(key).cast(), size_of::<u64>());
        let mut found = value(std::ptr::null(), 0);
        // SAFETY: the transaction is open, as the caller guarantees; the key lives during the call.
        let code = unsafe { mdb_get(transaction, self.dbi, &raw mut key, &raw mut found) };
        if code == NOT_FOUND {
            return Ok(None);
        }
        check(code)?;
        assert_eq!(found.bytes, self.row_bytes, "rows are of one size");
        Ok(Some(found.data.cast_const().cast()))
    }

    fn write(&self, keys: &[u64], rows: &[f32], flags: c_uint) -> Result<(), PeerError> {
        self.transaction(0, |transaction| {
            for (key, row) in keys.iter().zip(rows.chunks(self.row_bytes / 4)) {
                let mut key = value(std::ptr::from_ref(key).cast(), size_of::<u64>());
                let mut row = value(row.as_ptr().cast(), self.row_bytes);
                // SAFETY: this is a write transaction; key and row live during the call, which copies them.
                check(unsafe { mdb_put(transaction, self.dbi, &raw mut key, &raw mut row, flags) })?;
            }
            Ok(())
        })
    }
}

impl Engine for Lmdb {
    fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    fn get(&self, keys: &[u64], rows: &mut [f32]) -> Result<(), PeerError> {
        self.transaction(READ_ONLY, |transaction| {
            let mut missing = 0;
            for (key, row) in keys.iter().zip(rows.chunks_mut(self.row_bytes / 4)) {
                let Some(found) = self.find(transaction, key)? else {
                    missing += 1;
                    continue;
                };
                // SAFETY: the found bytes stay mapped until the transaction ends; `row` has as many bytes.
                unsafe { std::ptr::copy_nonoverlapping(found, row.as_mut_ptr().cast(), self.row_bytes) };
            }
            none_missing(NAME, missing)
        })
    }

    fn put(&self, keys: &[u64], rows: &[f32]) -> Result<(), PeerError> {
        self.write(keys, rows, 0)
    }

    fn append(&self, keys: &[u64], rows: &[f32]) -> Result<(), PeerError> {
        self.write(keys, rows, APPEND)
    }

    fn settle(&self) -> Result<(), PeerError> {
        // SAFETY: the environment is open.
        check(unsafe { mdb_env_sync(self.env, 1) })
    }
}

impl Drop for Lmdb {
    fn drop(&mut self) {
        // SAFETY: no transaction is open, and no thread uses the environment any more.
        unsafe { mdb_env_close(self.env) };
    }
}

fn value(data: *const c_void, bytes: usize) -> Value {
    Value { bytes, data: data.cast_mut() }
}

fn check(code: c_int) -> Result<(), PeerError> {
    if code == 0 {
        return Ok(());
    }
    // SAFETY: the library returns a static string.
    let message = unsafe { CStr::from_ptr(mdb_strerror(code)) };
    Err(PeerError::Engine { engine: NAME, message: message.to_string_lossy().into_owned() })
}
