//! The memory that the users of a counter share: a struct on the heap between threads, a page of a
//! memfd between processes.
//!
//! # Why this module may contain unsafe code
//!
//! Another process can be reached only through memory that both map. The rules:
//!
//! 1. A [`Mapping`] is made from a memfd that is sealed against shrinking and at least [`PAGE_LEN`]
//!    bytes long. The seal is checked first; after it the length can only grow. So no access to the
//!    first [`PAGE_LEN`] bytes ever goes past the end of the file (`SIGBUS`).
//! 2. A [`Page`] consists only of atomics, each valid with any bits. It contains no address, length
//!    or index. Other processes may write to it at any time; their writes are values that must be
//!    checked, and can do no other harm.
//! 3. The mapping lies at an address that the kernel chose, aligned to a page. No other code knows
//!    this address. The mapping lives exactly as long as the `Mapping`'s [`View`], and references
//!    to the page borrow that.

#![cfg_attr(not(loom), allow(unsafe_code, reason = "maps memory that processes share"))]

use core::ops::Deref;

#[cfg(not(loom))]
use {
    super::error::PartsReason,
    rustix::{
        fs::{MemfdFlags, SealFlags},
        mm::{MapFlags, ProtFlags},
    },
    std::{
        ffi::c_void,
        os::fd::{AsFd, BorrowedFd, OwnedFd},
        ptr::NonNull,
    },
};

use super::{wait::WaitList, word::Word};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// The length of the memfd in bytes.
#[cfg(not(loom))]
pub(super) const PAGE_LEN: usize = 4096;

/// "windlass" and "counter", to reject foreign files at once.
const MAGIC: u64 = u64::from_le_bytes(*b"WndlsCtr");
const VERSION: u32 = 1;
/// Flag: a read takes one.
const SEMAPHORE: u32 = 1;

/// The contents of the memory.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Page {
    magic: AtomicU64,
    version: AtomicU32,
    flags: AtomicU32,
    /// All state that changes, in one cache line.
    pub(super) live: Live,
}

/// The state that every operation uses.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Live {
    /// A packed [`Word`]: rule 1 of the counter.
    pub(super) word: AtomicU64,
    /// The sides whose descriptors may be polled, and whether a polling writer was rejected: rules
    /// 6 and 9.
    pub(super) exposed: AtomicU32,
    pub(super) readers: WaitList,
    pub(super) writers: WaitList,
}

#[cfg(not(loom))]
const _: () =
    assert!(size_of::<Live>() == 64 && size_of::<Page>() == 128 && size_of::<Page>() <= PAGE_LEN);

impl Page {
    fn new(word: Word, semaphore: bool) -> Self {
        Self {
            magic: AtomicU64::new(MAGIC),
            version: AtomicU32::new(VERSION),
            flags: AtomicU32::new(if semaphore { SEMAPHORE } else { 0 }),
            live: Live {
                word: AtomicU64::new(word.pack()),
                exposed: AtomicU32::new(0),
                readers: WaitList::new(),
                writers: WaitList::new(),
            },
        }
    }

    /// Synchronises with every earlier change of the word, and makes every later one synchronise
    /// with the caller. See rule 2.
    pub(super) fn look_again(&self) {
        self.live.word.fetch_add(0, Ordering::AcqRel);
    }

    /// Makes a new page, all zeros, a counter's. The magic is written last.
    #[cfg(not(loom))]
    fn init(&self, word: Word, semaphore: bool) {
        self.version.store(VERSION, Ordering::Relaxed);
        self.flags.store(if semaphore { SEMAPHORE } else { 0 }, Ordering::Relaxed);
        self.live.word.store(word.pack(), Ordering::Relaxed);
        self.magic.store(MAGIC, Ordering::Release);
    }

    /// Whether the page is a semaphore's. Fails if it is not a counter's page.
    #[cfg(not(loom))]
    fn check(&self) -> Result<bool, PartsReason> {
        if self.magic.load(Ordering::Acquire) != MAGIC {
            return Err(PartsReason::WrongMagic);
        }
        if self.version.load(Ordering::Relaxed) != VERSION {
            return Err(PartsReason::WrongVersion);
        }
        let flags = self.flags.load(Ordering::Relaxed);
        if flags & !SEMAPHORE != 0 {
            return Err(PartsReason::Corrupt);
        }
        Word::unpack(self.live.word.load(Ordering::Acquire))?;
        Ok(flags & SEMAPHORE != 0)
    }
}

/// Where the page lies.
#[derive(Debug)]
pub(super) enum Memory {
    Heap(Page),
    #[cfg(not(loom))]
    Shared(Mapping),
}

impl Memory {
    pub(super) fn heap(word: Word, semaphore: bool) -> Self {
        Self::Heap(Page::new(word, semaphore))
    }
}

impl Deref for Memory {
    type Target = Page;

    #[inline]
    fn deref(&self) -> &Page {
        match self {
            Self::Heap(page) => page,
            #[cfg(not(loom))]
            Self::Shared(mapping) => mapping.page(),
        }
    }
}

/// A page that other processes can map too.
#[cfg(not(loom))]
#[derive(Debug)]
pub(super) struct Mapping {
    view: View,
    memfd: OwnedFd,
}

/// Only the mapped memory.
#[cfg(not(loom))]
#[derive(Debug)]
struct View {
    /// Rule 3: `PAGE_LEN` bytes, mapped until this is dropped.
    page: NonNull<Page>,
}

// SAFETY: the address has the same meaning in every thread. The page's fields are atomics, which
// any thread may use (rule 2).
#[cfg(not(loom))]
unsafe impl Send for View {}
// SAFETY: all access goes through `&Page`, and `Page` is `Sync`. The rest is as for `Send` above.
#[cfg(not(loom))]
unsafe impl Sync for View {}

#[cfg(not(loom))]
impl Mapping {
    /// Creates a memfd with a new counter in it.
    pub(super) fn create(word: Word, semaphore: bool) -> Result<Self, PartsReason> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memfd = rustix::fs::memfd_create("windlass-counter", flags)?;
        rustix::fs::ftruncate(&memfd, PAGE_LEN as u64)?;
        rustix::fs::fcntl_add_seals(&memfd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let mapping = Self::map(memfd).map_err(|(reason, _)| reason)?;
        mapping.page().init(word, semaphore);
        Ok(mapping)
    }

    /// Maps an existing memfd. Also returns whether its counter is a semaphore.
    pub(super) fn open(memfd: OwnedFd) -> Result<(Self, bool), (PartsReason, OwnedFd)> {
        let mapping = Self::map(memfd)?;
        match mapping.page().check() {
            Ok(semaphore) => Ok((mapping, semaphore)),
            Err(reason) => Err((reason, mapping.into_memfd())),
        }
    }

    fn map(memfd: OwnedFd) -> Result<Self, (PartsReason, OwnedFd)> {
        if let Err(reason) = check_memfd(memfd.as_fd()) {
            return Err((reason, memfd));
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the address is null, so the kernel chooses unused room, and no reference points
        // there.
        let address = unsafe {
            rustix::mm::mmap(core::ptr::null_mut(), PAGE_LEN, access, MapFlags::SHARED, &memfd, 0)
        };
        match address.map(|address| NonNull::new(address.cast::<Page>())) {
            Ok(Some(page)) => Ok(Self { view: View { page }, memfd }),
            // The kernel maps nothing at address zero unless told to.
            Ok(None) => Err((PartsReason::Os(rustix::io::Errno::FAULT), memfd)),
            Err(errno) => Err((errno.into(), memfd)),
        }
    }

    fn page(&self) -> &Page {
        // SAFETY: `page` is mapped, readable and writable, for as long as `self` lives (rule 3). It
        // is aligned to a page and no shorter than a `Page` (asserted above), and memory lies
        // behind it (rule 1). Any bits are a valid `Page`, and writes of other processes meet only
        // atomics (rule 2).
        unsafe { self.view.page.as_ref() }
    }

    pub(super) fn memfd(&self) -> BorrowedFd<'_> {
        self.memfd.as_fd()
    }

    /// Unmaps the page.
    pub(super) fn into_memfd(self) -> OwnedFd {
        self.memfd
    }
}

#[cfg(not(loom))]
impl Drop for View {
    fn drop(&mut self) {
        let address: *mut c_void = self.page.as_ptr().cast();
        // SAFETY: `map` mapped this address and length (rule 3). No reference to the page outlives
        // `self`, and it is unmapped only here, once.
        let unmapped = unsafe { rustix::mm::munmap(address, PAGE_LEN) };
        debug_assert!(unmapped.is_ok(), "the mapping was there");
    }
}

/// Rule 1. No process can remove the seal, so it is checked before the length.
#[cfg(not(loom))]
fn check_memfd(memfd: BorrowedFd<'_>) -> Result<(), PartsReason> {
    // A file that is not a memfd has no seals (`EINVAL`).
    let seals = rustix::fs::fcntl_get_seals(memfd).map_err(|_| PartsReason::NotSealed)?;
    // hugetlbfs can run out of pages, which would also be `SIGBUS`.
    let is_memory = rustix::fs::fstatfs(memfd)?.f_type == TMPFS_MAGIC;
    if !seals.contains(SealFlags::SHRINK) || !is_memory {
        return Err(PartsReason::NotSealed);
    }
    match usize::try_from(rustix::fs::fstat(memfd)?.st_size) {
        Ok(len) if len >= PAGE_LEN => Ok(()),
        _ => Err(PartsReason::TooSmall),
    }
}

/// `TMPFS_MAGIC` of the kernel's `include/uapi/linux/magic.h`: the file system of memfds.
#[cfg(not(loom))]
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;
