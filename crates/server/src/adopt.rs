//! Connections whose upgrade another server has answered.

use std::{borrow::Cow, os::fd::OwnedFd};

use windlass::{AddError, AddReason, Key, Reactor, Registrar};
use windlass_ws::deflate::Agreement;

use crate::{
    ConnectionId, Handler, Service,
    connection::Seat,
    driver::{Driver, Open, State},
    http::Door,
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
    /// Takes over a connected socket after its handshake, with the bytes that were received after
    /// it. [`on_open`](Handler::on_open) and the messages in these bytes follow in the next turn.
    ///
    /// The socket need not be non-blocking. It does not count towards the limit of its address.
    ///
    /// # Errors
    /// See [`AddReason`]; the error returns the socket and the data.
    /// [`LimitReached`](AddReason::LimitReached) is also returned when the service is draining.
    /// With `anyhow`, write `.map_err(io::Error::from)?`: [why](windlass::AddError#in-anyhow).
    pub fn adopt(
        &self,
        socket: impl Into<OwnedFd>,
        prefix: impl Into<Vec<u8>>,
        upgraded: Upgraded<H::Data>,
        target: &mut impl Registrar<Ops = Reactor>,
    ) -> Result<ConnectionId, AddError<(OwnedFd, H::Data)>> {
        let socket = socket.into();
        let Upgraded { data, protocol, deflate } = upgraded;
        let hall = &self.0.hall;
        // The stream has no key yet; this one refers to no stream.
        let unnamed = Key::from_bits(u64::MAX);
        let tick = hall.tick.get();
        let entered = if hall.is_draining.get() {
            None
        } else {
            hall.books.borrow_mut().roster.enter(unnamed, tick)
        };
        let Some(member) = entered else {
            return Err(AddError::new(AddReason::LimitReached, (socket, data)));
        };
        let is_packed = hall.takes_packed(deflate.as_ref());
        hall.keep_protocol(member, protocol.as_deref());
        let engine = hall.engine(deflate.as_ref());
        let seat = Seat::new(member, hall.tick.get(), engine.has_deflate());
        let mut driver = Driver::new(&self.0, None, Door::Unix);
        driver.state = State::Open(Open { engine, seat, data });
        let options = hall.options.stream();
        match options.adopt(socket, prefix, driver, target) {
            Ok(stream) => {
                hall.books.borrow_mut().roster.at(member).stream = stream;
                hall.open(member, is_packed);
                hall.note_connections();
                Ok(hall.books.borrow().roster.id(member))
            }
            Err(refused) => Err(refused.map(|(socket, driver)| (socket, driver.into_data()))),
        }
    }
}
