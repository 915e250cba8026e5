//! The house rules that neither the compiler nor clippy checks.
//!
//! Each module has one family of rules as functions from text to violations, with a unit test that
//! breaks each rule. `xtask/README.md` lists the rules.

mod architecture;
mod citations;
mod documents;
mod figures;
mod guide;
mod manifest;
mod names;
mod paths;
mod publish;
mod rules;
mod rust;
mod text;
mod unsafe_code;
mod width;

use std::fmt;
use std::path::Path;

use anyhow::Result;

use crate::metadata;
use crate::planted;
use crate::repository::{self, TextFile};
use crate::source::Source;

/// One broken house rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Violation {
    path: String,
    /// From 1. 0 means the whole file.
    line: usize,
    message: String,
}

impl Violation {
    fn new(path: &str, line: usize, message: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, message: message.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.message),
            line => write!(f, "{}:{line}: {}", self.path, self.message),
        }
    }
}

/// A Rust file, split into code and comments.
struct RustFile<'a> {
    path: &'a str,
    text: &'a str,
    source: Source,
}

impl<'a> RustFile<'a> {
    fn new(path: &'a str, text: &'a str) -> Self {
        Self { path, text, source: Source::new(text) }
    }
}

/// Checks the whole repository; returns one line per violation.
///
/// # Errors
///
/// If the files cannot be listed, or cargo rejects the manifests.
pub(crate) fn check(root: &Path) -> Result<Vec<String>> {
    let repository::Files { texts: files, binaries } = repository::files(root)?;
    let packages = metadata::workspace(root)?;
    let document = |path| files.iter().find(|file| file.path == path).map_or("", |file| &file.text);
    let rust_files: Vec<RustFile<'_>> = files.iter().filter_map(rust_file).collect();

    let mut found = Vec::new();
    let known = citations::Known::new(&files);
    // The target of a link is checked by itself.
    for file in files.iter().filter(|file| !file.is_link) {
        text::check(file, &mut found);
        manifest::check(file, &mut found);
        width::check(file, source(&rust_files, file), &mut found);
        citations::check(file, source(&rust_files, file), &known, &mut found);
    }
    text::check_binaries(&binaries, &mut found);
    for file in &rust_files {
        rust::check(file, &mut found);
        unsafe_code::check_safety_comments(file, &mut found);
    }
    unsafe_code::check_list(&rust_files, document(unsafe_code::LIST), &mut found);
    rules::check(&rust_files, &architecture::rules(document(architecture::PATH)), &mut found);
    unsafe_code::check_roots(&rust_files, &packages, &mut found);
    names::check(&rust_files, &packages, &mut found);
    publish::check(&files, &packages, &mut found);
    documents::check(&files, &mut found);
    figures::check(root, &mut found);
    guide::check(&files, &mut found);
    paths::check(&files, &mut found);
    let planted = planted::violations(root)?.into_iter();
    found.extend(planted.map(|(path, message)| Violation::new(&path, 0, message)));
    Ok(found.iter().map(ToString::to_string).collect())
}

/// The counts of `cargo xtask prose`.
#[derive(Debug)]
pub(crate) struct Counts {
    /// Lines that are too wide and not exempt.
    pub(crate) wide_lines: usize,
    /// Names that several public types have.
    pub(crate) shared_names: usize,
}

/// Counts what [`check`] would report of widths and names, listed names included.
///
/// # Errors
///
/// If cargo rejects the manifests.
pub(crate) fn count(root: &Path, files: &[TextFile]) -> Result<Counts> {
    let packages = metadata::workspace(root)?;
    let rust_files: Vec<RustFile<'_>> = files.iter().filter_map(rust_file).collect();
    let files = files.iter().filter(|file| !file.is_link);
    let wide = files.map(|file| width::wide_lines(file, source(&rust_files, file)).len());
    let shared_names = names::count_shared(&rust_files, &packages);
    Ok(Counts { wide_lines: wide.sum(), shared_names })
}

/// The source of a Rust file among `files`.
fn source<'a>(files: &'a [RustFile<'_>], file: &TextFile) -> Option<&'a Source> {
    files.iter().find(|one| one.path == file.path).map(|one| &one.source)
}

fn rust_file(file: &TextFile) -> Option<RustFile<'_>> {
    file.is_rust().then(|| RustFile::new(&file.path, &file.text))
}

#[cfg(test)]
mod testing {
    //! Helpers for the rules' tests.

    use super::*;

    /// Makes a Rust file from its text.
    pub(super) fn rust<'a>(path: &'a str, text: &'a str) -> RustFile<'a> {
        RustFile::new(path, text)
    }

    /// The violations that `check` finds in text files with these paths and texts.
    pub(super) fn violations(
        files: &[(&str, &str)],
        check: impl FnOnce(&[TextFile], &mut Vec<Violation>),
    ) -> Vec<String> {
        let file = |(path, text): &(&str, &str)| TextFile {
            path: (*path).to_owned(),
            text: (*text).to_owned(),
            ..TextFile::default()
        };
        let files: Vec<TextFile> = files.iter().map(file).collect();
        let mut found = Vec::new();
        check(&files, &mut found);
        found.iter().map(ToString::to_string).collect()
    }

    /// The lines of the violations that `check` finds.
    pub(super) fn lines(check: impl FnOnce(&mut Vec<Violation>)) -> Vec<usize> {
        let mut found = Vec::new();
        check(&mut found);
        found.iter().map(|violation| violation.line).collect()
    }
}
