//! The receiving half of Raft: what a peer asks of this node.
//!
//! - **V1** Until a node is *admitted* it takes no part in Raft: it answers only whether it has
//!   seen a voter. A voter that lost its disk finds out there, before it can vote twice.
//! - **V2** Whoever asks for a vote or sends what a leader sends has voted for itself. It is recorded
//!   as seen before this node answers, as those are whose answers this node counts.
//! - **V3** What was seen outlives who saw it: once members have changed, every voter counts as
//!   seen, for the one node that had counted its votes may be gone.
//! - **V4** A reading of the leader's time counts from the moment that its frame was read off the
//!   socket, and only if the message was accepted.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::{FutureExt, StreamExt, stream};
use openraft::alias::SnapshotOf;
use openraft::async_runtime::WatchReceiver;
use openraft::raft::StreamAppendError;
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse};
use tenure_client::wire::{self, Frames};
use tenure_client::{ReadHalf, WriteHalf};
use tenure_state_machine::seeded::{SeededBug, seeded};
use tenure_storage::{Raft, Receiver, SeenVoters, SnapshotMeta, StateStore, TypeConfig, Vote};
use tokio::io::AsyncWriteExt;
use tokio::sync::{mpsc, watch};

use crate::leader_time::LeaderTime;
use crate::peer::{PeerAnswer, PeerFrame, PeerMessage};
use crate::socket;

/// Appends of one stream that are read ahead of Raft.
const READ_AHEAD: usize = 64;
/// Bytes of answers gathered into one write.
const WRITE_BYTES: usize = 64 * 1024;

type Append = AppendEntriesRequest<TypeConfig>;

/// What this node does for its peers.
#[derive(Debug, Clone)]
pub(crate) struct PeerService {
    pub(crate) raft: Raft,
    pub(crate) state: StateStore,
    pub(crate) time: Arc<LeaderTime>,
    pub(crate) seen: Arc<SeenVoters>,
    /// V1.
    pub(crate) admitted: watch::Receiver<bool>,
}

/// What a message said of the leader's time, and when it arrived (V4).
#[derive(Debug, Clone, Copy)]
struct Reading {
    leader_now_ms: Option<u64>,
    arrived: Duration,
}

/// Serves one connection of the node `from`, which is for one purpose: calls one by one, or a
/// stream of appends.
pub(crate) async fn serve(
    mut frames: Frames<ReadHalf>,
    mut write: WriteHalf,
    service: &PeerService,
    from: u64,
) -> io::Result<()> {
    let mut receiving = None;
    let mut bytes = Vec::new();
    loop {
        let (message, reading) = service.next(&mut frames).await?;
        if has_voted(&message) {
            service.seen.insert(from)?;
        }
        if !service.may(&message) {
            let reason = "the node is not admitted to Raft yet".to_owned();
            push(&mut bytes, &PeerAnswer::Failed(reason))?;
        } else if let PeerMessage::Stream(first) = message {
            return serve_stream(frames, write, service, first, reading).await;
        } else {
            let answer = service.handle(message, reading, &mut receiving).await;
            push(&mut bytes, &answer.unwrap_or_else(PeerAnswer::Failed))?;
        }
        write.write_all(&bytes).await?;
        bytes.clear();
    }
}

/// V2: whether the sender of a message has voted, for itself at least.
fn has_voted(message: &PeerMessage) -> bool {
    !matches!(message, PeerMessage::PreVote(_) | PeerMessage::HaveYouSeen { .. })
}

fn push(bytes: &mut Vec<u8>, answer: &PeerAnswer) -> io::Result<()> {
    wire::push(bytes, answer).map_err(io::Error::other)
}

impl PeerService {
    async fn next(&self, frames: &mut Frames<ReadHalf>) -> io::Result<(PeerMessage, Reading)> {
        let frame: PeerFrame = socket::next(frames).await?;
        let arrived = self.time.monotonic();
        Ok((frame.message, Reading { leader_now_ms: frame.leader_now_ms, arrived }))
    }

    /// V1.
    fn may(&self, message: &PeerMessage) -> bool {
        *self.admitted.borrow() || matches!(message, PeerMessage::HaveYouSeen { .. })
    }

    /// V2 and V3. The first members are voters before any of them has voted.
    fn has_seen(&self, id: u64) -> bool {
        let members = self.raft.metrics().borrow_watched().membership_config.clone();
        let have_changed = members.log_id().is_some_and(|id| id.index > 0);
        self.seen.contains(id) || have_changed && members.voter_ids().any(|voter| voter == id)
    }

    fn hear(&self, term: u64, reading: Reading) {
        self.time.hear(term, reading.leader_now_ms, reading.arrived);
    }

    async fn handle(
        &self,
        message: PeerMessage,
        reading: Reading,
        receiving: &mut Option<Receiver>,
    ) -> Result<PeerAnswer, String> {
        Ok(match message {
            PeerMessage::Append(request) | PeerMessage::Stream(request) => {
                let term = request.vote.leader_id.term;
                let response = self.raft.append_entries(request).await.map_err(text)?;
                if !matches!(response, AppendEntriesResponse::HigherVote(_)) {
                    self.hear(term, reading);
                }
                PeerAnswer::Append(response)
            }
            PeerMessage::Vote(request) => {
                PeerAnswer::Vote(self.raft.vote(request).await.map_err(text)?)
            }
            PeerMessage::PreVote(request) => {
                PeerAnswer::Vote(self.raft.pre_vote(request).await.map_err(text)?)
            }
            PeerMessage::Transfer(request) => {
                let transferred = self.raft.handle_transfer_leader(request).await;
                PeerAnswer::Transfer(transferred.map_err(text)?)
            }
            PeerMessage::SnapshotBegin => {
                *receiving = Some(self.state.receive_snapshot().map_err(text)?);
                PeerAnswer::SnapshotGoOn
            }
            PeerMessage::SnapshotChunk(chunk) => {
                let mut receiver = receiving.take().ok_or("no snapshot was begun")?;
                let added = self.state.blocking(move |_| receiver.add(&chunk).map(|()| receiver));
                *receiving = Some(added.await.map_err(text)?);
                PeerAnswer::SnapshotGoOn
            }
            PeerMessage::SnapshotEnd { vote, meta } => {
                let received = receiving.take().ok_or("no snapshot was begun")?;
                self.install(received, vote, *meta).await?
            }
            PeerMessage::HaveYouSeen { .. } if seeded(SeededBug::WipedNodeRejoins) => {
                PeerAnswer::Seen(false)
            }
            PeerMessage::HaveYouSeen { node_id } => PeerAnswer::Seen(self.has_seen(node_id)),
        })
    }

    async fn install(
        &self,
        received: Receiver,
        vote: Vote,
        meta: SnapshotMeta,
    ) -> Result<PeerAnswer, String> {
        let covers = meta.clone();
        let finished = self.state.blocking(move |state| state.finish_received(received, &covers));
        let snapshot = finished.await.map_err(text)?;
        let snapshot = SnapshotOf::<TypeConfig, _> { meta, snapshot };
        let installed = self.raft.install_full_snapshot(vote, snapshot).await;
        Ok(PeerAnswer::Snapshot(installed.map_err(text)?))
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Feeds appends to Raft as they arrive, and answers them in order.
async fn serve_stream(
    mut frames: Frames<ReadHalf>,
    mut write: WriteHalf,
    service: &PeerService,
    first: Append,
    reading: Reading,
) -> io::Result<()> {
    let first_term = first.vote.leader_id.term;
    let readings = Arc::new(Mutex::new(VecDeque::from([(first_term, reading)])));
    let (requests, queue) = mpsc::channel(READ_AHEAD);
    let reader = {
        let (service, readings) = (service.clone(), Arc::clone(&readings));
        async move {
            let mut next = Some(first);
            while let Some(request) = next.take() {
                if requests.send(request).await.is_err() {
                    return Ok(());
                }
                let (message, reading) = service.next(&mut frames).await?;
                let PeerMessage::Stream(request) = message else {
                    return Err(io::Error::other("a stream of appends carries nothing else"));
                };
                let heard = (request.vote.leader_id.term, reading);
                readings.lock().unwrap_or_else(PoisonError::into_inner).push_back(heard);
                next = Some(request);
            }
            Ok(())
        }
    };
    let queue = stream::unfold(queue, |mut queue| async move {
        queue.recv().await.map(|request| (request, queue))
    });
    let answers = async {
        let mut results = std::pin::pin!(service.raft.stream_append(queue));
        let mut bytes = Vec::new();
        loop {
            let next = match results.next().now_or_never() {
                Some(next) if bytes.len() < WRITE_BYTES => next,
                ready => {
                    write.write_all(&bytes).await?;
                    bytes.clear();
                    match ready {
                        Some(next) => next,
                        None => results.next().await,
                    }
                }
            };
            let Some(result) = next else { break };
            let streamed = result.map_err(io::Error::other)?;
            let heard = readings.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            if let Some((term, reading)) = heard
                && !matches!(streamed, Err(StreamAppendError::HigherVote(_)))
            {
                service.hear(term, reading);
            }
            push(&mut bytes, &PeerAnswer::Streamed(streamed))?;
        }
        write.write_all(&bytes).await
    };
    tokio::pin!(reader);
    tokio::pin!(answers);
    tokio::select! {
        ended = &mut answers => ended,
        ended = &mut reader => match ended {
            // The sender is done: what it sent is still answered.
            Ok(()) | Err(_) => answers.await,
        },
    }
}
