//! Connections whose upgrade another server has answered.

use std::{borrow::Cow, os::fd::OwnedFd, rc::Rc};

use windlass::{AddError, AddReason, Key, Reactor, Registrar};
use windlass_ws::deflate::Agreement;

use super::{
    handler::{ConnHandler, ConnPhase},
    open::Open,
};
use crate::{
    api::ConnectionId,
    handler::Handler,
    service::Service,
    table::{ConnFlags, ConnState},
};

/// A connection whose handshake was done by another server, such as an HTTP server. It states the
/// negotiated parameters.
///
/// ```
/// use windlass_server::Upgraded;
///
/// struct Player;
/// let upgraded = Upgraded::new(Player).protocol("chess");
/// ```
#[derive(Debug)]
#[must_use]
pub struct Upgraded<D> {
    data: D,
    protocol: Option<Cow<'static, str>>,
    deflate: Option<Agreement>,
}

impl<D> Upgraded<D> {
    /// Creates a connection without a subprotocol and without compression.
    pub fn new(data: D) -> Self {
        Self { data, protocol: None, deflate: None }
    }

    /// Sets the subprotocol.
    pub fn protocol(mut self, protocol: impl Into<Cow<'static, str>>) -> Self {
        self.protocol = Some(protocol.into());
        self
    }

    /// Sets the permessage-deflate agreement of the handshake response. It must result from the
    /// [`deflate`](crate::Options::deflate) settings of the service; without those it is ignored.
    pub fn deflate(mut self, agreement: Option<Agreement>) -> Self {
        self.deflate = agreement;
        self
    }
}

impl<H: Handler> Service<H> {
    /// Takes over a connected socket after its handshake. `read_buf` has the bytes that were
    /// received after it. [`on_open`](Handler::on_open) and the messages in these bytes follow in
    /// the next turn.
    ///
    /// The socket need not be non-blocking. It does not count towards the limit of its address.
    ///
    /// # Errors
    /// The socket and the data are dropped: [`try_adopt`](Self::try_adopt) returns them.
    ///
    /// - [`AddReason::LimitReached`] if the reactor has no room, or the service is draining.
    /// - [`AddReason::NotPollable`] if the descriptor is not a socket, for instance a file.
    /// - [`AddReason::AlreadyExists`] if the descriptor is registered already.
    /// - [`AddReason::Os`] with the kernel's error.
    pub fn adopt(
        &self,
        socket: impl Into<OwnedFd>,
        read_buf: impl Into<Vec<u8>>,
        upgraded: Upgraded<H::Data>,
        target: &mut impl Registrar<Ops = Reactor>,
    ) -> Result<ConnectionId, AddReason> {
        self.try_adopt(socket, read_buf, upgraded, target).map_err(|e| e.reason)
    }

    /// [`adopt`](Self::adopt) with an error that returns the socket and the data.
    ///
    /// # Errors
    /// The reasons of [`adopt`](Self::adopt). The error returns the socket and the data.
    pub fn try_adopt(
        &self,
        socket: impl Into<OwnedFd>,
        read_buf: impl Into<Vec<u8>>,
        upgraded: Upgraded<H::Data>,
        target: &mut impl Registrar<Ops = Reactor>,
    ) -> Result<ConnectionId, AddError<(OwnedFd, H::Data)>> {
        let socket = socket.into();
        let Upgraded { data, protocol, deflate } = upgraded;
        let state = &self.0.state;
        // The stream has no key yet; this one refers to no stream.
        let unnamed = Key::from_bits(u64::MAX);
        let tick = state.shared.tick();
        let entered = if state.drain.has_begun() {
            None
        } else {
            state.tables.borrow_mut().conns.insert(unnamed, tick, ConnFlags::ADOPTED)
        };
        let Some(index) = entered else {
            return Err(AddError::new(AddReason::LimitReached, (socket, data)));
        };
        let is_compressed = state.shared.takes_compressed(deflate.as_ref());
        let engine = state.shared.engine(deflate.as_ref());
        let conn = ConnState::new(index, state.shared.tick(), engine.has_deflate())
            .with_rate(state.shared.message_rates.open(index));
        let phase = ConnPhase::Open(Open { engine, conn, data });
        let handler = ConnHandler { service: Rc::clone(&self.0), phase };
        let with_fd = state.shared.options.stream().with_fd(socket).with_read_buf(read_buf);
        match with_fd.with_handler(handler).try_register_into(target) {
            Ok(stream) => {
                let tables = &mut *state.tables.borrow_mut();
                tables.conns.entry(index).stream = stream;
                tables.open(&state.shared, index, is_compressed, protocol.as_deref());
                tables.note_connections(&state.shared);
                Ok(tables.conns.id(index))
            }
            Err(rejected) => Err(rejected.map(|registration| {
                let (with_fd, handler) = registration.into_parts();
                (with_fd.into_parts().socket, handler.into_data())
            })),
        }
    }
}
