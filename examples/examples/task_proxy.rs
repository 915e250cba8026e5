//! A TCP proxy with async/await.
//!
//! `cargo run --example task_proxy -- 127.0.0.1:9009 127.0.0.1:80` forwards connections to a
//! server.
//!
//! It shows:
//! - Two directions of one connection are two futures of one task, by the borrowed halves of
//!   `split`.
//! - Back-pressure: a direction reads again when its bytes are written. So it buffers one buffer's
//!   worth, and the kernel makes the sender wait.
//! - Half-close: the end of one direction is forwarded, and the other direction continues.
//! - Dropping the task, or an error of one direction, ends both.

use std::{
    future::{Future, poll_fn},
    io,
    net::SocketAddr,
    pin::pin,
    task::Poll,
};

use windlass_task::{
    Executor,
    net::{ReadHalf, TcpListener, TcpStream, WriteHalf, lookup_host},
    spawn,
};

/// The bytes that a direction holds.
const BUFFER: usize = 64 << 10;

fn main() -> io::Result<()> {
    let mut words = windlass_examples::words().into_iter();
    let (Some(from), Some(to)) = (words.next(), words.next()) else {
        eprintln!("usage: task_proxy ADDRESS SERVER");
        return Ok(());
    };
    let reactor = windlass_examples::builder().map_err(io::Error::from)?;
    Executor::builder().reactor(reactor).build()?.block_on(async {
        let servers = lookup_host(to).await?;
        let listener = TcpListener::bind(from).await?;
        println!("forwarding {} to {servers:?}", listener.local_addr()?);
        serve(listener, servers).await
    })
}

/// Accepts until the listener fails.
async fn serve(listener: TcpListener, servers: Vec<SocketAddr>) -> io::Result<()> {
    loop {
        let (client, peer) = listener.accept().await?;
        let servers = servers.clone();
        spawn(async move {
            if let Err(error) = forward(client, &servers).await {
                eprintln!("{peer}: {error}");
            }
        })
        .detach();
    }
}

async fn forward(mut client: TcpStream, servers: &[SocketAddr]) -> io::Result<()> {
    let mut server = TcpStream::connect(servers).await?;
    let (client_read, client_write) = client.split();
    let (server_read, server_write) = server.split();
    both(copy(client_read, server_write), copy(server_read, client_write)).await
}

/// Copies until the end, and forwards it.
async fn copy(
    mut from: ReadHalf<'_, TcpStream>,
    mut to: WriteHalf<'_, TcpStream>,
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let count = from.read(&mut buffer).await?;
        if count == 0 {
            return to.shutdown().await;
        }
        to.write_all(&buffer[..count]).await?;
    }
}

/// Runs both futures until both have finished, or one has failed.
async fn both(
    first: impl Future<Output = io::Result<()>>,
    second: impl Future<Output = io::Result<()>>,
) -> io::Result<()> {
    let (mut first, mut second) = (pin!(first), pin!(second));
    let (mut first_done, mut second_done) = (false, false);
    poll_fn(|context| {
        for (future, done) in [
            (first.as_mut() as std::pin::Pin<&mut dyn Future<Output = _>>, &mut first_done),
            (second.as_mut(), &mut second_done),
        ] {
            if !*done {
                match future.poll(context) {
                    Poll::Ready(Ok(())) => *done = true,
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending => {}
                }
            }
        }
        if first_done && second_done { Poll::Ready(Ok(())) } else { Poll::Pending }
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::{ErrorKind, Read, Write},
        net::{Shutdown, TcpListener as StdListener, TcpStream as StdStream},
        os::unix::net::UnixStream,
        sync::mpsc,
        thread,
    };

    /// Runs the proxy in front of a listener, while a function runs on another thread. It gets the
    /// proxy's address and the listener.
    fn with_proxy(run: impl FnOnce(SocketAddr, StdListener) + Send + 'static) {
        let server = StdListener::bind("127.0.0.1:0").unwrap();
        let to = server.local_addr().unwrap();
        let reactor = windlass_examples::builder().unwrap();
        let mut executor = Executor::builder().reactor(reactor).build().unwrap();
        executor.block_on(async move {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            spawn(serve(listener, vec![to])).detach();
            let (ended, end) = UnixStream::pair().unwrap();
            let thread = thread::spawn(move || {
                let _end = end;
                run(address, server);
            });
            // The thread drops its end of the pair when it ends.
            let mut ended = windlass_task::net::UnixStream::from_std(ended).unwrap();
            assert_eq!(ended.read(&mut [0]).await.unwrap(), 0);
            thread.join().unwrap();
        });
    }

    #[test]
    fn both_directions_and_their_ends_are_forwarded() {
        with_proxy(|address, server| {
            let mut client = StdStream::connect(address).unwrap();
            let (mut there, _) = server.accept().unwrap();
            client.write_all(b"request").unwrap();
            client.shutdown(Shutdown::Write).unwrap();
            let mut request = String::new();
            there.read_to_string(&mut request).unwrap();
            assert_eq!(request, "request");
            // The other direction continues.
            there.write_all(b"response").unwrap();
            drop(there);
            let mut response = String::new();
            client.read_to_string(&mut response).unwrap();
            assert_eq!(response, "response");
        });
    }

    #[test]
    fn a_server_that_does_not_read_stops_the_client() {
        with_proxy(|address, server| {
            let mut client = StdStream::connect(address).unwrap();
            let (mut there, _) = server.accept().unwrap();
            client.set_nonblocking(true).unwrap();
            let chunk = [7; 64 << 10];
            let (mut sent, mut refusals) = (0, 0);
            // The queues of the kernel and the proxy's buffer are bounded, so this ends.
            while refusals < 1000 {
                match client.write(&chunk) {
                    Ok(count) => {
                        sent += count;
                        refusals = 0;
                    }
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::WouldBlock);
                        refusals += 1;
                        thread::yield_now();
                    }
                }
            }
            let (sender, receiver) = mpsc::channel();
            let reader = thread::spawn(move || {
                let mut received = Vec::new();
                there.read_to_end(&mut received).unwrap();
                sender.send(received.len()).unwrap();
            });
            drop(client);
            assert_eq!(receiver.recv().unwrap(), sent);
            reader.join().unwrap();
        });
    }

    #[test]
    fn a_server_that_refuses_closes_the_client() {
        with_proxy(|address, server| {
            drop(server);
            let mut client = StdStream::connect(address).unwrap();
            // The end, or a reset: the proxy has closed it.
            let end = client.read(&mut [0; 1]);
            assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");
        });
    }
}
