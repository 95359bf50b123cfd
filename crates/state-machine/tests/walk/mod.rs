//! A walk: the same entries go to the machine under test, to a replica that is thrown away and
//! restored now and then, to a hoarder that never purges, to the oracle and to the witness; after
//! each of them every invariant is checked.

pub(crate) mod cells;
pub(crate) mod generate;
mod oracle;
pub(crate) mod shrink;
mod witness;

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Once};

use rand::rngs::Xoshiro256PlusPlus;
use rand::{Rng, SeedableRng as _};
use tenure_state_machine::{
    Acquire, AcquireVerdict, Answer, Answers, Attempt, Command, Counters, Entry, Holder,
    MemoryStore, Name, Record, State, Store, apply, codec, judge_acquire, snapshot, time, visible,
};

use self::cells::Cells;
use self::oracle::{Kept, Oracle};
use self::witness::Witness;

/// One step of a walk.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    /// Everybody applies it.
    Entry(Entry),
    /// The replica is restored from the machine's snapshot.
    Restore,
}

/// All who walk.
#[derive(Debug)]
pub(crate) struct Walk {
    machine: Machine,
    replica: Machine,
    hoarder: Machine,
    oracle: Oracle,
    witness: Witness,
    names: Vec<Name>,
    /// How many commands were applied.
    pub(crate) commands: usize,
    /// The cells that they filled.
    pub(crate) cells: Cells,
}

/// The state machine under test.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Machine {
    counters: Counters,
    store: MemoryStore,
}

/// Draws a walk from a seed and walks it. On failure a report: the seed, what is wrong, and a
/// shrunk script.
pub(crate) fn walk(seed: u64, steps: usize) -> Result<(Walk, Vec<Step>), String> {
    let rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    walk_with(rng, steps).map_err(|report| format!("seed {seed}, {report}"))
}

/// The same, from whatever draws.
pub(crate) fn walk_with(rng: impl Rng, steps: usize) -> Result<(Walk, Vec<Step>), String> {
    let mut walk = Walk::new();
    let mut generator = generate::Steps::new(rng);
    let mut done = Vec::with_capacity(steps);
    while done.len() < steps {
        let step = generator.next(&walk.oracle);
        done.push(step.clone());
        if let Err(failure) = caught(|| walk.step(&step)) {
            return Err(report(&failure, &done));
        }
    }
    Ok((walk, done))
}

fn report(failure: &str, steps: &[Step]) -> String {
    let again = |steps: &[Step]| {
        caught(|| {
            let mut walk = Walk::new();
            steps.iter().try_for_each(|step| walk.step(step))
        })
    };
    let shrunk = quietly(|| shrink::steps(steps, |steps| again(steps).is_err()));
    let shrunk_failure = again(&shrunk).err().unwrap_or_default();
    format!(
        "step {}: {failure}\n\nShrunk to {} steps: {shrunk_failure}\n\n{}",
        steps.len(),
        shrunk.len(),
        shrink::script(&shrunk)
    )
}

/// Runs without a word from panics in this thread: shrinking meets the same one many times.
fn quietly<T>(run: impl FnOnce() -> T) -> T {
    thread_local! {
        static QUIET: Cell<bool> = const { Cell::new(false) };
    }
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                usual(info);
            }
        }));
    });
    QUIET.set(true);
    let done = run();
    QUIET.set(false);
    done
}

/// A panic, which is how asserts speak, is a failure like any other.
fn caught(run: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        Err(text
            .or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string()))
            .unwrap_or_default())
    })
}

impl Machine {
    fn apply(&mut self, entry: &Entry) -> Answers {
        let Ok(answers) = apply(&mut self.counters, &mut self.store, entry);
        answers
    }

    fn snapshot(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        snapshot::write(self.counters, &self.store, |chunk| bytes.extend_from_slice(chunk))
            .unwrap();
        bytes
    }

    fn record(&self, name: &Name) -> Option<Arc<Record>> {
        let Ok(record) = self.store.get(name);
        record
    }
}

impl Walk {
    fn new() -> Self {
        Self {
            machine: Machine::default(),
            replica: Machine::default(),
            hoarder: Machine::default(),
            oracle: Oracle::default(),
            witness: Witness::default(),
            names: generate::names(),
            commands: 0,
            cells: Cells::new(),
        }
    }

    /// The hash of the state at which the walk is.
    pub(crate) fn hash(&self) -> String {
        let Machine { counters, store } = &self.machine;
        snapshot::hash(|sink| snapshot::write(*counters, store, sink)).unwrap()
    }

    fn step(&mut self, step: &Step) -> Result<(), String> {
        match step {
            Step::Restore => {
                let restored = snapshot::restore(&self.machine.snapshot());
                let (counters, store) = restored.map_err(|error| format!("I9: {error}"))?;
                self.replica = Machine { counters, store };
            }
            Step::Entry(entry) => self.entry(entry)?,
        }
        self.check_states()
    }

    fn entry(&mut self, entry: &Entry) -> Result<(), String> {
        self.check_reads(entry)?;
        let foreseen = self.foresee(entry);
        let before = self.machine.clone();
        let answers = self.machine.apply(entry);
        self.commands += entry.commands.len();

        if foreseen.is_some() && foreseen.as_ref() != answers.answers.first() {
            return Err(format!("a read would answer {foreseen:?}, apply {answers:?}"));
        }
        self.check_answers(entry, &answers)?;
        self.witness.see(entry, &answers)?;

        let quiet = answers.answers.iter().all(is_quiet);
        let last_token = before.counters.last_token;
        if quiet
            && (&before.store, last_token)
                != (&self.machine.store, self.machine.counters.last_token)
        {
            return Err(format!("I6: {answers:?} changed a record"));
        }

        // The log's form is part of what replicas have in common.
        let entry_again: Entry = codec::decode(&codec::encode(entry).unwrap()).unwrap();
        if self.replica.apply(&entry_again) != answers {
            return Err("I7: the replica answers otherwise".to_owned());
        }
        self.check_hoarder(entry, &answers)
    }

    /// The oracle says the same, and fills the cells.
    fn check_answers(&mut self, entry: &Entry, answers: &Answers) -> Result<(), String> {
        self.oracle.stamp(entry.stamp_ms);
        if answers.now_ms != self.oracle.now {
            return Err(format!("the clock is {}, not {}", answers.now_ms, self.oracle.now));
        }
        for (slot, (command, got)) in entry.commands.iter().zip(&answers.answers).enumerate() {
            let mut cells = Vec::new();
            let want = self.oracle.command(command, &mut cells);
            if *got != want {
                let cell = cells.first();
                return Err(format!("slot {slot}, {cell:?}: {got:?} instead of {want:?}"));
            }
            for cell in cells {
                *self.cells.entry(cell).or_default() += 1;
            }
        }
        Ok(())
    }

    /// I5: whoever never purges gives the same answers and tokens.
    fn check_hoarder(&mut self, entry: &Entry, answers: &Answers) -> Result<(), String> {
        let is_purge = |command: &Command| matches!(command, Command::Purge(_));
        let mut kept = entry.clone();
        kept.commands.retain(|command| !is_purge(command));
        let without = self.hoarder.apply(&kept);
        let with = entry.commands.iter().zip(&answers.answers);
        let with = with.filter(|(command, _)| !is_purge(command)).map(|(_, answer)| answer);
        if !with.eq(&without.answers) || self.hoarder.counters != self.machine.counters {
            return Err(format!("I5: without purges the answers are {without:?}"));
        }
        Ok(())
    }

    /// What must hold of the states after any step.
    fn check_states(&mut self) -> Result<(), String> {
        let clock = self.machine.counters.clock_ms;
        if self.machine.snapshot() != self.replica.snapshot() || self.machine != self.replica {
            return Err("I7, I9: the replica has another state".to_owned());
        }
        if self.machine.counters.last_token != self.oracle.tokens {
            return Err(format!("I2: the last token is not {}", self.oracle.tokens));
        }
        let store = &self.machine.store;
        let mut index: Vec<_> = store.records().map(|(name, r)| (r.deadline_ms(), name)).collect();
        index.sort();
        if !index.into_iter().eq(store.deadlines()) {
            return Err("I10: the deadline index differs from the records".to_owned());
        }
        if store.records().count() != self.oracle.kept.len() {
            return Err("R11: a purge deleted too much or too little".to_owned());
        }
        for name in &self.names {
            let record = visible(self.machine.record(name), clock);
            if record != visible(self.hoarder.record(name), clock) {
                return Err(format!("I5: without purges {name} is another record"));
            }
            let (column, kept) = self.oracle.get(name);
            if !is_told(kept, record.as_deref(), clock) {
                return Err(format!("get {name}: {record:?} instead of {kept:?}"));
            }
            let state = match record.as_deref().map(|record| &record.state) {
                None => "absent",
                Some(State::InProgress { .. }) => "in_progress",
                Some(State::Complete { .. }) => "complete",
            };
            *self.cells.entry(("get", column, state)).or_default() += 1;
        }
        Ok(())
    }

    /// The answer that a read would give to the entry's first command, if it is an acquire that
    /// changes nothing.
    fn foresee(&self, entry: &Entry) -> Option<Answer> {
        let Some(Command::Acquire(acquire)) = entry.commands.first() else { return None };
        let clock = self.machine.counters.clock_ms.max(entry.stamp_ms);
        match judge_acquire(self.machine.record(&acquire.name).as_deref(), clock, acquire) {
            AcquireVerdict::Settled(answer) => Some(answer),
            AcquireVerdict::Grant(_) | AcquireVerdict::Resume => None,
        }
    }

    /// Where no deadline of a record lies between the clock and the stamp, a read that is judged
    /// at the clock says what it would say at the stamp.
    fn check_reads(&self, entry: &Entry) -> Result<(), String> {
        let clock = self.machine.counters.clock_ms;
        let present = clock.max(entry.stamp_ms);
        for (name, record) in self.machine.store.records() {
            let says = |clock| {
                let verdict = judge_acquire(Some(record), clock, &probe(name));
                let verdict = match verdict {
                    AcquireVerdict::Settled(answer) => cells::label(&answer),
                    AcquireVerdict::Grant(None) => "acquired",
                    AcquireVerdict::Grant(Some(_)) => "took_over",
                    AcquireVerdict::Resume => "resumed",
                };
                (verdict, visible(Some(record), clock).is_some())
            };
            if !record.turns_between(clock, present) && says(clock) != says(present) {
                return Err(format!("{name} turns between {clock} and {present}: {record:?}"));
            }
        }
        Ok(())
    }
}

/// An acquire by an attempt that no walk uses.
fn probe(name: &Name) -> Acquire {
    Acquire {
        name: name.clone(),
        attempt: Attempt::new("probe").unwrap(),
        holder: Holder::default(),
        lease_ms: 2,
        ttl_ms: 1,
        fingerprint: None,
        not_after_ms: None,
    }
}

/// Whether an answer changes no record: all but these five do.
fn is_quiet(answer: &Answer) -> bool {
    !matches!(
        answer,
        Answer::Acquired { .. }
            | Answer::Completed(_)
            | Answer::Released
            | Answer::Extended { .. }
            | Answer::Purged { deleted: 1.., .. }
    )
}

/// Whether the record is what the oracle believes, as far as a get shows it.
fn is_told(kept: Option<&Kept>, record: Option<&Record>, clock: u64) -> bool {
    let (Some(kept), Some(record)) = (kept, record) else {
        return kept.is_none() && record.is_none();
    };
    let times = match &record.state {
        State::InProgress { lease_until_ms, ttl_until_ms, .. } => {
            *lease_until_ms == kept.lease_end
                && *ttl_until_ms == kept.ttl_end
                && time::left(*lease_until_ms, clock) == kept.lease_end.saturating_sub(clock)
        }
        State::Complete { expires_ms, .. } => *expires_ms == kept.ttl_end,
    };
    times && record.token.get() == kept.token
}
