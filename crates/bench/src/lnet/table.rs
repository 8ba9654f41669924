//! Measurements of LNet as rows, and their summary with ratios to bare TCP.

use super::ECHO;
use crate::report::median;
use serde::Serialize;
use std::fmt;

/// One measurement.
#[derive(Debug, Clone, Serialize)]
pub struct LnetRow {
    /// The subject.
    pub subject: &'static str,
    /// The load.
    pub load: String,
    /// Number of clients.
    pub clients: usize,
    /// Requests in flight of each client.
    pub concurrency: usize,
    /// Number of the run, from 1.
    pub run: usize,
    /// Number of requests.
    pub requests: u64,
    /// Duration, seconds.
    pub seconds: f64,
    /// Requests per second of all clients.
    pub rate: f64,
    /// CPU time of clients and server, microseconds per request.
    pub cpu_us: f64,
    /// The part of `cpu_us` that a server in another process used; 0 if the server is in this
    /// process.
    pub server_cpu_us: f64,
    /// Number of requests of the slowest client, divided by the mean over the clients; 0 without
    /// requests.
    pub slowest: f64,
}

/// All rows; displays as a table of summaries.
#[derive(Debug, Clone, Default, Serialize)]
pub struct LnetReport {
    /// The rows, in the order of the runs.
    pub rows: Vec<LnetRow>,
}

/// All runs of one subject under the same load, with equally many clients and requests in flight.
#[derive(Debug, Clone, Serialize)]
pub struct LnetSummary {
    /// The subject.
    pub subject: &'static str,
    /// The load.
    pub load: String,
    /// Number of clients.
    pub clients: usize,
    /// Requests in flight of each client.
    pub concurrency: usize,
    /// Number of runs.
    pub runs: usize,
    /// Median, minimum and maximum rate, requests per second.
    pub rate: (f64, f64, f64),
    /// Median CPU time, microseconds per request.
    pub cpu_us: f64,
    /// Median over the runs of [`LnetRow::slowest`].
    pub slowest: f64,
    /// Ratio of the median rate to the rate of bare TCP without batching.
    pub rate_to_echo: Option<f64>,
    /// Ratio of the median CPU time to the CPU time of bare TCP without batching.
    pub cpu_to_echo: Option<f64>,
}

impl LnetReport {
    /// The summaries, in the order of their first measurement.
    pub fn summaries(&self) -> Vec<LnetSummary> {
        let mut out: Vec<LnetSummary> = Vec::new();
        for first in &self.rows {
            let is_of_same_summary = |r: &&LnetRow| {
                (r.subject, &r.load, r.clients, r.concurrency)
                    == (first.subject, &first.load, first.clients, first.concurrency)
            };
            if out.iter().any(|s| {
                (s.subject, &s.load, s.clients, s.concurrency)
                    == (first.subject, &first.load, first.clients, first.concurrency)
            }) {
                continue;
            }
            let rows: Vec<&LnetRow> = self.rows.iter().filter(is_of_same_summary).collect();
            let median_of = |value: fn(&LnetRow) -> f64| median(rows.iter().map(|r| value(r)));
            out.push(LnetSummary {
                subject: first.subject,
                load: first.load.clone(),
                clients: first.clients,
                concurrency: first.concurrency,
                runs: rows.len(),
                rate: (
                    median_of(|r| r.rate),
                    rows.iter().map(|r| r.rate).fold(f64::INFINITY, f64::min),
                    rows.iter().map(|r| r.rate).fold(0.0, f64::max),
                ),
                cpu_us: median_of(|r| r.cpu_us),
                slowest: median_of(|r| r.slowest),
                rate_to_echo: None,
                cpu_to_echo: None,
            });
        }
        let echoes: Vec<LnetSummary> = out.iter().filter(|s| s.subject == ECHO).cloned().collect();
        for s in out.iter_mut().filter(|s| s.subject != ECHO) {
            let echo = echoes
                .iter()
                .find(|e| (&e.load, e.clients, e.concurrency) == (&s.load, s.clients, s.concurrency));
            s.rate_to_echo = echo.map(|e| s.rate.0 / e.rate.0);
            s.cpu_to_echo = echo.map(|e| s.cpu_us / e.cpu_us);
        }
        out
    }

    /// The rows as CSV, with a header.
    pub fn csv(&self) -> String {
        let line = |r: &LnetRow| {
            let LnetRow {
                subject,
                load,
                clients,
                concurrency,
                run,
                requests,
                seconds,
                rate,
                cpu_us,
                server_cpu_us,
                slowest,
            } = r;
            format!(
                "{subject},{load},{clients},{concurrency},{run},{requests},{seconds:.6},{rate:.0},{cpu_us:.3},{server_cpu_us:.3},{slowest:.3}\n"
            )
        };
        std::iter::once(
            "subject,load,clients,concurrency,run,requests,seconds,rate,cpu_us,server_cpu_us,slowest\n"
                .to_owned(),
        )
        .chain(self.rows.iter().map(line))
        .collect()
    }
}

impl fmt::Display for LnetReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "| load | clients x in flight | subject | requests/s | min to max | runs | CPU us/request | slowest client | rate / echo's | CPU / echo's |"
        )?;
        writeln!(f, "|---|---|---|---:|---:|---:|---:|---:|---:|---:|")?;
        for s in self.summaries() {
            let (median, min, max) = s.rate;
            let ratio = |r: Option<f64>| r.map_or(String::new(), |r| format!("{r:.2}"));
            writeln!(
                f,
                "| {} | {} x {} | {} | {median:.0} | {min:.0} to {max:.0} | {} | {:.1} | {:.2} | {} | {} |",
                s.load,
                s.clients,
                s.concurrency,
                s.subject,
                s.runs,
                s.cpu_us,
                s.slowest,
                ratio(s.rate_to_echo),
                ratio(s.cpu_to_echo)
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(subject: &'static str, load: &str, run: usize, rate: f64) -> LnetRow {
        LnetRow {
            subject,
            load: load.to_owned(),
            clients: 1,
            concurrency: 64,
            run,
            requests: 1,
            seconds: 1.0,
            rate,
            cpu_us: 2.0 * rate,
            server_cpu_us: 0.0,
            slowest: 1.0,
        }
    }

    #[test]
    fn ratios_compare_medians_of_the_same_point() {
        let rows = vec![
            row("lnet", "ping", 1, 10.0),
            row("echo", "ping", 1, 20.0),
            row("lnet", "4K read", 1, 1.0),
            row("lnet", "ping", 2, 30.0),
            row("echo", "ping", 2, 80.0),
            row("lnet", "ping", 3, 20.0),
            row("echo", "ping", 3, 40.0),
        ];
        let all = LnetReport { rows }.summaries();
        assert_eq!(all.len(), 3);
        assert_eq!(
            (all[0].rate, all[0].rate_to_echo, all[0].cpu_to_echo),
            ((20.0, 10.0, 30.0), Some(0.5), Some(0.5))
        );
        assert_eq!((all[1].subject, all[1].rate_to_echo), ("echo", None));
        assert_eq!((all[2].load.as_str(), all[2].rate_to_echo), ("4K read", None));
    }
}
