//! The arrows inside a crate: what one module of its root uses of another.
//!
//! 1. An import, or another path, points to the module that declares the item.
//! 2. An inherent impl points to the module of its type.
//! 3. The use of a field or a method points to the module that declares it.
//! 4. A type that owns a value of a type from above stands above the module of that one. So the
//!    arrows of the rules 2 and 3 from there to it point upwards, in any order of the modules.

use std::collections::{BTreeMap, BTreeSet};

use super::imports::{self, Import};
use super::members::Types;
use super::order::{Order, ROOT};
use super::syntax::Syntax;
use super::uses::{self, Use};

/// A file of a crate.
pub(super) struct Source<'f> {
    pub(super) path: &'f str,
    pub(super) module: Vec<String>,
    pub(super) syntax: Syntax,
}

impl Source<'_> {
    /// An arrow from a line of this file to a module.
    fn arrow(&self, line: usize, to: &[String], item: String) -> Arrow {
        Arrow {
            place: format!("{}:{line}", self.path),
            from: first(&self.module).to_owned(),
            to: first(to).to_owned(),
            names: vec![item.clone()],
            item,
            is_reexport: false,
            owner: None,
        }
    }
}

/// The module of the root that a module is in.
fn first(module: &[String]) -> &str {
    module.first().map_or(ROOT, String::as_str)
}

/// The use of an item in one module of the root by another.
pub(super) struct Arrow {
    /// `crates/…/file.rs:line`.
    pub(super) place: String,
    pub(super) from: String,
    pub(super) to: String,
    /// A path, `impl Type`, `Type.field` or `Type::method`.
    pub(super) item: String,
    /// The names by which an exception may have it.
    pub(super) names: Vec<String>,
    pub(super) is_reexport: bool,
    /// Why rule 4 applies.
    pub(super) owner: Option<String>,
}

/// The arrows of a crate between modules of its root.
pub(super) fn read(sources: &[Source<'_>], modules: &BTreeSet<&str>, order: &Order) -> Vec<Arrow> {
    let mut arrows = imports(sources, modules);
    arrows.extend(members(sources, order));
    arrows.retain(|arrow| arrow.from != arrow.to && arrow.from != ROOT);
    arrows
}

/// The arrows of rule 1.
fn imports(sources: &[Source<'_>], modules: &BTreeSet<&str>) -> Vec<Arrow> {
    let read = |source: &Source<'_>| imports::read(&source.syntax, &source.module);
    let imports: Vec<Vec<Import>> = sources.iter().map(read).collect();
    // The names that the root imports or re-exports, and the module or other crate of each.
    let names: BTreeMap<&str, &str> = sources
        .iter()
        .zip(&imports)
        .filter(|(source, _)| source.module.is_empty())
        .flat_map(|(_, imports)| imports)
        .filter_map(|import| Some((import.name.as_deref()?, import.path.first()?.as_str())))
        .collect();
    let mut arrows = Vec::new();
    for (source, imports) in sources.iter().zip(&imports) {
        for import in imports {
            let to = match import.path.first().map(String::as_str) {
                Some(module) if modules.contains(module) => &import.path[..1],
                Some(name) => match names.get(name) {
                    Some(module) if modules.contains(module) => &[(*module).to_owned()],
                    // Another crate's item, which the root re-exports.
                    Some(_) => continue,
                    None => &[][..],
                },
                None => &[],
            };
            arrows.push(Arrow {
                names: import.path.clone(),
                is_reexport: import.is_reexport,
                ..source.arrow(import.line, to, import.path.join("::"))
            });
        }
    }
    arrows
}

/// The arrows of the rules 2 and 3.
fn members(sources: &[Source<'_>], order: &Order) -> Vec<Arrow> {
    let types = Types::read(sources.iter().map(|source| (&source.syntax, &source.module[..])));
    let owners = owners(&types, order);
    let owner = |of: usize, source: &Source<'_>| owners.get(&(of, first(&source.module))).cloned();
    let mut arrows = Vec::new();
    for inherent in &types.impls {
        let (of, source) = (&types.list[inherent.of], &sources[inherent.file]);
        let arrow = source.arrow(inherent.line, &of.module, format!("impl {}", of.name));
        arrows.push(Arrow { owner: owner(inherent.of, source), ..arrow });
    }
    for source in sources {
        for Use { of, name, line } in uses::read(&types, &source.syntax, &source.module) {
            let declared = &types.list[of];
            let module = &declared.members[&name].module;
            let arrow = source.arrow(line, module, format!("{}{name}", declared.name));
            arrows.push(Arrow { owner: owner(of, source), ..arrow });
        }
    }
    arrows
}

/// The types of rule 4, as type and module from above, with the reason.
fn owners<'t>(types: &'t Types<'_>, order: &Order) -> BTreeMap<(usize, &'t str), String> {
    let mut owners = BTreeMap::new();
    for (of, owner) in types.list.iter().enumerate() {
        for (name, member) in &owner.members {
            let Some(owned) = types.owned(of, name) else { continue };
            let (owned, to) = (&types.list[owned].name, first(&types.list[owned].module));
            if order.is_up(first(&member.module), to) {
                let why = format!("`{}{name}` owns a `{owned}` of `{to}`", owner.name);
                owners.insert((of, to), why);
            }
        }
    }
    owners
}
