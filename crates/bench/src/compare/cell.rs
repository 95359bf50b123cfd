//! Results of one system under one load, over the rounds.

use serde::{Serialize, Serializer};
use tenure_bench::{Costs, Load, Reading, Tally, Workload, rounded};

use crate::SystemName;

/// One measurement.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Measured {
    round: u32,
    ops: u64,
    pub(crate) ops_per_s: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    p999_ms: f64,
    pub(crate) errors: u64,
    #[serde(flatten)]
    pub(crate) costs: Costs,
}

impl Measured {
    pub(crate) fn new(round: u32, tally: &Tally, before: &Reading, after: &Reading) -> Self {
        let (ops, took) = (tally.ops(), after.elapsed_since(before));
        Self {
            round,
            ops,
            ops_per_s: rounded(ops as f64 / took.as_secs_f64().max(1e-9)),
            p50_ms: tally.quantile_ms(0.5),
            p99_ms: tally.quantile_ms(0.99),
            p999_ms: tally.quantile_ms(0.999),
            errors: tally.errors,
            costs: after.costs_since(before, ops),
        }
    }
}

/// All measurements of one system under one load.
#[derive(Debug, Serialize)]
pub(crate) struct Cell {
    #[serde(serialize_with = "by_name")]
    pub(crate) system: SystemName,
    pub(crate) workload: Workload,
    pub(crate) clients: u32,
    pub(crate) rounds: Vec<Measured>,
}

fn by_name<S: Serializer>(system: &SystemName, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(system)
}

impl Cell {
    /// Files a measurement.
    pub(crate) fn add(cells: &mut Vec<Self>, system: SystemName, load: Load, measured: Measured) {
        let Load { workload, clients, .. } = load;
        let same = |cell: &&mut Self| {
            (cell.system, cell.workload, cell.clients) == (system, workload, clients)
        };
        match cells.iter_mut().find(same) {
            Some(cell) => cell.rounds.push(measured),
            None => cells.push(Self { system, workload, clients, rounds: vec![measured] }),
        }
    }

    /// The median over the rounds in which it is known; none when it never is.
    pub(crate) fn median(&self, of: impl Fn(&Measured) -> Option<f64>) -> Option<f64> {
        let mut values: Vec<f64> = self.rounds.iter().filter_map(of).collect();
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let upper = values.get(middle).copied()?;
        if values.len() % 2 == 1 {
            return Some(upper);
        }
        let lower = values.get(middle.checked_sub(1)?).copied()?;
        Some((lower + upper) / 2.0)
    }

    pub(crate) fn ops_per_s(&self) -> Option<f64> {
        self.median(|measured| Some(measured.ops_per_s))
    }
}
