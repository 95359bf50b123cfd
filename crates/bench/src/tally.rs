//! Operations that were counted and timed.

use std::time::Duration;

use anyhow::Context as _;
use hdrhistogram::Histogram;

/// Longest latency that is told apart, in microseconds.
const LATENCY_MAX_US: u64 = 60 * 1000 * 1000;

/// Latencies of some operations, and how many others failed.
#[derive(Debug, Clone)]
pub struct Tally {
    latencies: Histogram<u64>,
    /// Operations that did not come to what they should.
    pub errors: u64,
    /// What the first of them came to.
    pub first_error: Option<String>,
}

impl Tally {
    /// Nothing yet.
    ///
    /// # Errors
    /// None in practice: the bounds are constants.
    pub fn new() -> anyhow::Result<Self> {
        let latencies = Histogram::new_with_bounds(1, LATENCY_MAX_US, 3);
        let latencies = latencies.context("the histogram is not valid")?;
        Ok(Self { latencies, errors: 0, first_error: None })
    }

    /// Counts `width` operations that went well together.
    pub(crate) fn succeeded(&mut self, latency: Duration, width: u64) {
        let micros = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        self.latencies.saturating_record_n(micros, width);
    }

    pub(crate) fn failed(&mut self, error: &anyhow::Error) {
        self.errors += 1;
        self.first_error.get_or_insert_with(|| format!("{error:#}"));
    }

    /// Takes in another tally.
    ///
    /// # Errors
    /// None in practice: all tallies have the same bounds.
    pub fn add(&mut self, other: Self) -> anyhow::Result<()> {
        self.latencies.add(other.latencies).context("latencies do not add up")?;
        self.errors += other.errors;
        self.first_error = self.first_error.take().or(other.first_error);
        Ok(())
    }

    /// Operations that went well.
    #[must_use]
    pub fn ops(&self) -> u64 {
        self.latencies.len()
    }

    /// The latency that this part of the operations did not exceed, in milliseconds; 0 when there
    /// are none.
    #[must_use]
    pub fn quantile_ms(&self, quantile: f64) -> f64 {
        rounded(self.latencies.value_at_quantile(quantile) as f64 / 1000.0)
    }
}

/// Three digits behind the point: more is noise.
#[must_use]
pub fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}
