//! The stages of the simulator: `simulator` of each run, and `simulator-whole` before a release.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use crate::command::Cmd;
use crate::output::Output;
use crate::repository;
use crate::stage::{Part, Stage, Step};
use crate::tally::Tally;

/// Test programs that need the feature `sim`, with their packages.
pub(super) const TESTS: &[(&str, &str)] = &[
    ("windlass", "sim"),
    ("windlass-http", "sim"),
    ("windlass-server", "sim"),
    ("windlass-task", "sim"),
    ("windlass-tls", "sim"),
    ("windlass-websocket", "sim"),
];

/// The name of the long stage.
pub(super) const WHOLE: &str = "simulator-whole";

/// The seeds of all checks together in the long stage.
const SEEDS_MIN: u64 = 1_000_000;

/// The time limit of that.
const LIMIT: Duration = Duration::from_secs(20 * 60);

/// How many times as many seeds as in `cargo test` the short stage tries without a ring, and with
/// one. It has two minutes.
const TIMES: [&str; 2] = ["x2", "x1"];

/// Parts of names of tests. With a ring for all, those that make one are the same test again. And
/// the fault that is planted in the example is a rare one, found by other seeds.
const SKIPPED_ON_RING: &[&str] = &["rings", "a_ring", "planted_fault"];

/// The variables of the runner of `windlass-sim`.
const SEEDS: &str = "WINDLASS_SIM_SEEDS";
const RESULTS: &str = "WINDLASS_SIM_RESULTS";

/// The variable of `windlass` that gives reactors of a simulation a ring.
const RING: &str = "WINDLASS_SIM_RING";

/// The tests in a simulation of all crates, with the example: without a ring and with one. And all
/// suites of the reactor with the feature `sim`: of the same build, because the example wants what
/// they want.
pub(super) fn short() -> Stage {
    let example = ["-p", "windlass-examples", "--features", "windlass-examples/sim"];
    let simulated =
        |seeds| tests().args(example).args(["--example", "sim_proxy"]).env(SEEDS, seeds);
    let suites = Cmd::cargo(["test", "-p", "windlass", "--features", "sim"])
        .args(["--lib", "--test", "rules", "--test", "suite"]);
    let part = |name, commands: Vec<Cmd>| {
        let steps = commands.into_iter().map(Step::Command).collect();
        Part { name, steps: Ok(steps) }
    };
    let all = [simulated(TIMES[0]), suites].map(|command| command.args(["--no-fail-fast"]));
    let on_ring = simulated(TIMES[1]).env(RING, "1").args(["--no-fail-fast", "--"]);
    let on_ring = SKIPPED_ON_RING.iter().fold(on_ring, |run, test| run.args(["--skip", test]));
    Stage::parts("simulator", vec![part("", all.into()), part("a simulated ring", vec![on_ring])])
}

/// All of [`TESTS`] in one build: each command of cargo has its own set of features of the crates.
fn tests() -> Cmd {
    TESTS.iter().fold(Cmd::cargo(["test"]), |command, (package, program)| {
        let feature = format!("{package}/sim");
        command.args(["-p", package, "--features", &feature, "--test", program])
    })
}

/// The tests in a simulation: in two builds, whose traces must be the same, and then with a million
/// seeds.
pub(super) fn whole(root: &Path) -> Stage {
    let root = root.to_path_buf();
    Stage::counted(WHOLE, move |tally, output| {
        let run = |name: &str, profile: &[&str], seeds: &str, tally: &mut _, output: &mut _| {
            Run { root: &root, tally, output }.results(name, profile, seeds)
        };
        let debug = run("debug", &[], "x1", &mut Tally::default(), output)?;
        let release = run("release", &["--release"], "x1", &mut Tally::default(), output)?;
        let again = run("again", &["--release"], "x1", &mut Tally::default(), output)?;
        let mut wrong = differences(["debug", "release"], [&debug, &release]);
        wrong.extend(differences(["one run", "another"], [&release, &again]));
        let factor = SEEDS_MIN.div_ceil(sum(&release)?);
        let whole = run("whole", &["--release"], &format!("x{factor}"), tally, output)?;
        let seeds = sum(&whole)?;
        output.say(&format!("{seeds} seeds\n"));
        if seeds < SEEDS_MIN {
            wrong.push(format!("{seeds} seeds ran, less than {SEEDS_MIN}"));
        }
        Ok(wrong)
    })
}

/// The lines of [`RESULTS`]: for each test the rest of each of its lines, in order.
type Results = BTreeMap<String, Vec<String>>;

struct Run<'r> {
    root: &'r Path,
    tally: &'r mut Tally,
    output: &'r mut Output,
}

impl Run<'_> {
    /// Runs the tests in a simulation, and returns what their checks have noted.
    fn results(self, name: &str, profile: &[&str], seeds: &str) -> Result<Results> {
        let file: PathBuf = repository::target(self.root).join(format!("simulator-{name}"));
        // Lines are added to it.
        let _ = std::fs::remove_file(&file);
        let command = tests()
            .args(profile.iter().copied())
            .env(SEEDS, seeds)
            .env(RESULTS, &file.to_string_lossy());
        let ended = command.run(self.root, Some(LIMIT), self.tally, self.output);
        ended.map_err(anyhow::Error::msg)?;
        let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        read(&text)
    }
}

fn read(text: &str) -> Result<Results> {
    let mut results = Results::new();
    for line in text.lines() {
        let (test, rest) = line.split_once(' ').context("a line has a name and results")?;
        results.entry(test.to_owned()).or_default().push(rest.to_owned());
    }
    ensure!(!results.is_empty(), "no check has run");
    Ok(results)
}

/// The tests whose results differ.
fn differences(names: [&str; 2], results: [&Results; 2]) -> Vec<String> {
    let tests: std::collections::BTreeSet<_> = results.iter().flat_map(|all| all.keys()).collect();
    let differing = tests.into_iter().filter(|test| results[0].get(*test) != results[1].get(*test));
    let line = |test: &String| {
        let [one, other] = results.map(|all| all.get(test).map_or(String::new(), |l| l.join(", ")));
        format!("{test} differs: {one} in {}, {other} in {}", names[0], names[1])
    };
    differing.map(line).collect()
}

/// The number of seeds.
fn sum(results: &Results) -> Result<u64> {
    let mut sum = 0;
    for line in results.values().flatten() {
        let word = line.split(' ').find_map(|word| word.strip_prefix("seeds="));
        let Some(seeds) = word.and_then(|word| word.parse::<u64>().ok()) else {
            bail!("`{line}` has no number of seeds");
        };
        sum += seeds;
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "a::b seeds=200 events=5 hash=01\nc seeds=100 events=7 hash=02\n\
                        a::b seeds=3 events=1 hash=03\n";

    #[test]
    fn seeds_are_counted() {
        let results = read(TEXT).expect("it is right");
        assert_eq!(sum(&results).ok(), Some(303));
        assert!(sum(&read("a nothing").expect("it has a name")).is_err());
        assert!(read("").is_err());
    }

    #[test]
    fn another_hash_is_a_difference() {
        let results = read(TEXT).expect("it is right");
        assert!(differences(["x", "y"], [&results, &results]).is_empty());
        for other in [TEXT.replace("hash=02", "hash=04"), TEXT.replace("c seeds", "d seeds")] {
            let other = read(&other).expect("it is right");
            let found = differences(["x", "y"], [&results, &other]);
            assert!(found[0].starts_with("c differs"), "{found:?}");
        }
    }
}
