//! `nacre bench lnet`: measures LNet alone, in turn with plain TCP; then many clients against one
//! server in another process.

use std::fs;
use std::net::Ipv4Addr;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bench::BenchError;
use bench::lnet::{LnetLoad, LnetReport, Point, Site, Times, measure};
use cpt::CptTable;
use lnet::{LnetConfig, PortalRotor};
use wire::Nid;

use super::{load, stop_child, stop_flag};
use crate::cli::LnetBench;
use crate::output::outln;
use crate::progress::ProgressLine;
use crate::start::StartConfig;
use crate::{fd_limit, process};

/// Requests in flight of each client in the test with many clients.
const MANY_CLIENTS_CONCURRENCY: usize = 64;
/// Distance between the first addresses of two sites. Nodes of a site have consecutive addresses.
const SITE_DISTANCE: u32 = 256;
/// Time limit for the start of a server process.
const START_MAX: Duration = Duration::from_secs(20);
/// Polling interval during the start of a server process.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Warm-up time before each measurement.
const WARM_UP: Duration = Duration::from_millis(200);

/// Runs the command.
pub(super) fn run(args: &LnetBench) -> Result<ExitCode> {
    fd_limit::raise();
    let start = StartConfig::new(&args.start, &[])?;
    let cpts = CptTable::build(&start.cpt).context("cannot start the CPU partitions")?;
    let clients_max = args.clients.iter().copied().max().unwrap_or(1) as usize;
    let config = |portal_rotor| LnetConfig {
        accept_port: args.port,
        portal_rotor,
        ..start.lnet.clone()
    };
    let mut sites = Vec::new();
    let rotors: &[(&'static str, PortalRotor)] = if args.rotor {
        &[
            ("lnet, rotor off", PortalRotor::Off),
            ("lnet, rotor on", PortalRotor::On),
        ]
    } else {
        &[("lnet", start.lnet.portal_rotor)]
    };
    for (i, (name, rotor)) in rotors.iter().enumerate() {
        let base = Ipv4Addr::from_bits(args.base.to_bits() + SITE_DISTANCE * i as u32);
        sites.push((
            *name,
            Site::start(cpts.clone(), &config(*rotor), base, None, clients_max)?,
        ));
    }
    let times = Times {
        warm_up: WARM_UP,
        measured: Duration::from_secs_f64(args.seconds),
        runs: args.runs as usize,
    };
    let stop = stop_flag()?;
    let mut progress = ProgressLine::new();
    let (mut report, mut outcome) = measure(&sites, &points(args), times, true, &stop, shown(&mut progress));
    progress.clear();
    sites.into_iter().for_each(|(_, site)| site.shutdown());
    let mut server_peak_bytes = None;
    if outcome.is_ok() && args.crowd > 0 {
        let base = Ipv4Addr::from_bits(args.base.to_bits() + SITE_DISTANCE * rotors.len() as u32);
        let (crowd_report, crowd_outcome, peak_bytes) =
            measure_crowd(args, &cpts, &start.lnet, base, times, &stop)?;
        report.rows.extend(crowd_report.rows);
        (outcome, server_peak_bytes) = (crowd_outcome, peak_bytes);
    }
    print_report(args, times.measured, &report, cpts.len(), server_peak_bytes)?;
    cpts.shutdown();
    load::exit_code(outcome)
}

/// Pings, and reads and writes of 4 KiB, with all given numbers of clients and of requests in
/// flight; then reads and writes of 1 MiB by one client with 8 requests in flight.
fn points(args: &LnetBench) -> Vec<Point> {
    let mut points = Vec::new();
    for load in [LnetLoad::Ping, LnetLoad::Read(4 << 10), LnetLoad::Write(4 << 10)] {
        for &clients in &args.clients {
            for &concurrency in &args.concurrency {
                points.push(Point {
                    load,
                    clients: clients as usize,
                    concurrency: concurrency as usize,
                });
            }
        }
    }
    points.extend(
        [LnetLoad::Read(1 << 20), LnetLoad::Write(1 << 20)].map(|load| Point {
            load,
            clients: 1,
            concurrency: 8,
        }),
    );
    points
}

/// Measures pings of many clients in this process to one server in another process. Also returns
/// the server's peak memory in bytes.
fn measure_crowd(
    args: &LnetBench,
    cpts: &Arc<CptTable>,
    lnet: &LnetConfig,
    base: Ipv4Addr,
    times: Times,
    stop: &AtomicBool,
) -> Result<(LnetReport, Result<(), BenchError>, Option<u64>)> {
    let nid = Nid::tcp(Ipv4Addr::from_bits(base.to_bits() + 1), 0);
    let Some(server) = Server::start(nid, args.port, stop)? else {
        return Ok((LnetReport::default(), Err(BenchError::Interrupted), None));
    };
    let config = LnetConfig {
        accept_port: args.port,
        ..lnet.clone()
    };
    let clients = args.crowd as usize;
    let sites = [(
        "lnet, separate server",
        Site::start(
            cpts.clone(),
            &config,
            base,
            Some((server.nid, server.child.id())),
            clients,
        )?,
    )];
    let point = Point {
        load: LnetLoad::Ping,
        clients,
        concurrency: MANY_CLIENTS_CONCURRENCY,
    };
    let mut progress = ProgressLine::new();
    let (report, outcome) = measure(&sites, &[point], times, false, stop, shown(&mut progress));
    drop(progress);
    let peak_bytes = process::peak_bytes(server.child.id());
    let [(_, site)] = sites;
    site.shutdown();
    Ok((report, outcome, peak_bytes))
}

/// Shows the progress of [`measure`].
fn shown(progress: &mut ProgressLine) -> impl FnMut(&str, usize, usize) {
    |text, done, total| progress.show(text, done as u64, Some(total as u64))
}

/// An LNet selftest node in another process; stopped on drop.
struct Server {
    child: Child,
    nid: Nid,
}

impl Server {
    /// Starts the process and waits until it accepts connections; `None` after an interruption.
    /// Fails if the process exits, or after [`START_MAX`].
    fn start(nid: Nid, port: u16, stop: &AtomicBool) -> Result<Option<Server>> {
        let binary = std::env::current_exe().context("cannot find the nacre binary")?;
        let child = Command::new(binary)
            .args([
                "lst",
                "node",
                "--foreground",
                "--listen",
                &nid.to_string(),
                "--port",
                &port.to_string(),
            ])
            .stdout(Stdio::null())
            .spawn()
            .context("cannot start a server")?;
        let mut server = Server { child, nid };
        let start_time = Instant::now();
        while std::net::TcpStream::connect((nid.addr(), port)).is_err() {
            if let Some(status) = server
                .child
                .try_wait()
                .context("cannot check whether the server has exited")?
            {
                bail!("the server at {nid} has ended: {status}");
            }
            if stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            if start_time.elapsed() > START_MAX {
                bail!(
                    "the server at {nid} did not start within {} s",
                    START_MAX.as_secs()
                );
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(Some(server))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        stop_child(&mut self.child);
    }
}

fn print_report(
    args: &LnetBench,
    measured: Duration,
    report: &LnetReport,
    partitions: usize,
    server_peak_bytes: Option<u64>,
) -> Result<()> {
    if let Some(path) = &args.csv {
        fs::write(path, report.csv()).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if args.json {
        outln!("{}", serde_json::to_string_pretty(&report.summaries())?);
        return Ok(());
    }
    let cpus = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let (seconds, runs) = (measured.as_secs_f64(), args.runs);
    outln!(
        "{cpus} CPUs, {partitions} CPU partitions; {runs} runs of {seconds} s, subjects in turn; all on loopback\n"
    );
    outln!("{report}");
    if let Some(bytes) = server_peak_bytes {
        outln!("peak memory of the separate server: {} MiB", bytes >> 20);
    }
    Ok(())
}
