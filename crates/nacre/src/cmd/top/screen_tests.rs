//! The screen, drawn to a backend in memory.
#![allow(clippy::unwrap_used)]

use super::{End, View, fitting_widths};
use crate::activity::{Activity, OperationCounts, Scope};
use crate::cli::{By, Sort, Top};
use crate::cmd::top::sample::Sample;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::Color;
use std::time::Duration;

const ARGS: Top = Top {
    by: By::Job,
    sort: Sort::Operations,
    interval: Duration::from_secs(2),
    once: false,
    count: None,
    json: false,
};

/// A sample with this many writes of each job.
fn read(seconds: u64, jobs: &[(&str, u64)]) -> Sample {
    let operations = jobs.iter().map(|(job, writes)| OperationCounts {
        target: "fs-OST0000".to_owned(),
        scope: Scope::Job((*job).to_owned()),
        since: 0,
        reads: 0,
        writes: *writes,
        metadata: 0,
        read_bytes: 0,
        written_bytes: 1024 * writes,
        busy: 50 * writes,
    });
    let activity = Activity {
        clock: seconds * 1_000_000,
        operations: operations.collect(),
        ..Activity::default()
    };
    Sample {
        processes: [((7, 1, String::new()), activity)].into(),
        ..Sample::default()
    }
}

fn press(view: &mut View, key: char) -> Option<End> {
    view.press(KeyEvent::new(KeyCode::Char(key), KeyModifiers::NONE))
}

/// The lines of the screen without spaces at their ends.
fn lines(view: &View) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(120, 8)).unwrap();
    terminal.draw(|frame| view.draw(frame)).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y| {
        let cells = (0..buffer.area.width).map(|x| buffer[(x, y)].symbol());
        cells.collect::<String>().trim_end().to_owned()
    };
    (0..buffer.area.height).map(line).collect()
}

fn colors(view: &View) -> Vec<Color> {
    let mut terminal = Terminal::new(TestBackend::new(120, 8)).unwrap();
    terminal.draw(|frame| view.draw(frame)).unwrap();
    let content = terminal.backend().buffer().content();
    content.iter().flat_map(|cell| [cell.fg, cell.bg]).collect()
}

#[test]
fn screen_shows_the_rates_after_the_first_interval() {
    let mut view = View::new(&ARGS, false, read(0, &[("dd.0", 10), ("cp.5", 0)]));
    assert_eq!(
        lines(&view)[0],
        "nacre top   by job   sorted by operations   every 2 s"
    );
    assert_eq!(lines(&view)[1], "reading ...");
    view.add_read(Ok(read(2, &[("dd.0", 14), ("cp.5", 200)])));
    let shown = lines(&view);
    assert!(
        shown[1].starts_with("JOB   OPS/S  READS/S  WRITES/S"),
        "{shown:?}"
    );
    assert!(
        shown[2].starts_with("cp.5    100        0       100"),
        "{shown:?}"
    );
    assert!(
        shown[3].starts_with("dd.0    2.0        0       2.0"),
        "{shown:?}"
    );
    assert!(
        shown[2].contains("100K") && shown[2].contains("50us"),
        "{shown:?}"
    );
    assert_eq!(shown[7], "q quit   b rows by   s sort by");
}

#[test]
fn keys_change_rows_and_order_and_end_the_command() {
    let mut view = View::new(&ARGS, false, read(0, &[]));
    view.add_read(Ok(read(2, &[("dd.5", 4)])));
    assert_eq!(press(&mut view, 'b'), None);
    assert_eq!(press(&mut view, 's'), None);
    let shown = lines(&view);
    assert!(shown[0].contains("by uid   sorted by bytes"), "{shown:?}");
    assert!(shown[2].starts_with("5 "), "{shown:?}");
    assert_eq!(press(&mut view, 'x'), None);
    assert_eq!(press(&mut view, 'q'), Some(End::Quit));
    let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(view.press(control_c), Some(End::Interrupt));
}

#[test]
fn failed_read_replaces_the_rates_until_the_next_success() {
    let mut view = View::new(&ARGS, false, read(0, &[("dd.0", 10)]));
    view.add_read(Ok(read(2, &[("dd.0", 14)])));
    view.add_read(Err(anyhow::anyhow!("no process runs")));
    let shown = lines(&view);
    assert_eq!(shown[1], "no process runs");
    assert!(!shown.iter().any(|line| line.contains("dd.0")), "{shown:?}");
    view.add_read(Ok(read(6, &[("dd.0", 22)])));
    let shown = lines(&view);
    assert!(
        shown[2].starts_with("dd.0    2.0"),
        "since the last success: {shown:?}"
    );
}

#[test]
fn empty_table_has_the_reason_and_long_names_leave_space() {
    let mut view = View::new(&ARGS, false, read(0, &[]));
    view.add_read(Ok(read(2, &[])));
    assert!(lines(&view)[1].contains("jobid_var"), "{:?}", lines(&view));
    let long = "j".repeat(100);
    view.add_read(Ok(read(4, &[(&long, 4)])));
    let shown = lines(&view);
    let row = format!("{}    2.0", "j".repeat(40));
    assert!(shown[2].starts_with(&row), "{shown:?}");
    assert!(!shown[1].contains("RULES"), "{shown:?}");
}

#[test]
fn columns_that_do_not_fit_are_left_out() {
    let widths = [9, 5, 7, 6];
    assert_eq!(fitting_widths(&widths, 80), widths);
    assert_eq!(fitting_widths(&widths, 33), widths);
    assert_eq!(fitting_widths(&widths, 32), [9, 5, 7]);
    assert_eq!(fitting_widths(&widths, 12), [4, 5]);
    assert_eq!(fitting_widths(&widths, 0), [0]);
}

#[test]
fn screen_has_colors_only_where_they_are_allowed() {
    let mut view = View::new(&ARGS, false, read(0, &[]));
    view.add_read(Err(anyhow::anyhow!("no process runs")));
    assert!(colors(&view).iter().all(|color| *color == Color::Reset));
    view.has_color = true;
    let colors = colors(&view);
    assert!(colors.contains(&Color::Cyan) && colors.contains(&Color::Yellow));
}
