//! The results as one picture: a row a workload; operations a second on the left, latencies on
//! the right.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Context as _;
use plotters::coord::Shift;
use plotters::prelude::*;
use tenure_bench::Workload;

use crate::SystemName;
use crate::cell::Cell;

/// Pixels of one chart.
const CHART: (u32, u32) = (620, 340);
/// Smallest and largest value that an axis shows when there is nothing else to go by.
const FLOOR: f64 = 0.01;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Writes the picture.
pub(crate) fn write(path: &Path, cells: &[Cell]) -> anyhow::Result<()> {
    let workloads: BTreeSet<Workload> = cells.iter().map(|cell| cell.workload).collect();
    let rows = workloads.len();
    let height = CHART.1 * u32::try_from(rows)?;
    let root = SVGBackend::new(path, (2 * CHART.0, height)).into_drawing_area();
    root.fill(&WHITE).context("cannot draw")?;
    let areas = root.split_evenly((rows, 2));
    for (workload, pair) in workloads.iter().zip(areas.chunks(2)) {
        let cells: Vec<&Cell> = cells.iter().filter(|cell| cell.workload == *workload).collect();
        let [left, right] = pair else { continue };
        let name = workload.name();
        let ops = [(Cell::ops_per_s as Value, true)];
        chart(left, &format!("{name}: operations a second"), &cells, &ops)?;
        let latencies = [(p50 as Value, true), (p99 as Value, false)];
        chart(right, &format!("{name}: latency in ms, p50 and (thin) p99"), &cells, &latencies)?;
    }
    root.present().with_context(|| format!("cannot write {}", path.display()))
}

type Value = fn(&Cell) -> Option<f64>;

fn p50(cell: &Cell) -> Option<f64> {
    cell.median(|measured| Some(measured.p50_ms))
}

fn p99(cell: &Cell) -> Option<f64> {
    cell.median(|measured| Some(measured.p99_ms))
}

fn colour(system: SystemName) -> RGBColor {
    match system {
        SystemName::Tenure => RGBColor(200, 30, 45),
        SystemName::Etcd => RGBColor(30, 110, 190),
        SystemName::Zookeeper => RGBColor(120, 90, 60),
        SystemName::Nats => RGBColor(40, 150, 90),
        SystemName::RedisAlways => RGBColor(230, 140, 20),
        SystemName::Postgres => RGBColor(110, 70, 160),
    }
}

/// One chart, over the number of clients; each system a thick line, or a thin one.
fn chart(
    area: &Area<'_>,
    title: &str,
    cells: &[&Cell],
    lines: &[(Value, bool)],
) -> anyhow::Result<()> {
    let values: Vec<f64> =
        cells.iter().flat_map(|cell| lines.iter().filter_map(|(of, _)| of(cell))).collect();
    let least = values.iter().copied().fold(f64::INFINITY, f64::min).max(FLOOR) / 1.5;
    let most = values.iter().copied().fold(FLOOR, f64::max) * 1.5;
    let clients: Vec<u32> =
        cells.iter().map(|cell| cell.clients).collect::<BTreeSet<_>>().into_iter().collect();
    // The number of clients is a name: its place is what counts.
    let last = clients.len() as f64 - 1.0;
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 17))
        .margin(12)
        .x_label_area_size(28)
        .y_label_area_size(64)
        .build_cartesian_2d(-0.25..last + 0.9, (least.min(most / 2.0)..most).log_scale())
        .context("cannot draw a chart")?;
    let label = |place: &f64| label(*place, &clients);
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .y_labels(5)
        .x_labels(4 * clients.len())
        .x_label_formatter(&label)
        .x_desc("clients")
        .y_label_formatter(&|value: &f64| short(*value))
        .draw()
        .context("cannot draw the axes")?;
    let systems: BTreeSet<SystemName> = cells.iter().map(|cell| cell.system).collect();
    for system in systems {
        for (of, thick) in lines {
            let point = |place: usize, clients: &u32| {
                let same = |cell: &&&Cell| cell.system == system && cell.clients == *clients;
                Some((place as f64, of(cells.iter().find(same)?)?.max(FLOOR)))
            };
            let points: Vec<(f64, f64)> =
                clients.iter().enumerate().filter_map(|(place, n)| point(place, n)).collect();
            let style = colour(system).stroke_width(if *thick { 3 } else { 1 });
            let dots = points.clone().into_iter().map(|at| Circle::new(at, 3, style.filled()));
            chart.draw_series(dots).context("cannot draw points")?;
            let line = LineSeries::new(points, style);
            let line = chart.draw_series(line).context("cannot draw a line")?;
            if *thick {
                line.label(system.to_string()).legend(move |(x, y)| {
                    PathElement::new([(x, y), (x + 14, y)], colour(system).stroke_width(3))
                });
            }
        }
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::MiddleRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.2))
        .draw()
        .context("cannot draw the legend")
}

/// The number of clients at a place of the axis; nothing between two places.
fn label(place: f64, clients: &[u32]) -> String {
    let named =
        (0..).zip(clients).find(|(index, _): &(i32, _)| (place - f64::from(*index)).abs() < 1e-6);
    named.map(|(_, clients)| clients.to_string()).unwrap_or_default()
}

fn short(value: f64) -> String {
    if value >= 1000.0 { format!("{}k", value / 1000.0) } else { format!("{value}") }
}
