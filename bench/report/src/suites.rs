//! What each suite measures, and why one would care.

/// A line for each suite, in the order of the program.
pub const SUITES: &[(&str, &str)] = &[
    ("dispatch", "one event from the kernel to its handler: the cost of the loop itself"),
    ("kick", "a guest's kick and its interrupt: what a device of a virtual machine waits for"),
    ("poll0", "turns that do not wait: the cost of a loop that another loop calls"),
    ("timers", "timers that start, move, end and fire: each time limit of a server is one"),
    ("streams", "writes to many streams at once: what a broadcast costs on the reactor"),
    ("flow", "counters with a maximum: a fast writer that a slow reader must hold back"),
    ("wakeup", "wakes, closures and items from other threads: the way into a loop"),
    ("latency", "tasks that exchange messages over sockets: the delay that an await adds"),
    ("tasks", "spawning, waking and sleeping of tasks: the cost of async itself"),
    ("http", "requests of a mock, hyper and axum: what a service gains by its runtime"),
    ("engine", "WebSocket messages in memory: the cost of the protocol without a kernel"),
    ("unmask", "unmasking of payloads: each byte that a client sends passes it"),
    ("utf8", "validation of text in pieces: each text message passes it"),
    ("deflate", "permessage-deflate: the dearest part of a compressed message"),
    ("calls", "prices of system calls: what a loop cannot avoid, and what a ring may save"),
    ("startup", "from a start to the first event or answer: restarts and small tools"),
    ("echo", "messages to a server and back: throughput and processor time of a server"),
    ("broadcast", "one message to many connections: chats, tickers and games"),
    ("handshake", "opening of connections: what a server does when all its clients return"),
    ("memory", "idle connections: how many of them fit into a machine"),
    ("scaling", "workers and connections: what a message costs as both grow"),
    ("fairness", "one busy connection beside quiet ones: how long the quiet ones wait"),
    ("fixed-rate", "messages at a fixed rate: the delays that users see below the limit"),
    ("websocket", "WebSocket libraries on tokio: which one costs a service the least"),
    ("tls", "encrypted connections: what TLS adds to messages and handshakes"),
    ("cluster", "topics across servers: what a message costs that crosses machines"),
];

/// Returns the line of a suite.
#[must_use]
pub fn about(suite: &str) -> &'static str {
    SUITES.iter().find(|(name, _)| *name == suite).map_or("", |(_, about)| about)
}
