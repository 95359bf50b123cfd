//! What becomes of a request before a handler runs: passed through, refused, replayed, or run.

use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{HeaderName, HeaderValue};
use http::request::Parts;
use http::{Request, Response};
use http_body::Body;
use tenure_client::{LeaseError, Leased, Name, Payload};
use tokio::sync::{OwnedSemaphorePermit, TryAcquireError};
use tower_service::Service;
use tracing::{debug, error};

use crate::body::{self, ReplyBody, Unread};
use crate::fingerprint;
use crate::key;
use crate::problem::Problem;
use crate::run::run;
use crate::settings::Settings;
use crate::stored::{self, Stored};

/// The response header field that says, by `true`, that it was made for an earlier request.
pub const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// A service whose requests run once for a key; [`crate::IdempotencyLayer`] makes it.
#[derive(Debug, Clone)]
pub struct Idempotent<S> {
    inner: S,
    settings: Arc<Settings>,
}

impl<S> Idempotent<S> {
    pub(crate) fn new(inner: S, settings: Arc<Settings>) -> Self {
        Self { inner, settings }
    }
}

impl<S, B, R> Service<Request<B>> for Idempotent<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    B: Body + From<Bytes> + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    R: Body<Data = Bytes> + Send + 'static,
    R::Error: Send,
{
    type Response = Response<ReplyBody<R>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The one that is ready serves; the clone that stays need not be.
        let clone = self.inner.clone();
        let mut ready = mem::replace(&mut self.inner, clone);
        let settings = Arc::clone(&self.settings);
        let (parts, body) = request.into_parts();
        match covered(&settings, &parts) {
            Ok(Some(name)) => Box::pin(async move {
                match admit(&settings, name, &parts, body).await {
                    Ok(Admitted::Run(lease, permit, body)) => {
                        let request = Request::from_parts(parts, B::from(body));
                        run(settings, ready, request, lease, permit).await
                    }
                    Ok(Admitted::Replay(response)) => Ok(response.map(ReplyBody::whole)),
                    Err(problem) => Ok(problem.response()),
                }
            }),
            Ok(None) => {
                let answered = ready.call(Request::from_parts(parts, body));
                Box::pin(async move { Ok(answered.await?.map(ReplyBody::through)) })
            }
            Err(problem) => Box::pin(async move { Ok(problem.response()) }),
        }
    }
}

/// The record that a request asks for; none if the layer has nothing to do with it.
fn covered(settings: &Settings, parts: &Parts) -> Result<Option<Name>, Problem> {
    if !settings.methods.contains(&parts.method) {
        return Ok(None);
    }
    let Some(key) = key::read(&parts.headers).map_err(Problem::KeyMalformed)? else {
        return if settings.is_required { Err(Problem::KeyMissing) } else { Ok(None) };
    };
    let principal = (settings.principal)(parts).ok_or(Problem::NoPrincipal)?;
    let name = settings.name(&principal, &key).map_err(|invalid| internal(&invalid))?;
    Ok(Some(name))
}

/// What a covered request may do.
enum Admitted {
    /// Run: it holds the record, and this is its body.
    Run(tenure_client::Lease, OwnedSemaphorePermit, Bytes),
    /// Have the response of an earlier one.
    Replay(Response<Bytes>),
}

/// Reads the body and asks for the record. Nothing has run when this returns, nor when it is
/// dropped.
async fn admit<B>(
    settings: &Settings,
    name: Name,
    parts: &Parts,
    body: B,
) -> Result<Admitted, Problem>
where
    B: Body,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let limit = settings.request_limit;
    let body = body::read(body, limit).await.map_err(|unread| match unread {
        Unread::TooLarge => Problem::BodyTooLarge { limit },
        Unread::Broken => Problem::BodyBroken,
    })?;
    let fingerprint = fingerprint::of(parts, &body).map_err(|invalid| internal(&invalid))?;
    let retry_after_s = settings.retry_after_s(Duration::MAX);
    let permit =
        Arc::clone(&settings.running).try_acquire_owned().map_err(|error| match error {
            TryAcquireError::NoPermits => Problem::TooManyRunning { retry_after_s },
            TryAcquireError::Closed => Problem::ShuttingDown { retry_after_s },
        })?;
    let asked = settings.client.lease(name.scope(), name.key()).fingerprint(fingerprint);
    let asked = asked.lease(settings.lease).ttl(settings.ttl).wait(settings.wait);
    match Box::pin(asked.acquire()).await {
        Ok(Leased::Held(lease)) => Ok(Admitted::Run(lease, permit, body)),
        Ok(Leased::Replay(replay)) => replayed(&name, replay.payload.as_deref()),
        Err(error) => Err(refused(settings, &name, error)),
    }
}

fn replayed(name: &Name, payload: Option<&Payload>) -> Result<Admitted, Problem> {
    match payload.and_then(stored::read) {
        Some(Stored::Response(response)) => {
            let mut response = response.map(Bytes::from);
            let replayed = HeaderValue::from_static("true");
            response.headers_mut().insert(IDEMPOTENT_REPLAYED, replayed);
            Ok(Admitted::Replay(response))
        }
        Some(Stored::NotKept(status)) => Err(Problem::NotKept { response_status: status.as_u16() }),
        None => {
            error!(record = %name, "the record holds no response that this version reads");
            Err(Problem::Unreadable)
        }
    }
}

fn refused(settings: &Settings, name: &Name, error: LeaseError) -> Problem {
    let retry_after_s = settings.retry_after_s(Duration::MAX);
    match error {
        LeaseError::FingerprintMismatch { .. }
        | LeaseError::InProgress { fingerprint_differs: true, .. } => Problem::KeyReused,
        LeaseError::InProgress { retry_after_ms, .. } => {
            let left = Duration::from_millis(retry_after_ms);
            Problem::InProgress { retry_after_s: settings.retry_after_s(left) }
        }
        LeaseError::Invalid(invalid) => internal(&invalid),
        LeaseError::Call(_) | LeaseError::LeaseLost(_) | LeaseError::TooSlow => {
            debug!(record = %name, %error, "no lease: nothing was run");
            Problem::StoreUnreachable { retry_after_s }
        }
    }
}

fn internal(invalid: &tenure_state_machine::Invalid) -> Problem {
    error!(%invalid, "no command can be made of a request");
    Problem::Internal
}
