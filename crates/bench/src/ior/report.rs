//! IOR's table of results, and a second one with what IOR does not show.

use super::{Kind, Options, PhaseTimes};
use crate::figure::Figure;
use crate::time_series;
use std::fmt::Write as _;

/// 1 MiB.
const MIB: f64 = (1 << 20) as f64;

/// The results of a run.
#[derive(Debug)]
pub struct Report {
    /// The figures of all phases; an operation is a transfer.
    pub figures: Vec<Figure>,
    pub(super) times: Vec<PhaseTimes>,
    pub(super) options: Options,
    pub(super) tasks: usize,
}

impl Report {
    /// Bytes per second of a phase, by all tasks together; includes opening and closing the files.
    pub fn bandwidth(&self, figure: &Figure) -> f64 {
        figure.rate() * self.options.transfer as f64
    }

    /// IOR's tables, latencies, and tables of `windows` time windows.
    pub fn text(&self, windows: usize) -> String {
        let mut out = String::new();
        // Writing to a string does not fail.
        let _ = self.write_text(&mut out);
        out.push_str(&time_series::windows_table(&self.figures, windows));
        out
    }

    fn write_text(&self, out: &mut String) -> std::fmt::Result {
        let options = &self.options;
        let access = match options.file_per_task {
            true => "file-per-process",
            false => "single-shared-file",
        };
        let order = if options.random { "random" } else { "sequential" };
        for (name, value) in [
            ("access", access.to_owned()),
            ("ordering in a file", order.to_owned()),
            ("tasks", self.tasks.to_string()),
            ("repetitions", options.repetitions.to_string()),
            ("xfersize", size(options.transfer)),
            ("blocksize", size(options.block)),
            ("segments", options.segments.to_string()),
            (
                "aggregate filesize",
                size(options.block * options.segments * self.tasks as u64),
            ),
        ] {
            writeln!(out, "{name:<19} : {value}")?;
        }
        writeln!(
            out,
            "\naccess       bw(MiB/s)  IOPS       Latency(s)  block(KiB) xfer(KiB)  open(s)    wr/rd(s)   close(s)   total(s)   iter"
        )?;
        writeln!(
            out,
            "------       ---------  ----       ----------  ---------- ---------  --------   --------   --------   --------   ----"
        )?;
        for (figure, times) in self.figures.iter().zip(&self.times) {
            let [open, transfers, close] = times.longest;
            let iops = figure.operations as f64 / transfers.max(1e-9);
            writeln!(
                out,
                "{:<11}  {:<9.2}  {:<9.2}  {:<10.6}  {:<9}  {:<9}  {:<9.6}  {:<9.6}  {:<9.6}  {:<9.6}  {:<4}",
                figure.operation,
                self.bandwidth(figure) / MIB,
                iops,
                times.transferring / figure.operations.max(1) as f64,
                options.block >> 10,
                options.transfer as f64 / 1024.0,
                open,
                transfers,
                close,
                figure.seconds,
                figure.iteration
            )?;
        }
        self.write_summary(out)
    }

    /// Maximum, minimum and mean of each operation over the repetitions, and the additions.
    fn write_summary(&self, out: &mut String) -> std::fmt::Result {
        writeln!(
            out,
            "\noperation    max(MiB/s)  min(MiB/s)  mean(MiB/s)  slowest/mean task  p50(ms)   p99(ms)   max(ms)   CPU(ms/GiB)  servers(ms/GiB)"
        )?;
        for operation in Kind::ALL.map(Kind::name) {
            let of_operation: Vec<&Figure> =
                self.figures.iter().filter(|f| f.operation == operation).collect();
            let rates: Vec<f64> = of_operation.iter().map(|f| self.bandwidth(f) / MIB).collect();
            let count = rates.len().max(1) as f64;
            let slowest = of_operation
                .iter()
                .map(|f| slowest_to_mean(f))
                .fold(1.0, f64::min);
            let Some(last) = of_operation.last() else { continue };
            let per_gib = |seconds: f64, figure: &Figure| {
                let gib = figure.operations as f64 * self.options.transfer as f64 / (MIB * 1024.0);
                seconds * 1e3 / gib.max(1e-9)
            };
            writeln!(
                out,
                "{operation:<11}  {:<10.2}  {:<10.2}  {:<11.2}  {slowest:<17.2}  {:<8.3}  {:<8.3}  {:<8.3}  {:<11.1}  {:.1}",
                rates.iter().copied().fold(0.0, f64::max),
                rates.iter().copied().fold(f64::INFINITY, f64::min),
                rates.iter().sum::<f64>() / count,
                last.latencies.p50 / 1e3,
                last.latencies.p99 / 1e3,
                last.latencies.max / 1e3,
                per_gib(last.cpu_seconds, last),
                per_gib(last.server_cpu_seconds, last),
            )?;
        }
        Ok(())
    }
}

/// The rate of the slowest task over the mean of all tasks.
fn slowest_to_mean(figure: &Figure) -> f64 {
    let sum: f64 = figure.task_rates.iter().sum();
    let mean = sum / figure.task_rates.len().max(1) as f64;
    match mean > 0.0 {
        true => figure.task_range().0 / mean,
        false => 0.0,
    }
}

/// A size as IOR shows it.
fn size(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.iter().find(|(shift, _)| bytes >> shift > 0) {
        None => format!("{bytes} bytes"),
        Some((shift, unit)) => {
            let value = format!("{:.2}", bytes as f64 / (1_u64 << shift) as f64);
            format!("{} {unit}", value.trim_end_matches('0').trim_end_matches('.'))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn sizes_have_the_largest_unit_that_fits() {
        assert_eq!(size(512), "512 bytes");
        assert_eq!(size(1 << 20), "1 MiB");
        assert_eq!(size(3 << 29), "1.5 GiB");
    }
}
