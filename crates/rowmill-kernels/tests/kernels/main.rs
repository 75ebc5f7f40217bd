//! Compares every kernel with a plain loop, for every instruction set of the machine.
//!
//! Cases that could break: a width that is not a multiple of a register, an empty bag, padding, a repeated
//! id, an id at the end of its range, a store past the end of a row, and an instruction set that rounds
//! differently. Floats are compared bit for bit. proptest chooses the shapes and prints the seed of a
//! failure; the floats come from a generator with that seed.

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
