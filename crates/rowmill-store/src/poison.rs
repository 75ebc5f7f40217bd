//! Why a store refuses writes: the first failure, of a write or of a thread.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use rowmill_sync::Mutex;

use crate::{StoreError, ranks};

/// The first failure of a store, if any.
#[derive(Debug, Default)]
pub(crate) struct Poison(Mutex<Option<String>, ranks::Poison>);

impl Poison {
    /// Refuse every later write because of `cause`, unless an earlier failure is known.
    pub(crate) fn set(&self, cause: impl FnOnce() -> String) {
        self.0.lock().get_or_insert_with(cause);
    }

    /// # Errors
    /// [`StoreError::Poisoned`] after a failure.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        match &*self.0.lock() {
            Some(cause) => Err(StoreError::Poisoned { cause: cause.clone() }),
            None => Ok(()),
        }
    }

    /// Run the work of a background thread. If it panics, that is the cause from then on.
    ///
    /// # Errors
    /// The cause, with the name of the thread and the text of the panic.
    pub(crate) fn catch(&self, thread: &str, work: impl FnOnce()) -> Result<(), String> {
        catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
            let cause = panicked(thread, &*panic);
            self.set(|| cause.clone());
            cause
        })
    }
}

/// The cause for a thread whose work ended with `panic`.
pub(crate) fn panicked(thread: &str, panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("{thread} panicked: {}", text.unwrap_or("it did not say why"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_cause_stays() {
        let poison = Poison::default();
        assert!(poison.check().is_ok() && poison.catch("the quiet thread", || {}).is_ok());
        let number = 7;
        let cause = poison.catch("the cleaning thread", || panic!("segment {number}")).unwrap_err();
        assert_eq!(cause, "the cleaning thread panicked: segment 7");
        poison.set(|| "another".into());
        poison.catch("the other thread", || panic!("as well")).unwrap_err();
        assert!(matches!(poison.check(), Err(StoreError::Poisoned { cause: found }) if found == cause));
    }
}
