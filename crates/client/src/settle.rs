//! What an answer settles. The rules C2 and C3, and nothing else.

use tenure_api::Refusal;
use tenure_api::frame::Decided;
use tenure_state_machine::{Answer, Command, LeaseLost};

use crate::error::{CallError, Obstacle};

/// What a logical call may conclude from the answer to one send. `unsettled` says that an earlier
/// send of the same command may have committed, or still may.
///
/// # Errors
/// [`CallError::Unknown`] when the answer leaves that open, or is no answer to the command.
pub(crate) fn settle(
    command: &Command,
    decided: Decided,
    unsettled: bool,
) -> Result<Decided, CallError> {
    let Decided { answer, at } = decided;
    match meaning(command, &answer) {
        Meaning::Settles => Ok(Decided { answer, at }),
        Meaning::Refuses if !unsettled => Ok(Decided { answer, at }),
        Meaning::ReleasedBefore if !unsettled => Ok(Decided { answer, at }),
        Meaning::ReleasedBefore => Ok(Decided { answer: Answer::Released, at }),
        Meaning::Refuses => {
            Err(CallError::Unknown { seen: Some(Box::new(Decided { answer, at })), last: None })
        }
        Meaning::Foreign => Err(CallError::foreign()),
    }
}

/// What a logical call may conclude from a refusal by a node. See [`settle`].
pub(crate) fn settle_refusal(refusal: Refusal, unsettled: bool) -> CallError {
    if unsettled || may_commit(&refusal) {
        CallError::Unknown { seen: None, last: Some(Obstacle::Refusal(refusal)) }
    } else {
        CallError::Refused(refusal)
    }
}

/// Whether a command that was refused so can still commit.
pub(crate) fn may_commit(refusal: &Refusal) -> bool {
    match refusal {
        Refusal::OutcomeUnknown | Refusal::Internal { .. } => true,
        Refusal::InvalidArgument { .. }
        | Refusal::PayloadTooLarge { .. }
        | Refusal::NotLeader { .. }
        | Refusal::Overloaded { .. }
        | Refusal::NoLeader
        | Refusal::ShuttingDown
        | Refusal::StorageFull => false,
    }
}

/// What an answer means to the command it answers.
enum Meaning {
    /// Whatever became of earlier sends, this is the outcome of the logical call.
    Settles,
    /// This send changed nothing; an earlier one may have.
    Refuses,
    /// As `Refuses`, but after an earlier send the record is released, by that or by time.
    ReleasedBefore,
    /// It answers another command.
    Foreign,
}

fn meaning(command: &Command, answer: &Answer) -> Meaning {
    match (command, answer) {
        (Command::Acquire(_), Answer::Acquired { .. } | Answer::Replay(_))
        | (Command::Complete(_), Answer::Completed(_) | Answer::AlreadyComplete(_))
        | (Command::Release(_), Answer::Released)
        | (Command::Extend(_), Answer::Extended { .. })
        | (Command::Purge(_), Answer::Purged { .. }) => Meaning::Settles,
        (Command::Release(_), Answer::LeaseLost(LeaseLost::Absent | LeaseLost::Stolen { .. })) => {
            Meaning::ReleasedBefore
        }
        (_, Answer::TooLate)
        | (Command::Acquire(_), Answer::InProgress { .. } | Answer::FingerprintMismatch { .. })
        | (Command::Complete(_) | Command::Release(_) | Command::Extend(_), Answer::LeaseLost(_)) => {
            Meaning::Refuses
        }
        _ => Meaning::Foreign,
    }
}

#[cfg(test)]
mod tests {
    use tenure_state_machine::{
        Acquire, At, Attempt, Complete, Completion, Extend, Fingerprint, Holder, Name, Release,
        Replay, Token,
    };

    use super::*;

    fn name() -> Name {
        Name::new("mail", "order-1").unwrap()
    }

    fn token() -> Token {
        Token::new(7).unwrap()
    }

    fn acquire() -> Command {
        Command::Acquire(Acquire {
            name: name(),
            attempt: Attempt::new("a").unwrap(),
            holder: Holder::default(),
            lease_ms: 1000,
            ttl_ms: 1000,
            fingerprint: None,
            not_after_ms: None,
        })
    }

    fn complete() -> Command {
        let (name, token) = (name(), token());
        Command::Complete(Complete { name, token, ttl_ms: None, payload: None, not_after_ms: None })
    }

    fn release() -> Command {
        Command::Release(Release { name: name(), token: token(), not_after_ms: None })
    }

    fn extend() -> Command {
        let (name, token) = (name(), token());
        Command::Extend(Extend { name, token, lease_ms: 1000, not_after_ms: None })
    }

    fn after(command: &Command, answer: Answer, unsettled: bool) -> Result<Answer, CallError> {
        let at = At { index: 1, slot: Some(0), term: 1, now_ms: 1 };
        settle(command, Decided { answer, at }, unsettled).map(|decided| decided.answer)
    }

    fn settling() -> Vec<(Command, Answer)> {
        let done = Completion { token: token(), completed_ms: 1, expires_ms: 2 };
        let replay = Replay { token: token(), payload: None, completed_ms: 1, expires_ms: 2 };
        let acquired = Answer::Acquired {
            token: token(),
            lease_until_ms: 1,
            ttl_until_ms: 1,
            resumed: true,
            took_over: None,
        };
        vec![
            (acquire(), acquired),
            (acquire(), Answer::Replay(replay)),
            (complete(), Answer::Completed(done.clone())),
            (complete(), Answer::AlreadyComplete(done)),
            (release(), Answer::Released),
            (extend(), Answer::Extended { token: token(), lease_until_ms: 1 }),
        ]
    }

    fn refusing() -> Vec<(Command, Answer)> {
        let print = Fingerprint::new("0123456789abcdef").unwrap();
        let in_progress = Answer::InProgress {
            retry_after_ms: 1,
            holder: Holder::default(),
            token: token(),
            fingerprint_differs: false,
        };
        let mismatch = Answer::FingerprintMismatch { stored: print.clone(), received: print };
        let completed = LeaseLost::Completed { current_token: token() };
        let stolen = LeaseLost::Stolen { current_token: token() };
        vec![
            (acquire(), in_progress),
            (acquire(), mismatch),
            (acquire(), Answer::TooLate),
            (complete(), Answer::TooLate),
            (release(), Answer::TooLate),
            (extend(), Answer::TooLate),
            (complete(), Answer::LeaseLost(LeaseLost::Absent)),
            (complete(), Answer::LeaseLost(stolen.clone())),
            (complete(), Answer::LeaseLost(completed.clone())),
            (release(), Answer::LeaseLost(completed.clone())),
            (extend(), Answer::LeaseLost(LeaseLost::Absent)),
            (extend(), Answer::LeaseLost(stolen)),
            (extend(), Answer::LeaseLost(completed)),
        ]
    }

    #[test]
    fn a_first_send_concludes_whatever_it_is_answered() {
        for (command, answer) in settling().into_iter().chain(refusing()) {
            assert_eq!(after(&command, answer.clone(), false).unwrap(), answer);
        }
    }

    #[test]
    fn after_an_unknown_only_the_outcomes_themselves_settle() {
        for (command, answer) in settling() {
            assert_eq!(after(&command, answer.clone(), true).unwrap(), answer);
        }
        for (command, answer) in refusing() {
            let error = after(&command, answer.clone(), true).unwrap_err();
            let CallError::Unknown { seen: Some(seen), last: None } = error else {
                panic!("{answer:?} settled {command:?}: {error:?}")
            };
            assert_eq!(seen.answer, answer);
        }
    }

    #[test]
    fn a_resent_release_that_finds_nothing_of_its_own_has_released() {
        let stolen = LeaseLost::Stolen { current_token: token() };
        for lost in [LeaseLost::Absent, stolen] {
            let first = after(&release(), Answer::LeaseLost(lost.clone()), false).unwrap();
            assert_eq!(first, Answer::LeaseLost(lost.clone()));
            let again = after(&release(), Answer::LeaseLost(lost), true).unwrap();
            assert_eq!(again, Answer::Released);
        }
    }

    #[test]
    fn an_answer_to_another_command_is_no_outcome() {
        for unsettled in [false, true] {
            let error = after(&acquire(), Answer::Released, unsettled).unwrap_err();
            let CallError::Unknown { seen: None, last: Some(Obstacle::WrongAnswer) } = error else {
                panic!("{error:?}")
            };
        }
    }

    #[test]
    fn a_refusal_is_unknown_when_it_or_an_earlier_send_may_commit() {
        let full = || Refusal::StorageFull;
        assert!(matches!(settle_refusal(full(), false), CallError::Refused(_)));
        assert!(matches!(settle_refusal(full(), true), CallError::Unknown { .. }));
        let internal = Refusal::Internal { request_id: "r".to_owned() };
        assert!(matches!(settle_refusal(internal, false), CallError::Unknown { .. }));
    }
}
