//! A server as a node, and its clients.

use std::{
    io,
    net::{SocketAddr, TcpStream},
    sync::{
        Arc, Mutex, OnceLock, Weak,
        mpsc::{Receiver, Sender},
    },
};

use tungstenite::{Message as WsMessage, WebSocket};
use windlass_cluster::{NatsBus, NatsBusBuilder, NatsEvent};
use windlass_server::{
    Connection, Handler, Message, Options, RunningServer, Server,
    bus::{Bus, BusError, BusSink, BusState, Cluster, ClusterStats, SubjectMap},
    http::{Accept, Reject, UpgradeRequest},
};

use crate::server::{Nats, WAIT_MAX, until};

/// Takes commands: the first word of a message, a topic behind it, and a payload behind `|`. It
/// answers each.
struct Commands {
    /// `block` sends to the first and waits for the second.
    gate: Option<Arc<Mutex<Gate>>>,
}

pub(crate) type Gate = (Sender<()>, Receiver<()>);

impl Handler for Commands {
    type Data = ();

    fn on_upgrade(&self, _: &UpgradeRequest<'_>) -> Result<Accept<()>, Reject> {
        Ok(Accept::new(()))
    }

    fn on_message(&self, connection: &mut Connection<'_>, (): &mut (), message: Message<'_>) {
        let text = String::from_utf8_lossy(message.as_bytes()).into_owned();
        let (command, rest) = text.split_once(' ').unwrap_or((&text, ""));
        let (topic, payload) = rest.split_once('|').unwrap_or((rest, ""));
        let answer = match command {
            "subscribe" => (connection.subscribe(topic) == Ok(true)).to_string(),
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

/// What a test wants of a node.
pub(crate) struct Wanted {
    pub(crate) bus: NatsBusBuilder,
    pub(crate) gate: Option<Gate>,
    pub(crate) workers: usize,
    pub(crate) react: Option<Reaction>,
}

/// Called for each event, with the bus.
pub(crate) type Reaction = Box<dyn Fn(&NatsBus, &NatsEvent) + Send + Sync>;

impl Wanted {
    /// A node that connects again faster than by default.
    pub(crate) fn at(url: &str) -> Self {
        Self { bus: fast(NatsBus::builder([url])), gate: None, workers: 1, react: None }
    }

    pub(crate) fn start(self) -> Member {
        let events: Events = Events::default();
        let (log, react) = (Arc::clone(&events), self.react);
        let this = Arc::new(OnceLock::<Weak<NatsBus>>::new());
        let own = Arc::clone(&this);
        let bus = self.bus.on_event(move |event| {
            log.lock().unwrap().push(event.clone());
            if let (Some(react), Some(bus)) = (&react, own.get().and_then(Weak::upgrade)) {
                react(&bus, event);
            }
        });
        let bus = Arc::new(bus.build().unwrap());
        this.set(Arc::downgrade(&bus)).unwrap();
        let mut options = Options::new();
        options.limits.message_max = 4 << 20;
        options.limits.frame_max = 4 << 20;
        options.receiver_buffer_max = 64 << 20;
        options.topic_len_max = 8192;
        let gate = self.gate.map(|gate| Arc::new(Mutex::new(gate)));
        let running = Server::new(options, move |_| Commands { gate: gate.clone() })
            .workers(self.workers)
            .cluster(Cluster::new(Probe(Arc::clone(&bus))).prefix("test").unwrap())
            .listen("127.0.0.1:0".parse().unwrap())
            .start()
            .unwrap();
        let address = running.addresses()[0].socket_addr().unwrap();
        Member { running, address, bus, events }
    }
}

/// Times that suit a test.
pub(crate) fn fast(bus: NatsBusBuilder) -> NatsBusBuilder {
    use std::time::Duration;
    bus.connect_timeout(Duration::from_millis(500)).reconnect_delay_max(Duration::from_millis(50))
}

/// The same for a node that must notice a silent server. It may also take a slow one for that.
pub(crate) fn quick_to_notice(bus: NatsBusBuilder) -> NatsBusBuilder {
    use std::time::Duration;
    fast(bus).ping_interval(Duration::from_millis(100)).answer_timeout(Duration::from_millis(300))
}

pub(crate) type Events = Arc<Mutex<Vec<NatsEvent>>>;

/// A bus that the test can call too.
struct Probe(Arc<NatsBus>);

impl Bus for Probe {
    fn start(&self, sink: BusSink) -> io::Result<()> {
        self.0.start(sink)
    }
    fn subscribe(&self, subject: &str) {
        self.0.subscribe(subject);
    }
    fn unsubscribe(&self, subject: &str) {
        self.0.unsubscribe(subject);
    }
    fn publish(&self, subject: &str, payload: Vec<u8>) -> Result<(), BusError> {
        self.0.publish(subject, payload)
    }
    fn payload_max(&self) -> usize {
        self.0.payload_max()
    }
    fn stop(&self) {
        self.0.stop();
    }
}

/// A server that is a node.
pub(crate) struct Member {
    pub(crate) running: RunningServer,
    address: SocketAddr,
    pub(crate) bus: Arc<NatsBus>,
    pub(crate) events: Events,
}

impl Member {
    /// A node that is connected.
    pub(crate) fn new(nats: &Nats) -> Self {
        let member = Wanted::at(&nats.url()).start();
        member.wait_for(BusState::Connected);
        member
    }

    pub(crate) fn client(&self) -> Client {
        let socket = TcpStream::connect(self.address).unwrap();
        socket.set_read_timeout(Some(WAIT_MAX)).unwrap();
        socket.set_nodelay(true).unwrap();
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

    #[track_caller]
    pub(crate) fn wait_for(&self, state: BusState) {
        self.stats_when(|stats| stats.state == state);
    }

    /// Waits for an event.
    #[track_caller]
    pub(crate) fn event_when(&self, is_it: impl Fn(&NatsEvent) -> bool) -> NatsEvent {
        let find = || self.events.lock().unwrap().iter().find(|event| is_it(event)).cloned();
        until(find, || format!("{:?}", self.events.lock().unwrap()))
    }

    pub(crate) fn end(self) {
        self.running.stop();
        self.running.join().unwrap();
    }
}

/// The subject of a topic.
pub(crate) fn subject(topic: &str) -> String {
    SubjectMap::new("test").unwrap().subject(topic)
}

pub(crate) struct Client(pub(crate) WebSocket<TcpStream>);

impl Client {
    #[track_caller]
    fn command(&mut self, command: &str) -> String {
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

    /// The next message, which begins with a number.
    #[track_caller]
    fn number(&mut self) -> u64 {
        let text = self.next();
        text.split(' ').next().unwrap().parse().unwrap()
    }

    #[track_caller]
    pub(crate) fn numbers(&mut self, count: usize) -> Vec<u64> {
        (0..count).map(|_| self.number()).collect()
    }

    /// Appends all numbers up to this one, which must arrive in order.
    #[track_caller]
    pub(crate) fn numbers_until(&mut self, last: u64, arrived: &mut Vec<u64>) {
        while arrived.last() != Some(&last) {
            let number = self.number();
            assert!(arrived.last() < Some(&number), "{number} after {:?}", arrived.last());
            arrived.push(number);
        }
    }

    #[track_caller]
    pub(crate) fn publish(&mut self, topic: &str, payload: &str) {
        assert_eq!(self.command(&format!("publish {topic}|{payload}")), "published");
    }

    /// Publishes numbers to the topic `t`.
    #[track_caller]
    pub(crate) fn publish_numbers(&mut self, numbers: impl Iterator<Item = u64>) {
        numbers.for_each(|number| self.publish("t", &number.to_string()));
    }

    /// Makes the worker wait for the test.
    pub(crate) fn block(&mut self) {
        self.0.send(WsMessage::text("block")).unwrap();
    }
}
