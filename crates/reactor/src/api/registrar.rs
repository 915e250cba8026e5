//! What takes registrations.

use crate::{
    Turn,
    api::ops::{ReactorOps, Token, sealed::Sealed},
};

/// A target for registrations: a reactor, a turn, an embedded reactor or a mock.
///
/// ```
/// use std::{io, net::TcpListener};
/// use windlass::{Key, Reactor, Registrar, interest};
///
/// /// Works with a reactor, a turn, an embedded reactor and a mock.
/// fn listen(listener: TcpListener, target: &mut impl Registrar) -> io::Result<Key> {
///     let on_ready = |listener: &mut TcpListener| drop(listener.accept());
///     Ok(interest().read().with_fd(listener).with_handler(on_ready).register_into(target)?)
/// }
///
/// # fn main() -> io::Result<()> {
/// let mut reactor = Reactor::new()?;
/// let key = listen(TcpListener::bind("127.0.0.1:0")?, &mut reactor)?;
/// reactor.delete(key)?;
/// # Ok(())
/// # }
/// ```
pub trait Registrar: Sealed {
    /// The underlying reactor type. Handlers receive a turn of it.
    type Ops: ReactorOps;

    /// Internal. Other crates cannot make a token, so no handler can reach its reactor (rule 4).
    #[doc(hidden)]
    fn with_ops<T>(&mut self, _: Token, run: impl FnOnce(&mut Self::Ops) -> T) -> T;
}

impl<R: ReactorOps> Sealed for Turn<'_, R> {}
impl<R: ReactorOps> Registrar for Turn<'_, R> {
    type Ops = R;

    fn with_ops<T>(&mut self, _: Token, run: impl FnOnce(&mut R) -> T) -> T {
        run(self.ops())
    }
}

impl<R: ReactorOps> Registrar for R {
    type Ops = R;

    fn with_ops<T>(&mut self, _: Token, run: impl FnOnce(&mut R) -> T) -> T {
        run(self)
    }
}
