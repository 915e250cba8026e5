//! The order of the folders of each crate, and the exceptions, as ARCHITECTURE.md has them.

use std::collections::BTreeMap;

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
    let mut is_here = false;
    for (index, line) in text.lines().enumerate() {
        if line.starts_with('#') {
            is_here = line.to_lowercase().contains(HEADING);
        }
        let Some(row) = line.strip_prefix('|').filter(|_| is_here) else { continue };
        let cells: Vec<Vec<String>> = row.trim_end_matches('|').split('|').map(names).collect();
        let [folder] = cells[0].as_slice() else { continue };
        let order = orders.entry(folder.clone()).or_default();
        match cells.as_slice() {
            [_, modules] => order.modules.extend(modules.iter().cloned()),
            [_, from, to, items, _] => order.exceptions.push(Exception {
                from: from.concat(),
                to: to.concat(),
                items: items.clone(),
                line: index + 1,
            }),
            _ => {}
        }
    }
    orders
}

/// The words in backquotes.
fn names(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}
