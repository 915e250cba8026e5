//! The memory of connections that wait for their next request.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::rc::Rc;
use std::time::Duration;

use super::case::HttpServer;
use super::message::{REQUEST, Received};
use super::runtime::{HttpRuntime, Serving};
use crate::alloc;
use crate::measured::Error;
use crate::tasks::Laps;

/// Connections that are opened and answered before the memory is counted. They fill what all
/// connections share.
const BEFORE: usize = 64;
/// Time in which a server task returns to its read after its response has arrived.
const SETTLE: Duration = Duration::from_millis(2);
/// Time in which a server of a library frees the buffers of an idle connection, if it does that.
const SETTLE_LIBRARY: Duration = Duration::from_millis(1500);

/// All rounds are the same, so one is done.
pub(super) async fn run<R: HttpRuntime>(
    server: HttpServer,
    connections: usize,
    rounds: u64,
    laps: Rc<Laps>,
) -> Result<(), Error> {
    let settle = if server == HttpServer::Mock { SETTLE } else { SETTLE_LIBRARY };
    let (listener, address) = R::listen().await?;
    let serving = Serving::new();
    let mut clients = Vec::with_capacity(BEFORE + connections);
    laps.start();
    let mut before = 0;
    for number in 0..BEFORE + connections {
        if number == BEFORE {
            R::sleep(settle).await;
            before = alloc::counts().live_bytes;
        }
        // The kernel connects over loopback within the call. The client allocates nothing.
        let mut client = TcpStream::connect(address)?;
        let accepted = R::http(R::accept(&listener).await?);
        R::serve(server, accepted, serving.another())?;
        client.write_all(REQUEST)?;
        client.set_nonblocking(true)?;
        respond::<R>(&mut client).await?;
        clients.push(client);
    }
    R::sleep(settle).await;
    let bytes = alloc::counts().live_bytes - before;
    laps.gauge("heap_bytes_per_idle_connection", bytes as f64 / connections as f64);
    drop(clients);
    let served = serving.others_finished().await;
    laps.stop(rounds);
    served
}

/// Waits for a response on a socket that the runtime does not know.
async fn respond<R: HttpRuntime>(client: &mut TcpStream) -> Result<(), Error> {
    let mut received = Received::default();
    loop {
        match client.read(received.room()) {
            Ok(0) => return Err("the server has closed a connection".into()),
            Ok(count) if received.take_response(count)? => return Ok(()),
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                R::sleep(Duration::from_micros(50)).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}
