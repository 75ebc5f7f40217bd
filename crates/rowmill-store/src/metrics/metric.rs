//! One metric: its names, what it counts, and how to read it from the state of a store, a group or a table.

/// Whether a metric only grows while the store is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// It goes up and down.
    Gauge,
    /// It only grows.
    Counter,
}

/// What the value of a metric counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricUnit {
    /// Things.
    Count,
    /// Bytes.
    Bytes,
    /// Nanoseconds; Prometheus text has seconds.
    Nanoseconds,
    /// A share from 0 to 1.
    Ratio,
    /// Nothing: it is a text.
    Text,
}

/// The value of a metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MetricValue<'a> {
    /// A number.
    Integer(u64),
    /// A share.
    Real(f64),
    /// A text, empty where there is nothing to say.
    Text(&'a str),
    /// A number for each count of outstanding gets.
    ByOutstanding(&'a [u64]),
}

/// A metric of `S`.
#[derive(Clone, Copy, Debug)]
pub struct Metric<S> {
    /// Its name among the fields of `S`, and in the dictionaries of Python.
    pub field: &'static str,
    /// Its name in Prometheus text, after `rowmill_`.
    pub name: &'static str,
    /// Gauge or counter.
    pub kind: MetricKind,
    /// What it counts.
    pub unit: MetricUnit,
    /// One sentence about it.
    pub help: &'static str,
    /// Read it.
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

/// Declare metrics once: a struct with a field for each, beside other `fields`, and its list `METRICS`. Those that are
/// `computed` are methods that return a share.
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
