//! A runtime that serves HTTP.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Poll, Waker};

use super::case::HttpServer;
use super::message::{RESPONSE, Received};
use crate::measured::{Error, Unsupported};
use crate::tasks::Runtime;

/// A runtime whose tasks serve HTTP connections.
pub trait HttpRuntime: Runtime {
    /// A connection.
    type Http: HttpStream;

    /// Returns a connection without the buffers of the suite `latency`.
    fn http(stream: Self::Stream) -> Self::Http;

    /// Spawns a task that serves a connection until its end, and passes the result to
    /// [`Serving::finish`]. The service returns [`BODY`](super::BODY).
    ///
    /// # Errors
    ///
    /// [`Unsupported`] if it does not have this server. [`HttpServer::Mock`] is served by
    /// [`Serving::mock`].
    fn serve(server: HttpServer, stream: Self::Http, serving: Serving) -> Result<(), Unsupported>;
}

/// An end of a connection.
#[allow(async_fn_in_trait, reason = "all futures stay on their thread")]
pub trait HttpStream: 'static {
    /// Writes all bytes.
    async fn write(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Reads some bytes; 0 at the end of the stream.
    async fn read(&mut self, room: &mut [u8]) -> io::Result<usize>;
}

/// What the tasks of all connections share.
#[derive(Debug, Default)]
struct Open {
    count: Cell<usize>,
    waiting: RefCell<Option<Waker>>,
    error: RefCell<Option<String>>,
}

/// Counts the connections that are served.
#[derive(Debug)]
pub struct Serving(Rc<Open>);

impl Serving {
    /// For the first connection.
    pub(super) fn new() -> Self {
        Self(Rc::new(Open { count: Cell::new(1), ..Open::default() }))
    }

    /// For a further connection.
    pub(super) fn another(&self) -> Self {
        self.0.count.set(self.0.count.get() + 1);
        Self(Rc::clone(&self.0))
    }

    /// Ends a connection.
    pub fn finish(self, result: Result<(), Error>) {
        if let Err(error) = result {
            self.0.error.borrow_mut().get_or_insert(error.to_string());
        }
    }

    /// Serves a connection as the mock.
    pub async fn mock(self, stream: impl HttpStream) {
        let result = mock(stream).await;
        self.finish(result.map_err(Error::from));
    }

    /// Waits until all other connections have ended.
    ///
    /// # Errors
    ///
    /// The first error of a connection.
    pub(super) async fn others_finished(self) -> Result<(), Error> {
        poll_fn(|context| {
            if self.0.count.get() == 1 {
                return Poll::Ready(());
            }
            *self.0.waiting.borrow_mut() = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
        self.0.error.take().map_or(Ok(()), |error| Err(error.into()))
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let count = self.0.count.get() - 1;
        self.0.count.set(count);
        if count == 1
            && let Some(waiting) = self.0.waiting.take()
        {
            waiting.wake();
        }
    }
}

/// Answers the requests of a connection until its end.
///
/// # Errors
///
/// If a read or a write fails, or a request is too long.
pub async fn mock(mut stream: impl HttpStream) -> io::Result<()> {
    let mut received = Received::default();
    loop {
        let count = stream.read(received.room()).await?;
        if count == 0 {
            return Ok(());
        }
        if received.take_request(count)? {
            stream.write(RESPONSE).await?;
        }
    }
}
