//! One connection to a server of NATS, from its attempt to its end.

use std::{
    cell::Cell,
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use async_nats::{Client, ConnectOptions, Event, PublishErrorKind, Subscriber};
use futures_util::StreamExt as _;
use tokio::{sync::Notify, task::AbortHandle, time};
use windlass_server::bus::{BusSink, BusState};

use crate::{NatsEvent, builder::OnEvent, thread::BusThread};

/// Number of publications that are given to the client at a time, and their bytes. The next ones
/// are given when these have been written to the socket.
const BATCH_MESSAGES: usize = 512;
const BATCH_BYTES: usize = 256 << 10;

/// How often nothing has arrived in a ping interval until the connection counts as lost.
const SILENCES_MAX: u32 = 3;

/// How long the end of the bus waits for what is queued.
const LINGER: Duration = Duration::from_secs(1);

/// The minimum time between events about errors of the server.
const ERROR_EVENT_INTERVAL: Duration = Duration::from_secs(1);

/// A delay that never ends: the client is to make no second connection.
const NEVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// How a connection has ended.
#[derive(Debug)]
pub(crate) enum End {
    /// The bus is to end.
    Stopped,
    /// It was never connected.
    NotConnected(String),
    /// It was connected.
    Lost(String),
}

/// What the client tells about its connection.
struct Signals {
    /// The client has connected. Its next attempt means that the connection is lost.
    is_connected: AtomicBool,
    lost: Notify,
    closed: Notify,
    sink: BusSink,
    on_event: OnEvent,
    /// When an error of the server was told, and the number of those since.
    last_error: Mutex<Option<(Instant, u64)>>,
}

pub(crate) struct Link<'t> {
    thread: &'t BusThread,
    signals: Arc<Signals>,
    /// Publications that were given to the client, and may not be written to the socket yet.
    unwritten: Cell<u64>,
}

impl<'t> Link<'t> {
    pub(crate) fn new(thread: &'t BusThread) -> Self {
        let signals = Arc::new(Signals {
            is_connected: AtomicBool::new(false),
            lost: Notify::new(),
            closed: Notify::new(),
            sink: thread.sink.clone(),
            on_event: Arc::clone(&thread.config.on_event),
            last_error: Mutex::new(None),
        });
        Self { thread, signals, unwritten: Cell::new(0) }
    }

    fn options(&self) -> ConnectOptions {
        let (on_delay, on_event) = (Arc::clone(&self.signals), Arc::clone(&self.signals));
        self.thread
            .config
            .options
            .clone()
            .no_echo()
            .ignore_discovered_servers()
            // The rule for silent connections is below: the client does not ask the server while
            // it has something to send.
            .ping_interval(NEVER)
            .reconnect_delay_callback(move |_| on_delay.delay())
            .event_callback(move |event| {
                on_event.note(event);
                core::future::ready(())
            })
    }

    /// Connects, and serves the connection until its end.
    pub(crate) async fn run(self) -> End {
        let shared = &self.thread.shared;
        let connect = self.options().connect(self.thread.config.addresses.clone());
        let client = tokio::select! {
            connected = connect => match connected {
                Ok(client) => client,
                Err(error) => return End::NotConnected(error.to_string()),
            },
            () = shared.stopping.notified() => return End::Stopped,
        };
        // The tasks of the client have not run yet, because nothing was awaited since.
        self.signals.is_connected.store(true, Ordering::Relaxed);
        shared.set_payload_max(client.max_payload());
        let end = tokio::select! {
            biased;
            () = self.signals.lost.notified() => {
                End::Lost("the server has closed it".to_owned())
            }
            () = silence(&client, self.thread.config.ping_interval) => {
                End::Lost("the server does not answer".to_owned())
            }
            end = self.serve(&client) => end,
            () = async {
                shared.stopping.notified().await;
                time::sleep(LINGER).await;
            } => End::Stopped,
        };
        shared.subjects().end();
        shared.note_lost_out(self.unwritten.get());
        end
    }

    /// Passes what is to be sent to the client.
    async fn serve(&self, client: &Client) -> End {
        let shared = &self.thread.shared;
        let mut subscriptions =
            Subscriptions { client, signals: &self.signals, tasks: HashMap::new() };
        shared.subjects().begin();
        let mut batch = Vec::new();
        let mut is_announced = false;
        loop {
            let is_stopping = shared.is_stopping();
            let changes = shared.subjects().take_changed();
            let has_changes = !changes.is_empty();
            for (subject, is_wanted) in changes {
                subscriptions.change(subject, is_wanted).await;
            }
            if is_announced {
                shared.take_messages(BATCH_MESSAGES, BATCH_BYTES, &mut batch);
            }
            let count = batch.len() as u64;
            self.unwritten.set(count);
            for message in batch.drain(..) {
                let published = client.publish(message.subject, message.payload.into()).await;
                match published.map_err(|error| error.kind()) {
                    Ok(()) => {}
                    Err(PublishErrorKind::Send) => return self.client_has_ended(),
                    // The server may allow less than the one before.
                    Err(_) => {
                        self.unwritten.set(self.unwritten.get() - 1);
                        shared.note_lost_out(1);
                    }
                }
            }
            if (has_changes || count > 0 || !is_announced) && client.flush().await.is_err() {
                return self.client_has_ended();
            }
            self.unwritten.set(0);
            if !is_announced {
                is_announced = true;
                self.announce(client);
            } else if !has_changes && count == 0 {
                if is_stopping {
                    return self.close(client).await;
                }
                shared.wake.notified().await;
            }
        }
    }

    fn announce(&self, client: &Client) {
        let info = client.server_info();
        self.signals.sink.set_state(BusState::Connected);
        (self.signals.on_event)(&NatsEvent::Connected {
            server: format!("{} {} (port {})", info.server_name, info.version, info.port),
            payload_max: info.max_payload,
        });
    }

    fn client_has_ended(&self) -> End {
        End::Lost("the client has ended".to_owned())
    }

    /// Closes the connection when everything has been sent.
    async fn close(&self, client: &Client) -> End {
        if client.drain().await.is_ok() {
            self.signals.closed.notified().await;
        }
        End::Stopped
    }
}

impl Signals {
    /// The client is about to connect. Returns how long it waits before.
    fn delay(&self) -> Duration {
        if self.is_connected.load(Ordering::Relaxed) {
            self.lost.notify_one();
            return NEVER;
        }
        Duration::ZERO
    }

    fn note(&self, event: Event) {
        match event {
            Event::LameDuckMode => (self.on_event)(&NatsEvent::LameDuck),
            // A queue of async-nats was full.
            Event::SlowConsumer(_) => self.sink.note_lost_in(1),
            Event::Closed => self.closed.notify_one(),
            Event::ServerError(error) => self.note_error(error.to_string()),
            Event::ClientError(error) => self.note_error(error.to_string()),
            _ => {}
        }
    }

    fn note_error(&self, text: String) {
        // The answer to the question below, where its subject is not allowed, is an answer.
        if text.contains(INBOX) {
            return;
        }
        let omitted = {
            let mut last = self.last_error.lock().unwrap_or_else(PoisonError::into_inner);
            match &mut *last {
                Some((told, omitted)) if told.elapsed() < ERROR_EVENT_INTERVAL => {
                    *omitted += 1;
                    return;
                }
                last => last.replace((Instant::now(), 0)).map_or(0, |(_, omitted)| omitted),
            }
        };
        (self.on_event)(&NatsEvent::ServerError { text, omitted });
    }
}

/// The beginning of the subjects that a client makes for itself.
const INBOX: &str = "_INBOX.";

/// Returns when nothing has arrived for too long, though the server was asked for an answer.
///
/// The client asks only when it has nothing to send, so it would not notice the loss of a
/// connection with traffic. The only question that its interface has is the end of a subscription.
async fn silence(client: &Client, interval: Duration) {
    let statistics = client.statistics();
    let arrived = || statistics.in_bytes.load(Ordering::Relaxed);
    let (mut before, mut silences) = (arrived(), 0);
    while silences < SILENCES_MAX {
        time::sleep(interval).await;
        let now = arrived();
        if now != before {
            (before, silences) = (now, 0);
            continue;
        }
        silences += 1;
        let ask = async {
            if let Ok(mut subscriber) = client.subscribe(client.new_inbox()).await {
                let _ = subscriber.drain().await;
            }
        };
        // The client takes nothing while the socket is full.
        let _ = time::timeout(interval, ask).await;
    }
}

/// The subscriptions of a connection, each with a task that passes what arrives.
struct Subscriptions<'l> {
    client: &'l Client,
    signals: &'l Arc<Signals>,
    tasks: HashMap<Arc<str>, AbortHandle>,
}

impl Subscriptions<'_> {
    async fn change(&mut self, subject: Arc<str>, is_wanted: bool) {
        if !is_wanted {
            if let Some(task) = self.tasks.remove(&subject) {
                // The end of the task ends the subscription.
                task.abort();
            }
            return;
        }
        if self.tasks.contains_key(&subject) {
            return;
        }
        match self.client.subscribe(subject.to_string()).await {
            Ok(subscriber) => {
                let task = tokio::spawn(receive(subscriber, self.signals.sink.clone()));
                self.tasks.insert(subject, task.abort_handle());
            }
            Err(error) => self.signals.note_error(format!("{subject}: {error}")),
        }
    }
}

async fn receive(mut subscriber: Subscriber, sink: BusSink) {
    while let Some(message) = subscriber.next().await {
        sink.deliver(&message.subject, &message.payload);
    }
}
