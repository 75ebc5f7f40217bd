//! Tensors as `DLPack` capsules, which torch takes and gives without a copy.
//!
//! A capsule holds a `DLManagedTensor`. This is `DLPack`'s form without a version number, which every torch takes and gives.
//! It cannot say that memory is read-only, so a consumer must know that it may not write to tensors from here.
//!
//! A managed tensor is released exactly once: by its consumer, which renames the capsule, or by a capsule without a
//! consumer. Here, capsules from torch are never consumed: torch releases their tensors with the capsules.

use std::ffi::{CStr, c_void};
use std::ptr::{NonNull, null_mut};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use rowmill_serve::{Arena, Buffer, DType, Failure, SMALL_BYTES, Tensor, TensorName};

use crate::errors::invalid;

/// Name of a capsule whose tensor has no consumer yet.
const UNUSED: &CStr = c"dltensor";
/// `DLPack`'s number of memory that the CPU owns.
const CPU: i32 = 1;
/// How many dimensions a tensor of a message may have.
const DIMS_MAX: usize = 8;

/// `DLTensor`, with its device and its type.
#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device: i32,
    device_number: i32,
    dims: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *mut i64,
    /// In elements. Null means row by row without gaps.
    strides: *mut i64,
    offset_bytes: u64,
}

/// `DLManagedTensor`.
#[repr(C)]
struct ManagedTensor {
    tensor: DlTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedTensor)>,
}

/// A managed tensor with its memory. The managed tensor comes first, so both have one address.
#[repr(C)]
struct Holder {
    managed: ManagedTensor,
    shape: [i64; DIMS_MAX],
    strides: [i64; DIMS_MAX],
    _data: Buffer,
}

/// A capsule over the memory of a tensor, which is kept until the capsule or its consumer is gone.
pub(crate) fn capsule<'py>(py: Python<'py>, tensor: &Tensor) -> PyResult<Bound<'py, PyCapsule>> {
    let (mut shape, mut strides) = ([0; DIMS_MAX], [0; DIMS_MAX]);
    let mut stride = 1_i64;
    for (at, &size) in tensor.shape.iter().enumerate().rev() {
        shape[at] = i64::try_from(size)
            .map_err(|_| invalid(py, format!("shape {:?}: torch has no size {size}", tensor.shape)))?;
        strides[at] = stride;
        // Overflows in a tensor without elements only, which needs no strides.
        stride = stride.wrapping_mul(shape[at]);
    }
    let is_empty = tensor.data.is_empty();
    let data = if is_empty { null_mut() } else { tensor.data.as_ptr().cast_mut().cast() };
    let described = DlTensor {
        data,
        device: CPU,
        device_number: 0,
        dims: tensor.shape.len() as i32,
        code: code_of(tensor.dtype),
        bits: (tensor.dtype.bytes() * 8) as u8,
        lanes: 1,
        shape: null_mut(),
        strides: null_mut(),
        offset_bytes: 0,
    };
    let managed = ManagedTensor { tensor: described, context: null_mut(), deleter: Some(release) };
    let holder =
        NonNull::from(Box::leak(Box::new(Holder { managed, shape, strides, _data: tensor.data.clone() })));
    // SAFETY: the holder was just made and has no other user. It stays in place, so its fields may point into it. The bytes
    // of a `Buffer` stay in place while a clone lives, wherever the clone moves.
    unsafe {
        let holder = holder.as_ptr();
        (*holder).managed.tensor.shape = (&raw mut (*holder).shape).cast();
        (*holder).managed.tensor.strides = (&raw mut (*holder).strides).cast();
    }
    // SAFETY: the holder lives until `release`, which the consumer or `close` calls. A `Buffer` may be dropped by any
    // thread, with the GIL or without it.
    let made = unsafe { PyCapsule::new_with_pointer_and_destructor(py, holder.cast(), UNUSED, Some(close)) };
    made.inspect_err(|_| {
        // SAFETY: no capsule has taken the holder.
        unsafe { release(holder.as_ptr().cast()) }
    })
}

/// The tensor in a capsule of torch, copied: into the arena unless it is small. `number` becomes its name. A failure where
/// the arena has no room.
pub(crate) fn copied(
    arena: &Arena,
    number: u16,
    capsule: &Bound<'_, PyCapsule>,
) -> PyResult<Result<Tensor, Failure>> {
    let py = capsule.py();
    let wrong = |what: String| invalid(py, format!("output {number}: {what}"));
    let managed = capsule.pointer_checked(Some(UNUSED)).map_err(|_| {
        wrong(
            "expected a DLPack capsule (\"dltensor\") that no other tensor uses: make one by to_dlpack"
                .into(),
        )
    })?;
    // SAFETY: by DLPack, a capsule of this name holds a managed tensor, which lives until a consumer renames the capsule.
    // No consumer can run here: the GIL is held.
    let tensor = unsafe { &managed.cast::<ManagedTensor>().as_ref().tensor };
    if tensor.device != CPU {
        let device = tensor.device;
        return Err(wrong(format!(
            "its memory is on DLPack's device {device}, not on the CPU: copy it by .cpu()"
        )));
    }
    let dtype =
        (tensor.lanes == 1).then(|| dtype_of(tensor.code, tensor.bits)).flatten().ok_or_else(|| {
            let (code, bits) = (tensor.code, tensor.bits);
            wrong(format!(
                "its type (DLPack's code {code}, {bits} bits) is not served: convert it, e.g. to float32"
            ))
        })?;
    let dims = usize::try_from(tensor.dims).ok().filter(|&dims| dims <= DIMS_MAX).ok_or_else(|| {
        wrong(format!("it has {} dimensions, at most {DIMS_MAX} are possible: reshape it", tensor.dims))
    })?;
    // SAFETY: by DLPack, `shape` has a size per dimension, and lives as long as the managed tensor.
    let sizes = unsafe { slice(tensor.shape, dims) };
    let shape: Box<[u64]> = sizes.iter().map(|&size| size as u64).collect();
    let bytes = shape.iter().try_fold(dtype.bytes() as u64, |bytes, &size| bytes.checked_mul(size));
    let bytes = bytes.and_then(|bytes| usize::try_from(bytes).ok());
    let bytes = bytes.ok_or_else(|| wrong(format!("no memory has the shape {shape:?}")))?;
    if bytes > 0 && !tensor.strides.is_null() {
        // SAFETY: as for the sizes.
        let strides = unsafe { slice(tensor.strides, dims) };
        if !is_contiguous(sizes, strides) {
            return Err(wrong(format!(
                "its strides {strides:?} leave gaps in the shape {shape:?}: make it contiguous by .contiguous()"
            )));
        }
    }
    // SAFETY: by DLPack, a contiguous tensor on the CPU has this number of bytes at this address, as long as the managed tensor lives.
    // The program that made it has ended, so no thread writes to it.
    let data = unsafe { slice(tensor.data.cast::<u8>().wrapping_add(tensor.offset_bytes as usize), bytes) };
    let data = if bytes <= SMALL_BYTES {
        Buffer::from(data)
    } else {
        let mut lease = match arena.lease(bytes) {
            Ok(lease) => lease,
            Err(error) => return Ok(Err(error.into())),
        };
        lease.copy_from_slice(data);
        lease.share()
    };
    Ok(Ok(Tensor::new(TensorName::Number(number), dtype, &shape, data)))
}

/// Items behind a pointer, which may be null where there are none.
///
/// # Safety
/// As for `std::slice::from_raw_parts`, if `count` is not 0.
unsafe fn slice<'a, T>(start: *const T, count: usize) -> &'a [T] {
    // SAFETY: the caller's duty.
    if count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(start, count) } }
}

/// Whether a tensor with elements lies in memory row by row without gaps. A size of 1 may have any stride.
fn is_contiguous(sizes: &[i64], strides: &[i64]) -> bool {
    let mut expected = 1;
    sizes.iter().zip(strides).rev().all(|(&size, &stride)| {
        let fits = size == 1 || stride == expected;
        expected *= size;
        fits
    })
}

/// Release a managed tensor of [`capsule`].
///
/// # Safety
/// It was not released before, and has no user afterwards.
unsafe extern "C" fn release(managed: *mut ManagedTensor) {
    // SAFETY: the managed tensor is the first field of a holder that `capsule` has leaked from a box.
    drop(unsafe { Box::from_raw(managed.cast::<Holder>()) });
}

/// The end of a capsule: release its tensor, unless a consumer has renamed the capsule and does it.
///
/// # Safety
/// Called by Python, with a capsule of [`capsule`].
unsafe extern "C" fn close(capsule: *mut ffi::PyObject) {
    // SAFETY: the capsule is valid during its destructor. A name that is unchanged means that no consumer has the tensor.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, UNUSED.as_ptr()) == 1 {
            release(ffi::PyCapsule_GetPointer(capsule, UNUSED.as_ptr()).cast());
        }
    }
}

/// `DLPack`'s number for a kind of numbers.
fn code_of(dtype: DType) -> u8 {
    match dtype {
        DType::Int8 | DType::Int16 | DType::Int32 | DType::Int64 => 0,
        DType::UInt8 => 1,
        DType::Float16 | DType::Float32 | DType::Float64 => 2,
        DType::BFloat16 => 4,
        DType::Bool => 6,
    }
}

fn dtype_of(code: u8, bits: u8) -> Option<DType> {
    Some(match (code, bits) {
        (0, 8) => DType::Int8,
        (0, 16) => DType::Int16,
        (0, 32) => DType::Int32,
        (0, 64) => DType::Int64,
        (1, 8) => DType::UInt8,
        (2, 16) => DType::Float16,
        (2, 32) => DType::Float32,
        (2, 64) => DType::Float64,
        (4, 16) => DType::BFloat16,
        (6, 8) => DType::Bool,
        _ => return None,
    })
}
