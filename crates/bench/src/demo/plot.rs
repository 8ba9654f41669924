//! Draws a line chart as SVG: rates over a logarithmic x axis, medians joined by lines, bars from
//! the slowest to the fastest run. The page's style sheet defines the colours (`s0`, `s1`, ...).
//! All lengths are in units of the SVG's view box.

use std::fmt::Write;

/// A chart.
pub(super) struct Plot {
    /// Text alternative for screen readers.
    pub(super) title: String,
    /// Label of the horizontal axis.
    pub(super) x_axis: &'static str,
    pub(super) lines: Vec<PlotLine>,
}

/// A line of a chart.
pub(super) struct PlotLine {
    pub(super) name: String,
    /// Number of the line's colour and shape.
    pub(super) style: usize,
    pub(super) dashed: bool,
    pub(super) dots: Vec<PlotDot>,
}

/// A dot of a line.
pub(super) struct PlotDot {
    /// Number of clients, threads, mounts or requests in flight.
    pub(super) x: usize,
    /// Median, minimum and maximum rate of the runs, operations per second.
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
}

/// Number of colours; further styles repeat them.
pub(super) const STYLE_COUNT: usize = 8;
/// The size of the plot, including the margins.
const WIDTH: f64 = 400.0;
const HEIGHT: f64 = 250.0;
/// The margins, which hold the axis labels.
const MARGIN_LEFT: f64 = 54.0;
const MARGIN_RIGHT: f64 = 14.0;
const MARGIN_TOP: f64 = 14.0;
const MARGIN_BOTTOM: f64 = 44.0;
/// The least distance of labels on the x axis.
const LABEL_SPACING_MIN: f64 = 26.0;
/// Radius of a dot.
const DOT_RADIUS: f64 = 3.6;

/// Escapes text for XML.
pub(super) fn escape_xml(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            // XML does not allow control characters.
            c if c.is_control() && !matches!(c, '\n' | '\t') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// A number with few digits: `950`, `12.5k`, `230k`, `1.2M`.
pub(super) fn format_short(value: f64) -> String {
    let (value, unit) = match value.abs() {
        v if v >= 999_500.0 => (value / 1e6, "M"),
        v if v >= 9_995.0 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = match value.abs() {
        v if v >= 99.95 || v == v.trunc() => 0,
        v if v >= 1.0 => 1,
        _ => 2,
    };
    format!("{value:.digits$}{unit}")
}

/// The distance of grid lines: 1, 2, 2.5 or 5 times a power of ten, so that at most four steps
/// reach `max`.
fn grid_step(max: f64) -> f64 {
    let rough = max / 4.0;
    if !(rough.is_finite() && rough > 0.0) {
        return 1.0;
    }
    let power = 10f64.powf(rough.log10().floor());
    let factors = [1.0, 2.0, 2.5, 5.0, 10.0];
    factors
        .into_iter()
        .map(|f| f * power)
        .find(|s| *s >= rough)
        .unwrap_or(10.0 * power)
}

/// Maps values to coordinates.
struct Scale {
    x_min: f64,
    x_max: f64,
    y_max: f64,
}

impl Scale {
    /// The scale of a plot, and the distance of its grid lines.
    fn of(plot: &Plot) -> (Scale, f64) {
        let dots = || plot.lines.iter().flat_map(|l| &l.dots);
        let max = dots().map(|d| d.max).fold(0.0, f64::max);
        let step = grid_step(max);
        let scale = Scale {
            x_min: dots().map(|d| d.x).min().unwrap_or(1).max(1) as f64,
            x_max: dots().map(|d| d.x).max().unwrap_or(1).max(1) as f64,
            y_max: (max / step).ceil().max(1.0) * step,
        };
        (scale, step)
    }

    fn x(&self, x: usize) -> f64 {
        let width = WIDTH - MARGIN_LEFT - MARGIN_RIGHT - 4.0 * DOT_RADIUS;
        let share = match self.x_max / self.x_min {
            r if r > 1.0 => (x.max(1) as f64 / self.x_min).ln() / r.ln(),
            _ => 0.5,
        };
        MARGIN_LEFT + 2.0 * DOT_RADIUS + share * width
    }

    fn y(&self, y: f64) -> f64 {
        HEIGHT - MARGIN_BOTTOM - y / self.y_max * (HEIGHT - MARGIN_TOP - MARGIN_BOTTOM)
    }
}

/// Draws a chart.
pub(super) fn draw(plot: &Plot) -> String {
    let (scale, step) = Scale::of(plot);
    let mut out = format!(
        "<svg class=\"plot\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">\n",
        escape_xml(&plot.title)
    );
    draw_axes(&mut out, plot, &scale, step);
    for line in &plot.lines {
        // Writing to a string cannot fail, here and below.
        let _ = draw_line(&mut out, line, &scale);
    }
    out.push_str("</svg>\n");
    out
}

fn draw_axes(out: &mut String, plot: &Plot, scale: &Scale, step: f64) {
    let (right, bottom) = (WIDTH - MARGIN_RIGHT, HEIGHT - MARGIN_BOTTOM);
    let rows = (scale.y_max / step).round() as usize;
    for value in (0..=rows).map(|i| i as f64 * step) {
        let y = scale.y(value);
        let _ = writeln!(
            out,
            "<line class=\"grid\" x1=\"{MARGIN_LEFT}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/><text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            MARGIN_LEFT - 6.0,
            y + 3.5,
            format_short(value)
        );
    }
    let mut x_values: Vec<usize> = plot
        .lines
        .iter()
        .flat_map(|l| l.dots.iter().map(|d| d.x))
        .collect();
    x_values.sort_unstable();
    x_values.dedup();
    // From right to left, so that the largest value always gets a label.
    let mut next_label_x = f64::INFINITY;
    for x in x_values.into_iter().rev() {
        let tick_x = scale.x(x);
        let _ = writeln!(
            out,
            "<line class=\"axis\" x1=\"{tick_x:.1}\" x2=\"{tick_x:.1}\" y1=\"{bottom}\" y2=\"{}\"/>",
            bottom + 4.0
        );
        if next_label_x - tick_x >= LABEL_SPACING_MIN {
            next_label_x = tick_x;
            let _ = writeln!(
                out,
                "<text class=\"tick\" x=\"{tick_x:.1}\" y=\"{}\" text-anchor=\"middle\">{x}</text>",
                bottom + 16.0
            );
        }
    }
    let _ = writeln!(
        out,
        "<line class=\"axis\" x1=\"{MARGIN_LEFT}\" x2=\"{right}\" y1=\"{bottom}\" y2=\"{bottom}\"/>\n\
         <text class=\"axis-name\" x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n\
         <text class=\"axis-name\" transform=\"translate(11 {:.1}) rotate(-90)\" text-anchor=\"middle\">operations a second</text>",
        (MARGIN_LEFT + right) / 2.0,
        HEIGHT - 8.0,
        escape_xml(plot.x_axis),
        (MARGIN_TOP + bottom) / 2.0
    );
}

fn draw_line(out: &mut String, line: &PlotLine, scale: &Scale) -> std::fmt::Result {
    let dashed = if line.dashed { " dashed" } else { "" };
    writeln!(
        out,
        "<g class=\"s{}{dashed}\"><title>{}</title>",
        line.style % STYLE_COUNT,
        escape_xml(&line.name)
    )?;
    let path: Vec<String> = (line.dots.iter())
        .map(|d| format!("{:.1},{:.1}", scale.x(d.x), scale.y(d.median)))
        .collect();
    writeln!(out, "<polyline points=\"{}\"/>", path.join(" "))?;
    for dot in &line.dots {
        let (x, y) = (scale.x(dot.x), scale.y(dot.median));
        let (low, high) = (scale.y(dot.min), scale.y(dot.max));
        let (left, right) = (x - 2.5, x + 2.5);
        writeln!(
            out,
            "<g><path class=\"spread\" d=\"M{x:.1} {low:.1}V{high:.1}M{left:.1} {low:.1}H{right:.1}M{left:.1} {high:.1}H{right:.1}\"/>{}<title>{}: {} at {} ({} to {})</title></g>",
            shape(line.style, x, y),
            escape_xml(&line.name),
            format_short(dot.median),
            dot.x,
            format_short(dot.min),
            format_short(dot.max)
        )?;
    }
    writeln!(out, "</g>")
}

/// Draws the dot of a style. Shapes distinguish lines that have similar colours.
fn shape(style: usize, x: f64, y: f64) -> String {
    let r = DOT_RADIUS;
    let points = |all: &[(f64, f64)]| {
        let points: Vec<String> = (all.iter())
            .map(|(dx, dy)| format!("{:.1},{:.1}", x + dx * r, y + dy * r))
            .collect();
        format!("<polygon class=\"dot\" points=\"{}\"/>", points.join(" "))
    };
    match style % 4 {
        0 => format!("<circle class=\"dot\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{r}\"/>"),
        1 => points(&[(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)]),
        2 => points(&[(0.0, -1.2), (1.1, 0.9), (-1.1, 0.9)]),
        _ => points(&[(0.0, -1.3), (1.3, 0.0), (0.0, 1.3), (-1.3, 0.0)]),
    }
}

/// A line sample with its dot, for the legend.
pub(super) fn swatch(style: usize, dashed: bool) -> String {
    let dashed = if dashed { " dashed" } else { "" };
    format!(
        "<svg class=\"swatch\" viewBox=\"0 0 30 12\" aria-hidden=\"true\"><g class=\"s{}{dashed}\"><polyline points=\"1,6 29,6\"/>{}</g></svg>",
        style % STYLE_COUNT,
        shape(style, 15.0, 6.0)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_abbreviated() {
        let text: Vec<String> = [
            0.0, 0.25, 9.5, 950.0, 9500.0, 12_500.0, 230_000.0, 999_700.0, 2.5e6,
        ]
        .into_iter()
        .map(format_short)
        .collect();
        assert_eq!(
            text,
            [
                "0", "0.25", "9.5", "950", "9500", "12.5k", "230k", "1.00M", "2.5M"
            ]
        );
    }

    #[test]
    fn grid_lines_are_at_round_numbers() {
        for (max, expected) in [
            (4.0, 1.0),
            (7.0, 2.0),
            (90_000.0, 25_000.0),
            (0.0, 1.0),
            (f64::NAN, 1.0),
        ] {
            assert_eq!(grid_step(max), expected, "{max}");
        }
    }

    #[test]
    fn dots_stay_within_the_plot() {
        let dot = |x, median: f64| PlotDot {
            x,
            median,
            min: median / 2.0,
            max: median * 1.5,
        };
        let plot = Plot {
            title: String::new(),
            x_axis: "clients",
            lines: vec![PlotLine {
                name: String::new(),
                style: 0,
                dashed: false,
                dots: vec![dot(1, 0.0), dot(512, 90_000.0)],
            }],
        };
        let (scale, _) = Scale::of(&plot);
        for (x, y) in [(1, 0.0), (512, 135_000.0)] {
            assert!((MARGIN_LEFT..=WIDTH - MARGIN_RIGHT).contains(&scale.x(x)));
            assert!((MARGIN_TOP..=HEIGHT - MARGIN_BOTTOM).contains(&scale.y(y)));
        }
        // Logarithmic axis: doubling is the same distance everywhere.
        let distance = |a, b| scale.x(b) - scale.x(a);
        assert!((distance(1, 2) - distance(256, 512)).abs() < 1e-9);
    }
}
