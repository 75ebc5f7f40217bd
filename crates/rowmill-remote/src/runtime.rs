//! Run requests to completion on the caller's thread.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, select};
use rowmill_io::DeviceError;

use crate::RemoteError;

/// How often to check for interruption.
const PERIOD: Duration = Duration::from_millis(100);

/// Run `work` until it completes or `interrupted` returns true; `work` is then dropped.
///
/// # Errors
/// Errors of `work`, [`RemoteError::Interrupted`], or an error when the system provides no event queue.
pub(crate) fn block_on<T>(
    interrupted: &dyn Fn() -> bool,
    work: impl Future<Output = Result<T, RemoteError>>,
) -> Result<T, RemoteError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| DeviceError::from_io("start", "the network runtime", 0, 0, error))?;
    let watch = async {
        while !interrupted() {
            tokio::time::sleep(PERIOD).await;
        }
        Err(RemoteError::Interrupted)
    };
    match runtime.block_on(select(pin!(work), pin!(watch))) {
        Either::Left((result, _)) | Either::Right((result, _)) => result,
    }
}
