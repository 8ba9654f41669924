//! The demonstrations and their experiments: names in rows and on the command line, and words for the page.

use serde::{Deserialize, Serialize};

/// Which demonstration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demo {
    /// Servers that scale with their CPUs.
    Smp,
    /// Parallel directory operations.
    Pdo,
}

impl Demo {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Demo::Smp => "smp",
            Demo::Pdo => "pdo",
        }
    }

    /// The one of a name.
    pub fn named(name: &str) -> Option<Demo> {
        [Demo::Smp, Demo::Pdo].into_iter().find(|d| d.name() == name)
    }
}

/// An experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// LNet selftest by number of clients.
    LnetClients,
    /// LNet selftest, one client, by requests in flight.
    LnetInFlight,
    /// Create, stat, unlink by client threads.
    Mdtest,
    /// The same by the mounts of one client.
    Mounts,
    /// The same by how partitions are divided.
    Cpt,
    /// Parallel directory operations on and off.
    Pdo,
}

impl Kind {
    /// Those of a demonstration, in order.
    pub fn of(demo: Demo) -> &'static [Kind] {
        match demo {
            Demo::Smp => &[
                Kind::LnetClients,
                Kind::LnetInFlight,
                Kind::Mdtest,
                Kind::Mounts,
                Kind::Cpt,
            ],
            Demo::Pdo => &[Kind::Pdo],
        }
    }

    /// The one of a name.
    pub fn named(name: &str) -> Option<Kind> {
        let all = [Demo::Smp, Demo::Pdo].into_iter().flat_map(Kind::of);
        all.copied().find(|kind| kind.name() == name)
    }

    /// Its name on the command line and in rows.
    pub fn name(self) -> &'static str {
        match self {
            Kind::LnetClients => "lnet-clients",
            Kind::LnetInFlight => "lnet-in-flight",
            Kind::Mdtest => "mdtest",
            Kind::Mounts => "mounts",
            Kind::Cpt => "cpt",
            Kind::Pdo => "pdo",
        }
    }

    /// Its title on the page.
    pub(super) fn title(self) -> &'static str {
        match self {
            Kind::LnetClients => "LNet selftest by number of clients",
            Kind::LnetInFlight => "LNet selftest by requests in flight, one client",
            Kind::Mdtest => "Create, stat and unlink by client threads",
            Kind::Mounts => "One client with more and more mounts",
            Kind::Cpt => "How partitions are divided between LNet and services",
            Kind::Pdo => "Parallel directory operations on and off",
        }
    }

    /// What it does, in a few sentences.
    pub(super) fn about(self) -> &'static str {
        match self {
            Kind::LnetClients => {
                "LNet selftest's pings, and reads and writes of 4 KiB, between clients (each a node with an address of its own) and one server. LNet alone: no requests of a file system."
            }
            Kind::LnetInFlight => "The same with one client, which belongs to one partition of the server.",
            Kind::Mdtest => {
                "Each client thread works through a mount of its own. Files are created; then other mounts ask for their attributes, so that each question goes to the server, and remove them."
            }
            Kind::Mounts => "Directory per thread, one stripe, all mounts on one client node.",
            Kind::Cpt => {
                "Directory per thread, one stripe. Partitions are written as in the report: P (L:S) has P partitions, LNet on L and the services on S of them; with L = S = P both are on all."
            }
            Kind::Pdo => {
                "Each client thread works through a mount of its own. mknod is a single request; open-create and close are two, with or without an object. With PDO off an operation locks the whole directory."
            }
        }
    }

    /// What the horizontal axis shows.
    pub(super) fn axis(self) -> &'static str {
        match self {
            Kind::LnetClients => "clients",
            Kind::LnetInFlight => "requests in flight",
            Kind::Mounts => "mounts",
            Kind::Mdtest | Kind::Cpt | Kind::Pdo => "client threads",
        }
    }
}
