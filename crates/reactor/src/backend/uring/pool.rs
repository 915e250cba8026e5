//! The memory that streams receive into on a ring: provided buffers that the kernel takes from a
//! buffer ring, here called the row. One pool serves all streams of a reactor.
//!
//! The kernel fills a buffer, reports which one, and gives it up. With `IOU_PBUF_RING_INC` it fills
//! one buffer incrementally, and reports when it is done with it. A buffer is free again when the
//! kernel is done with it and no part of it is in use. A handler or a reply that is sent from the
//! buffer may use a part.
//!
//! The row is kept short, and the buffer freed last is returned to it first. So a few buffers are
//! reused all the time and stay in the processor's cache. When a receive finds no buffer, the
//! length of the row doubles, up to the number of buffers.
//!
//! # The protocol of this module
//!
//! 1. Buffers and row are mapped when the pool is made, and unmapped when the pool and the last
//!    [`Held`] are dropped. A [`ReceivedPart`] does not outlive its pool. Code that closes a ring
//!    that may still write to them must [keep](Pool::keep_for_ever) them.
//! 2. The kernel has handed over the bytes of a buffer before `next`, in parts that do not
//!    overlap: one for each [`Pool::claim`]. It writes to the rest while the buffer
//!    [is out](is_out). A part is in use while a [`ReceivedPart`] refers to it. The buffer
//!    returns to the kernel when no part is in use and it is not out. A [`Held`] counts as a part
//!    in use.
//! 3. A reply is sent from the buffer while a [`Held`] keeps it. Its bytes no longer change,
//!    because the handler has given up its [`Input`](crate::stream::Input) for it. Only a
//!    [`ReceivedPart`] is turned into a slice.

#![allow(
    unsafe_code,
    reason = "memory that the kernel writes to, used in parts; the protocol above"
)]

use core::{mem::ManuallyDrop, ptr::NonNull, slice};
use std::rc::Rc;

use rustix::io::Errno;

use super::buffer_ring::{Memory, is_out};
use crate::backend::ring_settings::PoolSize;

/// From linux/io_uring.h.
const CQE_F_BUFFER: u32 = 1;
const CQE_F_BUF_MORE: u32 = 1 << 4;
const CQE_BUFFER_SHIFT: u32 = 16;

/// The buffers of a reactor.
pub(crate) struct Pool(Rc<Memory>);

impl Pool {
    /// Creates the buffers. The kernel owns some of them as soon as the [row](Self::row) is
    /// registered.
    ///
    /// # Errors
    /// The errors of mmap(2): no memory or no address space left.
    pub(crate) fn new(size: PoolSize, is_incremental: bool) -> Result<Self, Errno> {
        Ok(Self(Rc::new(Memory::new(size, is_incremental)?)))
    }

    /// The row's address, for the kernel.
    pub(crate) fn row(&self) -> u64 {
        self.0.row.start.as_ptr().expose_provenance() as u64
    }

    pub(crate) fn size(&self) -> PoolSize {
        self.0.size
    }

    /// The number of buffers that the kernel can use, including the one that it is filling.
    pub(crate) fn out(&self) -> usize {
        usize::from(self.0.out.get())
    }

    /// The kernel has found no buffer: doubles the length of the row, as far as there are buffers.
    #[cold]
    pub(crate) fn grow(&self) {
        let memory = &self.0;
        memory.row_len.set(memory.row_len.get().saturating_mul(2).min(memory.size.count));
        memory.fill();
    }

    /// The number of buffers that are neither the kernel's nor spare.
    #[cfg(test)]
    pub(crate) fn held(&self) -> usize {
        let memory = &self.0;
        usize::from(memory.size.count)
            - usize::from(memory.out.get())
            - memory.spares.borrow().len()
    }

    /// The bytes of a completion, by its result and flags. `None` if it names no buffer. Must be
    /// called once for every completion, in their order.
    pub(crate) fn claim(&self, result: i32, flags: u32) -> Option<Claim> {
        let memory = &self.0;
        if flags & CQE_F_BUFFER == 0 {
            return None;
        }
        let buffer = (flags >> CQE_BUFFER_SHIFT) as u16;
        let left = memory.slots.get(usize::from(buffer)).map_or(0, |slot| slot.left.get());
        let claim = self.claim_bytes(u32::try_from(result).unwrap_or(0).min(left), flags)?;
        if claim.0.len == 0 {
            // An empty part is released at once. That may also release its buffer.
            self.give_up(claim);
            return None;
        }
        Some(claim)
    }

    /// Copies the bytes of a completion that is not claimed yet. `ahead` is the number of bytes of
    /// the same buffer that belong to earlier completions, which are not claimed yet either.
    pub(crate) fn copy_unclaimed(&self, ahead: u32, len: u32, flags: u32, to: &mut Vec<u8>) {
        let Some(slot) = buffer_of(flags).and_then(|b| self.0.slots.get(usize::from(b))) else {
            return;
        };
        if u64::from(ahead) + u64::from(len) > u64::from(slot.left.get()) {
            return;
        }
        // SAFETY: That many bytes of the buffer are left, so it is inside the buffer or one past
        // its end.
        let start = unsafe { slot.next.get().add(ahead as usize) };
        // SAFETY: The kernel has handed over these bytes with the completion. No part of them is
        // in use, because the completion is not claimed.
        to.extend_from_slice(unsafe { slice::from_raw_parts(start.as_ptr(), len as usize) });
    }

    /// Like [`claim`](Self::claim), for a completion that has returned `len` bytes.
    #[inline(always)]
    pub(crate) fn claim_bytes(&self, len: u32, flags: u32) -> Option<Claim> {
        if flags & CQE_F_BUFFER == 0 {
            return None;
        }
        let memory = &self.0;
        let buffer = (flags >> CQE_BUFFER_SHIFT) as u16;
        let slot = memory.slots.get(usize::from(buffer))?;
        let left = slot.left.get();
        if len > left || !is_out(slot, len) {
            return None;
        }
        let start = slot.next.get();
        // SAFETY: At least `len` bytes of the buffer are left, so it is inside the buffer or one
        // past its end.
        slot.next.set(unsafe { start.add(len as usize) });
        slot.left.set(left - len);
        slot.in_use.set(slot.in_use.get() + 1);
        // Without `IOU_PBUF_RING_INC` the flag never comes.
        if flags & CQE_F_BUF_MORE == 0 {
            memory.take_out(slot);
        }
        Some(Claim(Part { start, len, buffer }))
    }

    /// Passes on the bytes of a claim.
    ///
    /// # Safety
    /// The pool lives at least as long as the result.
    #[inline(always)]
    pub(crate) unsafe fn hand_out(&self, claim: Claim) -> ReceivedPart {
        ReceivedPart { memory: NonNull::from(&*self.0), part: claim.0 }
    }

    /// Releases a claim that nobody has taken.
    pub(crate) fn give_up(&self, claim: Claim) {
        self.0.release(claim.0.buffer);
    }

    /// Keeps a buffer of which a part is in use.
    pub(crate) fn hold(&self, buffer: u16) -> Held {
        let slot = &self.0.slots[usize::from(buffer)];
        debug_assert!(slot.in_use.get() > 0, "bytes of the pool are sent from a part in use");
        slot.in_use.set(slot.in_use.get() + 1);
        Held { memory: Rc::clone(&self.0), buffer }
    }

    /// Keeps the memory forever, because the ring may still write to it.
    pub(crate) fn keep_for_ever(&self) {
        core::mem::forget(Rc::clone(&self.0));
    }
}

/// The number of the buffer that a completion names.
pub(crate) const fn buffer_of(flags: u32) -> Option<u16> {
    if flags & CQE_F_BUFFER == 0 {
        return None;
    }
    Some((flags >> CQE_BUFFER_SHIFT) as u16)
}

/// Where a part of a buffer lies. It may no longer be in use.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    start: NonNull<u8>,
    len: u32,
    buffer: u16,
}

/// A part of a buffer that a completion has returned, until it is [handed out](Pool::hand_out) or
/// [given up](Pool::give_up). It counts as in use.
pub(crate) struct Claim(Part);

impl Default for Part {
    fn default() -> Self {
        Self { start: NonNull::dangling(), len: 0, buffer: 0 }
    }
}

impl Part {
    /// The buffer of bytes of the pool, if they begin in this part.
    #[inline(always)]
    pub(crate) fn buffer_of(self, bytes: &[u8]) -> Option<u16> {
        let offset = bytes.as_ptr().addr().wrapping_sub(self.start.addr().get());
        (offset < self.len as usize).then_some(self.buffer)
    }
}

/// Keeps a buffer from the kernel. When it is dropped, the buffer may return.
pub(crate) struct Held {
    memory: Rc<Memory>,
    buffer: u16,
}

impl Drop for Held {
    #[inline]
    fn drop(&mut self) {
        self.memory.release(self.buffer);
    }
}

/// A part of a buffer. When it is dropped, the buffer may return to the kernel.
pub(crate) struct ReceivedPart {
    memory: NonNull<Memory>,
    part: Part,
}

impl ReceivedPart {
    /// The bytes, for the handler that has received them.
    #[inline]
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: The kernel has handed over these bytes to this value only. It gets them back only
        // after this is dropped (protocol 2), and the memory lives as long (protocol 1). A reply
        // that is sent from them makes no slice (protocol 3).
        unsafe { slice::from_raw_parts_mut(self.part.start.as_ptr(), self.part.len as usize) }
    }

    #[inline(always)]
    pub(crate) fn part(&self) -> Part {
        self.part
    }

    /// Drops it, inlined.
    #[inline(always)]
    pub(crate) fn give_back(self) {
        ManuallyDrop::new(self).release();
    }

    #[inline(always)]
    fn release(&self) {
        // SAFETY: The pool lives, and with it its memory (protocol 1).
        unsafe { self.memory.as_ref() }.release(self.part.buffer);
    }

    /// The address of the bytes, readable as long as `self` lives.
    #[cfg(test)]
    pub(crate) fn start(&self) -> *const u8 {
        self.part.start.as_ptr()
    }
}

impl Drop for ReceivedPart {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{
        super::buffer_ring::{Entry, ROW_INCREMENTAL},
        *,
    };

    const fn flags(buffer: u32, has_more: bool) -> u32 {
        CQE_F_BUFFER | if has_more { CQE_F_BUF_MORE } else { 0 } | buffer << CQE_BUFFER_SHIFT
    }

    fn claim(pool: &Pool, result: i32, flags: u32) -> Option<ReceivedPart> {
        // SAFETY: The tests drop the parts before the pool.
        pool.claim(result, flags).map(|claim| unsafe { pool.hand_out(claim) })
    }

    /// Simulates the kernel's side of the row: the index that it takes next.
    struct Kernel {
        head: u16,
        /// The buffer that it fills, and the number of bytes filled.
        filling: Option<(u16, u32)>,
        is_incremental: bool,
    }

    impl Kernel {
        fn receive(&mut self, pool: &Pool, len: u32) -> Option<(i32, u32)> {
            let memory = &pool.0;
            let (buffer, from) = match self.filling.take() {
                Some(filling) => filling,
                None if self.head == memory.tail.get() => return None,
                None => {
                    let place = usize::from(self.head & (memory.size.count - 1));
                    self.head = self.head.wrapping_add(1);
                    // SAFETY: The index is below the number of entries.
                    let entry = unsafe { memory.row.start.cast::<Entry>().add(place) };
                    // SAFETY: It is an entry of the row, and no code writes it now.
                    let entry = unsafe { entry.as_ref() };
                    assert_eq!(
                        (entry.address, entry.len),
                        (memory.start(entry.buffer).as_ptr().addr() as u64, memory.size.size)
                    );
                    (entry.buffer, 0)
                }
            };
            let len = len.min(memory.size.size - from);
            // SAFETY: It is inside the buffer.
            let start = unsafe { memory.start(buffer).add(from as usize) };
            // SAFETY: It is in the part of the buffer that the kernel owns.
            unsafe { start.write_bytes(buffer as u8 ^ 0x5a, len as usize) };
            let has_more = self.is_incremental && from + len < memory.size.size;
            if has_more {
                self.filling = Some((buffer, from + len));
            }
            Some((i32::try_from(len).unwrap(), flags(u32::from(buffer), has_more)))
        }
    }

    #[test]
    fn sizes_are_those_that_the_kernel_takes() {
        assert_eq!(PoolSize::of(0, 0), PoolSize { count: 2, size: PoolSize::SIZE_MIN });
        assert_eq!(PoolSize::of(3, 1000), PoolSize { count: 4, size: 1000 });
        assert_eq!(
            PoolSize::of(u16::MAX, u32::MAX),
            PoolSize { count: PoolSize::COUNT_MAX, size: PoolSize::SIZE_MAX }
        );
        assert_eq!(PoolSize::INCREMENTAL.bytes(), (4 << 20) + 16 * 16);
    }

    #[test]
    fn a_plain_buffer_comes_back_when_nobody_has_it() {
        let pool = Pool::new(PoolSize::of(2, 256), false).unwrap();
        let mut first = claim(&pool, 5, flags(0, false)).unwrap();
        assert_eq!((pool.out(), first.bytes().len()), (1, 5));
        first.bytes().copy_from_slice(b"hello");
        let part = first.part();
        let second = pool.hold(part.buffer_of(&first.bytes()[1..3]).unwrap());
        drop(first);
        assert_eq!(pool.out(), 1);
        drop(second);
        assert_eq!(pool.out(), 2);
        assert!(part.buffer_of(b"elsewhere").is_none());
        assert!(Part::default().buffer_of(b"elsewhere").is_none());
    }

    #[test]
    fn an_incremental_buffer_comes_back_when_the_kernel_has_done_with_it_too() {
        let pool = Pool::new(PoolSize::of(2, 256), true).unwrap();
        let first = claim(&pool, 100, flags(1, true)).unwrap();
        let mut second = claim(&pool, 100, flags(1, true)).unwrap();
        assert_eq!(second.start().addr() - first.start().addr(), 100);
        drop(first);
        assert_eq!(pool.out(), 2, "the kernel fills it still");
        let third = claim(&pool, 56, flags(1, false)).unwrap();
        assert_eq!((pool.out(), second.bytes().len()), (1, 100));
        drop((second, third));
        assert_eq!(pool.out(), 2);
    }

    #[test]
    fn few_buffers_are_used_over_and_over_until_they_are_not_enough() {
        let pool = Pool::new(PoolSize::of(16, 256), true).unwrap();
        assert_eq!((pool.out(), pool.held()), (usize::from(ROW_INCREMENTAL), 0));
        let mut used = std::collections::BTreeSet::new();
        let mut kernel = Kernel { head: 0, filling: None, is_incremental: true };
        for _ in 0..100 {
            let (result, flags) = kernel.receive(&pool, 256).unwrap();
            let part = claim(&pool, result, flags).unwrap();
            used.insert(part.part.buffer);
            assert_eq!((pool.out(), pool.held()), (usize::from(ROW_INCREMENTAL), 1));
        }
        assert_eq!(used.len(), usize::from(ROW_INCREMENTAL) + 1);
        pool.grow();
        assert_eq!(pool.out(), 2 * usize::from(ROW_INCREMENTAL));
        (0..9).for_each(|_| pool.grow());
        assert_eq!(pool.out(), 16);
    }

    #[test]
    fn a_completion_without_bytes_gives_its_buffer_back_and_one_without_a_buffer_has_none() {
        let pool = Pool::new(PoolSize::of(2, 256), false).unwrap();
        assert!(claim(&pool, 0, flags(0, false)).is_none());
        assert!(claim(&pool, -105, 0).is_none());
        assert_eq!(pool.out(), 2);
    }

    #[test]
    fn a_claim_that_nobody_takes_gives_its_buffer_back() {
        let pool = Pool::new(PoolSize::of(2, 256), false).unwrap();
        let claim = pool.claim(5, flags(0, false)).unwrap();
        assert_eq!(pool.out(), 1);
        pool.give_up(claim);
        assert_eq!(pool.out(), 2);
        assert!(pool.claim_bytes(257, flags(0, false)).is_none(), "more than the buffer has");
        assert_eq!(pool.claim(257, flags(0, false)).unwrap().0.len, 256);
    }

    #[test]
    fn the_memory_outlives_the_pool_while_a_buffer_is_held() {
        let pool = Pool::new(PoolSize::of(2, 256), true).unwrap();
        let mut part = claim(&pool, 3, flags(0, true)).unwrap();
        part.bytes().fill(7);
        let (start, held) = (part.start(), pool.hold(part.part().buffer));
        drop(part);
        drop(pool);
        // SAFETY: The buffer is held, so its bytes are readable.
        assert_eq!(unsafe { slice::from_raw_parts(start, 3) }, [7; 3]);
        drop(held);
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: if cfg!(miri) { 4 } else { 128 },
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        /// For any order of receives and releases, no two parts overlap, and in the end the kernel
        /// has every buffer again.
        #[test]
        fn buffers_are_neither_lost_nor_handed_out_twice(
            is_incremental: bool,
            count in 1u16..8,
            steps in prop::collection::vec((0u32..400, 0usize..4), 1..60),
        ) {
            let pool = Pool::new(PoolSize::of(count, 256), is_incremental).unwrap();
            let mut kernel = Kernel { head: 0, filling: None, is_incremental };
            let mut parts: Vec<ReceivedPart> = Vec::new();
            for (len, gone) in steps {
                if let Some((result, flags)) = kernel.receive(&pool, len) {
                    if let Some(mut part) = claim(&pool, result, flags) {
                        let mark = part.part.buffer as u8 ^ 0x5a;
                        prop_assert!(part.bytes().iter().all(|byte| *byte == mark));
                        part.bytes().fill(0);
                        parts.push(part);
                    }
                } else {
                    prop_assert_eq!(pool.out(), 0);
                    prop_assert!(!parts.is_empty(), "somebody has them");
                }
                parts.drain(..gone.min(parts.len()));
            }
            parts.clear();
            prop_assert_eq!(pool.held(), 0);
            (0..3).for_each(|_| pool.grow());
            prop_assert_eq!(pool.out(), usize::from(pool.size().count));
        }
    }
}
