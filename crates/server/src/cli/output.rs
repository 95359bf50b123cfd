//! What is printed: the answer alone on standard output, all else on standard error.

use std::fmt;
use std::io::{self, Write as _};
use std::process::ExitCode;

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use comfy_table::{Table, presets};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use tenure_api::{Content, Response};

/// What to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub(crate) enum Format {
    /// For people.
    #[default]
    Table,
    /// One line of JSON: the HTTP body.
    Json,
}

/// Writes to standard output. A reader that has gone away is no error.
pub(crate) fn write(bytes: &[u8]) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot write the answer")
        }
        _ => Ok(()),
    }
}

/// Writes a line to standard output.
pub(crate) fn line(text: impl fmt::Display) -> anyhow::Result<()> {
    write(format!("{text}\n").as_bytes())
}

/// Says something to people, on standard error.
pub(crate) fn say(text: impl fmt::Display) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Prints a response: JSON as it is, or as a table. In a table, a problem goes to standard error.
pub(crate) fn response(format: Format, response: &Response) -> anyhow::Result<()> {
    let body = String::from_utf8_lossy(&response.body);
    match (format, &response.content) {
        (Format::Json, _) => line(body.trim_end()),
        (Format::Table, Some(Content::Problem)) => {
            say(table_of(&body)?);
            Ok(())
        }
        (Format::Table, _) => line(table_of(&body)?),
    }
}

/// Prints an object: JSON as it is, or as a table.
pub(crate) fn object(format: Format, json: &str) -> anyhow::Result<()> {
    match format {
        Format::Json => line(json),
        Format::Table => line(table_of(json)?),
    }
}

/// An exit code as the table of problems has it.
pub(crate) fn exit(code: u8) -> ExitCode {
    ExitCode::from(code)
}

/// An empty table in the one style of all.
pub(crate) fn table() -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table
}

/// A table of names and values.
pub(crate) fn pairs<N: Into<String>, V: Into<String>>(
    pairs: impl IntoIterator<Item = (N, V)>,
) -> Table {
    let mut table = table();
    for (name, value) in pairs {
        table.add_row([name.into(), value.into()]);
    }
    table
}

/// A JSON object as a table; a listing as one row a record.
fn table_of(json: &str) -> anyhow::Result<Table> {
    let Members(members) = serde_json::from_str(json).context("the answer is no JSON object")?;
    let records = members.iter().find(|(name, _)| name == "records");
    if let Some((_, Value::Array(records))) = records {
        let mut table = listing(records);
        for (name, value) in members.iter().filter(|(name, _)| name == "next_page_token") {
            if !value.is_null() {
                table.add_row([name.clone(), text_of(value)]);
            }
        }
        return Ok(table);
    }
    let mut rows = Vec::new();
    for (name, value) in &members {
        flatten(name, value, &mut rows);
    }
    Ok(pairs(rows))
}

/// The columns of a listing. A record has those of its state.
const COLUMNS: [&str; 7] =
    ["key", "state", "token", "holder", "lease_left_ms", "completed_ms", "expires_ms"];

fn listing(records: &[Value]) -> Table {
    let mut table = table();
    table.set_header(COLUMNS);
    for record in records {
        table.add_row(COLUMNS.map(|column| record.get(column).map(text_of).unwrap_or_default()));
    }
    table
}

fn flatten(name: &str, value: &Value, rows: &mut Vec<(String, String)>) {
    match value {
        Value::Object(members) if !members.is_empty() => {
            for (member, value) in members {
                flatten(&format!("{name}.{member}"), value, rows);
            }
        }
        Value::String(body) if name == "payload.body" => {
            let bytes = STANDARD.decode(body).ok();
            match bytes.and_then(|bytes| String::from_utf8(bytes).ok()) {
                Some(text) => rows.push(("payload.text".to_owned(), harmless(&text))),
                None => rows.push((name.to_owned(), body.clone())),
            }
        }
        Value::Null
        | Value::Bool(_)
        | Value::Number(_)
        | Value::String(_)
        | Value::Array(_)
        | Value::Object(_) => rows.push((name.to_owned(), text_of(value))),
    }
}

/// A value for people.
fn text_of(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => harmless(text),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => value.to_string(),
    }
}

/// A text with its control characters escaped: it may be anybody's, and drive the terminal.
fn harmless(text: &str) -> String {
    let mut harmless = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_control() {
            harmless.extend(character.escape_default());
        } else {
            harmless.push(character);
        }
    }
    harmless
}

/// The members of a JSON object, in their order.
struct Members(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Members;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(json: &str) -> Vec<String> {
        table_of(json).unwrap().lines().map(|line| line.trim_end().to_owned()).collect()
    }

    #[test]
    fn members_stay_in_order_and_nested_ones_are_flat() {
        let lines = shown(r#"{"outcome":"acquired","token":7,"took_over":null,"at":{"index":9}}"#);
        let words: Vec<Vec<_>> =
            lines.iter().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(
            words,
            [["outcome", "acquired"], ["token", "7"], ["took_over", "-"], ["at.index", "9"]]
        );
    }

    #[test]
    fn a_payload_is_shown_as_text_when_it_is_text() {
        let lines = shown(r#"{"payload":{"type":null,"body":"c2VudAo=","attributes":{}}}"#);
        assert!(lines.iter().any(|line| line.contains("payload.text") && line.contains(r"sent\n")));
        let lines = shown(r#"{"payload":{"body":"/w=="}}"#);
        assert!(lines.iter().any(|line| line.contains("payload.body") && line.contains("/w==")));
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        let lines = shown("{\"holder\":\"\\u001b[2J\"}");
        assert!(!lines.concat().contains('\u{1b}'));
    }

    #[test]
    fn a_listing_has_a_row_for_each_record() {
        let json = r#"{"records":[{"key":"a","state":"in_progress","token":1,"holder":"h",
            "lease_left_ms":5},{"key":"b","state":"complete","token":2,"holder":"h",
            "completed_ms":1,"expires_ms":2}],"next_page_token":"Yg","at":{"index":1}}"#;
        let lines = shown(json);
        assert_eq!(lines.len(), 4, "{lines:?}");
        assert!(lines[3].contains("next_page_token") && lines[3].contains("Yg"));
    }
}
