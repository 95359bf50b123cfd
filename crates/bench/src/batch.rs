//! Tenure over HTTP in batches: each call is one `POST /v1/batch` about several records.

use std::sync::Arc;

use anyhow::{Context as _, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hyper::Method;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::http::{self, Answer, COMPLETED, Connection};
use crate::system::{Acquired, System};

/// Commands of a batch.
const COMMANDS: usize = 64;

/// Tenure in batches of 64 commands.
#[derive(Debug)]
pub struct Batch {
    connection: Connection,
    /// The result, in base64.
    payload: Arc<str>,
}

impl Batch {
    /// Asks the node at `address` (host:port), and stores `payload`.
    #[must_use]
    pub fn new(address: String, payload: &[u8]) -> Self {
        Self { connection: Connection::new(address), payload: STANDARD.encode(payload).into() }
    }

    async fn send(&self, commands: Vec<Value>) -> anyhow::Result<Vec<Answer>> {
        #[derive(Deserialize)]
        struct Results {
            results: Vec<Place>,
        }
        #[derive(Deserialize)]
        struct Place {
            body: Answer,
        }
        let sent = commands.len();
        let body = Bytes::from(serde_json::to_vec(&json!({"commands": commands}))?);
        let (status, answer) = self.connection.ask(Method::POST, "/v1/batch", body).await?;
        if status != 200 {
            bail!("a batch was answered {status}: {}", String::from_utf8_lossy(&answer));
        }
        let answer: Results = serde_json::from_slice(&answer).context("the answer is not valid")?;
        ensure!(answer.results.len() == sent, "{} of {sent} answers", answer.results.len());
        Ok(answer.results.into_iter().map(|place| place.body).collect())
    }
}

/// The records of a call.
fn keys(key: &str) -> impl Iterator<Item = String> {
    (0..COMMANDS).map(move |number| format!("{key}-{number}"))
}

impl System for Batch {
    type Held = Vec<u64>;
    const WIDTH: u64 = COMMANDS as u64;

    async fn acquire(&self, key: &str) -> anyhow::Result<Acquired<Vec<u64>>> {
        let commands = keys(key).map(|key| json!({"acquire": http::acquire(&key)})).collect();
        let (mut tokens, mut replayed) = (Vec::new(), None);
        for answer in self.send(commands).await? {
            match answer.acquired()? {
                Acquired::Held(token) => tokens.push(token),
                Acquired::Replayed(bytes) => replayed = Some(bytes),
            }
        }
        match replayed {
            None => Ok(Acquired::Held(tokens)),
            Some(bytes) if tokens.is_empty() => Ok(Acquired::Replayed(bytes)),
            Some(_) => bail!("some records of a batch were complete, others not"),
        }
    }

    async fn complete(&self, key: &str, tokens: Vec<u64>) -> anyhow::Result<()> {
        let commands = keys(key).zip(tokens);
        let commands = commands
            .map(|(key, token)| json!({"complete": http::complete(&key, token, &self.payload)}));
        let answers = self.send(commands.collect()).await?;
        answers.into_iter().try_for_each(|answer| answer.expect(&COMPLETED))
    }

    async fn extend(&self, key: &str, tokens: &mut Vec<u64>) -> anyhow::Result<()> {
        let commands = keys(key).zip(tokens.iter());
        let commands = commands.map(|(key, token)| json!({"extend": http::extend(&key, *token)}));
        let answers = self.send(commands.collect()).await?;
        answers.into_iter().try_for_each(|answer| answer.expect(&["extended"]))
    }
}
