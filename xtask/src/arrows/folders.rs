//! The check of the arrows inside a crate: the modules of its root, which are files and folders,
//! have an order, and arrows point downwards. ARCHITECTURE.md has the order and the exceptions.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::resume_unwind;
use std::thread;

use super::arrow::{self, Arrow, Source};
use super::order::{self, Exception, Order, PATH};
use super::syntax;
use crate::repository::TextFile;

/// The crates whose folders have an order.
const CRATES: [&str; 2] = ["crates/", "compat/"];

/// How many items a crate may have as exceptions.
const ITEMS_MAX: usize = 5;

/// What the check has found.
#[derive(Debug, Default)]
pub(super) struct Report {
    /// One line per violation.
    pub(super) found: Vec<String>,
    /// By the folder of the crate.
    pub(super) listed: BTreeMap<String, Listed>,
}

/// What is worth to be listed of one crate.
#[derive(Debug, Default)]
pub(super) struct Listed {
    /// Items whose use points upwards.
    pub(super) up: Items,
    /// Inherent impls that point downwards.
    pub(super) impls_down: Items,
}

/// Items as from, to and name, with the places of their use.
pub(super) type Items = BTreeMap<[String; 3], Vec<String>>;

/// Checks all crates.
pub(super) fn check(files: &[TextFile]) -> Report {
    let text = files.iter().find(|file| file.path == PATH).map_or("", |file| file.text.as_str());
    let mut orders = order::parse(text);
    let mut report = Report::default();
    // Reading a crate takes most of a second without optimisation.
    thread::scope(|scope| {
        let mut checks = Vec::new();
        for one in crates(files) {
            match orders.remove(&one.folder) {
                Some(order) => checks.push(scope.spawn(move || check_crate(&one, &order))),
                None if one.has_folders() => report.found.push(format!(
                    "{PATH}: {} has folders, and no row in the table \"Order of folders\"",
                    one.folder
                )),
                None => {}
            }
        }
        for check in checks {
            let one = check.join().unwrap_or_else(|panic| resume_unwind(panic));
            report.found.extend(one.found);
            report.listed.extend(one.listed);
        }
    });
    for folder in orders.keys() {
        report.found.push(format!("{PATH}: there is no crate {folder}"));
    }
    report
}

/// One crate.
struct Crate<'f> {
    /// For example `crates/reactor`.
    folder: String,
    files: Vec<&'f TextFile>,
}

fn crates(files: &[TextFile]) -> Vec<Crate<'_>> {
    let mut crates: BTreeMap<&str, Vec<&TextFile>> = BTreeMap::new();
    let is_inside = |path: &str| CRATES.iter().any(|folder| path.starts_with(folder));
    for file in files.iter().filter(|file| file.is_rust() && is_inside(&file.path)) {
        if let Some((folder, _)) = file.path.split_once("/src/") {
            crates.entry(folder).or_default().push(file);
        }
    }
    crates.into_iter().map(|(folder, files)| Crate { folder: folder.to_owned(), files }).collect()
}

impl<'f> Crate<'f> {
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

    /// Its files without those of tests.
    fn sources(&self, found: &mut Vec<String>) -> Vec<Source<'f>> {
        let mut sources = Vec::new();
        let mut tests = Vec::new();
        for &file in &self.files {
            match syntax::parse(&file.text) {
                Ok(syntax) => {
                    let module = self.module(file);
                    let inner = syntax.test_modules.iter();
                    tests.extend(inner.map(|test| [&module[..], test].concat()));
                    sources.push(Source { path: &file.path, module, syntax });
                }
                Err(error) => found.push(format!("{}: {error}", file.path)),
            }
        }
        sources.retain(|source| !tests.iter().any(|test| source.module.starts_with(test)));
        sources
    }
}

fn is_root(module: &[String]) -> bool {
    matches!(module, [only] if only == "lib" || only == "main")
}

fn check_crate(one: &Crate<'_>, order: &Order) -> Report {
    let mut report = Report::default();
    let folder = &one.folder;
    let sources = one.sources(&mut report.found);
    let modules: BTreeSet<&str> =
        sources.iter().filter_map(|source| source.module.first().map(String::as_str)).collect();
    for module in &modules {
        if !order.modules.iter().any(|listed| listed == module) {
            report.found.push(format!("{PATH}: {folder}: the order does not have `{module}`"));
        }
    }
    for listed in &order.modules {
        if !modules.contains(listed.as_str()) {
            let message = format!("{PATH}: {folder}: there is no module `{listed}` in its root");
            report.found.push(message);
        }
    }
    let (up, down): (Vec<Arrow>, Vec<Arrow>) = arrow::read(&sources, &modules, order)
        .into_iter()
        .partition(|arrow| arrow.owner.is_some() || order.is_up(&arrow.from, &arrow.to));
    let mut listed =
        Listed { up: check_arrows(folder, order, &up, &mut report.found), ..Listed::default() };
    for Arrow { place, from, to, item, .. } in down {
        if item.starts_with("impl ") {
            listed.impls_down.entry([from, to, item]).or_default().push(place);
        }
    }
    report.listed.insert(folder.clone(), listed);
    report
}

/// Checks the arrows that point upwards. Returns their items with the places.
fn check_arrows(folder: &str, order: &Order, arrows: &[Arrow], found: &mut Vec<String>) -> Items {
    let mut used = BTreeSet::new();
    let mut rejected: BTreeMap<[String; 3], Vec<&Arrow>> = BTreeMap::new();
    let mut items = Items::new();
    for arrow in arrows {
        let Arrow { place, from, to, item, names, is_reexport, .. } = arrow;
        let excepted = order.exceptions.iter().enumerate().find_map(|(at, exception)| {
            let is_it = |name: &&String| exception.items.contains(name);
            let name = names.iter().find(is_it)?;
            (exception.from == *from && exception.to == *to).then_some((at, name))
        });
        let name = excepted.map(|(_, name)| name).or(names.last()).unwrap_or(item);
        let key = [from.clone(), to.clone(), name.clone()];
        items.entry(key.clone()).or_default().push(place.clone());
        match excepted {
            Some(_) if *is_reexport => found.push(format!(
                "{place}: `{from}` may use `{item}` by an exception, and not re-export it"
            )),
            Some(excepted) => drop(used.insert(excepted)),
            None => rejected.entry(key).or_default().push(arrow),
        }
    }
    for ([from, to, _], arrows) in &rejected {
        let Arrow { place, item, owner, .. } = arrows[0];
        let above = || format!("`{to}` stands above it in the order of folders ({PATH})");
        let why = owner.clone().unwrap_or_else(above);
        let more = match arrows.len() - 1 {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        found.push(format!("{place}{more}: `{from}` may not use `{item}`, because {why}"));
    }
    for (at, Exception { from, to, items, line }) in order.exceptions.iter().enumerate() {
        for item in items.iter().filter(|item| !used.contains(&(at, *item))) {
            found.push(format!(
                "{PATH}:{line}: {folder}: the exception of `{item}` from `{from}` to `{to}` is \
                 not needed; remove it"
            ));
        }
        if items.is_empty() {
            found.push(format!("{PATH}:{line}: {folder}: an exception names its items"));
        }
    }
    check_count(folder, order, found);
    items
}

/// Compares the number of distinct items of the exceptions with the limit.
fn check_count(folder: &str, order: &Order, found: &mut Vec<String>) {
    let items: BTreeSet<&String> = order.exceptions.iter().flat_map(|e| &e.items).collect();
    if items.len() > ITEMS_MAX {
        found.push(format!(
            "{PATH}: {folder} has {} items as exceptions from the order of folders; {ITEMS_MAX} \
             are allowed",
            items.len()
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
    fn found(exceptions: &str, modules: [&str; 3]) -> Vec<String> {
        report(exceptions, modules).found
    }

    fn report(exceptions: &str, [top, middle, low]: [&str; 3]) -> Report {
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
        assert!(up[1].starts_with("crates/x/src/middle.rs:1: `middle` may not use"), "{up:?}");
        assert!(
            up[0].starts_with("crates/x/src/low.rs:1: `low` may not use `middle::M`"),
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
            file(
                "ARCHITECTURE.md",
                "# Order of folders\n| crate | modules |\n|---|---|\n| `crates/x` | `a` > `b` |",
            ),
            file("crates/x/src/a.rs", ""),
            file("crates/x/src/b/mod.rs", "#[cfg(test)]\nmod tests;"),
            file("crates/x/src/b/tests.rs", "use crate::a::A;"),
        ];
        assert_eq!(check(&files).found, Vec::<String>::new());
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
    fn an_inherent_impl_points_to_its_type() {
        let up = found("", ["pub struct Top;", "", "impl crate::top::inner::Top {}"]);
        assert_eq!(up.len(), 2, "{up:?}");
        assert!(up[1].contains("`low` may not use `impl Top`, because `top` stands"), "{up:?}");
        let down = ["impl crate::low::L {}", "impl crate::low::L {}", "struct L; impl L {}"];
        assert_eq!(found("", down), Vec::<String>::new());
        let of_trait = ["pub struct Top;", "", "impl Clone for crate::top::inner::Top {}"];
        assert_eq!(found("", of_trait).len(), 1, "only the import");
    }

    #[test]
    fn a_method_from_above_is_found_where_it_is_called() {
        let impl_above = "impl crate::low::L { pub(crate) fn above(&self) {} }";
        let up = found("", [impl_above, "", "struct L; fn f(l: &L) { l.above(); l.above() }"]);
        assert_eq!(up.len(), 1, "{up:?}");
        let start = "crates/x/src/low.rs:1 and 1 more: `low` may not use `L::above`, because `top`";
        assert!(up[0].starts_with(start), "{up:?}");
        let down = [
            "fn f(l: &crate::low::L) { l.below() }",
            "",
            "struct L; impl L { pub fn below(&self) {} }",
        ];
        assert_eq!(found("", down), Vec::<String>::new());
    }

    #[test]
    fn a_field_from_above_is_found() {
        let top = "pub struct Top { pub(crate) size: u8, own: u8 }";
        let up = found("", [top, "", "fn f(x: &impl Sized) { x.size; x.own }"]);
        assert_eq!(up.len(), 1, "{up:?}");
        assert!(up[0].contains("`low` may not use `Top.size`, because `top` stands"), "{up:?}");
        let down = "fn f(l: &crate::low::L) { l.size }";
        let below = "pub(crate) struct L { pub(crate) size: u8 }";
        assert_eq!(found("", [down, "", below]), Vec::<String>::new());
    }

    #[test]
    fn the_owner_of_a_type_from_above_stands_above_it() {
        let row = "| `crates/x` | `low` | `top` | `Top` | why |\n";
        let top = "pub struct Top; impl crate::low::L { fn g(&self) { self.size } }\n\
                   fn f(l: &crate::low::L) { l.below() }";
        let low = |field: &str| {
            format!(
                "use crate::top::inner::Top; struct L {{ {field}, pub(crate) size: u8 }} \
                 impl L {{ pub(crate) fn below(&self) {{}} }}"
            )
        };
        let up = found(row, [top, "", &low("top: Option<Box<Top>>")]);
        assert_eq!(up.len(), 3, "{up:?}");
        for (line, item) in up.iter().zip(["L.size", "L::below", "impl L"]) {
            let why = format!("`top` may not use `{item}`, because `L.top` owns a `Top` of `top`");
            assert!(line.contains(&why), "{up:?}");
        }
        assert_eq!(found(row, [top, "", &low("top: &'static Top")]), Vec::<String>::new());
        // Another folder above does not reach into what it is owned by.
        let middle = "fn f(l: &crate::low::L) { l.below() }";
        let row = "| `crates/x` | `low` | `top` | `Top` | why |\n";
        assert_eq!(found(row, ["pub struct Top;", middle, &low("top: Top")]), Vec::<String>::new());
    }

    #[test]
    fn what_is_listed_are_items_with_their_places() {
        let row = "| `crates/x` | `low` | `top` | `Top` | why |\n";
        let low = "use crate::top::inner::Top;\nfn f(t: &Top) { t.size; t.size }";
        let listed =
            ["pub struct Top { pub(crate) size: u8 } impl crate::middle::M {}", "struct M;", low];
        let mut report = report(row, listed);
        let listed = report.listed.remove("crates/x").expect("it has folders");
        let counts: Vec<_> =
            listed.up.iter().map(|([_, _, item], places)| (item.as_str(), places.len())).collect();
        assert_eq!(counts, [("Top", 1), ("Top.size", 2)]);
        let down: Vec<_> = listed.impls_down.keys().map(|key| key.join(" ")).collect();
        assert_eq!(down, ["top middle impl M"]);
    }

    #[test]
    fn a_crate_has_five_items_as_exceptions_at_most() {
        let rows = |items: &[&str]| {
            let row = |item: &&str| format!("| `crates/x` | `low` | `top` | `{item}` | why |\n");
            let rows: String = items.iter().map(row).collect();
            order::parse(&format!("{ORDER}{rows}")).remove("crates/x").expect("it is there")
        };
        let count = |items: &[&str]| {
            let mut found = Vec::new();
            check_count("crates/x", &rows(items), &mut found);
            found.concat()
        };
        // One item from two folders counts once.
        assert_eq!(count(&["a", "b", "c", "d", "e", "a"]), "");
        assert!(count(&["a", "b", "c", "d", "e", "f"]).contains("has 6 items"));
    }

    #[test]
    fn a_file_that_is_not_rust_is_found() {
        let found = found("", ["", "fn f(", ""]);
        assert!(found[0].starts_with("crates/x/src/middle.rs: "), "{found:?}");
    }

    #[test]
    fn every_module_has_a_place_and_every_crate_with_folders_an_order() {
        let files = [
            file(
                "ARCHITECTURE.md",
                "# Order of folders\n| crate | modules |\n|---|---|\n| `crates/x` | `gone` |\n\
                 | `crates/z` | `a` |",
            ),
            file("crates/x/src/new.rs", ""),
            file("crates/y/src/folder/mod.rs", ""),
            file("crates/flat/src/lib.rs", ""),
        ];
        let found = check(&files).found;
        assert_eq!(found.len(), 4, "{found:?}");
        for part in
            ["does not have `new`", "no module `gone`", "y has folders", "no crate crates/z"]
        {
            assert!(found.iter().any(|line| line.contains(part)), "{part}: {found:?}");
        }
    }
}
