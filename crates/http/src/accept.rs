//! The task that accepts connections, and ends them.

use core::{
    cell::Cell,
    convert::Infallible,
    future::{Future, pending, poll_fn},
    mem,
    pin::pin,
    task::Poll,
};
use std::{
    io::{self, ErrorKind},
    rc::Rc,
    time::{Duration, Instant},
};

use hyper::{Request, Response, body::Body, body::Incoming, service::Service};
use windlass::MemoryTrimmer;
use windlass_task::{
    JoinError, JoinSet,
    time::{now, sleep, timeout},
};

use crate::{
    AcceptedConnection, HttpListener, HttpServer, ServeEvent,
    connection::{self, Accepted},
    graceful_shutdown::GracefulShutdown,
    service::BoxError,
};

/// The first pause after an error of accept(2), and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// At least so much time is between two events of the limit of connections.
const LIMIT_EVERY: Duration = Duration::from_secs(10);

/// When the limit of connections was reported. While it is busy, a server may reach it again with
/// each connection.
#[derive(Default)]
struct LimitLog {
    was_full: bool,
    times: usize,
    last: Option<Instant>,
}

impl LimitLog {
    fn note(&mut self, is_full: bool, server: &HttpServer) {
        let was_full = mem::replace(&mut self.was_full, is_full);
        if !is_full || was_full {
            return;
        }
        self.times += 1;
        let now = now();
        if self.last.is_some_and(|last| now.saturating_duration_since(last) < LIMIT_EVERY) {
            return;
        }
        self.last = Some(now);
        let times = mem::take(&mut self.times);
        let connections_max = server.connections_max;
        server.report(&ServeEvent::LimitReached { connections_max, times });
    }
}

enum Next<H> {
    Shutdown,
    Ended(Result<(), JoinError>),
    Accepted(io::Result<AcceptedConnection<H>>),
}

pub(crate) async fn run<L, S, B>(
    server: HttpServer,
    mut listener: L,
    service: S,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()>
where
    L: HttpListener,
    S: Service<Request<Incoming>, Response = Response<B>, Error: Into<BoxError>, Future: 'static>,
    S: 'static,
    B: Body<Data: 'static, Error: Into<BoxError>> + 'static,
{
    #[cfg(feature = "sim")]
    let server = server.without_date_in_simulation();
    let (server, service, graceful) =
        (Rc::new(server), Rc::new(service), Rc::new(GracefulShutdown::default()));
    let mut tasks = JoinSet::new();
    let mut shutdown = pin!(shutdown);
    let (mut pause, mut limit) = (Duration::ZERO, LimitLog::default());
    let connections = Cell::new(0);
    let mut trim = pin!(trim_memory(server.trims_memory, &connections));
    let outcome = loop {
        connections.set(tasks.len());
        let is_full = tasks.len() >= server.connections_max;
        limit.note(is_full, &server);
        let mut accept = pin!(accept(&mut listener, is_full, pause));
        let next = poll_fn(|context| {
            // It never ends.
            let _ = trim.as_mut().poll(context);
            if shutdown.as_mut().poll(context).is_ready() {
                return Poll::Ready(Next::Shutdown);
            }
            if let Poll::Ready(Some(ended)) = tasks.poll_join_next(context) {
                return Poll::Ready(Next::Ended(ended));
            }
            accept.as_mut().poll(context).map(Next::Accepted)
        });
        match next.await {
            Next::Shutdown => break Ok(()),
            Next::Ended(ended) => {
                // It has freed a descriptor. A pause that went on would also start again with each
                // end, and never be over.
                pause = Duration::ZERO;
                report_end(&server, ended);
            }
            Next::Accepted(Ok(AcceptedConnection { handshake, peer })) => {
                pause = Duration::ZERO;
                let (server, service) = (Rc::clone(&server), Rc::clone(&service));
                let accepted = Accepted { handshake, peer, reset_at_drop: L::reset_at_drop };
                tasks.spawn(connection::run(accepted, graceful.watcher(), server, service));
            }
            Next::Accepted(Err(error)) => match pause_after(&error, pause) {
                Some(next) => {
                    pause = next;
                    server.report(&ServeEvent::AcceptFailed { error: &error, pause });
                }
                None => break Err(error),
            },
        }
    };
    drop(listener);
    graceful.drain();
    end(&server, &mut tasks).await;
    outcome
}

/// The memory that a connection may use, for the estimate of the load.
const BYTES_PER_CONNECTION: u64 = 1 << 20;

/// Returns memory to the system whenever a load has ended, if it is to.
async fn trim_memory(is_on: bool, connections: &Cell<usize>) -> Infallible {
    if !is_on {
        return pending().await;
    }
    let mut trimmer = MemoryTrimmer::new();
    loop {
        let load = (connections.get() as u64).saturating_mul(BYTES_PER_CONNECTION);
        let _ = trimmer.trim_if_due(load);
        sleep(MemoryTrimmer::CHECK_PERIOD).await;
    }
}

/// Accepts a connection after a pause, or none.
async fn accept<L: HttpListener>(
    listener: &mut L,
    is_full: bool,
    pause: Duration,
) -> io::Result<AcceptedConnection<L::Handshake>> {
    if is_full {
        pending::<()>().await;
    }
    if !pause.is_zero() {
        sleep(pause).await;
    }
    listener.accept().await
}

/// Waits until all connections have ended, but not for ever.
async fn end(server: &HttpServer, tasks: &mut JoinSet<()>) {
    let all = async {
        while let Some(ended) = tasks.join_next().await {
            report_end(server, ended);
        }
    };
    if timeout(server.shutdown_timeout, all).await.is_err() {
        server.report(&ServeEvent::ShutdownTimedOut { connections: tasks.len() });
        tasks.shutdown().await;
    }
}

fn report_end(server: &HttpServer, ended: Result<(), JoinError>) {
    if ended.is_err_and(|error| error.is_panic()) {
        server.report(&ServeEvent::ServicePanicked);
    }
}

/// How long to wait after an error of accept(2). `None` if the listener cannot be used any more.
fn pause_after(error: &io::Error, before: Duration) -> Option<Duration> {
    /// The connection has failed, and not the listener: accept(2), "Error handling".
    const OF_CONNECTION: &[ErrorKind] = &[
        ErrorKind::ConnectionAborted,
        ErrorKind::ConnectionReset,
        ErrorKind::ConnectionRefused,
        ErrorKind::Interrupted,
        ErrorKind::NetworkDown,
        ErrorKind::NetworkUnreachable,
        ErrorKind::HostUnreachable,
    ];
    const EBADF: i32 = 9;
    const ENOTSOCK: i32 = 88;
    if error.kind() == ErrorKind::InvalidInput
        || matches!(error.raw_os_error(), Some(EBADF | ENOTSOCK))
    {
        return None;
    }
    if OF_CONNECTION.contains(&error.kind()) {
        return Some(Duration::ZERO);
    }
    let (first, longest) = PAUSES;
    Some((before * 2).clamp(first, longest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_waits_longer_and_longer_without_descriptors() {
        const EMFILE: i32 = 24;
        let error = io::Error::from_raw_os_error(EMFILE);
        let mut pause = Duration::ZERO;
        let mut pauses = Vec::new();
        for _ in 0..9 {
            pause = pause_after(&error, pause).unwrap();
            pauses.push(pause.as_millis());
        }
        assert_eq!(pauses, [10, 20, 40, 80, 160, 320, 640, 1000, 1000]);
    }

    #[test]
    fn errors_of_a_connection_need_no_pause_and_others_end_the_server() {
        const ECONNABORTED: i32 = 103;
        const EINVAL: i32 = 22;
        let pause = |errno| pause_after(&io::Error::from_raw_os_error(errno), Duration::ZERO);
        assert_eq!(pause(ECONNABORTED), Some(Duration::ZERO));
        for fatal in [9, EINVAL, 88] {
            assert_eq!(pause(fatal), None);
        }
    }

    #[test]
    fn errors_that_may_stay_are_no_hot_loop() {
        const EPERM: i32 = 1;
        const EACCES: i32 = 13;
        const ETIMEDOUT: i32 = 110;
        for errno in [EPERM, EACCES, ETIMEDOUT] {
            let error = io::Error::from_raw_os_error(errno);
            assert_eq!(pause_after(&error, Duration::ZERO), Some(PAUSES.0), "{error}");
            assert_eq!(pause_after(&error, PAUSES.0), Some(2 * PAUSES.0), "{error}");
        }
    }
}
