//! Handlers of streams that are members of a group.

#![allow(unsafe_code, reason = "the members of a group reach one state without a lock")]

use std::rc::Rc;

use crate::{
    Key, Turn,
    api::group::SharedState,
    stream::{DisconnectReason, Input, Peer, Stream, StreamHandler, Timeout},
    util::unwind_safe_drop::UnwindSafeDrop,
};

/// A [`StreamHandler`] for a stream that is a member of a [`Group`](crate::Group): each callback
/// gets the group's state as well. The handler itself owns the state of its connection.
///
/// The callbacks are those of [`StreamHandler`], in the same order and with the same defaults. If
/// the group is deleted, its streams are closed, and `on_close` still gets the state.
///
/// ```
/// use std::{io::{Read, Write}, net::TcpStream};
/// use windlass::{Group, Key, Reactor, Turn};
/// use windlass::stream::{DisconnectReason, Input, Listener, MemberStreamHandler, Stream};
///
/// struct Echo;
/// impl MemberStreamHandler<usize> for Echo {
///     fn on_data(&mut self, bytes: &mut usize, stream: &mut Stream<'_>, input: Input<'_>) {
///         *bytes += input.len();
///         let _ = stream.reply(input, ..);
///     }
///     fn on_close(&mut self, _: &mut usize, _: Key, _: DisconnectReason, mut turn: Turn<'_>) {
///         turn.stop();
///     }
/// }
///
/// # fn main() -> std::io::Result<()> {
/// let mut reactor = Reactor::new()?;
/// let listener = Listener::tcp(([127, 0, 0, 1], 0).into())?;
/// let address = listener.local_addr()?.socket_addr().expect("an IP address");
/// let echoes = Group::new(0).listener(listener, |_, _| Some(Echo));
/// let key = echoes.register_into(&mut reactor)?.group;
/// # let client = std::thread::spawn(move || {
/// let mut client = TcpStream::connect(address)?;
/// client.write_all(b"hello")?;
/// client.read_exact(&mut [0; 5])?;
/// # Ok::<_, std::io::Error>(drop(client))
/// # });
/// reactor.run()?;
/// # client.join().unwrap()?;
/// assert_eq!(reactor.group_mut(key), Some(&mut 5));
/// # Ok(())
/// # }
/// ```
pub trait MemberStreamHandler<S>: 'static {
    /// See [`StreamHandler::on_data`].
    fn on_data(&mut self, state: &mut S, stream: &mut Stream<'_>, input: Input<'_>);

    /// See [`StreamHandler::on_open`].
    fn on_open(&mut self, state: &mut S, stream: &mut Stream<'_>) {
        let _ = (state, stream);
    }

    /// See [`StreamHandler::on_end`]. Default: [`close`](Stream::close).
    fn on_end(&mut self, state: &mut S, stream: &mut Stream<'_>) {
        let _ = state;
        stream.close();
    }

    /// See [`StreamHandler::on_full`].
    fn on_full(&mut self, state: &mut S, stream: &mut Stream<'_>) {
        let _ = (state, stream);
    }

    /// See [`StreamHandler::on_drained`].
    fn on_drained(&mut self, state: &mut S, stream: &mut Stream<'_>) {
        let _ = (state, stream);
    }

    /// See [`StreamHandler::on_notify`].
    fn on_notify(&mut self, state: &mut S, stream: &mut Stream<'_>) {
        let _ = (state, stream);
    }

    /// See [`StreamHandler::on_timeout`]. Default: [`abort`](Stream::abort).
    fn on_timeout(&mut self, state: &mut S, stream: &mut Stream<'_>, timeout: Timeout) {
        let _ = (state, timeout);
        stream.abort();
    }

    /// See [`StreamHandler::on_close`].
    fn on_close(&mut self, state: &mut S, key: Key, reason: DisconnectReason, turn: Turn<'_>) {
        let _ = (state, key, reason, turn);
    }
}

/// A value of a member with the state of its group: a stream's handler, or the closure of a
/// listener.
pub(in crate::stream) struct WithState<S, V> {
    value: UnwindSafeDrop<V>,
    /// Last, so that the value is dropped before the state can be dropped.
    state: Rc<SharedState<S>>,
}

impl<S: 'static, V> WithState<S, V> {
    pub(in crate::stream) fn new(value: V, state: Rc<SharedState<S>>) -> Self {
        Self { value: UnwindSafeDrop::new(value), state }
    }

    /// Calls the value with the state, in a callback of a stream or a listener.
    fn call<T>(&mut self, call: impl FnOnce(&mut V, &mut S) -> T) -> T {
        let Self { value, state } = self;
        // SAFETY: only the drivers of streams and listeners call this. The dispatcher calls them,
        // one at a time and inside of no other handler (rule 13), so no other member's handler
        // runs. No other code can obtain one of these values: the type is private, and neither a
        // `Group` nor the reactor shows its members (protocol 2 of `api/group/state.rs`).
        unsafe { state.with_mark(|state| call(value, state)) }
    }
}

impl<S, H, F> WithState<S, F>
where
    S: 'static,
    H: MemberStreamHandler<S>,
    F: FnMut(&mut S, &Peer<'_>) -> Option<H>,
{
    /// Calls the closure of a listener. The accepted stream is a member as well.
    pub(in crate::stream) fn accept(&mut self, peer: &Peer<'_>) -> Option<WithState<S, H>> {
        let handler = self.call(|accept, state| accept(state, peer))?;
        Some(WithState::new(handler, Rc::clone(&self.state)))
    }
}

impl<S: 'static, H: MemberStreamHandler<S>> StreamHandler for WithState<S, H> {
    fn on_data(&mut self, stream: &mut Stream<'_>, input: Input<'_>) {
        self.call(|handler, state| handler.on_data(state, stream, input));
    }

    fn on_open(&mut self, stream: &mut Stream<'_>) {
        self.call(|handler, state| handler.on_open(state, stream));
    }

    fn on_end(&mut self, stream: &mut Stream<'_>) {
        self.call(|handler, state| handler.on_end(state, stream));
    }

    fn on_full(&mut self, stream: &mut Stream<'_>) {
        self.call(|handler, state| handler.on_full(state, stream));
    }

    fn on_drained(&mut self, stream: &mut Stream<'_>) {
        self.call(|handler, state| handler.on_drained(state, stream));
    }

    fn on_notify(&mut self, stream: &mut Stream<'_>) {
        self.call(|handler, state| handler.on_notify(state, stream));
    }

    fn on_timeout(&mut self, stream: &mut Stream<'_>, timeout: Timeout) {
        self.call(|handler, state| handler.on_timeout(state, stream, timeout));
    }

    fn on_close(&mut self, key: Key, reason: DisconnectReason, turn: Turn<'_>) {
        self.call(|handler, state| handler.on_close(state, key, reason, turn));
    }
}
