//! Reading many records: pages of a scope, and the logical form of a whole state.

use std::io;
use std::ops::ControlFlow;

use tenure_state_machine::{Counters, Name, Record, snapshot};

use crate::disk::{Database, Family};
use crate::txn;
use crate::types::Applied;

/// A page of a scope: which records, and up to where.
#[derive(Debug, Clone, Copy)]
pub struct Page<'a> {
    /// Names start with this.
    pub prefix: &'a [u8],
    /// Names come after this one.
    pub after: Option<&'a [u8]>,
    /// At most so many.
    pub limit: usize,
    /// Give up after looking at so many, or at 4 MiB of them.
    pub looked_at: usize,
}

/// Most stored bytes that one page looks at, beyond its first record.
pub(super) const PAGE_BYTES: usize = 4 * 1024 * 1024;

/// Records, and the name to go on after, if there may be more.
type Found = (Vec<(Name, Record)>, Option<Name>);

/// The records of a page that `wanted` says yes to, from when `pinned` is called.
pub(super) fn list(
    db: &dyn Database,
    applied: Applied,
    page: Page<'_>,
    pinned: &mut dyn FnMut(),
    wanted: &mut dyn FnMut(&Record, Applied) -> bool,
) -> io::Result<Found> {
    let (mut records, mut more) = (Vec::new(), None);
    let (mut last, mut looked_at, mut bytes) = (None, 0, 0);
    let from = page.after.filter(|after| *after > page.prefix).unwrap_or(page.prefix);
    visit(db, from, pinned, &mut |key, value| {
        if !key.starts_with(page.prefix) {
            return Ok(ControlFlow::Break(()));
        }
        if page.after == Some(key) {
            return Ok(ControlFlow::Continue(()));
        }
        if records.len() == page.limit || looked_at == page.looked_at || bytes > PAGE_BYTES {
            more = last.take();
            return Ok(ControlFlow::Break(()));
        }
        looked_at += 1;
        bytes += value.len();
        let (name, record) = read(key, value)?;
        last = Some(name.clone());
        if wanted(&record, applied) {
            records.push((name, record));
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok((records, more))
}

/// Feeds the logical snapshot of a state to `sink`: equal bytes, equal state.
pub(super) fn write_logical(
    db: &dyn Database,
    counters: Counters,
    sink: &mut dyn FnMut(&[u8]),
) -> io::Result<()> {
    let mut writer = snapshot::Writer::new(counters, sink).map_err(io::Error::other)?;
    visit(db, &[], &mut || {}, &mut |key, value| {
        let (name, record) = read(key, value)?;
        writer.record(&name, &record).map_err(io::Error::other)?;
        Ok(ControlFlow::Continue(()))
    })?;
    writer.finish().map_err(io::Error::other)?;
    Ok(())
}

fn read(key: &[u8], value: &[u8]) -> io::Result<(Name, Record)> {
    let name = Name::from_stored(key)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    Ok((name, txn::unseal_record(value)?))
}

/// Is shown a stored name and the sealed record, and says whether to go on.
type Visit<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> io::Result<ControlFlow<()>>;

/// Visits stored records from `from` on, as of when `pinned` is called; the first error ends it.
fn visit(
    db: &dyn Database,
    from: &[u8],
    pinned: &mut dyn FnMut(),
    visit: Visit<'_>,
) -> io::Result<()> {
    let mut failed = None;
    db.scan_as_of(Family::Records, from, pinned, &mut |key, value| {
        visit(key, value).unwrap_or_else(|error| {
            failed = Some(error);
            ControlFlow::Break(())
        })
    })?;
    failed.map_or(Ok(()), Err)
}
