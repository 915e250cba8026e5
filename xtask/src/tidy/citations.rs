//! Files that comments and Markdown cite: each exists.

use std::collections::BTreeSet;

use super::Violation;
use crate::repository::TextFile;
use crate::source::Source;

/// The endings of the files that a text cites as parts of this repository. Others, such as
/// `nats.conf`, are often those of a user.
const ENDINGS: [&str; 2] = [".rs", ".md"];

/// The paths of all files, and the ends of these paths at each slash.
pub(super) struct Known<'f>(BTreeSet<&'f str>);

impl<'f> Known<'f> {
    pub(super) fn new(files: &'f [TextFile]) -> Self {
        let ends = |path: &'f str| {
            let after_slash = path.match_indices('/').map(move |(at, _)| &path[at + 1..]);
            after_slash.chain([path])
        };
        Self(files.iter().flat_map(|file| ends(&file.path)).collect())
    }
}

/// Checks a Markdown file, or the comments of a Rust file.
pub(super) fn check(
    file: &TextFile,
    source: Option<&Source>,
    known: &Known<'_>,
    found: &mut Vec<Violation>,
) {
    let lines: Vec<&str> = match source {
        Some(source) => source.comments.iter().map(String::as_str).collect(),
        None if file.path.ends_with(".md") => file.text.lines().collect(),
        None => return,
    };
    for (index, line) in lines.into_iter().enumerate() {
        for cited in citations(line) {
            if !known.0.contains(cited) {
                let message = format!("cites `{cited}`, which is no file of this repository");
                found.push(Violation::new(&file.path, index + 1, message));
            }
        }
    }
}

/// The paths in backquotes and of links, without the steps upwards.
fn citations(line: &str) -> Vec<&str> {
    let quoted = line.split('`').skip(1).step_by(2);
    let links = line.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
    let is_path = |text: &&str| {
        let is_in_path = |char: char| char.is_ascii_alphanumeric() || "_-./".contains(char);
        ENDINGS.iter().any(|end| text.len() > end.len() && text.ends_with(end))
            && text.chars().all(is_in_path)
    };
    let cited = quoted.chain(links).filter(is_path);
    cited.map(|path| path.trim_start_matches("../").trim_start_matches("./")).collect()
}

#[cfg(test)]
mod tests {
    use super::super::testing::lines;
    use super::*;

    fn file(path: &str, text: &str) -> TextFile {
        TextFile { path: path.to_owned(), text: text.to_owned(), ..TextFile::default() }
    }

    fn violations(cites: &TextFile) -> Vec<usize> {
        let files = [file("docs/a.md", ""), file("crates/x/src/serve/b.rs", "")];
        let source = cites.is_rust().then(|| Source::new(&cites.text));
        lines(|found| check(cites, source.as_ref(), &Known::new(&files), found))
    }

    #[test]
    fn a_file_that_does_not_exist_cannot_be_cited() {
        let text = "see `docs/none.md`\nand `a.md`\nor [this](../docs/c.md#part), `serve/a.rs`";
        assert_eq!(violations(&file("d.md", text)), [1, 3, 3]);
        assert_eq!(violations(&file("d.rs", "/// `none.rs`\nfn f() {} // `x/b.rs`")), [1, 2]);
    }

    #[test]
    fn files_that_exist_and_other_words_are_no_violation() {
        let text = "`docs/a.md`, `b.rs`, `../serve/b.rs`, `src/serve/b.rs`\n\
                    [link](../docs/a.md#part)\n\
                    none.rs `*.rs` `.rs` `FILE.md here` [x](https://example.org/none.md)\n\
                    `cargo test` and `nats.conf`";
        assert!(violations(&file("d.md", text)).is_empty());
        assert!(violations(&file("d.rs", "let text = \"`none.rs`\";")).is_empty());
        assert!(violations(&file("d.txt", "`none.rs`")).is_empty());
    }
}
