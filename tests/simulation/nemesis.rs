//! Who does harm, and undoes it: nodes that are killed or lose power, links that are cut or slow,
//! disks that fail, are full or slow, members that come and go.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::{IndexedRandom as _, SliceRandom as _};
use rand::{RngExt as _, SeedableRng as _};
use tenure_api::Node as Address;
use tenure_api::NodeRole;
use tenure_api::frame::Change;
use tenure_network::{Admission, Config};
use turmoil::Sim;

use crate::clients::Clients;
use crate::links::{CLIENTS, LATENCY, Links, host};
use crate::seat::{Seat, member};
use crate::trace::Trace;
use crate::witness::Witness;

/// Nodes that may join one after the other, beyond the first ones.
const SPARE: u64 = 2;
/// Faults at once.
const AT_ONCE: usize = 2;
/// Writes that a disk still does before it fails.
const LAST_WRITES: u64 = 40;

/// Something that is wrong for a while.
#[derive(Debug, Clone)]
enum Fault {
    /// Processes end at once; or the power does, and what was not synced is lost, or part of it.
    Down {
        ids: Vec<u64>,
        loses: Loses,
    },
    /// A node is stopped in order.
    Stopped(u64),
    /// Nothing passes between the two sides.
    Cut {
        side: Vec<u64>,
        others: Vec<u64>,
        clients: bool,
    },
    /// Nothing passes from one to the other; the other way all does.
    OneWay {
        from: u64,
        to: u64,
    },
    /// What passes between two takes long.
    SlowLink {
        a: u64,
        b: u64,
        ms: u64,
    },
    SlowDisk(u64),
    /// Every write fails, after a few more.
    FailingDisk(u64),
    FullDisk(u64),
    /// A disk is replaced by an empty one: its node may not come back.
    Wiped(u64),
    /// All connections between two break, with whatever is on its way; clients, if only one is
    /// named.
    Broken(u64, Option<u64>),
}

/// What a crash takes of what was written and not synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loses {
    /// The process ends, the kernel does not.
    Nothing,
    Some,
    All,
}

/// Where it stands with members that come and go.
#[derive(Debug, Default)]
struct Membership {
    members: BTreeSet<u64>,
    /// Is ordered, and not done yet.
    is_changing: bool,
    /// Joined, and no voter yet.
    learner: Option<u64>,
    joined: u64,
}

/// The one who does it.
pub(crate) struct Nemesis {
    rng: StdRng,
    trace: Trace,
    config: Config,
    links: Links,
    first: u64,
    pub(crate) seats: BTreeMap<u64, Arc<Seat>>,
    active: Vec<(Duration, Fault)>,
    next: Duration,
    /// Between two faults, at most.
    pace_ms: u64,
    membership: Membership,
    /// Messages that pass though their link is held.
    open: BTreeSet<(IpAddr, IpAddr)>,
    /// Whose disk was replaced.
    wiped: Option<u64>,
    pub(crate) installed: BTreeMap<&'static str, u64>,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

impl Fault {
    fn name(&self) -> &'static str {
        match self {
            Self::Down { loses: Loses::Nothing, .. } => "kill",
            Self::Down { .. } => "power cut",
            Self::Stopped(_) => "stop",
            Self::Cut { .. } => "partition",
            Self::OneWay { .. } => "one-way partition",
            Self::SlowLink { .. } => "slow link",
            Self::SlowDisk(_) => "slow disk",
            Self::FailingDisk(_) => "failing disk",
            Self::FullDisk(_) => "full disk",
            Self::Wiped(_) => "wiped disk",
            Self::Broken(..) => "broken connections",
        }
    }

    /// Whether messages wait for it to end.
    fn holds(&self) -> bool {
        matches!(self, Self::Cut { .. } | Self::OneWay { .. })
    }
}

impl Nemesis {
    pub(crate) fn new(
        seats: BTreeMap<u64, Arc<Seat>>,
        config: Config,
        links: Links,
        trace: Trace,
        seed: u64,
    ) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let members = seats.keys().copied().collect();
        Self {
            pace_ms: *[300, 1000, 2500].choose(&mut rng).expect("three"),
            rng,
            trace,
            config,
            links,
            first: seats.len() as u64,
            seats,
            active: Vec::new(),
            next: Duration::from_millis(1500),
            membership: Membership { members, ..Membership::default() },
            open: BTreeSet::new(),
            wiped: None,
            installed: BTreeMap::new(),
        }
    }

    fn count(&mut self, what: &'static str) {
        *self.installed.entry(what).or_default() += 1;
    }

    /// Whether a member may be missing when all is healed.
    pub(crate) fn is_lost(&self, id: u64) -> bool {
        self.wiped == Some(id)
    }

    fn is_down(&self, id: u64) -> bool {
        self.seats[&id].running().is_none()
    }

    /// Looks after what there is: messages that pass, orders that are carried out, nodes that ended.
    /// Gives what of that should not be.
    pub(crate) fn tend(
        &mut self,
        sim: &mut Sim<'_>,
        clients: &Clients,
        witness: &mut Witness,
    ) -> Vec<String> {
        self.pass_one_way(sim);
        self.follow_orders(sim, clients, witness);
        self.ends(sim, clients, witness)
    }

    /// Does harm that is due, and undoes what is.
    pub(crate) fn step(&mut self, sim: &mut Sim<'_>, clients: &Clients, witness: &mut Witness) {
        let now = sim.elapsed();
        let due: Vec<usize> =
            (0..self.active.len()).filter(|at| self.active[*at].0 <= now).collect();
        for at in due.into_iter().rev() {
            let (_, fault) = self.active.remove(at);
            self.undo(sim, &fault);
        }
        if now < self.next {
            return;
        }
        self.next = now + Duration::from_millis(self.rng.random_range(50..self.pace_ms));
        if self.rng.random_range(0..5) == 0 {
            self.order(sim, clients);
        } else if self.active.len() < AT_ONCE
            && let Some(fault) = self.draw()
        {
            let most = if self.rng.random_range(0..4) == 0 { 4000 } else { 1200 };
            let until = now + Duration::from_millis(self.rng.random_range(50..most));
            self.install(sim, witness, &fault);
            self.active.push((until, fault));
        }
    }

    /// Undoes everything.
    pub(crate) fn heal(&mut self, sim: &mut Sim<'_>) {
        for (_, fault) in std::mem::take(&mut self.active) {
            self.undo(sim, &fault);
        }
    }

    /// Takes down the hosts of nodes that ended, and gives those that had no reason to end.
    fn ends(&mut self, sim: &mut Sim<'_>, clients: &Clients, witness: &mut Witness) -> Vec<String> {
        let mut wrong = Vec::new();
        let ends = self.seats.iter().filter_map(|(id, seat)| Some((*id, seat.take_end()?)));
        for (id, why) in ends.collect::<Vec<_>>() {
            witness.ended(id);
            self.trace.note(sim.elapsed().as_millis(), format_args!("node {id} ended: {why}"));
            self.seats[&id].disk.fail_writes(true);
            sim.crash(host(id));
            if self.wiped == Some(id) && why.contains("lost its data") {
                // As it must. Its place is given up; whoever comes has another id.
                self.count("wiped and refused");
                self.seats[&id].disk.fail_writes(false);
                self.membership.members.remove(&id);
                clients.order(Change::Remove { id });
                continue;
            }
            if !why.contains("simulated write failure") {
                wrong.push(format!("node {id} ended by itself: {why}"));
            }
            let fails =
                |fault: &Fault| matches!(fault, Fault::FailingDisk(failing) if *failing == id);
            if !self.active.iter().any(|(_, fault)| fails(fault)) {
                // The fault was healed in the moment in which it struck.
                self.active.push((sim.elapsed(), Fault::FailingDisk(id)));
            }
        }
        wrong
    }

    fn one(&mut self) -> Option<u64> {
        let up: Vec<u64> = self.seats.keys().copied().filter(|id| !self.is_down(*id)).collect();
        // The leader is where it hurts.
        let leads = |id: &&u64| {
            let node = self.seats[id].running().and_then(|running| running.node.upgrade());
            node.is_some_and(|node| node.status().role == NodeRole::Leader)
        };
        let leader = up.iter().find(leads).copied();
        let any = up.choose(&mut self.rng).copied();
        if self.rng.random_range(0..3) == 0 { leader.or(any) } else { any }
    }

    fn draw(&mut self) -> Option<Fault> {
        let id = self.one()?;
        let mut all: Vec<u64> = self.seats.keys().copied().collect();
        all.shuffle(&mut self.rng);
        let other = all.iter().copied().find(|other| *other != id)?;
        let loses = *[Loses::Nothing, Loses::Some, Loses::All].choose(&mut self.rng)?;
        Some(match self.rng.random_range(0..27) {
            0..4 => Fault::Down { ids: vec![id], loses },
            4..6 => Fault::Down { ids: all, loses },
            6 => Fault::Down { ids: vec![id, other], loses },
            7 => Fault::Stopped(id),
            8..11 => {
                let others = all.into_iter().filter(|other| *other != id).collect();
                Fault::Cut { side: vec![id], others, clients: self.rng.random() }
            }
            11 => {
                let size = self.rng.random_range(1..all.len());
                let others = all.split_off(size);
                Fault::Cut { side: all, others, clients: false }
            }
            12..15 => Fault::OneWay { from: id, to: other },
            15..17 => Fault::SlowLink { a: id, b: other, ms: self.rng.random_range(20..400) },
            17..19 => Fault::SlowDisk(id),
            19..21 => Fault::FailingDisk(id),
            21 => Fault::FullDisk(id),
            22 if self.wiped.is_none() => Fault::Wiped(id),
            // Whole again, a link that is held would be held no more.
            _ if self.active.iter().any(|(_, fault)| fault.holds()) => return None,
            _ => Fault::Broken(id, self.rng.random::<bool>().then_some(other)),
        })
    }

    fn install(&mut self, sim: &mut Sim<'_>, witness: &mut Witness, fault: &Fault) {
        self.trace.note(sim.elapsed().as_millis(), format_args!("nemesis {fault}"));
        self.count(fault.name());
        match fault {
            Fault::Down { ids, loses } => self.down(sim, witness, ids, *loses),
            Fault::Stopped(id) => {
                witness.ended(*id);
                self.seats[id].stop();
            }
            Fault::Cut { side, others, clients } => {
                for (a, b) in side.iter().flat_map(|a| others.iter().map(move |b| (a, b))) {
                    sim.hold(host(*a), host(*b));
                }
                for a in side.iter().filter(|_| *clients) {
                    sim.hold(host(*a), CLIENTS);
                }
            }
            Fault::OneWay { from, to } => {
                sim.hold(host(*from), host(*to));
                self.open.insert((sim.lookup(host(*to)), sim.lookup(host(*from))));
            }
            Fault::SlowLink { a, b, ms } => {
                sim.set_link_latency(host(*a), host(*b), Duration::from_millis(*ms));
            }
            Fault::SlowDisk(id) => self.seats[id].slow_disk(true),
            Fault::FailingDisk(id) => {
                let writes = self.rng.random_range(0..LAST_WRITES);
                self.seats[id].disk.fail_writes_after(writes);
            }
            Fault::FullDisk(id) => self.seats[id].disk.set_free_bytes(0),
            Fault::Wiped(id) => {
                self.down(sim, witness, &[*id], Loses::All);
                self.seats[id].disk.wipe();
                self.wiped = Some(*id);
                if *id > self.first {
                    let others = self.membership.members.iter().filter(|other| *other != id);
                    let others = others.map(|other| member(*other).rpc).collect();
                    self.seats[id].enter_by(Admission::Join(others));
                }
            }
            Fault::Broken(id, other) => {
                let (a, b) = (host(*id), other.map_or_else(|| CLIENTS.to_owned(), host));
                sim.partition(&*a, &*b);
                self.links.break_between(sim.lookup(&*a), sim.lookup(&*b));
                sim.repair(&*a, &*b);
            }
        }
    }

    fn undo(&mut self, sim: &mut Sim<'_>, fault: &Fault) {
        self.trace.note(sim.elapsed().as_millis(), format_args!("heal {fault}"));
        match fault {
            Fault::Down { ids, .. } => {
                for id in ids {
                    self.restart(sim, *id);
                }
            }
            Fault::Stopped(id) => self.restart(sim, *id),
            Fault::Cut { side, others, clients } => {
                for (a, b) in side.iter().flat_map(|a| others.iter().map(move |b| (a, b))) {
                    sim.release(host(*a), host(*b));
                }
                for a in side.iter().filter(|_| *clients) {
                    sim.release(host(*a), CLIENTS);
                }
            }
            Fault::OneWay { from, to } => {
                self.open.remove(&(sim.lookup(host(*to)), sim.lookup(host(*from))));
                sim.release(host(*from), host(*to));
            }
            Fault::SlowLink { a, b, .. } => {
                sim.set_link_latency(host(*a), host(*b), *LATENCY.start());
                sim.set_link_max_message_latency(host(*a), host(*b), *LATENCY.end());
            }
            Fault::SlowDisk(id) => self.seats[id].slow_disk(false),
            Fault::FailingDisk(id) => {
                self.seats[id].disk.fail_writes(false);
                if self.is_down(*id) {
                    let kept: bool = self.rng.random();
                    let keep = |pending| if kept { pending } else { 0 };
                    self.seats[id].disk.power_cut_keeping(keep);
                    self.restart(sim, *id);
                }
            }
            Fault::FullDisk(id) => self.seats[id].disk.set_free_bytes(u64::MAX),
            Fault::Wiped(id) => self.restart(sim, *id),
            Fault::Broken(..) => {}
        }
    }

    /// Ends processes at one moment.
    fn down(&mut self, sim: &mut Sim<'_>, witness: &mut Witness, ids: &[u64], loses: Loses) {
        for id in ids {
            let seat = Arc::clone(&self.seats[id]);
            // Whatever a crash unwinds here does not happen in a process that is gone.
            seat.disk.fail_writes(true);
            seat.forget();
            seat.renew();
            witness.ended(*id);
            if sim.is_host_running(host(*id)) {
                sim.crash(host(*id));
            }
            let rng = &mut self.rng;
            let mut some = |pending| rng.random_range(0..=pending);
            match loses {
                Loses::Nothing => seat.disk.kill_keeping(some),
                Loses::Some => seat.disk.power_cut_keeping(&mut some),
                Loses::All => seat.disk.power_cut(),
            }
            seat.disk.fail_writes(false);
        }
    }

    /// Starts a node that is down, unless another fault keeps it there.
    fn restart(&mut self, sim: &mut Sim<'_>, id: u64) {
        let keeps = |fault: &Fault| match fault {
            Fault::Down { ids, .. } => ids.contains(&id),
            Fault::Stopped(down) | Fault::FailingDisk(down) | Fault::Wiped(down) => *down == id,
            Fault::Cut { .. }
            | Fault::OneWay { .. }
            | Fault::SlowLink { .. }
            | Fault::SlowDisk(_)
            | Fault::FullDisk(_)
            | Fault::Broken(..) => false,
        };
        let is_kept = self.active.iter().any(|(_, fault)| keeps(fault));
        if is_kept || !self.membership.members.contains(&id) {
            return;
        }
        if !self.is_down(id) {
            return;
        }
        let seat = &self.seats[&id];
        seat.disk.fail_writes(true);
        if sim.is_host_running(host(id)) {
            // It was stopping.
            sim.crash(host(id));
        }
        seat.renew();
        seat.disk.kill_keeping(|pending| pending);
        seat.disk.fail_writes(false);
        sim.bounce(host(id));
    }

    /// Lets pass what goes the open way over a link that is held.
    fn pass_one_way(&self, sim: &Sim<'_>) {
        if self.open.is_empty() {
            return;
        }
        sim.links(|links| {
            for sent in links.flatten() {
                let (from, to) = sent.pair();
                if self.open.contains(&(from.ip(), to.ip())) {
                    sent.deliver();
                }
            }
        });
    }

    /// Has the operator change the cluster.
    fn order(&mut self, sim: &mut Sim<'_>, clients: &Clients) {
        if self.membership.is_changing {
            return;
        }
        let members: Vec<u64> = self.membership.members.iter().copied().collect();
        let change = match (self.membership.learner, self.rng.random_range(0..4)) {
            (Some(id), 0..3) => Change::Promote { id },
            (None, 0..2) if self.membership.joined < SPARE => {
                let id = self.join(sim);
                Change::Add(Address { id, http: member(id).http, rpc: member(id).rpc })
            }
            (_, 2) if members.len() > 3 => {
                Change::Remove { id: *members.choose(&mut self.rng).expect("there are some") }
            }
            _ => Change::Transfer { to: *members.choose(&mut self.rng).expect("there are some") },
        };
        self.trace.note(sim.elapsed().as_millis(), format_args!("order {change:?}"));
        self.membership.is_changing = true;
        clients.order(change);
    }

    /// Starts a node that is none of the first.
    fn join(&mut self, sim: &mut Sim<'_>) -> u64 {
        self.membership.joined += 1;
        let id = self.first + self.membership.joined;
        let admission = Admission::Join(Vec::new());
        let seat = Arc::new(Seat::new(id, 1.0, &self.config, &self.links, admission));
        self.seats.insert(id, Arc::clone(&seat));
        sim.host(host(id), move || Arc::clone(&seat).live());
        self.membership.members.insert(id);
        id
    }

    fn follow_orders(&mut self, sim: &mut Sim<'_>, clients: &Clients, witness: &mut Witness) {
        for (change, is_taken) in clients.done() {
            self.membership.is_changing = false;
            match change {
                Change::Add(node) if is_taken => {
                    self.count("join");
                    self.membership.learner = Some(node.id);
                }
                Change::Promote { id } if is_taken => {
                    self.count("promotion");
                    self.membership.learner = self.membership.learner.filter(|other| *other != id);
                }
                Change::Remove { id } if is_taken => {
                    self.count("removal");
                    self.membership.members.remove(&id);
                    self.membership.learner = self.membership.learner.filter(|other| *other != id);
                    self.down(sim, witness, &[id], Loses::Nothing);
                }
                Change::Transfer { .. } if is_taken => self.count("transfer"),
                Change::Add(_)
                | Change::Promote { .. }
                | Change::Remove { .. }
                | Change::Transfer { .. } => {}
            }
            clients.know(self.membership.members.iter().copied().collect());
        }
    }
}
