//! Bodies of requests: JSON in, what the state machine and the frames take out.
//!
//! A body is read in three steps: all its fields by name and type, then whatever is left over is
//! refused, then the values are checked against the limits.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::value::RawValue;
use tenure_state_machine::limits::{BATCH_BYTES, BATCH_COMMANDS, TOKEN_MAX, WAIT_MAX_MS};
use tenure_state_machine::{
    Acquire, Attempt, Command, Complete, Extend, Fingerprint, Holder, Name, Payload, Purge,
    Release, Token, command,
};

use crate::json::{Fields, refuse};
use crate::refusal::{Node, Refusal};

/// Largest HTTP body, in bytes: a batch with all its payloads in base64, and room.
pub const HTTP_BODY_BYTES: usize = 8 * 1024 * 1024;
/// Longest address of a node, in bytes: a DNS name, a colon and a port.
const ADDRESS_BYTES: usize = 255 + 6;

/// `{scope, key, attempt?, holder?, lease_ms?, ttl_ms?, wait_ms?, fingerprint?, not_after_ms?}`,
/// and how long to wait for the record, in milliseconds, at most `WAIT_MAX_MS`. Without `attempt`
/// it is a new try, named by `fresh_attempt`.
///
/// # Errors
/// [`Refusal::InvalidArgument`].
pub fn acquire(
    body: &[u8],
    fresh_attempt: impl FnOnce() -> Attempt,
) -> Result<(Acquire, u64), Refusal> {
    let mut fields = Fields::read(body)?;
    let wait_ms = fields.number("wait_ms")?;
    let acquire = read_acquire(&mut fields, fresh_attempt)?;
    Ok((acquire, wait_within("wait_ms", wait_ms.unwrap_or(0))?))
}

/// `{scope, key, token, ttl_ms?, payload?: {type?, body? | text?, attributes?}, not_after_ms?}`
///
/// # Errors
/// [`Refusal::InvalidArgument`], [`Refusal::PayloadTooLarge`].
pub fn complete(body: &[u8]) -> Result<Complete, Refusal> {
    read_complete(&mut Fields::read(body)?)
}

/// `{scope, key, token, not_after_ms?}`
///
/// # Errors
/// [`Refusal::InvalidArgument`].
pub fn release(body: &[u8]) -> Result<Release, Refusal> {
    read_release(&mut Fields::read(body)?)
}

/// `{scope, key, token, lease_ms, not_after_ms?}`
///
/// # Errors
/// [`Refusal::InvalidArgument`].
pub fn extend(body: &[u8]) -> Result<Extend, Refusal> {
    read_extend(&mut Fields::read(body)?)
}

/// `{limit?, not_after_ms?}`
///
/// # Errors
/// [`Refusal::InvalidArgument`].
pub fn purge(body: &[u8]) -> Result<Purge, Refusal> {
    let mut fields = Fields::read(body)?;
    let limit = fields.number("limit")?;
    let not_after_ms = fields.number("not_after_ms")?;
    fields.finish()?;
    Ok(Purge { limit: command::purge_limit(limit)?, not_after_ms })
}

/// `{scope, key, timeout_ms}`: which record to wait for, and how long, in milliseconds, at most
/// `WAIT_MAX_MS`.
///
/// # Errors
/// [`Refusal::InvalidArgument`].
pub fn wait(body: &[u8]) -> Result<(Name, u64), Refusal> {
    let mut fields = Fields::read(body)?;
    let (scope, key) = (fields.need_text("scope")?, fields.need_text("key")?);
    let timeout_ms = fields.need_number("timeout_ms")?;
    fields.finish()?;
    Ok((Name::new(&scope, &key)?, wait_within("timeout_ms", timeout_ms)?))
}

/// `{scope, key}`: names a record where there is no path to do it, as in `replay`.
///
/// # Errors
/// [`Refusal::InvalidArgument`].
pub fn name(body: &[u8]) -> Result<Name, Refusal> {
    let mut fields = Fields::read(body)?;
    let (scope, key) = (fields.need_text("scope")?, fields.need_text("key")?);
    fields.finish()?;
    Ok(Name::new(&scope, &key)?)
}

/// `{commands: [{"acquire": {...}}, ...]}`: acquire, complete, release and extend with their own
/// bodies, but no `wait_ms`. An invalid command is refused in its place; the others stand.
///
/// # Errors
/// [`Refusal`] of the batch as a whole: it is not well formed, has no command or more than
/// `BATCH_COMMANDS`, or more than `BATCH_BYTES` of payload.
pub fn batch(
    body: &[u8],
    mut fresh_attempt: impl FnMut() -> Attempt,
) -> Result<Vec<Result<Command, Refusal>>, Refusal> {
    let mut fields = Fields::read(body)?;
    let items = fields.list("commands")?.ok_or_else(|| fields.missing("commands"))?;
    fields.finish()?;
    let commands: Vec<_> = items
        .into_iter()
        .enumerate()
        .map(|(place, item)| batched(format!("commands.{place}"), item, &mut fresh_attempt))
        .collect();
    check_batch(commands.len(), commands.iter().flatten())?;
    Ok(commands)
}

/// The limits of a batch of `count` requests, of which `commands` are valid; they hold for frames
/// as for bodies.
///
/// # Errors
/// [`Refusal::InvalidArgument`] on `commands`, [`Refusal::PayloadTooLarge`].
pub fn check_batch<'a>(
    count: usize,
    commands: impl Iterator<Item = &'a Command>,
) -> Result<(), Refusal> {
    if !(1..=BATCH_COMMANDS).contains(&count) {
        let reason = format!("must have 1 to {BATCH_COMMANDS} items, not {count}");
        return Err(refuse(Some("commands".to_owned()), reason));
    }
    let mut size = 0_usize;
    for command in commands {
        match command {
            Command::Complete(complete) => {
                size = size.saturating_add(complete.payload.as_ref().map_or(0, |p| p.size()));
            }
            Command::Purge(_) => {
                return Err(refuse(Some("commands".to_owned()), "must not have a purge"));
            }
            Command::Acquire(_) | Command::Release(_) | Command::Extend(_) => {}
        }
    }
    if size > BATCH_BYTES {
        return Err(Refusal::PayloadTooLarge { limit: BATCH_BYTES as u64, size: size as u64 });
    }
    Ok(())
}

/// `{id, http, rpc}`: a node to add to the cluster.
///
/// # Errors
/// [`Refusal::InvalidArgument`].
pub fn member(body: &[u8]) -> Result<Node, Refusal> {
    let mut fields = Fields::read(body)?;
    let id = fields.need_number("id")?;
    let (http, rpc) = (fields.need_text("http")?, fields.need_text("rpc")?);
    fields.finish()?;
    let node = Node { id, http: http.into_owned(), rpc: rpc.into_owned() };
    check_member(&node)?;
    Ok(node)
}

/// The limits of a node to add; they hold for frames as for bodies.
pub(crate) fn check_member(node: &Node) -> Result<(), Refusal> {
    node_within("id", node.id)?;
    address("http", &node.http)?;
    address("rpc", &node.rpc)
}

/// `{to}`: the id of the node that shall lead.
///
/// # Errors
/// [`Refusal::InvalidArgument`].
pub fn transfer(body: &[u8]) -> Result<u64, Refusal> {
    let mut fields = Fields::read(body)?;
    let to = fields.need_number("to")?;
    fields.finish()?;
    node_within("to", to)
}

/// The id of a node as it stands in a path.
///
/// # Errors
/// [`Refusal::InvalidArgument`] on `id`.
pub fn node_id(text: &str) -> Result<u64, Refusal> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse() {
        Ok(id) if digits => node_within("id", id),
        Ok(_) | Err(_) => Err(refuse(Some("id".to_owned()), "must be a whole number")),
    }
}

/// How long an acquire or a wait may take: at most `WAIT_MAX_MS` milliseconds.
pub(crate) fn wait_within(field: &str, wait_ms: u64) -> Result<u64, Refusal> {
    if wait_ms <= WAIT_MAX_MS {
        Ok(wait_ms)
    } else {
        let reason = format!("must be 0 to {WAIT_MAX_MS}, not {wait_ms}");
        Err(refuse(Some(field.to_owned()), reason))
    }
}

fn batched(
    path: String,
    item: &RawValue,
    fresh_attempt: impl FnOnce() -> Attempt,
) -> Result<Command, Refusal> {
    let mut outer = Fields::at(path.clone(), item)?;
    let Some((kind, raw)) = outer.take_only() else {
        let reason = "must have exactly one of acquire, complete, release and extend";
        return Err(refuse(Some(path), reason));
    };
    let inner = || Fields::at(outer.path_of(&kind), raw);
    match &*kind {
        "acquire" => {
            let mut fields = inner()?;
            if fields.take("wait_ms")?.is_some() {
                return Err(fields.refuse("wait_ms", "must not be given in a batch"));
            }
            read_acquire(&mut fields, fresh_attempt).map(Command::Acquire)
        }
        "complete" => read_complete(&mut inner()?).map(Command::Complete),
        "release" => read_release(&mut inner()?).map(Command::Release),
        "extend" => read_extend(&mut inner()?).map(Command::Extend),
        _ => Err(outer.refuse(&kind, "is no command of a batch")),
    }
}

fn read_acquire(
    fields: &mut Fields<'_>,
    fresh_attempt: impl FnOnce() -> Attempt,
) -> Result<Acquire, Refusal> {
    let (scope, key) = (fields.need_text("scope")?, fields.need_text("key")?);
    let (attempt, holder) = (fields.text("attempt")?, fields.text("holder")?);
    let (lease_ms, ttl_ms) = (fields.number("lease_ms")?, fields.number("ttl_ms")?);
    let fingerprint = fields.text("fingerprint")?;
    let not_after_ms = fields.number("not_after_ms")?;
    fields.finish()?;
    let check = || {
        Ok(Acquire {
            name: Name::new(&scope, &key)?,
            attempt: attempt.map_or_else(|| Ok(fresh_attempt()), Attempt::new)?,
            holder: holder.map_or_else(|| Ok(Holder::default()), Holder::new)?,
            lease_ms: command::lease_ms(lease_ms)?,
            ttl_ms: command::ttl_ms(ttl_ms)?,
            fingerprint: fingerprint.map(Fingerprint::new).transpose()?,
            not_after_ms,
        })
    };
    check().map_err(|invalid| fields.invalid(invalid))
}

fn read_complete(fields: &mut Fields<'_>) -> Result<Complete, Refusal> {
    let (scope, key) = (fields.need_text("scope")?, fields.need_text("key")?);
    let (token, ttl_ms) = (fields.need_number("token")?, fields.number("ttl_ms")?);
    let parts = fields.object("payload")?.map(|mut payload| Parts::read(&mut payload));
    let parts = parts.transpose()?;
    let not_after_ms = fields.number("not_after_ms")?;
    fields.finish()?;
    let check = || {
        Ok(Complete {
            name: Name::new(&scope, &key)?,
            token: Token::new(token)?,
            ttl_ms: ttl_ms.map(|ttl_ms| command::ttl_ms(Some(ttl_ms))).transpose()?,
            payload: parts.map(Parts::payload).transpose()?.map(Into::into),
            not_after_ms,
        })
    };
    check().map_err(|invalid| fields.invalid(invalid))
}

fn read_release(fields: &mut Fields<'_>) -> Result<Release, Refusal> {
    let (scope, key) = (fields.need_text("scope")?, fields.need_text("key")?);
    let token = fields.need_number("token")?;
    let not_after_ms = fields.number("not_after_ms")?;
    fields.finish()?;
    let check =
        || Ok(Release { name: Name::new(&scope, &key)?, token: Token::new(token)?, not_after_ms });
    check().map_err(|invalid| fields.invalid(invalid))
}

fn read_extend(fields: &mut Fields<'_>) -> Result<Extend, Refusal> {
    let (scope, key) = (fields.need_text("scope")?, fields.need_text("key")?);
    let (token, lease_ms) = (fields.need_number("token")?, fields.need_number("lease_ms")?);
    let not_after_ms = fields.number("not_after_ms")?;
    fields.finish()?;
    let check = || {
        Ok(Extend {
            name: Name::new(&scope, &key)?,
            token: Token::new(token)?,
            lease_ms: command::lease_ms(Some(lease_ms))?,
            not_after_ms,
        })
    };
    check().map_err(|invalid| fields.invalid(invalid))
}

/// The parts of a payload, read and not yet checked.
struct Parts {
    kind: Option<String>,
    body: Vec<u8>,
    attributes: BTreeMap<String, String>,
}

impl Parts {
    fn read(fields: &mut Fields<'_>) -> Result<Self, Refusal> {
        let kind = fields.text("type")?.map(Into::into);
        let body = match (fields.text("body")?, fields.text("text")?) {
            (Some(_), Some(_)) => {
                return Err(fields.refuse("text", "must not be given beside body"));
            }
            (Some(encoded), None) => STANDARD
                .decode(encoded.as_bytes())
                .map_err(|_| fields.refuse("body", "must be padded standard base64"))?,
            (None, Some(text)) => text.into_owned().into_bytes(),
            (None, None) => Vec::new(),
        };
        let attributes = fields.object("attributes")?.map(Fields::into_texts).transpose()?;
        let attributes = attributes.unwrap_or_default();
        fields.finish()?;
        Ok(Self { kind, body, attributes })
    }

    fn payload(self) -> Result<Payload, tenure_state_machine::Invalid> {
        Payload::new(self.kind, self.body, self.attributes)
    }
}

fn node_within(field: &str, id: u64) -> Result<u64, Refusal> {
    // The same bound as a token's: what JSON readers in other languages keep exact.
    if (1..=TOKEN_MAX).contains(&id) {
        Ok(id)
    } else {
        let reason = format!("must be 1 to {TOKEN_MAX}, not {id}");
        Err(refuse(Some(field.to_owned()), reason))
    }
}

/// Checks host:port: a DNS name, an IPv4 address, or an IPv6 address in brackets.
fn address(field: &str, text: &str) -> Result<(), Refusal> {
    let good = text.len() <= ADDRESS_BYTES
        && text.rsplit_once(':').is_some_and(|(host, port)| {
            let digits = port.bytes().all(|byte| byte.is_ascii_digit());
            is_host(host) && digits && port.parse::<u16>().is_ok_and(|port| port > 0)
        });
    if good { Ok(()) } else { Err(refuse(Some(field.to_owned()), "must be host:port")) }
}

fn is_host(host: &str) -> bool {
    match host.strip_prefix('[') {
        Some(host) => host.strip_suffix(']').is_some_and(|ip| ip.parse::<Ipv6Addr>().is_ok()),
        None => {
            let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
            !host.is_empty() && host.bytes().all(legal)
        }
    }
}
