//! Takes a `ModelInferRequest` apart while its bytes arrive: raw tensors go to their place, and the rest is kept to be
//! decoded.
//!
//! Raw tensors are copied once, whatever their number and wherever they begin in the message. No byte is read twice.

use std::ops::Range;

use super::super::problem::{Kind, Problem};

/// A multiple of the size of every element, at which tensors begin.
const ALIGNMENT: usize = 8;
/// Fields of a message at most. Each takes up to some hundred bytes while the message is decoded.
const FIELDS_MAX: usize = 1 << 16;
const RAW_INPUT_CONTENTS: u64 = 7;

/// A message that arrives.
#[derive(Debug)]
pub(super) struct Split {
    /// The message without its raw tensors.
    pub(super) rest: Vec<u8>,
    /// Where its raw tensors lie in the target.
    pub(super) raw: Vec<Range<usize>>,
    rest_max: usize,
    raw_max: usize,
    state: State,
    /// The number that is being read.
    varint: u64,
    varint_bits: u32,
    /// Where the current field begins in `rest`.
    field_at: usize,
    fields: usize,
}

#[derive(Debug)]
enum State {
    /// Before or inside the number and the kind of a field.
    Key,
    /// Inside a field that is a number.
    Number,
    /// Before or inside the length of a field.
    Length { is_raw: bool },
    /// Inside a field, with the number of its bytes that are left.
    Field(usize),
    /// Inside the last raw tensor, with the number of its bytes that are left.
    Raw(usize),
}

impl Split {
    /// A message with at most `rest_max` bytes beside raw tensors, and at most `raw_max` raw tensors.
    pub(super) fn new(rest_max: usize, raw_max: usize) -> Self {
        Self {
            rest: Vec::new(),
            raw: Vec::new(),
            rest_max,
            raw_max,
            state: State::Key,
            varint: 0,
            varint_bits: 0,
            field_at: 0,
            fields: 0,
        }
    }

    /// Bytes of the target for the raw tensors of a message of `bytes`.
    pub(super) fn target_bytes(&self, bytes: usize) -> usize {
        bytes + self.raw_max * ALIGNMENT
    }

    /// Take the next bytes of the message.
    pub(super) fn push(&mut self, mut piece: &[u8], target: &mut [u8]) -> Result<(), Problem> {
        while let Some((&first, behind)) = piece.split_first() {
            match self.state {
                State::Field(left) => {
                    let (taken, behind) = piece.split_at(left.min(piece.len()));
                    self.rest.extend_from_slice(taken);
                    self.state = State::Field(left - taken.len());
                    piece = behind;
                }
                State::Raw(left) => {
                    let (taken, behind) = piece.split_at(left.min(piece.len()));
                    let at = self.raw.last().map_or(0, |raw| raw.end - left);
                    target[at..at + taken.len()].copy_from_slice(taken);
                    self.state = State::Raw(left - taken.len());
                    piece = behind;
                }
                State::Key | State::Number | State::Length { .. } => {
                    if self.is_whole() {
                        self.field_at = self.rest.len();
                    }
                    self.rest.push(first);
                    piece = behind;
                    if let Some(number) = self.number(first)? {
                        self.state = self.next(number, target.len())?;
                    }
                }
            }
            if let State::Field(0) | State::Raw(0) = self.state {
                self.state = State::Key;
            }
        }
        Ok(())
    }

    /// Whether the message may end here.
    pub(super) fn is_whole(&self) -> bool {
        matches!(self.state, State::Key) && self.varint_bits == 0
    }

    /// Take a byte of a number; the number with its last byte.
    fn number(&mut self, byte: u8) -> Result<Option<u64>, Problem> {
        let bits = u64::from(byte & 0x7f);
        if self.varint_bits > 63 || (self.varint_bits == 63 && bits > 1) {
            return Err(spoiled("it has a number of more than 64 bits"));
        }
        self.varint |= bits << self.varint_bits;
        self.varint_bits += 7;
        if byte & 0x80 != 0 {
            return Ok(None);
        }
        self.varint_bits = 0;
        Ok(Some(std::mem::take(&mut self.varint)))
    }

    /// What follows a key, a number or a length.
    fn next(&mut self, number: u64, target_bytes: usize) -> Result<State, Problem> {
        let left = match self.state {
            State::Key => {
                self.fields += 1;
                within("fields", self.fields, FIELDS_MAX)?;
                match number & 7 {
                    0 => return Ok(State::Number),
                    1 => 8,
                    2 => return Ok(State::Length { is_raw: number >> 3 == RAW_INPUT_CONTENTS }),
                    5 => 4,
                    kind => return Err(spoiled(&format!("it has a field of the kind {kind}"))),
                }
            }
            State::Length { is_raw: false } => usize::try_from(number).unwrap_or(usize::MAX),
            State::Length { is_raw: true } => return self.place(number, target_bytes),
            State::Number | State::Field(_) | State::Raw(_) => 0,
        };
        within("bytes", self.rest.len().saturating_add(left), self.rest_max)?;
        Ok(State::Field(left))
    }

    /// Where a raw tensor of `bytes` goes.
    fn place(&mut self, bytes: u64, target_bytes: usize) -> Result<State, Problem> {
        self.rest.truncate(self.field_at);
        if self.raw.len() == self.raw_max {
            let text =
                format!("there are more than {} raw_input_contents, no model takes more", self.raw_max);
            return Err(Problem::invalid(text));
        }
        let start = self.raw.last().map_or(0, |raw| raw.end.next_multiple_of(ALIGNMENT));
        let end = usize::try_from(bytes).ok().and_then(|bytes| start.checked_add(bytes));
        let end = end
            .filter(|&end| end <= target_bytes)
            .ok_or_else(|| spoiled(&format!("it ends inside of a raw tensor of {bytes} bytes")))?;
        self.raw.push(start..end);
        Ok(State::Raw(end - start))
    }
}

fn spoiled(why: &str) -> Problem {
    Problem::invalid(format!("the message is not a ModelInferRequest: {why}"))
}

fn within(what: &str, found: usize, limit: usize) -> Result<(), Problem> {
    if found <= limit {
        return Ok(());
    }
    let text = format!(
        "the message has {found} {what} beside raw tensors, the limit is {limit}: send large tensors as \
         raw_input_contents"
    );
    Err(Problem::new(Kind::TooLarge, text))
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use rowmill_testkit::Rng64;

    use super::super::messages::ModelInferRequest;
    use super::super::messages::model_infer_request::InferInputTensor;
    use super::*;

    fn request(raw: &[usize]) -> ModelInferRequest {
        let tensor = |bytes: &usize| (0..*bytes).map(|at| at as u8).collect();
        ModelInferRequest {
            model_name: "model".into(),
            inputs: vec![InferInputTensor { shape: vec![-1, 300], ..Default::default() }; 2],
            raw_input_contents: raw.iter().map(tensor).collect(),
            ..Default::default()
        }
    }

    #[test]
    fn messages_in_any_pieces_come_apart_and_tensors_are_aligned() {
        let mut rng = Rng64::new(3);
        for raw in [&[][..], &[0], &[1, 0, 17, 4096], &[3; 9], &[100_000, 5]] {
            let whole = request(raw);
            let mut message = whole.encode_to_vec();
            // Fields behind the tensors: a number, 4 bytes, and 8 bytes, all unknown.
            message.extend([0x40, 0x05, 0x4d, 1, 2, 3, 4, 0x51, 1, 2, 3, 4, 5, 6, 7, 8]);
            for pieces_max in [1, 3, 50, 20_000] {
                let mut split = Split::new(1000, 9);
                let mut target = vec![0; split.target_bytes(message.len())];
                let mut left = &message[..];
                while !left.is_empty() {
                    let (piece, behind) = left.split_at((rng.below(pieces_max) as usize + 1).min(left.len()));
                    split.push(piece, &mut target).unwrap();
                    left = behind;
                }
                assert!(split.is_whole());
                for (found, expected) in split.raw.iter().zip(&whole.raw_input_contents) {
                    assert_eq!((found.start % ALIGNMENT, &target[found.clone()]), (0, &expected[..]));
                }
                assert_eq!(split.raw.len(), raw.len());
                let rest = ModelInferRequest::decode(&split.rest[..]).unwrap();
                assert_eq!(rest, ModelInferRequest { raw_input_contents: vec![], ..whole.clone() });
            }
        }
    }

    #[test]
    fn limits_are_named() {
        let push = |message: &[u8], rest_max, raw_max| {
            let mut split = Split::new(rest_max, raw_max);
            let mut target = vec![0; split.target_bytes(message.len())];
            split.push(message, &mut target).err().map(|problem| problem.text)
        };
        let message = request(&[8, 8]).encode_to_vec();
        assert_eq!(push(&message, 1000, 2), None);
        for (spoiled, rest_max, raw_max, text) in [
            (&message[..], 10, 2, "the limit is 10"),
            (&message, 1000, 1, "more than 1 raw_input_contents"),
            (&[0x3a, 0xff, 0xff, 0x7f], 1000, 2, "inside of a raw tensor of 2097151 bytes"),
            (&[0x0b], 1000, 2, "a field of the kind 3"),
            (&[0xff; 11], 1000, 2, "more than 64 bits"),
            (&[0x40, 1].repeat(70_000), 1 << 20, 2, "65537 fields"),
        ] {
            let found = push(spoiled, rest_max, raw_max).unwrap();
            assert!(found.contains(text), "{found:?} lacks {text:?}");
        }
    }
}
