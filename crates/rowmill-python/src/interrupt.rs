//! Long work without the GIL, which signals interrupt.

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;

/// Run `work` without the GIL. It must stop soon after the function passed to it returns true, which a signal causes. The
/// exception of the signal is raised then.
pub(crate) fn interruptible<T: Send>(
    py: Python<'_>,
    work: impl Send + FnOnce(&dyn Fn() -> bool) -> T,
) -> PyResult<T> {
    let signal: Mutex<Option<PyErr>> = Mutex::new(None);
    let result = py.detach(|| {
        let interrupted = || match Python::attach(|py: Python<'_>| py.check_signals()) {
            Ok(()) => false,
            Err(error) => {
                *signal.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                true
            }
        };
        work(&interrupted)
    });
    match signal.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(result),
    }
}
