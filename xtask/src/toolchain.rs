//! Finds toolchains, components and targets. The checks install none of them; `.ci/install` does.

use std::process::Command;

/// The full name of the installed toolchain for `wanted` (`nightly`, `1.85.0`).
///
/// # Errors
///
/// The reason why it is missing, as the text of a skipped stage.
pub(crate) fn find(wanted: &str) -> Result<String, String> {
    let list = rustup(&["toolchain", "list"])?;
    pick(&list, wanted).ok_or_else(|| format!("toolchain {wanted} is not installed"))
}

/// Checks that `toolchain` has `component`. The error is the reason for a skip.
pub(crate) fn need_component(toolchain: &str, component: &str) -> Result<(), String> {
    let list = rustup(&["component", "list", "--installed", "--toolchain", toolchain])?;
    if list.lines().any(|line| line.starts_with(component)) {
        Ok(())
    } else {
        Err(format!("{toolchain} has no component {component}"))
    }
}

/// Checks that the default toolchain can build for `target`. The error is the reason for a skip.
pub(crate) fn need_target(target: &str) -> Result<(), String> {
    let list = rustup(&["target", "list", "--installed"])?;
    if list.lines().any(|line| line == target) {
        Ok(())
    } else {
        Err(format!("target {target} is not installed"))
    }
}

/// Checks that cargo has the subcommand `name`. The error is the reason for a skip.
pub(crate) fn need_subcommand(name: &str) -> Result<(), String> {
    let missing = |_| format!("cargo-{name} is missing: cargo install --locked cargo-{name}");
    output("cargo", &[name, "--version"]).map(|_| ()).map_err(missing)
}

/// Checks that the program `name` is there, which cargo can install. The error is the reason for a
/// skip.
pub(crate) fn need_program(name: &str) -> Result<(), String> {
    let missing = |_| format!("{name} is missing: cargo install --locked {name}");
    output(name, &["--version"]).map(|_| ()).map_err(missing)
}

/// Checks that the program `name` of this Debian package is there. The error is the reason for a
/// skip.
pub(crate) fn need_installed(name: &str, package: &str) -> Result<(), String> {
    let missing = |_| format!("{name} is missing: apt-get install {package}");
    output(name, &["--version"]).map(|_| ()).map_err(missing)
}

/// Checks that cargo reaches the registry, by what it says about a crate there. The error is the
/// reason for a skip.
pub(crate) fn need_registry(name: &str) -> Result<(), String> {
    output("cargo", &["info", "--quiet", "--registry", "crates-io", name]).map(|_| ())
}

/// The target triple of this machine.
pub(crate) fn host() -> Result<String, String> {
    let version = output("rustc", &["-vV"])?;
    version
        .lines()
        .find_map(|line| line.strip_prefix("host: "))
        .map(str::to_owned)
        .ok_or_else(|| "rustc does not name its host".to_owned())
}

fn rustup(arguments: &[&str]) -> Result<String, String> {
    output("rustup", arguments)
}

fn output(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .map_err(|error| format!("{program} cannot be started: {error}"))?;
    if !output.status.success() {
        return Err(format!(
            "{program} {}: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        ));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// `rustup toolchain list` prints `nightly-x86_64-unknown-linux-gnu (active)`. A version without
/// its last number (`1.85`) also selects one with it.
fn pick(list: &str, wanted: &str) -> Option<String> {
    let names = || list.lines().filter_map(|line| line.split(' ').next());
    let starts = |name: &str, prefix: &str, next: char| {
        name.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with(next))
    };
    names()
        .find(|name| starts(name, wanted, '-'))
        .or_else(|| names().find(|name| starts(name, wanted, '.')))
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "stable-x86_64-unknown-linux-gnu (active, default)\n\
        nightly-x86_64-unknown-linux-gnu\n1.85.0-x86_64-unknown-linux-gnu\n";

    #[test]
    fn a_toolchain_is_found_by_channel_and_by_version() {
        let nightly = pick(LIST, "nightly");
        assert_eq!(nightly.as_deref(), Some("nightly-x86_64-unknown-linux-gnu"));
        let oldest = pick(LIST, "1.85");
        assert_eq!(oldest.as_deref(), Some("1.85.0-x86_64-unknown-linux-gnu"));
    }

    #[test]
    fn a_missing_subcommand_is_reported_with_its_install_command() {
        assert_eq!(need_subcommand("fmt"), Ok(()));
        let reason = need_subcommand("no-such-thing").expect_err("there is none");
        assert_eq!(
            reason,
            "cargo-no-such-thing is missing: cargo install --locked cargo-no-such-thing"
        );
    }

    #[test]
    fn a_missing_program_is_reported_with_its_install_command() {
        assert_eq!(need_program("cargo"), Ok(()));
        let reason = need_program("no-such-thing").expect_err("there is none");
        assert_eq!(reason, "no-such-thing is missing: cargo install --locked no-such-thing");
    }

    #[test]
    fn a_missing_package_is_reported_with_its_install_command() {
        assert_eq!(need_installed("cargo", "cargo"), Ok(()));
        let reason = need_installed("no-such-thing", "nothing").expect_err("there is none");
        assert_eq!(reason, "no-such-thing is missing: apt-get install nothing");
    }

    #[test]
    fn another_version_is_not_taken_for_it() {
        assert_eq!(pick(LIST, "1.8"), None);
        assert_eq!(pick(LIST, "beta"), None);
    }
}
