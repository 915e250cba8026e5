//! `cargo xtask syscalls`: the lists of system calls in `docs/syscalls`, and the table in
//! `docs/syscalls.md`, from `docs/syscalls/calls.toml`.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use toml::{Table, Value};

use crate::repository;

const SOURCE: &str = "docs/syscalls/calls.toml";
const PAGE: &str = "docs/syscalls.md";
const BACKENDS: [&str; 3] = ["epoll", "uring", "poll"];
const PROCESSORS: [&str; 2] = ["x86_64", "aarch64"];

/// The marks around the table.
const MARKS: [&str; 2] = ["<!-- calls -->\n", "<!-- /calls -->\n"];

/// A filter: the first, or one of the calls that others need in addition.
struct Part {
    name: String,
    about: String,
    rows: Vec<Row>,
}

/// Calls for one purpose.
struct Row {
    purpose: String,
    backends: Vec<String>,
    processors: Vec<String>,
    calls: Vec<String>,
}

/// Writes the lists and the table.
///
/// # Errors
///
/// If the source is not as it should be, or a file cannot be written.
pub(crate) fn run() -> Result<bool> {
    let root = repository::root();
    for (path, text) in generated(&root)? {
        fs::write(root.join(path), text)?;
    }
    Ok(true)
}

/// All files, with their texts.
fn generated(root: &Path) -> Result<Vec<(String, String)>> {
    let parts = read(&fs::read_to_string(root.join(SOURCE)).context(SOURCE)?)?;
    let mut files = Vec::new();
    for backend in BACKENDS {
        for processor in PROCESSORS {
            let path = format!("docs/syscalls/{backend}.{processor}");
            files.push((format!("{path}.json"), for_seccompiler(&parts, backend, processor)?));
            files.push((format!("{path}.c"), for_libseccomp(&parts, backend, processor)?));
        }
    }
    let page = fs::read_to_string(root.join(PAGE)).context(PAGE)?;
    let (before, rest) = page.split_once(MARKS[0]).context("the page has no table")?;
    let (_, after) = rest.split_once(MARKS[1]).context("the table has no end")?;
    let table = table(&parts)?;
    files.push((PAGE.to_owned(), format!("{before}{}\n{table}\n{}{after}", MARKS[0], MARKS[1])));
    Ok(files)
}

/// What a row may have.
const KEYS: [&str; 4] = ["purpose", "backends", "processors", "calls"];

fn read(source: &str) -> Result<Vec<Part>> {
    let table: Table = source.parse()?;
    let text = |value: &Value, key| {
        let text = value.get(key).and_then(Value::as_str);
        text.map(str::to_owned).with_context(|| format!("{SOURCE}: {key} is missing"))
    };
    let list = |value: &Value, key, all: &[&str]| -> Result<Vec<String>> {
        let Some(list) = value.get(key) else {
            return Ok(all.iter().copied().map(str::to_owned).collect());
        };
        let name = |name: &Value| name.as_str().map(str::to_owned);
        let names = list.as_array().and_then(|list| list.iter().map(name).collect());
        names.with_context(|| format!("{SOURCE}: {key} is no list of names"))
    };
    let mut parts = Vec::new();
    for part in table["part"].as_array().context("parts")? {
        let mut rows = Vec::new();
        for row in part["row"].as_array().context("rows of a part")? {
            // A name that is misspelt would allow the calls everywhere.
            for key in row.as_table().into_iter().flat_map(Table::keys) {
                ensure!(KEYS.contains(&key.as_str()), "{SOURCE}: {key} is unknown");
            }
            let row = Row {
                purpose: text(row, "purpose")?,
                backends: list(row, "backends", &BACKENDS)?,
                processors: list(row, "processors", &PROCESSORS)?,
                calls: list(row, "calls", &[])?,
            };
            ensure!(!row.calls.is_empty(), "{SOURCE}: no calls for {}", row.purpose);
            let is_known = |name: &String, known: &[&str]| known.contains(&name.as_str());
            ensure!(
                row.backends.iter().all(|name| is_known(name, &BACKENDS))
                    && row.processors.iter().all(|name| is_known(name, &PROCESSORS)),
                "{SOURCE}: a backend or processor of {} is unknown",
                row.purpose
            );
            rows.push(row);
        }
        parts.push(Part { name: text(part, "name")?, about: text(part, "about")?, rows });
    }
    Ok(parts)
}

impl Part {
    /// The calls on a backend and processor, each once.
    fn calls(&self, backend: &str, processor: &str) -> BTreeSet<&str> {
        let is_it = |list: &[String], name| list.iter().any(|it| it == name);
        let rows = self.rows.iter();
        let rows =
            rows.filter(|it| is_it(&it.backends, backend) && is_it(&it.processors, processor));
        rows.flat_map(|row| &row.calls).map(String::as_str).collect()
    }
}

fn for_seccompiler(parts: &[Part], backend: &str, processor: &str) -> Result<String> {
    let mut filters = serde_json::Map::new();
    for part in parts {
        let calls = part.calls(backend, processor);
        let calls: Vec<_> = calls.into_iter().map(|call| json!({ "syscall": call })).collect();
        let filter = json!({
            "mismatch_action": "kill_process",
            "match_action": "allow",
            "filter": calls,
        });
        filters.insert(part.name.clone(), filter);
    }
    Ok(serde_json::to_string_pretty(&filters)? + "\n")
}

fn for_libseccomp(parts: &[Part], backend: &str, processor: &str) -> Result<String> {
    let mut text = format!(
        "/* Writes a seccomp filter, as BPF, to the standard output: the calls of a reactor on \
         {backend},\n   {processor}. The arguments name the parts: {names}.\n   \
         `cargo xtask syscalls` writes this file. Compile it with -lseccomp. */\n\n\
         #include <seccomp.h>\n#include <stdio.h>\n#include <string.h>\n#include <unistd.h>\n\n\
         struct part {{\n    const char *name;\n    const int *calls;\n}};\n\n",
        names = parts.iter().map(|part| part.name.as_str()).collect::<Vec<_>>().join(", "),
    );
    for Part { name, about, .. } in parts {
        writeln!(text, "/* For {about}. */\nstatic const int {name}[] = {{")?;
        let part = parts.iter().find(|part| part.name == *name).context("it is one of them")?;
        for call in part.calls(backend, processor) {
            writeln!(text, "    SCMP_SYS({call}),")?;
        }
        text += "    __NR_SCMP_ERROR,\n};\n\n";
    }
    text += "static const struct part parts[] = {\n";
    for part in parts {
        writeln!(text, "    {{\"{0}\", {0}}},", part.name)?;
    }
    let token = processor.to_uppercase();
    write!(text, "}};\n\n{}", MAIN.replace("PROCESSOR", &token))?;
    Ok(text)
}

/// The rest of a C program.
const MAIN: &str = r#"int main(int argc, char **argv) {
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_KILL_PROCESS);
    if (!filter || seccomp_arch_remove(filter, SCMP_ARCH_NATIVE) ||
        seccomp_arch_add(filter, SCMP_ARCH_PROCESSOR))
        return 1;
    for (int i = 1; i < argc; i++) {
        const int *call = NULL;
        for (size_t p = 0; p < sizeof(parts) / sizeof(*parts); p++)
            if (!strcmp(parts[p].name, argv[i]))
                call = parts[p].calls;
        if (!call) {
            fprintf(stderr, "no such part: %s\n", argv[i]);
            return 2;
        }
        for (; *call != __NR_SCMP_ERROR; call++)
            if (seccomp_rule_add(filter, SCMP_ACT_ALLOW, *call, 0))
                return 1;
    }
    return seccomp_export_bpf(filter, STDOUT_FILENO) ? 1 : 0;
}
"#;

fn table(parts: &[Part]) -> Result<String> {
    let mut text = "| part | purpose | calls | where |\n|---|---|---|---|\n".to_owned();
    for part in parts {
        for row in &part.rows {
            let calls: Vec<_> = row.calls.iter().map(|call| format!("`{call}`")).collect();
            let all =
                [row.backends.len() == BACKENDS.len(), row.processors.len() == PROCESSORS.len()];
            let place = match all {
                [true, true] => "everywhere".to_owned(),
                [false, true] => row.backends.join(", "),
                [true, false] => row.processors.join(", "),
                [false, false] => {
                    format!("{} on {}", row.backends.join(", "), row.processors.join(", "))
                }
            };
            let calls = calls.join(", ");
            writeln!(text, "| `{}` | {} | {calls} | {place} |", part.name, row.purpose)?;
        }
    }
    text += "\n| part | for |\n|---|---|\n";
    for part in parts {
        writeln!(text, "| `{}` | {} |", part.name, part.about)?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn the_lists_are_those_of_the_source() {
        let root = repository::root();
        for (path, text) in generated(&root).expect("the source is as it should be") {
            let there = fs::read_to_string(root.join(&path)).unwrap_or_default();
            assert!(there == text, "{path} is out of date: run `cargo xtask syscalls`");
        }
    }

    #[test]
    fn calls_are_those_of_the_backend_and_the_processor() {
        let source = "[[part]]\nname = \"a\"\nabout = \"b\"\n\
            [[part.row]]\npurpose = \"c\"\ncalls = [\"read\", \"close\"]\n\
            [[part.row]]\npurpose = \"d\"\nbackends = [\"epoll\"]\nprocessors = [\"x86_64\"]\n\
            calls = [\"epoll_wait\", \"read\"]\n";
        let parts = read(source).expect("a source");
        let calls = |backend, processor| parts[0].calls(backend, processor).into_iter().collect();
        let [on_it, off_it]: [Vec<&str>; 2] = [calls("epoll", "x86_64"), calls("poll", "x86_64")];
        assert_eq!((on_it, &off_it), (vec!["close", "epoll_wait", "read"], &vec!["close", "read"]));
        assert_eq!(calls("epoll", "aarch64"), off_it);
        assert!(read(&source.replace("epoll\"]", "epol\"]")).is_err());
        assert!(read(&source.replace("backends", "backend")).is_err());
        assert!(read(&source.replace("[\"epoll\"]", "\"epoll\"")).is_err());
    }

    #[test]
    fn the_programs_compile() {
        if !Path::new("/usr/include/seccomp.h").exists() {
            eprintln!("skipped here: the_programs_compile: there is no seccomp.h");
            return;
        }
        for file in fs::read_dir(repository::root().join("docs/syscalls")).expect("it is there") {
            let path = file.expect("a file").path();
            if path.extension().is_some_and(|it| it == "c") {
                let mut cc = Command::new("cc");
                cc.args(["-fsyntax-only", "-Wall", "-Werror"]).arg(&path);
                assert!(cc.status().expect("there is a compiler").success(), "{}", path.display());
            }
        }
    }
}
