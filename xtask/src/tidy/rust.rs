//! Rules about Rust code: no unfinished code, no ignored test without a reason, no sleep without a
//! reason.

use super::text::{UNFINISHED, unfinished};
use super::{RustFile, Violation};
use crate::source::{Source, has_word};

/// Macros that stand for missing code.
const UNFINISHED_MACROS: &[&str] = &["todo", "unimplemented"];

/// Checks one file.
pub(super) fn check(file: &RustFile<'_>, found: &mut Vec<Violation>) {
    let Source { code, comments, .. } = &file.source;
    let mut report = |index: usize, message: String| {
        found.push(Violation::new(file.path, index + 1, message));
    };
    for (index, line) in code.iter().enumerate() {
        for name in UNFINISHED_MACROS {
            if line.contains(&format!("{name}!")) && has_word(line, name) {
                report(index, format!("`{name}!` is unfinished: write the code or remove it"));
            }
        }
        // `#[ignore]` and `cfg_attr(.., ignore)` need `= "reason"`.
        let attribute = line.contains("#[ignore") || line.contains("cfg_attr(");
        if attribute && has_word(line, "ignore") && !has_reason(line) {
            report(index, "an ignored test needs a reason: `#[ignore = \"why\"]`".to_owned());
        }
        // A sleep usually hides a race. The rule applies to tests and to all other code.
        let is_sleep = line.contains("thread::sleep");
        if is_sleep && !file.source.comments_above(index).any(|line| line.starts_with("// sleep: "))
        {
            report(index, "`thread::sleep` needs `// sleep: why` above it".to_owned());
        }
    }
    for (index, line) in comments.iter().enumerate() {
        for (start, end) in UNFINISHED {
            if has_word(line, &format!("{start}{end}")) {
                report(index, unfinished(start, end));
            }
        }
        if line.split("```").nth(1).is_some_and(|fence| has_word(fence, "ignore")) {
            let message = "a documentation test is never ignored: use `no_run` or `text`";
            report(index, message.to_owned());
        }
    }
}

fn has_reason(line: &str) -> bool {
    line.match_indices("ignore")
        .any(|(at, word)| line[at + word.len()..].trim_start().starts_with('='))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{lines, rust};
    use super::*;

    fn found_in(text: &str) -> Vec<usize> {
        lines(|found| check(&rust("crates/a/src/a.rs", text), found))
    }

    #[test]
    fn unfinished_code_is_found_and_strings_are_not() {
        assert_eq!(found_in("fn f() {\n    todo!()\n}"), [2]);
        assert_eq!(found_in("unimplemented!(\"x\")"), [1]);
        assert!(found_in("print(\"todo!\"); // todo! is a macro").is_empty());
    }

    #[test]
    fn unfinished_comments_are_found() {
        assert_eq!(found_in(&format!("// {}{} later", "FIX", "ME")), [1]);
        assert!(found_in("let template = \"fileXXXXXX XXX\";").is_empty());
    }

    #[test]
    fn an_ignored_test_needs_a_reason() {
        assert_eq!(found_in("#[ignore]\nfn a() {}"), [1]);
        assert_eq!(found_in("#[cfg_attr(miri, ignore)]\nfn a() {}"), [1]);
        assert!(found_in("#[ignore = \"needs a second core\"]").is_empty());
        assert!(found_in("#[cfg_attr(miri, ignore = \"no signalfd\")]").is_empty());
    }

    #[test]
    fn a_documentation_test_is_not_ignored() {
        assert_eq!(found_in("/// ```ignore\n/// x\n/// ```"), [1]);
        assert_eq!(found_in("//! ```rust,ignore"), [1]);
        assert!(found_in("/// ```no_run\n/// ```").is_empty());
    }

    #[test]
    fn a_sleep_needs_its_reason_above() {
        assert_eq!(found_in("fn t() {\n    std::thread::sleep(d);\n}"), [2]);
        assert!(
            found_in("// sleep: the kernel's timer is what is tested.\nstd::thread::sleep(d);")
                .is_empty()
        );
        assert_eq!(found_in("// sleep: why\n\nlet a = 1;\nthread::sleep(d);"), [4]);
    }
}
