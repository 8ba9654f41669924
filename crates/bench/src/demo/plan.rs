//! The experiments of a demonstration: configurations of the servers, loads, and the list of
//! results that this machine or size cannot show. No I/O.
//!
//! The names of configurations are those of the published report: `4 (1:3)` has four CPU
//! partitions, LNet on the first and the services on the other three; `4 (4:4)` has both on all
//! four.

use super::kind::{Demo, ExperimentKind};
use super::load::{CreateMethod, DemoLoad, FileLoad};
use super::rows::Directory;
use super::size::{ClientThreads, Size};
use crate::lnet::{self, Point};
use std::ops::Range;

/// The resources that a demonstration may use.
#[derive(Clone, Copy, Debug)]
pub struct Resources {
    /// Number of CPUs that servers may use.
    pub cpus: usize,
    /// Number of partitions according to Lustre's published rule ([`cpt::published_count`]).
    pub published_count: usize,
    /// Number of OSTs of each file system.
    pub osts: usize,
    /// Whether partitions may share CPUs. The page marks such results.
    pub forced: bool,
}

impl Resources {
    /// Partitions of the partitioned server: by the published rule, but at least two if there are
    /// two CPUs.
    fn partitions(&self) -> usize {
        self.published_count.max(2.min(self.cpus))
    }
}

/// A configuration of the servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// The configuration's name on the page.
    pub name: String,
    /// Number of CPU partitions.
    pub partitions: usize,
    /// Number of partitions with LNet.
    pub lnet: usize,
    /// Number of partitions with services.
    pub services: usize,
    /// Whether `portal_rotor` is on.
    pub rotor: bool,
    /// Whether parallel directory operations are on.
    pub pdo: bool,
    /// Whether partitions share CPUs.
    pub forced: bool,
    /// Number of metadata servers with processes of their own; 0: one process has all servers.
    pub mdss: usize,
    /// Number of metadata targets with directories; 0: the file system has only one target.
    pub mdts: usize,
}

impl Configuration {
    fn new(resources: &Resources, (partitions, lnet, services): (usize, usize, usize)) -> Configuration {
        Configuration {
            name: format!("{partitions} ({lnet}:{services})"),
            partitions,
            lnet,
            services,
            rotor: false,
            pdo: true,
            forced: partitions > resources.cpus,
            mdss: 0,
            mdts: 0,
        }
    }

    /// The baseline: one partition, with LNet and all services.
    fn baseline(resources: &Resources) -> Configuration {
        Configuration::new(resources, (1, 1, 1))
    }

    /// This number of metadata servers with one partition each, and their targets.
    fn with_mdss(resources: &Resources, mdss: usize, mdts_per_mds: usize) -> Configuration {
        let name = match mdts_per_mds {
            1 => "1 MDT on each MDS".to_owned(),
            n => format!("{n} MDTs on each MDS"),
        };
        Configuration {
            name,
            mdss,
            mdts: mdss * mdts_per_mds,
            ..Configuration::baseline(resources)
        }
    }

    fn with_rotor(self, rotor: bool) -> Configuration {
        let name = format!("{}, rotor {}", self.name, if rotor { "on" } else { "off" });
        Configuration { name, rotor, ..self }
    }

    fn without_pdo(self) -> Configuration {
        let name = format!("{}, PDO off", self.name);
        Configuration {
            name,
            pdo: false,
            ..self
        }
    }

    /// The name, with the number of metadata servers if it differs between configurations.
    pub(super) fn title(&self) -> String {
        match self.mdss {
            0 => self.name.clone(),
            1 => format!("{}, 1 MDS", self.name),
            n => format!("{}, {n} MDSs", self.name),
        }
    }

    /// The indices of the partitions with LNet.
    pub fn lnet_cpts(&self) -> Range<usize> {
        0..self.lnet
    }

    /// The indices of the partitions with services: the last ones. They overlap LNet's only if LNet
    /// and the services together need more partitions than there are.
    pub fn service_cpts(&self) -> Range<usize> {
        self.partitions - self.services..self.partitions
    }
}

/// An experiment: all configurations under all loads.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// The kind of experiment.
    pub kind: ExperimentKind,
    /// The configurations, the baseline first.
    pub configurations: Vec<Configuration>,
    /// The loads, in order.
    pub loads: Vec<DemoLoad>,
}

/// The plan of a demonstration.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The demonstration.
    pub demo: Demo,
    /// Number of runs.
    pub runs: usize,
    /// The experiments, in order.
    pub experiments: Vec<Experiment>,
    /// Results of the published demonstration that this run cannot show, with the reason.
    pub not_shown: Vec<String>,
}

/// Divisions of partitions (partitions, LNet, services): the report's, and (2, 1, 1) for machines
/// with two CPUs.
const DIVISIONS: [(usize, usize, usize); 9] = [
    (1, 1, 1),
    (2, 1, 1),
    (2, 2, 2),
    (4, 4, 4),
    (4, 1, 3),
    (4, 2, 2),
    (6, 6, 6),
    (6, 2, 4),
    (12, 12, 12),
];

/// The largest number of metadata servers in the published report.
pub const MDSS_MAX: usize = 4;

impl Plan {
    /// Plans a demonstration of this size on this machine. `only` lists the experiments to run; an
    /// empty list selects all.
    pub fn new(demo: Demo, size: &Size, resources: &Resources, only: &[ExperimentKind]) -> Plan {
        let stripes: Vec<u16> = size
            .stripes
            .iter()
            .copied()
            .filter(|s| usize::from(*s) <= resources.osts)
            .collect();
        let is_selected = |kind: &&ExperimentKind| only.is_empty() || only.contains(kind);
        let experiments: Vec<Experiment> = ExperimentKind::of(demo)
            .iter()
            .filter(is_selected)
            .map(|&kind| Experiment {
                kind,
                configurations: configurations(kind, resources),
                loads: loads(kind, size, &stripes),
            })
            .filter(|e| !e.loads.is_empty())
            .collect();
        let not_shown = not_shown(demo, size, resources, &experiments);
        Plan {
            demo,
            runs: size.runs,
            experiments,
            not_shown,
        }
    }

    /// The number of measurements.
    pub fn measurements(&self) -> usize {
        let per_run = |e: &Experiment| e.configurations.len() * e.loads.len();
        self.runs * self.experiments.iter().map(per_run).sum::<usize>()
    }
}

fn configurations(kind: ExperimentKind, resources: &Resources) -> Vec<Configuration> {
    let n = resources.partitions();
    let partitioned = || Configuration::new(resources, (n, n, n));
    let mut configurations = match kind {
        ExperimentKind::LnetClients | ExperimentKind::LnetInFlight => vec![
            Configuration::baseline(resources),
            partitioned().with_rotor(false),
            partitioned().with_rotor(true),
        ],
        ExperimentKind::Mdtest => vec![
            Configuration::baseline(resources),
            partitioned(),
            partitioned().without_pdo(),
        ],
        ExperimentKind::Mounts => vec![Configuration::baseline(resources), partitioned()],
        ExperimentKind::Cpt => {
            let divisions = DIVISIONS
                .into_iter()
                .filter(|d| resources.forced || d.0 <= resources.cpus);
            let with_rotor = |d: (usize, usize, usize)| match d.0 {
                1 => vec![Configuration::new(resources, d)],
                _ => [false, true]
                    .map(|rotor| Configuration::new(resources, d).with_rotor(rotor))
                    .into(),
            };
            divisions.flat_map(with_rotor).collect()
        }
        ExperimentKind::Pdo => vec![
            Configuration {
                name: "PDO off".to_owned(),
                pdo: false,
                ..partitioned()
            },
            Configuration {
                name: "PDO on".to_owned(),
                ..partitioned()
            },
        ],
        ExperimentKind::DneOne | ExperimentKind::DneTwo => (1..=MDSS_MAX)
            .map(|mdss| Configuration::with_mdss(resources, mdss, kind.mdts_per_mds()))
            .collect(),
    };
    let needs_partitions =
        !matches!(kind, ExperimentKind::Cpt | ExperimentKind::Pdo) && kind.mdts_per_mds() == 0;
    if n == 1 && needs_partitions {
        // With one CPU, measure only the baseline; the others need several partitions.
        configurations.truncate(1);
    }
    configurations
}

fn loads(kind: ExperimentKind, size: &Size, stripes: &[u16]) -> Vec<DemoLoad> {
    let lnet = |points: &[(usize, usize)]| {
        let with_load = |load| {
            let point = move |&(clients, concurrency)| {
                DemoLoad::Lnet(Point {
                    load,
                    clients,
                    concurrency,
                })
            };
            points.iter().map(point).collect::<Vec<_>>()
        };
        let loads = [
            lnet::LnetLoad::Ping,
            lnet::LnetLoad::Read(4 << 10),
            lnet::LnetLoad::Write(4 << 10),
        ];
        loads.into_iter().flat_map(with_load).collect()
    };
    let files = |client_threads: &[ClientThreads],
                 directories: &[Directory],
                 create_methods: &[CreateMethod],
                 stat| {
        let mut all = Vec::new();
        for &directory in directories {
            for &create_method in create_methods {
                for &client_threads in client_threads {
                    all.push(DemoLoad::Files(FileLoad {
                        client_threads,
                        directory,
                        create_method,
                        files: size.files,
                        stat,
                    }));
                }
            }
        }
        all
    };
    let both_directories = [Directory::PerThread, Directory::Shared];
    match kind {
        ExperimentKind::LnetClients => {
            let point = |&clients| (clients, size.lnet_concurrency);
            lnet(&size.lnet_clients.iter().map(point).collect::<Vec<_>>())
        }
        ExperimentKind::LnetInFlight => lnet(&size.in_flight.iter().map(|&n| (1, n)).collect::<Vec<_>>()),
        ExperimentKind::Mdtest => {
            let create_methods: Vec<CreateMethod> = stripes.iter().map(|&s| CreateMethod::Open(s)).collect();
            files(&size.client_threads, &both_directories, &create_methods, true)
        }
        ExperimentKind::Mounts => {
            let client_threads = |&threads| ClientThreads { clients: 1, threads };
            let client_threads: Vec<ClientThreads> = size.mounts.iter().map(client_threads).collect();
            files(
                &client_threads,
                &[Directory::PerThread],
                &[CreateMethod::Open(1)],
                true,
            )
        }
        ExperimentKind::Cpt => files(
            &size.client_threads,
            &[Directory::PerThread],
            &[CreateMethod::Open(1)],
            true,
        ),
        ExperimentKind::Pdo => {
            let create_methods = [CreateMethod::Mknod, CreateMethod::Open(0), CreateMethod::Open(1)];
            files(
                &size.client_threads,
                &[Directory::Shared, Directory::PerThread],
                &create_methods,
                false,
            )
        }
        ExperimentKind::DneOne | ExperimentKind::DneTwo => files(
            &size.client_threads,
            &[Directory::PerThread],
            &[CreateMethod::Mknod, CreateMethod::Open(1)],
            true,
        ),
    }
}

/// The results that this machine or size cannot show.
fn not_shown(demo: Demo, size: &Size, resources: &Resources, experiments: &[Experiment]) -> Vec<String> {
    let mut all = Vec::new();
    let includes = |kind| experiments.iter().any(|e| e.kind == kind);
    let cpus = match resources.cpus {
        1 => "1 CPU".to_owned(),
        n => format!("{n} CPUs"),
    };
    let oversized_divisions: Vec<String> = DIVISIONS
        .into_iter()
        .filter(|d| d.0 > resources.cpus)
        .map(|d| Configuration::new(resources, d).name)
        .collect();
    if includes(ExperimentKind::Cpt) && !oversized_divisions.is_empty() {
        let names = oversized_divisions.join(", ");
        all.push(match resources.forced {
            false => format!("{names}: this machine has only {cpus}, and the speed of partitions that share a CPU is meaningless."),
            true => format!(
                "The speed of {names}: these configurations were forced to share {cpus}. Their results are marked, and show only that the configurations work."
            ),
        });
    }
    if resources.cpus == 1 && (includes(ExperimentKind::Mdtest) || includes(ExperimentKind::LnetClients)) {
        all.push(
            "A server with several partitions: there is only 1 CPU, so only the baseline is measured."
                .to_owned(),
        );
    }
    let oversized_stripes: Vec<String> = (size.stripes.iter())
        .filter(|s| usize::from(**s) > resources.osts)
        .map(u16::to_string)
        .collect();
    if includes(ExperimentKind::Mdtest) && !oversized_stripes.is_empty() {
        all.push(format!(
            "Files with {} stripes: the number of OSTs is only {}.",
            oversized_stripes.join(" and "),
            resources.osts
        ));
    }
    let threads_max = |s: &Size| s.client_threads.iter().map(|c| c.total()).max().unwrap_or(0);
    if let Some(report) = Size::named(demo, "report")
        && (includes(ExperimentKind::Mdtest)
            || includes(ExperimentKind::Cpt)
            || includes(ExperimentKind::Pdo)
            || demo == Demo::Dne)
        && (threads_max(size) < threads_max(&report) || size.files < report.files)
    {
        all.push(format!(
            "The report's {} client threads and {} files: this run had at most {} threads and {} files (--size report has all).",
            threads_max(&report),
            report.files,
            threads_max(size),
            size.files
        ));
    }
    all.push(format!(
        "Clients and servers on separate machines: all share the same {cpus}, so a server has only a part of each CPU."
    ));
    all.push("InfiniBand: the network is TCP over loopback.".to_owned());
    if demo == Demo::Dne {
        all.push("The speed of uncapped servers: each metadata server has a limit of CPU time, because all share the CPUs. The rates show how they grow with the servers, not what a server can do.".to_owned());
        all.push("One directory striped over all metadata targets.".to_owned());
    }
    if demo == Demo::Smp {
        all.push(
            "Lustre 2.2: the baseline is this server with one partition, so the published percentages are comparable in direction only."
                .to_owned(),
        );
    }
    all
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::demo::size::SIZES;

    fn resources(cpus: usize) -> Resources {
        Resources {
            cpus,
            published_count: 1,
            osts: 4,
            forced: false,
        }
    }

    fn small(demo: Demo) -> Size {
        Size::named(demo, "small").unwrap()
    }

    fn names(plan: &Plan, kind: ExperimentKind) -> Vec<&str> {
        let mut experiments = plan.experiments.iter();
        let found = experiments.find(|e| e.kind == kind).unwrap();
        found.configurations.iter().map(|s| s.name.as_str()).collect()
    }

    #[test]
    fn larger_sizes_have_more_measurements_or_files() {
        for demo in [Demo::Smp, Demo::Pdo, Demo::Dne] {
            let mut last = (0, 0);
            for name in SIZES {
                let size = Size::named(demo, name).unwrap();
                let plan = Plan::new(demo, &size, &resources(2), &[]);
                let kinds: Vec<ExperimentKind> = plan.experiments.iter().map(|e| e.kind).collect();
                assert_eq!(kinds, ExperimentKind::of(demo));
                let now = (plan.measurements(), size.files);
                assert!(now > last, "{name}");
                last = now;
            }
        }
        assert_eq!(Size::named(Demo::Smp, "huge"), None);
    }

    #[test]
    fn baseline_is_the_first_configuration() {
        let plan = Plan::new(Demo::Smp, &small(Demo::Smp), &resources(24), &[]);
        for experiment in &plan.experiments {
            let baseline = &experiment.configurations[0];
            assert_eq!((baseline.partitions, baseline.name.as_str()), (1, "1 (1:1)"));
        }
        let plan = Plan::new(Demo::Pdo, &small(Demo::Pdo), &resources(2), &[]);
        assert_eq!(names(&plan, ExperimentKind::Pdo), ["PDO off", "PDO on"]);
    }

    #[test]
    fn more_partitions_than_cpus_run_only_if_forced() {
        let two = resources(2);
        let plan = Plan::new(Demo::Smp, &small(Demo::Smp), &two, &[]);
        let cpt = names(&plan, ExperimentKind::Cpt);
        assert_eq!(
            cpt,
            [
                "1 (1:1)",
                "2 (1:1), rotor off",
                "2 (1:1), rotor on",
                "2 (2:2), rotor off",
                "2 (2:2), rotor on"
            ]
        );
        let reason = &plan.not_shown[0];
        assert!(reason.contains("4 (1:3)") && reason.contains("12 (12:12)") && !reason.contains("2 (2:2)"));
        assert!(reason.contains("only 2 CPUs"), "{reason}");

        let forced = Resources { forced: true, ..two };
        let plan = Plan::new(Demo::Smp, &small(Demo::Smp), &forced, &[]);
        let cpt = plan
            .experiments
            .iter()
            .find(|e| e.kind == ExperimentKind::Cpt)
            .unwrap();
        assert_eq!(cpt.configurations.len(), 17);
        for configuration in &cpt.configurations {
            assert_eq!(
                configuration.forced,
                configuration.partitions > 2,
                "{}",
                configuration.name
            );
        }
        assert!(plan.not_shown[0].contains("are marked"));
    }

    #[test]
    fn one_cpu_runs_only_the_baseline() {
        let plan = Plan::new(Demo::Smp, &small(Demo::Smp), &resources(1), &[]);
        assert!(plan.experiments.iter().all(|e| e.configurations.len() == 1));
        assert!(plan.not_shown.iter().any(|n| n.contains("only 1 CPU,")));
    }

    #[test]
    fn split_gives_lnet_the_first_partitions() {
        let split = Configuration::new(&resources(4), (4, 1, 3));
        assert_eq!((split.lnet_cpts(), split.service_cpts()), (0..1, 1..4));
        let shared = Configuration::new(&resources(4), (4, 4, 4));
        assert_eq!((shared.lnet_cpts(), shared.service_cpts()), (0..4, 0..4));
    }

    #[test]
    fn stripe_counts_beyond_the_osts_are_listed_as_not_shown() {
        let few = Resources {
            osts: 2,
            ..resources(2)
        };
        let plan = Plan::new(Demo::Smp, &small(Demo::Smp), &few, &[ExperimentKind::Mdtest]);
        assert_eq!(plan.experiments.len(), 1);
        let stripes = plan.experiments[0].loads.iter().filter_map(|l| match l {
            DemoLoad::Files(l) => l.stripes(),
            DemoLoad::Lnet(_) => None,
        });
        assert_eq!(stripes.max(), Some(2));
        let text = plan.not_shown.join("\n");
        assert!(
            text.contains("with 4 stripes") && text.contains("OSTs is only 2."),
            "{text}"
        );
        assert!(text.contains("768 client threads and 262144 files"), "{text}");
    }
}
