//! The order of the folders of each crate, and the exceptions, as ARCHITECTURE.md has them.

use std::collections::BTreeMap;

use crate::markdown;

/// Where the order stands.
pub(super) const PATH: &str = "ARCHITECTURE.md";

/// Part of the heading above the tables.
const HEADING: &str = "order of folders";

/// The root of a crate, as the tables name it. It may use every module, and no module uses an item
/// that is defined there.
pub(super) const ROOT: &str = "lib.rs";

/// What ARCHITECTURE.md says about one crate.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// From the top to the bottom.
    pub(super) modules: Vec<String>,
    pub(super) exceptions: Vec<Exception>,
}

/// Items whose use may point upwards.
#[derive(Debug)]
pub(super) struct Exception {
    pub(super) from: String,
    pub(super) to: String,
    pub(super) items: Vec<String>,
    /// In ARCHITECTURE.md, from 1.
    pub(super) line: usize,
}

impl Order {
    /// Whether an arrow between modules of the root points upwards.
    pub(super) fn is_up(&self, from: &str, to: &str) -> bool {
        let rank = |module| self.modules.iter().position(|listed| listed == module);
        // The root has no place in the order.
        from != ROOT && from != to && rank(from) >= rank(to)
    }
}

/// Reads the two tables. A row with two cells is the order of a crate: `| crate | modules |`. A row
/// with five is an exception: `| crate | from | to | items | reason |`. Names are in backquotes.
pub(super) fn parse(text: &str) -> BTreeMap<String, Order> {
    let mut orders: BTreeMap<String, Order> = BTreeMap::new();
    for row in markdown::rows(text).into_iter().filter(|row| row.heading.contains(HEADING)) {
        let Some([folder]) = row.cells.first().map(Vec::as_slice) else { continue };
        let order = orders.entry(folder.clone()).or_default();
        match row.cells.as_slice() {
            [_, modules] => order.modules.extend(modules.iter().cloned()),
            [_, from, to, items, _] => order.exceptions.push(Exception {
                from: from.concat(),
                to: to.concat(),
                items: items.clone(),
                line: row.line,
            }),
            _ => {}
        }
    }
    orders
}
