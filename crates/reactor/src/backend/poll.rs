//! ppoll(2): a table of descriptors that the kernel scans at every wait.
//!
//! The simplest backend that keeps the contract: for sandboxes that have neither epoll nor rings,
//! and as the oracle for tests of the other backends. The kernel keeps no state between two waits,
//! so there are no stale entries (rule 7), and `delete` never fails.
//!
//! # The table
//!
//! 1. `entries` is the array for ppoll(2). `watches` has the reactor's data of each entry, at the
//!    same index.
//! 2. `places[number]` is the index of a number's entry, or [`NOWHERE`].
//! 3. A disabled entry has the complement of its number, which is negative, so the kernel skips it.
//!    It is a one-shot that has fired, an empty interest whose error or hang-up was reported, or a
//!    number that turned out to be closed. `modify` enables it again.

#![allow(unsafe_code, reason = "ppoll(2) and fcntl(2) by numbers, which may be closed")]

use core::{mem::MaybeUninit, ptr};

use rustix::{
    event::epoll::{EventData, EventFlags},
    io::Errno,
    time::Timespec,
};

use super::last_errno;
use crate::{
    Interest,
    api::interest::{ERR, ET, HUP, IN, ONESHOT, OUT, PRI, RDHUP},
    backend::{
        batch::RawEvent,
        fork::{self, ForkGuard},
    },
};

/// The conditions that can be requested and reported. poll(2) and epoll(7) use the same bits for
/// them.
const CONDITIONS: u32 = IN | PRI | OUT | ERR | HUP | RDHUP;

/// In `places`: the number is not registered.
const NOWHERE: u32 = u32::MAX;

pub(crate) struct Poll {
    guard: Option<ForkGuard>,
    entries: Vec<libc::pollfd>,
    watches: Vec<Watch>,
    places: Vec<u32>,
    /// The index at which the next scan of ready entries starts. It is the first entry for which
    /// the last scan had no room, so that no entry is left out for ever.
    first: usize,
}

#[derive(Clone, Copy)]
struct Watch {
    address: u64,
    mask: u32,
}

impl Watch {
    /// Whether it is disabled once it has fired. In the kernel's mask an empty interest is
    /// edge-triggered; no other interest here is.
    fn is_told_once(self) -> bool {
        self.mask & (ONESHOT | ET) != 0
    }
}

impl Poll {
    pub(crate) fn new() -> Self {
        Self {
            // If it is unavailable (before Linux 4.14), a child is not detected. That is still
            // sound: the kernel holds no address of ours.
            guard: ForkGuard::new(1).ok(),
            entries: Vec::new(),
            watches: Vec::new(),
            places: Vec::new(),
            first: 0,
        }
    }

    /// Fails in a child of fork(2). The descriptors are shared with the parent, so each process
    /// would take events and wake-ups from the other.
    pub(crate) fn check_owner(&self) -> Result<(), Errno> {
        self.guard.as_ref().map_or(Ok(()), fork::check)
    }

    pub(crate) fn fork_guard(&self) -> Option<ForkGuard> {
        self.guard.clone()
    }

    /// Rejects edge-triggered and exclusive interests: poll(2) reports states, and reports them to
    /// every caller.
    pub(crate) fn supports(interest: Interest) -> bool {
        !interest.has_edge_triggered() && !interest.has_exclusive()
    }

    /// Accepts a closed number too. The next wait reports it.
    pub(crate) fn add(&mut self, fd: i32, mask: u32, address: u64) -> Result<(), Errno> {
        self.check_owner()?;
        let number = index(fd);
        if self.places.len() <= number {
            self.places.resize(number + 1, NOWHERE);
        }
        debug_assert_eq!(self.places[number], NOWHERE, "the registry has one live cell a number");
        self.places[number] =
            u32::try_from(self.entries.len()).expect("no more entries than numbers");
        self.entries.push(entry(fd, mask));
        self.watches.push(Watch { address, mask });
        Ok(())
    }

    /// Also checks that the number is open, as epoll does. A mistake is then reported here, and not
    /// by an error event as well.
    pub(crate) fn modify(&mut self, fd: i32, mask: u32, address: u64) -> Result<(), Errno> {
        self.check_owner()?;
        let place = self.place(fd);
        let open = is_open(fd);
        self.entries[place] = entry(if open.is_ok() { fd } else { !fd }, mask);
        self.watches[place] = Watch { address, mask };
        open
    }

    pub(crate) fn delete(&mut self, fd: i32) {
        let place = self.place(fd);
        self.places[index(fd)] = NOWHERE;
        self.entries.swap_remove(place);
        self.watches.swap_remove(place);
        if let Some(moved) = self.entries.get(place) {
            self.places[index(moved.fd)] = u32::try_from(place).expect("it had a place before");
        }
    }

    fn place(&self, fd: i32) -> usize {
        self.places[index(fd)] as usize
    }

    pub(crate) fn wait(
        &mut self,
        room: &mut [MaybeUninit<RawEvent>],
        timeout: Option<&Timespec>,
    ) -> Result<usize, Errno> {
        self.check_owner()?;
        let time =
            timeout.map(|time| libc::timespec { tv_sec: time.tv_sec, tv_nsec: time.tv_nsec });
        let time = time.as_ref().map_or(ptr::null(), ptr::from_ref);
        let length = self.entries.len() as libc::nfds_t;
        // SAFETY: The table has `length` entries, and the kernel writes their `revents`. The time
        // lives through the call, and no signal mask is given. Numbers may be closed; the kernel
        // then reports that.
        let count = unsafe { libc::ppoll(self.entries.as_mut_ptr(), length, time, ptr::null()) };
        match usize::try_from(count) {
            Ok(count) => Ok(self.hand_out(count, room)),
            Err(_) => Err(last_errno()),
        }
    }

    /// Writes an event for each of the `left` ready entries, as far as there is room.
    fn hand_out(&mut self, mut left: usize, room: &mut [MaybeUninit<RawEvent>]) -> usize {
        let length = self.entries.len();
        let first = if self.first < length { self.first } else { 0 };
        self.first = 0;
        let mut written = 0;
        for place in (first..length).chain(0..first) {
            if left == 0 {
                break;
            }
            let (entry, watch) = (&mut self.entries[place], self.watches[place]);
            if entry.revents == 0 {
                continue;
            }
            let Some(free) = room.get_mut(written) else {
                self.first = place;
                break;
            };
            let is_closed = entry.revents & libc::POLLNVAL != 0;
            let ready = if is_closed {
                ERR
            } else {
                u32::from(u16::from_ne_bytes(entry.revents.to_ne_bytes())) & CONDITIONS
            };
            free.write(RawEvent {
                flags: EventFlags::from_bits_retain(ready),
                data: EventData::new_u64(watch.address),
            });
            if is_closed || watch.is_told_once() {
                entry.fd = !entry.fd;
            }
            left -= 1;
            written += 1;
        }
        written
    }
}

/// A descriptor's number as an index, also for a disabled entry.
fn index(fd: i32) -> usize {
    usize::try_from(if fd < 0 { !fd } else { fd }).expect("not negative")
}

fn entry(fd: i32, mask: u32) -> libc::pollfd {
    let events = i16::try_from(mask & CONDITIONS)
        .expect("poll(2) has 16 bits, and these are among the lower 14");
    libc::pollfd { fd, events, revents: 0 }
}

fn is_open(fd: i32) -> Result<(), Errno> {
    // SAFETY: The number is the only argument of the call. It may be closed.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
    if flags < 0 { Err(last_errno()) } else { Ok(()) }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::{
        collections::BTreeMap,
        os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd},
    };

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;
    use crate::interest;

    const ZERO: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

    fn counter(initial: u32) -> OwnedFd {
        eventfd(initial, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
    }

    /// The addresses and conditions that a wait with timeout zero returns, with room for `room`
    /// events.
    fn wait(poll: &mut Poll, room: usize) -> Vec<(u64, u32)> {
        let mut events = vec![MaybeUninit::uninit(); room];
        let count = poll.wait(&mut events, Some(&ZERO)).unwrap();
        // SAFETY: The wait has written `count` events.
        events[..count]
            .iter()
            .map(|event| unsafe { event.assume_init() })
            .map(|RawEvent { flags, data }| (data.u64(), flags.bits()))
            .collect()
    }

    #[test]
    fn what_there_is_no_room_for_comes_first_in_the_next_wait() {
        let mut poll = Poll::new();
        let fds: Vec<_> = (0..5).map(|_| counter(1)).collect();
        for (address, fd) in (0..).zip(&fds) {
            poll.add(fd.as_raw_fd(), IN, address).unwrap();
        }
        let rounds: Vec<Vec<u64>> = (0..5)
            .map(|_| wait(&mut poll, 2).iter().map(|(address, _)| *address).collect())
            .collect();
        assert_eq!(rounds, [[0, 1], [2, 3], [4, 0], [1, 2], [3, 4]]);
        assert_eq!(wait(&mut poll, 9).len(), 5);
        // The index to start at may no longer exist.
        assert_eq!(wait(&mut poll, 4).len(), 4);
        for fd in &fds[1..] {
            poll.delete(fd.as_raw_fd());
        }
        assert_eq!(wait(&mut poll, 1), [(0, IN)]);
    }

    #[test]
    fn a_closed_number_is_told_once_and_left_out_until_it_is_modified() {
        let mut poll = Poll::new();
        let number = rustix::io::fcntl_dupfd_cloexec(counter(1), 900).unwrap().into_raw_fd();
        poll.add(number, IN, 7).unwrap();
        // SAFETY: This test owns the number.
        drop(unsafe { OwnedFd::from_raw_fd(number) });
        assert_eq!(wait(&mut poll, 4), [(7, ERR)]);
        assert_eq!(wait(&mut poll, 4), []);
        assert_eq!(poll.modify(number, IN, 7), Err(Errno::BADF));
        assert_eq!(wait(&mut poll, 4), [], "told by the error");
        let again = rustix::io::fcntl_dupfd_cloexec(counter(1), number).unwrap();
        assert_eq!(again.as_raw_fd(), number);
        poll.modify(number, IN, 7).unwrap();
        assert_eq!(wait(&mut poll, 4), [(7, IN)]);
        poll.delete(number);
        assert_eq!(wait(&mut poll, 4), []);
    }

    // The naive twin: a map by number. It asks the kernel for one descriptor at a time.
    #[test]
    fn the_table_keeps_step_with_a_map() {
        let fds: Vec<_> = (0..40).map(|place| counter(place % 2)).collect();
        let mut poll = Poll::new();
        let mut twin: BTreeMap<i32, (u64, u32)> = BTreeMap::new();
        let mut random = 1u64;
        for step in 0..20_000 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let place = usize::try_from(random >> 33).unwrap() % fds.len();
            let (fd, ready) = (fds[place].as_raw_fd(), place % 2 == 1);
            let once = if random & 1 << 20 == 0 { 0 } else { ONESHOT };
            match twin.remove(&fd) {
                None => poll.add(fd, IN | once, step).unwrap(),
                Some(_) if random & 1 << 21 == 0 => {
                    poll.delete(fd);
                    continue;
                }
                Some(_) => poll.modify(fd, IN | once, step).unwrap(),
            }
            twin.insert(fd, (step, if ready { once } else { 0 }));
            if step % 16 == 0 {
                let mut came = wait(&mut poll, 64);
                came.sort_unstable();
                let is_ready = |fd: i32| {
                    fds.iter().position(|other| other.as_raw_fd() == fd).unwrap() % 2 == 1
                };
                let mut expected: Vec<_> = twin
                    .iter()
                    .filter(|(fd, (_, once))| is_ready(**fd) && *once != u32::MAX)
                    .map(|(_, (address, _))| (*address, IN))
                    .collect();
                expected.sort_unstable();
                assert_eq!(came, expected);
                // Marks those that have fired.
                for (_, once) in twin.values_mut().filter(|(_, once)| *once == ONESHOT) {
                    *once = u32::MAX;
                }
            }
        }
    }

    #[test]
    fn edges_and_exclusive_waiters_are_not_to_be_had() {
        assert!(Poll::supports(interest().read().write().one_shot().wakeup()));
        assert!(Poll::supports(interest()));
        assert!(!Poll::supports(interest().read().edge_triggered()));
        assert!(!Poll::supports(interest().read().exclusive()));
    }

    #[test]
    fn the_conditions_have_the_same_bits() {
        let theirs = [
            libc::POLLIN,
            libc::POLLPRI,
            libc::POLLOUT,
            libc::POLLERR,
            libc::POLLHUP,
            libc::POLLRDHUP,
        ];
        assert_eq!([IN, PRI, OUT, ERR, HUP, RDHUP].map(|bit| i16::try_from(bit).unwrap()), theirs);
    }
}
