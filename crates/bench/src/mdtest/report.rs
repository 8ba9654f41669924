//! The report of mdtest: its tables of rates and times, and an additional table of latencies.

use super::plan::Plan;
use crate::{Figure, time_series};
use std::fmt::{self, Write};

/// Operations on directories, in the order of the tables.
const DIRS: [&str; 4] = [
    "Directory creation",
    "Directory stat",
    "Directory rename",
    "Directory removal",
];
/// Operations on files, in the order of the tables.
const FILES: [&str; 4] = ["File creation", "File stat", "File read", "File removal"];
/// Operations on trees, in the order of the tables.
const TREES: [&str; 2] = ["Tree creation", "Tree removal"];

/// The results of a run.
#[derive(Debug)]
pub struct Report {
    pub(super) plan: Plan,
    /// Number of tasks.
    pub tasks: usize,
    /// Number of machines that the tasks run on.
    pub nodes: usize,
    /// Number of iterations, including an incomplete one.
    pub iterations: usize,
    /// The figures of all phases.
    pub figures: Vec<Figure>,
    /// Number of files that all tasks created until the stonewall, and the seconds until then, both
    /// summed over the iterations.
    pub(super) stonewall: Option<(u64, f64)>,
    /// Number of reads with wrong content.
    pub wrong_reads: u64,
}

/// The tables to print.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReportOptions {
    /// `-Z`: times instead of rates.
    pub time: bool,
    /// `-P`: rates and times.
    pub rate_and_time: bool,
    /// `--showRankStatistics`: also statistics over the rates of single tasks.
    pub ranks: bool,
    /// `--print-all-procs`: the rate of every task.
    pub all_ranks: bool,
    /// `--windows`: number of time windows of each operation; 0: none.
    pub windows: usize,
}

/// Statistics over the rates or times of iterations or tasks.
struct Spread {
    max: f64,
    min: f64,
    mean: f64,
    deviation: f64,
}

impl Spread {
    fn of(values: &[f64]) -> Spread {
        let n = values.len() as f64;
        // The sum of no values is -0.0.
        let mean = (values.iter().sum::<f64>() + 0.0) / n.max(1.0);
        let squares: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        Spread {
            max: values.iter().copied().fold(0.0, f64::max),
            min: if values.is_empty() { 0.0 } else { least },
            mean,
            deviation: if values.len() < 2 {
                0.0
            } else {
                (squares / (n - 1.0)).sqrt()
            },
        }
    }
}

impl Report {
    /// The report as text.
    pub fn text(&self, show: ReportOptions) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = self.write(&mut out, show);
        out
    }

    fn write(&self, out: &mut String, show: ReportOptions) -> fmt::Result {
        writeln!(out, "{} task(s) on {} node(s)", self.tasks, self.nodes)?;
        for tasks in self.plan.task_counts(self.tasks) {
            self.write_item_count(out, tasks)?;
            let figures: Vec<&Figure> = self.figures.iter().filter(|f| f.tasks == tasks).collect();
            if show.all_ranks {
                write_rank_rates(out, &figures)?;
            }
            for time in [false, true] {
                if show.rate_and_time || show.time == time {
                    self.write_summary(out, &figures, time, show.ranks)?;
                }
            }
            self.write_latencies(out, &figures)?;
        }
        out.push_str(&time_series::windows_table(&self.figures, show.windows));
        if self.wrong_reads > 0 {
            writeln!(out, "\nERROR: {} files have wrong content", self.wrong_reads)?;
        }
        Ok(())
    }

    fn write_item_count(&self, out: &mut String, tasks: usize) -> fmt::Result {
        let options = &self.plan.options;
        let items = self.plan.items_per_tree() * self.plan.test_dir_count * tasks as u64;
        match (options.files_only, options.dirs_only) {
            (true, true) => writeln!(out, "{tasks} tasks, {items} files/directories"),
            (true, false) if options.shared_file => {
                writeln!(out, "{tasks} tasks, {} shared files", items / tasks as u64)
            }
            (true, false) => writeln!(out, "{tasks} tasks, {items} files"),
            _ => writeln!(out, "{tasks} tasks, {items} directories"),
        }
    }

    fn operations(&self) -> Vec<&'static str> {
        let options = &self.plan.options;
        let mut all = Vec::new();
        if options.dirs_only {
            all.extend(DIRS);
        }
        if options.files_only {
            all.extend(FILES);
        }
        all.extend(TREES);
        all
    }

    fn write_summary(&self, out: &mut String, figures: &[&Figure], time: bool, ranks: bool) -> fmt::Result {
        let unit = if time {
            "time (in ms/op)"
        } else {
            "rate (in ops/sec)"
        };
        writeln!(out, "\nSUMMARY {unit}: (of {} iterations)", self.iterations)?;
        let per_rank = |text: &str| if ranks { text.to_owned() } else { String::new() };
        writeln!(
            out,
            "   Operation     {}                Max            Min           Mean        Std Dev",
            per_rank("per Rank: Max            Min           Mean      per Iteration:")
        )?;
        writeln!(
            out,
            "   ---------     {}                ---            ---           ----        -------",
            per_rank("          ---            ---           ----                     ")
        )?;
        for operation in self.operations() {
            let of_operation: Vec<&Figure> = figures
                .iter()
                .copied()
                .filter(|f| f.operation == operation)
                .collect();
            let in_unit = |rate: f64| match time {
                true if rate > 0.0 => 1e3 / rate,
                true => 0.0,
                false => rate,
            };
            write!(out, "   {operation:<22} ")?;
            if ranks {
                let rates: Vec<f64> = of_operation
                    .iter()
                    .flat_map(|f| &f.task_rates)
                    .map(|r| in_unit(*r))
                    .collect();
                let s = Spread::of(&rates);
                write!(out, "{:14.3} {:14.3} {:14.3}     ", s.max, s.min, s.mean)?;
            }
            let rates: Vec<f64> = of_operation.iter().map(|f| in_unit(f.rate())).collect();
            let s = Spread::of(&rates);
            writeln!(
                out,
                "{:14.3} {:14.3} {:14.3} {:14.3}",
                s.max, s.min, s.mean, s.deviation
            )?;
        }
        if let Some((items, seconds)) = self.stonewall {
            let value = if time {
                seconds * 1e3 / items as f64
            } else {
                items as f64 / seconds
            };
            writeln!(
                out,
                "   {:<22} {:>14} {:>14} {value:14.3} {:>14}",
                "File create (stonewall)", "NA", "NA", "NA"
            )?;
        }
        Ok(())
    }

    fn write_latencies(&self, out: &mut String, figures: &[&Figure]) -> fmt::Result {
        writeln!(
            out,
            "\nLATENCY (in microseconds), and CPU time for each operation:"
        )?;
        writeln!(
            out,
            "   Operation                         p50            p95            p99          p99.9            max         CPU us"
        )?;
        writeln!(
            out,
            "   ---------                         ---            ---            ---          -----            ---         ------"
        )?;
        for operation in self.operations() {
            let of_operation = figures
                .iter()
                .filter(|f| f.operation == operation && f.operations > 0);
            let (cpu, count) = of_operation.clone().fold((0.0, 0), |(cpu, count), f| {
                (cpu + f.cpu_seconds, count + f.operations)
            });
            // The last figure has the totals.
            let Some(totals) = of_operation.filter_map(|f| f.totals.as_ref()).next_back() else {
                continue;
            };
            let latencies = totals.latencies.quantiles();
            writeln!(
                out,
                "   {operation:<22} {:14.1} {:14.1} {:14.1} {:14.1} {:14.1} {:14.1}",
                latencies.p50,
                latencies.p95,
                latencies.p99,
                latencies.p99_9,
                latencies.max,
                cpu * 1e6 / count as f64
            )?;
        }
        Ok(())
    }
}

fn write_rank_rates(out: &mut String, figures: &[&Figure]) -> fmt::Result {
    writeln!(out, "\nPer process result (rate):")?;
    for f in figures {
        let rates: Vec<String> = f.task_rates.iter().map(|r| format!("{r:.3}")).collect();
        writeln!(
            out,
            "iteration {}: {}: {}",
            f.iteration,
            f.operation,
            rates.join(",")
        )?;
    }
    Ok(())
}
