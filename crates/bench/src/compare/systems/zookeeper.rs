//! Three servers of ZooKeeper with their default of an fsync before each answer. Clients ask the
//! leader.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use tenure_bench::{Acquired, System};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use zookeeper_client::{Acls, Client, CreateMode, Error};

use super::{CALL_WITHIN, Peer, Programs, complete, in_path, in_progress, replayed};
use crate::processes::{Processes, ports_are_free};

/// Ports of the servers' clients, of replication, and of elections.
const PORTS: [(u16, u16, u16); 3] =
    [(12_181, 12_888, 13_888), (22_181, 22_888, 23_888), (31_181, 31_888, 31_889)];
/// Where Debian puts Java libraries.
const JARS: &str = "/usr/share/java";
/// The libraries that the server needs, by the beginning of their names.
const NEEDED: [&str; 14] = [
    "zookeeper.jar",
    "zookeeper-jute.jar",
    "slf4j-api",
    "slf4j-log4j12",
    "log4j-1.2",
    "netty",
    "commons-cli",
    "commons-io",
    "commons-lang3",
    "jackson-",
    "snappy-java",
    "metrics-core",
    "audience-annotations",
    "jline",
];
const LOGGING: &str = "\
log4j.rootLogger=WARN, C
log4j.appender.C=org.apache.log4j.ConsoleAppender
log4j.appender.C.layout=org.apache.log4j.PatternLayout
";

#[derive(Debug)]
pub(crate) struct ZooKeeper {
    processes: Processes,
    leader: String,
}

impl Peer for ZooKeeper {
    type Driver = Connection;
    const CONNECTIONS: usize = 16;

    async fn start(_programs: &Programs, directory: &Path) -> anyhow::Result<Self> {
        let (java, jars) = (in_path("java")?, jars()?);
        ports_are_free(PORTS.iter().flat_map(|(a, b, c)| [*a, *b, *c]))?;
        let mut processes = Processes::new(directory)?;
        let mut ensemble = String::new();
        for (id, (_, replication, election)) in (1..).zip(PORTS) {
            ensemble.push_str(&format!("server.{id}=127.0.0.1:{replication}:{election}\n"));
        }
        for (id, (client, ..)) in (1..).zip(PORTS) {
            let home = directory.join(format!("server-{id}"));
            fs::create_dir_all(&home).context("cannot make its directory")?;
            let settings = format!(
                "tickTime=2000\ninitLimit=10\nsyncLimit=5\ndataDir={}\nclientPort={client}\n\
                 clientPortAddress=127.0.0.1\nmaxClientCnxns=0\nadmin.enableServer=false\n\
                 4lw.commands.whitelist=srvr\n{ensemble}",
                home.display()
            );
            let files = [
                ("myid", id.to_string()),
                ("zoo.cfg", settings),
                ("log4j.properties", LOGGING.to_owned()),
            ];
            for (file, content) in files {
                fs::write(home.join(file), content).context("cannot write its settings")?;
            }
            let class_path = std::env::join_paths(std::iter::once(&home).chain(&jars))?;
            let mut server = Command::new(&java);
            server.args(["-Xmx1g", "-XX:+UseG1GC", "-Djava.net.preferIPv4Stack=true", "-cp"]);
            server.arg(class_path).arg("org.apache.zookeeper.server.quorum.QuorumPeerMain");
            server.arg(home.join("zoo.cfg"));
            processes.spawn(&format!("server-{id}"), &mut server)?;
        }
        let leader = processes
            .until(async || {
                let leader = leader().await?;
                let mode = CreateMode::Persistent.with_acls(Acls::anyone_all());
                match connect(&leader).await?.create("/bench", b"", &mode).await {
                    Ok(_) | Err(Error::NodeExists) => Ok(leader),
                    Err(error) => Err(error.into()),
                }
            })
            .await?;
        Ok(Self { processes, leader })
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
            let zookeeper = connect(&self.leader).await?;
            let payload = payload.to_vec();
            connected.push(Arc::new(Connection { zookeeper, reads_first, payload }));
        }
        Ok(connected)
    }
}

/// The libraries' paths.
fn jars() -> anyhow::Result<Vec<PathBuf>> {
    let mut jars = Vec::new();
    for entry in fs::read_dir(JARS).context("zookeeper is not installed")? {
        let path = entry.context("cannot list the Java libraries")?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.ends_with(".jar") && NEEDED.iter().any(|needed| name.starts_with(needed)) {
            jars.push(path);
        }
    }
    jars.sort();
    if !jars.iter().any(|path| path.ends_with("zookeeper.jar")) {
        bail!("zookeeper is not installed");
    }
    Ok(jars)
}

async fn connect(address: &str) -> anyhow::Result<Client> {
    Ok(timeout(CALL_WITHIN, Client::connect(address)).await.context("no session")??)
}

/// The address of the server that says that it leads.
async fn leader() -> anyhow::Result<String> {
    for (client, ..) in PORTS {
        let address = format!("127.0.0.1:{client}");
        let mut socket = TcpStream::connect(&address).await?;
        socket.write_all(b"srvr").await?;
        let mut said = String::new();
        timeout(CALL_WITHIN, socket.read_to_string(&mut said)).await.context("no status")??;
        if said.contains("Mode: leader") {
            return Ok(address);
        }
    }
    bail!("there is no leader yet")
}

pub(crate) struct Connection {
    zookeeper: Client,
    reads_first: bool,
    payload: Vec<u8>,
}

impl Connection {
    /// Reads a COMPLETE record. The sync before makes it as fresh as it gets.
    async fn read(&self, path: &str) -> anyhow::Result<Option<usize>> {
        self.zookeeper.sync("/bench").await?;
        match self.zookeeper.get_data(path).await {
            Ok((value, _)) => replayed(&value).map(Some),
            Err(Error::NoNode) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

fn path(key: &str) -> String {
    format!("/bench/{key}")
}

impl System for Connection {
    /// The version of the last write.
    type Held = i32;

    async fn acquire(&self, key: &str) -> anyhow::Result<Acquired<i32>> {
        let path = path(key);
        if self.reads_first
            && let Some(bytes) = self.read(&path).await?
        {
            return Ok(Acquired::Replayed(bytes));
        }
        let mode = CreateMode::Persistent.with_acls(Acls::anyone_all());
        match self.zookeeper.create(&path, &in_progress(0), &mode).await {
            Ok((stat, _)) => Ok(Acquired::Held(stat.version)),
            Err(Error::NodeExists) => {
                let bytes = self.read(&path).await?.context("a record went away")?;
                Ok(Acquired::Replayed(bytes))
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn complete(&self, key: &str, version: i32) -> anyhow::Result<()> {
        self.zookeeper.set_data(&path(key), &complete(&self.payload), Some(version)).await?;
        Ok(())
    }

    async fn extend(&self, key: &str, version: &mut i32) -> anyhow::Result<()> {
        let stat = self.zookeeper.set_data(&path(key), &in_progress(0), Some(*version)).await?;
        *version = stat.version;
        Ok(())
    }
}
