//! Commands on records, over the native protocol.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use tenure_api::frame::{Ask, Consistency, Decided, Reply};
use tenure_api::{Refusal, Response, exit_code, query};
use tenure_client::{CallError, Client, Obstacle, new_attempt};
use tenure_state_machine::limits::BODY_BYTES;
use tenure_state_machine::{
    self as machine, Attempt, Fingerprint, Holder, Invalid, Name, Payload, Token, command,
};

use super::Connect;
use super::durations::Millis;
use super::output::{self, Format, say};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Take a record and learn its token, or learn who has it, or get its result
    #[command(after_help = "Examples:
  tenure acquire mail order-1 --holder worker-3 --lease 30s
  tenure acquire mail order-1 --wait 10s      # until it is done, or this one's turn")]
    Acquire(Acquire),
    /// End an action with its result
    #[command(after_help = "Examples:
  tenure complete mail order-1 --token 7 --text sent
  render | tenure complete mail order-1 --token 7 --type image/png --body-file -")]
    Complete(Complete),
    /// End an action without a trace
    #[command(after_help = "Example:\n  tenure release mail order-1 --token 7")]
    Release(Release),
    /// Send the holder's heartbeat: the lease counts again from now
    #[command(after_help = "Example:\n  tenure extend mail order-1 --token 7 --lease 30s")]
    Extend(Extend),
    /// Read a record
    #[command(after_help = "Example:\n  tenure get mail order-1 -o json")]
    Get(Get),
    /// Wait until a record is complete, absent, or its lease has expired
    #[command(after_help = "Example:\n  tenure wait mail order-1 --timeout 30s")]
    Wait(Wait),
    /// Delete records whose time has passed; nodes do this by themselves
    #[command(after_help = "Example:\n  tenure purge --limit 10000")]
    Purge(Purge),
    /// List the records of a scope, as stale as the node that is asked
    #[command(after_help = "Example:\n  tenure list mail --prefix order- --state in_progress")]
    List(List),
}

/// The name of a record.
#[derive(Debug, clap::Args)]
pub(crate) struct Named {
    /// The scope: 1 to 128 characters, no ':'
    scope: String,
    /// The key: 1 to 255 characters
    key: String,
}

impl Named {
    fn name(&self) -> Result<Name, Invalid> {
        Name::new(&self.scope, &self.key)
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct Acquire {
    #[command(flatten)]
    name: Named,
    /// Whose logical try this is; without it, a new one. Sending the same one again is safe
    #[arg(long, value_name = "ID")]
    attempt: Option<String>,
    /// Who asks: host, pod, worker. For people
    #[arg(long, default_value = "", hide_default_value = true)]
    holder: String,
    /// How long the holder is protected without a heartbeat [default: 30s]
    #[arg(long, value_name = "DURATION")]
    lease: Option<Millis>,
    /// How long the record is kept [default: 24h]
    #[arg(long, value_name = "DURATION")]
    ttl: Option<Millis>,
    /// How long to wait for the record, at most a minute
    #[arg(long, value_name = "DURATION", default_value = "0s")]
    wait: Millis,
    /// A hash of the request, 16 to 128 hex digits: another one for the same key is refused
    #[arg(long, value_name = "HEX")]
    fingerprint: Option<String>,
    /// Change nothing after this moment of cluster time, in milliseconds
    #[arg(long, value_name = "MS")]
    not_after_ms: Option<u64>,
    #[command(flatten)]
    connect: Connect,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Complete {
    #[command(flatten)]
    name: Named,
    /// The token that the acquire was given
    #[arg(long)]
    token: u64,
    /// The result, as text
    #[arg(long, conflicts_with = "body_file")]
    text: Option<String>,
    /// The result, as a file's bytes; - is standard input
    #[arg(long, value_name = "FILE")]
    body_file: Option<PathBuf>,
    /// The media type of the result
    #[arg(long, value_name = "TYPE")]
    r#type: Option<String>,
    /// An attribute of the result; can be given again
    #[arg(long, value_name = "NAME=VALUE", value_parser = attribute)]
    attribute: Vec<(String, String)>,
    /// How long the record is kept from now on [default: what the acquire said]
    #[arg(long, value_name = "DURATION")]
    ttl: Option<Millis>,
    /// Change nothing after this moment of cluster time, in milliseconds
    #[arg(long, value_name = "MS")]
    not_after_ms: Option<u64>,
    #[command(flatten)]
    connect: Connect,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Release {
    #[command(flatten)]
    name: Named,
    /// The token that the acquire was given
    #[arg(long)]
    token: u64,
    /// Change nothing after this moment of cluster time, in milliseconds
    #[arg(long, value_name = "MS")]
    not_after_ms: Option<u64>,
    #[command(flatten)]
    connect: Connect,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Extend {
    #[command(flatten)]
    name: Named,
    /// The token that the acquire was given
    #[arg(long)]
    token: u64,
    /// How long the holder is protected from now on; never shortens
    #[arg(long, value_name = "DURATION", default_value = "30s")]
    lease: Millis,
    /// Change nothing after this moment of cluster time, in milliseconds
    #[arg(long, value_name = "MS")]
    not_after_ms: Option<u64>,
    #[command(flatten)]
    connect: Connect,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Get {
    #[command(flatten)]
    name: Named,
    /// Take whatever the asked node has applied, without asking a majority
    #[arg(long)]
    stale: bool,
    #[command(flatten)]
    connect: Connect,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Wait {
    #[command(flatten)]
    name: Named,
    /// How long to wait, at most a minute
    #[arg(long, value_name = "DURATION", default_value = "30s")]
    timeout: Millis,
    #[command(flatten)]
    connect: Connect,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Purge {
    /// How many records at most, 1 to 10000
    #[arg(long, default_value_t = u64::from(machine::limits::PURGE_DEFAULT))]
    limit: u64,
    /// Change nothing after this moment of cluster time, in milliseconds
    #[arg(long, value_name = "MS")]
    not_after_ms: Option<u64>,
    #[command(flatten)]
    connect: Connect,
}

#[derive(Debug, clap::Args)]
pub(crate) struct List {
    /// The scope
    scope: String,
    /// Only keys that start with this
    #[arg(long, default_value = "", hide_default_value = true)]
    prefix: String,
    /// Only records in this state: in_progress or complete
    #[arg(long, default_value = "", hide_default_value = true)]
    state: String,
    /// How many records at most, 1 to 1000
    #[arg(long, default_value_t = tenure_api::frame::PAGE_DEFAULT)]
    page_size: u32,
    /// Where to go on: the next_page_token of the page before
    #[arg(long, default_value = "", hide_default_value = true)]
    page_token: String,
    #[command(flatten)]
    connect: Connect,
}

/// Why a command has no reply.
#[derive(Debug)]
enum Failure {
    /// It is not valid; nothing was sent.
    Invalid(Refusal),
    /// It was sent, or was to be.
    Call(CallError),
    /// It could not be put together.
    Local(anyhow::Error),
}

impl From<Invalid> for Failure {
    fn from(invalid: Invalid) -> Self {
        Self::Invalid(invalid.into())
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::Invalid(refusal)
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        Self::Call(error)
    }
}

impl Command {
    /// Runs it, prints what came of it, and gives what to exit with.
    pub(crate) async fn run(self, format: Format) -> anyhow::Result<ExitCode> {
        let (reply, scope) = match self {
            Self::Acquire(args) => (args.run().await, String::new()),
            Self::Complete(args) => (args.run().await, String::new()),
            Self::Release(args) => (args.run().await, String::new()),
            Self::Extend(args) => (args.run().await, String::new()),
            Self::Get(args) => (args.run().await, String::new()),
            Self::Wait(args) => (args.run().await, String::new()),
            Self::Purge(args) => (args.run().await, String::new()),
            Self::List(args) => (args.run().await, args.scope),
        };
        let reply = match reply {
            Ok(reply) => Ok(reply),
            Err(Failure::Invalid(refusal)) => Err(refusal),
            Err(Failure::Call(error)) => Err(refusal_of(&error)),
            Err(Failure::Local(error)) => return Err(error),
        };
        let response = match &reply {
            Ok(reply) => Response::reply(reply, &scope),
            Err(refusal) => Response::refused(refusal),
        };
        output::response(format, &response)?;
        Ok(output::exit(exit_code(&reply)))
    }
}

/// What a node would have said. The whole story goes to standard error.
pub(crate) fn refusal_of(error: &CallError) -> Refusal {
    if let CallError::Refused(refusal) = error {
        return refusal.clone();
    }
    say(format_args!("tenure: {}", Story(error)));
    match error {
        CallError::Refused(refusal)
        | CallError::Unavailable { last: Obstacle::Refusal(refusal) } => refusal.clone(),
        CallError::Unavailable { .. } => Refusal::NoLeader,
        CallError::Unknown { seen, .. } => {
            if let Some(seen) = seen {
                say(format_args!("tenure: a later send was answered: {:?}", seen.answer));
            }
            Refusal::OutcomeUnknown
        }
    }
}

/// An error with its sources, on one line.
pub(crate) struct Story<'a>(pub(crate) &'a dyn std::error::Error);

impl std::fmt::Display for Story<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)?;
        let mut next = self.0.source();
        while let Some(error) = next {
            write!(f, ": {error}")?;
            next = error.source();
        }
        Ok(())
    }
}

/// Sends a command, checked as a node would check it.
async fn send(client: &Client, command: machine::Command, wait: Millis) -> Result<Reply, Failure> {
    let ask = Ask::Command { command, wait_ms: wait.0 };
    ask.check()?;
    let Ask::Command { command, .. } = ask else { unreachable!("it was made so") };
    let Decided { answer, at } = client.command(command, wait.duration()).await?;
    Ok(Reply::Answer(Decided { answer, at }))
}

const NO_WAIT: Millis = Millis(0);

impl Acquire {
    async fn run(&self) -> Result<Reply, Failure> {
        let attempt = match &self.attempt {
            Some(attempt) => Attempt::new(attempt.as_str())?,
            None => new_attempt(),
        };
        let acquire = machine::Acquire {
            name: self.name.name()?,
            attempt: attempt.clone(),
            holder: Holder::new(self.holder.as_str())?,
            lease_ms: command::lease_ms(self.lease.map(|lease| lease.0))?,
            ttl_ms: command::ttl_ms(self.ttl.map(|ttl| ttl.0))?,
            fingerprint: self.fingerprint.as_deref().map(Fingerprint::new).transpose()?,
            not_after_ms: self.not_after_ms,
        };
        let client = self.connect.client();
        let sent = send(&client, machine::Command::Acquire(acquire), self.wait).await;
        if matches!(sent, Err(Failure::Call(CallError::Unknown { .. }))) {
            say(format_args!("tenure: send it again with --attempt {}", attempt.as_str()));
        }
        sent
    }
}

impl Complete {
    async fn run(&self) -> Result<Reply, Failure> {
        let complete = machine::Complete {
            name: self.name.name()?,
            token: Token::new(self.token)?,
            ttl_ms: self.ttl.map(|ttl| command::ttl_ms(Some(ttl.0))).transpose()?,
            payload: self.payload()?.map(Into::into),
            not_after_ms: self.not_after_ms,
        };
        send(&self.connect.client(), machine::Command::Complete(complete), NO_WAIT).await
    }

    /// The result, if any part of one was given.
    fn payload(&self) -> Result<Option<Payload>, Failure> {
        let body = match (&self.text, &self.body_file) {
            (Some(text), _) => Some(text.as_bytes().to_vec()),
            (None, Some(file)) => Some(read_body(file)?),
            (None, None) => None,
        };
        if body.is_none() && self.r#type.is_none() && self.attribute.is_empty() {
            return Ok(None);
        }
        let attributes: BTreeMap<_, _> = self.attribute.iter().cloned().collect();
        Ok(Some(Payload::new(self.r#type.clone(), body.unwrap_or_default(), attributes)?))
    }
}

/// Reads a file, or standard input for `-`, no further than one byte over the limit.
fn read_body(file: &Path) -> Result<Vec<u8>, Failure> {
    let limit = BODY_BYTES as u64 + 1;
    let mut body = Vec::new();
    let read = if file.as_os_str() == "-" {
        std::io::stdin().lock().take(limit).read_to_end(&mut body)
    } else {
        std::fs::File::open(file).and_then(|file| file.take(limit).read_to_end(&mut body))
    };
    read.with_context(|| format!("cannot read {}", file.display())).map_err(Failure::Local)?;
    Ok(body)
}

fn attribute(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("must be NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

impl Release {
    async fn run(&self) -> Result<Reply, Failure> {
        let release = machine::Release {
            name: self.name.name()?,
            token: Token::new(self.token)?,
            not_after_ms: self.not_after_ms,
        };
        send(&self.connect.client(), machine::Command::Release(release), NO_WAIT).await
    }
}

impl Extend {
    async fn run(&self) -> Result<Reply, Failure> {
        let extend = machine::Extend {
            name: self.name.name()?,
            token: Token::new(self.token)?,
            lease_ms: command::lease_ms(Some(self.lease.0))?,
            not_after_ms: self.not_after_ms,
        };
        send(&self.connect.client(), machine::Command::Extend(extend), NO_WAIT).await
    }
}

impl Get {
    async fn run(&self) -> Result<Reply, Failure> {
        let consistency = if self.stale { Consistency::Stale } else { Consistency::Linearizable };
        let name = self.name.name()?;
        let (view, at) = self.connect.client().get(&name, consistency).await?;
        Ok(Reply::Record { view, at })
    }
}

impl Wait {
    async fn run(&self) -> Result<Reply, Failure> {
        let ask = Ask::Wait { name: self.name.name()?, timeout_ms: self.timeout.0 };
        ask.check()?;
        let wait = Duration::from_millis(self.timeout.0);
        let (waited, at) = self.connect.client().wait(&self.name.name()?, wait).await?;
        Ok(Reply::Waited { waited, at })
    }
}

impl Purge {
    async fn run(&self) -> Result<Reply, Failure> {
        let purge = machine::Purge {
            limit: command::purge_limit(Some(self.limit))?,
            not_after_ms: self.not_after_ms,
        };
        send(&self.connect.client(), machine::Command::Purge(purge), NO_WAIT).await
    }
}

impl List {
    async fn run(&self) -> Result<Reply, Failure> {
        let page_size = self.page_size.to_string();
        let parameters = [
            ("prefix", self.prefix.as_str()),
            ("state", self.state.as_str()),
            ("page_size", page_size.as_str()),
            ("page_token", self.page_token.as_str()),
        ];
        let page = query::list(&self.scope, parameters)?;
        let (records, next, at) = self.connect.client().list(page).await?;
        Ok(Reply::List { records, next, at })
    }
}
