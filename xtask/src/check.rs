//! `cargo xtask check`: the checks before a commit.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};

use crate::command::Cmd;
use crate::metadata::Package;
use crate::stage::{Report, Setting, Stage};
use crate::{arrows, metadata, repository, tidy, toolchain};

/// Other workspaces. Only their formatting is checked, because building them takes long.
const OTHER_WORKSPACES: &[&str] = &["bench/peers", "bench/peers-cpp", "fuzz"];

/// Sources without a workspace, or in one that `cargo xtask patched` generates.
const OTHER_FILES: &str = "compat/patch/";

/// A target that has `core` and `alloc` only. The one of x86-64 is not suitable, because it has no
/// vector registers either.
const WITHOUT_STD: &str = "aarch64-unknown-none";

/// The systems other than Linux on which the crates without I/O of their own compile.
const TARGETS: &[&str] = &[
    "x86_64-pc-windows-msvc",
    "x86_64-apple-darwin",
    "aarch64-apple-darwin",
    "x86_64-unknown-freebsd",
    WASM,
];

/// The targets of Linux on which the crates of the reactor compile, besides that of this machine.
const LINUX: &[&str] = &["x86_64-unknown-linux-musl", "aarch64-unknown-linux-gnu"];

/// It has no sockets, so async-io and clients by URL do not compile.
const WASM: &str = "wasm32-unknown-unknown";

/// Stages that `--fast` leaves out. Clippy's `incompatible_msrv` finds most of what the oldest
/// compiler finds. The other stages concern changes of the manifests, of the tools, and of
/// `windlass-flow`. The rest takes less than five minutes on two cores.
const SLOW: &[&str] = &["msrv", "targets", "package", "test-tools", "loom"];

/// Runs the stages, or those in `only`. Returns whether all passed.
///
/// # Errors
///
/// If the workspace cannot be read, or `only` names a stage that does not exist.
pub(crate) fn run(fast: bool, only: &[String]) -> Result<bool> {
    let root = repository::root();
    let mut all = stages(&root)?;
    all.push(Stage::tests("test", vec![Cmd::cargo(["test"])]));
    let mut report = Report::new(Setting { root, ..Setting::default() });
    for stage in select(all, only)? {
        if fast && SLOW.contains(&stage.name) {
            report.run(Stage::skip(stage.name, "left out by --fast"));
        } else {
            report.run(stage);
        }
    }
    report.print_summary();
    Ok(report.succeeded())
}

/// Selects the stages named in `only`, or all of them.
///
/// # Errors
///
/// If a name is unknown. The message lists the known ones.
pub(crate) fn select(stages: Vec<Stage>, only: &[String]) -> Result<Vec<Stage>> {
    let names: Vec<&str> = stages.iter().map(|stage| stage.name).collect();
    if let Some(unknown) = only.iter().find(|name| !names.contains(&name.as_str())) {
        bail!("no stage {unknown}; there are {}", names.join(", "));
    }
    let wanted = |name: &str| only.is_empty() || only.iter().any(|other| other == name);
    Ok(stages.into_iter().filter(|stage| wanted(stage.name)).collect())
}

/// All stages except the tests of the default members. `ci` runs those by the README's command.
///
/// # Errors
///
/// If cargo rejects the manifests.
pub(crate) fn stages(root: &Path) -> Result<Vec<Stage>> {
    let (tidy_root, arrows_root) = (root.to_path_buf(), root.to_path_buf());
    let clippy = [
        "clippy --workspace --all-targets --all-features -- -D warnings",
        "clippy -p windlass --no-default-features -- -D warnings",
        "clippy -p windlass-websocket --no-default-features -- -D warnings",
    ];
    let docs = |more: &[&str]| {
        Cmd::cargo(["doc", "--workspace", "--no-deps", "--all-features"])
            .args(more.iter().copied())
            .env("RUSTDOCFLAGS", "-Dwarnings")
    };
    Ok(vec![
        Stage::commands("fmt", fmt(root)?),
        Stage::inspect("tidy", move || tidy::check(&tidy_root)),
        Stage::inspect("arrows", move || arrows::check(&arrows_root)),
        Stage::commands("clippy", clippy.map(|lint| Cmd::cargo(lint.split(' '))).into()),
        // First as users see them: a link to a private item is an error. Then as developers see
        // them.
        Stage::commands("docs", vec![docs(&[]), docs(&["--document-private-items"])]),
        deny(),
        msrv(root)?,
        no_std(),
        targets(),
        package()?,
        Stage::tests("test-tools", tools(&metadata::workspace(root)?)),
        loom(),
    ])
}

/// The members that are no default members, except [`XTASK`].
const TOOLS: &[&str] = &[
    "windlass-bench",
    "windlass-bench-driver",
    "windlass-bench-report",
    "windlass-bench-subject",
    "windlass-bench-tokio-server",
    "windlass-cluster",
    "conformance",
];

/// Tested by a call of its own, which uses what the build of this program has compiled. With the
/// others, its features of `proc-macro2` would have most of their dependencies compiled again.
const XTASK: &str = "xtask";

/// A program with a feature that a plain build lacks: its package, the feature and its test.
const WITH_CLUSTER: (&str, &str, &str) = ("windlass-cli", "windlass-cli/cluster", "cluster");

/// The tests of [`TOOLS`] and of [`WITH_CLUSTER`], and of [`XTASK`]. The first two calls name the
/// same packages. Otherwise the features of shared dependencies would differ, and they would be
/// compiled once for each call.
fn tools(packages: &[Package]) -> Vec<Cmd> {
    let (program, feature, test) = WITH_CLUSTER;
    let all = TOOLS
        .iter()
        .chain([&program])
        .fold(Cmd::cargo(["test"]), |command, package| command.args(["-p", *package]));
    let all = all.args(["--features", feature]);
    let targets = packages
        .iter()
        .filter(|package| TOOLS.contains(&&*package.name))
        .flat_map(|package| &package.targets);
    let named = targets.filter(|target| target.is_tested && target.kind != "lib");
    let tests = named.fold(all.clone().args(["--lib", "--test", test]), |command, target| {
        command.args([&*format!("--{}", target.kind), &target.name])
    });
    vec![tests, all.args(["--doc"]), Cmd::cargo(["test", "-p", XTASK])]
}

/// The models of `windlass-flow` and `windlass-task`: every interleaving of small programs. They
/// are optimised, because they would take too long otherwise.
///
/// One model runs at a time. loom maps and unmaps the stacks of a model's threads in each
/// execution. With two threads that do so in one process, the kernel takes three times the
/// processor time.
fn loom() -> Stage {
    let models = [
        "test -p windlass-flow --profile loom --test loom -- --test-threads=1",
        "test -p windlass-task --profile loom --lib models -- --test-threads=1",
    ];
    let command = |args: &str| Cmd::cargo(args.split(' ')).env("RUSTFLAGS", "--cfg loom");
    Stage::tests("loom", models.map(command).into())
}

fn fmt(root: &Path) -> Result<Vec<Cmd>> {
    let mut commands = vec![Cmd::cargo(["fmt", "--all", "--check"])];
    for workspace in OTHER_WORKSPACES {
        let manifest = format!("{workspace}/Cargo.toml");
        if root.join(&manifest).exists() {
            commands.push(
                Cmd::cargo(["fmt", "--all", "--check", "--manifest-path"]).args([&*manifest]),
            );
        }
    }
    let files = repository::text_files(root)?;
    commands.push(rustfmt(files.iter().map(|file| &*file.path))?);
    Ok(commands)
}

/// The check of [`OTHER_FILES`]. Without a file, rustfmt would read its input instead.
fn rustfmt<'a>(paths: impl Iterator<Item = &'a str>) -> Result<Cmd> {
    let is_other = |path: &&str| path.starts_with(OTHER_FILES) && path.ends_with(".rs");
    let others: Vec<&str> = paths.filter(is_other).collect();
    ensure!(!others.is_empty(), "there are no sources in {OTHER_FILES}");
    Ok(Cmd::new("rustfmt").args(["--check", "--edition", "2024"]).args(others))
}

/// Bans, licences and sources of all dependencies, by `deny.toml`.
fn deny() -> Stage {
    match toolchain::need_subcommand("deny") {
        Ok(()) => {
            let check = "deny --all-features check bans licenses sources";
            Stage::commands("deny", vec![Cmd::cargo(check.split(' '))])
        }
        Err(reason) => Stage::skip("deny", reason),
    }
}

/// `cargo xtask package`, as a command of its own, so that its output and time are like those of
/// other stages.
fn package() -> Result<Stage> {
    let program = std::env::current_exe()?;
    let program = program.to_str().context("the path of this program is not UTF-8")?;
    Ok(Stage::commands("package", vec![Cmd::new(program).args(["package"])]))
}

/// Builds `windlass-ws` for a target without std.
fn no_std() -> Stage {
    if let Err(reason) = toolchain::need_target(WITHOUT_STD) {
        return Stage::skip("no-std", reason);
    }
    let build = |features: &[&str]| {
        Cmd::cargo([
            "build",
            "-p",
            "windlass-ws",
            "--lib",
            "--no-default-features",
            "--target",
            WITHOUT_STD,
        ])
        .args(features.iter().copied())
    };
    Stage::commands("no-std", vec![build(&[]), build(&["--features", "deflate"])])
}

/// Checks `windlass-ws` and `windlass-websocket` for [`TARGETS`]: without features, with
/// compression, and with everything that compiles there. Checks the crates of the reactor without
/// code in C for [`LINUX`]. A target that is not installed is left out, with the reason.
fn targets() -> Stage {
    let check = |targets: &[&str], features: &[&str]| {
        let check = ["check", "-p", "windlass-ws", "-p", "windlass-websocket", "--lib"];
        let check = Cmd::cargo(check).args(features.iter().copied());
        targets.iter().fold(check, |check, target| check.args(["--target", *target]))
    };
    let mut missing = Vec::new();
    let mut installed = |targets: &[&'static str]| -> Vec<&'static str> {
        let mut there = targets.to_vec();
        there.retain(|target| match toolchain::need_target(target) {
            Ok(()) => true,
            Err(reason) => {
                missing.push((*target, reason));
                false
            }
        });
        there
    };
    let (mut there, linux) = (installed(TARGETS), installed(LINUX));
    if there.is_empty() {
        return Stage::skip("targets", "no target of another system is installed");
    }
    // `hyper` and `tokio` have no sockets here: it is their traits, and the timer of tokio.
    const WITHOUT_SOCKETS: &[&str] =
        &["--features", "windlass-websocket/tokio,windlass-websocket/hyper"];
    let mut commands = vec![
        check(&there, &["--no-default-features"]),
        check(&there, &[]),
        check(&there, WITHOUT_SOCKETS),
    ];
    // The cryptography for TLS is C and assembly, which needs a compiler for the target.
    const WITHOUT_CRYPTOGRAPHY: &[&str] = &[
        "--features",
        "windlass-websocket/async-io,windlass-websocket/axum,windlass-websocket/http2,\
         windlass-websocket/webpki-roots,windlass-websocket/windlass-task",
    ];
    there.retain(|target| *target != WASM);
    if !there.is_empty() {
        commands.push(check(&there, WITHOUT_CRYPTOGRAPHY));
    }
    if !linux.is_empty() {
        let crates = "check --lib -p windlass-task -p windlass-server -p windlass-event-manager";
        let check = Cmd::cargo(crates.split(' '));
        commands.push(linux.iter().fold(check, |check, target| check.args(["--target", target])));
    }
    missing.into_iter().fold(Stage::commands("targets", commands), |stage, (target, reason)| {
        stage.leaving_out(target, reason)
    })
}

/// Compiles the libraries with their `rust-version`, if rustup has that compiler. One call serves
/// all of a version. Otherwise the features of shared dependencies would differ, and they would be
/// compiled once for each library.
fn msrv(root: &Path) -> Result<Stage> {
    const NAME: &str = "msrv";
    let mut commands = BTreeMap::<String, Cmd>::new();
    for package in metadata::workspace(root)? {
        let Some(version) = package.rust_version else { continue };
        let toolchain = match toolchain::find(&version) {
            Ok(toolchain) => format!("+{toolchain}"),
            Err(reason) => return Ok(Stage::skip(NAME, reason)),
        };
        let check = || Cmd::cargo([&*toolchain, "check", "--lib", "--all-features"]);
        let command = commands.remove(&version).unwrap_or_else(check);
        commands.insert(version, command.args(["-p", &package.name]));
    }
    Ok(Stage::commands(NAME, commands.into_values().collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slow_stage_exists() {
        let stages = stages(&repository::root()).expect("the workspace is readable");
        for name in SLOW {
            assert!(stages.iter().any(|stage| stage.name == *name), "{name}");
        }
    }

    #[test]
    fn tools_are_tested_by_two_calls_with_the_same_features_and_xtask_by_its_own() {
        let root = repository::root();
        let packages = metadata::workspace(&root).expect("the workspace is readable");
        let commands: Vec<String> = tools(&packages).iter().map(Cmd::to_string).collect();
        let common = "cargo test -p windlass-bench -p windlass-bench-driver -p \
                      windlass-bench-report -p windlass-bench-subject -p \
                      windlass-bench-tokio-server -p windlass-cluster -p conformance -p \
                      windlass-cli \
                      --features windlass-cli/cluster";
        let rest = |command: &str| command.strip_prefix(common).map(str::to_owned);
        assert_eq!(rest(&commands[1]).as_deref(), Some(" --doc"));
        let tests = rest(&commands[0]).expect("the same packages and features");
        for program in
            ["--lib", "--test cluster", "--test nats", "--bin conformance", "--bin bench-client"]
        {
            assert!(format!("{tests} ").contains(&format!(" {program} ")), "{program}: {tests}");
        }
        assert!(!tests.contains("bench-raw"), "{tests}");
        assert_eq!(commands[2..], ["cargo test -p xtask"]);
    }

    #[test]
    fn every_member_is_tested() {
        let root = repository::root();
        let manifest = std::fs::read_to_string(root.join("Cargo.toml")).expect("it is there");
        let defaults = manifest.split_once("default-members = [").expect("there are some").1;
        let defaults = defaults.split_once(']').expect("the list ends").0;
        for package in metadata::workspace(&root).expect("the workspace is readable") {
            let is_default = defaults.contains(&format!("\"{}\"", package.folder));
            let is_tool = package.name == XTASK || TOOLS.contains(&&*package.name);
            assert!(is_default != is_tool, "{}", package.name);
        }
    }

    #[test]
    fn sources_outside_of_workspaces_are_formatted_and_there_are_some() {
        let root = repository::root();
        let commands = fmt(&root).expect("the repository is readable");
        let last = commands.last().expect("there are some").to_string();
        assert!(last.starts_with("rustfmt --check --edition 2024 compat/patch/"), "{last}");
        assert!(rustfmt(["compat/patch/a/Cargo.toml", "xtask/src/main.rs"].into_iter()).is_err());
        assert!(fmt(&root.join("no-such-folder")).is_err());
    }

    #[test]
    fn stages_are_selected_by_name() {
        let stages = || vec![Stage::skip("a", ""), Stage::skip("b", "")];
        let all = select(stages(), &[]).expect("both");
        assert_eq!(all.len(), 2);
        let one = select(stages(), &["b".to_owned()]).expect("it exists");
        assert_eq!(one[0].name, "b");
        let error = select(stages(), &["c".to_owned()]).expect_err("there is none");
        assert!(error.to_string().contains("a, b"));
    }
}
