//! Server processes of one system, in a directory of their own.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{Instant, sleep};

/// How long servers get to answer, a JVM among them.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// How long servers get to end before they are killed.
const STOP_WITHIN: Duration = Duration::from_secs(15);
/// How often they are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Processes that run. Dropping them ends them, which takes a while.
#[derive(Debug)]
pub(crate) struct Processes {
    /// Where they keep data and logs.
    pub(crate) directory: PathBuf,
    children: Vec<Child>,
    /// What asks one to end.
    goodbye: Signal,
}

impl Processes {
    /// None yet. The directory is made.
    pub(crate) fn new(directory: &Path) -> anyhow::Result<Self> {
        fs::create_dir_all(directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
        let directory = directory.to_owned();
        Ok(Self { directory, children: Vec::new(), goodbye: Signal::TERM })
    }

    /// The same with another signal that asks for the end.
    pub(crate) fn ended_by(mut self, goodbye: Signal) -> Self {
        self.goodbye = goodbye;
        self
    }

    /// Starts one. Its output goes to `NAME.log`.
    pub(crate) fn spawn(&mut self, name: &str, command: &mut Command) -> anyhow::Result<u32> {
        let path = self.directory.join(format!("{name}.log"));
        let log = File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
        let err = log.try_clone().context("cannot share a log file")?;
        let child = command.stdin(Stdio::null()).stdout(log).stderr(err).spawn();
        let child = child.with_context(|| format!("cannot start {name}"))?;
        let pid = child.id();
        self.children.push(child);
        Ok(pid)
    }

    /// Their ids.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.children.iter().map(Child::id).collect()
    }

    /// Tries until it works, as long as all of them run.
    pub(crate) async fn until<T>(
        &mut self,
        mut works: impl AsyncFnMut() -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let deadline = Instant::now() + READY_WITHIN;
        loop {
            let tried = works().await;
            for child in &mut self.children {
                if let Ok(Some(status)) = child.try_wait() {
                    let logs = self.directory.display();
                    bail!("process {} ended, {status}; its log is in {logs}", child.id());
                }
            }
            match tried {
                Ok(value) => return Ok(value),
                Err(error) if Instant::now() >= deadline => {
                    return Err(error.context(format!("not ready within {READY_WITHIN:?}")));
                }
                Err(_) => sleep(LOOK_EVERY).await,
            }
        }
    }
}

/// Asks them to end, waits, and kills those that do not: what they started has to end too.
impl Drop for Processes {
    fn drop(&mut self) {
        for child in &self.children {
            let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
            if let Some(pid) = pid {
                let _ = kill_process(pid, self.goodbye);
            }
        }
        let deadline = Instant::now() + STOP_WITHIN;
        while !self.children.is_empty() && Instant::now() < deadline {
            std::thread::sleep(LOOK_EVERY);
            self.children.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        }
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Fails when one of these ports of loopback is taken: the answers would be another process's.
pub(crate) fn ports_are_free(ports: impl IntoIterator<Item = u16>) -> anyhow::Result<()> {
    for port in ports {
        TcpListener::bind(("127.0.0.1", port))
            .with_context(|| format!("port {port} is taken: stop what listens there"))?;
    }
    Ok(())
}
