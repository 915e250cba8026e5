//! Rules about the crates that can be published: each package is complete by itself.

use super::Violation;
use crate::metadata::Package;
use crate::repository::TextFile;

/// Where the crates are that users depend on. All of them can be published.
const CRATES: [&str; 2] = ["crates/", "compat/"];

/// The exception: the tools of tests.
const TESTKIT: &str = "windlass-testkit";

/// The keys of each manifest. A key may be inherited from the workspace.
const KEYS: &[&str] =
    &["categories", "description", "edition", "include", "keywords", "license", "readme"];

/// Further keys of a library's manifest.
const LIBRARY_KEYS: &[&str] = &["documentation", "rust-version"];

/// Files of each package. Licences are symbolic links to those of the repository, which cargo
/// replaces by their content.
const FILES: &[&str] = &["LICENSE-APACHE", "LICENSE-MIT", "README.md"];

/// Checks all packages.
pub(super) fn check(files: &[TextFile], packages: &[Package], found: &mut Vec<Violation>) {
    let is_checked = |package: &&Package| {
        CRATES.iter().any(|folder| package.folder.starts_with(folder)) && package.name != TESTKIT
    };
    for package in packages.iter().filter(is_checked) {
        let manifest = format!("{}/Cargo.toml", package.folder);
        if !package.is_published {
            found.push(Violation::new(
                &manifest,
                0,
                "a crate in `crates` or `compat` can be published",
            ));
        }
        let text = files.iter().find(|file| file.path == manifest).map_or("", |file| &file.text);
        let library = if package.is_library() { LIBRARY_KEYS } else { &[] };
        for key in KEYS.iter().chain(library).filter(|key| !has_key(text, key)) {
            found.push(Violation::new(&manifest, 0, format!("`{key}` is missing")));
        }
        for name in FILES {
            let path = format!("{}/{name}", package.folder);
            if !files.iter().any(|file| file.path == path) {
                found.push(Violation::new(&path, 0, "is missing, and each package has it"));
            }
        }
        let folder = format!("{}/", package.folder);
        let inside = files.iter().filter_map(|file| Some((file, file.path.strip_prefix(&folder)?)));
        for (file, path) in inside.filter(|(_, path)| path.starts_with("src/")) {
            check_includes(file, path, found);
        }
    }
}

/// Whether the section `[package]` has the key.
fn has_key(manifest: &str, key: &str) -> bool {
    let package =
        manifest.lines().take_while(|line| !line.starts_with('[') || *line == "[package]");
    let mut keys = package.filter_map(|line| line.split(['=', '.', ' ']).next());
    keys.any(|found| found == key)
}

/// Source files do not include files from outside of their package, where `path` begins.
fn check_includes(file: &TextFile, path: &str, found: &mut Vec<Violation>) {
    // The directories of the file inside the package.
    let depth = path.matches('/').count();
    for (index, line) in file.text.lines().enumerate() {
        let includes = ["include_str!(\"", "include_bytes!(\"", "include!(\"", "path = \""];
        let leaves = includes.iter().any(|start| {
            line.split(start).skip(1).any(|rest| {
                let included = rest.split('"').next().unwrap_or_default();
                included.matches("../").count() > depth
            })
        });
        if leaves {
            let message = "includes a file from outside of its package, which a package lacks";
            found.push(Violation::new(&file.path, index + 1, message));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::Target;

    const MANIFEST: &str = "[package]\nname = \"a\"\ndescription = \"x\"\n\
        edition.workspace = true\nlicense.workspace = true\nrust-version.workspace = true\n\
        readme = \"README.md\"\ndocumentation = \"x\"\nkeywords = []\ncategories = []\n\
        include = []\n\n[dependencies]\n";

    fn found(manifest: &str, is_published: bool, more: &[(&str, &str)]) -> Vec<String> {
        let target = Target { kind: "lib".to_owned(), ..Target::default() };
        let package = Package {
            folder: "crates/a".to_owned(),
            is_published,
            targets: vec![target],
            ..Package::default()
        };
        let mut files = vec![("Cargo.toml", manifest), ("LICENSE-MIT", ""), ("README.md", "")];
        files.extend(more);
        let file = |(path, text): &(&str, &str)| TextFile {
            path: format!("crates/a/{path}"),
            text: (*text).to_owned(),
            ..TextFile::default()
        };
        let files: Vec<TextFile> = files.iter().map(file).collect();
        let mut found = Vec::new();
        check(&files, &[package], &mut found);
        found.iter().map(ToString::to_string).collect()
    }

    const APACHE: (&str, &str) = ("LICENSE-APACHE", "");

    #[test]
    fn a_complete_package_is_in_order() {
        assert!(found(MANIFEST, true, &[APACHE]).is_empty());
    }

    #[test]
    fn a_package_that_cannot_be_published_is_found() {
        let found = found(MANIFEST, false, &[APACHE]);
        assert_eq!(
            found,
            ["crates/a/Cargo.toml: a crate in `crates` or `compat` can be published"]
        );
    }

    #[test]
    fn missing_keys_and_files_are_found() {
        let manifest = MANIFEST.replace("keywords = []\n", "").replace("documentation", "homepage");
        let expected = [
            "crates/a/Cargo.toml: `keywords` is missing",
            "crates/a/Cargo.toml: `documentation` is missing",
            "crates/a/LICENSE-APACHE: is missing, and each package has it",
        ];
        assert_eq!(found(&manifest, true, &[]), expected);
        // Another section's key is not the package's.
        let manifest = manifest + "keywords = \"1\"\ndocumentation = \"1\"\n";
        assert_eq!(found(&manifest, true, &[APACHE]), expected[..2]);
    }

    #[test]
    fn a_source_file_includes_nothing_from_outside() {
        let inside = ("src/x/y.rs", "include_str!(\"../../docs/a.md\")\n#[path = \"../z.rs\"]");
        assert!(found(MANIFEST, true, &[APACHE, inside]).is_empty());
        let outside = ("src/lib.rs", "mod x;\n#[doc = include_str!(\"../../../docs/a.md\")]");
        let found = found(MANIFEST, true, &[APACHE, outside]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("crates/a/src/lib.rs:2: includes a file from outside"));
    }
}
