//! `tenure demo`: a short tour, then ten thousand deliveries of two thousand events through
//! concurrent workers, while the leader is killed and workers fall asleep with their leases.
//!
//! Each event must have exactly one accepted effect in the sink's file at the end. The file is
//! counted, not the workers' word.

use std::collections::{BTreeMap, BTreeSet};
use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use serde::Serialize;
use tenure_api::frame::Consistency;
use tenure_api::{NodeRole, ViewState};
use tenure_client::{Acquisition, CallError, Client, Conclusion, Config, new_acquire};
use tenure_state_machine::{Acquire, Complete, Holder, LeaseLost, Name, Payload, Token};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::cli::output::{self, Format, say};
use crate::dev::Stop;
use crate::local::{LocalCluster, Place, ending, status};
use crate::sink::{self, Sink, Written};

/// The base port of the demo, beside that of `tenure dev`.
const BASE_PORT: u16 = 7650;
/// The scope of all records.
const SCOPE: &str = "webhooks";
/// Lease of a worker that does its work at once.
const LEASE_MS: u64 = 15_000;
/// Lease of a worker that falls asleep: short, so that nobody waits long for it.
const SLEEPERS_LEASE_MS: u64 = 1_000;
/// How long a delivery waits for another worker that has the event.
const WAIT: Duration = Duration::from_secs(20);
/// One of so many events meets a worker that falls asleep, at most a quarter of the workers.
const SLEEPER_EVERY: usize = 200;
/// How long the whole job may take.
const JOB_WITHIN: Duration = Duration::from_secs(300);
/// How often a sleeping worker, and the watcher of the leader, look.
const LOOK_EVERY: Duration = Duration::from_millis(50);

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  tenure demo\n  tenure demo --deliveries 100000 --events 20000")]
pub(crate) struct Args {
    /// How many distinct events there are
    #[arg(long, default_value_t = 2_000)]
    events: usize,
    /// How many deliveries of them
    #[arg(long, default_value_t = 10_000)]
    deliveries: usize,
    /// How many workers, spread over the nodes
    #[arg(long, default_value_t = 48)]
    workers: usize,
    /// The order of the deliveries [default: drawn, and printed]
    #[arg(long)]
    seed: Option<u64>,
    /// Keep data and effects here [default: a temporary directory]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// HTTP ports are base + id, RPC ports base + 100 + id
    #[arg(long, value_name = "PORT", default_value_t = BASE_PORT)]
    base_port: u16,
}

/// What the job came to, counted from the sink's file where it can be.
#[derive(Debug, Serialize)]
struct Results {
    seed: u64,
    events: usize,
    deliveries: usize,
    /// Accepted effects, all events together.
    effects: u64,
    duplicates_suppressed: u64,
    steals: u64,
    fenced_writes: u64,
    /// Events without an effect.
    missing: usize,
    /// Events with more than one.
    repeated: usize,
    leader_killed: u64,
    without_leader_ms: u64,
    seconds: f64,
    exactly_once: bool,
}

/// Runs the demo on a cluster of its own.
pub(crate) async fn run(args: Args, format: Format) -> anyhow::Result<ExitCode> {
    ensure!((1..=1_000_000).contains(&args.events), "there can be 1 to 1000000 events");
    ensure!(
        (args.events..=10_000_000).contains(&args.deliveries),
        "there must be a delivery for each event, and at most 10000000"
    );
    ensure!((4..=1000).contains(&args.workers), "there can be 4 to 1000 workers");
    let mut stop = Stop::new()?;
    let directory = tempfile::tempdir().context("cannot make a temporary directory")?;
    let home = args.data_dir.clone().unwrap_or_else(|| directory.path().to_owned());
    std::fs::create_dir_all(&home).with_context(|| format!("cannot make {}", home.display()))?;
    let place = Place {
        nodes: Some(3),
        data_dir: Some(home.join("cluster")),
        base_port: Some(args.base_port),
        default_port: BASE_PORT,
    };
    let effects = home.join("effects");
    ensure!(!effects.exists(), "{} is there already: take another directory", effects.display());

    say("starting three nodes on this machine");
    let mut cluster = LocalCluster::start(&place)?;
    let results = tokio::select! {
        results = play(&args, &mut cluster, &effects) => results,
        () = stop.asked() => Err(anyhow::anyhow!("stopped")),
    };
    cluster.stop(stop.asked()).await;
    let results = results?;
    match format {
        Format::Json => {
            output::line(serde_json::to_string(&results).context("cannot write the results")?)?;
        }
        Format::Table => output::line(table(&results))?,
    }
    if results.exactly_once {
        say("every event has exactly one accepted effect");
        Ok(ExitCode::SUCCESS)
    } else {
        say("NOT every event has exactly one accepted effect");
        Ok(ExitCode::FAILURE)
    }
}

async fn play(
    args: &Args,
    cluster: &mut LocalCluster,
    effects: &std::path::Path,
) -> anyhow::Result<Results> {
    let leader = cluster
        .ready(|node, status| say(format_args!("node {} {}", node.id, ending(status))))
        .await?;
    say(format_args!("node {leader} leads\n"));
    let sink = Sink::open(effects).with_context(|| format!("cannot open {}", effects.display()))?;
    let sink = Arc::new(sink);
    let clients = clients(cluster);
    tour(&clients, &sink).await?;
    job(args, cluster, &clients, sink, effects).await
}

/// One client a node: it knocks there first, and learns the leader from it.
fn clients(cluster: &LocalCluster) -> Vec<Client> {
    let endpoints: Vec<String> = cluster.nodes().iter().map(|node| node.rpc.clone()).collect();
    (0..endpoints.len())
        .map(|first| {
            let mut endpoints = endpoints.clone();
            endpoints.rotate_left(first);
            Client::new(Config::new(endpoints))
        })
        .collect()
}

/// Acquire, duplicate, complete, replay, steal, fenced late writer: one step a line.
async fn tour(clients: &[Client], sink: &Sink) -> anyhow::Result<()> {
    let [one, two, three] = clients else { bail!("the tour needs three nodes") };
    say("-- a short tour --");
    let name = Name::new(SCOPE, "tour-1")?;
    let token = match one.acquire(held_by("worker-a", &name, LEASE_MS)?, Duration::ZERO).await? {
        (Acquisition::Acquired { token, .. }, _) => token,
        (other, _) => bail!("the first acquire came to {other:?}"),
    };
    say(format_args!("worker-a, at node 1, acquires {SCOPE}/tour-1: token {token}"));
    match two.acquire(held_by("worker-b", &name, LEASE_MS)?, Duration::ZERO).await? {
        (Acquisition::InProgress { holder, retry_after_ms, .. }, _) => say(format_args!(
            "worker-b, at node 2, gets a duplicate: in progress, held by {}, {retry_after_ms} ms left",
            holder.as_str()
        )),
        (other, _) => bail!("a duplicate came to {other:?}"),
    }
    sink.append("tour-1", token, "worker-a").context("cannot write the effect")?;
    finish(one, &name, token, "charged 12.00").await?;
    say("worker-a does its work and completes it with a result: charged 12.00");
    match three.acquire(held_by("worker-c", &name, LEASE_MS)?, Duration::ZERO).await? {
        (Acquisition::Replay(done), _) => {
            let body = done.payload.as_deref().map(Payload::body).unwrap_or_default();
            say(format_args!(
                "worker-c, at node 3, gets another duplicate: replay, {}",
                String::from_utf8_lossy(body)
            ));
        }
        (other, _) => bail!("an acquire of a completed record came to {other:?}"),
    }

    let name = Name::new(SCOPE, "tour-2")?;
    let late = match one.acquire(held_by("worker-a", &name, 500)?, Duration::ZERO).await? {
        (Acquisition::Acquired { token, .. }, _) => token,
        (other, _) => bail!("the first acquire came to {other:?}"),
    };
    say(format_args!("worker-a acquires {SCOPE}/tour-2 for 500 ms, token {late}, and pauses"));
    let token = match two.acquire(held_by("worker-b", &name, LEASE_MS)?, WAIT).await? {
        (Acquisition::Acquired { token, took_over: Some(_), .. }, _) => token,
        (other, _) => bail!("a steal came to {other:?}"),
    };
    say(format_args!("worker-b waited, and stole it when the lease ran out: token {token}"));
    sink.append("tour-2", token, "worker-b").context("cannot write the effect")?;
    match sink.append("tour-2", late, "worker-a").context("cannot write the effect")? {
        Written::Fenced { highest } => say(format_args!(
            "worker-a wakes up and writes with token {late}: the sink has seen {highest}, fenced"
        )),
        Written::Accepted => bail!("the sink accepted a late writer"),
    }
    let complete = complete_of(&name, late, "worker-a")?;
    match one.complete(complete).await? {
        (Conclusion::LeaseLost(lost), _) => {
            let why = match lost {
                LeaseLost::Stolen { current_token } => format!("token {current_token} holds it"),
                LeaseLost::Completed { .. } => "it is complete".to_owned(),
                LeaseLost::Absent => "it is gone".to_owned(),
            };
            say(format_args!("worker-a tries to complete it: lease lost, {why}"));
        }
        (other, _) => bail!("a late complete came to {other:?}"),
    }
    finish(two, &name, token, "charged 7.50").await?;
    say("worker-b completes it\n");
    Ok(())
}

fn held_by(holder: &str, name: &Name, lease_ms: u64) -> anyhow::Result<Acquire> {
    Ok(Acquire { holder: Holder::new(holder)?, lease_ms, ..new_acquire(name.clone()) })
}

fn complete_of(name: &Name, token: Token, result: &str) -> anyhow::Result<Complete> {
    let kind = Some("text/plain".to_owned());
    let payload = Payload::new(kind, result.as_bytes().to_vec(), BTreeMap::new())?;
    let (ttl_ms, not_after_ms) = (None, None);
    Ok(Complete { name: name.clone(), token, ttl_ms, payload: Some(payload.into()), not_after_ms })
}

/// Completes, and does not rest until it is known that it did.
async fn finish(client: &Client, name: &Name, token: Token, result: &str) -> anyhow::Result<()> {
    let complete = complete_of(name, token, result)?;
    loop {
        match client.complete(complete.clone()).await {
            Ok((Conclusion::Completed(_) | Conclusion::AlreadyComplete(_), _)) => return Ok(()),
            Ok((other, _)) => bail!("a complete came to {other:?}"),
            Err(error) => again(error)?,
        }
    }
}

/// Whether a call may be made again: with the same attempt or token, always, unless it is refused.
fn again(error: CallError) -> anyhow::Result<()> {
    match error {
        CallError::Unknown { .. } | CallError::Unavailable { .. } => Ok(()),
        CallError::Refused(refusal) => Err(refusal.into()),
    }
}

/// What the workers share.
#[derive(Debug)]
struct Job {
    sink: Arc<Sink>,
    /// The event of each delivery.
    deliveries: Vec<usize>,
    /// Deliveries whose worker falls asleep once it has acquired.
    sleepers: BTreeSet<usize>,
    next: AtomicUsize,
    done: AtomicU64,
    suppressed: AtomicU64,
    steals: AtomicU64,
    fenced: AtomicU64,
}

async fn job(
    args: &Args,
    cluster: &mut LocalCluster,
    clients: &[Client],
    sink: Arc<Sink>,
    effects: &std::path::Path,
) -> anyhow::Result<Results> {
    let seed = args.seed.unwrap_or_else(rand::random);
    say(format_args!(
        "-- {} deliveries of {} events, {} workers, seed {seed} --",
        args.deliveries, args.events, args.workers
    ));
    let job = Arc::new(Job::new(args, seed, sink));
    let began = Instant::now();
    let bar = progress_bar(args.deliveries);
    let mut workers = JoinSet::new();
    for number in 0..args.workers {
        let client = clients.get(number % clients.len()).context("there are no nodes")?;
        workers.spawn(Arc::clone(&job).work(client.clone(), number));
    }
    let working = async {
        while let Some(worked) = workers.join_next().await {
            worked.context("a worker failed")??;
        }
        anyhow::Ok(())
    };
    let disturbing = disturb(&job, cluster, &bar);
    let showing = async {
        loop {
            bar.set_position(job.done.load(Ordering::Relaxed));
            sleep(LOOK_EVERY).await;
        }
    };
    let ((), (leader_killed, without_leader)) = tokio::select! {
        both = async { tokio::try_join!(working, disturbing) } => both?,
        () = showing => unreachable!("it shows for ever"),
        () = sleep(JOB_WITHIN) => bail!("the job did not end within {JOB_WITHIN:?}"),
    };
    bar.finish_and_clear();
    let took = began.elapsed();

    say(format_args!("all deliveries are done; node {leader_killed} is started again"));
    cluster.spawn(leader_killed)?;
    let leader = cluster
        .ready(|node, status| say(format_args!("node {} {}", node.id, ending(status))))
        .await?;
    say(format_args!("node {leader_killed} is back and has caught up; node {leader} leads\n"));

    let counted = sink::effects(effects)
        .with_context(|| format!("cannot count the effects in {}", effects.display()))?;
    let of_event = |event| counted.get(&key_of(event)).copied().unwrap_or(0);
    let missing = (0..args.events).filter(|event| of_event(*event) == 0).count();
    let repeated = (0..args.events).filter(|event| of_event(*event) > 1).count();
    Ok(Results {
        seed,
        events: args.events,
        deliveries: args.deliveries,
        effects: (0..args.events).map(of_event).sum(),
        duplicates_suppressed: job.suppressed.load(Ordering::Relaxed),
        steals: job.steals.load(Ordering::Relaxed),
        fenced_writes: job.fenced.load(Ordering::Relaxed),
        missing,
        repeated,
        leader_killed,
        without_leader_ms: u64::try_from(without_leader.as_millis()).unwrap_or(u64::MAX),
        seconds: (took.as_secs_f64() * 1000.0).round() / 1000.0,
        exactly_once: missing == 0 && repeated == 0,
    })
}

/// Kills the leader in the middle of the job, and waits for the next one. Gives which it was, and
/// how long there was none.
async fn disturb(
    job: &Job,
    cluster: &mut LocalCluster,
    bar: &ProgressBar,
) -> anyhow::Result<(u64, Duration)> {
    let middle = u64::try_from(job.deliveries.len() / 2).unwrap_or(u64::MAX);
    while job.done.load(Ordering::Relaxed) < middle {
        sleep(Duration::from_millis(1)).await;
    }
    let leader = leader(cluster).await.context("nobody leads in the middle of the job")?;
    cluster.kill(leader)?;
    let killed = Instant::now();
    bar.suspend(|| {
        say(format_args!(
            "kill -9 of node {leader}, the leader, after {} deliveries",
            job.done.load(Ordering::Relaxed)
        ));
    });
    let next = loop {
        if let Some(next) = self::leader(cluster).await.filter(|next| *next != leader) {
            break next;
        }
        sleep(Duration::from_millis(10)).await;
    };
    let without_leader = killed.elapsed();
    bar.suspend(|| {
        say(format_args!("node {next} leads after {} ms", without_leader.as_millis()));
    });
    Ok((leader, without_leader))
}

/// Who says that it leads.
async fn leader(cluster: &LocalCluster) -> Option<u64> {
    for node in cluster.nodes() {
        if status(node).await.is_some_and(|status| status.role == NodeRole::Leader) {
            return Some(node.id);
        }
    }
    None
}

/// Shown on a terminal alone.
fn progress_bar(deliveries: usize) -> ProgressBar {
    let bar = ProgressBar::new(u64::try_from(deliveries).unwrap_or(u64::MAX));
    if !std::io::stderr().is_terminal() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    let template = "{wide_bar} {pos}/{len} deliveries, {per_sec}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

fn key_of(event: usize) -> String {
    format!("evt_{event:07}")
}

impl Job {
    fn new(args: &Args, seed: u64, sink: Arc<Sink>) -> Self {
        let mut deliveries: Vec<usize> =
            (0..args.deliveries).map(|delivery| delivery % args.events).collect();
        deliveries.shuffle(&mut StdRng::seed_from_u64(seed));
        let mut sleepers = BTreeSet::new();
        // An event that is delivered once has nobody to steal it.
        let thieves = args.deliveries / args.events > 1;
        for event in (0..args.events).step_by(SLEEPER_EVERY).take(args.workers / 4) {
            let first = deliveries.iter().position(|delivered| *delivered == event);
            sleepers.extend(first.filter(|_| thieves));
        }
        let count = || AtomicU64::new(0);
        let (done, suppressed, steals, fenced) = (count(), count(), count(), count());
        let next = AtomicUsize::new(0);
        Self { sink, deliveries, sleepers, next, done, suppressed, steals, fenced }
    }

    async fn work(self: Arc<Self>, client: Client, number: usize) -> anyhow::Result<()> {
        let worker = format!("worker-{number}");
        loop {
            let delivery = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(event) = self.deliveries.get(delivery) else { return Ok(()) };
            let sleeps = self.sleepers.contains(&delivery);
            self.deliver(&client, &worker, &key_of(*event), sleeps).await?;
            self.done.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// One delivery: one logical try with one attempt, however often it is sent.
    async fn deliver(
        &self,
        client: &Client,
        worker: &str,
        key: &str,
        sleeps: bool,
    ) -> anyhow::Result<()> {
        let name = Name::new(SCOPE, key)?;
        let lease_ms = if sleeps { SLEEPERS_LEASE_MS } else { LEASE_MS };
        let acquire = held_by(worker, &name, lease_ms)?;
        let token = loop {
            match client.acquire(acquire.clone(), WAIT).await {
                Ok((Acquisition::Acquired { token, .. }, _)) => break token,
                Ok((Acquisition::Replay(_), _)) => {
                    self.suppressed.fetch_add(1, Ordering::Relaxed);
                    return Ok(());
                }
                Ok((Acquisition::InProgress { .. }, _)) => {}
                Ok((other, _)) => bail!("a delivery came to {other:?}"),
                Err(error) => again(error)?,
            }
        };
        if sleeps {
            self.wake_up_too_late(client, worker, &name, token).await
        } else {
            // The work itself.
            sleep(Duration::from_millis(rand::random_range(1..5))).await;
            self.append(key, token, worker)?;
            finish(client, &name, token, worker).await
        }
    }

    /// Sleeps until somebody else has stolen the record and done the work, then writes as if
    /// nothing had happened.
    async fn wake_up_too_late(
        &self,
        client: &Client,
        worker: &str,
        name: &Name,
        token: Token,
    ) -> anyhow::Result<()> {
        loop {
            match client.get(name, Consistency::Linearizable).await {
                Ok((Some(view), _)) => {
                    let complete = matches!(view.state, ViewState::Complete { .. });
                    if complete && view.token != token {
                        // The thief may not know: an answer that says whom it took over can get
                        // lost with the leader, and the next one says that it resumes.
                        self.steals.fetch_add(1, Ordering::Relaxed);
                        break;
                    }
                }
                Ok((None, _)) => bail!("a record that was held is absent"),
                Err(error) => again(error)?,
            }
            sleep(LOOK_EVERY).await;
        }
        self.append(name.key(), token, worker)?;
        let complete = complete_of(name, token, worker)?;
        loop {
            match client.complete(complete.clone()).await {
                Ok((Conclusion::LeaseLost(_), _)) => return Ok(()),
                Ok((other, _)) => bail!("a late complete came to {other:?}"),
                // It was settled before this send: the record is complete by another token.
                Err(CallError::Unknown { seen: Some(_), .. }) => return Ok(()),
                Err(error) => again(error)?,
            }
        }
    }

    fn append(&self, key: &str, token: Token, worker: &str) -> anyhow::Result<()> {
        let written = self.sink.append(key, token, worker).context("cannot write an effect")?;
        let fenced = matches!(written, Written::Fenced { .. });
        self.fenced.fetch_add(u64::from(fenced), Ordering::Relaxed);
        Ok(())
    }
}

fn table(results: &Results) -> comfy_table::Table {
    output::pairs([
        ("events", results.events.to_string()),
        ("deliveries", results.deliveries.to_string()),
        ("effects", results.effects.to_string()),
        ("duplicates suppressed", results.duplicates_suppressed.to_string()),
        ("steals", results.steals.to_string()),
        ("fenced writes", results.fenced_writes.to_string()),
        ("events without effect", results.missing.to_string()),
        ("events with several", results.repeated.to_string()),
        ("without leader, ms", results.without_leader_ms.to_string()),
        ("seconds", results.seconds.to_string()),
    ])
}
