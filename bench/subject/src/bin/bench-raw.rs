//! The hand-written epoll loop, the reference of all instruction counts.
//!
//! `epoll_event.data` is the address of a node whose first field is a function. A ready event costs
//! two loads and a call. There is no registry and no guard, and a handler cannot delete a
//! registration safely. The wait is epoll_pwait2(2) through rustix, as in windlass. If the kernel
//! or valgrind does not support it, the wait is epoll_wait(2) through libc. This is chosen before
//! the loop starts, so the loop has no branch for it.

#![deny(unsafe_code)]
#![allow(
    unsafe_code,
    reason = "it is the hand-written loop, with all that a hand takes upon itself"
)]

#[path = "bench-raw/eventfd_loop.rs"]
mod eventfd_loop;
#[path = "bench-raw/http.rs"]
mod http;
#[path = "bench-raw/tasks.rs"]
mod tasks;
#[path = "bench-raw/wait.rs"]
mod wait;

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::ExitCode;

use rustix::event::epoll;
use windlass_bench_driver::dispatch::Subject;
use windlass_bench_driver::poll0::PollSubject;
use windlass_bench_driver::protocol::Trigger;
use windlass_bench_driver::sleep::SleepSubject;
use windlass_bench_driver::source::{Device, Handler, Source};
use windlass_bench_driver::{EVENTS_PER_TURN, Error, Program, Suite};

fn main() -> ExitCode {
    let suites = if has_epoll_pwait2() { suites::<true>() } else { suites::<false>() };
    Program { version: env!("CARGO_PKG_VERSION").to_owned(), suites }.serve()
}

fn suites<const PWAIT2: bool>() -> Vec<Suite> {
    vec![
        Suite::dispatch::<Raw<PWAIT2>>(),
        Suite::poll0::<Raw<PWAIT2>>(),
        Suite::sleep::<Sleeping>(),
        Suite::latency::<tasks::RawTasks>(),
        Suite::tasks::<tasks::RawTasks>(),
        Suite::http::<http::RawHttp>(),
    ]
}

fn has_epoll_pwait2() -> bool {
    let Ok(epoll) = epoll::create(epoll::CreateFlags::CLOEXEC) else {
        return false;
    };
    let zero = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut events = [MaybeUninit::uninit()];
    epoll::wait(&epoll, &mut events, Some(&zero)).is_ok()
}

/// The object to which `epoll_event.data` points.
#[repr(C)]
struct Head {
    call: unsafe fn(*mut Head),
}

#[repr(C)]
struct Node<H> {
    head: Head,
    source: Source,
    handler: H,
}

/// The four nodes of a device share its state by pointer, as in C.
#[repr(C)]
struct QueueNode {
    head: Head,
    queue: usize,
    source: Source,
    device: *mut Device,
}

/// An allocation of any type that is freed when it is dropped.
struct Allocation {
    address: *mut (),
    free: unsafe fn(*mut ()),
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: `own` made both fields for the same type, and only this drop frees the memory.
        unsafe { (self.free)(self.address) }
    }
}

/// Moves a value to the heap. Its address is valid until the allocation is dropped.
fn own<T>(value: T) -> (*mut T, Allocation) {
    unsafe fn free<T>(address: *mut ()) {
        // SAFETY: only called by `Allocation::drop`, once, with the address that `own` got from the
        // box.
        drop(unsafe { Box::from_raw(address.cast::<T>()) });
    }
    let address = Box::into_raw(Box::new(value));
    (address, Allocation { address: address.cast(), free: free::<T> })
}

unsafe fn call_node<H: Handler>(head: *mut Head) {
    let node = head.cast::<Node<H>>();
    // SAFETY: `head` is the first field of a `Node<H>`, for `add` pairs this function with that
    // type, and the node is alive: nothing is deleted during a turn here.
    let node = unsafe { &mut *node };
    node.handler.handle(node.source);
}

unsafe fn call_queue(head: *mut Head) {
    // SAFETY: as in `call_node`.
    let node = unsafe { &mut *head.cast::<QueueNode>() };
    // SAFETY: the device is freed with the subject, and its four nodes are called one after
    // another.
    let device = unsafe { &mut *node.device };
    device.handle(node.queue, node.source);
}

struct Raw<const PWAIT2: bool> {
    /// The first field, so that it is closed before the nodes are freed to which it points.
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
    /// The nodes and devices. The key of a registration is its index here.
    allocations: Vec<Option<Allocation>>,
    free: Vec<usize>,
}

impl<const PWAIT2: bool> Raw<PWAIT2> {
    fn keep(&mut self, allocation: Allocation) -> usize {
        if let Some(place) = self.free.pop() {
            self.allocations[place] = Some(allocation);
            return place;
        }
        self.allocations.push(Some(allocation));
        self.allocations.len() - 1
    }

    fn watch(&self, source: Source, trigger: Trigger, head: *mut Head) -> Result<(), Error> {
        let flags = match trigger {
            Trigger::Level => epoll::EventFlags::IN,
            Trigger::Edge => epoll::EventFlags::IN | epoll::EventFlags::ET,
        };
        epoll::add(&self.epoll, source, epoll::EventData::new_ptr(head.cast()), flags)?;
        Ok(())
    }

    /// Waits without a time limit, or does not wait.
    #[inline(always)]
    fn wait(&mut self, waits: bool) -> std::io::Result<()> {
        const ZERO: rustix::event::Timespec = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        self.events.clear();
        if PWAIT2 {
            let limit = if waits { None } else { Some(&ZERO) };
            epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut self.events), limit)?;
            return Ok(());
        }
        let (buffer, room) = (self.events.as_mut_ptr(), self.events.capacity());
        // SAFETY: rustix's event has the layout of the kernel's, and the buffer has room for as
        // many as are said (epoll_wait(2)).
        let count = unsafe {
            libc::epoll_wait(
                self.epoll.as_raw_fd(),
                buffer.cast(),
                room as i32,
                if waits { -1 } else { 0 },
            )
        };
        if count < 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: the kernel has filled that many, which is no more than there is room for.
        unsafe { self.events.set_len(count as usize) };
        Ok(())
    }
}

impl<const PWAIT2: bool> Subject for Raw<PWAIT2> {
    type Key = (usize, Source);

    fn new(_backend: &str) -> Result<Self, Error> {
        Ok(Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            events: Vec::with_capacity(EVENTS_PER_TURN),
            allocations: Vec::new(),
            free: Vec::new(),
        })
    }

    fn add<H: Handler>(
        &mut self,
        source: Source,
        trigger: Trigger,
        handler: H,
    ) -> Result<Self::Key, Error> {
        let head = Head { call: call_node::<H> };
        let (node, allocation) = own(Node { head, source, handler });
        self.watch(source, trigger, node.cast())?;
        Ok((self.keep(allocation), source))
    }

    fn add_device(
        &mut self,
        sources: [Source; 4],
        trigger: Trigger,
        device: Device,
    ) -> Result<(), Error> {
        let (device, allocation) = own(device);
        self.keep(allocation);
        for (queue, source) in sources.into_iter().enumerate() {
            let head = Head { call: call_queue };
            let (node, allocation) = own(QueueNode { head, queue, source, device });
            self.watch(source, trigger, node.cast())?;
            self.keep(allocation);
        }
        Ok(())
    }

    fn delete(&mut self, (place, source): Self::Key) -> Result<(), Error> {
        epoll::delete(&self.epoll, source)?;
        self.allocations[place] = None;
        self.free.push(place);
        Ok(())
    }

    #[inline(always)]
    fn turn(&mut self) -> std::io::Result<()> {
        self.wait(true)?;
        self.dispatch();
        Ok(())
    }
}

impl<const PWAIT2: bool> PollSubject for Raw<PWAIT2> {
    #[inline(always)]
    fn turn_at_once(&mut self) -> std::io::Result<()> {
        self.wait(false)?;
        self.dispatch();
        Ok(())
    }
}

impl<const PWAIT2: bool> Raw<PWAIT2> {
    #[inline(always)]
    fn dispatch(&mut self) {
        for event in &self.events {
            let head = event.data.ptr().cast::<Head>();
            // SAFETY: the address is that of a live node's head, which only this epoll set knows.
            // Only `delete` frees nodes, after it has ended their watch, and never during a turn.
            let call = unsafe { (*head).call };
            // SAFETY: `add` and `add_device` pair each function with the node it was made for.
            unsafe { call(head) };
        }
    }
}

/// An empty epoll set.
struct Sleeping(OwnedFd);

impl SleepSubject for Sleeping {
    fn new(_backend: &str) -> Result<Self, Error> {
        Ok(Self(epoll::create(epoll::CreateFlags::CLOEXEC)?))
    }

    fn sleep(&mut self, span: std::time::Duration) -> Result<(), Error> {
        let span = rustix::event::Timespec::try_from(span)?;
        epoll::wait(&self.0, &mut [MaybeUninit::<epoll::Event>::uninit()], Some(&span))?;
        Ok(())
    }
}
