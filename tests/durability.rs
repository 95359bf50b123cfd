//! Power cuts: what was acknowledged is there afterwards.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use tenure_api::{View, ViewState};
use tenure_client::{Acquisition, Client, Conclusion};
use tenure_state_machine::{Acquire, At, Complete, Token};
use tenure_tests::{Cluster, acquire, eventually, name, payload, seeds, token_of};
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// What a caller was told: of a key that only it has used.
#[derive(Debug, Clone)]
struct Acknowledged {
    key: String,
    token: Token,
    granted: At,
    /// An earlier send had been granted it: the token is older than its place in the log.
    resumed: bool,
    completed: bool,
}

type History = Arc<Mutex<BTreeMap<String, Acknowledged>>>;

/// Acquires fresh keys and completes most of them, through whatever happens, until it is told to
/// stop. What it was told is written down the moment it was told.
async fn work(client: Client, worker: u64, stop: Arc<AtomicBool>, history: History) {
    for round in 0.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let key = format!("{worker}-{round}");
        let held = Acquire { lease_ms: 600_000, ttl_ms: 600_000, ..acquire(&key) };
        let Ok((acquired, granted)) = client.acquire(held, Duration::ZERO).await else { continue };
        let Acquisition::Acquired { token, resumed, .. } = acquired else {
            panic!("{key}: {acquired:?}");
        };
        let told = Acknowledged { key: key.clone(), token, granted, resumed, completed: false };
        history.lock().unwrap().insert(key.clone(), told);
        if round % 4 == 3 {
            continue;
        }
        let (name, payload) = (name(&key), Some(payload(&key)));
        let complete = Complete { name, token, ttl_ms: None, payload, not_after_ms: None };
        let done = client.complete(complete).await;
        if let Ok((Conclusion::Completed(_) | Conclusion::AlreadyComplete(_), _)) = done {
            history.lock().unwrap().get_mut(&key).unwrap().completed = true;
        }
    }
}

struct Load {
    stop: Arc<AtomicBool>,
    history: History,
    workers: Vec<JoinHandle<()>>,
}

impl Load {
    fn start(cluster: &Cluster) -> Self {
        let (stop, history) = (Arc::new(AtomicBool::new(false)), History::default());
        let workers = (0..8).map(|worker| {
            let (stop, history) = (Arc::clone(&stop), Arc::clone(&history));
            tokio::spawn(work(cluster.client(), worker, stop, history))
        });
        let workers = workers.collect();
        Self { stop, history, workers }
    }

    /// Waits until so many more acquires are acknowledged.
    async fn grows_by(&self, count: usize) {
        let before = self.history.lock().unwrap().len();
        eventually("acquires are acknowledged", async || {
            (self.history.lock().unwrap().len() >= before + count).then_some(())
        })
        .await;
    }

    async fn stop(self) -> Vec<Acknowledged> {
        self.stop.store(true, Ordering::Relaxed);
        for worker in self.workers {
            worker.await.unwrap();
        }
        std::mem::take(&mut *self.history.lock().unwrap()).into_values().collect()
    }
}

/// Everything that was acknowledged and is not so.
async fn violations(cluster: &Cluster, history: &[Acknowledged]) -> Vec<String> {
    let caller = cluster.lead().await;
    let mut violations = Vec::new();
    for told in history {
        let (view, at) = caller.get(&name(&told.key)).await.unwrap();
        let kept = match view {
            None => false,
            Some(View { token, .. }) if token != told.token => false,
            Some(View { state: ViewState::InProgress { .. }, .. }) => !told.completed,
            Some(View { state: ViewState::Complete { payload: found, .. }, .. }) => {
                found == Some(payload(&told.key))
            }
        };
        if !kept {
            violations.push(format!("lost: {told:?}"));
        }
        if at.index < told.granted.index || at.now_ms < told.granted.now_ms {
            violations.push(format!("back to {at:?}: {told:?}"));
        }
    }
    let mut grants: Vec<&Acknowledged> = history.iter().filter(|told| !told.resumed).collect();
    grants.sort_by_key(|told| (told.granted.index, told.granted.slot));
    for pair in grants.windows(2) {
        let grow =
            pair[0].token < pair[1].token && pair[0].granted.now_ms <= pair[1].granted.now_ms;
        if !grow {
            violations.push(format!("I2, I3: {pair:?}"));
        }
    }
    let next = token_of(&caller.acquire(acquire("next"), 0).await.unwrap());
    if let Some(told) = history.iter().find(|told| told.token >= next) {
        violations.push(format!("the next token is {next}: {told:?}"));
    }
    violations
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_acknowledged_survives_power_cuts_of_all_nodes() {
    for seed in seeds("power cuts", 10, 2) {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut cluster = Cluster::start(3).await;
        let load = Load::start(&cluster);
        for cut in 0..3 {
            load.grows_by(50).await;
            sleep(Duration::from_millis(rng.random_range(0..150))).await;
            if cut == 0 {
                cluster.power_cut_all().await;
            } else {
                cluster.power_cut_all_keeping(|pending| rng.random_range(0..=pending)).await;
            }
            cluster.restart_all().await;
        }
        load.grows_by(50).await;
        let history = load.stop().await;
        let violations = violations(&cluster, &history).await;
        assert_eq!(violations, [""; 0], "seed {seed}, {} acknowledged", history.len());
    }
}

/// The proof that the test above can fail.
#[tokio::test(flavor = "multi_thread")]
async fn disks_that_lie_about_syncs_are_found_out() {
    let mut cluster = Cluster::start(3).await;
    cluster.settled().await;
    for id in cluster.ids() {
        cluster.disk(id).lie_about_syncs(true);
    }
    let load = Load::start(&cluster);
    load.grows_by(50).await;
    let history = load.stop().await;
    cluster.power_cut_all().await;
    for id in 1..=3 {
        cluster.disk(id).lie_about_syncs(false);
    }
    cluster.restart_all().await;
    assert_ne!(violations(&cluster, &history).await, [""; 0]);
}

/// A minority may lose its power at any moment, again and again.
#[tokio::test(flavor = "multi_thread")]
async fn one_node_after_the_other_loses_its_power_and_nothing_is_lost() {
    let mut cluster = Cluster::start(3).await;
    let load = Load::start(&cluster);
    for round in 0..4 {
        load.grows_by(30).await;
        let victim = match round % 2 {
            0 => cluster.leader().await,
            _ => cluster.followers().await[0],
        };
        cluster.disk(victim).power_cut();
        cluster.crash(victim).await;
        load.grows_by(30).await;
        cluster.restart(victim).await;
        let index = cluster.node(cluster.leader().await).state().applied().index;
        eventually("it has caught up", async || {
            (cluster.node(victim).state().applied().index >= index).then_some(())
        })
        .await;
    }
    let history = load.stop().await;
    assert_eq!(violations(&cluster, &history).await, [""; 0]);
}
