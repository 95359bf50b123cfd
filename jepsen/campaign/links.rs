//! Hosts with addresses of their own, joined by one bridge, and what can be done to the links
//! between them. The run itself sits at the bridge: its own link to each host is never cut.

use std::io;

use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;

use crate::isolation::{tool, tool_with};

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

/// Builds so many hosts, numbered from 1. Must run on a rung that has links.
pub(crate) fn build(hosts: usize) -> io::Result<()> {
    tool("mount -t tmpfs tmpfs /run")?;
    for line in [
        "ip link set lo up",
        "ip link add br0 type bridge",
        "ip link set br0 up",
        "ip addr add 10.99.0.254/24 dev br0",
    ] {
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

/// Loads the rules that faults fill. It fails where there is no nftables.
pub(crate) fn load_rules() -> io::Result<()> {
    tool_with("nft -f -", &RULES.replace("LOSS", &LOSS.to_string()))
}

pub(crate) fn address(host: usize) -> String {
    format!("10.99.0.{host}")
}

/// Puts ways into a set: `cut` or `lossy`.
pub(crate) fn add(set: &str, ways: &[Way]) -> io::Result<()> {
    let elements: Vec<String> =
        ways.iter().map(|(from, to)| format!("\"v{from}\" . \"v{to}\"")).collect();
    let line = format!("add element bridge links {set} {{ {} }}\n", elements.join(", "));
    tool_with("nft -f -", &line)
}

/// Empties a set.
pub(crate) fn flush(set: &str) -> io::Result<()> {
    tool(&format!("nft flush set bridge links {set}"))
}

/// Makes everything to a host slow: a queue in front of a narrow pipe.
pub(crate) fn slow(host: usize) -> io::Result<()> {
    tool(&format!("tc qdisc add dev v{host} root tbf rate 400kbit burst 8kb latency 400ms"))
}

/// Undoes it.
pub(crate) fn fast(host: usize) -> io::Result<()> {
    tool(&format!("tc qdisc del dev v{host} root"))
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
