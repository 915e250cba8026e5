//! The protocol between `windlass-bench` and a measured program: lines with one JSON object each.
//!
//! `windlass-bench` writes [`Request`]s to the program's standard input, and reads one [`Reply`] to
//! each from its standard output. A case is prepared once and then measured in slices, so that the
//! slices of several programs can be interleaved. A program ends at the end of its input.

mod params;
mod server_info;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::cluster::ClusterCase;
use crate::http::HttpCase;
use crate::load::LoadCase;
use crate::tls::TlsCase;
use crate::websocket_cases::WebsocketCase;

pub use params::{Awake, Compressor, Content, EchoedBy, Script, Trigger, Writer};
pub use server_info::ServerInfo;

/// A request to a program.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Request {
    /// Pins the program to the processor, if there is one, and asks for its version.
    Hello {
        /// Number of the processor, as in sched_setaffinity(2).
        cpu: Option<usize>,
        /// Takes a real-time priority, if that is allowed. For the client, whose server has one.
        #[serde(default)]
        first: bool,
    },
    /// Sets up a case, after dropping the previous one.
    Prepare {
        /// The case.
        case: Case,
        /// The backend: `epoll`, unless the implementation has several.
        backend: String,
        /// Runs the workload without the turns, to measure its own cost.
        idle: bool,
    },
    /// Only for the client of the suites that measure servers: connects to a server and sets up a
    /// case, after closing the previous connections.
    Connect {
        /// The case.
        case: Case,
        /// The server.
        server: ServerInfo,
    },
    /// Runs rounds of the prepared case, and checks which handlers ran.
    Slice {
        /// Number of rounds.
        rounds: u64,
    },
}

/// A reply of a program.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply {
    /// The reply to [`Request::Hello`].
    Hello {
        /// Version of the measured library.
        version: String,
        /// The program was pinned as requested.
        pinned: bool,
    },
    /// The reply to [`Request::Prepare`].
    Ready,
    /// The reply to [`Request::Slice`].
    Slice(Outcome),
    /// The implementation does not support this, which is no failure.
    Unsupported {
        /// The reason.
        reason: String,
    },
    /// A failure: a call failed, or the wrong handlers ran.
    Failed {
        /// The reason.
        reason: String,
    },
}

/// The result of a slice.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Time of all rounds in nanoseconds.
    pub ns: u64,
    /// Number of units in that time: events, pairs of calls, timers.
    pub units: u64,
    /// Number of turns in that time.
    pub turns: u64,
    /// Number of allocations in that time.
    pub allocations: u64,
    /// Further figures, by their names in the report.
    #[serde(default)]
    pub gauges: BTreeMap<String, f64>,
}

/// A workload with its parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "case", rename_all = "snake_case")]
pub enum Case {
    /// One of `registered` sources is ready in each turn, chosen at random.
    OneReady {
        /// Number of sources.
        registered: usize,
        /// The trigger of their interest.
        trigger: Trigger,
    },
    /// All `registered` sources are ready in each turn.
    AllReady {
        /// Number of sources.
        registered: usize,
        /// The trigger of their interest.
        trigger: Trigger,
    },
    /// Each subscriber has four sources and one state; one source is ready in each turn.
    FourFds {
        /// Number of subscribers, a quarter of the number of sources.
        subscribers: usize,
        /// The trigger of their interest.
        trigger: Trigger,
    },
    /// There are eight types of handlers. In each turn some sources are ready, in random order.
    EightTypes {
        /// Number of sources.
        registered: usize,
        /// Number of sources that are ready in each turn.
        ready: usize,
    },
    /// One of `registered` sources is ready all the time: a turn without a limit finds it at once.
    StaysReady {
        /// Number of sources.
        registered: usize,
    },
    /// Registers and deletes sources beside `registered` others. The unit is one such pair.
    RegisterDelete {
        /// Number of other sources.
        registered: usize,
    },
    /// The memory of a registration.
    RegistrationMemory {
        /// Number of registrations, by which the memory is divided.
        registered: usize,
    },
    /// A turn that does not wait and finds no event.
    EmptyTurn {
        /// Number of watched sources.
        registered: usize,
    },
    /// A turn that does not wait and finds the one source that stays ready.
    ReadyTurn {
        /// Number of watched sources.
        registered: usize,
    },
    /// A kick of a guest is an event, and the handler interrupts the guest.
    Kick {
        /// There is a guest, under KVM. Otherwise the driver writes to the one eventfd and reads
        /// the other.
        guest: bool,
    },
    /// A reactor is built, and calls the handler of a source that is ready.
    FirstEvent,
    /// Starts a timer and cancels it before it fires, while `alive` others wait.
    InsertCancel {
        /// Number of waiting timers.
        alive: usize,
    },
    /// Starts `count` timers with random deadlines, none of which passes.
    Insert {
        /// Number of timers.
        count: usize,
    },
    /// Fires `count` timers that are all due.
    Fire {
        /// Number of timers.
        count: usize,
    },
    /// One periodic timer that is always due.
    Every {
        /// Its period.
        period_ns: u64,
    },
    /// A turn that does not wait, beside `alive` timers of which none is due.
    TurnBeside {
        /// Number of waiting timers.
        alive: usize,
    },
    /// A single timer, for which the loop sleeps. The time is that from its deadline until it
    /// fires.
    LoneSleep {
        /// The time until its deadline.
        us: u64,
        /// The timer slack of the thread (prctl(2)).
        slack_ns: u64,
    },
    /// Resets a random one of `alive` timers to another deadline.
    Reset {
        /// Number of waiting timers.
        alive: usize,
    },
    /// Sends bytes to each stream from outside of its handler. They leave with the next turn. A
    /// round is a write to each stream.
    StreamWrites {
        /// Number of streams.
        streams: usize,
        /// Number of bytes per write.
        bytes: usize,
    },
    /// A writer writes as fast as possible, and a reader sleeps a millisecond after each read. A
    /// round is a millisecond.
    Burst {
        /// The writer's reaction to a full counter.
        writer: Writer,
        /// Maximum of the counter; `None` for a counter without one.
        maximum: Option<u32>,
    },
    /// The age of events when they are read: 10 000 per second are written, and 8 000 read, one at
    /// a time. A round is an event.
    Latency {
        /// Maximum of the counter; `None` for a counter without one.
        maximum: Option<u32>,
    },
    /// The number of writes that one read takes: a writer never pauses, and a reader works for 125
    /// µs after each read. A round is a write.
    Coalescing {
        /// Maximum of the counter; `None` for a counter without one.
        maximum: Option<u32>,
    },
    /// One thread writes and reads in turn. The unit is such a pair.
    Uncontended {
        /// Both sides have a descriptor for poll(2).
        polled: bool,
    },
    /// Wakes a loop that is awake. Only the call is timed.
    WakeRunning {
        /// The reason why the loop is awake.
        awake: Awake,
    },
    /// Wakes a loop that sleeps on another processor. The time is that from the call to the
    /// handler.
    WakeSleeping,
    /// Two loops on two processors wake each other in turn.
    RoundTrip {
        /// Time for which each loop spins before it sleeps.
        spin_us: u64,
    },
    /// Runs a closure on a loop on another processor, and waits for its result.
    Call {
        /// Maximum number of queued calls.
        bound: usize,
        /// Time for which the loop spins before it sleeps. It then hardly sleeps.
        spin_us: u64,
    },
    /// Sends items to a loop on another processor. A sender waits while the queue is full.
    Post {
        /// Number of sending threads.
        senders: usize,
        /// Maximum number of queued items.
        bound: usize,
    },
    /// The messages of a client are in a buffer, and the server echoes them into another one. A
    /// round is a buffer.
    Echo {
        /// The content of the messages.
        content: Content,
        /// Length of a message's payload in bytes.
        bytes: usize,
        /// Number of messages per round.
        messages: usize,
        /// Number of frames per message.
        fragments: usize,
        /// Maximum number of bytes per read.
        read_bytes: usize,
    },
    /// The memory of a server's end of a connection that has echoed a message and waits.
    IdleEngine {
        /// Number of connections, by which the memory is divided.
        engines: usize,
    },
    /// Unmasks a payload in place, or as near to that as the implementation does.
    Unmask {
        /// Its length in bytes.
        bytes: usize,
        /// Its offset from a multiple of 64 bytes, which is the length of the frame's header.
        offset: usize,
    },
    /// Checks that text is valid UTF-8.
    Validate {
        /// The script of the text.
        script: Script,
        /// Its length in bytes.
        bytes: usize,
        /// Number of pieces, which end within characters.
        pieces: usize,
    },
    /// Compresses consecutive messages.
    Compress {
        /// Length of a message in bytes.
        bytes: usize,
        /// Compression level.
        level: u8,
        /// Base-two logarithm of the window size.
        window_bits: u8,
        /// A message may refer to earlier ones.
        takeover: bool,
        /// The owner of the compressor.
        compressor: Compressor,
    },
    /// Decompresses consecutive messages.
    Inflate {
        /// Length of a decompressed message in bytes.
        bytes: usize,
        /// Base-two logarithm of the window size.
        window_bits: u8,
        /// A message may refer to earlier ones.
        takeover: bool,
    },
    /// A server echoes the messages of connections. A round is a message.
    Messages {
        /// The content of the messages.
        content: Content,
        /// Length of a message's payload in bytes.
        bytes: usize,
        /// Number of connections.
        connections: usize,
        /// Messages in flight per connection.
        depth: usize,
        /// Messages are compressed in both directions, without context takeover.
        deflate: bool,
    },
    /// Each connection sends one message, and all of these arrive at once. The server works on each
    /// message before it answers. A round is a message.
    BurstOfWork {
        /// Number of connections.
        connections: usize,
        /// Work per message.
        work_us: u64,
    },
    /// A server sends the messages of one connection to all receivers. A round is a delivery.
    Publish {
        /// Number of receivers.
        receivers: usize,
        /// Length of a message's payload in bytes.
        bytes: usize,
        /// Messages in flight.
        outstanding: usize,
    },
    /// Connections are opened, upgraded and closed. A round is a connection.
    Upgrade {
        /// Number of connections in flight.
        parallel: usize,
    },
    /// The memory of a server for a connection that has echoed a message and waits.
    IdleConnection {
        /// Number of connections, by which the memory is divided.
        connections: usize,
        /// The message was JSON, and compressed in both directions, without context takeover.
        deflate: bool,
    },
    /// The workload of another case of servers, for libraries on a runtime.
    Websocket {
        /// That case.
        workload: Box<Self>,
    },
    /// Pairs of sockets exchange messages of 64 bytes over TCP. A round is a message and its echo.
    PingPong {
        /// The task that echoes.
        echoed_by: EchoedBy,
        /// Number of pairs.
        pairs: usize,
        /// The receive buffers have the length of a message, so that a read fills them and does
        /// not tell that the socket is empty. Otherwise they are longer.
        exact_reads: bool,
        /// Number of timers that wait, due in an hour.
        live_timers: usize,
    },
    /// Connections are opened, accepted, echo one message, and are closed. A round is a connection.
    AcceptChurn {
        /// Number of connections in flight.
        parallel: usize,
        /// Number of timers that wait, due in an hour.
        live_timers: usize,
    },
    /// Two tasks of executors on two processors wake each other in turn.
    TaskRoundTrip {
        /// Number of timers that wait in each executor, due in an hour.
        live_timers: usize,
    },
    /// A task wakes itself and is polled again.
    SelfWake {
        /// The executor looks at the event loop now and then, as it does by default.
        turns: bool,
        /// Number of timers that wait, due in an hour.
        live_timers: usize,
    },
    /// The same, with a turn of the event loop before every poll.
    TurnPerPoll {
        /// Number of timers that wait, due in an hour.
        live_timers: usize,
    },
    /// Tasks are spawned from a task, `batch` at a time, and then awaited. A round is a task.
    Spawn {
        /// Number of tasks that are spawned before the first one is awaited.
        batch: usize,
        /// Number of timers that wait, due in an hour.
        live_timers: usize,
    },
    /// Another thread spawns tasks on the executor. A round is a task.
    SpawnRemote {
        /// Maximum number of spawned tasks that have not run.
        bound: usize,
    },
    /// Starts a sleep of an hour and drops it.
    SleepCancel {
        /// Number of other sleeps that wait.
        alive: usize,
        /// The sleep is polled once before it is dropped.
        polled: bool,
    },
    /// A task sleeps for almost no time, again and again.
    ShortSleep {
        /// The time in nanoseconds.
        ns: u64,
        /// Number of timers that wait, due in an hour.
        live_timers: usize,
    },
    /// Tasks sleep for 100 to 1000 microseconds each, all at once.
    ManySleeps {
        /// Number of tasks.
        count: usize,
    },
    /// One task sleeps. The time is that from its deadline until it is polled.
    TaskSleep {
        /// The time until its deadline.
        us: u64,
        /// The timer slack of the thread (prctl(2)).
        slack_ns: u64,
    },
    /// A system call, or a sequence of calls, of [`CALLS`](crate::calls::CALLS).
    SystemCall {
        /// Its name there.
        call: String,
    },
    /// A case of the suite `http`.
    #[serde(untagged)]
    Http(HttpCase),
    /// A case of the suite `tls`.
    #[serde(untagged)]
    Tls(TlsCase),
    /// A case that only the suite `websocket` has.
    #[serde(untagged)]
    WebsocketOnly(WebsocketCase),
    /// A case of the suite `cluster`.
    #[serde(untagged)]
    Cluster(ClusterCase),
    /// A case of the suites `scaling`, `fairness`, `fixed-rate` and `startup`.
    #[serde(untagged)]
    Load(LoadCase),
}

impl Case {
    /// Returns the name of its suite.
    pub fn suite(&self) -> &'static str {
        let part = self.part();
        part.split_once('/').map_or(part, |(suite, _)| suite)
    }

    /// Returns what the client and the server do, which cases of several suites have in common.
    pub fn workload(&self) -> &Self {
        if let Self::Websocket { workload } = self { workload } else { self }
    }

    /// Returns the part of the suite that an implementation may support: the suite's name, followed
    /// by a slash and a word if the suite has several parts.
    pub fn part(&self) -> &'static str {
        match self {
            Self::OneReady { .. }
            | Self::AllReady { .. }
            | Self::FourFds { .. }
            | Self::EightTypes { .. }
            | Self::StaysReady { .. }
            | Self::RegisterDelete { .. }
            | Self::RegistrationMemory { .. } => "dispatch",
            Self::EmptyTurn { .. } | Self::ReadyTurn { .. } => "poll0",
            Self::Kick { .. } => "kick",
            Self::SystemCall { .. } => "calls",
            Self::FirstEvent => "startup/first_event",
            Self::InsertCancel { .. }
            | Self::Insert { .. }
            | Self::Fire { .. }
            | Self::Every { .. }
            | Self::TurnBeside { .. }
            | Self::Reset { .. } => "timers",
            Self::LoneSleep { .. } => "timers/sleep",
            Self::StreamWrites { .. } => "streams",
            Self::Burst { .. }
            | Self::Latency { .. }
            | Self::Coalescing { .. }
            | Self::Uncontended { .. } => "flow",
            Self::WakeRunning { .. } | Self::WakeSleeping | Self::RoundTrip { .. } => "wakeup/wake",
            Self::Call { .. } => "wakeup/call",
            Self::Post { .. } => "wakeup/post",
            Self::Echo { .. } | Self::IdleEngine { .. } => "engine",
            Self::Unmask { .. } => "unmask",
            Self::Validate { .. } => "utf8",
            Self::Compress { .. } | Self::Inflate { .. } => "deflate",
            Self::Messages { deflate: false, .. } => "echo",
            Self::Messages { deflate: true, .. } => "echo/deflate",
            Self::BurstOfWork { .. } => "echo/work",
            Self::Publish { .. } => "broadcast",
            Self::Upgrade { .. } => "handshake",
            Self::IdleConnection { deflate: false, .. } => "memory",
            Self::IdleConnection { deflate: true, .. } => "memory/deflate",
            Self::Websocket { workload } => match workload.part() {
                "broadcast" => "websocket/broadcast",
                "echo/deflate" | "memory/deflate" => "websocket/deflate",
                _ => "websocket",
            },
            Self::WebsocketOnly(case) => case.part(),
            Self::Tls(_) => "tls",
            Self::Cluster(ClusterCase::NodeEcho { .. }) => "cluster/echo",
            Self::Cluster(ClusterCase::FanOut { .. }) => "cluster/fan_out",
            Self::Load(load) => load.part(),
            Self::PingPong { .. } | Self::AcceptChurn { .. } | Self::TaskRoundTrip { .. } => {
                "latency"
            }
            Self::SelfWake { .. }
            | Self::TurnPerPoll { .. }
            | Self::Spawn { .. }
            | Self::SpawnRemote { .. }
            | Self::SleepCancel { .. }
            | Self::ShortSleep { .. }
            | Self::ManySleeps { .. }
            | Self::TaskSleep { .. } => "tasks",
            Self::Http(http) => http.part(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_begins_with_its_suite() {
        let case = Case::Post { senders: 4, bound: 1024 };
        assert_eq!((case.suite(), case.part()), ("wakeup", "wakeup/post"));
        assert_eq!(Case::WakeSleeping.suite(), "wakeup");
        assert_eq!(Case::Uncontended { polled: false }.part(), "flow");
    }

    #[test]
    fn requests_are_one_line_and_come_back_the_same() {
        let request = Request::Prepare {
            case: Case::OneReady { registered: 3, trigger: Trigger::Edge },
            backend: "epoll".into(),
            idle: false,
        };
        let line = serde_json::to_string(&request).unwrap();
        assert!(!line.contains('\n'));
        let Request::Prepare { case, backend, idle } = serde_json::from_str(&line).unwrap() else {
            panic!("another request: {line}");
        };
        assert_eq!(case, Case::OneReady { registered: 3, trigger: Trigger::Edge });
        assert_eq!((backend.as_str(), idle), ("epoll", false));
    }
}
