//! With the feature `sim`, the ring of a reactor: the kernel's, or a simulated one.

#![allow(unsafe_code, reason = "passes on the calls that name memory")]

use std::{collections::VecDeque, os::fd::BorrowedFd};

use io_uring::squeue;
use rustix::{io::Errno, time::Timespec};

use super::{
    ring::{Completion, Ring},
    simulated::SimRing,
};
use crate::{
    RingError,
    backend::{
        napi::{NapiError, NapiPoll},
        ring_settings::{RingFeatures, RingSettings},
    },
};

pub(crate) enum EitherRing {
    Kernel(Ring),
    Simulated(SimRing),
}

/// Calls of the kernel's ring, and what a simulated one does instead.
macro_rules! either {
    ($ring:expr, |$kernel:ident| $call:expr, |$sim:ident| $simulated:expr) => {
        match $ring {
            EitherRing::Kernel($kernel) => $call,
            EitherRing::Simulated($sim) => $simulated,
        }
    };
}

impl EitherRing {
    pub(crate) fn new(settings: RingSettings) -> Result<Self, RingError> {
        Ring::new(settings).map(Self::Kernel)
    }

    pub(crate) fn simulated(&mut self) -> Option<&mut SimRing> {
        either!(self, |_kernel| None, |sim| Some(sim))
    }

    pub(crate) fn features(&self) -> RingFeatures {
        either!(self, |ring| ring.features(), |sim| sim.features())
    }

    pub(super) fn set_napi(&self, napi: NapiPoll) -> Result<(), NapiError> {
        either!(self, |ring| ring.set_napi(napi), |_sim| Err(NapiError::Missing(Errno::OPNOTSUPP)))
    }

    pub(super) fn disown_index(&mut self) {
        either!(self, |ring| ring.disown_index(), |_sim| ());
    }

    pub(crate) fn notify(&self, eventfd: BorrowedFd<'_>) -> Result<(), Errno> {
        either!(self, |ring| ring.notify(eventfd), |_sim| Err(Errno::OPNOTSUPP))
    }

    pub(crate) fn notify_no_more(&self) -> Result<(), Errno> {
        either!(self, |ring| ring.notify_no_more(), |_sim| Err(Errno::OPNOTSUPP))
    }

    /// See [`Ring::push`].
    ///
    /// # Safety
    /// As there.
    pub(crate) unsafe fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: The caller's guarantee.
        either!(self, |ring| unsafe { ring.push(entry) }, |sim| sim.push(entry));
    }

    /// See [`Ring::push_all`].
    ///
    /// # Safety
    /// As there.
    pub(crate) unsafe fn push_all(&mut self, entries: impl Iterator<Item = squeue::Entry>) {
        either!(
            self,
            // SAFETY: The caller's guarantee.
            |ring| unsafe { ring.push_all(entries) },
            |sim| entries.for_each(|entry| sim.push(&entry))
        );
    }

    pub(crate) fn poll(&mut self, fd: i32, mask: u32, is_multishot: bool, user_data: u64) {
        either!(self, |ring| ring.poll(fd, mask, is_multishot, user_data), |sim| {
            sim.push(&Ring::poll_entry(fd, mask, is_multishot, user_data));
        });
    }

    pub(crate) fn cancel(&mut self, user_data: u64, control: u64) {
        either!(self, |ring| ring.cancel(user_data, control), |sim| {
            sim.push(&Ring::cancel_entry(sim.features(), user_data, control));
        });
    }

    pub(crate) fn capacity(&mut self) -> usize {
        either!(self, |ring| ring.capacity(), |sim| sim.capacity())
    }

    pub(crate) fn queued(&self) -> usize {
        either!(self, |ring| ring.queued(), |sim| sim.queued())
    }

    pub(crate) fn has_completions(&self) -> bool {
        either!(self, |ring| ring.has_completions(), |sim| sim.has_completions())
    }

    pub(crate) fn wants_enter(&mut self) -> bool {
        either!(self, |ring| ring.wants_enter(), |sim| sim.queued() > 0 || sim.holds_more())
    }

    pub(crate) fn holds_more(&mut self) -> bool {
        either!(self, |ring| ring.holds_more(), |sim| sim.holds_more())
    }

    pub(crate) fn has_overflowed(&mut self) -> bool {
        either!(self, |ring| ring.has_overflowed(), |sim| sim.has_overflowed())
    }

    pub(crate) fn register_buffers(
        &self,
        row: u64,
        count: u16,
        group: u16,
        flags: u16,
    ) -> Result<(), Errno> {
        either!(self, |ring| ring.register_buffers(row, count, group, flags), |sim| {
            sim.register_buffers(row, count, flags);
            Ok(())
        })
    }

    pub(crate) fn completions(&mut self) -> impl ExactSizeIterator<Item = Completion> {
        either!(self, |ring| EitherCompletions::Kernel(ring.completions()), |sim| {
            EitherCompletions::Simulated(sim.completions())
        })
    }

    pub(crate) fn next_completion(&mut self) -> Option<Completion> {
        either!(self, |ring| ring.next_completion(), |sim| sim.completions().pop_front())
    }

    pub(crate) fn submit(&mut self) -> Result<(), Errno> {
        either!(self, |ring| ring.submit(), |sim| {
            sim.submit();
            Ok(())
        })
    }

    pub(crate) fn enter(&mut self, waits: bool, timeout: Option<&Timespec>) -> Result<(), Errno> {
        either!(self, |ring| ring.enter(waits, timeout), |sim| sim.enter(waits))
    }

    pub(crate) fn enter_for(
        &mut self,
        least: u32,
        timeout: Option<&Timespec>,
    ) -> Result<(), Errno> {
        either!(self, |ring| ring.enter_for(least, timeout), |sim| sim.enter(least > 0))
    }

    pub(super) fn has_priority(&self, fd: i32) -> bool {
        // Simulated sockets have no urgent data.
        either!(self, |ring| ring.has_priority(fd), |_sim| false)
    }

    pub(super) fn now_ns(&self) -> u64 {
        either!(self, |ring| ring.now_ns(), |sim| sim.now_ns())
    }
}

/// The completions in the queue. Those taken leave it.
enum EitherCompletions<'r, K> {
    Kernel(K),
    Simulated(&'r mut VecDeque<Completion>),
}

impl<K: ExactSizeIterator<Item = Completion>> Iterator for EitherCompletions<'_, K> {
    type Item = Completion;

    fn next(&mut self) -> Option<Completion> {
        match self {
            Self::Kernel(completions) => completions.next(),
            Self::Simulated(completions) => completions.pop_front(),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let len = match self {
            Self::Kernel(completions) => completions.len(),
            Self::Simulated(completions) => completions.len(),
        };
        (len, Some(len))
    }
}

impl<K: ExactSizeIterator<Item = Completion>> ExactSizeIterator for EitherCompletions<'_, K> {}
