//! Measures LNet: pings and bulk transfers of LNet selftest between many clients and one server,
//! with bare TCP ([`echo`]) as reference.
//!
//! All nodes are in this process, except that the server may have a process of its own. Each node
//! has its own LNet stack and loopback address. A console starts and stops the tests. CPU time is
//! that of clients, server and console together. Runs of all subjects alternate, so that
//! disturbances affect all alike.

mod echo;
mod site;
mod table;

pub use site::Site;
pub use table::{LnetReport, LnetRow};

use crate::BenchError;
use crate::cpu::{self, CpuTime};
use echo::Echo;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;

/// Name of the subject that is bare TCP with one write for each message.
pub(crate) const ECHO: &str = "echo";
/// Name of the subject that is bare TCP, where one write answers all messages of one `read()`.
const BATCHED: &str = "echo batched";

/// A load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LnetLoad {
    /// An empty request and its reply.
    Ping,
    /// A transfer of this many bytes to the client.
    Read(usize),
    /// A transfer of this many bytes to the server.
    Write(usize),
}

impl LnetLoad {
    /// Length of a transfer in bytes; 0 for pings.
    pub(crate) fn bytes(self) -> usize {
        match self {
            LnetLoad::Ping => 0,
            LnetLoad::Read(bytes) | LnetLoad::Write(bytes) => bytes,
        }
    }

    pub(crate) fn is_write(self) -> bool {
        matches!(self, LnetLoad::Write(_))
    }

    /// The arguments of `lst add_test`.
    pub(crate) fn add_test_args(self) -> String {
        match self {
            LnetLoad::Ping => "ping".to_owned(),
            LnetLoad::Read(bytes) => format!("brw read size={bytes}"),
            LnetLoad::Write(bytes) => format!("brw write size={bytes}"),
        }
    }

    /// The name in tables.
    pub fn name(self) -> String {
        let size = |bytes: usize| match bytes {
            b if b % (1 << 20) == 0 => format!("{}M", b >> 20),
            b if b % (1 << 10) == 0 => format!("{}K", b >> 10),
            b => b.to_string(),
        };
        match self {
            LnetLoad::Ping => "ping".to_owned(),
            LnetLoad::Read(bytes) => format!("{} read", size(bytes)),
            LnetLoad::Write(bytes) => format!("{} write", size(bytes)),
        }
    }
}

/// A load, the number of clients, and the number of requests that each client keeps in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Point {
    /// The load.
    pub load: LnetLoad,
    /// Number of clients.
    pub clients: usize,
    /// Requests in flight of each client.
    pub concurrency: usize,
}

/// Durations and number of runs.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// Time under load before each measurement; not part of the measurement.
    pub warm_up: Duration,
    /// Duration of each measurement.
    pub measured: Duration,
    /// Number of runs.
    pub runs: usize,
}

/// Measures every point on every site, `times.runs` times, and on bare TCP if `with_echo`.
/// `progress` gets a description of each measurement before its start, the number of measurements
/// that are done, and their total number. After an error, the report has the measurements so far.
/// If `stop` is set, the error is [`BenchError::Interrupted`].
pub fn measure(
    sites: &[(&'static str, Site)],
    points: &[Point],
    times: Times,
    with_echo: bool,
    stop: &AtomicBool,
    mut progress: impl FnMut(&str, usize, usize),
) -> (LnetReport, Result<(), BenchError>) {
    let mut report = LnetReport::default();
    let echoes: &[(&'static str, bool)] = if with_echo {
        &[(ECHO, false), (BATCHED, true)]
    } else {
        &[]
    };
    // The batched echo runs only for pings: batching does not change bulk transfers.
    let is_measured = |point: &Point, batched: bool| point.load == LnetLoad::Ping || !batched;
    let subject_count = |point: &Point| {
        let measured_echoes = echoes.iter().filter(|(_, batched)| is_measured(point, *batched));
        sites.len() + measured_echoes.count()
    };
    let (mut done, total) = (0, times.runs * points.iter().map(subject_count).sum::<usize>());
    for run in 1..=times.runs {
        for &point in points {
            let Point {
                load,
                clients,
                concurrency,
            } = point;
            let on_sites = sites.iter().map(|(name, site)| (*name, Some(site), false));
            let on_tcp = echoes.iter().map(|(name, batched)| (*name, None, *batched));
            for (name, site, batched) in
                on_sites.chain(on_tcp.filter(|(_, _, batched)| is_measured(&point, *batched)))
            {
                if stop.load(Relaxed) {
                    return (report, Err(BenchError::Interrupted));
                }
                let text = format!("run {run}: {name} {}, {clients} x {concurrency}", load.name());
                progress(&text, done, total);
                done += 1;
                let Some(runtime) = site.or(sites.first().map(|(_, site)| site)).map(Site::runtime) else {
                    return (report, Ok(()));
                };
                let measured = runtime.block_on(async {
                    match site {
                        Some(site) => site.measure(point, times).await,
                        None => measure_echo(runtime, point, times, batched).await,
                    }
                });
                match measured {
                    Ok(measured) => report.rows.push(measured.row(name, point, run)),
                    Err(e) => return (report, Err(e)),
                }
            }
        }
    }
    (report, Ok(()))
}

/// The result of one measurement.
pub(crate) struct Measurement {
    pub(crate) duration: Duration,
    /// CPU time of this process and of the server's process during the measurement.
    pub(crate) cpu: CpuTime,
    /// Requests of each client during the measurement: completed ones over bare TCP, sent ones over
    /// LNet.
    pub(crate) requests: Vec<u64>,
}

impl Measurement {
    fn row(&self, subject: &'static str, point: Point, run: usize) -> LnetRow {
        let total: u64 = self.requests.iter().sum();
        let mean = total as f64 / self.requests.len().max(1) as f64;
        let least = self.requests.iter().copied().min().unwrap_or(0);
        let us_per_request = |time: Duration| time.as_secs_f64() * 1e6 / total.max(1) as f64;
        LnetRow {
            subject,
            load: point.load.name(),
            clients: point.clients,
            concurrency: point.concurrency,
            run,
            requests: total,
            seconds: self.duration.as_secs_f64(),
            rate: total as f64 / self.duration.as_secs_f64(),
            cpu_us: us_per_request(self.cpu.total()),
            server_cpu_us: us_per_request(self.cpu.others),
            slowest: if total == 0 { 0.0 } else { least as f64 / mean },
        }
    }
}

/// Warms up, then measures for `times.measured`. `counts` returns the number of requests of each
/// client so far. The CPU time is that of this process and of the processes `others`.
pub(crate) async fn measure_interval(
    times: Times,
    others: &[u32],
    counts: impl Fn() -> Vec<u64>,
) -> Measurement {
    tokio::time::sleep(times.warm_up).await;
    let (start_time, cpu_before, before) = (Instant::now(), cpu::cpu_time(others), counts());
    tokio::time::sleep(times.measured).await;
    let (duration, cpu_after, after) = (start_time.elapsed(), cpu::cpu_time(others), counts());
    Measurement {
        duration,
        cpu: cpu_after.since(cpu_before),
        requests: before
            .iter()
            .zip(&after)
            .map(|(b, a)| a.saturating_sub(*b))
            .collect(),
    }
}

async fn measure_echo(
    runtime: &Handle,
    point: Point,
    times: Times,
    batched: bool,
) -> Result<Measurement, BenchError> {
    let failed = |e: std::io::Error| BenchError::Network {
        object: format!("echo {}", point.load.name()),
        reason: e.to_string(),
    };
    let Point {
        load,
        clients,
        concurrency,
    } = point;
    let echo = Echo::start(runtime, load, clients, concurrency, batched)
        .await
        .map_err(failed)?;
    let counts = || echo.completed.iter().map(|n| n.load(Relaxed)).collect();
    let measured = measure_interval(times, &[], counts).await;
    echo.stop().await.map_err(failed)?;
    Ok(measured)
}
