//! The report as one HTML page without external resources and without scripts.

use std::fmt::Write;

use crate::curves::{curves, distribution, in_words};
use crate::headline::{self, CaseOf, Headline, Verdict};
use crate::stats::Spread;
use crate::suites::about;
use crate::svg::{self, escape};
use crate::{Report, Table, number};

const STYLE: &str = "\
:root{color-scheme:light dark;--text:#1b1f24;--soft:#57606a;--line:#d8dee4;--back:#fff;\
--card:#f6f8fa;--ahead:#15803d;--tie:#57606a;--behind:#c2410c}\
@media(prefers-color-scheme:dark){:root{--text:#e6edf3;--soft:#9aa4af;--line:#30363d;\
--back:#0d1117;--card:#161b22;--ahead:#4ade80;--tie:#9aa4af;--behind:#fb923c}}\
body{font:15px/1.55 system-ui,sans-serif;margin:0 auto;max-width:72rem;padding:1rem;\
color:var(--text);background:var(--back)}\
h1{font-size:1.5rem;line-height:1.25}h2{font-size:1.2rem;margin:2.5rem 0 .25rem}\
h3{font-size:1rem;margin:1.5rem 0 .5rem}a{color:inherit}p{max-width:46rem}\
nav{display:flex;flex-wrap:wrap;gap:.3rem .9rem}small,.soft{color:var(--soft)}\
dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem 1rem;margin:1rem 0}dd{margin:0}\
dt{color:var(--soft)}.scroll{overflow-x:auto}\
table{border-collapse:collapse;font-size:.85rem}th,td{padding:.2rem .8rem .2rem 0;\
text-align:right;font-variant-numeric:tabular-nums;border-bottom:1px solid var(--line);\
white-space:nowrap}th:first-child,td:first-child{text-align:left}\
.row{display:grid;grid-template-columns:minmax(0,24rem) minmax(0,1fr) 12rem;gap:0 1rem;\
align-items:center;padding:.3rem 0;border-bottom:1px solid var(--line)}\
.row>*{min-width:0}.name{overflow-wrap:anywhere;font-size:.85rem}\
.bar{position:relative;height:1.1rem;background:var(--card);border-radius:3px}\
.bar i{position:absolute;top:0;bottom:0}.one{left:50%;border-left:1px solid var(--soft)}\
.fill{top:.2rem!important;bottom:.2rem!important;border-radius:2px}\
.span{top:.5rem!important;bottom:.5rem!important;background:var(--text)}\
.ahead .fill{background:var(--ahead)}.tie .fill{background:var(--tie)}\
.behind .fill{background:var(--behind)}.value{font-size:.85rem;\
font-variant-numeric:tabular-nums}.charts{display:grid;gap:1rem;margin-top:1rem;\
grid-template-columns:repeat(auto-fill,minmax(min(100%,30rem),1fr))}\
.charts svg{width:100%;height:auto;background:var(--card);border-radius:6px;padding:.6rem;\
box-sizing:border-box}details{margin:.5rem 0}summary{cursor:pointer}\
@media(max-width:44rem){.row{grid-template-columns:minmax(0,1fr)}\
.bar{grid-row:3}.charts{overflow-x:auto}.charts svg{min-width:36rem}}";

/// The factor at both ends of a bar: what costs more or less is cut off there.
const FACTOR_MAX: f64 = 4.0;

/// Writes to a string, which cannot fail.
macro_rules! put {
    ($page:expr, $($text:tt)*) => {
        write!($page, $($text)*).expect("writing to a string")
    };
}

/// Returns the whole page.
#[must_use]
pub fn page(report: &Report) -> String {
    let cases = headline::cases(&report.results);
    let mut suites: Vec<&str> = Vec::new();
    for case in &cases {
        if !suites.contains(&case.suite) {
            suites.push(case.suite);
        }
    }
    let mut page = String::new();
    head(report, &suites, &mut page);
    behind(&cases, &mut page);
    for suite in &suites {
        of_suite(suite, report, &cases, &mut page);
    }
    put!(
        page,
        "<h2 id=\"raw\">All figures</h2>\n<p class=\"soft\">Medians, with the tenth and \
        ninetieth percentile of the interleaved slices.</p>\n"
    );
    for suite in suites {
        put!(page, "<details><summary>{}</summary>\n", escape(suite));
        let start = format!("{suite}/");
        for table in report.tables().iter().filter(|table| table.title.starts_with(&start)) {
            raw(table, &mut page);
        }
        page.push_str("</details>\n");
    }
    rest(report, &mut page);
    page
}

fn head(report: &Report, suites: &[&str], page: &mut String) {
    let meta = &report.meta;
    put!(
        page,
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
         <title>windlass beside its peers</title>\n<style>{STYLE}{}</style>\n\
         <h1>windlass {} beside its peers</h1>\n<dl>\n",
        svg::STYLE,
        escape(&meta.version),
    );
    let price = meta.empty_call_ns.map(|ns| format!("{ns:.0} ns (getppid)"));
    let facts = [
        ("Machine", Some(meta.machine())),
        ("Memory", (meta.memory_mib > 0).then(|| format!("{} MiB", meta.memory_mib))),
        ("Compiler", Some(meta.rustc.clone())),
        ("Empty system call", price),
        ("Measured", Some(format!("{}, {:.0} minutes", meta.date, meta.minutes))),
        ("Commit", Some(meta.git.clone())),
        ("Kind of run", meta.quick.then(|| "quick: fewer cases, shorter slices".to_owned())),
        (
            "Release build of the reactor",
            meta.build_seconds.map(|seconds| format!("{seconds:.0} s")),
        ),
        ("Lines that the tests run", meta.coverage_percent.map(|share| format!("{share:.1} %"))),
    ];
    for (name, fact) in facts {
        if let Some(fact) = fact.filter(|fact| !fact.is_empty()) {
            put!(page, "<dt>{name}<dd>{}\n", escape(&fact));
        }
    }
    page.push_str("</dl>\n<nav><a href=\"#behind\">Where we are not ahead</a>\n");
    for suite in suites {
        put!(page, "<a href=\"#{0}\">{0}</a>\n", escape(suite));
    }
    page.push_str("<a href=\"#raw\">All figures</a></nav>\n");
    put!(
        page,
        "<p>A ratio is what Windlass costs over what the best other library costs in the same \
         case, or a hand-written program where there is no library. Below one, Windlass costs \
         less. It is taken within each repetition, and its interval is from the tenth to the \
         ninetieth percentile; that of a latency is the quotient of the ends of both. A difference \
         below a tenth is a tie, and so is one whose interval includes one.</p>\n"
    );
}

/// Lists what Windlass is not the best in, the largest ratio first.
fn behind(cases: &[CaseOf<'_>], page: &mut String) {
    let all: Vec<(&CaseOf<'_>, Headline<'_>)> =
        cases.iter().filter_map(|case| Some((case, headline::of(case)?))).collect();
    let count = |verdict| all.iter().filter(|(_, one)| one.verdict() == Some(verdict)).count();
    put!(
        page,
        "<h2 id=\"behind\">Where we are not ahead</h2>\n<p>Of {} cases with another \
         implementation, Windlass costs less in {}, as much in {}, and more in {}:</p>\n",
        all.iter().filter(|(_, one)| one.ratio.is_some()).count(),
        count(Verdict::Ahead),
        count(Verdict::Tie),
        count(Verdict::Behind),
    );
    let mut behind: Vec<_> =
        all.iter().filter(|(_, one)| one.verdict() == Some(Verdict::Behind)).collect();
    behind.sort_by(|(_, one), (_, other)| {
        let median = |of: &Headline<'_>| of.ratio.map_or(0.0, |ratio| ratio.median);
        median(other).total_cmp(&median(one))
    });
    for (case, headline) in behind {
        bar(case, headline, page);
    }
}

fn of_suite(suite: &str, report: &Report, cases: &[CaseOf<'_>], page: &mut String) {
    let name = escape(suite);
    put!(page, "<h2 id=\"{name}\">{name}</h2>\n<p class=\"soft\">{}</p>\n", escape(about(suite)));
    let cases = || cases.iter().filter(|case| case.suite == suite);
    for case in cases() {
        if let Some(headline) = headline::of(case).filter(|one| one.ratio.is_some()) {
            bar(case, &headline, page);
        }
    }
    let distributions = cases().filter_map(|case| distribution(&case.entries, case.title.clone()));
    let charts: Vec<_> = curves(&report.results, suite).into_iter().chain(distributions).collect();
    if !charts.is_empty() {
        page.push_str("<div class=\"charts\">\n");
        for chart in charts {
            page.push_str(&chart.draw());
        }
        page.push_str("</div>\n");
    }
}

/// Draws a ratio with its interval, one in the middle, on a logarithmic scale.
fn bar(case: &CaseOf<'_>, headline: &Headline<'_>, page: &mut String) {
    let (Some(ratio), Some(other)) = (headline.ratio, headline.other) else { return };
    let class = match headline.verdict() {
        Some(Verdict::Ahead) => "ahead",
        Some(Verdict::Behind) => "behind",
        _ => "tie",
    };
    let place = |value: f64| {
        let share = value.max(f64::MIN_POSITIVE).ln() / FACTOR_MAX.ln();
        50.0 + 50.0 * share.clamp(-1.0, 1.0)
    };
    let Spread { median, low, high } = ratio;
    let (from, to) = (place(median).min(50.0), place(median).max(50.0));
    put!(
        page,
        "<div class=\"row {class}\"><span class=\"name\">{} <small>{}</small></span>\
         <span class=\"bar\"><i class=\"fill\" style=\"left:{from:.1}%;width:{:.1}%\"></i>\
         <i class=\"span\" style=\"left:{:.1}%;width:{:.1}%\"></i><i class=\"one\"></i></span>\
         <span class=\"value\">{median:.2} <small>{low:.2}–{high:.2}</small> of {}</span></div>\n",
        escape(&case.title.replace(" profile=release", "")),
        escape(&in_words(headline.figure)),
        to - from,
        place(low),
        place(high) - place(low),
        escape(&other.implementation),
    );
}

fn raw(table: &Table, page: &mut String) {
    let names = table.metrics();
    put!(page, "<h3>{}</h3>\n<div class=\"scroll\"><table><tr><th>", escape(&table.title));
    for name in &names {
        put!(page, "<th>{}", escape(name));
    }
    page.push('\n');
    for (title, metrics) in &table.rows {
        put!(page, "<tr><td>{}", escape(title));
        for name in &names {
            page.push_str("<td>");
            let Some(spread) = metrics.get(*name) else {
                continue;
            };
            page.push_str(&number(spread.median));
            if spread.low != spread.high {
                put!(page, " <small>{}–{}</small>", number(spread.low), number(spread.high));
            }
        }
        page.push('\n');
    }
    page.push_str("</table></div>\n");
}

/// Writes the notes, the targets, and what was not measured.
fn rest(report: &Report, page: &mut String) {
    let skipped = report.skipped.iter().map(|skip| {
        format!("{}/{} {}: {}", skip.suite, skip.case, skip.implementation, skip.reason)
    });
    let lists = [
        ("Waits", report.notes.clone()),
        ("Targets", report.targets.iter().map(ToString::to_string).collect()),
        ("Not measured", skipped.collect()),
    ];
    for (title, lines) in lists {
        if lines.is_empty() {
            continue;
        }
        put!(page, "<h2>{title}</h2>\n<ul>\n");
        for line in lines {
            put!(page, "<li>{}\n", escape(&line));
        }
        page.push_str("</ul>\n");
    }
}

#[cfg(test)]
mod tests {
    use crate::Entry;

    #[test]
    fn names_are_escaped_and_nothing_is_fetched() {
        let page = super::page(&crate::tests::sample());
        assert!(page.contains("c &lt;&amp;&gt;"));
        assert!(!page.contains("http") && !page.contains("src=") && !page.contains("<script"));
        assert!(page.contains("prefers-color-scheme:dark") && page.contains("max-width:44rem"));
    }

    #[test]
    fn what_costs_more_is_listed_first() {
        let mut report = crate::tests::sample();
        let of = |name: &str, factor: f64| Entry {
            implementation: name.into(),
            samples: vec![10.0 * factor; 3],
            ..crate::tests::sample().results[0].clone()
        };
        report.results = vec![of("windlass", 2.0), of("mio", 1.0)];
        let page = super::page(&report);
        let text = "Windlass costs less in 0, as much in 0, and more in 1:";
        let list = page.split_once(text).unwrap().1;
        assert!(list.contains("row behind") && list.contains("2.00 <small>2.00–2.00</small>"));
    }
}
