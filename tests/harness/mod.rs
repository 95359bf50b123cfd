//! The parts of the harness.

mod ask;
mod caller;
mod clocks;
mod cluster;
mod http;
mod links;
mod until;

pub use ask::{acquire, complete, extend, name, payload, release, token_of};
pub use caller::{Caller, NoAnswer};
pub use clocks::Clocks;
pub use cluster::{Cluster, Options};
pub use http::{Answered, Http};
pub use links::{End, Links};
pub use until::{LIMIT, eventually, holds_for, seeds, within};
