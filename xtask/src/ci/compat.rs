//! The stage `compat`: the crates in `compat` against the crates whose interface they have.

use std::path::Path;

use anyhow::Result;

use crate::command::Cmd;
use crate::compat::published;
use crate::output::Output;
use crate::stage::Stage;
use crate::tally::Tally;
use crate::toolchain;

/// The part of the stage that needs the crates of others and a nightly compiler: everything.
const PART: &str = "the registry";

/// The part that needs more of the registry than the comparison of public items.
const TESTS: &str = "the tests of the published packages";

/// The announcement of the comparison, which counts as a test.
const ANNOUNCEMENT: &str = "     Running interfaces (xtask/compat)";

/// `cargo xtask compat`. The tests that make each call of both are in the stage `test`.
pub(super) fn stage(root: &Path) -> Stage {
    let root = root.to_path_buf();
    Stage::counted("compat", move |tally, output| check(&root, tally, output))
}

fn check(root: &Path, tally: &mut Tally, output: &mut Output) -> Result<Vec<String>> {
    tally.begin_part(PART);
    if let Err(reason) = toolchain::find("nightly").and(toolchain::need_registry("tungstenite")) {
        tally.leave_out(PART, reason);
        return Ok(Vec::new());
    }
    let program = std::env::current_exe()?;
    let items = Cmd::new(&program.to_string_lossy()).args(["compat", "items"]);
    let mut failures = run(root, vec![items], output);
    let tests = published::commands(root, output)?;
    failures.extend(run_published(root, tests, tally, output));
    let failed = u8::from(!failures.is_empty());
    tally.feed(ANNOUNCEMENT);
    tally.feed(&format!("test result: . {} passed; {failed} failed; 0 ignored", 1 - failed));
    Ok(failures)
}

/// Runs the tests of the published packages, or leaves them out.
fn run_published(
    root: &Path,
    tests: Result<Vec<Cmd>, String>,
    tally: &mut Tally,
    output: &mut Output,
) -> Vec<String> {
    match tests {
        Ok(tests) => run(root, tests, output),
        Err(reason) => {
            tally.leave_out(TESTS, reason);
            Vec::new()
        }
    }
}

/// Runs commands whose tests are not counted. Returns the failures.
fn run(root: &Path, commands: Vec<Cmd>, output: &mut Output) -> Vec<String> {
    let mut run =
        |command: Cmd| command.run(root, Some(super::LIMIT), &mut Tally::default(), output).err();
    commands.into_iter().filter_map(&mut run).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_tests_that_cannot_be_had_are_left_out_with_the_reason() {
        let (mut tally, root) = (Tally::default(), crate::repository::root());
        let mut run = |tests| run_published(&root, tests, &mut tally, &mut Output::kept());
        assert!(run(Ok(vec![Cmd::new("true")])).is_empty());
        assert_eq!(run(Ok(vec![Cmd::new("false"), Cmd::new("true")])).len(), 1);
        assert!(run(Err("no registry".to_owned())).is_empty());
        assert_eq!(tally.left_out().len(), 1);
        assert_eq!(tally.left_out()[0].reason, "no registry");
        assert_eq!(tally.sum().ignored, 1);
    }
}
