//! The buffers that the kernel receives into, and the row: the ring of provided buffers
//! (`struct io_uring_buf_ring`) from which it takes them.
//!
//! # The protocol of this module
//!
//! 1. Buffers and row are mapped when a [`Memory`] is made, and unmapped when it is dropped. The
//!    [pool](super::pool) keeps it as long as the kernel or a part in use needs it.
//! 2. Only this thread writes to the row: an entry first, then the tail, with a barrier between
//!    them. The kernel reads both and writes neither.

#![allow(unsafe_code, reason = "memory that the kernel writes to; the protocol above")]

use core::{
    cell::{Cell, RefCell},
    mem::offset_of,
    ptr::NonNull,
    sync::atomic::{AtomicU16, Ordering},
};

use rustix::io::Errno;

use crate::backend::ring_settings::{ENTRY_BYTES, PoolSize};

/// The initial length of the row with incremental buffers. It has room for the data that one call
/// delivers: twenty receives of up to 25 KiB each. All the buffers together would not fit into the
/// processor's cache. Since the kernel takes the oldest buffer, each receive would then write to
/// the coldest memory.
pub(super) const ROW_INCREMENTAL: u16 = 3;

/// The initial length if each receive takes a buffer of its own.
const ROW_PLAIN: u16 = 32;

/// `struct io_uring_buf`. The row's tail is stored in `reserved` of the first one.
#[repr(C)]
pub(super) struct Entry {
    pub(super) address: u64,
    pub(super) len: u32,
    pub(super) buffer: u16,
    reserved: u16,
}

const _: () = assert!(
    size_of::<Entry>() == ENTRY_BYTES
        && offset_of!(Entry, address) == 0
        && offset_of!(Entry, reserved) == 14
);

/// The state of a buffer.
pub(super) struct Slot {
    /// The address of the first byte that the kernel has not handed over.
    pub(super) next: Cell<NonNull<u8>>,
    /// The number of bytes from there on, while the kernel owns it; else zero.
    pub(super) left: Cell<u32>,
    /// The number of parts of it that are in use or held.
    pub(super) in_use: Cell<u32>,
    /// The kernel owns it.
    pub(super) is_out: Cell<bool>,
}

/// Whether the kernel may hand over `len` bytes of a buffer. Only a buffer that it owns has bytes
/// left.
#[inline(always)]
pub(super) fn is_out(slot: &Slot, len: u32) -> bool {
    len > 0 || slot.is_out.get()
}

/// Zeroed memory that starts at a page boundary, as the kernel requires for the row. A page uses
/// memory only after it was written to.
pub(super) struct Mapping {
    pub(super) start: NonNull<u8>,
    len: usize,
}

#[cfg(not(miri))]
impl Mapping {
    fn new(len: usize) -> Result<Self, Errno> {
        use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: A mapping at an address that the kernel chooses replaces no other mapping.
        let start = unsafe { mmap_anonymous(core::ptr::null_mut(), len, protection, flags) }?;
        // A huge page would use memory for buffers that are never written. A kernel without huge
        // pages rejects the advice, which is harmless. SAFETY: The advice does not change the
        // contents.
        let _ = unsafe { madvise(start, len, Advice::LinuxNoHugepage) };
        Ok(Self { start: NonNull::new(start.cast()).ok_or(Errno::NOMEM)?, len })
    }
}

#[cfg(not(miri))]
impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: The mapping is ours, has this length, and no part of it is in use (protocol 1).
        // munmap(2) cannot fail for a whole mapping of ours.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// Miri has no madvise(2), and checks allocations.
#[cfg(miri)]
impl Mapping {
    fn new(len: usize) -> Result<Self, Errno> {
        let layout = core::alloc::Layout::from_size_align(len, 4096).map_err(|_| Errno::NOMEM)?;
        // SAFETY: There are at least two buffers, none of them empty, so the size of the layout is
        // not zero.
        let start = unsafe { std::alloc::alloc_zeroed(layout) };
        Ok(Self { start: NonNull::new(start).ok_or(Errno::NOMEM)?, len })
    }
}

#[cfg(miri)]
impl Drop for Mapping {
    fn drop(&mut self) {
        let layout =
            core::alloc::Layout::from_size_align(self.len, 4096).expect("it was one in `new`");
        // SAFETY: It was allocated with this layout in `new`, and no part of it is in use (protocol
        // 1).
        unsafe { std::alloc::dealloc(self.start.as_ptr(), layout) };
    }
}

pub(super) struct Memory {
    buffers: Mapping,
    pub(super) row: Mapping,
    pub(super) size: PoolSize,
    pub(super) tail: Cell<u16>,
    /// The number of buffers that the kernel owns.
    pub(super) out: Cell<u16>,
    /// The target for `out`, if there are enough buffers. With few buffers, the same memory is
    /// reused while it is in the processor's cache.
    pub(super) row_len: Cell<u16>,
    /// Buffers that the kernel does not need now. The one used last is taken first.
    pub(super) spares: RefCell<Vec<u16>>,
    pub(super) slots: Box<[Slot]>,
}

impl Memory {
    /// Creates the buffers and the row. The kernel owns the buffers of the row as soon as it is
    /// registered.
    ///
    /// # Errors
    /// The errors of mmap(2).
    pub(super) fn new(size: PoolSize, is_incremental: bool) -> Result<Self, Errno> {
        let buffers = Mapping::new(size.count as usize * size.size as usize)?;
        let slot = |_| Slot {
            next: Cell::new(buffers.start),
            left: Cell::new(0),
            in_use: Cell::new(0),
            is_out: Cell::new(false),
        };
        let slots = (0..size.count).map(slot).collect();
        let row_len = if is_incremental { ROW_INCREMENTAL } else { ROW_PLAIN }.min(size.count);
        let memory = Memory {
            buffers,
            row: Mapping::new(size.count as usize * size_of::<Entry>())?,
            size,
            tail: Cell::new(0),
            out: Cell::new(0),
            row_len: Cell::new(row_len),
            spares: RefCell::new((0..size.count).rev().collect()),
            slots,
        };
        memory.fill();
        Ok(memory)
    }

    /// Gives a buffer to the kernel (protocol 2).
    fn give(&self, buffer: u16) {
        let slot = &self.slots[usize::from(buffer)];
        debug_assert!(!slot.is_out.get() && slot.in_use.get() == 0, "protocol 2");
        slot.next.set(self.start(buffer));
        slot.left.set(self.size.size);
        slot.is_out.set(true);
        self.out.set(self.out.get() + 1);
        let tail = self.tail.get();
        let place = usize::from(tail & (self.size.count - 1));
        // SAFETY: The index is below the number of entries, so the address is inside the row
        // (protocol 1).
        let entry = unsafe { self.row.start.cast::<Entry>().add(place) };
        let address = self.start(buffer).as_ptr().expose_provenance() as u64;
        // SAFETY: The address is inside the row and aligned. The kernel reads the entry only after
        // the tail has passed it, and no reference to it exists.
        unsafe { entry.cast::<u64>().write(address) };
        // The length and the buffer's number are written separately: in the first entry the tail
        // follows the number and must not be written here. SAFETY: The field is inside the entry,
        // like the other fields.
        let len = unsafe { entry.byte_add(offset_of!(Entry, len)) };
        // SAFETY: As above.
        unsafe { len.cast::<u32>().write(self.size.size) };
        // SAFETY: As above.
        let number = unsafe { entry.byte_add(offset_of!(Entry, buffer)) };
        // SAFETY: As above.
        unsafe { number.cast::<u16>().write(buffer) };
        self.tail.set(tail.wrapping_add(1));
        // SAFETY: It is inside the first entry, which is allocated.
        let shared = unsafe { self.row.start.byte_add(offset_of!(Entry, reserved)) };
        // SAFETY: It is aligned for a `u16`. Only this thread writes it, and always as an atomic.
        let shared = unsafe { AtomicU16::from_ptr(shared.cast().as_ptr()) };
        shared.store(tail.wrapping_add(1), Ordering::Release);
    }

    /// The address of a buffer.
    pub(super) fn start(&self, buffer: u16) -> NonNull<u8> {
        assert!(buffer < self.size.count, "there are fewer buffers");
        // SAFETY: It is inside the buffers (protocol 1).
        unsafe { self.buffers.start.add(usize::from(buffer) * self.size.size as usize) }
    }

    #[inline(always)]
    pub(super) fn release(&self, buffer: u16) {
        let slot = &self.slots[usize::from(buffer)];
        let in_use = slot.in_use.get() - 1;
        slot.in_use.set(in_use);
        if in_use == 0 && !slot.is_out.get() {
            self.put_back(buffer);
        }
    }

    /// The last part of a buffer was released.
    #[inline(never)]
    fn put_back(&self, buffer: u16) {
        if self.out.get() < self.row_len.get() {
            self.give(buffer);
        } else {
            self.spares.borrow_mut().push(buffer);
        }
    }

    /// The kernel is done with a buffer: it gets another one instead.
    #[inline(never)]
    pub(super) fn take_out(&self, slot: &Slot) {
        slot.is_out.set(false);
        slot.left.set(0);
        self.out.set(self.out.get() - 1);
        self.fill();
    }

    pub(super) fn fill(&self) {
        while self.out.get() < self.row_len.get() {
            let Some(buffer) = self.spares.borrow_mut().pop() else { return };
            self.give(buffer);
        }
    }
}
