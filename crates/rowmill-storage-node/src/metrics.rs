//! The metrics of a node, for Prometheus.

use std::fmt::Error;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use rowmill_store::{MetricKind, MetricUnit, MetricValue, Stats};

use crate::Node;
use crate::counters::Count;

/// Encodes everything at once when it is asked.
#[derive(Debug)]
pub(crate) struct Exposition(pub(crate) Arc<Node>);

impl Collector for Exposition {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let node = &*self.0;
        let open = node.connections_max - node.connections.available_permits();
        let (name, help) = ("rowmill_storage_connections", "Open connections; each queue of a host is one");
        encoder.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&(open as i64))?;
        for count in Count::ALL {
            let unit = count.is_bytes().then_some(&Unit::Bytes);
            let mut family =
                encoder.encode_descriptor(count.metric(), count.help(), unit, MetricType::Counter)?;
            for served in node.served() {
                let labels = [("subsystem", served.name.as_str())];
                let value = served.counters.get(count);
                family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&value, None)?;
            }
        }
        self.staged(&mut encoder)?;
        self.sequences(&mut encoder)?;
        self.stores(&mut encoder)
    }
}

impl Exposition {
    fn staged(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let (name, help) = ("rowmill_storage_staged", "Staged results, and ids that wait to be pooled");
        let mut family = encoder.encode_descriptor(name, help, Some(&Unit::Bytes), MetricType::Gauge)?;
        for served in self.0.served() {
            if let Some(rows) = served.rows() {
                let labels = [("subsystem", served.name.as_str())];
                family.encode_family(&labels)?.encode_gauge(&(rows.staged_bytes() as i64))?;
            }
        }
        Ok(())
    }

    fn sequences(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let (name, help) = ("rowmill_storage_sequence", "The last frame of the feed that is applied");
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for served in self.0.served() {
            if let Some(rows) = served.rows() {
                let labels = [("subsystem", served.name.as_str())];
                family.encode_family(&labels)?.encode_gauge(&(rows.tables().as_of().sequence as i64))?;
            }
        }
        Ok(())
    }

    /// The numbers of the stores, named as `Store::metrics` names them.
    fn stores(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let served = self.0.served().iter();
        let stats: Vec<(&str, Stats)> = served
            .filter_map(|served| Some((served.name.as_str(), served.rows()?.tables().store()?.stats())))
            .collect();
        if stats.is_empty() {
            return Ok(());
        }
        for metric in Stats::METRICS {
            let is_counter = metric.kind == MetricKind::Counter;
            let kind = if is_counter { MetricType::Counter } else { MetricType::Gauge };
            let name = format!("rowmill_{}", metric.name.trim_end_matches("_total"));
            let numbers = stats.iter().filter_map(|(subsystem, stats)| {
                Some((
                    *subsystem,
                    match (metric.value)(stats) {
                        MetricValue::Integer(value) if metric.unit == MetricUnit::Nanoseconds => {
                            value as f64 / 1e9
                        }
                        MetricValue::Integer(value) => value as f64,
                        MetricValue::Real(value) => value,
                        MetricValue::Text(_) | MetricValue::ByOutstanding(_) => return None,
                    },
                ))
            });
            let numbers: Vec<_> = numbers.collect();
            if numbers.is_empty() {
                continue;
            }
            let mut family = encoder.encode_descriptor(&name, metric.help, None, kind)?;
            for (subsystem, value) in numbers {
                let labels = [("subsystem", subsystem)];
                let mut one = family.encode_family(&labels)?;
                if is_counter {
                    one.encode_counter::<NoLabelSet, _, u64>(&value, None)?;
                } else {
                    one.encode_gauge(&value)?;
                }
            }
        }
        Ok(())
    }
}
