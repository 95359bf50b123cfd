//! Golden files: the whole table of problems, and every answer as HTTP says it.
//!
//! `UPDATE_GOLDENFILES=1` writes them again; read the difference, and explain it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use std::fmt::Write as _;
use std::sync::Arc;

use tenure_api::frame::{Decided, Reply, Waited};
use tenure_api::{
    ClusterStatus, Code, Content, Listed, Member, MemberRole, Node, NodeRole, Outcome, Refusal,
    Response, SnapshotTaken, View, ViewState, exit_code,
};
use tenure_state_machine::{
    Answer, At, Completion, Fingerprint, Holder, LeaseLost, Payload, Replay, Token, TookOver,
};

fn compare(path: &str, text: &str) {
    if std::env::var_os("UPDATE_GOLDENFILES").is_some() {
        std::fs::write(path, text).unwrap();
    }
    let golden = std::fs::read_to_string(path).unwrap();
    for (place, (want, got)) in golden.lines().zip(text.lines()).enumerate() {
        assert_eq!(want, got, "{path}, line {}", place + 1);
    }
    assert_eq!(golden.lines().count(), text.lines().count(), "{path} has another length");
}

#[test]
fn the_table_of_problems() {
    let mut table = String::new();
    for code in Code::ALL {
        let row = code.row();
        let again = if row.retryable { "again" } else { "never" };
        let outcome = match row.outcome {
            Outcome::Refused => "refused",
            Outcome::Unknown => "unknown",
        };
        let (status, name, exit, title) = (row.status, row.code, row.exit, row.title);
        writeln!(table, "{status} {name:20} {again} {outcome} exit {exit} - {title}").unwrap();
        assert_eq!(Code::named(name), Some(code));
    }
    compare("tests/golden/problems.txt", &table);
    assert_eq!(Code::named("teapot"), None);
}

const AT: At = At { index: 40, slot: Some(2), term: 3, now_ms: 1000 };
const READ: At = At { index: 40, slot: None, term: 3, now_ms: 1000 };

fn token(token: u64) -> Token {
    Token::new(token).unwrap()
}

fn payload() -> Option<Arc<Payload>> {
    let attributes = [("smtp", "250"), ("b", "\"\u{e9}\"")];
    let attributes = attributes.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    Some(Arc::new(Payload::new(Some("text/plain".into()), b"sent".to_vec(), attributes).unwrap()))
}

fn replay(payload: Option<Arc<Payload>>) -> Replay {
    Replay { token: token(7), payload, completed_ms: 900, expires_ms: 9000 }
}

fn leader() -> Node {
    Node { id: 1, http: "127.0.0.1:7601".into(), rpc: "127.0.0.1:7701".into() }
}

fn answers() -> Vec<Answer> {
    let holder = || Holder::new("worker \"1\"").unwrap();
    let acquired = |took_over| Answer::Acquired {
        token: token(7),
        lease_until_ms: 6000,
        ttl_until_ms: u64::MAX,
        resumed: false,
        took_over,
    };
    let completion = Completion { token: token(7), completed_ms: 1000, expires_ms: 9000 };
    let in_progress = |retry_after_ms| Answer::InProgress {
        retry_after_ms,
        holder: holder(),
        token: token(7),
        fingerprint_differs: retry_after_ms == 1,
    };
    let print = |digit: &str| Fingerprint::new(digit.repeat(16)).unwrap();
    vec![
        acquired(None),
        acquired(Some(TookOver { token: token(6), holder: holder(), acquired_ms: 500 })),
        Answer::Replay(replay(payload())),
        Answer::Replay(replay(None)),
        Answer::Replay(replay(Some(Arc::default()))),
        Answer::Completed(completion.clone()),
        Answer::AlreadyComplete(completion),
        Answer::Released,
        Answer::Extended { token: token(7), lease_until_ms: 6000 },
        Answer::Purged { deleted: 3, more: true },
        in_progress(1),
        in_progress(1000),
        in_progress(1001),
        Answer::FingerprintMismatch { stored: print("a"), received: print("b") },
        Answer::LeaseLost(LeaseLost::Absent),
        Answer::LeaseLost(LeaseLost::Stolen { current_token: token(8) }),
        Answer::LeaseLost(LeaseLost::Completed { current_token: token(8) }),
        Answer::TooLate,
    ]
}

fn refusals() -> Vec<Refusal> {
    let invalid = |field: Option<&str>| Refusal::InvalidArgument {
        field: field.map(str::to_owned),
        reason: "must be given".into(),
    };
    let overloaded =
        |retry_after_ms| Refusal::Overloaded { reason: "100000 waiters".into(), retry_after_ms };
    vec![
        invalid(Some("commands.3.acquire.lease_ms")),
        invalid(None),
        Refusal::PayloadTooLarge { limit: 1_048_576, size: 1_048_577 },
        Refusal::NotLeader { leader: Some(leader()) },
        Refusal::NotLeader { leader: None },
        overloaded(1001),
        Refusal::NoLeader,
        Refusal::ShuttingDown,
        Refusal::OutcomeUnknown,
        Refusal::StorageFull,
        Refusal::Internal { request_id: "r-1".into() },
    ]
}

fn views() -> Vec<View> {
    let view = |holder: &str, print: Option<&str>, state| View {
        token: token(7),
        holder: Holder::new(holder).unwrap(),
        fingerprint: print.map(|print| Fingerprint::new(print).unwrap()),
        state,
    };
    let in_progress = |lease_until_ms| ViewState::InProgress {
        acquired_ms: 500,
        lease_until_ms,
        ttl_until_ms: 60_500,
    };
    let complete = |payload| ViewState::Complete { completed_ms: 900, expires_ms: 9000, payload };
    vec![
        view("w", Some("0123456789abcdef"), in_progress(1500)),
        view("", None, in_progress(999)),
        view("w", Some("0123456789abcdef"), complete(payload())),
        view("", None, complete(None)),
    ]
}

fn waits() -> Vec<Waited> {
    vec![
        Waited::Complete(replay(payload())),
        Waited::Absent,
        Waited::LeaseExpired,
        Waited::TimedOut { retry_after_ms: 77 },
    ]
}

fn listing(next: Option<&str>) -> Reply {
    let listed = |(place, view)| Listed { key: format!("k{place}"), view };
    let records = views().into_iter().enumerate().map(listed).collect();
    Reply::List { records, next: next.map(str::to_owned), at: READ }
}

fn status() -> ClusterStatus {
    let member = |id: u64, role, matched_index| Member {
        id,
        http: format!("127.0.0.1:{}", 7600 + id),
        rpc: format!("127.0.0.1:{}", 7700 + id),
        role,
        matched_index,
    };
    ClusterStatus {
        cluster_id: "c".into(),
        id: 2,
        role: NodeRole::Follower,
        leader: Some(leader()),
        term: 3,
        members: vec![
            member(1, MemberRole::Leader, Some(40)),
            member(2, MemberRole::Voter, Some(39)),
            member(3, MemberRole::Learner, None),
        ],
        last_index: 40,
        committed_index: 39,
        applied_index: 38,
        snapshot_index: None,
        clock_ms: 1000,
    }
}

/// Everything that can be said, each under a word of its own.
fn everything() -> Vec<(&'static str, Response, Option<u8>)> {
    let mut all = Vec::new();
    let of_reply = |word, reply: Result<Reply, Refusal>| {
        let response = match &reply {
            Ok(reply) => Response::reply(reply, "mail"),
            Err(refusal) => Response::refused(refusal),
        };
        (word, response, Some(exit_code(&reply)))
    };
    let decided = |answer| Decided { answer, at: AT };
    all.extend(
        answers().into_iter().map(|answer| of_reply("answer", Ok(Reply::Answer(decided(answer))))),
    );
    all.extend(refusals().into_iter().map(|refusal| of_reply("refusal", Err(refusal))));
    all.extend(
        views()
            .into_iter()
            .map(Some)
            .chain([None])
            .map(|view| of_reply("get", Ok(Reply::Record { view, at: READ }))),
    );
    all.extend(
        waits().into_iter().map(|waited| of_reply("wait", Ok(Reply::Waited { waited, at: READ }))),
    );
    all.push(of_reply("list", Ok(listing(Some("k3/\u{e9}")))));
    all.push(of_reply("list", Ok(Reply::List { records: Vec::new(), next: None, at: READ })));
    let results = vec![
        Ok(decided(Answer::Released)),
        Err(Refusal::PayloadTooLarge { limit: 1, size: 2 }),
        Ok(decided(Answer::TooLate)),
    ];
    all.push(of_reply("batch", Ok(Reply::Batch(results))));
    all.push(of_reply("batch", Ok(Reply::Batch(vec![Ok(decided(Answer::Released))]))));
    let hash = "00ff".into();
    let taken = SnapshotTaken { index: 40, term: 3, bytes: 5000, hash };
    all.extend([
        ("cluster", Response::cluster(&status()), None),
        ("snapshot", Response::snapshot(&taken), None),
        ("http", Response::forbidden("the Origin is not this node's"), None),
        ("http", Response::not_found(), None),
        ("http", Response::method_not_allowed("r-2"), None),
    ]);
    all.extend(
        views()
            .iter()
            .map(Some)
            .chain([None])
            .map(|view| ("payload", Response::payload(view, READ), None)),
    );
    all
}

#[test]
fn every_answer() {
    let mut text = String::new();
    for (word, response, exit) in everything() {
        write!(text, "{word} -> {}", response.status).unwrap();
        if let Some(seconds) = response.retry_after_s {
            write!(text, ", retry after {seconds} s").unwrap();
        }
        if let Some(exit) = exit {
            write!(text, ", exit {exit}").unwrap();
        }
        let kind = response.content.as_ref().map_or("no content", Content::as_str);
        let body = std::str::from_utf8(&response.body).unwrap();
        assert!(!body.contains('\n'), "an answer is one line");
        writeln!(text, ", {kind}\n  {body}").unwrap();
    }
    compare("tests/golden/answers.txt", &text);
}

#[test]
fn every_json_answer_is_json_and_problems_agree_with_the_table() {
    for (word, response, exit) in everything() {
        let expected = match response.content {
            Some(Content::Json) => 200,
            Some(Content::Problem) => {
                let problem: serde_json::Value = serde_json::from_slice(&response.body).unwrap();
                let code = problem["code"].as_str().and_then(Code::named).unwrap();
                assert_eq!(problem["type"], format!("urn:tenure:problem:{}", code.row().code));
                assert_eq!(problem["status"], code.row().status);
                assert_eq!(problem["retryable"], code.row().retryable);
                assert_eq!(problem["title"], code.row().title);
                assert!(exit.is_none_or(|exit| exit == code.row().exit), "{word}");
                code.row().status
            }
            Some(Content::Payload(_)) | None => continue,
        };
        assert_eq!(response.status, expected);
        serde_json::from_slice::<serde_json::Value>(&response.body).unwrap();
    }
}

#[test]
fn a_client_reads_back_what_a_node_says_of_its_cluster() {
    let body = Response::cluster(&status()).body;
    assert_eq!(serde_json::from_slice::<ClusterStatus>(&body).unwrap(), status());
}
