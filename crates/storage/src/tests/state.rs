//! Apply on disk against apply in memory.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex};

use rand::RngExt;
use tenure_state_machine::{Command, Entry, Holder, Name, Payload, Record, State, Token, apply};

use super::generate::{Entries, Failing, Rng, blank, normal, rng};
use super::node::{Node, dir};
use super::reference::Reference;
use crate::disk::{self, Durability, Layout};
use crate::state::{Changed, FirstPlace, Hot, Meta, batch, names};
use crate::txn::{Txn, look_at_record};
use crate::{Changes, Disk, LogEntry, Observer, Page, SimulatedDisk};

/// Reads that must agree with the reference at any time.
fn assert_reads(node: &Node, reference: &Reference) {
    let state = &node.storage.state;
    let applied = state.applied();
    assert_eq!(applied.clock_ms, reference.counters.clock_ms);
    let first = reference.store.deadlines().next().map(|(deadline_ms, _)| deadline_ms);
    assert_eq!(state.first_deadline_ms().unwrap(), first);
    for clock_ms in [0, applied.clock_ms, applied.clock_ms + 50, u64::MAX] {
        let due = reference.store.deadlines().filter(|(deadline, _)| *deadline <= clock_ms).count();
        for limit in [0, 1, 3, u64::MAX] {
            let expected = u64::try_from(due).unwrap().min(limit);
            assert_eq!(state.count_due(clock_ms, limit).unwrap(), expected);
        }
    }
    for (name, record) in reference.store.records() {
        assert_eq!(state.read(name).unwrap().0.as_deref(), Some(record));
    }
}

/// Appends and applies `count` entries, in steps of any size, and reopens now and then.
async fn walk(
    open: &mut dyn FnMut(&mut Rng, Option<Node>) -> Node,
    seed: u64,
    count: u64,
    reopen: u32,
) {
    let _seed = Failing(format!("seed {seed}"));
    let (mut rng, mut draw) = (rng(seed), Entries::new(seed));
    let mut node = open(&mut rng, None);
    let mut reference = Reference::default();
    let mut entries: Vec<LogEntry> = Vec::new();
    let mut applied = 0;
    while applied < usize::try_from(count).unwrap() {
        let next = u64::try_from(entries.len()).unwrap();
        let more: Vec<_> =
            (next..next + rng.random_range(1..20)).map(|i| draw.next(1, i)).collect();
        entries.extend(more.clone());
        node.append(more).await.unwrap();
        node.apply(entries[applied..].to_vec()).await.unwrap();
        entries[applied..].iter().for_each(|entry| reference.apply(entry));
        applied = entries.len();
        // Whoever looks for what is due has everything written.
        if rng.random_bool(0.3) {
            assert_reads(&node, &reference);
        }
        if rng.random_ratio(1, reopen) {
            node = open(&mut rng, Some(node));
            // What the disk had not flushed comes again from the log.
            let from = node.storage.state.applied();
            let meta_applied = node.start().await.unwrap();
            let next = meta_applied.map_or(0, |id| usize::try_from(id.index).unwrap() + 1);
            assert!(next <= applied, "A2");
            Reference::of(&entries[..next]).assert_agrees(&node);
            node.apply(entries[next..].to_vec()).await.unwrap();
            assert!(node.storage.state.applied().index >= from.index);
            assert_reads(&node, &reference);
        }
    }
    let snapshot = node.build().await.unwrap();
    let (index, _, hash) = node.storage.state.hash(&snapshot).unwrap();
    assert_eq!((index, hash), (u64::try_from(applied).unwrap() - 1, reference.hash()));
}

impl Reference {
    fn assert_agrees(&self, node: &Node) {
        assert_eq!(node.storage.state.applied().clock_ms, self.counters.clock_ms);
        assert_reads(node, self);
    }
}

#[tokio::test]
async fn a_state_on_disk_is_what_it_is_in_memory_whatever_a_power_cut_takes() {
    for seed in 0..40 {
        let disk = SimulatedDisk::default();
        let mut open = |rng: &mut Rng, node: Option<Node>| {
            if node.is_some() {
                drop(node);
                disk.power_cut_keeping(|pending| rng.random_range(0..=pending));
            }
            Node::open(&disk).unwrap()
        };
        walk(&mut open, seed, 150, 4).await;
        let db = disk::Disk::open(&disk, &dir().join("state/1"), Layout::State).unwrap();
        let meta = Meta::read(&*db).unwrap();
        assert!(meta.applied.is_some());
    }
}

#[tokio::test]
async fn a_state_in_rocksdb_is_what_it_is_in_memory() {
    for seed in 100..103 {
        let path = tempfile::tempdir().unwrap();
        let disk = Disk::real();
        let mut open = |_: &mut Rng, node: Option<Node>| {
            drop(node);
            Node::open_at(&disk, path.path()).unwrap()
        };
        walk(&mut open, seed, 200, 6).await;
    }
}

/// Answers, and what is due, entry by entry, with several entries in one transaction.
#[test]
fn a_transaction_answers_what_memory_answers() {
    for seed in 0..60 {
        let _seed = Failing(format!("seed {seed}"));
        let (mut rng, mut draw) = (rng(seed), Entries::new(seed));
        let disk = SimulatedDisk::default();
        let db = disk::Disk::open(&disk, Path::new("db"), Layout::State).unwrap();
        let (mut reference, mut counters) = (Reference::default(), Default::default());
        let mut first_place = FirstPlace::unknown();
        let (mut hot, mut frozen, mut written) = (Hot::default(), None, false);
        let mut index = 0;
        for _ in 0..80 {
            let next = index + rng.random_range(1..6);
            let entries: Vec<LogEntry> = (index..next).map(|index| draw.next(1, index)).collect();
            index = next;
            let mut txn = Txn::new(&*db, &hot, &first_place);
            // Records are looked at ahead, or one by one.
            if seed % 3 != 0 {
                txn.look_ahead(&names(&entries)).unwrap();
            }
            for entry in &entries {
                if let openraft::EntryPayload::Normal(entry) = &entry.payload {
                    let expected =
                        apply(&mut reference.counters, &mut reference.store, entry).unwrap();
                    assert_eq!(apply(&mut counters, &mut txn, entry).unwrap(), expected);
                }
            }
            let (changes, waded) = txn.into_changes();
            first_place = waded.map_or(first_place, |(_, to)| to);
            hot.absorb(changes);
            // The database is at some step before: a generation is frozen, written, forgotten.
            match (rng.random_range(0..3), frozen.take()) {
                (0, None) => frozen = Some(hot.freeze()),
                (1, Some(full)) => {
                    db.write(batch(&full, &Meta::default()).unwrap(), Durability::Buffered)
                        .unwrap();
                    // What is written comes before what is said to be.
                    written = true;
                    frozen = Some(full);
                }
                (2, Some(full)) if written => {
                    drop(full);
                    let (first_ms, _) = hot.written();
                    first_place.given(first_ms);
                    written = false;
                }
                (_, then) => frozen = then,
            }
            // Every other walk reads from the disk alone what it has.
            if seed % 2 == 0 {
                hot.forget();
            }
        }
    }
}

fn complete(token: u64, payload: &Arc<Payload>) -> Record {
    let payload = Some(Arc::clone(payload));
    let state = State::Complete { completed_ms: 1, expires_ms: token, payload };
    let token = Token::new(token).unwrap();
    Record { token, holder: Holder::default(), fingerprint: None, acquired_ms: 1, state }
}

/// H1: large changes are soon forgotten, and what was found before them must not outlive them.
#[test]
fn what_is_known_of_a_record_is_what_changed_last() {
    let large = Arc::new(Payload::new(None, vec![0; 500_000], BTreeMap::new()).unwrap());
    for seed in 0..8 {
        let _seed = Failing(format!("seed {seed}"));
        let mut rng = rng(seed);
        let disk = SimulatedDisk::default();
        let db = disk::Disk::open(&disk, Path::new("db"), Layout::State).unwrap();
        let (mut hot, mut frozen) = (Hot::default(), None);
        let mut truth = BTreeMap::new();
        for step in 1..800 {
            let name = Name::new("s", &rng.random_range(0..30).to_string()).unwrap();
            let now: Option<Arc<Record>> = truth.get(&name).cloned();
            match (rng.random_range(0..20), frozen.take()) {
                (0..10, then) => {
                    assert_eq!(look_at_record(&*db, &hot, &name).unwrap(), now, "step {step}");
                    frozen = then;
                }
                (10..15, None) => frozen = Some(hot.freeze()),
                (10..15, Some(changes)) => {
                    let batch = batch(&changes, &Meta::default()).unwrap();
                    db.write(batch, Durability::Buffered).unwrap();
                    drop(changes);
                    hot.written();
                }
                (chance, then) => {
                    frozen = then;
                    let beneath_ms = now.map(|record| record.deadline_ms());
                    let now = (chance < 18).then(|| Arc::new(complete(step, &large)));
                    match &now {
                        Some(now) => drop(truth.insert(name.clone(), Arc::clone(now))),
                        None => drop(truth.remove(&name)),
                    }
                    hot.absorb(HashMap::from([(name, Changed { beneath_ms, now })]));
                }
            }
        }
    }
}

#[tokio::test]
async fn an_entry_that_does_not_follow_stops_the_node_and_changes_nothing() {
    let node = Node::open(&SimulatedDisk::default()).unwrap();
    node.apply(vec![blank(1, 0), blank(1, 1)]).await.unwrap();
    for wrong in [blank(1, 3), blank(1, 1), blank(0, 2)] {
        let node = Node::open(&SimulatedDisk::default()).unwrap();
        node.apply(vec![blank(1, 0), blank(1, 1)]).await.unwrap();
        node.apply(vec![wrong]).await.unwrap_err();
        let reason = node.storage.fail.reason().unwrap();
        assert!(reason.starts_with("an entry could not be applied: A1: "), "{reason}");
        assert_eq!(node.storage.state.applied().index, 1);
    }
}

/// Keeps what it was told, and reads the state while it is told.
#[derive(Debug)]
struct Witness {
    state: crate::StateStore,
    told: Mutex<Vec<(u64, Option<usize>)>>,
}

impl Observer for Witness {
    fn changed(&self, changes: &Changes<'_>) {
        assert_eq!(self.state.applied(), changes.applied, "A4: it can be read before it is told");
        let names = changes.names.map(<[Name]>::len);
        self.told.lock().unwrap().push((changes.applied.index, names));
    }
}

#[tokio::test]
async fn who_waits_is_told_of_every_step_once_it_can_be_read() {
    let disk = SimulatedDisk::default();
    let node = Node::open(&disk).unwrap();
    let state = node.storage.state.clone();
    let witness = Arc::new(Witness { state: state.clone(), told: Mutex::default() });
    state.set_observer(witness.clone());
    let mut watch = state.watch_applied();
    let mut draw = Entries::new(5);
    let entries: Vec<_> = (0..600).map(|index| draw.next(1, index)).collect();
    node.append(entries.clone()).await.unwrap();
    node.apply(entries).await.unwrap();
    let told: Vec<u64> = witness.told.lock().unwrap().iter().map(|told| told.0).collect();
    assert_eq!(told, [255, 511, 599], "a step is 256 entries at most");
    assert_eq!(watch.borrow_and_update().index, 599);

    let other = Node::open(&SimulatedDisk::default()).unwrap();
    let entries: Vec<_> = (0..700).map(|index| blank(1, index)).collect();
    other.append(entries.clone()).await.unwrap();
    other.apply(entries).await.unwrap();
    let snapshot = other.build().await.unwrap();
    node.install(node.receive(&snapshot).unwrap()).await.unwrap();
    assert_eq!(witness.told.lock().unwrap().last(), Some(&(699, None)), "any record may differ");
    assert_eq!(state.read(&Name::new("a", "k0").unwrap()).unwrap().1.index, 699);
}

/// An entry that acquires records.
fn acquires(index: u64, names: &[Name]) -> LogEntry {
    let acquire = |name: &Name| {
        Command::Acquire(tenure_state_machine::Acquire {
            name: name.clone(),
            attempt: tenure_state_machine::Attempt::new("x").unwrap(),
            holder: Default::default(),
            lease_ms: 10,
            ttl_ms: 10,
            fingerprint: None,
            not_after_ms: None,
        })
    };
    normal(1, index, Entry { stamp_ms: 7, commands: names.iter().map(acquire).collect() })
}

/// On the real disk, because the simulated one does one thing at a time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_is_of_one_moment_and_apply_does_not_wait_for_it() {
    let path = tempfile::tempdir().unwrap();
    let node = Arc::new(Node::open_at(&Disk::real(), path.path()).unwrap());
    let names = ["1", "2", "3"].map(|key| Name::new("a", key).unwrap());
    node.append(vec![acquires(0, &names[..2]), acquires(1, &names[2..])]).await.unwrap();
    node.apply(vec![acquires(0, &names[..2])]).await.unwrap();
    let (listing, later) = (Arc::clone(&node), acquires(1, &names[2..]));
    let runtime = tokio::runtime::Handle::current();
    let listed = std::thread::spawn(move || {
        let mut later = Some(later);
        let prefix = Name::scope_prefix("a");
        let page = Page { prefix: &prefix, after: None, limit: 9, looked_at: 9 };
        let wanted = |_: &Record, _| {
            let Some(entry) = later.take() else { return true };
            let (node, (done, written)) = (Arc::clone(&listing), std::sync::mpsc::channel());
            runtime.spawn(async move {
                node.apply(vec![entry]).await.unwrap();
                done.send(node.storage.state.first_deadline_ms()).unwrap();
            });
            let written = written.recv_timeout(std::time::Duration::from_secs(20));
            assert_eq!(written.expect("the page is waited for").unwrap(), Some(17));
            true
        };
        let (found, more, at) = listing.storage.state.list(page, wanted).unwrap();
        (found.into_iter().map(|(name, _)| name).collect::<Vec<_>>(), more, at.index)
    });
    let listed = tokio::task::spawn_blocking(move || listed.join().unwrap()).await.unwrap();
    assert_eq!(listed, (names[..2].to_vec(), None, 0), "A3");
    assert_eq!(node.storage.state.applied().index, 1);
}

#[tokio::test]
async fn a_scope_is_listed_page_by_page_and_no_other_with_it() {
    let node = Node::open(&SimulatedDisk::default()).unwrap();
    let names: Vec<_> = [("a", "1"), ("a", "2"), ("a", "3"), ("aa", "1"), ("b", "1")]
        .map(|(scope, key)| Name::new(scope, key).unwrap())
        .into();
    node.apply(vec![acquires(0, &names)]).await.unwrap();
    let state = &node.storage.state;
    let list = |after: Option<&Name>, limit, looked_at, wanted: bool| {
        let prefix = Name::scope_prefix("a");
        let after = after.map(Name::as_stored);
        let page = Page { prefix: &prefix, after, limit, looked_at };
        let (found, more, at) = state.list(page, |_, _| wanted).unwrap();
        assert_eq!((at.index, at.clock_ms), (0, 7));
        (found.into_iter().map(|(name, _)| name).collect::<Vec<_>>(), more)
    };
    assert_eq!(list(None, 10, 10, true), (names[..3].to_vec(), None));
    assert_eq!(list(None, 2, 10, true), (names[..2].to_vec(), Some(names[1].clone())));
    assert_eq!(list(Some(&names[1]), 2, 10, true), (vec![names[2].clone()], None));
    assert_eq!(list(None, 3, 10, true), (names[..3].to_vec(), None));
    assert_eq!(list(None, 2, 2, false), (vec![], Some(names[1].clone())), "it looked at two");
}

#[tokio::test]
async fn a_full_disk_stops_the_node_with_one_reason_and_answers_nothing() {
    let entries = || -> Vec<_> { (0..5).map(|index| blank(1, index)).collect() };
    for (what, reason) in [
        ("append", "the log could not be written: simulated write failure"),
        ("apply", "the state could not be written: simulated write failure"),
        ("build", "a snapshot could not be built: simulated write failure"),
        ("install", "a snapshot could not be installed: simulated write failure"),
        ("seen", "the log could not be written: simulated write failure"),
    ] {
        let other = Node::open(&SimulatedDisk::default()).unwrap();
        other.apply(entries()).await.unwrap();
        let snapshot = other.build().await.unwrap();
        let disk = SimulatedDisk::default();
        let node = Node::open(&disk).unwrap();
        let received = node.receive(&snapshot).unwrap();
        // The barrier of an install is written still.
        disk.fail_writes_after(u64::from(what == "install"));
        let failed = match what {
            "append" => node.append(entries()).await.is_err(),
            "apply" => {
                node.apply(entries()).await.unwrap();
                // It is written when somebody asks what is due.
                node.storage.state.first_deadline_ms().is_err()
            }
            "build" => node.build().await.is_err(),
            "install" => node.install(received).await.is_err(),
            _ => node.storage.seen.insert(2).is_err(),
        };
        assert!(failed, "{what}");
        assert_eq!(node.storage.fail.reason(), Some(reason));
        let applied = if what == "apply" { 4 } else { 0 };
        assert_eq!(node.storage.state.applied().index, applied, "{what}");
        assert!(node.storage.state.current_snapshot().is_none(), "{what}");
    }
}
