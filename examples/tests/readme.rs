//! The programs in the README of the repository that are those of examples, character by character.

#![deny(unsafe_code)]

/// Checks that the README has an example from its imports to the line before `end`.
fn assert_shown(name: &str, example: &str, end: &str) {
    let (_, program) =
        example.split_once("\nuse std").expect("the program begins with its imports");
    let (program, _) = program.split_once(&format!("\n\n{end}")).expect("it goes on after that");
    let readme = include_str!("../../README.md");
    assert!(
        readme.contains(&format!("```rust\nuse std{program}\n```")),
        "README.md and examples/examples/{name}.rs differ"
    );
}

#[test]
fn the_readme_shows_the_first_example() {
    assert_shown("first", include_str!("../examples/first.rs"), "#[cfg(test)]");
}

#[test]
fn the_readme_shows_the_function_of_the_client() {
    let example = include_str!("../examples/websocket_client.rs");
    assert_shown("websocket_client", example, "#[tokio::main");
}
