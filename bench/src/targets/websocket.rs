//! The targets in the suite `websocket`.

use super::Bound::{AtLeast, AtMost};
use super::{Bound, Target};
use crate::programs::servers::{
    WINDLASS_WEBSOCKET, WINDLASS_WEBSOCKET_AXUM, WINDLASS_WEBSOCKET_CONNECT,
    WINDLASS_WEBSOCKET_HTTP2, WINDLASS_WEBSOCKET_OWNED,
};

/// The name of what a server has over the one that echoes bytes.
macro_rules! over_tokio_echo {
    ($figure:literal) => {
        concat!("over_tokio_echo_", $figure)
    };
}

const fn target(case: &'static str, metric: &'static str, bound: Bound) -> Target {
    Target { implementation: WINDLASS_WEBSOCKET, ..Target::new(case, metric, bound) }
}

const fn instructions(metric: &'static str, most: f64) -> Target {
    target("messages", metric, AtMost(most)).with(&["bytes=20", "depth=1"])
}

const fn over_tungstenite(params: &'static [&'static str], least: f64) -> Target {
    target("messages", "messages_per_s_over_tungstenite_ratio", AtLeast(least)).with(params)
}

const fn axum(metric: &'static str, params: &'static [&'static str], least: f64) -> Target {
    let target = target("axum_echo", metric, AtLeast(least)).with(params);
    Target { implementation: WINDLASS_WEBSOCKET_AXUM, ..target }
}

/// The targets of the suite.
pub(super) const TARGETS: &[Target] = &[
    instructions(
        over_tokio_echo!("user_instructions_per_message_over_tungstenite_ratio"),
        1.0 / 3.0,
    ),
    instructions(over_tokio_echo!("user_instructions_per_message_over_fastwebsockets_ratio"), 0.5),
    target("messages", "allocations_per_message", AtMost(0.0)).with(&["deflate=false"]),
    Target {
        implementation: WINDLASS_WEBSOCKET_OWNED,
        ..target("messages", "allocations_per_message", AtMost(1.0)).with(&["deflate=false"])
    },
    target("messages", "messages_per_s_over_best_peer_ratio", AtLeast(1.0)),
    target("publish", "deliveries_per_s_over_best_peer_ratio", AtLeast(1.0)),
    target("upgrade", "handshakes_per_s_over_best_peer_ratio", AtLeast(1.0)),
    over_tungstenite(&["bytes=20", "connections=100", "depth=1"], 1.15),
    over_tungstenite(&["depth=16"], 2.0),
    over_tungstenite(&["content=ascii"], 2.0),
    target("idle_connection", over_tokio_echo!("anonymous_bytes_per_connection"), AtMost(600.0))
        .with(&["deflate=false"]),
    target(
        "idle_connection",
        over_tokio_echo!("anonymous_bytes_per_connection_over_best_peer_ratio"),
        AtMost(0.2),
    )
    .with(&["deflate=true"]),
    Target {
        implementation: WINDLASS_WEBSOCKET_CONNECT,
        ..target("connect", "handshakes_per_s_over_best_peer_ratio", AtLeast(1.0))
    },
    Target {
        implementation: WINDLASS_WEBSOCKET_HTTP2,
        ..target("http2_echo", "messages_per_s_over_best_peer_ratio", AtLeast(0.9))
    },
    axum("messages_per_s_over_axum_ratio", &["bytes=20", "depth=1"], 1.2),
    axum("messages_per_s_over_axum-untuned_ratio", &["depth=16"], 2.0),
];
