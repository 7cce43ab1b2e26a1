//! A picture of how a call's cost grows, as SVG.

use std::fmt::Write;

/// One thing that grows.
pub struct Panel {
    pub title: String,
    /// Where the cost spans orders of magnitude itself.
    pub log_cost: bool,
    /// What is drawn, and the figures of each: size and µs.
    pub lines: Vec<(&'static str, Vec<(f64, f64)>)>,
}

const WIDTH: f64 = 380.0;
const HEIGHT: f64 = 250.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 34.0;
const COLUMNS: usize = 2;
const COLORS: [&str; 3] = ["#1f6fb2", "#c2571a", "#3b8f4d"];

pub fn svg(title: &str, panels: &[Panel]) -> String {
    let rows = panels.len().div_ceil(COLUMNS);
    let (width, height) = (WIDTH * COLUMNS as f64, 40.0 + HEIGHT * rows as f64);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let _ = writeln!(out, "<text x=\"12\" y=\"24\" font-size=\"15\">{}</text>", escaped(title));
    for (i, panel) in panels.iter().enumerate() {
        let (x, y) = ((i % COLUMNS) as f64 * WIDTH, 40.0 + (i / COLUMNS) as f64 * HEIGHT);
        let _ = writeln!(out, "<g transform=\"translate({x} {y})\">");
        panel.draw(&mut out);
        out.push_str("</g>\n");
    }
    out.push_str("</svg>\n");
    out
}

impl Panel {
    fn draw(&self, out: &mut String) {
        let points = || self.lines.iter().flat_map(|(_, points)| points.iter().copied());
        let max = |values: &mut dyn Iterator<Item = f64>| values.fold(f64::MIN, f64::max);
        let min = |values: &mut dyn Iterator<Item = f64>| values.fold(f64::MAX, f64::min);
        let (from, to) = (min(&mut points().map(|p| p.0)), max(&mut points().map(|p| p.0)));
        let (low, high) = (min(&mut points().map(|p| p.1)), max(&mut points().map(|p| p.1)));
        if !(from > 0.0 && high > 0.0) {
            return;
        }
        let x = |value: f64| {
            let share = if to > from { (value / from).ln() / (to / from).ln() } else { 0.5 };
            LEFT + share * (WIDTH - LEFT - RIGHT)
        };
        let ticks = if self.log_cost { decades(low, high) } else { steps(high) };
        let (bottom, top) = (ticks[0], *ticks.last().unwrap_or(&1.0));
        let y = |value: f64| {
            let share = match self.log_cost {
                true => (value.max(bottom) / bottom).ln() / (top / bottom).ln(),
                false => value / top,
            };
            HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)
        };
        let _ =
            writeln!(out, "<text x=\"{LEFT}\" y=\"14\" font-weight=\"bold\">{}</text>", escaped(&self.title));
        for tick in &ticks {
            let (at, end) = (y(*tick), WIDTH - RIGHT);
            let _ = writeln!(
                out,
                "<line x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{end}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>"
            );
            let (right, base) = (LEFT - 6.0, at + 4.0);
            let _ = writeln!(
                out,
                "<text x=\"{right}\" y=\"{base:.1}\" text-anchor=\"end\">{}</text>",
                short(*tick)
            );
        }
        let mut sizes: Vec<f64> = points().map(|p| p.0).collect();
        sizes.sort_by(f64::total_cmp);
        sizes.dedup();
        for size in sizes {
            let (at, base) = (x(size), HEIGHT - BOTTOM + 16.0);
            let _ = writeln!(
                out,
                "<text x=\"{at:.1}\" y=\"{base}\" text-anchor=\"middle\">{}</text>",
                short(size)
            );
        }
        for (i, (name, points)) in self.lines.iter().enumerate() {
            let color = COLORS[i % COLORS.len()];
            let path: Vec<String> = points.iter().map(|p| format!("{:.1},{:.1}", x(p.0), y(p.1))).collect();
            let _ = writeln!(
                out,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2\"/>",
                path.join(" ")
            );
            for p in points {
                let _ = writeln!(
                    out,
                    "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{color}\"><title>{} µs at {}</title></circle>",
                    x(p.0),
                    y(p.1),
                    short(p.1),
                    short(p.0)
                );
            }
            let at = LEFT + 100.0 * i as f64;
            let _ = writeln!(out, "<text x=\"{at}\" y=\"28\" fill=\"{color}\">{}</text>", escaped(name));
        }
    }
}

/// Zero and a few round values up to above `high`.
fn steps(high: f64) -> Vec<f64> {
    let magnitude = 10f64.powf((high / 4.0).log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * magnitude).into_iter().find(|step| step * 4.0 >= high);
    let step = step.unwrap_or(high);
    (0..=(high / step).ceil() as u32).map(|i| f64::from(i) * step).collect()
}

fn decades(low: f64, high: f64) -> Vec<f64> {
    let first = low.max(1e-3).log10().floor() as i32;
    let last = (high.log10().ceil() as i32).max(first + 1);
    (first..=last).map(|power| 10f64.powi(power)).collect()
}

fn short(value: f64) -> String {
    for (unit, size) in [("M", 1e6), ("k", 1e3)] {
        if value >= size {
            return format!("{}{unit}", trimmed(value / size));
        }
    }
    trimmed(value)
}

fn trimmed(value: f64) -> String {
    let text = if value >= 100.0 { format!("{value:.0}") } else { format!("{value:.2}") };
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_reach_around_the_figures() {
        assert_eq!(steps(3.1), [0.0, 1.0, 2.0, 3.0, 4.0]);
        assert_eq!(steps(17.0), [0.0, 5.0, 10.0, 15.0, 20.0]);
        assert_eq!(decades(0.4, 120.0), [0.1, 1.0, 10.0, 100.0, 1000.0]);
        assert_eq!(
            (short(16_777_216.0), short(0.5), short(1000.0)),
            ("16.78M".into(), "0.5".into(), "1k".into())
        );
    }

    #[test]
    fn every_figure_is_drawn() {
        let lines = vec![("TX", vec![(1.0, 2.0), (10.0, 3.0)]), ("process", vec![(1.0, 4.0), (10.0, 9.0)])];
        let svg = svg("a & b", &[Panel { title: "calls < 10".into(), log_cost: false, lines }]);
        assert_eq!(svg.matches("<circle").count(), 4);
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert!(svg.contains("a &amp; b") && svg.contains("calls &lt; 10"));
    }
}
