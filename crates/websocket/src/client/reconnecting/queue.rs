//! What the socket and its senders share: the unsent messages, and the state.
//!
//! 1. The lock is held for a few instructions, and never while a waker or other code of a user
//!    runs. So wakers are not kept under it.
//! 2. A message leaves the queue when it is given to a connection. It comes back only if the
//!    connection has not taken it.
//! 3. Whoever waits listens first, and then looks again. Each change tells those that it concerns.

use std::{
    collections::VecDeque,
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard},
    task::{Context, Poll, ready},
};

use atomic_waker::AtomicWaker;
use event_listener::{Event, EventListener};
use futures_core::Stream;

use crate::Message;

/// What a full queue does with one more message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overflow {
    /// `send` waits.
    #[default]
    Wait,
    /// `send` returns the message in its error.
    Refuse,
    /// The oldest message is dropped, and counted.
    DropOldest,
}

/// Where a reconnecting socket is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectionState {
    /// A connection is being made. `attempt` counts from 1 after a connection.
    Connecting {
        /// The number of the attempt.
        attempt: u32,
    },
    /// A connection is open.
    Open {
        /// The number of the connection, from 1.
        connection: u64,
    },
    /// The next attempt waits for its delay.
    Waiting {
        /// How many attempts have failed in succession.
        failures: u32,
        /// The whole delay.
        delay: std::time::Duration,
    },
    /// There is no further attempt.
    Ended,
}

/// Why a message was not queued. The message is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum QueueError {
    /// The queue is full, and [`Overflow::Refuse`] was chosen.
    Full(Message),
    /// The socket has ended.
    Ended(Message),
}

impl fmt::Display for QueueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full(_) => "the queue of unsent messages is full; raise its limits",
            Self::Ended(_) => "the socket has ended and does not connect again",
        })
    }
}

impl std::error::Error for QueueError {}

/// The limits of the queue.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    pub(super) messages_max: usize,
    pub(super) bytes_max: usize,
    pub(super) overflow: Overflow,
}

/// Shared by a socket, its senders and its states.
#[derive(Clone)]
pub(super) struct Shared(Arc<Parts>);

struct Parts {
    inner: Mutex<Inner>,
    /// The task that drives the socket.
    driver: AtomicWaker,
    /// There may be room in the queue, or the socket has ended.
    room: Event,
    /// The state has changed.
    change: Event,
}

struct Inner {
    limits: Limits,
    messages: VecDeque<Message>,
    bytes: usize,
    dropped: u64,
    state: ConnectionState,
    /// Counts the changes of the state.
    version: u64,
}

impl Shared {
    pub(super) fn new(limits: Limits) -> Self {
        let inner = Inner {
            limits,
            messages: VecDeque::new(),
            bytes: 0,
            dropped: 0,
            state: ConnectionState::Connecting { attempt: 1 },
            version: 1,
        };
        Self(Arc::new(Parts {
            inner: Mutex::new(inner),
            driver: AtomicWaker::new(),
            room: Event::new(),
            change: Event::new(),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing panics while it is locked.
        self.0.inner.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub(super) fn set_limits(&self, change: impl FnOnce(&mut Limits)) {
        change(&mut self.lock().limits);
    }

    /// Queues a message, and takes it then. `None` means that there is no room, and that it may
    /// wait for some.
    fn try_push(&self, message: &mut Option<Message>, may_wait: bool) -> Option<QueueResult> {
        let mut dropped = Vec::new();
        let mut inner = self.lock();
        let len = message.as_ref().map_or(0, |message| message.as_bytes().len());
        if inner.is_ended() {
            return Some(message.take().map_or(Ok(()), |it| Err(QueueError::Ended(it))));
        }
        while !inner.has_room(len) {
            match inner.limits.overflow {
                Overflow::DropOldest => {
                    dropped.extend(inner.pop());
                    inner.dropped += 1;
                }
                Overflow::Wait if may_wait => return None,
                _ => return Some(message.take().map_or(Ok(()), |it| Err(QueueError::Full(it)))),
            }
        }
        inner.bytes += len;
        inner.messages.extend(message.take());
        drop(inner);
        drop(dropped);
        self.0.driver.wake();
        Some(Ok(()))
    }

    /// Takes the oldest message, for a connection.
    pub(super) fn pop(&self) -> Option<Message> {
        let message = self.lock().pop()?;
        self.0.room.notify(usize::MAX);
        Some(message)
    }

    /// Puts a message back that a connection has not taken.
    pub(super) fn put_back(&self, message: Message) {
        let mut inner = self.lock();
        inner.bytes += message.as_bytes().len();
        inner.messages.push_front(message);
    }

    pub(super) fn len(&self) -> usize {
        self.lock().messages.len()
    }

    pub(super) fn dropped(&self) -> u64 {
        self.lock().dropped
    }

    /// The driver's task is woken by the next message.
    pub(super) fn register_driver(&self, context: &Context<'_>) {
        self.0.driver.register(context.waker());
    }

    pub(super) fn state(&self) -> ConnectionState {
        self.lock().state
    }

    pub(super) fn set_state(&self, state: ConnectionState) {
        let mut inner = self.lock();
        if inner.is_ended() {
            return;
        }
        inner.state = state;
        inner.version += 1;
        drop(inner);
        self.0.change.notify(usize::MAX);
        if state == ConnectionState::Ended {
            self.0.room.notify(usize::MAX);
        }
    }
}

impl Inner {
    fn is_ended(&self) -> bool {
        self.state == ConnectionState::Ended
    }

    fn has_room(&self, len: usize) -> bool {
        // A message that is longer than all of the room is queued alone.
        self.messages.is_empty()
            || (self.messages.len() < self.limits.messages_max
                && self.bytes.saturating_add(len) <= self.limits.bytes_max)
    }

    fn pop(&mut self) -> Option<Message> {
        let message = self.messages.pop_front()?;
        self.bytes -= message.as_bytes().len();
        Some(message)
    }
}

type QueueResult = Result<(), QueueError>;

/// A message on its way into the queue.
pub(super) struct Push {
    shared: Shared,
    message: Option<Message>,
    room: Option<EventListener>,
}

impl Future for Push {
    type Output = QueueResult;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<QueueResult> {
        let Self { shared, message, room } = &mut *self;
        loop {
            if let Some(result) = shared.try_push(message, true) {
                return Poll::Ready(result);
            }
            match room {
                None => *room = Some(shared.0.room.listen()),
                Some(listener) => {
                    ready!(Pin::new(listener).poll(context));
                    *room = None;
                }
            }
        }
    }
}

/// The part of the socket. With it the queue and the states end.
pub(super) struct Owner(pub(super) Shared);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.set_state(ConnectionState::Ended);
    }
}

impl std::ops::Deref for Owner {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

/// Queues messages for a reconnecting socket, from any task. Clones use the same queue.
#[derive(Clone)]
pub struct MessageSender {
    pub(super) shared: Shared,
}

impl MessageSender {
    /// Queues a message. If the queue is full, it does what [`Overflow`] says. The message is sent
    /// while the socket is polled.
    ///
    /// If the future is dropped before it is ready, the message is not queued.
    ///
    /// # Errors
    /// See [`QueueError`].
    pub async fn send(&self, message: impl Into<Message>) -> Result<(), QueueError> {
        self.push(message.into()).await
    }

    /// Queues a message if there is room, or as [`Overflow::DropOldest`] says.
    ///
    /// # Errors
    /// See [`QueueError`].
    pub fn try_send(&self, message: impl Into<Message>) -> Result<(), QueueError> {
        let result = self.shared.try_push(&mut Some(message.into()), false);
        result.expect("it does not wait")
    }

    pub(super) fn push(&self, message: Message) -> Push {
        Push { shared: self.shared.clone(), message: Some(message), room: None }
    }
}

impl fmt::Debug for MessageSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MessageSender").field("queued", &self.shared.len()).finish_non_exhaustive()
    }
}

/// The states of a reconnecting socket, as a stream. It yields the current state and each later
/// one. A state that was over before the stream was polled is skipped: nothing is queued. It ends
/// behind [`ConnectionState::Ended`].
pub struct States {
    pub(super) shared: Shared,
    /// The version that was yielded last.
    pub(super) seen: u64,
    pub(super) change: Option<EventListener>,
}

impl Stream for States {
    type Item = ConnectionState;

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<ConnectionState>> {
        let Self { shared, seen, change } = &mut *self;
        loop {
            let Inner { state, version, .. } = *shared.lock();
            if version != *seen {
                *seen = version;
                return Poll::Ready(Some(state));
            }
            if state == ConnectionState::Ended {
                return Poll::Ready(None);
            }
            match change {
                None => *change = Some(shared.0.change.listen()),
                Some(listener) => {
                    ready!(Pin::new(listener).poll(context));
                    *change = None;
                }
            }
        }
    }
}

impl fmt::Debug for States {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("States").field(&self.shared.state()).finish()
    }
}
