//! Replaces the ring in builds without the feature `uring`, and under Miri, which has no rings.
//! Creating it fails, so its other functions are never called.

use core::mem::MaybeUninit;
use std::{os::fd::BorrowedFd, sync::Arc};

use rustix::{io::Errno, time::Timespec};

use super::{
    WaitResult,
    batch::RawEvent,
    completions::{Done, Failed, Times},
    fork::ForkGuard,
    napi::{NapiError, NapiPoll},
    ring_settings::{RingFeatures, RingSettings},
    shared_bytes::SharedBytes,
};
use crate::{RingError, cell::CellPtr};

type Cell = CellPtr;

/// See `uring/copies.rs`.
#[derive(Clone, Copy)]
pub(crate) struct Copied;

impl Copied {
    pub(crate) const NONE: Self = Self;
}

/// See `uring/pool.rs`.
pub(crate) enum ReceivedPart {}

impl ReceivedPart {
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        match *self {}
    }

    pub(crate) fn give_back(self) {
        match self {}
    }
}

pub(crate) enum Uring {}

impl Uring {
    pub(crate) fn new(_: RingSettings) -> Result<Self, RingError> {
        Err(if cfg!(feature = "uring") {
            RingError::Forbidden(Errno::NOSYS)
        } else {
            RingError::NotCompiled
        })
    }

    pub(crate) fn set_napi(&self, _: NapiPoll) -> Result<(), NapiError> {
        match *self {}
    }

    #[cfg(feature = "sim")]
    pub(crate) fn in_simulation(
        _: &windlass_sim::Kernel,
        _: windlass_sim::ActorId,
        settings: RingSettings,
    ) -> Result<Self, RingError> {
        Self::new(settings)
    }

    #[cfg(feature = "sim")]
    pub(crate) fn wait_in_simulation(
        &mut self,
        _: &mut [MaybeUninit<RawEvent>],
        _: Option<&Timespec>,
    ) -> Result<usize, Errno> {
        match *self {}
    }

    pub(crate) fn check_owner(&self) -> Result<(), Errno> {
        match *self {}
    }

    pub(crate) fn fork_guard(&self) -> Option<ForkGuard> {
        match *self {}
    }

    pub(crate) fn features(&self) -> RingFeatures {
        match *self {}
    }

    pub(crate) fn holds_events(&self) -> bool {
        match *self {}
    }

    pub(crate) fn add(&mut self, _: Cell) -> Result<(), Errno> {
        match *self {}
    }

    pub(crate) fn modify(&mut self, _: Cell, _: u32) -> Result<(), Errno> {
        match *self {}
    }

    pub(crate) fn delete(&mut self, _: Cell) {
        match *self {}
    }

    pub(crate) fn end(&mut self, _: impl Iterator<Item = Cell>) {
        match *self {}
    }

    pub(crate) fn wait(
        &mut self,
        _: &mut [MaybeUninit<RawEvent>],
        _: Option<&Timespec>,
    ) -> WaitResult {
        match *self {}
    }

    pub(crate) fn has_nothing_for(&mut self, _: Option<&Timespec>) -> bool {
        match *self {}
    }

    pub(crate) fn settle(&mut self) -> Result<bool, Errno> {
        match *self {}
    }

    pub(crate) fn watchable(&mut self) -> Result<(BorrowedFd<'_>, u64), Errno> {
        match *self {}
    }

    pub(crate) fn leave_host(&mut self) {
        match *self {}
    }

    pub(crate) fn tell_host_of(&mut self, _: i32) -> Result<(), Errno> {
        match *self {}
    }

    pub(crate) fn submit_now(&mut self) {
        match *self {}
    }

    pub(crate) fn close(&mut self) {
        match *self {}
    }
}

/// The functions that streams by completion use.
impl Uring {
    pub(crate) fn completes(&mut self) -> bool {
        match *self {}
    }

    pub(crate) fn pool_bytes(&self) -> usize {
        match *self {}
    }

    pub(crate) fn receive(&mut self, _: Cell) {
        match *self {}
    }

    pub(crate) fn receive_soon(&mut self, _: Cell, _: Times) {
        match *self {}
    }

    pub(crate) fn withdraw_receives(&mut self) {
        match *self {}
    }

    pub(crate) fn receive_later(&mut self, _: Cell) {
        match *self {}
    }

    pub(crate) fn end_receive(&mut self, _: Cell) -> bool {
        match *self {}
    }

    pub(crate) fn end_receives(&mut self, _: &mut Vec<Cell>) {
        match *self {}
    }

    pub(crate) fn drain_receive(
        &mut self,
        _: Cell,
        _: impl Iterator<Item = u32>,
        _: &mut Vec<u8>,
    ) -> Option<Errno> {
        match *self {}
    }

    pub(crate) fn take_done(&mut self, _: u32) -> Option<Done> {
        match *self {}
    }

    pub(crate) fn submit_if_due(&mut self) {
        match *self {}
    }

    pub(crate) fn take_received(&mut self, _: u32) -> Option<ReceivedPart> {
        match *self {}
    }

    pub(crate) fn has_news(&mut self, _: Cell) -> bool {
        match *self {}
    }

    pub(crate) fn unpoll(&mut self, _: Cell) {
        match *self {}
    }

    pub(crate) fn enroll_sender(&mut self, _: u32, _: Cell) {
        match *self {}
    }

    pub(crate) fn queue_send(&mut self, _: u32, _: &[u8]) -> bool {
        match *self {}
    }

    pub(crate) fn queue_copied(&mut self, _: u32, _: &[u8]) -> bool {
        match *self {}
    }

    pub(crate) fn queue_shared(&mut self, _: u32, _: &SharedBytes<'_>) -> bool {
        match *self {}
    }

    pub(crate) fn take_send_back(&mut self, _: u32, _: impl FnOnce(&[u8], Option<&Arc<[u8]>>)) {
        match *self {}
    }

    pub(crate) fn has_send(&self, _: u32) -> bool {
        match *self {}
    }

    pub(crate) fn forget_send(&mut self, _: u32) {
        match *self {}
    }

    pub(crate) fn failed(&mut self) -> &mut Vec<Failed> {
        match *self {}
    }
}
