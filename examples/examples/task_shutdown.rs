//! A TCP echo server that ends gracefully on Ctrl-C and SIGTERM.
//!
//! `cargo run --example task_shutdown -- 127.0.0.1:9009` echoes what clients send. The first signal
//! ends it gracefully, the second one at once.
//!
//! It shows:
//! - `Signals` are made before anything else. From then on a signal is an event, and does not end
//!   the process.
//! - The end has three steps. The listener is closed, so no client connects any more. The
//!   connections have some time to end. Then a `Cancel` token ends those that are left.
//! - A token that is cancelled, a time limit and an error of a socket are different results.

use std::{io, time::Duration};

use windlass_task::{
    Executor, JoinError, JoinSet,
    cancel::{Cancel, CancelExt, Cancelled},
    net::{TcpListener, TcpStream},
    signal::{Signal, Signals},
    spawn,
    time::timeout,
};

/// Maximum number of connections at the same time.
const CONNECTIONS_MAX: usize = 1000;

/// How long connections may go on after the first signal.
const GRACE: Duration = Duration::from_secs(10);

fn main() -> io::Result<()> {
    let address = windlass_examples::first_word().unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let reactor = windlass_examples::builder().map_err(io::Error::from)?;
    Executor::builder().reactor(reactor).build()?.block_on(async {
        let signals = Signals::new([Signal::INT, Signal::TERM])?;
        let listener = TcpListener::bind(address).await?;
        println!("echoing on {}", listener.local_addr()?);
        let end = run(listener, signals, GRACE).await?;
        println!("{end:?}");
        Ok(())
    })
}

/// How the connections have ended.
#[derive(Debug, Default, PartialEq, Eq)]
struct End {
    /// The client has ended them, or they have failed.
    by_themselves: usize,
    /// The server has ended them.
    cancelled: usize,
}

/// Serves until a signal comes, and then ends.
async fn run(listener: TcpListener, mut signals: Signals, grace: Duration) -> io::Result<End> {
    // Accepting ends with the first signal, connections with the second one or the time.
    let (accepting, connections) = (Cancel::new(), Cancel::new());
    let server = spawn({
        let (accepting, connections) = (accepting.clone(), connections.clone());
        async move { accept(listener, accepting, connections).await }
    });
    let signal = signals.recv().await?;
    println!("{signal:?}: no more clients; those that are connected have {grace:?}");
    accepting.cancel();
    let (mut open, mut end) = server.await??;
    let hurry = spawn({
        let connections = connections.clone();
        async move {
            if signals.recv().await.is_ok() {
                connections.cancel();
            }
        }
    });
    if timeout(grace, end.count_all(&mut open)).await.is_err() {
        connections.cancel();
        end.count_all(&mut open).await;
    }
    hurry.abort();
    Ok(end)
}

/// Accepts until the token is cancelled. The listener is closed then. Returns the connections that
/// are left.
async fn accept(
    listener: TcpListener,
    accepting: Cancel,
    connections: Cancel,
) -> io::Result<(JoinSet<Result<(), Cancelled>>, End)> {
    let (mut open, mut end) = (JoinSet::new(), End::default());
    loop {
        if open.len() >= CONNECTIONS_MAX {
            match open.join_next().cancelled_by(&accepting).await {
                Ok(ended) => end.count(ended),
                Err(Cancelled) => return Ok((open, end)),
            }
            continue;
        }
        let (stream, peer) = match listener.accept().cancelled_by(&accepting).await {
            Ok(Ok(accepted)) => accepted,
            // The client has gone already.
            Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
            Ok(Err(error)) => return Err(error),
            Err(Cancelled) => return Ok((open, end)),
        };
        let connection = connections.child();
        open.spawn(async move {
            if let Err(error) = echo(stream).cancelled_by(&connection).await? {
                eprintln!("{peer}: {error}");
            }
            Ok(())
        });
        // Removes those that have finished.
        while let Some(ended) = open.try_join_next() {
            end.count(Some(ended));
        }
    }
}

async fn echo(mut stream: TcpStream) -> io::Result<()> {
    let mut buffer = [0; 16 << 10];
    loop {
        let count = stream.read(&mut buffer).await?;
        if count == 0 {
            return stream.shutdown().await;
        }
        stream.write_all(&buffer[..count]).await?;
    }
}

impl End {
    fn count(&mut self, ended: Option<Result<Result<(), Cancelled>, JoinError>>) {
        match ended {
            Some(Ok(Err(Cancelled))) => self.cancelled += 1,
            Some(_) => self.by_themselves += 1,
            None => {}
        }
    }

    /// Waits for all connections. If it is dropped, those that are left are counted later.
    async fn count_all(&mut self, open: &mut JoinSet<Result<(), Cancelled>>) {
        while let Some(ended) = open.join_next().await {
            self.count(Some(ended));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::{Read, Write},
        net::{SocketAddr, TcpStream as Client},
        os::unix::net::UnixStream,
        sync::{Mutex, PoisonError, mpsc},
        thread,
    };

    use nix::sys::signal::{SIGINT, SIGTERM, Signal as Raw, raise};

    /// More than a test takes.
    const LONG: Duration = Duration::from_secs(600);

    /// Serves, and raises a signal for each byte that the client sends through the second socket.
    /// raise(3) sends it to this thread: one of the process would go to the harness's thread. All
    /// servers of the process are told, so there is one at a time.
    fn serve(
        grace: Duration,
        signals: &'static [Raw],
        client: impl FnOnce(SocketAddr, UnixStream) + Send + 'static,
    ) -> End {
        static ALONE: Mutex<()> = Mutex::new(());
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let reactor = windlass_examples::builder().unwrap();
        let mut executor = Executor::builder().reactor(reactor).build().unwrap();
        let (server, end) = executor.block_on(async {
            let listened = Signals::new([Signal::INT, Signal::TERM]).unwrap();
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let (ours, theirs) = UnixStream::pair().unwrap();
            // It inherits the mask of signals.
            let client = thread::spawn(move || client(address, theirs));
            let mut ours = windlass_task::net::UnixStream::from_std(ours).unwrap();
            spawn(async move {
                for signal in signals {
                    ours.read_exact(&mut [0]).await.unwrap();
                    raise(*signal).unwrap();
                }
            })
            .detach();
            (client, run(listener, listened, grace).await.unwrap())
        });
        // Closes what is left of the sockets.
        drop(executor);
        server.join().unwrap();
        end
    }

    /// A client that has sent and received something.
    fn connected(address: SocketAddr) -> Client {
        let mut client = Client::connect(address).unwrap();
        talk(&mut client);
        client
    }

    fn talk(client: &mut Client) {
        let mut back = [0; 5];
        client.write_all(b"hello").unwrap();
        client.read_exact(&mut back).unwrap();
        assert_eq!(&back, b"hello");
    }

    /// Waits until the server has closed its listener.
    fn until_refused(address: SocketAddr) {
        while Client::connect(address).is_ok() {
            thread::yield_now();
        }
    }

    #[test]
    fn connections_may_end_by_themselves_after_a_signal() {
        for signals in [&[SIGTERM], &[SIGINT]] {
            let end = serve(LONG, signals, |address, mut signal| {
                let mut client = connected(address);
                drop(connected(address));
                signal.write_all(&[0]).unwrap();
                until_refused(address);
                talk(&mut client);
            });
            assert_eq!(end.cancelled, 0);
            assert!(end.by_themselves >= 2);
        }
    }

    #[test]
    fn connections_that_stay_are_cancelled_when_the_time_is_over() {
        let (sender, receiver) = mpsc::channel();
        let end = serve(Duration::from_millis(20), &[SIGTERM], move |address, mut signal| {
            let mut clients = [connected(address), connected(address)];
            signal.write_all(&[0]).unwrap();
            for client in &mut clients {
                // The end of the stream, or a reset.
                let _ = client.read(&mut [0]);
            }
            sender.send(()).unwrap();
        });
        receiver.recv().unwrap();
        assert_eq!(end.cancelled, 2);
    }

    #[test]
    fn a_second_signal_ends_them_at_once() {
        let end = serve(LONG, &[SIGTERM, SIGTERM], |address, mut signal| {
            let mut client = connected(address);
            signal.write_all(&[0]).unwrap();
            until_refused(address);
            talk(&mut client);
            signal.write_all(&[0]).unwrap();
            let _ = client.read(&mut [0]);
        });
        assert_eq!(end.cancelled, 1);
    }
}
