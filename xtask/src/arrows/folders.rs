//! The arrows inside a crate: the modules of its root, which are files and folders, have an order,
//! and imports point downwards. ARCHITECTURE.md has the order and the exceptions.

use std::collections::{BTreeMap, BTreeSet};

use super::imports::{self, Import};
use crate::repository::TextFile;

/// Where the order stands.
const PATH: &str = "ARCHITECTURE.md";

/// Part of the heading above the tables.
const HEADING: &str = "order of folders";

/// The crates whose folders have an order.
const CRATES: &str = "crates/";

/// How many exceptions a crate may have. The number may only shrink.
const EXCEPTIONS_MAX: usize = 5;

/// The root of a crate, as the tables name it. It may use every module, and no module uses an item
/// that is defined there.
const ROOT: &str = "lib.rs";

/// What ARCHITECTURE.md says about one crate.
#[derive(Debug, Default)]
struct Order {
    /// From the top to the bottom.
    modules: Vec<String>,
    exceptions: Vec<Exception>,
}

/// Imports that may point upwards.
#[derive(Debug, PartialEq, Eq)]
struct Exception {
    from: String,
    to: String,
    items: Vec<String>,
    /// In ARCHITECTURE.md, from 1.
    line: usize,
}

/// One crate with folders.
struct Crate<'f> {
    /// For example `crates/reactor`.
    folder: String,
    files: Vec<&'f TextFile>,
}

/// Checks all crates; returns one line per violation.
pub(super) fn check(files: &[TextFile]) -> Vec<String> {
    let text = files.iter().find(|file| file.path == PATH).map_or("", |file| file.text.as_str());
    let mut orders = parse(text);
    let mut found = Vec::new();
    for one in crates(files) {
        match orders.remove(&one.folder) {
            Some(order) => check_crate(&one, &order, &mut found),
            None if one.has_folders() => found.push(format!(
                "{PATH}: {} has folders, and no row in the table \"Order of folders\"",
                one.folder
            )),
            None => {}
        }
    }
    for folder in orders.keys() {
        found.push(format!("{PATH}: there is no crate {folder}"));
    }
    found
}

/// Reads the two tables. A row with two cells is the order of a crate: `| crate | modules |`. A row
/// with five is an exception: `| crate | from | to | items | reason |`. Names are in backquotes.
fn parse(text: &str) -> BTreeMap<String, Order> {
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

fn crates(files: &[TextFile]) -> Vec<Crate<'_>> {
    let mut crates: BTreeMap<&str, Vec<&TextFile>> = BTreeMap::new();
    for file in files.iter().filter(|file| file.is_rust() && file.path.starts_with(CRATES)) {
        if let Some((folder, _)) = file.path.split_once("/src/") {
            crates.entry(folder).or_default().push(file);
        }
    }
    crates.into_iter().map(|(folder, files)| Crate { folder: folder.to_owned(), files }).collect()
}

impl Crate<'_> {
    /// The path of a file below `src`.
    fn inner<'p>(&self, file: &'p TextFile) -> &'p str {
        &file.path[self.folder.len() + "/src/".len()..]
    }

    fn has_folders(&self) -> bool {
        self.files.iter().any(|file| self.inner(file).contains('/'))
    }

    /// The module of a file; empty for the root.
    fn module(&self, file: &TextFile) -> Vec<String> {
        let path = self.inner(file).trim_end_matches(".rs");
        let mut module: Vec<String> = path.split('/').map(str::to_owned).collect();
        if module.last().is_some_and(|last| last == "mod") || is_root(&module) {
            module.pop();
        }
        module
    }
}

fn is_root(module: &[String]) -> bool {
    matches!(module, [only] if only == "lib" || only == "main")
}

/// One import from a module of the root into another.
#[derive(Debug)]
struct Arrow {
    /// `crates/…/file.rs:line`.
    place: String,
    from: String,
    to: String,
    import: Import,
}

fn check_crate(one: &Crate<'_>, order: &Order, found: &mut Vec<String>) {
    let folder = &one.folder;
    let mut files = Vec::new();
    let mut tests: BTreeSet<Vec<String>> = BTreeSet::new();
    for file in &one.files {
        let module = one.module(file);
        let imports = imports::read(&file.text, &module);
        for name in imports.test_modules {
            let mut test = module.clone();
            test.push(name);
            tests.insert(test);
        }
        files.push((file, module, imports.paths));
    }
    files.retain(|(_, module, _)| !tests.iter().any(|test| module.starts_with(test)));

    let modules: BTreeSet<&str> =
        files.iter().filter_map(|(_, module, _)| module.first().map(String::as_str)).collect();
    for module in &modules {
        if !order.modules.iter().any(|listed| listed == module) {
            found.push(format!("{PATH}: {folder}: the order does not have `{module}`"));
        }
    }
    for listed in &order.modules {
        if !modules.contains(listed.as_str()) {
            found.push(format!("{PATH}: {folder}: there is no module `{listed}` in its root"));
        }
    }
    // The names that the root imports or re-exports, and the module or other crate of each.
    let names: BTreeMap<&str, &str> = files
        .iter()
        .filter(|(_, module, _)| module.is_empty())
        .flat_map(|(_, _, imports)| imports)
        .filter_map(|import| Some((import.name.as_deref()?, import.path.first()?.as_str())))
        .collect();
    let mut arrows = Vec::new();
    for (file, module, imports) in files.iter().filter(|(_, module, _)| !module.is_empty()) {
        for import in imports {
            let first = import.path.first().map_or(ROOT, String::as_str);
            let to = match names.get(first) {
                _ if modules.contains(first) => first,
                Some(to) if modules.contains(to) => to,
                // Another crate's item, which the root re-exports.
                Some(_) => continue,
                None => ROOT,
            };
            arrows.push(Arrow {
                place: format!("{}:{}", file.path, import.line),
                from: module[0].clone(),
                to: to.to_owned(),
                import: import.clone(),
            });
        }
    }
    check_arrows(folder, order, &arrows, found);
}

fn check_arrows(folder: &str, order: &Order, arrows: &[Arrow], found: &mut Vec<String>) {
    let rank = |module: &str| order.modules.iter().position(|listed| listed == module);
    let mut used = vec![BTreeSet::new(); order.exceptions.len()];
    for arrow in arrows.iter().filter(|arrow| arrow.from != arrow.to) {
        let Arrow { place, from, to, import } = arrow;
        if to != ROOT && rank(from) < rank(to) {
            continue;
        }
        let path = import.path.join("::");
        let exception = order.exceptions.iter().position(|e| e.from == *from && e.to == *to);
        let item = exception.and_then(|at| {
            let items = &order.exceptions[at].items;
            let item = import.path.iter().find(|segment| items.contains(segment))?;
            Some((at, item.clone()))
        });
        match item {
            Some(_) if import.is_reexport => found.push(format!(
                "{place}: `{from}` may use `{path}` by an exception, and not re-export it"
            )),
            Some((at, item)) => drop(used[at].insert(item)),
            None => found.push(format!(
                "{place}: `{from}` may not use `{path}`, because `{to}` stands above it in the \
                 order of folders ({PATH})"
            )),
        }
    }
    for (exception, used) in order.exceptions.iter().zip(&used) {
        let Exception { from, to, items, line } = exception;
        for item in items.iter().filter(|item| !used.contains(*item)) {
            found.push(format!(
                "{PATH}:{line}: {folder}: the exception of `{item}` from `{from}` to `{to}` is not \
                 needed; remove it"
            ));
        }
        if items.is_empty() {
            found.push(format!("{PATH}:{line}: {folder}: an exception names its items"));
        }
    }
    let count = order.exceptions.len();
    if count > EXCEPTIONS_MAX {
        found.push(format!(
            "{PATH}: {folder} has {count} exceptions from the order of folders; \
             {EXCEPTIONS_MAX} are allowed"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORDER: &str = "# Order of folders\n| crate | modules |\n|---|---|\n\
        | `crates/x` | `top` > `middle` > `low` |\n\n\
        | crate | from | to | items | reason |\n|---|---|---|---|---|\n";

    fn file(path: &str, text: &str) -> TextFile {
        TextFile { path: path.to_owned(), text: text.to_owned(), ..TextFile::default() }
    }

    /// What is found in a crate with three modules, given the text of each, and exceptions.
    fn found(exceptions: &str, [top, middle, low]: [&str; 3]) -> Vec<String> {
        check(&[
            file("ARCHITECTURE.md", &format!("{ORDER}{exceptions}")),
            file(
                "crates/x/src/lib.rs",
                "mod top; mod middle; mod low; pub use top::inner::Top as Peak; \
                 pub use rustix::io::Errno;",
            ),
            file("crates/x/src/top/mod.rs", "mod inner;"),
            file("crates/x/src/top/inner.rs", top),
            file("crates/x/src/middle.rs", middle),
            file("crates/x/src/low.rs", low),
        ])
    }

    #[test]
    fn imports_point_downwards() {
        let downwards = ["use crate::{low, middle::M}; use super::b;", "use crate::low::L;", ""];
        assert_eq!(found("", downwards), Vec::<String>::new());
        let up =
            found("", ["", "use crate::{Errno, top::inner::Top};", "fn f(x: crate::middle::M) {}"]);
        assert_eq!(up.len(), 2, "{up:?}");
        assert!(up[0].starts_with("crates/x/src/middle.rs:1: `middle` may not use"), "{up:?}");
        assert!(
            up[1].starts_with("crates/x/src/low.rs:1: `low` may not use `middle::M`"),
            "{up:?}"
        );
    }

    #[test]
    fn a_name_of_the_root_is_what_it_stands_for() {
        let up = found("", ["", "", "use crate::Peak;"]);
        assert!(up[0].contains("`low` may not use `Peak`, because `top` stands above"), "{up:?}");
        let own = found("", ["", "", "use crate::Unknown;"]);
        assert!(own[0].contains("because `lib.rs` stands above"), "{own:?}");
    }

    #[test]
    fn tests_may_use_what_they_like() {
        assert!(found("", ["", "", "#[cfg(test)]\nmod tests { use crate::top::T; }"]).is_empty());
        let files = [
            file("ARCHITECTURE.md", "# Order of folders\n| `crates/x` | `a` > `b` |"),
            file("crates/x/src/a.rs", ""),
            file("crates/x/src/b/mod.rs", "#[cfg(test)]\nmod tests;"),
            file("crates/x/src/b/tests.rs", "use crate::a::A;"),
        ];
        assert!(check(&files).is_empty());
    }

    #[test]
    fn an_exception_names_its_items_and_is_used() {
        let row = "| `crates/x` | `low` | `top` | `Top`, `Other` | why |\n";
        let is_used = ["", "", "use crate::{top::inner::Top, top::Other};"];
        assert!(found(row, is_used).is_empty());
        let more = found(row, ["", "", "use crate::top::{Other, Third, inner::Top};"]);
        assert!(more.len() == 1 && more[0].contains("`top::Third`"), "{more:?}");
        let less = found(row, ["", "", "use crate::top::inner::Top;"]);
        assert!(
            less.len() == 1 && less[0].contains("of `Other` from `low` to `top` is not needed")
        );
        let passed_on =
            found(row, ["", "", "pub(crate) use crate::top::inner::Top; use crate::top::Other;"]);
        assert!(passed_on[0].contains("and not re-export it"), "{passed_on:?}");
    }

    #[test]
    fn a_crate_has_five_exceptions_at_most() {
        let row = |at: usize| format!("| `crates/x` | `low` | `top` | `T{at}` | why |\n");
        let rows: String = (0..=EXCEPTIONS_MAX).map(row).collect();
        let too_many = found(&rows, ["", "", ""]);
        assert!(too_many.iter().any(|line| line.contains("has 6 exceptions")), "{too_many:?}");
    }

    #[test]
    fn every_module_has_a_place_and_every_crate_with_folders_an_order() {
        let files = [
            file(
                "ARCHITECTURE.md",
                "# Order of folders\n| `crates/x` | `gone` |\n| `crates/z` | `a` |",
            ),
            file("crates/x/src/new.rs", ""),
            file("crates/y/src/folder/mod.rs", ""),
            file("crates/flat/src/lib.rs", ""),
        ];
        let found = check(&files);
        assert_eq!(found.len(), 4, "{found:?}");
        assert!(found[0].contains("does not have `new`") && found[1].contains("no module `gone`"));
        assert!(
            found[2].contains("crates/y has folders") && found[3].contains("no crate crates/z")
        );
    }
}
