//! The handle to a registered listener.

use core::fmt;
use std::io;

use crate::{
    Errno, NotFound, Reactor, Turn,
    stream::{
        Address, ListenerKey, Stream, listen::accept::ListenerState, parts::ReactorParts,
        state::StreamCore, status::StreamPhase,
    },
};

/// A registered listener, returned by [`Turn::listener`] and [`Reactor::listener`].
///
/// ```
/// use windlass::{Reactor, stream::Listener};
/// # use windlass::stream::{Input, Stream, StreamHandler};
/// # struct Echo;
/// # impl StreamHandler for Echo {
/// #     fn on_data(&mut self, stream: &mut Stream<'_>, input: Input<'_>) {
/// #         let _ = stream.reply(input, ..);
/// #     }
/// # }
///
/// # fn main() -> std::io::Result<()> {
/// let mut reactor = Reactor::new()?;
/// let listener = Listener::tcp("127.0.0.1:0".parse().unwrap())?;
/// let key = listener.with_handler(|_| Some(Echo)).register_into(&mut reactor)?;
///
/// let mut listening = reactor.listener(key)?;
/// assert_eq!(listening.connections(), 0);
/// listening.pause();
/// assert_eq!(listening.close_handshakes(), 0);
/// listening.delete();
/// assert!(reactor.listener(key).is_err());
/// # Ok(())
/// # }
/// ```
pub struct Listening<'a> {
    pub(super) reactor: &'a mut Reactor,
    pub(super) slot: u32,
}

impl fmt::Debug for Listening<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listening").finish_non_exhaustive()
    }
}

impl<'a> Listening<'a> {
    /// See [`Turn::listener`].
    pub(crate) fn find(reactor: &'a mut Reactor, key: ListenerKey) -> Result<Self, NotFound> {
        let slot = reactor.streams().listener_slot(key)?;
        Ok(Self { reactor, slot })
    }
}

impl Listening<'_> {
    fn state(&self) -> &ListenerState {
        self.reactor.streams().listeners[self.slot as usize]
            .as_ref()
            .expect("a listener that was found has a state")
    }

    /// The address of the listener.
    ///
    /// # Errors
    /// The errors of getsockname(2).
    #[doc(alias = "getsockname")]
    pub fn local_addr(&self) -> io::Result<Address> {
        self.state().socket.as_ref().ok_or(Errno::BADF)?.local_addr()
    }

    /// The number of its accepted streams that are open.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.state().open
    }

    /// The number of connections that were accepted and got a handler.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        self.state().accepted
    }

    /// The number of connections that the closure has rejected.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.state().refused
    }

    /// True while accepting is suspended for lack of a descriptor or memory, or because the [shared
    /// limit](crate::stream::Listener::limited) is reached.
    #[must_use]
    pub fn is_resting(&self) -> bool {
        self.state().is_resting
    }

    /// How often the number of open streams has reached
    /// [`connections_max`](crate::stream::ListenOptions::connections_max) or the [shared
    /// limit](crate::stream::Listener::limited), so that further connections had to wait.
    #[must_use]
    pub fn limits_reached(&self) -> u64 {
        self.state().limited
    }

    /// How often accepting was suspended for lack of a descriptor, of memory, or of a place for a
    /// subscriber.
    #[must_use]
    pub fn rests(&self) -> u64 {
        self.state().rests
    }

    /// The kernel's error at the last suspension. `None` if there was none, or if the reactor had
    /// reached its limit of subscribers.
    #[must_use]
    pub fn rest_reason(&self) -> Option<Errno> {
        self.state().rest_reason
    }

    /// Stops accepting until [`resume`](Self::resume). Connections wait in the kernel's backlog.
    pub fn pause(&mut self) {
        self.set_paused(true);
    }

    /// Accepts again.
    pub fn resume(&mut self) {
        self.set_paused(false);
    }

    /// Changes the maximum number of its open streams:
    /// [`ListenOptions::connections_max`](crate::stream::ListenOptions::connections_max). Streams
    /// beyond a lower one stay open.
    pub fn set_connections_max(&mut self, streams: usize) {
        let ReactorParts { streams: table, kernel, .. } = self.reactor.parts();
        table.listener_state(self.slot).options.connections_max = streams;
        table.sync_listener(kernel, self.slot);
    }

    fn set_paused(&mut self, is_paused: bool) {
        let ReactorParts { streams, kernel, .. } = self.reactor.parts();
        streams.listener_state(self.slot).is_paused = is_paused;
        streams.sync_listener(kernel, self.slot);
    }

    /// Closes its connections whose TLS handshake is not over, and returns their number. Their
    /// handlers' [`on_close`](crate::stream::StreamHandler::on_close) follows in the next turn. For
    /// a shutdown: it looks at all streams of the reactor.
    pub fn close_handshakes(&mut self) -> usize {
        let slot = self.slot;
        let is_one = |core: &StreamCore| {
            let (status, is_own) = (core.status, core.listener == slot);
            let is_early = status.is(StreamPhase::New) || status.is(StreamPhase::Handshake);
            is_own && is_early && status.has_tls()
        };
        let cores = self.reactor.streams().cores.iter();
        let pending: Vec<u32> =
            cores.filter(|(.., core)| is_one(core)).map(|(index, ..)| index).collect();
        for index in &pending {
            Stream { reactor: self.reactor, index: *index }.close();
        }
        pending.len()
    }

    /// Stops listening and closes the socket. Connections in the backlog are reset; accepted
    /// streams stay open. The closure is dropped at once.
    ///
    /// # Panics
    /// With the panic of the closure's destructor. The socket is closed.
    pub fn delete(self) {
        let ReactorParts { streams, kernel, timing, groups } = self.reactor.parts();
        streams.delete_listener(kernel, timing, groups, self.slot);
    }
}

impl Turn<'_> {
    /// Finds a listener by its key.
    ///
    /// # Errors
    /// [`NotFound`] if it was deleted.
    pub fn listener(&mut self, key: ListenerKey) -> Result<Listening<'_>, NotFound> {
        Listening::find(self.ops(), key)
    }
}
