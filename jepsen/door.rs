//! The two ways into a cluster, with one form of outcome: HTTP, one send a call, to any node; and
//! the native client, which follows the leader and sends again by itself.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use rand::seq::IndexedRandom as _;
use serde_json::{Value, json};
use tenure_api::Response;
use tenure_api::frame::Consistency;
use tenure_client::{CallError, Client, Config};
use tenure_state_machine::{
    Acquire, Attempt, Command, Complete, Extend, Holder, Name, Payload, Release, Token,
};

use crate::cluster::Node;
use crate::history::{Op, Outcome};
use crate::http::Connection;

/// How long an answer over HTTP is waited for: a little more than a node takes for one.
const ANSWER: Duration = Duration::from_secs(4);

/// Why the outcome of a send is unknown whose sender did not wait for it.
pub const HUNG_UP: &str = "hung up";

/// What a send asks.
#[derive(Debug, Clone)]
pub struct Send {
    /// The scope.
    pub scope: &'static str,
    /// The key.
    pub key: String,
    /// What.
    pub op: Op,
    /// For an acquire, in milliseconds.
    pub wait_ms: u64,
}

/// A way into the cluster.
#[derive(Debug)]
pub enum Door {
    /// Each send to a node drawn at random.
    Http(Http),
    /// A logical call.
    Native(Box<Native>),
}

/// Kept connections to all nodes.
#[derive(Debug)]
pub struct Http {
    nodes: Vec<String>,
    connections: HashMap<String, Connection>,
}

/// A client and the runtime that it lives on.
#[derive(Debug)]
pub struct Native {
    client: Client,
    runtime: tokio::runtime::Runtime,
}

impl Door {
    /// A door for HTTP.
    #[must_use]
    pub fn http(nodes: &[Node]) -> Self {
        let nodes = nodes.iter().map(|node| node.http.clone()).collect();
        Self::Http(Http { nodes, connections: HashMap::new() })
    }

    /// Follows a cluster whose members change.
    pub fn follow(&mut self, nodes: &[String]) {
        if let Self::Http(http) = self {
            nodes.clone_into(&mut http.nodes);
        }
    }

    /// A door for frames.
    ///
    /// # Panics
    /// When there is no runtime to be had.
    #[must_use]
    pub fn native(nodes: &[Node]) -> Self {
        let endpoints = nodes.iter().map(|node| node.rpc.clone()).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let client = Client::new(Config::new(endpoints));
        Self::Native(Box::new(Native { client, runtime }))
    }

    /// Sends on a connection of its own, and closes that when there is no answer so soon.
    pub fn hang_up(&mut self, send: &Send, after: Duration, rng: &mut impl rand::Rng) -> Outcome {
        match self {
            Self::Http(http) => http.hang_up(send, after, rng),
            Self::Native(_) => Outcome::Refused("frames are not hung up on".to_owned()),
        }
    }

    /// Sends, and says what may be concluded.
    pub fn send(&mut self, send: &Send, rng: &mut impl rand::Rng) -> Outcome {
        match self {
            Self::Http(http) => http.send(send, rng),
            Self::Native(native) => native.send(send),
        }
    }
}

impl Http {
    fn send(&mut self, send: &Send, rng: &mut impl rand::Rng) -> Outcome {
        let node = self.nodes.choose(rng).unwrap().clone();
        let mut connection = match self.connections.remove(&node).filter(Connection::stands) {
            Some(open) => open,
            None => match Connection::open(&node) {
                Ok(open) => {
                    open.stream().set_read_timeout(Some(ANSWER)).unwrap();
                    open
                }
                Err(error) => return Outcome::Refused(format!("not connected: {error}")),
            },
        };
        match exchange(&mut connection, send) {
            Ok(outcome) => {
                self.connections.insert(node, connection);
                outcome
            }
            Err(error) => Outcome::Unknown(error.to_string()),
        }
    }
}

impl Http {
    fn hang_up(&mut self, send: &Send, after: Duration, rng: &mut impl rand::Rng) -> Outcome {
        let opened = Connection::open(self.nodes.choose(rng).unwrap());
        let mut connection = match opened {
            Ok(open) => open,
            Err(error) => return Outcome::Refused(format!("not connected: {error}")),
        };
        connection.stream().set_read_timeout(Some(after)).unwrap();
        exchange(&mut connection, send).unwrap_or_else(|_| Outcome::Unknown(HUNG_UP.to_owned()))
    }
}

fn exchange(connection: &mut Connection, send: &Send) -> io::Result<Outcome> {
    let (scope, key) = (send.scope, &send.key);
    let (path, body) = match &send.op {
        Op::Acquire { attempt, mark, lease_ms, ttl_ms } => (
            "acquire",
            json!({ "scope": scope, "key": key, "attempt": attempt, "holder": mark,
                "lease_ms": lease_ms, "ttl_ms": ttl_ms, "wait_ms": send.wait_ms }),
        ),
        Op::Complete { token, mark, ttl_ms } => {
            let mut body =
                json!({ "scope": scope, "key": key, "token": token, "payload": { "text": mark } });
            if let Some(ttl_ms) = ttl_ms {
                body["ttl_ms"] = (*ttl_ms).into();
            }
            ("complete", body)
        }
        Op::Release { token } => ("release", json!({ "scope": scope, "key": key, "token": token })),
        Op::Extend { token, lease_ms } => {
            ("extend", json!({ "scope": scope, "key": key, "token": token, "lease_ms": lease_ms }))
        }
        Op::Get => {
            let path = format!("/v1/scopes/{scope}/keys/{key}");
            return Ok(concluded(&connection.ask("GET", &path, &[], b"")?.body));
        }
    };
    let answer =
        connection.ask("POST", &format!("/v1/{path}"), &[], body.to_string().as_bytes())?;
    Ok(concluded(&answer.body))
}

fn concluded(body: &[u8]) -> Outcome {
    match serde_json::from_slice::<Value>(body) {
        Ok(body) if body["at"].is_object() => Outcome::Answered(body),
        Ok(body) if body["outcome"] == "refused" => {
            Outcome::Refused(body["code"].as_str().unwrap_or_default().to_owned())
        }
        Ok(body) => Outcome::Unknown(body["code"].as_str().unwrap_or_default().to_owned()),
        Err(error) => Outcome::Unknown(format!("no JSON: {error}")),
    }
}

impl Native {
    fn send(&self, send: &Send) -> Outcome {
        let name = Name::new(send.scope, &send.key).unwrap();
        let wait = Duration::from_millis(send.wait_ms);
        let response = self.runtime.block_on(async {
            match command_of(&send.op, name.clone()) {
                Some(command) => {
                    let called = self.client.command(command, wait).await;
                    called.map(|decided| Response::decided(&decided))
                }
                None => {
                    let called = self.client.get(&name, Consistency::Linearizable).await;
                    called.map(|(view, at)| Response::record(view.as_ref(), at))
                }
            }
        });
        match response {
            Ok(response) => concluded(&response.body),
            Err(error @ CallError::Unknown { .. }) => Outcome::Unknown(format!("{error:?}")),
            Err(error) => Outcome::Refused(format!("{error:?}")),
        }
    }
}

/// The command that a send carries; none for a read.
///
/// # Panics
/// For a token that is none, and names that are too long.
#[must_use]
pub fn command_of(op: &Op, name: Name) -> Option<Command> {
    let token = |token: &u64| Token::new(*token).unwrap();
    Some(match op {
        Op::Acquire { attempt, mark, lease_ms, ttl_ms } => Command::Acquire(Acquire {
            name,
            attempt: Attempt::new(attempt.as_str()).unwrap(),
            holder: Holder::new(mark.as_str()).unwrap(),
            lease_ms: *lease_ms,
            ttl_ms: *ttl_ms,
            fingerprint: None,
            not_after_ms: None,
        }),
        Op::Complete { token: held, mark, ttl_ms } => {
            let payload = Payload::new(None, mark.as_bytes().to_vec(), Default::default());
            let payload = Some(payload.unwrap().into());
            Command::Complete(Complete {
                name,
                token: token(held),
                ttl_ms: *ttl_ms,
                payload,
                not_after_ms: None,
            })
        }
        Op::Release { token: held } => {
            Command::Release(Release { name, token: token(held), not_after_ms: None })
        }
        Op::Extend { token: held, lease_ms } => Command::Extend(Extend {
            name,
            token: token(held),
            lease_ms: *lease_ms,
            not_after_ms: None,
        }),
        Op::Get => return None,
    })
}
