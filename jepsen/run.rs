//! `tenure run`: a command that runs once, wherever it is started, whatever ends.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "tests say by a panic that they failed"
)]

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;
use tenure_jepsen::cluster::Cluster;
use tenure_jepsen::eventually;
use tenure_jepsen::process::{self, Process, tenure};
use tokio::time::Instant;

/// For whatever a test waits for.
const SOON: Duration = Duration::from_secs(30);

/// A cluster, and a directory for what commands leave behind. Their loops end when it is removed.
struct Bench {
    cluster: Cluster,
    directory: TempDir,
}

impl Bench {
    fn start() -> Self {
        Self { cluster: Cluster::start(), directory: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// `tenure run` of a shell script, in the bench's directory.
    fn run(&self, key: &str, flags: &[&str], script: &str) -> Command {
        self.run_command(key, flags, &["sh", "-c", script])
    }

    fn run_command(&self, key: &str, flags: &[&str], command: &[&str]) -> Command {
        let nodes = self.cluster.nodes().iter();
        let endpoints: Vec<&str> = nodes.map(|node| node.rpc.as_str()).collect();
        let mut run = tenure(&["run", "--scope", "test", "--key", key]);
        run.args(flags).arg("--").args(command).env("TENURE_ENDPOINTS", endpoints.join(","));
        run.current_dir(self.directory.path());
        run
    }

    fn output(&self, key: &str, flags: &[&str], script: &str) -> Output {
        self.run(key, flags, script).output().unwrap()
    }

    /// How often scripts that say so have run: each adds a line to the file `runs`.
    fn runs(&self) -> usize {
        std::fs::read_to_string(self.path("runs")).unwrap_or_default().lines().count()
    }

    /// The number that a script has written to a file of this name.
    fn number(&self, name: &str) -> u32 {
        eventually(&format!("the command writes {name}"), SOON, || {
            let text = std::fs::read_to_string(self.path(name)).ok()?;
            text.strip_suffix('\n')?.parse().ok()
        })
    }
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Whether a process is there and is more than a zombie.
fn lives(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with(['Z', 'X']))
}

fn until_dead(pid: u32) {
    eventually(&format!("process {pid} is dead"), SOON, || (!lives(pid)).then_some(()));
}

#[test]
fn a_duplicate_is_handed_output_and_exit_code_byte_for_byte() {
    let mut bench = Bench::start();
    let script = "echo ran >> runs; printf 'a\\0\\377'; sleep 0.2; printf b >&2; sleep 0.2; \
                  echo $TENURE_TOKEN/$TENURE_SCOPE/$TENURE_KEY; exit 3";
    let flags = ["--on-failure", "record"];
    let first = bench.output("k", &flags, script);
    assert_eq!(code(&first), 3, "{}", String::from_utf8_lossy(&first.stderr));
    let said = text(first.stdout.strip_prefix(b"a\0\xff").unwrap()).trim_end().to_owned();
    let (token, names) = said.split_once('/').unwrap();
    assert!(token.parse::<u64>().unwrap() > 0);
    assert_eq!((names, &first.stderr[..]), ("test/k", &b"b"[..]));
    let second = bench.output("k", &flags, script);
    assert_eq!(second, first);
    assert_eq!(bench.runs(), 1);

    // Both streams into one pipe: their chunks are in the order of the first time.
    let (mut read, write) = std::io::pipe().unwrap();
    let mut both = bench.run("k", &flags, script);
    both.stdout(write.try_clone().unwrap()).stderr(write);
    let status = both.status().unwrap();
    drop(both);
    let mut merged = Vec::new();
    read.read_to_end(&mut merged).unwrap();
    assert_eq!(status.code(), Some(3));
    assert_eq!(merged, [&b"a\0\xffb"[..], said.as_bytes(), b"\n"].concat());

    // Arguments need not be text.
    let mut bytes = bench.run("bytes", &[], "printf %s \"$1\"");
    let bytes = bytes.arg("sh").arg(OsStr::from_bytes(b"\xff\x01"));
    assert_eq!(bytes.output().unwrap().stdout, b"\xff\x01");
    bench.cluster.assert_sound();
}

#[test]
fn a_failure_is_released_unless_it_is_to_be_recorded() {
    let bench = Bench::start();
    let script = "echo ran >> runs; exit 5";
    assert_eq!(code(&bench.output("k", &[], script)), 5);
    assert_eq!(code(&bench.output("k", &[], script)), 5);
    assert_eq!(bench.runs(), 2);
    assert_eq!(code(&bench.output("k", &["--on-failure", "record"], script)), 5);
    assert_eq!(code(&bench.output("k", &[], script)), 5);
    assert_eq!(bench.runs(), 3);

    assert_eq!(code(&bench.output("signal", &[], "kill -KILL $$")), 128 + 9);
    assert_eq!(code(&bench.output("signal", &[], "exit 0")), 0, "it was released");

    // What cannot be run at all is never a result.
    let script = bench.path("bad-interpreter");
    std::fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&script, mode).unwrap();
    let script = script.to_str().unwrap();
    for (command, expected) in
        [("no-such-command", 127), ("./no-such-file", 127), ("/etc/passwd", 126), (script, 126)]
    {
        let flags = ["--on-failure", "record"];
        let output = bench.run_command("start", &flags, &[command, "x"]).output().unwrap();
        assert_eq!(code(&output), expected, "{command}");
        let said = text(&output.stderr);
        assert!(said.starts_with(&format!("tenure: {command}: ")) && said.lines().count() == 1);
        assert!(output.stdout.is_empty());
    }
    assert_eq!(code(&bench.output("start", &[], "exit 0")), 0, "it was released");
}

#[test]
fn output_over_the_limit_passes_through_and_is_kept_in_part() {
    let bench = Bench::start();
    let script = "echo ran >> runs; head -c 3000000 /dev/zero; echo end; echo err >&2";
    let first = bench.output("k", &["--max-output", "1000"], script);
    assert_eq!((code(&first), first.stdout.len()), (0, 3_000_004));
    assert_eq!(first.stderr, b"err\n");
    let second = bench.output("k", &[], script);
    assert_eq!((code(&second), &second.stdout[..]), (0, &vec![0; 1000][..]));
    let note = text(&second.stderr);
    assert!(note.starts_with("tenure: 2999008 further bytes"), "{note}");
    assert_eq!(bench.runs(), 1);
    let largest = (1024 * 1024 - 5).to_string();
    let flags = ["--max-output", largest.as_str()];
    for _ in 0..2 {
        let whole = bench.output("large", &flags, "head -c 1048571 /dev/zero");
        assert_eq!((whole.stdout.len(), whole.stderr.len()), (1_048_571, 0));
    }
    let over = bench.output("over", &["--max-output", "1048572"], "echo ran");
    assert_eq!((code(&over), over.stdout.len()), (2, 0));
}

#[test]
fn two_at_once_run_it_once_and_who_does_not_wait_is_told_so() {
    let bench = Bench::start();
    let script = "echo ran >> runs; echo $$ > pid; until [ -e go ] || [ ! -e pid ]; do sleep 0.05; done; echo done";
    let start = || {
        let mut run = bench.run("k", &["--wait", "60s", "--lease", "2s"], script);
        Process::start(run.stdout(Stdio::piped()))
    };
    let mut both = [start(), start()];
    bench.number("pid");
    let hasty = bench.output("k", &[], script);
    assert_eq!(code(&hasty), 4);
    assert!(text(&hasty.stderr).contains("in progress"), "{hasty:?}");
    // Longer than a lease: heartbeats carry it.
    let began = Instant::now();
    eventually("more than a lease passes", SOON, || {
        (began.elapsed() > Duration::from_secs(3)).then_some(())
    });
    File::create(bench.path("go")).unwrap();
    for run in &mut both {
        let mut out = String::new();
        run.0.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        assert_eq!((run.ends_within(SOON).code(), out.as_str()), (Some(0), "done\n"));
    }
    assert_eq!(bench.runs(), 1);
}

#[test]
fn signals_are_passed_on_to_the_command() {
    let bench = Bench::start();
    for (signal, name, expected) in [
        (Signal::INT, "INT", 42),
        (Signal::TERM, "TERM", 42),
        (Signal::HUP, "HUP", 42),
        (Signal::QUIT, "QUIT", 42),
        (Signal::USR1, "USR1", 42),
        (Signal::USR2, "USR2", 42),
        (Signal::TERM, "HUP", 128 + 15),
    ] {
        let file = format!("pid-{name}-{expected}");
        let script = format!(
            "trap 'exit 42' {name}; echo $$ > {file}; while [ -e {file} ]; do sleep 0.05; done"
        );
        let mut run = Process::start(&mut bench.run("k", &[], &script));
        bench.number(&file);
        run.signal(signal);
        assert_eq!(run.ends_within(SOON).code(), Some(expected), "{name}");
    }
    assert_eq!(code(&bench.output("k", &[], "exit 0")), 0, "released each time");

    // As under nohup(1): who starts it may want a signal to be ignored.
    let script = "echo $$ > pid; until [ -e go ] || [ ! -e pid ]; do sleep 0.05; done; echo done";
    let run = bench.run("nohup", &[], script);
    let mut nohup = Command::new("sh");
    nohup.args(["-c", "trap '' HUP; exec \"$@\"", "sh"]).arg(run.get_program());
    nohup.args(run.get_args()).current_dir(bench.directory.path()).stdout(Stdio::piped());
    for (name, value) in run.get_envs() {
        match value {
            Some(value) => nohup.env(name, value),
            None => nohup.env_remove(name),
        };
    }
    let mut run = Process::start(&mut nohup);
    bench.number("pid");
    run.signal(Signal::HUP);
    File::create(bench.path("go")).unwrap();
    assert_eq!(run.ends_within(SOON).code(), Some(0));
}

#[test]
fn a_command_goes_on_over_the_kill_of_a_leader() {
    let mut bench = Bench::start();
    let script = "echo ran >> runs; echo $$ > pid; until [ -e go ] || [ ! -e pid ]; do sleep 0.05; done; echo done";
    let mut run = bench.run("k", &["--lease", "5s"], script);
    let mut run = Process::start(run.stdout(Stdio::piped()));
    bench.number("pid");
    let leader = bench.cluster.leader();
    bench.cluster.kill(leader);
    let next = bench.cluster.leader();
    assert_ne!(next, leader);
    let began = Instant::now();
    eventually("more than a lease passes", SOON, || {
        (began.elapsed() > Duration::from_secs(6)).then_some(())
    });
    File::create(bench.path("go")).unwrap();
    assert_eq!(run.ends_within(SOON).code(), Some(0));
    let replayed = bench.output("k", &[], script);
    assert_eq!((code(&replayed), text(&replayed.stdout)), (0, "done\n"));
    assert_eq!(bench.runs(), 1);
    bench.cluster.restart(leader);
    bench.cluster.wait_ready();
    bench.cluster.assert_sound();
}

#[test]
fn a_wrapper_that_is_killed_takes_its_command_along_and_costs_one_lease() {
    let bench = Bench::start();
    let lease = Duration::from_secs(2);
    let script = "echo $$ > pid; while [ -e pid ]; do sleep 0.05; done";
    let run = Process::start(&mut bench.run("k", &["--lease", "2s"], script));
    let pid = bench.number("pid");
    run.signal(Signal::KILL);
    let killed = Instant::now();
    until_dead(pid);
    let next = bench.output("k", &["--wait", "30s"], "echo next");
    assert_eq!((code(&next), text(&next.stdout)), (0, "next\n"));
    assert!(killed.elapsed() < lease + Duration::from_secs(2), "{:?}", killed.elapsed());
}

/// The command ignores SIGTERM, and so does a child of its own: both are dead before the lease's
/// end, which is at least a lease after the nodes were stopped.
#[test]
fn a_command_whose_cluster_is_silent_is_stopped_before_its_lease_ends() {
    let mut bench = Bench::start();
    let lease = Duration::from_secs(4);
    let script = "trap '' TERM; sh -c 'echo $$ > inner; while [ -e inner ]; do sleep 0.05; done' & \
                  echo $TENURE_TOKEN > token; echo $$ > pid; wait; while [ -e pid ]; do sleep 0.05; done";
    let mut run = bench.run("k", &["--lease", "4s", "--grace", "300ms"], script);
    let mut run = Process::start(run.stderr(Stdio::piped()));
    let (pid, inner) = (bench.number("pid"), bench.number("inner"));
    let first = bench.number("token");
    // Heartbeats go on, so that it is not the acquire's own lease that is measured.
    let began = Instant::now();
    eventually("more than a lease passes", SOON, || (began.elapsed() > lease).then_some(()));
    assert!(lives(pid) && lives(inner));
    let paused = Instant::now();
    for id in 1..=3 {
        bench.cluster.pause(id);
    }
    until_dead(pid);
    until_dead(inner);
    let stopped = paused.elapsed();
    assert!(stopped < lease, "only after {stopped:?}");
    assert_eq!(run.ends_within(SOON).code(), Some(11));
    let mut said = String::new();
    run.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains("tenure: stopping sh: "), "{said}");
    for id in 1..=3 {
        bench.cluster.resume(id);
    }
    bench.cluster.wait_ready();
    let next = bench.output("k", &["--wait", "30s"], "echo $TENURE_TOKEN");
    assert_eq!(code(&next), 0);
    assert!(text(&next.stdout).trim_end().parse::<u32>().unwrap() > first);
}

#[test]
fn a_result_that_could_not_be_recorded_is_told_by_an_exit_code_of_its_own() {
    let mut bench = Bench::start();
    let script = "echo $$ > pid; until [ -e go ] || [ ! -e pid ]; do sleep 0.05; done; echo done";
    let mut run = bench.run("k", &["--lease", "60s", "--deadline", "1s"], script);
    let mut run = Process::start(run.stdout(Stdio::piped()).stderr(Stdio::piped()));
    bench.number("pid");
    for id in 1..=3 {
        bench.cluster.pause(id);
    }
    File::create(bench.path("go")).unwrap();
    assert_eq!(run.ends_within(SOON).code(), Some(9));
    let (mut out, mut said) = (String::new(), String::new());
    run.0.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    run.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(out, "done\n");
    assert!(
        said.starts_with("tenure: it ran and exited with 0, but that is not recorded"),
        "{said}"
    );
    for id in 1..=3 {
        bench.cluster.resume(id);
    }
    bench.cluster.wait_ready();
    bench.cluster.assert_sound();
}

#[test]
fn what_is_no_run_or_no_request_is_told_apart() {
    let bench = Bench::start();
    let endpoints: Vec<&str> = bench.cluster.nodes().iter().map(|n| n.rpc.as_str()).collect();
    let endpoints = endpoints.join(",");
    let tenure = |arguments: &[&str]| {
        let mut command = process::tenure(arguments);
        command.env("TENURE_ENDPOINTS", &endpoints).output().unwrap()
    };
    let acquired = tenure(&["acquire", "test", "foreign", "-o", "json"]);
    let acquired: serde_json::Value = serde_json::from_slice(&acquired.stdout).unwrap();
    let token = acquired["token"].to_string();
    let completed = tenure(&["complete", "test", "foreign", "--token", &token, "--text", "x"]);
    assert_eq!(code(&completed), 0);
    let foreign = bench.output("foreign", &[], "echo ran >> runs");
    assert_eq!((code(&foreign), foreign.stdout.len()), (1, 0));
    assert!(text(&foreign.stderr).contains("not by `tenure run`"));

    let print = |digit: &str| digit.repeat(16);
    let first = bench.output("print", &["--fingerprint", &print("a")], "echo first");
    assert_eq!(code(&first), 0);
    let other = bench.output("print", &["--fingerprint", &print("b")], "echo ran >> runs");
    assert_eq!(code(&other), 6);
    for (key, flags) in [
        (" ", &[][..]),
        ("k", &["--lease", "1ms"]),
        ("k", &["--lease", "10s", "--grace", "5s"]),
        ("k", &["--fingerprint", "xyz"]),
        ("k", &["--on-failure", "ignore"]),
    ] {
        assert_eq!(code(&bench.output(key, flags, "echo ran >> runs")), 2, "{flags:?}");
    }
    assert_eq!(code(&tenure(&["run", "--scope", "test", "--key", "k"])), 2);
    let nowhere = bench.run("k", &["--deadline", "300ms", "--endpoints", "127.0.0.1:1"], "echo");
    let mut nowhere = nowhere;
    assert_eq!(code(&nowhere.output().unwrap()), 8);
    assert!(!Path::new(&bench.path("runs")).exists(), "nothing was run");
}
