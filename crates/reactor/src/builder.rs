//! `interest() → with_fd → with_handler → register_into`, the middle two in either order.

use core::{any::Any, fmt, marker::PhantomData};
use std::{
    any::TypeId,
    os::fd::{AsFd, BorrowedFd},
};

use crate::{
    AddError, Event, Interest, Key, Reactor, Remote, RemoteAddError, Subscription, Turn,
    handler_fn::HandlerFn,
    turn::{ReactorOps, Subscriber, Token, add, sealed::Sealed},
    unwind_safe_drop::UnwindSafeDrop,
};

/// An [`Interest`] that has its descriptor and wants a handler.
pub struct WithFd<Fd> {
    interest: Interest,
    fd: Fd,
}

/// An [`Interest`] that has its handler and wants a descriptor.
pub struct WithHandler<F> {
    interest: Interest,
    handler: F,
}

/// A descriptor, its handler and what it waits for: ready to be registered.
///
/// When that fails it comes back inside the error, to be tried again or taken apart.
pub struct Registration<Fd, F> {
    interest: Interest,
    fd: UnwindSafeDrop<Fd>,
    handler: UnwindSafeDrop<F>,
}

impl<Fd, F> Registration<Fd, F> {
    const fn new(interest: Interest, fd: Fd, handler: F) -> Self {
        Self { interest, fd: UnwindSafeDrop::new(fd), handler: UnwindSafeDrop::new(handler) }
    }
}

impl Interest {
    /// Says which descriptor to wait for. The registration owns it, and closes it when it is
    /// deleted.
    pub const fn with_fd<Fd: AsFd + 'static>(self, fd: Fd) -> WithFd<Fd> {
        WithFd { interest: self, fd }
    }

    /// Says what to call: a function or closure of any ordered subset of `&mut Fd`, [`Event`],
    /// [`Interest`] and [`Turn`].
    pub const fn with_handler<F>(self, handler: F) -> WithHandler<F> {
        WithHandler { interest: self, handler }
    }
}

impl<Fd> WithFd<Fd> {
    /// See [`Interest::with_handler`].
    pub fn with_handler<F>(self, handler: F) -> Registration<Fd, F> {
        Registration::new(self.interest, self.fd, handler)
    }
}

impl<F> WithHandler<F> {
    /// See [`Interest::with_fd`].
    pub fn with_fd<Fd: AsFd + 'static>(self, fd: Fd) -> Registration<Fd, F> {
        Registration::new(self.interest, fd, self.handler)
    }
}

impl<Fd: AsFd + 'static, F> Registration<Fd, F> {
    /// Registers it with a [`Reactor`], a [`Turn`] (where it does not fire in that turn, rule 9),
    /// an [`Embedded`](crate::Embedded) reactor or a mock.
    ///
    /// # Errors
    /// See [`AddReason`](crate::AddReason); the registration comes back, the descriptor open.
    /// In `anyhow`, write `.map_err(io::Error::from)?`: [why](crate::AddError#in-anyhow).
    pub fn register_into<G: Registrar, Args: 'static>(
        self,
        target: &mut G,
    ) -> Result<Key, AddError<Self>>
    where
        F: HandlerFn<Fd, G::Ops, Args>,
    {
        let built = FdSubscriber::<Fd, F, Args>::new(self);
        target.with_ops(Token(()), |ops| add(ops, built)).map_err(|e| e.map(FdSubscriber::unbuild))
    }

    /// Registers it with a reactor of another thread, and waits for its key. See [`Remote::add`].
    ///
    /// # Errors
    /// See [`RemoteAddError`]; the registration comes back, the descriptor open.
    /// In `anyhow`, write `.map_err(io::Error::from)?`: [why](crate::AddError#in-anyhow).
    pub fn register_remotely<Args: 'static>(
        self,
        remote: &Remote,
    ) -> Result<Key, RemoteAddError<Self>>
    where
        Fd: Send,
        F: HandlerFn<Fd, Reactor, Args> + Send,
    {
        remote.add(FdSubscriber::<Fd, F, Args>::new(self)).map_err(|e| e.map(FdSubscriber::unbuild))
    }

    /// The registration as an erased subscriber.
    pub fn into_subscription<R: ReactorOps, Args: 'static>(self) -> Subscription<R>
    where
        F: HandlerFn<Fd, R, Args>,
    {
        Subscription::new(FdSubscriber::<Fd, F, Args>::new(self))
    }

    /// Takes it apart.
    pub fn into_parts(self) -> (Interest, Fd, F) {
        (self.interest, self.fd.into_inner(), self.handler.into_inner())
    }
}

macro_rules! opaque_debug {
    ($($name:ident<$($p:ident),*>),*) => { $(
        impl<$($p),*> fmt::Debug for $name<$($p),*> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name)).field("interest", &self.interest).finish_non_exhaustive()
            }
        }
    )* }
}
opaque_debug!(WithFd<Fd>, WithHandler<F>, Registration<Fd, F>);

/// A registration as a subscriber. `Args` says which of a handler's signatures it is.
struct FdSubscriber<Fd, F, Args> {
    handler: UnwindSafeDrop<F>,
    fd: UnwindSafeDrop<Fd>,
    interest: Interest,
    args: PhantomData<fn(Args)>,
}

impl<Fd, F, Args> FdSubscriber<Fd, F, Args> {
    fn new(registration: Registration<Fd, F>) -> Self {
        let Registration { interest, fd, handler } = registration;
        Self { handler, fd, interest, args: PhantomData }
    }

    fn unbuild(self) -> Registration<Fd, F> {
        Registration { interest: self.interest, fd: self.fd, handler: self.handler }
    }
}

impl<R, Fd, F, Args> Subscriber<R> for FdSubscriber<Fd, F, Args>
where
    R: ReactorOps,
    Fd: AsFd + 'static,
    F: HandlerFn<Fd, R, Args>,
    Args: 'static,
{
    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn interest(&self) -> Interest {
        self.interest
    }

    #[inline(always)]
    fn handle(&mut self, event: Event, turn: Turn<'_, R>) {
        self.handler.call(&mut self.fd, event, turn);
    }

    fn fd_type(&self, _: Token) -> Option<TypeId> {
        Some(TypeId::of::<Fd>())
    }

    fn into_fd(self: Box<Self>, _: Token) -> Option<Box<dyn Any>> {
        let Self { handler, fd, .. } = *self;
        // While the descriptor is a local of its own: should this panic, it is closed.
        drop(handler);
        Some(Box::new(fd.into_inner()))
    }
}

/// Where things can be registered: a reactor, a turn, an embedded reactor or a mock.
pub trait Registrar: Sealed {
    /// The reactor behind it, of which handlers get a turn.
    type Ops: ReactorOps;

    /// For this crate alone: a token cannot be had elsewhere, so that no handler gets at its
    /// reactor (rule 4).
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
