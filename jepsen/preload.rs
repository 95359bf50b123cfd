//! The preloaded library of faults, on tools that know nothing of it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "tests say by a panic that they failed"
)]

use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Command, Output};

use tempfile::TempDir;
use tenure_jepsen::process::preload;

const BYTES: u64 = 3000;

struct Copied {
    output: Output,
    bytes: u64,
    seen: String,
}

/// Copies 3000 bytes in three writes and syncs them, while the disk is told to do so.
fn copied(control: &str) -> Copied {
    let temp = TempDir::new().unwrap();
    let store = temp.path().canonicalize().unwrap();
    let at = |name: &str| store.join(name);
    std::fs::create_dir_all(at("under/log")).unwrap();
    std::fs::write(at("control"), control).unwrap();
    let file = at("under/log/000007.log");
    let mut command = Command::new("dd");
    command.args(["if=/dev/zero", "bs=1000", "count=3", "conv=fsync"]);
    command.arg(format!("of={}", file.display()));
    command.env("LD_PRELOAD", preload()).env("DISK_FAULTS_UNDER", at("under"));
    command.env("DISK_FAULTS_CONTROL", at("control")).env("DISK_FAULTS_SEEN", at("seen"));
    let output = command.output().unwrap();
    let read = |path: PathBuf| std::fs::read_to_string(path).unwrap_or_default();
    Copied { output, bytes: file.metadata().map_or(0, |file| file.len()), seen: read(at("seen")) }
}

#[test]
fn a_disk_that_is_told_nothing_works() {
    for nothing in ["", "sync-error 0", "sync-error 100 /state", "write-torn 0", "strange 100"] {
        let copied = copied(nothing);
        assert!(copied.output.status.success(), "{nothing}");
        assert_eq!((copied.bytes, copied.seen.as_str()), (BYTES, ""), "{nothing}");
    }
}

#[test]
fn a_sync_fails_and_says_so() {
    let copied = copied("sync-error 100 /log");
    assert!(!copied.output.status.success());
    assert!(String::from_utf8_lossy(&copied.output.stderr).contains("Input/output error"));
    assert_eq!(copied.seen, "sync-error /log/000007.log\n");
}

#[test]
fn a_sync_is_a_lie_or_takes_its_time() {
    for line in ["sync-lie 100", "sync-slow 1"] {
        let copied = copied(line);
        assert!(copied.output.status.success(), "{line}");
        let fault = line.split(' ').next().unwrap();
        assert_eq!(copied.seen, format!("{fault} /log/000007.log\n"));
    }
}

#[test]
fn a_write_fails_and_writes_nothing() {
    let copied = copied("write-error 100");
    assert!(!copied.output.status.success());
    assert_eq!((copied.bytes, copied.seen.as_str()), (0, "write-error /log/000007.log\n"));
}

#[test]
fn a_torn_write_leaves_a_part_and_no_process() {
    let copied = copied("write-torn 100");
    assert_eq!(copied.output.status.signal(), Some(9));
    assert!(copied.bytes < 1000, "{} bytes", copied.bytes);
    assert_eq!(copied.seen, "write-torn /log/000007.log\n");
}

#[test]
fn a_short_write_goes_on_with_the_rest() {
    let copied = copied("write-short 100");
    assert!(copied.output.status.success());
    assert_eq!(copied.bytes, BYTES);
    assert!(copied.seen.lines().count() > 3, "{}", copied.seen);
}

/// Seconds since 1970, as `date` sees them while its clock is told so.
fn date(control: &str) -> i64 {
    let temp = TempDir::new().unwrap();
    let file = temp.path().join("clock");
    std::fs::write(&file, control).unwrap();
    let mut command = Command::new("date");
    command.arg("+%s").env("LD_PRELOAD", preload()).env("CLOCK_FAULTS_CONTROL", &file);
    // An hour ago, so that a rate has had its effect.
    let touched = Command::new("touch").args(["-d", "1 hour ago"]).arg(&file).status().unwrap();
    assert!(touched.success());
    let output = command.output().unwrap();
    String::from_utf8_lossy(&output.stdout).trim().parse().unwrap()
}

#[test]
fn a_wall_clock_jumps_or_runs_at_another_rate() {
    for (control, off_by) in [
        ("", 0),
        ("3600 1000", 3600),
        ("-30 1000", -30),
        ("0 1500", 1800),
        ("0 500", -1800),
        ("strange 1000", 0),
    ] {
        let off = date(control) - date("");
        assert!((off - off_by).abs() < 10, "{control}: off by {off} s");
    }
}
