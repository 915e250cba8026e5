//! What a program reads of Markdown: the rows of tables, and the numbers of lists.

use std::ops::Range;

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

/// A row of a table. The head of a table is none.
#[derive(Debug, Default)]
pub(crate) struct Row {
    /// In small letters, of the section.
    pub(crate) heading: String,
    /// From 1.
    pub(crate) line: usize,
    /// The words in backquotes of each cell.
    pub(crate) cells: Vec<Vec<String>>,
}

/// An item of a numbered list.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Item {
    /// In small letters, of the section.
    pub(crate) heading: String,
    pub(crate) number: u32,
}

/// The rows of all tables.
pub(crate) fn rows(text: &str) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    let mut is_head = true;
    read(text, |heading, event, range| match event {
        Event::Start(Tag::TableHead) => is_head = true,
        Event::Start(Tag::TableRow) => {
            is_head = false;
            let heading = heading.to_owned();
            rows.push(Row { heading, line: line(text, range.start), cells: Vec::new() });
        }
        Event::Start(Tag::TableCell) if !is_head => {
            rows.iter_mut().last().into_iter().for_each(|row| row.cells.push(Vec::new()));
        }
        Event::Code(code) if !is_head => {
            let cell = rows.last_mut().and_then(|row| row.cells.last_mut());
            cell.into_iter().for_each(|cell| cell.push(code.to_string()));
        }
        Event::End(TagEnd::Table) => is_head = true,
        _ => {}
    });
    rows
}

/// The items of numbered lists that stand in no other list.
pub(crate) fn items(text: &str) -> Vec<Item> {
    let mut items = Vec::new();
    let mut depth = 0;
    read(text, |heading, event, range| match event {
        Event::Start(Tag::List(_)) => depth += 1,
        Event::End(TagEnd::List(_)) => depth -= 1,
        Event::Start(Tag::Item) if depth == 1 => {
            let number = text[range].split('.').next().and_then(|number| number.parse().ok());
            items.extend(number.map(|number| Item { heading: heading.to_owned(), number }));
        }
        _ => {}
    });
    items
}

/// The line of a byte, from 1.
pub(crate) fn line(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

/// The events of a text, tables included.
pub(crate) fn events(text: &str) -> impl Iterator<Item = (Event<'_>, Range<usize>)> {
    Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter()
}

/// Calls `take` with each event and the heading above it.
fn read<'t>(text: &'t str, mut take: impl FnMut(&str, Event<'t>, Range<usize>)) {
    let mut heading = String::new();
    for (event, range) in events(text) {
        if let Event::Start(Tag::Heading { .. }) = event {
            heading = text[range.clone()].trim_matches(['#', ' ', '\n']).to_lowercase();
        }
        take(&heading, event, range);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_the_words_in_backquotes_of_each_cell() {
        let text = "# A\n`x`\n\n| `h` | i |\n|---|---|\n| `a \\| b`, `c` | d |\n\
                    | e | `f` |\n\n`y`\n\
                    ## B `c`\n\n| g |\n|---|\n| `j` |\n";
        let read: Vec<(String, usize, Vec<Vec<String>>)> =
            rows(text).into_iter().map(|row| (row.heading, row.line, row.cells)).collect();
        let cells = |cells: &[&[&str]]| -> Vec<Vec<String>> {
            cells.iter().map(|cell| cell.iter().map(|word| (*word).to_owned()).collect()).collect()
        };
        let expected = [
            ("a".to_owned(), 6, cells(&[&["a | b", "c"], &[]])),
            ("a".to_owned(), 7, cells(&[&[], &["f"]])),
            ("b `c`".to_owned(), 14, cells(&[&["j"]])),
        ];
        assert_eq!(read, expected);
    }

    #[test]
    fn items_of_lists_inside_of_lists_and_without_numbers_are_none() {
        let text = "1. no heading\n\n# A\n\n1. One.\n   2. more\n2. Two.\n   - 3. x\n\n- 4. y\n";
        let read: Vec<(String, u32)> =
            items(text).into_iter().map(|item| (item.heading, item.number)).collect();
        assert_eq!(read, [(String::new(), 1), ("a".to_owned(), 1), ("a".to_owned(), 2)]);
    }
}
