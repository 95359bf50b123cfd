//! The network between nodes: a TCP proxy before each node's RPC port that learns from the hello
//! who dials, and can cut, delay or sever what it carries.
//!
//! A cut link loses nothing that TCP would not send again: bytes wait until it is healed, and who
//! dials over it is not greeted. So a peer that is cut off looks silent, not closed. Severing closes
//! connections, as a reset does.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tenure_api::frame::{Hello, Role};
use tenure_client::wire;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::sleep;

/// An end of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// A node, as a peer of others.
    Node(u64),
    /// Whoever asks as a client: clients of tests, and nodes that forward for theirs.
    Client,
}

/// The rules of all links. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Links(watch::Sender<Rules>);

#[derive(Debug, Default)]
struct Rules {
    /// Nothing passes from the first to the second.
    cut: BTreeSet<(End, End)>,
    /// What passes comes so much later.
    delay: BTreeMap<(End, End), Duration>,
    /// How often the connections between two ends were closed, by who dialled.
    severed: BTreeMap<(End, End), u64>,
}

impl Links {
    /// Lets nothing pass from one end to another.
    pub fn cut_one_way(&self, from: End, to: End) {
        self.0.send_modify(|rules| {
            rules.cut.insert((from, to));
        });
    }

    /// Lets nothing pass between two ends.
    pub fn cut(&self, a: End, b: End) {
        self.cut_one_way(a, b);
        self.cut_one_way(b, a);
    }

    /// Everything passes again, at once.
    pub fn heal(&self) {
        self.0.send_modify(|rules| {
            rules.cut.clear();
            rules.delay.clear();
        });
    }

    /// Everything passes again between two ends.
    pub fn heal_between(&self, a: End, b: End) {
        self.0.send_modify(|rules| {
            rules.cut.remove(&(a, b));
            rules.cut.remove(&(b, a));
        });
    }

    /// What passes from one end to another comes later by `delay`.
    pub fn delay(&self, from: End, to: End, delay: Duration) {
        self.0.send_modify(|rules| {
            rules.delay.insert((from, to), delay);
        });
    }

    /// Closes every open connection that `from` dialled to `to`.
    pub fn sever(&self, from: End, to: End) {
        self.0.send_modify(|rules| *rules.severed.entry((from, to)).or_default() += 1);
    }

    /// Opens a proxy before node `id`.
    pub(crate) async fn door(&self, id: u64) -> Door {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let target = watch::Sender::new(None);
        let behind = target.subscribe();
        let links = self.clone();
        let task = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let (links, behind) = (links.clone(), behind.clone());
                // How a connection ends is for its two ends to see.
                tokio::spawn(async move { links.carry(socket, id, &behind).await.ok() });
            }
        });
        Door { address, target, task: task.abort_handle() }
    }

    async fn carry(
        &self,
        socket: TcpStream,
        id: u64,
        behind: &watch::Receiver<Option<SocketAddr>>,
    ) -> io::Result<()> {
        socket.set_nodelay(true)?;
        let (mut read, write) = socket.into_split();
        let mut greeting = vec![0; 12];
        read.read_exact(&mut greeting).await?;
        let length = u32::from_le_bytes(greeting[8..].try_into().unwrap());
        let mut hello = vec![0; usize::try_from(length).unwrap()];
        read.read_exact(&mut hello).await?;
        greeting.extend_from_slice(&hello);
        let hello: Hello = wire::decode(&hello).map_err(io::Error::other)?;
        let (from, to) = match hello.role {
            Role::Peer { node_id } => (End::Node(node_id), End::Node(id)),
            Role::Client => (End::Client, End::Node(id)),
        };
        let Some(target) = *behind.borrow() else { return Ok(()) };
        let there = TcpStream::connect(target).await?;
        there.set_nodelay(true)?;
        let (there_read, there_write) = there.into_split();
        let mut rules = self.0.subscribe();
        let count = |rules: &Rules| rules.severed.get(&(from, to)).copied();
        let before = count(&rules.borrow());
        let asked = Pump { links: self.0.subscribe(), way: (from, to) };
        let answered = Pump { links: self.0.subscribe(), way: (to, from) };
        tokio::select! {
            done = async {
                tokio::try_join!(
                    asked.run(greeting, read, there_write),
                    answered.run(Vec::new(), there_read, write),
                )
            } => done.map(|_| ()),
            _ = rules.wait_for(|rules| count(rules) != before) => Ok(()),
        }
    }
}

/// One direction of a connection.
struct Pump {
    links: watch::Receiver<Rules>,
    way: (End, End),
}

impl Pump {
    async fn run(
        mut self,
        mut bytes: Vec<u8>,
        mut read: OwnedReadHalf,
        mut write: OwnedWriteHalf,
    ) -> io::Result<()> {
        loop {
            if bytes.is_empty() {
                bytes.reserve(64 * 1024);
                if read.read_buf(&mut bytes).await? == 0 {
                    self.pass().await?;
                    return write.shutdown().await;
                }
            }
            self.pass().await?;
            write.write_all(&bytes).await?;
            bytes.clear();
        }
    }

    /// Returns when something may pass.
    async fn pass(&mut self) -> io::Result<()> {
        let way = self.way;
        let delay = self.links.borrow().delay.get(&way).copied();
        if let Some(delay) = delay {
            sleep(delay).await;
        }
        let open = self.links.wait_for(|rules| !rules.cut.contains(&way)).await;
        open.map(|_| ()).map_err(io::Error::other)
    }
}

/// The proxy before one node; it closes when it is dropped.
#[derive(Debug)]
pub(crate) struct Door {
    pub(crate) address: SocketAddr,
    /// Where the node listens; none while it is down.
    pub(crate) target: watch::Sender<Option<SocketAddr>>,
    task: AbortHandle,
}

impl Drop for Door {
    fn drop(&mut self) {
        self.task.abort();
    }
}
