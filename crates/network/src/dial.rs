//! The sending half of Raft: what openraft asks of the network.
//!
//! - **N1** A vote or an acknowledgement of a voter counts only after this node has recorded,
//!   durably, that it has seen that voter.
//! - **N2** An answer is only ever taken as the answer to what was asked: a connection on which an
//!   answer is missing is closed.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream};
use futures_util::{FutureExt, Stream, StreamExt};
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendResult,
    TransferLeaderRequest, TransferLeaderResponse, VoteRequest, VoteResponse,
};
use openraft::{OptionalSend, alias::SnapshotOf};
use tenure_api::frame::{Hello, MAGIC, PROTOCOL, Role, Welcome};
use tenure_client::wire::{self, Frames};
use tenure_client::{Net, ReadHalf, Socket, WriteHalf};
use tenure_storage::{Member, SeenVoters, Snapshot, TypeConfig, Vote};
use tokio::io::AsyncWriteExt;
use tokio::time::{sleep, timeout};

use crate::leader_time::LeaderTime;
use crate::peer::{PeerAnswer, PeerFrame, PeerMessage};

type Failed = RPCError<TypeConfig>;
type Sent = AppendEntriesRequest<TypeConfig>;
type StreamedResult = Result<StreamAppendResult<TypeConfig>, Failed>;

/// Bytes of appends gathered into one write, when many wait.
const WRITE_BYTES: usize = 256 * 1024;
/// For a peer to take one chunk of a snapshot.
const SNAPSHOT_STEP: Duration = Duration::from_secs(60);
/// For a peer to install a snapshot that it has whole.
const SNAPSHOT_INSTALL: Duration = Duration::from_secs(10 * 60);

/// What every connection to a peer needs to know.
#[derive(Debug, Clone)]
pub(crate) struct Dialer {
    pub(crate) node_id: u64,
    pub(crate) cluster_id: String,
    pub(crate) time: Arc<LeaderTime>,
    pub(crate) seen: Arc<SeenVoters>,
    pub(crate) net: Arc<dyn Net>,
    /// For a connection to stand and be greeted.
    pub(crate) timeout: Duration,
    /// For the next answer of a stream.
    pub(crate) answer_within: Duration,
}

/// An open connection to a peer.
#[derive(Debug)]
pub(crate) struct Link {
    frames: Frames<ReadHalf>,
    write: WriteHalf,
    bytes: Vec<u8>,
}

impl Dialer {
    /// Connects and greets.
    pub(crate) async fn dial(&self, address: &str) -> io::Result<Link> {
        let greeted = timeout(self.timeout, self.greet(address)).await;
        greeted.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
    }

    async fn greet(&self, address: &str) -> io::Result<Link> {
        let Socket { read, write } = self.net.connect(address).await?;
        let mut link = Link { frames: Frames::new(read), write, bytes: MAGIC.to_vec() };
        let hello = Hello {
            protocol: PROTOCOL,
            cluster_id: Some(self.cluster_id.clone()),
            role: Role::Peer { node_id: self.node_id },
        };
        wire::push(&mut link.bytes, &hello).map_err(io::Error::other)?;
        link.flush().await?;
        match wire::decode(&link.frames.next().await.map_err(io::Error::other)?) {
            Ok(Welcome::Accepted { .. }) => Ok(link),
            Ok(Welcome::Refused { reason }) => Err(io::Error::other(reason)),
            Err(error) => Err(io::Error::other(error)),
        }
    }

    fn frame(&self, message: PeerMessage) -> PeerFrame {
        PeerFrame { leader_now_ms: self.time.present().map(|present| present.ms), message }
    }
}

impl Link {
    fn push(&mut self, frame: &PeerFrame) -> io::Result<()> {
        wire::push(&mut self.bytes, frame).map_err(io::Error::other)
    }

    async fn flush(&mut self) -> io::Result<()> {
        self.write.write_all(&self.bytes).await?;
        self.bytes.clear();
        Ok(())
    }

    pub(crate) async fn call(&mut self, frame: &PeerFrame) -> io::Result<PeerAnswer> {
        self.push(frame)?;
        self.flush().await?;
        read_answer(&mut self.frames).await
    }
}

async fn read_answer(frames: &mut Frames<ReadHalf>) -> io::Result<PeerAnswer> {
    decoded(&frames.next().await.map_err(io::Error::other)?)
}

fn decoded(frame: &[u8]) -> io::Result<PeerAnswer> {
    let answer = wire::decode(frame).map_err(io::Error::other)?;
    if let PeerAnswer::Failed(reason) = answer { Err(io::Error::other(reason)) } else { Ok(answer) }
}

fn unexpected() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the peer answered something else")
}

fn unreachable(error: io::Error) -> Failed {
    RPCError::Unreachable(Unreachable::new(&error))
}

fn broken(error: io::Error) -> Failed {
    RPCError::Network(NetworkError::new(&error))
}

/// Makes the connections to peers.
#[derive(Debug)]
pub(crate) struct Network(pub(crate) Dialer);

impl RaftNetworkFactory<TypeConfig> for Network {
    type Network = Peer;

    async fn new_client(&mut self, target: u64, member: &Member) -> Peer {
        self.peer(target, member)
    }

    async fn new_heartbeat_client(&mut self, target: u64, member: &Member) -> Peer {
        self.peer(target, member)
    }

    async fn new_snapshot_client(&mut self, target: u64, member: &Member) -> Peer {
        self.peer(target, member)
    }
}

impl Network {
    fn peer(&self, target: u64, member: &Member) -> Peer {
        Peer {
            dialer: self.0.clone(),
            target,
            address: member.rpc.clone(),
            link: None,
            stream: None,
        }
    }
}

/// A peer as one of openraft's tasks sees it.
#[derive(Debug)]
pub(crate) struct Peer {
    dialer: Dialer,
    target: u64,
    address: String,
    /// For calls, one at a time.
    link: Option<Link>,
    /// For streams of appends, one after the other.
    stream: Option<Link>,
}

impl Peer {
    /// Asks and waits for the answer. The link is kept only if the answer came (N2).
    async fn call(
        &mut self,
        limit: Duration,
        message: impl FnOnce() -> PeerMessage,
    ) -> Result<PeerAnswer, Failed> {
        let mut link = match self.link.take() {
            Some(link) => link,
            None => self.dialer.dial(&self.address).await.map_err(unreachable)?,
        };
        let frame = self.dialer.frame(message());
        let answer = timeout(limit, link.call(&frame)).await;
        let answer = answer.map_err(|_| broken(io::ErrorKind::TimedOut.into()))?.map_err(broken)?;
        self.link = Some(link);
        Ok(answer)
    }

    /// N1.
    fn saw(&self) -> Result<(), Failed> {
        saw(&self.dialer.seen, self.target)
    }

    async fn send_snapshot(
        &mut self,
        vote: Vote,
        snapshot: SnapshotOf<TypeConfig, Arc<Snapshot>>,
    ) -> Result<SnapshotResponse<TypeConfig>, Failed> {
        let files = Arc::clone(&snapshot.snapshot);
        self.step(PeerMessage::SnapshotBegin).await?;
        for file in files.files().map_err(broken)? {
            let mut offset = 0;
            while let Some(chunk) = files.chunk(&file, offset).map_err(broken)? {
                let length = u64::try_from(chunk.bytes.len()).unwrap_or(u64::MAX);
                self.step(PeerMessage::SnapshotChunk(chunk)).await?;
                offset += length;
                if length == 0 {
                    break;
                }
            }
        }
        let meta = Box::new(snapshot.meta);
        let end = PeerMessage::SnapshotEnd { vote, meta };
        let PeerAnswer::Snapshot(response) = self.call(SNAPSHOT_INSTALL, || end).await? else {
            return Err(broken(unexpected()));
        };
        self.saw()?;
        Ok(response)
    }

    async fn step(&mut self, message: PeerMessage) -> Result<(), Failed> {
        let PeerAnswer::SnapshotGoOn = self.call(SNAPSHOT_STEP, || message).await? else {
            return Err(broken(unexpected()));
        };
        Ok(())
    }
}

fn saw(seen: &SeenVoters, target: u64) -> Result<(), Failed> {
    seen.insert(target).map_err(broken)
}

impl RaftNetworkV2<TypeConfig> for Peer {
    type SnapshotData = Arc<Snapshot>;

    async fn append_entries(
        &mut self,
        request: Sent,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<TypeConfig>, Failed> {
        let limit = option.hard_ttl().max(self.dialer.timeout);
        let PeerAnswer::Append(response) =
            self.call(limit, || PeerMessage::Append(request)).await?
        else {
            return Err(broken(unexpected()));
        };
        self.saw()?;
        Ok(response)
    }

    async fn vote(
        &mut self,
        request: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, Failed> {
        let PeerAnswer::Vote(response) =
            self.call(option.hard_ttl(), || PeerMessage::Vote(request)).await?
        else {
            return Err(broken(unexpected()));
        };
        self.saw()?;
        Ok(response)
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, Failed> {
        let PeerAnswer::Vote(response) =
            self.call(option.hard_ttl(), || PeerMessage::PreVote(request)).await?
        else {
            return Err(broken(unexpected()));
        };
        Ok(response)
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<TypeConfig>, Failed> {
        let PeerAnswer::Transfer(response) =
            self.call(option.hard_ttl(), || PeerMessage::Transfer(request)).await?
        else {
            return Err(broken(unexpected()));
        };
        Ok(response)
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: SnapshotOf<TypeConfig, Arc<Snapshot>>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        tokio::select! {
            biased;
            closed = cancel => Err(StreamingError::Closed(closed)),
            sent = self.send_snapshot(vote, snapshot) => sent.map_err(|failed| match failed {
                RPCError::Unreachable(error) => StreamingError::Unreachable(error),
                RPCError::Network(error) => StreamingError::Network(error),
                RPCError::Timeout(error) => StreamingError::Timeout(error),
                error @ RPCError::RemoteError(_) => {
                    StreamingError::Network(NetworkError::new(&error))
                }
            }),
        }
    }

    /// Sends without waiting for the answers, which come back in order. Heartbeats come this way
    /// too, one a stream, so the link is kept for the next one.
    fn stream_append<'s, S>(
        &'s mut self,
        mut input: S,
        _option: RPCOption,
    ) -> BoxFuture<'s, Result<BoxStream<'s, StreamedResult>, Failed>>
    where
        S: Stream<Item = Sent> + OptionalSend + Unpin + 'static,
    {
        async move {
            // The first item comes after openraft's backoff: dialling before it would be a loop
            // without a pause.
            let Some(first) = input.next().await else { return Ok(stream::empty().boxed()) };
            let mut link = match self.stream.take() {
                Some(link) => link,
                None => self.dialer.dial(&self.address).await.map_err(unreachable)?,
            };
            let frame = self.dialer.frame(PeerMessage::Stream(first));
            link.push(&frame).map_err(broken)?;
            let appends = Appends {
                dialer: &self.dialer,
                target: self.target,
                input: Some(input),
                unanswered: 1,
                link,
                keep: &mut self.stream,
            };
            let answers = stream::unfold(Some(appends), |appends| async move {
                let mut appends = appends?;
                match appends.next().await {
                    // openraft ends a stream at a refusal, and the peer does too.
                    Ok(Some(Err(refused))) => Some((Ok(Err(refused)), None)),
                    Ok(Some(streamed)) => Some((Ok(streamed), Some(appends))),
                    Ok(None) => {
                        *appends.keep = Some(appends.link);
                        None
                    }
                    Err(failed) => Some((Err(failed), None)),
                }
            });
            Ok(answers.boxed())
        }
        .boxed()
    }
}

/// A stream of appends: sends what comes in while it waits for what comes back.
struct Appends<'s, S> {
    dialer: &'s Dialer,
    target: u64,
    input: Option<S>,
    /// Sent, or about to be, and not answered.
    unanswered: usize,
    link: Link,
    /// Where the link goes when all is answered.
    keep: &'s mut Option<Link>,
}

impl<S: Stream<Item = Sent> + Unpin> Appends<'_, S> {
    /// The next answer; none when the input has ended and everything is answered.
    async fn next(&mut self) -> Result<Option<StreamAppendResult<TypeConfig>>, Failed> {
        let late = sleep(self.dialer.answer_within);
        tokio::pin!(late);
        loop {
            if self.unanswered == 0 && self.input.is_none() {
                return Ok(None);
            }
            let Link { frames, write, bytes } = &mut self.link;
            let room = bytes.len() < WRITE_BYTES;
            let next = async {
                match &mut self.input {
                    Some(input) if room => input.next().await,
                    _ => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                frame = frames.next(), if self.unanswered > 0 => {
                    self.unanswered -= 1;
                    return self.answered(frame).map(Some);
                }
                request = next => self.send(request)?,
                written = write.write(bytes), if !bytes.is_empty() => {
                    let written = written.map_err(broken)?;
                    bytes.drain(..written);
                }
                // While nothing is asked there is nothing to be late.
                () = &mut late, if self.unanswered > 0 => {
                    return Err(broken(io::ErrorKind::TimedOut.into()));
                }
            }
        }
    }

    fn send(&mut self, request: Option<Sent>) -> Result<(), Failed> {
        match request {
            Some(request) => {
                let frame = self.dialer.frame(PeerMessage::Stream(request));
                self.link.push(&frame).map_err(broken)?;
                self.unanswered += 1;
            }
            None => self.input = None,
        }
        Ok(())
    }

    fn answered(
        &self,
        frame: Result<bytes::Bytes, wire::Broken>,
    ) -> Result<StreamAppendResult<TypeConfig>, Failed> {
        let frame = frame.map_err(|error| broken(io::Error::other(error)))?;
        let answer = decoded(&frame).map_err(broken)?;
        let PeerAnswer::Streamed(streamed) = answer else { return Err(broken(unexpected())) };
        saw(&self.dialer.seen, self.target)?;
        Ok(streamed)
    }
}
