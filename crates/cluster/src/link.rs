//! One connection to a server of NATS, from its attempt to its end.
//!
//! 1. One task of the thread reads, and one writes. Neither waits for the other. Each runs again
//!    after a bounded part of the other's work.
//! 2. The writer sends in each pass: answers that are due, changes of subscriptions, and a bounded
//!    part of the queue. It counts what it has in hand as unwritten until the socket has taken it.
//! 3. Nothing that the server sends makes memory grow: questions are a number, subscriptions that
//!    are given up are forgotten, and `protocol` bounds the rest.
//! 4. The server must take each part of [`WRITE_LEN`] within `answer_timeout`. It is asked for an
//!    answer all the time, whatever it sends besides, and each answer has the same time.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    io, mem,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncWriteExt as _, ReadHalf, WriteHalf, split},
    sync::{Notify, watch},
    time,
};
use windlass_server::{bus::BusState, printable};

use crate::{
    NatsEvent,
    connection::{Connection, Stream},
    protocol::{Info, Input, Operation},
    queue::Outgoing,
    thread::BusThread,
};

/// Number of publications that are in hand at a time, and their bytes. The next ones follow when
/// these have been written to the socket.
const BATCH_MESSAGES: usize = 512;
const BATCH_BYTES: usize = 256 << 10;

/// A payload up to this length is copied behind others, so that they share a call.
const COPIED_MAX: usize = 16 << 10;

/// Answers to the server's questions that are written at a time.
const PONGS_MAX: u64 = 64;

/// How much is written at a time, at most. Each part has a time limit.
const WRITE_LEN: usize = 64 << 10;

/// How long the end of the bus waits for what is queued.
const LINGER: Duration = Duration::from_secs(1);

/// The minimum time between events about errors of the server.
const ERROR_EVENT_INTERVAL: Duration = Duration::from_secs(1);

/// How a connection has ended. Its texts are printable.
#[derive(Debug)]
pub(crate) enum End {
    /// The bus is to end.
    Stopped,
    /// It was never connected.
    NotConnected(String),
    /// It was connected.
    Lost(String),
}

pub(crate) struct Link<'t> {
    thread: &'t BusThread,
    /// Publications in hand, which may not be written to the socket yet.
    unwritten: Cell<u64>,
    /// Questions of the server that wait for their answers.
    pongs_due: Cell<u64>,
    /// The server is to be asked.
    is_ping_due: Cell<bool>,
    /// Questions to the server.
    asked: Cell<u64>,
    /// One that was due has been written.
    has_asked: Notify,
    /// Those that it has answered.
    answered: watch::Sender<u64>,
    info: RefCell<Info>,
    has_told_lame_duck: Cell<bool>,
    /// When an error of the server was told, and the number of those since.
    last_error: Cell<Option<(Instant, u64)>>,
}

impl<'t> Link<'t> {
    pub(crate) fn new(thread: &'t BusThread) -> Self {
        Self {
            thread,
            unwritten: Cell::new(0),
            pongs_due: Cell::new(0),
            is_ping_due: Cell::new(false),
            asked: Cell::new(0),
            has_asked: Notify::new(),
            answered: watch::Sender::new(0),
            info: RefCell::default(),
            has_told_lame_duck: Cell::new(false),
            last_error: Cell::new(None),
        }
    }

    /// Connects, and serves the connection until its end.
    pub(crate) async fn run(self) -> End {
        let shared = &self.thread.shared;
        let connected = tokio::select! {
            connected = self.thread.config.connect.connect() => connected,
            () = shared.stopping.notified() => return End::Stopped,
        };
        let Connection { stream, input, info } = match connected {
            Ok(connection) => connection,
            Err(error) => return End::NotConnected(printable(&error.to_string())),
        };
        self.take_info(info);
        shared.subjects().begin();
        let (reader, writer) = split(stream);
        let end = tokio::select! {
            end = self.read(input, reader) => end,
            () = self.unanswered() => End::Lost("the server does not answer".to_owned()),
            end = self.write(writer) => {
                end.unwrap_or_else(|error| End::Lost(printable(&error.to_string())))
            }
            () = async {
                shared.stopping.notified().await;
                time::sleep(LINGER).await;
            } => End::Stopped,
        };
        shared.subjects().end();
        shared.note_lost_out(self.unwritten.get());
        end
    }

    fn take_info(&self, info: Info) {
        self.thread.shared.set_payload_max(info.max_payload);
        if info.ldm && !self.has_told_lame_duck.replace(true) {
            self.tell(&NatsEvent::LameDuck);
        }
        *self.info.borrow_mut() = info;
    }

    fn tell(&self, event: &NatsEvent) {
        (self.thread.config.on_event)(event);
    }

    async fn read(&self, mut input: Input, mut reader: ReadHalf<Box<dyn Stream>>) -> End {
        loop {
            match input.next() {
                Ok(Some(operation)) => self.take(operation),
                Ok(None) => match input.fill(&mut reader).await {
                    Ok(0) => return End::Lost("the server has closed it".to_owned()),
                    Ok(_) => {}
                    Err(error) => return End::Lost(printable(&error.to_string())),
                },
                Err(error) => {
                    let why = printable(&error.to_string());
                    return End::Lost(format!("the server breaks the protocol: {why}"));
                }
            }
        }
    }

    fn take(&self, operation: Operation<'_>) {
        match operation {
            Operation::Message { subject, payload } => self.thread.sink.deliver(subject, payload),
            Operation::Ping => {
                self.pongs_due.set(self.pongs_due.get() + 1);
                self.thread.shared.wake.notify_one();
            }
            Operation::Pong => {
                let asked = self.asked.get();
                self.answered.send_modify(|answered| *answered = asked.min(*answered + 1));
            }
            Operation::Info(info) => self.take_info(*info),
            Operation::Error(text) => self.note_error(printable(text)),
            Operation::Ok => {}
        }
    }

    /// Asks the server for an answer in intervals. Returns when one does not come in time.
    async fn unanswered(&self) {
        let config = &self.thread.config;
        loop {
            time::sleep(config.ping_interval).await;
            self.is_ping_due.set(true);
            self.thread.shared.wake.notify_one();
            // The writer has a time limit of its own.
            self.has_asked.notified().await;
            if time::timeout(config.answer_timeout, self.all_answered()).await.is_err() {
                return;
            }
        }
    }

    /// Waits until the server has answered all questions so far.
    async fn all_answered(&self) {
        let (asked, mut answered) = (self.asked.get(), self.answered.subscribe());
        // The sender lives as long as `self`.
        let _ = answered.wait_for(|answered| *answered >= asked).await;
    }

    /// Writes what is to be sent, until the bus is to end or the socket has an error.
    async fn write(&self, stream: WriteHalf<Box<dyn Stream>>) -> io::Result<End> {
        let shared = &self.thread.shared;
        let limit = self.thread.config.answer_timeout;
        let mut out = Out { stream, bytes: Vec::new(), limit };
        let mut subscriptions = Subscriptions::default();
        let (mut batch, mut is_announced) = (Vec::new(), false);
        loop {
            let is_stopping = shared.is_stopping();
            let is_asking = self.answer(&mut out);
            for (subject, is_wanted) in shared.subjects().take_changed() {
                match is_subject(&subject) {
                    true => subscriptions.change(&subject, is_wanted, &mut out),
                    false => self.note_error(format!("{} is no subject", printable(&subject))),
                }
            }
            if is_announced {
                shared.take_messages(BATCH_MESSAGES, BATCH_BYTES, &mut batch);
            }
            self.unwritten.set(batch.len() as u64);
            for message in batch.drain(..) {
                self.publish(message, &mut out).await?;
            }
            let has_written = !out.bytes.is_empty() || self.unwritten.get() > 0;
            if has_written {
                out.flush().await?;
            }
            if is_asking {
                self.has_asked.notify_one();
            }
            self.unwritten.set(0);
            if !is_announced {
                is_announced = true;
                self.announce();
            } else if !has_written {
                if is_stopping {
                    return self.close(&mut out).await;
                }
                shared.wake.notified().await;
            }
        }
    }

    /// Writes the answers that are due, and the question. Returns whether it was due.
    fn answer(&self, out: &mut Out) -> bool {
        let pongs = self.pongs_due.get().min(PONGS_MAX);
        self.pongs_due.set(self.pongs_due.get() - pongs);
        (0..pongs).for_each(|_| out.text("PONG\r\n"));
        let is_due = self.is_ping_due.take();
        if is_due {
            self.ask(out);
        }
        is_due
    }

    fn ask(&self, out: &mut Out) {
        self.asked.set(self.asked.get() + 1);
        out.text("PING\r\n");
    }

    async fn publish(&self, message: Outgoing, out: &mut Out) -> io::Result<()> {
        let Outgoing { subject, payload } = message;
        // The server may allow less than the one before.
        if payload.len() > self.info.borrow().max_payload || !is_subject(&subject) {
            self.unwritten.set(self.unwritten.get() - 1);
            self.thread.shared.note_lost_out(1);
            return Ok(());
        }
        out.text(&format!("PUB {subject} {}\r\n", payload.len()));
        if payload.len() > COPIED_MAX {
            out.write().await?;
            out.write_all(&payload).await?;
        } else {
            out.bytes.extend_from_slice(&payload);
        }
        out.text("\r\n");
        Ok(())
    }

    fn announce(&self) {
        let info = self.info.borrow().clone();
        self.thread.sink.set_state(BusState::Connected);
        let (name, version) = (printable(&info.server_name), printable(&info.version));
        self.tell(&NatsEvent::Connected {
            server: format!("{name} {version} (port {})", info.port),
            payload_max: info.max_payload,
        });
    }

    /// Waits until the server has read everything: what is on its way is lost if the socket is
    /// closed while bytes of the server wait in it.
    async fn close(&self, out: &mut Out) -> io::Result<End> {
        self.ask(out);
        out.flush().await?;
        self.all_answered().await;
        Ok(End::Stopped)
    }

    /// Tells an error, unless one was told just before. The text is printable.
    fn note_error(&self, text: String) {
        let omitted = match self.last_error.get() {
            Some((told, omitted)) if told.elapsed() < ERROR_EVENT_INTERVAL => {
                return self.last_error.set(Some((told, omitted + 1)));
            }
            last => last.map_or(0, |(_, omitted)| omitted),
        };
        self.last_error.set(Some((Instant::now(), 0)));
        self.tell(&NatsEvent::ServerError { text, omitted });
    }
}

/// Whether a subject can stand in a line.
fn is_subject(subject: &str) -> bool {
    !subject.is_empty() && !subject.contains(|char: char| char.is_whitespace() || char.is_control())
}

/// What goes to the socket.
struct Out {
    stream: WriteHalf<Box<dyn Stream>>,
    bytes: Vec<u8>,
    /// The time for each part.
    limit: Duration,
}

impl Out {
    fn text(&mut self, text: &str) {
        self.bytes.extend_from_slice(text.as_bytes());
    }

    async fn write(&mut self) -> io::Result<()> {
        let mut bytes = mem::take(&mut self.bytes);
        self.write_all(&bytes).await?;
        bytes.clear();
        bytes.shrink_to(BATCH_BYTES);
        self.bytes = bytes;
        Ok(())
    }

    async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        for part in bytes.chunks(WRITE_LEN) {
            within(self.limit, self.stream.write_all(part)).await?;
        }
        Ok(())
    }

    async fn flush(&mut self) -> io::Result<()> {
        self.write().await?;
        within(self.limit, self.stream.flush()).await
    }
}

async fn within(limit: Duration, write: impl Future<Output = io::Result<()>>) -> io::Result<()> {
    let stuck = || io::Error::new(io::ErrorKind::TimedOut, "the server does not read");
    time::timeout(limit, write).await.unwrap_or_else(|_| Err(stuck()))
}

/// The numbers of the subscriptions of a connection.
#[derive(Default)]
struct Subscriptions {
    ids: HashMap<Arc<str>, u64>,
    last: u64,
}

impl Subscriptions {
    fn change(&mut self, subject: &Arc<str>, is_wanted: bool, out: &mut Out) {
        if is_wanted {
            self.last += 1;
            self.ids.insert(Arc::clone(subject), self.last);
            out.text(&format!("SUB {subject} {}\r\n", self.last));
        } else if let Some(id) = self.ids.remove(subject) {
            out.text(&format!("UNSUB {id}\r\n"));
        }
    }
}
