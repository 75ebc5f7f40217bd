//! FASTER (C++) as an engine: a hash index over a log whose newest pages are in memory and change in place.

use std::ffi::{CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;

use crate::error::none_missing;
use crate::{Engine, Options, PeerError};

const NAME: &str = "FASTER";
/// Entries per hash bucket, which is one cache line.
const BUCKET_ENTRIES: u64 = 7;
const BUCKET_BYTES: u64 = 64;
/// Fraction of the log in memory that changes in place. Rows in the rest are copied to the tail when they
/// change, so that frequent rows stay in memory.
const IN_PLACE: f64 = 0.9;
/// Number of pages that cannot change in place, and least number of all pages.
const FIXED_PAGES: u64 = 4;
const PAGES_MIN: u64 = 6;

// Functions of faster.cc. Stores are opaque.
unsafe extern "C" {
    fn rowmill_faster_page_bytes() -> u64;
    fn rowmill_faster_open(
        folder: *const c_char,
        buckets: u64,
        log_bytes: u64,
        in_place: f64,
        row_bytes: u32,
    ) -> *mut c_void;
    fn rowmill_faster_close(store: *mut c_void) -> c_int;
    fn rowmill_faster_get(
        store: *mut c_void,
        keys: *const u64,
        count: usize,
        rows: *mut u8,
        missing: *mut usize,
    ) -> c_int;
    fn rowmill_faster_put(store: *mut c_void, keys: *const u64, count: usize, rows: *const u8) -> c_int;
    fn rowmill_faster_rmw(
        store: *mut c_void,
        keys: *const u64,
        count: usize,
        argument: *mut c_void,
        change: Option<unsafe extern "C" fn(*mut c_void, usize, *mut u8)>,
        missing: *mut usize,
    ) -> c_int;
}

pub(crate) struct Faster {
    store: *mut c_void,
    row_bytes: usize,
}

// SAFETY: a store may be used by several threads at once: every call has a session of its own.
unsafe impl Send for Faster {}
// SAFETY: as above: every call has a session of its own.
unsafe impl Sync for Faster {}

/// The closure that `rowmill_faster_rmw` calls back.
struct Caller<'a> {
    change: &'a mut dyn FnMut(usize, &mut [f32]),
    row_floats: usize,
}

impl Faster {
    /// A store whose index and log fit the memory of the options.
    pub(crate) fn open(options: &Options) -> Result<Self, PeerError> {
        let folder = CString::new(options.folder.as_os_str().as_bytes())
            .map_err(|error| PeerError::Invalid(format!("{}: {error}", options.folder.display())))?;
        let buckets = (options.rows / BUCKET_ENTRIES).max(1024).next_power_of_two();
        // SAFETY: the function only returns a constant.
        let page = unsafe { rowmill_faster_page_bytes() };
        let pages = options.memory.saturating_sub(buckets * BUCKET_BYTES) / page;
        if pages < PAGES_MIN {
            return Err(PeerError::Invalid(format!(
                "FASTER needs {} bytes of memory for {} rows, got {}",
                buckets * BUCKET_BYTES + PAGES_MIN * page,
                options.rows,
                options.memory
            )));
        }
        let in_place = IN_PLACE.min((pages - FIXED_PAGES) as f64 / pages as f64);
        // SAFETY: the folder's name ends with a zero byte.
        let store = unsafe {
            rowmill_faster_open(folder.as_ptr(), buckets, pages * page, in_place, options.row_bytes as u32)
        };
        if store.is_null() {
            return Err(failure("it cannot be opened"));
        }
        Ok(Self { store, row_bytes: options.row_bytes })
    }
}

impl Engine for Faster {
    fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    fn get(&self, keys: &[u64], rows: &mut [f32]) -> Result<(), PeerError> {
        assert_eq!(size_of_val(rows), keys.len() * self.row_bytes);
        let mut missing = 0;
        // SAFETY: the store is open; `rows` has room for the row of every key, and the call waits for all its
        // reads.
        let code = unsafe {
            rowmill_faster_get(
                self.store,
                keys.as_ptr(),
                keys.len(),
                rows.as_mut_ptr().cast(),
                &raw mut missing,
            )
        };
        check(code).and_then(|()| none_missing(NAME, missing))
    }

    fn put(&self, keys: &[u64], rows: &[f32]) -> Result<(), PeerError> {
        assert_eq!(size_of_val(rows), keys.len() * self.row_bytes);
        // SAFETY: the store is open; `rows` holds the row of every key.
        check(unsafe { rowmill_faster_put(self.store, keys.as_ptr(), keys.len(), rows.as_ptr().cast()) })
    }

    fn rmw(&self, keys: &[u64], change: &mut dyn FnMut(usize, &mut [f32])) -> Result<(), PeerError> {
        let mut caller = Caller { change, row_floats: self.row_bytes / size_of::<f32>() };
        let argument = (&raw mut caller).cast();
        let mut missing = 0;
        // SAFETY: the store is open; `caller` outlives the call, which uses it only in this thread.
        let code = unsafe {
            rowmill_faster_rmw(self.store, keys.as_ptr(), keys.len(), argument, Some(call), &raw mut missing)
        };
        check(code).and_then(|()| none_missing(NAME, missing))
    }

    fn read_ahead(&self, keys: &[u64]) -> Result<(), PeerError> {
        let mut missing = 0;
        // SAFETY: the store is open; without a change, there is no callback.
        let code = unsafe {
            let nothing = std::ptr::null_mut();
            rowmill_faster_rmw(self.store, keys.as_ptr(), keys.len(), nothing, None, &raw mut missing)
        };
        check(code).and_then(|()| none_missing(NAME, missing))
    }

    fn settle(&self) -> Result<(), PeerError> {
        // A store has no background threads.
        Ok(())
    }
}

impl Drop for Faster {
    fn drop(&mut self) {
        // SAFETY: no call is running, and the store is closed once.
        if let Err(error) = check(unsafe { rowmill_faster_close(self.store) }) {
            eprintln!("{error}; rows put since the last checkpoint are lost");
        }
    }
}

/// # Safety
/// `argument` points to a `Caller`, and `row` to a row of `row_floats` floats.
unsafe extern "C" fn call(argument: *mut c_void, position: usize, row: *mut u8) {
    // SAFETY: the caller upholds the contract.
    let caller = unsafe { &mut *argument.cast::<Caller>() };
    // SAFETY: the caller upholds the contract; rows are aligned to 8 bytes.
    let row = unsafe { std::slice::from_raw_parts_mut(row.cast(), caller.row_floats) };
    (caller.change)(position, row);
}

fn check(code: c_int) -> Result<(), PeerError> {
    if code == 0 { Ok(()) } else { Err(failure("a call failed")) }
}

fn failure(message: &str) -> PeerError {
    PeerError::Engine { engine: NAME, message: format!("{message}; see the message above") }
}
