//! One or two servers as nodes of a cluster, with a nats-server of their own: the suite `cluster`
//! of `windlass-bench`. With `--nodes 0` it is one server without a cluster.
//!
//! The nodes are servers of one process, each with its own thread for connections and its own
//! thread for NATS.

#![deny(unsafe_code)]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use windlass_bench_driver::Error;
use windlass_bench_driver::cluster::start_nats;
use windlass_bench_driver::protocol::ServerInfo;
use windlass_bench_driver::server::{
    self, ANY_PORT, MESSAGE_MAX, Mode, PUBLISHER, Settings, TOPIC, announce_as,
};
use windlass_cluster::NatsBus;
use windlass_server::bus::{BusState, Cluster};
use windlass_server::http::{Accept, Reject, UpgradeRequest};
use windlass_server::{Connection, Handler, Message, Options, RunningServer, Server};

/// Maximum time until a node is connected.
const CONNECT_MAX: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    server::run(serve)
}

fn serve(settings: Settings) -> Result<(), Error> {
    settings.require(Mode::Broadcast)?;
    let nats = if settings.nodes > 0 { Some(start_nats()?) } else { None };
    let mut nodes = Vec::new();
    for _ in 0..settings.nodes.max(1) {
        let mut server = Server::new(options(), |_| Broadcast).listen(ANY_PORT);
        if let Some((_, address)) = &nats {
            let bus = NatsBus::builder([format!("nats://{address}")]).build()?;
            server = server.cluster(Cluster::new(bus));
        }
        nodes.push(server.start()?);
    }
    nodes.iter().try_for_each(wait_until_connected)?;
    let address =
        |node: &RunningServer| node.addresses()[0].socket_addr().ok_or("an address without a port");
    announce_as(&ServerInfo {
        receivers: Some(address(&nodes[nodes.len() - 1])?),
        ..ServerInfo::new(address(&nodes[0])?, env!("CARGO_PKG_VERSION"))
    });
    for node in nodes {
        node.join()?;
    }
    Ok(())
}

fn wait_until_connected(node: &RunningServer) -> Result<(), Error> {
    let begun = Instant::now();
    let stats = node.stats_handle();
    while stats.cluster_stats().is_some_and(|stats| stats.state != BusState::Connected) {
        if begun.elapsed() > CONNECT_MAX {
            return Err("a node is not connected in time".into());
        }
        // sleep: the state has no event to wait for.
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn options() -> Options {
    let mut options = Options::new();
    options.limits.frame_max = MESSAGE_MAX;
    options.limits.message_max = MESSAGE_MAX;
    options.receiver_buffer_max = 2 * MESSAGE_MAX;
    options.deflate = None;
    options
}

/// Sends the messages of publishers to all receivers.
struct Broadcast;

impl Handler for Broadcast {
    /// True if the connection publishes.
    type Data = bool;

    fn on_upgrade(&self, request: &UpgradeRequest<'_>) -> Result<Accept<bool>, Reject> {
        Ok(Accept::new(request.path() == PUBLISHER))
    }

    fn on_open(&self, connection: &mut Connection<'_>, is_publisher: &mut bool) {
        if !*is_publisher {
            connection.subscribe(TOPIC).expect("the name is short");
        }
    }

    fn on_message(
        &self,
        connection: &mut Connection<'_>,
        is_publisher: &mut bool,
        message: Message<'_>,
    ) {
        if *is_publisher {
            connection.publish_to_others(TOPIC, message.to_out());
        }
    }
}
