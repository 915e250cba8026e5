//! Replays the committed corpora of the fuzz targets.

mod targets;

use std::{fs, path::PathBuf};

/// A corpus with fewer files has been lost.
const FILES_MIN: usize = 10;

/// Runs a target with every file of its corpus, in order. Before a panic the name of the file is
/// printed.
fn replay(name: &str) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(name);
    let entries =
        fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<PathBuf> =
        entries.map(|entry| entry.expect("the folder is readable").path()).collect();
    files.sort();
    assert!(files.len() >= FILES_MIN, "{} has {} files", folder.display(), files.len());
    let target = targets::named(name);
    for file in files {
        println!("{}", file.display());
        target(&fs::read(&file).expect("the file is readable"));
    }
}

#[test]
fn socket_pair() {
    replay("socket_pair");
}

#[test]
fn socket_peer() {
    replay("socket_peer");
}

/// Every target takes an empty input, and each single byte.
#[test]
fn the_shortest_inputs() {
    for (_name, target) in targets::TARGETS {
        target(&[]);
        for byte in 0..=u8::MAX {
            target(&[byte]);
        }
    }
}
