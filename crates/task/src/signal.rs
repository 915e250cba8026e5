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
//! - *Listeners.* Any number may listen for one signal. Each is told of each signal that came after
//!   it was made.
//! - *The end.* When the last listener for a signal is dropped, instances that are pending are
//!   discarded, and the signal is unblocked, if it was not blocked before. From then on it has its
//!   usual effect again.

use core::{
    cell::{Cell, RefCell},
    fmt,
    future::poll_fn,
    task::{Context, Poll, Waker, ready},
};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    rc::Rc,
};

pub use windlass::Signal;
use windlass::{Event, Interest, Key, SignalSet, Subscriber, Turn, interest};
use windlass_flow::panics::Panics;

use crate::{ambient::Handle, budget::poll_proceed, task::waker_slot};

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
    listener: Rc<Listener>,
    /// Each counts this listener.
    held: Vec<Rc<Kind>>,
    /// The number of the signal that was returned last.
    last: u32,
}

impl Signals {
    /// Listens for signals. Duplicates are ignored.
    ///
    /// # Errors
    /// Nothing has changed then, but signals of the list that came during the call are discarded.
    ///
    /// - `InvalidInput`: a signal cannot be caught. These are `SIGKILL`, `SIGSTOP`, and the two
    ///   that the C library reserves (32 and 33).
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
        let listener = Rc::new(Listener::default());
        hub.listeners.borrow_mut().push(Rc::clone(&listener));
        let mut this = Self { hub, handle, listener, held: Vec::new(), last: 0 };
        for signal in signals {
            if this.listener.wanted.get() & bit(signal) == 0 {
                let kind = this.hub.hold(&this.handle, signal)?;
                this.held.push(kind);
                this.listener.wanted.set(this.listener.wanted.get() | bit(signal));
            }
        }
        Ok(this)
    }

    /// Waits for a signal. Returns each that came once, in turn if there are several.
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
    pub fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Signal>> {
        let proceed = ready!(poll_proceed(context));
        if let Some(signal) = self.take_next() {
            proceed.made_progress();
            return Poll::Ready(Ok(signal));
        }
        if let Some(kind) = self.listener.failed.get() {
            return Poll::Ready(Err(kind.into()));
        }
        if !self.handle.is_open() {
            return Poll::Ready(Err(gone()));
        }
        waker_slot::store(&self.listener.waker, context.waker());
        Poll::Pending
    }

    /// The signal with the next number, so that one that keeps coming does not hide the others.
    fn take_next(&mut self) -> Option<Signal> {
        let came = self.listener.came.get();
        let rotated = came.rotate_right(self.last);
        if rotated == 0 {
            return None;
        }
        let place = (rotated.trailing_zeros() + self.last) % u64::BITS;
        self.listener.came.set(came & !(1 << place));
        self.last = (place + 1) % u64::BITS;
        Signal::from_raw(i32::try_from(place).ok()? + 1)
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.hub.listeners.borrow_mut().retain(|other| !Rc::ptr_eq(other, &self.listener));
        let mut panics = Panics::default();
        panics.catch(|| drop(self.listener.waker.take()));
        for kind in &self.held {
            self.hub.release(&self.handle, kind);
        }
        panics.resume();
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

/// What a [`Signals`] is told.
#[derive(Default)]
struct Listener {
    wanted: Cell<u64>,
    came: Cell<u64>,
    failed: Cell<Option<io::ErrorKind>>,
    waker: Cell<Option<Waker>>,
}

/// The signals of one executor.
#[derive(Default)]
struct Hub {
    listeners: RefCell<Vec<Rc<Listener>>>,
    /// One for each signal that is listened for.
    kinds: RefCell<Vec<Rc<Kind>>>,
}

/// A signal, its registration, and how many listen for it.
struct Kind {
    signal: Signal,
    listeners: Cell<usize>,
    key: Cell<Option<Key>>,
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
        let kind = Rc::new(Kind { signal, listeners: Cell::new(1), key: Cell::new(None) });
        let mut cell = Some(SignalCell { set, hub: Rc::clone(self), kind: Rc::clone(&kind) });
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

    /// Tells the listeners that a signal came.
    fn deliver(&self, signals: u64) {
        self.tell(signals, |listener| {
            listener.came.set(listener.came.get() | signals & listener.wanted.get());
        });
    }

    /// Tells the listeners that none will come any more. The next listener registers the signal
    /// again.
    fn fail(&self, kind: &Rc<Kind>, error: io::ErrorKind) {
        self.forget(kind);
        self.tell(bit(kind.signal), |listener| listener.failed.set(Some(error)));
    }

    fn tell(&self, signals: u64, tell: impl Fn(&Listener)) {
        let wakers: Vec<_> = self
            .listeners
            .borrow()
            .iter()
            .filter(|listener| listener.wanted.get() & signals != 0)
            .filter_map(|listener| {
                tell(listener);
                listener.waker.take()
            })
            .collect();
        let mut panics = Panics::default();
        for waker in wakers {
            panics.catch(|| waker.wake());
        }
        panics.resume();
    }
}

/// The cell of the reactor. Its drop restores the mask.
struct SignalCell {
    set: SignalSet,
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
        self.set.as_fd()
    }

    fn interest(&self) -> Interest {
        interest().read()
    }

    fn handle(&mut self, event: Event, mut turn: Turn<'_>) {
        match self.set.read() {
            Ok(received) => self.hub.deliver(received.iter().fold(0, |all, one| all | bit(one))),
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
    }
}
