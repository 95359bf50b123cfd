//! The nodes of a run: where each lives, and how it is started, stopped and started again.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use tenure_jepsen::cluster::Ports;
use tenure_jepsen::http;
use tenure_jepsen::process::{Process, preload, tenure};
use tokio::time::Instant;

use crate::disks::Disk;
use crate::isolation::Rung;
use crate::links::{self, Links};

/// For the cluster to go on after everything has healed.
pub(crate) const READY_WITHIN: Duration = Duration::from_secs(60);
/// For an answer of a node about itself, while faults last.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Names the seeded bug of a binary that was built with some: passed on to every node.
const SEEDED_BUG: &str = "TENURE_SEEDED_BUG";

/// Looks until there is something to see, for at most so long.
pub(crate) fn until<T>(limit: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let started = Instant::now();
    loop {
        if let Some(seen) = look() {
            return Some(seen);
        }
        if started.elapsed() > limit {
            return None;
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// The HTTP addresses of the members, for whoever sends.
pub(crate) type Endpoints = Arc<RwLock<Vec<String>>>;

/// One node.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) id: u64,
    /// Numbered from 1.
    pub(crate) host: usize,
    process: Option<Process>,
    /// How its last process ended, if it did so by itself.
    exit: Option<ExitStatus>,
    pub(crate) is_paused: bool,
    /// Its disk was taken from it: it may end by itself.
    pub(crate) may_end: bool,
    joins: Option<String>,
    data_dir: PathBuf,
}

impl Member {
    pub(crate) fn is_up(&self) -> bool {
        self.process.is_some() && !self.is_paused
    }
}

/// All nodes.
#[derive(Debug)]
pub(crate) struct Fleet {
    pub(crate) rung: Rung,
    store: PathBuf,
    ports: Option<Ports>,
    hosts: usize,
    disks: BTreeMap<usize, Disk>,
    pub(crate) members: Vec<Member>,
    first: Vec<(u64, usize)>,
    settings: Vec<(&'static str, String)>,
    /// The preloaded library by which disks fail and clocks jump, if it is needed.
    preloaded: Option<PathBuf>,
    /// What nodes did that they must not, as faults were healed.
    pub(crate) wrong: Vec<String>,
    pub(crate) links: Links,
    next_id: u64,
    pub(crate) endpoints: Endpoints,
}

/// What a run needs beside nodes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Needs {
    pub(crate) disks: bool,
    /// The preloaded library by which disks fail and clocks jump.
    pub(crate) preloaded: bool,
    pub(crate) snapshots: bool,
    /// A switch of our own instead of the kernel's bridge, and what it draws from.
    pub(crate) switch: bool,
    pub(crate) seed: u64,
    /// Hosts beyond those of the first nodes.
    pub(crate) spare: usize,
}

impl Fleet {
    /// Builds the hosts and starts a node on each of the first ones.
    pub(crate) fn start(rung: Rung, store: &Path, nodes: usize, needs: Needs) -> io::Result<Self> {
        let hosts = nodes + needs.spare;
        let mut disks = BTreeMap::new();
        let links = match rung.has_links() {
            true => Links::build(hosts, needs.switch, needs.seed)?,
            false => Links::None,
        };
        if needs.disks && rung.has_disks() {
            for host in 1..=hosts {
                disks.insert(host, Disk::make(&store.join("disks"), host)?);
            }
        }
        let mut settings = vec![
            ("TENURE_MIN_FREE_DISK_MB", "64".to_owned()),
            ("TENURE_WORKER_THREADS", "2".to_owned()),
        ];
        if needs.snapshots {
            settings.push(("TENURE_SNAPSHOT_ENTRIES", "400".to_owned()));
        }
        let mut fleet = Self {
            rung,
            store: store.to_owned(),
            ports: (!rung.has_links()).then(Ports::draw),
            hosts,
            disks,
            members: Vec::new(),
            first: (1..=nodes).map(|host| (host as u64, host)).collect(),
            settings,
            preloaded: needs.preloaded.then(preload),
            wrong: Vec::new(),
            links,
            next_id: nodes as u64 + 1,
            endpoints: Arc::default(),
        };
        for (id, host) in fleet.first.clone() {
            fleet.add(id, host, None)?;
        }
        fleet.tell();
        Ok(fleet)
    }

    pub(crate) fn has_disks(&self) -> bool {
        !self.disks.is_empty()
    }

    pub(crate) fn http(&self, host: usize) -> String {
        match &self.ports {
            None => format!("{}:7600", links::address(host)),
            Some(ports) => ports.http(u16::try_from(host).unwrap()),
        }
    }

    fn rpc(&self, host: usize) -> String {
        match &self.ports {
            None => format!("{}:7700", links::address(host)),
            Some(ports) => ports.rpc(u16::try_from(host).unwrap()),
        }
    }

    /// Tells whoever sends where the members are.
    pub(crate) fn tell(&self) {
        let http = self.members.iter().map(|member| self.http(member.host));
        *self.endpoints.write().unwrap() = http.collect();
    }

    /// Starts a node that was not there before, with an empty directory.
    fn add(&mut self, id: u64, host: usize, joins: Option<String>) -> io::Result<()> {
        let root =
            self.disks.get(&host).map_or_else(|| self.store.clone(), |disk| disk.path().into());
        let data_dir = root.join(format!("data-{id}"));
        let (process, exit, is_paused, may_end) = (None, None, false, false);
        let member = Member { id, host, process, exit, is_paused, may_end, joins, data_dir };
        self.members.push(member);
        self.launch(id)
    }

    /// A new node on a free host, under an id that was never used; none when no host is free.
    pub(crate) fn join(&mut self, member: &str) -> io::Result<Option<u64>> {
        let is_free = |host: &usize| self.members.iter().all(|member| member.host != *host);
        let Some(host) = (1..=self.hosts).find(is_free) else { return Ok(None) };
        let id = self.next_id;
        self.next_id += 1;
        self.add(id, host, Some(format!("http://{member}")))?;
        Ok(Some(id))
    }

    /// Ends a node that is no member any more, and frees its host.
    pub(crate) fn leave(&mut self, id: u64) {
        self.members.retain(|member| member.id != id);
        self.tell();
    }

    pub(crate) fn member(&mut self, id: u64) -> io::Result<&mut Member> {
        let found = self.members.iter_mut().find(|member| member.id == id);
        found.ok_or_else(|| io::Error::other(format!("node {id} is no member")))
    }

    pub(crate) fn process_id(&self, id: u64) -> Option<u32> {
        let member = self.members.iter().find(|member| member.id == id)?;
        member.process.as_ref().map(|process| process.0.id())
    }

    pub(crate) fn disk(&self, id: u64) -> Option<&Disk> {
        let member = self.members.iter().find(|member| member.id == id)?;
        self.disks.get(&member.host)
    }

    /// Starts a node that is down.
    pub(crate) fn launch(&mut self, id: u64) -> io::Result<()> {
        let member = self.member(id)?;
        if member.process.is_some() {
            return Ok(());
        }
        let (host, joins, data_dir) = (member.host, member.joins.clone(), member.data_dir.clone());
        let log = OpenOptions::new().create(true).append(true).open(self.log_path(id))?;
        let mut server = tenure(&["server", "--insecure", "--exit-with-parent"]);
        server.args([
            "--id",
            &id.to_string(),
            "--http",
            &self.http(host),
            "--rpc",
            &self.rpc(host),
        ]);
        server.arg("--data-dir").arg(data_dir);
        match joins {
            Some(url) => {
                server.args(["--join", &url]);
            }
            None => {
                for (id, host) in &self.first {
                    let one = format!("{id}={},{}", self.http(*host), self.rpc(*host));
                    server.args(["--bootstrap", &one]);
                }
            }
        }
        let mut command = if self.rung.has_links() {
            let mut inside = Command::new("nsenter");
            inside.arg(format!("--net=/run/netns/n{host}")).arg("--");
            inside.arg(server.get_program()).args(server.get_args());
            // What the environment says of Tenure is not for the nodes.
            let removed = server.get_envs().filter(|(_, value)| value.is_none());
            removed.for_each(|(name, _)| {
                inside.env_remove(name);
            });
            inside
        } else {
            server
        };
        command.envs(self.settings.iter().map(|(name, value)| (*name, value)));
        if let Some(bug) = std::env::var_os(SEEDED_BUG) {
            command.env(SEEDED_BUG, bug);
        }
        self.preload(id, &mut command)?;
        // The pipe stays open as long as this process lives.
        command.stdin(Stdio::piped()).stdout(log.try_clone()?).stderr(log);
        let process = Process(command.spawn()?);
        let member = self.member(id)?;
        (member.process, member.exit, member.is_paused) = (Some(process), None, false);
        Ok(())
    }

    /// Puts between a node and the C library what its clock and its disk are lied to with.
    fn preload(&self, id: u64, command: &mut Command) -> io::Result<()> {
        let Some(library) = &self.preloaded else { return Ok(()) };
        command.env("LD_PRELOAD", library);
        command.env("CLOCK_FAULTS_CONTROL", self.store.join(format!("clock-{id}")));
        command.env("DISK_FAULTS_UNDER", self.data_dir(id)?);
        command.env("DISK_FAULTS_CONTROL", self.store.join(format!("disk-{id}")));
        command.env("DISK_FAULTS_SEEN", self.store.join(format!("disk-{id}.seen")));
        Ok(())
    }

    /// Orders a fault of a node, in the words of `jepsen/preload`; an empty line is no fault.
    fn order(&self, what: &str, id: u64, line: &str) -> io::Result<()> {
        // Renamed into place: half a line would be another fault.
        let (new, file) = (format!("{what}-{id}.new"), format!("{what}-{id}"));
        std::fs::write(self.store.join(&new), line)?;
        std::fs::rename(self.store.join(new), self.store.join(file))
    }

    pub(crate) fn set_clock(&self, id: u64, line: &str) -> io::Result<()> {
        self.order("clock", id, line)
    }

    pub(crate) fn set_disk_fault(&self, id: u64, line: &str) -> io::Result<()> {
        self.order("disk", id, line)
    }

    pub(crate) fn data_dir(&self, id: u64) -> io::Result<PathBuf> {
        let found = self.members.iter().find(|member| member.id == id);
        let member = found.ok_or_else(|| io::Error::other(format!("node {id} is no member")))?;
        Ok(member.data_dir.clone())
    }

    /// How often a node has met a fault of its disk.
    pub(crate) fn disk_faults_met(&self, id: u64) -> usize {
        let seen = std::fs::read(self.store.join(format!("disk-{id}.seen")));
        seen.map_or(0, |seen| seen.iter().filter(|byte| **byte == b'\n').count())
    }

    /// How much a node has said so far, in bytes.
    pub(crate) fn said(&self, id: u64) -> usize {
        std::fs::metadata(self.log_path(id)).map_or(0, |log| usize::try_from(log.len()).unwrap())
    }

    /// What a node has said since.
    pub(crate) fn said_since(&self, id: u64, from: usize) -> String {
        let log = std::fs::read(self.log_path(id)).unwrap_or_default();
        String::from_utf8_lossy(log.get(from..).unwrap_or_default()).into_owned()
    }

    /// Waits until a node has ended by itself, for at most so long.
    pub(crate) fn ends_within(
        &mut self,
        id: u64,
        limit: Duration,
    ) -> io::Result<Option<ExitStatus>> {
        let member = self.member(id)?;
        let Some(process) = &mut member.process else { return Ok(member.exit) };
        let Some(status) = until(limit, || process.0.try_wait().transpose()).transpose()? else {
            return Ok(None);
        };
        (member.process, member.exit) = (None, Some(status));
        Ok(Some(status))
    }

    fn log_path(&self, id: u64) -> PathBuf {
        self.store.join(format!("node-{id}.log"))
    }

    /// SIGKILL; the process is gone when this returns.
    pub(crate) fn kill(&mut self, id: u64) -> io::Result<()> {
        let member = self.member(id)?;
        (member.process, member.is_paused) = (None, false);
        Ok(())
    }

    /// SIGSTOP.
    pub(crate) fn pause(&mut self, id: u64) -> io::Result<()> {
        let member = self.member(id)?;
        if let Some(process) = &member.process {
            process.signal(Signal::STOP);
            member.is_paused = true;
        }
        Ok(())
    }

    /// SIGCONT.
    pub(crate) fn resume(&mut self, id: u64) -> io::Result<()> {
        let member = self.member(id)?;
        if let Some(process) = member.process.as_ref().filter(|_| member.is_paused) {
            process.signal(Signal::CONT);
        }
        member.is_paused = false;
        Ok(())
    }

    /// Nodes that have ended though nothing was done to them or to their disk; they are started
    /// again, so that a run goes on.
    pub(crate) fn ended(&mut self) -> io::Result<Vec<String>> {
        let mut found = Vec::new();
        let mut again = Vec::new();
        for member in &mut self.members {
            let Some(process) = &mut member.process else { continue };
            if let Some(status) = process.0.try_wait()? {
                (member.process, member.exit) = (None, Some(status));
                if !member.may_end {
                    found.push(format!("node {} has ended by itself: {status}", member.id));
                    again.push(member.id);
                }
            }
        }
        for id in again {
            self.launch(id)?;
        }
        Ok(found)
    }

    /// What the nodes that run say of the cluster.
    pub(crate) fn status(&self) -> Vec<Value> {
        let up = self.members.iter().filter(|member| member.is_up());
        let ask = |member: &Member| http::get(&self.http(member.host), "/v1/cluster").ok()?.json();
        up.filter_map(ask).collect()
    }

    /// The node that leads in the highest term that any node knows, if it says so itself.
    pub(crate) fn leader(&self) -> Option<u64> {
        let status = self.status();
        let term = status.iter().map(|one| one["term"].as_u64()).max()?;
        let leads = |one: &&Value| one["role"] == "leader" && one["term"].as_u64() == term;
        status.iter().find(leads)?["id"].as_u64()
    }

    /// Waits until all nodes are ready.
    pub(crate) fn is_ready(&self) -> bool {
        let is_ready = |member: &Member| {
            let answer = http::get(&self.http(member.host), "/readyz");
            answer.is_ok_and(|answer| answer.status == 200)
        };
        until(READY_WITHIN, || self.members.iter().all(is_ready).then_some(())).is_some()
    }

    /// Nodes whose states differ at one index; none if they are never at one.
    pub(crate) fn states_differ(&self) -> Option<Vec<Value>> {
        let taken = until(READY_WITHIN, || {
            let snapshot = |member: &Member| {
                let path = "/v1/cluster/snapshot";
                http::ask(&self.http(member.host), "POST", path, b"null").ok()?.json()
            };
            let taken: Vec<Value> = self.members.iter().filter_map(snapshot).collect();
            let first = taken.first()?["index"].as_u64()?;
            let same = taken.iter().all(|one| one["index"].as_u64() == Some(first));
            (same && taken.len() == self.members.len()).then_some(taken)
        })?;
        let same = taken.iter().all(|one| one["hash"] == taken[0]["hash"]);
        Some(if same { Vec::new() } else { taken })
    }

    /// Lines of logs that speak of a defect.
    pub(crate) fn defects(&self, disks_were_hurt: bool) -> Vec<String> {
        let words: &[&str] = match disks_were_hurt {
            true => &["panicked", "has a defect", "overflow"],
            false => &["panicked", "has a defect", "overflow", " ERROR "],
        };
        let mut found = Vec::new();
        for id in 1..self.next_id {
            let log = std::fs::read(self.log_path(id)).unwrap_or_default();
            let log = String::from_utf8_lossy(&log);
            let line = log.lines().find(|line| words.iter().any(|word| line.contains(word)));
            found.extend(line.map(|line| format!("node {id} logs: {line}")));
        }
        found
    }
}
