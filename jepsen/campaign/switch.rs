//! A switch of our own, where the kernel's bridge can cut and lose but not delay, reorder, double
//! or spoil: one TAP in each host, and one for the run itself, whose own links are left alone.
//!
//! A frame goes where its address says; who has which address is known, for they are numbered as
//! the hosts are. ARP is spared, so that a heal needs no new look-up.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::time::Instant;

use crate::isolation::tool;
use crate::links::{Way, address};

/// The number of the run itself, which is the end of its address, too.
const RUN: usize = 254;
/// Largest frame: a TAP has the MTU of Ethernet.
const FRAME: usize = 2048;
/// Frames that are taken from one host before the next one has its turn.
const TURN: usize = 64;
/// Between two looks at whether to end.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Bytes a second on a narrow link, and how long its queue is before it loses what comes.
const NARROW: f64 = 50_000.0;
const QUEUE: Duration = Duration::from_millis(400);
/// ARP, in the header of a frame.
const ARP: [u8; 2] = [0x08, 0x06];
/// Bytes of that header.
const HEADER: usize = 14;

/// What can be done to a link, in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Disturbance {
    Cut,
    Lossy,
    Narrow,
    /// All frames come late, in order, and not equally late.
    Delay,
    /// Some frames are overtaken by those behind them.
    Reorder,
    /// Some frames come twice.
    Duplicate,
    /// Some frames have a bit flipped.
    Corrupt,
}

/// A disturbance, and how strong it is: a part of all frames, or milliseconds.
type Strengths = BTreeMap<Disturbance, f64>;

/// The switch, as the run sees it.
#[derive(Debug)]
pub(crate) struct Switch {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    links: Mutex<BTreeMap<Way, Strengths>>,
    /// Frames that a disturbance has met.
    met: Mutex<BTreeMap<Disturbance, u64>>,
    stop: AtomicBool,
}

impl Switch {
    /// Makes so many hosts, numbered from 1, and joins them.
    pub(crate) fn build(hosts: usize, seed: u64) -> io::Result<Self> {
        let mut ports = Vec::new();
        for host in 1..=hosts {
            tool(&format!("ip netns add n{host}"))?;
            let inside = format!("-n n{host}");
            ports.push((host, port(host, Some(&format!("/run/netns/n{host}")), &inside)?));
            tool(&format!("ip -n n{host} link set lo up"))?;
        }
        ports.push((RUN, port(RUN, None, "")?));
        let shared = Arc::new(Shared::default());
        let inside = Inside {
            shared: Arc::clone(&shared),
            ports,
            rng: StdRng::seed_from_u64(seed),
            flying: BinaryHeap::new(),
            number: 0,
            free_at: BTreeMap::new(),
        };
        let thread = Some(std::thread::spawn(move || inside.run()));
        Ok(Self { shared, thread })
    }

    pub(crate) fn disturb(&self, what: Disturbance, strength: f64, ways: &[Way]) {
        let mut links = self.shared.links.lock().unwrap();
        for way in ways {
            links.entry(*way).or_default().insert(what, strength);
        }
    }

    pub(crate) fn calm(&self, what: Disturbance) {
        for link in self.shared.links.lock().unwrap().values_mut() {
            link.remove(&what);
        }
    }

    /// How many frames a disturbance has met so far.
    pub(crate) fn met(&self, what: Disturbance) -> u64 {
        self.shared.met.lock().unwrap().get(&what).copied().unwrap_or(0)
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        drop(self.thread.take().map(JoinHandle::join));
    }
}

/// A TAP, in the namespace of a host or in this one.
fn port(number: usize, namespace: Option<&str>, inside: &str) -> io::Result<File> {
    let namespace = namespace.map(File::open).transpose()?;
    // A namespace is entered by a thread, which then ends.
    let opened = std::thread::spawn(move || {
        if let Some(namespace) = namespace {
            let network = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(namespace.as_fd(), network)?;
        }
        tenure_ioctl::tap("eth0")
    });
    let tap = opened.join().unwrap()?;
    for line in [
        format!("ip {inside} link set eth0 address 02:00:00:00:00:{number:02x}"),
        format!("ip {inside} addr add {}/24 dev eth0", address(number)),
        format!("ip {inside} link set eth0 up"),
    ] {
        tool(&line)?;
    }
    Ok(tap)
}

/// A frame on its way: when it arrives, its number, from, to.
type Flying = Reverse<(Instant, u64, usize, Vec<u8>)>;

struct Inside {
    shared: Arc<Shared>,
    /// Number and TAP of each host.
    ports: Vec<(usize, File)>,
    rng: StdRng,
    flying: BinaryHeap<Flying>,
    number: u64,
    /// When the last frame of a link that keeps the order arrives, or a narrow one is free.
    free_at: BTreeMap<(Way, Disturbance), Instant>,
}

impl Inside {
    fn run(mut self) {
        let mut frame = vec![0; FRAME];
        while !self.shared.stop.load(Ordering::Relaxed) {
            self.wait();
            self.land();
            for port in 0..self.ports.len() {
                for _ in 0..TURN {
                    let Ok(length) = (&self.ports[port].1).read(&mut frame) else { break };
                    self.switch(self.ports[port].0, &frame[..length]);
                }
            }
        }
    }

    /// Waits until a frame comes or has to go.
    fn wait(&self) {
        let next = self.flying.peek().map(|Reverse((at, ..))| {
            // A little late is as good as in time; a wait of zero would be a busy one.
            at.saturating_duration_since(Instant::now()) + Duration::from_micros(50)
        });
        let wait = next.unwrap_or(LOOK_EVERY).min(LOOK_EVERY);
        let nanoseconds = i64::try_from(wait.as_nanos()).unwrap();
        let wait = Timespec { tv_sec: 0, tv_nsec: nanoseconds };
        let mut files: Vec<PollFd<'_>> =
            self.ports.iter().map(|(_, tap)| PollFd::new(tap, PollFlags::IN)).collect();
        // A signal ends the wait early, which does no harm.
        let _ = poll(&mut files, Some(&wait));
    }

    /// Hands over the frames that have arrived.
    fn land(&mut self) {
        let now = Instant::now();
        while self.flying.peek().is_some_and(|Reverse((at, ..))| *at <= now) {
            let Some(Reverse((_, _, to, frame))) = self.flying.pop() else { return };
            self.hand_over(to, &frame);
        }
    }

    /// A host whose queue is full loses what comes, as on any network.
    fn hand_over(&self, to: usize, frame: &[u8]) {
        if let Some((_, tap)) = self.ports.iter().find(|(number, _)| *number == to) {
            let _ = (&*tap).write(frame);
        }
    }

    fn switch(&mut self, from: usize, frame: &[u8]) {
        let (Some(target), Some(kind)) = (frame.get(..6), frame.get(12..HEADER)) else { return };
        let is_group = target[0] & 1 == 1;
        let to: Vec<usize> = self
            .ports
            .iter()
            .map(|(number, _)| *number)
            .filter(|to| *to != from && (is_group || usize::from(target[5]) == *to))
            .collect();
        let is_arp = kind == ARP;
        for to in to {
            if is_arp || from == RUN || to == RUN {
                self.hand_over(to, frame);
            } else {
                self.carry((from, to), frame);
            }
        }
    }

    /// Whether a disturbance of so many parts of one hits a frame.
    fn hits(&mut self, link: &Strengths, what: Disturbance) -> bool {
        let part = link.get(&what).copied().unwrap_or(0.0);
        let hits = part > 0.0 && self.rng.random_bool(part.min(1.0));
        if hits {
            self.count(what);
        }
        hits
    }

    fn count(&self, what: Disturbance) {
        *self.shared.met.lock().unwrap().entry(what).or_default() += 1;
    }

    fn carry(&mut self, way: Way, frame: &[u8]) {
        let link = self.shared.links.lock().unwrap().get(&way).cloned().unwrap_or_default();
        if self.hits(&link, Disturbance::Cut) || self.hits(&link, Disturbance::Lossy) {
            return;
        }
        let copies = if self.hits(&link, Disturbance::Duplicate) { 2 } else { 1 };
        let mut frame = frame.to_vec();
        if self.hits(&link, Disturbance::Corrupt) {
            // One bit: that the checksums of IP and TCP always find.
            let place = self.rng.random_range(HEADER..frame.len().max(HEADER + 1));
            let bit = 1 << self.rng.random_range(0..8);
            frame.get_mut(place).into_iter().for_each(|byte| *byte ^= bit);
        }
        let now = Instant::now();
        let mut at = now;
        if let Some(ms) = link.get(&Disturbance::Delay) {
            self.count(Disturbance::Delay);
            at += Duration::from_secs_f64(ms * self.rng.random_range(0.5..1.5) / 1000.0);
            at = self.in_order(way, Disturbance::Delay, at);
        }
        if link.contains_key(&Disturbance::Narrow) {
            let free_at = self.free_at.get(&(way, Disturbance::Narrow)).copied();
            let start = free_at.unwrap_or(at).max(at);
            if start.saturating_duration_since(at) > QUEUE {
                return;
            }
            self.count(Disturbance::Narrow);
            let takes = Duration::from_secs_f64(frame.len() as f64 / NARROW);
            at = self.in_order(way, Disturbance::Narrow, start + takes);
        }
        if self.hits(&link, Disturbance::Reorder) {
            at += Duration::from_millis(self.rng.random_range(2..60));
        }
        for _ in 0..copies {
            if at <= now {
                self.hand_over(way.1, &frame);
            } else {
                self.number += 1;
                self.flying.push(Reverse((at, self.number, way.1, frame.clone())));
            }
        }
    }

    /// Not before the frame in front of it.
    fn in_order(&mut self, way: Way, what: Disturbance, at: Instant) -> Instant {
        let last = self.free_at.entry((way, what)).or_insert(at);
        *last = at.max(*last);
        *last
    }
}
