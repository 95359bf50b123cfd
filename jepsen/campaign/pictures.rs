//! What a run looks like: latency and rate with bands where there were faults (SVG), and a
//! timeline of each key that failed (HTML).

use std::fmt::Write as _;

use tenure_jepsen::history::{Event, Outcome};
use tenure_jepsen::verify::Violation;

use crate::schedule::Entry;

const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 320.0;
/// Room for the labels of an axis.
const MARGIN: f64 = 50.0;
/// Points of a plot: of more, every n-th is drawn.
const POINTS: usize = 6000;
/// Latencies of the axis, as powers of ten of a millisecond.
const DECADES: std::ops::RangeInclusive<i32> = -1..=4;

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn colour(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Answered(_) => "#2b7a3d",
        Outcome::Refused(_) => "#c47f00",
        Outcome::Unknown(_) => "#b3261e",
    }
}

/// A frame with bands; `x` turns nanoseconds into a place.
fn frame(title: &str, end: u64, faults: &[Entry]) -> (String, impl Fn(u64) -> f64 + use<>) {
    let whole = seconds(end).max(1.0);
    let x = move |ns: u64| MARGIN + seconds(ns) / whole * (WIDTH - 2.0 * MARGIN);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" \
         fill=\"white\"/>\n<text x=\"{MARGIN}\" y=\"16\">{title}</text>\n"
    );
    for (number, fault) in faults.iter().filter(|fault| fault.is_installed()).enumerate() {
        let (from, to) = (x(fault.from), x(fault.until.unwrap_or(end)));
        let _ = writeln!(
            svg,
            "<rect x=\"{from:.1}\" y=\"30\" width=\"{:.1}\" height=\"{}\" fill=\"#d0d7e5\" \
             fill-opacity=\"0.6\"><title>{}</title></rect>\n<text x=\"{from:.1}\" y=\"{}\" \
             font-size=\"8\">{}</text>",
            (to - from).max(1.0),
            HEIGHT - 30.0 - MARGIN,
            escape(&fault.what),
            40 + 9 * (number % 3),
            escape(&fault.fault),
        );
    }
    for tenth in 0..=10 {
        let at = end / 10 * tenth;
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{:.0} s</text>",
            x(at),
            HEIGHT - MARGIN + 16.0,
            seconds(at)
        );
    }
    (svg, x)
}

fn end_of(events: &[Event]) -> u64 {
    events.iter().map(|event| event.ended).filter(|end| *end < u64::MAX).max().unwrap_or(1)
}

/// Each send's latency, on a logarithmic axis.
pub(crate) fn latency(events: &[Event], faults: &[Entry]) -> String {
    let end = end_of(events);
    let title = "latency: answered green, refused amber, unknown red";
    let (mut svg, x) = frame(title, end, faults);
    let (low, high) = (f64::from(*DECADES.start()), f64::from(*DECADES.end()));
    let y = |ms: f64| {
        let part = (ms.max(0.1).log10() - low) / (high - low);
        HEIGHT - MARGIN - part.min(1.0) * (HEIGHT - MARGIN - 60.0)
    };
    for decade in DECADES {
        let ms = 10f64.powi(decade);
        let _ = writeln!(svg, "<text x=\"4\" y=\"{:.1}\">{ms} ms</text>", y(ms));
    }
    for event in events.iter().step_by(events.len().div_ceil(POINTS).max(1)) {
        let ms = event.ended.saturating_sub(event.started) as f64 / 1e6;
        let _ = writeln!(
            svg,
            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"1.5\" fill=\"{}\"/>",
            x(event.started),
            y(ms),
            colour(&event.outcome)
        );
    }
    svg + "</svg>\n"
}

/// Sends answered in each half second.
pub(crate) fn rate(events: &[Event], faults: &[Entry]) -> String {
    const STEP: u64 = 500_000_000;
    let end = end_of(events);
    let (mut svg, x) = frame("sends a second, by what came of them", end, faults);
    let steps = usize::try_from(end / STEP + 1).unwrap_or(1);
    let count = |is: fn(&Outcome) -> bool| {
        let mut counts = vec![0u32; steps];
        for event in events.iter().filter(|event| is(&event.outcome) && event.ended <= end) {
            if let Some(count) = counts.get_mut(usize::try_from(event.ended / STEP).unwrap_or(0)) {
                *count += 2;
            }
        }
        counts
    };
    let lines: [(&str, Vec<u32>); 3] = [
        ("#2b7a3d", count(|outcome| matches!(outcome, Outcome::Answered(_)))),
        ("#c47f00", count(|outcome| matches!(outcome, Outcome::Refused(_)))),
        ("#b3261e", count(|outcome| matches!(outcome, Outcome::Unknown(_)))),
    ];
    let most = lines.iter().flat_map(|(_, counts)| counts).max().copied().unwrap_or(1).max(1);
    let y = |count: u32| {
        HEIGHT - MARGIN - f64::from(count) / f64::from(most) * (HEIGHT - MARGIN - 60.0)
    };
    let _ = writeln!(svg, "<text x=\"4\" y=\"{:.1}\">{most}/s</text>", y(most));
    for (colour, counts) in &lines {
        let points: Vec<String> = (0u64..)
            .zip(counts)
            .map(|(step, count)| format!("{:.1},{:.1}", x(step * STEP), y(*count)))
            .collect();
        let points = points.join(" ");
        let _ = writeln!(svg, "<polyline fill=\"none\" stroke=\"{colour}\" points=\"{points}\"/>");
    }
    svg + "</svg>\n"
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The counterexample of a violation: one row a send, a bar from its start to its end.
pub(crate) fn timeline(violation: &Violation, faults: &[Entry]) -> String {
    let events = &violation.witnesses;
    let from = events.iter().map(|event| event.started).min().unwrap_or(0);
    let to = end_of(events).max(from + 1);
    let key = escape(violation.key.as_deref().unwrap_or("the log"));
    let mut html = format!(
        "<!doctype html><meta charset=\"utf-8\"><title>{key}: {kind}</title>\n<style>\
         body{{font:13px sans-serif}}td{{padding:1px 6px;white-space:nowrap}}\
         .l{{position:relative;width:600px;background:#f4f4f4}}\
         .l div{{position:absolute;top:2px;height:12px;min-width:2px}}\
         tr:last-child{{outline:2px solid #b3261e}}</style>\n\
         <h1>{key}: {kind}</h1><p>Found by the {checker}. {text}</p>\n<table>\n",
        kind = violation.kind.name(),
        checker = violation.checker,
        text = escape(&violation.text),
    );
    let place = |ns: u64| ns.saturating_sub(from) as f64 / (to - from) as f64 * 100.0;
    for event in events {
        let (start, end) = (place(event.started), place(event.ended.min(to)));
        let came = match &event.outcome {
            Outcome::Answered(body) => body.to_string(),
            Outcome::Refused(why) => format!("refused: {why}"),
            Outcome::Unknown(why) => format!("unknown: {why}"),
        };
        let during: Vec<&str> = faults
            .iter()
            .filter(|fault| {
                let until = fault.until.unwrap_or(u64::MAX);
                fault.is_installed() && fault.from < event.ended && until > event.started
            })
            .map(|fault| fault.fault.as_str())
            .collect();
        let _ = writeln!(
            html,
            "<tr><td>{}<td>{:.3} s<td>{} {}<td class=l><div style=\"left:{start:.2}%;\
             width:{:.2}%;background:{}\"></div><td>{}<td>{}",
            event.process,
            seconds(event.started),
            event.op.name(),
            escape(&event.op.request().to_string()),
            end - start,
            colour(&event.outcome),
            escape(&came),
            escape(&during.join(", ")),
        );
    }
    html + "</table>\n"
}
