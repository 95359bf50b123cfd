//! The RPC port: greets who dials, then serves a peer or a client.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tenure_api::frame::{Hello, MAGIC, PROTOCOL, Role, Welcome};
use tenure_client::Socket;
use tenure_client::wire::{self, Frames};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::route::Router;
use crate::serve_client;
use crate::serve_peer::{self, PeerService};
use crate::socket::{self, Listener};

/// Connections at once; more are not accepted until some close.
const CONNECTIONS: usize = 10_000;
/// For magic and hello to arrive.
const GREETING: Duration = Duration::from_secs(5);

/// What the port serves.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) cluster_id: String,
    pub(crate) node_id: u64,
    pub(crate) router: Arc<Router>,
    pub(crate) peers: PeerService,
    /// Cancelled when clients are to go.
    pub(crate) drain: CancellationToken,
    /// The clients' connections.
    pub(crate) clients: TaskTracker,
}

/// Accepts until it is cancelled, then drops every connection.
pub(crate) async fn listen(
    listener: Box<dyn Listener>,
    service: Arc<Service>,
    cancel: CancellationToken,
) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    while let Some((socket, peer, place)) = socket::accept(&*listener, &places, &cancel).await {
        let service = Arc::clone(&service);
        connections.spawn(async move {
            let _place = place;
            if let Err(error) = serve(socket, service).await {
                tracing::debug!(%peer, %error, "connection closed");
            }
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn serve(socket: Socket, service: Arc<Service>) -> io::Result<()> {
    let Socket { mut read, mut write } = socket;
    let greeting = async {
        let mut magic = [0; MAGIC.len()];
        read.read_exact(&mut magic).await?;
        if magic != MAGIC {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not this protocol"));
        }
        let mut frames = Frames::new(read);
        let hello: Hello = socket::next(&mut frames).await?;
        Ok((frames, hello))
    };
    let greeted = timeout(GREETING, greeting).await;
    let (frames, hello) = greeted.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    let role = hello.role;
    let welcome = service.welcome(&hello);
    let mut bytes = Vec::new();
    wire::push(&mut bytes, &welcome).map_err(io::Error::other)?;
    write.write_all(&bytes).await?;
    match (welcome, role) {
        (Welcome::Refused { reason }, _) => Err(io::Error::other(reason)),
        (Welcome::Accepted { .. }, Role::Peer { node_id }) => {
            serve_peer::serve(frames, write, &service.peers, node_id).await
        }
        (Welcome::Accepted { .. }, Role::Client) => {
            let (router, drain) = (Arc::clone(&service.router), service.drain.clone());
            let serving = serve_client::serve(frames, write, router, drain);
            service.clients.track_future(serving).await
        }
    }
}

impl Service {
    fn welcome(&self, hello: &Hello) -> Welcome {
        let refused = |reason: String| Welcome::Refused { reason };
        if hello.protocol != PROTOCOL {
            let found = hello.protocol;
            return refused(format!("this node speaks protocol {PROTOCOL}, not {found}"));
        }
        if hello.cluster_id.as_ref().is_some_and(|wanted| *wanted != self.cluster_id) {
            return refused(format!("this node belongs to cluster {}", self.cluster_id));
        }
        if hello.role == (Role::Peer { node_id: self.node_id }) {
            return refused(format!("node {} is this node itself", self.node_id));
        }
        if hello.role == Role::Client && self.drain.is_cancelled() {
            return refused("this node is shutting down".to_owned());
        }
        Welcome::Accepted {
            protocol: PROTOCOL,
            cluster_id: self.cluster_id.clone(),
            node_id: self.node_id,
        }
    }
}
