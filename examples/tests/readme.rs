//! The first program in the README of the repository is the example `first`, character by
//! character.

#![deny(unsafe_code)]

#[test]
fn the_readme_shows_the_first_example() {
    let example = include_str!("../examples/first.rs");
    let (_, program) =
        example.split_once("\nuse std").expect("the program begins with its imports");
    let (program, _) = program.split_once("\n\n#[cfg(test)]").expect("its test comes last");
    let readme = include_str!("../../README.md");
    assert!(
        readme.contains(&format!("```rust\nuse std{program}\n```")),
        "README.md and examples/examples/first.rs differ"
    );
}
