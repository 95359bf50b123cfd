//! Who belongs to the cluster, who may come in, and how one that is behind catches up.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use openraft::raft::VoteRequest;
use tenure_api::frame::{Change, Hello, MAGIC, PROTOCOL, Role, Welcome};
use tenure_api::{MemberRole, Node, Refusal, ViewState};
use tenure_client::wire::{self, Frames};
use tenure_client::{Acquisition, Conclusion, DialError};
use tenure_network::StartError;
use tenure_network::peer::{PeerAnswer, PeerFrame, PeerMessage};
use tenure_state_machine::{Acquire, Complete};
use tenure_storage::Vote;
use tenure_tests::{
    Cluster, NoAnswer, Options, acquire, complete, eventually, name, payload, release, token_of,
    within,
};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::task::JoinHandle;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Acquires and completes fresh keys until it is told to stop, and gives how many.
struct Load {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    running: JoinHandle<()>,
}

impl Load {
    fn start(cluster: &Cluster) -> Self {
        let (client, stop) = (cluster.client(), Arc::new(AtomicBool::new(false)));
        let rounds = Arc::new(AtomicU64::new(0));
        let (stopped, done_rounds) = (Arc::clone(&stop), Arc::clone(&rounds));
        let running = tokio::spawn(async move {
            while !stopped.load(Ordering::Relaxed) {
                let round = done_rounds.load(Ordering::Relaxed);
                let key = format!("load-{round}");
                let acquire = Acquire { lease_ms: 60_000, ..acquire(&key) };
                let (acquired, _) = client.acquire(acquire, Duration::ZERO).await.unwrap();
                let Acquisition::Acquired { token, .. } = acquired else { panic!("{acquired:?}") };
                let (name, payload) = (name(&key), Some(payload(&key)));
                let complete = Complete { name, token, ttl_ms: None, payload, not_after_ms: None };
                let (done, _) = client.complete(complete).await.unwrap();
                let ends =
                    matches!(done, Conclusion::Completed(_) | Conclusion::AlreadyComplete(_));
                assert!(ends, "{done:?}");
                done_rounds.store(round + 1, Ordering::Relaxed);
            }
        });
        Self { stop, rounds, running }
    }

    /// Waits until it has gone on for a few rounds.
    async fn goes_on(&self) {
        let before = self.rounds.load(Ordering::Relaxed);
        eventually("the load goes on", async || {
            (self.rounds.load(Ordering::Relaxed) >= before + 10).then_some(())
        })
        .await;
    }

    /// Stops it, and finds every result where it should be.
    async fn stop(self, cluster: &Cluster) {
        self.stop.store(true, Ordering::Relaxed);
        self.running.await.unwrap();
        let caller = cluster.lead().await;
        for round in 0..self.rounds.load(Ordering::Relaxed) {
            let key = format!("load-{round}");
            let replay = caller.acquire(acquire(&key), 0).await.unwrap();
            let tenure_state_machine::Answer::Replay(replay) = replay.answer else {
                panic!("{key}: {replay:?}");
            };
            assert_eq!(replay.payload, Some(payload(&key)));
        }
    }
}

async fn assert_equal_states(cluster: &Cluster) {
    let hashes = cluster.hashes().await;
    let different: BTreeSet<&String> = hashes.values().collect();
    assert_eq!(different.len(), 1, "I7: {hashes:?}");
}

/// Writes so many entries, one after the other.
async fn write(cluster: &Cluster, leader: u64, entries: u64) {
    let caller = cluster.caller(leader).await;
    for round in 0..entries / 2 {
        let key = (round % 20).to_string();
        let token = token_of(&caller.acquire(acquire(&key), 0).await.unwrap());
        caller.command(release(&key, token)).await.unwrap();
    }
}

fn role_of(cluster: &Cluster, at: u64, id: u64) -> Option<MemberRole> {
    let members = cluster.node(at).status().members;
    members.into_iter().find(|member| member.id == id).map(|member| member.role)
}

#[tokio::test(flavor = "multi_thread")]
async fn members_come_and_go_under_load() {
    let mut cluster = Cluster::start(3).await;
    let load = Load::start(&cluster);
    load.goes_on().await;
    cluster.start_joining(4).await.unwrap();
    cluster.add(4).await;
    let leader = cluster.leader().await;
    assert_eq!(role_of(&cluster, leader, 4), Some(MemberRole::Learner));
    // A learner takes any request too.
    token_of(&cluster.caller(4).await.acquire(acquire("by a learner"), 0).await.unwrap());
    cluster.change(Change::Promote { id: 4 }).await;
    let leader = cluster.leader().await;
    assert_eq!(role_of(&cluster, leader, 4), Some(MemberRole::Voter));
    cluster.transfer(4).await;
    load.goes_on().await;

    // A follower goes, and then the leader itself.
    cluster.change(Change::Remove { id: 2 }).await;
    cluster.crash(2).await;
    load.goes_on().await;
    let leader = cluster.leader().await;
    cluster.change(Change::Remove { id: leader }).await;
    cluster.crash(leader).await;
    let last = cluster.leader().await;
    eventually("two members are left", async || {
        (cluster.node(last).status().members.len() == 2).then_some(())
    })
    .await;
    load.goes_on().await;
    load.stop(&cluster).await;
    assert_equal_states(&cluster).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_leader_says_nothing_of_its_own() {
    let options = Options::default().with(|config| config.request_timeout = ms(300));
    let cluster = Cluster::start_with(options).await;
    let old = cluster.leader().await;
    let by_old = cluster.caller(old).await;
    let held = Acquire { lease_ms: 60_000, ..acquire("k") };
    let token = token_of(&by_old.acquire(held, 0).await.unwrap());
    let rest = cluster.followers().await;
    cluster.change(Change::Remove { id: old }).await;
    let new = cluster.caller(cluster.leader_among(&rest).await).await;
    eventually("the new leader serves", async || new.command(complete("k", token)).await.ok())
        .await;
    for _ in 0..10 {
        if let Ok((view, at)) = by_old.get(&name("k")).await {
            let complete =
                view.as_ref().is_some_and(|v| matches!(v.state, ViewState::Complete { .. }));
            assert!(complete, "{view:?} at {at:?}");
        }
    }
    let left = cluster.node(rest[0]).status().members;
    assert!(left.iter().all(|member| member.id != old), "{left:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_behind_the_purged_log_catches_up_by_snapshot() {
    let options = Options::default().with(|config| config.snapshot_entries = 50);
    let mut cluster = Cluster::start_with(options).await;
    let late = cluster.followers().await[0];
    write(&cluster, cluster.leader().await, 60).await;
    let token = token_of(
        &cluster
            .lead()
            .await
            .acquire(Acquire { lease_ms: 60_000, ..acquire("k") }, 0)
            .await
            .unwrap(),
    );
    cluster.isolate(late);
    let rest: Vec<u64> = cluster.ids().into_iter().filter(|id| *id != late).collect();
    let leader = cluster.leader_among(&rest).await;
    let before = cluster.node(late).status().last_index;
    cluster.caller(leader).await.command(complete("k", token)).await.unwrap();
    write(&cluster, leader, 400).await;
    eventually("the log that the follower needs is gone", async || {
        (cluster.metric(leader, "log_first_index").await > before + 1).then_some(())
    })
    .await;
    assert_eq!(cluster.metric(late, "snapshots_installed_total").await, 0);
    cluster.links.heal();
    eventually("a snapshot is installed", async || {
        (cluster.metric(late, "snapshots_installed_total").await >= 1).then_some(())
    })
    .await;
    assert_equal_states(&cluster).await;
    // What it installed is what it serves, as a leader too, and after a restart.
    cluster.crash(late).await;
    cluster.restart(late).await;
    cluster.transfer(late).await;
    let (view, _) = cluster.caller(late).await.get(&name("k")).await.unwrap();
    assert_eq!(view.map(|view| view.token), Some(token));
    write(&cluster, late, 120).await;
    assert_equal_states(&cluster).await;
}

/// What it had proposed never came to an end that it could see; it must be able to propose again.
#[tokio::test(flavor = "multi_thread")]
async fn an_old_leader_that_caught_up_by_snapshot_can_lead_again() {
    let options = Options::default().with(|config| {
        config.snapshot_entries = 50;
        config.request_timeout = ms(500);
    });
    let cluster = Cluster::start_with(options).await;
    let old = cluster.leader().await;
    let caller = Arc::new(cluster.caller(old).await);
    let before = cluster.settled().await;
    cluster.isolate(old);
    let mut lost = Vec::new();
    for place in 1..=4 {
        let caller = Arc::clone(&caller);
        lost.push(tokio::spawn(async move { caller.acquire(acquire("lost"), 0).await }));
        eventually("it is proposed", async || {
            (cluster.node(old).status().last_index >= before + place).then_some(())
        })
        .await;
    }
    for lost in lost {
        assert!(lost.await.unwrap().is_err_and(|error| error.is_unknown()));
    }
    let rest: Vec<u64> = cluster.ids().into_iter().filter(|id| *id != old).collect();
    let new = cluster.leader_among(&rest).await;
    write(&cluster, new, 400).await;
    cluster.links.heal();
    eventually("a snapshot is installed", async || {
        (cluster.metric(old, "snapshots_installed_total").await >= 1).then_some(())
    })
    .await;
    cluster.settled().await;
    cluster.transfer(old).await;
    for round in 0..10 {
        let decided = caller.acquire(acquire(&format!("again-{round}")), 0).await.unwrap();
        token_of(&decided);
    }
    assert_equal_states(&cluster).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_voter_that_lost_its_disk_is_refused_and_comes_back_only_under_a_new_id() {
    let mut cluster = Cluster::start(3).await;
    let (away, wiped, leader) = (1, 2, 3);
    cluster.transfer(leader).await;
    write(&cluster, leader, 10).await;
    cluster.settled().await;
    cluster.crash(wiped).await;
    cluster.wipe(wiped);
    let refused = cluster.try_restart(wiped).await;
    assert!(matches!(refused, Err(StartError::LostItsData { id }) if id == wiped), "{refused:?}");
    let refused = cluster.start_joining(wiped).await;
    assert!(matches!(refused, Err(StartError::LostItsData { id }) if id == wiped), "{refused:?}");
    // One that has counted its acknowledgements is enough.
    cluster.crash(away).await;
    let limit = Duration::from_secs(20);
    let refused =
        within(limit, "it does not wait for who is away", cluster.try_restart(wiped)).await;
    assert!(matches!(refused, Err(StartError::LostItsData { id }) if id == wiped), "{refused:?}");
    cluster.restart(away).await;

    cluster.change(Change::Remove { id: wiped }).await;
    cluster.start_joining(4).await.unwrap();
    cluster.add(4).await;
    cluster.change(Change::Promote { id: 4 }).await;
    assert_equal_states(&cluster).await;
    // The removed id is burnt, on every node, and stays so.
    let address = cluster.address(wiped);
    for id in cluster.ids() {
        let again = cluster.caller(id).await.change(Change::Add(address.clone())).await;
        let Err(NoAnswer::Refused(Refusal::InvalidArgument { field, .. })) = again else {
            panic!("{again:?}");
        };
        assert_eq!(field.as_deref(), Some("id"));
    }
    cluster.transfer(4).await;
    let again = cluster.caller(4).await.change(Change::Add(address)).await;
    let refused = matches!(again, Err(NoAnswer::Refused(Refusal::InvalidArgument { .. })));
    assert!(refused, "{again:?}");
}

/// What a peer is answered, one by one on one connection.
struct Peer {
    frames: Frames<OwnedReadHalf>,
    write: OwnedWriteHalf,
}

impl Peer {
    async fn dial(address: &str, node_id: u64) -> Self {
        let (read, write) = TcpStream::connect(address).await.unwrap().into_split();
        let mut peer = Self { frames: Frames::new(read), write };
        let hello = Hello { protocol: PROTOCOL, cluster_id: None, role: Role::Peer { node_id } };
        let mut bytes = MAGIC.to_vec();
        wire::push(&mut bytes, &hello).unwrap();
        let welcome: Welcome = wire::decode(&peer.answer(&bytes).await).unwrap();
        assert!(matches!(welcome, Welcome::Accepted { .. }), "{welcome:?}");
        peer
    }

    async fn answer(&mut self, bytes: &[u8]) -> Bytes {
        self.write.write_all(bytes).await.unwrap();
        self.frames.next().await.unwrap()
    }

    async fn say(&mut self, message: PeerMessage) -> PeerAnswer {
        let mut bytes = Vec::new();
        wire::push(&mut bytes, &PeerFrame { leader_now_ms: None, message }).unwrap();
        wire::decode(&self.answer(&bytes).await).unwrap()
    }

    async fn is_seen(&mut self, node_id: u64) -> bool {
        let answer = self.say(PeerMessage::HaveYouSeen { node_id }).await;
        let PeerAnswer::Seen(is_seen) = answer else { panic!("{answer:?}") };
        is_seen
    }
}

/// It has voted for itself, and nobody else counts that vote.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_asks_for_a_vote_is_seen() {
    let cluster = Cluster::start(3).await;
    let stranger = 9;
    let request = || VoteRequest::new(Vote::new(0, stranger), None);
    for id in cluster.ids() {
        let mut peer = Peer::dial(&cluster.address(id).rpc, stranger).await;
        let answer = peer.say(PeerMessage::PreVote(request())).await;
        assert!(matches!(answer, PeerAnswer::Vote(_)), "{answer:?}");
        assert!(!peer.is_seen(stranger).await, "it has not voted yet");
        let answer = peer.say(PeerMessage::Vote(request())).await;
        assert!(matches!(answer, PeerAnswer::Vote(_)), "{answer:?}");
        assert!(peer.is_seen(stranger).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_voter_that_lost_its_disk_is_refused_though_who_counted_its_votes_is_gone() {
    let mut cluster = Cluster::start(3).await;
    let (first, wiped) = (cluster.leader().await, 4);
    cluster.start_joining(wiped).await.unwrap();
    cluster.add(wiped).await;
    cluster.change(Change::Promote { id: wiped }).await;
    write(&cluster, first, 10).await;
    cluster.settled().await;
    cluster.crash(wiped).await;
    cluster.wipe(wiped);
    assert_eq!(cluster.leader().await, first, "another one would have counted");
    cluster.change(Change::Remove { id: first }).await;
    cluster.crash(first).await;
    let refused = cluster.start_joining(wiped).await;
    assert!(matches!(refused, Err(StartError::LostItsData { id }) if id == wiped), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_that_make_no_sense_are_refused() {
    let cluster = Cluster::start(3).await;
    let caller = cluster.lead().await;
    let leader = cluster.leader().await;
    let mut moved = cluster.address(leader);
    moved.rpc = "127.0.0.1:1".to_owned();
    let nonsense = [
        Change::Promote { id: 9 },
        Change::Remove { id: 9 },
        Change::Transfer { to: 9 },
        Change::Add(moved),
    ];
    for change in nonsense {
        let refused = caller.change(change.clone()).await;
        let invalid = matches!(refused, Err(NoAnswer::Refused(Refusal::InvalidArgument { .. })));
        assert!(invalid, "{change:?}: {refused:?}");
    }
    // What is so already is done.
    caller.change(Change::Add(cluster.address(leader))).await.unwrap();
    caller.change(Change::Promote { id: leader }).await.unwrap();
    caller.change(Change::Transfer { to: leader }).await.unwrap();
    assert_eq!(cluster.leader().await, leader);
}

#[tokio::test(flavor = "multi_thread")]
async fn voters_of_whom_no_majority_would_answer_are_not_made() {
    let mut cluster = Cluster::start(1).await;
    let (first, second, nobody) = (1, 2, 3);
    let closed = "127.0.0.1:1".to_owned();
    cluster.change(Change::Add(Node { id: nobody, http: closed.clone(), rpc: closed })).await;
    refused_for_now(&cluster, Change::Promote { id: nobody }).await;
    cluster.start_joining(second).await.unwrap();
    cluster.add(second).await;
    cluster.change(Change::Promote { id: second }).await;
    // Two of three answer.
    cluster.change(Change::Promote { id: nobody }).await;
    cluster.transfer(first).await;
    refused_for_now(&cluster, Change::Remove { id: second }).await;
    write(&cluster, first, 10).await;

    cluster.change(Change::Remove { id: nobody }).await;
    cluster.change(Change::Remove { id: second }).await;
    // What is so already is done, whoever asks again.
    cluster.change(Change::Remove { id: nobody }).await;
    write(&cluster, first, 10).await;
}

async fn refused_for_now(cluster: &Cluster, change: Change) {
    let leader = cluster.leader().await;
    let refused = cluster.caller(leader).await.change(change.clone()).await;
    let Err(NoAnswer::Refused(Refusal::Overloaded { reason, .. })) = &refused else {
        panic!("{change:?}: {refused:?}");
    };
    assert!(reason.contains("voters that there would be answer"), "{reason}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_nodes_wait_for_each_other() {
    let mut cluster = Cluster::prepare(Options::default()).await;
    cluster.start_with_one_late(2, ms(500)).await;
    let leader = cluster.leader().await;
    assert_eq!(cluster.node(leader).status().members.len(), 3);
    write(&cluster, leader, 10).await;
    assert_equal_states(&cluster).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_with_a_log_ignores_what_it_is_told_of_first_nodes() {
    let mut cluster = Cluster::start(3).await;
    write(&cluster, cluster.leader().await, 10).await;
    let id = cluster.followers().await[0];
    cluster.crash(id).await;
    cluster.restart_told(id, &[id]).await.unwrap();
    assert_equal_states(&cluster).await;
    assert_eq!(cluster.node(id).status().members.len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_means_another_cluster_is_not_greeted() {
    let cluster = Cluster::start(1).await;
    let refused = cluster.caller_of(1, "another").await;
    assert!(matches!(refused, Err(DialError::Refused { .. })), "{refused:?}");
    assert!(cluster.caller_of(1, "test").await.is_ok());
}
