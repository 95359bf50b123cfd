//! Processor time of processes, as Linux counts it.

use std::time::Duration;

/// Length of a clock tick in /proc: USER_HZ is 100 on every platform that this is built for.
const TICK: Duration = Duration::from_millis(10);

/// User and system time of a process so far, all its threads together; none when there is no such
/// process, or no /proc.
pub(crate) fn cpu_time(pid: Option<u32>) -> Option<Duration> {
    let pid = pid.map_or("self".to_owned(), |pid| pid.to_string());
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    ticks(&stat).map(|ticks| TICK.saturating_mul(u32::try_from(ticks).unwrap_or(u32::MAX)))
}

/// `utime` and `stime`, fields 14 and 15 of proc_pid_stat(5). The command's name, field 2, may
/// have spaces and brackets in it.
fn ticks(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    user.checked_add(system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_brackets_do_not_shift_the_fields() {
        let stat = "7 (a) b) R 1 7 7 0 -1 4194304 1 0 0 0 25 17 0 0 20 0 1 0 1 1 1";
        assert_eq!(ticks(stat), Some(42));
        assert_eq!(ticks(""), None);
        assert_eq!(ticks("7 (a) R 1"), None);
    }

    #[test]
    fn this_process_has_a_time_and_no_other_has_its_own() {
        assert!(cpu_time(None).is_some());
        assert_eq!(cpu_time(Some(u32::MAX)), None);
    }
}
