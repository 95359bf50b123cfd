//! What `once` costs over the bare commands, and what guards cost that only wait: against a running
//! cluster.
//!
//! ```console
//! $ tenure dev &
//! $ cargo run --release -p tenure-client --example once -- 127.0.0.1:7701,127.0.0.1:7702
//! ```
//!
//! It leaves its records to expire, a minute after it has ended.
#![expect(clippy::print_stdout, reason = "it says what it measured")]

use std::convert::Infallible;
use std::error::Error;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use rustix::time::{ClockId, clock_gettime};
use tenure_client::{Acquisition, Client, Done, Lease, Leased, Name, new_acquire};
use tenure_state_machine::Complete;
use tokio::time::{Instant, sleep};

/// Records of one measurement.
const RECORDS: u32 = 4000;
/// Guards that wait.
const GUARDS: u32 = 10_000;
/// How long they do: three heartbeats each.
const WAIT: Duration = Duration::from_secs(30);
const TTL: Duration = Duration::from_secs(60);

type Outcome<T> = Result<T, Box<dyn Error>>;

#[tokio::main]
async fn main() -> Outcome<()> {
    let endpoints = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7701".to_owned());
    let client = Client::builder().endpoints(endpoints.split(',')).holder("example").build()?;
    // Keys of this run alone.
    let run = u64::from(rand::random::<u32>());
    println!("{:28}{:>12}{:>12}{:>16}", "", "ops/s", "us/op", "client us/op");
    for (at_once, what) in [(1, "one at a time"), (64, "64 at once")] {
        println!("{what}:");
        let raw = |number| raw(&client, format!("{run}-{at_once}-raw-{number}"));
        let once = |runs| {
            let client = &client;
            move |number| once(client, format!("{run}-{at_once}-once-{number}"), runs)
        };
        measure("  acquire + complete", at_once, raw).await?;
        measure("  once, which runs", at_once, once(true)).await?;
        measure("  acquire, which replays", at_once, raw).await?;
        measure("  once, which replays", at_once, once(false)).await?;
    }
    guards(&client, run).await
}

/// The bare commands.
async fn raw(client: &Client, key: String) -> Outcome<()> {
    let name = Name::new("example", &key)?;
    let mut acquire = new_acquire(name.clone());
    acquire.ttl_ms = 60_000;
    match client.acquire(acquire, Duration::ZERO).await? {
        (Acquisition::Acquired { token, .. }, _) => {
            let complete =
                Complete { name, token, ttl_ms: None, payload: None, not_after_ms: None };
            client.complete(complete).await?;
            Ok(())
        }
        (Acquisition::Replay(_), _) => Ok(()),
        (other, _) => Err(format!("{other:?}").into()),
    }
}

async fn once(client: &Client, key: String, runs: bool) -> Outcome<()> {
    let run = client.once("example", &key).ttl(TTL).run(async |_| Ok::<_, Infallible>(7_u32));
    let done = run.await?;
    let wanted = if runs { Done::Ran(7) } else { Done::Replayed(7) };
    if done == wanted { Ok(()) } else { Err(format!("{done:?}").into()) }
}

async fn measure<F: Future<Output = Outcome<()>>>(
    what: &str,
    at_once: usize,
    operation: impl Fn(u32) -> F,
) -> Outcome<()> {
    let (began, cpu) = (Instant::now(), cpu_time());
    let mut running = stream::iter(0..RECORDS).map(operation).buffer_unordered(at_once);
    while let Some(done) = running.next().await {
        done?;
    }
    let (each, cpu) = (began.elapsed() / RECORDS, (cpu_time() - cpu) / RECORDS);
    let per_second = 1.0 / each.as_secs_f64();
    println!("{what:28}{per_second:>12.0}{:>12}{:>16}", each.as_micros(), cpu.as_micros());
    Ok(())
}

/// The processor time of this process.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Guards that only send heartbeats.
async fn guards(client: &Client, run: u64) -> Outcome<()> {
    let began = Instant::now();
    let acquire = |number: u32| async move {
        let key = format!("{run}-guard-{number}");
        client.lease("example", &key).ttl(TTL).acquire().await
    };
    let mut acquired = stream::iter(0..GUARDS).map(acquire).buffer_unordered(256);
    let mut leases: Vec<Lease> = Vec::new();
    while let Some(leased) = acquired.next().await {
        let Leased::Held(lease) = leased? else { return Err("the key is used".into()) };
        leases.push(lease);
    }
    println!("{GUARDS} guards with leases of 30 s: acquired in {:.1?}", began.elapsed());
    let (began, cpu) = (Instant::now(), cpu_time());
    sleep(WAIT).await;
    let share = (cpu_time() - cpu).as_secs_f64() / began.elapsed().as_secs_f64();
    let lost = leases.iter().filter(|lease| lease.is_lost().is_some()).count();
    let least = leases.iter().map(|lease| lease.left()).min().unwrap_or_default();
    println!("  heartbeats for {WAIT:?}: {:.2} % of a core, {lost} lost", share * 100.0);
    println!("  the one with the least left has {least:.1?}");
    let began = Instant::now();
    let mut released = stream::iter(leases).map(Lease::release).buffer_unordered(256);
    while let Some(withdrawal) = released.next().await {
        withdrawal?;
    }
    println!("  released in {:.1?}", began.elapsed());
    Ok(())
}
