//! The list of recorded counts, `.ci/expected-counts`.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

/// The path of the list.
pub(super) const PATH: &str = ".ci/expected-counts";

/// The command that writes the list.
pub(super) const RECORD: &str = "cargo xtask counts --record";

const HEADER: &str = "\
# Counts of the benchmarks: user instructions, system calls, allocations and bytes. The stage
# `counts` of `cargo xtask ci` measures them again. It fails if one is more than 3 % over its
# recorded count, if a row is missing, or if a row is not listed.
# To record them again: `cargo xtask counts --record`, and look at the difference.
# A row `varies` with its two counts if they differed by more than 1 %. Such a row is not compared.
# = name | value: where the counts were recorded
# suite | case | parameters | implementation | backend | metric | count
";

/// A counted metric of an implementation in a case.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Row {
    pub(super) suite: String,
    pub(super) case: String,
    /// Names and values in the order of the names: `profile=lto registered=400`.
    pub(super) params: String,
    pub(super) implementation: String,
    pub(super) backend: String,
    pub(super) metric: String,
}

impl Row {
    /// The value of a parameter.
    pub(super) fn param(&self, name: &str) -> Option<&str> {
        let mut params = self.params.split(' ').filter_map(|param| param.split_once('='));
        params.find(|(of, _)| *of == name).map(|(_, value)| value)
    }

    /// The same row without the tool that counted.
    pub(super) fn without_tool(&self) -> Self {
        let params: Vec<&str> =
            self.params.split(' ').filter(|param| !param.starts_with("tool=")).collect();
        Self { params: params.join(" "), ..self.clone() }
    }

    fn line(&self, count: &str) -> String {
        let Self { suite, case, params, implementation, backend, metric } = self;
        format!("{suite} | {case} | {params} | {implementation} | {backend} | {metric} | {count}\n")
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { suite, case, params, implementation, backend, metric } = self;
        write!(f, "{suite}/{case} {params} {implementation} on {backend}: {metric}")
    }
}

/// A recorded count.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Count {
    /// It is the same in every run.
    Steady(f64),
    /// Two runs counted these. It depends on when the kernel schedules which program.
    Varying(f64, f64),
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Steady(count) => write!(f, "{}", rounded(count)),
            Self::Varying(one, other) => write!(f, "varies {} {}", rounded(one), rounded(other)),
        }
    }
}

/// A count with four decimals at most.
pub(super) fn rounded(count: f64) -> f64 {
    let rounded = (count * 1e4).round() / 1e4;
    // Not minus zero.
    if rounded == 0.0 { 0.0 } else { rounded }
}

/// The list.
#[derive(Debug, Default, PartialEq)]
pub(super) struct List {
    /// The tools and the machine that the counts depend on.
    pub(super) environment: BTreeMap<String, String>,
    pub(super) rows: BTreeMap<Row, Count>,
}

impl List {
    /// Reads the committed list.
    ///
    /// # Errors
    ///
    /// If it is missing or a line is malformed.
    pub(super) fn read(root: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(root.join(PATH)).with_context(|| PATH.to_owned())?;
        Self::parse(&text)
    }

    pub(super) fn parse(text: &str) -> Result<Self> {
        let mut list = Self::default();
        for line in text.lines().map(str::trim) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if let Some(named) = line.strip_prefix('=') {
                let Some((name, value)) = named.split_once('|') else {
                    bail!("{PATH}: `{line}` is not `= name | value`");
                };
                list.environment.insert(name.trim().to_owned(), value.trim().to_owned());
                continue;
            }
            let parts: Vec<String> = line.split('|').map(|part| part.trim().to_owned()).collect();
            let Ok([suite, case, params, implementation, backend, metric, count]) =
                <[String; 7]>::try_from(parts)
            else {
                bail!("{PATH}: `{line}` has not seven columns");
            };
            let count = count_of(&count)
                .with_context(|| format!("{PATH}: `{line}` does not end in a count"))?;
            let row = Row { suite, case, params, implementation, backend, metric };
            if list.rows.insert(row, count).is_some() {
                bail!("{PATH}: `{line}` is listed twice");
            }
        }
        Ok(list)
    }

    /// Writes the list back.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub(super) fn write(&self, root: &Path) -> Result<()> {
        std::fs::write(root.join(PATH), self.print()).with_context(|| PATH.to_owned())
    }

    pub(super) fn print(&self) -> String {
        let mut text = HEADER.to_owned();
        for (name, value) in &self.environment {
            text.push_str(&format!("= {name} | {value}\n"));
        }
        for (row, count) in &self.rows {
            text.push_str(&row.line(&count.to_string()));
        }
        text
    }
}

fn count_of(text: &str) -> Option<Count> {
    let number = |text: &str| text.parse::<f64>().ok().filter(|count| count.is_finite());
    match text.strip_prefix("varies ") {
        Some(both) => {
            let (one, other) = both.split_once(' ')?;
            Some(Count::Varying(number(one)?, number(other)?))
        }
        None => number(text).map(Count::Steady),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A row of the suite `dispatch` with these parameters.
    pub(in crate::counts) fn row(params: &str) -> Row {
        let metric = "user_instructions_per_event";
        let [suite, case, implementation, backend, metric] =
            ["dispatch", "one_ready", "windlass", "epoll", metric].map(str::to_owned);
        Row { suite, case, params: params.to_owned(), implementation, backend, metric }
    }

    #[test]
    fn a_list_is_read_back_unchanged() {
        let mut list = List::default();
        list.environment.insert("rustc".to_owned(), "rustc 1.0 (x)".to_owned());
        list.rows.insert(row("a=1 tool=x"), Count::Steady(58.0));
        list.rows.insert(row("a=2"), Count::Steady(0.123_449));
        list.rows.insert(row(""), Count::Varying(1.0, 2.5));
        let text = list.print();
        assert!(text.contains("= rustc | rustc 1.0 (x)\n"));
        let line = "dispatch | one_ready | a=1 tool=x | windlass | epoll | \
                    user_instructions_per_event | 58\n";
        assert!(text.contains(line), "{text}");
        let read = List::parse(&text).expect("it reads its own writing");
        assert_eq!(read.print(), text);
        assert_eq!(read.rows[&row("a=2")], Count::Steady(0.1234));
        assert_eq!(read.rows[&row("")], Count::Varying(1.0, 2.5));
    }

    #[test]
    fn a_malformed_line_is_an_error() {
        let lines = [
            "a | b | c | d | e | f",
            "a | b | c | d | e | f | many",
            "a | b | c | d | e | f | NaN",
            "a | b | c | d | e | f | varies 1",
            "= rustc",
            "a | b | c | d | e | f | 1\na | b | c | d | e | f | 2",
        ];
        for wrong in lines {
            assert!(List::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_committed_list_is_in_its_written_form() {
        let root = crate::repository::root();
        let list = List::read(&root).expect("it is well formed");
        let text = std::fs::read_to_string(root.join(PATH)).expect("it is there");
        assert!(list.print() == text, "write it with `{RECORD}`");
        assert!(list.environment.contains_key("rustc"));
    }
}
