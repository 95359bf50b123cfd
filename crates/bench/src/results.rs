//! What a run came to, as one object.

use std::time::Duration;

use serde::Serialize;

use crate::bench::Window;
use crate::load::{Load, Workload};
use crate::meters::{Costs, Reading};
use crate::tally::rounded;

/// The members of the JSON object, in this order.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Results {
    workload: Workload,
    concurrency: u32,
    seconds: f64,
    ops: u64,
    ops_per_s: f64,
    p50_ms: f64,
    p99_ms: f64,
    p999_ms: f64,
    errors: u64,
    #[serde(flatten)]
    costs: Costs,
    /// Only after a fill.
    #[serde(flatten)]
    filled: Option<Filled>,
    /// Only with a disturbance.
    #[serde(flatten)]
    disturbed: Option<Disturbed>,
}

/// What a fill came to.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Filled {
    filled_records: u64,
    fill_records_per_s: f64,
    fill_server_cpu_us_per_record: Option<f64>,
    fill_client_cpu_us_per_record: Option<f64>,
    fill_device_bytes_per_record: Option<f64>,
}

impl Filled {
    /// So many records in that time, between two readings.
    #[must_use]
    pub fn new(records: u64, took: Duration, before: &Reading, after: &Reading) -> Self {
        let costs = after.costs_since(before, records);
        Self {
            filled_records: records,
            fill_records_per_s: rounded(records as f64 / took.as_secs_f64().max(1e-9)),
            fill_server_cpu_us_per_record: costs.server_cpu_us_per_op,
            fill_client_cpu_us_per_record: costs.client_cpu_us_per_op,
            fill_device_bytes_per_record: costs.device_bytes_per_op,
        }
    }
}

/// A quiet window beside a disturbed one.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Disturbed {
    during: &'static str,
    /// Snapshots, restarts, nodes that have joined, or records of the backlog.
    disturbances: u64,
    quiet_ops_per_s: f64,
    quiet_p50_ms: f64,
    quiet_p99_ms: f64,
    disturbed_p99_ms: f64,
    /// How much later the late ones are when disturbed; none without a quiet p99.
    p99_ratio: Option<f64>,
}

impl Disturbed {
    /// What `disturbances` of this kind made of a quiet window.
    #[must_use]
    pub fn new(
        during: &'static str,
        disturbances: u64,
        quiet: &Window,
        disturbed: &Window,
    ) -> Self {
        let (before, after) = (quiet.tally.quantile_ms(0.99), disturbed.tally.quantile_ms(0.99));
        Self {
            during,
            disturbances,
            quiet_ops_per_s: quiet.ops_per_s(),
            quiet_p50_ms: quiet.tally.quantile_ms(0.5),
            quiet_p99_ms: before,
            disturbed_p99_ms: after,
            p99_ratio: (before > 0.0).then(|| rounded(after / before)),
        }
    }
}

impl Results {
    /// What a load came to in a window; none for a run that only fills.
    #[must_use]
    pub fn new(
        load: Load,
        window: Option<&Window>,
        filled: Option<Filled>,
        disturbed: Option<Disturbed>,
    ) -> Self {
        let tally = window.map(|window| &window.tally);
        let quantile = |q| tally.map_or(0.0, |tally| tally.quantile_ms(q));
        Self {
            workload: load.workload,
            concurrency: load.clients,
            seconds: window.map_or(0.0, Window::seconds),
            ops: tally.map_or(0, |tally| tally.ops()),
            ops_per_s: window.map_or(0.0, Window::ops_per_s),
            p50_ms: quantile(0.5),
            p99_ms: quantile(0.99),
            p999_ms: quantile(0.999),
            errors: tally.map_or(0, |tally| tally.errors),
            costs: window.map(Window::costs).unwrap_or_default(),
            filled,
            disturbed,
        }
    }

    /// Whether anything went well.
    #[must_use]
    pub fn any(&self) -> bool {
        self.ops > 0 || self.filled.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_results_are_the_documented_object() {
        let load = Load { workload: Workload::Duplicates, clients: 2, payload: 256 };
        let results = Results::new(load, None, None, None);
        assert!(!results.any());
        let plain = r#"{"workload":"duplicates","concurrency":2,"seconds":0.0,"ops":0,"ops_per_s":0.0,"p50_ms":0.0,"p99_ms":0.0,"p999_ms":0.0,"errors":0,"server_cpu_us_per_op":null,"client_cpu_us_per_op":null,"device_bytes_per_op":null,"device_flushes_per_op":null,"noise_cores":null"#;
        assert_eq!(serde_json::to_string(&results).unwrap(), format!("{plain}}}"));
        let filled = Filled {
            filled_records: 5,
            fill_records_per_s: 2.5,
            fill_server_cpu_us_per_record: None,
            fill_client_cpu_us_per_record: Some(1.5),
            fill_device_bytes_per_record: None,
        };
        let disturbed = Disturbed {
            during: "snapshot",
            disturbances: 3,
            quiet_ops_per_s: 10.0,
            quiet_p50_ms: 0.5,
            quiet_p99_ms: 1.0,
            disturbed_p99_ms: 2.0,
            p99_ratio: Some(2.0),
        };
        let results = Results::new(load, None, Some(filled), Some(disturbed));
        assert!(results.any());
        let more = r#","filled_records":5,"fill_records_per_s":2.5,"fill_server_cpu_us_per_record":null,"fill_client_cpu_us_per_record":1.5,"fill_device_bytes_per_record":null,"during":"snapshot","disturbances":3,"quiet_ops_per_s":10.0,"quiet_p50_ms":0.5,"quiet_p99_ms":1.0,"disturbed_p99_ms":2.0,"p99_ratio":2.0}"#;
        assert_eq!(serde_json::to_string(&results).unwrap(), format!("{plain}{more}"));
    }
}
