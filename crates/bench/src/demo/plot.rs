//! Draws a line chart as SVG: rates over a logarithmic x axis, medians joined by lines, bars from
//! the slowest to the fastest run. The page's style sheet defines the colours (`s0`, `s1`, ...).
//! All lengths are in units of the SVG's view box.

use maud::{Markup, html};

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

/// A coordinate or length in text form.
fn unit(value: f64) -> String {
    format!("{value:.1}")
}

/// The coordinates of a line or polygon.
fn points(all: impl IntoIterator<Item = (f64, f64)>) -> String {
    let points: Vec<String> = all.into_iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    points.join(" ")
}

/// Draws a chart.
pub(super) fn draw(plot: &Plot) -> Markup {
    let (scale, step) = Scale::of(plot);
    html! {
        svg class="plot" viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } role="img" aria-label=(plot.title) {
            (draw_axes(plot, &scale, step))
            @for line in &plot.lines { (draw_line(line, &scale)) }
        }
    }
}

fn draw_axes(plot: &Plot, scale: &Scale, step: f64) -> Markup {
    let (right, bottom) = (WIDTH - MARGIN_RIGHT, HEIGHT - MARGIN_BOTTOM);
    let middle_x = (MARGIN_LEFT + right) / 2.0;
    let upright = format!("translate(11 {:.1}) rotate(-90)", (MARGIN_TOP + bottom) / 2.0);
    let rows = (scale.y_max / step).round() as usize;
    html! {
        @for value in (0..=rows).map(|i| i as f64 * step) {
            @let y = scale.y(value);
            line class="grid" x1=(MARGIN_LEFT) x2=(right) y1=(unit(y)) y2=(unit(y)) {}
            text class="tick" x=(unit(MARGIN_LEFT - 6.0)) y=(unit(y + 3.5)) text-anchor="end" {
                (format_short(value))
            }
        }
        @for (x, has_label) in ticks(plot, scale) {
            @let tick_x = unit(scale.x(x));
            line class="axis" x1=(tick_x) x2=(tick_x) y1=(bottom) y2=(bottom + 4.0) {}
            @if has_label {
                text class="tick" x=(tick_x) y=(bottom + 16.0) text-anchor="middle" { (x) }
            }
        }
        line class="axis" x1=(MARGIN_LEFT) x2=(right) y1=(bottom) y2=(bottom) {}
        text class="axis-name" x=(unit(middle_x)) y=(HEIGHT - 8.0) text-anchor="middle" { (plot.x_axis) }
        text class="axis-name" transform=(upright) text-anchor="middle" { "operations a second" }
    }
}

/// The values on the x axis, and whether there is room for their labels. From right to left, so
/// that the largest value always gets a label.
fn ticks(plot: &Plot, scale: &Scale) -> Vec<(usize, bool)> {
    let mut values: Vec<usize> = plot
        .lines
        .iter()
        .flat_map(|l| l.dots.iter().map(|d| d.x))
        .collect();
    values.sort_unstable();
    values.dedup();
    let mut next_label_x = f64::INFINITY;
    let tick = |x: usize| {
        let has_label = next_label_x - scale.x(x) >= LABEL_SPACING_MIN;
        if has_label {
            next_label_x = scale.x(x);
        }
        (x, has_label)
    };
    values.into_iter().rev().map(tick).collect()
}

/// A group of shapes in a line's colour.
fn line_group(style: usize, dashed: bool, content: Markup) -> Markup {
    html! { g class={ "s" (style % STYLE_COUNT) @if dashed { " dashed" } } { (content) } }
}

fn draw_line(line: &PlotLine, scale: &Scale) -> Markup {
    let medians = line.dots.iter().map(|d| (scale.x(d.x), scale.y(d.median)));
    let content = html! {
        title { (line.name) }
        polyline points=(points(medians)) {}
        @for dot in &line.dots {
            g {
                path class="spread" d=(spread(dot, scale)) {}
                (shape(line.style, scale.x(dot.x), scale.y(dot.median)))
                title {
                    (line.name) ": " (format_short(dot.median)) " at " (dot.x)
                    " (" (format_short(dot.min)) " to " (format_short(dot.max)) ")"
                }
            }
        }
    };
    line_group(line.style, line.dashed, content)
}

/// The bar from the slowest to the fastest run of a dot.
fn spread(dot: &PlotDot, scale: &Scale) -> String {
    let (x, low, high) = (scale.x(dot.x), scale.y(dot.min), scale.y(dot.max));
    let (left, right) = (x - 2.5, x + 2.5);
    format!("M{x:.1} {low:.1}V{high:.1}M{left:.1} {low:.1}H{right:.1}M{left:.1} {high:.1}H{right:.1}")
}

/// Draws the dot of a style. Shapes distinguish lines that have similar colours.
fn shape(style: usize, x: f64, y: f64) -> Markup {
    let corners: &[(f64, f64)] = match style % 4 {
        0 => return html! { circle class="dot" cx=(unit(x)) cy=(unit(y)) r=(DOT_RADIUS) {} },
        1 => &[(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)],
        2 => &[(0.0, -1.2), (1.1, 0.9), (-1.1, 0.9)],
        _ => &[(0.0, -1.3), (1.3, 0.0), (0.0, 1.3), (-1.3, 0.0)],
    };
    let corners = corners
        .iter()
        .map(|(dx, dy)| (x + dx * DOT_RADIUS, y + dy * DOT_RADIUS));
    html! { polygon class="dot" points=(points(corners)) {} }
}

/// A line sample with its dot, for the legend.
pub(super) fn swatch(style: usize, dashed: bool) -> Markup {
    let sample = html! {
        polyline points="1,6 29,6" {}
        (shape(style, 15.0, 6.0))
    };
    html! {
        svg class="swatch" viewBox="0 0 30 12" aria-hidden="true" { (line_group(style, dashed, sample)) }
    }
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
