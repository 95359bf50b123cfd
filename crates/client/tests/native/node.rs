//! A node played by a test: it greets by itself, and hands everything else to the test.

use tenure_api::Node;
use tenure_api::Refusal;
use tenure_api::frame::{
    Ask, ClientFrame, Decided, Hello, MAGIC, PROTOCOL, Reply, Request, ServerFrame, Welcome,
};
use tenure_state_machine::{Answer, At, Command, Token, codec};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::OwnedReadHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;

pub(crate) const CLUSTER: &str = "c1";

/// What a played node saw.
#[derive(Debug)]
pub(crate) enum Seen {
    Connected,
    Request(Request, Line),
    Cancel(u64),
    Hangup,
}

/// The way back to whoever sent a request.
#[derive(Debug, Clone)]
pub(crate) struct Line(UnboundedSender<Option<Vec<u8>>>);

impl Line {
    pub(crate) fn send(&self, frame: &ServerFrame) {
        let body = codec::encode(frame).unwrap();
        let mut bytes = u32::try_from(body.len()).unwrap().to_le_bytes().to_vec();
        bytes.extend(body);
        self.raw(bytes);
    }

    pub(crate) fn raw(&self, bytes: Vec<u8>) {
        let _ = self.0.send(Some(bytes));
    }

    pub(crate) fn hang_up(&self) {
        let _ = self.0.send(None);
    }

    pub(crate) fn reply(&self, request: &Request, reply: Result<Reply, Refusal>) {
        self.send(&ServerFrame { id: request.id, leader: None, reply });
    }

    pub(crate) fn answer(&self, request: &Request, answer: Answer) {
        self.reply(request, Ok(Reply::Answer(Decided { answer, at: AT })));
    }
}

pub(crate) const AT: At = At { index: 9, slot: Some(0), term: 2, now_ms: 1000 };

pub(crate) fn acquired(token: u64) -> Answer {
    Answer::Acquired {
        token: Token::new(token).unwrap(),
        lease_until_ms: 31_000,
        ttl_until_ms: 90_000,
        resumed: false,
        took_over: None,
    }
}

/// The attempt of a request that acquires.
pub(crate) fn attempt(request: &Request) -> String {
    let Ask::Command { command: Command::Acquire(acquire), .. } = &request.ask else {
        panic!("not an acquire: {request:?}")
    };
    acquire.attempt.as_str().to_owned()
}

#[derive(Debug)]
pub(crate) struct PlayedNode {
    pub(crate) address: String,
    seen: UnboundedReceiver<Seen>,
    task: JoinHandle<()>,
}

impl PlayedNode {
    pub(crate) async fn start() -> Self {
        Self::greeting(Welcome::Accepted {
            protocol: PROTOCOL,
            cluster_id: CLUSTER.to_owned(),
            node_id: 1,
        })
        .await
    }

    pub(crate) async fn greeting(welcome: Welcome) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (seen_sender, seen) = unbounded_channel();
        let task = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(serve(socket, welcome.clone(), seen_sender.clone()));
            }
        });
        Self { address, seen, task }
    }

    /// Where the node says it is.
    pub(crate) fn named(&self) -> Node {
        Node { id: 1, http: String::new(), rpc: self.address.clone() }
    }

    pub(crate) async fn next(&mut self) -> Seen {
        self.seen.recv().await.expect("the node was stopped")
    }

    /// The next request, whatever else is seen before it.
    pub(crate) async fn request(&mut self) -> (Request, Line) {
        loop {
            if let Seen::Request(request, line) = self.next().await {
                return (request, line);
            }
        }
    }

    pub(crate) async fn cancel(&mut self) -> u64 {
        loop {
            if let Seen::Cancel(id) = self.next().await {
                return id;
            }
        }
    }

    pub(crate) async fn hangup(&mut self) {
        while !matches!(self.next().await, Seen::Hangup) {}
    }

    /// What has been seen and not taken yet.
    pub(crate) fn seen_already(&mut self) -> Option<Seen> {
        self.seen.try_recv().ok()
    }

    /// Takes no further connections.
    pub(crate) async fn stop_listening(&mut self) {
        self.task.abort();
        let _ = (&mut self.task).await;
    }
}

async fn frame(socket: &mut OwnedReadHalf) -> std::io::Result<Vec<u8>> {
    let mut length = [0; 4];
    socket.read_exact(&mut length).await?;
    let mut body = vec![0; usize::try_from(u32::from_le_bytes(length)).unwrap()];
    socket.read_exact(&mut body).await?;
    Ok(body)
}

async fn serve(socket: TcpStream, welcome: Welcome, seen: UnboundedSender<Seen>) {
    socket.set_nodelay(true).unwrap();
    let (mut read, mut write) = socket.into_split();
    let mut magic = [0; MAGIC.len()];
    read.read_exact(&mut magic).await.unwrap();
    assert_eq!(magic, MAGIC);
    let _: Hello = codec::decode(&frame(&mut read).await.unwrap()).unwrap();
    let _ = seen.send(Seen::Connected);

    let (line, mut back) = unbounded_channel::<Option<Vec<u8>>>();
    let line = Line(line);
    let body = codec::encode(&welcome).unwrap();
    line.raw(u32::try_from(body.len()).unwrap().to_le_bytes().to_vec());
    line.raw(body);
    let writes = tokio::spawn(async move {
        while let Some(Some(bytes)) = back.recv().await {
            if write.write_all(&bytes).await.is_err() {
                break;
            }
        }
    });
    let reads = async {
        while let Ok(bytes) = frame(&mut read).await {
            let item = match codec::decode(&bytes).unwrap() {
                ClientFrame::Request(request) => Seen::Request(request, line.clone()),
                ClientFrame::Cancel { id } => Seen::Cancel(id),
            };
            let _ = seen.send(item);
        }
    };
    tokio::select! {
        _ = writes => {}
        () = reads => {}
    }
    let _ = seen.send(Seen::Hangup);
}
