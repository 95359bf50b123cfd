//! `tenure replay`: the pure state machine on standard input, no cluster. Each line of input is a
//! log entry with one command, or a question; each is answered on a line of output before the next
//! is read. It documents the semantics, and checks them.

use std::io::{BufRead, Read, Write};

use anyhow::Context;
use serde::Serialize;
use tenure_api::frame::Decided;
use tenure_api::{Content, Fields, Refusal, Response, View, body};
use tenure_state_machine::{
    At, Attempt, Command, Counters, Entry, MemoryStore, Name, Store, apply, snapshot, visible,
};

/// Longest line, in bytes: a body, and what stands around it.
const LINE_BYTES: usize = body::HTTP_BODY_BYTES + 1024;

/// Answers every line of `input` on `output`.
///
/// # Errors
/// Those of `input` and `output`. A bad line is none: it is answered.
pub(crate) fn run(mut input: impl BufRead, mut output: impl Write) -> anyhow::Result<()> {
    let mut replay = Replay::default();
    let mut line = Vec::new();
    while let Some(fits) = next_line(&mut input, &mut line).context("cannot read a line")? {
        let answer = replay.answer(if fits { Some(&line) } else { None })?;
        output
            .write_all(&answer)
            .and_then(|()| output.flush())
            .context("cannot write an answer")?;
    }
    Ok(())
}

/// Reads the next line into `line`; false when it is longer than [`LINE_BYTES`], and skipped.
fn next_line(input: &mut impl BufRead, line: &mut Vec<u8>) -> std::io::Result<Option<bool>> {
    line.clear();
    let limit = LINE_BYTES as u64 + 1;
    if input.by_ref().take(limit).read_until(b'\n', line)? == 0 {
        return Ok(None);
    }
    let fits = line.last() == Some(&b'\n') || line.len() <= LINE_BYTES;
    if !fits {
        input.skip_until(b'\n')?;
    }
    Ok(Some(fits))
}

/// What a line asks.
#[derive(Debug)]
enum Step {
    /// A command, or a tick where there is none.
    Entry(Option<Command>),
    /// Reads a record.
    Get(Name),
    /// Encodes the state, drops it and restores it.
    Snapshot,
    /// Hashes the state.
    Hash,
}

/// The answer to a line that is about no record.
#[derive(Debug, Serialize)]
struct Noted {
    status: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    hash: Option<String>,
    at: At,
}

#[derive(Debug, Default)]
struct Replay {
    counters: Counters,
    store: MemoryStore,
    /// The number of the line, from 1.
    line: u64,
}

impl Replay {
    /// The answer to the next line, itself a line; `None` stands for one that is too long.
    fn answer(&mut self, line: Option<&[u8]>) -> anyhow::Result<Vec<u8>> {
        self.line += 1;
        let read = line.ok_or_else(|| Refusal::InvalidArgument {
            field: None,
            reason: format!("the line has more than {LINE_BYTES} bytes"),
        });
        match read.and_then(|line| self.read(line)) {
            Ok((stamp_ms, step)) => self.run(stamp_ms, step),
            Err(refusal) => Ok(with_status(&Response::refused(&refusal))),
        }
    }

    /// The stamp and the step of a line. Only snapshot and hash may come without a stamp.
    fn read(&self, line: &[u8]) -> Result<(Option<u64>, Step), Refusal> {
        let mut fields = Fields::read(line)?;
        let stamp_ms = fields.number("at")?;
        let mut steps = Vec::new();
        for name in ["acquire", "complete", "release", "extend", "purge", "tick", "get"] {
            if let Some(raw) = fields.take(name)? {
                steps.push((name, raw.get().as_bytes()));
            }
        }
        let (snapshot, hash) = (fields.flag("snapshot")?, fields.flag("hash")?);
        fields.finish()?;
        let step = match (steps.as_slice(), snapshot, hash) {
            ([], Some(true), None) => return Ok((stamp_ms, Step::Snapshot)),
            ([], None, Some(true)) => return Ok((stamp_ms, Step::Hash)),
            (&[(name, body)], None, None) => self.step(name, body)?,
            _ => {
                return Err(Refusal::InvalidArgument {
                    field: None,
                    reason: "a line must have exactly one of acquire, complete, release, extend, \
                             purge, tick, get, \"snapshot\":true and \"hash\":true"
                        .to_owned(),
                });
            }
        };
        let stamp_ms = stamp_ms.ok_or_else(|| fields.refuse("at", "must be given"))?;
        Ok((Some(stamp_ms), step))
    }

    fn step(&self, name: &str, body: &[u8]) -> Result<Step, Refusal> {
        let command = match name {
            "acquire" => {
                let attempt = format!("without attempt, line {}", self.line);
                let attempt = Attempt::new(attempt)?;
                let (acquire, _wait_ms) = body::acquire(body, || attempt)?;
                Command::Acquire(acquire)
            }
            "complete" => Command::Complete(body::complete(body)?),
            "release" => Command::Release(body::release(body)?),
            "extend" => Command::Extend(body::extend(body)?),
            "purge" => Command::Purge(body::purge(body)?),
            "get" => return Ok(Step::Get(body::name(body)?)),
            _ => {
                Fields::read(body)?.finish()?;
                return Ok(Step::Entry(None));
            }
        };
        Ok(Step::Entry(Some(command)))
    }

    fn run(&mut self, stamp_ms: Option<u64>, step: Step) -> anyhow::Result<Vec<u8>> {
        let (commands, step) = match step {
            Step::Entry(command) => (Vec::from_iter(command), None),
            Step::Get(_) | Step::Snapshot | Step::Hash => (Vec::new(), Some(step)),
        };
        let entry = Entry { stamp_ms: stamp_ms.unwrap_or(0), commands };
        let done = apply(&mut self.counters, &mut self.store, &entry)?;
        let at = At { index: self.line, slot: Some(0), term: 1, now_ms: done.now_ms };
        let mut hash = None;
        match step {
            Some(Step::Get(name)) => {
                let record = visible(self.store.get(&name)?, at.now_ms);
                let view = record.map(|record| View::from(&*record));
                return Ok(with_status(&Response::record(view.as_ref(), at)));
            }
            Some(Step::Snapshot) => self.snapshot_and_restore()?,
            Some(Step::Hash) => {
                let write =
                    |sink: &mut dyn FnMut(&[u8])| snapshot::write(self.counters, &self.store, sink);
                hash = Some(snapshot::hash(write)?);
            }
            Some(Step::Entry(_)) | None => {}
        }
        if let Some(answer) = done.answers.into_iter().next() {
            return Ok(with_status(&Response::decided(&Decided { answer, at })));
        }
        let mut line = serde_json::to_vec(&Noted { status: 200, hash, at })?;
        line.push(b'\n');
        Ok(line)
    }

    fn snapshot_and_restore(&mut self) -> anyhow::Result<()> {
        let mut bytes = Vec::new();
        snapshot::write(self.counters, &self.store, |chunk| bytes.extend_from_slice(chunk))?;
        (self.counters, self.store) = Default::default();
        (self.counters, self.store) = snapshot::restore(&bytes)?;
        Ok(())
    }
}

/// The body with its status in it, as a line. A problem has its status already.
fn with_status(response: &Response) -> Vec<u8> {
    let mut line = Vec::with_capacity(response.body.len() + 16);
    match response.body.split_first() {
        Some((b'{', members)) if response.content == Some(Content::Json) => {
            line.extend_from_slice(format!("{{\"status\":{},", response.status).as_bytes());
            line.extend_from_slice(members);
        }
        Some(_) | None => line.extend_from_slice(&response.body),
    }
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replay(input: &[u8]) -> Vec<serde_json::Value> {
        let mut output = Vec::new();
        run(input, &mut output).unwrap();
        output
            .split_inclusive(|b| *b == b'\n')
            .map(|line| serde_json::from_slice(line).unwrap())
            .collect()
    }

    #[test]
    fn every_line_is_answered_and_counted_even_a_bad_one() {
        let long = [b"{\"at\":1,\"tick\":".as_slice(), &vec![b' '; LINE_BYTES], b"{}}\n"].concat();
        let input =
            [&b"\n\xff\n{\n"[..], &long, b"{\"at\":5,\"tick\":{}}\r\n{\"at\":6,\"tick\":{}}"];
        let answers = replay(&input.concat());
        let statuses: Vec<_> = answers.iter().map(|answer| answer["status"].as_u64()).collect();
        assert_eq!(statuses, [400, 400, 400, 400, 200, 200].map(Some));
        assert_eq!(answers[4]["at"]["index"], 5);
        assert_eq!(answers[5]["at"]["now_ms"], 6);
    }

    #[test]
    fn a_line_at_the_limit_is_read() {
        let tick = "{\"at\":1,\"tick\":{}}";
        let padded = |size: usize| format!("{tick}{}", " ".repeat(size - tick.len()));
        assert_eq!(replay((padded(LINE_BYTES) + "\n").as_bytes())[0]["status"], 200);
        assert_eq!(replay(padded(LINE_BYTES).as_bytes())[0]["status"], 200);
        assert_eq!(replay(padded(LINE_BYTES + 1).as_bytes())[0]["status"], 400);
    }

    #[test]
    fn a_payload_over_its_limit_leaves_the_clock_and_the_lease_alone() {
        let text = "x".repeat(1024 * 1024 + 1);
        let acquire = "{\"at\":1,\"acquire\":{\"scope\":\"s\",\"key\":\"k\"}}\n";
        let body = format!(r#"{{"scope":"s","key":"k","token":1,"payload":{{"text":"{text}"}}}}"#);
        let complete = format!("{{\"at\":9,\"complete\":{body}}}\n");
        let get = "{\"at\":2,\"get\":{\"scope\":\"s\",\"key\":\"k\"}}\n";
        let answers = replay([acquire, &complete, get].concat().as_bytes());
        assert_eq!((&answers[1]["status"], &answers[1]["at"]), (&413.into(), &().into()));
        assert_eq!(answers[1]["size"], 1024 * 1024 + 1);
        assert_eq!(
            (&answers[2]["state"], &answers[2]["at"]["now_ms"]),
            (&"in_progress".into(), &2.into())
        );
    }
}
