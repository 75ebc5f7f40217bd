//! The metrics of all models and of the worker, for Prometheus.

use std::fmt::Error;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use super::model::Lookups;
use super::{Histogram, ModelMetrics};
use crate::Arena;

/// Encodes everything at once when it is asked.
#[derive(Debug)]
pub struct Exposition {
    /// The models.
    pub models: Vec<Arc<ModelMetrics>>,
    /// Where tensors lie.
    pub arena: Arena,
}

/// A metric of one name, one series after the other.
struct Family<'e>(MetricEncoder<'e>);

impl Family<'_> {
    fn counter(&mut self, labels: &impl EncodeLabelSet, value: u64) -> Result<(), Error> {
        self.0.encode_family(labels)?.encode_counter::<NoLabelSet, _, u64>(&value, None)
    }

    fn gauge(&mut self, labels: &impl EncodeLabelSet, value: u64) -> Result<(), Error> {
        self.0.encode_family(labels)?.encode_gauge(&(value as i64))
    }

    fn histogram(&mut self, labels: &impl EncodeLabelSet, histogram: &Histogram) -> Result<(), Error> {
        let buckets = histogram.doublings();
        // Of the same reading, so that they agree.
        let count = buckets.iter().map(|(_, count)| count).sum();
        let sum = histogram.ns() as f64 * 1e-9;
        self.0.encode_family(labels)?.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }
}

impl Collector for Exposition {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        self.requests(&mut encoder)?;
        self.stages(&mut encoder)?;
        self.cpu(&mut encoder)?;
        self.queues(&mut encoder)?;
        self.rows(&mut encoder)?;
        let (name, help) = ("rowmill_serve_wire_memory", "Memory that requests and replies hold");
        let mut gauge = encoder.encode_descriptor(name, help, Some(&Unit::Bytes), MetricType::Gauge)?;
        gauge.encode_gauge(&(self.arena.held_bytes() as i64))
    }
}

impl Exposition {
    fn requests(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let (name, help) = ("rowmill_serve_requests", "Inference requests by model and HTTP status");
        let mut family = Family(encoder.encode_descriptor(name, help, None, MetricType::Counter)?);
        for model in &self.models {
            for (status, count) in model.by_status() {
                let status = status.to_string();
                family.counter(&[("model", model.name.as_str()), ("status", &status)], count)?;
            }
        }
        let (name, help) = ("rowmill_serve_open_requests", "Requests being answered");
        let mut family = Family(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?);
        for model in &self.models {
            family.gauge(&[("model", model.name.as_str())], model.open.load(Relaxed))?;
        }
        Ok(())
    }

    fn stages(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let unit = Some(&Unit::Seconds);
        let (name, help) = (
            "rowmill_serve_request_duration",
            "Time from the head of a request to its response, of answered requests",
        );
        let mut family = Family(encoder.encode_descriptor(name, help, unit, MetricType::Histogram)?);
        for model in &self.models {
            family.histogram(&[("model", model.name.as_str())], &model.whole)?;
        }
        let (name, help) = ("rowmill_serve_stage_duration", "Time of a request in one stage of its way");
        let mut family = Family(encoder.encode_descriptor(name, help, unit, MetricType::Histogram)?);
        for model in &self.models {
            for (stage, times) in model.stages() {
                if times.count() > 0 {
                    family.histogram(&[("model", model.name.as_str()), ("stage", stage)], times)?;
                }
            }
        }
        Ok(())
    }

    fn cpu(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let (name, unit) = ("rowmill_serve_program_cpu", Some(&Unit::Seconds));
        let help =
            "CPU time of the threads that run programs of torch, without the threads of torch's own pool";
        let mut family = Family(encoder.encode_descriptor(name, help, unit, MetricType::Counter)?);
        for model in &self.models {
            for (half, metrics) in model.halves() {
                let taken = metrics.cpu_s();
                if taken > 0.0 {
                    let labels = [("model", model.name.as_str()), ("half", half)];
                    family.0.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&taken, None)?;
                }
            }
        }
        Ok(())
    }

    fn queues(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let (name, help) = ("rowmill_serve_queued_requests", "Requests that wait for a half");
        let mut family = Family(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?);
        for model in &self.models {
            for (half, metrics) in model.halves() {
                family.gauge(&[("model", model.name.as_str()), ("half", half)], metrics.waiting())?;
            }
        }
        let (name, help) =
            ("rowmill_serve_batches_at_once", "Batches of a half in torch that may run at once now");
        let mut family = Family(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?);
        for model in &self.models {
            for (half, metrics) in model.halves().into_iter().filter(|(_, metrics)| metrics.batches() > 0) {
                family.gauge(&[("model", model.name.as_str()), ("half", half)], metrics.batches() as u64)?;
            }
        }
        let (name, help) = ("rowmill_serve_refusals", "Requests that a half refused, by reason");
        let mut family = Family(encoder.encode_descriptor(name, help, None, MetricType::Counter)?);
        for model in &self.models {
            for (half, reason, count) in model.refusals() {
                let labels = [("model", model.name.as_str()), ("half", half), ("reason", reason.name())];
                family.counter(&labels, count)?;
            }
        }
        Ok(())
    }

    fn rows(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let found = self.models.iter().filter_map(|model| Some((model.name.as_str(), model.lookups()?)));
        let found: Vec<(&str, Lookups)> = found.collect();
        let (name, help) = ("rowmill_serve_rows_looked_up", "Distinct rows per request, summed");
        let mut family = Family(encoder.encode_descriptor(name, help, None, MetricType::Counter)?);
        for (model, lookups) in &found {
            family.counter(&[("model", *model)], lookups.rows)?;
        }
        let (name, help) = ("rowmill_serve_rows_read", "Rows looked up that were on the device only");
        let mut family = Family(encoder.encode_descriptor(name, help, None, MetricType::Counter)?);
        for (model, lookups) in &found {
            family.counter(&[("model", *model)], lookups.cold)?;
        }
        let (name, help) = (
            "rowmill_serve_lookups_apart",
            "Ids pooled on a slower path, with rows that had to be read from the device",
        );
        let mut family = Family(encoder.encode_descriptor(name, help, None, MetricType::Counter)?);
        for (model, lookups) in &found {
            family.counter(&[("model", *model)], lookups.apart)?;
        }
        Ok(())
    }
}
