//! The stages of a whole run, in their order, and the tables they are made of.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Result;

use super::{backends, readme, smoke};
use crate::check;
use crate::command::Cmd;
use crate::lanes::Lane;
use crate::metadata::{self, Package};
use crate::stage::{Part, Stage, Step};
use crate::toolchain;

/// Packages whose tests run under AddressSanitizer: every library. A crate that does not exist yet
/// is passed over.
const SANITIZED: &[&str] =
    &["windlass-flow", "windlass", "windlass-ws", "windlass-server", "windlass-task"];

/// Test programs left out wherever the compiler or its flags are not the pinned ones: they compare
/// the compiler's messages word for word.
const COMPILER_TESTS: &[&str] = &["compile_fail"];

/// What Miri runs. It interprets, a thousand times slower than the machine, so programs whose loops
/// are long are left out or in [`MIRI_LONG`], and parts can be skipped by name.
const MIRI: &[MiriRun] = &[
    MiriRun { package: "windlass-flow", targets: &["--lib"], filter: &[] },
    MiriRun {
        package: "windlass-flow",
        targets: &["--test", "mailbox"],
        filter: &["--skip", MODEL_OF_THE_MAILBOX],
    },
    MiriRun { package: "windlass-ws", targets: &["--lib"], filter: &[] },
    MiriRun { package: "windlass", targets: &["--lib"], filter: &["--skip", MODEL_OF_THE_WHEEL] },
    MiriRun { package: "windlass", targets: &["--test", "rules"], filter: &[] },
];

/// What takes Miri a minute and more for one test: random programs against models.
const MIRI_LONG: &[MiriRun] = &[
    MiriRun {
        package: "windlass-flow",
        targets: &["--test", "mailbox"],
        filter: &["--exact", MODEL_OF_THE_MAILBOX],
    },
    MiriRun { package: "windlass", targets: &["--lib"], filter: &["--exact", MODEL_OF_THE_WHEEL] },
    MiriRun { package: "windlass", targets: &["--test", "model"], filter: &[] },
];

const MODEL_OF_THE_MAILBOX: &str = "model::random_programs_behave_as_the_naive_model";
const MODEL_OF_THE_WHEEL: &str = "wheel::tests::agrees_with_a_sorted_list";

struct MiriRun {
    package: &'static str,
    targets: &'static [&'static str],
    /// What the program is told of the tests to run. A single test that Miri cannot run is better
    /// marked with `#[cfg_attr(miri, ignore = "why")]`, which is counted as skipped.
    filter: &'static [&'static str],
}

/// The stage of what the README tells a newcomer to run.
pub(super) const NEWCOMERS: &str = "test";

/// Stages that take long and are seldom worth it: they run with `--full`, before a release, or
/// where they are named.
pub(super) const LONG: &[&str] = &["miri-long", "autobahn-whole", "bench-whole"];

/// What a long stage does the whole of: with `--full` it is not run.
pub(super) const SHORT: &[&str] = &["autobahn", "bench"];

/// The lanes beside the tests: what compiles, which uses all processors, and the interpreter, which
/// uses one.
const COMPILER: Lane = Lane { name: "compiler", nice: 19 };
/// Not the lowest priority: tests that are interpreted wait for each other, and have time limits.
const INTERPRETER: Lane = Lane { name: "interpreter", nice: 5 };

/// Target directories of stages that build while another does. What is compiled with flags of its
/// own shares nothing with the rest, so that this costs no time.
const LINTS_TARGET: &str = "ci-lints";
const LOOM_TARGET: &str = "ci-loom";
const FALLBACK_TARGET: &str = "ci-fallback";
const ASAN_TARGET: &str = "ci-asan";

/// Flags under which the crate `windlass` waits as on a kernel without `epoll_pwait2`, and tries
/// rings that lack one thing after another.
const FALLBACK: &str = "--cfg windlass_force_epoll_wait --cfg windlass_force_ring";

/// Every stage, those in front first, in their order, then each lane's.
///
/// # Errors
///
/// When cargo refuses the manifests.
pub(super) fn all(root: &Path) -> Result<Vec<Stage>> {
    let packages = metadata::workspace(root)?;
    let mut stages = Vec::new();
    let mut checks = check::stages(root)?;
    let mut take = |name: &str, stages: &mut Vec<Stage>| {
        let place = checks.iter().position(|stage| stage.name == name);
        stages.push(checks.remove(place.expect("`all_checks_are_run` looks that it is there")));
    };
    ["fmt", "tidy", "arrows"].into_iter().for_each(|name| take(name, &mut stages));
    stages.push(readme_tests(root));
    take("test-tools", &mut stages);
    stages.push(backends::tests(&packages));
    stages.push(fallback(&packages));
    stages.push(smoke::serve(root));
    stages.extend([autobahn("autobahn", &["--quick"]), autobahn("autobahn-whole", &[])]);
    stages.push(clients());
    stages.push(smoke::bench("bench", &["--peer", "mio"], root));
    stages.push(smoke::bench("bench-whole", &[], root));
    stages.push(asan(&packages));
    stages.push(builds(&packages).in_lane(COMPILER));
    stages.extend(checks.into_iter().map(|stage| {
        let target = if stage.name == "loom" { LOOM_TARGET } else { LINTS_TARGET };
        stage.with_target(target).in_lane(COMPILER)
    }));
    for (name, runs) in [("miri", MIRI), ("miri-long", MIRI_LONG)] {
        let stage = miri(name, runs, &packages).unwrap_or_else(|reason| Stage::skip(name, reason));
        stages.push(stage.in_lane(INTERPRETER));
    }
    Ok(stages)
}

/// Compiles what stages in front run later, while those before them wait. A stage whose code is not
/// there yet when it begins waits for it.
fn builds(packages: &[Package]) -> Stage {
    let ahead = |command: Cmd| command.args(["--no-run"]);
    let release =
        ["build --release", "build --release -p conformance", "build --release -p windlass-bench"];
    let mut commands = vec![ahead(fallback_tests(packages))];
    commands.extend(release.map(|arguments| Cmd::cargo(arguments.split(' '))));
    commands.extend(sanitized_tests(packages).map(ahead));
    Stage::commands("builds", commands)
}

/// The README's own test command, whatever it is.
fn readme_tests(root: &Path) -> Stage {
    let text = std::fs::read_to_string(root.join("README.md")).unwrap_or_default();
    match readme::test_commands(&text) {
        Ok(commands) => Stage::tests(
            NEWCOMERS,
            commands
                .iter()
                .map(|words| Cmd::new(words[0]).args(words[1..].iter().copied()))
                .collect(),
        ),
        Err(reason) => Stage::inspect(NEWCOMERS, move || Ok(vec![reason])),
    }
}

/// Test programs of a package, those that pin the compiler's messages left out.
fn test_programs(package: &Package) -> impl Iterator<Item = String> {
    let is_wanted = |name: &str| !COMPILER_TESTS.contains(&name);
    let targets = package
        .targets
        .iter()
        .filter(move |target| target.kind == "test" && is_wanted(&target.name));
    targets.map(|target| target.name.clone())
}

/// `command` of these packages. One call for all: otherwise the features of what they depend on
/// would differ, and most libraries would be compiled once for each.
fn of(packages: &[&Package], command: Cmd) -> Cmd {
    packages.iter().fold(command, |command, package| command.args(["-p", &package.name]))
}

/// The same with their libraries and test programs, but for those that pin the compiler's messages.
fn tests_of(packages: &[&Package], command: Cmd) -> Cmd {
    let targets: BTreeSet<String> =
        packages.iter().flat_map(|package| test_programs(package)).collect();
    let command = of(packages, command).args(["--no-fail-fast", "--lib"]);
    targets.iter().fold(command, |command, target| command.args(["--test", target]))
}

fn fallback(packages: &[Package]) -> Stage {
    Stage::tests("fallback", vec![fallback_tests(packages)])
}

fn fallback_tests(packages: &[Package]) -> Cmd {
    let reactor: Vec<&Package> =
        packages.iter().filter(|package| package.name == "windlass").collect();
    tests_of(&reactor, Cmd::cargo(["test"])).env("RUSTFLAGS", FALLBACK).target(FALLBACK_TARGET)
}

/// AddressSanitizer and LeakSanitizer over all tests of the libraries.
fn asan(packages: &[Package]) -> Stage {
    let documents = || sanitized().map(|command| of(&libraries(packages), command).args(["--doc"]));
    match sanitized_tests(packages).and_then(|tests| Ok(vec![tests, documents()?])) {
        Ok(commands) => Stage::tests("asan", commands),
        Err(reason) => Stage::skip("asan", reason),
    }
}

fn sanitized_tests(packages: &[Package]) -> Result<Cmd, String> {
    Ok(tests_of(&libraries(packages), sanitized()?))
}

/// Those whose tests run under AddressSanitizer.
fn libraries(packages: &[Package]) -> Vec<&Package> {
    packages.iter().filter(|package| SANITIZED.contains(&package.name.as_str())).collect()
}

/// A call of cargo under which everything is instrumented. Procedural macros must not be, hence the
/// explicit target.
fn sanitized() -> Result<Cmd, String> {
    let nightly = toolchain::find("nightly")?;
    let flag = "-Zsanitizer=address";
    let command = Cmd::cargo([&*format!("+{nightly}"), "test", "--target", &*toolchain::host()?]);
    // For tests that measure memory: the sanitizer's own is resident, too.
    let command = command.env("WINDLASS_SANITIZED", "1");
    Ok(command.env("RUSTFLAGS", flag).env("RUSTDOCFLAGS", flag).target(ASAN_TARGET))
}

/// Miri over the core's tests. It knows epoll but not `epoll_pwait2`, and the exposed addresses
/// need permissive provenance.
fn miri(name: &'static str, runs: &[MiriRun], packages: &[Package]) -> Result<Stage, String> {
    let nightly = toolchain::find("nightly")?;
    toolchain::need_component(&nightly, "miri")?;
    toolchain::need_component(&nightly, "rust-src")?;
    let toolchain = format!("+{nightly}");
    let mut commands = vec![Cmd::cargo([&*toolchain, "miri", "setup"])];
    for run in runs.iter().filter(|run| exists(run, packages)) {
        let mut command = Cmd::cargo([&*toolchain, "miri", "test", "-p", run.package])
            .args(["--no-fail-fast"])
            .args(run.targets.iter().copied())
            .env("MIRIFLAGS", "-Zmiri-permissive-provenance -Zmiri-disable-isolation")
            .env("RUSTFLAGS", FALLBACK)
            // Tests panic on purpose, and Miri takes minutes to find the names of one panic's
            // frames.
            .env("RUST_BACKTRACE", "0");
        if !run.filter.is_empty() {
            command = command.args(["--"]).args(run.filter.iter().copied());
        }
        commands.push(command);
    }
    Ok(Stage::tests(name, commands))
}

/// The Autobahn TestSuite against the server on each backend, and the client, which has none,
/// against it. `--quick` is what is short, and a sample of the rest. Cases count as tests.
/// Optimised, since it has volume.
fn autobahn(name: &'static str, which: &[&str]) -> Stage {
    let run = |role: &[&str]| {
        let command =
            conformance("autobahn").args(which.iter().copied()).args(role.iter().copied());
        vec![Step::Command(command)]
    };
    let mut parts = backends::parts(|backend| run(&["--backend", backend]));
    parts.push(Part { name: "", steps: Ok(run(&["--client"])) });
    Stage::parts(name, parts)
}

/// Other people's clients against the server on each backend. What cannot be installed here is
/// counted as ignored.
fn clients() -> Stage {
    let run =
        |backend: &str| vec![Step::Command(conformance("clients").args(["--backend", backend]))];
    Stage::parts("clients", backends::parts(run))
}

fn conformance(suite: &str) -> Cmd {
    Cmd::cargo(["run", "--release", "-p", "conformance", "--", suite])
}

/// Whether the run's program is there yet. That it stays there is what `.ci/expected-suites` is
/// for.
fn exists(run: &MiriRun, packages: &[Package]) -> bool {
    let wanted = run.targets.last().copied().unwrap_or_default();
    packages
        .iter()
        .filter(|package| package.name == run.package)
        .flat_map(|package| &package.targets)
        .any(|target| match wanted {
            "--lib" => target.kind == "lib",
            name => target.kind == "test" && target.name == name,
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::Target;
    use crate::stage::Work;

    fn package(name: &str, tests: &[&str]) -> Package {
        let target = |name: &str, kind: &str| Target {
            name: name.to_owned(),
            kind: kind.to_owned(),
            path: String::new(),
        };
        let mut targets = vec![target(name, "lib"), target("b", "bench")];
        targets.extend(tests.iter().map(|name| target(name, "test")));
        Package { name: name.to_owned(), targets, ..Package::default() }
    }

    #[test]
    fn one_call_tests_all_packages_and_leaves_out_the_compilers_messages() {
        let packages = [
            package("windlass", &["rules", "suite", "compile_fail"]),
            package("w-server", &["suite"]),
        ];
        let packages: Vec<&Package> = packages.iter().collect();
        let expected =
            "cargo test -p windlass -p w-server --no-fail-fast --lib --test rules --test suite";
        assert_eq!(tests_of(&packages, Cmd::cargo(["test"])).to_string(), expected);
    }

    #[test]
    fn miri_runs_what_exists() {
        let packages = [package("windlass", &["rules", "model"])];
        let runs = || MIRI.iter().chain(MIRI_LONG).filter(|run| run.package == "windlass");
        assert!(runs().count() == 4 && runs().all(|run| exists(run, &packages)));
        let missing = MiriRun { package: "windlass", targets: &["--test", "other"], filter: &[] };
        assert!(!exists(&missing, &packages));
    }

    fn stages() -> Vec<Stage> {
        all(&crate::repository::root()).expect("the workspace is readable")
    }

    #[test]
    fn stages_have_names_of_their_own() {
        let stages = stages();
        let mut names: Vec<&str> = stages.iter().map(|stage| stage.name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        assert!(LONG.iter().chain(SHORT).all(|name| names.contains(name)));
    }

    #[test]
    fn all_checks_are_run() {
        let stages = stages();
        for check in check::stages(&crate::repository::root()).expect("the workspace is readable") {
            assert!(stages.iter().any(|stage| stage.name == check.name), "{}", check.name);
        }
    }

    #[test]
    fn what_runs_tests_is_in_front_but_for_interpreters_and_models() {
        let tests = |stage: &&Stage| matches!(stage.work, Work::Tests(_) | Work::Parts(_));
        let stages = stages();
        let beside: Vec<&str> = stages
            .iter()
            .filter(tests)
            .filter(|one| one.lane.is_some())
            .map(|one| one.name)
            .collect();
        let allowed = ["loom", "miri", "miri-long"];
        assert!(beside.iter().all(|name| allowed.contains(name)), "{beside:?}");
    }
}
