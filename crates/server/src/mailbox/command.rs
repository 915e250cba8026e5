//! Commands of other threads to a service: a bounded mailbox, and how the loop empties it.

use std::{
    io,
    rc::Rc,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use windlass::{Reactor, Turn, interest};
use windlass_flow::{Latch, Mailbox, Sender, weighed_mailbox};
use windlass_ws::CloseCode;

use crate::{
    api::{ConnectionId, Options, OutMessage, Prepared, Stats},
    service::{NO_CONN, ServiceState},
};

/// An item in the mailbox.
pub(crate) enum WorkerCommand {
    Send {
        id: ConnectionId,
        message: Prepared,
    },
    Close {
        id: ConnectionId,
        code: CloseCode,
        reason: Box<str>,
    },
    Publish {
        topic: Arc<str>,
        message: Prepared,
    },
    /// Publications of another worker.
    ForwardedBatch(Arc<ForwardedBatch>),
}

/// Consecutive publications of another worker to one topic.
#[derive(Debug)]
pub(crate) struct ForwardedBatch {
    pub(crate) topic: Box<str>,
    pub(crate) payloads: Vec<u8>,
    /// For each publication, whether it is text, and the end of its payload.
    pub(crate) messages: Vec<(bool, usize)>,
    /// Number of bytes that it takes in a mailbox. It is at most the mailbox's capacity, so an
    /// empty mailbox has room for any message.
    pub(crate) weight: usize,
}

impl ForwardedBatch {
    fn iter(&self) -> impl Iterator<Item = OutMessage<'_>> {
        let mut start = 0;
        self.messages.iter().map(move |(is_text, end)| {
            let payload = &self.payloads[core::mem::replace(&mut start, *end)..*end];
            OutMessage::checked(*is_text, payload)
        })
    }
}

/// Number of bytes that a command takes in the mailbox, beside its slot.
fn weight_of(command: &WorkerCommand) -> usize {
    match command {
        WorkerCommand::Send { message, .. } => message.weight(),
        WorkerCommand::Publish { topic, message } => topic.len() + message.weight(),
        WorkerCommand::Close { reason, .. } => reason.len(),
        WorkerCommand::ForwardedBatch(batch) => batch.weight,
    }
}

/// State of a service that other threads share, besides its mailbox.
#[derive(Debug)]
pub(crate) struct WorkerHandle {
    latch: Arc<Latch>,
    stats: Mutex<Stats>,
    /// The requested drain time in nanoseconds, plus one; 0 if no drain was requested.
    drain: AtomicU64,
}

impl WorkerHandle {
    pub(crate) fn stats(&self) -> Stats {
        // Nothing panics while the lock is held.
        *self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_stats(&self, stats: Stats) {
        *self.stats.lock().unwrap_or_else(PoisonError::into_inner) = stats;
    }

    /// Requests a drain. This needs no room in the mailbox.
    pub(crate) fn request_drain(&self, deadline: Duration) {
        let ns = u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX - 1);
        self.drain.store(ns.saturating_add(1), Ordering::Release);
        self.latch.wake();
    }

    /// Makes the worker check the state that it shares with the others.
    pub(crate) fn wake(&self) {
        self.latch.wake();
    }

    fn take_drain_request(&self) -> Option<Duration> {
        self.drain.swap(0, Ordering::AcqRel).checked_sub(1).map(Duration::from_nanos)
    }
}

/// A mailbox that is not yet registered with a loop.
pub(crate) struct WorkerMailbox {
    pub(crate) sender: Sender<WorkerCommand>,
    pub(crate) receiver: Mailbox<WorkerCommand>,
    pub(crate) handle: Arc<WorkerHandle>,
}

impl WorkerMailbox {
    pub(crate) fn new(options: &Options) -> io::Result<Self> {
        let latch = Arc::new(Latch::new()?);
        let (sender, receiver) =
            weighed_mailbox(options.sender_bounds, Arc::clone(&latch), weight_of);
        let handle =
            WorkerHandle { latch, stats: Mutex::new(Stats::default()), drain: AtomicU64::new(0) };
        Ok(Self { sender, receiver, handle: Arc::new(handle) })
    }
}

/// Registers the mailbox with the loop.
pub(crate) fn register_mailbox(
    state: &Rc<ServiceState>,
    mailbox: Mailbox<WorkerCommand>,
    reactor: &mut Reactor,
) -> io::Result<()> {
    let state = Rc::clone(state);
    mailbox.latch().rearm();
    let edge = interest().read().edge_triggered();
    let has_edges = reactor.supports(edge);
    let wanted = if has_edges { edge } else { interest().read() };
    wanted
        .with_fd(mailbox)
        .with_handler(move |mailbox: &mut Mailbox<WorkerCommand>, mut turn: Turn<'_>| {
            if !has_edges {
                mailbox.latch().clear();
            }
            mailbox.latch().awake();
            if let Some(deadline) = state.worker.take_drain_request() {
                state.drain(&mut turn, deadline);
            }
            state.relieve_others(&mut turn);
            for command in mailbox.drain(state.options.sender_messages_per_turn) {
                state.execute(&mut turn, command);
            }
            mailbox.latch().rearm();
        })
        .register_into(reactor)?;
    Ok(())
}

impl ServiceState {
    /// Executes a command of another thread. A failure is not reported, because the connection may
    /// have gone in the meantime.
    fn execute(self: &Rc<Self>, turn: &mut Turn<'_>, command: WorkerCommand) {
        match command {
            WorkerCommand::Send { id, message } => _ = self.send_prepared(turn, id, &message),
            WorkerCommand::Close { id, code, reason } => _ = self.close(turn, id, code, &reason),
            WorkerCommand::Publish { topic, message } => {
                // Every worker receives the publication, and only one counts it.
                let is_counted = self.tables.borrow().conns.is_first_worker();
                self.stats.published.add(u64::from(is_counted));
                self.tables.borrow_mut().publish(self, turn, NO_CONN, &topic, message.to_out());
            }
            WorkerCommand::ForwardedBatch(batch) => {
                let tables = &mut *self.tables.borrow_mut();
                for message in batch.iter() {
                    tables.publish(self, turn, NO_CONN, &batch.topic, message);
                }
            }
        }
    }
}
