//! What holds for every connection of a node: how it is accepted, set up, and read.

use std::fmt::Debug;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use socket2::{SockRef, TcpKeepalive};
use tenure_client::wire::{self, Frames};
use tenure_client::{Connecting, Net, ReadHalf, Socket};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

/// Silence after which the other end is asked whether it is there.
const KEEPALIVE: Duration = Duration::from_secs(15);
/// Between two such questions.
const INTERVAL: Duration = Duration::from_secs(5);
/// Sent bytes that nobody acknowledges for so long end the connection. Without it, a healed
/// partition is felt only when the kernel happens to send again.
const UNACKNOWLEDGED: Duration = Duration::from_secs(10);

/// For the rest of a frame to arrive once it has begun.
const FRAME: Duration = Duration::from_secs(30);
/// After an error of accepting, such as too many open files.
const PAUSE: Duration = Duration::from_millis(100);

/// Where connections come in: a TCP port, or what stands in its place where links are simulated.
pub trait Listener: Debug + Send + Sync {
    /// The next connection, and who made it.
    fn accept(&self) -> BoxFuture<'_, io::Result<(Socket, SocketAddr)>>;
}

/// TCP between nodes: no delay for small frames, and an end for a connection whose other end is
/// gone.
#[derive(Debug, Clone, Copy, Default)]
pub struct PeerTcp;

impl Net for PeerTcp {
    fn connect<'a>(&'a self, address: &'a str) -> Connecting<'a> {
        Box::pin(async move {
            let socket = TcpStream::connect(address).await?;
            tune(&socket)?;
            Ok(socket.into())
        })
    }
}

impl Listener for TcpListener {
    fn accept(&self) -> BoxFuture<'_, io::Result<(Socket, SocketAddr)>> {
        async {
            let (socket, peer) = Self::accept(self).await?;
            tune(&socket)?;
            Ok((socket.into(), peer))
        }
        .boxed()
    }
}

fn tune(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let socket = SockRef::from(socket);
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(INTERVAL);
    socket.set_tcp_keepalive(&keepalive)?;
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED))
}

/// The next connection and its place; none once cancelled.
pub(crate) async fn accept(
    listener: &dyn Listener,
    places: &Arc<Semaphore>,
    cancel: &CancellationToken,
) -> Option<(Socket, SocketAddr, OwnedSemaphorePermit)> {
    loop {
        let next = async {
            let place = Arc::clone(places).acquire_owned().await.map_err(io::Error::other)?;
            let (socket, peer) = listener.accept().await?;
            Ok::<_, io::Error>((socket, peer, place))
        };
        tokio::select! {
            () = cancel.cancelled() => return None,
            next = next => match next {
                Ok(next) => return Some(next),
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    sleep(PAUSE).await;
                }
            },
        }
    }
}

/// Reads one value. The connection may be idle for ever, but a frame that has begun must end.
pub(crate) async fn next<T: serde::de::DeserializeOwned>(
    frames: &mut Frames<ReadHalf>,
) -> io::Result<T> {
    let mut begun = false;
    loop {
        match timeout(FRAME, frames.next()).await {
            Ok(frame) => {
                return wire::decode(&frame.map_err(io::Error::other)?).map_err(io::Error::other);
            }
            Err(_) if begun && frames.is_partial() => return Err(io::ErrorKind::TimedOut.into()),
            Err(_) => begun = frames.is_partial(),
        }
    }
}
