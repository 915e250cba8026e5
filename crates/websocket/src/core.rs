//! The part of a socket that its two halves share: the transport, the protocol's state, and the
//! output.

use std::{
    io,
    task::{Context, Poll, ready},
};

#[cfg(feature = "deflate")]
use windlass_ws::deflate::Agreement;
use windlass_ws::{CloseCode, End, Engine, MessageRef};

use crate::{
    Config, Message, Outgoing, Prepared, RecvError, Role, SendError, TimeLimit,
    error::again,
    liveness::{Due, Liveness},
    output::{FrameHead, Output, SHARED_MIN},
    shared,
    transport::Transport,
};

pub(crate) struct Core<S> {
    pub(crate) io: S,
    pub(crate) engine: Engine,
    pub(crate) output: Output,
    pub(crate) config: Config,
    role: Role,
    #[cfg(feature = "deflate")]
    agreement: Option<Agreement>,
    /// The protocol that the handshake chose.
    pub(crate) protocol: Option<Box<str>>,
    /// Nothing, while the connection is usual.
    ending: Option<Box<Ending>>,
    /// The protocol has ended, or the transport.
    is_over: bool,
    liveness: Liveness,
    /// `recv` waits until the output is written: it reads nothing before, or the protocol is over.
    pub(crate) is_reader_blocked: bool,
}

/// What ends a connection.
#[derive(Default)]
struct Ending {
    /// The code and reason of the Close frame that this side sent first, and of the peer's.
    own_close: Option<CloseFrame>,
    peer_close: Option<CloseFrame>,
    /// Writing has failed. Reading goes on, because the peer may have sent a Close frame before.
    write_error: Option<io::Error>,
    /// The end, once it was told.
    told: Option<Result<(), RecvError>>,
}

/// The contents of a Close frame. The code is `None` if the frame is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloseFrame {
    /// Why the connection is closed.
    pub code: Option<CloseCode>,
    /// The reason, for people to read.
    pub reason: String,
}

impl<S: Transport> Core<S> {
    pub(crate) fn new(io: S, config: &Config, role: Role, protocol: Option<Box<str>>) -> Self {
        let engine = Engine::new(config.engine(role));
        let liveness = Liveness::new(config.settings(), io.now());
        Self {
            io,
            engine,
            output: Output::default(),
            config: config.clone(),
            role,
            #[cfg(feature = "deflate")]
            agreement: None,
            protocol,
            ending: None,
            is_over: false,
            liveness,
            is_reader_blocked: false,
        }
    }

    /// The handshake agreed on permessage-deflate.
    #[cfg(feature = "deflate")]
    pub(crate) fn set_agreement(&mut self, agreement: Agreement) {
        let deflate = self.config.settings().deflate.unwrap_or_default();
        self.engine = Engine::with_deflate(self.config.engine(self.role), &agreement, &deflate);
        self.agreement = Some(agreement);
    }

    pub(crate) fn is_server(&self) -> bool {
        self.role == Role::Server
    }

    /// Waits until at most the high watermark waits.
    pub(crate) fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        self.check_write()?;
        let left = self.config.settings().high_watermark;
        let result = ready!(self.output.poll_drain(&mut self.io, context, left));
        Poll::Ready(self.note_write(result).map_err(SendError::Io))
    }

    /// Writes everything that waits.
    pub(crate) fn poll_drain(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = ready!(self.output.poll_drain(&mut self.io, context, 0));
        Poll::Ready(self.note_write(result))
    }

    /// Writes bytes that were not queued, when nothing is queued before them.
    #[inline]
    pub(crate) fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = ready!(self.output.poll_write_unqueued(&mut self.io, context, bytes));
        Poll::Ready(self.note_write(result))
    }

    #[inline]
    pub(crate) fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        self.check_write()?;
        let result = ready!(self.output.poll_flush(&mut self.io, context));
        Poll::Ready(self.note_write(result).map_err(SendError::Io))
    }

    /// Whether something can be sent.
    pub(crate) fn check_open(&self) -> Result<(), SendError> {
        self.check_write()?;
        if self.engine.is_closing() { Err(SendError::Closed) } else { Ok(()) }
    }

    fn check_write(&self) -> Result<(), SendError> {
        self.write_error().map_or(Ok(()), |error| Err(SendError::Io(again(error))))
    }

    fn write_error(&self) -> Option<&io::Error> {
        self.ending.as_ref()?.write_error.as_ref()
    }

    fn ending_mut(&mut self) -> &mut Ending {
        self.ending.get_or_insert_default()
    }

    /// The Close frame that this side sent first.
    pub(crate) fn own_close(&self) -> Option<&CloseFrame> {
        self.ending.as_ref()?.own_close.as_ref()
    }

    /// The peer's Close frame.
    pub(crate) fn peer_close(&self) -> Option<&CloseFrame> {
        self.ending.as_ref()?.peer_close.as_ref()
    }

    /// Whether the connection has ended, for the protocol or for the transport.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Whether something is to be done while nothing arrives.
    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        self.liveness.is_on() || self.write_error().is_some()
    }

    /// Remembers that writing failed, and discards what waits.
    fn note_write<T>(&mut self, result: io::Result<T>) -> io::Result<T> {
        result.inspect_err(|error| {
            self.ending_mut().write_error = Some(again(error));
            self.output.clear();
        })
    }

    /// Sends a message. It is written at once if the transport takes it and a context is given.
    /// What is not written waits in the output.
    pub(crate) fn send(
        &mut self,
        message: &Outgoing<'_>,
        context: Option<&mut Context<'_>>,
    ) -> Result<(), SendError> {
        self.check_open()?;
        match message {
            Outgoing::Borrowed(message) => self.send_ref(*message, context),
            Outgoing::Owned(message) => self.send_owned(message, context),
            Outgoing::Prepared(prepared) => self.send_prepared(prepared, context),
        }
    }

    /// Sends a message by way of the engine, which copies, compresses or masks it.
    pub(crate) fn send_ref(
        &mut self,
        message: MessageRef<'_>,
        context: Option<&mut Context<'_>>,
    ) -> Result<(), SendError> {
        let written = shared::with(|shared| {
            let frame = self.engine.send(message, &mut shared.scratch)?;
            write_or_queue(&mut self.io, &mut self.output, frame, context)
        });
        self.note_sent(written)
    }

    fn note_sent(&mut self, result: Result<(), SendError>) -> Result<(), SendError> {
        if let Err(SendError::Io(error)) = &result {
            self.ending_mut().write_error = Some(again(error));
            self.output.clear();
        }
        result
    }

    /// Sends a long message of a server without a copy.
    fn send_owned(
        &mut self,
        message: &Message,
        context: Option<&mut Context<'_>>,
    ) -> Result<(), SendError> {
        let bytes = message.as_bytes();
        if !self.is_server() || self.engine.has_deflate() || bytes.len() < SHARED_MIN {
            return self.send_ref(message.as_ref(), context);
        }
        let head = FrameHead::new(message.is_text(), bytes.len());
        let head = head.as_slice();
        let mut written = 0;
        if let (Some(context), true) = (context, self.output.is_empty()) {
            let result = self.output.write_frame_now(&mut self.io, context, head, bytes);
            written = self.note_write(result)?.min(head.len() + bytes.len());
        }
        if written < head.len() {
            self.output.push(&head[written..]);
            self.output.push_shared(bytes);
        } else if written < head.len() + bytes.len() {
            self.output.push_shared(&bytes.slice(written - head.len()..));
        }
        Ok(())
    }

    fn send_prepared(
        &mut self,
        prepared: &Prepared,
        context: Option<&mut Context<'_>>,
    ) -> Result<(), SendError> {
        if !self.is_server() {
            return self.send_ref(prepared.message().as_ref(), context);
        }
        let frame = prepared.frame();
        #[cfg(feature = "deflate")]
        let frame = match (prepared.deflated(), &self.agreement) {
            (Some((config, deflated)), Some(agreement)) if agreement.can_read_broadcast(config) => {
                deflated
            }
            (Some(_), Some(_)) => return self.send_ref(prepared.message().as_ref(), context),
            _ => frame,
        };
        if frame.len() < SHARED_MIN {
            let written = write_or_queue(&mut self.io, &mut self.output, frame, context);
            return self.note_sent(written);
        }
        self.output.push_shared(frame);
        Ok(())
    }

    pub(crate) fn ping(&mut self, payload: &[u8]) -> Result<(), SendError> {
        self.check_write()?;
        shared::with(|shared| {
            self.output.push(self.engine.ping(payload, &mut shared.scratch)?);
            Ok(())
        })
    }

    /// Sends a pong that no ping asked for.
    #[cfg(feature = "axum")]
    pub(crate) fn pong(&mut self, payload: &[u8]) -> Result<(), SendError> {
        self.check_write()?;
        shared::with(|shared| {
            self.output.push(self.engine.pong(payload, &mut shared.scratch)?);
            Ok(())
        })
    }

    /// Starts the closing handshake. Nothing happens if it was started before.
    pub(crate) fn start_close(&mut self, code: CloseCode, reason: &str) -> Result<(), SendError> {
        if self.engine.is_closing() {
            return Ok(());
        }
        self.check_write()?;
        shared::with(|shared| {
            self.output.push(self.engine.close(code, reason, &mut shared.scratch)?);
            Ok::<_, SendError>(())
        })?;
        self.ending_mut().own_close =
            Some(CloseFrame { code: Some(code), reason: reason.to_owned() });
        self.note_closing();
        Ok(())
    }

    /// The protocol has ended, by the peer's Close frame or by its fault.
    #[cold]
    pub(crate) fn note_protocol_end(&mut self, close: Option<CloseFrame>) {
        self.is_over = true;
        self.ending_mut().peer_close = close;
        self.note_closing();
    }

    /// Starts the time limit of the closing handshake.
    pub(crate) fn note_closing(&mut self) {
        self.liveness.note_closing(self.io.now());
    }

    pub(crate) fn note_read(&mut self) {
        if self.liveness.is_on() {
            self.liveness.note_read(self.io.now());
        }
    }

    pub(crate) fn note_message(&mut self) {
        self.liveness.note_message();
    }

    /// The end, if it was told before.
    pub(crate) fn told_end(&self) -> Option<Result<(), RecvError>> {
        self.ending.as_ref()?.told.as_ref().map(|end| match end {
            Ok(()) => Ok(()),
            Err(error) => Err(error.again()),
        })
    }

    /// Tells the end, now and in later calls.
    pub(crate) fn tell_end(&mut self, end: Result<(), RecvError>) -> Result<(), RecvError> {
        self.is_over = true;
        self.ending_mut().told = Some(match &end {
            Ok(()) => Ok(()),
            Err(error) => Err(error.again()),
        });
        end
    }

    /// Sends what is left after the protocol's end, and ends writing.
    pub(crate) fn poll_protocol_end(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), RecvError>> {
        if self.write_error().is_none() {
            match self.poll_flush(context) {
                // The peer has said all it had to, and may be gone.
                Poll::Ready(Ok(())) => match self.io.poll_shutdown(context) {
                    Poll::Ready(_) => {}
                    Poll::Pending => return self.poll_limits(context).map(Err),
                },
                Poll::Ready(Err(_)) => {}
                Poll::Pending => {
                    self.is_reader_blocked = true;
                    return self.poll_limits(context).map(Err);
                }
            }
        }
        Poll::Ready(match self.engine.end() {
            Some(End::Failed(violation)) => Err(RecvError::Violation(violation)),
            _ => Ok(()),
        })
    }

    /// Waits for the time limits, and sends the pings that are due. Call it when nothing else is to
    /// be done.
    pub(crate) fn poll_limits(&mut self, context: &mut Context<'_>) -> Poll<RecvError> {
        if let Some(error) = self.write_error() {
            return Poll::Ready(RecvError::Io(again(error)));
        }
        while let Some((deadline, due)) = self.liveness.next(self.config.settings()) {
            if self.io.now().is_some_and(|now| now < deadline)
                && self.io.poll_until(context, deadline).is_pending()
            {
                return Poll::Pending;
            }
            match due {
                Due::Ping => {
                    self.liveness.note_ping(self.io.now());
                    // It fails only if writing has, which the next call tells.
                    let _ = self.ping(&[]);
                    let _ = self.poll_flush(context);
                }
                Due::Limit(limit) => return Poll::Ready(self.end_by(limit, context)),
            }
        }
        Poll::Pending
    }

    /// Ends the connection because a limit of time is over.
    fn end_by(&mut self, limit: TimeLimit, context: &mut Context<'_>) -> RecvError {
        let reason = match limit {
            TimeLimit::Idle => "idle_timeout",
            TimeLimit::Lifetime => "lifetime_max",
            TimeLimit::Answer | TimeLimit::Close => return RecvError::TimedOut(limit),
        };
        // As far as the transport takes it at once.
        let _ = self.start_close(CloseCode::GOING_AWAY, reason);
        let _ = self.poll_flush(context);
        RecvError::TimedOut(limit)
    }

    /// Ends the connection if a limit was over when bytes were read last.
    #[inline]
    pub(crate) fn check_passed(&mut self, context: &mut Context<'_>) -> Result<(), RecvError> {
        match self.liveness.passed(self.config.settings()) {
            Some(limit) => Err(self.end_by(limit, context)),
            None => Ok(()),
        }
    }

    /// The current second of the transport's timer, or of the system's clock.
    pub(crate) fn second(&self) -> Option<u32> {
        self.io.now().or_else(crate::clock::now).map(|now| now.as_secs() as u32)
    }
}

/// Writes a frame at once if nothing waits before it, and queues the rest.
fn write_or_queue<S: Transport>(
    io: &mut S,
    output: &mut Output,
    frame: &[u8],
    context: Option<&mut Context<'_>>,
) -> Result<(), SendError> {
    let written = match context {
        Some(context) => output.write_now(io, context, frame)?,
        None => 0,
    };
    if written < frame.len() {
        output.push(&frame[written..]);
    }
    Ok(())
}
