//! One run against a Tenure cluster: the load, and windows over it.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tenure_client::{Client, Config};
use tokio::time::{Instant, sleep};

use crate::batch::Batch;
use crate::http::{self, Http};
use crate::load::{Load, Running, Workload};
use crate::meters::{Meters, Reading};
use crate::native::Native;
use crate::once::{Guards, Once};
use crate::payloads::Payloads;
use crate::progress;
use crate::tally::{Tally, rounded};
use crate::waiters::Waiters;

/// Before the first window, for connections and caches to warm up.
const WARM_UP: Duration = Duration::from_millis(500);
/// How often the bar moves.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// How the clients reach the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Via {
    /// The native protocol, many requests on a connection.
    Native,
    /// The same, by actions that run once and guards that keep themselves.
    Once,
    /// One command a request, one connection a client, to the leader as one of these nodes
    /// (host:port) knows it.
    Http(Vec<String>),
    /// The same with `POST /v1/batch` of 64 commands.
    Batch(Vec<String>),
}

/// What is measured.
#[derive(Debug)]
pub struct Settings {
    /// How the cluster is reached natively.
    pub config: Config,
    /// How the clients reach it.
    pub via: Via,
    /// What they do.
    pub load: Load,
    /// The results that they store.
    pub payloads: Payloads,
    /// Acquires that wait for one other record meanwhile.
    pub waiters: u32,
    /// What is read before and after a window.
    pub meters: Meters,
}

/// A load that runs.
#[derive(Debug)]
pub struct Bench {
    running: Running,
    waiters: Waiters,
    meters: Meters,
    windows: Vec<(Reading, Reading)>,
}

/// What came of a window.
#[derive(Debug)]
pub struct Window {
    /// The calls that began in it.
    pub tally: Tally,
    before: Reading,
    after: Reading,
}

impl Window {
    /// How long it was open.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        rounded(self.after.elapsed_since(&self.before).as_secs_f64())
    }

    /// Operations a second.
    #[must_use]
    pub fn ops_per_s(&self) -> f64 {
        let took = self.after.elapsed_since(&self.before).as_secs_f64();
        rounded(self.tally.ops() as f64 / took.max(1e-9))
    }

    /// What the operations cost.
    #[must_use]
    pub fn costs(&self) -> crate::Costs {
        self.after.costs_since(&self.before, self.tally.ops())
    }
}

impl Bench {
    /// Starts the load, and warms up.
    ///
    /// # Errors
    /// When the cluster does not answer, or the load is out of bounds.
    pub async fn start(settings: Settings) -> anyhow::Result<Self> {
        let Settings { config, via, load, payloads, waiters, meters } = settings;
        let waiters = Waiters::start(&config, waiters).await;
        let waiters = waiters.context("the cluster does not answer")?;
        let each = 0..load.clients;
        let running = match via {
            Via::Native => {
                let native = Native::new(Client::new(config), payloads);
                Running::start(vec![Arc::new(native)], load).await?
            }
            Via::Once => {
                let client = Client::new(config);
                if load.workload == Workload::Heartbeat {
                    Running::start(vec![Arc::new(Guards::new(client, payloads))], load).await?
                } else {
                    Running::start(vec![Arc::new(Once::new(client, payloads))], load).await?
                }
            }
            Via::Http(nodes) => {
                let leader = http::leader(&nodes).await?;
                let connect = |_| Arc::new(Http::new(leader.clone(), payloads.any().body()));
                Running::start(each.map(connect).collect(), load).await?
            }
            Via::Batch(nodes) => {
                let leader = http::leader(&nodes).await?;
                let connect = |_| Arc::new(Batch::new(leader.clone(), payloads.any().body()));
                Running::start(each.map(connect).collect(), load).await?
            }
        };
        sleep(WARM_UP).await;
        Ok(Self { running, waiters, meters, windows: Vec::new() })
    }

    /// Opens a window and runs `meanwhile` beside it. It closes after `length`, or when that ends.
    ///
    /// # Errors
    /// When a meter cannot be read, or `meanwhile` fails.
    pub async fn window(
        &mut self,
        title: &str,
        length: Duration,
        meanwhile: impl Future<Output = anyhow::Result<()>>,
    ) -> anyhow::Result<()> {
        let before = self.meters.read().await?;
        self.running.open(self.windows.len() + 1);
        let closes = Instant::now() + length;
        tokio::select! {
            () = self.show(title, length, closes) => {}
            ended = meanwhile => ended?,
        }
        // Reading takes a moment, to which the operations in it belong.
        let after = self.meters.read().await?;
        self.running.open(0);
        self.windows.push((before, after));
        Ok(())
    }

    /// Ends the load. Gives what came of each window, in order.
    ///
    /// # Errors
    /// When a client of the load could not go on.
    pub async fn stop(self) -> anyhow::Result<Vec<Window>> {
        let tallies = self.running.stop().await;
        self.waiters.stop().await?;
        let mut tallies = tallies?.into_iter();
        let mut windows = Vec::new();
        for (before, after) in self.windows {
            let tally = tallies.next().map_or_else(Tally::new, Ok)?;
            windows.push(Window { tally, before, after });
        }
        Ok(windows)
    }

    /// A bar until `closes`.
    async fn show(&self, title: &str, length: Duration, closes: Instant) {
        let bar = progress::window(millis(length));
        let (began, before) = (Instant::now(), self.running.ops());
        loop {
            let left = closes.saturating_duration_since(Instant::now());
            if left.is_zero() {
                bar.finish_and_clear();
                return;
            }
            let ops = self.running.ops().saturating_sub(before);
            let rate = ops as f64 / began.elapsed().as_secs_f64().max(1e-3);
            bar.set_position(millis(began.elapsed()));
            bar.set_message(format!("{title}{rate:.0} ops/s, {} s left", left.as_secs()));
            sleep(left.min(LOOK_EVERY)).await;
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
