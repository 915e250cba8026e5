//! A planted fault: a patch, and what is written above it.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

/// The folder of a crate's patches.
const FOLDER: &str = "tests/sim/faults";

/// A patch with the lines above its difference.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// From the root.
    pub(super) path: String,
    /// In words.
    pub(super) fault: String,
    pub(super) kind: String,
    pub(super) package: String,
    /// The test program of the package, and the test in it.
    pub(super) program: String,
    pub(super) test: String,
}

/// All of them, by path.
///
/// # Errors
///
/// If a file cannot be read, or a line is missing above its difference.
pub(super) fn all(root: &Path) -> Result<Vec<Fault>> {
    let mut faults = Vec::new();
    for member in std::fs::read_dir(root.join("crates"))? {
        let member = member?.file_name().to_string_lossy().into_owned();
        let folder = format!("crates/{member}/{FOLDER}");
        for patch in std::fs::read_dir(root.join(&folder)).into_iter().flatten() {
            let path = format!("{folder}/{}", patch?.file_name().to_string_lossy());
            let text = std::fs::read_to_string(root.join(&path))?;
            faults.push(parse(&path, &text).with_context(|| path.clone())?);
        }
    }
    faults.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(faults)
}

fn parse(path: &str, text: &str) -> Result<Fault> {
    let line = |name: &str| {
        let mut above = text.lines().take_while(|line| !line.starts_with("--- "));
        let line = above.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        line.with_context(|| format!("it has no line `{name}: …` above its difference"))
    };
    let finder: Vec<&str> = line("Found by")?.split(' ').collect();
    let [package, program, test] = finder[..] else {
        anyhow::bail!("`Found by` is not a package, a program and a test");
    };
    Ok(Fault {
        path: path.to_owned(),
        fault: line("Fault")?.to_owned(),
        kind: line("Kind")?.to_owned(),
        package: package.to_owned(),
        program: program.to_owned(),
        test: test.to_owned(),
    })
}

impl Fault {
    /// The name of the file.
    pub(super) fn name(&self) -> &str {
        let name = self.path.rsplit('/').next().unwrap_or_default();
        name.strip_suffix(".patch").unwrap_or(name)
    }

    /// Applies it to a tree, with these options of git-apply(1). Returns why it does not apply.
    ///
    /// # Errors
    ///
    /// If git cannot be started.
    pub(super) fn apply(&self, tree: &Path, options: &[&str]) -> Result<Option<String>> {
        let mut git = Command::new("git");
        git.current_dir(tree).arg("apply").args(options).arg(&self.path);
        // In a repository whose root is above the tree, it would skip all files.
        if let Some(above) = tree.parent() {
            git.env("GIT_CEILING_DIRECTORIES", above);
        }
        let output = git.output().context("git is needed to apply patches")?;
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Ok((!output.status.success()).then_some(said))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "Fault: a timer fires early\nKind: early timer\n\
                        Found by: windlass sim time::early\n\n--- a/x\n+++ b/x\n";

    #[test]
    fn the_lines_above_the_difference_are_read() {
        let fault = parse("crates/a/tests/sim/faults/early.patch", TEXT).expect("it is whole");
        assert_eq!((&*fault.fault, &*fault.kind), ("a timer fires early", "early timer"));
        let finder = [&fault.package, &fault.program, &fault.test];
        assert_eq!(finder, ["windlass", "sim", "time::early"]);
        assert_eq!(fault.name(), "early");
        for name in ["Fault", "Kind", "Found by"] {
            let without = TEXT.replace(name, "Other");
            let error = parse("a.patch", &without).expect_err("a line is missing");
            assert!(error.to_string().contains(name), "{error}");
        }
        assert!(parse("a.patch", &TEXT.replace(" time::early", "")).is_err());
    }
}
