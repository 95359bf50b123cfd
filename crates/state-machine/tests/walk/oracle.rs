//! A second state machine, as naive as the rules allow: it shares the types of commands and
//! answers with the real one, and no logic. Records lie in a list, every question walks through it.

use std::sync::Arc;

use tenure_state_machine::{
    Acquire, Answer, Command, Complete, Completion, Extend, Fingerprint, Holder, LeaseLost, Name,
    Payload, Purge, Release, Replay, Token, TookOver,
};

use super::cells::Cell;

/// What the oracle believes.
#[derive(Debug, Default)]
pub(crate) struct Oracle {
    pub(crate) now: u64,
    pub(crate) tokens: u64,
    pub(crate) kept: Vec<Kept>,
}

/// A record that nobody released or purged.
#[derive(Debug, Clone)]
pub(crate) struct Kept {
    pub(crate) scope: String,
    pub(crate) key: String,
    pub(crate) token: u64,
    pub(crate) lease_end: u64,
    /// The deadline of the ttl, counted from the acquire or the completion.
    pub(crate) ttl_end: u64,
    attempt: String,
    holder: Holder,
    fingerprint: Option<Fingerprint>,
    acquired: u64,
    ttl: u64,
    done: Option<Done>,
}

#[derive(Debug, Clone)]
struct Done {
    when: u64,
    payload: Option<Arc<Payload>>,
}

/// The columns of the table of rules. *Mine* is the attempt for acquire, else the token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Column {
    Absent,
    MineLive,
    MinePassed,
    OthersLive,
    OthersPassed,
    MineComplete,
    OthersComplete,
    MinePurgeable,
    OthersPurgeable,
    CompletePurgeable,
}

/// The sum of two times, which ends at the largest number.
fn sum(a: u64, b: u64) -> u64 {
    u64::try_from(u128::from(a) + u128::from(b)).unwrap_or(u64::MAX)
}

impl Kept {
    fn is(&self, name: &Name) -> bool {
        self.scope == name.scope() && self.key == name.key()
    }

    fn in_lease(&self, now: u64) -> bool {
        now < self.lease_end
    }

    /// Purgeable: COMPLETE past its ttl, or IN_PROGRESS past ttl and lease.
    fn gone(&self, now: u64) -> bool {
        if self.done.is_some() {
            now >= self.ttl_end
        } else {
            now >= self.ttl_end && now >= self.lease_end
        }
    }

    /// Where the record stands in the order of purges: deadline, then stored name.
    fn purge_order(&self) -> (u64, usize, &[u8], &[u8]) {
        let deadline = match self.done {
            Some(_) => self.ttl_end,
            None if self.lease_end > self.ttl_end => self.lease_end,
            None => self.ttl_end,
        };
        (deadline, self.scope.len(), self.scope.as_bytes(), self.key.as_bytes())
    }

    /// The column where nobody asks: for get and purge.
    pub(crate) fn plain_column(&self, now: u64) -> &'static str {
        match (self.done.is_some(), self.gone(now)) {
            (true, true) => "complete, purgeable",
            (true, false) => "complete",
            (false, true) => "in progress, purgeable",
            (false, false) if self.in_lease(now) => "live",
            (false, false) => "lease passed",
        }
    }
}

impl Oracle {
    /// A stamp of an entry.
    pub(crate) fn stamp(&mut self, stamp: u64) {
        if stamp > self.now {
            self.now = stamp;
        }
    }

    /// One command: the answer that it must get, and the cells of the table that this fills.
    pub(crate) fn command(&mut self, command: &Command, cells: &mut Vec<Cell>) -> Answer {
        if let Command::Purge(purge) = command {
            return self.purge(purge, cells);
        }
        let (row, column) = self.cell(command);
        let late = command.not_after_ms().is_some_and(|last| self.now > last);
        let answer = match command {
            _ if late => Answer::TooLate,
            Command::Acquire(acquire) => self.acquire(column, acquire),
            Command::Complete(complete) if column.is_held() => {
                let now = self.now;
                let kept = self.find(&complete.name);
                kept.ttl_end = sum(now, complete.ttl_ms.unwrap_or(kept.ttl));
                kept.done = Some(Done { when: now, payload: complete.payload.clone() });
                Answer::Completed(self.completion(&complete.name))
            }
            Command::Complete(complete) if column == Column::MineComplete => {
                Answer::AlreadyComplete(self.completion(&complete.name))
            }
            Command::Release(release) if column.is_held() => {
                self.kept.retain(|kept| !kept.is(&release.name));
                Answer::Released
            }
            Command::Extend(extend) if column.is_held() => {
                let until = sum(self.now, extend.lease_ms);
                let kept = self.find(&extend.name);
                if until > kept.lease_end {
                    kept.lease_end = until;
                }
                Answer::Extended { token: extend.token, lease_until_ms: kept.lease_end }
            }
            Command::Complete(Complete { name, .. })
            | Command::Release(Release { name, .. })
            | Command::Extend(Extend { name, .. }) => self.lost(column, name),
            Command::Purge(_) => unreachable!("answered above"),
        };
        cells.push((row, column.text(), super::cells::label(&answer)));
        answer
    }

    /// What a get answers, and the column it met: attempt and ttl are not part of it.
    pub(crate) fn get(&self, name: &Name) -> (&'static str, Option<&Kept>) {
        match self.kept.iter().find(|kept| kept.is(name)) {
            None => ("absent", None),
            Some(kept) => {
                (kept.plain_column(self.now), Some(kept).filter(|kept| !kept.gone(self.now)))
            }
        }
    }

    fn cell(&self, command: &Command) -> (&'static str, Column) {
        let mine = |kept: &Kept| match command {
            Command::Acquire(acquire) => kept.attempt == acquire.attempt.as_str(),
            Command::Complete(complete) => kept.token == complete.token.get(),
            Command::Release(release) => kept.token == release.token.get(),
            Command::Extend(extend) => kept.token == extend.token.get(),
            Command::Purge(_) => false,
        };
        let row = match command {
            Command::Acquire(_) => "acquire",
            Command::Complete(_) => "complete",
            Command::Release(_) => "release",
            Command::Extend(_) => "extend",
            Command::Purge(_) => "purge",
        };
        let found = self.kept.iter().find(|kept| command.name().is_some_and(|n| kept.is(n)));
        let Some(kept) = found else { return (row, Column::Absent) };
        let column = if kept.gone(self.now) {
            match (kept.done.is_some(), mine(kept)) {
                (true, _) => Column::CompletePurgeable,
                (false, true) => Column::MinePurgeable,
                (false, false) => Column::OthersPurgeable,
            }
        } else {
            match (kept.done.is_some(), mine(kept), kept.in_lease(self.now)) {
                (true, true, _) => Column::MineComplete,
                (true, false, _) => Column::OthersComplete,
                (false, true, true) => Column::MineLive,
                (false, true, false) => Column::MinePassed,
                (false, false, true) => Column::OthersLive,
                (false, false, false) => Column::OthersPassed,
            }
        };
        (row, column)
    }

    fn acquire(&mut self, column: Column, acquire: &Acquire) -> Answer {
        match column {
            Column::Absent
            | Column::MinePurgeable
            | Column::OthersPurgeable
            | Column::CompletePurgeable => self.grant(acquire, None),
            Column::OthersPassed => {
                let old = self.find(&acquire.name).clone();
                let took_over = TookOver {
                    token: token(old.token),
                    holder: old.holder,
                    acquired_ms: old.acquired,
                };
                self.grant(acquire, Some(took_over))
            }
            Column::OthersLive => {
                let now = self.now;
                let kept = self.find(&acquire.name);
                Answer::InProgress {
                    retry_after_ms: kept.lease_end - now,
                    holder: kept.holder.clone(),
                    token: token(kept.token),
                    fingerprint_differs: clash(kept, acquire).is_some(),
                }
            }
            Column::MineLive | Column::MinePassed => {
                let until = sum(self.now, acquire.lease_ms);
                let kept = self.find(&acquire.name);
                if let Some(clash) = clash(kept, acquire) {
                    return clash;
                }
                if until > kept.lease_end {
                    kept.lease_end = until;
                }
                Answer::Acquired {
                    token: token(kept.token),
                    lease_until_ms: kept.lease_end,
                    ttl_until_ms: kept.ttl_end,
                    resumed: true,
                    took_over: None,
                }
            }
            Column::MineComplete | Column::OthersComplete => {
                let kept = self.find(&acquire.name);
                if let Some(clash) = clash(kept, acquire) {
                    return clash;
                }
                let done = kept.done.clone().expect("the column says so");
                Answer::Replay(Replay {
                    token: token(kept.token),
                    payload: done.payload,
                    completed_ms: done.when,
                    expires_ms: kept.ttl_end,
                })
            }
        }
    }

    fn grant(&mut self, acquire: &Acquire, took_over: Option<TookOver>) -> Answer {
        self.tokens += 1;
        let kept = Kept {
            scope: acquire.name.scope().to_owned(),
            key: acquire.name.key().to_owned(),
            token: self.tokens,
            lease_end: sum(self.now, acquire.lease_ms),
            ttl_end: sum(self.now, acquire.ttl_ms),
            attempt: acquire.attempt.as_str().to_owned(),
            holder: acquire.holder.clone(),
            fingerprint: acquire.fingerprint.clone(),
            acquired: self.now,
            ttl: acquire.ttl_ms,
            done: None,
        };
        let answer = Answer::Acquired {
            token: token(kept.token),
            lease_until_ms: kept.lease_end,
            ttl_until_ms: kept.ttl_end,
            resumed: false,
            took_over,
        };
        self.kept.retain(|old| !old.is(&acquire.name));
        self.kept.push(kept);
        answer
    }

    fn lost(&mut self, column: Column, name: &Name) -> Answer {
        Answer::LeaseLost(match column {
            Column::Absent
            | Column::MinePurgeable
            | Column::OthersPurgeable
            | Column::CompletePurgeable => LeaseLost::Absent,
            Column::MineComplete | Column::OthersComplete => {
                LeaseLost::Completed { current_token: token(self.find(name).token) }
            }
            Column::MineLive | Column::MinePassed | Column::OthersLive | Column::OthersPassed => {
                LeaseLost::Stolen { current_token: token(self.find(name).token) }
            }
        })
    }

    fn purge(&mut self, purge: &Purge, cells: &mut Vec<Cell>) -> Answer {
        let now = self.now;
        if purge.not_after_ms.is_some_and(|last| now > last) {
            cells.extend(self.kept.iter().map(|k| ("purge", k.plain_column(now), "too_late")));
            return Answer::TooLate;
        }
        self.kept.sort_by(|a, b| a.purge_order().cmp(&b.purge_order()));
        let (mut deleted, mut more) = (0, false);
        self.kept.retain(|kept| {
            let word = match kept.gone(now) {
                true if deleted < purge.limit => "deletes",
                true => "leaves",
                false => "keeps",
            };
            cells.push(("purge", kept.plain_column(now), word));
            deleted += u32::from(word == "deletes");
            more |= word == "leaves";
            word != "deletes"
        });
        Answer::Purged { deleted, more }
    }

    fn find(&mut self, name: &Name) -> &mut Kept {
        self.kept.iter_mut().find(|kept| kept.is(name)).expect("the column says so")
    }

    fn completion(&mut self, name: &Name) -> Completion {
        let kept = self.find(name);
        Completion {
            token: token(kept.token),
            completed_ms: kept.done.as_ref().expect("the column says so").when,
            expires_ms: kept.ttl_end,
        }
    }
}

/// The refusal, if both sides carry a fingerprint and these differ.
fn clash(kept: &Kept, acquire: &Acquire) -> Option<Answer> {
    let stored = kept.fingerprint.clone()?;
    let received = acquire.fingerprint.clone()?;
    (stored.as_str() != received.as_str())
        .then_some(Answer::FingerprintMismatch { stored, received })
}

fn token(token: u64) -> Token {
    Token::new(token).expect("walks are short")
}

impl Column {
    /// Whether the caller may still complete, release and extend: an expired lease is no matter.
    fn is_held(self) -> bool {
        matches!(self, Self::MineLive | Self::MinePassed)
    }

    fn text(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::MineLive => "mine, live",
            Self::MinePassed => "mine, lease passed",
            Self::OthersLive => "other's, live",
            Self::OthersPassed => "other's, lease passed",
            Self::MineComplete => "mine, complete",
            Self::OthersComplete => "other's, complete",
            Self::MinePurgeable => "mine, purgeable",
            Self::OthersPurgeable => "other's, purgeable",
            Self::CompletePurgeable => "complete, purgeable",
        }
    }
}
