//! `HttpServer` of windlass-http, whose connections the workload hands over.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::{Ready, poll_fn, ready};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};

use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::service::service_fn;
use windlass_bench_driver::http::{HttpServer as Kind, Serving};
use windlass_http::{AcceptedConnection, Handshaken, HttpListener, HttpServer};
use windlass_task::net::TcpStream;
use windlass_task::spawn;

use super::service::{hello, router};

thread_local! {
    /// The server of the executor that runs. It ends with it.
    static HANDED: RefCell<Weak<Handed>> = const { RefCell::new(Weak::new()) };
}

#[derive(Default)]
struct Handed {
    streams: RefCell<VecDeque<Counted>>,
    waiting: RefCell<Option<Waker>>,
}

/// Hands a connection to the server, which starts with its first one.
pub(crate) fn serve(kind: Kind, stream: TcpStream, serving: Serving) {
    let handed = HANDED.with_borrow(Weak::upgrade).unwrap_or_else(|| start(kind));
    handed.streams.borrow_mut().push_back(Counted { stream, _serving: serving });
    if let Some(waiting) = handed.waiting.take() {
        waiting.wake();
    }
}

fn start(kind: Kind) -> Rc<Handed> {
    let handed = Rc::new(Handed::default());
    HANDED.set(Rc::downgrade(&handed));
    let listener = HandedListener(Rc::clone(&handed));
    let server = HttpServer::new().on_event(|event| eprintln!("{event}"));
    drop(match kind {
        Kind::Axum => spawn(server.serve(listener, router())),
        _ => spawn(server.serve(listener, service_fn(hello))),
    });
    handed
}

struct HandedListener(Rc<Handed>);

impl HttpListener for HandedListener {
    type Stream = Counted;
    type Handshake = Ready<io::Result<Handshaken<Counted>>>;

    async fn accept(&mut self) -> io::Result<AcceptedConnection<Self::Handshake>> {
        let stream = poll_fn(|context| match self.0.streams.borrow_mut().pop_front() {
            Some(stream) => Poll::Ready(stream),
            None => {
                *self.0.waiting.borrow_mut() = Some(context.waker().clone());
                Poll::Pending
            }
        })
        .await;
        let handshaken = Handshaken { stream, version: None, is_encrypted: false };
        Ok(AcceptedConnection { handshake: ready(Ok(handshaken)), peer: None })
    }
}

/// A connection that tells its end.
struct Counted {
    stream: TcpStream,
    _serving: Serving,
}

impl Read for Counted {
    #[inline]
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        cursor: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Read::poll_read(Pin::new(&mut self.stream), context, cursor)
    }
}

impl Write for Counted {
    #[inline]
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Write::poll_write(Pin::new(&mut self.stream), context, bytes)
    }

    #[inline]
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Write::poll_write_vectored(Pin::new(&mut self.stream), context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        Write::is_write_vectored(&self.stream)
    }

    #[inline]
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Write::poll_flush(Pin::new(&mut self.stream), context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Write::poll_shutdown(Pin::new(&mut self.stream), context)
    }
}
