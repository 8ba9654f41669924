//! Which experiments a demonstration has: the configurations of its servers, the loads, and what cannot be shown on this machine or
//! is left out at this size. Pure.
//!
//! A configuration is written as the reports write it: `4 (1:3)` has four CPU partitions, LNet on the first and the services
//! on the other three; `4 (4:4)` has both on all four.

use super::kind::{Demo, Kind};
use super::load::{FileLoad, Load, Make};
use super::rows::Directory;
use super::size::{Crowd, Size};
use crate::lnet::{self, Point};
use std::ops::Range;

/// What there is to run it on.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// CPUs that servers may use.
    pub cpus: usize,
    /// Partitions by the published rule.
    pub published: usize,
    /// Object targets of each file system.
    pub osts: usize,
    /// Partitions may share CPUs, to be marked.
    pub forced: bool,
}

impl Room {
    /// Partitions that stand for a server that is partitioned: as published, but at least two where there are two CPUs.
    fn partitions(&self) -> usize {
        self.published.max(2.min(self.cpus))
    }
}

/// How servers are configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Its name on the page.
    pub name: String,
    /// CPU partitions.
    pub partitions: usize,
    /// Partitions that LNet is on.
    pub lnet: usize,
    /// Partitions that the services are on.
    pub services: usize,
    /// `portal_rotor`.
    pub rotor: bool,
    /// Parallel directory operations.
    pub pdo: bool,
    /// The partitions share CPUs.
    pub forced: bool,
}

impl Setting {
    fn new(room: &Room, (partitions, lnet, services): (usize, usize, usize)) -> Setting {
        Setting {
            name: format!("{partitions} ({lnet}:{services})"),
            partitions,
            lnet,
            services,
            rotor: false,
            pdo: true,
            forced: partitions > room.cpus,
        }
    }

    /// One partition, one queue.
    fn baseline(room: &Room) -> Setting {
        Setting::new(room, (1, 1, 1))
    }

    fn with_rotor(self, rotor: bool) -> Setting {
        let name = format!("{}, rotor {}", self.name, if rotor { "on" } else { "off" });
        Setting { name, rotor, ..self }
    }

    fn without_pdo(self) -> Setting {
        let name = format!("{}, PDO off", self.name);
        Setting {
            name,
            pdo: false,
            ..self
        }
    }

    /// The numbers of the partitions that LNet is on.
    pub fn lnet_cpts(&self) -> Range<usize> {
        0..self.lnet
    }

    /// The numbers of the partitions that the services are on: others than LNet's, where there are enough.
    pub fn service_cpts(&self) -> Range<usize> {
        self.partitions - self.services..self.partitions
    }
}

/// Configurations on loads.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// Which.
    pub kind: Kind,
    /// The baseline first.
    pub settings: Vec<Setting>,
    /// In order.
    pub loads: Vec<Load>,
}

/// A demonstration.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Which.
    pub demo: Demo,
    /// How often everything is measured.
    pub runs: usize,
    /// In order.
    pub experiments: Vec<Experiment>,
    /// What is not shown, and why.
    pub not_shown: Vec<String>,
}

/// The report's ways to divide partitions, and one more for machines with two CPUs.
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

impl Plan {
    /// What a demonstration shows at this size on this machine, of the experiments in `only` (empty: all).
    pub fn new(demo: Demo, size: &Size, room: &Room, only: &[Kind]) -> Plan {
        let stripes: Vec<u16> = size
            .stripes
            .iter()
            .copied()
            .filter(|s| usize::from(*s) <= room.osts)
            .collect();
        let wanted = |kind: &&Kind| only.is_empty() || only.contains(kind);
        let experiments: Vec<Experiment> = Kind::of(demo)
            .iter()
            .filter(wanted)
            .map(|&kind| Experiment {
                kind,
                settings: settings(kind, room),
                loads: loads(kind, size, &stripes),
            })
            .filter(|e| !e.loads.is_empty())
            .collect();
        let not_shown = not_shown(demo, size, room, &experiments);
        Plan {
            demo,
            runs: size.runs,
            experiments,
            not_shown,
        }
    }

    /// How many measurements there are.
    pub fn measurements(&self) -> usize {
        let of = |e: &Experiment| e.settings.len() * e.loads.len();
        self.runs * self.experiments.iter().map(of).sum::<usize>()
    }

    /// The most client threads of any load with files.
    pub fn threads(&self) -> usize {
        let loads = self.experiments.iter().flat_map(|e| &e.loads);
        let threads = loads.map(|l| match l {
            Load::Lnet(_) => 0,
            Load::Files(l) => l.crowd.all(),
        });
        threads.max().unwrap_or(0)
    }
}

fn settings(kind: Kind, room: &Room) -> Vec<Setting> {
    let n = room.partitions();
    let partitioned = || Setting::new(room, (n, n, n));
    let mut settings = match kind {
        Kind::LnetClients | Kind::LnetInFlight => vec![
            Setting::baseline(room),
            partitioned().with_rotor(false),
            partitioned().with_rotor(true),
        ],
        Kind::Mdtest => vec![
            Setting::baseline(room),
            partitioned(),
            partitioned().without_pdo(),
        ],
        Kind::Mounts => vec![Setting::baseline(room), partitioned()],
        Kind::Cpt => {
            let shown = DIVISIONS.into_iter().filter(|d| room.forced || d.0 <= room.cpus);
            let with_rotor = |d: (usize, usize, usize)| match d.0 {
                1 => vec![Setting::new(room, d)],
                _ => [false, true]
                    .map(|rotor| Setting::new(room, d).with_rotor(rotor))
                    .into(),
            };
            shown.flat_map(with_rotor).collect()
        }
        Kind::Pdo => vec![
            Setting {
                name: "PDO off".to_owned(),
                pdo: false,
                ..partitioned()
            },
            Setting {
                name: "PDO on".to_owned(),
                ..partitioned()
            },
        ],
    };
    if n == 1 && !matches!(kind, Kind::Cpt | Kind::Pdo) {
        // A partitioned server would be the baseline again.
        settings.truncate(1);
    }
    settings
}

fn loads(kind: Kind, size: &Size, stripes: &[u16]) -> Vec<Load> {
    let lnet = |points: &[(usize, usize)]| {
        let of = |load| {
            let point = move |&(clients, concurrency)| {
                Load::Lnet(Point {
                    load,
                    clients,
                    concurrency,
                })
            };
            points.iter().map(point).collect::<Vec<_>>()
        };
        let loads = [
            lnet::Load::Ping,
            lnet::Load::Read(4 << 10),
            lnet::Load::Write(4 << 10),
        ];
        loads.into_iter().flat_map(of).collect()
    };
    let files = |crowds: &[Crowd], directories: &[Directory], makes: &[Make], stat| {
        let mut all = Vec::new();
        for &directory in directories {
            for &make in makes {
                for &crowd in crowds {
                    all.push(Load::Files(FileLoad {
                        crowd,
                        directory,
                        make,
                        files: size.files,
                        stat,
                    }));
                }
            }
        }
        all
    };
    let both = [Directory::PerThread, Directory::Shared];
    match kind {
        Kind::LnetClients => {
            let point = |&clients| (clients, size.lnet_concurrency);
            lnet(&size.lnet_clients.iter().map(point).collect::<Vec<_>>())
        }
        Kind::LnetInFlight => lnet(&size.in_flight.iter().map(|&n| (1, n)).collect::<Vec<_>>()),
        Kind::Mdtest => {
            let makes: Vec<Make> = stripes.iter().map(|&s| Make::Open(s)).collect();
            files(&size.crowds, &both, &makes, true)
        }
        Kind::Mounts => {
            let crowd = |&threads| Crowd { clients: 1, threads };
            let crowds: Vec<Crowd> = size.mounts.iter().map(crowd).collect();
            files(&crowds, &[Directory::PerThread], &[Make::Open(1)], true)
        }
        Kind::Cpt => files(&size.crowds, &[Directory::PerThread], &[Make::Open(1)], true),
        Kind::Pdo => {
            let makes = [Make::Mknod, Make::Open(0), Make::Open(1)];
            files(
                &size.crowds,
                &[Directory::Shared, Directory::PerThread],
                &makes,
                false,
            )
        }
    }
}

/// What this machine cannot show, and what the size leaves out.
fn not_shown(demo: Demo, size: &Size, room: &Room, experiments: &[Experiment]) -> Vec<String> {
    let mut all = Vec::new();
    let has = |kind| experiments.iter().any(|e| e.kind == kind);
    let cpus = match room.cpus {
        1 => "1 CPU".to_owned(),
        n => format!("{n} CPUs"),
    };
    let too_many: Vec<String> = DIVISIONS
        .into_iter()
        .filter(|d| d.0 > room.cpus)
        .map(|d| Setting::new(room, d).name)
        .collect();
    if has(Kind::Cpt) && !too_many.is_empty() {
        let names = too_many.join(", ");
        all.push(match room.forced {
            false => format!("{names}: there are only {cpus}, and partitions that share a CPU show nothing."),
            true => format!(
                "{names} were forced to share {cpus} and are marked: they show that the configuration works, and nothing about its speed."
            ),
        });
    }
    if room.cpus == 1 && (has(Kind::Mdtest) || has(Kind::LnetClients)) {
        all.push(
            "A server with several partitions: there is only 1 CPU, so that only the baseline is measured."
                .to_owned(),
        );
    }
    let few_osts: Vec<String> = (size.stripes.iter())
        .filter(|s| usize::from(**s) > room.osts)
        .map(u16::to_string)
        .collect();
    if has(Kind::Mdtest) && !few_osts.is_empty() {
        all.push(format!(
            "Files with {} stripes: the file system has only {} OSTs.",
            few_osts.join(" and "),
            room.osts
        ));
    }
    let most = |s: &Size| s.crowds.iter().map(|c| c.all()).max().unwrap_or(0);
    if let Some(report) = Size::named(demo, "report")
        && (has(Kind::Mdtest) || has(Kind::Cpt) || has(Kind::Pdo))
        && (most(size) < most(&report) || size.files < report.files)
    {
        all.push(format!(
            "The report's {} client threads and {} files: this run had at most {} threads and {} files (--size report has all).",
            most(&report),
            report.files,
            most(size),
            size.files
        ));
    }
    all.push(format!(
        "Clients and servers on machines of their own: all are on the same {cpus} and share them, so that a server has only a part of each."
    ));
    all.push("InfiniBand: the network is TCP over loopback.".to_owned());
    if demo == Demo::Smp {
        all.push(
            "Lustre 2.2: the baseline is this server with one partition, so that the published percentages say which way, not how far."
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

    fn room(cpus: usize) -> Room {
        Room {
            cpus,
            published: 1,
            osts: 4,
            forced: false,
        }
    }

    fn small(demo: Demo) -> Size {
        Size::named(demo, "small").unwrap()
    }

    fn names(plan: &Plan, kind: Kind) -> Vec<&str> {
        let mut experiments = plan.experiments.iter();
        let found = experiments.find(|e| e.kind == kind).unwrap();
        found.settings.iter().map(|s| s.name.as_str()).collect()
    }

    #[test]
    fn every_size_has_every_experiment_and_they_grow() {
        for demo in [Demo::Smp, Demo::Pdo] {
            let mut last = 0;
            for name in SIZES {
                let size = Size::named(demo, name).unwrap();
                let plan = Plan::new(demo, &size, &room(2), &[]);
                let kinds: Vec<Kind> = plan.experiments.iter().map(|e| e.kind).collect();
                assert_eq!(kinds, Kind::of(demo));
                assert!(plan.measurements() > last, "{name}");
                last = plan.measurements();
            }
        }
        assert_eq!(Size::named(Demo::Smp, "huge"), None);
    }

    #[test]
    fn each_experiment_begins_with_its_baseline() {
        let plan = Plan::new(Demo::Smp, &small(Demo::Smp), &room(24), &[]);
        for experiment in &plan.experiments {
            let baseline = &experiment.settings[0];
            assert_eq!((baseline.partitions, baseline.name.as_str()), (1, "1 (1:1)"));
        }
        let plan = Plan::new(Demo::Pdo, &small(Demo::Pdo), &room(2), &[]);
        assert_eq!(names(&plan, Kind::Pdo), ["PDO off", "PDO on"]);
    }

    #[test]
    fn more_partitions_than_cpus_are_listed_not_run_unless_forced() {
        let two = room(2);
        let plan = Plan::new(Demo::Smp, &small(Demo::Smp), &two, &[]);
        let cpt = names(&plan, Kind::Cpt);
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
        let listed = &plan.not_shown[0];
        assert!(listed.contains("4 (1:3)") && listed.contains("12 (12:12)") && !listed.contains("2 (2:2)"));
        assert!(listed.contains("only 2 CPUs"), "{listed}");

        let forced = Room { forced: true, ..two };
        let plan = Plan::new(Demo::Smp, &small(Demo::Smp), &forced, &[]);
        let cpt = plan.experiments.iter().find(|e| e.kind == Kind::Cpt).unwrap();
        assert_eq!(cpt.settings.len(), 17);
        for setting in &cpt.settings {
            assert_eq!(setting.forced, setting.partitions > 2, "{}", setting.name);
        }
        assert!(plan.not_shown[0].contains("are marked"));
    }

    #[test]
    fn one_cpu_shows_the_baseline_alone() {
        let plan = Plan::new(Demo::Smp, &small(Demo::Smp), &room(1), &[]);
        assert!(plan.experiments.iter().all(|e| e.settings.len() == 1));
        assert!(plan.not_shown.iter().any(|n| n.contains("only 1 CPU,")));
    }

    #[test]
    fn a_split_gives_lnet_the_first_partitions_and_services_the_others() {
        let split = Setting::new(&room(4), (4, 1, 3));
        assert_eq!((split.lnet_cpts(), split.service_cpts()), (0..1, 1..4));
        let shared = Setting::new(&room(4), (4, 4, 4));
        assert_eq!((shared.lnet_cpts(), shared.service_cpts()), (0..4, 0..4));
    }

    #[test]
    fn stripes_need_osts_and_what_is_left_out_is_said() {
        let few = Room { osts: 2, ..room(2) };
        let plan = Plan::new(Demo::Smp, &small(Demo::Smp), &few, &[Kind::Mdtest]);
        assert_eq!(plan.experiments.len(), 1);
        let stripes = plan.experiments[0].loads.iter().filter_map(|l| match l {
            Load::Files(l) => l.stripes(),
            Load::Lnet(_) => None,
        });
        assert_eq!(stripes.max(), Some(2));
        let said = plan.not_shown.join("\n");
        assert!(
            said.contains("with 4 stripes") && said.contains("only 2 OSTs"),
            "{said}"
        );
        assert!(said.contains("768 client threads and 262144 files"), "{said}");
    }
}
