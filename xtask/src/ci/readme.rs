//! The test command of the README.

/// The line before the command's block.
const MARK: &str = "<!-- ci:test -->";

/// The commands of the fenced block after the mark, one per line.
///
/// # Errors
///
/// The missing part, as a sentence.
pub(super) fn test_commands(readme: &str) -> Result<Vec<Vec<&str>>, String> {
    let mut lines = readme.lines().map(str::trim);
    lines
        .find(|line| line.contains(MARK))
        .ok_or_else(|| format!("README.md has no line with {MARK}"))?;
    let fence = lines.find(|line| !line.is_empty()).unwrap_or_default();
    if !fence.starts_with("```") {
        return Err(format!("no fenced block follows {MARK} in README.md"));
    }
    let commands: Vec<Vec<&str>> = lines
        .take_while(|line| !line.starts_with("```"))
        .map(|line| line.trim_start_matches("$ "))
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| line.split_whitespace().collect())
        .collect();
    if commands.is_empty() {
        return Err(format!("the block after {MARK} in README.md is empty"));
    }
    Ok(commands)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_block_after_the_mark_is_taken() {
        let readme = "```sh\ncargo run\n```\nTests:\n<!-- ci:test -->\n\n\
                      ```sh\n# all\n$ cargo test\n```\n```\nno\n```\n";
        assert_eq!(test_commands(readme), Ok(vec![vec!["cargo", "test"]]));
    }

    #[test]
    fn a_missing_part_is_an_error() {
        for readme in [
            "```\ncargo test\n```",
            "<!-- ci:test -->\ntext\n```\ncargo test\n```",
            "<!-- ci:test -->\n```\n```\n",
        ] {
            assert!(test_commands(readme).is_err(), "{readme}");
        }
    }
}
