//! What is kept of a run: its exit code, and its output as chunks of two streams, in their order.
//!
//! As a payload of type [`KIND`]: the body is chunks, each a byte for the stream (1 or 2, as file
//! descriptors are), a length (u32, big-endian) and so many bytes. Attributes are `exit-code` and,
//! if the output was over its limit, `omitted-bytes`.

use std::collections::BTreeMap;
use std::io::{self, Write};

use anyhow::Context as _;
use tenure_state_machine::limits::BODY_BYTES;
use tenure_state_machine::{Invalid, Payload};

use crate::cli::output::say;

/// The type of such payloads.
const KIND: &str = "application/vnd.tenure.run";
const EXIT_CODE: &str = "exit-code";
const OMITTED: &str = "omitted-bytes";
/// Bytes before each chunk.
const HEADER: usize = 5;
/// Largest limit on output, in bytes: what a body holds of it in one piece.
pub(crate) const OUTPUT_MAX: usize = BODY_BYTES - HEADER;

/// An output of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stream {
    Out,
    Err,
}

/// Output as it comes.
#[derive(Debug)]
pub(crate) struct Recording {
    chunks: Vec<(Stream, Vec<u8>)>,
    /// Most bytes of output to keep; and with their headers at most [`BODY_BYTES`].
    limit: usize,
    kept: usize,
    /// Bytes beyond it. Nothing is kept behind a gap.
    omitted: u64,
}

impl Recording {
    pub(crate) fn new(limit: usize) -> Self {
        Self { chunks: Vec::new(), limit, kept: 0, omitted: 0 }
    }

    pub(crate) fn push(&mut self, stream: Stream, bytes: &[u8]) {
        let goes_on = self.chunks.last().is_some_and(|(last, _)| *last == stream);
        let headers = self.chunks.len() + usize::from(!goes_on);
        let room = BODY_BYTES.saturating_sub(headers * HEADER).min(self.limit);
        let room = if self.omitted == 0 { room.saturating_sub(self.kept) } else { 0 };
        let (kept, omitted) = bytes.split_at(bytes.len().min(room));
        self.kept += kept.len();
        self.omitted = self.omitted.saturating_add(omitted.len() as u64);
        match self.chunks.last_mut().filter(|_| goes_on) {
            Some((_, chunk)) => chunk.extend_from_slice(kept),
            None if kept.is_empty() => {}
            None => self.chunks.push((stream, kept.to_vec())),
        }
    }

    pub(crate) fn into_payload(self, code: u8) -> Result<Payload, Invalid> {
        let mut body = Vec::with_capacity(self.kept + self.chunks.len() * HEADER);
        for (stream, chunk) in &self.chunks {
            body.push(match stream {
                Stream::Out => 1,
                Stream::Err => 2,
            });
            let length = u32::try_from(chunk.len()).unwrap_or(u32::MAX);
            body.extend_from_slice(&length.to_be_bytes());
            body.extend_from_slice(chunk);
        }
        let mut attributes = BTreeMap::from([(EXIT_CODE.to_owned(), code.to_string())]);
        if self.omitted > 0 {
            attributes.insert(OMITTED.to_owned(), self.omitted.to_string());
        }
        Payload::new(Some(KIND.to_owned()), body, attributes)
    }
}

/// What is kept of a run, read back.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Run {
    code: u8,
    chunks: Vec<(Stream, Vec<u8>)>,
    omitted: u64,
}

/// Why a payload is no run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error("the record is complete, but not by `tenure run`")]
    Foreign,
    #[error("the record is complete, and what `tenure run` kept in it is damaged")]
    Damaged,
}

impl Run {
    pub(crate) fn read(payload: Option<&Payload>) -> Result<Self, ReadError> {
        let payload = payload.filter(|payload| payload.kind() == Some(KIND));
        let payload = payload.ok_or(ReadError::Foreign)?;
        Self::parse(payload).ok_or(ReadError::Damaged)
    }

    fn parse(payload: &Payload) -> Option<Self> {
        let code = payload.attributes().get(EXIT_CODE)?.parse().ok()?;
        let omitted = match payload.attributes().get(OMITTED) {
            Some(bytes) => bytes.parse().ok()?,
            None => 0,
        };
        let (mut rest, mut chunks) = (payload.body(), Vec::new());
        while let Some((&[stream, a, b, c, d], behind)) = rest.split_first_chunk::<HEADER>() {
            let stream = match stream {
                1 => Stream::Out,
                2 => Stream::Err,
                _ => return None,
            };
            let length = usize::try_from(u32::from_be_bytes([a, b, c, d])).ok()?;
            let (chunk, behind) = behind.split_at_checked(length)?;
            chunks.push((stream, chunk.to_vec()));
            rest = behind;
        }
        rest.is_empty().then_some(Self { code, chunks, omitted })
    }

    /// Writes the output to where it was written the first time, and gives the exit code. A reader
    /// that has gone away is no error.
    pub(crate) fn replay(&self) -> anyhow::Result<u8> {
        for (stream, chunk) in &self.chunks {
            let written = match stream {
                Stream::Out => write_all(&mut io::stdout().lock(), chunk),
                Stream::Err => write_all(&mut io::stderr().lock(), chunk),
            };
            match written {
                Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                    return Err(error).context("cannot write the output");
                }
                _ => {}
            }
        }
        if self.omitted > 0 {
            say(format_args!(
                "tenure: {} further bytes of output were over --max-output and are not kept",
                self.omitted
            ));
        }
        Ok(self.code)
    }
}

/// Writes and flushes.
pub(crate) fn write_all(to: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes).and_then(|()| to.flush())
}

#[cfg(test)]
mod tests {
    use super::Stream::{Err as Error, Out};
    use super::*;

    fn recorded(limit: usize, pushes: &[(Stream, &[u8])]) -> Run {
        let mut recording = Recording::new(limit);
        pushes.iter().for_each(|(stream, bytes)| recording.push(*stream, bytes));
        let payload = recording.into_payload(3).unwrap();
        Run::read(Some(&payload)).unwrap()
    }

    #[test]
    fn chunks_of_two_streams_come_back_in_their_order() {
        let run = recorded(100, &[(Out, b"a"), (Out, b"b"), (Error, b"\xff\0"), (Out, b"c")]);
        let chunks = vec![(Out, b"ab".to_vec()), (Error, vec![255, 0]), (Out, b"c".to_vec())];
        assert_eq!(run, Run { code: 3, chunks, omitted: 0 });
        assert_eq!(recorded(100, &[]), Run { code: 3, chunks: Vec::new(), omitted: 0 });
    }

    #[test]
    fn what_is_over_the_limit_is_counted_and_nothing_is_kept_behind_it() {
        let run = recorded(4, &[(Out, b"abc"), (Error, b"def"), (Out, b"g")]);
        assert_eq!(run.chunks, vec![(Out, b"abc".to_vec()), (Error, b"d".to_vec())]);
        assert_eq!(run.omitted, 3);
        assert_eq!(recorded(0, &[(Out, b"abc")]).omitted, 3);
        assert_eq!(recorded(3, &[(Out, b"abc")]).omitted, 0);
    }

    #[test]
    fn many_small_chunks_stay_within_a_body() {
        let mut recording = Recording::new(OUTPUT_MAX);
        for _ in 0..200_000 {
            recording.push(Out, b"a");
            recording.push(Error, b"b");
        }
        let payload = recording.into_payload(0).unwrap();
        assert!(payload.body().len() <= BODY_BYTES);
        let run = Run::read(Some(&payload)).unwrap();
        assert_eq!(run.chunks.len() as u64 + run.omitted, 400_000);
        let whole = recorded(OUTPUT_MAX, &[(Out, &vec![b'x'; OUTPUT_MAX])]);
        assert_eq!(whole.omitted, 0);
    }

    #[test]
    fn what_is_no_run_is_told_apart() {
        let payload = |kind: Option<&str>, body: &[u8], code: &str| {
            let attributes = BTreeMap::from([(EXIT_CODE.to_owned(), code.to_owned())]);
            Payload::new(kind.map(str::to_owned), body.to_vec(), attributes).unwrap()
        };
        assert!(matches!(Run::read(None), Err(ReadError::Foreign)));
        let foreign = payload(Some("text/plain"), b"", "0");
        assert!(matches!(Run::read(Some(&foreign)), Err(ReadError::Foreign)));
        for (body, code) in [
            (&b"\x01\0\0\0\x02a"[..], "0"),
            (b"\x03\0\0\0\x01a", "0"),
            (b"\x01\0\0", "0"),
            (b"\x01\xff\xff\xff\xffa", "0"),
            (b"", "256"),
            (b"", "-1"),
        ] {
            let damaged = payload(Some(KIND), body, code);
            assert!(matches!(Run::read(Some(&damaged)), Err(ReadError::Damaged)), "{body:?}");
        }
    }
}
