//! A socket that connects again.
//!
//! 1. It works while it is polled: no task and no thread of its own.
//! 2. Everything that is under way lies in the value. A future that is dropped loses nothing.
//! 3. A message is given to a connection when all before it are written. From then on it may have
//!    been sent, and is never sent again. So at most one message is cut by a failure.

mod backoff;
mod queue;

use std::{
    fmt,
    future::{Future, Ready, ready},
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_core::Stream;
use futures_sink::Sink;
use windlass_ws::CloseCode;

use super::{Client, ClientSocket, Connecting, error::ConnectError, runtime::Runtime};
use crate::{CloseFrame, Message, RecvError, SendError, timer::Timer as _};

pub use backoff::Backoff;
pub use queue::{ConnectionState, MessageSender, Overflow, QueueError, States};

use queue::{Limits, Owner, Shared};

/// Why the last connection or attempt ended.
#[derive(Debug)]
#[non_exhaustive]
pub enum LostBy {
    /// The attempt failed.
    Connect(ConnectError),
    /// The peer closed the connection cleanly.
    Closed(Option<CloseFrame>),
    /// The connection failed while receiving.
    Recv(RecvError),
    /// The connection failed while sending.
    Send(SendError),
}

impl fmt::Display for LostBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(error) => error.fmt(f),
            Self::Closed(_) => f.write_str("the peer closed the connection"),
            Self::Recv(error) => error.fmt(f),
            Self::Send(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for LostBy {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Connect(error) => Some(error),
            Self::Closed(_) => None,
            Self::Recv(error) => Some(error),
            Self::Send(error) => Some(error),
        }
    }
}

/// What a hook is told before an attempt.
#[derive(Debug)]
#[non_exhaustive]
pub struct Attempt {
    /// The number of the attempt since the last connection, from 1.
    pub number: u32,
    /// How many connections there were before.
    pub connections: u64,
    /// Why the last connection or attempt ended. `None` before the first attempt.
    pub lost_by: Option<LostBy>,
}

/// A hook's answer that ends the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopReconnecting;

/// Why a reconnecting socket has ended.
#[derive(Debug)]
#[non_exhaustive]
pub enum ReconnectError {
    /// An error that a later attempt would meet too: see [`ConnectError::is_permanent`].
    Permanent(ConnectError),
    /// [`Backoff::attempts_max`] attempts failed in succession.
    GaveUp(LostBy),
    /// The hook answered with [`StopReconnecting`].
    Stopped,
}

impl fmt::Display for ReconnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Permanent(error) => error.fmt(f),
            Self::GaveUp(error) => write!(f, "attempts_max reached; the last error: {error}"),
            Self::Stopped => f.write_str("the hook before the attempt stopped it"),
        }
    }
}

impl std::error::Error for ReconnectError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Permanent(error) => Some(error),
            Self::GaveUp(error) => Some(error),
            Self::Stopped => None,
        }
    }
}

/// The hook of a socket without one.
pub type NoHook = fn(Client, Attempt) -> Ready<Result<Client, StopReconnecting>>;

/// A WebSocket that connects again when its connection is lost. It is made by
/// [`Client::reconnecting`] or [`Client::reconnecting_on`], and connects when it is polled first.
///
/// ```no_run
/// # #[cfg(feature = "tokio")]
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// use windlass_websocket::client::Client;
///
/// let mut socket = Client::new("wss://example.com/feed").reconnecting();
/// socket.send("subscribe").await?;
/// while let Some(message) = socket.recv().await? {
///     println!("{:?}", message.as_str());
/// }
/// # Ok(())
/// # }
/// ```
///
/// - A lost connection is made again after a delay: see [`Backoff`]. An answer with a status from
///   400 to 499 ends it, but for 408 and 429, and so does TLS that cannot be configured.
/// - Unsent messages wait in a bounded queue. A message that was given to a connection may have
///   been sent, and is not sent again: let the peer acknowledge what must not be lost. The message
///   that a failure cut is kept: [`take_cut`](Self::take_cut).
/// - [`before_attempt`](Self::before_attempt) can change the request.
/// - Every future may be dropped after any poll; the next call goes on.
pub struct Reconnecting<R: Runtime, H = NoHook, F = Ready<Result<Client, StopReconnecting>>> {
    client: Client,
    runtime: R,
    timer: R::Timer,
    backoff: Backoff,
    hook: H,
    shared: Owner,
    phase: Phase<R, F>,
    /// Failures in succession.
    failures: u32,
    attempt: u32,
    connections: u64,
    /// When the connection was made.
    opened: Duration,
    /// The message that was given to the connection last, until it is written.
    writing: Option<Message>,
    cut: Option<Message>,
    /// Why the connection takes no more messages. What it has received may not be read yet.
    send_error: Option<SendError>,
    lost_by: Option<LostBy>,
    is_closing: bool,
}

enum Phase<R: Runtime, F> {
    /// The next attempt begins.
    Next,
    Hook(Pin<Box<F>>),
    Connecting(Box<Connecting<R>>),
    Open(Box<ClientSocket<R>>),
    /// Waits until this time.
    Waiting(Duration),
    Ended(Option<ReconnectError>),
}

impl Client {
    /// A socket on tokio that connects again.
    #[cfg(feature = "tokio")]
    #[must_use]
    pub fn reconnecting(self) -> Reconnecting<super::Tokio> {
        self.reconnecting_on(super::Tokio)
    }

    /// A socket on a runtime that connects again.
    #[must_use]
    pub fn reconnecting_on<R: Runtime>(self, runtime: R) -> Reconnecting<R> {
        let limits = Limits { messages_max: 256, bytes_max: 1 << 20, overflow: Overflow::Wait };
        let shared = Owner(Shared::new(limits));
        Reconnecting::new(self, runtime, Backoff::DEFAULT, |client, _| ready(Ok(client)), shared)
    }
}

impl<R, H, F> Reconnecting<R, H, F>
where
    R: Runtime,
    H: FnMut(Client, Attempt) -> F,
    F: Future<Output = Result<Client, StopReconnecting>>,
{
    fn new(client: Client, runtime: R, backoff: Backoff, hook: H, shared: Owner) -> Self {
        Self {
            client,
            timer: runtime.timer(),
            runtime,
            backoff,
            hook,
            shared,
            phase: Phase::Next,
            failures: 0,
            attempt: 0,
            connections: 0,
            opened: Duration::ZERO,
            writing: None,
            cut: None,
            send_error: None,
            lost_by: None,
            is_closing: false,
        }
    }

    /// Sets the delays between attempts.
    #[must_use]
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// Sets the limits of the queue of unsent messages, by number and by bytes of payload, and what
    /// it does beyond. A longer message is queued if it is alone. Default: 256 messages, 1 MiB,
    /// [`Overflow::Wait`].
    #[must_use]
    pub fn queue(self, messages_max: usize, bytes_max: usize, overflow: Overflow) -> Self {
        self.shared.set_limits(|limits| *limits = Limits { messages_max, bytes_max, overflow });
        self
    }

    /// Sets a hook that is called before each attempt. It gets the client, and returns it with what
    /// it has changed for this attempt: a new token, the position to resume at.
    /// [`StopReconnecting`] ends the socket. The hook has no limit of time.
    #[must_use]
    pub fn before_attempt<H2, F2>(self, hook: H2) -> Reconnecting<R, H2, F2>
    where
        H2: FnMut(Client, Attempt) -> F2,
        F2: Future<Output = Result<Client, StopReconnecting>>,
    {
        Reconnecting::new(self.client, self.runtime, self.backoff, hook, self.shared)
    }

    /// Queues messages from other tasks.
    #[must_use]
    pub fn sender(&self) -> MessageSender {
        MessageSender { shared: self.shared.0.clone() }
    }

    /// The states as a stream, for any task.
    #[must_use]
    pub fn states(&self) -> States {
        States { shared: self.shared.0.clone(), seen: 0, change: None }
    }

    /// The current state.
    #[must_use]
    pub fn state(&self) -> ConnectionState {
        self.shared.state()
    }

    /// How many messages wait in the queue.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.shared.len()
    }

    /// How many messages [`Overflow::DropOldest`] has dropped.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.shared.dropped()
    }

    /// Takes the oldest message that waits in the queue, for example after the end.
    pub fn take_queued(&mut self) -> Option<Message> {
        self.shared.pop()
    }

    /// Takes the message that a connection had not written whole when it failed. It may have been
    /// sent. Only the last one is kept.
    pub fn take_cut(&mut self) -> Option<Message> {
        self.cut.take()
    }

    /// Waits for the next message, and connects again as often as necessary. `None` is the end
    /// after [`close`](Self::close).
    ///
    /// # Errors
    /// See [`ReconnectError`]. Later calls return `None`.
    pub async fn recv(&mut self) -> Result<Option<Message>, ReconnectError> {
        std::future::poll_fn(|context| self.poll_recv(context)).await
    }

    /// Queues a message, and writes what can be written at once. If the queue is full, it does what
    /// [`Overflow`] says; waiting it drives the connection, but receives nothing: a peer that waits
    /// to be read may hold it up.
    ///
    /// If the future is dropped before it is ready, the message is not queued.
    ///
    /// # Errors
    /// See [`QueueError`].
    pub async fn send(&mut self, message: impl Into<Message>) -> Result<(), QueueError> {
        let mut push = self.sender().push(message.into());
        std::future::poll_fn(|context| {
            loop {
                let queued = Pin::new(&mut push).poll(context);
                let is_changed = matches!(self.poll_send_drive(context), Driven::Changed);
                match queued {
                    Poll::Pending if is_changed => {}
                    Poll::Ready(Ok(())) if is_changed => {
                        while matches!(self.poll_send_drive(context), Driven::Changed) {}
                        return queued;
                    }
                    _ => return queued,
                }
            }
        })
        .await
    }

    /// Waits until all messages were given to connections and written, connecting as often as
    /// necessary. It receives nothing, as [`send`](Self::send). Messages of a connection that can
    /// no longer be written to are discarded.
    ///
    /// # Errors
    /// [`QueueError::Ended`] with the oldest message that waits, if the socket has ended.
    pub async fn flush(&mut self) -> Result<(), QueueError> {
        std::future::poll_fn(|context| {
            loop {
                let driven = self.poll_send_drive(context);
                if self.writing.is_none() && self.shared.len() == 0 {
                    return Poll::Ready(Ok(()));
                }
                match driven {
                    Driven::Idle => return Poll::Pending,
                    Driven::Changed => {}
                    Driven::Ended => {
                        let message = self.shared.pop();
                        let ended = message.map_or(Ok(()), |it| Err(QueueError::Ended(it)));
                        return Poll::Ready(ended);
                    }
                }
            }
        })
        .await
    }

    /// Closes the connection if one is open, and connects no more. Messages in the queue stay
    /// there. Then call [`recv`](Self::recv) until `None`, to receive what the peer has sent before
    /// its answer.
    ///
    /// # Errors
    /// As for [`WebSocket::start_close`](crate::WebSocket::start_close).
    pub fn start_close(&mut self, code: CloseCode, reason: &str) -> Result<(), SendError> {
        match &mut self.phase {
            Phase::Open(socket) => socket.start_close(code, reason)?,
            Phase::Ended(_) => {}
            _ => self.end(None),
        }
        self.is_closing = true;
        Ok(())
    }

    /// Closes the connection as [`start_close`](Self::start_close) does, discards what the peer has
    /// sent, and waits for its answer or the end of the connection.
    ///
    /// # Errors
    /// Those of [`start_close`](Self::start_close).
    pub async fn close(&mut self, code: CloseCode, reason: &str) -> Result<(), SendError> {
        self.start_close(code, reason)?;
        while let Ok(Some(_)) = self.recv().await {}
        Ok(())
    }

    fn poll_recv(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<Message>, ReconnectError>> {
        loop {
            match self.poll_drive(context)? {
                Driven::Changed => continue,
                Driven::Ended => return Poll::Ready(Ok(None)),
                Driven::Idle => {}
            }
            let Phase::Open(socket) = &mut self.phase else { return Poll::Pending };
            match ready!(Pin::new(&mut **socket).poll_next(context)) {
                Some(Ok(message)) => return Poll::Ready(Ok(Some(message))),
                Some(Err(error)) => self.lose(LostBy::Recv(error)),
                None => {
                    let close = socket.peer_close().cloned();
                    self.lose(LostBy::Closed(close));
                }
            }
        }
    }

    /// Does what can be done without receiving.
    fn poll_drive(&mut self, context: &mut Context<'_>) -> Result<Driven, ReconnectError> {
        self.shared.register_driver(context);
        match &mut self.phase {
            Phase::Next => self.prepare(),
            Phase::Hook(future) => match future.as_mut().poll(context) {
                Poll::Pending => return Ok(Driven::Idle),
                Poll::Ready(Ok(client)) => {
                    let connecting = client.connect_on(self.runtime.clone());
                    self.phase = Phase::Connecting(Box::new(connecting));
                }
                Poll::Ready(Err(StopReconnecting)) => self.end(Some(ReconnectError::Stopped)),
            },
            Phase::Connecting(connecting) => match Pin::new(&mut **connecting).poll(context) {
                Poll::Pending => return Ok(Driven::Idle),
                Poll::Ready(Ok(socket)) => self.open(socket),
                Poll::Ready(Err(error)) if error.is_permanent() => {
                    self.end(Some(ReconnectError::Permanent(error)));
                }
                Poll::Ready(Err(error)) => self.lose(LostBy::Connect(error)),
            },
            Phase::Open(_) => return Ok(self.drive_open(context)),
            Phase::Waiting(until) => {
                if self.timer.poll_until(context, *until).is_pending() {
                    return Ok(Driven::Idle);
                }
                self.phase = Phase::Next;
            }
            Phase::Ended(error) => return error.take().map_or(Ok(Driven::Ended), Err),
        }
        Ok(Driven::Changed)
    }

    /// Drives for a caller that does not receive: a connection that cannot be written to is lost.
    fn poll_send_drive(&mut self, context: &mut Context<'_>) -> Driven {
        match self.poll_drive(context) {
            Ok(driven) => match self.send_error.take() {
                Some(error) => {
                    self.lose(LostBy::Send(error));
                    Driven::Changed
                }
                None => driven,
            },
            Err(error) => {
                // `recv` tells it.
                self.phase = Phase::Ended(Some(error));
                Driven::Ended
            }
        }
    }

    /// Writes messages while the connection takes them. An error is not the end yet: what the peer
    /// has sent before is received first.
    fn drive_open(&mut self, context: &mut Context<'_>) -> Driven {
        for _ in 0..MESSAGES_PER_POLL {
            let Phase::Open(socket) = &mut self.phase else { return Driven::Changed };
            match Sink::poll_flush(Pin::new(&mut **socket), context) {
                Poll::Pending => return Driven::Idle,
                Poll::Ready(Ok(())) => self.writing = None,
                Poll::Ready(Err(error)) => {
                    self.send_error = Some(error);
                    return Driven::Idle;
                }
            }
            if self.is_closing {
                return Driven::Idle;
            }
            let Some(message) = self.shared.pop() else { return Driven::Idle };
            match Sink::start_send(Pin::new(&mut **socket), message.clone()) {
                Ok(()) => self.writing = Some(message),
                Err(error) => {
                    self.shared.put_back(message);
                    self.send_error = Some(error);
                    return Driven::Idle;
                }
            }
        }
        context.waker().wake_by_ref();
        Driven::Idle
    }

    /// Begins an attempt.
    fn prepare(&mut self) {
        self.attempt += 1;
        self.shared.set_state(ConnectionState::Connecting { attempt: self.attempt });
        let attempt = Attempt {
            number: self.attempt,
            connections: self.connections,
            lost_by: self.lost_by.take(),
        };
        self.phase = Phase::Hook(Box::pin((self.hook)(self.client.clone(), attempt)));
    }

    fn open(&mut self, socket: ClientSocket<R>) {
        self.attempt = 0;
        self.connections += 1;
        self.opened = self.timer.now();
        self.phase = Phase::Open(Box::new(socket));
        self.shared.set_state(ConnectionState::Open { connection: self.connections });
    }

    /// A connection or an attempt has ended.
    fn lose(&mut self, by: LostBy) {
        let now = self.timer.now();
        if self.is_closing {
            return self.end(None);
        }
        let is_open = matches!(self.phase, Phase::Open(_));
        if is_open && now.saturating_sub(self.opened) >= self.backoff.stable_after {
            self.failures = 0;
        }
        self.failures = self.failures.saturating_add(1);
        self.send_error = None;
        self.cut = self.writing.take().or(self.cut.take());
        if self.backoff.attempts_max.is_some_and(|max| self.failures >= max) {
            return self.end(Some(ReconnectError::GaveUp(by)));
        }
        let mut random = [0; 4];
        (self.client.settings.config.settings().entropy)(&mut random);
        let response = match &by {
            LostBy::Connect(error) => error.response(),
            _ => None,
        };
        let random = u32::from_ne_bytes(random);
        let delay = self.backoff.delay(self.failures, random, response);
        self.lost_by = Some(by);
        self.phase = Phase::Waiting(now.saturating_add(delay));
        self.shared.set_state(ConnectionState::Waiting { failures: self.failures, delay });
    }

    fn end(&mut self, error: Option<ReconnectError>) {
        self.cut = self.writing.take().or(self.cut.take());
        self.phase = Phase::Ended(error);
        self.shared.set_state(ConnectionState::Ended);
    }
}

/// The most messages that one poll writes before it receives.
const MESSAGES_PER_POLL: usize = 32;

/// What driving has done.
enum Driven {
    /// Nothing more can be done now.
    Idle,
    /// Another phase has begun.
    Changed,
    Ended,
}

impl<R: Runtime, H, F> fmt::Debug for Reconnecting<R, H, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reconnecting")
            .field("client", &self.client)
            .field("state", &self.shared.state())
            .field("queued", &self.shared.len())
            .finish_non_exhaustive()
    }
}
