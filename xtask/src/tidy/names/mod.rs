//! One name, one type: no two public types of the libraries have the same name, unless the list
//! below gives a reason.
//!
//! A type is public if a path from a crate's root leads to it, through public modules and public
//! re-exports. One type that several crates re-export counts once.

mod parse;

use std::collections::{BTreeMap, BTreeSet};

use self::parse::Module;
use super::{RustFile, Violation};
use crate::metadata::Package;

/// Names that several types have, each with the reason. A name that no longer needs its line is an
/// error, so that the list can only shrink.
///
/// A program that uses windlass-websocket imports that crate alone, so its types have the plain
/// names that other crates for WebSockets use too.
const REASONS: &[(&str, &str)] = &[
    ("Piece", "a piece of a received message; of the engine, or lent by a socket"),
    ("AcceptError", "why a stream's handshake failed; that of the engine is one of its causes"),
    ("CloseCode", "a code of the engine; as a number in the module that is like axum's"),
    ("CloseFrame", "the contents of a Close frame; in the module that is like axum's, as there"),
    ("WebSocket", "a socket on any stream; in the module that is like axum's, as there"),
    ("Config", "the settings of sockets; that of the engine is made from them"),
    ("Message", "a message that owns its payload; that of the server is lent to a handler"),
    ("Prepared", "a message encoded for many sockets of a runtime; or for those of the server"),
    ("ReuniteError", "the halves of different sockets; of a stream, or of a WebSocket"),
    ("Role", "server or client; that of the engine has the source of masking keys with it"),
    ("SendError", "why a socket did not send a message; or the server"),
    ("Timer", "a timer of any runtime; that of the reactor is an entry in its wheel"),
    (
        "Sender",
        "the sending half of a bounded queue between threads, as `std::sync::mpsc` calls it; that \
         of the server sends to connections",
    ),
    (
        "Workers",
        "one loop a thread: a reactor each in the crate of the reactor, an executor each in that \
         of tasks",
    ),
];

/// Where the libraries are.
const LIBRARIES: &str = "crates/";

/// Public types by name. Each has the path of its definition, crate first, and the file and line of
/// the definition. A type of another project has the path and the place of an import.
type Exports = BTreeMap<String, BTreeMap<String, Place>>;

/// A file and a line from 1.
type Place = (String, usize);

/// A public type.
struct Export {
    definition: String,
    place: Place,
}

/// Checks the libraries of the workspace.
pub(super) fn check(files: &[RustFile<'_>], packages: &[Package], found: &mut Vec<Violation>) {
    check_exports(&exports(files, packages), REASONS, found);
}

/// How many names several public types have, listed or not.
pub(super) fn count_shared(files: &[RustFile<'_>], packages: &[Package]) -> usize {
    exports(files, packages).values().filter(|exports| exports.len() > 1).count()
}

fn check_exports(exports: &Exports, reasons: &[(&str, &str)], found: &mut Vec<Violation>) {
    for (name, exports) in exports {
        let is_listed = reasons.iter().any(|(listed, _)| listed == name);
        let Some((_, (file, line))) = exports.first_key_value() else { continue };
        if exports.len() < 2 || is_listed {
            continue;
        }
        let paths: Vec<&str> = exports.keys().map(String::as_str).collect();
        let message = format!(
            "several public types are called `{name}`: {}; rename one, or list the name with a \
             reason in xtask/src/tidy/names/mod.rs",
            paths.join(", ")
        );
        found.push(Violation::new(file, *line, message));
    }
    for (name, _) in reasons {
        if exports.get(*name).is_none_or(|exports| exports.len() < 2) {
            let message = format!("lists `{name}`, which at most one public type is called");
            found.push(Violation::new("xtask/src/tidy/names/mod.rs", 0, message));
        }
    }
}

fn exports(files: &[RustFile<'_>], packages: &[Package]) -> Exports {
    let workspace = Workspace::read(files, packages);
    let mut exports = Exports::new();
    for name in workspace.roots() {
        workspace.export(&[name.to_owned()], &mut BTreeSet::new(), &mut exports);
    }
    exports
}

/// A module's path, crate first.
type Path = Vec<String>;

/// All modules of all libraries.
struct Workspace {
    modules: BTreeMap<Path, (String, Module)>,
}

/// The meaning of a name.
enum Target {
    Type(Export),
    Module(Path),
}

impl Workspace {
    fn read(files: &[RustFile<'_>], packages: &[Package]) -> Self {
        let files: BTreeMap<&str, &RustFile<'_>> =
            files.iter().map(|file| (file.path, file)).collect();
        let mut workspace = Self { modules: BTreeMap::new() };
        // Users do not meet the names of the tools of tests.
        let is_library = |package: &&Package| {
            package.folder.starts_with(LIBRARIES) && package.name != "windlass-testkit"
        };
        for package in packages.iter().filter(is_library) {
            for target in package.targets.iter().filter(|target| target.kind == "lib") {
                if let Some(root) = files.get(target.path.as_str()) {
                    let folder = target.path.rsplit_once('/').map_or("", |(folder, _)| folder);
                    let module = parse::module(root.text);
                    let path = vec![target.name.replace('-', "_")];
                    workspace.add(&files, path, &target.path, folder, module);
                }
            }
        }
        workspace
    }

    /// Adds a module that stands in `file` and whose modules have their files in `folder`.
    fn add(
        &mut self,
        files: &BTreeMap<&str, &RustFile<'_>>,
        path: Path,
        file: &str,
        folder: &str,
        module: Module,
    ) {
        for child in &module.modules {
            let mut path = path.clone();
            path.push(child.name.clone());
            let folder = format!("{folder}/{}", child.name);
            if let Some(inline) = &child.inline {
                self.add(files, path, file, &folder, inline.clone());
                continue;
            }
            let candidates = [format!("{folder}.rs"), format!("{folder}/mod.rs")];
            if let Some(file) = candidates.iter().find_map(|name| files.get(name.as_str())) {
                let module = parse::module(file.text);
                self.add(files, path, file.path, &folder, module);
            }
        }
        self.modules.insert(path, (file.to_owned(), module));
    }

    fn roots(&self) -> impl Iterator<Item = &str> {
        self.modules.keys().filter(|path| path.len() == 1).map(|path| path[0].as_str())
    }

    /// Enters all public types of a module and of its public modules.
    fn export(&self, path: &[String], seen: &mut BTreeSet<Path>, exports: &mut Exports) {
        let Some((file, module)) = self.modules.get(path) else {
            return;
        };
        if !seen.insert(path.to_vec()) {
            return;
        }
        for one in module.types.iter().filter(|one| one.is_public) {
            enter(exports, &one.name, self.definition(path, file, &one.name, one.line));
        }
        for child in module.modules.iter().filter(|child| child.is_public) {
            self.export(&joined(path, &child.name), seen, exports);
        }
        for import in module.imports.iter().filter(|import| import.is_public) {
            if import.name == "*" {
                let module = &import.path[..import.path.len() - 1];
                if let Some(Target::Module(module)) = self.resolve(path, module, (file, 0), 0) {
                    self.export(&module, seen, exports);
                }
                continue;
            }
            match self.resolve(path, &import.path, (file, import.line), 0) {
                Some(Target::Type(export)) => enter(exports, &import.name, export),
                Some(Target::Module(module)) => self.export(&module, seen, exports),
                None => {}
            }
        }
    }

    fn definition(&self, module: &[String], file: &str, name: &str, line: usize) -> Export {
        let definition = joined(module, name).join("::");
        Export { definition, place: (file.to_owned(), line) }
    }

    /// Resolves the path of an import in module `from` to a type or a module. `place` is that of
    /// the import, for types of other projects.
    fn resolve(
        &self,
        from: &[String],
        path: &[String],
        place: (&str, usize),
        depth: usize,
    ) -> Option<Target> {
        // Imports that form a circle are no Rust.
        if depth > 16 {
            return None;
        }
        let (first, rest) = path.split_first()?;
        let mut module = match first.as_str() {
            "crate" => vec![from[0].clone()],
            "self" => from.to_vec(),
            "super" => from[..from.len() - 1].to_vec(),
            name => match self.named(from, name, place, depth) {
                Some(Target::Module(module)) => module,
                Some(target) => return rest.is_empty().then_some(target),
                None if self.modules.contains_key(std::slice::from_ref(first)) => {
                    vec![first.clone()]
                }
                // A function or a constant of this module.
                None if rest.is_empty() => return None,
                None => return by_name(path, place),
            },
        };
        for (index, name) in rest.iter().enumerate() {
            if name == "super" {
                module.pop();
                continue;
            }
            let is_last = index + 1 == rest.len();
            match self.named(&module, name, place, depth) {
                Some(Target::Module(next)) => module = next,
                Some(target) => return is_last.then_some(target),
                // A macro may have written the type.
                None if is_last => return by_name(&joined(&module, name), place),
                None => return None,
            }
        }
        Some(Target::Module(module))
    }

    /// Resolves `name` inside `module`.
    fn named(
        &self,
        module: &[String],
        name: &str,
        place: (&str, usize),
        depth: usize,
    ) -> Option<Target> {
        let (file, items) = self.modules.get(module)?;
        if let Some(one) = items.types.iter().find(|one| one.name == name) {
            return Some(Target::Type(self.definition(module, file, name, one.line)));
        }
        if items.modules.iter().any(|child| child.name == name) {
            return Some(Target::Module(joined(module, name)));
        }
        let import = items.imports.iter().find(|import| import.name == name)?;
        // `use rustix;` and `use self::x::x`: the name inside is another one.
        if import.path.len() == 1 && import.path[0] == name {
            return None;
        }
        self.resolve(module, &import.path, place, depth + 1)
    }
}

fn enter(exports: &mut Exports, name: &str, export: Export) {
    let types = exports.entry(name.to_owned()).or_default();
    types.entry(export.definition).or_insert(export.place);
}

/// A type whose definition cannot be read: it is of another project, or a macro writes it. Its
/// letters distinguish it from functions and constants.
fn by_name(path: &[String], (file, line): (&str, usize)) -> Option<Target> {
    let name = path.last()?;
    let is_type = name.starts_with(char::is_uppercase) && name.contains(char::is_lowercase);
    let definition = path.join("::");
    is_type.then(|| Target::Type(Export { definition, place: (file.to_owned(), line) }))
}

fn joined(path: &[String], name: &str) -> Path {
    let mut path = path.to_vec();
    path.push(name.to_owned());
    path
}

#[cfg(test)]
mod tests {
    use super::super::testing::rust;
    use super::*;
    use crate::metadata::Target as CargoTarget;

    fn package(name: &str) -> Package {
        Package {
            name: name.to_owned(),
            folder: format!("crates/{name}"),
            targets: vec![CargoTarget {
                name: name.to_owned(),
                kind: "lib".to_owned(),
                path: format!("crates/{name}/src/lib.rs"),
                is_tested: true,
            }],
            ..Package::default()
        }
    }

    /// Public names with their definitions, of the crates `a` and `b`.
    fn read(files: &[(&str, &str)]) -> Exports {
        let paths: Vec<String> = files.iter().map(|(path, _)| format!("crates/{path}")).collect();
        let files: Vec<RustFile<'_>> =
            paths.iter().zip(files).map(|(path, (_, text))| rust(path, text)).collect();
        exports(&files, &[package("a"), package("b")])
    }

    fn definitions(exports: &Exports, name: &str) -> Vec<String> {
        let exports = exports.get(name).cloned().unwrap_or_default();
        exports.into_keys().collect()
    }

    #[test]
    fn types_are_followed_through_modules_and_re_exports() {
        let exports = read(&[
            ("a/src/lib.rs", "mod x; pub mod y; pub use x::{Inner as Outer, Other, z};"),
            (
                "a/src/x/mod.rs",
                "pub struct Inner; pub struct Unseen; mod w; pub use w::Other;\
                 pub mod z { pub struct Deep; }",
            ),
            ("a/src/x/w.rs", "pub(crate) struct Hidden; pub enum Other {}"),
            ("a/src/y.rs", "pub trait Seen {} use super::x::Unseen; pub use crate::x::w::*;"),
        ]);
        let names: Vec<&str> = exports.keys().map(String::as_str).collect();
        assert_eq!(names, ["Deep", "Other", "Outer", "Seen"]);
        assert_eq!(definitions(&exports, "Outer"), ["a::x::Inner"]);
        assert_eq!(definitions(&exports, "Other"), ["a::x::w::Other"]);
        assert_eq!(exports["Deep"]["a::x::z::Deep"], ("crates/a/src/x/mod.rs".into(), 1));
    }

    #[test]
    fn one_type_that_several_crates_export_counts_once() {
        let exports = read(&[
            ("a/src/lib.rs", "mod x; pub use x::One; pub use rustix::io::Errno;"),
            ("a/src/x.rs", "pub struct One;"),
            ("b/src/lib.rs", "pub use a::One; pub use rustix::io::Errno;"),
        ]);
        assert_eq!(definitions(&exports, "One"), ["a::x::One"]);
        assert_eq!(definitions(&exports, "Errno"), ["rustix::io::Errno"]);
    }

    #[test]
    fn a_type_that_a_macro_writes_is_found_where_it_is_re_exported() {
        let exports = read(&[
            ("a/src/lib.rs", "mod x; pub use x::{Stats, f};"),
            ("a/src/x.rs", "macro_rules! stats { () => { pub struct Stats; } }\nstats!();"),
        ]);
        assert_eq!(definitions(&exports, "Stats"), ["a::x::Stats"]);
        assert_eq!(exports.len(), 1);
    }

    #[test]
    fn functions_constants_and_imports_for_the_module_itself_are_no_types() {
        let exports = read(&[
            ("a/src/lib.rs", "mod x; pub use x::{f, MAX}; use x::Mine; pub use other::{g, LIMIT};"),
            ("a/src/x.rs", "pub fn f() {} pub const MAX: u8 = 1; pub struct Mine;"),
        ]);
        assert!(exports.is_empty(), "{exports:?}");
    }

    fn violations(reasons: &[(&str, &str)]) -> Vec<String> {
        let exports = read(&[
            ("a/src/lib.rs", "\npub struct Same; pub struct Own;"),
            ("b/src/lib.rs", "pub enum Same {}"),
        ]);
        let mut found = Vec::new();
        check_exports(&exports, reasons, &mut found);
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn two_types_of_one_name_need_a_reason() {
        let found = violations(&[]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with(
            "crates/a/src/lib.rs:2: several public types are called `Same`: a::Same, b::Same;"
        ));
        assert!(violations(&[("Same", "both are of one RFC")]).is_empty());
    }

    #[test]
    fn a_reason_for_a_name_that_is_not_shared_is_an_error() {
        let found = violations(&[("Same", "x"), ("Own", "y"), ("Gone", "z")]);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("lists `Own`"));
    }
}
