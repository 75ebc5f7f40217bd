//! Vendor commands on rows: stage, fetch and apply, and the vendor area of Identify Controller by which a host detects
//! them. `docs/reference/storage-commands.md` specifies every byte.

mod apply;
mod area;
mod fetch;
mod stage;

pub use apply::{Apply, ApplyBegin, TableSpec, encode_begin, encode_frame};
pub use area::VendorArea;
pub use fetch::{AsOf, DAMAGED_BYTE, Fetch, FetchHeader, StagedResult};
pub use stage::{Feature, FeatureRequest, Form, Ids, IdsRequest, Pooling, RowDtype, Stage, encode_stage};

/// Version of all layouts here.
pub const VENDOR_VERSION: u16 = 1;
