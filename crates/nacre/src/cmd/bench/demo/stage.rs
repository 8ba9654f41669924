//! Runs the experiments of a demonstration. Each configuration of an experiment has a server, and
//! all its servers run at once. The clients are in this process and mount again for each run of
//! mdtest.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::Result;
use bench::demo::{Configuration, DemoLoad, Experiment, FileLoad, Sample, Stage};
use bench::lnet::{Point, Site, Times};
use bench::{BenchError, Communicator, Figure, LibrarySubject, Subject, Task, TaskProgress, mdtest};
use cpt::{CptConfig, CptTable};
use lnet::LnetConfig;
use wire::Nid;

use super::servers::{FSNAME, Server};
use crate::cli::Net;
use crate::cmd::bench::library::Nodes;
use crate::instance::Store;

/// Time limit for servers to become idle before a measurement.
const IDLE_WAIT_MAX: Duration = Duration::from_secs(5);
/// Warm-up time before each LNet measurement.
const WARM_UP: Duration = Duration::from_millis(200);
/// Number of addresses for the LNet selftest nodes of one configuration: a console, the address of
/// a server (unused, since the server is in another process), and at most 64 clients. An experiment
/// with LNet selftest has at most three configurations, whose addresses end before
/// [`FIRST_SERVER`].
const SITE_SIZE: u32 = 66;
/// Last byte of the first server's address, after those of the LNet selftest nodes.
const FIRST_SERVER: u32 = 200;

/// The running servers and clients of an experiment.
pub(super) struct DemoStage {
    dir: PathBuf,
    store: Store,
    /// Number of OSTs of each server.
    osts: usize,
    /// Duration of an LNet measurement.
    seconds: f64,
    stop: Arc<AtomicBool>,
    cpts: Arc<CptTable>,
    /// The servers of the current experiment.
    servers: Vec<ConfiguredServer>,
    /// The client nodes of the current experiment, if it has loads with files.
    nodes: Option<Nodes>,
}

/// A configuration and its server.
struct ConfiguredServer {
    configuration: Configuration,
    server: Server,
    /// The LNet selftest nodes with their name in tables, if the experiment uses them; an array,
    /// since [`bench::lnet::measure`] takes a slice.
    site: Option<[(&'static str, Site); 1]>,
}

impl DemoStage {
    /// Prepares to run experiments with data in `dir`.
    pub(super) fn new(
        dir: &Path,
        store: Store,
        osts: usize,
        seconds: f64,
        stop: Arc<AtomicBool>,
    ) -> Result<DemoStage> {
        Ok(DemoStage {
            dir: dir.to_owned(),
            store,
            osts,
            seconds,
            stop,
            cpts: CptTable::build(&CptConfig::default())?,
            servers: Vec::new(),
            nodes: None,
        })
    }

    /// Starts the servers and clients of an experiment.
    fn start(&mut self, experiment: &Experiment) -> Result<()> {
        for (i, configuration) in experiment.configurations.iter().enumerate() {
            let dir = self.dir.join(format!("{}-{i}", experiment.kind.name()));
            let nid = Nid::tcp(address(FIRST_SERVER + i as u32), 0);
            let server = Server::start(&dir, nid, configuration, (self.store, self.osts), &self.stop)?;
            self.servers.push(ConfiguredServer {
                configuration: configuration.clone(),
                server,
                site: None,
            });
        }
        let (mut selftest_clients, mut clients) = (0, 0);
        for load in &experiment.loads {
            match load {
                DemoLoad::Lnet(point) => selftest_clients = selftest_clients.max(point.clients),
                DemoLoad::Files(load) => clients = clients.max(load.client_threads.clients),
            }
        }
        for (i, configured) in self
            .servers
            .iter_mut()
            .enumerate()
            .filter(|_| selftest_clients > 0)
        {
            let config = LnetConfig {
                accept_port: configured.server.port,
                ..LnetConfig::default()
            };
            let base = address(1 + SITE_SIZE * i as u32);
            let server = Some((configured.server.nid, configured.server.pid()));
            configured.site = Some([(
                "lnet",
                Site::start(self.cpts.clone(), &config, base, server, selftest_clients)?,
            )]);
        }
        if let Some(first) = self.servers.first().filter(|_| clients > 0) {
            let net = Net {
                listen: None,
                port: Some(first.server.port),
            };
            self.nodes = Some(Nodes::start(&self.cpts, &[first.server.nid], &net, clients)?);
        }
        Ok(())
    }

    /// Measures a load of files through new mounts for each run of mdtest.
    fn measure_files(&self, configured: &ConfiguredServer, load: &FileLoad) -> Result<Vec<Figure>> {
        let mut figures = Vec::new();
        let Some(nodes) = &self.nodes else {
            return Ok(figures);
        };
        for options in load.phases() {
            let clients = nodes.mount(
                &[configured.server.nid],
                FSNAME,
                load.client_threads.clients,
                load.client_threads.threads,
            )?;
            bench::wait_until_idle(&[configured.server.pid()], IDLE_WAIT_MAX);
            let progress = Arc::new(TaskProgress {
                stop: self.stop.clone(),
                ..TaskProgress::default()
            });
            let task = |(comm, client): (Communicator, &Arc<client::Client>)| {
                let subject = LibrarySubject::new("library", client.clone(), nodes.runtime.clone())
                    .with_processes(vec![configured.server.pid()]);
                Task {
                    measures_process: comm.rank() == 0,
                    subject: Arc::new(subject) as Arc<dyn Subject>,
                    progress: progress.clone(),
                    comm,
                }
            };
            let comms = Communicator::threads(clients.len());
            let tasks = comms.into_iter().zip(&clients).map(task).collect();
            let (report, outcome) = mdtest::run(&options, tasks);
            nodes.umount(&clients);
            outcome?;
            figures.extend(report.into_iter().flat_map(|r| r.figures));
        }
        Ok(figures)
    }

    fn measure_lnet(&self, configured: &ConfiguredServer, point: Point) -> Result<Vec<Sample>, BenchError> {
        let Some(site) = &configured.site else {
            return Ok(Vec::new());
        };
        let times = Times {
            warm_up: WARM_UP,
            measured: Duration::from_secs_f64(self.seconds),
            runs: 1,
        };
        bench::wait_until_idle(&[configured.server.pid()], IDLE_WAIT_MAX);
        let (report, outcome) = bench::lnet::measure(site, &[point], times, false, &self.stop, |_, _, _| {});
        outcome.map(|()| report.rows.iter().map(Sample::from_lnet).collect())
    }
}

impl Stage for DemoStage {
    fn open(&mut self, experiment: &Experiment) -> Result<(), BenchError> {
        let object = format!("the servers and clients of {}", experiment.kind.name());
        self.start(experiment).map_err(|e| bench_error(object, e))
    }

    fn measure(&mut self, configuration: &Configuration, load: &DemoLoad) -> Result<Vec<Sample>, BenchError> {
        let Some(configured) = self.servers.iter().find(|s| s.configuration == *configuration) else {
            return Ok(Vec::new());
        };
        match load {
            DemoLoad::Lnet(point) => self.measure_lnet(configured, *point),
            DemoLoad::Files(load) => {
                let figures = self
                    .measure_files(configured, load)
                    .map_err(|e| bench_error(configuration.name.clone(), e))?;
                Ok(figures
                    .iter()
                    .filter_map(|f| Sample::from_figure(load, f))
                    .collect())
            }
        }
    }

    fn close(&mut self) {
        if let Some(nodes) = self.nodes.take() {
            nodes.shutdown();
        }
        for configured in self.servers.drain(..) {
            if let Some([(_, site)]) = configured.site {
                site.shutdown();
            }
        }
    }
}

impl Drop for DemoStage {
    fn drop(&mut self) {
        self.close();
        self.cpts.shutdown();
    }
}

/// Converts an error of this crate into one of the `bench` crate; keeps an interruption
/// recognizable.
fn bench_error(object: String, error: anyhow::Error) -> BenchError {
    match error.downcast::<BenchError>() {
        Ok(error) => error,
        Err(error) => BenchError::Stage {
            object,
            reason: crate::output::describe(&error),
        },
    }
}

/// A loopback address with `number` as its last byte. The other bytes come from the process id, so
/// that concurrent runs rarely share addresses.
fn address(number: u32) -> Ipv4Addr {
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let first = Ipv4Addr::new(127, 0x40 | high & 0x3f, low, 0);
    Ipv4Addr::from_bits(first.to_bits() | number & 0xff)
}
