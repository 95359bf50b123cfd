//! One PostgreSQL with its defaults, which sync before each answer. It is not replicated.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context as _, bail, ensure};
use rustix::process::Signal;
use tenure_bench::{Acquired, System};
use tokio_postgres::{Client, NoTls, Statement};

use super::{Peer, Programs, in_path};
use crate::processes::{Processes, ports_are_free};

const PORT: u16 = 15_432;
const SETTINGS: &str = "\
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
max_connections = 200
";
const TABLES: &str = "\
CREATE SEQUENCE token;
CREATE TABLE record (
  key text PRIMARY KEY, state smallint NOT NULL, token bigint NOT NULL, holder text,
  expires timestamptz NOT NULL, payload bytea);
CREATE INDEX record_expires ON record (expires);";
const ACQUIRE: &str = "\
INSERT INTO record AS r (key, state, token, holder, expires)
VALUES ($1, 1, nextval('token'), 'bench', now() + interval '30 seconds')
ON CONFLICT (key) DO UPDATE SET state = 1, token = excluded.token, holder = excluded.holder,
  expires = excluded.expires, payload = NULL WHERE r.expires < now()
RETURNING token";
const READ: &str = "SELECT state, payload FROM record WHERE key = $1 AND expires >= now()";
const COMPLETE: &str = "\
UPDATE record SET state = 2, payload = $3, expires = now() + interval '24 hours'
WHERE key = $1 AND token = $2 AND state = 1";
const EXTEND: &str = "\
UPDATE record SET expires = now() + interval '30 seconds'
WHERE key = $1 AND token = $2 AND state = 1";

#[derive(Debug)]
pub(crate) struct Postgres {
    processes: Processes,
}

impl Peer for Postgres {
    type Driver = Connection;
    /// A connection runs one statement at a time, so there are more of them.
    const CONNECTIONS: usize = 64;

    async fn start(_programs: &Programs, directory: &Path) -> anyhow::Result<Self> {
        let programs = programs_in("/usr/lib/postgresql")?;
        ports_are_free([PORT])?;
        // Smart shutdown waits for clients, fast shutdown does not.
        let mut processes = Processes::new(directory)?.ended_by(Signal::INT);
        let data = directory.join("data");
        fs::create_dir(&data).context("cannot make its directory")?;
        if rustix::process::geteuid().is_root() {
            run(Command::new("chown").arg("postgres").arg(&data))?;
        }
        run(as_postgres(&programs.join("initdb"))?
            .args(["-A", "trust", "-U", "postgres"])
            .arg(&data))?;
        let mut settings =
            fs::OpenOptions::new().append(true).open(data.join("postgresql.conf"))?;
        settings.write_all(format!("{SETTINGS}port = {PORT}\n").as_bytes())?;
        let mut server = as_postgres(&programs.join("postgres"))?;
        processes.spawn("postgres", server.arg("-D").arg(&data))?;
        let client = processes.until(async || connect().await).await?;
        client.batch_execute(TABLES).await?;
        Ok(Self { processes })
    }

    fn pids(&self) -> Vec<u32> {
        self.processes.pids()
    }

    async fn connect(
        &self,
        connections: usize,
        reads_first: bool,
        payload: &[u8],
    ) -> anyhow::Result<Vec<Arc<Connection>>> {
        let mut connected = Vec::new();
        for _ in 0..connections {
            let client = connect().await?;
            let connection = Connection {
                acquire: client.prepare(ACQUIRE).await?,
                read: client.prepare(READ).await?,
                complete: client.prepare(COMPLETE).await?,
                extend: client.prepare(EXTEND).await?,
                client,
                reads_first,
                payload: payload.to_vec(),
            };
            connected.push(Arc::new(connection));
        }
        Ok(connected)
    }
}

/// The programs of the newest version that is installed.
fn programs_in(directory: &str) -> anyhow::Result<PathBuf> {
    let versions = fs::read_dir(directory).into_iter().flatten().flatten();
    let versions = versions.map(|entry| entry.path().join("bin"));
    let installed = versions.filter(|programs| programs.join("postgres").is_file());
    let newest = installed.max_by_key(|programs| {
        let version = programs.parent().and_then(Path::file_name).and_then(|name| name.to_str());
        version.and_then(|version| version.parse::<u32>().ok())
    });
    newest.context("postgresql is not installed")
}

/// It refuses to run as root.
fn as_postgres(program: &Path) -> anyhow::Result<Command> {
    if !rustix::process::geteuid().is_root() {
        return Ok(Command::new(program));
    }
    // Becomes the program, so that signals reach it.
    let mut command = Command::new(in_path("setpriv")?);
    command.args(["--reuid=postgres", "--regid=postgres", "--init-groups", "--"]).arg(program);
    Ok(command)
}

fn run(command: &mut Command) -> anyhow::Result<()> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

async fn connect() -> anyhow::Result<Client> {
    let settings = format!("host=127.0.0.1 port={PORT} user=postgres dbname=postgres");
    let (client, connection) = tokio_postgres::connect(&settings, NoTls).await?;
    // Its end shows in the next statement.
    tokio::spawn(connection);
    Ok(client)
}

pub(crate) struct Connection {
    client: Client,
    acquire: Statement,
    read: Statement,
    complete: Statement,
    extend: Statement,
    reads_first: bool,
    payload: Vec<u8>,
}

impl Connection {
    async fn read(&self, key: &str) -> anyhow::Result<Option<usize>> {
        let Some(row) = self.client.query_opt(&self.read, &[&key]).await? else { return Ok(None) };
        let (state, payload): (i16, Option<&[u8]>) = (row.try_get(0)?, row.try_get(1)?);
        ensure!(state == 2, "a key of the load is IN_PROGRESS by another client");
        Ok(Some(payload.map_or(0, <[u8]>::len)))
    }
}

impl System for Connection {
    /// The token.
    type Held = i64;

    async fn acquire(&self, key: &str) -> anyhow::Result<Acquired<i64>> {
        if self.reads_first
            && let Some(bytes) = self.read(key).await?
        {
            return Ok(Acquired::Replayed(bytes));
        }
        match self.client.query_opt(&self.acquire, &[&key]).await? {
            Some(row) => Ok(Acquired::Held(row.try_get(0)?)),
            None => Ok(Acquired::Replayed(self.read(key).await?.context("a record went away")?)),
        }
    }

    async fn complete(&self, key: &str, token: i64) -> anyhow::Result<()> {
        let payload: &[u8] = &self.payload;
        let rows = self.client.execute(&self.complete, &[&key, &token, &payload]).await?;
        ensure!(rows == 1, "the lease is lost");
        Ok(())
    }

    async fn extend(&self, key: &str, token: &mut i64) -> anyhow::Result<()> {
        let rows = self.client.execute(&self.extend, &[&key, &*token]).await?;
        ensure!(rows == 1, "the lease is lost");
        Ok(())
    }
}
