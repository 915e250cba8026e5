//! The conditions a subscriber waits for ([`Interest`]) and the conditions that an event reports
//! ([`Ready`]).
//!
//! Both use the kernel's own bits (epoll_ctl(2)), so no translation is needed.

use core::fmt;

pub(crate) const IN: u32 = 0x001;
pub(crate) const PRI: u32 = 0x002;
pub(crate) const OUT: u32 = 0x004;
pub(crate) const ERR: u32 = 0x008;
pub(crate) const HUP: u32 = 0x010;
pub(crate) const RDHUP: u32 = 0x2000;
pub(crate) const EXCLUSIVE: u32 = 1 << 28;
pub(crate) const WAKEUP: u32 = 1 << 29;
pub(crate) const ONESHOT: u32 = 1 << 30;
pub(crate) const ET: u32 = 1 << 31;

/// Declares the builder, the remover and the query of one bit.
macro_rules! bit {
    ($(#[$doc:meta])* $name:ident, $without:ident, $has:ident, $bit:expr) => {
        $(#[$doc])*
        #[must_use]
        pub const fn $name(self) -> Self {
            Self(self.0 | $bit)
        }

        #[doc = concat!("The same set without what [`Self::", stringify!($name), "`] adds.")]
        #[must_use]
        pub const fn $without(self) -> Self {
            Self(self.0 & !$bit)
        }

        #[doc = concat!("Whether the set holds what [`Self::", stringify!($name), "`] adds.")]
        #[must_use]
        pub const fn $has(self) -> bool {
            self.0 & $bit != 0
        }
    };
}

/// Declares the six conditions that can be requested and reported.
macro_rules! conditions {
    () => {
        bit!(
            /// Data to read, a connection to accept, or the end of a stream (`EPOLLIN`).
            #[doc(alias = "EPOLLIN")]
            read, without_read, has_read, IN
        );
        bit!(
            /// Room to write, or a finished connect (`EPOLLOUT`).
            #[doc(alias = "EPOLLOUT")]
            write, without_write, has_write, OUT
        );
        bit!(
            /// Out-of-band data on TCP, or a file's exceptional condition (`EPOLLPRI`).
            #[doc(alias = "EPOLLPRI")]
            priority, without_priority, has_priority, PRI
        );
        bit!(
            /// The peer of a stream has closed its writing half (`EPOLLRDHUP`).
            #[doc(alias = "EPOLLRDHUP")]
            read_hangup, without_read_hangup, has_read_hangup, RDHUP
        );
        bit!(
            /// An error condition (`EPOLLERR`). The kernel always reports it, even if not
            /// requested.
            #[doc(alias = "EPOLLERR")]
            error, without_error, has_error, ERR
        );
        bit!(
            /// Both halves are closed (`EPOLLHUP`). The kernel always reports it, even if not
            /// requested.
            #[doc(alias = "EPOLLHUP")]
            hangup, without_hangup, has_hangup, HUP
        );
    };
}

/// The conditions a subscriber waits for, and how they are reported.
///
/// Level-triggered unless [`edge_triggered`](Self::edge_triggered) is set. A set without any
/// condition reports an error or a hang-up once. A set that includes [`error`](Self::error) or
/// [`hangup`](Self::hangup) reports it for as long as it lasts. Spurious wake-ups are possible: a
/// handler reads until `WouldBlock` or reads once and returns.
///
/// ```
/// use windlass::interest;
///
/// const LISTEN: windlass::Interest = interest().read().edge_triggered();
/// assert!(LISTEN.has_read() && !LISTEN.without_read().has_read());
/// ```
///
/// Source: epoll_ctl(2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Interest(u32);

/// The empty [`Interest`], to start from.
///
/// ```
/// use windlass::interest;
///
/// assert!(interest().is_empty());
/// let both = interest().read().write().edge_triggered();
/// assert!(both.has_read() && both.has_write());
/// ```
#[must_use]
pub const fn interest() -> Interest {
    Interest(0)
}

impl Interest {
    conditions!();
    bit!(
        /// Report each change once, instead of a condition for as long as it lasts (`EPOLLET`).
        #[doc(alias = "EPOLLET")]
        edge_triggered, without_edge_triggered, has_edge_triggered, ET
    );
    bit!(
        /// Report one event, then none until `modify` or `rearm` (`EPOLLONESHOT`).
        #[doc(alias = "EPOLLONESHOT")]
        one_shot, without_one_shot, has_one_shot, ONESHOT
    );
    bit!(
        /// Wake only one of the epoll sets that watch the same file (`EPOLLEXCLUSIVE`).
        ///
        /// It can be combined only with read, write, error, hang-up, edge-triggered and wakeup.
        /// Other combinations are rejected. The kernel cannot modify such a registration, so
        /// `modify` deletes it and adds it again.
        #[doc(alias = "EPOLLEXCLUSIVE")]
        exclusive, without_exclusive, has_exclusive, EXCLUSIVE
    );
    bit!(
        /// Keep the system from suspending while the event is handled (`EPOLLWAKEUP`).
        ///
        /// The kernel silently ignores this for a process without `CAP_BLOCK_SUSPEND`.
        #[doc(alias = "EPOLLWAKEUP")]
        wakeup, without_wakeup, has_wakeup, WAKEUP
    );

    /// Whether no condition is requested. Modes such as edge-triggered are ignored.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 & (IN | PRI | OUT | RDHUP | ERR | HUP) == 0
    }

    /// The kernel's bits, as epoll_ctl(2) names them.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    pub(crate) const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// The mask passed to the kernel.
    pub(crate) const fn kernel_mask(self) -> u32 {
        // The kernel adds error and hang-up to every mask. If an empty interest were
        // level-triggered, a closed peer would wake the loop for ever. Edge-triggered, it wakes the
        // loop once.
        if self.is_empty() { self.0 | ET } else { self.0 }
    }

    /// Whether the kernel accepts the combination (epoll_ctl(2), `EPOLLEXCLUSIVE`).
    pub(crate) const fn is_valid(self) -> bool {
        !self.has_exclusive() || self.0 & !(IN | OUT | ERR | HUP | ET | WAKEUP | EXCLUSIVE) == 0
    }

    /// Whether a `modify` to this interest can be merged with others. A level-triggered change has
    /// no side effect. An edge-triggered or one-shot change re-arms the registration.
    pub(crate) const fn is_mergeable(self) -> bool {
        self.kernel_mask() & (ET | ONESHOT | EXCLUSIVE) == 0
    }
}

/// The conditions reported by an event.
///
/// ```
/// use windlass::Ready;
///
/// let ready = Ready::empty().read().read_hangup();
/// assert!(ready.has_read() && ready.has_read_hangup() && !ready.has_write());
/// assert_eq!(ready.without_read_hangup(), Ready::empty().read());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Ready(u32);

impl Ready {
    /// No condition.
    #[must_use]
    pub const fn empty() -> Self {
        Self(0)
    }

    conditions!();

    /// Whether no condition holds.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The kernel's bits, as epoll_ctl(2) names them.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    pub(crate) const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }
}

const NAMES: [(u32, &str); 10] = [
    (IN, "read"),
    (OUT, "write"),
    (PRI, "priority"),
    (RDHUP, "read_hangup"),
    (ERR, "error"),
    (HUP, "hangup"),
    (ET, "edge_triggered"),
    (ONESHOT, "one_shot"),
    (EXCLUSIVE, "exclusive"),
    (WAKEUP, "wakeup"),
];

fn write_names(f: &mut fmt::Formatter<'_>, kind: &str, bits: u32) -> fmt::Result {
    write!(f, "{kind}(")?;
    let mut separator = "";
    for (_, name) in NAMES.iter().filter(|(bit, _)| bits & bit != 0) {
        write!(f, "{separator}{name}")?;
        separator = " | ";
    }
    write!(f, ")")
}

impl fmt::Debug for Interest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_names(f, "Interest", self.0)
    }
}

impl fmt::Debug for Ready {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_names(f, "Ready", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bits_are_the_kernels() {
        // libc takes its values from the kernel's headers.
        let all = [
            (interest().read(), libc::EPOLLIN),
            (interest().write(), libc::EPOLLOUT),
            (interest().priority(), libc::EPOLLPRI),
            (interest().read_hangup(), libc::EPOLLRDHUP),
            (interest().error(), libc::EPOLLERR),
            (interest().hangup(), libc::EPOLLHUP),
            (interest().edge_triggered(), libc::EPOLLET),
            (interest().one_shot(), libc::EPOLLONESHOT),
            (interest().exclusive(), libc::EPOLLEXCLUSIVE),
            (interest().wakeup(), libc::EPOLLWAKEUP),
        ];
        for (ours, theirs) in all {
            assert_eq!(i64::from(ours.bits()), i64::from(theirs) & 0xffff_ffff, "{ours:?}");
        }
    }

    #[test]
    fn each_bit_is_built_removed_and_queried() {
        let all = interest()
            .read()
            .write()
            .priority()
            .read_hangup()
            .error()
            .hangup()
            .edge_triggered()
            .one_shot()
            .exclusive()
            .wakeup();
        assert!(all.has_read() && all.has_write() && all.has_priority() && all.has_read_hangup());
        assert!(
            all.has_error() && all.has_hangup() && all.has_edge_triggered() && all.has_one_shot()
        );
        assert!(all.has_exclusive() && all.has_wakeup());
        let none = all
            .without_read()
            .without_write()
            .without_priority()
            .without_read_hangup()
            .without_error()
            .without_hangup()
            .without_edge_triggered()
            .without_one_shot()
            .without_exclusive()
            .without_wakeup();
        assert_eq!(none, interest());
        assert_eq!(
            format!("{:?}", interest().read().edge_triggered()),
            "Interest(read | edge_triggered)"
        );
        assert_eq!(format!("{:?}", Ready::empty().write()), "Ready(write)");
    }

    #[test]
    fn an_empty_interest_is_edge_triggered_for_the_kernel() {
        assert_eq!(interest().kernel_mask(), ET);
        assert_eq!(interest().one_shot().kernel_mask(), ET | ONESHOT);
        assert_eq!(interest().read().kernel_mask(), IN);
        assert_eq!(
            interest().hangup().kernel_mask(),
            HUP,
            "asked for by name: told for as long as it lasts"
        );
    }

    #[test]
    fn exclusive_goes_with_what_the_kernel_takes() {
        assert!(interest().read().write().edge_triggered().exclusive().is_valid());
        assert!(!interest().read().one_shot().exclusive().is_valid());
        assert!(!interest().read_hangup().exclusive().is_valid());
        assert!(!interest().priority().exclusive().is_valid());
    }
}
