//! The demonstrations and their experiments, with their names in rows and on the command line, and
//! their texts for the page.

use serde::{Deserialize, Serialize};

/// A demonstration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demo {
    /// Partitioned servers: rates with one and with several CPU partitions.
    Smp,
    /// Parallel directory operations.
    Pdo,
    /// A name space over several metadata targets.
    Dne,
}

/// All demonstrations.
const DEMOS: [Demo; 3] = [Demo::Smp, Demo::Pdo, Demo::Dne];

impl Demo {
    /// The demonstration's name on the command line and in the file of rows.
    pub fn name(self) -> &'static str {
        match self {
            Demo::Smp => "smp",
            Demo::Pdo => "pdo",
            Demo::Dne => "dne",
        }
    }

    /// The demonstration with this name.
    pub fn named(name: &str) -> Option<Demo> {
        DEMOS.into_iter().find(|d| d.name() == name)
    }
}

/// An experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExperimentKind {
    /// LNet selftest, plotted against the number of clients.
    LnetClients,
    /// LNet selftest with one client, plotted against the requests in flight.
    LnetInFlight,
    /// Create, stat and unlink, plotted against the number of client threads.
    Mdtest,
    /// Create, stat and unlink, plotted against the number of mounts of one client node.
    Mounts,
    /// Create, stat and unlink with partitions divided between LNet and services in several ways.
    Cpt,
    /// mknod, create and unlink with parallel directory operations off and on.
    Pdo,
    /// mknod, create, stat and unlink on 1 to 4 metadata servers with one target each.
    #[serde(rename = "dne-1")]
    DneOne,
    /// The same with two targets on each server.
    #[serde(rename = "dne-2")]
    DneTwo,
}

impl ExperimentKind {
    /// The experiments of a demonstration, in order.
    pub fn of(demo: Demo) -> &'static [ExperimentKind] {
        match demo {
            Demo::Smp => &[
                ExperimentKind::LnetClients,
                ExperimentKind::LnetInFlight,
                ExperimentKind::Mdtest,
                ExperimentKind::Mounts,
                ExperimentKind::Cpt,
            ],
            Demo::Pdo => &[ExperimentKind::Pdo],
            Demo::Dne => &[ExperimentKind::DneOne, ExperimentKind::DneTwo],
        }
    }

    /// The experiment with this name.
    pub fn named(name: &str) -> Option<ExperimentKind> {
        let all = DEMOS.into_iter().flat_map(ExperimentKind::of);
        all.copied().find(|kind| kind.name() == name)
    }

    /// The experiment's name on the command line and in rows.
    pub fn name(self) -> &'static str {
        match self {
            ExperimentKind::LnetClients => "lnet-clients",
            ExperimentKind::LnetInFlight => "lnet-in-flight",
            ExperimentKind::Mdtest => "mdtest",
            ExperimentKind::Mounts => "mounts",
            ExperimentKind::Cpt => "cpt",
            ExperimentKind::Pdo => "pdo",
            ExperimentKind::DneOne => "dne-1",
            ExperimentKind::DneTwo => "dne-2",
        }
    }

    /// The number of metadata targets on each metadata server, for an experiment that measures
    /// several numbers of servers; 0 for others.
    pub fn mdts_per_mds(self) -> usize {
        match self {
            ExperimentKind::DneOne => 1,
            ExperimentKind::DneTwo => 2,
            _ => 0,
        }
    }

    /// The experiment's title on the page.
    pub(super) fn title(self) -> &'static str {
        match self {
            ExperimentKind::LnetClients => "LNet selftest by number of clients",
            ExperimentKind::LnetInFlight => "LNet selftest by requests in flight, one client",
            ExperimentKind::Mdtest => "Create, stat and unlink by client threads",
            ExperimentKind::Mounts => "One client with an increasing number of mounts",
            ExperimentKind::Cpt => "Division of partitions between LNet and services",
            ExperimentKind::Pdo => "Parallel directory operations on and off",
            ExperimentKind::DneOne => "Metadata servers with one target each",
            ExperimentKind::DneTwo => "Metadata servers with two targets each",
        }
    }

    /// The experiment's description on the page.
    pub(super) fn description(self) -> &'static str {
        match self {
            ExperimentKind::LnetClients => {
                "LNet selftest's pings, and reads and writes of 4 KiB, between clients (each a node with its own address) and one server. There are no file system requests."
            }
            ExperimentKind::LnetInFlight => {
                "The same loads with one client, which belongs to one partition of the server."
            }
            ExperimentKind::Mdtest => {
                "Each client thread uses its own mount. It creates files. Other mounts then stat and remove them, so each stat is a request to the server."
            }
            ExperimentKind::Mounts => {
                "Each mount has one thread, which uses its own directory. Files have one stripe. All mounts are on one client node."
            }
            ExperimentKind::Cpt => {
                "Each thread uses its own directory. Files have one stripe. A configuration is named as in the report: P (L:S) has P partitions, with LNet on L of them and the services on S of them. With L = S = P, both use all partitions."
            }
            ExperimentKind::Pdo => {
                "Each client thread uses its own mount. mknod creates a file without opening it. create also opens and closes the file; the file has an object or none. With PDO off, an operation locks the whole directory."
            }
            ExperimentKind::DneOne | ExperimentKind::DneTwo => {
                "Each client thread has its own mount and its own directory. The directories are on the targets of the first servers in turn. Each server has a process of its own with a limit of CPU time, so that the servers and not the clients limit the rates. mknod creates a file without an object, create one with an object; other mounts stat and remove the files."
            }
        }
    }

    /// The label of the horizontal axis.
    pub(super) fn axis(self) -> &'static str {
        match self {
            ExperimentKind::LnetClients => "clients",
            ExperimentKind::LnetInFlight => "requests in flight",
            ExperimentKind::Mounts => "mounts",
            ExperimentKind::DneOne | ExperimentKind::DneTwo => "metadata targets",
            ExperimentKind::Mdtest | ExperimentKind::Cpt | ExperimentKind::Pdo => "client threads",
        }
    }
}
