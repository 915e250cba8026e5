//! A TCP echo server on several threads, with one executor each.
//!
//! `cargo run --example task_workers -- 127.0.0.1:9010` echoes what clients send.
//!
//! It shows:
//! - Each worker has a listener of its own, and the kernel distributes the connections. Workers
//!   share nothing, so connections need neither locks nor `Send`.
//! - A connection moves to another worker: a client that begins with `@1` is served by worker 1.
//!   The queues between workers are bounded. If the other one is full, the client stays.
//! - A graceful stop: no new connections, those in the backlog are served, and a deadline.

use std::{io, net::SocketAddr, time::Duration};

use windlass_task::{
    Either, Executor, JoinSet, WorkerContext, WorkerInbox, Workers, WorkersBuilder,
    net::{TcpListener, TcpStream},
    race, spawn,
};

/// Connections that wait for one worker.
const HAND_OVERS_MAX: usize = 64;

/// A connection on its way to another worker: the socket, and the bytes that were read already.
struct HandOver {
    socket: std::net::TcpStream,
    read_buf: Vec<u8>,
}

type Context = WorkerContext<HandOver>;

fn main() -> io::Result<()> {
    let address = windlass_examples::first_word().unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let address = address.parse().map_err(io::Error::other)?;
    let workers = builder(address)?.start(serve)?;
    println!("echoing on {} with {} workers", workers.addresses()[0], workers.handle().count());
    // The server ends when its standard input does.
    io::copy(&mut io::stdin(), &mut io::sink())?;
    workers.stop_within(Duration::from_secs(5));
    for (index, served) in workers.join().into_iter().enumerate() {
        match served {
            Ok(served) => println!("worker {index} has served {} connections", served?),
            Err(error) => println!("worker {index}: {error}"),
        }
    }
    Ok(())
}

fn builder(address: SocketAddr) -> io::Result<WorkersBuilder> {
    let backend = windlass_examples::backend().map_err(io::Error::from)?;
    let reactor = move || windlass::Reactor::builder().backend(backend);
    Ok(Workers::builder()
        .name("echo")
        .inbox_len_max(HAND_OVERS_MAX)
        .listen(address)
        .executor(move || Executor::builder().reactor(reactor())))
}

/// One worker. Returns the number of connections that it has served.
async fn serve(worker: Context) -> io::Result<usize> {
    let listener = worker.take_listener()?;
    let handed_over = spawn(receive(worker.take_inbox()?));
    let mut connections = JoinSet::new();
    let mut served = 0;
    let accept = |connections: &mut JoinSet<_>, stream| {
        connections.spawn(begin(stream, worker.clone()));
    };
    while let Some(stream) = accept_until_stop(&listener, &worker).await? {
        accept(&mut connections, stream);
        while let Some(connection) = connections.try_join_next() {
            served += count(connection?);
        }
    }
    for accepted in listener.into_backlog() {
        accept(&mut connections, accepted?.0);
    }
    while let Some(connection) = connections.join_next().await {
        served += count(connection?);
    }
    Ok(served + handed_over.await?)
}

/// The next connection, or `None` when the workers are stopped.
async fn accept_until_stop(
    listener: &TcpListener,
    worker: &Context,
) -> io::Result<Option<TcpStream>> {
    match race(worker.stopped(), listener.accept()).await {
        Either::First(()) => Ok(None),
        Either::Second(accepted) => accepted.map(|(stream, _)| Some(stream)),
    }
}

/// Connections of other workers, until the queue is closed by a stop.
async fn receive(mut inbox: WorkerInbox<HandOver>) -> usize {
    let mut connections = JoinSet::new();
    let mut served = 0;
    while let Some(HandOver { socket, read_buf }) = inbox.recv().await {
        connections
            .spawn(async move { echo(TcpStream::from_std_with_read_buf(socket, read_buf)?).await });
        while connections.try_join_next().is_some() {
            served += 1;
        }
    }
    served + connections.join_all().await.len()
}

/// Whether a connection was served here, and not handed over. An error ends it alone.
fn count(connection: io::Result<bool>) -> usize {
    match connection {
        Ok(here) => usize::from(here),
        Err(error) => {
            eprintln!("{error}");
            1
        }
    }
}

/// Reads the first two bytes of a connection, and hands it over if they are `@` and a worker. True
/// if it was served here.
async fn begin(mut stream: TcpStream, worker: Context) -> io::Result<bool> {
    let mut first = [0; 2];
    if let Err(error) = stream.read_exact(&mut first).await {
        // A client that leaves without a word.
        return if error.kind() == io::ErrorKind::UnexpectedEof { Ok(true) } else { Err(error) };
    }
    let wanted = usize::from(first[1].wrapping_sub(b'0'));
    if first[0] != b'@' || wanted >= worker.count() || wanted == worker.index() {
        stream.write_all(&first).await?;
        return echo(stream).await.map(|()| true);
    }
    // On a ring, more bytes may have been received.
    let (socket, rest) = stream.detach().await?;
    let hand_over = HandOver { socket, read_buf: [&first[..], &rest].concat() };
    match worker.handle().try_send(wanted, hand_over) {
        Ok(()) => Ok(false),
        // The other worker is busy or has ended, so the client is served here.
        Err(rejected) => {
            let HandOver { socket, read_buf } = rejected.item.into_inner();
            echo(TcpStream::from_std_with_read_buf(socket, read_buf)?).await.map(|()| true)
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::{Read, Write},
        net::{Shutdown, TcpStream as Client},
    };

    const LOCAL: &str = "127.0.0.1:0";

    /// Sends text in pieces, and checks that it comes back.
    fn converse(address: SocketAddr, pieces: &[&[u8]]) {
        let mut client = Client::connect(address).unwrap();
        for piece in pieces {
            let (mut writer, mut back) = (client.try_clone().unwrap(), vec![0; piece.len()]);
            // The sockets may hold less than all of it.
            std::thread::scope(|scope| {
                scope.spawn(move || writer.write_all(piece).unwrap());
                client.read_exact(&mut back).unwrap();
            });
            assert_eq!(back, *piece);
        }
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn bytes_come_back_from_all_workers_and_a_stop_waits_for_connections() {
        let workers = builder(LOCAL.parse().unwrap()).unwrap().count(3).start(serve).unwrap();
        let address = workers.addresses()[0];
        for length in [2, 1000, 100_000] {
            converse(address, &[&vec![b'x'; length], b"more"]);
        }
        let mut open = Client::connect(address).unwrap();
        open.write_all(b"open").unwrap();
        open.read_exact(&mut [0; 4]).unwrap();
        workers.stop();
        open.write_all(b"still").unwrap();
        open.read_exact(&mut [0; 5]).unwrap();
        drop(open);
        let served: usize = workers.join().into_iter().map(|end| end.unwrap().unwrap()).sum();
        assert_eq!(served, 4);
    }

    #[test]
    fn a_client_is_served_by_the_worker_of_its_choice() {
        let workers = builder(LOCAL.parse().unwrap()).unwrap().count(2).start(serve).unwrap();
        let address = workers.addresses()[0];
        for _ in 0..10 {
            // The bytes that were read before the hand-over come back too.
            converse(address, &[b"@1", b"hello"]);
        }
        workers.stop();
        let served: Vec<usize> =
            workers.join().into_iter().map(|end| end.unwrap().unwrap()).collect();
        assert_eq!(served, [0, 10]);
    }

    #[test]
    fn clients_that_never_leave_are_cut_at_the_deadline() {
        let workers = builder(LOCAL.parse().unwrap()).unwrap().count(1).start(serve).unwrap();
        let mut client = Client::connect(workers.addresses()[0]).unwrap();
        client.write_all(b"here").unwrap();
        client.read_exact(&mut [0; 4]).unwrap();
        workers.stop_within(Duration::from_millis(1));
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
        assert!(workers.join()[0].is_err());
    }
}
