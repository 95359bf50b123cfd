//! A client that sends once and tells what came of it.

use std::time::Duration;

use tenure_api::Refusal;
use tenure_api::View;
use tenure_api::frame::{Ask, Change, Consistency, Decided, Hello, PROTOCOL, Reply, Role, Waited};
use tenure_client::{Connection, DialError, DialTimeouts, Tcp};
use tenure_state_machine::{Acquire, At, Command, Name};

/// Longer than any node takes on its own.
const BUDGET: Duration = Duration::from_secs(90);

/// One connection to one node, without any logic of its own: each ask is one send.
#[derive(Debug)]
pub struct Caller(Connection);

/// Why a send has no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoAnswer {
    /// The node refused it.
    Refused(Refusal),
    /// It never left.
    NotSent,
    /// It left, and the connection broke or stayed silent.
    Silence,
}

impl NoAnswer {
    /// Whether a command may commit all the same.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        match self {
            Self::Refused(refusal) => {
                matches!(refusal, Refusal::OutcomeUnknown | Refusal::Internal { .. })
            }
            Self::NotSent => false,
            Self::Silence => true,
        }
    }
}

impl Caller {
    pub(crate) async fn dial(address: &str, cluster_id: Option<&str>) -> Result<Self, DialError> {
        let cluster_id = cluster_id.map(str::to_owned);
        let hello = Hello { protocol: PROTOCOL, cluster_id, role: Role::Client };
        Connection::dial(&Tcp, address, hello, DialTimeouts::default()).await.map(Self)
    }

    /// Asks once. The node has as long as it likes.
    ///
    /// # Errors
    /// [`NoAnswer`].
    pub async fn ask(&self, ask: Ask) -> Result<Reply, NoAnswer> {
        self.ask_as(ask, BUDGET, false).await
    }

    /// Asks once, within `budget`; `forwarded` forbids the node to forward it.
    ///
    /// # Errors
    /// [`NoAnswer`].
    pub async fn ask_as(
        &self,
        ask: Ask,
        budget: Duration,
        forwarded: bool,
    ) -> Result<Reply, NoAnswer> {
        match self.0.call(ask, budget, forwarded).await {
            Ok(frame) => frame.reply.map_err(NoAnswer::Refused),
            Err(error) if error.is_sent() => Err(NoAnswer::Silence),
            Err(_) => Err(NoAnswer::NotSent),
        }
    }

    /// Sends a command.
    ///
    /// # Errors
    /// [`NoAnswer`].
    pub async fn command(&self, command: Command) -> Result<Decided, NoAnswer> {
        decided(self.ask(Ask::Command { command, wait_ms: 0 }).await)
    }

    /// Sends an acquire that waits up to `wait_ms`.
    ///
    /// # Errors
    /// [`NoAnswer`].
    pub async fn acquire(&self, acquire: Acquire, wait_ms: u64) -> Result<Decided, NoAnswer> {
        decided(self.ask(Ask::Command { command: Command::Acquire(acquire), wait_ms }).await)
    }

    /// Reads a record, linearizably.
    ///
    /// # Errors
    /// [`NoAnswer`].
    pub async fn get(&self, name: &Name) -> Result<(Option<View>, At), NoAnswer> {
        let ask = Ask::Get { name: name.clone(), consistency: Consistency::Linearizable };
        let reply = self.ask(ask).await?;
        let Reply::Record { view, at } = reply else { panic!("a get was answered {reply:?}") };
        Ok((view, at))
    }

    /// Observes a record.
    ///
    /// # Errors
    /// [`NoAnswer`].
    pub async fn wait(&self, name: &Name, timeout_ms: u64) -> Result<(Waited, At), NoAnswer> {
        let reply = self.ask(Ask::Wait { name: name.clone(), timeout_ms }).await?;
        let Reply::Waited { waited, at } = reply else { panic!("a wait was answered {reply:?}") };
        Ok((waited, at))
    }

    /// Changes the cluster.
    ///
    /// # Errors
    /// [`NoAnswer`].
    pub async fn change(&self, change: Change) -> Result<(), NoAnswer> {
        self.ask(Ask::Change(change)).await.map(|_| ())
    }
}

fn decided(reply: Result<Reply, NoAnswer>) -> Result<Decided, NoAnswer> {
    let reply = reply?;
    let Reply::Answer(decided) = reply else { panic!("a command was answered {reply:?}") };
    Ok(decided)
}
