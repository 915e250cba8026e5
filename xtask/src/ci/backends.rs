//! What is run once on each backend of the reactor.
//!
//! Most of the reactor's own tests are not here: each of them is there for every backend already (`crates/reactor/tests/common/scenarios.rs`).

use io_uring::IoUring;

use crate::command::Cmd;
use crate::metadata::Package;
use crate::stage::{Part, Stage};

/// The backends by the names that users know. `auto` is the first.
const BACKENDS: &[&str] = &["epoll", "uring", "poll"];

/// What chooses the backend in tests that leave the choice to the caller.
const VARIABLE: &str = "WINDLASS_TEST_BACKEND";

/// Packages whose tests, examples' included, run on each backend.
const PACKAGES: &[&str] = &["windlass", "windlass-server", "windlass-cli", "windlass-examples"];

/// Test programs to which a backend makes no difference, or that choose theirs themselves.
const INDIFFERENT: &[(&str, &[&str])] = &[
    ("windlass", &["allocations", "compile_fail", "inherited", "model", "numbers", "ring", "rules", "suite"]),
    ("windlass-server", &["seccomp"]),
    ("windlass-examples", &["asm_probe", "first", "readme"]),
];

/// Programs that need what a backend does not have, which `windlass::Backend` lists: two latches that are registered edge-triggered and never read,
/// and embedded reactors.
const CANNOT: &[(&str, &str)] =
    &[("poll", "hyper_handover"), ("poll", "worker_pool"), ("poll", "nested"), ("poll", "hostile")];

/// Integration tests and examples, on each backend in turn.
pub(super) fn tests(packages: &[Package]) -> Stage {
    Stage::parts(
        "backends",
        parts(|backend| {
            let arguments = arguments(packages, backend);
            vec![Cmd::cargo(arguments.iter().map(String::as_str)).env(VARIABLE, backend)]
        }),
    )
}

fn arguments(packages: &[Package], backend: &str) -> Vec<String> {
    let mut arguments = vec!["test".to_owned(), "--no-fail-fast".to_owned()];
    for package in packages.iter().filter(|package| PACKAGES.contains(&package.name.as_str())) {
        arguments.extend(["-p".to_owned(), package.name.clone()]);
        for target in &package.targets {
            let name = target.name.as_str();
            let runs = !is_indifferent(&package.name, name) && !CANNOT.contains(&(backend, name));
            match target.kind.as_str() {
                kind @ ("test" | "example") if runs => arguments.extend([format!("--{kind}"), name.to_owned()]),
                _ => {}
            }
        }
    }
    arguments
}

fn is_indifferent(package: &str, target: &str) -> bool {
    INDIFFERENT.iter().any(|(name, targets)| *name == package && targets.contains(&target))
}

/// What the program does, on each backend: the name is what it is to be told.
pub(super) fn parts(program: impl Fn(&str) -> Vec<Cmd>) -> Vec<Part> {
    let part = |name: &&'static str| Part {
        name,
        commands: if *name == "uring" { refusal() } else { None }.map_or_else(|| Ok(program(name)), Err),
    };
    BACKENDS.iter().map(part).collect()
}

/// Why there are no rings here. The kernel is asked and not the reactor, so that one that refuses for no reason is found out.
fn refusal() -> Option<String> {
    match IoUring::new(2) {
        // What the reactor cannot do without: crates/reactor/src/backend/uring/features.rs.
        Ok(ring) => (!ring.params().is_feature_ext_arg() || !ring.params().is_feature_resource_tagging())
            .then(|| "this kernel's io_uring is too old".to_owned()),
        Err(error) if is_forbidden(&error) => Some(format!("io_uring is forbidden or absent here: {error}")),
        Err(_) => None,
    }
}

fn is_forbidden(error: &std::io::Error) -> bool {
    use rustix::io::Errno;
    [Errno::PERM, Errno::ACCESS, Errno::NOSYS].iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::Target;

    #[test]
    fn what_a_backend_does_not_have_is_not_asked_of_it() {
        let target =
            |name: &str, kind: &str| Target { name: name.to_owned(), kind: kind.to_owned(), path: String::new() };
        let package = |name: &str, targets| Package {
            name: name.to_owned(),
            rust_version: None,
            targets,
            dependencies: Vec::new(),
        };
        let packages = [
            package("windlass", vec![target("suite", "test"), target("workers", "test")]),
            package("windlass-ws", vec![target("engine", "test")]),
            package("windlass-server", vec![target("suite", "test"), target("seccomp", "test"), target("x", "lib")]),
            package("windlass-examples", vec![target("nested", "example"), target("signals", "example")]),
        ];
        let line = |backend| arguments(&packages, backend).join(" ");
        let most =
            "test --no-fail-fast -p windlass --test workers -p windlass-server --test suite -p windlass-examples";
        assert_eq!(line("uring"), format!("{most} --example nested --example signals"));
        assert_eq!(line("poll"), format!("{most} --example signals"));
    }

    #[test]
    fn what_is_left_out_is_there() {
        let packages = crate::metadata::workspace(&crate::repository::root()).expect("the workspace is readable");
        let is_there = |package: &str, target: &str| {
            let packages = packages.iter().filter(|there| there.name == package);
            packages.flat_map(|package| &package.targets).any(|there| there.name == target)
        };
        for (package, targets) in INDIFFERENT {
            let gone: Vec<_> = targets.iter().filter(|target| !is_there(package, target)).collect();
            assert!(gone.is_empty(), "{package}: {gone:?}");
        }
        for (backend, target) in CANNOT {
            assert!(BACKENDS.contains(backend) && PACKAGES.iter().any(|package| is_there(package, target)), "{target}");
        }
    }
}
