//! `tenure bench`: how many operations a second, how late, and what they cost.
//!
//! A closed loop: each of the concurrent clients asks, waits for the answer, and asks again. So
//! latencies are those of callers that slow down with the cluster, not of a fixed rate.

use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use hdrhistogram::Histogram;
use hyper::Method;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use tenure_api::frame::Consistency;
use tenure_client::{Acquisition, Client, Conclusion, Extension, new_acquire, new_attempt};
use tenure_state_machine::{Acquire, Complete, Extend, Name, Payload, Token, limits};
use tokio::time::{Instant, sleep};

use crate::cli::Connect;
use crate::cli::http;
use crate::cli::output::{self, Format, say};
use crate::procfs;

/// The scope of all records that a run makes.
const SCOPE: &str = "bench";
/// Longest latency that is told apart, in microseconds.
const LATENCY_MAX_US: u64 = 60 * 1000 * 1000;
/// Completed records for each client of the `duplicates` workload.
const DUPLICATES_EACH: usize = 16;
/// Of a hundred operations of `duplicates`, how many are duplicates.
const DUPLICATES_OF_100: u32 = 90;
/// Most concurrent clients.
const CONCURRENCY_MAX: u32 = 100_000;
/// The counter of a node's metrics that says how often its log was synced.
const SYNCS: &str = "tenure_log_syncs_total";

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
enum Workload {
    /// Acquire and complete fresh keys; each is an operation
    Cycle,
    /// Nine of ten are acquires of completed keys, the tenth a cycle
    Duplicates,
    /// Each client holds one record and extends its lease
    Heartbeat,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  tenure bench --workload cycle --concurrency 256 --seconds 10 -o json")]
pub(crate) struct Args {
    /// What the clients do
    #[arg(long, value_enum, default_value = "cycle")]
    workload: Workload,
    /// How many clients
    #[arg(long, default_value_t = 256)]
    concurrency: u32,
    /// How long, in seconds
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Bytes of each result
    #[arg(long, default_value_t = 256)]
    payload: usize,
    /// Process ids of the nodes, if they run here: their processor time is counted
    #[arg(long, value_name = "PID,..", value_delimiter = ',')]
    server_pids: Vec<u32>,
    /// HTTP addresses of the nodes: how often they sync their logs is counted
    #[arg(long, value_name = "URL,..", value_delimiter = ',', value_parser = http::address)]
    http: Vec<String>,
    #[command(flatten)]
    connect: Connect,
}

/// What a run came to. The members of the JSON object, in this order.
#[derive(Debug, Serialize)]
struct Results {
    workload: Workload,
    concurrency: u32,
    seconds: f64,
    ops: u64,
    ops_per_s: f64,
    p50_ms: f64,
    p99_ms: f64,
    p999_ms: f64,
    errors: u64,
    server_cpu_us_per_op: Option<f64>,
    client_cpu_us_per_op: Option<f64>,
    /// Only with `--http`: syncs of all those nodes' logs.
    #[serde(skip_serializing_if = "Option::is_none")]
    log_syncs: Option<u64>,
}

/// What the clients of a run share.
#[derive(Debug)]
struct Run {
    client: Client,
    payload: Arc<Payload>,
    ends: Instant,
    /// Completed keys, for `duplicates`.
    completed: Vec<Name>,
    ops: AtomicU64,
    errors: AtomicU64,
}

/// Measures, and prints the results.
pub(crate) async fn run(args: Args, format: Format) -> anyhow::Result<ExitCode> {
    ensure!(
        (1..=CONCURRENCY_MAX).contains(&args.concurrency),
        "there can be 1 to {CONCURRENCY_MAX} clients"
    );
    ensure!(args.seconds > 0, "it takes a second at least");
    let payload =
        Payload::new(None, vec![b'x'; args.payload.min(limits::BODY_BYTES + 1)], BTreeMap::new());
    let payload = Arc::new(payload.context("the payload is not valid")?);
    let client = args.connect.client();
    let completed = prepare(&args, &client, &payload).await?;

    let before = Meters::read(&args).await?;
    let began = Instant::now();
    let (ops, errors) = (AtomicU64::new(0), AtomicU64::new(0));
    let ends = began + Duration::from_secs(args.seconds);
    let run = Arc::new(Run { client, payload, ends, completed, ops, errors });
    let clients: Vec<_> = (0..args.concurrency)
        .map(|_| tokio::spawn(drive(Arc::clone(&run), args.workload)))
        .collect();
    let progress = tokio::spawn(show_progress(Arc::clone(&run), args.seconds));
    let mut latencies = histogram()?;
    for client in clients {
        let driven = client.await.context("a client of the bench failed")??;
        latencies.add(driven).context("latencies do not add up")?;
    }
    let took = began.elapsed();
    progress.await.context("the progress bar failed")?;
    let after = Meters::read(&args).await?;

    let results = results(&args, &run, took, &latencies, &before, &after);
    match format {
        Format::Json => {
            output::line(serde_json::to_string(&results).context("cannot write the results")?)?;
        }
        Format::Table => output::line(table(&results))?,
    }
    Ok(if results.ops > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Finds the leader before the clock starts, and completes what `duplicates` needs.
async fn prepare(
    args: &Args,
    client: &Client,
    payload: &Arc<Payload>,
) -> anyhow::Result<Vec<Name>> {
    let name = fresh_name()?;
    client.get(&name, Consistency::Linearizable).await.context("the cluster does not answer")?;
    if args.workload != Workload::Duplicates {
        return Ok(Vec::new());
    }
    let makers: Vec<_> = (0..args.concurrency)
        .map(|_| {
            let (client, payload) = (client.clone(), Arc::clone(payload));
            tokio::spawn(async move {
                let mut names = Vec::new();
                for _ in 0..DUPLICATES_EACH {
                    let name = fresh_name()?;
                    let token = acquire_fresh(&client, name.clone()).await?;
                    complete(&client, name.clone(), token, Arc::clone(&payload)).await?;
                    names.push(name);
                }
                anyhow::Ok(names)
            })
        })
        .collect();
    let mut completed = Vec::new();
    for maker in makers {
        completed.extend(maker.await.context("a client of the bench failed")??);
    }
    Ok(completed)
}

fn histogram() -> anyhow::Result<Histogram<u64>> {
    Histogram::new_with_bounds(1, LATENCY_MAX_US, 3).context("the histogram is not valid")
}

/// One client. Gives its latencies, in microseconds.
async fn drive(run: Arc<Run>, workload: Workload) -> anyhow::Result<Histogram<u64>> {
    let mut meter = Meter { run: &run, latencies: histogram()? };
    match workload {
        Workload::Cycle => {
            while meter.goes_on() {
                cycle(&run, &mut meter).await?;
            }
        }
        Workload::Duplicates => {
            while meter.goes_on() {
                if rand::random_range(0..100) < DUPLICATES_OF_100 {
                    let place = rand::random_range(0..run.completed.len());
                    let name = run.completed.get(place).context("nothing was completed")?;
                    meter.measure(replayed(&run.client, name.clone())).await;
                } else {
                    cycle(&run, &mut meter).await?;
                }
            }
        }
        Workload::Heartbeat => {
            let name = fresh_name()?;
            let token = acquire_fresh(&run.client, name.clone()).await?;
            while meter.goes_on() {
                meter.measure(extended(&run.client, name.clone(), token)).await;
            }
        }
    }
    Ok(meter.latencies)
}

async fn cycle(run: &Run, meter: &mut Meter<'_>) -> anyhow::Result<()> {
    let name = fresh_name()?;
    if let Some(token) = meter.measure(acquire_fresh(&run.client, name.clone())).await {
        meter.measure(complete(&run.client, name, token, Arc::clone(&run.payload))).await;
    }
    Ok(())
}

/// Counts and times operations of one client.
struct Meter<'a> {
    run: &'a Run,
    latencies: Histogram<u64>,
}

impl Meter<'_> {
    fn goes_on(&self) -> bool {
        Instant::now() < self.run.ends
    }

    /// Counts an operation that went as it should, with its latency, or an error.
    async fn measure<T>(
        &mut self,
        operation: impl Future<Output = anyhow::Result<T>>,
    ) -> Option<T> {
        let began = Instant::now();
        match operation.await {
            Ok(value) => {
                let micros = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
                self.latencies.saturating_record(micros);
                self.run.ops.fetch_add(1, Ordering::Relaxed);
                Some(value)
            }
            Err(error) => {
                if self.run.errors.fetch_add(1, Ordering::Relaxed) == 0 {
                    say(format_args!("the first error: {error:#}"));
                }
                None
            }
        }
    }
}

fn fresh_name() -> anyhow::Result<Name> {
    Ok(Name::new(SCOPE, &format!("{:032x}", rand::random::<u128>()))?)
}

async fn acquire_fresh(client: &Client, name: Name) -> anyhow::Result<Token> {
    match client.acquire(new_acquire(name), Duration::ZERO).await? {
        (Acquisition::Acquired { token, .. }, _) => Ok(token),
        (other, _) => bail!("an acquire of a fresh key came to {other:?}"),
    }
}

async fn complete(
    client: &Client,
    name: Name,
    token: Token,
    payload: Arc<Payload>,
) -> anyhow::Result<()> {
    let (ttl_ms, not_after_ms) = (None, None);
    let complete = Complete { name, token, ttl_ms, payload: Some(payload), not_after_ms };
    match client.complete(complete).await? {
        (Conclusion::Completed(_) | Conclusion::AlreadyComplete(_), _) => Ok(()),
        (other, _) => bail!("a complete came to {other:?}"),
    }
}

async fn replayed(client: &Client, name: Name) -> anyhow::Result<()> {
    let acquire = Acquire { attempt: new_attempt(), ..new_acquire(name) };
    match client.acquire(acquire, Duration::ZERO).await? {
        (Acquisition::Replay(_), _) => Ok(()),
        (other, _) => bail!("an acquire of a completed key came to {other:?}"),
    }
}

async fn extended(client: &Client, name: Name, token: Token) -> anyhow::Result<()> {
    let lease_ms = limits::LEASE_DEFAULT_MS;
    let extend = Extend { name, token, lease_ms, not_after_ms: None };
    match client.extend(extend).await? {
        (Extension::Extended { .. }, _) => Ok(()),
        (other, _) => bail!("an extend came to {other:?}"),
    }
}

/// A bar on a terminal, until the run ends.
async fn show_progress(run: Arc<Run>, seconds: u64) {
    if !std::io::stderr().is_terminal() {
        return;
    }
    let bar = ProgressBar::new(seconds);
    if let Ok(style) = ProgressStyle::with_template("{wide_bar} {pos}/{len} s {msg}") {
        bar.set_style(style);
    }
    let began = Instant::now();
    while Instant::now() < run.ends {
        let ops = run.ops.load(Ordering::Relaxed);
        bar.set_position(began.elapsed().as_secs());
        bar.set_message(format!("{:.0} ops/s", per_second(ops, began.elapsed())));
        sleep(Duration::from_millis(200)).await;
    }
    bar.finish_and_clear();
}

/// What is read before and after a run.
#[derive(Debug)]
struct Meters {
    servers: Option<Duration>,
    client: Option<Duration>,
    syncs: Option<u64>,
}

impl Meters {
    async fn read(args: &Args) -> anyhow::Result<Self> {
        let mut servers = (!args.server_pids.is_empty()).then_some(Duration::ZERO);
        for pid in &args.server_pids {
            let time = procfs::cpu_time(Some(*pid));
            let time = time.with_context(|| format!("there is no process {pid}"))?;
            servers = servers.map(|sum| sum.saturating_add(time));
        }
        let mut syncs = (!args.http.is_empty()).then_some(0);
        for address in &args.http {
            let limit = Duration::from_secs(5);
            let answer = http::request(address, Method::GET, "/metrics", None, limit).await?;
            let count = counter(&String::from_utf8_lossy(&answer.body), SYNCS);
            let count = count.with_context(|| format!("{address} does not count {SYNCS}"))?;
            syncs = syncs.map(|sum: u64| sum.saturating_add(count));
        }
        Ok(Self { servers, client: procfs::cpu_time(None), syncs })
    }
}

/// A counter in the text format of Prometheus, the sum over its labels.
fn counter(metrics: &str, name: &str) -> Option<u64> {
    let mut sum = None;
    for line in metrics.lines() {
        let Some(rest) = line.strip_prefix(name) else { continue };
        if rest.starts_with([' ', '{'])
            && let Some(count) = rest.rsplit(' ').next().and_then(|count| count.parse::<u64>().ok())
        {
            sum = Some(sum.unwrap_or(0_u64).saturating_add(count));
        }
    }
    sum
}

fn results(
    args: &Args,
    run: &Run,
    took: Duration,
    latencies: &Histogram<u64>,
    before: &Meters,
    after: &Meters,
) -> Results {
    let ops = run.ops.load(Ordering::Relaxed);
    let quantile_ms = |quantile| rounded(latencies.value_at_quantile(quantile) as f64 / 1000.0);
    let us_per_op = |before: Option<Duration>, after: Option<Duration>| {
        let spent = after?.saturating_sub(before?);
        (ops > 0).then(|| rounded(spent.as_secs_f64() * 1e6 / ops as f64))
    };
    Results {
        workload: args.workload,
        concurrency: args.concurrency,
        seconds: rounded(took.as_secs_f64()),
        ops,
        ops_per_s: rounded(per_second(ops, took)),
        p50_ms: quantile_ms(0.5),
        p99_ms: quantile_ms(0.99),
        p999_ms: quantile_ms(0.999),
        errors: run.errors.load(Ordering::Relaxed),
        server_cpu_us_per_op: us_per_op(before.servers, after.servers),
        client_cpu_us_per_op: us_per_op(before.client, after.client),
        log_syncs: after.syncs.and_then(|after| Some(after.saturating_sub(before.syncs?))),
    }
}

fn per_second(ops: u64, took: Duration) -> f64 {
    ops as f64 / took.as_secs_f64().max(1e-9)
}

/// Three digits behind the point: more is noise.
fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

fn table(results: &Results) -> comfy_table::Table {
    let or_none = |value: Option<f64>| value.map_or("-".to_owned(), |value| value.to_string());
    let workload = serde_json::to_value(results.workload);
    let workload = workload.ok().and_then(|name| name.as_str().map(str::to_owned));
    let mut rows = vec![
        ("workload", workload.unwrap_or_default()),
        ("concurrency", results.concurrency.to_string()),
        ("seconds", results.seconds.to_string()),
        ("ops", results.ops.to_string()),
        ("ops/s", format!("{:.0}", results.ops_per_s)),
        ("p50 ms", results.p50_ms.to_string()),
        ("p99 ms", results.p99_ms.to_string()),
        ("p99.9 ms", results.p999_ms.to_string()),
        ("errors", results.errors.to_string()),
        ("server cpu us/op", or_none(results.server_cpu_us_per_op)),
        ("client cpu us/op", or_none(results.client_cpu_us_per_op)),
    ];
    if let Some(syncs) = results.log_syncs {
        rows.push(("log syncs", syncs.to_string()));
    }
    output::pairs(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_results_are_the_documented_object() {
        let results = Results {
            workload: Workload::Duplicates,
            concurrency: 2,
            seconds: 1.0,
            ops: 3,
            ops_per_s: 3.0,
            p50_ms: 0.5,
            p99_ms: 0.5,
            p999_ms: 0.5,
            errors: 0,
            server_cpu_us_per_op: None,
            client_cpu_us_per_op: Some(1.5),
            log_syncs: None,
        };
        assert_eq!(
            serde_json::to_string(&results).unwrap(),
            r#"{"workload":"duplicates","concurrency":2,"seconds":1.0,"ops":3,"ops_per_s":3.0,"p50_ms":0.5,"p99_ms":0.5,"p999_ms":0.5,"errors":0,"server_cpu_us_per_op":null,"client_cpu_us_per_op":1.5}"#
        );
    }

    #[test]
    fn counters_are_summed_over_their_labels_and_not_mixed_up() {
        let metrics = "# TYPE tenure_log_syncs_total counter\n\
            tenure_log_syncs_total{store=\"log\"} 40\n\
            tenure_log_syncs_total 2\n\
            tenure_log_syncs_total_seconds 9\n\
            tenure_other 5\n";
        assert_eq!(counter(metrics, SYNCS), Some(42));
        assert_eq!(counter("tenure_other 5\n", SYNCS), None);
    }
}
