//! Someone who sees only commands and answers, and checks what holds of them without knowing why
//! they were given: one holder a name (I1), rising tokens (I2), a clock that never goes back (I3),
//! leases that end only by release, completion, steal or purge (I4).

use std::collections::BTreeMap;

use tenure_state_machine::{Answer, Answers, Command, Entry, Name};

/// What was seen so far.
#[derive(Debug, Default)]
pub(crate) struct Witness {
    clock: u64,
    last_token: u64,
    holders: BTreeMap<Name, Hold>,
}

#[derive(Debug)]
struct Hold {
    token: u64,
    lease_until: u64,
    ttl_until: u64,
}

impl Witness {
    /// Sees the answers to an entry.
    pub(crate) fn see(&mut self, entry: &Entry, answers: &Answers) -> Result<(), String> {
        if answers.now_ms < self.clock || answers.now_ms < entry.stamp_ms {
            return Err(format!("I3: {} after {}", answers.now_ms, self.clock));
        }
        if answers.answers.len() != entry.commands.len() {
            return Err("I8: each command has one answer".to_owned());
        }
        self.clock = answers.now_ms;
        for (command, answer) in entry.commands.iter().zip(&answers.answers) {
            if let Some(name) = command.name() {
                self.see_one(name, command, answer)?;
            }
        }
        Ok(())
    }

    fn see_one(&mut self, name: &Name, command: &Command, answer: &Answer) -> Result<(), String> {
        let clock = self.clock;
        let hold = self.holders.get_mut(name);
        match answer {
            Answer::Acquired { token, resumed: false, lease_until_ms, ttl_until_ms, took_over } => {
                if token.get() <= self.last_token {
                    return Err(format!("I2: token {token} after {}", self.last_token));
                }
                if let Some(old) = hold
                    && !(clock >= old.lease_until
                        && (clock >= old.ttl_until
                            || took_over.as_ref().is_some_and(|o| o.token.get() == old.token)))
                {
                    return Err(format!("I1: {token} was granted while {} holds", old.token));
                }
                self.last_token = token.get();
                let (lease_until, ttl_until) = (*lease_until_ms, *ttl_until_ms);
                let hold = Hold { token: token.get(), lease_until, ttl_until };
                self.holders.insert(name.clone(), hold);
                Ok(())
            }
            Answer::Acquired { token, lease_until_ms, .. }
            | Answer::Extended { token, lease_until_ms } => match hold {
                Some(hold) if hold.token == token.get() && hold.lease_until <= *lease_until_ms => {
                    hold.lease_until = *lease_until_ms;
                    Ok(())
                }
                hold => Err(format!("R7: {answer:?} to {hold:?}")),
            },
            Answer::Completed(_) | Answer::Released => match self.holders.remove(name) {
                Some(hold) if Some(hold.token) == token(command) => Ok(()),
                hold => Err(format!("I1: {answer:?} to {command:?}, while {hold:?} holds")),
            },
            Answer::LeaseLost(_) => match hold {
                Some(hold)
                    if Some(hold.token) == token(command)
                        && (clock < hold.lease_until || clock < hold.ttl_until) =>
                {
                    Err(format!("I4: {hold:?} lost its lease by nothing"))
                }
                _ => Ok(()),
            },
            Answer::Replay(_)
            | Answer::InProgress { .. }
            | Answer::FingerprintMismatch { .. }
            | Answer::AlreadyComplete(_)
            | Answer::Purged { .. }
            | Answer::TooLate => Ok(()),
        }
    }
}

fn token(command: &Command) -> Option<u64> {
    match command {
        Command::Complete(complete) => Some(complete.token.get()),
        Command::Release(release) => Some(release.token.get()),
        Command::Extend(extend) => Some(extend.token.get()),
        Command::Acquire(_) | Command::Purge(_) => None,
    }
}
