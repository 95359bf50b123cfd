//! How a node that cannot trust its disk stops.

use std::io;
use std::sync::{Arc, OnceLock};

use tokio::sync::Notify;

/// The first failure after which this node must not go on, shared by all of its parts. From then
/// on none of them writes.
#[derive(Debug, Clone, Default)]
pub struct FailStop(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    reason: OnceLock<String>,
    raised: Notify,
}

impl FailStop {
    /// Stops the node. Only the first reason counts: what comes after it may be its consequence.
    pub fn raise(&self, reason: impl std::fmt::Display) {
        if self.0.reason.set(reason.to_string()).is_ok() {
            tracing::error!(reason = %reason, "this node cannot trust its disk any more and stops");
            self.0.raised.notify_waiters();
        }
    }

    /// The reason, once there is one.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        self.0.reason.get().map(String::as_str)
    }

    /// Waits for a failure and gives its reason.
    pub async fn raised(&self) -> String {
        loop {
            // Created before the look at the reason, so that no call of `raise` is missed.
            let raised = self.0.raised.notified();
            if let Some(reason) = self.reason() {
                return reason.to_owned();
            }
            raised.await;
        }
    }

    /// An error once the node must stop: asked before every write.
    pub(crate) fn check(&self) -> io::Result<()> {
        self.reason().map_or(Ok(()), |reason| Err(io::Error::other(reason.to_owned())))
    }

    /// Passes `result` on; an error stops the node: nothing is skipped, nothing is tried again.
    pub(crate) fn guard<T>(&self, what: &str, result: io::Result<T>) -> io::Result<T> {
        if let Err(error) = &result {
            self.raise(format_args!("{what}: {error}"));
        }
        result
    }
}
