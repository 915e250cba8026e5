//! The stage `compat`: the crates in `compat` against the crates whose interface they have.

use std::path::Path;

use anyhow::Result;

use crate::command::Cmd;
use crate::output::Output;
use crate::stage::Stage;
use crate::tally::Tally;
use crate::toolchain;

/// The part of the stage that needs the crates of others and a nightly compiler: everything.
const PART: &str = "the registry";

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
    let compat = Cmd::new(&program.to_string_lossy()).args(["compat"]);
    let failure = compat.run(root, Some(super::LIMIT), &mut Tally::default(), output).err();
    let failed = u8::from(failure.is_some());
    tally.feed(ANNOUNCEMENT);
    tally.feed(&format!("test result: . {} passed; {failed} failed; 0 ignored", 1 - failed));
    Ok(failure.into_iter().collect())
}
