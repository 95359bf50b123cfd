//! Query parameters, already split and percent-decoded. As in a body, each is known and given
//! once; an empty one counts as not given.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use tenure_state_machine::{Name, check_scope};

use crate::frame::{Consistency, List, PAGE_DEFAULT, Phase};
use crate::json::{SHOWN_CHARS, refuse};
use crate::refusal::Refusal;

/// `?prefix=&state=&page_size=&page_token=` of a listing.
///
/// # Errors
/// [`Refusal::InvalidArgument`] on the scope or the parameter.
pub fn list<'a>(
    scope: &str,
    pairs: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Result<List, Refusal> {
    check_scope(scope)?;
    let [prefix, state, page_size, page_token] =
        known(["prefix", "state", "page_size", "page_token"], pairs)?;
    let state = match state {
        None => None,
        Some("in_progress") => Some(Phase::InProgress),
        Some("complete") => Some(Phase::Complete),
        Some(_) => return Err(invalid("state", "must be in_progress or complete")),
    };
    let digits = |text: &&str| text.bytes().all(|byte| byte.is_ascii_digit());
    let page_size = match page_size {
        None => PAGE_DEFAULT,
        Some(text) => Some(text)
            .filter(digits)
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| invalid("page_size", "must be a whole number"))?,
    };
    let list = List {
        scope: scope.to_owned(),
        prefix: prefix.unwrap_or_default().to_owned(),
        state,
        page_size,
        after: page_token.map(|token| key_after(scope, token)).transpose()?,
    };
    list.check()?;
    Ok(list)
}

/// `?consistency=linearizable|stale` of a read.
///
/// # Errors
/// [`Refusal::InvalidArgument`] on the parameter.
pub fn consistency<'a>(
    pairs: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Result<Consistency, Refusal> {
    match known(["consistency"], pairs)? {
        [None | Some("linearizable")] => Ok(Consistency::Linearizable),
        [Some("stale")] => Ok(Consistency::Stale),
        [Some(_)] => Err(invalid("consistency", "must be linearizable or stale")),
    }
}

/// For a request that takes no parameters.
///
/// # Errors
/// [`Refusal::InvalidArgument`] on the first one.
pub fn none<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<(), Refusal> {
    known([], pairs).map(|[]| ())
}

/// What a listing hands out to go on after `key`. Callers must not look into it.
#[must_use]
pub fn page_token(key: &str) -> String {
    URL_SAFE_NO_PAD.encode(key)
}

fn key_after(scope: &str, token: &str) -> Result<String, Refusal> {
    let bytes = URL_SAFE_NO_PAD.decode(token).ok();
    bytes
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .filter(|key| Name::new(scope, key).is_ok())
        .ok_or_else(|| invalid("page_token", "must be the next_page_token of a page before"))
}

fn known<'a, const N: usize>(
    names: [&str; N],
    pairs: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Result<[Option<&'a str>; N], Refusal> {
    let mut values = [None; N];
    for (name, value) in pairs {
        let place = names.iter().position(|known| *known == name);
        match place.and_then(|place| values.get_mut(place)) {
            None => return Err(invalid(name, "is unknown here")),
            Some(Some(_)) => return Err(invalid(name, "must be given only once")),
            Some(slot) => *slot = Some(value),
        }
    }
    Ok(values.map(|value| value.filter(|value| !value.is_empty())))
}

fn invalid(name: &str, reason: &str) -> Refusal {
    refuse(Some(name.chars().take(SHOWN_CHARS).collect()), reason)
}
