//! Quiet points, and what is compared there.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc, Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{
    MEMBERS, ROOMS, SLOW, SLOW_LEN,
    client::{Client, Ending, Tally},
    exposition::Exposition,
    harness::{Server, WAIT_MAX},
};

/// Lets the threads of clients pause together.
pub(crate) struct Pauses {
    state: Mutex<State>,
    changed: Condvar,
    threads: usize,
    /// The fast path of a thread that goes on.
    wanted: AtomicBool,
}

#[derive(Default)]
struct State {
    is_pausing: bool,
    has_stopped: bool,
    paused: usize,
    tally: Tally,
}

impl Pauses {
    pub(crate) fn new(threads: usize) -> Self {
        let wanted = AtomicBool::new(false);
        Self { state: Mutex::default(), changed: Condvar::new(), threads, wanted }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no client panicked")
    }

    /// Called by a client's thread between two steps. Returns false at the end.
    pub(crate) fn goes_on(&self, tally: &Tally) -> bool {
        if !self.wanted.load(Ordering::Acquire) {
            return true;
        }
        let mut state = self.lock();
        if state.is_pausing {
            state.paused += 1;
            state.tally.add(tally);
            self.changed.notify_all();
            while state.is_pausing {
                state = self.changed.wait(state).expect("no client panicked");
            }
        }
        !state.has_stopped
    }

    /// Waits until all threads pause. Returns what they have done so far.
    pub(crate) fn pause(&self) -> Tally {
        let mut state = self.lock();
        *state = State { is_pausing: true, ..State::default() };
        self.wanted.store(true, Ordering::Release);
        let deadline = Instant::now() + 2 * WAIT_MAX;
        while state.paused < self.threads {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "only {} of {} threads pause", state.paused, self.threads);
            state = self.changed.wait_timeout(state, left).expect("no client panicked").0;
        }
        state.tally
    }

    pub(crate) fn resume(&self) {
        self.wanted.store(false, Ordering::Release);
        self.lock().is_pausing = false;
        self.changed.notify_all();
    }

    pub(crate) fn stop(&self) {
        self.lock().has_stopped = true;
        self.wanted.store(true, Ordering::Release);
    }
}

/// What a watcher has received, and the last status.
type Received = (Tally, Option<Value>);

/// A page's connection for the live view, and what it has received.
pub(crate) struct Watcher {
    received: Arc<Mutex<Received>>,
    thread: JoinHandle<()>,
    has_ended: Arc<AtomicBool>,
}

impl Watcher {
    pub(crate) fn start(server: SocketAddr) -> Self {
        let (received, has_ended) = (Arc::default(), Arc::new(AtomicBool::new(false)));
        let (shared, ends): (Arc<Mutex<Received>>, _) =
            (Arc::clone(&received), Arc::clone(&has_ended));
        let mut tally = Tally::default();
        let mut client = Client::open(server, "/live/watched", &mut tally);
        shared.lock().expect("it did not panic").0 = tally;
        let thread = thread::spawn(move || {
            while !ends.load(Ordering::Acquire) {
                let Some(text) = client.try_receive(&mut tally) else { continue };
                let status: Value = serde_json::from_slice(&text).expect("the server writes JSON");
                let mut shared = shared.lock().expect("it did not panic");
                shared.0 = tally;
                if status.get("version").is_some() {
                    shared.1 = Some(status);
                }
            }
        });
        Self { received, thread, has_ended }
    }

    fn received(&self) -> Received {
        self.received.lock().expect("it did not panic").clone()
    }

    pub(crate) fn end(self) {
        self.has_ended.store(true, Ordering::Release);
        self.thread.join().expect("it did not panic");
    }
}

/// The server from outside.
pub(crate) struct Site {
    admin: String,
}

impl Site {
    pub(crate) fn new(server: &Server) -> Self {
        let line = server.wait_for_error("admin listener");
        let (_, admin) = line.split_once("address=").expect("the line has it");
        let admin = admin.trim_matches('"').trim_start_matches("http://").trim_end_matches('/');
        Self { admin: admin.to_owned() }
    }

    fn metrics(&self) -> Exposition {
        let mut socket = TcpStream::connect(&self.admin).expect("it listens");
        socket.set_read_timeout(Some(WAIT_MAX)).expect("a timeout can be set");
        let head = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        socket.write_all(head.as_bytes()).expect("it reads");
        let mut response = String::new();
        socket.read_to_string(&mut response).expect("it answers");
        Exposition::parse(response.split_once("\r\n\r\n").expect("the head ends").1)
    }

    /// Compares all figures. Closes and the messages of the live view are counted a moment later
    /// than a client sees them, so it waits for agreement.
    pub(crate) fn check(&self, clients: &Tally, watcher: &Watcher, end: Option<&str>) {
        let begin = Instant::now();
        loop {
            let (watched, _) = watcher.received();
            let metrics = self.metrics();
            let mut tally = *clients;
            tally.add(&watched);
            let differences = differences(&metrics, &tally, end.is_some());
            if differences.is_empty() {
                break;
            }
            assert!(begin.elapsed() < WAIT_MAX, "{end:?}: {differences:#?}");
        }
        let dropped = self.metrics().sum("messages_dropped_total");
        let begin = Instant::now();
        loop {
            let (watched, status) = watcher.received();
            let mut tally = *clients;
            tally.add(&watched);
            let differences = status.map_or_else(
                || vec!["no status".to_owned()],
                |status| live_differences(&status, &tally, dropped, end.is_some()),
            );
            if differences.is_empty() {
                return;
            }
            assert!(begin.elapsed() < WAIT_MAX, "{end:?}: {differences:#?}");
            // sleep: the live view comes twice a second.
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Reads all that waits for the slow members, and ends them.
    pub(crate) fn drain_slow(&self, mut members: Vec<Client>, tally: &mut Tally) {
        let published = tally.slow_published * SLOW as u64;
        let dropped = || self.metrics().sum("messages_dropped_total");
        let (begin, mut received) = (Instant::now(), 0);
        while received + dropped() < published {
            for member in &mut members {
                while let Some(message) = member.try_receive(tally) {
                    assert_eq!(message.len(), SLOW_LEN);
                    received += 1;
                }
            }
            assert!(begin.elapsed() < WAIT_MAX, "{received} of {published} less {}", dropped());
        }
        let dropped = published - received;
        for member in members {
            assert_eq!(self.metrics().sum("messages_dropped_total"), dropped);
            member.end(Ending::Code(1000), tally);
        }
        println!("{received} messages to slow members were sent, and {dropped} dropped");
    }
}

/// Returns what `/metrics` says otherwise than the clients.
fn differences(metrics: &Exposition, tally: &Tally, is_end: bool) -> Vec<String> {
    let messages = |direction: &str, kind: &str| {
        format!("messages_total{{direction=\"{direction}\",kind=\"{kind}\"}}")
    };
    let dropped = metrics.sum("messages_dropped_total");
    // Of the messages to slow members, those that were not read yet and not dropped.
    let waiting = if is_end { 0 } else { tally.slow_published * SLOW as u64 - dropped };
    let subscriptions = tally.subscriptions_begun - tally.subscriptions_ended;
    let mut expected = vec![
        (messages("in", "text"), tally.in_text),
        (messages("in", "binary"), tally.in_binary),
        (messages("in", "ping"), tally.in_ping),
        (messages("in", "pong"), tally.in_pong),
        (messages("out", "text"), tally.out_text),
        (messages("out", "binary"), tally.out_binary + waiting),
        (messages("out", "ping"), 0),
        (messages("out", "pong"), tally.out_pong),
        ("message_bytes_total{direction=\"in\"}".into(), tally.in_bytes),
        (
            "message_bytes_total{direction=\"out\"}".into(),
            tally.out_bytes + waiting * SLOW_LEN as u64,
        ),
        ("wire_bytes_total{direction=\"in\"}".into(), tally.in_wire),
        (
            "wire_bytes_total{direction=\"out\"}".into(),
            tally.out_wire + waiting * (SLOW_LEN as u64 + 4),
        ),
        ("connections_opened_total".into(), tally.opened),
        ("handshakes_total{result=\"accepted\"}".into(), tally.opened),
        ("handshake_seconds_count".into(), tally.opened),
        ("connections{state=\"open\",transport=\"tcp\"}".into(), tally.opened - tally.closed()),
        ("connections_closed_total{reason=\"peer\"}".into(), tally.closed() - tally.lost),
        ("connections_closed_total{reason=\"lost\"}".into(), tally.lost),
        ("close_codes_total{code=\"1000\"}".into(), tally.closed_1000),
        ("close_codes_total{code=\"1005\"}".into(), tally.closed_1005),
        ("close_codes_total{code=\"1006\"}".into(), tally.lost),
        ("close_codes_total{code=\"3000-3999\"}".into(), tally.closed_3000),
        ("limit_hits_total{limit=\"receiver_buffer_max\"}".into(), dropped),
        ("messages_dropped_total{policy=\"drop_newest\"}".into(), dropped),
        // The watcher has two.
        ("subscriptions".into(), subscriptions + 2),
    ];
    for family in ["evictions_total", "codec_bytes_total", "accept_pauses_total"] {
        expected.push((family.into(), 0));
    }
    let sums = ["evictions_total", "codec_bytes_total", "accept_pauses_total"];
    let found = |series: &str| match sums.contains(&series) {
        true => metrics.sum(series),
        false => metrics.get(series),
    };
    let differs = |(series, count): &(String, u64)| found(series) != *count;
    let tell = |(series, count): (String, u64)| {
        format!("{series} is {}, and the clients say {count}", found(&series))
    };
    expected.into_iter().filter(differs).map(tell).collect()
}

/// Returns what the live view says otherwise than the clients.
fn live_differences(status: &Value, tally: &Tally, dropped: u64, is_end: bool) -> Vec<String> {
    let number = |value: &Value| value.as_u64().unwrap_or(u64::MAX);
    let workers = status["workers"].as_array().expect("a list");
    let sum = |field: &str| workers.iter().map(|worker| number(&worker[field])).sum::<u64>();
    let open = tally.opened - tally.closed();
    let rooms = status["busiest"].as_array().expect("a list");
    let members = |name: &str| {
        let room = rooms.iter().find(|room| room["name"] == name);
        room.map_or(0, |room| number(&room["subscribers"]))
    };
    let messages = tally.in_text + tally.in_binary;
    // Those whose output waits now. The kernel may have taken what waited when messages were
    // dropped, and nothing is published meanwhile.
    let slow_max = if is_end { 0 } else { SLOW as u64 };
    let slow = number(&status["slow_receivers"]);
    let mut figures = vec![
        ("open", number(&status["connections"]["open"]), open),
        ("open of the workers", sum("open"), open),
        ("opened", number(&status["opened"]), tally.opened),
        ("closed", number(&status["closed"]), tally.closed()),
        ("messages in", number(&status["messages"]["in"]), messages),
        ("messages in of the workers", sum("messages_in"), messages),
        ("bytes in", number(&status["message_bytes"]["in"]), tally.in_bytes),
        ("bytes in of the workers", sum("bytes_in"), tally.in_bytes),
        ("dropped", number(&status["messages"]["dropped"]), dropped),
        ("evicted", number(&status["evicted"]), 0),
        (
            "members of the slow room",
            members("/room/slow"),
            if is_end { 0 } else { SLOW as u64 + 1 },
        ),
    ];
    figures.push(("slow receivers", slow, slow.min(slow_max)));
    let names: Vec<_> = (0..ROOMS).map(|room| format!("/room/soak-{room}")).collect();
    let of_rooms = if is_end { 0 } else { MEMBERS as u64 };
    figures.extend(names.iter().map(|name| (name.as_str(), members(name), of_rooms)));
    let differs = |(_, found, expected): &(&str, u64, u64)| found != expected;
    let tell = |(name, found, expected)| format!("{name}: {found}, and the clients say {expected}");
    figures.into_iter().filter(differs).map(tell).collect()
}
