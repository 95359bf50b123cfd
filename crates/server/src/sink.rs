//! A sink that fences: it appends effects to a file, and refuses a writer whose token is lower than
//! the highest that it has seen for the key. A lease cannot do this: it is time, and a paused
//! writer does not see it pass.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use tenure_state_machine::Token;

/// What became of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Written {
    /// It is in the file.
    Accepted,
    /// Refused: a higher token has written.
    Fenced {
        /// That token.
        highest: Token,
    },
}

/// One line an effect: token, key, effect, separated by tabs.
#[derive(Debug)]
pub(crate) struct Sink(Mutex<Open>);

#[derive(Debug)]
struct Open {
    file: File,
    highest: BTreeMap<String, Token>,
}

impl Sink {
    /// Opens the file, and learns from what is in it which tokens have written.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        let mut highest = BTreeMap::new();
        for (token, key) in read(path)? {
            let known = highest.entry(key).or_insert(token);
            *known = token.max(*known);
        }
        Ok(Self(Mutex::new(Open { file, highest })))
    }

    /// Appends an effect, unless a higher token has written for the key. `key` and `effect` have
    /// no tabs and no line breaks.
    pub(crate) fn append(&self, key: &str, token: Token, effect: &str) -> io::Result<Written> {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(highest) = open.highest.get(key).copied().filter(|highest| *highest > token) {
            return Ok(Written::Fenced { highest });
        }
        open.file.write_all(format!("{token}\t{key}\t{effect}\n").as_bytes())?;
        open.highest.insert(key.to_owned(), token);
        Ok(Written::Accepted)
    }
}

/// How many effects the file has for each key.
pub(crate) fn effects(path: &Path) -> io::Result<BTreeMap<String, u64>> {
    let mut effects = BTreeMap::new();
    for (_, key) in read(path)? {
        *effects.entry(key).or_insert(0) += 1;
    }
    Ok(effects)
}

fn read(path: &Path) -> io::Result<Vec<(Token, String)>> {
    let text = fs::read_to_string(path)?;
    let line = |line: &str| {
        let mut fields = line.split('\t');
        let token = fields.next()?.parse().ok().and_then(|token| Token::new(token).ok())?;
        Some((token, fields.next()?.to_owned()))
    };
    let damaged = |text: &str| io::Error::new(io::ErrorKind::InvalidData, text.to_owned());
    text.lines().map(|text| line(text).ok_or_else(|| damaged(text))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(token: u64) -> Token {
        Token::new(token).unwrap()
    }

    #[test]
    fn a_lower_token_is_refused_for_its_key_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("effects");
        let sink = Sink::open(&path).unwrap();
        assert_eq!(sink.append("a", token(5), "x").unwrap(), Written::Accepted);
        let fenced = Written::Fenced { highest: token(5) };
        assert_eq!(sink.append("a", token(4), "late").unwrap(), fenced);
        assert_eq!(sink.append("b", token(4), "x").unwrap(), Written::Accepted);
        assert_eq!(effects(&path).unwrap(), [("a".to_owned(), 1), ("b".to_owned(), 1)].into());
    }

    #[test]
    fn a_reopened_sink_remembers_and_a_second_effect_is_counted() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("effects");
        Sink::open(&path).unwrap().append("a", token(5), "x").unwrap();
        let sink = Sink::open(&path).unwrap();
        let fenced = Written::Fenced { highest: token(5) };
        assert_eq!(sink.append("a", token(4), "late").unwrap(), fenced);
        assert_eq!(sink.append("a", token(6), "again").unwrap(), Written::Accepted);
        assert_eq!(effects(&path).unwrap(), [("a".to_owned(), 2)].into());
    }

    #[test]
    fn a_damaged_file_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("effects");
        fs::write(&path, "no token\n").unwrap();
        assert!(Sink::open(&path).is_err());
    }
}
