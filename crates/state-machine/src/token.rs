//! The fencing token.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::invalid::{Invalid, in_range};
use crate::limits::TOKEN_MAX;

/// The fencing token of one acquisition: 1 to 2^53 - 1, strictly increasing over the whole cluster
/// and never reused (rule R4). A sink that keeps the highest token per key refuses late writers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Token(u64);

impl Token {
    /// Checks the bounds.
    ///
    /// # Errors
    /// [`Invalid::Argument`] on `token`.
    pub fn new(token: u64) -> Result<Self, Invalid> {
        in_range("token", token, 1, TOKEN_MAX).map(Self)
    }

    /// The token that follows `last`, which is zero before the first.
    pub(crate) fn after(last: u64) -> Self {
        assert!(last < TOKEN_MAX, "I2: the tokens are used up");
        Self(last + 1)
    }

    /// The number itself.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0
    }
}

impl TryFrom<u64> for Token {
    type Error = Invalid;
    fn try_from(token: u64) -> Result<Self, Invalid> {
        Self::new(token)
    }
}

impl From<Token> for u64 {
    fn from(token: Token) -> Self {
        token.0
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}
