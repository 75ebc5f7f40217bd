//! `WiredTiger` (3.2) as an engine: a B-tree with a cache of its own, called through a shim of plain C
//! functions.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::ptr::null_mut;
use std::sync::{Mutex, PoisonError};

use crate::error::none_missing;
use crate::{Engine, Options, PeerError};

const NAME: &str = "WiredTiger";
/// Fraction of the memory for the cache. The cache size does not count allocation overhead. With 64 MiB of
/// memory and 8 other busy threads, the process grew by 78 to 92 MB with a cache of 1/2, and by up to 154 MB
/// with 3/4.
const CACHE_PART: (u64, u64) = (1, 2);
/// The block size of the store, too. Rows within a page in memory are searched, not scanned.
const TABLE: &CStr =
    c"key_format=Q,value_format=u,allocation_size=4KB,leaf_page_max=4KB,internal_page_max=4KB,\
                       leaf_value_max=4KB,access_pattern_hint=random,block_compressor=none";

// Functions of wiredtiger.c. Connections and sessions are opaque.
unsafe extern "C" {
    fn rowmill_wt_open(
        folder: *const c_char,
        config: *const c_char,
        table: *const c_char,
        connection: *mut *mut c_void,
    ) -> c_int;
    fn rowmill_wt_close(connection: *mut c_void) -> c_int;
    fn rowmill_wt_session(connection: *mut c_void, session: *mut *mut c_void) -> c_int;
    fn rowmill_wt_forget(session: *mut c_void);
    fn rowmill_wt_get(
        session: *mut c_void,
        keys: *const u64,
        count: usize,
        rows: *mut u8,
        row_bytes: usize,
        missing: *mut usize,
    ) -> c_int;
    fn rowmill_wt_put(
        session: *mut c_void,
        keys: *const u64,
        count: usize,
        rows: *const u8,
        row_bytes: usize,
    ) -> c_int;
    fn rowmill_wt_checkpoint(session: *mut c_void) -> c_int;
    fn rowmill_wt_message(code: c_int) -> *const c_char;
}

pub(crate) struct WiredTiger {
    connection: *mut c_void,
    row_bytes: usize,
    /// Sessions that no call is using: opening one costs more than a get.
    sessions: Mutex<Vec<Session>>,
}

struct Session(*mut c_void);

// SAFETY: any thread may use a session, but only one at a time.
unsafe impl Send for Session {}
// SAFETY: several threads may use a connection at once; sessions are behind a lock or owned by a call.
unsafe impl Send for WiredTiger {}
// SAFETY: as above: connections are thread-safe, sessions are not shared.
unsafe impl Sync for WiredTiger {}

impl WiredTiger {
    /// A database whose cache is a fraction of the options' memory; it bypasses the page cache.
    pub(crate) fn open(options: &Options) -> Result<Self, PeerError> {
        let config = format!(
            "create,cache_size={},direct_io=[data],log=(enabled=false),session_max=256,eviction=(threads_min=1,\
             threads_max=2)",
            options.memory * CACHE_PART.0 / CACHE_PART.1
        );
        let texts = (CString::new(options.folder.as_os_str().as_bytes()), CString::new(config));
        let (Ok(folder), Ok(config)) = texts else {
            return Err(PeerError::Invalid(format!(
                "{}: the path contains a zero byte",
                options.folder.display()
            )));
        };
        let mut connection = null_mut();
        // SAFETY: all strings end with a zero byte and live during the call.
        check(unsafe {
            rowmill_wt_open(folder.as_ptr(), config.as_ptr(), TABLE.as_ptr(), &raw mut connection)
        })?;
        Ok(Self { connection, row_bytes: options.row_bytes, sessions: Mutex::default() })
    }

    /// Run `work` with a session that no other call uses.
    fn with_session<T>(
        &self,
        work: impl FnOnce(*mut c_void) -> Result<T, PeerError>,
    ) -> Result<T, PeerError> {
        let idle = self.sessions.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let session = if let Some(session) = idle {
            session
        } else {
            let mut session = null_mut();
            // SAFETY: the connection is open.
            check(unsafe { rowmill_wt_session(self.connection, &raw mut session) })?;
            Session(session)
        };
        let result = work(session.0);
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner).push(session);
        result
    }
}

impl Engine for WiredTiger {
    fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    fn get(&self, keys: &[u64], rows: &mut [f32]) -> Result<(), PeerError> {
        assert_eq!(size_of_val(rows), keys.len() * self.row_bytes);
        let mut missing = 0;
        // SAFETY: only this call uses the session; `rows` has room for the row of every key.
        self.with_session(|session| unsafe {
            let rows = rows.as_mut_ptr().cast();
            check(rowmill_wt_get(session, keys.as_ptr(), keys.len(), rows, self.row_bytes, &raw mut missing))
        })?;
        none_missing(NAME, missing)
    }

    fn put(&self, keys: &[u64], rows: &[f32]) -> Result<(), PeerError> {
        assert_eq!(size_of_val(rows), keys.len() * self.row_bytes);
        // SAFETY: only this call uses the session; `rows` holds the row of every key.
        self.with_session(|session| unsafe {
            check(rowmill_wt_put(session, keys.as_ptr(), keys.len(), rows.as_ptr().cast(), self.row_bytes))
        })
    }

    fn settle(&self) -> Result<(), PeerError> {
        // SAFETY: only this call uses the session.
        self.with_session(|session| check(unsafe { rowmill_wt_checkpoint(session) }))
    }
}

impl Drop for WiredTiger {
    fn drop(&mut self) {
        // SAFETY: no call is running. Closing the connection closes the sessions, whose memory is freed
        // afterwards.
        unsafe {
            if let Err(error) = check(rowmill_wt_close(self.connection)) {
                eprintln!("{error}");
            }
            for session in self.sessions.get_mut().unwrap_or_else(PoisonError::into_inner).drain(..) {
                rowmill_wt_forget(session.0);
            }
        }
    }
}

fn check(code: c_int) -> Result<(), PeerError> {
    if code == 0 {
        return Ok(());
    }
    // SAFETY: the library returns a string that is static, or valid until this thread's next call.
    let message = unsafe { CStr::from_ptr(rowmill_wt_message(code)) };
    Err(PeerError::Engine { engine: NAME, message: message.to_string_lossy().into_owned() })
}
