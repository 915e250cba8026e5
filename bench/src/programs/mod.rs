//! The measured programs, and how they are built.

pub(crate) mod build;
pub(crate) mod servers;

/// The hand-written epoll loop on epoll_wait(2), the cheapest wait. It is the reference of the
/// suite `dispatch`. Its other forms have names that begin with the same word.
pub(crate) const RAW: &str = "raw";
/// The same loop on epoll_pwait2(2).
pub(crate) const RAW_PWAIT2: &str = "raw-pwait2";
/// Windlass.
pub(crate) const WINDLASS: &str = "windlass";
/// Windlass beside one timer that is not due.
pub(crate) const WINDLASS_TIMER: &str = "windlass-timer";
/// The crate with the interface of tungstenite: the same program as [`TUNGSTENITE`].
pub(crate) const WINDLASS_TUNGSTENITE: &str = "windlass-tungstenite";
/// tungstenite, with settings that are good for it.
pub(crate) const TUNGSTENITE: &str = "tungstenite";
/// tungstenite with its default settings.
pub(crate) const TUNGSTENITE_UNTUNED: &str = "tungstenite-untuned";
/// The executor of windlass-task.
pub(crate) const WINDLASS_TASK: &str = "windlass-task";
/// The peer that the targets of windlass-task are about.
pub(crate) const TOKIO: &str = "tokio";
/// tokio's multi-thread runtime.
pub(crate) const TOKIO_MULTI_THREAD: &str = "tokio-multi-thread";
/// The manager of events whose interface [`WINDLASS_EVENT_MANAGER`] has.
pub(crate) const EVENT_MANAGER: &str = "event-manager";
/// The crate with the interface of event-manager: the same program as [`EVENT_MANAGER`].
pub(crate) const WINDLASS_EVENT_MANAGER: &str = "windlass-event-manager";
/// The plain eventfd(2), the reference of counters with a maximum.
pub(crate) const EVENTFD: &str = "eventfd";

/// The workspace of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Workspace {
    /// The workspace of the repository.
    Root,
    /// The same, compiled with a server that does not count.
    Uncounted,
    /// `bench/peers`.
    Peers,
    /// `bench/peers-cpp`.
    PeersCpp,
}

/// One implementation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Program {
    /// Its name, which is `impl` in the report.
    pub(crate) name: &'static str,
    /// The parts of suites in which it takes part (see `Case::part`).
    pub(crate) parts: &'static [&'static str],
    pub(crate) backends: &'static [&'static str],
    pub(crate) workspace: Workspace,
    pub(crate) package: &'static str,
    pub(crate) binary: &'static str,
}

/// The backend of peers and of the hand-written programs.
pub(crate) const EPOLL: &[&str] = &["epoll"];

/// The backends of windlass. The first two are measured by default.
pub(crate) const BACKENDS: &[&str] = &["epoll", "uring", "poll", "auto"];

const fn own(name: &'static str, parts: &'static [&'static str], binary: &'static str) -> Program {
    let package = "windlass-bench-subject";
    Program { name, parts, backends: EPOLL, workspace: Workspace::Root, package, binary }
}

const fn peer(
    name: &'static str,
    parts: &'static [&'static str],
    package: &'static str,
    binary: &'static str,
) -> Program {
    Program { name, parts, backends: EPOLL, workspace: Workspace::Peers, package, binary }
}

/// All programs, in the order of the report. The order of the slices is random.
pub(crate) const PROGRAMS: &[Program] = &[
    own(
        RAW,
        &[
            "dispatch",
            "kick",
            "poll0",
            "timers/sleep",
            "latency",
            "tasks",
            "http",
            "startup/first_event",
        ],
        "bench-raw",
    ),
    // The same program once more. Its distance from `raw` is the noise of the run.
    own("raw-again", &["dispatch", "kick", "poll0"], "bench-raw"),
    own(RAW_PWAIT2, &["dispatch", "poll0"], "bench-raw-pwait2"),
    Program {
        backends: BACKENDS,
        ..own(
            WINDLASS,
            &[
                "dispatch",
                "kick",
                "poll0",
                "timers",
                "timers/sleep",
                "streams",
                "flow",
                "wakeup/wake",
                "wakeup/call",
                "wakeup/post",
                "engine",
                "unmask",
                "utf8",
                "deflate",
                "startup/first_event",
            ],
            "bench-windlass",
        )
    },
    own("windlass-driven", &["dispatch"], "bench-windlass-driven"),
    own(
        WINDLASS_TIMER,
        &["dispatch", "poll0", "wakeup/wake", "wakeup/call", "wakeup/post"],
        "bench-windlass-timer",
    ),
    Program {
        backends: BACKENDS,
        ..own(
            WINDLASS_TASK,
            &["latency", "tasks", "http", "http/server", "http/multi_thread"],
            "bench-windlass-task",
        )
    },
    own(WINDLASS_TUNGSTENITE, &["engine"], "bench-tungstenite"),
    own("windlass-flow", &["wakeup/wake", "wakeup/post"], "bench-flow"),
    own(EVENTFD, &["flow", "wakeup/wake"], "bench-eventfd"),
    own("kernel", &["calls"], "bench-calls"),
    own("std", &["wakeup/call", "wakeup/post", "utf8"], "bench-std"),
    own("memcpy", &["engine", "unmask"], "bench-memcpy"),
    peer(
        "eventp",
        &["dispatch", "kick", "startup/first_event"],
        "windlass-bench-peer-eventp",
        "windlass-bench-peer-eventp",
    ),
    peer(
        EVENT_MANAGER,
        &["dispatch", "kick"],
        "windlass-bench-peer-event-manager",
        "windlass-bench-peer-event-manager",
    ),
    // The same program, on the crate with the same interface.
    peer(
        WINDLASS_EVENT_MANAGER,
        &["dispatch", "kick"],
        "windlass-bench-peer-windlass-event-manager",
        "windlass-bench-peer-windlass-event-manager",
    ),
    peer(
        "mio",
        &["dispatch", "poll0", "wakeup/wake", "startup/first_event"],
        "windlass-bench-peer-mio",
        "windlass-bench-peer-mio",
    ),
    peer("mio-slab", &["dispatch"], "windlass-bench-peer-mio", "windlass-bench-peer-mio-slab"),
    peer(
        "polling",
        &["dispatch", "poll0", "startup/first_event"],
        "windlass-bench-peer-polling",
        "windlass-bench-peer-polling",
    ),
    peer(
        "calloop",
        &["dispatch", "poll0", "timers", "startup/first_event"],
        "windlass-bench-peer-calloop",
        "windlass-bench-peer-calloop",
    ),
    peer(
        TOKIO,
        &[
            "timers",
            "timers/sleep",
            "wakeup/wake",
            "wakeup/call",
            "wakeup/post",
            "latency",
            "tasks",
            "http",
            "http/server",
            "startup/first_event",
        ],
        "windlass-bench-peer-tokio",
        "windlass-bench-peer-tokio",
    ),
    peer(
        "tokio-local",
        &["latency", "tasks"],
        "windlass-bench-peer-tokio",
        "windlass-bench-peer-tokio-local",
    ),
    peer(
        TOKIO_MULTI_THREAD,
        &["http", "http/server"],
        "windlass-bench-peer-tokio",
        "windlass-bench-peer-tokio-multi-thread",
    ),
    // The same program with the threads of the case, which runs on any number of processors.
    peer(
        "tokio-threads",
        &["http/multi_thread"],
        "windlass-bench-peer-tokio",
        "windlass-bench-peer-tokio-multi-thread",
    ),
    Program {
        backends: &["uring"],
        ..peer(
            "compio",
            &["latency", "tasks"],
            "windlass-bench-peer-compio",
            "windlass-bench-peer-compio",
        )
    },
    Program {
        backends: &["uring"],
        ..peer(
            "monoio",
            &["latency", "tasks"],
            "windlass-bench-peer-monoio",
            "windlass-bench-peer-monoio",
        )
    },
    Program {
        backends: &["uring"],
        ..peer(
            "glommio",
            &["latency", "tasks"],
            "windlass-bench-peer-glommio",
            "windlass-bench-peer-glommio",
        )
    },
    Program {
        workspace: Workspace::PeersCpp,
        ..peer(
            "asio",
            &["latency", "tasks", "http", "http/multi_thread"],
            "windlass-bench-peer-asio",
            "windlass-bench-peer-asio",
        )
    },
    peer(
        "crossbeam-channel",
        &["wakeup/post"],
        "windlass-bench-peer-crossbeam-channel",
        "windlass-bench-peer-crossbeam-channel",
    ),
    peer("flume", &["wakeup/post"], "windlass-bench-peer-flume", "windlass-bench-peer-flume"),
    peer(
        "fastwebsockets",
        &["engine", "unmask"],
        "windlass-bench-peer-fastwebsockets",
        "windlass-bench-peer-fastwebsockets",
    ),
    peer(
        TUNGSTENITE,
        &["engine"],
        "windlass-bench-peer-tungstenite",
        "windlass-bench-peer-tungstenite",
    ),
    peer(
        TUNGSTENITE_UNTUNED,
        &["engine"],
        "windlass-bench-peer-tungstenite",
        "windlass-bench-peer-tungstenite-untuned",
    ),
    Program {
        workspace: Workspace::PeersCpp,
        ..peer(
            "uwebsockets",
            &["engine", "unmask", "utf8", "deflate"],
            "windlass-bench-peer-uwebsockets",
            "windlass-bench-peer-uwebsockets",
        )
    },
    peer("simdutf8", &["utf8"], "windlass-bench-peer-simdutf8", "windlass-bench-peer-simdutf8"),
    peer(
        "simdutf8-per-piece",
        &["utf8"],
        "windlass-bench-peer-simdutf8",
        "windlass-bench-peer-simdutf8-per-piece",
    ),
];

/// The suites that a peer does not support: suite, peer, reason.
pub(crate) const UNSUPPORTED: &[(&str, &str, &str)] = &[
    ("unmask", "tungstenite", "its masking is private; that of fastwebsockets is the same code"),
    ("utf8", "tungstenite", "it validates with the standard library"),
    ("utf8", "fastwebsockets", "it validates with simdutf8, and fragments with the crate utf-8"),
    ("deflate", "tungstenite", "it has no permessage-deflate"),
    ("deflate", "fastwebsockets", "it has no permessage-deflate"),
];

/// The processors that a program needs, for its figures to say something: program, number.
const PROCESSORS_MIN: &[(&str, usize)] = &[(TOKIO_MULTI_THREAD, 4)];

impl Program {
    /// Returns why it is not measured beside others on a machine with so many processors.
    pub(crate) fn lacks_processors(&self, allowed: usize) -> Option<String> {
        let (name, least) = PROCESSORS_MIN.iter().find(|(name, _)| *name == self.name)?;
        (allowed < *least).then(|| {
            format!(
                "needs {least} processors, and {allowed} may be used here; `--peer {name}` \
                 measures it all the same"
            )
        })
    }

    /// Returns the backends to measure. `chosen` is the value of `--backend`, which applies to
    /// programs with several backends.
    pub(crate) fn backends(&self, chosen: &[String]) -> Vec<&'static str> {
        let is_wanted = |backend: &&str| match chosen {
            _ if self.backends.len() == 1 => true,
            // `poll` is for sandboxes and has a cost per registration; `auto` is one of the others.
            [] => matches!(*backend, "epoll" | "uring"),
            chosen => chosen.iter().any(|name| name == backend),
        };
        self.backends.iter().copied().filter(is_wanted).collect()
    }

    /// Returns the suites in which it takes part, each once.
    pub(crate) fn suites(&self) -> Vec<&'static str> {
        let mut suites: Vec<_> =
            self.parts.iter().map(|part| part.split('/').next().unwrap_or(part)).collect();
        suites.dedup();
        suites
    }

    /// Returns whether it takes part in this part of a suite.
    pub(crate) fn has(&self, part: &str) -> bool {
        self.parts.contains(&part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_belongs_to_a_suite_that_exists() {
        for program in PROGRAMS {
            assert!(
                program.suites().iter().all(|suite| crate::cases::SUITES.contains(suite)),
                "{}",
                program.name
            );
            assert!(
                program
                    .suites()
                    .iter()
                    .all(|suite| program.parts.iter().any(|part| part.starts_with(suite)))
            );
        }
        let tokio = PROGRAMS.iter().find(|program| program.name == "tokio").unwrap();
        assert_eq!(tokio.suites(), ["timers", "wakeup", "latency", "tasks", "http", "startup"]);
    }

    #[test]
    fn every_backend_can_be_named_and_two_are_measured_without() {
        let windlass = PROGRAMS.iter().find(|program| program.name == WINDLASS).unwrap();
        assert_eq!(windlass.backends(&[]), ["epoll", "uring"]);
        for name in ["epoll", "uring", "poll", "auto"] {
            assert_eq!(windlass.backends(&[name.to_owned()]), [name]);
        }
    }

    #[test]
    fn a_runtime_of_several_threads_needs_four_processors() {
        let program = |name: &str| PROGRAMS.iter().find(|program| program.name == name).unwrap();
        let lacks = |name: &str, allowed| program(name).lacks_processors(allowed);
        let reason = lacks(TOKIO_MULTI_THREAD, 3).unwrap();
        assert!(reason.starts_with("needs 4 processors, and 3 may be used here"), "{reason}");
        assert!(reason.contains("--peer tokio-multi-thread"), "{reason}");
        assert_eq!(lacks(TOKIO_MULTI_THREAD, 4), None);
        assert_eq!(lacks(TOKIO, 1), None);
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = PROGRAMS.iter().map(|program| program.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), PROGRAMS.len());
    }
}
