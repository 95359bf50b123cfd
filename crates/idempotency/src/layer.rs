//! The layer, and what it needs of a service that it stands before.

use std::sync::Arc;

use http::request::Parts;
use tenure_client::{Client, Name};
use tenure_state_machine::Invalid;
use tower_layer::Layer;

use crate::service::Idempotent;
use crate::settings::{IdempotencyBuilder, Settings};

/// Makes services whose requests run once for a key. Cheap to clone; clones share everything.
#[derive(Debug, Clone)]
pub struct IdempotencyLayer {
    settings: Arc<Settings>,
}

impl IdempotencyLayer {
    /// A layer, a setting at a time. `service` names whose keys these are, in the scopes of
    /// records: 1 to 63 characters, no ':'; services that share a cluster take different ones.
    /// `principal` names who sent a request, from what an authentication before this layer has left
    /// in it (an extension, usually), not from what anybody may write: keys of one principal are
    /// no other's. A request for which it gives none is refused.
    pub fn builder(
        client: Client,
        service: impl Into<String>,
        principal: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static,
    ) -> IdempotencyBuilder {
        IdempotencyBuilder::new(client, service.into(), Box::new(principal))
    }

    pub(crate) fn new(settings: Settings) -> Self {
        Self { settings: Arc::new(settings) }
    }

    /// The record of a principal's key: for support, and for whoever must forget it.
    ///
    /// # Errors
    /// [`Invalid`] on the key.
    pub fn name_of(&self, principal: &str, key: &str) -> Result<Name, Invalid> {
        self.settings.name(principal, key)
    }

    /// Runs no more handlers (covered requests get 503) and returns once those that run have ended
    /// and their responses are recorded, or given up. To be called when a process stops, after its
    /// server has stopped: handlers of clients that are gone are no connection's.
    ///
    /// # Dropping
    /// Handlers may run again.
    pub async fn drain(&self) {
        let Settings { running, running_limit, .. } = &*self.settings;
        // It stands in line before all that come later.
        let all = running.acquire_many(*running_limit).await;
        running.close();
        drop(all);
    }
}

impl<S> Layer<S> for IdempotencyLayer {
    type Service = Idempotent<S>;

    fn layer(&self, inner: S) -> Idempotent<S> {
        Idempotent::new(inner, Arc::clone(&self.settings))
    }
}
