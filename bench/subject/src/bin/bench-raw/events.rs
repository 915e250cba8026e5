//! The loop itself, generic over the call by which it waits.
//!
//! `epoll_event.data` is the address of a node whose first field is a function. A ready event costs
//! two loads and a call. There is no registry and no guard, and a handler cannot delete a
//! registration safely.
#![allow(
    unsafe_code,
    reason = "it is the hand-written loop, with all that a hand takes upon itself"
)]

use std::marker::PhantomData;
use std::os::fd::OwnedFd;

use rustix::event::epoll;
use windlass_bench_driver::dispatch::Subject;
use windlass_bench_driver::poll0::PollSubject;
use windlass_bench_driver::protocol::Trigger;
use windlass_bench_driver::source::{Device, Handler, Source};
use windlass_bench_driver::{EVENTS_PER_TURN, Error};

/// How long a turn waits.
#[derive(Clone, Copy)]
pub(crate) enum Waits {
    Not,
    UntilAnEvent,
}

/// The call by which the loop waits. It replaces the events by those that it finds.
pub(crate) trait Wait: 'static {
    fn wait(epoll: &OwnedFd, events: &mut Vec<epoll::Event>, waits: Waits) -> std::io::Result<()>;
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

pub(crate) struct Raw<W> {
    /// The first field, so that it is closed before the nodes are freed to which it points.
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
    /// The nodes and devices. The key of a registration is its index here.
    allocations: Vec<Option<Allocation>>,
    free: Vec<usize>,
    wait: PhantomData<W>,
}

impl<W> Raw<W> {
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
}

impl<W: Wait> Subject for Raw<W> {
    type Key = (usize, Source);

    fn new(_backend: &str) -> Result<Self, Error> {
        Ok(Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            events: Vec::with_capacity(EVENTS_PER_TURN),
            allocations: Vec::new(),
            free: Vec::new(),
            wait: PhantomData,
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
        W::wait(&self.epoll, &mut self.events, Waits::UntilAnEvent)?;
        self.dispatch();
        Ok(())
    }
}

impl<W: Wait> PollSubject for Raw<W> {
    #[inline(always)]
    fn turn_at_once(&mut self) -> std::io::Result<()> {
        W::wait(&self.epoll, &mut self.events, Waits::Not)?;
        self.dispatch();
        Ok(())
    }
}

impl<W> Raw<W> {
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
