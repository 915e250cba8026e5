//! A UDP echo server with async/await.
//!
//! `cargo run --example task_udp_echo -- 127.0.0.1:9007` sends each datagram back.
//!
//! It shows:
//! - All methods of a `UdpSocket` take `&self`, so several tasks share it.
//! - A task that answers slowly does not stop the others. Here each task has one datagram at a
//!   time, so the memory is bounded: the kernel drops datagrams for which there is no task.

use std::{io, rc::Rc};

use windlass_task::{Executor, JoinSet, net::UdpSocket};

/// Tasks, and so the number of datagrams that are answered at the same time.
const TASKS: usize = 4;

/// The longest datagram of UDP over IPv4.
const DATAGRAM_MAX: usize = 65_507;

fn main() -> io::Result<()> {
    let address = windlass_examples::first_word().unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let reactor = windlass_examples::builder().map_err(io::Error::from)?;
    Executor::builder().reactor(reactor).build()?.block_on(async {
        let socket = UdpSocket::bind(address).await?;
        println!("echoing datagrams on {}", socket.local_addr()?);
        serve(socket).await
    })
}

/// Echoes until the socket fails.
async fn serve(socket: UdpSocket) -> io::Result<()> {
    let socket = Rc::new(socket);
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        tasks.spawn(echo(Rc::clone(&socket)));
    }
    match tasks.join_next().await {
        Some(Ok(result)) => result,
        Some(Err(error)) => Err(io::Error::other(error.to_string())),
        None => Ok(()),
    }
}

async fn echo(socket: Rc<UdpSocket>) -> io::Result<()> {
    let mut buffer = vec![0; DATAGRAM_MAX];
    loop {
        match socket.recv_from(&mut buffer).await {
            Ok((count, peer)) => {
                if let Err(error) = socket.send_to(&buffer[..count], peer).await {
                    eprintln!("cannot answer {peer}: {error}");
                }
            }
            // An answer to a client that has gone.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{net::UdpSocket as Client, os::unix::net::UnixStream, thread};

    #[test]
    fn datagrams_come_back_to_their_senders() {
        let reactor = windlass_examples::builder().unwrap();
        let mut executor = Executor::builder().reactor(reactor).build().unwrap();
        executor.block_on(async {
            let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            let address = socket.local_addr().unwrap();
            windlass_task::spawn(serve(socket)).detach();
            let (ended, end) = UnixStream::pair().unwrap();
            let mut ended = windlass_task::net::UnixStream::from_std(ended).unwrap();
            let clients: Vec<_> = (0..3_u8)
                .map(|number| {
                    let end = end.try_clone().unwrap();
                    thread::spawn(move || {
                        let _end = end;
                        let client = Client::bind("127.0.0.1:0").unwrap();
                        client.connect(address).unwrap();
                        for length in [0, 1, 1000, 60_000] {
                            client.send(&vec![number; length]).unwrap();
                            let mut back = vec![0; DATAGRAM_MAX];
                            let count = client.recv(&mut back).unwrap();
                            assert_eq!(back[..count], vec![number; length]);
                        }
                    })
                })
                .collect();
            drop(end);
            // Each thread drops its end of the pair when it ends.
            assert_eq!(ended.read(&mut [0]).await.unwrap(), 0);
            clients.into_iter().for_each(|client| client.join().unwrap());
        });
    }
}
