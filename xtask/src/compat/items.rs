//! The public items of a crate, from rustdoc's JSON, in a form in which those of two crates can be
//! compared.
//!
//! 1. An item has a line for each public path. It begins with its kind and path, and ends with its
//!    signature.
//! 2. A type of the crate is named by its shortest public path, one of another crate by where it is
//!    defined, but one of a compared crate by its name alone. Aliases of the crate are replaced by
//!    what they stand for.
//! 3. Names of parameters, documents and attributes are left out.
//! 4. Of implementations, those of traits are lines with the trait and the type. The automatic ones
//!    are `Send`, `Sync` and `Unpin`, without their conditions.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result};
use serde_json::{Map, Value, json};

/// The automatic traits that callers depend on.
const AUTO_TRAITS: [&str; 3] = ["Send", "Sync", "Unpin"];

/// Traits that the compiler derives for itself.
const INTERNAL_TRAITS: [&str; 1] = ["StructuralPartialEq"];

/// Reads the lines of a crate.
///
/// # Errors
///
/// The text is not what rustdoc writes.
pub(super) fn read(json: &str) -> Result<BTreeSet<String>> {
    let document: Value = serde_json::from_str(json).context("the JSON of rustdoc")?;
    let mut crate_ = Crate { document: &document, names: BTreeMap::new() };
    let root = document["root"].clone();
    crate_.name_items(&root, "crate", &mut BTreeSet::new());
    let mut lines = BTreeSet::new();
    crate_.list(&root, "crate", &mut lines, &mut BTreeSet::new());
    Ok(lines)
}

struct Crate<'d> {
    document: &'d Value,
    /// The shortest public path of each item of the crate.
    names: BTreeMap<String, String>,
}

/// The keys of an object whose name has no part in a signature.
const LEFT_OUT: [&str; 6] = ["id", "docs", "span", "attrs", "links", "has_body"];

impl<'d> Crate<'d> {
    fn item(&self, id: &Value) -> Option<&'d Value> {
        self.document["index"].get(key(id))
    }

    /// The items of a module with their names, those that it exports from elsewhere included.
    fn members(&self, module: &Value) -> Vec<(String, Value)> {
        let Some(item) = self.item(module) else { return Vec::new() };
        let ids = item["inner"]["module"]["items"].as_array().into_iter().flatten();
        let mut members = Vec::new();
        for id in ids {
            let Some(item) = self.item(id).filter(|item| item["visibility"] == "public") else {
                continue;
            };
            let exported = &item["inner"]["use"];
            if exported.is_object() {
                members.push((text(&exported["name"]), exported["id"].clone()));
            } else {
                members.push((text(&item["name"]), id.clone()));
            }
        }
        members
    }

    fn name_items(&mut self, module: &Value, path: &str, seen: &mut BTreeSet<String>) {
        if !seen.insert(key(module)) {
            return;
        }
        for (name, id) in self.members(module) {
            let Some(item) = self.item(&id) else { continue };
            let path = format!("{path}::{name}");
            let known = self.names.entry(key(&id)).or_insert_with(|| path.clone());
            if (path.len(), &path) < (known.len(), known) {
                known.clone_from(&path);
            }
            if item["inner"]["module"].is_object() {
                self.name_items(&id, &path, seen);
            }
        }
        seen.remove(&key(module));
    }

    fn list(
        &self,
        module: &Value,
        path: &str,
        lines: &mut BTreeSet<String>,
        seen: &mut BTreeSet<String>,
    ) {
        if !seen.insert(key(module)) {
            return;
        }
        for (name, id) in self.members(module) {
            let path = format!("{path}::{name}");
            match self.item(&id) {
                Some(item) if item["inner"]["module"].is_object() => {
                    lines.insert(format!("module {path}"));
                    self.list(&id, &path, lines, seen);
                }
                Some(item) => self.list_item(item, &path, lines),
                None => {
                    lines.insert(format!("use {path} = {}", self.canonical(&id, &name)));
                }
            }
        }
        seen.remove(&key(module));
    }

    fn list_item(&self, item: &Value, path: &str, lines: &mut BTreeSet<String>) {
        let Some((kind, inner)) = item["inner"].as_object().and_then(|inner| inner.iter().next())
        else {
            return;
        };
        match kind.as_str() {
            "struct" | "enum" | "union" => {
                let fields = inner["kind"]["plain"]["fields"].as_array();
                let children = fields.or(inner["variants"].as_array());
                let generics = self.signature(&inner["generics"]);
                lines.insert(format!("{kind} {path} {generics}"));
                for id in children.into_iter().flatten() {
                    if let Some(child) = self.item(id) {
                        self.list_child(child, path, lines);
                    }
                }
                self.list_impls(&inner["impls"], path, lines);
            }
            "trait" => {
                let mut head = inner.clone();
                if let Some(head) = head.as_object_mut() {
                    head.remove("items");
                    head.remove("implementations");
                }
                lines.insert(format!("trait {path} {}", self.signature(&head)));
                for id in inner["items"].as_array().into_iter().flatten() {
                    if let Some(child) = self.item(id) {
                        self.list_child(child, path, lines);
                    }
                }
                self.list_impls(&inner["implementations"], path, lines);
            }
            _ => {
                lines.insert(format!("{kind} {path} {}", self.signature(inner)));
            }
        }
    }

    /// A field, variant, method or associated type.
    fn list_child(&self, child: &Value, path: &str, lines: &mut BTreeSet<String>) {
        let Some((kind, inner)) = child["inner"].as_object().and_then(|inner| inner.iter().next())
        else {
            return;
        };
        let path = format!("{path}::{}", text(&child["name"]));
        let fields = [&inner["kind"]["tuple"], &inner["kind"]["struct"]["fields"]];
        let fields = fields.into_iter().filter_map(Value::as_array).flatten();
        let types: Vec<_> = fields
            .map(|id| {
                let field = self.item(id);
                let name = field.map(|field| text(&field["name"])).unwrap_or_default();
                let signature = field.map(|field| self.signature(&field["inner"]));
                format!("{name}: {}", signature.unwrap_or_default())
            })
            .collect();
        let signature = match kind.as_str() {
            "variant" => types.join(", "),
            _ => self.signature(inner),
        };
        lines.insert(format!("{kind} {path} {signature}"));
    }

    fn list_impls(&self, impls: &Value, path: &str, lines: &mut BTreeSet<String>) {
        for id in impls.as_array().into_iter().flatten() {
            let Some(item) = self.item(id) else { continue };
            let inner = &item["inner"]["impl"];
            if inner["trait"].is_null() {
                for id in inner["items"].as_array().into_iter().flatten() {
                    if let Some(child) = self.item(id).filter(|it| it["visibility"] == "public") {
                        self.list_child(child, path, lines);
                        let conditions = self.signature(&inner["generics"]["where_predicates"]);
                        let name = text(&child["name"]);
                        lines.insert(format!("conditions of {path}::{name} {conditions}"));
                    }
                }
                continue;
            }
            let name = text(&inner["trait"]["path"]);
            let name = name.rsplit("::").next().unwrap_or_default();
            let is_hidden = !inner["blanket_impl"].is_null() || INTERNAL_TRAITS.contains(&name);
            if is_hidden {
                continue;
            }
            if inner["is_synthetic"] == true {
                if AUTO_TRAITS.contains(&name) {
                    let not = if inner["is_negative"] == true { "not " } else { "" };
                    lines.insert(format!("auto {path}: {not}{name}"));
                }
                continue;
            }
            let trait_ = self.signature(&inner["trait"]);
            lines.insert(format!("impl {trait_} for {}", self.signature(&inner["for"])));
        }
    }

    /// The path of a type: the public one, or where another crate defines it.
    fn canonical(&self, id: &Value, written: &str) -> String {
        if let Some(name) = self.names.get(&key(id)) {
            return name.clone();
        }
        let known = &self.document["paths"][key(id)];
        if known["crate_id"] == 0 || known.is_null() {
            return written.rsplit("::").next().unwrap_or_default().to_owned();
        }
        let parts: Vec<_> = known["path"].as_array().into_iter().flatten().map(text).collect();
        match &parts[..] {
            // One pair may be below the other. Where its crates define a type is their own matter.
            [first, .., last] if ["tungstenite", "windlass_tungstenite"].contains(&&**first) => {
                format!("tungstenite::..::{last}")
            }
            [first] if first == "windlass_tungstenite" => "tungstenite".to_owned(),
            parts => parts.join("::"),
        }
    }

    fn signature(&self, value: &Value) -> String {
        self.normal(value).to_string()
    }

    /// The value as rules 2 and 3 say.
    fn normal(&self, value: &Value) -> Value {
        match value {
            Value::Array(values) => values.iter().map(|value| self.normal(value)).collect(),
            Value::Object(object) => {
                if let (Some(id), Some(path)) = (object.get("id"), object.get("path")) {
                    let args = self.normal(object.get("args").unwrap_or(&Value::Null));
                    return json!({ (self.canonical(id, &text(path))): args });
                }
                if let Some(expanded) = object.get("resolved_path").and_then(|it| self.expand(it)) {
                    return self.normal(&expanded);
                }
                let mut normal = Map::new();
                for (key, value) in object {
                    if LEFT_OUT.contains(&key.as_str()) {
                        continue;
                    }
                    let value = match value.as_array() {
                        // Pairs of a name and a type.
                        Some(inputs) if key == "inputs" => {
                            inputs.iter().map(|input| self.normal(&input[1])).collect()
                        }
                        _ => self.normal(value),
                    };
                    normal.insert(key.clone(), value);
                }
                Value::Object(normal)
            }
            other => other.clone(),
        }
    }

    /// What an alias of the crate stands for.
    fn expand(&self, path: &Value) -> Option<Value> {
        let alias = &self.item(&path["id"])?["inner"]["type_alias"];
        let target = alias.get("type")?;
        let given = path["args"]["angle_bracketed"]["args"].as_array();
        let mut given = given.into_iter().flatten().map(|arg| &arg["type"]);
        let mut meant = BTreeMap::new();
        for param in alias["generics"]["params"].as_array()? {
            let value = given.next().unwrap_or(&param["kind"]["type"]["default"]);
            meant.insert(text(&param["name"]), value.clone());
        }
        Some(substituted(target, &meant))
    }
}

/// The type with its parameters replaced.
fn substituted(value: &Value, meant: &BTreeMap<String, Value>) -> Value {
    match value {
        Value::Array(values) => values.iter().map(|value| substituted(value, meant)).collect(),
        Value::Object(object) => {
            if let Some(value) = object.get("generic").and_then(|name| meant.get(&text(name))) {
                return value.clone();
            }
            let entries = object.iter();
            entries.map(|(key, value)| (key.clone(), substituted(value, meant))).collect()
        }
        other => other.clone(),
    }
}

fn key(id: &Value) -> String {
    id.to_string()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(name: &str, alias: bool) -> String {
        let text = json!({ "primitive": "str" });
        let of = |path: &str, id: u32| {
            let path = json!({ "path": path, "id": id, "args": null });
            json!({ "resolved_path": path })
        };
        let output = if alias { of("Text", 4) } else { text.clone() };
        let item = |name: &str, inner: Value| {
            let visibility = "public";
            json!({ "name": name, "visibility": visibility, "docs": name, "inner": inner })
        };
        let sig = json!({ "inputs": [[name, of("Kept", 3)]], "output": output });
        let alias = json!({ "type": text, "generics": { "params": [] } });
        json!({
            "root": 0,
            "index": {
                "0": item("x", json!({ "module": { "items": [1, 2, 4] } })),
                "1": item("call", json!({ "function": { "sig": sig } })),
                "2": item("", json!({ "use": { "name": "Out", "id": 9 } })),
                "4": item("Text", json!({ "type_alias": alias })),
            },
            "paths": { "9": { "crate_id": 7, "path": ["other", "Out"] } },
        })
        .to_string()
    }

    #[test]
    fn names_of_parameters_and_aliases_do_not_count() {
        let lines = read(&document("a", true)).expect("it is JSON");
        assert_eq!(lines, read(&document("b", false)).expect("it is JSON"));
        let text: Vec<_> = lines.iter().map(String::as_str).collect();
        assert_eq!(text.len(), 3);
        assert!(text[0].starts_with("function crate::call "), "{text:?}");
        assert!(text[0].contains(r#""Kept":null"#), "{text:?}");
        assert_eq!(text[2], "use crate::Out = other::Out");
    }
}
