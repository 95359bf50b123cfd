//! What a layer is told, a setting at a time, and checked before it serves.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::header::{HeaderName, SET_COOKIE};
use http::request::Parts;
use http::{Method, StatusCode};
use tenure_client::{Client, Name};
use tenure_state_machine::limits::{BODY_BYTES, LEASE_DEFAULT_MS, TTL_DEFAULT_MS};
use tenure_state_machine::{Invalid, command};
use tokio::sync::Semaphore;

use crate::fingerprint;
use crate::layer::IdempotencyLayer;

/// Largest body of a request that is covered, in bytes, if nothing else is said: as of a response.
pub const REQUEST_BYTES: usize = BODY_BYTES;
/// Most handlers at a time, if nothing else is said. Those whose clients are gone count: without a
/// bound, who sends and hangs up again and again would make ever more of them.
pub const RUNNING: u32 = 1024;
/// Longest time until a client is told to come back, if nothing else is said. A holder's lease says
/// how long it may take at most; most handlers are done long before that.
pub const RETRY_AFTER: Duration = Duration::from_secs(1);

pub(crate) type Principal = dyn Fn(&Parts) -> Option<String> + Send + Sync;
pub(crate) type Stores = dyn Fn(StatusCode) -> bool + Send + Sync;

/// Settings of an [`IdempotencyLayer`]; those that are not made are the defaults that they name.
#[derive(Debug)]
#[must_use = "it is not a layer yet"]
pub struct IdempotencyBuilder(Settings);

pub(crate) struct Settings {
    pub(crate) client: Client,
    service: String,
    pub(crate) principal: Box<Principal>,
    pub(crate) stores: Box<Stores>,
    pub(crate) methods: Vec<Method>,
    pub(crate) is_required: bool,
    pub(crate) lease: Duration,
    pub(crate) ttl: Duration,
    pub(crate) wait: Duration,
    pub(crate) retry_after: Duration,
    pub(crate) request_limit: usize,
    pub(crate) response_limit: usize,
    pub(crate) left_out: Vec<HeaderName>,
    /// A permit for each handler that may run; closed when none may any more.
    pub(crate) running: Arc<Semaphore>,
    pub(crate) running_limit: u32,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings").field("service", &self.service).finish_non_exhaustive()
    }
}

impl Settings {
    /// The record of a principal's key.
    pub(crate) fn name(&self, principal: &str, key: &str) -> Result<Name, Invalid> {
        let scope = format!("{}.{}", self.service, fingerprint::of_principal(principal));
        Name::new(&scope, key)
    }

    /// When a client is told to come back: soon, or when the holder's lease has run out.
    pub(crate) fn retry_after_s(&self, left: Duration) -> u64 {
        let after = left.min(self.retry_after);
        u64::try_from(after.as_millis().div_ceil(1000)).unwrap_or(u64::MAX).max(1)
    }
}

impl IdempotencyBuilder {
    pub(crate) fn new(client: Client, service: String, principal: Box<Principal>) -> Self {
        Self(Settings {
            client,
            service,
            principal,
            stores: Box::new(|status| !status.is_server_error() && !status.is_informational()),
            methods: vec![Method::POST, Method::PATCH],
            is_required: true,
            lease: Duration::from_millis(LEASE_DEFAULT_MS),
            ttl: Duration::from_millis(TTL_DEFAULT_MS),
            wait: Duration::ZERO,
            retry_after: RETRY_AFTER,
            request_limit: REQUEST_BYTES,
            response_limit: BODY_BYTES,
            left_out: vec![SET_COOKIE],
            running: Arc::new(Semaphore::new(RUNNING as usize)),
            running_limit: RUNNING,
        })
    }

    /// The methods that are covered: POST and PATCH. Requests of other methods pass through as if
    /// the layer were not there, whatever fields they have.
    pub fn methods(mut self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.0.methods = methods.into_iter().collect();
        self
    }

    /// Requests of covered methods may come without a key, and then pass through as if the layer
    /// were not there. Without this word they are refused.
    pub fn optional(mut self) -> Self {
        self.0.is_required = false;
        self
    }

    /// Which statuses are stored and replayed: all but 5xx. A response of another status is sent as
    /// it is, and its record released: the next request with the key runs.
    ///
    /// Store whatever may have had an effect. Not to store a refusal that is made before any
    /// (429, say) is safe, and lets its retry run.
    pub fn stores(mut self, stores: impl Fn(StatusCode) -> bool + Send + Sync + 'static) -> Self {
        self.0.stores = Box::new(stores);
        self
    }

    /// How long a handler is protected without a heartbeat: 30 s; 2 ms to 24 h, in whole
    /// milliseconds. It bounds how long a crash of this process keeps retries waiting, not how long
    /// a handler may take.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.0.lease = lease;
        self
    }

    /// How long a response is kept, from when it is recorded: 24 h; 1 ms to 3650 days, in whole
    /// milliseconds. Tell clients: a retry that comes later runs again.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.0.ttl = ttl;
        self
    }

    /// How long a duplicate waits for the first one's response before it is answered with 409: not
    /// at all.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.0.wait = wait;
        self
    }

    /// The longest `Retry-After`, in whole seconds, rounded up: one second.
    pub fn retry_after(mut self, retry_after: Duration) -> Self {
        self.0.retry_after = retry_after;
        self
    }

    /// Largest body of a covered request, in bytes: 1 MiB. It is held in memory.
    pub fn request_limit(mut self, bytes: usize) -> Self {
        self.0.request_limit = bytes;
        self
    }

    /// Largest body of a response that is stored, in bytes: 1 MiB, and no more than that. It is held
    /// in memory. A larger one is sent, not stored, and its request does not run again.
    pub fn response_limit(mut self, bytes: usize) -> Self {
        self.0.response_limit = bytes;
        self
    }

    /// Header fields of responses that are not stored, beside those of one connection or message:
    /// Set-Cookie alone. What is given takes the place of that.
    pub fn unstored_headers(mut self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.0.left_out = names.into_iter().collect();
        self
    }

    /// Most handlers at a time: 1024, those whose clients are gone included. A request beyond that
    /// is answered with 503.
    pub fn running_limit(mut self, handlers: u32) -> Self {
        self.0.running_limit = handlers;
        self
    }

    /// The layer.
    ///
    /// # Errors
    /// [`Invalid`] on the setting that is out of its bounds.
    pub fn build(self) -> Result<IdempotencyLayer, Invalid> {
        let mut settings = self.0;
        settings.name("principal", "key").map_err(|invalid| {
            Invalid::argument("service", format!("with a hash behind it, is no scope: {invalid}"))
        })?;
        command::lease_ms(Some(whole_millis("lease", settings.lease)?))?;
        command::ttl_ms(Some(whole_millis("ttl", settings.ttl)?))?;
        if settings.response_limit > BODY_BYTES {
            let reason = format!("must be at most {BODY_BYTES} bytes, what a record takes");
            return Err(Invalid::argument("response_limit", reason));
        }
        let permits = usize::try_from(settings.running_limit).unwrap_or(usize::MAX);
        if permits == 0 || permits > Semaphore::MAX_PERMITS {
            return Err(Invalid::argument("running_limit", "must be at least 1"));
        }
        settings.running = Arc::new(Semaphore::new(permits));
        Ok(IdempotencyLayer::new(settings))
    }
}

fn whole_millis(field: &'static str, duration: Duration) -> Result<u64, Invalid> {
    let millis = u64::try_from(duration.as_millis()).ok();
    millis
        .filter(|millis| Duration::from_millis(*millis) == duration)
        .ok_or_else(|| Invalid::argument(field, "must be a whole number of milliseconds"))
}
