//! A handler under its lease, in a task of its own, and what becomes of its response.

use std::any::Any;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::header::{HeaderName, HeaderValue};
use http::{Request, Response};
use http_body::Body;
use tenure_client::{CompleteError, Lease, Lost, Payload};
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::{Instant, sleep};
use tower_service::Service;
use tracing::{debug, warn};

use crate::body::{Gathered, ReplyBody, gather};
use crate::problem::Problem;
use crate::settings::Settings;
use crate::stored::{self, NotKept};

/// The response header field that says, by `false`, that a response could not be recorded in time:
/// its request may run again.
pub const IDEMPOTENCY_RECORDED: HeaderName = HeaderName::from_static("idempotency-recorded");

/// How long to go on with recording a response that was sent already.
const RECORD_BEHIND: Duration = Duration::from_secs(5 * 60);
/// Between two tries of that.
const PAUSE: Duration = Duration::from_millis(500);

/// How a handler ended.
enum Ended<R, E> {
    /// With a response that stays, and how it is recorded.
    Kept(Response<ReplyBody<R>>, Option<Arc<Payload>>),
    /// With a response or an error that leaves no trace.
    Released(Result<Response<ReplyBody<R>>, E>),
    /// With a panic.
    Panicked(Box<dyn Any + Send>),
    /// It was dropped, because its lease was lost.
    Lost(Lost),
}

/// What the request's own future is told.
type Answer<R, E> = Result<Result<Response<ReplyBody<R>>, E>, Box<dyn Any + Send>>;

/// Runs the handler and gives its response. When this is dropped, the handler goes on, and its
/// response is recorded. When the handler panics, that goes on here.
pub(crate) async fn run<S, B, R>(
    settings: Arc<Settings>,
    service: S,
    request: Request<B>,
    lease: Lease,
    permit: OwnedSemaphorePermit,
) -> Result<Response<ReplyBody<R>>, S::Error>
where
    S: Service<Request<B>, Response = Response<R>> + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    B: Send + 'static,
    R: Body<Data = Bytes> + Send + 'static,
    R::Error: Send,
{
    let (answer, answered) = oneshot::channel();
    let retry_after_s = settings.retry_after_s(Duration::MAX);
    tokio::spawn(async move {
        let _permit = permit;
        conclude(&settings, service, request, lease, answer).await;
    });
    match answered.await {
        Ok(Ok(answer)) => answer,
        Ok(Err(panic)) => resume_unwind(panic),
        // The runtime has ended, and the task with it.
        Err(_) => Ok(Problem::LeaseLost { retry_after_s }.response()),
    }
}

async fn conclude<S, B, R>(
    settings: &Settings,
    service: S,
    request: Request<B>,
    mut lease: Lease,
    answer: oneshot::Sender<Answer<R, S::Error>>,
) where
    S: Service<Request<B>, Response = Response<R>>,
    R: Body<Data = Bytes>,
{
    // Who asked may be gone: then nobody hears it.
    match Box::pin(act(settings, service, request, &lease)).await {
        Ended::Kept(response, payload) => {
            // It has run: whatever comes, it must not run again at once.
            lease.expire_on_drop();
            record(&lease, payload, |recorded| {
                answer.send(Ok(Ok(marked(response, recorded)))).ok()
            })
            .await;
        }
        Ended::Released(returned) => {
            give_up(lease).await;
            let _ = answer.send(Ok(returned));
        }
        Ended::Panicked(panic) => {
            give_up(lease).await;
            let _ = answer.send(Err(panic));
        }
        Ended::Lost(lost) => {
            warn!(record = %lease.name(), %lost, "a handler was stopped");
            let retry_after_s = settings.retry_after_s(Duration::MAX);
            let _ = answer.send(Ok(Ok(Problem::LeaseLost { retry_after_s }.response())));
        }
    }
}

/// Runs the handler until its response is there, up to its limit, or its lease is lost; then it is
/// dropped.
async fn act<S, B, R>(
    settings: &Settings,
    mut service: S,
    mut request: Request<B>,
    lease: &Lease,
) -> Ended<R, S::Error>
where
    S: Service<Request<B>, Response = Response<R>>,
    R: Body<Data = Bytes>,
{
    request.extensions_mut().insert(lease.handle());
    // Nothing of the handler is looked at after a panic but the panic.
    let handled = AssertUnwindSafe(async {
        let response = match service.call(request).await {
            Ok(response) if (settings.stores)(response.status()) => response,
            returned => {
                return Ended::Released(returned.map(|response| response.map(ReplyBody::through)));
            }
        };
        let (head, body) = response.into_parts();
        match gather(body, settings.response_limit).await {
            Gathered::Whole(bytes, body) => {
                let payload = stored::write(&head, bytes, &settings.left_out);
                Ended::Kept(Response::from_parts(head, body), payload)
            }
            Gathered::Over(body) => {
                let payload = stored::mark(head.status, NotKept::BodyTooLarge);
                Ended::Kept(Response::from_parts(head, body), payload)
            }
            Gathered::Broken => {
                let payload = stored::mark(head.status, NotKept::BodyBroken);
                Ended::Kept(Problem::ResponseBroken.response(), payload)
            }
        }
    });
    tokio::select! {
        biased;
        ended = handled.catch_unwind() => ended.unwrap_or_else(Ended::Panicked),
        lost = lease.lost() => Ended::Lost(lost),
    }
}

/// Releases after a handler that left no trace. If that does not succeed, the lease expires.
async fn give_up(lease: Lease) {
    let name = lease.name().clone();
    if let Err(error) = lease.release().await {
        debug!(record = %name, %error, "not released; it expires");
    }
}

/// Records a response, and tells when that is done, or is taking too long: then it goes on, with
/// the lease kept, for a while.
async fn record<T>(lease: &Lease, payload: Option<Arc<Payload>>, tell: impl FnOnce(bool) -> T) {
    let until = Instant::now() + RECORD_BEHIND;
    let mut recorded = lease.complete(payload.clone()).await;
    if let Err(error) = &recorded {
        warn!(record = %lease.name(), %error, "run, and not recorded so far");
    }
    tell(recorded.is_ok());
    while let Err(CompleteError::Call(_)) = recorded {
        if Instant::now() >= until {
            warn!(record = %lease.name(), "run, and never recorded: it may run again");
            return;
        }
        sleep(PAUSE).await;
        recorded = lease.complete(payload.clone()).await;
    }
}

fn marked<R>(mut response: Response<ReplyBody<R>>, recorded: bool) -> Response<ReplyBody<R>> {
    if !recorded {
        let no = HeaderValue::from_static("false");
        response.headers_mut().insert(IDEMPOTENCY_RECORDED, no);
    }
    response
}
