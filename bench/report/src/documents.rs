//! The parts of documents that are generated from a record: tables between markers, and pictures.
//!
//! `<!-- record:NAME -->` begins a part, and `<!-- /record -->` ends it. The text between them is
//! replaced as a whole.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

use crate::{Report, pictures, summary};

/// The folder of the records.
pub const RECORDS: &str = "bench/record";

/// The documents with generated parts.
pub const DOCUMENTS: [&str; 3] = ["README.md", "docs/benchmarks.md", "docs/technical.md"];

/// Begins the marker of a part.
const BEGIN: &str = "<!-- record:";
/// Ends a marker.
const CLOSE: &str = " -->";
/// Ends a part.
const END: &str = "<!-- /record -->";

/// Returns the newest record: the names are dates.
#[must_use]
pub fn newest(root: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(root.join(RECORDS)).ok()?;
    let records = entries.filter_map(|entry| Some(entry.ok()?.path()));
    records.filter(|path| path.extension().is_some_and(|ext| ext == "json")).max()
}

/// Returns the documents and pictures that differ from the record, with the texts that they should
/// have.
///
/// # Errors
///
/// If a document cannot be read, or its markers are wrong.
pub fn differing(root: &Path, report: &Report) -> anyhow::Result<Vec<(String, String)>> {
    let mut differing = Vec::new();
    for path in DOCUMENTS {
        let text =
            std::fs::read_to_string(root.join(path)).with_context(|| format!("no {path}"))?;
        let filled = fill(&text, report).with_context(|| path.to_owned())?;
        if filled != text {
            differing.push((path.to_owned(), filled));
        }
    }
    for (path, picture) in pictures::all(report) {
        let is_same = std::fs::read_to_string(root.join(path)).is_ok_and(|text| text == picture);
        if !is_same {
            differing.push((path.to_owned(), picture));
        }
    }
    Ok(differing)
}

/// Fills the parts of a document.
fn fill(text: &str, report: &Report) -> anyhow::Result<String> {
    let mut filled = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(BEGIN) {
        let (name, after) = after.split_once(CLOSE).context("a marker has no end")?;
        let (old, after) =
            after.split_once(END).with_context(|| format!("no `{END}` after `{name}`"))?;
        if old.contains(BEGIN) {
            bail!("no `{END}` after `{name}`");
        }
        let part = summary::part(name, report)
            .with_context(|| format!("the record makes no part `{name}`"))?;
        filled += &format!("{before}{BEGIN}{name}{CLOSE}\n\n{}\n\n{END}", part.trim());
        rest = after;
    }
    Ok(filled + rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str = "a\n\n<!-- record:machine -->\nold\n<!-- /record -->\n\nb\n";

    #[test]
    fn a_part_is_replaced_and_the_rest_stays() {
        let report = crate::tests::sample();
        let filled = fill(DOCUMENT, &report).unwrap();
        assert!(filled.starts_with("a\n\n<!-- record:machine -->\n\n"), "{filled}");
        assert!(filled.ends_with("\n\n<!-- /record -->\n\nb\n") && !filled.contains("old"));
        assert_eq!(fill(&filled, &report).unwrap(), filled, "what is filled stays");
        let changed = filled.replace("2026", "2025");
        assert_ne!(changed, filled, "the part has the date");
        assert_eq!(fill(&changed, &report).unwrap(), filled, "a changed figure is found");
    }

    #[test]
    fn a_document_that_differs_is_found_until_it_is_written() {
        let root = std::env::temp_dir().join(format!("windlass-record-{}", std::process::id()));
        std::fs::create_dir_all(root.join("docs")).unwrap();
        for path in DOCUMENTS {
            std::fs::write(root.join(path), DOCUMENT).unwrap();
        }
        let report = crate::tests::sample();
        for (path, text) in differing(&root, &report).unwrap() {
            std::fs::write(root.join(path), text).unwrap();
        }
        let written = differing(&root, &report).unwrap();
        let path = root.join(DOCUMENTS[0]);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replace("windlass 1", "windlass 2")).unwrap();
        let broken = differing(&root, &report).unwrap();
        std::fs::remove_dir_all(&root).unwrap();
        assert!(written.is_empty());
        assert_eq!(broken, [(DOCUMENTS[0].to_owned(), text)]);
    }

    #[test]
    fn a_wrong_marker_is_an_error() {
        let report = crate::tests::sample();
        for wrong in [
            "<!-- record:machine -->\n",
            "<!-- record:machine",
            "<!-- record:none -->\n<!-- /record -->",
            "<!-- record:machine -->\n<!-- record:machine -->\n<!-- /record -->",
        ] {
            assert!(fill(wrong, &report).is_err(), "{wrong}");
        }
    }
}
