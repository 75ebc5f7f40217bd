//! Metrics as Prometheus text exposition (version 0.0.4).

use std::fmt::Write;

use super::metric::{Metric, MetricKind, MetricUnit, MetricValue};
use super::stats::{GroupStats, Stats, TableStats};

impl Stats {
    /// The metrics of the store, its groups and its tables as Prometheus text exposition (version 0.0.4).
    ///
    /// A text metric becomes a label `text` with the value 1. An empty text gives no line.
    pub fn prometheus(&self) -> String {
        let mut text = String::new();
        write_all(&mut text, Self::METRICS, &[(self, None)]);
        let label = |group: &GroupStats| ("group", group.group.to_string());
        let groups: Vec<_> = self.groups.iter().map(|group| (group, Some(label(group)))).collect();
        write_all(&mut text, GroupStats::METRICS, &groups);
        let label = |table: &TableStats| ("table", table.name.clone());
        let tables: Vec<_> = self.tables.iter().map(|table| (table, Some(label(table)))).collect();
        write_all(&mut text, TableStats::METRICS, &tables);
        text
    }
}

/// A label and its value.
type Label = (&'static str, String);

/// Write metrics of several items of one kind, each with its label.
fn write_all<S>(text: &mut String, metrics: &[Metric<S>], things: &[(&S, Option<Label>)]) {
    for metric in metrics {
        let Metric { name, help, .. } = metric;
        let kind = match metric.kind {
            MetricKind::Gauge => "gauge",
            MetricKind::Counter => "counter",
        };
        let _ = writeln!(text, "# HELP rowmill_{name} {help}\n# TYPE rowmill_{name} {kind}");
        for (thing, label) in things {
            let mut line = |extra: Option<&Label>, value: f64| {
                let labels: Vec<String> = label.iter().chain(extra).map(labelled).collect();
                let labels =
                    if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
                let _ = writeln!(text, "rowmill_{name}{labels} {value}");
            };
            match (metric.value)(thing) {
                MetricValue::Integer(value) if metric.unit == MetricUnit::Nanoseconds => {
                    line(None, value as f64 / 1e9);
                }
                MetricValue::Integer(value) => line(None, value as f64),
                MetricValue::Real(value) => line(None, value),
                MetricValue::Text("") => {}
                MetricValue::Text(value) => line(Some(&("text", value.to_owned())), 1.0),
                MetricValue::ByOutstanding(counts) => {
                    for (outstanding, &count) in counts.iter().enumerate() {
                        line(Some(&("outstanding", outstanding.to_string())), count as f64);
                    }
                }
            }
        }
    }
}

fn labelled((name, value): &Label) -> String {
    let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("{name}=\"{value}\"")
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn stats() -> Stats {
        let table = TableStats {
            name: "a\"b\\c\nd".into(),
            group: 0,
            rows: 3,
            row_bytes: 64,
            accesses: 0,
            births: 0,
            deletes: 0,
            evicted: 0,
            steps: 9,
        };
        Stats {
            tables: vec![table],
            groups: vec![GroupStats { group: 7, row_places_used: 1, row_places: 4 }],
            cold_wait_ns: 1_500_000_000,
            feed_rows: 12,
            staleness: vec![5, 6],
            ..Stats::default()
        }
    }

    #[test]
    fn every_metric_is_in_the_text_with_its_kind() {
        let text = Stats { feed_failure: "full".into(), io: "pread".into(), ..stats() }.prometheus();
        let kinds = Stats::METRICS
            .iter()
            .map(|metric| (metric.name, metric.kind))
            .chain(GroupStats::METRICS.iter().map(|metric| (metric.name, metric.kind)))
            .chain(TableStats::METRICS.iter().map(|metric| (metric.name, metric.kind)));
        let mut names = HashSet::new();
        for (name, kind) in kinds {
            assert!(names.insert(name), "{name} twice");
            assert_eq!(kind == MetricKind::Counter, name.ends_with("_total"), "{name}");
            assert!(text.contains(&format!("# HELP rowmill_{name} ")), "{name}");
            let value = |line: &str| {
                line.strip_prefix(&format!("rowmill_{name}")).is_some_and(|rest| rest.starts_with(['{', ' ']))
            };
            assert!(text.lines().any(value), "no value of {name}");
        }
    }

    #[test]
    fn units_and_labels_are_those_of_prometheus() {
        let text = stats().prometheus();
        for line in [
            "rowmill_cold_wait_seconds_total 1.5",
            "rowmill_feed_rows_total 12",
            "rowmill_hit_rate 1",
            "rowmill_staleness_total{outstanding=\"1\"} 6",
            "rowmill_group_row_places_share{group=\"7\"} 0.25",
            "rowmill_table_steps_total{table=\"a\\\"b\\\\c\\nd\"} 9",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        assert!(!text.contains("rowmill_feed_failure{"), "an empty text gives no line");
    }
}
