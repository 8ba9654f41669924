//! The full screen of `nacre top`.
//!
//! A thread reads the processes, so that a process without an answer does not delay the keys.
//! Ratatui restores the terminal after a panic; this module restores it in all other cases.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use anyhow::{Context, Result};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Cell, Paragraph, Row, Table as TableWidget, Wrap};
use ratatui::{DefaultTerminal, Frame};

use super::rates;
use super::sample::{self, Sample};
use super::table::{Table, empty_text};
use crate::cli::{By, Sort, Top};
use crate::interrupt;
use crate::output::{describe, has_color};

/// Time that the loop waits for a key before it checks for new samples and for signals.
const EVENT_WAIT: Duration = Duration::from_millis(100);
/// The first column has at most this part of the width, so that names leave space for numbers.
const KEY_WIDTH_DIVISOR: usize = 3;
/// Characters between two columns of the table.
const SPACING: u16 = 2;

/// How the user ends the command.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Quit,
    Interrupt,
}

/// Runs until the user or a signal ends the command. `first` is the first sample.
pub(super) fn run(args: &Top, first: Sample) -> Result<ExitCode> {
    let stop = interrupt::stop_flag()?;
    let directories = Arc::new(AtomicBool::new(args.by == By::Directory));
    let reads = start_reads(args.interval, directories.clone())?;
    let mut view = View::new(args, has_color(&std::io::stdout()), first);
    let terminal = ratatui::try_init().inspect_err(|_| ratatui::restore());
    let mut terminal = terminal.context("cannot use the terminal as a full screen")?;
    let end = show(&mut terminal, &mut view, &reads, &directories, &stop);
    ratatui::restore();
    Ok(match end? {
        End::Quit => ExitCode::SUCCESS,
        End::Interrupt => interrupt::exit_code(),
    })
}

/// Starts the thread that reads the processes after each interval, with the counts of directories
/// while `directories` is set.
fn start_reads(interval: Duration, directories: Arc<AtomicBool>) -> Result<Receiver<Result<Sample>>> {
    let (sender, receiver) = sync_channel(1);
    std::thread::Builder::new()
        .name("reads".to_owned())
        .spawn(move || {
            loop {
                std::thread::sleep(interval);
                if sender
                    .send(sample::take(directories.load(Ordering::Relaxed)))
                    .is_err()
                {
                    break;
                }
            }
        })
        .context("cannot start the thread that reads the processes")?;
    Ok(receiver)
}

fn show(
    terminal: &mut DefaultTerminal,
    view: &mut View,
    reads: &Receiver<Result<Sample>>,
    directories: &AtomicBool,
    stop: &AtomicBool,
) -> Result<End> {
    loop {
        terminal
            .draw(|frame| view.draw(frame))
            .context("cannot draw on the terminal")?;
        if stop.load(Ordering::Relaxed) {
            return Ok(End::Interrupt);
        }
        let has_event = event::poll(EVENT_WAIT).context("cannot wait for keys")?;
        if has_event
            && let Event::Key(key) = event::read().context("cannot read a key")?
            && let Some(end) = view.press(key)
        {
            return Ok(end);
        }
        directories.store(view.by == By::Directory, Ordering::Relaxed);
        for read in reads.try_iter() {
            view.add_read(read);
        }
    }
}

/// The state of the screen.
struct View {
    by: By,
    sort: Sort,
    interval: Duration,
    has_color: bool,
    /// The last two samples; both the same before the end of the first interval.
    before: Sample,
    after: Sample,
    /// Whether an interval has ended.
    has_rates: bool,
    /// The failure of the last read. Until the next success there are no rates.
    failure: Option<String>,
}

impl View {
    fn new(args: &Top, has_color: bool, first: Sample) -> View {
        View {
            by: args.by,
            sort: args.sort,
            interval: args.interval,
            has_color,
            before: first.clone(),
            after: first,
            has_rates: false,
            failure: None,
        }
    }

    /// Takes the next sample. After a failure the interval lasts until the next success.
    fn add_read(&mut self, read: Result<Sample>) {
        match read {
            Ok(sample) => {
                self.before = std::mem::replace(&mut self.after, sample);
                self.has_rates = true;
                self.failure = None;
            }
            Err(e) => self.failure = Some(describe(&e)),
        }
    }

    /// Handles a key; returns how it ends the command, if it does.
    fn press(&mut self, key: KeyEvent) -> Option<End> {
        if key.kind == KeyEventKind::Release {
            return None;
        }
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                return Some(End::Interrupt);
            }
            KeyCode::Char('q') | KeyCode::Esc => return Some(End::Quit),
            KeyCode::Char('b') => self.by = self.by.next(),
            KeyCode::Char('s') => self.sort = self.sort.next(),
            _ => {}
        }
        None
    }

    fn draw(&self, frame: &mut Frame<'_>) {
        let gaps = match &self.failure {
            Some(failure) => vec![failure.clone()],
            None if self.has_rates => self.after.uncounted_processes(&self.before),
            None => Vec::new(),
        };
        let gap_lines = u16::try_from(gaps.len()).unwrap_or(u16::MAX).min(3);
        let [title, warnings, body, keys] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(gap_lines),
            Constraint::Min(1),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        frame.render_widget(Line::from(self.title()).style(self.style(Color::Cyan)), title);
        let warning_text: Vec<Line<'_>> = gaps.iter().map(|gap| Line::from(gap.as_str())).collect();
        frame.render_widget(
            Paragraph::new(warning_text).style(self.style(Color::Yellow)),
            warnings,
        );
        self.draw_body(frame, body);
        frame.render_widget(Line::from("q quit   b rows by   s sort by"), keys);
    }

    fn title(&self) -> String {
        format!(
            "nacre top   by {}   sorted by {}   every {} s",
            self.by.name(),
            self.sort.name(),
            self.interval.as_secs_f64()
        )
    }

    /// Bold, and with a colour where colours are allowed.
    fn style(&self, color: Color) -> Style {
        let bold = Style::new().add_modifier(Modifier::BOLD);
        match self.has_color {
            true => bold.fg(color),
            false => bold,
        }
    }

    fn draw_body(&self, frame: &mut Frame<'_>, area: Rect) {
        if self.failure.is_some() {
            return;
        }
        if !self.has_rates {
            return frame.render_widget(Line::from("reading ..."), area);
        }
        let loads = rates::loads(&self.before, &self.after, self.by, self.sort);
        if loads.is_empty() {
            let text = Paragraph::new(empty_text(self.by)).wrap(Wrap { trim: true });
            return frame.render_widget(text, area);
        }
        let table = Table::new(self.by, &loads);
        let widths = fitting_widths(&table.widths(), area.width.into());
        let aligned = |(column, text): (usize, &String)| {
            let alignment = match table.is_left(column) {
                true => Alignment::Left,
                false => Alignment::Right,
            };
            Cell::from(Text::from(text.clone()).alignment(alignment))
        };
        let row = |cells: &Vec<String>| {
            Row::new(
                cells
                    .iter()
                    .take(widths.len())
                    .enumerate()
                    .map(aligned)
                    .collect::<Vec<_>>(),
            )
        };
        let header = row(&table.header).style(Style::new().add_modifier(Modifier::REVERSED));
        let constraints = widths
            .iter()
            .map(|width| Constraint::Length(u16::try_from(*width).unwrap_or(u16::MAX)));
        let widget = TableWidget::new(table.rows.iter().map(row), constraints)
            .header(header)
            .column_spacing(SPACING);
        frame.render_widget(widget, area);
    }
}

/// The widths of the leading columns that fit completely: a number that is cut off looks like
/// another number.
fn fitting_widths(widths: &[usize], available: usize) -> Vec<usize> {
    let mut used = 0;
    let mut fitting = Vec::new();
    for (column, width) in widths.iter().enumerate() {
        let (width, spacing) = match column {
            0 => ((*width).min(available / KEY_WIDTH_DIVISOR), 0),
            _ => (*width, usize::from(SPACING)),
        };
        used += width + spacing;
        if used > available {
            break;
        }
        fitting.push(width);
    }
    fitting
}

#[cfg(test)]
#[path = "screen_tests.rs"]
mod tests;
