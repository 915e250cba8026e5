//! The bus, as workers see it.

use core::fmt;
use std::{
    io,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
};

use tokio::sync::Notify;
use windlass_server::bus::{Bus, BusError, BusSink, BusState};

use crate::{
    NatsBusBuilder,
    builder::Config,
    queue::{Outgoing, Queue},
    subjects::Subjects,
    thread::BusThread,
};

/// A bus over NATS. The [crate] documentation has its guarantees.
///
/// ```
/// use windlass_cluster::NatsBus;
/// use windlass_server::bus::Cluster;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let bus = NatsBus::builder(["tls://nats.example"]).token("secret").build()?;
/// let cluster = Cluster::new(bus).prefix("chat")?;
/// # drop(cluster);
/// # Ok(())
/// # }
/// ```
pub struct NatsBus {
    shared: Arc<Shared>,
    /// Until the start.
    config: Mutex<Option<Config>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl NatsBus {
    /// Begins the settings of a bus with the addresses of one or more servers of one NATS cluster:
    /// `nats://HOST:PORT`, `tls://HOST:PORT`, or with `USER:PASSWORD@` or `TOKEN@` before the host.
    /// The port may be left out and is 4222 then. A random one that can be reached is used.
    ///
    /// Servers that the NATS cluster has besides are not used.
    pub fn builder<A: Into<String>>(addresses: impl IntoIterator<Item = A>) -> NatsBusBuilder {
        NatsBusBuilder::new(addresses.into_iter().map(Into::into).collect())
    }

    pub(crate) fn new(config: Config) -> Self {
        Self {
            shared: Arc::new(Shared::new(&config)),
            config: Mutex::new(Some(config)),
            thread: Mutex::new(None),
        }
    }

    /// Reads the settings. `None` after the start.
    pub(crate) fn settings<T>(&self, read: impl FnOnce(&Config) -> T) -> Option<T> {
        lock(&self.config).as_ref().map(read)
    }
}

impl fmt::Debug for NatsBus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsBus").finish_non_exhaustive()
    }
}

impl Bus for NatsBus {
    /// Starts the thread, which connects.
    ///
    /// # Errors
    /// - [`AlreadyExists`](io::ErrorKind::AlreadyExists) if it was started before.
    /// - The errors of starting a thread and its runtime.
    fn start(&self, sink: BusSink) -> io::Result<()> {
        let config = lock(&self.config).take();
        let config = config.ok_or_else(|| io::Error::from(io::ErrorKind::AlreadyExists))?;
        let _ = self.shared.sink.set(sink.clone());
        let thread = BusThread::new(config, Arc::clone(&self.shared), sink)?;
        let builder = thread::Builder::new().name("windlass-cluster".to_owned());
        *lock(&self.thread) = Some(builder.spawn(move || thread.run())?);
        Ok(())
    }

    fn subscribe(&self, subject: &str) {
        self.shared.change(subject, true);
    }

    fn unsubscribe(&self, subject: &str) {
        self.shared.change(subject, false);
    }

    fn publish(&self, subject: &str, payload: Vec<u8>) -> Result<(), BusError> {
        let shared = &self.shared;
        if payload.len() > shared.payload_max.load(Ordering::Relaxed) {
            return Err(BusError::TooLarge);
        }
        let message = Outgoing { subject: subject.into(), payload };
        let dropped = {
            let mut queue = lock(&shared.queue);
            // The thread sets it before it takes the lock for the last time.
            if shared.has_ended.load(Ordering::Relaxed) {
                return Err(BusError::Closed);
            }
            queue.push(message)
        };
        if dropped > 0 {
            shared.note_lost_out(dropped);
        }
        shared.wake.notify_one();
        Ok(())
    }

    fn payload_max(&self) -> usize {
        self.shared.payload_max.load(Ordering::Relaxed)
    }

    /// Ends the thread, and waits for it: up to a second for what is queued. On that thread, which
    /// is in [`on_event`](NatsBusBuilder::on_event), it does not wait.
    fn stop(&self) {
        self.shared.stop();
        let is_other = |thread: &mut JoinHandle<()>| thread.thread().id() != thread::current().id();
        let thread = lock(&self.thread).take_if(is_other);
        if let Some(thread) = thread {
            thread.thread().unpark();
            // If it has panicked, the state is `Closed` already.
            let _ = thread.join();
        }
    }
}

impl Drop for NatsBus {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What the workers and the thread share.
pub(crate) struct Shared {
    queue: Mutex<Queue>,
    subjects: Mutex<Subjects>,
    /// Something is queued or has changed.
    pub(crate) wake: Notify,
    /// The end is wanted.
    pub(crate) stopping: Notify,
    is_stopping: AtomicBool,
    /// The thread has ended, or was not started.
    has_ended: AtomicBool,
    payload_max: AtomicUsize,
    queue_bytes: usize,
    sink: OnceLock<BusSink>,
}

impl Shared {
    fn new(config: &Config) -> Self {
        Self {
            queue: Mutex::new(Queue::new(config.queue_messages, config.queue_bytes)),
            subjects: Mutex::default(),
            wake: Notify::new(),
            stopping: Notify::new(),
            is_stopping: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
            payload_max: AtomicUsize::new(config.queue_bytes),
            queue_bytes: config.queue_bytes,
            sink: OnceLock::new(),
        }
    }

    fn change(&self, subject: &str, is_wanted: bool) {
        lock(&self.subjects).change(subject, is_wanted);
        self.wake.notify_one();
    }

    pub(crate) fn subjects(&self) -> MutexGuard<'_, Subjects> {
        lock(&self.subjects)
    }

    pub(crate) fn take_messages(&self, max: usize, weight_max: usize, into: &mut Vec<Outgoing>) {
        lock(&self.queue).take(max, weight_max, into);
    }

    /// Takes the maximum payload of a server.
    pub(crate) fn set_payload_max(&self, bytes: usize) {
        self.payload_max.store(bytes.min(self.queue_bytes), Ordering::Relaxed);
    }

    pub(crate) fn note_lost_out(&self, messages: u64) {
        if let Some(sink) = self.sink.get() {
            sink.note_lost_out(messages);
        }
    }

    fn stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
        self.stopping.notify_one();
        self.wake.notify_one();
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }

    /// The thread ends. What waits is lost.
    pub(crate) fn end(&self) {
        self.has_ended.store(true, Ordering::Relaxed);
        let lost = lock(&self.queue).clear();
        self.note_lost_out(lost);
        if let Some(sink) = self.sink.get() {
            sink.set_state(BusState::Closed);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while a lock is held.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
