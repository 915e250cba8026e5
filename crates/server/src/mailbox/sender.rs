//! The service, as other threads see it.

use core::fmt;
use std::{
    io,
    sync::{Arc, OnceLock},
    thread::{self, ThreadId},
};

use windlass_flow::{PushReason, Sender as MailboxSender};
use windlass_ws::CloseCode;

use super::{command::WorkerCommand, topic_owners::TopicOwners};
use crate::api::{ConnectionId, OutMessage, Prepared};

/// Reaches the connections of a [`Service`](crate::Service), or of all services of a
/// [`Server`](crate::Server), from any thread. `Clone`, `Send` and `Sync`.
///
/// Messages wait in a bounded queue for each worker
/// ([`sender_bounds`](crate::Options::sender_bounds)). If it is full, the calls without `try` wait
/// for room. Messages of one thread arrive in the order of its calls. Publications to an
/// [ordered](crate::Options::ordered_topics) topic keep the order of that topic, and may arrive
/// after later messages. A message is dropped if its connection is gone or has [too much
/// waiting](crate::SlowConsumerPolicy).
///
/// ```
/// use std::{sync::mpsc, thread};
/// use windlass_server::{
///     Connection, ConnectionId, Handler, Message, Options, Server,
///     http::{Reject, UpgradeRequest, Accept},
/// };
///
/// /// Passes questions to another thread, which may take its time for the answers.
/// struct Clerk {
///     questions: mpsc::Sender<(ConnectionId, String)>,
/// }
///
/// impl Handler for Clerk {
///     type Data = ();
///
///     fn on_upgrade(&self, _: &UpgradeRequest<'_>) -> Result<Accept<()>, Reject> {
///         Ok(Accept::new(()))
///     }
///
///     fn on_open(&self, connection: &mut Connection<'_>, _: &mut ()) {
///         _ = connection.subscribe("news");
///     }
///
///     fn on_message(&self, connection: &mut Connection<'_>, _: &mut (), message: Message<'_>) {
///         let question = message.as_str().unwrap_or_default().to_owned();
///         // It fails if the other thread has ended.
///         let _ = self.questions.send((connection.id(), question));
///     }
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (questions, asked) = mpsc::channel();
/// let make = move |_worker| Clerk { questions: questions.clone() };
/// let server = Server::new(Options::new(), make).listen("127.0.0.1:0".parse()?).start()?;
/// let sender = server.sender();
/// let clerk = thread::spawn(move || {
///     for (id, question) in asked {
///         // If the connection is gone, the message is dropped. An error means that the server has
///         // ended.
///         sender.send(id, format!("you have asked: {question}"))?;
///         sender.publish("news", "somebody has asked something")?;
///     }
///     Ok::<(), windlass_server::SenderError>(())
/// });
/// # let mut client = connect(&server, "/");
/// # client.send("who is there?".into())?;
/// # assert_eq!(client.read()?, "you have asked: who is there?".into());
/// # assert_eq!(client.read()?, "somebody has asked something".into());
/// server.stop();
/// server.join()?;
/// clerk.join().expect("the clerk does not panic")?;
/// # Ok(())
/// # }
/// # fn connect(
/// #     server: &windlass_server::RunningServer,
/// #     path: &str,
/// # ) -> tungstenite::WebSocket<std::net::TcpStream> {
/// #     let address = server.addresses()[0].socket_addr().expect("it listens on TCP");
/// #     let stream = std::net::TcpStream::connect(address).expect("it listens");
/// #     let url = format!("ws://{address}{path}");
/// #     tungstenite::client(url, stream).expect("it is a WebSocket server").0
/// # }
/// ```
#[derive(Clone)]
pub struct Sender {
    queues: Arc<[WorkerQueue]>,
    owners: Option<Arc<TopicOwners>>,
}

/// The queue to one worker.
pub(crate) struct WorkerQueue {
    sender: MailboxSender<WorkerCommand>,
    /// The worker's thread, once it runs.
    thread: Arc<OnceLock<ThreadId>>,
}

impl WorkerQueue {
    pub(crate) fn new(
        sender: MailboxSender<WorkerCommand>,
        thread: &Arc<OnceLock<ThreadId>>,
    ) -> Self {
        Self { sender, thread: Arc::clone(thread) }
    }

    fn try_push(&self, command: WorkerCommand) -> Result<(), SenderError> {
        self.sender.try_push(command).map_err(|rejected| sender_error(rejected.reason))
    }

    /// Pushes a command, and waits for room unless this thread must not block.
    fn push(&self, command: WorkerCommand, may_wait: bool) -> Result<(), SenderError> {
        if may_wait {
            return self.sender.push(command).map_err(|rejected| sender_error(rejected.reason));
        }
        match self.try_push(command) {
            Err(SenderError::Full) => Err(SenderError::WouldDeadlock),
            other => other,
        }
    }
}

fn sender_error(reason: PushReason) -> SenderError {
    match reason {
        PushReason::TooLarge => SenderError::TooLarge,
        PushReason::Closed => SenderError::Closed,
        _ => SenderError::Full,
    }
}

/// Why a worker did not get a message.
///
/// ```
/// use std::io;
/// use windlass_server::SenderError;
///
/// // With `?` it becomes an error of a fitting kind.
/// assert_eq!(io::Error::from(SenderError::Full).kind(), io::ErrorKind::WouldBlock);
/// assert_eq!(io::Error::from(SenderError::Closed).kind(), io::ErrorKind::BrokenPipe);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SenderError {
    /// The queue is full.
    Full,
    /// The message is larger than the whole queue.
    TooLarge,
    /// The service is gone, or the ID belongs to no existing worker.
    Closed,
    /// The queue is full, and the caller is a worker's thread. Waiting would stop it from emptying
    /// its own queue, and two workers could wait for each other. Use a [`Hub`](crate::Hub) there,
    /// or a `try` call.
    WouldDeadlock,
}

impl fmt::Display for SenderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "the queue of the worker is full (Options::sender_bounds)",
            Self::TooLarge => "the message is larger than the queue (Options::sender_bounds)",
            Self::Closed => "the service has ended",
            Self::WouldDeadlock => {
                "the queue is full, and a worker's thread must not wait for room"
            }
        })
    }
}

impl core::error::Error for SenderError {}

impl From<SenderError> for io::Error {
    fn from(error: SenderError) -> Self {
        let kind = match error {
            SenderError::Full => io::ErrorKind::WouldBlock,
            SenderError::TooLarge => io::ErrorKind::InvalidInput,
            SenderError::Closed => io::ErrorKind::BrokenPipe,
            SenderError::WouldDeadlock => io::ErrorKind::Deadlock,
        };
        Self::new(kind, error)
    }
}

impl Sender {
    pub(crate) fn new(queues: Vec<WorkerQueue>, owners: Option<Arc<TopicOwners>>) -> Self {
        Self { queues: queues.into(), owners }
    }

    /// Returns whether this thread may block: it is no worker's thread.
    fn may_wait(&self) -> bool {
        let this = thread::current().id();
        self.queues.iter().all(|queue| queue.thread.get() != Some(&this))
    }

    fn queue(&self, id: ConnectionId) -> Result<&WorkerQueue, SenderError> {
        self.queues.get(usize::from(id.worker())).ok_or(SenderError::Closed)
    }

    /// Sends a message to a connection, and waits for room in the queue.
    ///
    /// # Errors
    /// - [`SenderError::TooLarge`] if the message is larger than the whole queue.
    /// - [`SenderError::Closed`] if the service has ended.
    /// - [`SenderError::WouldDeadlock`] if the queue is full and the caller is a worker's thread.
    pub fn send<'m>(
        &self,
        id: ConnectionId,
        message: impl Into<OutMessage<'m>>,
    ) -> Result<(), SenderError> {
        self.send_prepared(id, &Prepared::new(message))
    }

    /// Sends a message to a connection, if there is room in the queue.
    ///
    /// # Errors
    /// - [`SenderError::Full`] if the queue is full.
    /// - [`SenderError::TooLarge`] if the message is larger than the whole queue.
    /// - [`SenderError::Closed`] if the service has ended.
    pub fn try_send<'m>(
        &self,
        id: ConnectionId,
        message: impl Into<OutMessage<'m>>,
    ) -> Result<(), SenderError> {
        self.try_send_prepared(id, &Prepared::new(message))
    }

    /// Sends a prepared message to a connection, and waits for room in the queue.
    ///
    /// # Errors
    /// - [`SenderError::TooLarge`] if the message is larger than the whole queue.
    /// - [`SenderError::Closed`] if the service has ended.
    /// - [`SenderError::WouldDeadlock`] if the queue is full and the caller is a worker's thread.
    pub fn send_prepared(&self, id: ConnectionId, message: &Prepared) -> Result<(), SenderError> {
        self.queue(id)?.push(WorkerCommand::Send { id, message: message.clone() }, self.may_wait())
    }

    /// Sends a prepared message to a connection, if there is room in the queue.
    ///
    /// # Errors
    /// - [`SenderError::Full`] if the queue is full.
    /// - [`SenderError::TooLarge`] if the message is larger than the whole queue.
    /// - [`SenderError::Closed`] if the service has ended.
    pub fn try_send_prepared(
        &self,
        id: ConnectionId,
        message: &Prepared,
    ) -> Result<(), SenderError> {
        self.queue(id)?.try_push(WorkerCommand::Send { id, message: message.clone() })
    }

    /// Closes a connection with a Close frame after the messages already sent to it, and waits for
    /// room in the queue. A code or reason that cannot be sent has no effect.
    ///
    /// # Errors
    /// - [`SenderError::TooLarge`] if the message is larger than the whole queue.
    /// - [`SenderError::Closed`] if the service has ended.
    /// - [`SenderError::WouldDeadlock`] if the queue is full and the caller is a worker's thread.
    pub fn close(
        &self,
        id: ConnectionId,
        code: CloseCode,
        reason: &str,
    ) -> Result<(), SenderError> {
        self.queue(id)?
            .push(WorkerCommand::Close { id, code, reason: reason.into() }, self.may_wait())
    }

    /// Closes a connection like [`close`](Self::close), if there is room in the queue.
    ///
    /// # Errors
    /// - [`SenderError::Full`] if the queue is full.
    /// - [`SenderError::TooLarge`] if the message is larger than the whole queue.
    /// - [`SenderError::Closed`] if the service has ended.
    pub fn try_close(
        &self,
        id: ConnectionId,
        code: CloseCode,
        reason: &str,
    ) -> Result<(), SenderError> {
        self.queue(id)?.try_push(WorkerCommand::Close { id, code, reason: reason.into() })
    }

    /// Publishes to a topic on all workers, and waits for room in their queues one after the other.
    /// If the topic is [ordered](crate::Options::ordered_topics), this is the queue of its owner
    /// alone.
    ///
    /// # Errors
    /// The first error of a worker's queue. The other workers still get the message.
    ///
    /// - [`SenderError::TooLarge`] if the message is larger than the whole queue.
    /// - [`SenderError::Closed`] if the service has ended.
    /// - [`SenderError::WouldDeadlock`] if the queue is full and the caller is a worker's thread.
    pub fn publish<'m>(
        &self,
        topic: &str,
        message: impl Into<OutMessage<'m>>,
    ) -> Result<(), SenderError> {
        let may_wait = self.may_wait();
        self.publish_with(topic, &Prepared::new(message), |queue, command| {
            queue.push(command, may_wait)
        })
    }

    /// Publishes to a topic on all workers whose queues have room. If the topic is
    /// [ordered](crate::Options::ordered_topics), its owner gives it to them.
    ///
    /// # Errors
    /// The first error of a worker's queue. The other workers still get the message.
    ///
    /// - [`SenderError::Full`] if the queue is full.
    /// - [`SenderError::TooLarge`] if the message is larger than the whole queue.
    /// - [`SenderError::Closed`] if the service has ended.
    pub fn try_publish<'m>(
        &self,
        topic: &str,
        message: impl Into<OutMessage<'m>>,
    ) -> Result<(), SenderError> {
        self.publish_with(topic, &Prepared::new(message), WorkerQueue::try_push)
    }

    fn publish_with(
        &self,
        topic: &str,
        message: &Prepared,
        push: impl Fn(&WorkerQueue, WorkerCommand) -> Result<(), SenderError>,
    ) -> Result<(), SenderError> {
        let owner = self.owners.as_ref().and_then(|owners| owners.owner_of(topic));
        let queues = match owner.map(usize::from) {
            Some(owner) => &self.queues[owner..=owner],
            None => &self.queues,
        };
        let topic: Arc<str> = topic.into();
        let mut outcome = Ok(());
        for queue in queues {
            let pushed = push(
                queue,
                WorkerCommand::Publish { topic: Arc::clone(&topic), message: message.clone() },
            );
            outcome = outcome.and(pushed);
        }
        outcome
    }
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").field("workers", &self.queues.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Options, mailbox::WorkerMailbox};
    use windlass_flow::Bounds;

    /// A worker waits neither for its own queue nor for the queue of another worker, which may be
    /// waiting for this one.
    #[test]
    fn a_worker_never_waits() {
        let mut options = Options::new();
        options.sender_bounds = Bounds::items(1);
        let mailboxes = [(); 2].map(|()| WorkerMailbox::new(&options, &Arc::default()).unwrap());
        let threads = [Arc::new(OnceLock::from(thread::current().id())), Arc::new(OnceLock::new())];
        let queues = mailboxes
            .iter()
            .zip(&threads)
            .map(|(mailbox, thread)| WorkerQueue::new(mailbox.sender.clone(), thread));
        let sender = Sender::new(queues.collect(), None);
        for worker in 0..2 {
            let id = ConnectionId::new(worker, 0, 0);
            assert_eq!(sender.send(id, "fits"), Ok(()));
            assert_eq!(sender.send(id, "does not"), Err(SenderError::WouldDeadlock));
            assert_eq!(sender.close(id, CloseCode::NORMAL, ""), Err(SenderError::WouldDeadlock));
        }
        assert_eq!(sender.publish("topic", "does not"), Err(SenderError::WouldDeadlock));
        assert_eq!(sender.try_publish("topic", "does not"), Err(SenderError::Full));
        let elsewhere = sender.clone();
        assert!(thread::spawn(move || elsewhere.may_wait()).join().unwrap());
    }
}
