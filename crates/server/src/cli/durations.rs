//! Durations as they are typed: `250ms`, `30s`, `1h 30m`. Nothing is rounded.

use std::fmt;
use std::time::Duration;

/// A whole number of milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Millis(pub(crate) u64);

impl Millis {
    pub(crate) fn duration(self) -> Duration {
        Duration::from_millis(self.0)
    }
}

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_duration(self.duration()).fmt(f)
    }
}

impl std::str::FromStr for Millis {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let duration = humantime::parse_duration(text)
            .map_err(|error| format!("{error}; write it like 250ms, 30s or 24h"))?;
        let millis = duration.as_millis();
        if Duration::from_millis(u64::try_from(millis).unwrap_or(0)) != duration {
            return Err("must be a whole number of milliseconds".to_owned());
        }
        u64::try_from(millis).map(Self).map_err(|_| "is too long".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::Millis;

    #[test]
    fn durations_are_read_as_people_write_them() {
        for (text, millis) in
            [("250ms", 250), ("30s", 30_000), ("24h", 86_400_000), ("1h 30m", 5_400_000), ("0s", 0)]
        {
            assert_eq!(text.parse(), Ok(Millis(millis)), "{text}");
        }
    }

    #[test]
    fn what_is_no_whole_number_of_milliseconds_is_refused() {
        for text in ["1us", "1500us", "30", "-1s", "", "soon", "1.0005s", "99999999999999999999h"] {
            assert!(text.parse::<Millis>().is_err(), "{text}");
        }
    }
}
