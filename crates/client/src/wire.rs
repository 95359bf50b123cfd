//! Frames on a byte stream: a length (u32, little-endian), then one bincode value.

use std::io;
use std::sync::Arc;

use bytes::{Buf, Bytes, BytesMut};
use tenure_api::frame::FRAME_BYTES;
use tenure_state_machine::codec::{self, DecodeError, EncodeError};
use tokio::io::{AsyncRead, AsyncReadExt};

/// Bytes asked of a socket at once: many answers, or a good part of a large one.
const READ_BYTES: usize = 64 * 1024;
/// Bytes of a frame's length.
const LENGTH: usize = 4;

/// Why a connection carries nothing any more.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Broken {
    /// The node closed it, or its process ended.
    #[error("the node closed the connection")]
    Closed,
    /// The network or the kernel broke it.
    #[error("the connection failed")]
    Io(#[source] Arc<io::Error>),
    /// The node announced a frame larger than [`FRAME_BYTES`].
    #[error("the node announced a frame of {0} bytes, the limit is {FRAME_BYTES}")]
    Oversized(usize),
    /// The node sent bytes that are no frame of this protocol.
    #[error("the node sent something that is no frame")]
    Malformed(#[source] Arc<DecodeError>),
    /// The node reads so little that what is not sent yet passed its limit.
    #[error("the node does not read what it is sent")]
    Stalled,
    /// The node let a request go unanswered beyond the time that it promises; given up here.
    #[error("the node did not answer in the time that it promises")]
    Silent,
}

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::UnexpectedEof {
            Self::Closed
        } else {
            Self::Io(Arc::new(error))
        }
    }
}

/// A value that makes no frame: it is too large.
#[derive(Debug, thiserror::Error)]
#[error("the request is larger than a frame of {FRAME_BYTES} bytes")]
pub struct TooLarge;

impl From<EncodeError> for TooLarge {
    fn from(_: EncodeError) -> Self {
        Self
    }
}

/// Appends `value` as a frame, or nothing.
///
/// # Errors
/// [`TooLarge`]; `bytes` are as they were.
pub fn push<T: serde::Serialize>(bytes: &mut Vec<u8>, value: &T) -> Result<(), TooLarge> {
    let start = bytes.len();
    let pushed = try_push(bytes, value);
    if pushed.is_err() {
        bytes.truncate(start);
    }
    pushed
}

fn try_push<T: serde::Serialize>(bytes: &mut Vec<u8>, value: &T) -> Result<(), TooLarge> {
    let start = bytes.len();
    bytes.extend_from_slice(&[0; LENGTH]);
    codec::encode_into(bytes, value)?;
    let length = bytes.len().saturating_sub(start + LENGTH);
    if length > FRAME_BYTES {
        return Err(TooLarge);
    }
    let length = u32::try_from(length).map_err(|_| TooLarge)?;
    for (byte, digit) in bytes.iter_mut().skip(start).zip(length.to_le_bytes()) {
        *byte = digit;
    }
    Ok(())
}

/// The frames that come out of a byte stream.
#[derive(Debug)]
pub struct Frames<R> {
    source: R,
    bytes: BytesMut,
}

impl<R: AsyncRead + Unpin> Frames<R> {
    /// The frames of `source`, from where it stands.
    /// Frames from the next byte on.
    pub fn new(source: R) -> Self {
        Self { source, bytes: BytesMut::new() }
    }

    /// Whether a frame has begun to arrive and has not ended.
    #[must_use]
    pub fn is_partial(&self) -> bool {
        !self.bytes.is_empty()
    }

    /// A frame that has arrived already.
    fn arrived(&mut self) -> Result<Option<Bytes>, Broken> {
        let Some((length, rest)) = self.bytes.split_first_chunk::<LENGTH>() else {
            return Ok(None);
        };
        let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
        if length > FRAME_BYTES {
            return Err(Broken::Oversized(length));
        }
        if rest.len() < length {
            return Ok(None);
        }
        self.bytes.advance(LENGTH);
        Ok(Some(self.bytes.split_to(length).freeze()))
    }

    /// The next frame. Memory grows with what arrives, not with what a length announces. When the
    /// future is dropped, nothing that arrived is lost.
    ///
    /// # Errors
    /// [`Broken`]; nothing more comes.
    pub async fn next(&mut self) -> Result<Bytes, Broken> {
        loop {
            if let Some(frame) = self.arrived()? {
                return Ok(frame);
            }
            self.bytes.reserve(READ_BYTES);
            if self.source.read_buf(&mut self.bytes).await? == 0 {
                return Err(Broken::Closed);
            }
        }
    }
}

/// Reads a frame's bytes as one value.
///
/// # Errors
/// [`Broken::Malformed`] for anything else.
pub fn decode<T: serde::de::DeserializeOwned>(frame: &[u8]) -> Result<T, Broken> {
    codec::decode(frame).map_err(|error| Broken::Malformed(Arc::new(error)))
}
