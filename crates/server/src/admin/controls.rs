//! The state of the admin listener that other threads change.

use std::sync::{
    PoisonError, RwLock, RwLockReadGuard,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use super::token::AdminToken;
use crate::http::Hosts;

/// Who may ask.
pub(super) struct Access {
    pub(super) token: Option<AdminToken>,
    pub(super) hosts: Hosts,
}

/// What changes while the listener runs.
pub(super) struct Controls {
    access: RwLock<Access>,
    /// The server is about to shut down. It protects no other data.
    is_leaving: AtomicBool,
    /// Reloads of the configuration that have succeeded, and those that have failed.
    reloads: [AtomicU64; 2],
}

impl Controls {
    pub(super) fn new(access: Access) -> Self {
        Self {
            access: RwLock::new(access),
            is_leaving: AtomicBool::new(false),
            reloads: Default::default(),
        }
    }

    pub(super) fn access(&self) -> RwLockReadGuard<'_, Access> {
        // Nothing panics while the lock is held.
        self.access.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_access(&self, access: Access) {
        let mut now = self.access.write().unwrap_or_else(PoisonError::into_inner);
        let old = core::mem::replace(&mut *now, access);
        drop(now);
        drop(old);
    }

    pub(super) fn leave(&self) {
        self.is_leaving.store(true, Ordering::Relaxed);
    }

    pub(super) fn note_reload(&self, has_succeeded: bool) {
        self.reloads[usize::from(!has_succeeded)].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn reloads(&self) -> [u64; 2] {
        self.reloads.each_ref().map(|count| count.load(Ordering::Relaxed))
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.is_leaving.load(Ordering::Relaxed)
    }
}
