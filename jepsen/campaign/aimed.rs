//! Faults aimed at one mistake each, which faults drawn at random would seldom show.

use std::io;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;

use crate::fleet::Fleet;
use crate::links::Way;
use crate::nemesis::{Attempt, Heal};
use crate::switch::Disturbance;

/// What the clocks of those that may lead next are set to.
const BEHIND: &str = "-30 1000";

/// The leader hears nobody, and all hear it: what it proposes is stored by the others, committed by
/// the next leader, and unknown to whoever sent it.
pub(crate) fn deaf(fleet: &mut Fleet) -> io::Result<Attempt> {
    let Some(leader) = fleet.leader() else { return nobody_leads() };
    let deaf = fleet.member(leader)?.host;
    let others = fleet.members.iter().map(|member| member.host).filter(|host| *host != deaf);
    let ways = others.map(|host| (host, deaf)).collect();
    cut(fleet, format!("node {leader}, who leads"), ways)
}

/// One follower hears nothing of the leader, who hears it: what it forwards is run, and never
/// answered.
pub(crate) fn mute(fleet: &mut Fleet, rng: &mut StdRng) -> io::Result<Attempt> {
    let Some(leader) = fleet.leader() else { return nobody_leads() };
    let mute = fleet.member(leader)?.host;
    let others: Vec<usize> =
        fleet.members.iter().map(|member| member.host).filter(|host| *host != mute).collect();
    let Some(to) = others.choose(rng) else { return nobody_leads() };
    cut(fleet, format!("node {leader}, who leads, to host {to}"), vec![(mute, *to)])
}

fn cut(fleet: &Fleet, what: String, ways: Vec<Way>) -> io::Result<Attempt> {
    if let Some(why) = fleet.links.cannot(Disturbance::Cut) {
        return Ok(Attempt::Skipped(why));
    }
    fleet.links.disturb(Disturbance::Cut, 1.0, &ways)?;
    Ok(Attempt::Installed(what, Heal::Links(Disturbance::Cut, ways)))
}

/// The leader is killed, and the clock of everybody else is behind.
pub(crate) fn skew(fleet: &mut Fleet) -> io::Result<Attempt> {
    let Some(leader) = fleet.leader() else { return nobody_leads() };
    let others: Vec<u64> =
        fleet.members.iter().map(|member| member.id).filter(|id| *id != leader).collect();
    others.iter().try_for_each(|id| fleet.set_clock(*id, BEHIND))?;
    fleet.kill(leader)?;
    let what = format!("node {leader}, who led, is killed; {others:?} are 30 s behind");
    Ok(Attempt::Installed(what, Heal::All(vec![Heal::Clocks(others), Heal::Launch(vec![leader])])))
}

fn nobody_leads() -> io::Result<Attempt> {
    Ok(Attempt::Incomplete("nobody leads".to_owned()))
}
