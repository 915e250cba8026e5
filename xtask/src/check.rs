//! `cargo xtask check`: what must hold before a commit.

use std::path::Path;

use anyhow::{Result, bail};

use crate::command::Cmd;
use crate::metadata::{self, Package};
use crate::stage::{Report, Setting, Stage};
use crate::{arrows, repository, tidy, toolchain};

/// Workspaces of their own, whose code is formatted and nothing else: building them is heavy.
const OTHER_WORKSPACES: &[&str] = &["bench/peers", "bench/peers-cpp", "fuzz"];

/// A target that has `core` and `alloc` and nothing else. Not the one of x86-64: that has no vector
/// registers either.
const WITHOUT_STD: &str = "aarch64-unknown-none";

/// Stages that `--fast` leaves out. The oldest compiler rarely finds what clippy's
/// `incompatible_msrv` has not, the tools' own tests matter to those who change the tools, and the
/// models to those who change `windlass-flow`; the rest stays under five minutes on two cores.
const SLOW: &[&str] = &["msrv", "package", "test-tools", "loom"];

/// Runs the stages; `only` restricts them. Returns whether all passed.
///
/// # Errors
///
/// When the workspace cannot be read or `only` names a stage that does not exist.
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

/// The stages called `only`, or all of them.
///
/// # Errors
///
/// When a name is unknown; the message lists the known ones.
pub(crate) fn select(stages: Vec<Stage>, only: &[String]) -> Result<Vec<Stage>> {
    let names: Vec<&str> = stages.iter().map(|stage| stage.name).collect();
    if let Some(unknown) = only.iter().find(|name| !names.contains(&name.as_str())) {
        bail!("no stage {unknown}; there are {}", names.join(", "));
    }
    let wanted = |name: &str| only.is_empty() || only.iter().any(|other| other == name);
    Ok(stages.into_iter().filter(|stage| wanted(stage.name)).collect())
}

/// Every stage but the tests of the default members, which `ci` runs by the README's command.
///
/// # Errors
///
/// When cargo refuses the manifests.
pub(crate) fn stages(root: &Path) -> Result<Vec<Stage>> {
    let (tidy_root, arrows_root) = (root.to_path_buf(), root.to_path_buf());
    let clippy = "clippy --workspace --all-targets --all-features -- -D warnings";
    let docs = |more: &[&str]| {
        Cmd::cargo(["doc", "--workspace", "--no-deps", "--all-features"])
            .args(more.iter().copied())
            .env("RUSTDOCFLAGS", "-Dwarnings")
    };
    let tools = "test -p windlass-bench -p windlass-bench-driver -p windlass-bench-subject \
                 -p conformance -p xtask";
    Ok(vec![
        Stage::commands("fmt", fmt(root)),
        Stage::inspect("tidy", move || tidy::check(&tidy_root)),
        Stage::inspect("arrows", move || arrows::check(&arrows_root)),
        Stage::commands("clippy", vec![Cmd::cargo(clippy.split(' '))]),
        // As users see them, where a link to something private is broken, and as developers do.
        Stage::commands("docs", vec![docs(&[]), docs(&["--document-private-items"])]),
        deny(),
        msrv(root)?,
        no_std(),
        package(root)?,
        Stage::tests("test-tools", vec![Cmd::cargo(tools.split(' '))]),
        loom(),
    ])
}

/// The models: every interleaving of small programs, so optimised, or they would take too long.
fn loom() -> Stage {
    let models = "test -p windlass-flow --release --test loom";
    Stage::tests("loom", vec![Cmd::cargo(models.split(' ')).env("RUSTFLAGS", "--cfg loom")])
}

fn fmt(root: &Path) -> Vec<Cmd> {
    let mut commands = vec![Cmd::cargo(["fmt", "--all", "--check"])];
    for workspace in OTHER_WORKSPACES {
        let manifest = format!("{workspace}/Cargo.toml");
        if root.join(&manifest).exists() {
            commands.push(
                Cmd::cargo(["fmt", "--all", "--check", "--manifest-path"]).args([&*manifest]),
            );
        }
    }
    commands
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

/// Packs every crate that can be published, and builds each library from its package. The program
/// has no dependent, and building it again would take most of the time.
fn package(root: &Path) -> Result<Stage> {
    let packages: Vec<_> =
        metadata::workspace(root)?.into_iter().filter(|package| package.is_published).collect();
    let pack = |is_wanted: fn(&Package) -> bool| {
        // The tree is dirty where `check` runs before a commit.
        let command = Cmd::cargo(["package", "--allow-dirty"]);
        let wanted = packages.iter().filter(|package| is_wanted(package));
        wanted.fold(command, |command, package| command.args(["-p", &package.name]))
    };
    let all = pack(|_| true).args(["--no-verify"]);
    Ok(Stage::commands("package", vec![all, pack(Package::is_library)]))
}

/// Builds what promises to need no std for a target that has none.
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

/// Builds every library that promises an oldest compiler with that compiler, where rustup has it.
fn msrv(root: &Path) -> Result<Stage> {
    let mut commands = Vec::new();
    for package in metadata::workspace(root)? {
        let Some(version) = &package.rust_version else {
            continue;
        };
        match toolchain::find(version) {
            Ok(toolchain) => commands.push(Cmd::cargo([
                &*format!("+{toolchain}"),
                "check",
                "-p",
                &package.name,
                "--lib",
                "--all-features",
            ])),
            Err(reason) => return Ok(Stage::skip("msrv", reason)),
        }
    }
    Ok(Stage::commands("msrv", commands))
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
