//! The requests of a batch as one request.

use super::Task;
use crate::messages::SMALL_BYTES;
use crate::{Arena, Buffer, Failure, Tensor};

/// The inputs of all requests as those of one, whose rows are those of the requests, in their new order. Where lookup
/// threads have put them side by side ([`NextBatch`](super::next_batch)), they are used in place. Else they are copied, large
/// ones into the arena. From then on, requests of this process have their inputs there: the next lookups can use the memory
/// of the old ones while it is still in the caches.
///
/// # Errors
/// When types or shapes differ in more than the number of rows, or the arena has no room. Inputs are unchanged then.
pub(super) fn join(requests: &mut [Task], arena: &Arena) -> Result<Vec<Tensor>, Failure> {
    if let [only] = requests {
        return Ok(only.tensors.clone());
    }
    // Those side by side, in the order in which they lie there.
    requests.sort_by_key(|request| request.tensors.first().map(|tensor| tensor.data.as_ptr().addr()));
    let count = requests.first().map_or(0, |request| request.tensors.len());
    let of_number = |number| -> Result<Tensor, Failure> {
        let parts = requests.iter().map(|request| request.tensors.get(number));
        join_tensors(&parts.collect::<Option<Vec<_>>>().ok_or_else(|| unequal(number))?, number, arena)
    };
    let joined = (0..count).map(of_number).collect::<Result<Vec<_>, _>>()?;
    let parts = split(requests, &joined)?;
    for (request, tensors) in requests.iter_mut().zip(parts) {
        request.replace_inputs(tensors);
    }
    Ok(joined)
}

fn join_tensors(parts: &[&Tensor], number: usize, arena: &Arena) -> Result<Tensor, Failure> {
    let first = parts[0];
    let Some((_, row)) = first.shape.split_first() else { return Err(unequal(number)) };
    let is_alike = |part: &&Tensor| part.dtype == first.dtype && part.shape.get(1..) == Some(row);
    if !parts.iter().all(is_alike) {
        return Err(unequal(number));
    }
    let mut shape = first.shape.clone();
    shape[0] = parts.iter().map(|part| part.shape[0]).sum();
    let bytes = parts.iter().map(|part| part.data.len()).sum();
    let data = if let Some(whole) = Buffer::side_by_side(parts.iter().map(|part| &part.data)) {
        whole
    } else if bytes <= SMALL_BYTES {
        let mut whole = vec![0; bytes];
        copy(parts, &mut whole);
        Buffer::from(&whole[..])
    } else {
        let mut lease = arena.lease(bytes)?;
        copy(parts, &mut lease);
        lease.share()
    };
    Ok(Tensor::new(first.name.clone(), first.dtype, &shape, data))
}

fn copy(parts: &[&Tensor], mut rest: &mut [u8]) {
    for part in parts {
        let (target, behind) = rest.split_at_mut(part.data.len());
        target.copy_from_slice(&part.data);
        rest = behind;
    }
}

/// The rows of each request in tensors that have those of all `requests`.
///
/// # Errors
/// When a tensor has another number of rows.
pub fn split(requests: &[Task], tensors: &[Tensor]) -> Result<Vec<Vec<Tensor>>, Failure> {
    let total: u64 = requests.iter().map(Task::rows).sum();
    if let Some(number) = tensors.iter().position(|tensor| tensor.shape.first() != Some(&total)) {
        let shape = &tensors[number].shape;
        return Err(Failure::invalid(format!("tensor {number} has shape {shape:?}, must have {total} rows")));
    }
    let mut end = 0;
    let of_request = |request: &Task| {
        let start = end;
        end += request.rows();
        tensors.iter().map(|tensor| slice(tensor, start, end)).collect()
    };
    Ok(requests.iter().map(of_request).collect())
}

/// Rows `start` to `end` of a tensor.
fn slice(tensor: &Tensor, start: u64, end: u64) -> Tensor {
    let row_bytes = tensor.data.len().checked_div(tensor.shape[0] as usize).unwrap_or(0);
    let mut shape = tensor.shape.clone();
    shape[0] = end - start;
    let data = tensor.data.slice(start as usize * row_bytes..end as usize * row_bytes);
    Tensor::new(tensor.name.clone(), tensor.dtype, &shape, data)
}

fn unequal(number: usize) -> Failure {
    Failure::invalid(format!("input {number} of a batch differs between requests in more than the rows"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use super::super::Program;
    use super::*;
    use crate::metrics::HalfMetrics;
    use crate::{Batch, BatchLimits, DType, Status, TensorName};

    const WAIT: Duration = Duration::from_mins(1);
    /// So many bytes of a row lie in the arena.
    const LARGE: u64 = 5000;

    type Answer = tokio::task::JoinHandle<Result<Vec<Tensor>, Failure>>;

    /// A tensor of bytes, all of which are `fill`.
    fn tensor(arena: &Arena, number: u16, shape: &[u64], fill: u8) -> Tensor {
        let mut lease = arena.lease(shape.iter().product::<u64>() as usize).unwrap();
        lease.fill(fill);
        Tensor::new(TensorName::Number(number), DType::UInt8, shape, lease.share())
    }

    /// A batch of requests with these inputs, and their answers to come.
    async fn batch(requests: Vec<Vec<Tensor>>) -> (Batch<Task>, Vec<Answer>) {
        let count = requests.len();
        let limits = BatchLimits {
            batch_requests_max: count,
            batch_rows_max: 1000,
            queue_requests_max: count,
            batches_max: 1,
        };
        let program = Program::new(limits, None, &Arc::new(HalfMetrics::default()));
        let mut answers = Vec::new();
        for (number, tensors) in (1..).zip(requests) {
            let program = program.clone();
            let deadline = Instant::now() + WAIT * number;
            answers.push(tokio::spawn(async move { program.run(tensors, deadline, None, None).await }));
        }
        while program.queued() < count {
            tokio::task::yield_now().await;
        }
        (program.take(0, WAIT).unwrap(), answers)
    }

    #[tokio::test]
    async fn joined_requests_are_one_and_each_gets_its_rows() {
        let arena = Arena::new(1 << 20).unwrap();
        let request = |rows: u64, fill: u8| {
            vec![tensor(&arena, 0, &[rows, LARGE], fill), tensor(&arena, 1, &[rows, 2, 2], fill + 100)]
        };
        let rows = [2, 1, 0, 3];
        let requests = rows.iter().zip(1..).map(|(&rows, fill)| request(rows, fill)).collect();
        let (mut batch, answers) = batch(requests).await;
        let held = arena.held_bytes();
        let joined = join(&mut batch.requests, &arena).unwrap();
        assert_eq!([&joined[0].shape[..], &joined[1].shape], [&[6, LARGE][..], &[6, 2, 2]]);
        let of_rows: Vec<u8> = joined[0].data.chunks(LARGE as usize).map(|row| row[7]).collect();
        assert_eq!(of_rows, [1, 1, 2, 4, 4, 4]);
        assert!(arena.held_bytes() < held, "the requests have given their own memory back");
        for (request, (rows, fill)) in batch.requests.iter().zip(rows.into_iter().zip(1..)) {
            assert_eq!(request.tensors[0].shape[..], [rows, LARGE]);
            assert_eq!(request.tensors[1].data[..], vec![fill + 100; 4 * rows as usize]);
        }
        let outputs = split(&batch.requests, &joined).unwrap();
        for (request, outputs) in batch.requests.drain(..).zip(outputs) {
            request.reply(outputs);
        }
        drop(joined);
        for (answer, (rows, fill)) in answers.into_iter().zip(rows.into_iter().zip(1..)) {
            let outputs = answer.await.unwrap().unwrap();
            assert_eq!(outputs[0].data[..], vec![fill; (LARGE * rows) as usize]);
            assert_eq!(outputs[1].shape[..], [rows, 2, 2]);
        }
        assert_eq!(arena.held_bytes(), 0);
    }

    #[tokio::test]
    async fn one_request_is_not_copied() {
        let arena = Arena::new(1 << 20).unwrap();
        let (mut batch, _answers) = batch(vec![vec![tensor(&arena, 0, &[2, LARGE], 1)]]).await;
        let joined = join(&mut batch.requests, &arena).unwrap();
        assert_eq!(joined[0].data.as_ptr(), batch.requests[0].tensors[0].data.as_ptr());
    }

    #[tokio::test]
    async fn requests_that_cannot_be_joined_are_unchanged() {
        let arena = Arena::new(64 << 10).unwrap();
        let shapes = [&[2, 3][..], &[2, 4], &[2, 3, 1], &[]];
        for other in &shapes[1..] {
            let requests = [shapes[0], other].map(|shape| vec![tensor(&arena, 0, shape, 1)]);
            let (mut batch, _answers) = batch(requests.into()).await;
            let failure = join(&mut batch.requests, &arena).unwrap_err();
            assert_eq!(failure.status, Status::Invalid);
            assert!(failure.text.contains("input 0 of a batch differs"), "{}", failure.text);
            assert_eq!(batch.requests[1].tensors[0].shape[..], **other);
        }
        let large = [1, 2].map(|fill| vec![tensor(&arena, 0, &[4, LARGE], fill)]);
        let (mut batch, _answers) = batch(large.into()).await;
        assert_eq!(join(&mut batch.requests, &arena).unwrap_err().status, Status::Full);
        assert_eq!(batch.requests[1].tensors[0].data[0], 2);
        let short = tensor(&arena, 0, &[7, 1], 1);
        let failure = split(&batch.requests, &[short]).unwrap_err();
        assert!(failure.text.contains("tensor 0 has shape [7, 1], must have 8 rows"), "{}", failure.text);
    }
}
