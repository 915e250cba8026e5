//! Modules whose file is elsewhere: `#[path]` does not lead into the tests of another crate.

use syn::visit::{self, Visit};
use syn::{Attribute, Expr, ExprLit, ItemMod, Lit, Meta};

use super::Violation;
use crate::repository::TextFile;

/// Files that still use the tests of other crates. The list may only shrink: what several crates
/// need belongs into a crate.
const STILL: &[&str] = &["fuzz/src/lib.rs"];

/// Checks all files.
pub(super) fn check(files: &[TextFile], found: &mut Vec<Violation>) {
    for file in files.iter().filter(|file| file.is_rust() && !file.is_link) {
        let foreign: Vec<(usize, String)> = declared(&file.text)
            .into_iter()
            .filter(|(_, path)| leads_into_foreign_tests(&file.path, path))
            .collect();
        if STILL.contains(&file.path.as_str()) {
            if foreign.is_empty() {
                let message = "uses no tests of other crates: remove it from `STILL`, in paths.rs";
                found.push(Violation::new(&file.path, 0, message));
            }
            continue;
        }
        for (line, path) in foreign {
            let message = format!("`#[path = \"{path}\"]` leads into the tests of another crate");
            found.push(Violation::new(&file.path, line, message));
        }
    }
}

/// The lines (from 1) and paths of the modules that a file declares with `#[path]`. A file that is
/// not Rust has none; the compiler reports it.
fn declared(text: &str) -> Vec<(usize, String)> {
    // To read all files with syn takes seconds.
    if !text.contains("#[path") {
        return Vec::new();
    }
    #[derive(Default)]
    struct Paths(Vec<(usize, String)>);
    impl<'ast> Visit<'ast> for Paths {
        fn visit_item_mod(&mut self, module: &'ast ItemMod) {
            self.0.extend(module.attrs.iter().filter_map(path));
            visit::visit_item_mod(self, module);
        }
    }
    let mut paths = Paths::default();
    if let Ok(file) = syn::parse_file(text) {
        paths.visit_file(&file);
    }
    paths.0
}

fn path(attribute: &Attribute) -> Option<(usize, String)> {
    let Meta::NameValue(meta) = &attribute.meta else { return None };
    let Expr::Lit(ExprLit { lit: Lit::Str(path), .. }) = &meta.value else { return None };
    let line = path.span().start().line;
    meta.path.is_ident("path").then(|| (line, path.value()))
}

/// Whether `path`, from the folder of `file`, is in a folder `tests` of another crate. A crate is
/// what stands above `src`, `tests` or `benches`.
fn leads_into_foreign_tests(file: &str, path: &str) -> bool {
    let mut parts: Vec<&str> = file.split('/').collect();
    parts.pop();
    for part in path.split('/') {
        match part {
            ".." => _ = parts.pop(),
            "." => {}
            part => parts.push(part),
        }
    }
    let target = parts.join("/");
    target.contains("/tests/") && package(&target) != package(file)
}

/// The folder of the package that a file belongs to.
fn package(path: &str) -> &str {
    let ends = ["/src/", "/tests/", "/benches/"].map(|folder| path.find(folder));
    &path[..ends.into_iter().flatten().min().unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::super::testing::lines;
    use super::*;

    fn found_in(path: &str, text: &str) -> Vec<usize> {
        let (path, text) = (path.to_owned(), text.to_owned());
        let file = TextFile { path, text, ..TextFile::default() };
        lines(|found| check(&[file], found))
    }

    #[test]
    fn tests_of_another_crate_are_found() {
        let text = "mod a;\n#[cfg(x)]\n#[path = \"../../b/tests/common/a.rs\"]\nmod b;\n";
        assert_eq!(found_in("crates/a/tests/c.rs", text), [3]);
        let inside = "mod a {\n    #[path = \"../../../../b/tests/a.rs\"]\n    mod b;\n}\n";
        assert_eq!(found_in("crates/a/tests/d/main.rs", inside), [2]);
    }

    #[test]
    fn a_listed_file_may_use_them_and_must() {
        assert!(found_in(STILL[0], "#[path = \"../../crates/b/tests/a.rs\"]\nmod b;\n").is_empty());
        assert_eq!(found_in(STILL[0], "mod b;\n"), [0]);
    }

    #[test]
    fn files_of_the_same_crate_and_comments_are_no_violation() {
        let own = "#[path = \"../common/a.rs\"]\nmod a;\n";
        assert!(found_in("crates/a/tests/b/main.rs", own).is_empty());
        assert!(found_in("crates/a/src/c.rs", "#[path = \"d/tests.rs\"]\nmod a;\n").is_empty());
        let comment = "// #[path = \"../../b/tests/a.rs\"]\nmod a;\n";
        assert!(found_in("crates/a/tests/c.rs", comment).is_empty());
    }
}
