//! Frames of clients and of peers, and the stream that they come in.

use std::fmt::Debug;

use futures_util::FutureExt as _;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tenure_api::frame::{Ask, ClientFrame, FRAME_BYTES, Hello, Request, ServerFrame, Welcome};
use tenure_client::wire::{Broken, Frames};
use tenure_network::peer::{PeerAnswer, PeerFrame};
use tenure_state_machine::codec;

/// Decodes a value; what it is encoded to must be the same value. Gives it back, too.
pub(crate) fn decoded<T: DeserializeOwned + Serialize + Debug>(bytes: &[u8]) -> Option<T> {
    let value: T = codec::decode(bytes).ok()?;
    let encoded = codec::encode(&value).expect("what was decoded can be encoded");
    let again: T = codec::decode(&encoded).expect("what was encoded can be decoded");
    assert_eq!(format!("{value:?}"), format!("{again:?}"), "another value after its encoding");
    assert!(encoded.len() <= bytes.len(), "an encoding has grown");
    Some(value)
}

/// The first byte says which frame the rest is.
pub(crate) fn client(bytes: &[u8]) -> bool {
    let Some((kind, rest)) = bytes.split_first() else { return false };
    match kind % 4 {
        0 => decoded::<Hello>(rest).is_some(),
        1 => decoded::<Welcome>(rest).is_some(),
        2 => match decoded::<ClientFrame>(rest) {
            Some(ClientFrame::Request(Request { ask, .. })) => checked(&ask),
            Some(ClientFrame::Cancel { .. }) => true,
            None => false,
        },
        _ => decoded::<ServerFrame>(rest).is_some(),
    }
}

/// What passes the check of a node can be written into its log.
fn checked(ask: &Ask) -> bool {
    if ask.check().is_err() {
        return false;
    }
    if let Ask::Command { command, .. } = ask {
        assert!(codec::encode(command).is_ok(), "a valid command has no encoding");
    }
    true
}

/// The first byte says whether the rest is a frame or its answer.
pub(crate) fn peer(bytes: &[u8]) -> bool {
    match bytes.split_first() {
        None => false,
        Some((kind, rest)) if kind % 2 == 0 => decoded::<PeerFrame>(rest).is_some(),
        Some((_, rest)) => decoded::<PeerAnswer>(rest).is_some(),
    }
}

/// Frames come out as they went in, whatever pieces the stream arrives in. The first byte says how
/// large the pieces are.
pub(crate) fn stream(bytes: &[u8]) -> bool {
    let Some((size, stream)) = bytes.split_first() else { return false };
    let whole = frames(stream);
    let pieces = Pieces { rest: stream, size: usize::from(*size).max(1) };
    assert_eq!(whole, frames(pieces), "pieces make other frames");
    let (cut, end) = whole;
    assert!(cut.iter().all(|frame| frame.len() <= FRAME_BYTES));
    let mut again = Vec::new();
    for frame in &cut {
        again.extend_from_slice(&u32::try_from(frame.len()).unwrap().to_le_bytes());
        again.extend_from_slice(frame);
    }
    assert!(stream.starts_with(&again), "other bytes than those that came");
    !cut.is_empty() && end == End::Closed
}

#[derive(Debug, PartialEq, Eq)]
enum End {
    Closed,
    Oversized(usize),
}

fn frames(source: impl tokio::io::AsyncRead + Unpin) -> (Vec<Vec<u8>>, End) {
    let mut frames = Frames::new(source);
    let mut all = Vec::new();
    loop {
        match frames.next().now_or_never().expect("bytes in memory keep nobody waiting") {
            Ok(frame) => all.push(frame.to_vec()),
            Err(Broken::Closed) => return (all, End::Closed),
            Err(Broken::Oversized(size)) => return (all, End::Oversized(size)),
            Err(other) => panic!("{other}"),
        }
    }
}

/// Bytes that arrive a few at a time.
struct Pieces<'a> {
    rest: &'a [u8],
    size: usize,
}

impl tokio::io::AsyncRead for Pieces<'_> {
    fn poll_read(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
        buffer: &mut tokio::io::ReadBuf<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        let length = self.size.min(self.rest.len()).min(buffer.remaining());
        let (piece, rest) = self.rest.split_at(length);
        buffer.put_slice(piece);
        self.rest = rest;
        std::task::Poll::Ready(Ok(()))
    }
}
