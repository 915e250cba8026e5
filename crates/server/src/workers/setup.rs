//! The parts with which each worker of a server is started.

use std::{
    io,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use windlass::{
    Builder, Reactor, Turn,
    stream::{Listener, StreamLimit},
};

use super::cluster::start_node;
use crate::{
    api::Options,
    bus::Node,
    handler::Handler,
    http::ConnectionLimiter,
    mailbox::{Sender, TopicOwners, WorkerHandle, WorkerMailbox, WorkerQueue},
    service::{ConnectionLimits, Service, WorkerLinks, memory_pool},
    shared::{MemoryPool, SharedRates},
};

/// Subscribers of a worker's reactor other than its connections: listeners, the mailbox, and the
/// reactor's own.
const OTHER_SUBSCRIBERS: usize = 1024;

/// The least limit of a worker's subscribers, which takes no memory: the default of a reactor.
const SUBSCRIBERS_MIN: usize = 1 << 20;

/// Everything that a worker receives when it starts.
pub(super) struct WorkerSetup {
    links: WorkerLinks,
    thread: Arc<OnceLock<thread::ThreadId>>,
    listeners: Vec<Listener>,
}

impl WorkerSetup {
    pub(super) fn build_reactor<H: Handler>(
        self,
        options: &Options,
        builder: Builder,
        handler: H,
        workers_left: &Arc<AtomicUsize>,
    ) -> io::Result<Reactor> {
        // This runs on the worker's own thread, and the cell is set once.
        let _ = self.thread.set(thread::current().id());
        // The limit of connections may be raised later.
        let max = options.accepted_max().saturating_add(OTHER_SUBSCRIBERS).max(SUBSCRIBERS_MIN);
        let mut reactor = builder.subscribers_max(max).build()?;
        let service = Service::with_links(handler, options, self.links, &mut reactor)?;
        for listener in self.listeners {
            service.listen(listener, &mut reactor)?;
        }
        let workers_left = Arc::clone(workers_left);
        let drained = move |mut turn: Turn<'_>| {
            // A worker that ends stops the others, which may not be ready yet.
            if workers_left.fetch_sub(1, Ordering::AcqRel) == 1 {
                turn.stop();
            }
        };
        service.0.state.drain.add_callback(Box::new(drained));
        Ok(reactor)
    }
}

/// The parts of a server before its workers run.
pub(super) struct WorkerSetups {
    pub(super) handles: Arc<[Arc<WorkerHandle>]>,
    pub(super) setups: Vec<Option<WorkerSetup>>,
    pub(super) sender: Sender,
    pub(super) limiter: Arc<ConnectionLimiter>,
    pub(super) rates: Arc<SharedRates>,
    pub(super) memory_pool: Arc<MemoryPool>,
}

pub(super) fn worker_setups(
    options: &Options,
    sets: Vec<Vec<Listener>>,
    limit: &StreamLimit,
    count: usize,
    node: Option<&Arc<Node>>,
) -> io::Result<WorkerSetups> {
    let connections = Arc::default();
    let mailboxes = (0..count)
        .map(|_| WorkerMailbox::new(options, &connections))
        .collect::<io::Result<Vec<_>>>()?;
    let threads: Vec<_> = (0..count).map(|_| Arc::new(OnceLock::new())).collect();
    let queues = mailboxes
        .iter()
        .zip(&threads)
        .map(|(mailbox, thread)| WorkerQueue::new(mailbox.sender.clone(), thread));
    let owners = TopicOwners::new(options, count);
    let sender = Sender::new(queues.collect(), owners.clone());
    let handles: Vec<_> = mailboxes.iter().map(|mailbox| Arc::clone(&mailbox.handle)).collect();
    let memory_pool = memory_pool(options, count);
    memory_pool.set_workers(handles.clone());
    let senders: Vec<_> = mailboxes.iter().map(|mailbox| mailbox.sender.clone()).collect();
    if let Some(node) = node {
        start_node(node, senders.clone(), owners.clone(), options)?;
    }
    let limiter = ConnectionLimiter::new(None, options.connections_per_address_max);
    let limits = ConnectionLimits::new(options).with_limiter(&limiter).with_stream_limit(limit);
    let mut setups = Vec::new();
    for (index, ((mailbox, thread), listeners)) in
        mailboxes.into_iter().zip(threads).zip(sets).enumerate()
    {
        let others = senders
            .iter()
            .enumerate()
            .filter(|(at, _)| *at != index)
            .map(|(_, sender)| sender.clone());
        let worker = u16::try_from(index).map_err(io::Error::other)?;
        let links = WorkerLinks {
            worker,
            mailbox,
            others: others.collect(),
            owners: owners.clone(),
            sender: sender.clone(),
            limits: limits.clone(),
            memory_pool: Arc::clone(&memory_pool),
            node: node.map(Arc::clone),
        };
        setups.push(Some(WorkerSetup { links, thread, listeners }));
    }
    let rates = Arc::clone(limits.rates());
    Ok(WorkerSetups { handles: handles.into(), setups, sender, limiter, rates, memory_pool })
}
