//! What every refusal over HTTP must look like.

use serde_json::Value;

use crate::http::Answer;

/// The members that every problem has.
const MEMBERS: [&str; 7] = ["type", "title", "status", "detail", "code", "retryable", "outcome"];
/// The codes after which sending again may help.
const RETRYABLE: [&str; 6] =
    ["in_progress", "not_leader", "overloaded", "no_leader", "shutting_down", "outcome_unknown"];
/// The codes after which a command may still commit.
const UNKNOWN: [&str; 2] = ["outcome_unknown", "internal"];

/// Asserts that an answer is this problem, with exactly `more` members beside those that all have,
/// and gives its body.
///
/// # Panics
/// When it is not.
pub fn assert_problem(answer: &Answer, status: u16, code: &str, more: &[&str]) -> Value {
    assert_eq!(answer.status, status, "{answer:?}");
    let kind = answer.header("content-type");
    assert_eq!(kind, Some("application/problem+json"), "{answer:?}");
    let body = answer.body();
    assert_members(&body, &[&MEMBERS, more].concat());
    assert_eq!(body["type"], format!("urn:tenure:problem:{code}"));
    assert_eq!(body["status"], status);
    assert_eq!(body["code"], code);
    assert!(body["title"].is_string() && body["detail"].is_string(), "{body}");
    assert_eq!(body["retryable"], RETRYABLE.contains(&code), "{body}");
    let outcome = if UNKNOWN.contains(&code) { "unknown" } else { "refused" };
    assert_eq!(body["outcome"], outcome, "{body}");
    body
}

/// Asserts that a JSON object has these members and no others.
///
/// # Panics
/// When it has not.
pub fn assert_members(object: &Value, members: &[&str]) {
    let mut found: Vec<&str> = object
        .as_object()
        .unwrap_or_else(|| panic!("no object: {object}"))
        .keys()
        .map(String::as_str)
        .collect();
    let mut wanted = members.to_vec();
    found.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(found, wanted, "{object}");
}

/// Asserts the four members of an `at`; a read has no slot.
///
/// # Panics
/// When they are not right.
pub fn assert_at(body: &Value, is_read: bool) {
    let at = &body["at"];
    assert_members(at, &["index", "slot", "term", "now_ms"]);
    assert!(at["index"].is_u64() && at["term"].is_u64() && at["now_ms"].is_u64(), "{body}");
    assert_eq!(at["slot"].is_null(), is_read, "{body}");
}
