//! A client's connection: many requests in flight, answers in any order.
//!
//! A command that needs nothing but its place in the log, or one read, is handed to the proposer or
//! to the read index as soon as it comes, and waits in a table ([`Pending`]); every other request
//! has a task of its own.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_api::Refusal;
use tenure_api::frame::{Ask, ClientFrame, Decided, IN_FLIGHT, Reply, Request, ServerFrame};
use tenure_client::wire::{self, Frames};
use tenure_client::{ReadHalf, WriteHalf};
use tenure_state_machine::Command;
use tokio::io::AsyncWriteExt;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::task::{AbortHandle, JoinSet, yield_now};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::local::{self, Deadlines, Way};
use crate::metrics::command_name;
use crate::pending::{Pending, Waiting};
use crate::propose::{Asker, ProposeError};
use crate::read_index::Reader;
use crate::route::{Reach, Router, said};
use crate::socket;

/// Bytes of answers that a client may leave unread; beyond, it is hung up on.
const UNREAD_BYTES: usize = 64 * 1024 * 1024;
/// For a client to hang up after a connection was drained.
const LINGER: Duration = Duration::from_secs(1);
/// Bytes of the outgoing buffer that are kept after a large write.
const KEPT_BYTES: usize = 256 * 1024;

/// What the requests of one connection share.
#[derive(Debug)]
struct Client {
    router: Arc<Router>,
    pending: Pending,
    /// Frames on their way out.
    out: Mutex<Vec<u8>>,
    /// There is something in `out`, or nothing will be any more.
    more: Notify,
    /// Everything is answered, and the connection ends when that is written.
    ending: AtomicBool,
}

/// Serves until the client hangs up; then waiters leave their queues, and proposals that are not
/// on their way yet are withdrawn. Once `drain` is cancelled no more requests are read, those in
/// flight are answered, and the connection ends.
pub(crate) async fn serve(
    frames: Frames<ReadHalf>,
    write: WriteHalf,
    router: Arc<Router>,
    drain: CancellationToken,
) -> io::Result<()> {
    let client = Arc::new(Client {
        router,
        pending: Pending::default(),
        out: Mutex::default(),
        more: Notify::new(),
        ending: AtomicBool::new(false),
    });
    let _end = End(&client);
    let reading = async {
        tokio::select! {
            read = read_requests(Arc::clone(&client), frames, drain) => read,
            never = client.answer_overdue() => never,
        }
    };
    let writing = client.write_answers(write);
    tokio::pin!(reading, writing);
    let mut frames = tokio::select! {
        drained = &mut reading => drained?,
        ended = &mut writing => return ended.map(drop),
    };
    client.ending.store(true, Ordering::Release);
    client.more.notify_one();
    let mut write = writing.await?;
    write.shutdown().await?;
    // Closed with something unread, the socket would be reset, and the client might lose answers.
    let unread = async { while frames.next().await.is_ok() {} };
    drop(timeout(LINGER, unread).await);
    Ok(())
}

async fn read_requests(
    client: Arc<Client>,
    mut frames: Frames<ReadHalf>,
    drain: CancellationToken,
) -> io::Result<Frames<ReadHalf>> {
    let places = Arc::new(Semaphore::new(IN_FLIGHT));
    let mut requests = JoinSet::new();
    let mut waiting: HashMap<u64, AbortHandle> = HashMap::new();
    loop {
        let frame = tokio::select! {
            frame = socket::next(&mut frames) => frame?,
            () = drain.cancelled() => break,
        };
        match frame {
            ClientFrame::Request(request) => {
                // Only a request waits for a place: cancellations, and the connection's end, are
                // noticed behind any number of waiters.
                let place = Arc::clone(&places).acquire_owned().await.map_err(io::Error::other)?;
                let Some((request, place)) = client.hand_over(request, place) else { continue };
                let (id, waits) = (request.id, waits(&request.ask));
                let client = Arc::clone(&client);
                let task = requests.spawn(async move {
                    let _place = place;
                    client.answer(request).await;
                });
                if waits {
                    if waiting.len() >= IN_FLIGHT {
                        waiting.retain(|_, task| !task.is_finished());
                    }
                    waiting.insert(id, task);
                }
            }
            ClientFrame::Cancel { id } => {
                if let Some(task) = waiting.remove(&id) {
                    task.abort();
                }
            }
        }
        while requests.try_join_next().is_some() {}
    }
    while requests.join_next().await.is_some() {}
    client.pending.emptied().await;
    Ok(frames)
}

/// Whether a request may stand in a queue, which a cancellation must end.
fn waits(ask: &Ask) -> bool {
    match ask {
        Ask::Command { wait_ms, .. } => *wait_ms > 0,
        Ask::Wait { .. } => true,
        Ask::Batch(_) | Ask::Get { .. } | Ask::List(_) | Ask::Change(_) => false,
    }
}

fn reach(forwarded: bool) -> Reach {
    if forwarded { Reach::Forwarded } else { Reach::Cluster }
}

/// The connection ends: nobody waits for its requests any more.
struct End<'a>(&'a Client);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.pending.close();
    }
}

/// A request in the table, to the proposer.
struct Ticket {
    client: Arc<Client>,
    number: u64,
}

impl Asker for Ticket {
    fn claim(&self) -> bool {
        self.client.pending.claim(self.number)
    }

    fn answer(self: Box<Self>, outcome: Result<Vec<Decided>, ProposeError>, its: &[Command]) {
        match (outcome, its) {
            (Err(ProposeError::NotLeader), [command]) => self.seek(command.clone()),
            (Ok(decided), _) => {
                // One command has one answer; without it the outcome is not known.
                let decided = decided.into_iter().next().ok_or(Refusal::OutcomeUnknown);
                self.client.conclude(self.number, decided);
            }
            (Err(error), _) => self.client.conclude(self.number, Err(local::refused(error))),
        }
    }
}

/// A request in the table, to the read index.
struct Look {
    ticket: Ticket,
    command: Command,
}

impl Reader for Look {
    fn waits(&self) -> bool {
        self.ticket.client.pending.waits(self.ticket.number)
    }

    fn told(self: Box<Self>, confirmed: bool) {
        let Self { ticket, command } = *self;
        let local = &ticket.client.router.local;
        let settled = if confirmed { local.settled_by_read(&command) } else { Ok(None) };
        match settled {
            Ok(Some(decided)) => ticket.client.conclude(ticket.number, Ok(decided)),
            // It takes more than a read, here or elsewhere.
            Ok(None) | Err(_) => ticket.seek(command),
        }
    }
}

impl Ticket {
    /// Asks whoever leads now, as a request with a task would have.
    fn seek(&self, command: Command) {
        let Some((deadline, reach)) = self.client.pending.get(self.number) else { return };
        let (client, number) = (Arc::clone(&self.client), self.number);
        let task = tokio::spawn(async move {
            let ask = Ask::Command { command, wait_ms: 0 };
            let left = deadline.saturating_duration_since(Instant::now());
            let reply = client.router.ask(ask, left, reach).await;
            if let Some(waiting) = client.pending.take(number) {
                client.push(waiting.id, reply);
            }
        });
        self.client.pending.sought(self.number, task.abort_handle());
    }
}

impl Client {
    async fn answer(&self, request: Request) {
        let Request { id, budget_ms, forwarded, ask } = request;
        let budget = Duration::from_millis(budget_ms);
        let reply = match ask.check() {
            Ok(()) => self.router.ask(ask, budget, reach(forwarded)).await,
            Err(refusal) => Err(refusal),
        };
        self.push(id, reply);
    }

    /// Hands a command to the proposer or to the read index, if it needs nothing but that; gives it
    /// back otherwise.
    fn hand_over(
        self: &Arc<Self>,
        request: Request,
        place: OwnedSemaphorePermit,
    ) -> Option<(Request, OwnedSemaphorePermit)> {
        let way = self.router.short_way(&request.ask);
        let (way, room, command) = match (way, request.ask) {
            (Some((way, room)), Ask::Command { command, .. }) => (way, room, command),
            (_, ask) => return Some((Request { ask, ..request }, place)),
        };
        let Request { id, budget_ms, forwarded, .. } = request;
        let reach = reach(forwarded);
        let budget = Duration::from_millis(budget_ms);
        let deadline = Deadlines::new(0, budget, self.router.request_timeout).answer;
        let operation = command_name(&command);
        let _permits = [place, room];
        let number = self.pending.insert(Waiting { id, deadline, reach, operation, _permits });
        let ticket = Ticket { client: Arc::clone(self), number };
        let local = &self.router.local;
        match way {
            Way::Log => local.proposer.submit(vec![command], Box::new(ticket)),
            Way::Read => local.read_index.ask(Box::new(Look { ticket, command })),
        }
        None
    }

    fn conclude(&self, number: u64, decided: Result<Decided, Refusal>) {
        if let Some(waiting) = self.pending.take(number) {
            self.settle(&waiting, decided);
        }
    }

    fn settle(&self, waiting: &Waiting, decided: Result<Decided, Refusal>) {
        let decided = decided.map_err(said);
        if waiting.reach != Reach::Forwarded {
            self.router.metrics.settled(waiting.operation, decided.as_ref());
        }
        self.push(waiting.id, decided.map(Reply::Answer));
    }

    /// Answers each request whose time is up with what can be said of it then.
    async fn answer_overdue(&self) -> ! {
        loop {
            for (waiting, why) in self.pending.overdue().await {
                self.settle(&waiting, Err(local::refused(why)));
            }
        }
    }

    fn push(&self, id: u64, reply: Result<Reply, Refusal>) {
        let leader = self.router.other_leader();
        let frame = ServerFrame { id, leader, reply };
        let mut out = self.out();
        if wire::push(&mut out, &frame).is_err() {
            // The answer is larger than a frame: its payloads stay, the caller may get them alone.
            let size = u64::MAX;
            let limit = u64::try_from(tenure_api::frame::FRAME_BYTES).unwrap_or(u64::MAX);
            let reply = Err(Refusal::PayloadTooLarge { limit, size });
            drop(wire::push(&mut out, &ServerFrame { reply, ..frame }));
        }
        drop(out);
        self.more.notify_one();
    }

    fn out(&self) -> MutexGuard<'_, Vec<u8>> {
        self.out.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes what has gathered, again and again, until everything is answered and written.
    async fn write_answers(&self, mut write: WriteHalf) -> io::Result<WriteHalf> {
        let mut bytes = Vec::new();
        loop {
            self.more.notified().await;
            // Answers of one entry come together: one write takes them all.
            yield_now().await;
            std::mem::swap(&mut bytes, &mut *self.out());
            let stalled = async {
                // While the client does not read, its answers pile up.
                loop {
                    self.more.notified().await;
                    if self.out().len() > UNREAD_BYTES {
                        return;
                    }
                }
            };
            tokio::select! {
                written = write.write_all(&bytes) => written?,
                () = stalled => return Err(io::Error::other("the client does not read")),
            }
            bytes.clear();
            bytes.shrink_to(KEPT_BYTES);
            // A wake-up may have been spent on looking at the pile.
            match (self.out().is_empty(), self.ending.load(Ordering::Acquire)) {
                (false, _) => self.more.notify_one(),
                (true, true) => return Ok(write),
                (true, false) => {}
            }
        }
    }
}
