//! Finds the package of a test program, and runs test programs without cargo.
//!
//! Cargo announces a test program by its file, without its package. Two packages may each have a
//! `tests/suite/main.rs`. The compiler writes a list of source files beside each program, and the
//! root is the first of them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::command::Cmd;
use crate::metadata::{self, Package};
use crate::output::Output;

/// The part of a package that names of test programs depend on.
#[derive(Debug, Clone)]
struct Known {
    name: String,
    /// Folder from the repository's root.
    folder: String,
    /// The name that follows `Doc-tests`.
    library: Option<String>,
}

/// The workspace's packages, to find the package of a test program.
#[derive(Debug, Clone, Default)]
pub(crate) struct Packages {
    root: PathBuf,
    known: Vec<Known>,
}

impl Packages {
    /// Reads the packages of the workspace in `root`.
    ///
    /// # Errors
    ///
    /// If cargo rejects the manifests.
    pub(crate) fn read(root: &Path) -> anyhow::Result<Self> {
        Ok(Self::new(root, &metadata::workspace(root)?))
    }

    fn new(root: &Path, packages: &[Package]) -> Self {
        let library = |package: &Package| {
            let target = package.targets.iter().find(|target| target.kind == "lib");
            target.map(|target| target.name.replace('-', "_"))
        };
        let known = packages.iter().map(|package| Known {
            name: package.name.clone(),
            folder: package.folder.clone(),
            library: library(package),
        });
        Self { root: root.to_path_buf(), known: known.collect() }
    }

    /// The package of the program in `path`, which is absolute or relative to the root. The path of
    /// a program that no compiler has written begins with its package: `conformance/autobahn`.
    pub(crate) fn of_program(&self, path: &str) -> Option<&str> {
        let written =
            std::fs::read_to_string(self.root.join(format!("{path}.d"))).unwrap_or_default();
        if let Some(package) = first_source(&written).and_then(|source| self.of_file(source)) {
            return Some(package);
        }
        let folder = path.split_once('/').map_or("", |(folder, _)| folder);
        self.known.iter().map(|known| &*known.name).find(|name| *name == folder)
    }

    /// The package of a library, by the name of the crate.
    pub(crate) fn of_library(&self, library: &str) -> Option<&str> {
        let is_it = |known: &&Known| known.library.as_deref() == Some(library);
        self.known.iter().find(is_it).map(|known| &*known.name)
    }

    /// The folder of a package.
    fn folder(&self, package: &str) -> Option<PathBuf> {
        self.known
            .iter()
            .find(|known| known.name == package)
            .map(|known| self.root.join(&known.folder))
    }

    /// The package of a file. The folder of a package may contain that of another one.
    fn of_file(&self, file: &str) -> Option<&str> {
        let file = Path::new(file);
        let file = file.strip_prefix(&self.root).unwrap_or(file);
        let holders = self.known.iter().filter(|known| file.starts_with(&known.folder));
        holders.max_by_key(|known| known.folder.len()).map(|known| &*known.name)
    }
}

/// The first file in a dependency list for make(1): `program: first second`.
fn first_source(written: &str) -> Option<&str> {
    written.lines().next()?.split_once(": ")?.1.split(' ').next()
}

/// Test programs that one call of cargo builds. Some of them are then run without cargo.
///
/// In one call of cargo, a test program's name selects programs of all packages. Separate calls
/// would build most libraries again for each package, because the features of shared dependencies
/// differ.
#[derive(Debug, Clone)]
pub(crate) struct Programs {
    /// The cargo command that builds them, without `--no-run`.
    pub(crate) build: Cmd,
    /// The programs to run.
    pub(crate) wanted: Vec<Wanted>,
    /// The arguments and environment variables of each program.
    pub(crate) arguments: Vec<String>,
    pub(crate) variables: Vec<(String, String)>,
}

/// A test program to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) package: String,
    /// The kind and the name of its target.
    pub(crate) kind: String,
    pub(crate) name: String,
}

/// A program that cargo has built.
#[derive(Debug, PartialEq, Eq)]
struct Built {
    wanted: Wanted,
    /// Its root source file.
    source: PathBuf,
    executable: PathBuf,
}

impl Programs {
    /// Builds the programs. Returns, for each, the line by which cargo would announce it, and its
    /// command.
    ///
    /// # Errors
    ///
    /// The reason why a program is missing, as a sentence.
    pub(crate) fn build(
        &self,
        packages: &Packages,
        output: &mut Output,
    ) -> Result<Vec<(String, Cmd)>, String> {
        let build =
            self.build.clone().args(["--no-run", "--message-format=json-render-diagnostics"]);
        output.say(&format!("$ {build}\n"));
        let mut command: Command = build.build(&packages.root);
        let done = command
            .stderr(Stdio::piped())
            .output()
            .map_err(|error| format!("`{build}` cannot be started: {error}"))?;
        output.say(&String::from_utf8_lossy(&done.stderr));
        if !done.status.success() {
            return Err(format!("`{build}`: {}", done.status));
        }
        let built = built(&String::from_utf8_lossy(&done.stdout), packages);
        self.wanted.iter().map(|wanted| self.command(wanted, &built, packages)).collect()
    }

    fn command(
        &self,
        wanted: &Wanted,
        built: &[Built],
        packages: &Packages,
    ) -> Result<(String, Cmd), String> {
        let Wanted { package, kind, name } = wanted;
        let missing = || format!("{package} has no {kind} `{name}`");
        let program = built.iter().find(|built| built.wanted == *wanted).ok_or_else(missing)?;
        let folder = packages.folder(package).ok_or_else(missing)?;
        let source = program.source.strip_prefix(&folder).unwrap_or(&program.source);
        // Like cargo, it runs in its package's folder and names the folder in the environment.
        let mut command = Cmd::new(&program.executable.display().to_string())
            .args(self.arguments.iter().map(String::as_str))
            .directory(&folder)
            .env("CARGO_MANIFEST_DIR", &folder.display().to_string());
        for (name, value) in &self.variables {
            command = command.env(name, value);
        }
        // Cargo announces examples in the same way.
        let unittests = if kind == "test" { "" } else { "unittests " };
        let line = format!(
            "     Running {unittests}{} ({})",
            source.display(),
            program.executable.display()
        );
        Ok((line, command))
    }
}

/// The test programs in cargo's messages. Each line is a JSON object.
fn built(messages: &str, packages: &Packages) -> Vec<Built> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let program = |line: &str| {
        let message: Value = serde_json::from_str(line).ok()?;
        let target = &message["target"];
        let source = text(&target["src_path"])?;
        let is_test = message["profile"]["test"] == true;
        let package = packages.of_file(&source)?.to_owned();
        is_test.then_some(())?;
        Some(Built {
            wanted: Wanted {
                package,
                kind: text(&target["kind"][0])?,
                name: text(&target["name"])?,
            },
            source: source.into(),
            executable: text(&message["executable"])?.into(),
        })
    };
    messages.lines().filter_map(program).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::Target;

    fn packages(root: &Path) -> Packages {
        let package = |name: &str, folder: &str, library: Option<&str>| Package {
            name: name.to_owned(),
            folder: folder.to_owned(),
            targets: library
                .map(|name| Target {
                    name: name.to_owned(),
                    kind: "lib".to_owned(),
                    path: String::new(),
                    is_tested: true,
                })
                .into_iter()
                .collect(),
            ..Package::default()
        };
        let all = [
            package("windlass", "crates/reactor", Some("windlass")),
            package("windlass-server", "crates/server", Some("windlass-server")),
            package("windlass-bench", "bench", None),
            package("windlass-bench-driver", "bench/driver", Some("windlass_bench_driver")),
        ];
        Packages::new(root, &all)
    }

    /// A folder of this test, for the files of the compiler.
    fn folder(test: &str) -> PathBuf {
        let folder =
            std::env::temp_dir().join(format!("windlass-xtask-{}-{test}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder for temporary files");
        folder
    }

    #[test]
    fn programs_of_one_name_are_distinguished_by_their_sources() {
        let root = folder("sources");
        let packages = packages(&root);
        let written = [
            (
                "suite-1",
                "crates/reactor/tests/suite/main.rs crates/reactor/tests/suite/bed.rs",
                "windlass",
            ),
            (
                "suite-2",
                "crates/server/tests/suite/main.rs crates/reactor/tests/common/backend.rs",
                "windlass-server",
            ),
            ("driver-3", "bench/driver/src/lib.rs", "windlass-bench-driver"),
            ("bench-4", &format!("{}/bench/src/main.rs", root.display()), "windlass-bench"),
        ];
        for (program, sources, package) in written {
            std::fs::write(
                root.join(format!("{program}.d")),
                format!("/x/{program}.d: {sources}\n\n{sources}:\n"),
            )
            .expect("it is written");
            assert_eq!(packages.of_program(program), Some(package));
            let whole = root.join(program).display().to_string();
            assert_eq!(packages.of_program(&whole), Some(package));
        }
        assert_eq!(packages.of_program("target/debug/deps/unknown-5"), None);
        std::fs::remove_dir_all(root).expect("it is there");
    }

    /// Miri compiles a test program after cargo has announced it.
    #[test]
    fn a_program_that_is_announced_before_it_is_compiled_is_found_at_its_result() {
        let root = folder("announced");
        let mut tally = crate::tally::Tally::new(std::sync::Arc::new(packages(&root)));
        tally.feed("Running tests/suite.rs (suite-1)");
        std::fs::write(root.join("suite-1.d"), "/x/suite-1: crates/reactor/tests/suite.rs\n")
            .expect("it is written");
        tally.feed("test a::b ... ignored, Miri has no timerfd");
        tally.feed("test result: ok. 1 passed; 0 failed; 1 ignored");
        let packages: Vec<_> = tally.suites().keys().map(|suite| &*suite.package).collect();
        assert_eq!(packages, ["windlass"]);
        std::fs::remove_dir_all(root).expect("it is there");
    }

    #[test]
    fn a_program_without_a_source_list_names_its_package() {
        let packages = packages(Path::new("/r"));
        assert_eq!(packages.of_program("windlass-bench/autobahn"), Some("windlass-bench"));
        assert_eq!(packages.of_program("autobahn"), None);
    }

    #[test]
    fn a_library_is_found_by_its_crate() {
        let packages = packages(Path::new("/r"));
        assert_eq!(packages.of_library("windlass_server"), Some("windlass-server"));
        assert_eq!(packages.of_library("windlass_bench"), None);
    }

    const MESSAGES: &str = r#"{"reason":"compiler-artifact","target":{"kind":["lib"],"name":"windlass","src_path":"/r/crates/reactor/src/lib.rs"},"profile":{"test":false},"executable":null}
{"reason":"compiler-artifact","target":{"kind":["test"],"name":"suite","src_path":"/r/crates/reactor/tests/suite/main.rs"},"profile":{"test":true},"executable":"/t/suite-1"}
{"reason":"compiler-artifact","target":{"kind":["test"],"name":"suite","src_path":"/r/crates/server/tests/suite/main.rs"},"profile":{"test":true},"executable":"/t/suite-2"}
{"reason":"compiler-artifact","target":{"kind":["bin"],"name":"suite","src_path":"/r/crates/server/src/main.rs"},"profile":{"test":false},"executable":"/t/suite-3"}
{"reason":"build-finished","success":true}"#;

    fn wanted(package: &str, name: &str) -> Wanted {
        Wanted { package: package.to_owned(), kind: "test".to_owned(), name: name.to_owned() }
    }

    #[test]
    fn a_program_is_found_by_package_and_name_and_runs_as_cargo_would_run_it() {
        let packages = packages(Path::new("/r"));
        let built = built(MESSAGES, &packages);
        assert_eq!(built.len(), 2, "{built:?}");
        let programs = Programs {
            build: Cmd::new("true"),
            wanted: Vec::new(),
            arguments: vec!["--skip".to_owned(), "x".to_owned()],
            variables: vec![("BACKEND".to_owned(), "poll".to_owned())],
        };
        let (line, command) = programs
            .command(&wanted("windlass-server", "suite"), &built, &packages)
            .expect("it is built");
        assert_eq!(line, "     Running tests/suite/main.rs (/t/suite-2)");
        let expected = "CARGO_MANIFEST_DIR=/r/crates/server BACKEND=poll /t/suite-2 --skip x";
        assert_eq!(command.to_string(), expected);
        let error = programs
            .command(&wanted("windlass-server", "robust"), &built, &packages)
            .expect_err("it is not");
        assert_eq!(error, "windlass-server has no test `robust`");
    }

    #[test]
    fn programs_that_do_not_build_are_a_failure() {
        let programs = Programs {
            build: Cmd::new("false"),
            wanted: Vec::new(),
            arguments: Vec::new(),
            variables: Vec::new(),
        };
        let error =
            programs.build(&packages(Path::new("/")), &mut Output::kept()).expect_err("it fails");
        assert!(error.contains("false"), "{error}");
    }
}
