//! Messages of the protocol, generated from `proto/inference.proto`.
#![allow(missing_docs, unreachable_pub, clippy::pedantic, clippy::enum_variant_names, reason = "generated")]

include!(concat!(env!("OUT_DIR"), "/inference.rs"));
