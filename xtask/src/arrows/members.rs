//! The types of a crate, with their fields and methods.

use std::collections::BTreeMap;

use syn::visit::{self, Visit};
use syn::{
    Fields, GenericArgument, Ident, ImplItem, ItemEnum, ItemImpl, ItemMacro, ItemMod, ItemStruct,
    ItemTrait, ItemUnion, PathArguments, ReturnType, TraitItem, Type, Visibility,
};

use super::syntax::{self, Syntax};

/// The types that a crate declares. One is named by its index in `list`.
#[derive(Default)]
pub(super) struct Types<'s> {
    pub(super) list: Vec<Declared<'s>>,
    by_name: BTreeMap<String, Vec<usize>>,
    /// For each member, the only type that has one of this name.
    owners: BTreeMap<String, Option<usize>>,
    pub(super) impls: Vec<Inherent>,
}

pub(super) struct Declared<'s> {
    pub(super) name: String,
    pub(super) module: Vec<String>,
    /// By their names as in `.field` and `::method`.
    pub(super) members: BTreeMap<String, Member<'s>>,
}

pub(super) struct Member<'s> {
    /// Where it is declared. A method may stand outside the folder of its type.
    pub(super) module: Vec<String>,
    /// The type of the field, or of what the method returns.
    ty: Option<&'s Type>,
    /// Other folders of the crate can name it.
    pub(super) is_shared: bool,
}

/// An inherent impl.
pub(super) struct Inherent {
    pub(super) of: usize,
    pub(super) module: Vec<String>,
    /// The index of its file.
    pub(super) file: usize,
    pub(super) line: usize,
}

/// The type of an expression.
#[derive(Clone, Copy)]
pub(super) struct Typed {
    pub(super) of: usize,
    /// It is an `Option` or a `Result` of it.
    pub(super) is_wrapped: bool,
}

impl Typed {
    pub(super) const fn plain(of: usize) -> Self {
        Self { of, is_wrapped: false }
    }
}

/// Types that lead to the members of their first parameter.
const TRANSPARENT: &[&str] =
    &["Arc", "Box", "ManuallyDrop", "Pin", "Rc", "Ref", "RefCell", "RefMut"];

impl<'s> Types<'s> {
    /// Reads what the files of a crate declare, given with their modules.
    pub(super) fn read(files: impl Iterator<Item = (&'s Syntax, &'s [String])>) -> Self {
        let mut reader =
            Reader { types: Self::default(), impls: Vec::new(), file: 0, module: Vec::new() };
        for (file, (syntax, module)) in files.enumerate() {
            (reader.file, reader.module) = (file, module.to_vec());
            syntax.items.iter().for_each(|item| reader.visit_item(item));
        }
        let Reader { mut types, impls, .. } = reader;
        for (item, inherent) in impls {
            types.enter(item, inherent);
        }
        types
    }

    fn declare(&mut self, name: &Ident, fields: Option<&'s Fields>, module: &[String]) {
        let of = self.list.len();
        let mut members = BTreeMap::new();
        for field in fields.into_iter().flatten() {
            let Some(name) = &field.ident else { continue };
            let name = format!(".{name}");
            self.claim(&name, Some(of));
            members.insert(name, Member::new(module, Some(&field.ty), &field.vis));
        }
        self.by_name.entry(name.to_string()).or_default().push(of);
        self.list.push(Declared { name: name.to_string(), module: module.to_vec(), members });
    }

    fn enter(&mut self, item: &'s ItemImpl, mut inherent: Inherent) {
        let module = &inherent.module;
        let Some(Typed { of, .. }) = self.typed(&item.self_ty, None, module) else { return };
        for item in &item.items {
            let ImplItem::Fn(item) = item else { continue };
            let name = format!("::{}", item.sig.ident);
            self.claim(&name, Some(of));
            let ty = match &item.sig.output {
                ReturnType::Default => None,
                ReturnType::Type(_, ty) => Some(&**ty),
            };
            self.list[of].members.insert(name, Member::new(module, ty, &item.vis));
        }
        inherent.of = of;
        self.impls.push(inherent);
    }

    /// Notes who has a member of this name: a type, or a trait.
    fn claim(&mut self, name: &str, of: Option<usize>) {
        let owner = self.owners.entry(name.to_owned()).or_insert(of);
        *owner = owner.filter(|owner| of == Some(*owner));
    }

    /// The only type with a member of this name.
    pub(super) fn owner(&self, name: &str) -> Option<usize> {
        self.owners.get(name).copied().flatten()
    }

    /// The type that `ty` is in a module, where `Self` is `own`.
    pub(super) fn typed(&self, ty: &Type, own: Option<usize>, module: &[String]) -> Option<Typed> {
        let last = match ty {
            Type::Group(ty) => return self.typed(&ty.elem, own, module),
            Type::Paren(ty) => return self.typed(&ty.elem, own, module),
            Type::Ptr(ty) => return self.typed(&ty.elem, own, module),
            Type::Reference(ty) => return self.typed(&ty.elem, own, module),
            Type::Path(ty) if ty.qself.is_none() => ty.path.segments.last()?,
            _ => return None,
        };
        let name = last.ident.to_string();
        let is_wrapped = name == "Option" || name == "Result";
        if !is_wrapped && !TRANSPARENT.contains(&name.as_str()) {
            return self.named(&name, own, module).map(Typed::plain);
        }
        let PathArguments::AngleBracketed(arguments) = &last.arguments else { return None };
        let inner = arguments.args.iter().find_map(|argument| match argument {
            GenericArgument::Type(ty) => Some(ty),
            _ => None,
        })?;
        let inner = self.typed(inner, own, module)?;
        Some(Typed { is_wrapped: is_wrapped || inner.is_wrapped, ..inner })
    }

    /// The type of this name: the only one in the crate, in this folder, or in this module.
    pub(super) fn named(&self, name: &str, own: Option<usize>, module: &[String]) -> Option<usize> {
        if name == "Self" {
            return own;
        }
        let all = self.by_name.get(name)?;
        [0, 1, module.len()].into_iter().find_map(|depth| {
            let is_near = |of: &&usize| self.list[**of].module.get(..depth) == module.get(..depth);
            let mut near = all.iter().filter(is_near);
            near.next().copied().filter(|_| near.next().is_none())
        })
    }

    /// The member of this name, as `.field` or `::method`.
    pub(super) fn member(&self, of: usize, name: &str) -> Option<&Member<'s>> {
        self.list[of].members.get(name)
    }

    /// The type of a field, or of what a method returns.
    pub(super) fn member_type(&self, of: usize, name: &str) -> Option<Typed> {
        let member = self.member(of, name)?;
        self.typed(member.ty?, Some(of), &member.module)
    }

    /// The type that a field owns a value of.
    pub(super) fn owned(&self, of: usize, name: &str) -> Option<usize> {
        let is_view = matches!(self.member(of, name)?.ty?, Type::Reference(_) | Type::Ptr(_));
        let typed = self.member_type(of, name).filter(|_| name.starts_with('.') && !is_view);
        typed.map(|typed| typed.of)
    }
}

impl<'s> Member<'s> {
    fn new(module: &[String], ty: Option<&'s Type>, visibility: &Visibility) -> Self {
        let is_shared = match visibility {
            Visibility::Public(_) => true,
            Visibility::Restricted(to) if to.path.is_ident("super") => module.len() < 2,
            Visibility::Restricted(to) => to.path.is_ident("crate"),
            Visibility::Inherited => module.is_empty(),
        };
        Self { module: module.to_vec(), ty, is_shared }
    }
}

struct Reader<'s> {
    types: Types<'s>,
    /// They are entered when all types are known.
    impls: Vec<(&'s ItemImpl, Inherent)>,
    file: usize,
    module: Vec<String>,
}

impl<'s> Visit<'s> for Reader<'s> {
    fn visit_item_mod(&mut self, item: &'s ItemMod) {
        self.module.push(item.ident.to_string());
        visit::visit_item_mod(self, item);
        self.module.pop();
    }

    fn visit_item_struct(&mut self, item: &'s ItemStruct) {
        self.types.declare(&item.ident, Some(&item.fields), &self.module);
    }

    fn visit_item_enum(&mut self, item: &'s ItemEnum) {
        self.types.declare(&item.ident, None, &self.module);
    }

    fn visit_item_union(&mut self, item: &'s ItemUnion) {
        self.types.declare(&item.ident, None, &self.module);
    }

    fn visit_item_trait(&mut self, item: &'s ItemTrait) {
        for item in &item.items {
            if let TraitItem::Fn(item) = item {
                self.types.claim(&format!("::{}", item.sig.ident), None);
            }
        }
    }

    fn visit_item_macro(&mut self, item: &'s ItemMacro) {
        // A macro may declare a member by each of its names that does not follow a dot.
        let tokens = syntax::flat(item.mac.tokens.clone());
        for window in tokens.windows(2).filter(|window| window[0].0 != ".") {
            self.types.claim(&format!(".{}", window[1].0), None);
            self.types.claim(&format!("::{}", window[1].0), None);
        }
    }

    fn visit_item_impl(&mut self, item: &'s ItemImpl) {
        if item.trait_.is_none() {
            let line = item.impl_token.span.start().line;
            let module = self.module.clone();
            self.impls.push((item, Inherent { of: 0, module, file: self.file, line }));
        }
        for item in item.items.iter().filter(|_| item.trait_.is_some()) {
            if let ImplItem::Fn(item) = item {
                self.types.claim(&format!("::{}", item.sig.ident), None);
            }
        }
        visit::visit_item_impl(self, item);
    }
}
