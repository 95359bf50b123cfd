//! Hosts with addresses of their own, joined by a bridge or a switch, and what can be done to the
//! links between them. The run itself sits at the middle: its own link to each host is left alone.

use std::collections::BTreeSet;
use std::io;

use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;

use crate::isolation::{tool, tool_with};
use crate::switch::{Disturbance, Switch};

/// A direction of a link: from host, to host.
pub(crate) type Way = (usize, usize);

/// Of the packets on a lossy link, in percent.
const LOSS: u32 = 20;

/// Everything that crosses the bridge passes these two sets. ARP is spared, so that a heal needs no
/// new look-up.
const RULES: &str = "
table bridge links {
    set cut { type ifname . ifname; }
    set lossy { type ifname . ifname; }
    chain forward {
        type filter hook forward priority 0; policy accept;
        ether type arp accept
        iifname . oifname @cut counter drop
        iifname . oifname @lossy numgen random mod 100 < LOSS counter drop
    }
}
";

/// What joins the hosts.
#[derive(Debug)]
pub(crate) enum Links {
    /// They are processes on one host.
    None,
    /// The kernel's bridge. Why it has no rules, if it has none; why there is no switch.
    Bridge { no_rules: Option<String>, no_switch: String },
    /// A switch of our own.
    Switch(Switch),
}

impl Links {
    /// Builds so many hosts, numbered from 1. Must run on a rung that has links.
    pub(crate) fn build(hosts: usize, by_switch: bool, seed: u64) -> io::Result<Self> {
        tool("mount -t tmpfs tmpfs /run")?;
        tool("ip link set lo up")?;
        let mut no_switch = "the run was not asked for it".to_owned();
        if by_switch {
            match tenure_ioctl::tap("probe") {
                Ok(_) => return Switch::build(hosts, seed).map(Self::Switch),
                Err(error) => no_switch = format!("no TAP can be had here: {error}"),
            }
        }
        build_bridge(hosts)?;
        let rules = RULES.replace("LOSS", &LOSS.to_string());
        // It fails where there is no nftables.
        let no_rules = tool_with("nft -f -", &rules).err().map(|error| error.to_string());
        Ok(Self::Bridge { no_rules, no_switch })
    }

    /// Why a disturbance cannot be had.
    pub(crate) fn cannot(&self, what: Disturbance) -> Option<String> {
        match (self, what) {
            (Self::None, _) => Some("there are no links on this rung".to_owned()),
            (Self::Switch(_), _) | (Self::Bridge { .. }, Disturbance::Narrow) => None,
            (Self::Bridge { no_rules, .. }, Disturbance::Cut | Disturbance::Lossy) => {
                no_rules.clone()
            }
            (Self::Bridge { no_switch, .. }, _) => Some(no_switch.clone()),
        }
    }

    /// Disturbs links. The strength is a part of all packets, or milliseconds; what the bridge
    /// does has one strength.
    pub(crate) fn disturb(&self, what: Disturbance, strength: f64, ways: &[Way]) -> io::Result<()> {
        match self {
            Self::None => Err(io::ErrorKind::Unsupported.into()),
            Self::Switch(switch) => {
                switch.disturb(what, strength, ways);
                Ok(())
            }
            Self::Bridge { .. } if what == Disturbance::Narrow => {
                targets(ways).into_iter().try_for_each(|host| {
                    // A queue in front of a narrow pipe.
                    tool(&format!(
                        "tc qdisc add dev v{host} root tbf rate 400kbit burst 8kb latency 400ms"
                    ))
                })
            }
            Self::Bridge { .. } => {
                let elements: Vec<String> =
                    ways.iter().map(|(from, to)| format!("\"v{from}\" . \"v{to}\"")).collect();
                let set = set_of(what)?;
                let line =
                    format!("add element bridge links {set} {{ {} }}\n", elements.join(", "));
                tool_with("nft -f -", &line)
            }
        }
    }

    /// Undoes it.
    pub(crate) fn calm(&self, what: Disturbance, ways: &[Way]) -> io::Result<()> {
        match self {
            Self::None => Ok(()),
            Self::Switch(switch) => {
                switch.calm(what);
                Ok(())
            }
            Self::Bridge { .. } if what == Disturbance::Narrow => targets(ways)
                .into_iter()
                .try_for_each(|host| tool(&format!("tc qdisc del dev v{host} root"))),
            Self::Bridge { .. } => tool(&format!("nft flush set bridge links {}", set_of(what)?)),
        }
    }

    /// How many packets a disturbance has met, where that is counted.
    pub(crate) fn met(&self, what: Disturbance) -> Option<u64> {
        match self {
            Self::Switch(switch) => Some(switch.met(what)),
            Self::None | Self::Bridge { .. } => None,
        }
    }
}

fn set_of(what: Disturbance) -> io::Result<&'static str> {
    match what {
        Disturbance::Cut => Ok("cut"),
        Disturbance::Lossy => Ok("lossy"),
        Disturbance::Narrow
        | Disturbance::Delay
        | Disturbance::Reorder
        | Disturbance::Duplicate
        | Disturbance::Corrupt => Err(io::ErrorKind::Unsupported.into()),
    }
}

fn targets(ways: &[Way]) -> BTreeSet<usize> {
    ways.iter().map(|(_, to)| *to).collect()
}

fn build_bridge(hosts: usize) -> io::Result<()> {
    for line in
        ["ip link add br0 type bridge", "ip link set br0 up", "ip addr add 10.99.0.254/24 dev br0"]
    {
        tool(line)?;
    }
    for host in 1..=hosts {
        for line in [
            format!("ip netns add n{host}"),
            format!("ip link add v{host} type veth peer name eth0 netns n{host}"),
            format!("ip link set v{host} master br0 up"),
            format!("ip -n n{host} link set lo up"),
            format!("ip -n n{host} addr add {}/24 dev eth0", address(host)),
            format!("ip -n n{host} link set eth0 up"),
        ] {
            tool(&line)?;
        }
    }
    Ok(())
}

pub(crate) fn address(host: usize) -> String {
    format!("10.99.0.{host}")
}

/// How links are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Two groups that do not hear each other.
    Halves,
    /// One group that is heard and hears nothing of the other, or the other way round.
    OneWay,
    /// Each host hears its neighbours on a ring alone, so that no two agree on who is there.
    Ring,
    /// One host alone.
    Alone,
}

impl Shape {
    pub(crate) const ALL: [Self; 4] = [Self::Halves, Self::OneWay, Self::Ring, Self::Alone];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Halves => "halves",
            Self::OneWay => "one way",
            Self::Ring => "ring",
            Self::Alone => "alone",
        }
    }

    /// The ways to cut; `first` is the host that is alone, or in the smaller group.
    pub(crate) fn ways(self, hosts: &[usize], first: usize, rng: &mut StdRng) -> Vec<Way> {
        let mut others: Vec<usize> = hosts.iter().copied().filter(|host| *host != first).collect();
        others.shuffle(rng);
        let ring = [&[first][..], &others].concat();
        let size = if self == Self::Alone { 1 } else { hosts.len().div_ceil(2) - 1 };
        let group = &ring[..size.clamp(1, ring.len())];
        let is_cut = |from: usize, to: usize| {
            let inside = |host: usize| group.contains(&host);
            match self {
                Self::Halves | Self::Alone => inside(from) != inside(to),
                Self::OneWay => inside(from) && !inside(to),
                Self::Ring => {
                    let place = |host| ring.iter().position(|one| *one == host).unwrap_or(0);
                    let apart = place(from).abs_diff(place(to));
                    // Three hosts on a ring all are neighbours: there it is a line.
                    let round = ring.len() > 3 && apart == ring.len() - 1;
                    apart != 1 && !round
                }
            }
        };
        let mut ways = Vec::new();
        for from in hosts {
            for to in hosts.iter().filter(|to| *to != from) {
                if is_cut(*from, *to) {
                    ways.push((*from, *to));
                }
            }
        }
        ways
    }
}
