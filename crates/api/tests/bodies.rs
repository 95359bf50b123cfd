//! Golden scripts of bodies and queries: what is asked on top, what it is read as below.
//!
//! `UPDATE_GOLDENFILES=1` writes them again; read the difference.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::error::Error;
use std::fmt::{Debug, Write as _};

use tenure_api::{Refusal, body, query};
use tenure_state_machine::Attempt;

/// What a script may ask.
#[derive(goldenscript::Command)]
enum Ask {
    /// A body of `POST /v1/acquire`.
    Acquire(String),
    /// A body of `POST /v1/complete`.
    Complete(String),
    /// A body of `POST /v1/release`.
    Release(String),
    /// A body of `POST /v1/extend`.
    Extend(String),
    /// A body of `POST /v1/purge`.
    Purge(String),
    /// A body of `POST /v1/wait`.
    Wait(String),
    /// A body of `POST /v1/batch`.
    Batch(String),
    /// A body of `POST /v1/cluster/members`.
    Member(String),
    /// A body of `POST /v1/cluster/transfer`.
    Transfer(String),
    /// The id in `/v1/cluster/members/{id}`.
    NodeId(String),
    /// The query of a listing of scope `s`.
    List(#[arg(optional)] Vec<Pair>),
    /// The query of a read.
    Consistency(#[arg(optional)] Vec<Pair>),
}

/// `name:value`; a script would not take the same key twice.
struct Pair(String, String);

impl std::str::FromStr for Pair {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, value) = text.split_once(':').ok_or("a pair has a colon")?;
        Ok(Self(name.to_owned(), value.to_owned()))
    }
}

struct Reader;

impl goldenscript::Runner for Reader {
    type Command = Ask;

    fn run(
        &mut self,
        ask: &Ask,
        _context: &goldenscript::Context,
    ) -> Result<String, Box<dyn Error>> {
        let fresh = || Attempt::new("fresh").unwrap();
        Ok(match ask {
            Ask::Acquire(body) => {
                let read = body::acquire(body.as_bytes(), fresh);
                shown(read.map(|(acquire, wait_ms)| {
                    let attempt = acquire.attempt.as_str().to_owned();
                    (acquire, format!("attempt {attempt}, wait {wait_ms}"))
                }))
            }
            Ask::Complete(body) => shown(body::complete(body.as_bytes()).map(|complete| {
                let payload = complete.payload.clone();
                let body = payload.as_ref().map(|payload| payload.body().to_vec());
                let kind = payload.as_ref().and_then(|p| p.kind().map(str::to_owned));
                let attributes = payload.map(|payload| payload.attributes().clone());
                (complete, kind, body, attributes)
            })),
            Ask::Release(body) => shown(body::release(body.as_bytes())),
            Ask::Extend(body) => shown(body::extend(body.as_bytes())),
            Ask::Purge(body) => shown(body::purge(body.as_bytes())),
            Ask::Wait(body) => shown(body::wait(body.as_bytes())),
            Ask::Batch(body) => match body::batch(body.as_bytes(), fresh) {
                Ok(commands) => commands.into_iter().map(shown).collect(),
                Err(refusal) => format!("whole batch: {}", refused(&refusal)),
            },
            Ask::Member(body) => shown(body::member(body.as_bytes())),
            Ask::Transfer(body) => shown(body::transfer(body.as_bytes())),
            Ask::NodeId(text) => shown(body::node_id(text)),
            Ask::List(pairs) => shown(query::list("s", borrowed(pairs))),
            Ask::Consistency(pairs) => shown(query::consistency(borrowed(pairs))),
        })
    }
}

fn borrowed(pairs: &[Pair]) -> impl Iterator<Item = (&str, &str)> {
    pairs.iter().map(|Pair(name, value)| (name.as_str(), value.as_str()))
}

fn shown<T: Debug>(read: Result<T, Refusal>) -> String {
    match read {
        Ok(value) => format!("{value:?}\n"),
        Err(refusal) => refused(&refusal),
    }
}

fn refused(refusal: &Refusal) -> String {
    let mut line = format!("{} ", refusal.code().row().code);
    if let Refusal::InvalidArgument { field, .. } = refusal {
        write!(line, "{}: ", field.as_deref().unwrap_or("-")).unwrap();
    }
    line + &refusal.to_string() + "\n"
}

#[test]
fn bodies_are_read_as_the_scripts_say() {
    let mut count = 0;
    for script in std::fs::read_dir("tests/bodies").unwrap() {
        goldenscript::run(&mut Reader, script.unwrap().path()).unwrap();
        count += 1;
    }
    assert_eq!(count, 5, "a script is missing");
}
