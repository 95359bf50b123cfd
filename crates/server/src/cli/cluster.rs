//! Commands on the cluster itself, over HTTP.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use hyper::Method;
use tenure_api::{ClusterStatus, Code, Content, MemberRole, Response};

use super::durations::Millis;
use super::http::{self, Answer, HttpError};
use super::output::{self, Format, say};

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tenure cluster status --http http://127.0.0.1:7601
  tenure cluster add 4 127.0.0.1:7604 127.0.0.1:7704     # it follows as a learner
  tenure cluster promote 4                               # now it votes
  tenure cluster transfer 2                              # now node 2 leads")]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
    /// HTTP addresses of some nodes, tried in turn; any node will do
    #[arg(
        long,
        global = true,
        env = "TENURE_HTTP_ENDPOINTS",
        value_name = "URL,..",
        value_delimiter = ',',
        value_parser = http::address,
        default_value = "http://127.0.0.1:7601,http://127.0.0.1:7602,http://127.0.0.1:7603"
    )]
    http: Vec<String>,
    /// How long to wait for the answer
    #[arg(
        long,
        global = true,
        env = "TENURE_DEADLINE",
        value_name = "DURATION",
        default_value = "30s"
    )]
    deadline: Millis,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Show members, roles, leader and how far each node is
    Status,
    /// Add a node that runs already, as a learner
    Add {
        /// Its id, never used before in this cluster
        id: u64,
        /// Its HTTP address, host:port
        // The id of the global flag is `http`.
        #[arg(id = "node_http", value_name = "HTTP")]
        http: String,
        /// Its RPC address, host:port
        rpc: String,
    },
    /// Give a learner a vote
    Promote {
        /// Its id
        id: u64,
    },
    /// Remove a node; its id is never taken again
    Remove {
        /// Its id
        id: u64,
    },
    /// Make another voter lead
    Transfer {
        /// Its id
        to: u64,
    },
    /// Make the node take a snapshot, and print its hash: equal hash, equal state
    Snapshot,
}

impl Action {
    fn request(&self) -> (Method, String, Option<String>) {
        let members = "/v1/cluster/members";
        match self {
            Self::Status => (Method::GET, "/v1/cluster".to_owned(), None),
            Self::Add { id, http, rpc } => {
                let body = serde_json::json!({ "id": id, "http": http, "rpc": rpc });
                (Method::POST, members.to_owned(), Some(body.to_string()))
            }
            Self::Promote { id } => (Method::POST, format!("{members}/{id}/promote"), None),
            Self::Remove { id } => (Method::DELETE, format!("{members}/{id}"), None),
            Self::Transfer { to } => {
                let body = serde_json::json!({ "to": to });
                (Method::POST, "/v1/cluster/transfer".to_owned(), Some(body.to_string()))
            }
            Self::Snapshot => (Method::POST, "/v1/cluster/snapshot".to_owned(), None),
        }
    }

    fn changes(&self) -> bool {
        match self {
            Self::Status => false,
            Self::Add { .. }
            | Self::Promote { .. }
            | Self::Remove { .. }
            | Self::Transfer { .. }
            | Self::Snapshot => true,
        }
    }
}

impl Args {
    /// Runs it, prints what came of it, and gives what to exit with.
    pub(crate) async fn run(self, format: Format) -> anyhow::Result<ExitCode> {
        let mut last = None;
        for address in &self.http {
            let (method, path, body) = self.action.request();
            let limit: Duration = self.deadline.duration();
            match http::request(address, method, &path, body, limit).await {
                Ok(answer) => return print(format, &answer),
                Err(error @ HttpError::Connect { .. }) => last = Some(error),
                Err(error) => {
                    say(format_args!("tenure: {:#}", anyhow::Error::from(error)));
                    let code =
                        if self.action.changes() { Code::OutcomeUnknown } else { Code::NoLeader };
                    return Ok(output::exit(code.row().exit));
                }
            }
        }
        let error = last.context("no HTTP address is given")?;
        say(format_args!("tenure: {:#}", anyhow::Error::from(error)));
        Ok(output::exit(Code::NoLeader.row().exit))
    }
}

fn print(format: Format, answer: &Answer) -> anyhow::Result<ExitCode> {
    let body = answer.body.to_vec();
    let status = answer.status;
    if status >= 400 {
        let content = Some(Content::Problem);
        output::response(format, &Response { status, content, body, retry_after_s: None })?;
        let problem: serde_json::Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        let code = problem.get("code").and_then(|code| code.as_str()).and_then(Code::named);
        return Ok(output::exit(code.map_or(1, |code| code.row().exit)));
    }
    match serde_json::from_slice::<ClusterStatus>(&answer.body) {
        Ok(status) if format == Format::Table => output::line(status_table(&status))?,
        Ok(_) | Err(_) => {
            let content = Some(Content::Json);
            output::response(format, &Response { status, content, body, retry_after_s: None })?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn status_table(status: &ClusterStatus) -> String {
    let leader = status.leader.as_ref().map_or("none".to_owned(), |leader| leader.id.to_string());
    let snapshot = status.snapshot_index.map_or("none".to_owned(), |index| index.to_string());
    let facts = output::pairs([
        ("cluster", status.cluster_id.clone()),
        ("answered by node", status.id.to_string()),
        ("leader", leader),
        ("term", status.term.to_string()),
        ("last index", status.last_index.to_string()),
        ("committed index", status.committed_index.to_string()),
        ("applied index", status.applied_index.to_string()),
        ("snapshot index", snapshot),
        ("clock ms", status.clock_ms.to_string()),
    ]);
    let mut members = output::table();
    members.set_header(["id", "role", "http", "rpc", "matched index"]);
    for member in &status.members {
        let role = match member.role {
            MemberRole::Leader => "leader",
            MemberRole::Voter => "voter",
            MemberRole::Learner => "learner",
        };
        members.add_row([
            member.id.to_string(),
            role.to_owned(),
            member.http.clone(),
            member.rpc.clone(),
            member.matched_index.map_or("-".to_owned(), |index| index.to_string()),
        ]);
    }
    format!("{facts}\n\n{members}")
}
