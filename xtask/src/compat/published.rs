//! The examples, documentation tests and unit tests of the published packages, on our crates.
//!
//! 1. Each package is copied to the target directory, and its library replaced: it exports ours.
//!    Its benchmarks are left out.
//! 2. Examples and integration tests stay as they are. Cargo compiles the former with the tests. A
//!    module that only the tests need stays too.
//! 3. A documentation test becomes one of the new library.
//! 4. The unit tests of a file move to an integration test. There `crate` is the library, and
//!    `super` the public module of the file, with what the file imports from other crates.
//! 5. Tests that use private items are in [`PRIVATE`], with the reason. An entry that names no test
//!    is an error, and so is a test that does not compile. One for 32-bit targets is left out.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use toml::Table;

use super::{PAIRS, Pair};
use crate::command::Cmd;
use crate::output::{Output, print};
use crate::{registry, repository};

/// Unit tests that cannot run here: package, file, test and reason.
const PRIVATE: &[(&str, &str, &str, &str)] = &[
    ("tungstenite", "buffer.rs", "reading_in_chunks", "reads a private field of `ReadBuffer`"),
    ("tungstenite", "protocol/frame/frame.rs", "format_into_buf", "calls a private method"),
    ("tungstenite", "protocol/frame/mask.rs", "test_apply_mask", "calls private functions"),
    (
        "tungstenite",
        "protocol/mod.rs",
        "size_limiting_text_fragmented",
        "has a struct expression of `WebSocketConfig`, which is non-exhaustive",
    ),
    (
        "tungstenite",
        "protocol/mod.rs",
        "size_limiting_binary",
        "has a struct expression of `WebSocketConfig`, which is non-exhaustive",
    ),
    ("tokio-tungstenite", "lib.rs", "web_socket_stream_has_traits", "names a private type"),
];

/// The version of a package that uses ours by a patch, which has the name and version of theirs. A
/// lock tells packages of one name apart by their versions.
const RENAMED: &str = "0.0.0";

/// Development dependencies that only benchmarks have.
const OF_BENCHMARKS: [&str; 2] = ["criterion", "input_buffer"];

/// The crates whose imports in a file are those of its tests too.
const IMPORTED: [&str; 4] = ["std", "core", "bytes", "http"];

/// Compiles the examples and runs the tests of all packages. Returns whether all pass.
///
/// # Errors
///
/// If a package has another form than this module expects.
pub(super) fn run() -> Result<bool> {
    let root = repository::root();
    let commands = match commands(&root, &mut Output::Live)? {
        Err(reason) => {
            print(&format!("the tests of the published packages: skipped: {reason}\n"));
            return Ok(true);
        }
        Ok(commands) => commands,
    };
    let mut passed = true;
    for command in commands {
        passed &= command.build(&root).status()?.success();
    }
    Ok(passed)
}

/// Writes the packages, and returns the commands that run their tests, or why they cannot be had.
///
/// # Errors
///
/// If a package has another form than this module expects.
pub(crate) fn commands(root: &Path, output: &mut Output) -> Result<Result<Vec<Cmd>, String>> {
    let folder = repository::target(root).join("compat").join("published");
    fs::create_dir_all(&folder)?;
    for pair in PAIRS {
        let source = match source(root, pair)? {
            Ok(source) => source,
            Err(reason) => return Ok(Err(reason)),
        };
        let counts = write_package(root, pair, &source, &folder.join(pair.theirs), output)
            .with_context(|| format!("the package {} {}", pair.theirs, pair.version))?;
        output.say(&format!("{} {} on {}: {counts}\n", pair.theirs, pair.version, pair.ours));
    }
    let members: Vec<_> = PAIRS.iter().map(|pair| pair.theirs).collect();
    let manifest = format!(
        "[workspace]\nmembers = {members:?}\nresolver = \"2\"\n\n[profile.dev]\ndebug = 0\n"
    );
    fs::write(folder.join("Cargo.toml"), manifest)?;
    fs::copy(root.join("Cargo.lock"), folder.join("Cargo.lock"))?;
    if let Err(reason) = registry::cargo(&folder, &["fetch", "--quiet"])? {
        return Ok(Err(reason));
    }
    // One by one, because examples of both have the same names.
    let test = |pair: &Pair| {
        let version = if pair.patch.is_some() { RENAMED } else { pair.version };
        let package = format!("{}@{version}", pair.theirs);
        let test = Cmd::cargo(["test", "--no-fail-fast", "--package", &package]);
        let test = test.args(pair.for_tests.map(|_| "--all-features"));
        test.directory(&folder).target("compat")
    };
    Ok(Ok(PAIRS.iter().map(test).collect()))
}

/// The folder of a published package, which cargo has downloaded, or why it has not.
fn source(root: &Path, pair: &Pair) -> Result<Result<PathBuf, String>> {
    let folder = super::generate(root, pair)?;
    let metadata = match registry::metadata(&folder)? {
        Ok(metadata) => metadata,
        Err(reason) => return Ok(Err(reason)),
    };
    let packages = metadata["packages"].as_array().context("packages of cargo metadata")?;
    let is_it =
        |package: &&Value| package["name"] == pair.theirs && package["version"] == pair.version;
    let manifest = packages.iter().find(is_it).and_then(|it| it["manifest_path"].as_str());
    let manifest = Path::new(manifest.context("the package is no dependency")?);
    Ok(Ok(manifest.parent().context("the manifest is in a folder")?.to_path_buf()))
}

/// Writes a package whose library is ours. Returns what it has, for the reader.
fn write_package(
    root: &Path,
    pair: &Pair,
    source: &Path,
    folder: &Path,
    output: &mut Output,
) -> Result<String> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    for part in ["src", "tests", "examples"] {
        fs::create_dir_all(folder.join(part))?;
    }
    let [examples, integration] = ["examples", "tests"].map(|part| copy(source, folder, part));
    let (examples, integration) = (examples?, integration?);
    let theirs = fs::read_to_string(source.join("Cargo.toml"))?;
    let ours = root.join("compat").join(pair.theirs);
    let table = fs::read_to_string(ours.join("Cargo.toml"))?.parse()?;
    let mut manifest = manifest(&theirs, &table, pair, &ours)?;

    let (theirs, ours) = (pair.theirs.replace('-', "_"), pair.ours.replace('-', "_"));
    let mut library = format!("pub use {ours}::*;\n");
    if let Some((module, feature)) = pair.for_tests {
        writeln!(library, "\n#[cfg(feature = {feature:?})]\npub mod {module};")?;
        for file in sources(&source.join("src").join(module))? {
            let file = Path::new("src").join(module).join(file);
            fs::create_dir_all(folder.join(&file).parent().context("it is in a folder")?)?;
            fs::copy(source.join(&file), folder.join(&file))?;
        }
    }
    let mut tests = format!("#![allow(unused_imports)]\n\npub use {theirs}::*;\n");
    let (mut documents, mut units, mut left_out) = (0, 0, BTreeSet::new());
    for file in sources(&source.join("src"))? {
        let text = fs::read_to_string(source.join("src").join(&file))?;
        let module = file.trim_end_matches(".rs").trim_end_matches("/mod").replace('/', "::");
        for example in documentation_tests(&text) {
            documents += 1;
            writeln!(library, "\n{example}pub const _{documents}: () = ();")?;
        }
        let is_private =
            |test: &str| PRIVATE.iter().any(|it| [it.0, it.1, it.2] == [pair.theirs, &*file, test]);
        let (unit, names) = without(&unit_tests(&text).unwrap_or_default(), is_private)?;
        names.check(&text).with_context(|| format!("src/{file}"))?;
        units += names.kept.len();
        left_out.extend(names.left_out.into_iter().map(|name| (file.clone(), name)));
        if !names.kept.is_empty() {
            let parent = fs::read_to_string(source.join("src").join(parent(&file)))?;
            tests.push_str(&tested_module(&theirs, &module, &parent, &imports(&text), &unit));
        }
    }
    for (package, file, test, reason) in PRIVATE {
        if *package == pair.theirs {
            let known = left_out.contains(&((*file).to_owned(), (*test).to_owned()));
            ensure!(known, "src/{file} has no test {test}, although xtask/src/compat says so");
            output.say(&format!("not run: {package}, src/{file}, {test}: it {reason}\n"));
        }
    }
    ensure!(examples + integration > 0, "there are neither examples nor integration tests");
    ensure!(documents > 0, "there are no documentation tests");
    ensure!(units + left_out.len() > 0, "there are no unit tests");
    fs::write(folder.join("src/lib.rs"), library)?;
    if units > 0 {
        fs::write(folder.join("tests/unit.rs"), tests)?;
        // Theirs says that cargo is not to look for targets.
        manifest.push_str("\n[[test]]\nname = \"unit\"\npath = \"tests/unit.rs\"\n");
    }
    fs::write(folder.join("Cargo.toml"), manifest)?;
    Ok(format!(
        "{examples} examples, {integration} files of integration tests, {documents} documentation \
         tests, {units} unit tests, {} not run",
        left_out.len()
    ))
}

/// Copies a folder of a package, if there is one. Returns the number of its Rust files.
fn copy(source: &Path, folder: &Path, part: &str) -> Result<usize> {
    let mut count = 0;
    if source.join(part).exists() {
        for entry in fs::read_dir(source.join(part))? {
            let entry = entry?;
            fs::copy(entry.path(), folder.join(part).join(entry.file_name()))?;
            count += usize::from(entry.path().extension().is_some_and(|it| it == "rs"));
        }
    }
    Ok(count)
}

/// The manifest with our crate in place of what their library needs, and without benchmarks. Cargo
/// has written theirs, with one table for each dependency.
fn manifest(theirs: &str, ours: &Table, pair: &Pair, path: &Path) -> Result<String> {
    let mut made = String::new();
    for section in sections(theirs) {
        let name = section.lines().next().unwrap_or_default().trim_matches(['[', ']']);
        let tool = name.strip_prefix("dev-dependencies.").unwrap_or_default();
        let is_optional = section.contains("\noptional = true\n");
        let is_left_out = ["bench", "features"].contains(&name)
            || name.starts_with("profile.")
            || OF_BENCHMARKS.contains(&tool)
            // Tests name `http`.
            || (is_optional && name != "dependencies.http");
        if is_left_out {
            continue;
        }
        made += &section.trim_end().replace("\noptional = true", "");
        let dependency = name.strip_prefix("dependencies.").unwrap_or_default();
        if PAIRS.iter().any(|pair| pair.theirs == dependency) {
            write!(made, "\npath = \"../{dependency}\"")?;
        }
        made += "\n\n";
    }
    writeln!(made, "[dependencies.{}]", pair.ours)?;
    match pair.patch {
        None => writeln!(made, "path = {path:?}")?,
        Some(patch) => {
            let path = path.with_file_name("patch").join(patch);
            writeln!(made, "path = {path:?}\npackage = {:?}", pair.theirs)?;
            let version = |version| format!("\nversion = {version:?}\n");
            made = made.replacen(&version(pair.version), &version(RENAMED), 1);
        }
    }
    made += "default-features = false\n\n[features]\n";
    if let Some((_, feature)) = pair.for_tests {
        writeln!(made, "{feature} = []")?;
    }
    let theirs: Table = theirs.parse()?;
    let features = theirs["features"].as_table().context("the manifest has features")?;
    for (name, value) in features {
        if name == "default" {
            let names = value.as_array().into_iter().flatten().filter_map(toml::Value::as_str);
            writeln!(made, "default = {:?}", names.collect::<Vec<_>>())?;
        } else if ours["features"].get(name).is_some() {
            writeln!(made, "{name} = [\"{}/{name}\"]", pair.ours)?;
        }
    }
    Ok(made)
}

/// The tables of a manifest, each with its head. What comes before them is the first one.
fn sections(manifest: &str) -> Vec<String> {
    let mut sections = vec![String::new()];
    for line in manifest.lines() {
        if line.starts_with('[') {
            sections.push(String::new());
        }
        if let Some(section) = sections.last_mut() {
            section.push_str(line);
            section.push('\n');
        }
    }
    sections
}

/// The Rust files below a folder, relative to it.
fn sources(folder: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let mut open = vec![String::new()];
    while let Some(inner) = open.pop() {
        for entry in fs::read_dir(folder.join(&inner))? {
            let entry = entry?;
            let name = format!("{inner}{}", entry.file_name().to_string_lossy());
            match entry.file_type()?.is_dir() {
                true => open.push(format!("{name}/")),
                false if name.ends_with(".rs") => found.push(name),
                false => {}
            }
        }
    }
    found.sort();
    Ok(found)
}

/// The file that declares the module of a file.
fn parent(file: &str) -> String {
    let module = file.trim_end_matches(".rs").trim_end_matches("/mod");
    match module.rsplit_once('/') {
        Some((folder, _)) => format!("{folder}/mod.rs"),
        None => "lib.rs".to_owned(),
    }
}

/// The fenced blocks in the documentation of items, with their comment marks.
fn documentation_tests(text: &str) -> Vec<String> {
    let (mut found, mut open) = (Vec::new(), None::<String>);
    for line in text.lines().map(str::trim_start) {
        let is_fence = line.starts_with("/// ```");
        match &mut open {
            Some(block) => {
                let _ = writeln!(block, "{line}");
                if is_fence {
                    found.extend(open.take());
                }
            }
            None if is_fence => open = Some(format!("{line}\n")),
            None => {}
        }
    }
    found
}

/// The module with the unit tests of a file, which is its last item.
fn unit_tests(text: &str) -> Option<String> {
    let start = text.find("#[cfg(test)]\nmod ")?;
    Some(text[start..].lines().skip(1).fold(String::new(), |all, line| all + line + "\n"))
}

/// Names of tests.
#[derive(Debug, Default, PartialEq, Eq)]
struct Names {
    kept: Vec<String>,
    left_out: Vec<String>,
    /// Those for 32-bit targets.
    of_32_bits: Vec<String>,
}

impl Names {
    /// Checks that these are all tests of a file.
    fn check(&self, text: &str) -> Result<()> {
        let mut marks = 0;
        for line in text.lines().map(str::trim) {
            marks += usize::from(["#[test]", "#[tokio::test]"].contains(&line));
        }
        let found = self.kept.len() + self.left_out.len() + self.of_32_bits.len();
        ensure!(found == marks, "{found} of {marks} tests are found");
        Ok(())
    }
}

/// A module without some of its tests. Tests are indented once.
fn without(module: &str, is_left_out: impl Fn(&str) -> bool) -> Result<(String, Names)> {
    let (mut text, mut names) = (String::new(), Names::default());
    let mut lines = module.lines();
    while let Some(line) = lines.next() {
        if line != "    #[test]" {
            text = text + line + "\n";
            continue;
        }
        let mut test = format!("{line}\n");
        for line in lines.by_ref() {
            test = test + line + "\n";
            if line == "    }" {
                break;
            }
        }
        let name = test.split_once("    fn ").and_then(|(_, rest)| rest.split_once('('));
        let (name, _) = name.with_context(|| format!("a test without a name: {test}"))?;
        if is_left_out(name) {
            names.left_out.push(name.to_owned());
        } else if test.contains("#[cfg(target_pointer_width = \"32\")]") {
            names.of_32_bits.push(name.to_owned());
        } else {
            names.kept.push(name.to_owned());
            text.push_str(&test);
        }
    }
    Ok((text, names))
}

/// The imports of a file from crates that are not the package's.
fn imports(text: &str) -> String {
    let (mut found, mut open) = (String::new(), false);
    for line in text.lines() {
        let path = line.strip_prefix("use ").and_then(|path| path.split("::").next());
        open |= path.is_some_and(|first| IMPORTED.contains(&first));
        if open {
            found = found + line + "\n";
        }
        open &= !line.ends_with(';');
    }
    found
}

/// A module with the tests of a file, and what they find in `super` and above it. Its name is none
/// of the library, because `crate` is to be the library.
fn tested_module(library: &str, module: &str, parent: &str, imports: &str, tests: &str) -> String {
    let (above, name) = module.rsplit_once("::").unwrap_or(("", module));
    let path = |module: &str| match module {
        "" => library.to_owned(),
        module => format!("{library}::{module}"),
    };
    let is_public = parent.lines().any(|line| line == format!("pub mod {name};"));
    let own = path(if is_public { module } else { above });
    format!(
        "\nmod of_{wrapper} {{\n\
         pub(crate) use ::{above}::*;\n\
         mod tested {{\npub(crate) use ::{own}::*;\n{imports}{tests}}}\n}}\n",
        wrapper = module.replace("::", "_"),
        above = path(above),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fenced_blocks_are_found_with_their_marks() {
        let text = "/// Text.\n///\n/// ```no_run\n/// call();\n/// ```\nfn call() {}\n\
                    impl A {\n    /// ```\n    /// # one();\n    /// ```\n    fn one() {}\n}\n";
        let found = documentation_tests(text);
        assert_eq!(
            found,
            ["/// ```no_run\n/// call();\n/// ```\n", "/// ```\n/// # one();\n/// ```\n"]
        );
    }

    #[test]
    fn a_test_is_left_out_as_a_whole() {
        let module = "mod tests {\n    use super::*;\n\n    #[test]\n    fn one() {\n        \
                      if true {\n        }\n    }\n\n    #[test]\n    fn two() {\n    }\n}\n";
        let (text, names) = without(module, |name| name == "one").expect("both have names");
        let of = |name: &str| vec![name.to_owned()];
        assert_eq!(names, Names { kept: of("two"), left_out: of("one"), ..Names::default() });
        assert_eq!(
            text,
            "mod tests {\n    use super::*;\n\n\n    #[test]\n    fn two() {\n    }\n}\n"
        );
    }

    #[test]
    fn a_test_that_is_not_found_is_an_error() {
        let module = "mod tests {\n    #[test]\n    fn one() {\n    }\n\n    #[test]\n    \
                      #[cfg(target_pointer_width = \"32\")]\n    fn two() {\n    }\n}\n";
        let (_, names) = without(module, |_| false).expect("both have names");
        names.check(module).expect("both are found");
        let more = format!("{module}mod more {{\n  #[test]\n  fn three() {{}}\n}}\n");
        let error = names.check(&more).expect_err("one is not");
        assert_eq!(error.to_string(), "2 of 3 tests are found");
        assert!(Names::default().check("#[tokio::test]\nasync fn four() {}\n").is_err());
    }

    #[test]
    fn imports_of_other_crates_are_kept_to_their_end() {
        let text = "use crate::{\n    a,\n};\nuse std::{\n    fmt,\n    io,\n};\nuse log::*;\n\
                    use bytes::Bytes;\nuse stdx::y;\n";
        assert_eq!(imports(text), "use std::{\n    fmt,\n    io,\n};\nuse bytes::Bytes;\n");
    }

    #[test]
    fn tests_see_the_nearest_public_module() {
        let module = |parent| tested_module("x", "a::b", parent, "", "mod tests {}\n");
        assert!(module("mod c;\npub mod b;\n").contains("pub(crate) use ::x::a::b::*;"));
        let private = module("mod b;\n");
        assert!(!private.contains("::x::a::b"), "{private}");
        assert!(private.contains("mod tested {\npub(crate) use ::x::a::*;"), "{private}");
        assert_eq!(parent("a/b.rs"), "a/mod.rs");
        assert_eq!(parent("a/b/mod.rs"), "a/mod.rs");
        assert_eq!(parent("a/mod.rs"), "lib.rs");
        assert_eq!(parent("lib.rs"), "lib.rs");
    }

    #[test]
    fn a_manifest_may_use_the_patch_of_our_crate() {
        let theirs = "[package]\nname = \"event-manager\"\nversion = \"0.4.2\"\n\n[features]\n\
            remote_endpoint = []\ntest_utilities = []\n";
        let ours = "[features]\nremote_endpoint = []\n".parse().expect("TOML");
        let made = manifest(theirs, &ours, &PAIRS[2], Path::new("/compat/event-manager"));
        let expected = "[package]\nname = \"event-manager\"\nversion = \"0.0.0\"\n\n\
            [dependencies.windlass-event-manager]\npath = \"/compat/patch/event-manager-0.4\"\n\
            package = \"event-manager\"\ndefault-features = false\n\n[features]\n\
            test_utilities = []\nremote_endpoint = [\"windlass-event-manager/remote_endpoint\"]\n";
        assert_eq!(made.expect("tables").trim_start(), expected);
    }

    #[test]
    fn a_manifest_depends_on_our_crate() {
        let theirs = "# made by cargo\n[package]\nname = \"tokio-tungstenite\"\n\n[features]\n\
            default = [\n    \"handshake\",\n]\nhandshake = [\"sha1\"]\nother = []\n\n\
            [[bench]]\nname = \"b\"\n\n[dependencies.http]\nversion = \"1\"\noptional = true\n\n\
            [dependencies.sha1]\nversion = \"1\"\noptional = true\n\n\
            [dependencies.tungstenite]\nversion = \"0.30\"\n\n\
            [dev-dependencies.criterion]\nversion = \"1\"\n";
        let ours = "[features]\ndefault = []\nhandshake = []\n".parse().expect("TOML");
        let made = manifest(theirs, &ours, &PAIRS[1], Path::new("/ours")).expect("tables");
        let expected = "# made by cargo\n\n[package]\nname = \"tokio-tungstenite\"\n\n\
            [dependencies.http]\nversion = \"1\"\n\n\
            [dependencies.tungstenite]\nversion = \"0.30\"\npath = \"../tungstenite\"\n\n\
            [dependencies.windlass-tokio-tungstenite]\npath = \"/ours\"\n\
            default-features = false\n\n[features]\ndefault = [\"handshake\"]\n\
            handshake = [\"windlass-tokio-tungstenite/handshake\"]\n";
        assert_eq!(made, expected);
    }
}
