//! A reactor inside tokio: tokio waits, and calls the reactor when the reactor has something to do.
//!
//! Run `cargo run --example in_tokio -- 127.0.0.1:9007`, then `nc 127.0.0.1 9007`. The reactor
//! echoes, and a tokio task on a second port sends the number of connections.
//!
//! It shows:
//! - `windlass::drive` runs the reactor's turns as a future (feature `tokio`). Timers, streams and
//!   calls of other threads wake tokio.
//! - Both run on one thread and share state without a lock.
//!
//! The reactor is not `Send`, so it belongs to a current-thread runtime or to a `LocalSet`.

use std::{cell::Cell, error::Error, io, net::SocketAddr, rc::Rc};

use tokio::{io::AsyncWriteExt as _, net::TcpListener};
use windlass::{
    Builder, Embedded, Key, Turn, drive,
    stream::{DisconnectReason, Input, Listener, Peer, Stream, StreamHandler},
};

/// Echoes the received bytes, and counts the connections.
struct Echo(Rc<Cell<usize>>);

impl StreamHandler for Echo {
    fn on_open(&mut self, _: &mut Stream<'_>) {
        self.0.set(self.0.get() + 1);
    }

    fn on_data(&mut self, stream: &mut Stream<'_>, input: Input<'_>) {
        // An error means that the stream is closed, or that the peer does not read. Then the echo
        // is lost.
        let _ = stream.reply(input, ..);
    }

    fn on_close(&mut self, _: Key, _: DisconnectReason, _: Turn<'_>) {
        self.0.set(self.0.get() - 1);
    }
}

/// Creates an embedded reactor that echoes. Returns it with its address.
fn start(
    builder: Builder,
    address: SocketAddr,
    open: &Rc<Cell<usize>>,
) -> io::Result<(Embedded, SocketAddr)> {
    let mut guest = builder.build()?.embed()?;
    let listener = Listener::tcp(address)?;
    let address = listener.local_addr()?.socket_addr().unwrap_or(address);
    let open = Rc::clone(open);
    let accept = move |_: &Peer<'_>| Some(Echo(Rc::clone(&open)));
    listener.with_handler(accept).register_into(&mut guest)?;
    Ok((guest, address))
}

/// The part of tokio: sends the number of the reactor's connections to every client.
async fn tell(listener: TcpListener, open: Rc<Cell<usize>>) -> io::Result<()> {
    loop {
        let (mut stream, _) = listener.accept().await?;
        stream.write_all(format!("{} open\n", open.get()).as_bytes()).await?;
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let address = windlass_examples::first_word().unwrap_or_else(|| "127.0.0.1:9007".to_owned());
    let open = Rc::default();
    let (mut guest, address) = start(windlass_examples::builder()?, address.parse()?, &open)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        println!("echoing on {address}, sending the count on {}", listener.local_addr()?);
        tokio::try_join!(drive(&mut guest), tell(listener, open))?;
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::{io::AsyncReadExt as _, net::TcpStream};

    fn anywhere() -> SocketAddr {
        "127.0.0.1:0".parse().unwrap()
    }

    fn guest() -> (Embedded, SocketAddr, Rc<Cell<usize>>) {
        let open = Rc::default();
        let (guest, address) =
            start(windlass_examples::builder().unwrap(), anywhere(), &open).unwrap();
        (guest, address, open)
    }

    #[tokio::test]
    async fn both_serve_on_one_thread() {
        let (mut guest, address, open) = guest();
        let stop = guest.with(|reactor| reactor.stop_handle());
        let listener = TcpListener::bind(anywhere()).await.unwrap();
        let telling = listener.local_addr().unwrap();
        let client = async {
            let mut echoing = TcpStream::connect(address).await.unwrap();
            // Much more than one turn handles, so that readiness remains after a turn.
            let sent: Vec<u8> = (0..4u32 << 20).map(|at| (at % 251) as u8).collect();
            let (mut reading, mut writing) = echoing.split();
            let mut got = vec![0; sent.len()];
            let (written, read) =
                tokio::join!(writing.write_all(&sent), reading.read_exact(&mut got));
            written.unwrap();
            read.unwrap();
            assert!(got == sent);
            let mut told = String::new();
            TcpStream::connect(telling).await.unwrap().read_to_string(&mut told).await.unwrap();
            assert_eq!(told, "1 open\n");
            drop(echoing);
            stop.stop();
        };
        tokio::select! {
            (driven, ()) = async { tokio::join!(drive(&mut guest), client) } => driven.unwrap(),
            told = tell(listener, open) => panic!("it ends with an error alone: {told:?}"),
        }
    }

    #[tokio::test]
    async fn timers_and_calls_of_other_threads_wake_tokio() {
        let (mut guest, ..) = guest();
        let fired = Rc::new(Cell::new(0));
        let counted = Rc::clone(&fired);
        let remote = guest.with(|reactor| {
            reactor
                .every_with(Duration::from_millis(1), move |_| counted.set(counted.get() + 1))
                .unwrap();
            reactor.remote()
        });
        // Nothing else wakes the runtime, so a lost wake would hang here.
        let other = std::thread::spawn(move || {
            let timers = remote.call(|turn| turn.stats().timers_fired).unwrap();
            let enough = timers + 3;
            while remote.call(|turn| turn.stats().timers_fired).unwrap() < enough {}
            remote.stop();
        });
        drive(&mut guest).await.unwrap();
        other.join().unwrap();
        assert!(fired.get() >= 3);
    }
}
