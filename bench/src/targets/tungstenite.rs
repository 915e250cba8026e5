//! The targets of the crates with the interface of tungstenite, over tungstenite itself. Both are
//! the same program: with the default settings, and with those that are good for tungstenite.

use super::Bound::{AtLeast, AtMost};
use super::{Bound, Target};
use crate::programs::WINDLASS_TUNGSTENITE;
use crate::programs::servers::WINDLASS_TOKIO_TUNGSTENITE;

const fn engine(metric: &'static str, bound: Bound) -> Target {
    let target = Target::new("echo", metric, bound).with(&["profile=release"]);
    Target { implementation: WINDLASS_TUNGSTENITE, ..target }
}

const fn on_tokio(case: &'static str, metric: &'static str, bound: Bound) -> Target {
    Target { implementation: WINDLASS_TOKIO_TUNGSTENITE, ..Target::new(case, metric, bound) }
}

/// The targets. Those of memory are about the default settings, and without the runtime.
pub(super) const TARGETS: &[Target] = &[
    engine("instructions_over_tungstenite_ratio", AtMost(0.5)),
    engine("instructions_over_tungstenite-untuned_ratio", AtMost(0.5)),
    engine("rate_over_tungstenite_ratio", AtLeast(1.1)),
    engine("rate_over_tungstenite-untuned_ratio", AtLeast(1.1)),
    on_tokio(
        "messages",
        "over_tokio_echo_user_instructions_per_message_over_tungstenite_ratio",
        AtMost(0.5),
    ),
    on_tokio("messages", "messages_per_s_over_tungstenite_ratio", AtLeast(1.1)),
    on_tokio(
        "idle_connection",
        "over_tokio_echo_anonymous_bytes_per_connection_over_tungstenite-untuned_ratio",
        AtMost(0.02),
    ),
];
