//! Rules about Markdown: neither a row of a table nor a paragraph stands twice.

use std::collections::BTreeMap;

use pulldown_cmark::{Event, Tag, TagEnd};

use super::Violation;
use crate::markdown;
use crate::repository::TextFile;

/// Shorter paragraphs may stand twice, such as the sentence above a list.
const WORDS_MIN: usize = 12;

/// The only document whose paragraphs may be those of others: it has the words of its time.
const CHANGES: &str = "CHANGELOG.md";

/// A row of a table, or a paragraph.
#[derive(Debug)]
struct Block {
    /// From 1.
    line: usize,
    /// With single blanks.
    text: String,
    /// The number of the table in the file. Paragraphs have none.
    table: Option<usize>,
}

/// Checks all documents together.
pub(super) fn check(files: &[TextFile], found: &mut Vec<Violation>) {
    let mut paragraphs: BTreeMap<String, String> = BTreeMap::new();
    for file in files.iter().filter(|file| file.path.ends_with(".md") && !file.is_link) {
        let mut rows: BTreeMap<(usize, String), usize> = BTreeMap::new();
        for block in blocks(&file.text) {
            let line = block.line;
            let first = match block.table {
                Some(table) => {
                    let first = rows.insert((table, block.text), line);
                    first.map(|first| format!("this row of the table stands in line {first} too"))
                }
                None if block.text.split(' ').count() < WORDS_MIN || file.path == CHANGES => None,
                None => {
                    let first = paragraphs.insert(block.text, format!("{}:{line}", file.path));
                    first.map(|first| format!("this paragraph stands in {first} too"))
                }
            };
            found.extend(first.map(|message| Violation::new(&file.path, line, message)));
        }
    }
}

/// The rows of all tables without their heads, and all paragraphs.
fn blocks(text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut tables = 0;
    for (event, range) in markdown::events(text) {
        let table = match event {
            Event::End(TagEnd::Table) => {
                tables += 1;
                continue;
            }
            Event::Start(Tag::TableRow) => Some(tables),
            // The items of a dense list have no paragraphs, and their texts count as one.
            Event::Start(Tag::Paragraph | Tag::Item) => None,
            _ => continue,
        };
        let words: Vec<&str> = text[range.clone()].split_whitespace().collect();
        let line = markdown::line(text, range.start);
        blocks.push(Block { line, text: words.join(" "), table });
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::super::testing::violations;
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        violations(files, check)
    }

    const PARAGRAPH: &str = "one two three four five six\nseven eight nine ten eleven twelve\n";

    #[test]
    fn a_row_that_stands_twice_in_a_table_is_found() {
        let table = "| a | b |\n|---|---|\n| 1 | 2 |\n| 3 | 4 |\n| 1 |  2 |\n";
        let violation = "a.md:5: this row of the table stands in line 3 too";
        assert_eq!(found(&[("a.md", table)]), [violation]);
    }

    #[test]
    fn equal_rows_of_two_tables_are_no_violation() {
        let table = "| a | b |\n|---|---|\n| 1 | 2 |\n";
        assert!(found(&[("a.md", &format!("{table}\n{table}"))]).is_empty());
    }

    #[test]
    fn a_paragraph_that_stands_twice_is_found_in_all_documents() {
        let item = format!("- {}", PARAGRAPH.replace('\n', " "));
        let again = format!("# B\n\n{PARAGRAPH}");
        assert_eq!(
            found(&[("a.md", PARAGRAPH), ("b.md", &again), ("c.txt", PARAGRAPH)]),
            ["b.md:3: this paragraph stands in a.md:1 too"]
        );
        assert_eq!(found(&[("a.md", &format!("{item}\n- other\n{item}\n"))]).len(), 1);
    }

    #[test]
    fn short_paragraphs_code_and_changes_may_stand_twice() {
        assert!(found(&[("a.md", "These are:\n\nx\n\nThese are:\n")]).is_empty());
        let code = format!("```\n{PARAGRAPH}```\n");
        assert!(found(&[("a.md", &format!("{code}\n{code}"))]).is_empty());
        assert!(found(&[("CHANGELOG.md", PARAGRAPH), ("a.md", PARAGRAPH)]).is_empty());
    }
}
