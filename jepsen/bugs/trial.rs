//! One try: a process with a bug or without, and whether anything was found.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tenure_jepsen::process::Process;
use tokio::time::Instant;

use crate::rings::Ring;

/// What a test may take, and a run beyond its own seconds.
const LIMIT: Duration = Duration::from_secs(240);
/// Between two looks at a process.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// What the harness exits with when something was wrong, and when something is not known.
const INVALID: i32 = 1;
const VALID: i32 = 0;
const NOT_TESTED: i32 = 2;

/// What came of a try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// A test failed, or a checker found something.
    Caught,
    /// All was well.
    Passed,
    /// A run that says that it has tested too little.
    NotTested,
    /// It did not end, or nobody knows what it says: neither for nor against.
    Broken,
}

/// A try that is over.
#[derive(Debug, Clone)]
pub(crate) struct Trial {
    pub(crate) end: End,
    pub(crate) took: Duration,
    /// The first thing that was found.
    pub(crate) why: String,
}

/// The programs that tries are made with.
#[derive(Debug)]
pub(crate) struct Programs {
    /// The binary under test.
    pub(crate) tenure: PathBuf,
    /// What `jepsen/run` starts.
    pub(crate) harness: PathBuf,
    /// Tests that were built with the feature: the program and where it runs, by package and target.
    pub(crate) tests: BTreeMap<(String, String), (PathBuf, PathBuf)>,
    /// Where runs leave what they saw.
    pub(crate) store: PathBuf,
}

/// Reads what cargo says of the tests that it has built.
pub(crate) fn tests(messages: &Path) -> io::Result<BTreeMap<(String, String), (PathBuf, PathBuf)>> {
    let mut text = String::new();
    File::open(messages)?.read_to_string(&mut text)?;
    let mut found = BTreeMap::new();
    for line in text.lines() {
        let message: Value = serde_json::from_str(line)?;
        let Some(program) = message["executable"].as_str() else { continue };
        let manifest = Path::new(message["manifest_path"].as_str().unwrap_or_default());
        let directory = manifest.parent().unwrap_or(Path::new(".")).to_owned();
        let package = message["package_id"].as_str().unwrap_or_default();
        // `path+file:///…/crates/storage#tenure-storage@0.1.0`, or without the name where the
        // directory has it.
        let package = package.rsplit(['#', '/']).next().unwrap_or_default();
        let package = package.split('@').next().unwrap_or_default().to_owned();
        let target = message["target"]["name"].as_str().unwrap_or_default().to_owned();
        found.insert((package, target), (program.into(), directory));
    }
    Ok(found)
}

impl Programs {
    /// Tries a ring once, with a bug or with none. What it leaves has the `row` in its name: two
    /// rings may be tried at a time.
    pub(crate) fn try_once(
        &self,
        row: usize,
        bug: Option<&str>,
        ring: Ring,
        seed: u64,
    ) -> io::Result<Trial> {
        let name = format!("{}-{seed}-{row}", bug.unwrap_or("clean"));
        let store = self.store.join(&name);
        std::fs::create_dir_all(&self.store)?;
        let said = self.store.join(format!("{name}.txt"));
        let mut command = self.command(ring, seed, &store)?;
        match bug {
            Some(bug) => command.env("TENURE_SEEDED_BUG", bug),
            None => command.env_remove("TENURE_SEEDED_BUG"),
        };
        let out = File::create(&said)?;
        command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
        let started = Instant::now();
        let code = ended(Process(command.spawn()?))?;
        let took = started.elapsed();
        let said_text = String::from_utf8_lossy(&std::fs::read(&said)?).into_owned();
        let end = match ring {
            Ring::Run(_) => end_of_run(code),
            Ring::Drawn(..) | Ring::Fixed(..) => end_of_test(code, &said_text),
        };
        let wanted = if bug.is_some() { End::Caught } else { End::Passed };
        if end == wanted {
            std::fs::remove_file(&said)?;
            drop(std::fs::remove_dir_all(&store));
        }
        Ok(Trial { end, took, why: why(ring, &said_text) })
    }

    fn command(&self, ring: Ring, seed: u64, store: &Path) -> io::Result<Command> {
        match ring {
            Ring::Run(words) => {
                let mut command = Command::new(&self.harness);
                command.args(words.split_whitespace());
                command.args(["--seed", &seed.to_string()]).arg("--store").arg(store);
                command.env("TENURE_BIN", &self.tenure);
                Ok(command)
            }
            Ring::Drawn(package, target, test) | Ring::Fixed(package, target, test) => {
                let built = self.tests.get(&(package.to_owned(), target.to_owned()));
                let (program, directory) = built.ok_or_else(|| {
                    io::Error::other(format!("no test {target} of {package} was built"))
                })?;
                let mut command = Command::new(program);
                command.args(["--exact", test, "--test-threads=1"]).current_dir(directory);
                command.env("TENURE_SEED", seed.to_string());
                Ok(command)
            }
        }
    }
}

/// The exit code; none if a signal ended it, or if it did not end in time.
fn ended(mut process: Process) -> io::Result<Option<i32>> {
    let started = Instant::now();
    while started.elapsed() < LIMIT {
        if let Some(status) = process.0.try_wait()? {
            return Ok(status.code());
        }
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(None)
}

fn end_of_run(code: Option<i32>) -> End {
    match code {
        Some(VALID) => End::Passed,
        Some(INVALID) => End::Caught,
        Some(NOT_TESTED) => End::NotTested,
        _ => End::Broken,
    }
}

/// A name that no test has is no pass.
fn end_of_test(code: Option<i32>, said: &str) -> End {
    if !said.contains("running 1 test") {
        return End::Broken;
    }
    match code {
        Some(0) => End::Passed,
        Some(_) => End::Caught,
        None => End::Broken,
    }
}

/// The line that says what was found.
fn why(ring: Ring, said: &str) -> String {
    let is_it = |line: &&str| match ring {
        Ring::Run(_) => line.contains("): ") || line.starts_with("wrong: "),
        Ring::Drawn(..) | Ring::Fixed(..) => line.contains("panicked at"),
    };
    let mut lines = said.lines().skip_while(|line| !is_it(line));
    let found = lines.next().unwrap_or_default();
    // A panic says where, and on the next line what.
    let line = if found.contains("panicked at") { lines.next().unwrap_or(found) } else { found };
    line.chars().take(100).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_that_was_not_run_is_neither_passed_nor_caught() {
        let ran = "running 1 test\ntest a ... ok";
        assert_eq!(end_of_test(Some(0), ran), End::Passed);
        assert_eq!(end_of_test(Some(101), ran), End::Caught);
        assert_eq!(end_of_test(Some(0), "running 0 tests"), End::Broken);
        assert_eq!(end_of_test(Some(101), ""), End::Broken);
        assert_eq!(end_of_test(None, ran), End::Broken);
    }

    #[test]
    fn only_a_verdict_counts() {
        assert_eq!(end_of_run(Some(0)), End::Passed);
        assert_eq!(end_of_run(Some(1)), End::Caught);
        assert_eq!(end_of_run(Some(2)), End::NotTested);
        assert_eq!(end_of_run(Some(3)), End::Broken);
        assert_eq!(end_of_run(None), End::Broken);
    }

    #[test]
    fn what_was_found_is_one_line() {
        let test = Ring::Fixed("p", "t", "n");
        let said = "thread 'n' panicked at a.rs:1:2:\nI2: 3, then 2\nnote: run with";
        assert_eq!(why(test, said), "I2: 3, then 2");
        let run = Ring::Run("");
        assert_eq!(
            why(run, "seen: {}\nstale read (replay): key-3\nverdict"),
            "stale read (replay): key-3"
        );
        assert_eq!(why(run, "wrong: node 1 has ended\n"), "wrong: node 1 has ended");
        assert_eq!(why(run, ""), "");
    }
}
