//! Rules about manifests: each dependency has a reason, and comes from the public registry.

use toml::de::DeTable;

use super::Violation;
use crate::repository::TextFile;

/// Checks one file, if it is a manifest or a lock file.
pub(super) fn check(file: &TextFile, found: &mut Vec<Violation>) {
    let name = file.path.rsplit('/').next().unwrap_or_default();
    match name {
        "Cargo.toml" => check_reasons(file, found),
        "Cargo.lock" => check_sources(file, found),
        _ => {}
    }
}

/// A dependency from outside the repository has a comment above it that states its purpose. One
/// comment serves a family of names with the same beginning, such as `serde` and `serde_json`. For
/// inherited dependencies, the comment is in the workspace's manifest.
fn check_reasons(file: &TextFile, found: &mut Vec<Violation>) {
    // Cargo reports a manifest that is no TOML.
    let Ok(manifest) = DeTable::parse(&file.text) else { return };
    let mut dependencies = Vec::new();
    collect(manifest.get_ref(), &mut dependencies);
    dependencies.sort_unstable();
    let lines: Vec<&str> = file.text.lines().map(str::trim).collect();
    // The last dependency with a comment.
    let mut explained = (0, "-");
    for (at, name, is_ours) in dependencies {
        let index = file.text[..at].matches('\n').count();
        let is_family = name.starts_with(explained.1) && !lines[explained.0..index].contains(&"");
        if index > 0 && lines[index - 1].starts_with('#') {
            explained = (index, name);
        } else if !is_family && !is_ours {
            let message =
                format!("dependency `{name}` needs a comment above it that states its purpose");
            found.push(Violation::new(&file.path, index + 1, message));
        }
    }
}

/// The dependencies of all tables of a manifest: where each stands, its name, and whether it is
/// inherited or of this repository.
fn collect<'t>(table: &'t DeTable<'_>, found: &mut Vec<(usize, &'t str, bool)>) {
    for (key, value) in table {
        let Some(table) = value.get_ref().as_table() else { continue };
        if !key.get_ref().ends_with("dependencies") {
            collect(table, found);
            continue;
        }
        found.extend(table.iter().map(|(name, value)| {
            let is_ours =
                ["workspace", "path"].iter().any(|key| value.get_ref().get(key).is_some());
            (name.span().start, name.get_ref().as_ref(), is_ours)
        }));
    }
}

/// The public registry. The address of a mirror works in one network only.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

fn check_sources(file: &TextFile, found: &mut Vec<Violation>) {
    for (index, line) in file.text.lines().enumerate() {
        let Some(source) = line.strip_prefix("source = ") else {
            continue;
        };
        if source.trim_matches('"') != REGISTRY {
            let message = format!("{source} is not the public registry");
            found.push(Violation::new(&file.path, index + 1, message));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::lines;
    use super::*;

    fn found_in(path: &str, text: &str) -> Vec<usize> {
        let file = TextFile { path: path.to_owned(), text: text.to_owned(), ..TextFile::default() };
        lines(|found| check(&file, found))
    }

    #[test]
    fn a_dependency_needs_its_reason() {
        let text = "[workspace.dependencies]\nours = { path = \"x\" }\n\n\
                    # Sockets.\na = \"1\"\nb = \"1\"\n";
        assert_eq!(found_in("Cargo.toml", text), [6]);
    }

    #[test]
    fn a_family_shares_one() {
        let text =
            "[workspace.dependencies]\n# JSON.\nserde = \"1\"\nserde_json = \"1\"\nother = \"1\"\n";
        assert_eq!(found_in("Cargo.toml", text), [5]);
    }

    #[test]
    fn an_empty_line_separates_a_comment_from_what_follows() {
        assert_eq!(found_in("a/Cargo.toml", "[dependencies]\n# x\n\na = \"1\"\n"), [4]);
    }

    #[test]
    fn an_inherited_dependency_needs_no_comment() {
        let text = "[dependencies]\na.workspace = true\n\
                    b = { workspace = true, optional = true }\n[lints]\nworkspace = true\n";
        assert!(found_in("a/Cargo.toml", text).is_empty());
    }

    #[test]
    fn values_over_lines_and_tables_are_followed() {
        let text = "[dependencies]\n# x\na = { version = \"1\", features = [\n  \"f\",\n] }\n\
                    b = \"1\"\n[dependencies.c]\nversion = \"1\"\n";
        assert_eq!(found_in("a/Cargo.toml", text), [6, 7]);
    }

    #[test]
    fn other_tables_are_not_dependencies() {
        assert!(
            found_in("Cargo.toml", "[package]\nname = \"a\"\n[features]\nmock = []\n").is_empty()
        );
    }

    #[test]
    fn a_mirror_in_the_lock_file_is_found() {
        let text =
            format!("source = \"{REGISTRY}\"\nsource = \"sparse+https://mirror.example/\"\n");
        assert_eq!(found_in("Cargo.lock", &text), [2]);
    }
}
