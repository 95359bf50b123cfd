//! The results as a table for people.

use comfy_table::{CellAlignment, Table, presets};

use crate::SystemName;
use crate::cell::Cell;

const HEADER: [&str; 14] = [
    "workload",
    "clients",
    "system",
    "ops/s",
    "x etcd",
    "x redis",
    "p50 ms",
    "p99 ms",
    "server us",
    "client us",
    "dev B/op",
    "flush/op",
    "noise",
    "errors",
];

/// Medians over rounds, one row a system under a load.
pub(crate) fn of(cells: &[Cell]) -> Table {
    let mut sorted: Vec<&Cell> = cells.iter().collect();
    sorted.sort_by_key(|cell| (cell.workload, cell.clients, cell.system));
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(HEADER);
    for cell in sorted {
        table.add_row(row(cell, cells));
    }
    for (column, _) in HEADER.iter().enumerate().filter(|(place, _)| ![0, 2].contains(place)) {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn row(cell: &Cell, cells: &[Cell]) -> [String; 14] {
    let beside = |system| {
        let peer = cells.iter().find(|other| {
            (other.system, other.workload, other.clients) == (system, cell.workload, cell.clients)
        });
        number(
            cell.ops_per_s().zip(peer.and_then(Cell::ops_per_s)).map(|(own, peer)| own / peer),
            2,
        )
    };
    let errors: u64 = cell.rounds.iter().map(|measured| measured.errors).sum();
    [
        cell.workload.name().to_owned(),
        cell.clients.to_string(),
        cell.system.to_string(),
        number(cell.ops_per_s(), 0),
        beside(SystemName::Etcd),
        beside(SystemName::RedisAlways),
        number(cell.median(|measured| Some(measured.p50_ms)), 2),
        number(cell.median(|measured| Some(measured.p99_ms)), 2),
        number(cell.median(|measured| measured.costs.server_cpu_us_per_op), 0),
        number(cell.median(|measured| measured.costs.client_cpu_us_per_op), 0),
        number(cell.median(|measured| measured.costs.device_bytes_per_op), 0),
        number(cell.median(|measured| measured.costs.device_flushes_per_op), 3),
        number(cell.median(|measured| measured.costs.noise_cores), 2),
        errors.to_string(),
    ]
}

fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.digits$}"))
}
