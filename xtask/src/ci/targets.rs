//! The stages of other targets: `musl`, with another C library, and `aarch64`, with another
//! processor, which qemu-user emulates.

use super::stages::{of, select, tests_of};
use crate::command::Cmd;
use crate::metadata::Package;
use crate::stage::Stage;
use crate::toolchain;

pub(super) const MUSL_STAGE: &str = "musl";
pub(super) const AARCH64_STAGE: &str = "aarch64";

const MUSL: &str = "x86_64-unknown-linux-musl";
const AARCH64: &str = "aarch64-unknown-linux-gnu";

/// The folders whose libraries the stage `musl` tests.
const LIBRARIES: &[&str] = &["crates/", "compat/"];

/// The libraries whose test programs are built for aarch64.
const BUILT: &[&str] = &["windlass-flow", "windlass-ws", "windlass"];

/// The programs that run for aarch64, besides the unit tests: those of windlass-flow and
/// windlass-ws, and those of the reactor that pass with the calls that qemu-user has.
const RUN: &[&str] = &[
    "allocations",
    "corpus",
    "counter",
    "deflate",
    "engine",
    "handshake",
    "mailbox",
    "model",
    "numbers",
    "rules",
];

/// Programs and tests that qemu-user cannot run.
const NOT_EMULATED: &[(&str, &[&str])] = &[
    ("qemu-user cannot start programs of aarch64", &["counter_processes"]),
    (
        "qemu-user has no epoll_pwait2(2)",
        &[
            "latch",
            "flag::tests::to_set_it_is_an_edge_always",
            "levels::a_semaphore_is_readable_until_the_last_unit",
            "levels::every_operation_of_either_handle_is_seen_by_the_other",
            "levels::random_programs_agree_with_a_naive_counter",
            "levels::the_levels_of_every_count",
            "stress::eight_writers_and_one_reader",
            "stress::levels_are_exact_after_every_storm",
            "stress::one_writer_and_one_reader",
            "stress::three_writers_and_two_readers",
            "waits::a_rejected_reader_gets_an_edge_with_the_next_unit",
            "waits::a_rejected_writer_gets_an_edge_whenever_there_is_more_room",
        ],
    ),
];

/// The emulator, and where Debian's libc6-dev-arm64-cross has the C library.
const EMULATOR: &str = "qemu-aarch64";
const RUNNER: &str = "qemu-aarch64 -L /usr/aarch64-linux-gnu";

/// The test programs of all libraries, with musl in place of glibc.
pub(super) fn musl(packages: &[Package]) -> Stage {
    // For ring, which is C and assembly.
    let compiler = || toolchain::need_installed("musl-gcc", "musl-tools");
    if let Err(reason) = toolchain::need_target(MUSL).and_then(|()| compiler()) {
        return Stage::skip(MUSL_STAGE, reason);
    }
    let is_library = |package: &&Package| {
        LIBRARIES.iter().any(|folder| package.folder.starts_with(folder))
            && package.targets.iter().any(|target| target.kind == "lib")
    };
    let packages: Vec<&Package> = packages.iter().filter(is_library).collect();
    let test =
        Cmd::cargo(["test", "--target", MUSL]).env("CC_x86_64_unknown_linux_musl", "musl-gcc");
    Stage::tests(MUSL_STAGE, vec![tests_of(&packages, test)])
}

/// Builds the test programs of [`BUILT`] for aarch64, and runs [`RUN`] and the unit tests, without
/// [`NOT_EMULATED`]. Both commands select the same packages. Otherwise the features of shared
/// dependencies would differ, and they would be compiled twice.
pub(super) fn aarch64(packages: &[Package]) -> Stage {
    let tools = || {
        toolchain::need_target(AARCH64)?;
        toolchain::need_installed("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu")?;
        toolchain::need_installed(EMULATOR, "qemu-user")
    };
    if let Err(reason) = tools() {
        return Stage::skip(AARCH64_STAGE, reason);
    }
    let packages = select(packages, &[BUILT]);
    let test = Cmd::cargo(["test", "--target", AARCH64])
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc")
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", RUNNER);
    let run = of(&packages, test.clone()).args(["--no-fail-fast", "--lib"]);
    let run = RUN.iter().fold(run, |run, program| run.args(["--test", program])).args(["--"]);
    let skipped =
        || NOT_EMULATED.iter().flat_map(|(why, names)| names.iter().map(move |name| (*name, *why)));
    let run = skipped().fold(run, |run, (name, _)| run.args(["--skip", name]));
    let commands = vec![tests_of(&packages, test).args(["--no-run"]), run];
    skipped().fold(Stage::tests(AARCH64_STAGE, commands), |stage, (name, why)| {
        stage.leaving_out(name, why.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{metadata, repository};

    #[test]
    fn each_program_of_the_libraries_without_a_kernel_runs_or_is_skipped_with_a_reason() {
        let packages = metadata::workspace(&repository::root()).expect("the workspace is readable");
        let skipped = |name: &str| NOT_EMULATED.iter().any(|(_, names)| names.contains(&name));
        for package in select(&packages, &[&["windlass-flow", "windlass-ws"]]) {
            for target in package.targets.iter().filter(|target| target.kind == "test") {
                // The models need a build of their own.
                let name = &*target.name;
                assert!(RUN.contains(&name) || skipped(name) || name == "loom", "{name}");
            }
        }
    }
}
