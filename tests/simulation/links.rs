//! Turmoil's sockets as a node's and a client's, which may also break.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tenure_client::{Connecting, Net, Socket};
use tenure_network::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;
use turmoil::net::{TcpListener, TcpStream};

/// The port of every node.
const PORT: u16 = 7700;

/// The host of all clients.
pub(crate) const CLIENTS: &str = "clients";
/// What a message takes over a healthy link.
pub(crate) const LATENCY: RangeInclusive<Duration> =
    Duration::from_millis(1)..=Duration::from_millis(10);

/// The simulated way to other hosts. Clones are the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct Links(Arc<Mutex<Breaks>>);

/// How often the connections between two hosts were broken, the smaller address first.
type Breaks = BTreeMap<(IpAddr, IpAddr), watch::Sender<u64>>;

/// A node's port.
pub(crate) struct Port {
    listener: TcpListener,
    links: Links,
}

/// One direction of a connection, until it is broken.
struct Half<T> {
    half: T,
    broken: Pin<Box<dyn Future<Output = ()> + Send + Sync>>,
    is_broken: bool,
}

/// The name of a node's host.
pub(crate) fn host(id: u64) -> String {
    format!("node-{id}")
}

/// Where a node is reached.
pub(crate) fn address(id: u64) -> String {
    format!("{}:{PORT}", host(id))
}

impl Links {
    /// Breaks all connections between two hosts.
    pub(crate) fn break_between(&self, a: IpAddr, b: IpAddr) {
        self.between(a, b, |breaks| breaks.send_modify(|times| *times += 1));
    }

    fn between<R>(&self, a: IpAddr, b: IpAddr, act: impl FnOnce(&watch::Sender<u64>) -> R) -> R {
        let mut links = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        act(links.entry((a.min(b), a.max(b))).or_default())
    }

    fn socket(&self, stream: TcpStream) -> io::Result<Socket> {
        let (a, b) = (stream.local_addr()?.ip(), stream.peer_addr()?.ip());
        let (read, write) = stream.into_split();
        let half = || self.between(a, b, watch::Sender::subscribe);
        Ok(Socket::new(Half::new(read, half()), Half::new(write, half())))
    }

    /// Opens the port of the host that calls.
    pub(crate) async fn listen(&self) -> io::Result<Port> {
        let listener = TcpListener::bind(("0.0.0.0", PORT)).await?;
        Ok(Port { listener, links: self.clone() })
    }
}

impl Net for Links {
    fn connect<'a>(&'a self, address: &'a str) -> Connecting<'a> {
        async move { self.socket(TcpStream::connect(address).await?) }.boxed()
    }
}

impl Listener for Port {
    fn accept(&self) -> BoxFuture<'_, io::Result<(Socket, SocketAddr)>> {
        async {
            let (stream, from) = self.listener.accept().await?;
            Ok((self.links.socket(stream)?, from))
        }
        .boxed()
    }
}

impl<T> Half<T> {
    fn new(half: T, mut breaks: watch::Receiver<u64>) -> Self {
        let broken = Box::pin(async move { drop(breaks.changed().await) });
        Self { half, broken, is_broken: false }
    }

    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        self.is_broken = self.is_broken || self.broken.as_mut().poll(context).is_ready();
        if self.is_broken { Err(io::ErrorKind::ConnectionReset.into()) } else { Ok(()) }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Half<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.half).poll_read(context, bytes)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Half<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check(context)?;
        Pin::new(&mut self.half).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.half).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.half).poll_shutdown(context)
    }
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Port")
    }
}
