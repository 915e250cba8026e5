//! The tests that run once on each backend of the reactor.
//!
//! Stage `test` runs them on the first backend, which is the one that `auto` chooses.
//! Most of the reactor's own tests are not here: each exists for every backend already
//! (`crates/testkit/src/scenarios.rs`).

use io_uring::IoUring;

use crate::command::Cmd;
use crate::metadata::Package;
use crate::programs::{Programs, Wanted};
use crate::stage::{Part, Stage, Step};

/// The backends by the names that users know. `auto` is the first one.
const BACKENDS: &[&str] = &["epoll", "uring", "poll"];

/// The variable that sets the backend in tests that leave the choice to the caller.
const VARIABLE: &str = "WINDLASS_TEST_BACKEND";

/// Packages whose tests and examples run on each backend.
const PACKAGES: &[&str] =
    &["windlass", "windlass-server", "windlass-task", "windlass-cli", "windlass-examples"];

/// Test programs that do not depend on the backend, or choose it themselves.
const INDIFFERENT: &[(&str, &[&str])] = &[
    // Stage `simulator` runs `sim`.
    (
        "windlass",
        &[
            "allocations",
            "fork",
            "inherited",
            "model",
            "napi",
            "numbers",
            "ring",
            "rules",
            "sim",
            "suite",
        ],
    ),
    ("windlass-server", &["seccomp", "sim"]),
    ("windlass-task", &["allocations", "attributes", "fork", "net", "net_rounds", "sim"]),
    // Stage `test-tools` runs it, because a plain build lacks its feature.
    ("windlass-cli", &["cluster"]),
    (
        "windlass-examples",
        &[
            "asm_probe",
            "first",
            "readme",
            "sim_proxy",
            "stream_echo",
            "tcp_lines",
            "websocket_axum",
            "websocket_broadcast",
            "websocket_client",
            "websocket_echo",
            "websocket_halves",
            "websocket_http2",
            "websocket_hyper",
            "websocket_proxy",
            "websocket_reconnect",
            "ws_blocking",
            "ws_mio",
        ],
    ),
];

/// Programs that need a feature that a backend lacks, as `windlass::Backend` lists: two
/// edge-triggered latches that are never read, and embedded reactors.
const CANNOT: &[(&str, &str)] = &[
    ("poll", "hyper_handover"),
    ("poll", "worker_pool"),
    ("poll", "in_mio"),
    ("poll", "in_tokio"),
    ("poll", "nested"),
    ("poll", "hostile"),
];

/// A part of the names of tests that exist for every backend already.
const FOR_EACH: &[&str] = &["::epoll::", "::uring::", "::poll::"];

/// Parts of the names of tests that do not depend on the backend, in programs with others that do.
/// These are about the looks of the page of `windlass serve`, which a browser draws for seconds,
/// and about its echo run against servers of the test.
const OF_THE_PAGE: &[&str] = &[
    "appearance::",
    "live::a_graph_tells_its_values",
    "message_ends_the_run",
    "byte_ends_the_run",
];

/// The integration tests and examples, on each backend but the first in turn.
pub(super) fn tests(packages: &[Package]) -> Stage {
    let part = |backend: &str| vec![Step::Programs(programs(packages, backend))];
    Stage::parts("backends", parts_on(&BACKENDS[1..], part))
}

/// The programs that run on a backend. They are chosen by package, because another package may have
/// a program of the same name.
fn programs(packages: &[Package], backend: &str) -> Programs {
    let packages: Vec<&Package> =
        packages.iter().filter(|package| PACKAGES.contains(&package.name.as_str())).collect();
    let skip = |part: &&str| ["--skip".to_owned(), (*part).to_owned()];
    Programs {
        // The call of the stage `test`. With other packages, the features of shared dependencies
        // would differ, and some libraries would be compiled again.
        build: Cmd::cargo(["test"]),
        wanted: packages.iter().flat_map(|package| wanted(package, backend)).collect(),
        arguments: FOR_EACH.iter().chain(OF_THE_PAGE).flat_map(skip).collect(),
        variables: vec![(VARIABLE.to_owned(), backend.to_owned())],
    }
}

fn wanted(package: &Package, backend: &str) -> Vec<Wanted> {
    let runs =
        |name: &str| !is_indifferent(&package.name, name) && !CANNOT.contains(&(backend, name));
    let targets =
        package.targets.iter().filter(|target| matches!(&*target.kind, "test" | "example"));
    targets
        .filter(|target| runs(&target.name))
        .map(|target| Wanted {
            package: package.name.clone(),
            kind: target.kind.clone(),
            name: target.name.clone(),
        })
        .collect()
}

fn is_indifferent(package: &str, target: &str) -> bool {
    INDIFFERENT.iter().any(|(name, targets)| *name == package && targets.contains(&target))
}

/// The steps on each backend. `program` gets the backend's name.
pub(super) fn parts(program: impl Fn(&str) -> Vec<Step>) -> Vec<Part> {
    parts_on(BACKENDS, program)
}

/// The same on some of them.
pub(super) fn parts_on(
    backends: &'static [&'static str],
    program: impl Fn(&str) -> Vec<Step>,
) -> Vec<Part> {
    let part = |name: &&'static str| Part {
        name,
        steps: if *name == "uring" { refusal() } else { None }
            .map_or_else(|| Ok(program(name)), Err),
    };
    backends.iter().map(part).collect()
}

/// The reason why this machine has no rings. It asks the kernel and not the reactor, so that a
/// reactor that rejects rings without a reason is noticed.
fn refusal() -> Option<String> {
    match IoUring::new(2) {
        // The features that the reactor needs: crates/reactor/src/backend/uring/features.rs.
        Ok(ring) => (!ring.params().is_feature_ext_arg()
            || !ring.params().is_feature_resource_tagging())
        .then(|| "this kernel's io_uring is too old".to_owned()),
        Err(error) if is_forbidden(&error) => {
            Some(format!("io_uring is forbidden or absent here: {error}"))
        }
        Err(_) => None,
    }
}

fn is_forbidden(error: &std::io::Error) -> bool {
    use rustix::io::Errno;
    [Errno::PERM, Errno::ACCESS, Errno::NOSYS]
        .iter()
        .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::Target;

    #[test]
    fn programs_that_need_a_missing_feature_are_left_out() {
        let target = |name: &str, kind: &str| Target {
            name: name.to_owned(),
            kind: kind.to_owned(),
            path: String::new(),
            is_tested: true,
        };
        let package =
            |name: &str, targets| Package { name: name.to_owned(), targets, ..Package::default() };
        let packages = [
            package("windlass", vec![target("suite", "test"), target("workers", "test")]),
            package("windlass-ws", vec![target("engine", "test")]),
            package(
                "windlass-server",
                vec![target("suite", "test"), target("seccomp", "test"), target("x", "lib")],
            ),
            package(
                "windlass-examples",
                vec![target("nested", "example"), target("signals", "example")],
            ),
        ];
        let wanted = |backend| {
            let wanted = programs(&packages, backend).wanted;
            wanted
                .iter()
                .map(|one| format!("{} {} {}", one.package, one.kind, one.name))
                .collect::<Vec<_>>()
        };
        let most = [
            "windlass test workers",
            "windlass-server test suite",
            "windlass-examples example nested",
        ];
        let signals = "windlass-examples example signals";
        assert_eq!(
            wanted("uring"),
            [&most[..], &[signals]].concat(),
            "the reactor's own suite is not among them"
        );
        assert_eq!(wanted("poll"), [&most[..2], &[signals]].concat());
    }

    #[test]
    fn programs_get_their_backend_and_skip_tests_that_choose_one() {
        let packages = crate::metadata::workspace(&crate::repository::root())
            .expect("the workspace is readable");
        let programs = programs(&packages, "poll");
        assert_eq!(programs.build.to_string(), "cargo test", "as in the stage `test`");
        assert_eq!(programs.variables, [("WINDLASS_TEST_BACKEND".to_owned(), "poll".to_owned())]);
        assert_eq!(
            programs.arguments.join(" "),
            "--skip ::epoll:: --skip ::uring:: --skip ::poll:: --skip appearance:: \
             --skip live::a_graph_tells_its_values --skip message_ends_the_run --skip \
             byte_ends_the_run"
        );
    }

    #[test]
    fn programs_that_are_left_out_exist() {
        let packages = crate::metadata::workspace(&crate::repository::root())
            .expect("the workspace is readable");
        let is_there = |package: &str, target: &str| {
            let packages = packages.iter().filter(|there| there.name == package);
            packages.flat_map(|package| &package.targets).any(|there| there.name == target)
        };
        for (package, targets) in INDIFFERENT {
            let gone: Vec<_> = targets.iter().filter(|target| !is_there(package, target)).collect();
            assert!(gone.is_empty(), "{package}: {gone:?}");
        }
        for (backend, target) in CANNOT {
            assert!(
                BACKENDS.contains(backend)
                    && PACKAGES.iter().any(|package| is_there(package, target)),
                "{target}"
            );
        }
    }
}
