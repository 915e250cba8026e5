//! Streams and listeners as members of a group.
//!
//! 1. A member is a stream or listener like any other. Its handler holds the state of the group
//!    ([`WithState`]), and its cell holds the group's index.
//! 2. A stream that a listener of a group accepts joins the group. A stream leaves it when it is
//!    removed, so after `on_close`.
//! 3. If the group is deleted, its listeners are deleted and its streams are closed. They are no
//!    members any more, but they hold the state until they end.

use core::marker::PhantomData;

use crate::{
    AddError, Group, Key, NotFound, Reactor,
    api::{
        group::{Admitted, GroupMember, RejectedMember},
        key::KeyKind,
    },
    cell::CellPtr,
    kernel::Kernel,
    registry::groups::Groups,
    stream::{
        Connector, Listener, ListenerKey, MemberStreamHandler, Peer, Released, ReleasedTls,
        StreamHandler, StreamTls, StreamWithFd,
        api::{member::WithState, options::StreamRegistration},
        io::{readiness::StreamCell, tls_state::OwnSession},
        parts::ReactorParts,
        state::StreamTable,
    },
    time::timing::Timing,
};

impl<S: 'static> Group<S> {
    /// Adds a connected socket as a stream with its handler.
    ///
    /// ```
    /// use std::{io::Write, os::unix::net::UnixStream};
    /// use windlass::{Group, Reactor};
    /// use windlass::stream::{Input, MemberStreamHandler, Stream, StreamOptions};
    ///
    /// struct Count;
    /// impl MemberStreamHandler<usize> for Count {
    ///     fn on_data(&mut self, bytes: &mut usize, stream: &mut Stream<'_>, input: Input<'_>) {
    ///         *bytes += input.len();
    ///         stream.turn().stop();
    ///     }
    /// }
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let (ours, mut theirs) = UnixStream::pair()?;
    /// let mut reactor = Reactor::new()?;
    /// let group = Group::new(0).stream(StreamOptions::new().with_fd(ours), Count);
    /// let key = group.register_into(&mut reactor)?.group;
    /// theirs.write_all(b"hello")?;
    /// reactor.run()?;
    /// assert_eq!(reactor.group_mut(key), Some(&mut 5));
    /// # Ok(())
    /// # }
    /// ```
    pub fn stream(self, socket: StreamWithFd, handler: impl MemberStreamHandler<S>) -> Self {
        self.member(|state| {
            let registration = socket.with_handler(WithState::new(handler, state));
            Box::new(NewStreamMember { registration, session: None })
        })
    }

    /// Adds an outgoing connection with its handler. It starts to connect when the group is
    /// registered.
    pub fn connect(self, connector: Connector, handler: impl MemberStreamHandler<S>) -> Self {
        self.member(|state| {
            let handler = WithState::new(handler, state);
            Box::new(NewConnection { connector, handler, session: None })
        })
    }

    /// Adds a listener with the closure that makes the handler of each connection. If it returns
    /// `None`, the connection is closed. The accepted streams become members of the group.
    ///
    /// [`ListenerKey::from_key`] makes the listener's key of that of the member.
    pub fn listener<H, F>(self, listener: Listener, accept: F) -> Self
    where
        H: MemberStreamHandler<S>,
        F: FnMut(&mut S, &Peer<'_>) -> Option<H> + 'static,
    {
        self.member(|state| {
            let mut accept = WithState::new(accept, state);
            let accept = move |peer: &Peer<'_>| accept.accept(peer);
            Box::new(NewListener { listener, accept, handler: PhantomData })
        })
    }
}

/// A stream that is not registered yet.
struct NewStreamMember<H> {
    registration: StreamRegistration<H>,
    /// From one registration that was tried to the next, so that its destructor, which is foreign
    /// code, runs when nothing is registered.
    session: Option<OwnSession>,
}

impl<H: StreamHandler> GroupMember<Reactor> for NewStreamMember<H> {
    fn prepare(&mut self) {
        self.session = self.registration.with.new_session();
    }

    fn admit(self: Box<Self>, reactor: &mut Reactor) -> Result<Admitted, RejectedMember<Reactor>> {
        let Self { registration, mut session } = *self;
        // Kept, because a new session can be made again.
        let sessions = match &registration.with.tls {
            Some(StreamTls::New(sessions)) => Some(StreamTls::New(sessions.clone())),
            Some(StreamTls::Released(_)) | None => None,
        };
        let options = registration.with.options.clone();
        let key = match registration.admit(&mut session, reactor) {
            Ok(key) => key,
            Err(AddError { reason, subscriber: registration }) => {
                return Err((reason, Box::new(Self { registration, session })));
            }
        };
        let withdraw = Box::new(move |reactor: &mut Reactor| {
            let (Released { socket, read_buf, tls, .. }, handler) =
                withdraw_stream::<H>(reactor, key);
            let socket = socket.expect("the registration owned it");
            let mut with = options.with_fd(socket).with_read_buf(read_buf);
            let mut session = None;
            match (sessions, tls) {
                (None, tls) => with.tls = tls.map(StreamTls::Released),
                (sessions, tls) => {
                    with.tls = sessions;
                    session = tls.map(ReleasedTls::into_session);
                }
            }
            Box::new(Self { registration: with.with_handler(handler), session }) as Box<_>
        });
        Ok(Admitted { key, withdraw })
    }
}

/// A connection attempt that has not begun.
struct NewConnection<H> {
    connector: Connector,
    handler: H,
    /// As in [`NewStreamMember`].
    session: Option<OwnSession>,
}

impl<H: StreamHandler> GroupMember<Reactor> for NewConnection<H> {
    fn prepare(&mut self) {
        self.session = self.connector.new_session();
    }

    fn admit(self: Box<Self>, reactor: &mut Reactor) -> Result<Admitted, RejectedMember<Reactor>> {
        let Self { connector, handler, mut session } = *self;
        match connector.admit(handler, &mut session, reactor) {
            Ok(key) => {
                let withdraw = Box::new(move |reactor: &mut Reactor| {
                    let (Released { tls, .. }, handler) = withdraw_stream::<H>(reactor, key);
                    let session = tls.map(ReleasedTls::into_session);
                    Box::new(Self { connector, handler, session }) as Box<_>
                });
                Ok(Admitted { key, withdraw })
            }
            Err(AddError { reason, subscriber: handler }) => {
                Err((reason, Box::new(Self { connector, handler, session })))
            }
        }
    }
}

/// A listener that is not registered yet.
struct NewListener<H, F> {
    listener: Listener,
    accept: F,
    handler: PhantomData<fn() -> H>,
}

impl<H, F> GroupMember<Reactor> for NewListener<H, F>
where
    H: StreamHandler,
    F: FnMut(&Peer<'_>) -> Option<H> + 'static,
{
    fn prepare(&mut self) {}

    fn admit(self: Box<Self>, reactor: &mut Reactor) -> Result<Admitted, RejectedMember<Reactor>> {
        let again = |(listener, accept)| Box::new(Self { listener, accept, handler: PhantomData });
        let ReactorParts { streams, kernel, .. } = reactor.parts();
        match streams.add_listener::<H, F>(kernel, self.listener, self.accept) {
            Ok(listener) => {
                let withdraw = Box::new(move |reactor: &mut Reactor| {
                    again(withdraw_listener::<H, F>(reactor, listener)) as Box<_>
                });
                Ok(Admitted { key: listener.key(), withdraw })
            }
            Err(AddError { reason, subscriber }) => Err((reason, again(subscriber))),
        }
    }
}

impl StreamTable {
    /// The cell of a member: of a descriptor, a listener or a stream.
    pub(crate) fn member_cell(&self, kernel: &Kernel, key: Key) -> Option<CellPtr> {
        match key.parts(KeyKind::Stream) {
            Some((index, generation)) => kernel.find(self.cores.get(index, generation)?.cell),
            None => kernel.find(key),
        }
    }

    /// Ends a stream or listener whose group is deleted. Runs no user code.
    pub(crate) fn end_member(
        &mut self,
        kernel: &mut Kernel,
        timing: &mut Timing,
        groups: &mut Groups,
        key: Key,
    ) {
        if let Some(index) = self.find(key) {
            self.close(kernel, index);
        } else if let Ok(slot) = self.listener_slot(ListenerKey(key)) {
            self.end_listener(kernel, timing, groups, slot, Kernel::deregister);
        }
    }

    /// [Removes](crate::Turn::remove) a listener.
    pub(crate) fn remove_listener(
        &mut self,
        kernel: &mut Kernel,
        timing: &mut Timing,
        groups: &mut Groups,
        key: Key,
    ) -> Result<(), NotFound> {
        let slot = self.listener_slot(ListenerKey(key))?;
        self.delete_listener(kernel, timing, groups, slot);
        Ok(())
    }

    /// Takes back a stream that was registered in this call.
    fn withdraw_stream<H: StreamHandler>(
        &mut self,
        kernel: &mut Kernel,
        groups: &mut Groups,
        key: Key,
    ) -> (Released, H) {
        let index = self.find(key).expect("it was registered in this call");
        let mut handler = None;
        let released = self.release_by(kernel, groups, index, |kernel, cell| {
            handler = Some(kernel.take_hidden::<StreamCell<H>>(cell).handler);
        });
        (released, handler.expect("a stream that is registered has a cell"))
    }
}

fn withdraw_stream<H: StreamHandler>(reactor: &mut Reactor, key: Key) -> (Released, H) {
    let ReactorParts { streams, kernel, groups, .. } = reactor.parts();
    streams.withdraw_stream(kernel, groups, key)
}

fn withdraw_listener<H, F>(reactor: &mut Reactor, key: ListenerKey) -> (Listener, F)
where
    H: StreamHandler,
    F: FnMut(&Peer<'_>) -> Option<H> + 'static,
{
    let ReactorParts { streams, kernel, timing, groups } = reactor.parts();
    streams.withdraw_listener::<H, F>(kernel, timing, groups, key)
}
