//! Store poisoning: after its first failure, of a write or of a thread, a store refuses writes.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::{Mutex, ranks};

/// The first failure of a store, if any.
#[derive(Debug, Default)]
pub struct Poison(Mutex<Option<String>, ranks::Poison>);

/// Error: the store refuses writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Poisoned {
    /// The first failure.
    pub cause: String,
}

impl Poison {
    /// Refuse all later writes because of `cause`. The first cause is kept.
    pub fn set(&self, cause: impl FnOnce() -> String) {
        self.0.lock().get_or_insert_with(cause);
    }

    /// # Errors
    /// [`Poisoned`] after a failure.
    pub fn check(&self) -> Result<(), Poisoned> {
        match &*self.0.lock() {
            Some(cause) => Err(Poisoned { cause: cause.clone() }),
            None => Ok(()),
        }
    }

    /// Run the work of a background thread. A panic poisons the store.
    ///
    /// # Errors
    /// The cause: the name of the thread and the text of the panic.
    pub fn catch(&self, thread: &str, work: impl FnOnce()) -> Result<(), String> {
        catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
            let cause = panicked(thread, &*panic);
            self.set(|| cause.clone());
            cause
        })
    }
}

/// The cause for a thread whose work ended with `panic`.
pub fn panicked(thread: &str, panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("{thread} panicked: {}", text.unwrap_or("no message"))
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
        assert_eq!(poison.check(), Err(Poisoned { cause }));
    }
}
