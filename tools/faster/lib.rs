//! Empty: the package exists only for its Cargo.lock.
