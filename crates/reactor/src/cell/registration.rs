//! How a subscriber gets into its cell: [`Turn::add`], and the builder of registrations,
//! `interest() → with_fd → with_handler → register_into`. The middle two may come in either order.

use core::{any::Any, fmt, marker::PhantomData};
use std::{
    any::TypeId,
    os::fd::{AsFd, BorrowedFd},
};

use crate::{
    AddError, AddReason, Event, Interest, Key, Subscription, Turn,
    api::{
        handler_fn::HandlerFn,
        listing::bounded_name,
        ops::{ReactorOps, Subscriber, Token},
        registrar::Registrar,
    },
    util::unwind_safe_drop::UnwindSafeDrop,
};
#[cfg(feature = "sim")]
use crate::{api::ops::sim_id_of, world::SimId};

/// An [`Interest`] with a descriptor, without a handler yet.
///
/// ```
/// use std::os::unix::net::UnixStream;
/// use windlass::{Reactor, WithFd, interest};
///
/// # fn main() -> std::io::Result<()> {
/// # let (stream, _peer) = UnixStream::pair()?;
/// # let mut reactor = Reactor::new()?;
/// let with_fd: WithFd<UnixStream> = interest().read().with_fd(stream);
/// with_fd.with_handler(|_: &mut UnixStream| println!("readable")).register_into(&mut reactor)?;
/// # Ok(())
/// # }
/// ```
pub struct WithFd<Fd> {
    interest: Interest,
    fd: Fd,
}

/// An [`Interest`] with a handler, without a descriptor yet.
///
/// ```
/// use std::os::unix::net::UnixStream;
/// use windlass::{Reactor, interest};
///
/// fn on_ready(_: &mut UnixStream) {
///     println!("readable");
/// }
///
/// # fn main() -> std::io::Result<()> {
/// # let (one, other) = UnixStream::pair()?;
/// # let mut reactor = Reactor::new()?;
/// let with_handler = interest().read().with_handler(on_ready);
/// with_handler.with_fd(one).register_into(&mut reactor)?;
/// # Ok(())
/// # }
/// ```
pub struct WithHandler<F> {
    interest: Interest,
    handler: F,
}

/// A descriptor, its handler and its interest, ready to be registered.
///
/// [`try_register_into`](Self::try_register_into) returns it in its error. The caller can retry or
/// take it apart.
///
/// ```
/// use std::os::unix::net::UnixStream;
/// use windlass::{AddReason, Reactor, interest};
///
/// # fn main() -> std::io::Result<()> {
/// let (one, other) = UnixStream::pair()?;
/// let mut reactor = Reactor::builder().subscribers_max(1).build()?;
/// interest().read().with_fd(one).with_handler(|| {}).register_into(&mut reactor)?;
///
/// let second = interest().read().with_fd(other).with_handler(|| {});
/// let error = second.try_register_into(&mut reactor).unwrap_err();
/// assert_eq!(error.reason, AddReason::LimitReached);
/// let (_interest, _stream, _handler) = error.subscriber.into_parts();
/// # Ok(())
/// # }
/// ```
pub struct Registration<Fd, F> {
    interest: Interest,
    fd: UnwindSafeDrop<Fd>,
    handler: UnwindSafeDrop<F>,
    name: Option<Box<str>>,
}

impl<Fd, F> Registration<Fd, F> {
    const fn new(interest: Interest, fd: Fd, handler: F) -> Self {
        Self {
            interest,
            fd: UnwindSafeDrop::new(fd),
            handler: UnwindSafeDrop::new(handler),
            name: None,
        }
    }

    /// Names the registration, as [`Turn::set_name`] does. The name is not part of what
    /// [`into_subscription`](Self::into_subscription) makes.
    ///
    /// ```
    /// use std::os::unix::net::UnixStream;
    /// use windlass::{Reactor, interest};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// # let (queue, _guest) = UnixStream::pair()?;
    /// let mut reactor = Reactor::new()?;
    /// let queue = interest().read().with_fd(queue).with_handler(|_: &mut UnixStream| {});
    /// let key = queue.with_name("net0 tx").register_into(&mut reactor)?;
    /// let listed = reactor.registrations().find(|one| one.key == key);
    /// assert_eq!(listed.and_then(|one| one.name), Some("net0 tx"));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn with_name(mut self, name: &str) -> Self {
        self.name = bounded_name(name);
        self
    }
}

impl<R: ReactorOps> Turn<'_, R> {
    /// Registers a subscriber. It does not fire in the current turn (rule 9).
    ///
    /// # Errors
    /// The subscriber is dropped, and its descriptor with it: [`try_add`](Self::try_add) returns
    /// it.
    ///
    /// - [`AlreadyExists`](crate::AddReason::AlreadyExists): the descriptor's number is registered
    ///   already. That includes a subscriber that deleted itself and whose handler still runs.
    /// - [`LimitReached`](crate::AddReason::LimitReached): the reactor holds `subscribers_max`
    ///   subscribers.
    /// - [`InvalidInterest`](crate::AddReason::InvalidInterest): `exclusive` is combined with a
    ///   condition or mode that the kernel rejects.
    /// - [`Unsupported`](crate::AddReason::Unsupported): the backend does not support the interest.
    /// - [`BadDescriptor`](crate::AddReason::BadDescriptor): the descriptor is not open (`EBADF`).
    /// - [`NotPollable`](crate::AddReason::NotPollable): the descriptor cannot be polled, for
    ///   example a regular file (`EPERM`).
    /// - [`NestedTooDeep`](crate::AddReason::NestedTooDeep): epoll sets are nested too deep or form
    ///   a cycle (`ELOOP`).
    /// - [`Os`](crate::AddReason::Os): another error of the kernel, such as `ENOMEM` or `ENOSPC`.
    ///   `ESTALE` in a child of fork(2), because the reactor belongs to the parent.
    #[doc(alias("EPOLL_CTL_ADD", "epoll_ctl"))]
    pub fn add<S: Subscriber<R>>(&mut self, subscriber: S) -> Result<Key, AddReason> {
        self.try_add(subscriber).map_err(|e| e.reason)
    }

    /// [`add`](Self::add) with an error that returns the subscriber.
    ///
    /// # Errors
    /// The reasons of [`add`](Self::add). The error returns the subscriber with its descriptor
    /// open.
    pub fn try_add<S: Subscriber<R>>(&mut self, subscriber: S) -> Result<Key, AddError<S>> {
        add(self.ops(), subscriber)
    }
}

/// Moves a subscriber into its cell and registers it.
pub(crate) fn add<R: ReactorOps, S: Subscriber<R>>(
    reactor: &mut R,
    subscriber: S,
) -> Result<Key, AddError<S>> {
    reactor.add_cell(Subscription::new(subscriber)).map_err(|e| e.map(rejected_subscriber))
}

/// The subscriber inside a subscription that `add_cell` rejected.
fn rejected_subscriber<R: ReactorOps, S: Subscriber<R>>(subscription: Subscription<R>) -> S {
    subscription.into_inner().unwrap_or_else(|_| {
        panic!(
            "add_cell gave back another subscriber than it was given: a mock's expectation is wrong"
        )
    })
}

impl Interest {
    /// Sets the descriptor to wait for. The registration owns it and closes it when it is deleted.
    pub const fn with_fd<Fd: AsFd + 'static>(self, fd: Fd) -> WithFd<Fd> {
        WithFd { interest: self, fd }
    }

    /// Sets the handler: a function or closure that takes any ordered subset of `&mut Fd`,
    /// [`Event`], [`Interest`] and [`Turn`].
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
    /// Registers with a [`Reactor`](crate::Reactor), a [`Turn`], an [`Embedded`](crate::Embedded)
    /// reactor or a mock. If registered through a turn, it does not fire in that turn (rule 9).
    ///
    /// # Errors
    /// The registration is dropped, and its descriptor with it:
    /// [`try_register_into`](Self::try_register_into) returns it.
    ///
    /// - [`AlreadyExists`](crate::AddReason::AlreadyExists): the descriptor's number is registered
    ///   already. That includes a subscriber that deleted itself and whose handler still runs.
    /// - [`LimitReached`](crate::AddReason::LimitReached): the reactor holds `subscribers_max`
    ///   subscribers.
    /// - [`InvalidInterest`](crate::AddReason::InvalidInterest): `exclusive` is combined with a
    ///   condition or mode that the kernel rejects.
    /// - [`Unsupported`](crate::AddReason::Unsupported): the backend does not support the interest.
    /// - [`BadDescriptor`](crate::AddReason::BadDescriptor): the descriptor is not open (`EBADF`).
    /// - [`NotPollable`](crate::AddReason::NotPollable): the descriptor cannot be polled, for
    ///   example a regular file (`EPERM`).
    /// - [`NestedTooDeep`](crate::AddReason::NestedTooDeep): epoll sets are nested too deep or form
    ///   a cycle (`ELOOP`).
    /// - [`Os`](crate::AddReason::Os): another error of the kernel, such as `ENOMEM` or `ENOSPC`.
    ///   `ESTALE` in a child of fork(2), because the reactor belongs to the parent.
    pub fn register_into<G: Registrar, Args: 'static>(
        self,
        target: &mut G,
    ) -> Result<Key, AddReason>
    where
        F: HandlerFn<Fd, G::Ops, Args>,
    {
        self.try_register_into(target).map_err(|e| e.reason)
    }

    /// [`register_into`](Self::register_into) with an error that returns the registration.
    ///
    /// # Errors
    /// The reasons of [`register_into`](Self::register_into). The error returns the registration
    /// with its descriptor open.
    pub fn try_register_into<G: Registrar, Args: 'static>(
        self,
        target: &mut G,
    ) -> Result<Key, AddError<Self>>
    where
        F: HandlerFn<Fd, G::Ops, Args>,
    {
        let mut this = self;
        let name = this.name.take();
        let built = FdSubscriber::<Fd, F, Args>::new(this);
        let added = target.with_ops(Token(()), |ops| {
            let key = add(ops, built)?;
            if let Some(name) = &name {
                ops.name_key(key, name, Token(())).expect("it was registered just now");
            }
            Ok(key)
        });
        added.map_err(|e: AddError<_>| e.map(|built| Self { name, ..built.unbuild() }))
    }

    /// Converts the registration into a type-erased subscriber.
    pub fn into_subscription<R: ReactorOps, Args: 'static>(self) -> Subscription<R>
    where
        F: HandlerFn<Fd, R, Args>,
    {
        Subscription::new(FdSubscriber::<Fd, F, Args>::new(self))
    }

    /// Returns the interest, the descriptor and the handler.
    pub fn into_parts(self) -> (Interest, Fd, F) {
        (self.interest, self.fd.into_inner(), self.handler.into_inner())
    }
}

macro_rules! opaque_debug {
    ($($name:ident<$($p:ident),*> { $($field:ident),* })*) => { $(
        impl<$($p),*> fmt::Debug for $name<$($p),*> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name))
                    $(.field(stringify!($field), &self.$field))*
                    .finish_non_exhaustive()
            }
        }
    )* }
}
opaque_debug! {
    WithFd<Fd> { interest }
    WithHandler<F> { interest }
    Registration<Fd, F> { interest, name }
}

/// A registration as a subscriber. `Args` names the handler's signature.
pub(crate) struct FdSubscriber<Fd, F, Args> {
    handler: UnwindSafeDrop<F>,
    fd: UnwindSafeDrop<Fd>,
    interest: Interest,
    args: PhantomData<fn(Args)>,
}

impl<Fd, F, Args> FdSubscriber<Fd, F, Args> {
    pub(crate) fn new(registration: Registration<Fd, F>) -> Self {
        let Registration { interest, fd, handler, name: _ } = registration;
        Self { handler, fd, interest, args: PhantomData }
    }

    pub(crate) fn unbuild(self) -> Registration<Fd, F> {
        Registration { interest: self.interest, fd: self.fd, handler: self.handler, name: None }
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

    #[cfg(feature = "sim")]
    fn sim_id(&self) -> Option<SimId> {
        sim_id_of(&*self.fd)
    }

    fn into_fd(self: Box<Self>, _: Token) -> Option<Box<dyn Any>> {
        let Self { handler, fd, .. } = *self;
        // `fd` is a separate local here, so it is closed if this drop panics.
        drop(handler);
        Some(Box::new(fd.into_inner()))
    }
}
