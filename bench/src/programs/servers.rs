//! The servers that are measured.

use super::{BACKENDS, EPOLL, Program, Workspace};

/// The hand-written server, the reference of all suites that measure servers.
pub(crate) const FLOOR: &str = "floor";
/// The fastest known server, to which windlass is compared.
pub(crate) const UWEBSOCKETS: &str = "uwebsockets";
/// The server on tokio that echoes bytes, the reference of the suite `websocket`.
pub(crate) const TOKIO_ECHO: &str = "tokio-echo";

/// A server.
#[derive(Debug)]
pub(crate) struct ServerProgram {
    pub(crate) program: Program,
    /// The program that callgrind runs instead, for a server compiled with instructions that
    /// callgrind does not support.
    pub(crate) counted: Option<&'static str>,
    /// Its arguments in every case.
    pub(crate) arguments: &'static [&'static str],
    /// The server of the case, if the measured program is a client.
    pub(crate) served_by: Option<Program>,
}

/// The parts for libraries without permessage-deflate on tokio.
const PLAIN: &[&str] = &[
    "echo",
    "broadcast",
    "handshake",
    "memory",
    "websocket",
    "websocket/broadcast",
    "scaling",
    "scaling/workers",
    "fairness",
    "fairness/work",
    "fixed-rate",
    "startup",
];
/// The parts for a library with its default settings.
const UNTUNED: &[&str] = &["websocket", "websocket/broadcast"];
/// The parts of the suite `websocket`.
const WEBSOCKET: &[&str] = &["websocket", "websocket/broadcast", "websocket/deflate"];
/// The parts for a server that only speaks TLS on request.
const TLS: &[&str] = &["tls"];
/// The parts for the hand-written server.
const FLOOR_PARTS: &[&str] = &[
    "echo",
    "echo/work",
    "broadcast",
    "handshake",
    "memory",
    "scaling",
    "fairness",
    "fairness/work",
    "fixed-rate",
    "startup",
];
/// The part for what carries publications to other servers.
const FAN_OUT: &[&str] = &["cluster/fan_out"];
/// The parts for a library that has permessage-deflate.
const DEFLATING: &[&str] = &[
    "echo",
    "echo/deflate",
    "broadcast",
    "handshake",
    "memory",
    "websocket",
    "websocket/broadcast",
    "websocket/deflate",
    "scaling",
    "scaling/workers",
    "fairness",
    "fairness/work",
    "fixed-rate",
    "startup",
];
const ALL: &[&str] = &[
    "echo",
    "echo/deflate",
    "echo/work",
    "broadcast",
    "handshake",
    "memory",
    "tls",
    "scaling",
    "scaling/workers",
    "fairness",
    "fairness/work",
    "fixed-rate",
    "startup",
];

const fn server(
    name: &'static str,
    parts: &'static [&'static str],
    workspace: Workspace,
    package: &'static str,
    binary: &'static str,
) -> ServerProgram {
    let program = Program { name, parts, backends: EPOLL, workspace, package, binary };
    ServerProgram { program, counted: None, arguments: &[], served_by: None }
}

const fn own(
    name: &'static str,
    parts: &'static [&'static str],
    binary: &'static str,
) -> ServerProgram {
    server(name, parts, Workspace::Root, "windlass-bench-subject", binary)
}

const fn on_each_backend(server: ServerProgram) -> ServerProgram {
    ServerProgram { program: Program { backends: BACKENDS, ..server.program }, ..server }
}

const fn on_a_ring(server: ServerProgram) -> ServerProgram {
    ServerProgram { program: Program { backends: &["uring"], ..server.program }, ..server }
}

/// windlass-websocket on tokio, with messages that it lends.
pub(crate) const WINDLASS_WEBSOCKET: &str = "windlass-websocket";
/// The same, with messages that it gives away.
pub(crate) const WINDLASS_WEBSOCKET_OWNED: &str = "windlass-websocket-owned";
/// Its extractor of axum.
pub(crate) const WINDLASS_WEBSOCKET_AXUM: &str = "windlass-websocket-axum";
/// Its server of HTTP/2.
pub(crate) const WINDLASS_WEBSOCKET_HTTP2: &str = "windlass-websocket-http2";
/// Its client by URL.
pub(crate) const WINDLASS_WEBSOCKET_CONNECT: &str = "windlass-websocket-connect";

/// The crate with the interface of tokio-tungstenite: the same program as `tungstenite`.
pub(crate) const WINDLASS_TOKIO_TUNGSTENITE: &str = "windlass-tokio-tungstenite";

/// Returns whether a server is one that the suite `websocket` compares with its peers.
pub(crate) fn is_compared(name: &str) -> bool {
    name.starts_with(WINDLASS_WEBSOCKET) || name == WINDLASS_TOKIO_TUNGSTENITE
}

const fn peer(name: &'static str, package: &'static str) -> ServerProgram {
    server(name, PLAIN, Workspace::Peers, package, package)
}

/// Windlass over nats-server, with this number of nodes.
const fn nodes(name: &'static str, arguments: &'static [&'static str]) -> ServerProgram {
    let package = "windlass-bench-server-nodes";
    ServerProgram { arguments, ..server(name, FAN_OUT, Workspace::Peers, package, package) }
}

/// A client by URL. Its server is cheap, and the same for all of them.
const fn connects(server: ServerProgram) -> ServerProgram {
    let served_by = Some(own("rustls", &[], "bench-server-rustls").program);
    let program = Program { parts: &["websocket/connect"], ..server.program };
    ServerProgram { program, served_by, ..server }
}

/// All servers, in the order of the report. `floor-again` is the same program as `floor`; their
/// difference shows the noise.
pub(crate) const SERVERS: &[ServerProgram] = &[
    own(FLOOR, FLOOR_PARTS, "bench-server-floor"),
    own("floor-again", FLOOR_PARTS, "bench-server-floor"),
    on_a_ring(own("floor-ring", &["echo", "echo/work", "broadcast"], "bench-server-floor-ring")),
    own(TOKIO_ECHO, &["websocket", "websocket/deflate"], "bench-server-tokio-echo"),
    own(WINDLASS_WEBSOCKET, WEBSOCKET, "bench-server-websocket"),
    ServerProgram {
        arguments: &["--owned"],
        ..own(WINDLASS_WEBSOCKET_OWNED, &["websocket"], "bench-server-websocket")
    },
    own("windlass-websocket-task", WEBSOCKET, "bench-server-websocket-task"),
    own(WINDLASS_WEBSOCKET_AXUM, &["websocket/axum"], "bench-server-websocket-axum"),
    own(WINDLASS_WEBSOCKET_HTTP2, &["websocket/http2"], "bench-server-websocket-http2"),
    own(WINDLASS_TOKIO_TUNGSTENITE, UNTUNED, "bench-server-tokio-tungstenite"),
    connects(own(WINDLASS_WEBSOCKET_CONNECT, &[], "bench-websocket-connect")),
    on_each_backend(own(crate::programs::WINDLASS, ALL, "bench-server-windlass")),
    server(
        "windlass-uncounted",
        &["echo", "broadcast"],
        Workspace::Uncounted,
        "windlass-bench-subject",
        "bench-server-windlass",
    ),
    ServerProgram {
        counted: Some("windlass-bench-server-uwebsockets-counted"),
        ..server(
            UWEBSOCKETS,
            DEFLATING,
            Workspace::PeersCpp,
            "windlass-bench-server-uwebsockets",
            "windlass-bench-server-uwebsockets",
        )
    },
    peer("fastwebsockets", "windlass-bench-server-fastwebsockets"),
    peer("tungstenite", "windlass-bench-server-tungstenite"),
    ServerProgram {
        arguments: &["--traffic", "untuned"],
        ..server(
            "tungstenite-untuned",
            UNTUNED,
            Workspace::Peers,
            "windlass-bench-server-tungstenite",
            "windlass-bench-server-tungstenite",
        )
    },
    server(
        "yawc",
        WEBSOCKET,
        Workspace::Peers,
        "windlass-bench-server-yawc",
        "windlass-bench-server-yawc",
    ),
    peer("tokio-websockets", "windlass-bench-server-tokio-websockets"),
    server(
        "axum",
        &["websocket/axum"],
        Workspace::Peers,
        "windlass-bench-server-axum",
        "windlass-bench-server-axum",
    ),
    ServerProgram {
        arguments: &["--traffic", "untuned"],
        ..server(
            "axum-untuned",
            &["websocket/axum"],
            Workspace::Peers,
            "windlass-bench-server-axum",
            "windlass-bench-server-axum",
        )
    },
    server(
        "yawc-http2",
        &["websocket/http2"],
        Workspace::Peers,
        "windlass-bench-server-yawc",
        "windlass-bench-server-yawc-http2",
    ),
    connects(peer("tokio-tungstenite", "windlass-bench-tungstenite-connect")),
    own("windlass-node", &["cluster/echo"], "bench-server-node"),
    nodes("windlass-no-cluster", &["--nodes", "0"]),
    nodes("windlass-1-node", &["--nodes", "1"]),
    nodes("windlass-2-nodes", &["--nodes", "2"]),
    own("windlass-2-workers", FAN_OUT, "bench-server-workers"),
    ServerProgram {
        arguments: &["--ordered"],
        ..own("windlass-2-workers-ordered", FAN_OUT, "bench-server-workers")
    },
    own("nats", FAN_OUT, "bench-server-nats"),
    own("rustls", TLS, "bench-server-rustls"),
    server(
        "tokio-rustls",
        TLS,
        Workspace::Peers,
        "windlass-bench-server-tokio-rustls",
        "windlass-bench-server-tokio-rustls",
    ),
    ServerProgram {
        counted: Some("windlass-bench-server-uwebsockets-openssl-counted"),
        ..server(
            "uwebsockets-openssl",
            TLS,
            Workspace::PeersCpp,
            "windlass-bench-server-uwebsockets-openssl",
            "windlass-bench-server-uwebsockets-openssl",
        )
    },
];

/// The parts of suites that a server does not support: part, server, reason.
pub(crate) const UNSUPPORTED: &[(&str, &str, &str)] = &[
    ("echo/deflate", "fastwebsockets", "it has no permessage-deflate"),
    ("echo/deflate", "tungstenite", "it has no permessage-deflate"),
    ("echo/deflate", "tokio-websockets", "it has no permessage-deflate"),
    ("websocket/http2", "fastwebsockets", "it has no WebSockets over HTTP/2"),
    ("websocket/http2", "tungstenite", "it has no WebSockets over HTTP/2"),
    ("websocket/http2", "tokio-websockets", "it has no WebSockets over HTTP/2"),
    ("websocket/deflate", "fastwebsockets", "it has no permessage-deflate"),
    ("websocket/deflate", "tungstenite", "it has no permessage-deflate"),
    ("websocket/deflate", "tokio-websockets", "it has no permessage-deflate"),
];

/// The client for all servers.
pub(crate) const CLIENT: Program = Program {
    name: "client",
    parts: &[],
    backends: EPOLL,
    workspace: Workspace::Root,
    package: "windlass-bench-subject",
    binary: "bench-client",
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_parts_are_those_of_cases() {
        let mut names: Vec<_> = SERVERS.iter().map(|server| server.program.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), SERVERS.len());
        let own_parts = ["websocket/axum", "websocket/http2", "websocket/connect"];
        for part in ALL.iter().chain(WEBSOCKET).chain(&own_parts) {
            let suite = part.split('/').next().unwrap();
            assert!(
                crate::cases::servers::cases(suite, false).iter().any(|case| case.part() == *part),
                "{part}"
            );
        }
    }

    #[test]
    fn a_lack_is_of_a_server_that_has_no_such_part() {
        for (part, name, _) in UNSUPPORTED {
            let server = SERVERS.iter().find(|server| server.program.name == *name).unwrap();
            assert!(!server.program.has(part));
        }
    }
}
