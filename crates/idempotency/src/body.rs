//! Bodies: those that are gathered, up to a limit, and those that pass through.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};

/// The body of a response: bytes that are there already, and then what is left of a handler's own
/// body, which is passed on frame by frame, or nothing.
#[derive(Debug)]
pub struct ReplyBody<B> {
    chunks: VecDeque<Bytes>,
    rest: Option<Pin<Box<B>>>,
}

impl<B> ReplyBody<B> {
    /// These bytes.
    pub(crate) fn whole(bytes: Bytes) -> Self {
        Self { chunks: [bytes].into(), rest: None }
    }

    /// A body as it is.
    pub(crate) fn through(body: B) -> Self {
        Self { chunks: VecDeque::new(), rest: Some(Box::pin(body)) }
    }
}

impl<B: Body<Data = Bytes>> Body for ReplyBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        if let Some(chunk) = self.chunks.pop_front() {
            return Poll::Ready(Some(Ok(Frame::data(chunk))));
        }
        match &mut self.rest {
            Some(rest) => rest.as_mut().poll_frame(context),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.chunks.is_empty() && self.rest.as_ref().is_none_or(|rest| rest.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        let there = self.chunks.iter().map(|chunk| chunk.len() as u64).sum::<u64>();
        let rest =
            self.rest.as_ref().map_or_else(|| SizeHint::with_exact(0), |rest| rest.size_hint());
        let mut hint = SizeHint::new();
        hint.set_lower(there.saturating_add(rest.lower()));
        if let Some(upper) = rest.upper() {
            hint.set_upper(there.saturating_add(upper));
        }
        hint
    }
}

/// Why a request's body was not read.
#[derive(Debug)]
pub(crate) enum Unread {
    /// It is over the limit. No more than that was read.
    TooLarge,
    /// It broke off.
    Broken,
}

/// Reads a request's body to its end. Trailers are dropped.
pub(crate) async fn read<B>(body: B, limit: usize) -> Result<Bytes, Unread>
where
    B: Body,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    if body.size_hint().lower() > limit as u64 {
        return Err(Unread::TooLarge);
    }
    match Limited::new(body, limit).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(Unread::TooLarge),
        Err(_) => Err(Unread::Broken),
    }
}

/// What a response's body came to.
pub(crate) enum Gathered<B> {
    /// All of it: to store, and to send. Trailers are dropped.
    Whole(Vec<u8>, ReplyBody<B>),
    /// It is over the limit: what was read, and the rest of it to be read.
    Over(ReplyBody<B>),
    /// It broke off.
    Broken,
}

/// Reads a response's body up to a limit. One that says that it is larger is not read at all.
pub(crate) async fn gather<B: Body<Data = Bytes>>(body: B, limit: usize) -> Gathered<B> {
    if body.size_hint().lower() > limit as u64 {
        return Gathered::Over(ReplyBody::through(body));
    }
    let mut body = Box::pin(body);
    let (mut chunks, mut size) = (VecDeque::new(), 0_usize);
    while let Some(frame) = poll_fn(|context| body.as_mut().poll_frame(context)).await {
        let Ok(frame) = frame else { return Gathered::Broken };
        let Ok(chunk) = frame.into_data() else { continue };
        size = size.saturating_add(chunk.len());
        chunks.push_back(chunk);
        if size > limit {
            return Gathered::Over(ReplyBody { chunks, rest: Some(body) });
        }
    }
    let mut bytes = Vec::with_capacity(size);
    chunks.iter().for_each(|chunk| bytes.extend_from_slice(chunk));
    Gathered::Whole(bytes, ReplyBody { chunks, rest: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::stream;
    use http_body_util::{Full, StreamBody};

    fn in_chunks(
        chunks: &[&'static str],
    ) -> impl Body<Data = Bytes, Error = std::io::Error> + use<> {
        let frames: Vec<_> = chunks
            .iter()
            .map(|chunk| Ok(Frame::data(Bytes::from_static(chunk.as_bytes()))))
            .collect();
        StreamBody::new(stream::iter(frames))
    }

    async fn text<B: Body<Data = Bytes>>(body: B) -> Result<String, B::Error> {
        Ok(String::from_utf8(body.collect().await?.to_bytes().to_vec()).unwrap())
    }

    #[tokio::test]
    async fn a_body_up_to_the_limit_is_there_twice() {
        let Gathered::Whole(bytes, body) = gather(in_chunks(&["ab", "", "cd"]), 4).await else {
            panic!("it fits")
        };
        assert_eq!(bytes, b"abcd");
        assert_eq!(body.size_hint().exact(), Some(4));
        assert_eq!(text(body).await.unwrap(), "abcd");
    }

    #[tokio::test]
    async fn a_body_over_the_limit_is_passed_on_whole() {
        let Gathered::Over(body) = gather(in_chunks(&["ab", "cd", "ef"]), 3).await else {
            panic!("it is over the limit")
        };
        assert_eq!(body.chunks.len(), 2, "it is read no further than the limit");
        assert_eq!(text(body).await.unwrap(), "abcdef");
        let Gathered::Over(body) = gather(Full::new(Bytes::from_static(b"abcd")), 3).await else {
            panic!("it says so")
        };
        assert_eq!(body.chunks.len(), 0, "it is not read at all");
        assert_eq!(body.size_hint().exact(), Some(4));
    }

    #[tokio::test]
    async fn a_body_that_breaks_off_is_neither() {
        let frames =
            [Ok(Frame::data(Bytes::from_static(b"ab"))), Err(std::io::Error::other("cut"))];
        let gathered = gather(StreamBody::new(stream::iter(frames)), 9).await;
        assert!(matches!(gathered, Gathered::Broken));
    }

    #[tokio::test]
    async fn a_request_is_read_up_to_the_limit() {
        assert_eq!(&read(in_chunks(&["ab", "cd"]), 4).await.unwrap()[..], b"abcd");
        assert!(matches!(read(in_chunks(&["ab", "cd"]), 3).await, Err(Unread::TooLarge)));
        let frames = [Err::<Frame<Bytes>, _>(std::io::Error::other("cut"))];
        let broken = read(StreamBody::new(stream::iter(frames)), 9).await;
        assert!(matches!(broken, Err(Unread::Broken)));
    }
}
