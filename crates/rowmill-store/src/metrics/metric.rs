//! A metric: its names, its unit, and how to read it from the state of a store, a group or a table.

/// Whether a metric only grows while the store is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// The value goes up and down.
    Gauge,
    /// The value only grows.
    Counter,
}

/// The unit of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricUnit {
    /// A number of items.
    Count,
    /// Bytes.
    Bytes,
    /// Nanoseconds; Prometheus text gives seconds.
    Nanoseconds,
    /// A share from 0 to 1.
    Ratio,
    /// A text without unit.
    Text,
}

/// The value of a metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MetricValue<'a> {
    /// A number.
    Integer(u64),
    /// A ratio.
    Real(f64),
    /// A text; may be empty.
    Text(&'a str),
    /// One number per count of outstanding gets.
    ByOutstanding(&'a [u64]),
}

/// A metric of `S`.
#[derive(Clone, Copy, Debug)]
pub struct Metric<S> {
    /// Name of its field in `S`, and its key in Python dictionaries.
    pub field: &'static str,
    /// Its name in Prometheus text, after `rowmill_`.
    pub name: &'static str,
    /// Gauge or counter.
    pub kind: MetricKind,
    /// Unit of the value.
    pub unit: MetricUnit,
    /// One sentence that describes it.
    pub help: &'static str,
    /// Reads the value.
    pub value: fn(&S) -> MetricValue<'_>,
}

impl From<&u64> for MetricValue<'_> {
    fn from(value: &u64) -> Self {
        Self::Integer(*value)
    }
}

impl<'a> From<&'a String> for MetricValue<'a> {
    fn from(value: &'a String) -> Self {
        Self::Text(value)
    }
}

impl<'a> From<&'a Vec<u64>> for MetricValue<'a> {
    fn from(value: &'a Vec<u64>) -> Self {
        Self::ByOutstanding(value)
    }
}

/// Declares metrics once: a struct with a field for each of them, with other `fields`, and its list
/// `METRICS`. `computed` metrics are methods that return a ratio.
macro_rules! metrics {
    (
        $(#[$attribute:meta])*
        pub struct $stats:ident {
            fields { $($(#[$own_doc:meta])* $own:ident: $own_type:ty,)* }
            metrics { $($field:ident: $type:ty, $kind:ident $unit:ident $name:literal $help:literal;)* }
            computed { $($method:ident, $method_kind:ident $method_name:literal $method_help:literal;)* }
        }
    ) => {
        $(#[$attribute])*
        pub struct $stats {
            $($(#[$own_doc])* pub $own: $own_type,)*
            $(#[doc = $help] pub $field: $type,)*
        }

        impl $stats {
            /// All metrics, in the order of Prometheus text.
            pub const METRICS: &'static [Metric<Self>] = &[
                $(Metric {
                    field: stringify!($field),
                    name: $name,
                    kind: MetricKind::$kind,
                    unit: MetricUnit::$unit,
                    help: $help,
                    value: |stats| MetricValue::from(&stats.$field),
                },)*
                $(Metric {
                    field: stringify!($method),
                    name: $method_name,
                    kind: MetricKind::$method_kind,
                    unit: MetricUnit::Ratio,
                    help: $method_help,
                    value: |stats| MetricValue::Real(stats.$method()),
                },)*
            ];
        }
    };
}

pub(super) use metrics;
