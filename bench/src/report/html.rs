//! The report as one HTML page without external resources.

use std::fmt::Write;

use super::{Report, number};

const STYLE: &str = "\
body{font:14px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem;\
color:#1b1f24;background:#fff}h2{font-size:1rem;margin:2rem 0 .5rem}\
table{border-collapse:collapse}th,td{padding:.15rem .8rem;text-align:right;\
font-variant-numeric:tabular-nums;border-bottom:1px solid #d8dee4;white-space:nowrap}\
th:first-child,td:first-child{text-align:left}small{color:#57606a}\
@media(prefers-color-scheme:dark){body{color:#e6edf3;background:#0d1117}\
th,td{border-color:#30363d}small{color:#8b949e}}";

/// Escapes the characters of HTML markup.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Returns the whole page.
pub(crate) fn page(report: &Report) -> String {
    let meta = &report.meta;
    let mut page = format!(
        "<!doctype html>\n<meta charset=\"utf-8\">\n<title>windlass-bench</title>\n\
         <style>{STYLE}</style>\n<h1>windlass {} beside its peers</h1>\n\
         <p>Commit {}, Linux {}, {} × {}, {}. Medians; low and high are the tenth and ninetieth \
         percentile of the interleaved slices.</p>\n",
        escape(&meta.version),
        escape(&meta.git),
        escape(&meta.kernel),
        meta.cores,
        escape(&meta.cpu),
        escape(&meta.date),
    );
    for table in report.tables() {
        let names = table.metrics();
        write!(page, "<h2>{}</h2>\n<table><tr><th>", escape(&table.title))
            .expect("writing to a string");
        for name in &names {
            write!(page, "<th>{}", escape(name)).expect("writing to a string");
        }
        page.push('\n');
        for (title, metrics) in &table.rows {
            write!(page, "<tr><td>{}", escape(title)).expect("writing to a string");
            for name in &names {
                page.push_str("<td>");
                let Some(spread) = metrics.get(*name) else {
                    continue;
                };
                page.push_str(&number(spread.median));
                if spread.low != spread.high {
                    let (low, high) = (number(spread.low), number(spread.high));
                    write!(page, " <small>{low}–{high}</small>").expect("writing to a string");
                }
            }
            page.push('\n');
        }
        page.push_str("</table>\n");
    }
    if !report.notes.is_empty() {
        page.push_str("<h2>Waits</h2>\n<ul>\n");
        for note in &report.notes {
            writeln!(page, "<li>{}", escape(note)).expect("writing to a string");
        }
        page.push_str("</ul>\n");
    }
    if !report.targets.is_empty() {
        page.push_str("<h2>Targets</h2>\n<ul>\n");
        for target in &report.targets {
            writeln!(page, "<li>{}", escape(&target.to_string())).expect("writing to a string");
        }
        page.push_str("</ul>\n");
    }
    if !report.skipped.is_empty() {
        page.push_str("<h2>Not measured</h2>\n<ul>\n");
        for skip in &report.skipped {
            let line =
                format!("{}/{} {}: {}", skip.suite, skip.case, skip.implementation, skip.reason);
            writeln!(page, "<li>{}", escape(&line)).expect("writing to a string");
        }
        page.push_str("</ul>\n");
    }
    page
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_are_escaped_and_nothing_is_fetched() {
        let page = super::page(&crate::report::tests::sample());
        assert!(page.contains("c &lt;&amp;&gt;"));
        assert!(!page.contains("http") && !page.contains("src="));
    }
}
