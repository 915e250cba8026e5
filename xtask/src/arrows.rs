//! The dependency arrows: which crate may use which. ARCHITECTURE.md says why; this table decides.
//! The arrows inside a crate are in [`folders`].

mod arrow;
mod folders;
mod imports;
mod members;
mod order;
mod syntax;
mod uses;

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Result;

use crate::metadata::{self, Dependency, DependencyKind, Package};
use crate::output::print;
use crate::repository;

/// What one workspace member may use.
struct Row {
    name: &'static str,
    /// Members of this workspace, always further down.
    members: Members,
    /// What a library may take from outside. A name that ends in `?` must be optional there.
    /// Programs choose freely, and so do tests: `None`.
    outside: Option<&'static [&'static str]>,
}

/// Which members a member may use.
enum Members {
    Only(&'static [&'static str]),
    /// The benchmarks measure everything.
    All,
}

/// Libraries from the bottom up, then programs. A new member, and a library's new dependency, is
/// entered here with the change that brings it.
const TABLE: &[Row] = &[
    library("windlass-flow", &[], &["rustix", "loom"]),
    library("windlass-sim", &[], &["rustix"]),
    library(
        "windlass",
        &["windlass-flow", "windlass-sim"],
        &["rustix", "libc", "io-uring", "mockall?", "tokio?"],
    ),
    library(
        "windlass-ws",
        &[],
        &["httparse", "sha1", "base64", "flate2", "memchr", "zlib-rs", "simdutf8"],
    ),
    library(
        "windlass-server",
        &["windlass", "windlass-flow", "windlass-ws"],
        &["rustix", "form_urlencoded", "httparse", "httpdate", "ipnet", "base64", "sha1"],
    ),
    library("windlass-task-macros", &[], &[]),
    library(
        "windlass-task",
        &["windlass", "windlass-flow", "windlass-task-macros"],
        &["rustix", "loom", "futures-io?", "tokio?", "hyper?"],
    ),
    library(
        "windlass-websocket",
        &["windlass-ws", "windlass-task"],
        &[
            "bytes",
            "futures-core",
            "futures-io",
            "futures-sink",
            "getrandom",
            "tokio?",
            "hyper?",
            "async-io?",
            "atomic-waker?",
            "axum-core?",
            "base64?",
            "blocking?",
            "event-listener?",
            "http?",
            "httpdate?",
            "rustls-platform-verifier?",
            "tokio-rustls?",
            "webpki-roots?",
        ],
    ),
    library(
        "windlass-tungstenite",
        &["windlass-ws"],
        &[
            "bytes",
            "getrandom",
            "base64?",
            "http?",
            "httparse?",
            "rustls?",
            "rustls-native-certs?",
            "sha1?",
            "url?",
            "webpki-roots?",
        ],
    ),
    library(
        "windlass-tokio-tungstenite",
        &["windlass-tungstenite"],
        &[
            "atomic-waker",
            "futures-core",
            "futures-sink",
            "tokio",
            "rustls-native-certs?",
            "tokio-rustls?",
            "webpki-roots?",
        ],
    ),
    library("windlass-event-manager", &["windlass"], &["vmm-sys-util"]),
    library("windlass-tls", &["windlass"], &["rustls", "rustls-webpki"]),
    library(
        "windlass-http",
        &["windlass", "windlass-server", "windlass-ws", "windlass-task"],
        &["hyper", "hyper-util?", "pin-project-lite", "tokio-rustls?", "tower-service"],
    ),
    library(
        "windlass-cluster",
        &["windlass-server", "windlass-tls"],
        &["base64", "ring", "serde", "serde_json", "tokio", "tokio-rustls"],
    ),
    program(
        "windlass-cli",
        &[
            "windlass",
            "windlass-server",
            "windlass-ws",
            "windlass-tls",
            "windlass-cluster",
            "windlass-task",
            "windlass-websocket",
        ],
    ),
    // The tools of tests.
    program("windlass-testkit", &["windlass", "windlass-task", "windlass-server"]),
    Row {
        // A library by the look of it only: its programs are the content.
        name: "windlass-examples",
        members: Members::Only(&[
            "windlass",
            "windlass-flow",
            "windlass-ws",
            "windlass-server",
            "windlass-task",
            "windlass-http",
            "windlass-tls",
            "windlass-websocket",
            "windlass-tungstenite",
        ]),
        outside: None,
    },
    program(
        "conformance",
        &[
            "windlass",
            "windlass-task",
            "windlass-server",
            "windlass-ws",
            "windlass-websocket",
            "windlass-tungstenite",
            "windlass-tokio-tungstenite",
        ],
    ),
    Row { name: "windlass-bench", members: Members::All, outside: None },
    program("windlass-bench-driver", &[]),
    program("windlass-bench-report", &[]),
    program("windlass-bench-tokio-server", &["windlass-bench-driver"]),
    program(
        "windlass-bench-subject",
        &[
            "windlass",
            "windlass-flow",
            "windlass-ws",
            "windlass-server",
            "windlass-task",
            "windlass-tls",
            "windlass-http",
            "windlass-websocket",
            "windlass-tungstenite",
            "windlass-tokio-tungstenite",
            "windlass-bench-driver",
            "windlass-bench-tokio-server",
        ],
    ),
    // Compares the documents with the record.
    program("xtask", &["windlass-bench-report"]),
];

const fn library(
    name: &'static str,
    members: &'static [&'static str],
    outside: &'static [&'static str],
) -> Row {
    Row { name, members: Members::Only(members), outside: Some(outside) }
}

const fn program(name: &'static str, members: &'static [&'static str]) -> Row {
    Row { name, members: Members::Only(members), outside: None }
}

/// Members that only the tests and examples of a library may use.
const TESTS: &[(&str, &str)] = &[
    ("windlass-server", "windlass-tls"),
    ("windlass-websocket", "windlass"),
    ("windlass-websocket", "windlass-http"),
];

/// The tools that the tests of every member may use.
const TESTKIT: &str = "windlass-testkit";

/// Checks the manifests of the workspace and the imports inside its crates; returns one line per
/// forbidden arrow.
///
/// # Errors
///
/// If cargo rejects the manifests, or git cannot list the files.
pub(crate) fn check(root: &Path) -> Result<Vec<String>> {
    let packages = metadata::workspace(root)?;
    let mut found: Vec<String> = packages.iter().flat_map(check_package).collect();
    found.extend(folders::check(&repository::text_files(root)?).found);
    Ok(found)
}

/// Prints each item inside a crate whose use points upwards, and where it is used first.
///
/// # Errors
///
/// If git cannot list the files.
pub(crate) fn list(root: &Path) -> Result<()> {
    for (folder, listed) in folders::check(&repository::text_files(root)?).listed {
        let items: BTreeSet<&String> = listed.up.keys().map(|[_, _, item]| item).collect();
        print(&format!("{folder}: {} items\n", items.len()));
        let lists = [(&listed.up, ""), (&listed.impls_down, "; downwards, so not counted")];
        for (list, note) in lists {
            for ([from, to, item], places) in list {
                let (count, first) = (places.len(), &places[0]);
                print(&format!("    {from} -> {to}: {item} ({count}, {first}{note})\n"));
            }
        }
    }
    Ok(())
}

fn check_package(package: &Package) -> Vec<String> {
    let name = &package.name;
    let Some(row) = TABLE.iter().find(|row| row.name == name) else {
        return vec![format!("{name} is not in the table of arrows (xtask/src/arrows.rs)")];
    };
    let mut found: Vec<String> = package
        .dependencies
        .iter()
        .filter_map(|dependency| check_dependency(row, dependency))
        .collect();
    if row.outside.is_some() && package.rust_version.is_none() {
        found.push(format!("{name} is a library and names no `rust-version`"));
    }
    if row.outside.is_some() && !package.is_library() {
        found.push(format!("{name} is entered as a library and has none"));
    }
    found
}

fn check_dependency(row: &Row, dependency: &Dependency) -> Option<String> {
    let name = dependency.name.as_str();
    let is_dev = dependency.kind == DependencyKind::Dev;
    if dependency.local {
        // Its own tests may use it with other features.
        let allowed = match row.members {
            Members::All => true,
            Members::Only(members) => {
                let of_tests =
                    || name == row.name || name == TESTKIT || TESTS.contains(&(row.name, name));
                members.contains(&name) || (is_dev && of_tests())
            }
        };
        return (!allowed).then(|| format!("{} may not use {name}", row.name));
    }
    let outside = row.outside?;
    if is_dev || outside.contains(&name) {
        return None;
    }
    if outside.contains(&format!("{name}?").as_str()) {
        return (!dependency.optional)
            .then(|| format!("{} may use {name} only as an optional dependency", row.name));
    }
    Some(format!("{} may not use {name} from outside", row.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dependency(name: &str, local: bool) -> Dependency {
        Dependency { name: name.to_owned(), kind: DependencyKind::Normal, optional: false, local }
    }

    fn check_one(package: &str, dependency: &Dependency) -> Option<String> {
        let row = TABLE.iter().find(|row| row.name == package);
        check_dependency(row.expect("the table has it"), dependency)
    }

    #[test]
    fn arrows_point_downwards_only() {
        assert_eq!(check_one("windlass", &dependency("windlass-flow", true)), None);
        let up = check_one("windlass", &dependency("windlass-task", true));
        assert_eq!(up.as_deref(), Some("windlass may not use windlass-task"));
        assert!(check_one("xtask", &dependency("windlass", true)).is_some());
        assert_eq!(check_one("windlass-bench", &dependency("windlass", true)), None);
    }

    #[test]
    fn the_table_itself_has_no_cycle() {
        for (at, row) in TABLE.iter().enumerate() {
            if let Members::Only(members) = row.members {
                for member in members {
                    let below = TABLE[..at].iter().any(|other| other.name == *member);
                    assert!(below, "{member} does not stand below {}", row.name);
                }
            }
        }
    }

    #[test]
    fn a_library_takes_from_outside_what_the_table_has() {
        assert_eq!(check_one("windlass", &dependency("rustix", false)), None);
        assert!(check_one("windlass", &dependency("tokio", false)).is_some());
        assert_eq!(check_one("windlass-cli", &dependency("clap", false)), None);
    }

    #[test]
    fn what_must_be_optional_is_checked_to_be() {
        let mut mockall = dependency("mockall", false);
        assert!(check_one("windlass", &mockall).is_some());
        mockall.optional = true;
        assert_eq!(check_one("windlass", &mockall), None);
    }

    #[test]
    fn tests_choose_their_tools_but_keep_to_the_arrows() {
        let mut tool = dependency("proptest", false);
        tool.kind = DependencyKind::Dev;
        assert_eq!(check_one("windlass", &tool), None);
        let mut own = dependency("windlass", true);
        own.kind = DependencyKind::Dev;
        assert_eq!(check_one("windlass", &own), None);
        let mut up = dependency("windlass-task", true);
        up.kind = DependencyKind::Dev;
        assert!(check_one("windlass", &up).is_some());
    }

    #[test]
    fn a_member_without_a_row_is_found() {
        let package = Package { name: "windlass-new".to_owned(), ..Package::default() };
        assert_eq!(check_package(&package).len(), 1);
    }
}
