//! The reactor's behaviour through its public API: one suite that runs on every backend.

#![allow(
    clippy::unwrap_used,
    clippy::type_complexity,
    reason = "what fails in a test ends it, and the types of its handlers are said once"
)]

#[macro_use]
extern crate windlass_testkit;

use windlass_testkit::{pattern, scenarios::Build};

/// Makes tests in a simulation from scenarios that use no descriptor and no other thread.
macro_rules! simulated {
    ($($name:ident,)*) => {
        #[cfg(feature = "sim")]
        mod sim {
            $(#[test]
            fn $name() {
                super::$name(crate::bed::simulated);
            })*
        }
    };
}

mod bed;
mod script;

mod alarms;
mod batches;
mod building;
mod contention;
mod conversions;
mod deferral;
mod destructors;
mod drivers;
mod drivers_embedded;
mod embedding;
#[cfg(not(miri))]
mod embedding_tokio;
mod errors;
#[cfg(not(miri))]
mod fd_passing;
mod forms;
mod groups;
mod groups_paused;
mod groups_paused_streams;
mod groups_paused_timers;
mod groups_refused;
mod groups_state;
mod groups_streams;
mod interests;
mod kicks;
mod letting_go;
mod listing;
mod panics;
mod progress;
mod registration;
mod remote;
mod remote_async;
mod remote_wakes;
mod removing;
#[cfg(not(miri))]
#[macro_use]
mod rings;
#[cfg(not(miri))]
mod rings_rule_14;
mod signals;
mod signatures;
mod sockets;
mod stopping;
mod streams;
mod streams_connectors;
mod streams_ends;
#[cfg(not(miri))]
mod streams_fds;
mod streams_lent;
mod streams_listeners;
mod streams_listeners_rest;
mod streams_listeners_shared;
mod streams_outputs;
mod streams_panics;
mod streams_payloads;
mod streams_random;
mod streams_release;
mod streams_shared;
mod streams_time;
mod streams_tls;
mod streams_tls_hostile;
mod streams_tls_limits;
mod streams_tls_release;
mod streams_tls_session;
#[cfg(not(miri))]
mod streams_vsock;
mod timer_limits;
mod timers;
mod turns;
mod waits;
