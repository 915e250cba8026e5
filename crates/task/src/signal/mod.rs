//! Signals of the operating system (signal(7)).
//!
//! ```
//! use windlass_task::{block_on, signal::{Signal, Signals}};
//!
//! # fn main() -> std::io::Result<()> {
//! block_on(async {
//!     let mut signals = Signals::new([Signal::INT, Signal::TERM])?;
//! #   nix::sys::signal::raise(nix::sys::signal::SIGTERM)?;
//!     println!("stopped by {:?}", signals.recv().await?);
//!     Ok(())
//! })
//! # }
//! ```
//!
//! # Rules for all of it
//!
//! - *Threads.* Listening for a signal blocks it for the executor's thread. **A signal sent to the
//!   process is delivered to any thread that does not block it**, with its usual effect. So make
//!   the first [`Signals`] in `block_on`, before other threads start: they inherit the mask. That
//!   includes the threads of [`spawn_blocking`](crate::spawn_blocking()). Block the signals in
//!   threads that run already.
//! - *Coalescing.* Equal signals that arrive before they are read count as one. A listener is told
//!   that a signal came, not how often. After `SIGCHLD`, wait for children until there are no more.
//! - *Listeners.* Any number may listen for one signal, on any executors of the process. Each is
//!   told of each signal that came after it was made. The kernel gives a signal to one thread. The
//!   executor of that thread tells the listeners of all, also if the signal was sent to the thread
//!   alone. A waker of [`Signals::poll_recv`] that panics costs its own listener alone.
//! - *The end.* When an executor's last listener for a signal is dropped, the signal is unblocked
//!   for its thread, if it was not blocked before. Instances that are pending are told to the
//!   listeners of other executors, and discarded if there are none. **From then on the signal has
//!   its usual effect in this thread again, also while other executors listen.** So where several
//!   do, keep the first listener until they have ended.

mod listeners;

use core::{
    cell::{Cell, RefCell},
    fmt,
    future::poll_fn,
    task::{Context, Poll, ready},
};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    rc::Rc,
    sync::Arc,
};

pub use windlass::Signal;
use windlass::{Event, Interest, Key, ReceivedSignals, SignalSet, Subscriber, Turn, interest};

use crate::{
    budget::poll_proceed,
    handle::Handle,
    signal::listeners::{AllListeners, Listener},
};

/// Waits for `SIGINT`, which Ctrl-C sends.
///
/// The signal is blocked when the future is first polled, and unblocked when it ends. To handle it
/// more than once, use [`Signals`]: between two calls it would end the process.
///
/// # Errors
/// Those of [`Signals::new`] and [`Signals::recv`].
pub async fn ctrl_c() -> io::Result<()> {
    Signals::new([Signal::INT])?.recv().await.map(drop)
}

/// A listener for signals. The [rules](self) are those of the module.
///
/// `!Send`: the mask of signals belongs to the thread.
///
/// ```
/// use windlass_task::{block_on, signal::{Signal, Signals}};
///
/// # fn main() -> std::io::Result<()> {
/// block_on(async {
///     let mut reloads = Signals::new([Signal::HUP])?;
///     let mut all = Signals::new([Signal::HUP, Signal::TERM])?;
/// #   nix::sys::signal::raise(nix::sys::signal::SIGHUP)?;
///     assert_eq!(reloads.recv().await?, Signal::HUP);
///     assert_eq!(all.recv().await?, Signal::HUP);
///     Ok(())
/// })
/// # }
/// ```
#[doc(alias("signalfd", "sigaction"))]
pub struct Signals {
    hub: Rc<Hub>,
    handle: Handle,
    listener: Arc<Listener>,
    /// Each counts this listener.
    held: Vec<Rc<Kind>>,
    /// The number of the signal that was returned last.
    last: u32,
}

impl Signals {
    /// Listens for signals. Duplicates are ignored.
    ///
    /// # Errors
    /// Nothing has changed then, but signals of the list that came during the call are told to
    /// other listeners alone.
    ///
    /// - `InvalidInput`: a signal cannot be caught. These are `SIGKILL`, `SIGSTOP`, and those that
    ///   the C library reserves: 32 and 33, and with musl 34.
    /// - The errors of signalfd(2): `EMFILE`, `ENFILE` or `ENOMEM`.
    /// - The errors of a registration ([`AddReason`](windlass::AddReason)). Where there is no turn,
    ///   they are those of [`recv`](Self::recv).
    /// - There is no turn, and
    ///   [`queued_registrations_max`](crate::ExecutorBuilder::queued_registrations_max)
    ///   registrations wait for one.
    ///
    /// # Panics
    /// Outside of an executor.
    #[track_caller]
    pub fn new(signals: impl IntoIterator<Item = Signal>) -> io::Result<Self> {
        let handle = Handle::expect_current();
        let hub = handle.extension::<Hub>();
        let listener = hub.listeners.add();
        let mut this = Self { hub, handle, listener, held: Vec::new(), last: 0 };
        for signal in signals {
            if this.held.iter().all(|kind| kind.signal != signal) {
                let kind = this.hub.hold(&this.handle, signal)?;
                this.held.push(kind);
                this.listener.want(bit(signal));
            }
        }
        Ok(this)
    }

    /// Waits for a signal. Returns each that came once, one after the other if there are several.
    ///
    /// A call that is dropped loses no signal.
    ///
    /// # Errors
    /// - The executor was dropped.
    /// - The registration was queued and has failed.
    /// - Those of read(2) on a signalfd.
    pub async fn recv(&mut self) -> io::Result<Signal> {
        poll_fn(|context| self.poll_recv(context)).await
    }

    /// As [`recv`](Self::recv), for futures that are made by hand. The last waker is woken.
    ///
    /// # Errors
    /// Those of [`recv`](Self::recv).
    ///
    /// # Panics
    /// With the panic of the waker of an earlier call. The executor that has woken it goes on.
    pub fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Signal>> {
        let proceed = ready!(poll_proceed(context));
        if let Poll::Ready(place) = self.listener.poll_next(self.last, context.waker()) {
            proceed.made_progress();
            // The next call begins after it, so that one that keeps coming does not hide the
            // others.
            self.last = (place + 1) % u64::BITS;
            let signal = i32::try_from(place).ok().and_then(|place| Signal::from_raw(place + 1));
            return Poll::Ready(signal.ok_or_else(|| io::ErrorKind::InvalidData.into()));
        }
        if let Some(kind) = self.held.iter().find_map(|kind| kind.failed.get()) {
            return Poll::Ready(Err(kind.into()));
        }
        if !self.handle.is_open() {
            return Poll::Ready(Err(gone()));
        }
        Poll::Pending
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        let waker = self.hub.listeners.remove(&self.listener);
        for kind in &self.held {
            self.hub.release(&self.handle, kind);
        }
        // Last, because it may be the user's code.
        drop(waker);
    }
}

impl fmt::Debug for Signals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.held.iter().map(|kind| kind.signal)).finish()
    }
}

fn gone() -> io::Error {
    io::Error::other("the executor of these signals was dropped")
}

const fn bit(signal: Signal) -> u64 {
    1 << (signal.as_raw() - 1)
}

fn bits(signals: ReceivedSignals) -> u64 {
    signals.iter().fold(0, |all, one| all | bit(one))
}

/// The signals of one executor.
struct Hub {
    /// Those of all executors.
    listeners: AllListeners,
    /// One for each signal that this executor listens for.
    kinds: RefCell<Vec<Rc<Kind>>>,
}

impl Default for Hub {
    fn default() -> Self {
        Self { listeners: AllListeners::current(), kinds: RefCell::default() }
    }
}

/// A signal, its registration, and how many listen for it on this executor.
struct Kind {
    signal: Signal,
    listeners: Cell<usize>,
    key: Cell<Option<Key>>,
    /// Why this executor reads it no longer.
    failed: Cell<Option<io::ErrorKind>>,
}

impl Hub {
    /// Counts a listener. The first one registers the signal.
    fn hold(self: &Rc<Self>, handle: &Handle, signal: Signal) -> io::Result<Rc<Kind>> {
        let found = self.kinds.borrow().iter().find(|kind| kind.signal == signal).cloned();
        if let Some(kind) = found {
            kind.listeners.set(kind.listeners.get() + 1);
            return Ok(kind);
        }
        let set = SignalSet::new([signal])?;
        let kind = Rc::new(Kind {
            signal,
            listeners: Cell::new(1),
            key: Cell::new(None),
            failed: Cell::new(None),
        });
        let cell = SignalCell { set: Some(set), hub: Rc::clone(self), kind: Rc::clone(&kind) };
        let mut cell = Some(cell);
        let added = handle.with_turn(|turn| cell.take().map(|cell| cell.register(turn)));
        if let Some(Some(Err(error))) = added {
            return Err(error);
        }
        if let Some(cell) = cell {
            handle.request_new(|turn| cell.register_late(turn))?;
        }
        self.kinds.borrow_mut().push(Rc::clone(&kind));
        Ok(kind)
    }

    /// The last listener ends the registration, which restores the mask.
    fn release(&self, handle: &Handle, kind: &Rc<Kind>) {
        kind.listeners.set(kind.listeners.get() - 1);
        if kind.listeners.get() > 0 {
            return;
        }
        self.forget(kind);
        // Without a key, the registration is queued or has failed.
        let Some(key) = kind.key.take() else { return };
        if handle.with_turn(|mut turn| turn.delete(key)).is_none() {
            handle.request(move |mut turn| {
                let _ = turn.delete(key);
            });
        }
    }

    fn forget(&self, kind: &Rc<Kind>) {
        self.kinds.borrow_mut().retain(|other| !Rc::ptr_eq(other, kind));
    }

    /// This executor reads the signal no longer, and wakes its listeners to say so. The next one
    /// registers the signal again.
    fn fail(&self, kind: &Rc<Kind>, error: io::ErrorKind) {
        self.forget(kind);
        kind.failed.set(Some(error));
        self.listeners.wake(bit(kind.signal));
    }
}

/// The cell of the reactor. Its drop restores the mask.
struct SignalCell {
    /// `None` in the destructor alone.
    set: Option<SignalSet>,
    hub: Rc<Hub>,
    kind: Rc<Kind>,
}

impl SignalCell {
    fn register(self, mut turn: Turn<'_>) -> io::Result<()> {
        let kind = Rc::clone(&self.kind);
        kind.key.set(Some(turn.add(self)?));
        Ok(())
    }

    /// Registers it in a later turn, if somebody still listens.
    fn register_late(self, turn: Turn<'_>) {
        let (hub, kind) = (Rc::clone(&self.hub), Rc::clone(&self.kind));
        if kind.listeners.get() > 0 {
            if let Err(error) = self.register(turn) {
                hub.fail(&kind, error.kind());
            }
        }
    }
}

impl Subscriber for SignalCell {
    fn fd(&self) -> BorrowedFd<'_> {
        self.set.as_ref().expect("the destructor alone takes the set").as_fd()
    }

    #[cfg(feature = "sim")]
    fn sim_id(&self) -> Option<windlass::sim::SimId> {
        windlass::sim::sim_id_of(self.set.as_ref()?)
    }

    fn interest(&self) -> Interest {
        interest().read()
    }

    fn handle(&mut self, event: Event, mut turn: Turn<'_>) {
        let Some(set) = &mut self.set else { return };
        match set.read() {
            Ok(received) => self.hub.listeners.deliver(bits(received)),
            Err(error) => {
                // It would be reported again and again.
                let _ = turn.delete(event.key());
                self.kind.key.set(None);
                self.hub.fail(&self.kind, error.kind());
            }
        }
    }
}

impl Drop for SignalCell {
    fn drop(&mut self) {
        // The reactor goes, and the registration with it.
        if self.kind.key.take().is_some() && self.kind.listeners.get() > 0 {
            self.hub.fail(&self.kind, io::ErrorKind::Other);
        }
        if let Some(set) = self.set.take() {
            self.hub.listeners.deliver(bits(set.close()));
        }
    }
}
