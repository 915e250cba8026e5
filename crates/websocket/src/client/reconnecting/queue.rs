//! What the socket and its senders share: the unsent messages, and the state.
//!
//! 1. The lock is held for a few instructions, and never while a waker or other code of a user
//!    runs.
//! 2. A message leaves the queue when it is given to a connection. It comes back only if the
//!    connection has not taken it.
//! 3. Whoever waits leaves a waker. Each change wakes those that it concerns.

use std::{
    collections::VecDeque,
    fmt,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard},
    task::{Context, Poll, Waker},
};

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
pub(super) struct Shared {
    inner: Arc<Mutex<Inner>>,
}

struct Inner {
    limits: Limits,
    messages: VecDeque<Message>,
    bytes: usize,
    dropped: u64,
    state: ConnectionState,
    /// Counts the changes of the state.
    version: u64,
    is_ended: bool,
    /// The task that drives the socket.
    driver: Option<Waker>,
    /// Tasks that wait for room.
    senders: Vec<Waker>,
    watchers: Vec<Waker>,
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
            is_ended: false,
            driver: None,
            senders: Vec::new(),
            watchers: Vec::new(),
        };
        Self { inner: Arc::new(Mutex::new(inner)) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing panics while it is locked.
        self.inner.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub(super) fn set_limits(&self, change: impl FnOnce(&mut Limits)) {
        change(&mut self.lock().limits);
    }

    /// Queues a message, or waits for room if `context` is there. The message is taken when it is
    /// ready.
    fn poll_push(
        &self,
        message: &mut Option<Message>,
        context: Option<&mut Context<'_>>,
    ) -> Poll<Result<(), QueueError>> {
        let mut dropped = Vec::new();
        let mut inner = self.lock();
        let len = message.as_ref().map_or(0, |message| message.as_bytes().len());
        if inner.is_ended {
            return Poll::Ready(message.take().map_or(Ok(()), |it| Err(QueueError::Ended(it))));
        }
        while !inner.has_room(len) {
            match inner.limits.overflow {
                Overflow::DropOldest => {
                    dropped.extend(inner.pop());
                    inner.dropped += 1;
                }
                Overflow::Wait if context.is_some() => {
                    if let Some(context) = context {
                        register(&mut inner.senders, context);
                    }
                    return Poll::Pending;
                }
                _ => {
                    return Poll::Ready(
                        message.take().map_or(Ok(()), |it| Err(QueueError::Full(it))),
                    );
                }
            }
        }
        inner.bytes += len;
        inner.messages.extend(message.take());
        let driver = inner.driver.take();
        drop(inner);
        drop(dropped);
        driver.into_iter().for_each(Waker::wake);
        Poll::Ready(Ok(()))
    }

    /// Takes the oldest message, for a connection.
    pub(super) fn pop(&self) -> Option<Message> {
        let mut inner = self.lock();
        let message = inner.pop()?;
        let senders = std::mem::take(&mut inner.senders);
        drop(inner);
        senders.into_iter().for_each(Waker::wake);
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
        let mut inner = self.lock();
        let place = &mut inner.driver;
        if !place.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            *place = Some(context.waker().clone());
        }
    }

    pub(super) fn state(&self) -> ConnectionState {
        self.lock().state
    }

    pub(super) fn set_state(&self, state: ConnectionState) {
        let mut inner = self.lock();
        if inner.is_ended {
            return;
        }
        inner.state = state;
        inner.version += 1;
        let mut wakers = std::mem::take(&mut inner.watchers);
        if state == ConnectionState::Ended {
            inner.is_ended = true;
            wakers.append(&mut inner.senders);
        }
        drop(inner);
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Inner {
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

/// Adds the waker of a task, once.
fn register(wakers: &mut Vec<Waker>, context: &Context<'_>) {
    if !wakers.iter().any(|waker| waker.will_wake(context.waker())) {
        wakers.push(context.waker().clone());
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
        let mut message = Some(message.into());
        std::future::poll_fn(|context| self.shared.poll_push(&mut message, Some(context))).await
    }

    /// Queues a message if there is room, or as [`Overflow::DropOldest`] says.
    ///
    /// # Errors
    /// See [`QueueError`].
    pub fn try_send(&self, message: impl Into<Message>) -> Result<(), QueueError> {
        match self.shared.poll_push(&mut Some(message.into()), None) {
            Poll::Ready(result) => result,
            Poll::Pending => unreachable!("nothing waits without a context"),
        }
    }

    pub(super) fn poll_send(
        &self,
        message: &mut Option<Message>,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), QueueError>> {
        self.shared.poll_push(message, Some(context))
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
}

impl Stream for States {
    type Item = ConnectionState;

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<ConnectionState>> {
        let shared = self.shared.clone();
        let mut inner = shared.lock();
        if inner.version != self.seen {
            self.seen = inner.version;
            return Poll::Ready(Some(inner.state));
        }
        if inner.is_ended {
            return Poll::Ready(None);
        }
        register(&mut inner.watchers, context);
        Poll::Pending
    }
}

impl fmt::Debug for States {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("States").field(&self.shared.state()).finish()
    }
}
