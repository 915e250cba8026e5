//! Charts as SVG text: for the page, and as pictures of the documents.

use std::fmt::Write;

use crate::number;
use crate::stats::Spread;

/// The width of a chart in its own units; it is shown as wide as there is room.
const WIDTH: f64 = 640.0;
/// The place for the labels of the vertical axis.
const LEFT: f64 = 64.0;
/// The place for the names of the lines.
const RIGHT: f64 = 150.0;
const TOP: f64 = 34.0;
const PLOT_HEIGHT: f64 = 250.0;
const BOTTOM: f64 = 44.0;
/// The height of a bar with its gap.
const BAR: f64 = 24.0;
/// The least distance of two names beside their lines.
const NAME_GAP: f64 = 15.0;

/// Colours of both themes. The first one is that of windlass.
pub const STYLE: &str = "\
text{font:12px system-ui,sans-serif;fill:#1b1f24}.t{font-size:14px;font-weight:600}\
.g{stroke:#d8dee4;stroke-width:1}.a{fill:#57606a}.l{fill:none;stroke-width:1.5}\
.w{stroke-width:3}.o{stroke:#57606a;stroke-width:1}.one{stroke:#57606a;stroke-dasharray:4 3}\
.c0{--c:#0b62d6}.c1{--c:#c2410c}.c2{--c:#15803d}.c3{--c:#9333ea}.c4{--c:#b91c5c}.c5{--c:#0e7490}\
.c6{--c:#a16207}.c7{--c:#57606a}.c8{--c:#4d7c0f}.c9{--c:#7c2d12}\
.l,.d{stroke:var(--c)}.d,.b,.n{fill:var(--c)}\
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.g{stroke:#30363d}.a{fill:#9aa4af}\
.o{stroke:#9aa4af}.one{stroke:#9aa4af}.c0{--c:#58a6ff}.c1{--c:#fb923c}.c2{--c:#4ade80}\
.c3{--c:#c084fc}.c4{--c:#f472b6}.c5{--c:#22d3ee}.c6{--c:#facc15}.c7{--c:#9aa4af}\
.c8{--c:#a3e635}.c9{--c:#fdba74}.n{fill:var(--c)}}";

/// Escapes the characters of markup.
#[must_use]
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A line of a chart.
#[derive(Clone, Debug)]
pub struct Series {
    /// Its name.
    pub name: String,
    /// Points in the order of `x`.
    pub points: Vec<(f64, Spread)>,
}

/// A chart of lines, with logarithmic axes.
#[derive(Clone, Debug)]
pub struct Lines {
    /// Above the chart.
    pub title: String,
    /// Below the horizontal axis.
    pub x_label: String,
    /// The lines, the one of windlass first.
    pub series: Vec<Series>,
}

/// A bar of a chart.
#[derive(Clone, Debug)]
pub struct Bar {
    /// Before the bar.
    pub name: String,
    /// Its length, with the interval if there is one.
    pub value: Spread,
    /// Behind the bar.
    pub text: String,
    /// The number of its colour.
    pub colour: usize,
}

/// A chart of horizontal bars in groups.
#[derive(Clone, Debug)]
pub struct Bars {
    /// Above the chart.
    pub title: String,
    /// Names of the groups, with their bars.
    pub groups: Vec<(String, Vec<Bar>)>,
    /// Draw a line at one: the bars are ratios.
    pub has_one: bool,
}

/// Makes a chart a file of its own.
#[must_use]
pub fn standalone(svg: &str) -> String {
    let own = "<svg xmlns=\"http://www.w3.org/2000/svg\"";
    let styled = svg.replacen("<svg", own, 1);
    let end = styled.find('>').map_or(0, |end| end + 1);
    let (head, body) = styled.split_at(end);
    format!("{head}\n<style>{STYLE}</style>{body}")
}

/// An axis whose logarithm is linear.
#[derive(Clone, Copy, Debug)]
struct Axis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Axis {
    /// Makes an axis that shows these values, and at least a factor of two.
    fn of(values: impl Iterator<Item = f64> + Clone, from: f64, to: f64) -> Self {
        let positive = values.filter(|value| *value > 0.0);
        let low = positive.clone().fold(f64::INFINITY, f64::min);
        let high = positive.fold(0.0, f64::max);
        let (low, high) = if low > high { (1.0, 2.0) } else { (low, high) };
        let (low, high) = if high / low < 2.0 { (low / 1.4, high * 1.4) } else { (low, high) };
        Self { low, high, from, to }
    }

    fn place(self, value: f64) -> f64 {
        let share = (value / self.low).ln() / (self.high / self.low).ln();
        self.from + share * (self.to - self.from)
    }

    /// Returns round values: powers of ten, with twos and fives where there is room.
    fn ticks(self) -> Vec<f64> {
        let decades = (self.high / self.low).log10();
        let steps: &[f64] = if decades < 2.5 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let first = self.low.log10().floor() as i32;
        let last = self.high.log10().ceil() as i32;
        let all = (first..=last).flat_map(|e| steps.iter().map(move |s| s * 10_f64.powi(e)));
        all.filter(|tick| (self.low * 0.999..=self.high * 1.001).contains(tick)).collect()
    }
}

/// Writes a number for a label: `12,000` or `0.2`.
#[must_use]
pub fn label(value: f64) -> String {
    if value >= 1_000.0 {
        let digits = format!("{value:.0}");
        let mut text = String::new();
        for (place, digit) in digits.chars().enumerate() {
            if place > 0 && (digits.len() - place).is_multiple_of(3) {
                text.push(',');
            }
            text.push(digit);
        }
        return text;
    }
    if value == value.trunc() { format!("{value:.0}") } else { number(value) }
}

impl Lines {
    /// Draws the chart.
    #[must_use]
    pub fn draw(&self) -> String {
        let height = TOP + PLOT_HEIGHT + BOTTOM;
        let (right, bottom) = (WIDTH - RIGHT, TOP + PLOT_HEIGHT);
        let points = || self.series.iter().flat_map(|series| &series.points);
        let x = Axis::of(points().map(|point| point.0), LEFT, right);
        let y = Axis::of(points().map(|point| point.1.median), bottom, TOP + 8.0);
        let mut svg = open(&self.title, height);
        for tick in y.ticks() {
            let at = y.place(tick);
            grid(&mut svg, (LEFT, at), (right, at));
            let before = LEFT - 6.0;
            text(&mut svg, (before, at + 4.0), "a", Anchor::End, &label(tick));
        }
        for tick in x.ticks() {
            let at = x.place(tick);
            grid(&mut svg, (at, TOP + 8.0), (at, bottom));
            text(&mut svg, (at, bottom + 16.0), "a", Anchor::Middle, &label(tick));
        }
        let middle = f64::midpoint(LEFT, right);
        text(&mut svg, (middle, bottom + 34.0), "a", Anchor::Middle, &self.x_label);
        for (number, series) in self.series.iter().enumerate() {
            let places: Vec<String> = series
                .points
                .iter()
                .map(|(at, value)| format!("{:.1},{:.1}", x.place(*at), y.place(value.median)))
                .collect();
            let (colour, wide) = (number % 10, if number == 0 { " w" } else { "" });
            let places = places.join(" ");
            put(&mut svg, &format!("<polyline class=\"l c{colour}{wide}\" points=\"{places}\"/>"));
        }
        for (number, at) in self.names(y) {
            let class = format!("n c{}", number % 10);
            text(&mut svg, (right + 8.0, at + 4.0), &class, Anchor::Start, {
                &self.series[number].name
            });
        }
        svg + "</svg>\n"
    }

    /// Returns the places of the names, moved apart.
    fn names(&self, y: Axis) -> Vec<(usize, f64)> {
        let last = |series: &Series| series.points.last().map(|point| y.place(point.1.median));
        let mut names: Vec<(usize, f64)> = self
            .series
            .iter()
            .enumerate()
            .filter_map(|(number, series)| Some((number, last(series)?)))
            .collect();
        names.sort_by(|one, other| one.1.total_cmp(&other.1));
        for place in 1..names.len() {
            names[place].1 = names[place].1.max(names[place - 1].1 + NAME_GAP);
        }
        // What is too low moves up again, and pushes what is above it.
        let mut limit = TOP + PLOT_HEIGHT + BOTTOM - 6.0;
        for (_, at) in names.iter_mut().rev() {
            *at = at.min(limit);
            limit = *at - NAME_GAP;
        }
        names
    }
}

impl Bars {
    /// Draws the chart.
    #[must_use]
    pub fn draw(&self) -> String {
        let bars = || self.groups.iter().flat_map(|(_, bars)| bars);
        let largest = bars().map(|bar| bar.value.high.max(bar.value.median)).fold(0.0, f64::max);
        let named = self.groups.iter().filter(|(name, _)| !name.is_empty()).count();
        let height = TOP + (bars().count() + named) as f64 * BAR + 12.0;
        let (left, right) = (150.0, WIDTH - 190.0);
        let place = |value: f64| left + value / largest.max(f64::MIN_POSITIVE) * (right - left);
        let mut svg = open(&self.title, height);
        let mut at = TOP + 4.0;
        for (name, bars) in &self.groups {
            if !name.is_empty() {
                text(&mut svg, (0.0, at + 15.0), "a", Anchor::Start, name);
                at += BAR;
            }
            for bar in bars {
                let Spread { median, low, high } = bar.value;
                text(&mut svg, (left - 8.0, at + 14.0), "", Anchor::End, &bar.name);
                let width = place(median) - left;
                put(
                    &mut svg,
                    &format!(
                        "<rect class=\"b c{}\" x=\"{left}\" y=\"{:.1}\" width=\"{width:.1}\" \
                         height=\"16\" rx=\"2\"/>",
                        bar.colour % 10,
                        at + 2.0
                    ),
                );
                if low < high {
                    stroke(&mut svg, "o", (place(low), at + 10.0), (place(high), at + 10.0));
                }
                let behind = place(high.max(median)) + 8.0;
                text(&mut svg, (behind, at + 14.0), "a", Anchor::Start, &bar.text);
                at += BAR;
            }
        }
        if self.has_one {
            stroke(&mut svg, "one", (place(1.0), TOP), (place(1.0), height - 8.0));
        }
        svg + "</svg>\n"
    }
}

#[derive(Clone, Copy)]
enum Anchor {
    Start,
    Middle,
    End,
}

fn open(title: &str, height: f64) -> String {
    let title = escape(title);
    let mut svg =
        format!("<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{title}\">\n");
    text(&mut svg, (0.0, 16.0), "t", Anchor::Start, &title);
    svg
}

fn put(svg: &mut String, element: &str) {
    svg.push_str(element);
    svg.push('\n');
}

fn text(svg: &mut String, (x, y): (f64, f64), class: &str, anchor: Anchor, of: &str) {
    let anchor = match anchor {
        Anchor::Start => "",
        Anchor::Middle => " text-anchor=\"middle\"",
        Anchor::End => " text-anchor=\"end\"",
    };
    // A title is escaped already.
    let of = if class == "t" { of.to_owned() } else { escape(of) };
    writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\"{anchor}>{of}</text>")
        .expect("writing to a string");
}

fn grid(svg: &mut String, from: (f64, f64), to: (f64, f64)) {
    stroke(svg, "g", from, to);
}

fn stroke(svg: &mut String, class: &str, from: (f64, f64), to: (f64, f64)) {
    let ((x1, y1), (x2, y2)) = (from, to);
    writeln!(
        svg,
        "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
    )
    .expect("writing to a string");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_has_round_ticks_between_its_ends() {
        let axis = Axis::of([1.0, 8_000.0].into_iter(), 0.0, 100.0);
        assert_eq!(axis.ticks(), [1.0, 10.0, 100.0, 1_000.0]);
        assert!((axis.place(1.0), axis.place(8_000.0)) == (0.0, 100.0));
        let narrow = Axis::of([400.0, 500.0].into_iter(), 0.0, 1.0);
        assert_eq!(narrow.ticks(), [500.0]);
    }

    #[test]
    fn labels_have_groups_of_three_digits() {
        assert_eq!(label(1_234_567.0), "1,234,567");
        assert_eq!(label(1_000.0), "1,000");
        assert_eq!(label(0.5), "0.500");
    }

    #[test]
    fn names_of_near_lines_do_not_overlap() {
        let series = |name: &str, last: f64| Series {
            name: name.into(),
            points: vec![(1.0, Spread::exact(10.0)), (2.0, Spread::exact(last))],
        };
        let lines = Lines {
            title: "a <b>".into(),
            x_label: "n".into(),
            series: vec![series("one", 20.0), series("two", 20.1), series("three", 20.2)],
        };
        let names = lines.names(Axis::of([10.0, 20.2].into_iter(), 284.0, 42.0));
        let mut places: Vec<f64> = names.iter().map(|name| name.1).collect();
        places.sort_by(f64::total_cmp);
        assert!(places.windows(2).all(|two| two[1] - two[0] >= NAME_GAP - 1e-9), "{places:?}");
        let svg = standalone(&lines.draw());
        assert!(svg.contains("a &lt;b&gt;") && svg.contains("prefers-color-scheme:dark"));
    }
}
