//! Reads of a node's own state, as it happens to be: they say at which index.

use std::io;

use tenure_api::frame::{List, Phase, Reply};
use tenure_api::{Listed, Refusal, View, ViewState};
use tenure_state_machine::{Name, visible};
use tenure_storage::{Page, StateStore};

use crate::local::{internal, read_at};

/// Records that one page looks at, wanted or not, before it is handed out as it is.
const LOOKED_AT: usize = 10_000;

/// One record.
pub(crate) fn get(state: &StateStore, name: &Name) -> Result<Reply, Refusal> {
    let (record, applied) = state.read(name).map_err(|error| internal(&error))?;
    let view = visible(record, applied.clock_ms).map(|record| View::from(&*record));
    Ok(Reply::Record { view, at: read_at(applied) })
}

/// One page of a scope.
pub(crate) async fn list(state: &StateStore, list: &List) -> Result<Reply, Refusal> {
    let list = list.clone();
    let read = state.blocking(move |state| read_page(state, &list)).await;
    read.map_err(|error| internal(&error))
}

fn read_page(state: &StateStore, list: &List) -> io::Result<Reply> {
    let stored = |key: &str| {
        let mut stored = Name::scope_prefix(&list.scope);
        stored.extend_from_slice(key.as_bytes());
        stored
    };
    let prefix = stored(&list.prefix);
    let after = list.after.as_deref().map(stored);
    let limit = usize::try_from(list.page_size).unwrap_or(usize::MAX);
    let page = Page { prefix: &prefix, after: after.as_deref(), limit, looked_at: LOOKED_AT };
    let (records, next, applied) = state.list(page, |record, applied| {
        visible(Some(record), applied.clock_ms).is_some()
            && list.state.is_none_or(|wanted| Phase::of(record) == wanted)
    })?;
    let records = records.into_iter().map(|(name, record)| {
        let mut view = View::from(&record);
        if let ViewState::Complete { payload, .. } = &mut view.state {
            *payload = None;
        }
        Listed { key: name.key().to_owned(), view }
    });
    let next = next.map(|name| name.key().to_owned());
    Ok(Reply::List { records: records.collect(), next, at: read_at(applied) })
}
