//! Rules about unsafe code: of what is published it stands only in the files that are listed, and
//! everywhere it has its argument above it.

use std::collections::{BTreeMap, BTreeSet};

use super::{RustFile, Violation};
use crate::markdown;
use crate::metadata::Package;
use crate::source::has_word;

/// The list of the published files that may contain unsafe code.
pub(super) const LIST: &str = "docs/unsafe.md";

/// The maximum distance between an unsafe block and its argument, in lines, if code such as a `let`
/// stands between them.
const LINES_TO_SAFETY_MAX: usize = 6;

/// Whether this line begins unsafe code. `#[unsafe(no_mangle)]` counts too.
fn opens_unsafe(line: &str) -> bool {
    has_word(line, "unsafe") && !line.contains("unsafe fn(")
}

/// Every unsafe block and impl has a SAFETY comment.
pub(super) fn check_safety_comments(file: &RustFile<'_>, found: &mut Vec<Violation>) {
    for (index, line) in file.source.code.iter().enumerate() {
        let needs_one =
            has_word(line, "unsafe") && (line.contains("unsafe {") || line.contains("unsafe impl"));
        if needs_one && !is_argued(file, index) {
            let message = "unsafe code without a `// SAFETY:` comment above it";
            found.push(Violation::new(file.path, index + 1, message));
        }
    }
}

fn is_argued(file: &RustFile<'_>, index: usize) -> bool {
    let is_safety = |comment: &str| comment.contains("SAFETY:");
    let first = index.saturating_sub(LINES_TO_SAFETY_MAX);
    (first..=index).any(|above| {
        is_safety(&file.source.comments[above]) || file.source.comments_above(above).any(is_safety)
    })
}

/// The paths of the table, with the line of each: whole paths in backquotes.
fn listed(list: &str) -> BTreeMap<String, usize> {
    let rows = markdown::rows(list).into_iter();
    let paths = rows.filter_map(|row| Some((row.cells.into_iter().next()?, row.line)));
    paths.flat_map(|(cell, line)| cell.into_iter().map(move |path| (path, line))).collect()
}

/// Whether the file is the source of a crate that is published, and not one of its tests or their
/// tools.
fn is_published(path: &str) -> bool {
    let folders: Vec<&str> = path.split('/').collect();
    matches!(folders[..], ["crates" | "compat", name, "src", ..] if name != "testkit")
}

/// The list names exactly the published files with unsafe code.
pub(super) fn check_list(files: &[RustFile<'_>], list: &str, found: &mut Vec<Violation>) {
    let listed = listed(list);
    let mut with_unsafe = BTreeSet::new();
    for file in files.iter().filter(|file| is_published(file.path)) {
        let Some(line) = first_unsafe(file) else {
            continue;
        };
        with_unsafe.insert(file.path);
        if !listed.contains_key(file.path) {
            let message = format!("unsafe code, but {LIST} does not list this file");
            found.push(Violation::new(file.path, line, message));
        }
    }
    for (path, line) in listed {
        if !with_unsafe.contains(path.as_str()) {
            let message = format!("lists `{path}`, which is no published file with unsafe code");
            found.push(Violation::new(LIST, line, message));
        }
    }
}

/// The first line (from 1) with unsafe code, or with the exception for the whole file.
fn first_unsafe(file: &RustFile<'_>) -> Option<usize> {
    let index = file.source.code.iter().position(|line| {
        opens_unsafe(line) || (line.contains("#![allow") && has_word(line, "unsafe_code"))
    })?;
    Some(index + 1)
}

/// The root of every library and program denies unsafe code, so that a module with unsafe code
/// needs an exception.
pub(super) fn check_roots(
    files: &[RustFile<'_>],
    packages: &[Package],
    found: &mut Vec<Violation>,
) {
    let roots = packages
        .iter()
        .flat_map(|package| &package.targets)
        .filter(|target| matches!(target.kind.as_str(), "lib" | "bin" | "proc-macro"));
    for root in roots {
        let denies = files
            .iter()
            .find(|file| file.path == root.path)
            .is_some_and(|file| file.source.code.iter().any(|line| denies_unsafe(line)));
        if !denies {
            let message = format!("the root of `{}` needs `#![deny(unsafe_code)]`", root.name);
            found.push(Violation::new(&root.path, 0, message));
        }
    }
}

fn denies_unsafe(line: &str) -> bool {
    (line.contains("#![deny(") || line.contains("#![forbid(")) && has_word(line, "unsafe_code")
}

#[cfg(test)]
mod tests {
    use super::super::testing::{lines, rust};
    use super::*;
    use crate::metadata::Target;

    fn safety(text: &str) -> Vec<usize> {
        lines(|found| check_safety_comments(&rust("a.rs", text), found))
    }

    fn listed(text: &str, list: &str) -> Vec<String> {
        let files =
            [rust("crates/a/src/a.rs", text), rust("crates/a/tests/a.rs", "unsafe { f() }")];
        let mut found = Vec::new();
        let list = format!("| file | why |\n|---|---|\n{list}\n");
        check_list(&files, &list, &mut found);
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn an_unsafe_block_or_impl_needs_its_argument() {
        assert_eq!(safety("f();\nlet x = unsafe { g() };"), [2]);
        assert_eq!(safety("unsafe impl Send for A {}"), [1]);
        assert!(safety("// SAFETY: `g` asks for nothing.\nlet x = unsafe { g() };").is_empty());
        assert!(
            safety("// SAFETY: long\n// argument.\n#[x]\nunsafe impl Send for A {}").is_empty()
        );
        assert!(safety("// SAFETY: it is so.\nlet a =\n    unsafe { g() };").is_empty());
    }

    #[test]
    fn an_argument_far_away_is_none() {
        let text = format!("// SAFETY: x\n{}unsafe {{ g() }};", "f();\n".repeat(8));
        assert_eq!(safety(&text), [10]);
    }

    #[test]
    fn an_unsafe_function_states_its_contract_elsewhere() {
        assert!(safety("unsafe fn f() {}\ntype F = unsafe fn(*mut u8);").is_empty());
    }

    #[test]
    fn a_file_with_unsafe_code_must_be_listed() {
        assert_eq!(listed("unsafe { f() }", "").len(), 1);
        assert_eq!(listed("#![allow(unsafe_code, reason = \"x\")]", "").len(), 1);
        assert!(listed("unsafe { f() }", "| `crates/a/src/a.rs` | why |").is_empty());
        assert!(listed("// unsafe\n#![deny(unsafe_code)]\nf();", "").is_empty());
    }

    #[test]
    fn a_listed_file_must_have_unsafe_code() {
        let rows = "| `crates/a/src/a.rs` | why |\n| `crates/a/tests/a.rs` | why |";
        let found = listed("f();", rows);
        let unknown = "which is no published file with unsafe code";
        assert_eq!(
            found,
            [
                format!("docs/unsafe.md:3: lists `crates/a/src/a.rs`, {unknown}"),
                format!("docs/unsafe.md:4: lists `crates/a/tests/a.rs`, {unknown}"),
            ]
        );
    }

    #[test]
    fn a_root_must_deny_unsafe_code() {
        let package = Package {
            name: "a".to_owned(),
            targets: vec![Target {
                name: "a".to_owned(),
                kind: "lib".to_owned(),
                path: "src/lib.rs".to_owned(),
                is_tested: true,
            }],
            ..Package::default()
        };
        let check = |text: &str| {
            let file = [rust("src/lib.rs", text)];
            lines(|found| check_roots(&file, std::slice::from_ref(&package), found))
        };
        assert_eq!(check("//! #![deny(unsafe_code)]"), [0]);
        assert!(check("#![deny(unsafe_code)]").is_empty());
    }
}
