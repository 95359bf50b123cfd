//! Who does the faults: each kind installs one, and knows how to heal it.
//!
//! What is drawn depends on the seed alone, but for who leads, which is asked.

use std::io;
use std::time::Duration;

use clap::ValueEnum;
use rand::RngExt as _;
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom as _, SliceRandom as _};
use tenure_jepsen::http;

use crate::aimed;
use crate::bad_disks::{self, Failing, Fault};
use crate::disks;
use crate::fleet::Fleet;
use crate::groups::{Group, Scarce};
use crate::links::{Shape, Way};
use crate::members;
use crate::switch::Disturbance;

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Nemesis {
    /// Links are cut: halves, one way, a ring, one host alone, the leader first.
    Partition,
    /// Links lose packets.
    Lossy,
    /// Links to some hosts are narrow.
    Slow,
    /// What some links carry comes late, and not equally late.
    Delay,
    /// Some packets of some links are overtaken by those behind them.
    Reorder,
    /// Some packets of some links come twice.
    Duplicate,
    /// Some packets of some links have a bit flipped.
    Corrupt,
    /// SIGKILL of one node, the leader, a majority, or all.
    Kill,
    /// SIGSTOP of one node, the leader, or a majority.
    Pause,
    /// A node gets little of the processor: the leader, one, or a majority.
    Starve,
    /// A node gets little memory beyond what it has.
    Memory,
    /// Wall clocks jump, or run too fast.
    Clock,
    /// Disks lose power, one or all at once, and what was not synced.
    PowerCut,
    /// A disk is full.
    DiskFull,
    /// A disk cannot sync.
    SyncError,
    /// A disk cannot write.
    WriteError,
    /// A node dies in the middle of a write, and a part of it is on its disk.
    TornWrite,
    /// Each write takes a part of the bytes.
    ShortWrite,
    /// A sync takes long.
    SlowDisk,
    /// Disks report syncs that they did not make, then lose power. Nothing survives that: the run
    /// must be invalid.
    LyingDisk,
    /// A file of a stopped node is damaged: bits flipped, a block zeroed, an end cut off.
    Damage,
    /// A new node joins and another leaves.
    Membership,
    /// Snapshots, again and again.
    Snapshot,
    /// The leader hears nobody, and all hear it.
    Deaf,
    /// One follower does not hear the leader, who hears it.
    Mute,
    /// The leader is killed while the clocks of all others are behind.
    Skew,
}

/// What undoes a fault.
#[derive(Debug)]
pub(crate) enum Heal {
    Nothing,
    Links(Disturbance, Vec<Way>),
    Launch(Vec<u64>),
    Resume(Vec<u64>),
    Plenty(Vec<(u64, Group)>),
    Clocks(Vec<u64>),
    Power(Vec<u64>),
    Room(u64),
    Disks(Failing),
    All(Vec<Heal>),
}

/// What came of the wish to do a fault.
#[derive(Debug)]
pub(crate) enum Attempt {
    /// It is there: what it is, and what undoes it.
    Installed(String, Heal),
    /// It cannot be had here: why.
    Skipped(String),
    /// It did not come about, for a reason that a run may have: why.
    Incomplete(String),
}

/// Disk faults exclude each other, and the loss of a kill. What Raft rests on must hold for all
/// nodes but one while that one is damaged: nothing else goes on then.
pub(crate) fn may_overlap(a: Nemesis, b: Nemesis) -> bool {
    let disk = |one: Nemesis| {
        one.hurts_disks() || matches!(one, Nemesis::Kill | Nemesis::Skew | Nemesis::Memory)
    };
    let cut = |one| matches!(one, Nemesis::Partition | Nemesis::Deaf | Nemesis::Mute);
    let clock = |one| matches!(one, Nemesis::Clock | Nemesis::Skew);
    let alone = |one| matches!(one, Nemesis::Damage | Nemesis::LyingDisk);
    let either = |is: &dyn Fn(Nemesis) -> bool| is(a) || is(b);
    let both = |is: &dyn Fn(Nemesis) -> bool| is(a) && is(b);
    a != b && !either(&alone) && !both(&disk) && !both(&cut) && !both(&clock)
}

impl Nemesis {
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// What a switch of our own does for it, and only that.
    pub(crate) fn disturbance(self) -> Option<Disturbance> {
        match self {
            Self::Delay => Some(Disturbance::Delay),
            Self::Reorder => Some(Disturbance::Reorder),
            Self::Duplicate => Some(Disturbance::Duplicate),
            Self::Corrupt => Some(Disturbance::Corrupt),
            Self::Partition
            | Self::Lossy
            | Self::Slow
            | Self::Kill
            | Self::Pause
            | Self::Starve
            | Self::Memory
            | Self::Clock
            | Self::PowerCut
            | Self::DiskFull
            | Self::SyncError
            | Self::WriteError
            | Self::TornWrite
            | Self::ShortWrite
            | Self::SlowDisk
            | Self::LyingDisk
            | Self::Damage
            | Self::Membership
            | Self::Deaf
            | Self::Mute
            | Self::Skew
            | Self::Snapshot => None,
        }
    }

    pub(crate) fn hurts_disks(self) -> bool {
        matches!(self, Self::PowerCut | Self::DiskFull | Self::Damage) || self.fails_disks()
    }

    /// Whether it needs the preloaded library.
    pub(crate) fn is_preloaded(self) -> bool {
        self.sets_clocks() || self.fails_disks()
    }

    fn fails_disks(self) -> bool {
        matches!(
            self,
            Self::SyncError
                | Self::WriteError
                | Self::TornWrite
                | Self::ShortWrite
                | Self::SlowDisk
                | Self::LyingDisk
        )
    }

    /// Whether it sets clocks.
    pub(crate) fn sets_clocks(self) -> bool {
        matches!(self, Self::Clock | Self::Skew)
    }

    /// Whether it may keep a leader from learning that a waiter has hung up.
    pub(crate) fn hides_hang_ups(self) -> bool {
        matches!(
            self,
            Self::Partition | Self::Lossy | Self::Slow | Self::Pause | Self::Deaf | Self::Mute
        )
    }

    /// Whether it ends a leadership.
    pub(crate) fn deposes(self) -> bool {
        matches!(
            self,
            Self::Partition | Self::Kill | Self::Pause | Self::PowerCut | Self::Deaf | Self::Skew
        )
    }

    /// Installs one.
    ///
    /// # Errors
    /// The machine's own: whether there is a fault is not known then.
    pub(crate) fn install(self, fleet: &mut Fleet, rng: &mut StdRng) -> io::Result<Attempt> {
        let skipped = |why: &str| Ok(Attempt::Skipped(why.to_owned()));
        match self {
            Self::PowerCut | Self::DiskFull | Self::LyingDisk if !fleet.has_disks() => {
                skipped("there are no disks to hurt on this rung")
            }
            Self::Partition => partition(fleet, rng),
            Self::Lossy => disturb(fleet, rng, Disturbance::Lossy, 0.2),
            Self::Slow => disturb(fleet, rng, Disturbance::Narrow, 1.0),
            Self::Delay => {
                let ms = rng.random_range(5..200);
                disturb(fleet, rng, Disturbance::Delay, f64::from(ms))
            }
            Self::Reorder => disturb(fleet, rng, Disturbance::Reorder, 0.25),
            Self::Duplicate => disturb(fleet, rng, Disturbance::Duplicate, 0.25),
            Self::Corrupt => disturb(fleet, rng, Disturbance::Corrupt, 0.1),
            Self::Kill => {
                let (what, victims) = victims(fleet, rng, true);
                victims.iter().try_for_each(|id| fleet.kill(*id))?;
                Ok(Attempt::Installed(format!("{what}: {victims:?}"), Heal::Launch(victims)))
            }
            Self::Pause => {
                let (what, victims) = victims(fleet, rng, false);
                victims.iter().try_for_each(|id| fleet.pause(*id))?;
                Ok(Attempt::Installed(format!("{what}: {victims:?}"), Heal::Resume(victims)))
            }
            Self::Starve => {
                let us = rng.random_range(2_000..20_000);
                scarce(fleet, rng, Scarce::Processor(us))
            }
            Self::Memory => {
                let bytes = rng.random_range(1 << 20..16 << 20);
                scarce(fleet, rng, Scarce::Memory(bytes))
            }
            Self::Clock => clock(fleet, rng),
            Self::PowerCut => power_cut(fleet, rng),
            Self::DiskFull => {
                let victim = *ids(fleet, true).choose(rng).ok_or_else(nobody)?;
                fleet.member(victim)?.may_end = true;
                fleet.disk(victim).ok_or_else(nobody)?.fill()?;
                Ok(Attempt::Installed(format!("of node {victim}"), Heal::Room(victim)))
            }
            Self::SyncError => Fault::SyncError.install(fleet, rng),
            Self::WriteError => Fault::WriteError.install(fleet, rng),
            Self::TornWrite => Fault::TornWrite.install(fleet, rng),
            Self::ShortWrite => Fault::ShortWrite.install(fleet, rng),
            Self::SlowDisk => Fault::SlowSync.install(fleet, rng),
            Self::LyingDisk => Fault::Lie.install(fleet, rng),
            Self::Damage => bad_disks::damage(fleet, rng),
            Self::Membership => members::churn(fleet, rng),
            Self::Deaf => aimed::deaf(fleet),
            Self::Mute => aimed::mute(fleet, rng),
            Self::Skew => aimed::skew(fleet),
            Self::Snapshot => {
                let taken = fleet.members.iter().filter(|member| member.is_up()).filter(|member| {
                    let http = fleet.http(member.host);
                    http::ask(&http, "POST", "/v1/cluster/snapshot", b"null")
                        .is_ok_and(|answer| answer.status == 200)
                });
                match taken.count() {
                    0 => Ok(Attempt::Incomplete("no node took one".to_owned())),
                    nodes => Ok(Attempt::Installed(format!("of {nodes} nodes"), Heal::Nothing)),
                }
            }
        }
    }
}

pub(crate) fn nobody() -> io::Error {
    io::Error::other("there is no node to do it to")
}

impl Heal {
    /// Undoes a fault.
    ///
    /// # Errors
    /// The machine's own: whether the fault is still there is not known then.
    pub(crate) fn heal(self, fleet: &mut Fleet) -> io::Result<()> {
        match self {
            Self::Nothing => Ok(()),
            Self::Links(what, ways) => fleet.links.calm(what, &ways),
            Self::Launch(ids) => there(fleet, &ids).into_iter().try_for_each(|id| fleet.launch(id)),
            Self::Resume(ids) => there(fleet, &ids).into_iter().try_for_each(|id| fleet.resume(id)),
            Self::Plenty(groups) => {
                for (id, group) in groups {
                    let is_there = !there(fleet, &[id]).is_empty();
                    if is_there {
                        fleet.ends_within(id, Duration::ZERO)?;
                    }
                    group.release()?;
                    if is_there {
                        fleet.member(id)?.may_end = false;
                        fleet.launch(id)?;
                    }
                }
                Ok(())
            }
            Self::Clocks(ids) => ids.iter().try_for_each(|id| fleet.set_clock(*id, "")),
            Self::Power(ids) => {
                for id in there(fleet, &ids) {
                    fleet.disk(id).ok_or_else(nobody)?.mount_again()?;
                    fleet.member(id)?.may_end = false;
                    fleet.launch(id)?;
                }
                Ok(())
            }
            Self::Room(id) => {
                if there(fleet, &[id]).is_empty() {
                    return Ok(());
                }
                fleet.disk(id).ok_or_else(nobody)?.make_room()?;
                // A node that met the end of its disk has ended or is about to.
                fleet.kill(id)?;
                fleet.member(id)?.may_end = false;
                fleet.launch(id)
            }
            Self::Disks(failing) => failing.heal(fleet),
            Self::All(heals) => heals.into_iter().try_for_each(|heal| heal.heal(fleet)),
        }
    }
}

/// Those that are still members.
pub(crate) fn there(fleet: &Fleet, ids: &[u64]) -> Vec<u64> {
    let is_there = |id: &u64| fleet.members.iter().any(|member| member.id == *id);
    ids.iter().copied().filter(is_there).collect()
}

fn hosts(fleet: &Fleet) -> Vec<usize> {
    fleet.members.iter().map(|member| member.host).collect()
}

fn every_way(hosts: &[usize]) -> Vec<Way> {
    let from = |from: usize| hosts.iter().filter(move |to| **to != from).map(move |to| (from, *to));
    hosts.iter().flat_map(|host| from(*host)).collect()
}

pub(crate) fn ids(fleet: &Fleet, up: bool) -> Vec<u64> {
    let members = fleet.members.iter().filter(|member| !up || member.is_up());
    members.map(|member| member.id).collect()
}

/// One or more, but not all.
fn some<T: Copy>(of: &[T], rng: &mut StdRng) -> Vec<T> {
    let mut some = of.to_vec();
    some.shuffle(rng);
    some.truncate(rng.random_range(1..of.len().max(2)));
    some
}

/// Who is to suffer: one, the leader, a majority, and, if it may be, all.
pub(crate) fn victims(fleet: &Fleet, rng: &mut StdRng, all: bool) -> (&'static str, Vec<u64>) {
    let mut up = ids(fleet, true);
    up.shuffle(rng);
    let majority = fleet.members.len() / 2 + 1;
    match rng.random_range(0..10) {
        0..4 => (
            "the leader",
            fleet.leader().map_or_else(|| up[..1.min(up.len())].to_vec(), |id| vec![id]),
        ),
        4..6 => ("one", up.into_iter().take(1).collect()),
        6..8 => ("a majority", up.into_iter().take(majority).collect()),
        _ if all => ("all", up),
        _ => ("one", up.into_iter().take(1).collect()),
    }
}

/// Disturbs all links, or those to some hosts, or those from some hosts.
fn disturb(
    fleet: &Fleet,
    rng: &mut StdRng,
    what: Disturbance,
    strength: f64,
) -> io::Result<Attempt> {
    if let Some(why) = fleet.links.cannot(what) {
        return Ok(Attempt::Skipped(why));
    }
    let hosts = hosts(fleet);
    let some = some(&hosts, rng);
    let mut ways = every_way(&hosts);
    let which = match (what, rng.random_range(0..3)) {
        (Disturbance::Narrow, _) | (_, 0) => {
            ways.retain(|(_, to)| some.contains(to));
            format!("to hosts {some:?}")
        }
        (_, 1) => {
            ways.retain(|(from, _)| some.contains(from));
            format!("from hosts {some:?}")
        }
        _ => "all links".to_owned(),
    };
    fleet.links.disturb(what, strength, &ways)?;
    Ok(Attempt::Installed(format!("{which}, {strength}"), Heal::Links(what, ways)))
}

fn partition(fleet: &mut Fleet, rng: &mut StdRng) -> io::Result<Attempt> {
    if let Some(why) = fleet.links.cannot(Disturbance::Cut) {
        return Ok(Attempt::Skipped(why));
    }
    let hosts = hosts(fleet);
    let shape = *Shape::ALL.choose(rng).unwrap_or(&Shape::Alone);
    let leader = fleet.leader().filter(|_| rng.random_range(0..3) > 0);
    let leads = |member: &&crate::fleet::Member| Some(member.id) == leader;
    let first = fleet.members.iter().find(leads).map(|member| member.host);
    let who = if first.is_some() { "the leader" } else { "anyone" };
    let first = first.or_else(|| hosts.choose(rng).copied()).ok_or_else(nobody)?;
    let mut ways = shape.ways(&hosts, first, rng);
    let deaf = shape == Shape::OneWay && rng.random();
    if deaf {
        ways = ways.into_iter().map(|(from, to)| (to, from)).collect();
    }
    fleet.links.disturb(Disturbance::Cut, 1.0, &ways)?;
    let deaf = if deaf { ", who hears nothing" } else { "" };
    let what = format!("{}, {who} first{deaf}: {ways:?}", shape.name());
    Ok(Attempt::Installed(what, Heal::Links(Disturbance::Cut, ways)))
}

/// Makes something scarce for some nodes. One that has no memory is killed, sooner or later.
fn scarce(fleet: &mut Fleet, rng: &mut StdRng, scarce: Scarce) -> io::Result<Attempt> {
    let (who, victims) = victims(fleet, rng, false);
    let mut groups = Vec::new();
    for id in &victims {
        let Some(process) = fleet.process_id(*id) else { continue };
        match Group::with(scarce, process) {
            Ok(group) => groups.push((*id, group)),
            // Nobody has been hurt.
            Err(error) if groups.is_empty() => return Ok(Attempt::Skipped(error.to_string())),
            Err(error) => return Err(error),
        }
        fleet.member(*id)?.may_end |= matches!(scarce, Scarce::Memory(_));
    }
    Ok(Attempt::Installed(format!("{who}: {victims:?}, {scarce:?}"), Heal::Plenty(groups)))
}

fn clock(fleet: &mut Fleet, rng: &mut StdRng) -> io::Result<Attempt> {
    let ids = some(&ids(fleet, false), rng);
    let mut what = Vec::new();
    for id in &ids {
        // Seconds, and the rate in parts of a thousand.
        let clocks = ["-3600 1000", "-30 1000", "30 1000", "3600 1000", "0 1500", "0 500"];
        let clock = *clocks.choose(rng).unwrap_or(&"30 1000");
        fleet.set_clock(*id, clock)?;
        what.push(format!("node {id} {clock}"));
    }
    Ok(Attempt::Installed(what.join(", "), Heal::Clocks(ids)))
}

fn power_cut(fleet: &mut Fleet, rng: &mut StdRng) -> io::Result<Attempt> {
    let (what, victims) = match rng.random_range(0..3) {
        0 => victims(fleet, rng, false),
        _ => ("all at once", ids(fleet, false)),
    };
    for id in &victims {
        fleet.member(*id)?.may_end = true;
    }
    let disks: Vec<&disks::Disk> = victims.iter().filter_map(|id| fleet.disk(*id)).collect();
    disks::cut(&disks)?;
    victims.iter().try_for_each(|id| fleet.kill(*id))?;
    Ok(Attempt::Installed(format!("{what}: {victims:?}"), Heal::Power(victims)))
}
