//! The operations: each changes the word and then notifies the other threads. The rules cited are
//! those of [`counter`](super).

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use super::{
    error::{Corrupt, ReadError, SetMaximumError, WriteError},
    page::Memory,
    sides::{READER, REJECTED, Side, SideFd, WRITER},
    wait::Deadline,
    word::Word,
};
use crate::{sync::Ordering, sys::Scope};

/// A wait on a shared counter looks again after at most this time, because a process may have died
/// before it notified the waiters (rule 10).
pub(super) const RESYNC: Duration = Duration::from_millis(100);

/// The most attempts to change a shared word. Each failed attempt met another change. Honest
/// processes never make so many changes in a row (rule 12).
const ATTEMPTS_MAX: u32 = 1 << 16;

/// The state that the clones of a counter share within one process.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) page: Memory,
    pub(super) scope: Scope,
    pub(super) semaphore: bool,
    pub(super) nonblocking: AtomicBool,
    /// The sides' descriptors. Between threads each is created on its first request.
    pub(super) reader: OnceLock<SideFd>,
    pub(super) writer: OnceLock<SideFd>,
}

/// A change of the word.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) from: Word,
    pub(super) to: Word,
}

impl Core {
    pub(super) fn new(page: Memory, scope: Scope, semaphore: bool, nonblocking: bool) -> Self {
        let nonblocking = AtomicBool::new(nonblocking);
        Self {
            page,
            scope,
            semaphore,
            nonblocking,
            reader: OnceLock::new(),
            writer: OnceLock::new(),
        }
    }

    pub(super) fn word(&self) -> Result<Word, Corrupt> {
        Word::unpack(self.page.live.word.load(Ordering::Acquire)).inspect_err(|_| self.alarm())
    }

    /// Rule 1: the only way in which the word changes. None if `change` leaves it unchanged.
    #[inline]
    pub(super) fn update<E: From<Corrupt>>(
        &self,
        mut change: impl FnMut(Word) -> Result<Option<Word>, E>,
    ) -> Result<Option<Step>, E> {
        let word = &self.page.live.word;
        let mut packed = word.load(Ordering::Acquire);
        let mut attempts = 0;
        loop {
            let from = Word::unpack(packed).inspect_err(|_| self.alarm())?;
            let Some(to) = change(from)? else {
                return Ok(None);
            };
            match word.compare_exchange_weak(packed, to.pack(), Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return Ok(Some(Step { from, to })),
                Err(now) => packed = now,
            }
            attempts += 1;
            if attempts == ATTEMPTS_MAX && self.is_shared() {
                return Err(Corrupt.into());
            }
        }
    }

    /// Tries one write. `None` if there is no room.
    #[inline]
    fn attempt_write(&self, n: u32) -> Result<Option<()>, WriteError> {
        let step = self.update(|word| word.written(n))?;
        Ok(step.map(|step| self.after_addition(step)))
    }

    /// Tries one read. `None` if the count is zero.
    #[inline]
    fn attempt_read(&self) -> Result<Option<u32>, ReadError> {
        let step = self.update(|word| Ok::<_, ReadError>(word.taken(self.semaphore)))?;
        Ok(step.map(|step| {
            self.after_removal(step);
            step.from.count() - step.to.count()
        }))
    }

    pub(super) fn try_write(&self, n: u32) -> Result<(), WriteError> {
        match self.attempt_write(n)? {
            Some(()) => Ok(()),
            None => self.rejected_write(n),
        }
    }

    pub(super) fn try_read(&self) -> Result<u32, ReadError> {
        match self.attempt_read()? {
            Some(n) => Ok(n),
            None => {
                self.resync(Side::Reader);
                Err(ReadError::WouldBlock)
            }
        }
    }

    pub(super) fn write(&self, n: u32) -> Result<(), WriteError> {
        if self.nonblocking.load(Relaxed) {
            return self.try_write(n);
        }
        match self.attempt_write(n)? {
            Some(()) => Ok(()),
            None => self.wait_to_write(n, Deadline::NEVER),
        }
    }

    pub(super) fn read(&self) -> Result<u32, ReadError> {
        if self.nonblocking.load(Relaxed) {
            return self.try_read();
        }
        match self.attempt_read()? {
            Some(n) => Ok(n),
            None => self.wait_to_read(Deadline::NEVER),
        }
    }

    pub(super) fn write_timeout(&self, n: u32, timeout: Duration) -> Result<(), WriteError> {
        match self.attempt_write(n)? {
            Some(()) => Ok(()),
            None => self.wait_to_write(n, Deadline::after(timeout)),
        }
    }

    pub(super) fn read_timeout(&self, timeout: Duration) -> Result<u32, ReadError> {
        match self.attempt_read()? {
            Some(n) => Ok(n),
            None => self.wait_to_read(Deadline::after(timeout)),
        }
    }

    pub(super) fn signal(&self) -> Result<bool, Corrupt> {
        let step = self.update(|word| Ok::<_, Corrupt>(word.signalled()))?;
        match step {
            Some(step) => self.after_addition(step),
            None => self.resync(Side::Writer),
        }
        Ok(step.is_some())
    }

    pub(super) fn set_maximum(&self, maximum: u32) -> Result<(), SetMaximumError> {
        let step = self.update(|word| word.with_maximum(maximum).map(Some))?;
        if let Some(step) = step {
            self.after_new_maximum(step);
        }
        Ok(())
    }

    /// The count went up: readers may continue.
    #[inline]
    fn after_addition(&self, step: Step) {
        let exposed = self.page.live.exposed.load(Ordering::Acquire);
        // Rule 10: the other side comes first, even if its level has not changed.
        if exposed & READER != 0 && (self.is_shared() || !step.from.is_readable()) {
            self.follow(Side::Reader, true);
        }
        self.page.live.readers.wake(self.scope);
        if exposed & WRITER != 0 && step.from.is_writable() && !step.to.is_writable() {
            self.follow(Side::Writer, false);
        }
    }

    /// The count went down: writers may continue.
    #[inline]
    fn after_removal(&self, step: Step) {
        let exposed = self.page.live.exposed.load(Ordering::Acquire);
        if exposed & WRITER != 0 {
            self.tell_writers(exposed, step);
        }
        self.page.live.writers.wake(self.scope);
        if exposed & READER != 0 && !step.to.is_readable() {
            self.follow(Side::Reader, false);
        }
    }

    /// Writers may continue, or must fail.
    fn after_new_maximum(&self, step: Step) {
        let exposed = self.page.live.exposed.load(Ordering::Acquire);
        if exposed & WRITER != 0 {
            self.tell_writers(exposed, step);
            if step.from.is_writable() && !step.to.is_writable() {
                self.follow(Side::Writer, false);
            }
        }
        self.page.live.writers.wake(self.scope);
    }

    fn tell_writers(&self, exposed: u32, step: Step) {
        if exposed & REJECTED != 0 {
            self.notify_rejected();
        } else if self.is_shared() || (!step.from.is_writable() && step.to.is_writable()) {
            self.follow(Side::Writer, true);
        }
    }

    /// There is no room, and the caller will poll: rules 9 and 10.
    #[cold]
    fn rejected_write(&self, n: u32) -> Result<(), WriteError> {
        if self.mark_rejected() && self.attempt_write(n)?.is_some() {
            return Ok(());
        }
        self.resync(Side::Writer);
        Err(WriteError::WouldBlock)
    }

    #[cold]
    fn wait_to_write(&self, n: u32, deadline: Deadline) -> Result<(), WriteError> {
        self.wait(Side::Writer, deadline, WriteError::TimedOut, || self.attempt_write(n))
    }

    #[cold]
    fn wait_to_read(&self, deadline: Deadline) -> Result<u32, ReadError> {
        self.wait(Side::Reader, deadline, ReadError::TimedOut, || self.attempt_read())
    }

    /// Rule 4, the waiter's part.
    fn wait<T, E>(
        &self,
        side: Side,
        deadline: Deadline,
        timed_out: E,
        attempt: impl Fn() -> Result<Option<T>, E>,
    ) -> Result<T, E> {
        let list = match side {
            Side::Reader => &self.page.live.readers,
            Side::Writer => &self.page.live.writers,
        };
        loop {
            let left = deadline.left();
            if left == Some(Duration::ZERO) {
                self.resync(side);
                return Err(timed_out);
            }
            let seen = list.enlist();
            self.page.look_again();
            if let Some(done) = attempt()? {
                return Ok(done);
            }
            let slice = if self.is_shared() {
                Some(left.map_or(RESYNC, |left| left.min(RESYNC)))
            } else {
                left
            };
            if !list.sleep(seen, self.scope, slice) {
                self.resync(side);
            }
            // This attempt usually succeeds. Enlisting again would cost the next waker a system
            // call.
            if let Some(done) = attempt()? {
                return Ok(done);
            }
        }
    }

    /// The page is corrupt. Wakes all waiters and pollers, so that they get the error (rule 11).
    #[cold]
    fn alarm(&self) {
        self.resync(Side::Writer);
        self.page.live.readers.wake(self.scope);
        self.page.live.writers.wake(self.scope);
    }

    pub(super) fn is_shared(&self) -> bool {
        self.scope == Scope::System
    }
}
