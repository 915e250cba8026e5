//! The stages of a whole run, in their order, and their tables.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;

use super::conformance::{autobahn, clients};
use super::{backends, compat, readme, simulator, smoke, targets};
use crate::check;
use crate::command::Cmd;
use crate::counts;
use crate::lanes::Lane;
use crate::metadata::{self, Package};
use crate::patched;
use crate::planted;
use crate::repository;
use crate::stage::Stage;
use crate::toolchain;

/// The libraries whose tests run under AddressSanitizer: those with unsafe code, and
/// windlass-websocket, which lends what lies in the engine's buffers.
const SANITIZED: &[&str] = &[
    "windlass-flow",
    "windlass",
    "windlass-ws",
    "windlass-websocket",
    "windlass-tungstenite",
    "windlass-task",
];

/// A library without unsafe code, on the reactor's streams. Its tests and the documentation tests
/// of all libraries run under AddressSanitizer before a release only: they reach no unsafe code
/// that the tests of [`SANITIZED`] do not reach, and take half of the time.
const SANITIZED_LONG: &[&str] = &["windlass-server"];

/// Test programs that compare the compiler's messages word for word. They need the pinned compiler
/// without special flags.
const COMPILER_TESTS: &[&str] = &["compile_fail"];

/// The programs for Miri, which interprets them about a thousand times slower. Programs with long
/// loops are left out or are in [`MIRI_LONG`]. So are modules without unsafe code: they take a
/// quarter of the time, and the stage `test` finds what Miri would find there.
const MIRI: &[MiriRun] = &[
    MiriRun { package: "windlass-flow", targets: &["--lib"], filter: &[] },
    MiriRun {
        package: "windlass-flow",
        targets: &["--test", "mailbox"],
        filter: &["--skip", MODEL_OF_THE_MAILBOX],
    },
    // Masks and blocks of UTF-8 have the only unsafe code.
    MiriRun {
        package: "windlass-ws",
        targets: &["--lib"],
        filter: &["protocol::mask::", "protocol::utf8"],
    },
    MiriRun {
        package: "windlass",
        targets: &["--lib"],
        filter: &[
            "--skip",
            "stream::status::",
            "--skip",
            "time::wheel::",
            "--skip",
            "util::arena::",
            "--skip",
            "util::generations::",
        ],
    },
    MiriRun { package: "windlass", targets: &["--test", "rules"], filter: &[] },
    // The tests of the budget poll the same tasks as the others, hundreds of times.
    MiriRun {
        package: "windlass-task",
        targets: &["--lib", "--test", "suite"],
        filter: &["--skip", "budget::"],
    },
    // Text that is not checked twice.
    MiriRun { package: "windlass-tungstenite", targets: &["--lib"], filter: &[] },
    // What the halves share between two tasks.
    MiriRun { package: "windlass-websocket", targets: &["--test", "suite"], filter: &["halves::"] },
];

/// Programs with a test that takes a minute or more under Miri: random programs against models.
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
    /// The arguments that select tests. A single test that Miri cannot run should have
    /// `#[cfg_attr(miri, ignore = "why")]` instead, because that is counted as skipped.
    filter: &'static [&'static str],
}

/// The stage that runs the README's test command.
pub(super) const NEWCOMERS: &str = "test";

/// Long stages. They run with `--full`, before a release, or by name.
pub(super) const LONG: &[&str] = &[
    "miri-long",
    simulator::WHOLE,
    "autobahn-whole",
    "bench-whole",
    "aws-lc",
    "asan-whole",
    "book",
    "coverage",
    patched::STAGE,
    planted::STAGE,
    targets::MUSL_STAGE,
    targets::AARCH64_STAGE,
];

/// Stages that are a part of a long stage. `--full` leaves them out.
pub(super) const SHORT: &[&str] = &["autobahn", "bench"];

/// The lanes: compilation, which uses all processors, and the interpreter, which uses one.
const COMPILER: Lane = Lane { name: "compiler", nice: 19 };
/// Not the lowest priority, because interpreted tests wait for each other with time limits.
const INTERPRETER: Lane = Lane { name: "interpreter", nice: 5 };

/// Target directories of stages that build at the same time. Builds with special flags share
/// nothing with the rest, so separate directories cost no time.
const LINTS_TARGET: &str = "ci-lints";
/// The tools for C of the stages in [`LINTS_TARGET`], which link nothing: true(1) succeeds without
/// any output. The C code of ring and aws-lc-rs takes half a minute for each compiler of Rust.
const NO_C: &[&str] = &["CC", "AR"];
const LOOM_TARGET: &str = "ci-loom";
const ASAN_TARGET: &str = "ci-asan";

/// Flags that make the crate `windlass` wait as on a kernel without `epoll_pwait2`, try rings that
/// lack one feature after another, and arm the alarm of the timers in each turn. The builds for
/// AddressSanitizer and Miri have them. A build of its own would compile and run the reactor's
/// tests once more.
const FALLBACK: &str =
    "--cfg windlass_force_epoll_wait --cfg windlass_force_ring --cfg windlass_force_alarm";

/// All stages: first those in front, in their order, then those of each lane.
///
/// # Errors
///
/// If cargo rejects the manifests.
pub(super) fn all(root: &Path) -> Result<Vec<Stage>> {
    let packages = metadata::workspace(root)?;
    let mut stages = Vec::new();
    let mut checks = check::stages(root)?;
    let mut take = |name: &str, stages: &mut Vec<Stage>| {
        let place = checks.iter().position(|stage| stage.name == name);
        stages.push(checks.remove(place.expect("`all_checks_are_run` checks that it exists")));
    };
    ["fmt", "tidy", "arrows"].into_iter().for_each(|name| take(name, &mut stages));
    stages.push(readme_tests(root));
    take("test-tools", &mut stages);
    stages.push(backends::tests(&packages));
    stages.push(no_ring());
    stages.extend([simulator::short(), simulator::whole(root)]);
    stages.push(smoke::serve(root));
    stages.extend([autobahn("autobahn", true), autobahn("autobahn-whole", false)]);
    stages.push(clients());
    stages.push(compat::stage(root));
    stages.push(aws_lc());
    stages.extend([patched::stage(root), planted::stage(root)]);
    stages.extend([book(root), coverage(root)]);
    stages.extend([targets::musl(&packages), targets::aarch64(&packages)]);
    // The stage `counts` builds windlass with fat LTO, and `bench-whole` all programs.
    stages.push(smoke::bench("bench", &["--peer", "mio", "--no-lto"], root));
    stages.push(smoke::bench("bench-whole", &[], root));
    // After the benchmark, whose programs it runs.
    stages.push(counts::stage(root));
    stages.extend([asan(&packages), asan_whole(&packages)]);
    stages.push(builds(&packages).in_lane(COMPILER));
    // First in its lane, so that it ends before `test-tools` builds the program with another
    // feature in the same place.
    stages.push(soak().in_lane(INTERPRETER));
    stages.extend(checks.into_iter().map(|stage| {
        // The models are programs that run long and compile fast, as Miri's are.
        match stage.name == "loom" {
            true => stage.with_target(LOOM_TARGET).in_lane(INTERPRETER),
            false => {
                let stage = NO_C.iter().fold(stage, |stage, tool| stage.with_env(tool, "true"));
                stage.with_target(LINTS_TARGET).in_lane(COMPILER)
            }
        }
    }));
    for (name, runs) in [("miri", MIRI), ("miri-long", MIRI_LONG)] {
        let stage = miri(name, runs, &packages).unwrap_or_else(|reason| Stage::skip(name, reason));
        stages.push(stage.in_lane(INTERPRETER));
    }
    Ok(stages)
}

/// Compiles the programs of later stages, while earlier stages wait. A stage whose program is not
/// compiled yet waits for it.
fn builds(packages: &[Package]) -> Stage {
    let ahead = |command: Cmd| command.args(["--no-run"]);
    let release = [
        "build --release --bin windlass",
        "build --release -p conformance",
        "build --release -p windlass-bench",
    ];
    let mut commands: Vec<Cmd> = release.map(|arguments| Cmd::cargo(arguments.split(' '))).into();
    commands.extend(sanitized_tests(packages).map(ahead));
    Stage::commands("builds", commands)
}

/// The README's test command. It goes on after a failure, so that a run shows all of them.
fn readme_tests(root: &Path) -> Stage {
    let text = std::fs::read_to_string(root.join("README.md")).unwrap_or_default();
    let command = |words: &Vec<&str>| {
        Cmd::new(words[0]).args(words[1..].iter().copied()).args(["--no-fail-fast"])
    };
    match readme::test_commands(&text) {
        Ok(commands) => Stage::tests(NEWCOMERS, commands.iter().map(command).collect()),
        Err(reason) => Stage::inspect(NEWCOMERS, move || Ok(vec![reason])),
    }
}

/// Test programs of a package, except those that pin the compiler's messages or need a feature.
fn test_programs(package: &Package) -> impl Iterator<Item = String> {
    let is_wanted = |name: &str| {
        !COMPILER_TESTS.contains(&name) && !simulator::TESTS.contains(&(&*package.name, name))
    };
    let targets = package
        .targets
        .iter()
        .filter(move |target| target.kind == "test" && is_wanted(&target.name));
    targets.map(|target| target.name.clone())
}

/// `command` for these packages. One call serves all of them. Otherwise the features of shared
/// dependencies would differ, and most libraries would be compiled once for each package.
pub(super) fn of(packages: &[&Package], command: Cmd) -> Cmd {
    packages.iter().fold(command, |command, package| command.args(["-p", &package.name]))
}

/// `command` for the libraries and test programs of these packages, except programs that pin the
/// compiler's messages.
pub(super) fn tests_of(packages: &[&Package], command: Cmd) -> Cmd {
    let targets: BTreeSet<String> =
        packages.iter().flat_map(|package| test_programs(package)).collect();
    let command = of(packages, command).args(["--no-fail-fast", "--lib"]);
    targets.iter().fold(command, |command, target| command.args(["--test", target]))
}

/// The programs that run each test on each backend, without the feature `uring`. They are in the
/// target directory of the stage `test`, and share its dependencies.
fn no_ring() -> Stage {
    let test = ["test", "-p", "windlass", "--no-default-features", "--no-fail-fast"];
    let programs = ["--lib", "--test", "rules", "--test", "suite"];
    Stage::tests("no-ring", vec![Cmd::cargo(test).args(programs)])
}

/// AddressSanitizer and LeakSanitizer over the tests of the libraries with unsafe code, in the
/// build for old kernels.
fn asan(packages: &[Package]) -> Stage {
    match sanitized_tests(packages) {
        Ok(tests) => Stage::tests("asan", vec![tests]),
        Err(reason) => Stage::skip("asan", reason),
    }
}

fn sanitized_tests(packages: &[Package]) -> Result<Cmd, String> {
    Ok(tests_of(&select(packages, &[SANITIZED]), sanitized(FALLBACK)?))
}

/// The same over all tests of all libraries, in the build for this kernel.
fn asan_whole(packages: &[Package]) -> Stage {
    let packages = select(packages, &[SANITIZED, SANITIZED_LONG]);
    match sanitized("") {
        Ok(command) => {
            let documents = of(&packages, command.clone()).args(["--doc"]);
            Stage::tests("asan-whole", vec![tests_of(&packages, command), documents])
        }
        Err(reason) => Stage::skip("asan-whole", reason),
    }
}

/// The packages with these names, in the order of the workspace.
pub(super) fn select<'a>(packages: &'a [Package], names: &[&[&str]]) -> Vec<&'a Package> {
    let is_wanted = |package: &&Package| names.iter().any(|names| names.contains(&&*package.name));
    packages.iter().filter(is_wanted).collect()
}

/// A cargo command that instruments all code except procedural macros, with these flags. The
/// explicit target excludes those macros.
fn sanitized(flags: &str) -> Result<Cmd, String> {
    let nightly = toolchain::find("nightly")?;
    let flags = format!("-Zsanitizer=address {flags}");
    let command = Cmd::cargo([&*format!("+{nightly}"), "test", "--target", &*toolchain::host()?]);
    // For tests that measure memory: the sanitizer's own memory is resident too.
    let command = command.env("WINDLASS_SANITIZED", "1");
    // Each allocation and each free stores this many callers, 30 by default. Remove it to see more
    // of them in a report.
    let command = command.env("ASAN_OPTIONS", "malloc_context_size=5");
    Ok(command.env("RUSTFLAGS", &flags).env("RUSTDOCFLAGS", &flags).target(ASAN_TARGET))
}

/// Miri on the core's tests. Miri supports epoll but not `epoll_pwait2`. The exposed addresses need
/// permissive provenance.
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
            // Some tests panic on purpose, and Miri takes minutes to symbolise one backtrace.
            .env("RUST_BACKTRACE", "0");
        if !run.filter.is_empty() {
            command = command.args(["--"]).args(run.filter.iter().copied());
        }
        commands.push(command);
    }
    Ok(Stage::tests(name, commands))
}

/// A minute of load, after which all figures are those of the clients, and beside it a minute of
/// reloads and hand-overs. They leave most of the processors' time to other stages. Then random
/// programs, others in each run and several times as many as in the stage `test`.
fn soak() -> Stage {
    // Without `-p`: then the features of dependencies are those of the stage `test`, and nothing is
    // compiled again.
    let test = |programs: &[&str]| {
        let test = Cmd::cargo(["test", "--no-fail-fast"]);
        programs.iter().fold(test, |test, program| test.args(["--test", program])).args(["--"])
    };
    let minutes = ["soak_of_a_minute", "operation_of_a_minute"];
    let minute = test(&["soak"]).args(["--ignored", "--exact"]).args(minutes);
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let random = test(&["counter", "deflate", "engine", "handshake", "mailbox", "model"])
        .args(["random", "arrive", "any_bytes", "agree", "damaged"])
        .env("PROPTEST_RNG_SEED", &seconds.to_string())
        .env("WINDLASS_TEST_CASES_FACTOR", "4");
    Stage::tests("soak", vec![minute, random])
}

/// The tests of TLS with the cryptography of aws-lc-rs, which takes a minute to compile.
fn aws_lc() -> Stage {
    let test = ["test", "-p", "windlass-tls", "--no-default-features"];
    let features = ["--features", "aws-lc-rs,uring"];
    Stage::tests("aws-lc", vec![Cmd::cargo(test).args(features).args(["--lib", "--test", "tls"])])
}

/// The book of `docs`. A page that the contents name and that is missing is created by mdbook, and
/// `tidy` finds it before.
fn book(root: &Path) -> Stage {
    if let Err(reason) = toolchain::need_program("mdbook") {
        return Stage::skip("book", reason);
    }
    let folder = repository::target(root).join("book");
    let build = Cmd::new("mdbook").args(["build", "docs", "--dest-dir"]);
    Stage::commands("book", vec![build.args([&*folder.to_string_lossy()])])
}

/// Files that are no part of a library: programs that test, measure and show.
const NOT_COVERED: &str = "/(bench|compat/[^/]*/tests|conformance|examples|fuzz|xtask)/\
                           |/crates/(testkit|[^/]*/(tests|examples|benches))/";

/// The tests that run under a filter of system calls.
const UNDER_FILTERS: &str = "needs_no_other_calls";

/// The lines of the libraries and of the program that the stage `test` runs. The summary is a file
/// that `windlass-bench record --coverage` notes.
fn coverage(root: &Path) -> Stage {
    let tools = || {
        toolchain::need_subcommand("llvm-cov")?;
        toolchain::need_component(&toolchain::find("stable")?, "llvm-tools")
    };
    if let Err(reason) = tools() {
        return Stage::skip("coverage", reason);
    }
    let file = repository::target(root).join("coverage.json");
    let report = ["llvm-cov", "report", "--ignore-filename-regex", NOT_COVERED, "--summary-only"];
    // A process that a test kills may leave half a file.
    let report = Cmd::cargo(report).args(["--failure-mode", "all"]);
    let json = ["--json", "--output-path", &*file.to_string_lossy()];
    let commands = vec![
        // What writes the counts down makes calls that the killing filters forbid.
        Cmd::cargo(["llvm-cov", "--no-report", "--no-fail-fast", "--", "--skip", UNDER_FILTERS]),
        report.clone().args(json),
        report,
    ];
    Stage::commands("coverage", commands)
}

/// Whether the run's program exists yet. `.ci/expected-suites` ensures that it does not disappear.
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
            is_tested: true,
        };
        let mut targets = vec![target(name, "lib"), target("b", "bench")];
        targets.extend(tests.iter().map(|name| target(name, "test")));
        Package { name: name.to_owned(), targets, ..Package::default() }
    }

    #[test]
    fn one_call_tests_all_packages_and_leaves_out_the_compilers_messages() {
        let packages = [
            package("windlass", &["rules", "suite", "compile_fail", "sim"]),
            package("w-server", &["suite"]),
        ];
        let packages: Vec<&Package> = packages.iter().collect();
        let expected =
            "cargo test -p windlass -p w-server --no-fail-fast --lib --test rules --test suite";
        assert_eq!(tests_of(&packages, Cmd::cargo(["test"])).to_string(), expected);
        assert!(test_programs(&package("w-server", &["sim"])).eq(["sim"]));
    }

    /// Cargo builds no test programs of them, so tests in them would not run.
    #[test]
    fn programs_that_are_not_tested_have_no_tests() {
        let root = crate::repository::root();
        let packages = metadata::workspace(&root).expect("the workspace is readable");
        let bins = packages.iter().flat_map(|package| &package.targets);
        let bins: Vec<&Target> = bins.filter(|bin| bin.kind == "bin" && !bin.is_tested).collect();
        assert!(bins.len() >= 15, "{bins:?}");
        for bin in bins {
            let mut files = vec![root.join(&bin.path)];
            let folder = root.join("bench/subject/src/bin").join(&bin.name);
            files.extend(
                std::fs::read_dir(folder).into_iter().flatten().flatten().map(|f| f.path()),
            );
            for file in files.iter().filter(|file| file.is_file()) {
                let text = std::fs::read_to_string(file).expect("it is readable");
                assert!(!text.contains("#[test]"), "{}: remove `test = false`", file.display());
            }
        }
    }

    #[test]
    fn miri_runs_existing_programs() {
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
    fn stages_with_tests_are_in_front_except_interpreters_and_models() {
        let tests = |stage: &&Stage| {
            matches!(stage.work, Work::Tests(_) | Work::Parts(_) | Work::Counted(_))
        };
        let stages = stages();
        let beside: Vec<&str> = stages
            .iter()
            .filter(tests)
            .filter(|one| one.lane.is_some())
            .map(|one| one.name)
            .collect();
        let allowed = ["loom", "miri", "miri-long", "soak"];
        assert!(beside.iter().all(|name| allowed.contains(name)), "{beside:?}");
    }
}
