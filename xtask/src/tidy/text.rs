//! Rules about every text file: its length, and no paths of one machine. And where other files are.

use super::Violation;
use crate::repository::TextFile;
use crate::source::has_word;

/// The maximum length of a source file, in lines.
const SOURCE_LINES_MAX: usize = 600;

/// The maximum length of another file.
const LINES_MAX: usize = 1000;

/// The folders of files that are not text.
const BINARY_FOLDERS: &[&str] = &["docs/images/", "fuzz/corpus/"];

/// Directories of one machine or one user. Each is in two pieces, because this file is checked too.
const MACHINE_PATHS: &[(&str, &str)] = &[
    ("/wo", "rk/"),
    ("/ro", "ot/"),
    ("/ho", "me/"),
    ("/tmp", "/w/"),
    ("../", "shared"),
    ("/Us", "ers/"),
];

/// Marks of unfinished work, in two pieces for the same reason. For Rust files, `rust` checks them,
/// where comments and strings are separate.
pub(super) const UNFINISHED: &[(&str, &str)] = &[("FIX", "ME"), ("XX", "X"), ("HA", "CK")];

/// The message about such a mark.
pub(super) fn unfinished(start: &str, end: &str) -> String {
    format!("`{start}{end}` is a mark of unfinished work: finish it or open an issue")
}

/// Files whose length no author decides.
fn is_generated(path: &str) -> bool {
    path.ends_with("Cargo.lock")
        || path.starts_with("bench/record/")
        || path.contains("corpus/")
        || path.contains("/generated/")
}

/// The lines of a file without the tables that are generated from a record of benchmarks.
fn written_lines(file: &TextFile) -> usize {
    let mut is_written = true;
    let lines = file.text.lines().filter(|line| {
        match *line {
            "<!-- /record -->" => is_written = true,
            line if line.starts_with("<!-- record:") => is_written = file.is_rust(),
            _ => {}
        }
        is_written
    });
    lines.count()
}

/// Checks one file.
pub(super) fn check(file: &TextFile, found: &mut Vec<Violation>) {
    check_length(file, found);
    check_lines(file, found);
}

/// Checks the paths of the files that are not text. What a build leaves is found so.
pub(super) fn check_binaries(paths: &[String], found: &mut Vec<Violation>) {
    for path in paths {
        if !BINARY_FOLDERS.iter().any(|folder| path.starts_with(folder)) {
            let folders = BINARY_FOLDERS.join(", ");
            let message = format!("not text, which belongs into {folders} only: remove it");
            found.push(Violation::new(path, 0, message));
        }
    }
}

fn check_length(file: &TextFile, found: &mut Vec<Violation>) {
    let lines = written_lines(file);
    let max = if file.is_rust() { SOURCE_LINES_MAX } else { LINES_MAX };
    if lines > max && !is_generated(&file.path) {
        let message = format!("{lines} lines, more than {max}: split it");
        found.push(Violation::new(&file.path, 0, message));
    }
}

fn check_lines(file: &TextFile, found: &mut Vec<Violation>) {
    for (index, line) in file.text.lines().enumerate() {
        for (start, end) in MACHINE_PATHS {
            if names_path(line, &format!("{start}{end}")) {
                let message = format!("`{start}{end}` is a path of one machine");
                found.push(Violation::new(&file.path, index + 1, message));
            }
        }
        if !file.is_rust() {
            for (start, end) in UNFINISHED {
                if has_word(line, &format!("{start}{end}")) {
                    found.push(Violation::new(&file.path, index + 1, unfinished(start, end)));
                }
            }
        }
    }
}

/// Whether `line` contains `path` at the start of a path. The inside of a longer path or of a URL
/// does not count.
fn names_path(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '}' | '$'))
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing::lines;
    use super::*;

    fn file(path: &str, text: &str) -> TextFile {
        TextFile { path: path.to_owned(), text: text.to_owned(), ..TextFile::default() }
    }

    #[test]
    fn a_file_may_have_the_longest_length_and_no_more() {
        for (path, max) in [("a.rs", SOURCE_LINES_MAX), ("a.md", LINES_MAX)] {
            let found_in = |count| {
                let file = file(path, &"x\n".repeat(count));
                lines(|found| check(&file, found))
            };
            assert!(found_in(max).is_empty());
            assert_eq!(found_in(max + 1), [0]);
        }
        let longer = file("Cargo.lock", &"x\n".repeat(LINES_MAX + 1));
        assert!(lines(|found| check(&longer, found)).is_empty());
        let written = "x\n".repeat(LINES_MAX);
        let table = format!("<!-- record:all -->\n{written}<!-- /record -->\n");
        let with_table = file("a.md", &format!("{table}{}", &written[2..]));
        assert!(lines(|found| check(&with_table, found)).is_empty());
        let too_long = file("a.md", &format!("{table}{written}"));
        assert_eq!(lines(|found| check(&too_long, found)), [0]);
    }

    #[test]
    fn files_that_are_no_text_have_their_folders() {
        let paths = ["docs/images/page.png", "fuzz/corpus/frames/1"].map(str::to_owned);
        assert!(lines(|found| check_binaries(&paths, found)).is_empty());
        let paths = ["out/incremental/x.o", "page.png"].map(str::to_owned);
        assert_eq!(lines(|found| check_binaries(&paths, found)), [0, 0]);
    }

    #[test]
    fn a_path_of_one_machine_is_found() {
        let text = format!("good\nsee {}{}DESIGN.md\n", "/wo", "rk/");
        assert_eq!(lines(|found| check(&file("a.md", &text), found)), [2]);
        let text = format!("see {}{}/DESIGN.md", "../", "shared");
        assert_eq!(lines(|found| check(&file("a.rs", &text), found)), [1]);
    }

    #[test]
    fn a_part_of_a_longer_path_is_not() {
        let text = "https://example.org/home/page and crates/work/lib.rs and $DIR/root/x";
        assert!(lines(|found| check(&file("a.md", text), found)).is_empty());
    }

    #[test]
    fn marks_of_unfinished_work_are_found_as_words() {
        let text = format!("{}{}: later\nXXXXXX HACKING", "FIX", "ME");
        assert_eq!(lines(|found| check(&file("a.sh", &text), found)), [1]);
    }
}
