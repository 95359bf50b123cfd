//! Makes a failing walk short, and a script of it.

use std::fmt::Write as _;

use tenure_state_machine::{Command, Entry, Name};

use super::Step;

/// The shortest list found by leaving out what `fails` does not need: halves first, then ever
/// smaller parts, until no single item can go.
pub(crate) fn list<T: Clone>(items: &[T], fails: impl Fn(&[T]) -> bool) -> Vec<T> {
    let mut items = items.to_vec();
    let mut part = items.len().div_ceil(2);
    while part > 0 {
        let before = items.len();
        let mut from = 0;
        while from < items.len() {
            let mut fewer = items.clone();
            fewer.drain(from..(from + part).min(items.len()));
            if fails(&fewer) {
                items = fewer;
            } else {
                from += part;
            }
        }
        if part > 1 || items.len() == before {
            part /= 2;
        }
    }
    items
}

/// The shortest walk found: steps first, then the commands of each entry that is left.
pub(crate) fn steps(steps: &[Step], fails: impl Fn(&[Step]) -> bool) -> Vec<Step> {
    let mut steps = list(steps, &fails);
    for at in 0..steps.len() {
        let Step::Entry(Entry { stamp_ms, commands }) = steps[at].clone() else { continue };
        let with = |commands: &[Command]| {
            let mut steps = steps.clone();
            steps[at] = Step::Entry(Entry { stamp_ms, commands: commands.to_vec() });
            steps
        };
        let commands = list(&commands, |fewer| fails(&with(fewer)));
        steps = with(&commands);
    }
    steps
}

/// The walk in the language of golden scripts.
pub(crate) fn script(steps: &[Step]) -> String {
    let mut text = String::new();
    for step in steps {
        match step {
            Step::Restore => text.push_str("snapshot\n"),
            Step::Entry(Entry { stamp_ms, commands }) => match &commands[..] {
                [] => _ = writeln!(text, "at {stamp_ms}"),
                [one] => _ = writeln!(text, "at {stamp_ms} {}", line(one)),
                many => {
                    _ = writeln!(text, "at {stamp_ms} entry");
                    for each in many {
                        _ = writeln!(text, "{}", line(each));
                    }
                    text.push_str("apply\n");
                }
            },
        }
    }
    text + "state\n---\n"
}

fn line(command: &Command) -> String {
    let mut line = match command {
        Command::Acquire(acquire) => format!(
            "acquire {} attempt={} holder={:?} lease={} ttl={}",
            name(&acquire.name),
            acquire.attempt.as_str(),
            acquire.holder.as_str(),
            acquire.lease_ms,
            acquire.ttl_ms
        ),
        Command::Complete(complete) => {
            format!("complete {} token={}", name(&complete.name), complete.token)
        }
        Command::Release(release) => {
            format!("release {} token={}", name(&release.name), release.token)
        }
        Command::Extend(extend) => {
            let name = name(&extend.name);
            format!("extend {name} token={} lease={}", extend.token, extend.lease_ms)
        }
        Command::Purge(purge) => format!("purge limit={}", purge.limit),
    };
    if let Command::Acquire(acquire) = command
        && let Some(fingerprint) = &acquire.fingerprint
    {
        _ = write!(line, " fingerprint={}", fingerprint.as_str());
    }
    if let Command::Complete(complete) = command {
        if let Some(ttl_ms) = complete.ttl_ms {
            _ = write!(line, " ttl={ttl_ms}");
        }
        if let Some(payload) = &complete.payload {
            _ = write!(line, " text=\"{}\"", String::from_utf8_lossy(payload.body()));
            if let Some(kind) = payload.kind() {
                _ = write!(line, " type=\"{kind}\"");
            }
            let pairs = payload.attributes().iter().map(|(name, value)| format!("{name}={value}"));
            let pairs: Vec<_> = pairs.collect();
            if !pairs.is_empty() {
                _ = write!(line, " attributes=\"{}\"", pairs.join(","));
            }
        }
    }
    if let Some(not_after_ms) = command.not_after_ms() {
        _ = write!(line, " not_after={not_after_ms}");
    }
    line
}

fn name(name: &Name) -> String {
    format!("\"{}/{}\"", name.scope(), name.key())
}
