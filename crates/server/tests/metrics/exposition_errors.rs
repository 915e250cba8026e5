//! The parser of these tests finds each error of the text format, so that the checks do not depend
//! on `promtool`.

use crate::{exposition::Exposition, panics::caught};

/// A family with all that the format allows.
const GOOD: &str = "\
# HELP windlass_a_total Counts of something.
# TYPE windlass_a_total counter
windlass_a_total{kind=\"x\",way=\"in\"} 1
windlass_a_total{kind=\"x\",way=\"out\"} 2.5
# HELP windlass_b_seconds Times of something.
# TYPE windlass_b_seconds histogram
windlass_b_seconds_bucket{worker=\"0\",le=\"0.1\"} 1
windlass_b_seconds_bucket{worker=\"0\",le=\"1\"} 1
windlass_b_seconds_bucket{worker=\"0\",le=\"+Inf\"} 3
windlass_b_seconds_sum{worker=\"0\"} 7.25
windlass_b_seconds_count{worker=\"0\"} 3
# HELP windlass_c Something that is now.
# TYPE windlass_c gauge
windlass_c 0
";

pub(crate) fn what_the_format_allows_is_accepted() {
    let exposition = Exposition::parse(GOOD);
    assert_eq!(exposition.get("a_total{kind=\"x\",way=\"in\"}"), 1);
    assert_eq!((exposition.get("b_seconds_count{worker=\"0\"}"), exposition.sum("c")), (3, 0));
    // Quotes, backslashes and line feeds of a value are escaped. A comma or a brace is not.
    let odd = GOOD.replace("kind=\"x\",way=\"in\"", r#"kind="\"\\\n,}{ ",way="in""#);
    Exposition::parse(&odd);
}

pub(crate) fn each_error_of_the_format_is_found() {
    let head = "# HELP windlass_c Something that is now.\n# TYPE windlass_c gauge\n";
    let errors: [(&str, &str, &str); 24] = [
        ("the last line has no end", "windlass_c 0\n", "windlass_c 0"),
        ("an empty line", "windlass_c 0\n", "\nwindlass_c 0\n"),
        ("no HELP", "# HELP windlass_c Something that is now.\n", ""),
        ("no TYPE", "# TYPE windlass_c gauge\n", ""),
        ("TYPE before HELP", head, "# TYPE windlass_c gauge\n# HELP windlass_c It is now.\n"),
        ("HELP of another", "# HELP windlass_c ", "# HELP windlass_d "),
        ("an unknown type", "windlass_c gauge", "windlass_c guage"),
        ("a family twice", "windlass_c 0\n", &format!("windlass_c 0\n{head}")),
        ("a family apart", "windlass_c 0\n", "windlass_c 0\nwindlass_a_total{kind=\"y\"} 1\n"),
        ("a series twice", "windlass_c 0\n", "windlass_c 0\nwindlass_c 1\n"),
        (
            "a series twice, with labels in another order",
            "windlass_a_total{kind=\"x\",way=\"out\"}",
            "windlass_a_total{way=\"in\",kind=\"x\"}",
        ),
        ("a counter without _total", "windlass_a_total", "windlass_a"),
        ("a gauge with _total", "windlass_c", "windlass_c_total"),
        ("a foreign name", "windlass_c", "other_c"),
        ("a character in a name", "windlass_c", "windlass_c-d"),
        ("a label twice", "kind=\"x\",way=\"in\"", "kind=\"x\",kind=\"in\""),
        ("a label's name", "way=\"in\"", "w-y=\"in\""),
        ("a bare quote in a value", "way=\"in\"", "way=\"i\"n\""),
        ("an unknown escape", "way=\"in\"", r#"way="i\tn""#),
        ("a label without quotes", "way=\"in\"", "way=in"),
        ("no value", "windlass_c 0", "windlass_c"),
        ("a value that is no number", "windlass_c 0", "windlass_c none"),
        ("buckets that are not cumulative", "le=\"0.1\"} 1", "le=\"0.1\"} 2"),
        (
            "a count that is not that of the last bucket",
            "_count{worker=\"0\"} 3",
            "_count{worker=\"0\"} 2",
        ),
    ];
    for (error, from, to) in errors {
        assert!(GOOD.contains(from), "{error}");
        let text = GOOD.replace(from, to);
        assert!(caught(|| Exposition::parse(&text)).is_err(), "{error} is not found");
    }
}
