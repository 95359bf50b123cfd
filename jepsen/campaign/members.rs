//! Changes of members, as an operator makes them.

use std::io;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use serde_json::Value;
use tenure_jepsen::http;

use crate::fleet::{Fleet, until};
use crate::nemesis::{Attempt, Heal, ids, nobody};

/// For one step of a change, while other faults may last.
const CHANGE_WITHIN: Duration = Duration::from_secs(10);

/// Why a change did not come about.
#[derive(Debug)]
pub(crate) enum Stopped {
    /// The machine's own.
    Machine(io::Error),
    /// Other faults were in its way.
    Incomplete(&'static str),
}

impl From<io::Error> for Stopped {
    fn from(error: io::Error) -> Self {
        Self::Machine(error)
    }
}

/// The members that a node knows, and their roles.
fn roles(http: &str) -> Option<Vec<(u64, String)>> {
    let status = http::get(http, "/v1/cluster").ok()?.json()?;
    let members = status["members"].as_array()?.iter();
    let role = |one: &Value| Some((one["id"].as_u64()?, one["role"].as_str()?.to_owned()));
    members.map(role).collect()
}

fn leader_http(fleet: &mut Fleet) -> Result<String, Stopped> {
    let leader = fleet.leader().ok_or(Stopped::Incomplete("nobody leads"))?;
    let host = fleet.member(leader)?.host;
    Ok(fleet.http(host))
}

/// A new node joins, or one that is a learner already goes on, and becomes a voter.
fn come(fleet: &mut Fleet, http: &str, learner: Option<u64>) -> Result<u64, Stopped> {
    let new = match learner {
        Some(id) => id,
        None => fleet.join(http)?.ok_or(Stopped::Incomplete("no host is free"))?,
    };
    let is_listed = || roles(http)?.iter().any(|(id, _)| *id == new).then_some(());
    until(CHANGE_WITHIN, is_listed)
        .ok_or(Stopped::Incomplete("the new node is no learner in time"))?;
    fleet.tell();
    let path = format!("/v1/cluster/members/{new}/promote");
    let promoted = until(CHANGE_WITHIN, || {
        let _ = http::ask(http, "POST", &path, b"{}");
        roles(http)?.iter().any(|(id, role)| *id == new && role != "learner").then_some(())
    });
    promoted.ok_or(Stopped::Incomplete("the new node is no voter in time"))?;
    Ok(new)
}

/// A node is removed, then stopped: nobody tells it.
fn go(fleet: &mut Fleet, victim: u64) -> Result<(), Stopped> {
    let removed = until(CHANGE_WITHIN, || {
        let path = format!("/v1/cluster/members/{victim}");
        // Any other node knows who leads now, if the one that leaves did.
        let http = fleet
            .status()
            .into_iter()
            .find(|one| one["id"].as_u64() != Some(victim) && !one["leader"].is_null())?;
        let host = fleet.members.iter().find(|member| Some(member.id) == http["id"].as_u64())?.host;
        let http = fleet.http(host);
        let _ = http::ask(&http, "DELETE", &path, b"");
        roles(&http)?.iter().all(|(id, _)| *id != victim).then_some(())
    });
    removed.ok_or(Stopped::Incomplete("the old node is still a member"))?;
    fleet.leave(victim);
    Ok(())
}

/// One node more, then one node less: the change that a machine's replacement is.
fn change(fleet: &mut Fleet, rng: &mut StdRng) -> Result<(u64, u64), Stopped> {
    let http = leader_http(fleet)?;
    let members = roles(&http).ok_or(Stopped::Incomplete("the leader is gone"))?;
    // What an earlier change has left.
    let known = |id: u64| members.iter().any(|(one, _)| *one == id);
    let gone: Vec<u64> = ids(fleet, false).into_iter().filter(|id| !known(*id)).collect();
    gone.into_iter().for_each(|id| fleet.leave(id));
    let there = ids(fleet, false);
    let (learner, lost): (Vec<u64>, Vec<u64>) = members
        .iter()
        .filter(|(_, role)| role == "learner")
        .map(|(id, _)| *id)
        .partition(|id| there.contains(id));
    for id in lost {
        let _ = http::ask(&http, "DELETE", &format!("/v1/cluster/members/{id}"), b"");
    }
    let new = come(fleet, &http, learner.first().copied())?;
    let others: Vec<u64> = ids(fleet, false).into_iter().filter(|id| *id != new).collect();
    let victim = *others.choose(rng).ok_or_else(nobody)?;
    go(fleet, victim)?;
    Ok((new, victim))
}

/// The fault: members change.
pub(crate) fn churn(fleet: &mut Fleet, rng: &mut StdRng) -> io::Result<Attempt> {
    match change(fleet, rng) {
        Ok((new, old)) => Ok(Attempt::Installed(format!("{new} came, {old} left"), Heal::Nothing)),
        Err(Stopped::Incomplete(why)) => Ok(Attempt::Incomplete(why.to_owned())),
        Err(Stopped::Machine(error)) => Err(error),
    }
}

/// What README says of a node that has lost its disk: it is removed, and another one joins with an
/// empty disk and a new id.
pub(crate) fn replace(fleet: &mut Fleet, victim: u64) -> io::Result<u64> {
    let replaced = go(fleet, victim).and_then(|()| {
        let leader = until(CHANGE_WITHIN, || leader_http(fleet).ok());
        let http = leader.ok_or(Stopped::Incomplete("nobody leads"))?;
        come(fleet, &http, None)
    });
    replaced.map_err(|stopped| match stopped {
        Stopped::Machine(error) => error,
        Stopped::Incomplete(why) => io::Error::other(format!("node {victim} stays: {why}")),
    })
}
