//! Addresses of the gradients of unique rows, for batches in which few rows are looked up twice.

use rowmill_rows::Pooling;

use crate::{Lookups, SKIP};

/// Addresses pay off while at most one lookup in this many repeats a row. Beyond that, sorting the lookups by
/// row is faster.
const REPEATED_SHARE: usize = 4;

/// The address of the gradient of every unique row: that of the bag for a row looked up once, or that of a
/// sum stored here for other rows.
#[derive(Debug)]
pub struct GradientAddresses {
    places: Places,
    /// Sums that some of the addresses point to.
    _sums: Vec<f32>,
}

/// Addresses of gradients.
#[derive(Debug)]
enum Places {
    /// In the order of the rows, with a constant distance in floats.
    Even(*const f32, usize),
    Listed(Vec<*const f32>),
}

// SAFETY: the addresses are only read from.
unsafe impl Send for GradientAddresses {}
// SAFETY: the addresses are only read from.
unsafe impl Sync for GradientAddresses {}

impl GradientAddresses {
    /// The addresses for unweighted sums in which few rows repeat; `None` otherwise. Sums equal those of
    /// [`accumulate_range`](crate::accumulate_range), except that a row looked up once keeps the sign of its
    /// zeros.
    ///
    /// # Panics
    /// If an index is neither [`SKIP`] nor below `unique`, or offsets do not fit the lookups.
    ///
    /// # Safety
    /// `gradients` has `dim` readable floats at `bag * stride` for every bag of the lookups, for as long as
    /// the addresses are used. Every unique row is looked up.
    pub unsafe fn of_lookups(
        lookups: &Lookups<'_>,
        unique: usize,
        gradients: *const f32,
        stride: usize,
        dim: usize,
    ) -> Option<Self> {
        lookups.assert_shape();
        let Lookups { inverse, offsets, weights, pooling } = *lookups;
        let repeats = inverse.len().saturating_sub(unique);
        if weights.is_some() || pooling != Pooling::Sum || repeats > inverse.len() / REPEATED_SHARE {
            return None;
        }
        let one_each = offsets.iter().zip(0..).all(|(&offset, bag)| offset == bag);
        if one_each && unique == inverse.len() && inverse.iter().zip(0..).all(|(&row, lookup)| row == lookup)
        {
            return Some(Self { places: Places::Even(gradients, stride), _sums: Vec::new() });
        }
        let mut addresses = vec![std::ptr::null::<f32>(); unique];
        let mut repeated: Vec<(u32, *const f32)> = Vec::new();
        let slots = addresses.as_mut_slice();
        let mut see = |row: u32, gradient: *const f32| {
            if row == SKIP {
                return;
            }
            let address = &mut slots[row as usize];
            if address.is_null() {
                *address = gradient;
            } else {
                repeated.push((row, gradient));
            }
        };
        let mut gradient = gradients;
        if one_each {
            for &row in inverse {
                see(row, gradient);
                gradient = gradient.wrapping_add(stride);
            }
        } else {
            for ends in offsets.windows(2) {
                for &row in &inverse[ends[0] as usize..ends[1] as usize] {
                    see(row, gradient);
                }
                gradient = gradient.wrapping_add(stride);
            }
        }
        // A stable sort: the terms of a sum stay in lookup order.
        repeated.sort_by_key(|&(row, _)| row);
        let mut sums = vec![0.0; repeated.chunk_by(|one, next| one.0 == next.0).count() * dim];
        let terms = repeated.chunk_by(|one, next| one.0 == next.0);
        for (terms, sum) in terms.zip(sums.chunks_exact_mut(dim)) {
            let address = &mut addresses[terms[0].0 as usize];
            for gradient in std::iter::once(*address).chain(terms.iter().map(|&(_, gradient)| gradient)) {
                // SAFETY: `gradient` is the gradient of a bag, which has `dim` readable floats.
                let gradient = unsafe { std::slice::from_raw_parts(gradient, dim) };
                sum.iter_mut().zip(gradient).for_each(|(sum, term)| *sum += term);
            }
            *address = sum.as_ptr();
        }
        debug_assert!(
            addresses.iter().all(|address| !address.is_null()),
            "every unique row must be looked up"
        );
        Some(Self { places: Places::Listed(addresses), _sums: sums })
    }

    /// The addresses of contiguous sums of `dim` floats each.
    pub fn of_sums(sums: Vec<f32>, dim: usize) -> Self {
        Self { places: Places::Even(sums.as_ptr(), dim), _sums: sums }
    }

    /// The address of the gradient of `unique`, which must be a unique row.
    #[inline]
    pub fn of(&self, unique: u32) -> *const f32 {
        match &self.places {
            Places::Even(first, stride) => first.wrapping_add(unique as usize * stride),
            Places::Listed(addresses) => addresses[unique as usize],
        }
    }
}
