//! The targets of kicks, over the hand-written loop and over event-manager.

use super::Target;
use crate::programs::{WINDLASS, WINDLASS_EVENT_MANAGER};

/// Instructions over the hand-written loop: those of a turn and an event in `dispatch`, 15 + 4.
const OVER_RAW_MAX: f64 = 19.0;

/// The targets. Without a guest, both processes do the same system calls.
pub(super) const TARGETS: &[Target] = &[
    Target::of(WINDLASS, "kick", "over_raw_user_instructions_per_kick", OVER_RAW_MAX)
        .with(&["guest=false"]),
    Target::of(WINDLASS_EVENT_MANAGER, "kick", "instructions_over_event-manager_ratio", 0.5)
        .with(&["guest=false"]),
    Target::of(WINDLASS, "kick", "p50_over_raw_ratio", 1.03).with(&["guest=true"]),
];
