//! The stages of a whole run, in their order, and the tables they are made of.

use std::path::Path;

use anyhow::Result;

use super::{backends, readme, smoke};
use crate::check;
use crate::command::Cmd;
use crate::metadata::{self, Package};
use crate::stage::{Part, Stage};
use crate::toolchain;

/// Packages whose tests run under AddressSanitizer: every library. A crate that does not exist yet is
/// passed over.
const SANITIZED: &[&str] = &["windlass-flow", "windlass", "windlass-ws", "windlass-server", "windlass-task"];

/// Test programs left out wherever the compiler or its flags are not the pinned ones: they compare the
/// compiler's messages word for word.
const COMPILER_TESTS: &[&str] = &["compile_fail"];

/// What Miri runs. It interprets, a thousand times slower than the machine, so programs whose loops are long
/// are left out and parts can be skipped by name.
const MIRI: &[MiriRun] = &[
    MiriRun { package: "windlass-flow", targets: &["--lib"], skip: &[] },
    MiriRun { package: "windlass-flow", targets: &["--test", "mailbox"], skip: &[] },
    MiriRun { package: "windlass-ws", targets: &["--lib"], skip: &[] },
    MiriRun { package: "windlass", targets: &["--lib"], skip: &[] },
    MiriRun { package: "windlass", targets: &["--test", "rules"], skip: &[] },
    MiriRun { package: "windlass", targets: &["--test", "model"], skip: &[] },
];

struct MiriRun {
    package: &'static str,
    targets: &'static [&'static str],
    /// Parts of names of tests to leave out. A single test is better marked with
    /// `#[cfg_attr(miri, ignore = "why")]`, which is counted as skipped.
    skip: &'static [&'static str],
}

/// Flags under which the crate `windlass` waits as on a kernel without `epoll_pwait2`, and tries rings that lack one thing after another.
const FALLBACK: &str = "--cfg windlass_force_epoll_wait --cfg windlass_force_ring";

/// Every stage.
///
/// # Errors
///
/// When cargo refuses the manifests.
pub(super) fn all(root: &Path) -> Result<Vec<Stage>> {
    let packages = metadata::workspace(root)?;
    let mut stages = vec![readme_tests(root)];
    stages.extend(check::stages(root)?);
    stages.push(fallback(&packages));
    stages.push(backends::tests(&packages));
    stages.push(asan(&packages).unwrap_or_else(|reason| Stage::skip("asan", reason)));
    stages.push(miri(&packages).unwrap_or_else(|reason| Stage::skip("miri", reason)));
    stages.push(smoke::serve(root));
    stages.push(autobahn());
    stages.push(clients());
    stages.push(smoke::bench(root));
    Ok(stages)
}

/// The README's own test command, whatever it is.
fn readme_tests(root: &Path) -> Stage {
    let text = std::fs::read_to_string(root.join("README.md")).unwrap_or_default();
    match readme::test_commands(&text) {
        Ok(commands) => Stage::tests(
            "test",
            commands.iter().map(|words| Cmd::new(words[0]).args(words[1..].iter().copied())).collect(),
        ),
        Err(reason) => Stage::inspect("test", move || Ok(vec![reason])),
    }
}

/// Library and test programs of a package as arguments, those that pin the compiler's messages left out.
fn test_targets(package: &Package) -> Vec<String> {
    let mut arguments = Vec::new();
    for target in &package.targets {
        match target.kind.as_str() {
            "lib" => arguments.push("--lib".to_owned()),
            "test" if !COMPILER_TESTS.contains(&target.name.as_str()) => {
                arguments.extend(["--test".to_owned(), target.name.clone()]);
            }
            _ => {}
        }
    }
    arguments
}

/// `cargo [+toolchain] test` of one package, without what pins the compiler's messages.
fn test_of(package: &Package, before: &[&str]) -> Cmd {
    Cmd::cargo(before.iter().copied())
        .args(["-p", &package.name, "--no-fail-fast"])
        .args(test_targets(package).iter().map(String::as_str))
}

fn fallback(packages: &[Package]) -> Stage {
    let commands = packages
        .iter()
        .filter(|package| package.name == "windlass")
        .map(|package| test_of(package, &["test"]).env("RUSTFLAGS", FALLBACK))
        .collect();
    Stage::tests("fallback", commands)
}

/// AddressSanitizer and LeakSanitizer over all tests of the libraries. Procedural macros must not be
/// instrumented, hence the explicit target.
fn asan(packages: &[Package]) -> Result<Stage, String> {
    let nightly = toolchain::find("nightly")?;
    let host = toolchain::host()?;
    let toolchain = format!("+{nightly}");
    let before = [&*toolchain, "test", "--target", &*host];
    let sanitize = |cmd: Cmd| {
        let flag = "-Zsanitizer=address";
        cmd.env("RUSTFLAGS", flag).env("RUSTDOCFLAGS", flag)
    };
    let mut commands = Vec::new();
    for package in packages {
        if !SANITIZED.contains(&package.name.as_str()) {
            continue;
        }
        commands.push(sanitize(test_of(package, &before)));
        let documents = Cmd::cargo(before).args(["-p", &package.name, "--doc"]);
        commands.push(sanitize(documents));
    }
    Ok(Stage::tests("asan", commands))
}

/// Miri over the core's tests. It knows epoll but not `epoll_pwait2`, and the exposed addresses need
/// permissive provenance.
fn miri(packages: &[Package]) -> Result<Stage, String> {
    let nightly = toolchain::find("nightly")?;
    toolchain::need_component(&nightly, "miri")?;
    toolchain::need_component(&nightly, "rust-src")?;
    let toolchain = format!("+{nightly}");
    let mut commands = vec![Cmd::cargo([&*toolchain, "miri", "setup"])];
    for run in MIRI.iter().filter(|run| exists(run, packages)) {
        let mut command = Cmd::cargo([&*toolchain, "miri", "test", "-p", run.package])
            .args(["--no-fail-fast"])
            .args(run.targets.iter().copied())
            .env("MIRIFLAGS", "-Zmiri-permissive-provenance -Zmiri-disable-isolation")
            .env("RUSTFLAGS", FALLBACK)
            // Tests panic on purpose, and Miri takes minutes to find the names of one panic's frames.
            .env("RUST_BACKTRACE", "0");
        if !run.skip.is_empty() {
            command = command.args(["--"]);
            for part in run.skip {
                command = command.args(["--skip", part]);
            }
        }
        commands.push(command);
    }
    Ok(Stage::tests("miri", commands))
}

/// The Autobahn TestSuite against the server on each backend, and the client, which has none, against it: what is short, and a sample of
/// the rest. Cases count as tests. Optimised, since the sample has volume.
fn autobahn() -> Stage {
    let run = |role: &[&str]| vec![conformance("autobahn").args(["--quick"]).args(role.iter().copied())];
    let mut parts = backends::parts(|backend| run(&["--backend", backend]));
    parts.push(Part { name: "", commands: Ok(run(&["--client"])) });
    Stage::parts("autobahn", parts)
}

/// Other people's clients against the server on each backend. What cannot be installed here is counted as ignored.
fn clients() -> Stage {
    Stage::parts("clients", backends::parts(|backend| vec![conformance("clients").args(["--backend", backend])]))
}

fn conformance(suite: &str) -> Cmd {
    Cmd::cargo(["run", "--release", "-p", "conformance", "--", suite])
}

/// Whether the run's program is there yet. That it stays there is what `.ci/expected-suites` is for.
fn exists(run: &MiriRun, packages: &[Package]) -> bool {
    let wanted = run.targets.last().copied().unwrap_or_default();
    packages.iter().filter(|package| package.name == run.package).flat_map(|package| &package.targets).any(|target| {
        match wanted {
            "--lib" => target.kind == "lib",
            name => target.kind == "test" && target.name == name,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::Target;

    fn package() -> Package {
        let target =
            |name: &str, kind: &str| Target { name: name.to_owned(), kind: kind.to_owned(), path: String::new() };
        Package {
            name: "windlass".to_owned(),
            rust_version: None,
            targets: vec![
                target("windlass", "lib"),
                target("rules", "test"),
                target("model", "test"),
                target("compile_fail", "test"),
                target("b", "bench"),
            ],
            dependencies: Vec::new(),
        }
    }

    #[test]
    fn tests_of_the_compilers_messages_are_left_out() {
        assert_eq!(test_targets(&package()), ["--lib", "--test", "rules", "--test", "model"]);
    }

    #[test]
    fn miri_runs_what_exists() {
        let packages = [package()];
        assert!(MIRI.iter().filter(|run| run.package == "windlass").all(|run| exists(run, &packages)));
        let missing = MiriRun { package: "windlass", targets: &["--test", "other"], skip: &[] };
        assert!(!exists(&missing, &packages));
    }

    #[test]
    fn stages_have_names_of_their_own() {
        let stages = all(&crate::repository::root()).expect("the workspace is readable");
        let mut names: Vec<&str> = stages.iter().map(|stage| stage.name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
