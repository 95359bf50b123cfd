//! Disks that fail, lie, are slow, or do not hold what was written to them.
//!
//! A node whose disk has failed must end by itself and say why in one line; so must one that finds
//! its files damaged, if it finds out, and until then it must serve nothing that is wrong.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rand::RngExt as _;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use serde_json::Value;
use tenure_jepsen::http;

use crate::disks;
use crate::fleet::{Fleet, until};
use crate::members;
use crate::nemesis::{Attempt, Heal, ids, nobody, there, victims};

/// For a call to meet its fault: snapshots come every few seconds, writes all the time.
const MET_WITHIN: Duration = Duration::from_secs(3);
/// For a node to end once its disk has failed.
const ENDS_WITHIN: Duration = Duration::from_secs(10);
/// For the others to go on without a node, and for a damaged one to show what it has.
const SHOWS_WITHIN: Duration = Duration::from_secs(10);
/// What a block of a disk is.
const BLOCK: u64 = 4096;

/// Disks that fail now, and what must become of their nodes.
#[derive(Debug)]
pub(crate) enum Failing {
    /// These nodes were told that their disk has failed; where each one's log stood before.
    Broken(Vec<(u64, usize)>),
    /// These died in the middle of a write.
    Torn(Vec<u64>),
    /// These go on.
    Slow(Vec<u64>),
    /// These lose power now.
    Lying(Vec<u64>),
    /// This one was started with a damaged file.
    Damaged(u64, usize),
}

/// What the preloaded library does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    SyncError,
    WriteError,
    TornWrite,
    ShortWrite,
    SlowSync,
    Lie,
}

impl Fault {
    /// Its order, in the words of the library.
    fn line(self, rng: &mut StdRng) -> String {
        // Most of the time it is the log that fails, which is synced all the time.
        let part = *["/log", "/log", "/state", ""].choose(rng).unwrap_or(&"");
        match self {
            Self::SyncError => format!("sync-error 100 {part}"),
            Self::WriteError => format!("write-error 100 {part}"),
            Self::TornWrite => format!("write-torn 20 {part}"),
            Self::ShortWrite => "write-short 50".to_owned(),
            Self::SlowSync => format!("sync-slow {}", rng.random_range(20..400)),
            Self::Lie => "sync-lie 100".to_owned(),
        }
    }

    /// Has disks fail.
    pub(crate) fn install(self, fleet: &mut Fleet, rng: &mut StdRng) -> io::Result<Attempt> {
        let goes_on = matches!(self, Self::SlowSync | Self::ShortWrite);
        let (who, chosen) = if self == Self::Lie {
            ("all", ids(fleet, true))
        } else {
            victims(fleet, rng, goes_on)
        };
        let line = self.line(rng);
        let met = order(fleet, &chosen, &line, !goes_on)?;
        if met.is_empty() {
            return Ok(Attempt::Incomplete(format!("{line}: no call has met it")));
        }
        let what = format!("{who}: {line}, met by {:?}", ids_of(&met));
        let failing = match self {
            Self::SyncError | Self::WriteError => Failing::Broken(met),
            Self::TornWrite => Failing::Torn(ids_of(&met)),
            Self::Lie => Failing::Lying(ids_of(&met)),
            Self::SlowSync | Self::ShortWrite => Failing::Slow(ids_of(&met)),
        };
        Ok(Attempt::Installed(what, Heal::Disks(failing)))
    }
}

fn ids_of(met: &[(u64, usize)]) -> Vec<u64> {
    met.iter().map(|(id, _)| *id).collect()
}

/// Orders a fault, and waits until somebody has met it: on a part of the files first, on all of
/// them if that part is not touched. It is taken back from those who have not met it.
fn order(
    fleet: &mut Fleet,
    chosen: &[u64],
    line: &str,
    may_end: bool,
) -> io::Result<Vec<(u64, usize)>> {
    let before: Vec<(u64, usize, usize)> =
        chosen.iter().map(|id| (*id, fleet.said(*id), fleet.disk_faults_met(*id))).collect();
    let words: Vec<&str> = line.split(' ').take(2).collect();
    for line in [line, &words.join(" ")] {
        for id in chosen {
            fleet.member(*id)?.may_end |= may_end;
            fleet.set_disk_fault(*id, line)?;
        }
        let met = |(id, _, met): &&(u64, usize, usize)| fleet.disk_faults_met(*id) > *met;
        until(MET_WITHIN, || before.iter().all(|one| met(&one)).then_some(()));
        // Somebody who meets it from here on goes on, or ends, as one who has met it.
        for (id, ..) in before.iter().filter(|one| !met(one)) {
            fleet.set_disk_fault(*id, "")?;
        }
        let met: Vec<(u64, usize)> =
            before.iter().filter(met).map(|(id, said, _)| (*id, *said)).collect();
        for id in chosen.iter().filter(|id| !ids_of(&met).contains(id)) {
            fleet.member(*id)?.may_end = false;
        }
        if !met.is_empty() {
            return Ok(met);
        }
    }
    Ok(Vec::new())
}

impl Failing {
    pub(crate) fn heal(self, fleet: &mut Fleet) -> io::Result<()> {
        match self {
            Self::Broken(told) => {
                for (id, said) in &told {
                    if !there(fleet, &[*id]).is_empty() {
                        must_end(fleet, *id, *said)?;
                    }
                }
                restart(fleet, &ids_of(&told))
            }
            Self::Torn(ids) => {
                for id in there(fleet, &ids) {
                    fleet.ends_within(id, ENDS_WITHIN)?;
                }
                restart(fleet, &ids)
            }
            Self::Slow(ids) => {
                there(fleet, &ids).iter().try_for_each(|id| fleet.set_disk_fault(*id, ""))
            }
            Self::Lying(ids) => restart(fleet, &ids),
            Self::Damaged(id, said) => {
                shows_nothing_wrong(fleet, id, said)?;
                let data = fleet.data_dir(id)?;
                members::replace(fleet, id)?;
                fs::remove_dir_all(data)
            }
        }
    }
}

/// A node that was told that its disk has failed ends, and says so in one line.
fn must_end(fleet: &mut Fleet, id: u64, said: usize) -> io::Result<()> {
    let Some(status) = fleet.ends_within(id, ENDS_WITHIN)? else {
        fleet.wrong.push(format!("node {id} goes on though its disk has failed"));
        return Ok(());
    };
    says_why(fleet, id, said, status);
    Ok(())
}

/// How a node ends that cannot go on: exit code 1, and one line that begins with its name.
fn says_why(fleet: &mut Fleet, id: u64, said: usize, status: std::process::ExitStatus) {
    let text = fleet.said_since(id, said);
    let lines = text.lines().filter(|line| line.starts_with("tenure: ")).count();
    if status.code() != Some(1) || lines != 1 {
        let last = text.lines().last().unwrap_or_default();
        fleet.wrong.push(format!("node {id} ended with {status}, {lines} lines say why: {last}"));
    }
}

/// New disks for nodes: the old ones lose what was not synced, where that can be done.
fn restart(fleet: &mut Fleet, ids: &[u64]) -> io::Result<()> {
    let ids = there(fleet, ids);
    let disks: Vec<&disks::Disk> = ids.iter().filter_map(|id| fleet.disk(*id)).collect();
    disks::cut(&disks)?;
    for id in &ids {
        fleet.kill(*id)?;
        fleet.set_disk_fault(*id, "")?;
        if let Some(disk) = fleet.disk(*id) {
            disk.mount_again()?;
        }
        fleet.member(*id)?.may_end = false;
    }
    ids.iter().try_for_each(|id| fleet.launch(*id))
}

/// Stops a node, damages one of its files, and starts it again.
///
/// A log that has lost its end cannot know it. So that nothing rests on this node alone, all others
/// first hold everything that it may have acknowledged, and more.
pub(crate) fn damage(fleet: &mut Fleet, rng: &mut StdRng) -> io::Result<Attempt> {
    let incomplete = |why: &str| Ok(Attempt::Incomplete(why.to_owned()));
    let (_, victims) = victims(fleet, rng, false);
    let victim = *victims.first().ok_or_else(nobody)?;
    if ids(fleet, true).len() < fleet.members.len() {
        return incomplete("a node is down already");
    }
    fleet.kill(victim)?;
    let last = fleet.status().iter().filter_map(|one| one["last_index"].as_u64()).max();
    let others = fleet.members.len() - 1;
    let go_on = until(SHOWS_WITHIN, || {
        let status = fleet.status();
        let is_past = |one: &&Value| one["applied_index"].as_u64() > last;
        (status.iter().filter(is_past).count() == others).then_some(())
    });
    if go_on.is_none() {
        fleet.launch(victim)?;
        return incomplete("the others do not go on without the node");
    }
    let file = pick(&fleet.data_dir(victim)?, rng)?;
    let how = spoil(&file, rng)?;
    let said = fleet.said(victim);
    fleet.member(victim)?.may_end = true;
    fleet.launch(victim)?;
    let what = format!("node {victim}: {} {how}", file.display());
    Ok(Attempt::Installed(what, Heal::Disks(Failing::Damaged(victim, said))))
}

/// One of the files that matter: each kind as often as any other.
fn pick(data: &Path, rng: &mut StdRng) -> io::Result<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![data.to_owned()];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(dir)?.collect::<io::Result<Vec<_>>>()? {
            if entry.file_type()?.is_dir() {
                open.push(entry.path());
            } else if entry.metadata()?.len() > 0 {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    let kinds = [
        ("/log/", ".log"),
        ("/log/", ".sst"),
        ("/log/", "MANIFEST"),
        ("/state/", ".sst"),
        ("/state/", ".blob"),
        ("/state/", "MANIFEST"),
        ("/snapshots/", ".sst"),
        ("/snapshots/", ".blob"),
        ("/snapshots/", "MANIFEST"),
    ];
    let of = |(part, name): (&str, &str)| {
        let is_one = |path: &&PathBuf| {
            let path = path.to_string_lossy();
            path.contains(part) && path.contains(name)
        };
        found.iter().filter(is_one).cloned().collect::<Vec<_>>()
    };
    let there: Vec<Vec<PathBuf>> =
        kinds.into_iter().map(of).filter(|files| !files.is_empty()).collect();
    let kind = there.choose(rng).ok_or_else(|| io::Error::other("there are no files to damage"))?;
    kind.choose(rng).cloned().ok_or_else(nobody)
}

/// Damages a file, and says how.
fn spoil(path: &Path, rng: &mut StdRng) -> io::Result<String> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let length = file.metadata()?.len();
    match rng.random_range(0..4) {
        0 => {
            let left = rng.random_range(0..length);
            file.set_len(left)?;
            Ok(format!("cut to {left} of {length} bytes"))
        }
        1 => {
            let from = rng.random_range(0..length) / BLOCK * BLOCK;
            let zeros = vec![0; usize::try_from(BLOCK.min(length - from)).unwrap()];
            file.write_all_at(&zeros, from)?;
            Ok(format!("{} bytes zeroed from {from} of {length}", zeros.len()))
        }
        _ => {
            let places: Vec<u64> =
                (0..rng.random_range(1..6)).map(|_| rng.random_range(0..length)).collect();
            for place in &places {
                let mut byte = [0];
                file.read_exact_at(&mut byte, *place)?;
                byte[0] ^= 1 << rng.random_range(0..8);
                file.write_all_at(&byte, *place)?;
            }
            Ok(format!("a bit flipped at {places:?} of {length}"))
        }
    }
}

/// A damaged node either has ended and said why, or what it has is what the others have.
fn shows_nothing_wrong(fleet: &mut Fleet, id: u64, said: usize) -> io::Result<()> {
    let http = |id: u64| {
        let member = fleet.members.iter().find(|member| member.id == id);
        member.map_or_else(String::new, |member| fleet.http(member.host))
    };
    let (damaged, others) = (http(id), ids(fleet, true).into_iter().filter(|one| *one != id));
    let others: Vec<String> = others.map(http).collect();
    let shot = |http: &String| {
        let answer = http::ask(http, "POST", "/v1/cluster/snapshot", b"null").ok()?;
        (answer.status == 200).then(|| answer.json()).flatten()
    };
    // It may still be starting, or ending.
    let (mut mine, mut theirs): (Vec<Value>, Vec<Value>) = (Vec::new(), Vec::new());
    let mut ended = None;
    let differ = until(SHOWS_WITHIN, || {
        ended = fleet.ends_within(id, Duration::ZERO).transpose();
        if ended.is_some() {
            return Some(None);
        }
        mine.push(shot(&damaged)?);
        theirs.extend(others.iter().filter_map(shot));
        let pairs = mine.iter().flat_map(|mine| theirs.iter().map(move |other| (mine, other)));
        let (mine, other) =
            pairs.into_iter().find(|(mine, other)| mine["index"] == other["index"])?;
        Some((mine["hash"] != other["hash"]).then(|| format!("{mine} and {other}")))
    });
    if let Some(Some(differ)) = differ {
        fleet.wrong.push(format!("damaged node {id} has another state than the others: {differ}"));
    }
    match ended {
        Some(status) => says_why(fleet, id, said, status?),
        // It went on, and so must have shown something.
        None if mine.is_empty() => {
            fleet.wrong.push(format!("damaged node {id} neither ends nor has a state"));
        }
        None => {}
    }
    Ok(())
}
