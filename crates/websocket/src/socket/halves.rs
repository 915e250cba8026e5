//! The two halves of a socket, for two tasks.
//!
//! A transport knows one waker for each direction, and a TLS stream may write when it is read. So
//! the halves wait by one waker, which wakes both tasks, and a lock protects each single poll. A
//! call that is ready ends the wait of an earlier one: a half that has written for the other wakes
//! it.

use std::{
    fmt,
    future::poll_fn,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Wake, Waker},
};

use futures_core::Stream;
use futures_sink::Sink;
use windlass_ws::CloseCode;

use super::{Piece, Received, WebSocket, owned, received::CoreRef};
use crate::{
    CloseFrame, Message, Outgoing, RecvError, SendError, core::Core, inbox::Inbox,
    transport::Transport,
};

/// The receiving half of a socket: see [`WebSocket::split`].
///
/// It answers pings and Close frames even while the writer waits for a peer that does not read.
/// When it is dropped nothing answers them any more.
pub struct Reader<S: Transport> {
    inbox: Inbox,
    joint: Arc<Joint<S>>,
}

/// The sending half of a socket: see [`WebSocket::split`].
pub struct Writer<S: Transport> {
    joint: Arc<Joint<S>>,
}

/// The halves are not of one socket. They are given back.
pub struct ReuniteError<S: Transport>(pub Reader<S>, pub Writer<S>);

impl<S: Transport> fmt::Debug for ReuniteError<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ReuniteError").field(&self.0).field(&self.1).finish()
    }
}

impl<S: Transport> fmt::Display for ReuniteError<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the reader and the writer are halves of different sockets")
    }
}

impl<S: Transport> std::error::Error for ReuniteError<S> {}

/// What the halves share.
pub(crate) struct Joint<S> {
    core: Mutex<Core<S>>,
    tasks: Arc<Tasks>,
    /// Wakes both tasks.
    waker: Waker,
}

/// The tasks that wait.
#[derive(Default)]
struct Tasks {
    reader: Mutex<Option<Waker>>,
    writer: Mutex<Option<Waker>>,
}

impl Wake for Tasks {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        wake(&self.reader);
        wake(&self.writer);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What a panic of a transport left is as good as what an error leaves.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wake(place: &Mutex<Option<Waker>>) {
    let waker = lock(place).take();
    if let Some(waker) = waker {
        waker.wake();
    }
}

fn register(place: &Mutex<Option<Waker>>, context: &Context<'_>) {
    let mut place = lock(place);
    if !place.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
        *place = Some(context.waker().clone());
    }
}

impl<S: Transport> Joint<S> {
    /// Runs `use_it` under the lock, with a context that wakes both tasks.
    pub(crate) fn with<R>(&self, use_it: impl FnOnce(&mut Core<S>, &mut Context<'_>) -> R) -> R {
        use_it(&mut lock(&self.core), &mut Context::from_waker(&self.waker))
    }

    /// Sends by the writer. If writing fails, the reader is woken, because it ends too.
    fn send(
        &self,
        send: impl FnOnce(&mut Core<S>, &mut Context<'_>) -> Result<(), SendError>,
    ) -> Result<(), SendError> {
        let result = self.with(send);
        if let Err(SendError::Io(_)) = &result {
            wake(&self.tasks.reader);
        }
        result
    }

    fn poll_writer<R>(
        &self,
        context: &Context<'_>,
        poll: impl FnOnce(&mut Core<S>, &mut Context<'_>) -> Poll<Result<R, SendError>>,
    ) -> Poll<Result<R, SendError>> {
        register(&self.tasks.writer, context);
        let (result, reader_goes_on) = self.with(|core, context| {
            let before = (core.output.len(), core.output.has_work());
            let result = poll(core, context);
            let wrote = core.is_reader_blocked && has_written(core, before);
            core.is_reader_blocked &= !wrote;
            let failed = matches!(result, Poll::Ready(Err(SendError::Io(_))));
            (result, wrote || failed)
        });
        if reader_goes_on {
            wake(&self.tasks.reader);
        }
        result
    }
}

/// Whether less waits than before, by its length and whether there was something to do.
fn has_written<S>(core: &Core<S>, before: (usize, bool)) -> bool {
    core.output.len() < before.0 || before.1 && !core.output.has_work()
}

pub(crate) fn split<S: Transport>(inbox: Inbox, core: Core<S>) -> (Reader<S>, Writer<S>) {
    let tasks = Arc::new(Tasks::default());
    let waker = Waker::from(Arc::clone(&tasks));
    let joint = Arc::new(Joint { core: Mutex::new(core), tasks, waker });
    (Reader { inbox, joint: Arc::clone(&joint) }, Writer { joint })
}

impl<S: Transport> Reader<S> {
    /// Like [`WebSocket::recv`].
    ///
    /// # Errors
    /// As for [`WebSocket::recv`].
    pub async fn recv(&mut self) -> Result<Option<Received<'_, S>>, RecvError> {
        let found = poll_fn(|context| self.poll_found(context, false)).await?;
        Ok(found.then(|| Received::new(&mut self.inbox, CoreRef::Joint(&self.joint))))
    }

    /// Like [`WebSocket::recv_piece`].
    ///
    /// # Errors
    /// As for [`WebSocket::recv`].
    pub async fn recv_piece(&mut self) -> Result<Option<Piece<'_>>, RecvError> {
        let found = poll_fn(|context| self.poll_found(context, true)).await?;
        Ok(found.then(|| Piece::new(&mut self.inbox)))
    }

    fn poll_found(&mut self, context: &Context<'_>, pieces: bool) -> Poll<Result<bool, RecvError>> {
        let Self { inbox, joint } = self;
        register(&joint.tasks.reader, context);
        let (result, writer_goes_on) = joint.with(|core, context| {
            let before = (core.output.len(), core.output.has_work());
            inbox.set_pieces(core, pieces);
            let result = inbox.poll_next(core, context);
            if inbox.unsent_len() > 0 {
                let _ = inbox.poll_flush(core, context);
                inbox.queue_unsent(core);
            }
            let is_over = !matches!(result, Poll::Pending | Poll::Ready(Ok(true)));
            (result, is_over || has_written(core, before))
        });
        if writer_goes_on {
            wake(&joint.tasks.writer);
        }
        result
    }

    /// Puts the halves together again.
    ///
    /// # Errors
    /// The writer is not of the same socket.
    pub fn reunite(self, writer: Writer<S>) -> Result<WebSocket<S>, ReuniteError<S>> {
        if !Arc::ptr_eq(&self.joint, &writer.joint) {
            return Err(ReuniteError(self, writer));
        }
        let Self { inbox, joint } = self;
        drop(writer);
        match Arc::try_unwrap(joint) {
            Ok(joint) => {
                let core = joint.core.into_inner().unwrap_or_else(PoisonError::into_inner);
                Ok(WebSocket::from_parts(inbox, core))
            }
            Err(_) => unreachable!("a socket has one reader and one writer"),
        }
    }

    /// The peer's Close frame, if it has arrived.
    #[must_use]
    pub fn peer_close(&self) -> Option<CloseFrame> {
        self.joint.with(|core, _| core.peer_close().cloned())
    }
}

impl<S: Transport> Writer<S> {
    /// Like [`WebSocket::send`].
    ///
    /// # Errors
    /// As for [`WebSocket::send`].
    pub async fn send(&mut self, message: impl Into<Outgoing<'_>>) -> Result<(), SendError> {
        let message = message.into();
        poll_fn(|context| self.poll_ready_now(context)).await?;
        self.joint.send(|core, context| core.send(&message, Some(context)))?;
        self.flush().await
    }

    /// Like [`WebSocket::feed`].
    ///
    /// # Errors
    /// As for [`WebSocket::feed`].
    pub async fn feed(&mut self, message: impl Into<Outgoing<'_>>) -> Result<(), SendError> {
        let message = message.into();
        poll_fn(|context| self.poll_ready_now(context)).await?;
        self.joint.with(|core, _| core.send(&message, None))
    }

    /// Like [`WebSocket::flush`].
    ///
    /// # Errors
    /// As for [`WebSocket::flush`].
    pub async fn flush(&mut self) -> Result<(), SendError> {
        poll_fn(|context| self.poll_flush_now(context)).await
    }

    /// Like [`WebSocket::ping`].
    ///
    /// # Errors
    /// As for [`WebSocket::ping`].
    pub async fn ping(&mut self, payload: &[u8]) -> Result<(), SendError> {
        poll_fn(|context| self.poll_ready_now(context)).await?;
        self.joint.with(|core, _| core.ping(payload))?;
        self.flush().await
    }

    /// Sends the Close frame. The reader receives what the peer still sends, and ends when the
    /// peer has answered. Dropping the future is as for [`WebSocket::flush`].
    ///
    /// # Errors
    /// As for [`WebSocket::start_close`] and [`WebSocket::flush`].
    pub async fn close(&mut self, code: CloseCode, reason: &str) -> Result<(), SendError> {
        self.joint.with(|core, _| core.start_close(code, reason))?;
        // Its limit of time is the closing handshake's now.
        wake(&self.joint.tasks.reader);
        self.flush().await
    }

    fn poll_ready_now(&self, context: &Context<'_>) -> Poll<Result<(), SendError>> {
        self.joint.poll_writer(context, |core, context| core.poll_ready(context))
    }

    fn poll_flush_now(&self, context: &Context<'_>) -> Poll<Result<(), SendError>> {
        self.joint.poll_writer(context, |core, context| core.poll_flush(context))
    }
}

impl<S: Transport> Stream for Reader<S> {
    type Item = Result<Message, RecvError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.joint.with(|core, _| core.told_end().is_some()) {
            return Poll::Ready(None);
        }
        self.poll_found(context, false).map(|found| owned(&self.inbox, found))
    }
}

impl<S: Transport> Sink<Message> for Writer<S> {
    type Error = SendError;

    fn poll_ready(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        self.poll_ready_now(context)
    }

    fn start_send(self: Pin<&mut Self>, message: Message) -> Result<(), SendError> {
        self.joint.with(|core, _| core.send(&message.into(), None))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        self.poll_flush_now(context)
    }

    fn poll_close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        self.joint.with(|core, _| core.start_close(CloseCode::NORMAL, ""))?;
        wake(&self.joint.tasks.reader);
        self.poll_flush_now(context)
    }
}

impl<S: Transport> fmt::Debug for Reader<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").finish_non_exhaustive()
    }
}

impl<S: Transport> fmt::Debug for Writer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").finish_non_exhaustive()
    }
}
