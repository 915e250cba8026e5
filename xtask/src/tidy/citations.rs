//! Files that comments and Markdown cite: each exists. A test is cited by its file, `::` and its
//! name, and the file has a function of this name.

use std::collections::BTreeMap;

use super::Violation;
use crate::repository::TextFile;
use crate::source::Source;

/// The endings of the files that a text cites as parts of this repository. Others, such as
/// `nats.conf`, are often those of a user.
const ENDINGS: [&str; 2] = [".rs", ".md"];

/// The paths of all files, and the ends of these paths at each slash, with the texts of the files.
pub(super) struct Known<'f>(BTreeMap<&'f str, Vec<&'f str>>);

impl<'f> Known<'f> {
    pub(super) fn new(files: &'f [TextFile]) -> Self {
        let ends = |path: &'f str| {
            let after_slash = path.match_indices('/').map(move |(at, _)| &path[at + 1..]);
            after_slash.chain([path])
        };
        let mut known = BTreeMap::<_, Vec<_>>::new();
        for file in files {
            for end in ends(&file.path) {
                known.entry(end).or_default().push(file.text.as_str());
            }
        }
        Self(known)
    }

    /// Returns what is wrong with a citation.
    fn fault(&self, cited: &str) -> Option<String> {
        let (path, name) = cited.split_once("::").unwrap_or((cited, ""));
        let Some(texts) = self.0.get(path) else {
            return Some(format!("cites `{path}`, which is no file of this repository"));
        };
        let function = format!("fn {name}(");
        let is_there = name.is_empty() || texts.iter().any(|text| text.contains(&function));
        (!is_there).then(|| format!("cites `{name}`, which is no function of `{path}`"))
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
            found
                .extend(known.fault(cited).map(|text| Violation::new(&file.path, index + 1, text)));
        }
    }
}

/// The paths in backquotes and of links, without the steps upwards, and the tests in such files.
fn citations(line: &str) -> Vec<&str> {
    let quoted = line.split('`').skip(1).step_by(2);
    let links = line.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
    let is_path = |text: &&str| {
        let is_in_path = |char: char| char.is_ascii_alphanumeric() || "_-./".contains(char);
        let (path, name) = text.split_once("::").unwrap_or((text, ""));
        ENDINGS.iter().any(|end| path.len() > end.len() && path.ends_with(end))
            && path.chars().chain(name.chars()).all(is_in_path)
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
        let files = [file("docs/a.md", ""), file("crates/x/src/serve/b.rs", "fn there() {}")];
        let source = cites.is_rust().then(|| Source::new(&cites.text));
        lines(|found| check(cites, source.as_ref(), &Known::new(&files), found))
    }

    #[test]
    fn a_file_that_does_not_exist_cannot_be_cited() {
        let text = "see `docs/none.md`\nand `a.md`\nor [this](../docs/c.md#part), `serve/a.rs`";
        assert_eq!(violations(&file("d.md", text)), [1, 3, 3]);
        assert_eq!(violations(&file("d.rs", "/// `none.rs`\nfn f() {} // `x/b.rs`")), [1, 2]);
        let tests = "`serve/b.rs::there`\n`serve/b.rs::gone`\n`none.rs::there` `serve/b.rs::the`";
        assert_eq!(violations(&file("d.md", tests)), [2, 3, 3]);
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
