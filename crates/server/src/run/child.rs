//! A command that runs: its output is passed on as it comes, and kept.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::process::ExitStatusExt as _;
use std::process::Child as Process;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Context as _;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use tokio::sync::watch;

use super::launch::{self, Launched, NotStarted};
use super::recording::{Recording, Stream, write_all};

/// Bytes of output that are passed on at once.
const CHUNK: usize = 64 * 1024;
/// What must end: the process, and each of its outputs.
const PARTS: usize = 3;

/// A command that runs, in a process group of its own. It counts as ended when its process has
/// exited and nobody holds its outputs open any more.
#[derive(Debug)]
pub(crate) struct Child {
    command: Vec<OsString>,
    process: Process,
    group: Pid,
    kept: Arc<Mutex<Kept>>,
    /// How many of its parts have ended.
    ended: watch::Receiver<usize>,
}

#[derive(Debug)]
struct Kept {
    recording: Recording,
    /// What was reported instead of output.
    failure: Option<Vec<u8>>,
}

impl Child {
    pub(crate) fn start(
        command: &[OsString],
        exported: &[(&str, &String)],
        recording: Recording,
    ) -> Result<Self, NotStarted> {
        let (mut process, mark) = launch::launch(command, exported)?.into_parts();
        let kept = Arc::new(Mutex::new(Kept { recording, failure: None }));
        let (ends, ended) = watch::channel(0);
        let (out, err) = (process.stdout.take(), process.stderr.take());
        let group = Pid::from_child(&process);

        // It is not reaped before all of its group has been dealt with, so that no signal meets a
        // stranger.
        part(&ends, move || {
            let _ = waitid(WaitId::Pid(group), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
        });
        let keep = Arc::clone(&kept);
        part(&ends, move || {
            let keep = |chunk: &[u8]| {
                lock(&keep).recording.push(Stream::Out, chunk);
                true
            };
            pass_on(out, io::stdout(), keep);
        });
        let keep = Arc::clone(&kept);
        part(&ends, move || {
            let keep = |chunk: &[u8]| {
                let mut kept = lock(&keep);
                if let Some(report) = Launched::failure(&mark, chunk) {
                    kept.failure = Some(report.to_vec());
                    return false;
                }
                kept.recording.push(Stream::Err, chunk);
                true
            };
            pass_on(err, io::stderr(), keep);
        });
        Ok(Self { command: command.to_vec(), process, group, kept, ended })
    }

    /// Returns once it has ended. May be called again.
    pub(crate) async fn ended(&mut self) {
        let _ = self.ended.wait_for(|ended| *ended == PARTS).await;
    }

    /// Sends a signal to its whole group.
    pub(crate) fn signal(&self, signal: Signal) {
        // The group may be gone; its number is not given to another one before it is reaped.
        let _ = kill_process_group(self.group, signal);
    }

    /// How a command that has ended did so: its exit code, 128 + n if signal n has ended it, and
    /// its output; or why it was none.
    pub(crate) fn result(mut self) -> anyhow::Result<Result<(u8, Recording), NotStarted>> {
        let status = self.process.wait().context("cannot learn how the command ended")?;
        let signal = status.signal().map(|signal| signal.saturating_add(128));
        let code = status.code().or(signal).and_then(|code| u8::try_from(code).ok());
        let code = code.context("the command ended in no way that is known")?;
        let mut kept = lock(&self.kept);
        if let Some(report) = kept.failure.take() {
            return Ok(Err(launch::reported(&self.command, &report)));
        }
        let recording = std::mem::replace(&mut kept.recording, Recording::new(0));
        Ok(Ok((code, recording)))
    }
}

fn lock(kept: &Mutex<Kept>) -> MutexGuard<'_, Kept> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs one part on a thread of its own: a reader that is slow must not keep heartbeats waiting.
fn part(ends: &watch::Sender<usize>, work: impl FnOnce() + Send + 'static) {
    let ends = ends.clone();
    std::thread::spawn(move || {
        work();
        ends.send_modify(|ended| *ended += 1);
    });
}

/// Hands on what is read, until its end, unless `keep` says that it is not output. When nobody
/// reads it any more, it is kept all the same.
fn pass_on(from: Option<impl Read>, mut to: impl io::Write, keep: impl Fn(&[u8]) -> bool) {
    let Some(mut from) = from else { return };
    let (mut chunk, mut is_read) = (vec![0; CHUNK], true);
    loop {
        match from.read(&mut chunk) {
            Ok(0) => return,
            Ok(length) => {
                let bytes = chunk.get(..length).unwrap_or_default();
                is_read = keep(bytes) && is_read && write_all(&mut to, bytes).is_ok();
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}
