//! Servers on a bus, and their clients.

use std::{
    net::{SocketAddr, TcpStream},
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, Sender},
    },
    time::Duration,
};

use tungstenite::{Message as WsMessage, WebSocket};
use windlass_server::{
    Connection, Handler, Message, Options, RunningServer, Server,
    bus::{Bus, Cluster, ClusterStats, MemoryNetwork},
    http::{Accept, Reject, UpgradeRequest},
};
use windlass_testkit::waiting::until;

use crate::backend::chosen;

/// Maximum time of any wait, after which the test fails.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(20);

/// Takes commands: the first word of a message, and a topic behind it. It answers each.
pub(crate) struct Commands {
    /// `block` sends to the first and waits for the second.
    pub(crate) gate: Option<Arc<Mutex<Gate>>>,
}

type Gate = (Sender<()>, Receiver<()>);

impl Handler for Commands {
    type Data = ();

    fn on_upgrade(&self, _: &UpgradeRequest<'_>) -> Result<Accept<()>, Reject> {
        Ok(Accept::new(()))
    }

    fn on_message(&self, connection: &mut Connection<'_>, (): &mut (), message: Message<'_>) {
        let text = String::from_utf8_lossy(message.as_bytes()).into_owned();
        let (command, topic) = text.split_once(' ').unwrap_or((&text, ""));
        let (topic, payload) = topic.split_once('|').unwrap_or((topic, ""));
        let answer = match command {
            "subscribe" => (connection.subscribe(topic) == Ok(true)).to_string(),
            "unsubscribe" => connection.unsubscribe(topic).to_string(),
            "watch" => connection.watch_status().to_string(),
            "publish" if message.is_text() => {
                connection.publish(topic, payload);
                "published".to_owned()
            }
            "publish" => {
                connection.publish(topic, payload.as_bytes());
                "published".to_owned()
            }
            "block" => {
                let gate = self.gate.as_ref().unwrap().lock().unwrap();
                gate.0.send(()).unwrap();
                gate.1.recv().unwrap();
                "released".to_owned()
            }
            _ => "what?".to_owned(),
        };
        let _ = connection.send(answer);
    }
}

/// A server on a bus.
pub(crate) struct Member {
    pub(crate) running: RunningServer,
    address: SocketAddr,
}

impl Member {
    pub(crate) fn new(bus: impl Bus, workers: usize) -> Self {
        Self::with(bus, workers, None, |_| {})
    }

    pub(crate) fn with(
        bus: impl Bus,
        workers: usize,
        gate: Option<Gate>,
        configure: impl FnOnce(&mut Options),
    ) -> Self {
        Self::in_cluster(Cluster::new(bus).prefix("test").unwrap(), workers, gate, configure)
    }

    pub(crate) fn in_cluster(
        cluster: Cluster,
        workers: usize,
        gate: Option<Gate>,
        configure: impl FnOnce(&mut Options),
    ) -> Self {
        Self::start(Some(cluster), workers, gate, configure)
    }

    /// A server without a cluster.
    pub(crate) fn alone(configure: impl FnOnce(&mut Options)) -> Self {
        Self::start(None, 1, None, configure)
    }

    fn start(
        cluster: Option<Cluster>,
        workers: usize,
        gate: Option<Gate>,
        configure: impl FnOnce(&mut Options),
    ) -> Self {
        let mut options = Options::new();
        options.limits.message_max = 1 << 20;
        options.topic_len_max = 8192;
        configure(&mut options);
        let gate = gate.map(|gate| Arc::new(Mutex::new(gate)));
        let mut server = Server::new(options, move |_| Commands { gate: gate.clone() })
            .workers(workers)
            .backend(chosen())
            .listen("127.0.0.1:0".parse().unwrap());
        if let Some(cluster) = cluster {
            server = server.cluster(cluster);
        }
        let running = server.start().unwrap();
        let address = running.addresses()[0].socket_addr().unwrap();
        Self { running, address }
    }

    pub(crate) fn client(&self) -> Client {
        let socket = TcpStream::connect(self.address).unwrap();
        socket.set_read_timeout(Some(WAIT_MAX)).unwrap();
        let url = format!("ws://{}/", self.address);
        Client(tungstenite::client(url, socket).unwrap().0)
    }

    pub(crate) fn stats(&self) -> ClusterStats {
        self.running.stats_handle().cluster_stats().unwrap()
    }

    /// Waits until the counts are as expected.
    #[track_caller]
    pub(crate) fn stats_when(&self, there: impl Fn(&ClusterStats) -> bool) -> ClusterStats {
        until(|| Some(self.stats()).filter(&there), || format!("{:?}", self.stats()))
    }

    pub(crate) fn end(self) {
        self.running.stop();
        self.running.join().unwrap();
    }
}

pub(crate) struct Client(pub(crate) WebSocket<TcpStream>);

impl Client {
    #[track_caller]
    pub(crate) fn command(&mut self, command: &str) -> String {
        self.0.send(WsMessage::text(command)).unwrap();
        self.next()
    }

    /// A client that is subscribed to a topic.
    pub(crate) fn of(member: &Member, topic: &str) -> Self {
        let mut client = member.client();
        assert_eq!(client.command(&format!("subscribe {topic}")), "true");
        client
    }

    #[track_caller]
    pub(crate) fn next(&mut self) -> String {
        self.0.read().unwrap().into_text().unwrap().to_string()
    }

    #[track_caller]
    pub(crate) fn publish(&mut self, topic: &str, payload: &str) {
        assert_eq!(self.command(&format!("publish {topic}|{payload}")), "published");
    }
}

/// Waits until so many messages are on their way.
#[track_caller]
pub(crate) fn wait_for_messages(network: &MemoryNetwork, count: usize) {
    until(|| (network.waiting() == count).then_some(()), || format!("{network:?}, {count} wanted"));
}
