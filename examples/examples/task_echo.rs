//! A TCP echo server with async/await: one task for each connection.
//!
//! `cargo run --example task_echo -- 127.0.0.1:9008` echoes what clients send.
//!
//! It shows:
//! - A connection is a function that reads like a program with blocking calls.
//! - Back-pressure comes by itself: a task that waits for a client to read does not read from it.
//! - The number of connections is bounded. At the limit the server accepts no more, and clients
//!   wait in the backlog.
//! - An error of one connection ends that connection alone.

use std::io;

use windlass_task::{
    Executor, JoinSet,
    net::{TcpListener, TcpStream},
};

/// Maximum number of connections at the same time.
const CONNECTIONS_MAX: usize = 1000;

fn main() -> io::Result<()> {
    let address = windlass_examples::first_word().unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let reactor = windlass_examples::builder().map_err(io::Error::from)?;
    Executor::builder().reactor(reactor).build()?.block_on(async {
        let listener = TcpListener::bind(address).await?;
        println!("echoing on {}", listener.local_addr()?);
        serve(listener, CONNECTIONS_MAX).await
    })
}

/// Accepts until the listener fails.
async fn serve(listener: TcpListener, connections_max: usize) -> io::Result<()> {
    let mut connections = JoinSet::new();
    loop {
        while connections.len() >= connections_max {
            connections.join_next().await;
        }
        match listener.accept().await {
            Ok((stream, peer)) => {
                connections.spawn(async move {
                    if let Err(error) = echo(stream).await {
                        eprintln!("{peer}: {error}");
                    }
                });
            }
            // The client has gone already.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => return Err(error),
        }
        // Removes those that have finished.
        while connections.try_join_next().is_some() {}
    }
}

async fn echo(mut stream: TcpStream) -> io::Result<()> {
    let mut buffer = [0; 16 << 10];
    loop {
        let count = stream.read(&mut buffer).await?;
        if count == 0 {
            // The client has ended its direction. It may still read.
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
        net::{Shutdown, SocketAddr, TcpStream as Client},
        os::unix::net::UnixStream,
        thread,
    };

    /// Serves while clients run on threads of their own.
    fn with_clients(connections_max: usize, count: u8, client: fn(SocketAddr, u8)) {
        let reactor = windlass_examples::builder().unwrap();
        let mut executor = Executor::builder().reactor(reactor).build().unwrap();
        executor.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            windlass_task::spawn(serve(listener, connections_max)).detach();
            let (ended, end) = UnixStream::pair().unwrap();
            let mut ended = windlass_task::net::UnixStream::from_std(ended).unwrap();
            let clients: Vec<_> = (0..count)
                .map(|number| {
                    let end = end.try_clone().unwrap();
                    thread::spawn(move || {
                        let _end = end;
                        client(address, number);
                    })
                })
                .collect();
            drop(end);
            // Each thread drops its end of the pair when it ends.
            assert_eq!(ended.read(&mut [0]).await.unwrap(), 0);
            clients.into_iter().for_each(|client| client.join().unwrap());
        });
    }

    #[test]
    fn bytes_come_back_until_the_client_ends() {
        with_clients(CONNECTIONS_MAX, 5, |address, number| {
            let mut client = Client::connect(address).unwrap();
            let mut back = Vec::new();
            for length in [1, 1000, 100_000] {
                back.resize(length, 0);
                // The sockets may hold less than all of it.
                let mut writer = client.try_clone().unwrap();
                thread::scope(|scope| {
                    scope.spawn(move || writer.write_all(&vec![number; length]).unwrap());
                    client.read_exact(&mut back).unwrap();
                });
                assert_eq!(back, vec![number; length]);
            }
            client.shutdown(Shutdown::Write).unwrap();
            assert_eq!(client.read(&mut back).unwrap(), 0);
        });
    }

    #[test]
    fn at_the_limit_clients_wait_for_their_turn() {
        with_clients(1, 4, |address, number| {
            let mut client = Client::connect(address).unwrap();
            client.write_all(&[number]).unwrap();
            let mut back = [0];
            client.read_exact(&mut back).unwrap();
            assert_eq!(back, [number]);
        });
    }
}
