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
    ConnectionId, Options, OutMessage, Prepared, Stats,
    hall::{Hall, SharedHall},
    roster::NOBODY,
};

/// An item in the mailbox.
pub(crate) enum Command {
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
    Run(Arc<Run>),
}

/// Consecutive publications to one topic.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) topic: Box<str>,
    pub(crate) payloads: Vec<u8>,
    /// For each publication, whether it is text, and the end of its payload.
    pub(crate) pieces: Vec<(bool, usize)>,
    /// Number of bytes that it takes in a mailbox. It is at most the mailbox's capacity, so an
    /// empty mailbox has room for any message.
    pub(crate) weight: usize,
}

impl Run {
    fn messages(&self) -> impl Iterator<Item = OutMessage<'_>> {
        let mut start = 0;
        self.pieces.iter().map(move |(is_text, end)| {
            let payload = &self.payloads[core::mem::replace(&mut start, *end)..*end];
            OutMessage::checked(*is_text, payload)
        })
    }
}

/// Number of bytes that a command takes in the mailbox, beside its slot.
fn weigh(command: &Command) -> usize {
    match command {
        Command::Send { message, .. } => message.weight(),
        Command::Publish { topic, message } => topic.len() + message.weight(),
        Command::Close { reason, .. } => reason.len(),
        Command::Run(run) => run.weight,
    }
}

/// State of a service that other threads share, besides its mailbox.
#[derive(Debug)]
pub(crate) struct Board {
    latch: Arc<Latch>,
    stats: Mutex<Stats>,
    /// The requested drain time in nanoseconds, plus one; 0 if no drain was requested.
    drain: AtomicU64,
}

impl Board {
    pub(crate) fn stats(&self) -> Stats {
        // Nothing panics while the lock is held.
        *self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn post(&self, stats: Stats) {
        *self.stats.lock().unwrap_or_else(PoisonError::into_inner) = stats;
    }

    /// Requests a drain. This needs no room in the mailbox.
    pub(crate) fn ask_for_drain(&self, deadline: Duration) {
        let ns = u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX - 1);
        self.drain.store(ns.saturating_add(1), Ordering::Release);
        self.latch.wake();
    }

    /// Makes the worker check the state that it shares with the others.
    pub(crate) fn wake(&self) {
        self.latch.wake();
    }

    fn take_drain(&self) -> Option<Duration> {
        self.drain.swap(0, Ordering::AcqRel).checked_sub(1).map(Duration::from_nanos)
    }
}

/// A mailbox that is not yet registered with a loop.
pub(crate) struct Inbox {
    pub(crate) sender: Sender<Command>,
    pub(crate) mailbox: Mailbox<Command>,
    pub(crate) board: Arc<Board>,
}

impl Inbox {
    pub(crate) fn new(options: &Options) -> io::Result<Self> {
        let latch = Arc::new(Latch::new()?);
        let (sender, mailbox) = weighed_mailbox(options.sender_bounds, Arc::clone(&latch), weigh);
        let board = Board { latch, stats: Mutex::new(Stats::default()), drain: AtomicU64::new(0) };
        Ok(Self { sender, mailbox, board: Arc::new(board) })
    }
}

/// Registers the mailbox with the loop.
pub(crate) fn watch(
    hall: &SharedHall,
    mailbox: Mailbox<Command>,
    reactor: &mut Reactor,
) -> io::Result<()> {
    let hall = Rc::clone(hall);
    mailbox.latch().rearm();
    let edge = interest().read().edge_triggered();
    let has_edges = reactor.supports(edge);
    let wanted = if has_edges { edge } else { interest().read() };
    wanted
        .with_fd(mailbox)
        .with_handler(move |mailbox: &mut Mailbox<Command>, mut turn: Turn<'_>| {
            if !has_edges {
                mailbox.latch().clear();
            }
            mailbox.latch().awake();
            if let Some(deadline) = hall.board.take_drain() {
                hall.drain(&mut turn, deadline);
            }
            hall.help_others(&mut turn);
            for command in mailbox.drain(hall.options.sender_messages_per_turn) {
                hall.obey(&mut turn, command);
            }
            mailbox.latch().rearm();
        })
        .register_into(reactor)?;
    Ok(())
}

impl Hall {
    /// Executes a command of another thread. A failure is not reported, because the connection may
    /// have gone in the meantime.
    fn obey(self: &Rc<Self>, turn: &mut Turn<'_>, command: Command) {
        match command {
            Command::Send { id, message } => _ = self.send_prepared(turn, id, &message),
            Command::Close { id, code, reason } => _ = self.close(turn, id, code, &reason),
            Command::Publish { topic, message } => {
                // Every worker receives the publication, and only one counts it.
                let is_counted = self.books.borrow().roster.is_first_worker();
                self.stats.published.add(u64::from(is_counted));
                self.books.borrow_mut().publish(self, turn, NOBODY, &topic, message.to_out());
            }
            Command::Run(run) => {
                let books = &mut *self.books.borrow_mut();
                for message in run.messages() {
                    books.publish(self, turn, NOBODY, &run.topic, message);
                }
            }
        }
    }
}
