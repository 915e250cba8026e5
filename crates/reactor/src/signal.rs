//! Signals as descriptor readiness (signalfd(2)).

#![allow(unsafe_code, reason = "signalfd and the signal mask come from libc, which rustix lacks")]

use core::{
    cell::Cell,
    fmt,
    marker::PhantomData,
    mem::{self, MaybeUninit},
    ptr,
};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd},
};

use rustix::io::Errno;

#[cfg(feature = "sim")]
use crate::world::{SimFd, SimId, World};

/// The largest signal number on Linux.
const LARGEST: usize = 64;

/// The size of `struct signalfd_siginfo`. Its first field is the signal number.
const INFO_SIZE: usize = size_of::<libc::signalfd_siginfo>();

/// The most signals that one [`SignalSet::read`] takes. The bound is needed because signals may
/// arrive faster than they are read.
const READ_MAX: usize = 1024;

/// The most pending signals that dropping a set discards. It is more than the kernel queues by
/// default (`RLIMIT_SIGPENDING`).
const DISCARD_MAX: usize = 1 << 18;

/// A signal number (signal(7)).
///
/// ```
/// use windlass::Signal;
///
/// assert_eq!(Signal::from_raw(15), Some(Signal::TERM));
/// assert_eq!(Signal::TERM.as_raw(), 15);
/// assert_eq!(Signal::from_raw(65), None);
/// ```
#[doc(alias("SIGTERM", "SIGINT"))]
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Signal(u8);

macro_rules! signals {
    ($($name:ident = $number:ident),*) => {
        impl Signal {
            $(
                #[doc = concat!("`", stringify!($number), "`.")]
                                pub const $name: Self = Self(libc::$number as u8);
            )*
        }

        impl fmt::Debug for Signal {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match *self {
                    $(Self::$name => f.write_str(stringify!($number)),)*
                    Self(number) => write!(f, "Signal({number})"),
                }
            }
        }
    };
}

signals!(
    HUP = SIGHUP,
    INT = SIGINT,
    QUIT = SIGQUIT,
    USR1 = SIGUSR1,
    USR2 = SIGUSR2,
    PIPE = SIGPIPE,
    ALRM = SIGALRM,
    TERM = SIGTERM,
    CHLD = SIGCHLD,
    CONT = SIGCONT,
    TSTP = SIGTSTP,
    WINCH = SIGWINCH,
    IO = SIGIO
);

impl Signal {
    /// Makes a signal from its number, 1 to 64.
    #[must_use]
    pub fn from_raw(number: i32) -> Option<Self> {
        let number = u8::try_from(number).ok()?;
        (1..=LARGEST).contains(&number.into()).then_some(Self(number))
    }

    /// The signal's number.
    #[must_use]
    pub const fn as_raw(self) -> i32 {
        self.0 as i32
    }

    const fn bit(self) -> u64 {
        1 << (self.0 - 1)
    }
}

/// The set of signals that [`SignalSet::read`] returned.
///
/// ```
/// use windlass::{ReceivedSignals, Signal};
///
/// let received: ReceivedSignals = [Signal::TERM, Signal::INT].into_iter().collect();
/// assert!(received.contains(Signal::INT) && !received.contains(Signal::HUP));
/// assert_eq!(received.iter().collect::<Vec<_>>(), [Signal::INT, Signal::TERM]);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceivedSignals(u64);

impl ReceivedSignals {
    /// Whether this signal was received.
    #[must_use]
    pub const fn contains(self, signal: Signal) -> bool {
        self.0 & signal.bit() != 0
    }

    /// Whether no signal was received.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The received signals, by number.
    pub fn iter(self) -> impl Iterator<Item = Signal> {
        (1..=64).map(Signal).filter(move |signal| self.contains(*signal))
    }
}

impl FromIterator<Signal> for ReceivedSignals {
    /// Makes a set of received signals, for unit tests of handlers.
    fn from_iter<I: IntoIterator<Item = Signal>>(signals: I) -> Self {
        Self(signals.into_iter().fold(0, |bits, signal| bits | signal.bit()))
    }
}

thread_local! {
    /// How many sets of this thread hold each signal.
    static HOLDERS: Cell<[u32; LARGEST]> = const { Cell::new([0; LARGEST]) };
    /// The signals that this module has blocked. Signals that were blocked before stay blocked.
    static BLOCKED_HERE: Cell<u64> = const { Cell::new(0) };
}

/// A set of this thread's signals as a descriptor, readable when a signal is pending. Register it
/// for reading.
///
/// Creating a set blocks its signals for this thread, so that they wait to be read and do not
/// interrupt. **A signal sent to the process is delivered to any thread that does not block it**,
/// with its usual effect. Therefore create the set before starting other threads, which inherit the
/// mask, or block the signals in those threads too.
///
/// If two threads hold a signal that is sent to the process, either may receive it, or discard it
/// by dropping its set. [`close`](Self::close) returns what a drop discards.
///
/// Equal signals that arrive before they are read count as one (signal(7): standard signals do not
/// queue). The set reports which signals came, not how often. After `SIGCHLD`, wait for children
/// until there are no more.
///
/// Sets of one thread may overlap. A signal that two sets hold is returned by the first one that
/// reads. When the last holder of a signal is dropped, pending instances are discarded. Otherwise
/// they would be delivered as soon as the signal is unblocked. If the signal keeps arriving
/// meanwhile, it stays blocked.
///
/// `!Send`, because the mask belongs to the thread.
///
/// ```
/// use windlass::{Reactor, Signal, SignalSet, Turn, interest};
///
/// # fn main() -> std::io::Result<()> {
/// let mut reactor = Reactor::new()?;
/// let signals = SignalSet::new([Signal::INT, Signal::TERM])?;
/// interest()
///     .read()
///     .with_fd(signals)
///     .with_handler(|signals: &mut SignalSet, mut turn: Turn<'_>| match signals.read() {
///         Ok(received) if received.is_empty() => {}
///         outcome => {
///             println!("stopped by {outcome:?}");
///             turn.stop();
///         }
///     })
///     .register_into(&mut reactor)?;
/// # // SAFETY: raise(3) has no preconditions, and the signal is blocked.
/// # assert_eq!(unsafe { libc::raise(libc::SIGTERM) }, 0);
/// reactor.run()
/// # }
/// ```
#[doc(alias = "signalfd")]
pub struct SignalSet {
    fd: SignalFd,
    signals: u64,
    not_send: PhantomData<*mut ()>,
}

impl SignalSet {
    /// Blocks the signals for this thread and makes them readable. Duplicates are ignored.
    ///
    /// # Errors
    /// On error the mask is unchanged.
    ///
    /// - `InvalidInput`: a signal cannot be caught. These are `SIGKILL`, `SIGSTOP`, and those that
    ///   the C library reserves: 32 and 33, and with musl 34.
    /// - The errors of signalfd(2): `EMFILE`, `ENFILE` or `ENOMEM`, if the process or the system
    ///   has no descriptor or memory left.
    #[doc(alias("signalfd", "pthread_sigmask", "sigprocmask"))]
    pub fn new(signals: impl IntoIterator<Item = Signal>) -> io::Result<Self> {
        let ReceivedSignals(signals) = signals.into_iter().collect();
        // No set of signals of the C library contains what it reserves.
        let reserved = 32..libc::SIGRTMIN();
        if [libc::SIGKILL, libc::SIGSTOP]
            .into_iter()
            .chain(reserved)
            .filter_map(Signal::from_raw)
            .any(|signal| signals & signal.bit() != 0)
        {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        #[cfg(feature = "sim")]
        if let Some(world) = World::current() {
            let fd = SignalFd::Simulated(world.signalfd(signals)?);
            return Ok(Self { fd, signals, not_send: PhantomData });
        }
        let set = kernel_set(signals);
        // SAFETY: -1 requests a new descriptor. The set is initialised and lives through the call.
        let fd =
            unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: signalfd has just created the descriptor, so nothing else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        #[cfg(feature = "sim")]
        let fd = SignalFd::Kernel(fd);
        hold(signals);
        Ok(Self { fd, signals, not_send: PhantomData })
    }

    /// Takes the pending signals without waiting. The result may be empty. One call takes at most
    /// 1024; if more are pending, the set stays readable.
    ///
    /// # Errors
    /// The errors of read(2) on a signalfd.
    #[doc(alias("signalfd_siginfo", "sigwaitinfo"))]
    pub fn read(&mut self) -> io::Result<ReceivedSignals> {
        let mut received = 0;
        let mut infos = [0u8; INFO_SIZE * 16];
        for _ in 0..READ_MAX / 16 {
            let length = match self.read_infos(&mut infos) {
                Ok(length) => length,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            };
            for info in infos[..length].chunks_exact(INFO_SIZE) {
                let number = u32::from_ne_bytes([info[0], info[1], info[2], info[3]]);
                let signal = i32::try_from(number).ok().and_then(Signal::from_raw);
                received |= signal.map_or(0, Signal::bit);
            }
            if length < infos.len() {
                break;
            }
        }
        Ok(ReceivedSignals(received))
    }

    /// Ends the set as dropping it does, and returns the signals that were discarded. So they can
    /// be told to others.
    ///
    /// ```
    /// use windlass::{Signal, SignalSet};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let set = SignalSet::new([Signal::INT, Signal::TERM])?;
    /// # // SAFETY: raise(3) has no preconditions, and the signal is blocked.
    /// # assert_eq!(unsafe { libc::raise(libc::SIGTERM) }, 0);
    /// assert!(set.close().iter().eq([Signal::TERM]));
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "sigtimedwait")]
    pub fn close(mut self) -> ReceivedSignals {
        ReceivedSignals(self.end())
    }

    fn read_infos(&self, infos: &mut [u8]) -> Result<usize, Errno> {
        #[cfg(feature = "sim")]
        if let SignalFd::Simulated(fd) = &self.fd {
            return fd.try_read(infos);
        }
        rustix::io::read(&self.fd, infos)
    }

    /// Returns what was discarded. A second call does nothing.
    fn end(&mut self) -> u64 {
        #[cfg(feature = "sim")]
        if matches!(self.fd, SignalFd::Simulated(_)) {
            let is_first = mem::take(&mut self.signals) != 0;
            return if is_first { self.read().map_or(0, |ReceivedSignals(rest)| rest) } else { 0 };
        }
        release(mem::take(&mut self.signals))
    }

    /// The simulated descriptor, if it is one.
    #[cfg(feature = "sim")]
    pub(crate) fn sim_id(&self) -> Option<SimId> {
        match &self.fd {
            SignalFd::Kernel(_) => None,
            SignalFd::Simulated(fd) => Some(fd.id()),
        }
    }
}

#[cfg(not(feature = "sim"))]
type SignalFd = OwnedFd;

/// A signalfd of the kernel, or of a simulation.
#[cfg(feature = "sim")]
enum SignalFd {
    Kernel(OwnedFd),
    Simulated(SimFd),
}

#[cfg(feature = "sim")]
impl AsFd for SignalFd {
    /// # Panics
    /// If it is simulated.
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Kernel(fd) => fd.as_fd(),
            Self::Simulated(fd) => fd.as_fd(),
        }
    }
}

impl AsFd for SignalSet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl fmt::Debug for SignalSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(ReceivedSignals(self.signals).iter()).finish()
    }
}

impl Drop for SignalSet {
    fn drop(&mut self) {
        self.end();
    }
}

fn each(signals: u64) -> impl Iterator<Item = (usize, u64)> {
    (0..LARGEST).map(|place| (place, 1 << place)).filter(move |(_, bit)| signals & bit != 0)
}

/// Counts the signals as held, and blocks those that are not blocked yet.
fn hold(signals: u64) {
    let mut holders = HOLDERS.get();
    for (place, _) in each(signals) {
        holders[place] += 1;
    }
    HOLDERS.set(holders);
    let before = change_mask(libc::SIG_BLOCK, signals);
    BLOCKED_HERE.set(BLOCKED_HERE.get() | signals & !before);
}

/// Counts the signals as released. Signals without a holder are unblocked, after pending instances
/// are discarded. Returns those.
fn release(signals: u64) -> u64 {
    let mut holders = HOLDERS.get();
    let mut free = 0;
    for (place, bit) in each(signals) {
        holders[place] -= 1;
        if holders[place] == 0 {
            free |= bit;
        }
    }
    HOLDERS.set(holders);
    // Signals that were blocked before the set was made stay blocked.
    let ours = free & BLOCKED_HERE.get();
    if ours == 0 {
        return 0;
    }
    let (discarded, is_done) = discard_pending(ours);
    if is_done {
        BLOCKED_HERE.set(BLOCKED_HERE.get() & !ours);
        change_mask(libc::SIG_UNBLOCK, ours);
    }
    discarded
}

/// Discards pending signals and returns them. False if signals arrive faster than they are
/// discarded.
fn discard_pending(signals: u64) -> (u64, bool) {
    let mut discarded = 0;
    let set = kernel_set(signals);
    let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    for _ in 0..DISCARD_MAX {
        // SAFETY: the set and the time are initialised and live through the call. The null pointer
        // requests no signal information.
        let taken = unsafe { libc::sigtimedwait(&raw const set, ptr::null_mut(), &raw const zero) };
        discarded |= Signal::from_raw(taken).map_or(0, Signal::bit);
        // `EINTR`: a handler for a signal outside the set has run.
        if taken < 0 && io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return (discarded, true);
        }
    }
    (discarded, false)
}

/// Changes the thread's mask and returns the previous one.
fn change_mask(how: i32, signals: u64) -> u64 {
    let set = kernel_set(signals);
    // The C library writes as many bits as the kernel has, which is an eighth of the set.
    let mut before = MaybeUninit::zeroed();
    // SAFETY: the set is initialised, and `before` has room for a set.
    let outcome = unsafe { libc::pthread_sigmask(how, &raw const set, before.as_mut_ptr()) };
    assert_eq!(outcome, 0, "pthread_sigmask(3) fails for a wrong `how` alone");
    // SAFETY: the call has succeeded, so it has written the mask. The rest are zeros.
    let before = unsafe { before.assume_init() };
    (1..=64)
        .map(Signal)
        .filter(|signal| is_member(&before, *signal))
        .fold(0, |bits, signal| bits | signal.bit())
}

fn is_member(set: &libc::sigset_t, signal: Signal) -> bool {
    // SAFETY: the set is initialised and lives through the call.
    unsafe { libc::sigismember(set, signal.as_raw()) == 1 }
}

fn kernel_set(signals: u64) -> libc::sigset_t {
    let mut set = MaybeUninit::zeroed();
    // SAFETY: `set` has room for a set.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: all bytes are zeros, of which sigemptyset(3) may have written an eighth alone.
    let mut set = unsafe { set.assume_init() };
    for signal in ReceivedSignals(signals).iter() {
        // SAFETY: the set is initialised, and the number is a valid signal number.
        unsafe { libc::sigaddset(&raw mut set, signal.as_raw()) };
    }
    set
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_outside_the_range_are_no_signals() {
        assert_eq!(Signal::from_raw(0), None);
        assert_eq!(Signal::from_raw(65), None);
        assert_eq!(Signal::from_raw(-1), None);
        assert_eq!(Signal::from_raw(libc::SIGTERM), Some(Signal::TERM));
        let received: ReceivedSignals =
            [Signal::INT, Signal::TERM, Signal::INT].into_iter().collect();
        assert!(received.iter().eq([Signal::INT, Signal::TERM]));
        assert_eq!(
            format!("{:?} {:?}", Signal::TERM, Signal::from_raw(40).unwrap()),
            "SIGTERM Signal(40)"
        );
    }
}
