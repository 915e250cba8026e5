//! What is watched and what happened: [`Events`].

use std::os::fd::{AsRawFd, RawFd};

use vmm_sys_util::epoll::{EpollEvent, EventSet};

/// A descriptor by its number, a number of the user's, and a set of conditions.
///
/// [`EventOps`](crate::EventOps) takes what to watch, and a subscriber gets what happened. Errors
/// and hang-ups ([`EventSet::ERROR`], [`EventSet::HANG_UP`]) are always watched.
///
/// ```
/// use std::os::fd::AsRawFd;
/// use windlass_event_manager::{EventSet, Events};
///
/// let (socket, _peer) = std::os::unix::net::UnixStream::pair()?;
/// let events = Events::with_data(&socket, 7, EventSet::IN);
/// assert_eq!((events.fd(), events.data()), (socket.as_raw_fd(), 7));
/// assert_eq!(Events::empty(&socket).event_set(), EventSet::empty());
/// # std::io::Result::Ok(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Events(EpollEvent);

impl PartialEq for Events {
    fn eq(&self, other: &Self) -> bool {
        (self.0.data(), self.0.events()) == (other.0.data(), other.0.events())
    }
}

impl Events {
    /// No condition but errors and hang-ups, and 0 as the user's number.
    pub fn empty<T: AsRawFd>(source: &T) -> Self {
        Self::empty_raw(source.as_raw_fd())
    }

    /// [`empty`](Self::empty) by the descriptor's number.
    pub fn empty_raw(fd: RawFd) -> Self {
        Self::new_raw(fd, EventSet::empty())
    }

    /// Conditions, and 0 as the user's number.
    pub fn new<T: AsRawFd>(source: &T, events: EventSet) -> Self {
        Self::new_raw(source.as_raw_fd(), events)
    }

    /// [`new`](Self::new) by the descriptor's number.
    pub fn new_raw(source: RawFd, events: EventSet) -> Self {
        Self::with_data_raw(source, 0, events)
    }

    /// Conditions, with a number of the user's that its events report.
    pub fn with_data<T: AsRawFd>(source: &T, data: u32, events: EventSet) -> Self {
        Self::with_data_raw(source.as_raw_fd(), data, events)
    }

    /// [`with_data`](Self::with_data) by the descriptor's number.
    #[inline]
    pub fn with_data_raw(source: RawFd, data: u32, events: EventSet) -> Self {
        Self(EpollEvent::new(events, u64::from(data) << 32 | u64::from(source as u32)))
    }

    /// The descriptor's number.
    #[inline]
    pub fn fd(&self) -> RawFd {
        self.0.data() as RawFd
    }

    /// The user's number.
    #[inline]
    pub fn data(&self) -> u32 {
        (self.0.data() >> 32) as u32
    }

    /// The conditions.
    #[inline]
    pub fn event_set(&self) -> EventSet {
        EventSet::from_bits_truncate(self.0.events())
    }

    /// All of it in the form of epoll_ctl(2): the data has the descriptor's number in its lower
    /// half and the user's in its upper one.
    pub fn epoll_event(&self) -> EpollEvent {
        self.0
    }
}
