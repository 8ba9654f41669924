//! Runs the experiments of a demonstration. Each configuration of an experiment has a server, and
//! all its servers run at once; configurations that differ only in the number of metadata servers
//! use parts of one cluster. The clients are in this process and mount again for each run of
//! mdtest.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Result, bail};
use bench::demo::{Configuration, DemoLoad, Experiment, FileLoad, MDSS_MAX, Sample, Stage};
use bench::lnet::{Point, Site, Times};
use bench::{BenchError, Communicator, Figure, LibrarySubject, Subject, Task, TaskProgress, mdsrate, mdtest};
use cpt::{CptConfig, CptTable};
use lnet::LnetConfig;
use wire::Nid;

use super::cluster::{Cluster, ClusterSize};
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
    /// Number of CPUs of each metadata server of a cluster.
    mds_cpus: f64,
    stop: Arc<AtomicBool>,
    cpts: Arc<CptTable>,
    /// The servers of the current experiment.
    servers: Vec<ConfiguredServer>,
    /// The cluster of the current experiment.
    cluster: Option<Cluster>,
    /// The client nodes of the current experiment, if it has loads with files.
    nodes: Option<Nodes>,
}

/// A configuration and its server.
struct ConfiguredServer {
    configuration: Configuration,
    /// The NID of the MGS, and the port of all servers.
    mgs: (Nid, u16),
    /// The processes of the servers.
    pids: Vec<u32>,
    /// The server, unless it is part of the cluster.
    _server: Option<Server>,
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
        (seconds, mds_cpus): (f64, f64),
        stop: Arc<AtomicBool>,
    ) -> Result<DemoStage> {
        Ok(DemoStage {
            dir: dir.to_owned(),
            store,
            osts,
            seconds,
            mds_cpus,
            stop,
            cpts: CptTable::build(&CptConfig::default())?,
            servers: Vec::new(),
            cluster: None,
            nodes: None,
        })
    }

    /// Starts the servers and clients of an experiment.
    fn start(&mut self, experiment: &Experiment) -> Result<()> {
        match experiment.kind.mdts_per_mds() {
            0 => self.start_servers(experiment)?,
            mdts_per_mds => self.start_cluster(experiment, mdts_per_mds)?,
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
                accept_port: configured.mgs.1,
                ..LnetConfig::default()
            };
            let base = address(1 + SITE_SIZE * i as u32);
            let server = configured.pids.first().map(|pid| (configured.mgs.0, *pid));
            configured.site = Some([(
                "lnet",
                Site::start(self.cpts.clone(), &config, base, server, selftest_clients)?,
            )]);
        }
        if let Some(first) = self.servers.first().filter(|_| clients > 0) {
            let (mgs, port) = first.mgs;
            let net = Net {
                listen: None,
                port: Some(port),
            };
            self.nodes = Some(Nodes::start(&self.cpts, &[mgs], &net, clients)?);
        }
        Ok(())
    }

    /// Starts a server for each configuration.
    fn start_servers(&mut self, experiment: &Experiment) -> Result<()> {
        for (i, configuration) in experiment.configurations.iter().enumerate() {
            let dir = self.dir.join(format!("{}-{i}", experiment.kind.name()));
            let nid = server_nid(i);
            let server = Server::start(&dir, nid, configuration, (self.store, self.osts), &self.stop)?;
            self.servers.push(ConfiguredServer {
                configuration: configuration.clone(),
                mgs: (server.nid, server.port),
                pids: vec![server.pid()],
                _server: Some(server),
                site: None,
            });
        }
        Ok(())
    }

    /// Starts one cluster for all configurations.
    fn start_cluster(&mut self, experiment: &Experiment, mdts_per_mds: usize) -> Result<()> {
        if self.store == Store::Memory {
            bail!("the metadata servers keep their targets on disk: leave out --store memory");
        }
        let size = ClusterSize {
            mdss: MDSS_MAX,
            mdts_per_mds,
            osts: self.osts,
            mds_cpus: self.mds_cpus,
        };
        let nids: Vec<Nid> = (0..=MDSS_MAX).map(server_nid).collect();
        let cluster = Cluster::start((&self.dir, experiment.kind.name()), &nids, &size, &self.stop)?;
        for configuration in &experiment.configurations {
            self.servers.extend(cluster.mgs().map(|mgs| ConfiguredServer {
                configuration: configuration.clone(),
                mgs,
                pids: cluster.pids(),
                _server: None,
                site: None,
            }));
        }
        self.cluster = Some(cluster);
        Ok(())
    }

    /// Measures a load of files through new mounts for each run of mdtest or mdsrate.
    fn measure_files(&self, configured: &ConfiguredServer, load: &FileLoad) -> Result<Vec<Figure>> {
        let mut figures = Vec::new();
        match configured.configuration.mdts {
            0 => {
                for options in load.phases() {
                    let reports = self.run_tasks(configured, load, |tasks| mdtest::run(&options, tasks))?;
                    figures.extend(reports.into_iter().flat_map(|report| report.figures));
                }
            }
            mdts => {
                for options in load.rates(mdts)? {
                    let reports = self.run_tasks(configured, load, |tasks| mdsrate::run(&options, tasks))?;
                    figures.extend(reports.into_iter().map(|report| report.figure));
                }
            }
        }
        Ok(figures)
    }

    /// Runs one task on each of the load's mounts, which are new.
    fn run_tasks<R>(
        &self,
        configured: &ConfiguredServer,
        load: &FileLoad,
        run: impl FnOnce(Vec<Task>) -> (Option<R>, Result<(), BenchError>),
    ) -> Result<Option<R>> {
        let Some(nodes) = &self.nodes else {
            return Ok(None);
        };
        let clients = nodes.mount(
            &[configured.mgs.0],
            FSNAME,
            load.client_threads.clients,
            load.client_threads.threads,
        )?;
        bench::wait_until_idle(&configured.pids, IDLE_WAIT_MAX);
        let progress = Arc::new(TaskProgress {
            stop: self.stop.clone(),
            ..TaskProgress::default()
        });
        let task = |(comm, client): (Communicator, &Arc<client::Client>)| {
            let subject = LibrarySubject::new("library", client.clone(), nodes.runtime.clone())
                .with_processes(configured.pids.clone());
            Task {
                measures_process: comm.rank() == 0,
                subject: Arc::new(subject) as Arc<dyn Subject>,
                progress: progress.clone(),
                comm,
            }
        };
        let comms = Communicator::threads(clients.len());
        let tasks = comms.into_iter().zip(&clients).map(task).collect();
        let (report, outcome) = run(tasks);
        nodes.umount(&clients);
        outcome?;
        Ok(report)
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
        bench::wait_until_idle(&configured.pids, IDLE_WAIT_MAX);
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
        self.cluster = None;
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

/// The NID of a server.
fn server_nid(number: usize) -> Nid {
    Nid::tcp(address(FIRST_SERVER + number as u32), 0)
}

/// A loopback address with `number` as its last byte. The other bytes come from the process id, so
/// that concurrent runs rarely share addresses.
fn address(number: u32) -> Ipv4Addr {
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let first = Ipv4Addr::new(127, 0x40 | high & 0x3f, low, 0);
    Ipv4Addr::from_bits(first.to_bits() | number & 0xff)
}
