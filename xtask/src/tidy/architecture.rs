//! The part of ARCHITECTURE.md that a program can check: the core's rules.

use std::collections::BTreeSet;

use crate::markdown;

/// The path of the document.
pub(super) const PATH: &str = "ARCHITECTURE.md";

/// Part of the heading above the core's numbered rules.
const RULES_HEADING: &str = "rules of the core";

/// The numbers of the core's rules: the items of the numbered list.
pub(super) fn rules(text: &str) -> BTreeSet<u32> {
    let items = markdown::items(text).into_iter();
    items.filter(|item| item.heading.contains(RULES_HEADING)).map(|item| item.number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_section_is_read_and_no_other() {
        let rules = rules(
            "# Windlass\n1. no\n## Rules of the core\n1. One.\n   2. more\n2. Two.\n\
             ## Other\n3. no\n",
        );
        assert_eq!(rules, BTreeSet::from([1, 2]));
    }
}
