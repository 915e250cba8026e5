//! The memory that streams receive into on a ring: buffers that the kernel takes from a row of its
//! own, one pool for all streams of a reactor.
//!
//! The kernel fills a buffer, says which, and has it no more. With `IOU_PBUF_RING_INC` it fills one
//! buffer bit by bit, and says when it has done with it. A buffer is free again when the kernel has
//! done with it and nobody looks at a part of it: no handler, and no answer that is to be sent from
//! there.
//!
//! The row is kept short, and what was freed last goes back to it first: so a few buffers are used
//! over and over, and are in the processor's cache. When a receive finds none, the row becomes
//! twice as long, up to all that there are.
//!
//! # The protocol of this module
//!
//! 1. Buffers and row are mapped when the pool is made and unmapped when the last [`Lent`] and the
//!    pool are gone; whoever closes a ring that may still write to them
//!    [keeps](Pool::keep_for_ever) them.
//! 2. Of each buffer, the bytes before `taken` have been handed over by the kernel, in parts that
//!    do not overlap: one for each [`Pool::claim`]. The kernel writes to the rest while it
//!    [`is out`](Slot::is_out). A part is lent while a [`Lent`] has it; the buffer goes back to the
//!    kernel when nothing of it is lent and it is not out.
//! 3. Of one part there may be two [`Lent`]s: the one that a handler reads and changes, and one by
//!    which an answer is sent, whose bytes nobody changes any more, since the handler has given up
//!    its [`Input`](crate::stream::Input) for it. Only the first is turned into a slice.
//! 4. The row is written by this thread alone: an entry first, then the tail, with a barrier
//!    between them. The kernel reads both and writes neither.

#![allow(
    unsafe_code,
    reason = "memory that the kernel writes to, lent in parts; the protocol above"
)]

use core::{
    cell::{Cell, RefCell},
    mem::offset_of,
    ptr::NonNull,
    slice,
    sync::atomic::{AtomicU16, Ordering},
};
use std::rc::Rc;

use rustix::io::Errno;

/// linux/io_uring.h.
const CQE_F_BUFFER: u32 = 1;
const CQE_F_BUF_MORE: u32 = 1 << 4;
const CQE_BUFFER_SHIFT: u32 = 16;

/// How many buffers the kernel has at first, of those that it fills bit by bit: room for what one
/// call makes ready, twenty receives of up to 25 KiB each. All of them would be more than fits into
/// the processor's cache, and since the kernel takes the oldest, each receive would write to the
/// coldest memory there is.
const ROW_INCREMENTAL: u16 = 3;

/// The same where each receive takes a buffer of its own.
const ROW_PLAIN: u16 = 32;

/// How many buffers there are, and of what size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PoolSize {
    /// A power of two, at least two.
    pub(crate) count: u16,
    /// Bytes.
    pub(crate) size: u32,
}

impl PoolSize {
    /// Where a buffer is filled bit by bit. A message that crosses the end of one comes in two
    /// parts and has to be put together: of those of 16 KiB, one in sixteen.
    pub(crate) const INCREMENTAL: Self = Self { count: 16, size: 256 << 10 };
    /// Where each receive takes a buffer of its own.
    pub(crate) const PLAIN: Self = Self { count: 256, size: 16 << 10 };

    pub(crate) const COUNT_MAX: u16 = 1 << 15;
    pub(crate) const SIZE_MIN: u32 = 256;
    pub(crate) const SIZE_MAX: u32 = 1 << 20;

    /// The nearest size that can be had.
    pub(crate) const fn of(count: u16, size: u32) -> Self {
        let mut to = 2;
        while to < count && to < Self::COUNT_MAX {
            to *= 2;
        }
        let size = if size < Self::SIZE_MIN { Self::SIZE_MIN } else { size };
        Self { count: to, size: if size > Self::SIZE_MAX { Self::SIZE_MAX } else { size } }
    }

    pub(crate) const fn bytes(self) -> usize {
        self.count as usize * (self.size as usize + size_of::<Entry>())
    }
}

/// `struct io_uring_buf`. The row's tail lies in `reserved` of the first one.
#[repr(C)]
struct Entry {
    address: u64,
    len: u32,
    buffer: u16,
    reserved: u16,
}

const _: () = assert!(
    size_of::<Entry>() == 16
        && offset_of!(Entry, address) == 0
        && offset_of!(Entry, reserved) == 14
);

/// What is known of a buffer.
#[derive(Default)]
struct Slot {
    /// How many of its bytes the kernel has handed over.
    taken: Cell<u32>,
    /// How many [`Lent`]s are in it.
    lent: Cell<u32>,
    /// The kernel has it.
    is_out: Cell<bool>,
}

/// Zeroed memory that begins at a page, as the kernel wants the row to. A page of it takes memory
/// only when it has been written to.
struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

#[cfg(not(miri))]
impl Mapping {
    fn new(len: usize) -> Result<Self, Errno> {
        use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a mapping at an address of the kernel's choice replaces nothing.
        let start = unsafe { mmap_anonymous(core::ptr::null_mut(), len, protection, flags) }?;
        // A huge page would take memory for buffers that nothing is received into. A kernel without
        // those refuses, and has none. SAFETY: the advice changes no contents.
        let _ = unsafe { madvise(start, len, Advice::LinuxNoHugepage) };
        Ok(Self { start: NonNull::new(start.cast()).ok_or(Errno::NOMEM)?, len })
    }
}

#[cfg(not(miri))]
impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, of this length, and nobody has a part of it (protocol 1). It
        // cannot fail for a whole mapping of ours.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// Miri has no madvise(2), and checks what is allocated.
#[cfg(miri)]
impl Mapping {
    fn new(len: usize) -> Result<Self, Errno> {
        let layout = core::alloc::Layout::from_size_align(len, 4096).map_err(|_| Errno::NOMEM)?;
        // SAFETY: there are at least two buffers of some bytes, so the layout is not of size zero.
        let start = unsafe { std::alloc::alloc_zeroed(layout) };
        Ok(Self { start: NonNull::new(start).ok_or(Errno::NOMEM)?, len })
    }
}

#[cfg(miri)]
impl Drop for Mapping {
    fn drop(&mut self) {
        let layout =
            core::alloc::Layout::from_size_align(self.len, 4096).expect("it was one in `new`");
        // SAFETY: it was allocated with this layout in `new`, and nobody has a part of it (protocol
        // 1).
        unsafe { std::alloc::dealloc(self.start.as_ptr(), layout) };
    }
}

struct Memory {
    buffers: Mapping,
    row: Mapping,
    size: PoolSize,
    is_incremental: bool,
    tail: Cell<u16>,
    /// How many buffers the kernel has.
    out: Cell<u16>,
    /// How many it is to have, if there are enough: with few of them the same memory is used again
    /// while it is in the processor's cache.
    row_len: Cell<u16>,
    /// Buffers that the kernel need not have now. The one that was used last comes first.
    spares: RefCell<Vec<u16>>,
    slots: Box<[Slot]>,
}

impl Memory {
    /// Gives a buffer to the kernel (protocol 4).
    fn give(&self, buffer: u16) {
        let slot = &self.slots[usize::from(buffer)];
        debug_assert!(!slot.is_out.get() && slot.lent.get() == 0, "protocol 2");
        slot.taken.set(0);
        slot.is_out.set(true);
        self.out.set(self.out.get() + 1);
        let tail = self.tail.get();
        let place = usize::from(tail & (self.size.count - 1));
        // SAFETY: the place is below the count of entries (protocol 1).
        let entry = unsafe { self.row.start.cast::<Entry>().add(place) };
        let address = self.at(buffer, 0).as_ptr().expose_provenance() as u64;
        // SAFETY: the entry is the kernel's to read when the tail has passed it, and nobody's
        // reference.
        unsafe { entry.cast::<u64>().write(address) };
        // The length and the buffer's number, one by one: the tail lies behind the first entry's
        // number, and is not to be written here. SAFETY: inside the entry, as are the others.
        let len = unsafe { entry.byte_add(offset_of!(Entry, len)) };
        // SAFETY: as above.
        unsafe { len.cast::<u32>().write(self.size.size) };
        // SAFETY: as above.
        let number = unsafe { entry.byte_add(offset_of!(Entry, buffer)) };
        // SAFETY: as above.
        unsafe { number.cast::<u16>().write(buffer) };
        self.tail.set(tail.wrapping_add(1));
        // SAFETY: inside the first entry, which is allocated.
        let shared = unsafe { self.row.start.byte_add(offset_of!(Entry, reserved)) };
        // SAFETY: it is aligned for a `u16`, which only this thread writes, and always in this way.
        let shared = unsafe { AtomicU16::from_ptr(shared.cast().as_ptr()) };
        shared.store(tail.wrapping_add(1), Ordering::Release);
    }

    /// Where a byte of a buffer is.
    fn at(&self, buffer: u16, offset: u32) -> NonNull<u8> {
        debug_assert!(buffer < self.size.count && offset <= self.size.size);
        let offset = usize::from(buffer) * self.size.size as usize + offset as usize;
        // SAFETY: it lies inside the buffers or one past them (protocol 1).
        unsafe { self.buffers.start.add(offset) }
    }

    fn lend(self: &Rc<Self>, buffer: u16, start: NonNull<u8>, len: u32) -> Lent {
        let slot = &self.slots[usize::from(buffer)];
        slot.lent.set(slot.lent.get() + 1);
        Lent { memory: Rc::clone(self), start, len, buffer }
    }

    fn release(&self, buffer: u16) {
        let slot = &self.slots[usize::from(buffer)];
        slot.lent.set(slot.lent.get() - 1);
        if slot.lent.get() == 0 && !slot.is_out.get() {
            self.put_back(buffer);
        }
    }

    /// Nobody looks at a buffer any more.
    fn put_back(&self, buffer: u16) {
        if self.out.get() < self.row_len.get() {
            self.give(buffer);
        } else {
            self.spares.borrow_mut().push(buffer);
        }
    }

    /// The kernel has done with a buffer: it gets another one for it.
    fn take_out(&self, slot: &Slot) {
        slot.is_out.set(false);
        self.out.set(self.out.get() - 1);
        self.fill();
    }

    fn fill(&self) {
        while self.out.get() < self.row_len.get() {
            let Some(buffer) = self.spares.borrow_mut().pop() else { return };
            self.give(buffer);
        }
    }
}

/// The buffers of a reactor.
pub(crate) struct Pool(Rc<Memory>);

impl Pool {
    /// Buffers, some of which the kernel has as soon as it knows of the [row](Self::row).
    ///
    /// # Errors
    /// What mmap(2) says: the process has no memory left, or no address space.
    pub(crate) fn new(size: PoolSize, is_incremental: bool) -> Result<Self, Errno> {
        let slots = (0..size.count).map(|_| Slot::default()).collect();
        let row_len = if is_incremental { ROW_INCREMENTAL } else { ROW_PLAIN }.min(size.count);
        let memory = Memory {
            buffers: Mapping::new(size.count as usize * size.size as usize)?,
            row: Mapping::new(size.count as usize * size_of::<Entry>())?,
            size,
            is_incremental,
            tail: Cell::new(0),
            out: Cell::new(0),
            row_len: Cell::new(row_len),
            spares: RefCell::new((0..size.count).rev().collect()),
            slots,
        };
        memory.fill();
        Ok(Self(Rc::new(memory)))
    }

    /// The row's address, for the kernel.
    pub(crate) fn row(&self) -> u64 {
        self.0.row.start.as_ptr().expose_provenance() as u64
    }

    pub(crate) fn size(&self) -> PoolSize {
        self.0.size
    }

    /// How many buffers the kernel can take from the row, the one that it is filling included.
    pub(crate) fn out(&self) -> usize {
        usize::from(self.0.out.get())
    }

    /// The kernel has found no buffer: from now on it has twice as many, as far as there are some.
    #[cold]
    pub(crate) fn grow(&self) {
        let memory = &self.0;
        memory.row_len.set(memory.row_len.get().saturating_mul(2).min(memory.size.count));
        memory.fill();
    }

    /// How many buffers are neither the kernel's nor spare.
    #[cfg(test)]
    pub(crate) fn held(&self) -> usize {
        let memory = &self.0;
        usize::from(memory.size.count)
            - usize::from(memory.out.get())
            - memory.spares.borrow().len()
    }

    /// What a completion has brought, by its result and flags; nothing if it names no buffer. To be
    /// called for every completion once, in their order.
    #[inline]
    pub(crate) fn claim(&self, result: i32, flags: u32) -> Option<Lent> {
        if flags & CQE_F_BUFFER == 0 {
            return None;
        }
        let memory = &self.0;
        let buffer = (flags >> CQE_BUFFER_SHIFT) as u16;
        let slot = memory.slots.get(usize::from(buffer)).filter(|slot| slot.is_out.get())?;
        let start = slot.taken.get();
        let len = u32::try_from(result).unwrap_or(0).min(memory.size.size - start);
        slot.taken.set(start + len);
        if !memory.is_incremental || flags & CQE_F_BUF_MORE == 0 {
            memory.take_out(slot);
        }
        let lent = memory.lend(buffer, memory.at(buffer, start), len);
        // One without a byte goes back at once, with what it may have ended.
        (len > 0).then_some(lent)
    }

    /// Another hold of lent bytes, to send them from where they are; none if they are not of this
    /// pool.
    #[inline]
    pub(crate) fn lend_again(&self, bytes: &[u8]) -> Option<Lent> {
        let memory = &self.0;
        let offset = bytes.as_ptr().addr().checked_sub(memory.buffers.start.addr().get())?;
        // In so few bits a division is quick.
        let offset = u32::try_from(offset).ok()?;
        let buffer = u16::try_from(offset / memory.size.size)
            .ok()
            .filter(|buffer| *buffer < memory.size.count)?;
        let slot = &memory.slots[usize::from(buffer)];
        debug_assert!(slot.lent.get() > 0, "bytes of the pool are looked at by who was lent them");
        let start = memory.at(buffer, offset % memory.size.size);
        Some(memory.lend(buffer, start, u32::try_from(bytes.len()).ok()?))
    }

    /// Never frees the memory: the ring may write to it still.
    pub(crate) fn keep_for_ever(&self) {
        core::mem::forget(Rc::clone(&self.0));
    }
}

/// A part of a buffer. When it is dropped the buffer may go back to the kernel.
pub(crate) struct Lent {
    memory: Rc<Memory>,
    start: NonNull<u8>,
    len: u32,
    buffer: u16,
}

impl Lent {
    /// The bytes, for the handler that has received them.
    #[inline]
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the kernel has handed these bytes over, and to nobody else, and gets them back
        // only when this is dropped (protocol 2); the memory lives as long (protocol 1). Who has
        // another hold of them makes no slice of it (protocol 3).
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len as usize) }
    }

    /// Where the bytes are, to be read for as long as this lives.
    #[cfg(test)]
    pub(crate) fn start(&self) -> *const u8 {
        self.start.as_ptr()
    }
}

impl Drop for Lent {
    #[inline]
    fn drop(&mut self) {
        self.memory.release(self.buffer);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn flags(buffer: u32, has_more: bool) -> u32 {
        CQE_F_BUFFER | if has_more { CQE_F_BUF_MORE } else { 0 } | buffer << CQE_BUFFER_SHIFT
    }

    /// The kernel's side of the row: what it takes next.
    struct Kernel {
        head: u16,
        /// The buffer that it fills, and how far.
        filling: Option<(u16, u32)>,
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
                    // SAFETY: the place is below the count of entries.
                    let entry = unsafe { memory.row.start.cast::<Entry>().add(place) };
                    // SAFETY: an entry of the row, which nobody writes now.
                    let entry = unsafe { entry.as_ref() };
                    assert_eq!(
                        (entry.address, entry.len),
                        (memory.at(entry.buffer, 0).as_ptr().addr() as u64, memory.size.size)
                    );
                    (entry.buffer, 0)
                }
            };
            let len = len.min(memory.size.size - from);
            // SAFETY: the part of the buffer that the kernel has.
            unsafe { memory.at(buffer, from).write_bytes(buffer as u8 ^ 0x5a, len as usize) };
            let has_more = memory.is_incremental && from + len < memory.size.size;
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
        let mut first = pool.claim(5, flags(0, false)).unwrap();
        assert_eq!((pool.out(), first.bytes().len()), (1, 5));
        first.bytes().copy_from_slice(b"hello");
        let second = pool.lend_again(&first.bytes()[1..3]).unwrap();
        drop(first);
        assert_eq!(pool.out(), 1);
        drop(second);
        assert_eq!(pool.out(), 2);
        assert!(pool.lend_again(b"elsewhere").is_none());
    }

    #[test]
    fn an_incremental_buffer_comes_back_when_the_kernel_has_done_with_it_too() {
        let pool = Pool::new(PoolSize::of(2, 256), true).unwrap();
        let first = pool.claim(100, flags(1, true)).unwrap();
        let mut second = pool.claim(100, flags(1, true)).unwrap();
        assert_eq!(second.start().addr() - first.start().addr(), 100);
        drop(first);
        assert_eq!(pool.out(), 2, "the kernel fills it still");
        let third = pool.claim(56, flags(1, false)).unwrap();
        assert_eq!((pool.out(), second.bytes().len()), (1, 100));
        drop((second, third));
        assert_eq!(pool.out(), 2);
    }

    #[test]
    fn few_buffers_are_used_over_and_over_until_they_are_not_enough() {
        let pool = Pool::new(PoolSize::of(16, 256), true).unwrap();
        assert_eq!((pool.out(), pool.held()), (usize::from(ROW_INCREMENTAL), 0));
        let mut used = std::collections::BTreeSet::new();
        let mut kernel = Kernel { head: 0, filling: None };
        for _ in 0..100 {
            let (result, flags) = kernel.receive(&pool, 256).unwrap();
            let lent = pool.claim(result, flags).unwrap();
            used.insert(lent.buffer);
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
        assert!(pool.claim(0, flags(0, false)).is_none());
        assert!(pool.claim(-105, 0).is_none());
        assert_eq!(pool.out(), 2);
    }

    #[test]
    fn the_memory_outlives_the_pool_while_a_part_is_lent() {
        let pool = Pool::new(PoolSize::of(2, 256), true).unwrap();
        let mut lent = pool.claim(3, flags(0, true)).unwrap();
        drop(pool);
        lent.bytes().fill(7);
        assert_eq!(lent.bytes(), [7; 3]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 4 } else { 128 }, failure_persistence: None, ..ProptestConfig::default() })]

        /// Whatever is received and whenever it is let go: no two parts overlap, and in the end the
        /// kernel has every buffer again.
        #[test]
        fn buffers_are_neither_lost_nor_lent_twice(is_incremental: bool, count in 1u16..8, steps in prop::collection::vec((0u32..400, 0usize..4), 1..60)) {
            let pool = Pool::new(PoolSize::of(count, 256), is_incremental).unwrap();
            let mut kernel = Kernel { head: 0, filling: None };
            let mut lent: Vec<Lent> = Vec::new();
            for (len, gone) in steps {
                if let Some((result, flags)) = kernel.receive(&pool, len) {
                    if let Some(mut part) = pool.claim(result, flags) {
                        let mark = part.buffer as u8 ^ 0x5a;
                        prop_assert!(part.bytes().iter().all(|byte| *byte == mark));
                        part.bytes().fill(0);
                        lent.push(part);
                    }
                } else {
                    prop_assert_eq!(pool.out(), 0);
                    prop_assert!(!lent.is_empty(), "somebody has them");
                }
                lent.drain(..gone.min(lent.len()));
            }
            lent.clear();
            prop_assert_eq!(pool.held(), 0);
            (0..3).for_each(|_| pool.grow());
            prop_assert_eq!(pool.out(), usize::from(pool.size().count));
        }
    }
}
