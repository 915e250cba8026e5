//! A socket, as its owner and the task of `on_upgrade` share it.
//!
//! 1. The owner receives and sends, perhaps in two tasks, because it may split the socket.
//! 2. Sending defers the write while the task of `on_upgrade` is polled and further input lies in
//!    the buffer. The task writes after the poll what was deferred and is not written yet.
//! 3. All three wait by one waker, which wakes them all: a transport knows one waker for each
//!    direction, and whatever receives may write.
//! 4. The lock protects each single poll. No user code runs under it, except a waker that hyper
//!    wakes.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Wake, Waker, ready},
};

use atomic_waker::AtomicWaker;
use bytes::Bytes;
use windlass_ws::CloseCode;

use super::{CloseFrame, Message};
use crate::{
    Message as Whole, RecvError, SendError,
    core::Core,
    inbox::{ControlKind, Inbox},
    upgrade::UpgradedIo,
};

/// A task that waits.
#[derive(Clone, Copy)]
pub(super) enum Waiting {
    Receiver,
    Sender,
    Flusher,
}

#[derive(Default)]
struct Tasks {
    wakers: [AtomicWaker; 3],
}

impl Wake for Tasks {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.wakers.iter().for_each(AtomicWaker::wake);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What a panic of a transport left is as good as what an error leaves.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) struct Shared {
    state: Mutex<State>,
    tasks: Arc<Tasks>,
    /// Wakes all tasks.
    waker: Waker,
}

struct State {
    /// `None` when the owner has dropped the socket.
    open: Option<Open>,
    /// The task of `on_upgrade` is being polled.
    is_polled: bool,
    /// It has something to write after the poll.
    is_deferred: bool,
    /// The owner is gone. What was deferred is still written.
    is_abandoned: bool,
    is_terminated: bool,
}

struct Open {
    inbox: Inbox,
    core: Core<UpgradedIo>,
    /// What waits is written without a flush beyond this length.
    write_buffer: usize,
    has_told_close: bool,
}

impl Shared {
    pub(super) fn new(core: Core<UpgradedIo>, write_buffer: usize) -> Self {
        let tasks = Arc::<Tasks>::default();
        let inbox = Inbox::with_controls();
        let open = Some(Open { inbox, core, write_buffer, has_told_close: false });
        let state = State {
            open,
            is_polled: false,
            is_deferred: false,
            is_abandoned: false,
            is_terminated: false,
        };
        Self { state: Mutex::new(state), waker: Waker::from(Arc::clone(&tasks)), tasks }
    }

    fn register(&self, waiting: Waiting, context: &Context<'_>) {
        self.tasks.wakers[waiting as usize].register(context.waker());
    }

    pub(super) fn poll_receive(
        &self,
        context: &Context<'_>,
    ) -> Poll<Option<Result<Message, RecvError>>> {
        self.register(Waiting::Receiver, context);
        let mut state = lock(&self.state);
        let State { open: Some(open), is_terminated: false, .. } = &mut *state else {
            return Poll::Ready(None);
        };
        let received = ready!(open.poll_receive(&mut Context::from_waker(&self.waker)));
        state.is_terminated = !matches!(received, Some(Ok(_)));
        Poll::Ready(received)
    }

    pub(super) fn is_terminated(&self) -> bool {
        lock(&self.state).is_terminated
    }

    pub(super) fn poll_ready(&self, context: &Context<'_>) -> Poll<Result<(), SendError>> {
        self.register(Waiting::Sender, context);
        self.with(|open, context| open.core.poll_ready(context))
    }

    pub(super) fn send(&self, message: Message) -> Result<(), SendError> {
        let mut state = lock(&self.state);
        let defers = state.defers();
        let Some(open) = &mut state.open else { return Err(SendError::Closed) };
        open.send(message, defers, &mut Context::from_waker(&self.waker))
    }

    pub(super) fn queue(&self, message: Message) -> Result<(), SendError> {
        let mut state = lock(&self.state);
        let Some(open) = &mut state.open else { return Err(SendError::Closed) };
        open.send(message, true, &mut Context::from_waker(&self.waker))
    }

    pub(super) fn poll_flush(&self, context: &Context<'_>) -> Poll<Result<(), SendError>> {
        let mut state = lock(&self.state);
        if state.defers() {
            state.is_deferred = true;
            return Poll::Ready(Ok(()));
        }
        drop(state);
        self.register(Waiting::Sender, context);
        self.with(|open, context| open.core.poll_flush(context))
    }

    pub(super) fn start_close(&self) -> Result<(), SendError> {
        lock(&self.state)
            .open
            .as_mut()
            .map_or(Ok(()), |open| open.core.start_close(CloseCode::NORMAL, ""))
    }

    fn with(
        &self,
        poll: impl FnOnce(&mut Open, &mut Context<'_>) -> Poll<Result<(), SendError>>,
    ) -> Poll<Result<(), SendError>> {
        match &mut lock(&self.state).open {
            Some(open) => poll(open, &mut Context::from_waker(&self.waker)),
            None => Poll::Ready(Err(SendError::Closed)),
        }
    }

    /// The owner drops the socket.
    pub(super) fn abandon(&self) {
        let mut state = lock(&self.state);
        state.is_abandoned = true;
        let open = if state.is_deferred { None } else { state.open.take() };
        drop(state);
        drop(open);
    }

    /// The task of `on_upgrade` is polled until the guard is dropped.
    pub(super) fn poll_begins(&self) -> Polled<'_> {
        lock(&self.state).is_polled = true;
        Polled(self)
    }

    /// Writes what was deferred. Ready when it is written.
    pub(super) fn poll_deferred(&self, context: &Context<'_>) -> Poll<()> {
        if !lock(&self.state).is_deferred {
            return Poll::Ready(());
        }
        self.register(Waiting::Flusher, context);
        let mut state = lock(&self.state);
        if let Some(open) = &mut state.open {
            // The owner is told the error by its next call.
            let _ = ready!(open.core.poll_flush(&mut Context::from_waker(&self.waker)));
        }
        state.is_deferred = false;
        let open = if state.is_abandoned { state.open.take() } else { None };
        drop(state);
        drop(open);
        Poll::Ready(())
    }
}

pub(super) struct Polled<'a>(&'a Shared);

impl Drop for Polled<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).is_polled = false;
    }
}

impl State {
    /// Rule 2.
    fn defers(&self) -> bool {
        let has_input = |open: &Open| {
            let waiting = open.core.output.len();
            !open.inbox.unprocessed().is_empty() && waiting <= open.write_buffer
        };
        self.is_polled && self.open.as_ref().is_some_and(has_input)
    }
}

impl Open {
    fn poll_receive(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Message, RecvError>>> {
        let Self { inbox, core, .. } = self;
        match ready!(inbox.poll_next(core, context)) {
            Ok(true) => {}
            Ok(false) if self.has_told_close => return Poll::Ready(None),
            Ok(false) => {
                self.has_told_close = true;
                let frame = core.peer_close().and_then(|close| {
                    let reason = close.reason.as_str().into();
                    Some(CloseFrame { code: close.code?.get(), reason })
                });
                return Poll::Ready(Some(Ok(Message::Close(frame))));
            }
            Err(error) => return Poll::Ready(Some(Err(error))),
        }
        let message = match inbox.take_control() {
            Some((ControlKind::Ping, payload)) => Message::Ping(payload),
            Some((ControlKind::Pong, payload)) => Message::Pong(payload),
            None => match inbox.to_message() {
                Whole::Text(text) => Message::Text(text),
                Whole::Binary(bytes) => Message::Binary(bytes),
            },
        };
        Poll::Ready(Some(Ok(message)))
    }

    /// Sends a message. A queued one is written by a flush, or beyond the length of the buffer.
    fn send(
        &mut self,
        message: Message,
        is_queued: bool,
        context: &mut Context<'_>,
    ) -> Result<(), SendError> {
        let core = &mut self.core;
        let whole = |core: &mut Core<_>, message: Whole, context: &mut Context<'_>| {
            core.send(&message.into(), (!is_queued).then_some(context))
        };
        match message {
            Message::Text(text) => whole(core, Whole::Text(text), context)?,
            Message::Binary(bytes) => whole(core, Whole::Binary(bytes), context)?,
            Message::Ping(payload) => core.ping(&payload)?,
            Message::Pong(payload) => core.pong(&payload)?,
            Message::Close(frame) => {
                core.check_open()?;
                let (code, reason) = match frame {
                    Some(CloseFrame { code, reason }) => (CloseCode::new(code), reason.into()),
                    None => (CloseCode::NORMAL, Bytes::new()),
                };
                core.start_close(code, crate::utf8_bytes::checked_str(&reason))?;
            }
        }
        if core.output.len() > self.write_buffer {
            // Its error is told by the next call.
            let _ = core.poll_drain(context);
        }
        Ok(())
    }
}
