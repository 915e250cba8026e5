//! The parts of ARCHITECTURE.md that a program can check: the core's rules, and the list of modules
//! with unsafe code.

use std::collections::{BTreeMap, BTreeSet};

/// The path of the document.
pub(super) const PATH: &str = "ARCHITECTURE.md";

/// Part of the heading above the list of files that may contain unsafe code.
const UNSAFE_HEADING: &str = "modules with unsafe code";

/// Part of the heading above the core's numbered rules.
const RULES_HEADING: &str = "rules of the core";

/// The parts that can be checked.
#[derive(Debug, Default)]
pub(super) struct Architecture {
    /// Paths from the root, with the line that lists each.
    pub(super) unsafe_files: BTreeMap<String, usize>,
    /// The numbers of the core's rules.
    pub(super) rules: BTreeSet<u32>,
}

impl Architecture {
    /// Reads the two sections. Files are listed in backquotes, by their whole path from the root.
    /// Rules are the items of a numbered list.
    pub(super) fn parse(text: &str) -> Self {
        let mut architecture = Self::default();
        let mut heading = String::new();
        for (index, line) in text.lines().enumerate() {
            if line.starts_with('#') {
                heading = line.to_lowercase();
            } else if heading.contains(UNSAFE_HEADING) {
                let paths = line.split('`').skip(1).step_by(2);
                for path in paths.filter(|path| path.ends_with(".rs")) {
                    architecture.unsafe_files.insert(path.to_owned(), index + 1);
                }
            } else if heading.contains(RULES_HEADING) {
                architecture.rules.extend(item_number(line));
            }
        }
        architecture
    }
}

/// The number of a list item such as `12. After start-up …`.
fn item_number(line: &str) -> Option<u32> {
    let (number, _text) = line.split_once(". ")?;
    number.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_sections_are_read_and_no_other() {
        let architecture = Architecture::parse(
            "# Windlass\n`a.rs`\n1. no\n## Rules of the core\n1. One.\n   2. more\n2. Two.\n\
             ## Modules with unsafe code\n- `crates/reactor/src/cell.rs`: why, see `Header`\n\
             ## Other\n- `b.rs`\n3. no\n",
        );
        assert_eq!(architecture.rules, BTreeSet::from([1, 2]));
        let files: Vec<&String> = architecture.unsafe_files.keys().collect();
        assert_eq!(files, ["crates/reactor/src/cell.rs"]);
        assert_eq!(architecture.unsafe_files["crates/reactor/src/cell.rs"], 9);
    }
}
