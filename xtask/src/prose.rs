//! `cargo xtask prose`: counts of the language in documents and comments: words per sentence, wide
//! lines, and shared names.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;

use crate::output::print as print_text;
use crate::repository::{self, TextFile};
use crate::source::Source;
use crate::tidy;

/// A number of sentences and of the words in them.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Length {
    sentences: usize,
    words: usize,
}

impl Length {
    fn add(&mut self, other: Self) {
        self.sentences += other.sentences;
        self.words += other.words;
    }

    /// Words in the mean sentence.
    #[expect(clippy::cast_precision_loss, reason = "the counts are far below 2^52")]
    fn mean(self) -> f64 {
        self.words as f64 / self.sentences.max(1) as f64
    }
}

/// Prints the counts of the repository at `root`.
///
/// # Errors
///
/// If the files cannot be listed, or cargo rejects the manifests.
pub(crate) fn run(root: &Path) -> Result<bool> {
    let files = repository::text_files(root)?;
    let counts = tidy::count(root, &files)?;
    print_text("words in the mean sentence, and sentences:\n");
    let (mut documents, mut comments) = (Length::default(), BTreeMap::<String, Length>::new());
    for file in files.iter().filter(|file| !file.is_link) {
        if file.path.ends_with(".md") {
            let length = measure(file.text.lines());
            documents.add(length);
            print(&file.path, length);
        } else if file.is_rust() {
            let folder: Vec<&str> = file.path.split('/').take(2).collect();
            comments.entry(folder.join("/")).or_default().add(of_comments(file));
        }
    }
    print("all documents", documents);
    let mut all = Length::default();
    for (folder, length) in comments {
        print(&format!("comments in {folder}"), length);
        all.add(length);
    }
    print("all comments", all);
    print_text(&format!("lines wider than the limit: {}\n", counts.wide_lines));
    print_text(&format!("names of several public types: {}\n", counts.shared_names));
    Ok(true)
}

fn print(what: &str, length: Length) {
    print_text(&format!("  {:5.1} {:6} {what}\n", length.mean(), length.sentences));
}

/// The comments of a Rust file. Code ends a paragraph.
fn of_comments(file: &TextFile) -> Length {
    let source = Source::new(&file.text);
    measure(
        source
            .comments
            .iter()
            .map(|line| line.trim().trim_start_matches('/').trim_start_matches('!')),
    )
}

/// Counts the sentences of Markdown. Headings, tables, blocks of code and lists of words without a
/// full stop have none.
fn measure<'a>(lines: impl Iterator<Item = &'a str>) -> Length {
    let (mut length, mut paragraph, mut is_code) = (Length::default(), String::new(), false);
    for line in lines {
        let line = line.trim();
        let is_fence = line.starts_with("```");
        is_code ^= is_fence;
        let is_text =
            !(is_code || is_fence || line.is_empty() || line.starts_with(['#', '|', '<']));
        if !is_text || begins_item(line) {
            length.add(sentences(&paragraph));
            paragraph.clear();
        }
        if is_text {
            paragraph.push_str(line);
            paragraph.push(' ');
        }
    }
    length.add(sentences(&paragraph));
    length
}

/// Whether the line is the first of a list item.
fn begins_item(line: &str) -> bool {
    let is_number =
        |word: &str| word.strip_suffix('.').is_some_and(|number| number.parse::<u32>().is_ok());
    let first = line.split(' ').next().unwrap_or_default();
    matches!(first, "-" | "*") || is_number(first)
}

/// The sentences of one paragraph. A sentence ends with a word that ends in a full stop, question
/// mark or exclamation mark, if the next word does not begin with a small letter. A colon at the
/// end of the paragraph ends one as well.
fn sentences(paragraph: &str) -> Length {
    let mut length = Length::default();
    let mut words = 0;
    let mut rest = paragraph.split_whitespace().peekable();
    while let Some(word) = rest.next() {
        // `1.` at the beginning is the number of an item.
        if words == 0 && begins_item(word) {
            continue;
        }
        words += usize::from(word.contains(char::is_alphanumeric));
        let bare = word.trim_end_matches([')', '*', '_', '"', '`']);
        let is_end = match rest.peek() {
            Some(next) => bare.ends_with(['.', '?', '!']) && !next.starts_with(char::is_lowercase),
            None => bare.ends_with(['.', '?', '!', ':']),
        };
        if is_end && words > 0 {
            length.add(Length { sentences: 1, words });
            words = 0;
        }
    }
    length
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(text: &str) -> (usize, usize) {
        let length = measure(text.lines());
        (length.sentences, length.words)
    }

    #[test]
    fn sentences_end_at_marks_before_a_capital() {
        assert_eq!(measured("One two three. Four\nfive (e.g. six). Is it? `yes`!"), (4, 10));
        assert_eq!(measured("It is 1.5 s, see a.rs and so on."), (1, 9));
    }

    #[test]
    fn list_items_and_paragraphs_are_apart() {
        assert_eq!(measured("It has:\n- One thing.\n- Another\n  thing.\n\nEnd."), (4, 7));
        assert_eq!(measured("1. First thing.\n2. Second one here."), (2, 5));
    }

    #[test]
    fn code_tables_headings_and_fragments_are_not_counted() {
        let text = "# Head. Line.\n```text\nA b. C d.\n```\n| a. | B. |\n- a fragment\n\nReal one.";
        assert_eq!(measured(text), (1, 2));
    }

    #[test]
    fn comments_are_read_without_their_marks() {
        let text = "//! One two.\n\nfn f() {} // Three\n// four five.\n/// Six\nlet a;\n/// seven.";
        let file =
            TextFile { path: "a.rs".to_owned(), text: text.to_owned(), ..TextFile::default() };
        let length = of_comments(&file);
        assert_eq!((length.sentences, length.words), (3, 6));
    }

    #[test]
    fn the_mean_of_nothing_is_zero() {
        assert!(Length::default().mean() < 0.1);
        assert!((Length { sentences: 2, words: 5 }.mean() - 2.5).abs() < 1e-9);
    }
}
