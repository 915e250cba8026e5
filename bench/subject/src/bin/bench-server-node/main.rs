//! A server that may be a node of a cluster, over the bus in memory: with `--nodes 1` it is one,
//! and has no other node. It echoes.

#![deny(unsafe_code)]

use std::process::ExitCode;

use windlass::Backend;
use windlass_bench_driver::Error;
use windlass_bench_driver::server::{self, ANY_PORT, Mode, Settings, announce};
use windlass_server::bus::{Cluster, MemoryNetwork};
use windlass_server::http::{Accept, Reject, UpgradeRequest};
use windlass_server::{Connection, Handler, Message, Options, Server};

fn main() -> ExitCode {
    server::run(serve)
}

fn serve(settings: Settings) -> Result<(), Error> {
    settings.require(Mode::Echo)?;
    let backend = settings.backend_or(Backend::Auto)?;
    let mut options = Options::new();
    options.deflate = None;
    let network = MemoryNetwork::new(1);
    let mut server = Server::new(options, |_| Echo).backend(backend).listen(ANY_PORT);
    if settings.nodes > 0 {
        server = server.cluster(Cluster::new(network.bus()));
    }
    let running = server.start()?;
    let address = running.addresses()[0].socket_addr().ok_or("an address without a port")?;
    announce(address, env!("CARGO_PKG_VERSION"));
    Ok(running.join()?)
}

/// Sends every message back.
struct Echo;

impl Handler for Echo {
    type Data = ();

    fn on_upgrade(&self, _: &UpgradeRequest<'_>) -> Result<Accept<()>, Reject> {
        Ok(Accept::new(()))
    }

    fn on_message(&self, connection: &mut Connection<'_>, (): &mut (), message: Message<'_>) {
        // This fails if the connection is closing, and then no client waits for the answer.
        let _ = connection.reply_in_place(message);
    }
}
