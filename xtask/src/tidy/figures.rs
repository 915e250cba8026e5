//! The figures in documents: those of the newest record, as `windlass-bench tables` writes them.

use std::path::Path;

use windlass_bench_report::{Report, documents};

use super::Violation;

/// How to repair a violation.
const REPAIR: &str = "`cargo run --release -p windlass-bench -- tables` writes it";

/// Compares the generated parts of documents and the pictures with the newest record.
pub(super) fn check(root: &Path, found: &mut Vec<Violation>) {
    let Some(record) = documents::newest(root) else { return };
    let differing = Report::read(&record).and_then(|report| documents::differing(root, &report));
    match differing {
        Ok(differing) => found.extend(differing.into_iter().map(|(path, _)| {
            let message = format!("has other figures than {}; {REPAIR}", name(&record));
            Violation::new(&path, 0, message)
        })),
        Err(error) => found.push(Violation::new(documents::RECORDS, 0, format!("{error:#}"))),
    }
}

fn name(record: &Path) -> String {
    record.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_that_cannot_be_read_is_told_and_none_is_not() {
        let root = std::env::temp_dir().join(format!("xtask-figures-{}", std::process::id()));
        let folder = root.join(documents::RECORDS);
        std::fs::create_dir_all(&folder).unwrap();
        let mut found = Vec::new();
        check(&root, &mut found);
        assert!(found.is_empty());
        std::fs::write(folder.join("2026-01-01.json"), "{}").unwrap();
        check(&root, &mut found);
        std::fs::remove_dir_all(&root).unwrap();
        assert!(found[0].to_string().contains("is no report of windlass-bench"), "{found:?}");
    }
}
