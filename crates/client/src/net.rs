//! The way to nodes: TCP, or what stands in its place where links are simulated.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// A connection that is being made.
pub type Connecting<'a> = Pin<Box<dyn Future<Output = io::Result<Socket>> + Send + 'a>>;

/// Makes connections.
pub trait Net: fmt::Debug + Send + Sync {
    /// Connects to `address` (host:port).
    fn connect<'a>(&'a self, address: &'a str) -> Connecting<'a>;
}

/// An open connection, in its two directions.
#[derive(Debug)]
pub struct Socket {
    /// What comes.
    pub read: ReadHalf,
    /// What goes.
    pub write: WriteHalf,
}

/// What comes over a connection. Dropping both halves closes it.
pub struct ReadHalf(Box<dyn AsyncRead + Send + Sync + Unpin>);

/// What goes over a connection.
pub struct WriteHalf(Box<dyn AsyncWrite + Send + Sync + Unpin>);

impl Socket {
    /// A connection of these two.
    pub fn new(
        read: impl AsyncRead + Send + Sync + Unpin + 'static,
        write: impl AsyncWrite + Send + Sync + Unpin + 'static,
    ) -> Self {
        Self { read: ReadHalf(Box::new(read)), write: WriteHalf(Box::new(write)) }
    }
}

impl From<TcpStream> for Socket {
    fn from(socket: TcpStream) -> Self {
        let (read, write) = socket.into_split();
        Self::new(read, write)
    }
}

impl AsyncRead for ReadHalf {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, bytes)
    }
}

impl AsyncWrite for WriteHalf {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

impl fmt::Debug for ReadHalf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReadHalf")
    }
}

impl fmt::Debug for WriteHalf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WriteHalf")
    }
}

/// TCP, without delay for small frames.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tcp;

impl Net for Tcp {
    fn connect<'a>(&'a self, address: &'a str) -> Connecting<'a> {
        Box::pin(async move {
            let socket = TcpStream::connect(address).await?;
            socket.set_nodelay(true)?;
            Ok(socket.into())
        })
    }
}
