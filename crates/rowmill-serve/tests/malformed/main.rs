//! Malformed requests: 10,000 per protocol, made from valid ones by changing each field in turn, then by changes at random.
//!
//! An independent reading of each changed request says what it means. The server must answer exactly that, or refuse.
//! Afterwards no memory is held, no request is open, and the server still answers. `ROWMILL_FUZZ_SEED` repeats a run.

#[path = "../common/mod.rs"]
mod common;
mod grpc;
mod http;

use common::dense::until;
use common::door::{Door, sums_of};

/// Requests of each protocol.
const REQUESTS: usize = 10_000;

fn seed() -> u64 {
    std::env::var("ROWMILL_FUZZ_SEED").map_or(7, |seed| seed.parse().expect("a number"))
}

/// What a request asks for.
#[derive(Debug, PartialEq)]
struct Meaning {
    id: Option<String>,
    values: Vec<f32>,
    offset: i64,
    /// Names of outputs; `None` for all.
    outputs: Option<Vec<String>>,
}

/// An output of a reply.
#[derive(Debug)]
struct Output {
    name: String,
    shape: Vec<i64>,
    /// Elements as numbers; NaN and infinities of JSON are NaN.
    elements: Vec<f64>,
}

impl Meaning {
    /// Whether these outputs are the answer. `is_json` has no NaN and no infinities.
    fn check(&self, outputs: &[Output], is_json: bool) -> Result<(), String> {
        let all = ["sum".to_owned(), "count".to_owned()];
        let wanted = self.outputs.as_deref().unwrap_or(&all);
        let names: Vec<&str> = outputs.iter().map(|output| &*output.name).collect();
        if names != wanted {
            return Err(format!("outputs {names:?}, not {wanted:?}"));
        }
        let sums = sums_of(&self.values, self.offset);
        for Output { name, shape, elements } in outputs {
            let expected: Vec<f64> = match &**name {
                "sum" => sums.iter().map(|&sum| f64::from(sum)).collect(),
                _ => vec![f64::from(sums.len() as u8)],
            };
            let fits = if name == "sum" { *shape == [sums.len() as i64] } else { shape.is_empty() };
            let same =
                |(a, b): (&f64, &f64)| a == b || (a.is_nan() && (b.is_nan() || is_json && b.is_infinite()));
            if !fits || elements.len() != expected.len() || !elements.iter().zip(&expected).all(same) {
                return Err(format!("{name} is {elements:?} of shape {shape:?}, not {expected:?}"));
            }
        }
        Ok(())
    }
}

fn nothing_is_left(door: &Door) {
    until("memory returns", || door.arena.held_bytes() == 0);
    let open = || door.metric("rowmill_serve_open_requests{model=\"sums\"}");
    until("no request is open", || open().as_deref() == Some("0"));
}
