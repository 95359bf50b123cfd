//! Bars on standard error, while something takes its time. Only a terminal shows them.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// How often a bar is drawn when nothing changes.
const DRAW_EVERY: Duration = Duration::from_millis(500);

/// For so many records.
pub(crate) fn records(length: u64) -> ProgressBar {
    bar(length, "{wide_bar} {human_pos}/{human_len} records, {per_sec}, {eta} left")
}

/// For a window of so many milliseconds.
pub(crate) fn window(length_ms: u64) -> ProgressBar {
    bar(length_ms, "{wide_bar} {msg}")
}

fn bar(length: u64, template: &str) -> ProgressBar {
    let bar = ProgressBar::new(length);
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.enable_steady_tick(DRAW_EVERY);
    bar
}
