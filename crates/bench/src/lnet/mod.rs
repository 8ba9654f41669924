//! LNet alone: pings and bulk of LNet selftest between many clients and one server, beside bare TCP ([`echo`]).
//!
//! All nodes are in this process (the server can be elsewhere), each with its own stack and its own address on loopback, and are used through a
//! console as any others are. CPU time is that of both sides. Runs of all subjects alternate, so that what disturbs the
//! machine disturbs them all.

mod echo;
mod site;
mod table;

pub use site::Site;
pub use table::{LnetReport, LnetRow};

use crate::BenchError;
use crate::cpu::{self, Used};
use echo::Echo;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;

/// Bare TCP, each message written by itself.
pub(crate) const ECHO: &str = "echo";
/// Bare TCP, all that a read brings about written at once.
const BATCHED: &str = "echo batched";

/// What is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// A request and its reply.
    Ping,
    /// So many bytes to the client.
    Read(usize),
    /// So many bytes to the server.
    Write(usize),
}

impl Load {
    pub(crate) fn bytes(self) -> usize {
        match self {
            Load::Ping => 0,
            Load::Read(bytes) | Load::Write(bytes) => bytes,
        }
    }

    pub(crate) fn writes(self) -> bool {
        matches!(self, Load::Write(_))
    }

    /// As `lst add_test` takes it.
    pub(crate) fn words(self) -> String {
        match self {
            Load::Ping => "ping".to_owned(),
            Load::Read(bytes) => format!("brw read size={bytes}"),
            Load::Write(bytes) => format!("brw write size={bytes}"),
        }
    }

    /// For tables.
    pub fn name(self) -> String {
        let size = |bytes: usize| match bytes {
            b if b % (1 << 20) == 0 => format!("{}M", b >> 20),
            b if b % (1 << 10) == 0 => format!("{}K", b >> 10),
            b => b.to_string(),
        };
        match self {
            Load::Ping => "ping".to_owned(),
            Load::Read(bytes) => format!("{} read", size(bytes)),
            Load::Write(bytes) => format!("{} write", size(bytes)),
        }
    }
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Point {
    /// The load.
    pub load: Load,
    /// How many clients.
    pub clients: usize,
    /// Requests in flight of each.
    pub concurrency: usize,
}

/// How long and how often.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// Before each measurement, not counted.
    pub warm_up: Duration,
    /// Each measurement.
    pub measured: Duration,
    /// How often each.
    pub runs: usize,
}

/// Measures every point on every site, and on bare TCP if `beside` says so, so often, until `stop` says that it is enough.
/// Gives back what there is.
pub fn measure(
    sites: &[(&'static str, Site)],
    points: &[Point],
    times: Times,
    beside: bool,
    stop: &AtomicBool,
    mut next: impl FnMut(&str),
) -> (LnetReport, Result<(), BenchError>) {
    let mut report = LnetReport::default();
    let echoes: &[(&'static str, bool)] = if beside {
        &[(ECHO, false), (BATCHED, true)]
    } else {
        &[]
    };
    for run in 1..=times.runs {
        for &point in points {
            let Point {
                load,
                clients,
                concurrency,
            } = point;
            let on_sites = sites.iter().map(|(name, site)| (*name, Some(site), false));
            let on_tcp = echoes.iter().map(|(name, batched)| (*name, None, *batched));
            // Only pings are so small that it matters.
            for (name, site, batched) in
                on_sites.chain(on_tcp.filter(|(_, _, batched)| load == Load::Ping || !batched))
            {
                if stop.load(Relaxed) {
                    return (report, Err(BenchError::Interrupted));
                }
                next(&format!(
                    "run {run}: {name} {}, {clients} x {concurrency}",
                    load.name()
                ));
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

/// What came of one measurement.
pub(crate) struct Measured {
    pub(crate) took: Duration,
    pub(crate) cpu: Used,
    /// What each client has done.
    pub(crate) done: Vec<u64>,
}

impl Measured {
    fn row(&self, subject: &'static str, point: Point, run: usize) -> LnetRow {
        let all: u64 = self.done.iter().sum();
        let mean = all as f64 / self.done.len().max(1) as f64;
        let least = self.done.iter().copied().min().unwrap_or(0);
        let each = |time: Duration| time.as_secs_f64() * 1e6 / all.max(1) as f64;
        LnetRow {
            subject,
            load: point.load.name(),
            clients: point.clients,
            concurrency: point.concurrency,
            run,
            requests: all,
            seconds: self.took.as_secs_f64(),
            rate: all as f64 / self.took.as_secs_f64(),
            cpu_us: each(self.cpu.all()),
            others_cpu_us: each(self.cpu.others),
            slowest: if all == 0 { 0.0 } else { least as f64 / mean },
        }
    }
}

/// Waits, and says what was done meanwhile, by what `counts` says; the CPU time is that of the processes `others` too.
pub(crate) async fn watch(times: Times, others: &[u32], counts: impl Fn() -> Vec<u64>) -> Measured {
    tokio::time::sleep(times.warm_up).await;
    let (begun, cpu_before, before) = (Instant::now(), cpu::used(others), counts());
    tokio::time::sleep(times.measured).await;
    let (took, cpu_after, after) = (begun.elapsed(), cpu::used(others), counts());
    Measured {
        took,
        cpu: cpu_after.since(cpu_before),
        done: before
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
) -> Result<Measured, BenchError> {
    let failed = |e: std::io::Error| BenchError::Network {
        what: format!("echo {}", point.load.name()),
        why: e.to_string(),
    };
    let Point {
        load,
        clients,
        concurrency,
    } = point;
    let echo = Echo::start(runtime, load, clients, concurrency, batched)
        .await
        .map_err(failed)?;
    let counts = || echo.done.iter().map(|n| n.load(Relaxed)).collect();
    let measured = watch(times, &[], counts).await;
    echo.stop().await.map_err(failed)?;
    Ok(measured)
}
