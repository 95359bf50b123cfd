//! Processor time of processes and of the machine, as Linux counts it.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

/// Length of a clock tick in /proc: USER_HZ is 100 on every platform that this is built for.
const TICK: Duration = Duration::from_millis(10);

/// User and system time of this process so far, all its threads together.
#[must_use]
pub(crate) fn own_time() -> Option<Duration> {
    ticks("self", 2).map(time)
}

/// User and system time of a process and all that descend from it, with those that have ended;
/// none when there is no such process, or no /proc.
#[must_use]
pub(crate) fn family_time(pid: u32) -> Option<Duration> {
    let family = family(pid);
    // A child may end meanwhile; its time is then in its parent's.
    let times = family.iter().filter_map(|member| ticks(&member.to_string(), 4));
    (!family.is_empty()).then(|| time(times.sum()))
}

/// The first of utime, stime, cutime and cstime of a process, so many of them.
fn ticks(pid: &str, counters: usize) -> Option<u64> {
    times(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?, counters)
}

fn time(ticks: u64) -> Duration {
    TICK.saturating_mul(u32::try_from(ticks).unwrap_or(u32::MAX))
}

/// What follows the command's name in proc_pid_stat(5), from field 3 on. The name may have spaces
/// and brackets in it.
fn fields(stat: &str) -> Option<impl Iterator<Item = &str>> {
    let (_, after_name) = stat.rsplit_once(')')?;
    Some(after_name.split_ascii_whitespace())
}

/// The sum over fields 14 and the next: utime, stime, and those of ended children.
fn times(stat: &str, counters: usize) -> Option<u64> {
    let mut fields = fields(stat)?.skip(11);
    let mut sum = 0_u64;
    for _ in 0..counters {
        sum = sum.checked_add(fields.next()?.parse().ok()?)?;
    }
    Some(sum)
}

/// A process and all that descend from it, as far as they run. Empty when it does not.
fn family(pid: u32) -> Vec<u32> {
    let mut parents = BTreeMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(child) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok())
        else {
            continue;
        };
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let parent = fields(&stat).and_then(|mut fields| fields.nth(1)?.parse::<u32>().ok());
        parents.insert(child, parent.unwrap_or(0));
    }
    let mut family: Vec<u32> = parents.contains_key(&pid).then_some(pid).into_iter().collect();
    let mut place = 0;
    while let Some(&member) = family.get(place) {
        family.extend(parents.iter().filter(|(_, p)| **p == member).map(|(child, _)| *child));
        place += 1;
    }
    family
}

/// Time that all processors together were not idle, since the machine started.
#[must_use]
pub(crate) fn machine_busy() -> Option<Duration> {
    busy_ticks(&fs::read_to_string("/proc/stat").ok()?).map(time)
}

/// user, nice, system, irq and softirq of the line `cpu`: all but idle, iowait and steal.
fn busy_ticks(stat: &str) -> Option<u64> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let counts: Vec<u64> = line.split_ascii_whitespace().map_while(|n| n.parse().ok()).collect();
    let [user, nice, system, _idle, _iowait, irq, softirq, ..] = counts.as_slice() else {
        return None;
    };
    [user, nice, system, irq, softirq].into_iter().try_fold(0_u64, |sum, n| sum.checked_add(*n))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_brackets_do_not_shift_the_fields() {
        let stat = "7 (a) b) R 1 7 7 0 -1 4194304 1 0 0 0 25 17 3 5 20 0 1 0 1 1 1";
        assert_eq!((times(stat, 2), times(stat, 4)), (Some(42), Some(50)));
        assert_eq!(times("", 2), None);
        assert_eq!(times("7 (a) R 1", 2), None);
    }

    #[test]
    fn the_machine_is_busy_when_it_is_neither_idle_nor_waiting() {
        assert_eq!(busy_ticks("cpu  1 2 4 800 900 8 16 700 0 0\ncpu0 1 1 1\n"), Some(31));
        assert_eq!(busy_ticks("cpu  1 2 4\n"), None);
        assert!(machine_busy() >= own_time());
    }

    #[test]
    fn this_process_has_a_time_and_a_family_and_no_other_has_its_own() {
        assert!(own_time().is_some() && family_time(std::process::id()) >= own_time());
        assert_eq!(family_time(u32::MAX), None);
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let found = family(std::process::id());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found.first(), Some(&std::process::id()));
        assert!(found.contains(&child.id()), "{found:?}");
    }
}
