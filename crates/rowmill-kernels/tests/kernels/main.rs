//! Every kernel against the loop a reader would write, for every instruction set of the machine.
//!
//! What could break: a width that is no multiple of a register, an empty bag, padding, a repeated id, an id
//! at the end of its range, a store past the end of a row, an instruction set that rounds differently.
//! Expected and computed floats are compared bit for bit. proptest chooses the shapes and prints the seed
//! of a failure; the floats come from a generator seeded by it.

mod accumulate;
mod bf16;
mod data;
mod exchange;
mod finite;
mod gather;
mod gradient_addresses;
mod initialize;
mod interaction;
mod neighbours;
mod optimizers;
mod pool;
mod split;
mod unique;
mod wire;
